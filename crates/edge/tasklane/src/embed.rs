//! Tasklane inside another program: scheduler and worker in its process, its functions as task types.

use std::collections::BTreeMap;
use std::future::Future;
use std::net::SocketAddr;
use std::num::NonZeroU32;
use std::path::PathBuf;
use std::time::Duration;

use tasklane_core::id::{Name, TaskId};
use tasklane_ports::{StoreError, TaskView};
use tasklane_runtime::executors::{Function, FunctionError, TaskContext};
use tasklane_runtime::node::{Cancel, Node, SubmitError, Submitted};
use tasklane_runtime::request::TaskRequest;

use crate::assemble::{self, Roles, RunningTasklane};
use crate::config::{Config, ConfigError};

/// Functions of an embedding program, by the task type that they execute.
#[derive(Default)]
pub struct Registrations(pub BTreeMap<Name, Function>);

impl std::fmt::Debug for Registrations {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_set().entries(self.0.keys()).finish()
    }
}

/// Why a Tasklane did not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The configuration is wrong.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// A function was registered under a name that cannot be a task type.
    #[error("cannot register {name:?}: {why}")]
    Function {
        /// The name.
        name: String,
        /// The fault of the function.
        why: String,
    },
    /// A part could not be opened.
    #[error("{0:#}")]
    Parts(anyhow::Error),
}

/// Describes a Tasklane to be started.
#[derive(Debug)]
pub struct Builder {
    config: Config,
    functions: Registrations,
    refused: Option<StartError>,
}

impl Builder {
    /// Replaces the whole config, including `listen`.
    #[must_use]
    pub fn config(mut self, config: Config) -> Self {
        self.config = config;
        self
    }

    /// Where data is kept.
    #[must_use]
    pub fn data_dir(mut self, folder: impl Into<PathBuf>) -> Self {
        self.config.data_dir = folder.into();
        self
    }

    /// Serves the API, at this address. Without it there is none.
    #[must_use]
    pub fn listen(mut self, address: SocketAddr) -> Self {
        self.config.listen = Some(address);
        self
    }

    /// Serves no API: only this program hands in tasks. This is how a builder begins.
    #[must_use]
    pub fn no_api(mut self) -> Self {
        self.config.listen = None;
        self
    }

    /// How many attempts run at once; 0 counts as 1.
    #[must_use]
    pub fn capacity(mut self, capacity: u32) -> Self {
        self.config.worker.capacity = Some(NonZeroU32::new(capacity).unwrap_or(NonZeroU32::MIN));
        self
    }

    /// Makes an async function a task type. Each name can be taken once.
    #[must_use]
    pub fn register<F, R>(mut self, task_type: &str, function: F) -> Self
    where
        F: Fn(TaskContext) -> R + Send + Sync + 'static,
        R: Future<Output = Result<serde_json::Value, FunctionError>> + Send + 'static,
    {
        let why = match Name::new(task_type) {
            Err(error) => Some(error.to_string()),
            Ok(name) if self.config.worker.task_types.contains(&name) => {
                Some("a built-in task type has this name; remove it from worker.task_types".to_owned())
            }
            Ok(name) => {
                let before = self.functions.0.insert(name, Function::new(function));
                before.map(|_| "another function has this name".to_owned())
            }
        };
        if let Some(why) = why {
            self.refused.get_or_insert(StartError::Function { name: task_type.to_owned(), why });
        }
        self
    }

    /// Opens the store and starts scheduler, worker and, where asked for, the API.
    pub async fn start(self) -> Result<Tasklane, StartError> {
        if let Some(error) = self.refused {
            return Err(error);
        }
        self.config.validate()?;
        let running = Box::pin(assemble::start(&self.config, Roles::ALL, self.functions))
            .await
            .map_err(StartError::Parts)?;
        Ok(Tasklane { running, namespace: self.config.namespace })
    }
}

/// A running Tasklane. Has to be closed: dropping it ends it as a crash does, which loses nothing, but lets
/// tasks run again.
#[derive(Debug)]
pub struct Tasklane {
    running: RunningTasklane,
    namespace: Name,
}

impl Tasklane {
    /// Describes a Tasklane to be started.
    pub fn builder() -> Builder {
        let config = Config { listen: None, ..Config::default() };
        Builder { config, functions: Registrations::default(), refused: None }
    }

    /// Where the API listens, if it does.
    pub fn address(&self) -> Option<SocketAddr> {
        self.running.address
    }

    /// Hands in a task. It is durable when this returns.
    pub async fn submit(&self, request: TaskRequest) -> Result<Submitted, SubmitError> {
        let mut answers = self.submit_all(vec![request]).await;
        answers.pop().expect("one answer for one request")
    }

    /// Hands in many tasks at once; answers are in the order of the requests.
    pub async fn submit_all(&self, requests: Vec<TaskRequest>) -> Vec<Result<Submitted, SubmitError>> {
        self.running.node().submit(&self.namespace, requests).await
    }

    /// A task as it is.
    pub async fn task(&self, id: TaskId) -> Result<Option<TaskView>, StoreError> {
        self.running.node().task(&self.namespace, id).await
    }

    /// Waits for the end of a task, up to `timeout`, and gives it as it is then.
    pub async fn wait(&self, id: TaskId, timeout: Duration) -> Result<Option<TaskView>, StoreError> {
        self.running.node().wait(&self.namespace, id, timeout).await
    }

    /// Asks for a task to be stopped.
    pub async fn cancel(&self, id: TaskId) -> Result<Cancel, StoreError> {
        self.running.node().cancel(&self.namespace, id).await
    }

    /// Everything else that can be asked or done.
    pub fn node(&self) -> &Node {
        self.running.node()
    }

    /// Takes no more work, lets attempts go on for the configured grace, and ends.
    pub async fn close(self) -> Result<(), StoreError> {
        self.running.close().await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn refused(builder: Builder) -> String {
        builder.start().await.unwrap_err().to_string()
    }

    async fn nothing(_: TaskContext) -> Result<serde_json::Value, FunctionError> {
        Ok(serde_json::Value::Null)
    }

    #[tokio::test]
    async fn a_name_that_cannot_be_a_type_is_refused_at_start() {
        assert!(refused(Tasklane::builder().register("re size", nothing)).await.contains("\"re size\""));
        assert!(refused(Tasklane::builder().register("SHELL", nothing)).await.contains("built-in"));
        let twice = Tasklane::builder().register("resize", nothing).register("resize", nothing);
        assert!(refused(twice).await.contains("another function"));
    }

    #[tokio::test]
    async fn a_wrong_config_is_refused_at_start() {
        let public = Tasklane::builder().listen(([0, 0, 0, 0], 0).into());
        assert!(refused(public).await.contains("no token is set"));
    }
}
