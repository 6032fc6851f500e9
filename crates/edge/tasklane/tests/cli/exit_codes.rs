//! Every kind of end has its code, and errors name the remedy.

use super::server::{Script, json};
use super::{output, stderr, stdout, tasklane};

const ID: &str = "00000000-0000-8000-8000-000000000000";

#[test]
fn no_server_is_5_and_says_how_to_start_one() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    drop(listener);
    for args in [&["list"][..], &["logs", "-f", ID], &["run", "--", "true"], &["wait", ID]] {
        let output = output(tasklane(args).env("TASKLANE_URL", &url));
        assert_eq!(output.status.code(), Some(5), "{args:?}: {}", stderr(&output));
        assert!(stderr(&output).contains("start a server with `tasklane dev`"), "{}", stderr(&output));
    }
}

#[test]
fn wrong_usage_is_2() {
    let cases: [&[&str]; 7] = [
        &["dance"],
        &["get"],
        &["run"],
        &["submit"],
        &["bulk", "cancel"],
        &["list", "--status", "gone"],
        &["--url", "ftp://x", "stats"],
    ];
    for args in cases {
        let output = output(&mut tasklane(args));
        assert_eq!(output.status.code(), Some(2), "{args:?}: {}", stderr(&output));
    }
}

#[test]
fn options_that_do_not_apply_are_refused_and_a_token_is_that_of_the_server() {
    let cases: [(&[&str], &str); 6] = [
        (&["dev", "--url", "http://127.0.0.1:1"], "error: --url does not apply to `dev`: "),
        (&["--namespace", "a", "dev"], "error: --namespace does not apply to `dev`: "),
        (&["config", "show", "--url", "http://127.0.0.1:1"], "error: --url does not apply to `config`: "),
        (&["config", "check", "x.yaml", "--token", "a"], "error: --token does not apply to `config check`: "),
        (&["completions", "bash", "--token", "a"], "error: --token does not apply to `completions`: "),
        (
            &["completions", "bash", "--namespace", "a"],
            "error: --namespace does not apply to `completions`: ",
        ),
    ];
    for (args, told) in cases {
        let output = output(&mut tasklane(args));
        assert_eq!(output.status.code(), Some(2), "{args:?}");
        assert!(stderr(&output).starts_with(told), "{args:?}: {}", stderr(&output));
    }
    // The variables of the environment hold for all commands.
    let mut command = tasklane(&["config", "show"]);
    let shown = output(command.env("TASKLANE_URL", "http://127.0.0.1:1").env("TASKLANE_NAMESPACE", "a"));
    assert!(shown.status.success(), "{}", stderr(&shown));
    let shown = output(&mut tasklane(&["config", "show", "--token", "abc"]));
    let text = stdout(&shown);
    let token = text.lines().find(|line| line.trim_start().starts_with("token:")).unwrap();
    assert!(token.contains("--token") && !token.contains("abc"), "{token}");
}

/// Other users see it in the list of processes.
#[test]
fn a_token_on_the_command_line_is_warned_of() {
    let list = |args: &[&str], variable: &str| {
        let script = Script::new(vec![json(200, r#"{"locks":[]}"#)]);
        let mut command = tasklane(&["--url", &script.url]);
        let output = output(command.args(args).env("TASKLANE_TOKEN", variable));
        assert!(script.requests()[0].contains("authorization: Bearer abc"));
        stderr(&output)
    };
    let warned = list(&["lock", "list", "--token", "abc"], "");
    assert!(warned.contains("warning: other users can read the value of --token"), "{warned}");
    assert!(!list(&["lock", "list"], "abc").contains("warning"));
    assert!(!list(&["--json", "lock", "list", "--token", "abc"], "").contains("warning"));
    let started = output(&mut tasklane(&["dev", "--listen", "0.0.0.0:0", "--token", "abc"]));
    let text = stderr(&started);
    assert_eq!(started.status.code(), Some(2), "{text}");
    assert!(text.starts_with("warning: other users") && text.contains("has 3 characters"), "{text}");
}

#[test]
fn refusals_have_their_own_codes() {
    let cases = [
        (401, "unauthorized", 6, "TASKLANE_TOKEN"),
        (401, "user_not_allowed", 6, "as the server's user"),
        (404, "task_not_found", 3, "`tasklane list`"),
        (409, "task_unfinished", 4, "`tasklane wait`"),
        (422, "invalid_value", 2, ""),
        (503, "overloaded", 7, ""),
        (500, "internal", 1, ""),
    ];
    for (status, code, exit, hint) in cases {
        let problem = format!(
            "{{\"title\":\"t\",\"status\":{status},\"code\":\"{code}\",\"detail\":\"what is wrong\"}}"
        );
        let script = Script::new(vec![json(status, &problem)]);
        let output = output(&mut tasklane(&["--url", &script.url, "retry", ID]));
        assert_eq!(output.status.code(), Some(exit), "{code}");
        let text = stderr(&output);
        assert!(
            text.starts_with(&format!("error: what is wrong ({code})\n")) && text.contains(hint),
            "{text}"
        );
    }
}

#[test]
fn a_refusal_is_json_for_programs() {
    let script = Script::new(vec![json(404, r#"{"code":"task_not_found","status":404,"title":"t"}"#)]);
    let output = output(&mut tasklane(&["--json", "--url", &script.url, "get", ID]));
    // Nothing but JSON: the hint is a part of it.
    let problem: serde_json::Value = serde_json::from_str(&stderr(&output)).unwrap();
    assert_eq!(problem["code"], "task_not_found");
    assert!(problem["hint"].as_str().unwrap().contains("`tasklane list`"), "{problem}");
    assert!(output.stdout.is_empty());
}

#[test]
fn errors_that_are_not_the_servers_are_json_for_programs_too() {
    let cases: [(&[&str], i32, &str); 2] = [
        (&["--json", "--url", "http://127.0.0.1:1", "get", ID], 5, "unreachable"),
        (&["--json", "--url", "http://127.0.0.1:1", "dev"], 2, "usage"),
    ];
    for (args, exit, code) in cases {
        let output = output(&mut tasklane(args));
        assert_eq!(output.status.code(), Some(exit), "{args:?}");
        let told: serde_json::Value = serde_json::from_str(&stderr(&output)).unwrap();
        assert_eq!((&told["code"], told["hint"].is_string()), (&code.into(), exit == 5), "{told}");
        assert!(!told["detail"].as_str().unwrap().is_empty());
    }
}

#[test]
fn a_wrong_config_is_2_and_names_everything() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("c.yaml");
    std::fs::write(&file, "lisen: x\nlanes: 0\n").unwrap();
    let file = file.to_str().unwrap();
    for args in
        [&["config", "check", file][..], &["config", "show", "--config", file], &["dev", "--config", file]]
    {
        let output = output(&mut tasklane(args));
        assert_eq!(output.status.code(), Some(2), "{args:?}");
        let text = stderr(&output);
        assert!(
            text.contains("lisen: unknown key; did you mean listen?") && text.contains("- lanes: "),
            "{text}"
        );
    }
}

#[test]
fn a_public_address_without_a_token_does_not_start() {
    let output = output(&mut tasklane(&["dev", "--listen", "0.0.0.0:0"]));
    assert_eq!(output.status.code(), Some(2));
    assert!(stderr(&output).contains("no token is set"), "{}", stderr(&output));
}

#[test]
fn the_effective_config_is_shown_with_its_origins() {
    let args = ["config", "show", "--listen", "127.0.0.1:1", "--set", "worker.labels={zone: eu}"];
    let output = output(tasklane(&args).env("TASKLANE_TOKEN", "geheim").env("TASKLANE_LANES", "4"));
    let text = stdout(&output);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let line = |start: &str| text.lines().find(|line| line.trim().starts_with(start)).unwrap().to_owned();
    assert!(line("listen:").contains("127.0.0.1:1 ") && line("listen:").ends_with("# flag --listen"));
    assert!(
        line("lanes:").ends_with("# env TASKLANE_LANES")
            && line("labels:").ends_with("# flag --set worker.labels")
    );
    assert!(line("capacity:").ends_with("# default, 4 × cores"));
    assert!(!text.contains("geheim"), "{text}");
}

#[test]
fn completions_are_made_for_a_shell() {
    let output = output(&mut tasklane(&["completions", "bash"]));
    assert_eq!(output.status.code(), Some(0));
    assert!(stdout(&output).contains("complete -F _tasklane"), "{}", stdout(&output));
}

#[test]
fn nothing_is_done_to_many_tasks_without_being_told_to() {
    let script = Script::new(vec![json(200, r#"{"dryRun":true,"matched":12}"#)]);
    let output = output(
        tasklane(&["--url", &script.url, "bulk", "cancel", "--queue", "q"])
            .stdin(std::process::Stdio::null()),
    );
    assert_eq!(output.status.code(), Some(2));
    assert!(
        stderr(&output).contains("12 tasks match, and standard input is not a terminal: confirm with --yes"),
        "{}",
        stderr(&output)
    );
    let request = script.requests().remove(0);
    assert!(request.ends_with(r#"{"action":"cancel","filter":{"queue":"q"},"dryRun":true}"#), "{request}");
}
