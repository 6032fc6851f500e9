//! Documents: small named values that belong to no lane, such as schedules.

use async_trait::async_trait;
use tasklane_core::id::Name;
use tasklane_core::time::Timestamp;

use crate::StoreError;

/// Keeps documents.
///
/// Promises:
/// 1. A put applies where the stored version is the one it names, and nowhere else; each for itself, whole or not at
///    all. Where it does not apply it says which version there is. Durable when it is answered.
/// 2. A put that applies gets a version above all that were given before, to whichever document, also after removals.
/// 3. Lists are in the order of namespace and id, those by time in the order of (time, namespace, id). Both are bounded;
///    following pages to the end gives everything that was there throughout, once.
/// 4. What was acknowledged survives closing and reopening, and a crash of the process.
///
/// A put whose answer was lost is settled by reading: a version above the expected one with the value that was sent tells
/// that it was applied, or the same by somebody else, which is as good.
#[async_trait]
pub trait Documents: Send + Sync + std::fmt::Debug {
    /// Changes documents, in this order. The outcomes come in the same.
    async fn put(&self, puts: &[PutDocument]) -> Result<Vec<PutOutcome>, StoreError>;

    /// Documents by key, in the order asked for.
    async fn get(&self, keys: &[DocumentKey]) -> Result<Vec<Option<Document>>, StoreError>;

    /// Documents of a kind by namespace and id.
    async fn by_name(&self, list: DocumentList) -> Result<Vec<Document>, StoreError>;

    /// Documents of a kind whose time has come, by that time. Those without a time are not among them.
    async fn by_time(&self, list: DueList) -> Result<Vec<Document>, StoreError>;
}

/// What a document is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum DocumentKind {
    /// A schedule and where it stands.
    Schedule = 1,
    /// Who holds a lock, and until when.
    Lock = 2,
    /// A task that drives others is to be cancelled.
    Cancel = 3,
    /// A workflow that is run by its name.
    Workflow = 4,
    /// How a task type is run.
    Executor = 5,
    /// What looks at the results of a task type.
    Analyzer = 6,
    /// What is signed with.
    Secret = 7,
    /// What all processes of a deployment must agree on.
    Deployment = 8,
}

impl DocumentKind {
    /// All of them.
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

    /// What it is called in names of keys.
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
    /// What it is about.
    pub kind: DocumentKind,
    /// Whose it is.
    pub namespace: Name,
    /// Its name there.
    pub id: Name,
}

/// A document.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Document {
    /// Which one.
    pub key: DocumentKey,
    /// Changes with every put; never 0.
    pub version: u64,
    /// When somebody must look at it.
    pub due: Option<Timestamp>,
    /// What it says.
    pub value: Vec<u8>,
}

/// A change of a document.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PutDocument {
    /// Which one.
    pub key: DocumentKey,
    /// The version that it replaces; 0 where there must be none.
    pub expected: u64,
    /// What it says and when it is due from now on; `None` removes it.
    pub content: Option<Content>,
}

/// What a document says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Content {
    /// When somebody must look at it.
    pub due: Option<Timestamp>,
    /// The rest.
    pub value: Vec<u8>,
}

impl PutDocument {
    /// The most bytes that a document may have, so that every store takes it.
    pub const BYTES_MAX: usize = 1 << 20;

    /// About how many bytes it writes.
    pub fn bytes(&self) -> usize {
        let name = self.key.namespace.as_str().len() + self.key.id.as_str().len();
        2 * name + self.content.as_ref().map_or(0, |content| content.value.len()) + 64
    }

    /// Cuts puts into parts that a store takes at once: a thousand, or 4 MiB, or one that is larger.
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

/// What became of a put.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PutOutcome {
    /// Written.
    Stored {
        /// The new version.
        version: u64,
    },
    /// Somebody else was first; nothing was written.
    Conflict {
        /// The version that is stored; 0 for none.
        current: u64,
    },
}

/// A question for documents by name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DocumentList {
    /// Of which kind.
    pub kind: DocumentKind,
    /// Only this namespace.
    pub namespace: Name,
    /// Only ids behind this one.
    pub after: Option<Name>,
    /// Most documents in the answer.
    pub limit: usize,
}

/// A question for documents by time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DueList {
    /// Of which kind.
    pub kind: DocumentKind,
    /// Due at this time or before.
    pub until: Timestamp,
    /// Only those behind this one.
    pub after: Option<(Timestamp, Name, Name)>,
    /// Most documents in the answer.
    pub limit: usize,
}
