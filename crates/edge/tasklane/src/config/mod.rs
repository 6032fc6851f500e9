//! Configuration: one YAML file, overridden by `TASKLANE_…` variables, overridden by flags.
//!
//! The variable of a key is its path in capitals, joined by `_`: `worker.capacity` is `TASKLANE_WORKER_CAPACITY`. A
//! test sees to it that no two keys share one. Unknown keys and variables are errors that say what was probably meant.

mod check;
mod env;
mod fault;
mod load;
mod schema;
mod shares;
mod show;
mod tree;
pub mod units;
mod url;

pub use fault::{ConfigError, Fault};
pub use load::{Flag, LoadedConfig, Origin, Sources, load};
pub use schema::env_name;
pub use show::{show, show_json};
pub use tree::{
    Config, Durability, LimitsConfig, LogConfig, LogFormat, RetentionConfig, Secret, SessionConfig,
    WorkerConfig,
};
pub use url::AdapterUrl;

pub(crate) use shares::Shares;

impl Config {
    /// Checks that span several fields; for a config that a program put together.
    pub fn validate(&self) -> Result<(), ConfigError> {
        let faults = check::check(self);
        if faults.is_empty() { Ok(()) } else { Err(ConfigError { faults }) }
    }
}
