//! Documents that users register by name: put, read, list and remove; custom task types among them.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tasklane_core::id::Name;
use tasklane_ports::{
    Content, Document, DocumentKey, DocumentKind, DocumentList, PutDocument, PutOutcome, StoreError,
};
use tokio::time::Instant;

use crate::request::{CHECK_STEPS_MAX, CustomType, FieldError, RunAs, TaskRequest, canonical, code};

use super::{Node, SubmitError};

/// A document that a user registered by name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamedDocument {
    /// Its name.
    pub id: Name,
    /// Changes with every put that changes it.
    pub version: u64,
    /// The document as it was sent.
    pub json: String,
}

/// Why a document was not registered.
#[derive(Debug, thiserror::Error)]
pub enum NamedDocumentError {
    /// The document is not valid.
    #[error(transparent)]
    Invalid(#[from] FieldError),
    /// The name holds another document.
    #[error("the name holds another document")]
    Exists,
    /// Others change it at the same time.
    #[error("other changes of the document came first; try again")]
    Crowded,
    /// The store did not answer.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// The most bytes of a document: every store takes it, and a run carries a copy.
const DEFINITION_BYTES_MAX: usize = 1000 << 10;
/// How often a change is tried when other changes come first.
const TRIES: usize = 10;
/// How long cached documents are used.
const FRESH: Duration = Duration::from_secs(1);
/// Documents read together.
const PAGE: usize = 500;
/// Namespaces in the cache.
const NAMESPACES_MAX: usize = 1000;

/// Steps of a check that run directly. A longer check waits for its turn on another thread.
const LIGHT_STEPS: u64 = 10_000;

/// Bytes that are parsed directly.
const LIGHT_BYTES: usize = 64 << 10;

/// The registered task types of a namespace.
#[derive(Debug, Default)]
pub(super) struct Types {
    executors: HashMap<Name, TypeExecutor>,
    /// Types that have an analyzer.
    pub(super) analyzed: HashSet<Name>,
}

/// The executor of a task type, as text and parsed.
#[derive(Clone, Debug)]
struct TypeExecutor {
    put: NamedDocument,
    /// An earlier version may have accepted a definition that is invalid now: its tasks are refused until it
    /// is corrected.
    read: Result<Arc<CustomType>, FieldError>,
}

impl TypeExecutor {
    fn read(put: NamedDocument) -> Self {
        let read = CustomType::from_json(put.json.as_bytes()).map(Arc::new);
        if let Err(error) = &read {
            tracing::error!(task_type = %put.id, %error, "the task type is invalid: its tasks are refused");
        }
        Self { put, read }
    }

    fn custom_type(&self) -> Result<&Arc<CustomType>, FieldError> {
        self.read.as_ref().map_err(|error| {
            let message = format!("its executor must be registered again: {error}");
            FieldError { field: "taskType".to_owned(), code: error.code, message }
        })
    }
}

impl Types {
    /// Whether an executor is registered for a type.
    pub(super) fn is_registered(&self, task_type: &Name) -> bool {
        self.executors.contains_key(task_type)
    }

    /// All types for which an executor is registered.
    pub(super) fn registered_names(&self) -> impl Iterator<Item = &str> {
        self.executors.keys().map(Name::as_str)
    }
}

/// The cache of registered task types, by namespace.
#[derive(Debug, Default)]
pub(super) struct TypeCache(Mutex<HashMap<Name, CachedTypes>>);

#[derive(Debug)]
struct CachedTypes {
    /// `None` if they have changed since the last read.
    read_at: Option<Instant>,
    types: Arc<Types>,
}

impl From<Document> for NamedDocument {
    fn from(document: Document) -> Self {
        let json = String::from_utf8_lossy(&document.value).into_owned();
        Self { id: document.key.id, version: document.version, json }
    }
}

impl Node {
    /// Registers a document by name. Returns it, and whether it is new. The same document again changes
    /// nothing; another one is refused unless it may replace the first.
    pub(super) async fn put_named(
        &self,
        key: DocumentKey,
        body: &[u8],
        replace: bool,
    ) -> Result<(NamedDocument, bool), NamedDocumentError> {
        if body.len() > DEFINITION_BYTES_MAX {
            let message = format!("must be at most {DEFINITION_BYTES_MAX} bytes as JSON, not {}", body.len());
            return Err(FieldError { field: String::new(), code: code::PAYLOAD_TOO_LARGE, message }.into());
        }
        for _ in 0..TRIES {
            let stored = self.document(&key).await?;
            let expected = match stored {
                Some(stored) if same(&stored.value, body) => return Ok((stored.into(), false)),
                Some(_) if !replace => return Err(NamedDocumentError::Exists),
                Some(stored) => stored.version,
                None => 0,
            };
            let content = Some(Content { due: None, value: body.to_vec() });
            let put = PutDocument { key: key.clone(), expected, content };
            if let [PutOutcome::Stored { version }] = self.0.parts.documents.put(&[put]).await?[..] {
                let json = String::from_utf8_lossy(body).into_owned();
                return Ok((NamedDocument { id: key.id, version, json }, expected == 0));
            }
        }
        Err(NamedDocumentError::Crowded)
    }

    /// Removes a document by name. Returns whether it existed.
    pub(super) async fn delete_named(&self, key: DocumentKey) -> Result<bool, NamedDocumentError> {
        for _ in 0..TRIES {
            let Some(stored) = self.document(&key).await? else { return Ok(false) };
            let put = PutDocument { key: key.clone(), expected: stored.version, content: None };
            if let [PutOutcome::Stored { .. }] = self.0.parts.documents.put(&[put]).await?[..] {
                return Ok(true);
            }
        }
        Err(NamedDocumentError::Crowded)
    }

    pub(super) async fn document(&self, key: &DocumentKey) -> Result<Option<Document>, StoreError> {
        Ok(self.0.parts.documents.get(std::slice::from_ref(key)).await?.pop().flatten())
    }

    /// The documents of a kind, by name.
    pub(super) async fn list_named(
        &self,
        kind: DocumentKind,
        namespace: &Name,
        after: Option<Name>,
        limit: usize,
    ) -> Result<Vec<NamedDocument>, StoreError> {
        let list = DocumentList { kind, namespace: namespace.clone(), after, limit };
        Ok(self.0.parts.documents.by_name(list).await?.into_iter().map(NamedDocument::from).collect())
    }

    /// All documents of a kind.
    pub(super) async fn all_named(
        &self,
        kind: DocumentKind,
        namespace: &Name,
    ) -> Result<Vec<NamedDocument>, StoreError> {
        let mut all: Vec<NamedDocument> = Vec::new();
        loop {
            let after = all.last().map(|last| last.id.clone());
            let page = self.list_named(kind, namespace, after, PAGE).await?;
            let is_last = page.len() < PAGE;
            all.extend(page);
            if is_last {
                return Ok(all);
            }
        }
    }

    /// Registers the definition of a task type.
    pub async fn put_executor(
        &self,
        namespace: &Name,
        task_type: &Name,
        body: &[u8],
        replace: bool,
    ) -> Result<(NamedDocument, bool), NamedDocumentError> {
        CustomType::check_name(task_type)?;
        let read = body.to_vec();
        self.heavy(move || CustomType::from_json(&read)).await?;
        let put = self.put_named(executor_key(namespace, task_type), body, replace).await?;
        self.0.types.forget(namespace);
        Ok(put)
    }

    /// The definition of a task type.
    pub async fn executor(
        &self,
        namespace: &Name,
        task_type: &Name,
    ) -> Result<Option<NamedDocument>, StoreError> {
        Ok(self.document(&executor_key(namespace, task_type)).await?.map(NamedDocument::from))
    }

    /// Registered task types, by name.
    pub async fn executors(
        &self,
        namespace: &Name,
        after: Option<Name>,
        limit: usize,
    ) -> Result<Vec<NamedDocument>, StoreError> {
        self.list_named(DocumentKind::Executor, namespace, after, limit).await
    }

    /// Removes the definition of a task type; its existing tasks run on. Returns whether it was registered.
    pub async fn delete_executor(
        &self,
        namespace: &Name,
        task_type: &Name,
    ) -> Result<bool, NamedDocumentError> {
        let deleted = self.delete_named(executor_key(namespace, task_type)).await?;
        self.0.types.forget(namespace);
        Ok(deleted)
    }

    /// Adds the registered definition to a request of a custom type. Later registrations do not change this
    /// copy.
    pub(super) async fn run_as(
        &self,
        namespace: &Name,
        request: &mut TaskRequest,
    ) -> Result<(), SubmitError> {
        if request.composite || request.map.is_some() {
            return Ok(());
        }
        let types = self.types(namespace).await?;
        if request.run_as.is_none()
            && let Some(executor) = types.executors.get(&request.task_type)
        {
            request.run_as = Some(self.run_by(executor.custom_type()?, request).await?);
        }
        Ok(())
    }

    /// The same by the given definition. A costly check does not hold up other requests.
    pub(super) async fn run_by(
        &self,
        custom_type: &Arc<CustomType>,
        request: &TaskRequest,
    ) -> Result<RunAs, FieldError> {
        let run_as = custom_type.run_as(request, LIGHT_STEPS);
        // Each of many requests that came together gives way to others.
        tokio::task::yield_now().await;
        match run_as {
            Err(error) if error.code == code::TOO_COSTLY => {
                let (custom_type, request) = (Arc::clone(custom_type), request.clone());
                self.heavy(move || custom_type.run_as(&request, CHECK_STEPS_MAX)).await
            }
            run_as => run_as,
        }
    }

    /// Parses a document of a client, a long one on a thread that drives nothing.
    pub(super) async fn read_sent<T: Send + 'static>(
        &self,
        body: &[u8],
        read: fn(&[u8]) -> Result<T, FieldError>,
    ) -> Result<T, FieldError> {
        let (bytes, body) = (body.len(), body.to_vec());
        self.by_length(bytes, move || read(&body)).await
    }

    /// Works on a text of so many bytes, a long one on a thread that drives nothing.
    pub(super) async fn by_length<T: Send + 'static>(
        &self,
        bytes: usize,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> T {
        if bytes <= LIGHT_BYTES { work() } else { self.heavy(work).await }
    }

    /// Runs work that may take a tenth of a second on a thread that drives nothing, one after the other:
    /// costly requests wait only for each other.
    pub(super) async fn heavy<T: Send + 'static>(&self, work: impl FnOnce() -> T + Send + 'static) -> T {
        let turn = Arc::clone(&self.0.heavy).acquire_owned().await.expect("it is never closed");
        // The turn ends with the work, even if the caller has stopped waiting.
        let work = tokio::task::spawn_blocking(move || (work(), drop(turn)).0);
        work.await.unwrap_or_else(|error| std::panic::resume_unwind(error.into_panic()))
    }

    /// The type that a worker must offer to run tasks of a type.
    pub(super) async fn executor_type(&self, namespace: &Name, task_type: &Name) -> Result<Name, StoreError> {
        let types = self.types(namespace).await?;
        let executor = types.executors.get(task_type).and_then(|executor| executor.read.as_ref().ok());
        Ok(executor.map_or(task_type, |custom_type| custom_type.runs_as()).clone())
    }

    pub(super) async fn types(&self, namespace: &Name) -> Result<Arc<Types>, StoreError> {
        if let Some(types) = self.0.types.fresh(namespace) {
            return Ok(types);
        }
        let before = self.0.types.last(namespace);
        let mut types = Types::default();
        let analyzers = self.all_named(DocumentKind::Analyzer, namespace).await?;
        types.analyzed.extend(analyzers.into_iter().map(|named| named.id));
        let mut changed = Vec::new();
        for put in self.all_named(DocumentKind::Executor, namespace).await? {
            match before.executors.get(&put.id).filter(|executor| executor.put == put) {
                Some(executor) => _ = types.executors.insert(put.id, executor.clone()),
                None => changed.push(put),
            }
        }
        if !changed.is_empty() {
            let read = self.heavy(|| changed.into_iter().map(TypeExecutor::read).collect::<Vec<_>>()).await;
            types.executors.extend(read.into_iter().map(|executor| (executor.put.id.clone(), executor)));
        }
        Ok(self.0.types.keep(namespace, Arc::new(types)))
    }
}

fn executor_key(namespace: &Name, task_type: &Name) -> DocumentKey {
    DocumentKey { kind: DocumentKind::Executor, namespace: namespace.clone(), id: task_type.clone() }
}

/// Whether two definitions are equal as JSON values.
fn same(one: &[u8], other: &[u8]) -> bool {
    let canonical = |bytes| str::from_utf8(bytes).map(canonical);
    one == other || canonical(one) == canonical(other)
}

impl TypeCache {
    fn lock(&self) -> MutexGuard<'_, HashMap<Name, CachedTypes>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn fresh(&self, namespace: &Name) -> Option<Arc<Types>> {
        let cache = self.lock();
        let cached = cache.get(namespace)?;
        cached.read_at.is_some_and(|read_at| read_at.elapsed() < FRESH).then(|| Arc::clone(&cached.types))
    }

    /// The cached types, of any age.
    fn last(&self, namespace: &Name) -> Arc<Types> {
        self.lock().get(namespace).map(|cached| Arc::clone(&cached.types)).unwrap_or_default()
    }

    fn keep(&self, namespace: &Name, types: Arc<Types>) -> Arc<Types> {
        let mut cache = self.lock();
        if cache.len() >= NAMESPACES_MAX {
            cache.clear();
        }
        let cached = CachedTypes { read_at: Some(Instant::now()), types: Arc::clone(&types) };
        cache.insert(namespace.clone(), cached);
        types
    }

    pub(super) fn forget(&self, namespace: &Name) {
        if let Some(cached) = self.lock().get_mut(namespace) {
            cached.read_at = None;
        }
    }
}
