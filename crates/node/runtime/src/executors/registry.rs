//! Which executor runs which task type.

use std::collections::BTreeMap;
use std::sync::Arc;

use tasklane_core::id::Name;
use tasklane_ports::Executor;

use super::{ExecutorOptions, Http, Noop, Python, Shell};

/// The executors of a worker, by task type.
#[derive(Clone, Debug, Default)]
pub struct Registry {
    executors: BTreeMap<Name, Arc<dyn Executor>>,
}

impl Registry {
    /// An empty registry.
    pub fn new() -> Self {
        Self::default()
    }

    /// The built-in executors; the types that start processes need a guard.
    pub fn builtin(options: ExecutorOptions) -> Self {
        let ExecutorOptions { guard, command, http } = options;
        let command = Arc::new(command);
        let mut registry = Self::new();
        let mut add = |name: &str, executor: Arc<dyn Executor>| {
            registry.register(Name::new(name).expect("a constant that is a name"), executor);
        };
        if let Some(guard) = guard {
            add("SHELL", Arc::new(Shell::new(guard.clone(), Arc::clone(&command))));
            add("PYTHON_SCRIPT", Arc::new(Python::new(guard, command)));
        }
        add("HTTP", Arc::new(Http::new(http)));
        add("NOOP", Arc::new(Noop));
        registry
    }

    /// Runs tasks of this type with this executor from now on. Returns the executor that it replaces.
    pub fn register(&mut self, task_type: Name, executor: Arc<dyn Executor>) -> Option<Arc<dyn Executor>> {
        self.executors.insert(task_type, executor)
    }

    /// Keeps only the task types that are wanted.
    pub fn retain(&mut self, wanted: impl Fn(&Name) -> bool) {
        self.executors.retain(|task_type, _| wanted(task_type));
    }

    /// The executor of a task type.
    pub fn executor(&self, task_type: &Name) -> Option<&Arc<dyn Executor>> {
        self.executors.get(task_type)
    }

    /// All task types, in alphabetical order.
    pub fn task_types(&self) -> impl Iterator<Item = &Name> {
        self.executors.keys()
    }
}
