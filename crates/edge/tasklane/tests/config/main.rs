//! Configuration: the example file, the reference page, and every kind of fault.

#![expect(clippy::unwrap_used, reason = "tests fail by panicking")]

mod faults;
mod reference;

use std::path::PathBuf;

use tasklane::config::{Config, Flag, LoadedConfig, Origin, Sources, load};

fn docs(file: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../../docs").join(file)
}

fn file(text: &str) -> (tempfile::TempDir, Sources) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("tasklane.yaml");
    std::fs::write(&path, text).unwrap();
    (folder, Sources { file: Some(path), ..Sources::default() })
}

fn read(text: &str) -> LoadedConfig {
    let (_folder, sources) = file(text);
    load(&sources).unwrap()
}

fn env(pairs: &[(&str, &str)]) -> Sources {
    let env = pairs.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect();
    Sources { env, ..Sources::default() }
}

fn flag(key: &str, value: &str) -> Flag {
    Flag { name: format!("--{key}"), key: key.to_owned(), value: value.to_owned() }
}

#[test]
fn the_example_file_states_the_defaults() {
    let sources = Sources { file: Some(docs("config.yaml")), ..Sources::default() };
    assert_eq!(load(&sources).unwrap().config, Config::default());
}

#[test]
fn nothing_given_is_the_default() {
    for text in ["", "# only a comment\n", "worker:\n  # all of it commented out\n"] {
        assert_eq!(read(text).config, Config::default());
    }
}

#[test]
fn the_environment_overrides_the_file_and_flags_override_both() {
    let (_folder, mut sources) = file("listen: 127.0.0.1:1\nlanes: 2\nworker: {capacity: 3}\n");
    sources.env = env(&[("TASKLANE_LANES", "4"), ("TASKLANE_WORKER_CAPACITY", "5"), ("PATH", "/bin")]).env;
    sources.flags = vec![flag("worker.capacity", "6")];
    let loaded = load(&sources).unwrap();
    assert_eq!(loaded.config.listen.unwrap().port(), 1);
    assert_eq!(loaded.config.lanes.unwrap().get(), 4);
    assert_eq!(loaded.config.worker.capacity().get(), 6);
    assert_eq!(loaded.origin("listen"), Origin::File(sources.file.unwrap()));
    assert_eq!(loaded.origin("lanes"), Origin::Env("TASKLANE_LANES".to_owned()));
    assert_eq!(loaded.origin("worker.capacity"), Origin::Flag("--worker.capacity".to_owned()));
    assert_eq!(loaded.origin("store"), Origin::Default);
}

#[test]
fn a_variable_is_read_by_the_type_of_its_key() {
    let loaded = load(&env(&[
        ("TASKLANE_TOKEN", "12345"),
        ("TASKLANE_LISTEN", "null"),
        ("TASKLANE_WORKER_LABELS", "{zone: eu, gpu: 'yes'}"),
        ("TASKLANE_WORKER_ENV", "[PATH, EDITOR]"),
        ("TASKLANE_RETENTION_TASKS", "36h"),
        ("TASKLANE_LIMITS_BODY_BYTES_MAX", "1MiB"),
        ("TASKLANE_LOG_FORMAT", "json"),
    ]));
    let config = loaded.unwrap().config;
    assert_eq!(config.token.unwrap().reveal(), "12345");
    assert_eq!(config.listen, None);
    assert_eq!(config.worker.labels["zone"], "eu");
    assert_eq!(config.worker.env.len(), 2);
    assert_eq!(config.retention.tasks.as_secs(), 36 * 3600);
    assert_eq!(config.limits.body_bytes_max, 1 << 20);
}

#[test]
fn variables_of_others_are_left_alone() {
    let foreign = [
        "TASKLANE_URL",
        "TASKLANE_TASK_ID",
        "TASKLANE_GUARD_FD",
        "TASKLANE_SERVICE_HOST",
        "TASKLANE_PORT_7070_TCP",
        "TASKLANES",
    ];
    let pairs: Vec<(&str, &str)> = foreign.iter().map(|name| (*name, "x")).collect();
    assert_eq!(load(&env(&pairs)).unwrap().config, Config::default());
    assert_eq!(load(&env(&[("TASKLANE_LANES", "")])).unwrap().config, Config::default());
}

#[test]
fn the_store_follows_the_data_folder() {
    assert_eq!(read("data_dir: /srv/lane").config.store_url().reveal(), "sqlite:///srv/lane/tasklane.db");
    assert_eq!(read("store: sqlite:///x.db").config.store_url().reveal(), "sqlite:///x.db");
}

#[test]
fn what_is_shown_names_origins_and_hides_secrets_and_reads_back() {
    let mut sources =
        env(&[("TASKLANE_TOKEN", "geheim"), ("TASKLANE_WORKER_LABELS", "{zone: 'no: really'}")]);
    sources.flags = vec![flag("listen", "127.0.0.2:80")];
    let loaded = load(&sources).unwrap();
    let shown = tasklane::config::show(&loaded);
    assert!(!shown.contains("geheim"), "{shown}");
    for (key, origin) in [
        ("listen: 127.0.0.2:80", "flag --listen"),
        ("token: ", "env TASKLANE_TOKEN"),
        ("lanes: null", "default"),
    ] {
        let line = shown.lines().find(|line| line.starts_with(key)).unwrap();
        assert!(line.ends_with(&format!("# {origin}")), "{line}");
    }
    let again = read(&shown).config;
    assert_eq!(again.worker.labels, loaded.config.worker.labels);
    assert_eq!(again.listen, loaded.config.listen);
    let json = tasklane::config::show_json(&loaded);
    assert_eq!(json["token"]["value"], "(hidden)");
    assert_eq!(json["worker.labels"]["origin"], "env TASKLANE_WORKER_LABELS");
}
