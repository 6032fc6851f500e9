//! Defaults, then the file, then the environment, then flags: each overrides what comes before it.

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};

use serde_json::Value;

use super::check::check;
use super::env::{Variable, readings, variable};
use super::fault::{ConfigError, Fault};
use super::schema::{Schema, join, set};
use super::tree::Config;

/// Where settings are looked for.
#[derive(Clone, Debug, Default)]
pub struct Sources {
    /// A YAML file.
    pub file: Option<PathBuf>,
    /// Environment variables, those of others among them.
    pub env: Vec<(String, String)>,
    /// Settings of the command line.
    pub flags: Vec<Flag>,
}

/// A setting of the command line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Flag {
    /// The flag as the user typed it, such as `--listen`.
    pub name: String,
    /// The key it sets.
    pub key: String,
    /// The value, as text.
    pub value: String,
}

/// Where a value came from.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Origin {
    /// Nobody set it.
    #[default]
    Default,
    /// The config file.
    File(PathBuf),
    /// An environment variable.
    Env(String),
    /// A flag.
    Flag(String),
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Default => f.write_str("default"),
            Self::File(path) => write!(f, "file {}", path.display()),
            Self::Env(name) => write!(f, "env {name}"),
            Self::Flag(name) => write!(f, "flag {name}"),
        }
    }
}

/// A config and where each of its values came from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LoadedConfig {
    /// The effective config.
    pub config: Config,
    /// The origin of every key that was set.
    pub origins: BTreeMap<String, Origin>,
}

impl LoadedConfig {
    /// Where the value of a key came from.
    pub fn origin(&self, key: &str) -> Origin {
        self.origins.get(key).cloned().unwrap_or_default()
    }
}

/// Reads all sources and checks the outcome; reports everything that is wrong together.
pub fn load(sources: &Sources) -> Result<LoadedConfig, ConfigError> {
    let mut loading = Loading { schema: Schema::new(), given: BTreeMap::new(), faults: Vec::new() };
    if let Some(path) = &sources.file {
        loading.read_file(path);
    }
    for (name, value) in &sources.env {
        loading.read_env(name, value);
    }
    for flag in &sources.flags {
        loading.read_flag(flag);
    }
    loading.finish()
}

struct Loading {
    schema: Schema,
    /// The values given for each key, in all the ways they can be read, and their origin.
    given: BTreeMap<String, (Vec<Value>, Origin)>,
    faults: Vec<Fault>,
}

impl Loading {
    fn read_file(&mut self, path: &Path) {
        let origin = Origin::File(path.to_owned());
        let text = match std::fs::read_to_string(path) {
            Ok(text) => text,
            Err(error) => return self.fault("", &origin, format!("cannot read {}: {error}", path.display())),
        };
        match serde_saphyr::from_str::<Value>(&text) {
            Ok(Value::Null) => {}
            Ok(value) => self.read_section("", value, &origin),
            Err(error) => self.fault("", &origin, format!("not valid YAML: {error}")),
        }
    }

    fn read_section(&mut self, path: &str, value: Value, origin: &Origin) {
        let Value::Object(object) = value else {
            let what = if path.is_empty() { "the file" } else { "this" };
            return self.fault(path, origin, format!("{what} must be a map of keys, not {}", kind(&value)));
        };
        for (key, value) in object {
            let path = join(path, &key);
            if self.schema.has(&path) {
                self.given.insert(path, (vec![value], origin.clone()));
            } else if self.schema.section(&path).is_none() {
                let message = unknown("key", self.schema.suggest(&path));
                self.fault(&path, origin, message);
            } else if !value.is_null() {
                // A section whose keys are all commented out is null.
                self.read_section(&path, value, origin);
            }
        }
    }

    fn read_env(&mut self, name: &str, value: &str) {
        let origin = Origin::Env(name.to_owned());
        match variable(&self.schema, name) {
            // An empty variable is how many tools say "not set".
            Variable::Sets(_) if value.is_empty() => {}
            Variable::Sets(key) => {
                self.given.insert(key, (readings(value), origin));
            }
            Variable::Foreign => {}
            Variable::Unknown(near) => {
                let message = unknown("environment variable", near.as_deref());
                self.faults.push(Fault { key: name.to_owned(), origin: None, message });
            }
        }
    }

    fn read_flag(&mut self, flag: &Flag) {
        let origin = Origin::Flag(flag.name.clone());
        if self.schema.has(&flag.key) {
            self.given.insert(flag.key.clone(), (readings(&flag.value), origin));
        } else {
            let message = unknown("key", self.schema.suggest(&flag.key));
            self.fault(&flag.key, &origin, message);
        }
    }

    fn fault(&mut self, key: &str, origin: &Origin, message: String) {
        self.faults.push(Fault { key: key.to_owned(), origin: Some(origin.to_string()), message });
    }

    /// Every value is tried alone on top of the defaults, so that a fault has its key and does not hide others.
    fn finish(mut self) -> Result<LoadedConfig, ConfigError> {
        let mut tree = self.schema.defaults().clone();
        let mut origins = BTreeMap::new();
        for (key, (readings, origin)) in std::mem::take(&mut self.given) {
            let mut refusal = String::new();
            let fits = readings.into_iter().find(|value| {
                let read = serde_json::from_value::<Config>(self.schema.with(&key, value.clone()));
                refusal = read.as_ref().err().map(ToString::to_string).unwrap_or_default();
                read.is_ok()
            });
            match fits {
                Some(value) => {
                    set(&mut tree, &key, value);
                    origins.insert(key, origin);
                }
                None => self.fault(&key, &origin, explain(&key, &refusal)),
            }
        }
        let config: Config =
            serde_json::from_value(tree).expect("each value fits on its own, and none affects another");
        for mut fault in check(&config) {
            fault.origin = origins.get(&fault.key).map(ToString::to_string);
            self.faults.push(fault);
        }
        if self.faults.is_empty() {
            Ok(LoadedConfig { config, origins })
        } else {
            Err(ConfigError { faults: self.faults })
        }
    }
}

fn unknown(what: &str, near: Option<&str>) -> String {
    match near {
        Some(near) => format!("unknown {what}; did you mean {near}?"),
        None => format!("unknown {what}; `tasklane config show` lists all keys"),
    }
}

/// What serde says, or a better word where its own does not help.
fn explain(key: &str, refusal: &str) -> String {
    match key {
        "health_listen" | "worker.listen" => {
            "must be an IP address and a port, such as 127.0.0.1:7072, or null for none".to_owned()
        }
        "listen" => "must be an IP address and a port, such as 127.0.0.1:7070, or null for no API".to_owned(),
        // Its own message would show the value.
        "token" => "must be text; put it in quotes".to_owned(),
        _ => refusal.to_owned(),
    }
}

fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "nothing",
        Value::Bool(_) => "true or false",
        Value::Number(_) => "a number",
        Value::String(_) => "text",
        Value::Array(_) => "a list",
        Value::Object(_) => "a map",
    }
}
