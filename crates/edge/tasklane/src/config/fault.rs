//! The faults of a config, all at once.

use std::fmt;

/// One thing that is wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// The key, such as `worker.capacity`; empty if it is none in particular.
    pub key: String,
    /// Where the value came from, if it was given.
    pub origin: Option<String>,
    /// The fault and its remedy.
    pub message: String,
}

impl Fault {
    pub(super) fn new(key: &str, message: String) -> Self {
        Self { key: key.to_owned(), origin: None, message }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.key.is_empty() {
            write!(f, "{}: ", self.key)?;
        }
        f.write_str(&self.message)?;
        match &self.origin {
            Some(origin) => write!(f, " ({origin})"),
            None => Ok(()),
        }
    }
}

/// Why a config was refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigError {
    /// Everything that is wrong, never empty.
    pub faults: Vec<Fault>,
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &*self.faults {
            [fault] => write!(f, "the configuration has a fault: {fault}"),
            faults => {
                write!(f, "the configuration has {} faults:", faults.len())?;
                faults.iter().try_for_each(|fault| write!(f, "\n  - {fault}"))
            }
        }
    }
}

impl std::error::Error for ConfigError {}
