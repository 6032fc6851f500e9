//! Each kind of fault names its place, its cause and its remedy.

use tasklane::config::{Config, load};

use super::{env, file, flag};

fn faults(text: &str) -> Vec<String> {
    let (_folder, sources) = file(text);
    load(&sources)
        .unwrap_err()
        .faults
        .iter()
        .map(|fault| format!("{}: {}", fault.key, fault.message))
        .collect()
}

#[test]
fn an_unknown_key_has_its_path_and_a_suggestion() {
    assert_eq!(
        faults("worker:\n  capasity: 3"),
        ["worker.capasity: unknown key; did you mean worker.capacity?"]
    );
    assert_eq!(faults("capacity: 3"), ["capacity: unknown key; did you mean worker.capacity?"]);
    assert_eq!(faults("colour: red"), ["colour: unknown key; `tasklane config show` lists all keys"]);
}

#[test]
fn a_misspelt_log_level_is_an_error() {
    for wrong in ["inof", "", "info,", "tasklane_runtime", "info,tasklane_runtime=debg", "info;debug"] {
        let faults = faults(&format!("log: {{level: \"{wrong}\"}}"));
        assert!(faults.len() == 1 && faults[0].starts_with("log.level: "), "{wrong}: {faults:?}");
        assert!(faults[0].contains("is not a level; use error, warn, info, debug, trace"), "{faults:?}");
    }
    assert_eq!(
        faults("log: {level: 'info,=debug'}"),
        ["log.level: \"\" is not the name of a module, such as tasklane_runtime"]
    );
    for right in ["info", "WARN", "off", "info,tasklane_runtime=debug", "warn, tasklane_api::serve=trace"] {
        let (_folder, sources) = file(&format!("log: {{level: '{right}'}}"));
        load(&sources).unwrap();
    }
}

#[test]
fn an_unknown_variable_is_an_error_with_a_suggestion() {
    let error = |name| load(&env(&[(name, "1")])).unwrap_err().to_string();
    assert!(
        error("TASKLANE_LISTN")
            .contains("TASKLANE_LISTN: unknown environment variable; did you mean TASKLANE_LISTEN?")
    );
    assert!(error("TASKLANE_CAPACITY").contains("did you mean TASKLANE_WORKER_CAPACITY?"));
}

#[test]
fn an_unknown_flag_key_is_an_error() {
    let sources = tasklane::config::Sources { flags: vec![flag("lane", "1")], ..Default::default() };
    assert!(
        load(&sources)
            .unwrap_err()
            .to_string()
            .contains("lane: unknown key; did you mean lanes? (flag --lane)")
    );
}

#[test]
fn a_wrong_type_names_the_key_and_the_file() {
    let (folder, sources) = file("lanes: many");
    let fault = load(&sources).unwrap_err().faults.remove(0);
    assert_eq!(fault.key, "lanes");
    assert_eq!(fault.origin.unwrap(), format!("file {}", folder.path().join("tasklane.yaml").display()));
    assert_eq!(faults("worker: 3"), ["worker: this must be a map of keys, not a number"]);
    assert_eq!(faults("- 1"), [": the file must be a map of keys, not a list"]);
    assert!(faults("lanes: 0")[0].contains("nonzero"));
    assert!(faults("durability: some")[0].contains("`full` or `relaxed`"));
    assert!(faults("listen: here")[0].contains("such as 127.0.0.1:7070"));
    assert!(
        faults("retention: {tasks: 7}")[0].contains("retention.tasks: a duration is a number with a unit")
    );
    assert!(faults("limits: {body_bytes_max: 1MB}")[0].contains("limits.body_bytes_max: a size is a number"));
}

#[test]
fn a_broken_file_says_where() {
    assert!(faults("listen: [1")[0].contains("not valid YAML"));
    let sources =
        tasklane::config::Sources { file: Some("/does/not/exist.yaml".into()), ..Default::default() };
    assert!(load(&sources).unwrap_err().to_string().contains("cannot read /does/not/exist.yaml"));
}

#[test]
fn a_wrong_token_is_not_shown() {
    assert_eq!(faults("token: 12345"), ["token: must be text; put it in quotes"]);
    assert_eq!(faults("token: ''"), ["token: must not be empty; leave it out for no token"]);
}

#[test]
fn a_public_address_needs_a_token() {
    let error = faults("listen: 0.0.0.0:8080").remove(0);
    assert!(error.contains("Set `token` (or TASKLANE_TOKEN), or listen on 127.0.0.1:8080"), "{error}");
    let error = faults("listen: 0.0.0.0:8080\ntoken: 15-characters-x").remove(0);
    assert!(
        error.starts_with("token: has 15 characters, and other machines can reach 0.0.0.0:8080"),
        "{error}"
    );
    assert!(error.contains("at least 16") && error.contains("openssl rand"), "{error}");
    let (_folder, sources) = file("listen: 0.0.0.0:8080\ntoken: 16-characters-xy");
    assert!(load(&sources).is_ok());
    let (_folder, sources) = file("token: geheim");
    assert!(load(&sources).is_ok());
    let (_folder, sources) = file("listen: '[::1]:8080'");
    assert!(load(&sources).is_ok());
}

#[test]
fn a_session_lasts_for_three_renewals() {
    let error = faults("session: {worker_ttl: 8s}").remove(0);
    assert!(error.contains("make it at least 12s, or session.worker_renew_every at most 2666ms"), "{error}");
    let (_folder, sources) = file("session: {worker_ttl: 30s, worker_renew_every: 10s}");
    assert!(load(&sources).is_ok());
    assert!(faults("session: {server_renew_every: 0s}")[0].contains("longer than nothing"));
}

#[test]
fn timeouts_leave_time_to_answer() {
    let errors = faults("limits: {request_timeout: 0s, write_timeout: 999ms}");
    assert!(errors[0].contains("limits.request_timeout: 0s is too short: at least 1s"), "{errors:?}");
    assert!(errors[1].contains("limits.write_timeout: 999ms is too short"), "{errors:?}");
}

#[test]
fn all_faults_are_reported_together() {
    let text = "lanes: none\nlistne: x\nsession: {server_ttl: 1s}\nretention: {request_ids: 1d}\n\
                limits: {payload_bytes_max: 2MiB, body_bytes_max: 1MiB}\nstore: cassandra://x\n\
                worker: {env: [TASKLANE_TOKEN, 'a=b', 'T*'], python: '', never_retry_exit_codes: [75]}\n";
    let keys: Vec<String> =
        faults(text).iter().map(|fault| fault.split(':').next().unwrap().to_owned()).collect();
    assert_eq!(
        keys,
        [
            "listne",
            "lanes",
            "store",
            "session.server_ttl",
            "retention.request_ids",
            "limits.payload_bytes_max",
            "limits.body_bytes_max",
            "worker.python",
            "worker.env",
            "worker.env",
            "worker.env",
            "worker.never_retry_exit_codes"
        ]
    );
}

#[test]
fn a_config_of_a_program_is_checked_too() {
    let config = Config { listen: Some(([0, 0, 0, 0], 1).into()), ..Config::default() };
    assert!(config.validate().unwrap_err().to_string().contains("no token is set"));
    assert!(Config::default().validate().is_ok());
}

#[test]
fn origins_of_pages_are_checked() {
    assert_eq!(
        faults("cors_origins: ['*']"),
        [
            "cors_origins: `*` lets every page of the web run commands through a browser on this machine: set `token`, or \
          name the origins"
        ]
    );
    let origins = "cors_origins: ['https://app.example.com', 'http://localhost:3000', 'http://[::1]:8080']";
    for right in ["token: secret\ncors_origins: ['*']", origins] {
        let (_folder, sources) = file(right);
        assert!(!load(&sources).unwrap().config.cors_origins.is_empty());
    }
    for wrong in ["app.example.com", "https://app.example.com/", "https://", "null", "https://*.example.com"]
    {
        let found = faults(&format!("cors_origins: ['{wrong}']"));
        assert!(found.len() == 1 && found[0].contains("https://app.example.com"), "{wrong}: {found:?}");
    }
}
