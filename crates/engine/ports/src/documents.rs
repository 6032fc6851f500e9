//! Documents: small named values that belong to no lane, such as schedules.

use async_trait::async_trait;
use tasklane_core::id::Name;
use tasklane_core::time::Timestamp;

use crate::StoreError;

/// Keeps documents.
///
/// Promises:
/// 1. A put applies where the stored version is the version that it names, and nowhere else; each put by
///    itself, whole or not at all. A put that does not apply answers the stored version. A put is durable
///    when it is answered.
/// 2. A put that applies gets a version above all earlier versions of every document, also of removed ones.
/// 3. Lists by name are in the order of (namespace, id), lists by time in the order of (time, namespace, id).
///    Both are bounded; following pages to the end gives each document that existed throughout, once.
/// 4. Acknowledged documents survive closing and reopening, and a crash of the process.
///
/// A reader settles a put whose answer was lost: a version above the expected one with the value that was
/// sent shows that the put was applied, or that another client put the same value, which is as good.
#[async_trait]
pub trait Documents: Send + Sync + std::fmt::Debug {
    /// Changes documents, in this order. The outcomes come in the same.
    async fn put(&self, puts: &[PutDocument]) -> Result<Vec<PutOutcome>, StoreError>;

    /// Documents by key, in the order asked for.
    async fn get(&self, keys: &[DocumentKey]) -> Result<Vec<Option<Document>>, StoreError>;

    /// Documents of a kind by namespace and id.
    async fn by_name(&self, list: DocumentList) -> Result<Vec<Document>, StoreError>;

    /// Documents of a kind whose time has come, by that time. Documents without a time are left out.
    async fn by_time(&self, list: DueList) -> Result<Vec<Document>, StoreError>;
}

/// The kind of a document.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum DocumentKind {
    /// A schedule with its state.
    Schedule = 1,
    /// A lock: its holder, and until when.
    Lock = 2,
    /// A request to cancel a composite.
    Cancel = 3,
    /// A workflow that runs by its name.
    Workflow = 4,
    /// The definition of a custom task type.
    Executor = 5,
    /// The analyzer of a task type's results.
    Analyzer = 6,
    /// A signing secret.
    Secret = 7,
    /// The settings that all processes of a deployment must share.
    Deployment = 8,
}

impl DocumentKind {
    /// All kinds.
    pub const ALL: [Self; 8] = [
        Self::Schedule,
        Self::Lock,
        Self::Cancel,
        Self::Workflow,
        Self::Executor,
        Self::Analyzer,
        Self::Secret,
        Self::Deployment,
    ];

    /// Its word in keys.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Schedule => "schedule",
            Self::Lock => "lock",
            Self::Cancel => "cancel",
            Self::Workflow => "workflow",
            Self::Executor => "executor",
            Self::Analyzer => "analyzer",
            Self::Secret => "secret",
            Self::Deployment => "deployment",
        }
    }

    /// The number under which it is stored.
    pub const fn code(self) -> u8 {
        self as u8
    }
}

/// Names a document.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DocumentKey {
    /// Its kind.
    pub kind: DocumentKind,
    /// The namespace that it belongs to.
    pub namespace: Name,
    /// Its name there.
    pub id: Name,
}

/// A document.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Document {
    /// Its key.
    pub key: DocumentKey,
    /// Changes with every put; never 0.
    pub version: u64,
    /// When a server must read it.
    pub due: Option<Timestamp>,
    /// Its content, encoded.
    pub value: Vec<u8>,
}

/// A change of a document.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PutDocument {
    /// The document to change.
    pub key: DocumentKey,
    /// The version that it replaces; 0 if the document must not exist.
    pub expected: u64,
    /// The new content with its due time; `None` removes the document.
    pub content: Option<Content>,
}

/// The content of a document.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Content {
    /// When a server must read it.
    pub due: Option<Timestamp>,
    /// The value, encoded.
    pub value: Vec<u8>,
}

impl PutDocument {
    /// The most bytes that a document may have, so that every store takes it.
    pub const BYTES_MAX: usize = 1 << 20;

    /// About how many bytes this put writes.
    pub fn bytes(&self) -> usize {
        let name = self.key.namespace.as_str().len() + self.key.id.as_str().len();
        2 * name + self.content.as_ref().map_or(0, |content| content.value.len()) + 64
    }

    /// Cuts puts into batches that a store takes in one call: a thousand puts, or 4 MiB, or a single larger
    /// put.
    pub fn batches(puts: &[Self]) -> impl Iterator<Item = &[Self]> {
        let mut rest = puts;
        std::iter::from_fn(move || {
            let mut bytes = 0;
            let fits = rest.iter().take(1000).take_while(|put| {
                let first = bytes == 0;
                bytes += put.bytes();
                first || bytes <= 4 << 20
            });
            let (batch, after) = rest.split_at(fits.count());
            rest = after;
            (!batch.is_empty()).then_some(batch)
        })
    }
}

/// The outcome of a put.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PutOutcome {
    /// Written.
    Stored {
        /// The new version.
        version: u64,
    },
    /// Another put came first; nothing was written.
    Conflict {
        /// The version that is stored; 0 for none.
        current: u64,
    },
}

/// A query for documents by name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DocumentList {
    /// The kind.
    pub kind: DocumentKind,
    /// Only this namespace.
    pub namespace: Name,
    /// Only ids after this one.
    pub after: Option<Name>,
    /// Most documents in the answer.
    pub limit: usize,
}

/// A query for documents by time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DueList {
    /// The kind.
    pub kind: DocumentKind,
    /// Due at this time or before.
    pub until: Timestamp,
    /// Only documents after this position.
    pub after: Option<(Timestamp, Name, Name)>,
    /// Most documents in the answer.
    pub limit: usize,
}
