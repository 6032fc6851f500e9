//! What users register by name: documents that are put, read, listed and removed; and task types among them.

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

/// Something that was put by name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamedDocument {
    /// Its name.
    pub id: Name,
    /// Changes with every put that changes it.
    pub version: u64,
    /// As it was sent.
    pub json: String,
}

/// Why nothing was put.
#[derive(Debug, thiserror::Error)]
pub enum NamedDocumentError {
    /// It is not valid.
    #[error(transparent)]
    Invalid(#[from] FieldError),
    /// Another one is there.
    #[error("another one of this name is there")]
    Exists,
    /// Others change it at the same time.
    #[error("others change it at the same time; try again")]
    Crowded,
    /// The store could not be asked.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// The most bytes of what is put: every store takes it, and a run takes it along.
const DEFINITION_BYTES_MAX: usize = 1000 << 10;
/// How often a change is tried that somebody else's gets in the way of.
const TRIES: usize = 10;
/// How long what was read counts.
const FRESH: Duration = Duration::from_secs(1);
/// Documents read in one go.
const PAGE: usize = 500;
/// Namespaces that are remembered.
const NAMESPACES_MAX: usize = 1000;

/// Steps of a check that are taken at once. One that takes more waits for its turn on another thread.
const LIGHT_STEPS: u64 = 10_000;

/// Bytes that are read at once.
const LIGHT_BYTES: usize = 64 << 10;

/// What is registered of the task types of a namespace.
#[derive(Debug, Default)]
pub(super) struct Types {
    executors: HashMap<Name, TypeExecutor>,
    /// Those that have an analyzer.
    pub(super) analyzed: HashSet<Name>,
}

/// The executor of a task type, as it was put and as it was read.
#[derive(Clone, Debug)]
struct TypeExecutor {
    put: NamedDocument,
    /// An earlier version may have put what is refused now: its tasks are refused until it is put right.
    read: Result<Arc<CustomType>, FieldError>,
}

impl TypeExecutor {
    fn read(put: NamedDocument) -> Self {
        let read = CustomType::from_json(put.json.as_bytes()).map(Arc::new);
        if let Err(error) = &read {
            tracing::error!(task_type = %put.id, %error, "an executor cannot be used: its tasks are refused");
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

/// The task types that are registered, as far as they were read, by namespace.
#[derive(Debug, Default)]
pub(super) struct TypeCache(Mutex<HashMap<Name, CachedTypes>>);

#[derive(Debug)]
struct CachedTypes {
    /// `None` if they have changed since.
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
    /// Puts something by name. Answers it, and whether it is new. The same again changes nothing; something else is
    /// refused unless it may replace what is there.
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

    /// Removes something by name. Answers whether it was there.
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

    /// What was put of a kind, by name.
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

    /// All that was put of a kind.
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

    /// Says how a task type is run from now on.
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

    /// How a task type is run.
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

    /// Forgets how a task type is run; its tasks that are there run on. Answers whether it was registered.
    pub async fn delete_executor(
        &self,
        namespace: &Name,
        task_type: &Name,
    ) -> Result<bool, NamedDocumentError> {
        let deleted = self.delete_named(executor_key(namespace, task_type)).await?;
        self.0.types.forget(namespace);
        Ok(deleted)
    }

    /// A request whose type was registered says what it is run as. What is frozen here is not changed by what is
    /// registered later.
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

    /// What a request is run as by the executor of its type. A costly check does not keep others waiting.
    pub(super) async fn run_by(
        &self,
        custom_type: &Arc<CustomType>,
        request: &TaskRequest,
    ) -> Result<RunAs, FieldError> {
        let run_as = custom_type.run_as(request, LIGHT_STEPS);
        // One of many requests that came together: others have their turn.
        tokio::task::yield_now().await;
        match run_as {
            Err(error) if error.code == code::TOO_COSTLY => {
                let (custom_type, request) = (Arc::clone(custom_type), request.clone());
                self.heavy(move || custom_type.run_as(&request, CHECK_STEPS_MAX)).await
            }
            run_as => run_as,
        }
    }

    /// Reads what a client sent, a long text on a thread that drives nothing.
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

    /// Does what may take a tenth of a second on a thread that drives nothing, one after the other: requests that are
    /// costly wait for each other and for nobody else.
    pub(super) async fn heavy<T: Send + 'static>(&self, work: impl FnOnce() -> T + Send + 'static) -> T {
        let turn = Arc::clone(&self.0.heavy).acquire_owned().await.expect("it is never closed");
        // The turn ends with the work, also when nobody waits for the answer any more.
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

/// Whether two definitions say the same, however they are written.
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

    /// What was read last, however long ago.
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
