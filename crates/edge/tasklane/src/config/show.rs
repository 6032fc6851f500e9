//! The effective config, as YAML that can be read back, with the origin of each value beside it.

use std::fmt::Write;

use serde_json::{Map, Value};

use super::load::{LoadedConfig, Origin};
use super::schema::{Schema, join};
use super::tree::Config;

/// Column of the origins.
const ORIGIN_COLUMN: usize = 48;

/// As YAML, with origins as comments. Secrets are hidden.
pub fn show(loaded: &LoadedConfig) -> String {
    let schema = Schema::new();
    let mut text = String::new();
    section(&schema, loaded, "", 0, &mut text);
    text
}

/// As JSON: each key with `value` and `origin`. Secrets are hidden.
pub fn show_json(loaded: &LoadedConfig) -> Value {
    let schema = Schema::new();
    let entries = schema.keys().map(|key| {
        let (value, origin) = entry(loaded, key);
        (key.to_owned(), serde_json::json!({ "value": value, "origin": origin }))
    });
    Value::Object(entries.collect::<Map<_, _>>())
}

fn section(schema: &Schema, loaded: &LoadedConfig, path: &str, depth: usize, text: &mut String) {
    // Plain keys before sections, as people write them.
    let keys = schema.section(path).into_iter().flat_map(Map::keys).map(|key| (key, join(path, key)));
    let (plain, sections): (Vec<_>, Vec<_>) = keys.partition(|(_, path)| schema.has(path));
    let indent = "  ".repeat(depth);
    for (key, path) in plain {
        let (value, origin) = entry(loaded, &path);
        // JSON is YAML; text without special meaning goes without quotes.
        let value =
            value.as_str().filter(|text| is_plain(text)).map_or_else(|| value.to_string(), str::to_owned);
        let line = format!("{indent}{key}: {value}");
        let _ = writeln!(text, "{line:<ORIGIN_COLUMN$} # {origin}");
    }
    for (key, path) in sections {
        let _ = writeln!(text, "{indent}{key}:");
        section(schema, loaded, &path, depth + 1, text);
    }
}

/// The value of a key as it takes effect, and where it came from.
fn entry(loaded: &LoadedConfig, key: &str) -> (Value, String) {
    let tree = serde_json::to_value(&loaded.config).unwrap_or_default();
    let value = tree.pointer(&format!("/{}", key.replace('.', "/"))).cloned().unwrap_or_default();
    let origin = loaded.origin(key);
    match derived(&loaded.config, key) {
        Some((value, from)) if origin == Origin::Default => (value, format!("default, {from}")),
        _ => (value, origin.to_string()),
    }
}

/// Values that follow from another setting unless they are set.
fn derived(config: &Config, key: &str) -> Option<(Value, &'static str)> {
    match key {
        "store" => Some((config.store_url().to_string().into(), "from data_dir")),
        "coordinator" => Some((config.coordinator_url().to_string().into(), "from store")),
        "bus" => Some((config.bus_url().to_string().into(), "from store")),
        "worker.name" => Some((config.worker.name().as_str().into(), "name of this machine")),
        "worker.capacity" => Some((config.worker.capacity().get().into(), "4 × cores")),
        _ => None,
    }
}

fn is_plain(text: &str) -> bool {
    let word = text.chars().all(|c| c.is_ascii_alphanumeric() || "/._:-@".contains(c));
    let read = serde_saphyr::from_str::<Value>(text);
    word && read.is_ok_and(|value| value.as_str() == Some(text))
}
