//! Which keys exist, read off the defaults, so that a new field is known everywhere at once.

use serde_json::{Map, Value};
use tasklane_runtime::suggest::nearest;

use super::tree::Config;

/// All keys: the leaves of the tree of structs.
#[derive(Clone, Debug)]
pub(super) struct Schema {
    defaults: Value,
    keys: Vec<String>,
}

impl Schema {
    pub(super) fn new() -> Self {
        let defaults = serde_json::to_value(Config::default()).expect("the defaults can be written");
        let mut keys = Vec::new();
        collect("", &defaults, &mut keys);
        Self { defaults, keys }
    }

    /// Every key with its path, in the order of their names.
    pub(super) fn keys(&self) -> impl Iterator<Item = &str> {
        self.keys.iter().map(String::as_str)
    }

    /// The default of every key.
    pub(super) fn defaults(&self) -> &Value {
        &self.defaults
    }

    pub(super) fn has(&self, key: &str) -> bool {
        self.keys.iter().any(|known| known == key)
    }

    /// The keys of a section, or `None` if the path is not a section. The root is the empty path.
    pub(super) fn section(&self, path: &str) -> Option<&Map<String, Value>> {
        let pointer = pointer(path);
        self.defaults.pointer(&pointer).and_then(section)
    }

    /// The defaults with one key replaced, to see whether the value fits, and why not.
    pub(super) fn with(&self, key: &str, value: Value) -> Value {
        let mut tree = self.defaults.clone();
        set(&mut tree, key, value);
        tree
    }

    /// The key that was probably meant by a path that does not exist.
    pub(super) fn suggest(&self, path: &str) -> Option<&str> {
        let last = path.rsplit('.').next().unwrap_or(path);
        let elsewhere = || self.keys().find(|key| key.rsplit('.').next() == Some(last));
        nearest(path, self.keys()).or_else(elsewhere)
    }
}

/// The environment variable of a key: `worker.capacity` is `TASKLANE_WORKER_CAPACITY`.
pub fn env_name(key: &str) -> String {
    format!("TASKLANE_{}", key.replace('.', "_").to_uppercase())
}

pub(super) fn set(tree: &mut Value, key: &str, value: Value) {
    let slot = tree.pointer_mut(&pointer(key)).expect("only keys of the schema are set");
    *slot = value;
}

pub(super) fn join(path: &str, key: &str) -> String {
    if path.is_empty() { key.to_owned() } else { format!("{path}.{key}") }
}

fn pointer(path: &str) -> String {
    if path.is_empty() { String::new() } else { format!("/{}", path.replace('.', "/")) }
}

/// An object that is empty by default is a value (`worker.labels`), any other a section.
fn section(value: &Value) -> Option<&Map<String, Value>> {
    value.as_object().filter(|object| !object.is_empty())
}

fn collect(path: &str, value: &Value, keys: &mut Vec<String>) {
    match section(value) {
        Some(object) => object.iter().for_each(|(key, value)| collect(&join(path, key), value, keys)),
        None => keys.push(path.to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::super::env::is_foreign;
    use super::*;

    #[test]
    fn every_key_has_an_environment_variable_of_its_own() {
        let schema = Schema::new();
        let names: BTreeSet<String> = schema.keys().map(env_name).collect();
        assert_eq!(names.len(), schema.keys().count());
        for name in names {
            assert!(!is_foreign(&name), "{name} would be overlooked");
        }
    }

    #[test]
    fn maps_are_values_and_structs_are_sections() {
        let schema = Schema::new();
        assert!(schema.has("worker.labels") && schema.has("listen"));
        assert!(schema.section("worker").is_some() && schema.section("worker.labels").is_none());
    }
}
