//! `SHELL` and `PYTHON_SCRIPT`, with real processes.
#![allow(clippy::unwrap_used, reason = "tests fail by panicking")]

mod executors_support;
mod guard_support;

use std::collections::BTreeMap;
use std::fs;
use std::sync::Arc;
use std::time::Duration;

use executors_support::*;
use guard_support::{guard, options, pid, runs};
use serde_json::json as value;
use tasklane_core::id::Name;
use tasklane_core::message::{Ending, RetryAdvice};
use tasklane_ports::Executor;
use tasklane_runtime::executors::{ExecutorOptions, Registry};
use tasklane_runtime::guard::{Guard, GuardOptions};

fn executor(registry: &Registry, task_type: &str) -> Arc<dyn Executor> {
    Arc::clone(registry.executor(&Name::new(task_type).unwrap()).unwrap())
}

async fn shell() -> Arc<dyn Executor> {
    executor(&Registry::builtin(ExecutorOptions::new(Some(guard().await))), "SHELL")
}

async fn python() -> Arc<dyn Executor> {
    executor(&Registry::builtin(ExecutorOptions::new(Some(guard().await))), "PYTHON_SCRIPT")
}

#[tokio::test]
async fn the_built_in_types_are_registered() {
    let registry = Registry::builtin(ExecutorOptions::new(Some(guard().await)));
    let types: Vec<&str> = registry.task_types().map(Name::as_str).collect();
    assert_eq!(types, ["HTTP", "NOOP", "PYTHON_SCRIPT", "SHELL"]);
    let (finish, _) = run(&*executor(&registry, "NOOP"), text("whatever")).await;
    assert_eq!(finish.ending, Ending::Success);
    assert!(finish.result.is_empty());
}

#[tokio::test]
async fn a_script_prints_and_its_output_is_the_result() {
    let shell = shell().await;
    let (finish, said) = run(&*shell, text("echo hello; echo oops >&2")).await;
    assert_eq!(finish.ending, Ending::Success);
    assert_eq!((finish.result.code, finish.result.data.as_str()), (0, r#""hello\n""#));
    assert_eq!((said.stdout().as_str(), said.stderr.as_slice()), ("hello\n", &b"oops\n"[..]));
    assert!(said.system.is_empty());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_is_lost_of_what_many_short_commands_print() {
    let shell = shell().await;
    let commands = (0..16).map(|first| {
        let shell = Arc::clone(&shell);
        tokio::spawn(async move {
            for number in (0..50).map(|n| first * 50 + n) {
                let (finish, said) =
                    run(&*shell, json(value!({ "argv": ["echo", number.to_string()] }))).await;
                assert_eq!(said.stdout(), format!("{number}\n"));
                assert_eq!(finish.result.data, format!("\"{number}\\n\""));
            }
        })
    });
    for command in commands.collect::<Vec<_>>() {
        command.await.unwrap();
    }
}

#[tokio::test]
async fn how_it_failed_is_said() {
    let shell = shell().await;
    let (finish, _) = run(&*shell, text("echo partly; exit 3")).await;
    assert_eq!(failure(&finish), ("exit_code", "exit code 3", RetryAdvice::Policy));
    assert_eq!((finish.result.code, finish.result.data.as_str()), (3, r#""partly\n""#));
    let (finish, _) = run(&*shell, text("exit 75")).await;
    assert_eq!(failure(&finish).2, RetryAdvice::After(Duration::from_mins(1)));
    let (finish, _) = run(&*shell, text("kill -SEGV $$")).await;
    assert_eq!(failure(&finish).0, "signal");
    assert_eq!(finish.result.message, "ended by signal 11 (SIGSEGV)");
    let (finish, _) = run(&*shell, json(value!({"argv": ["no-such-program"]}))).await;
    assert_eq!(failure(&finish).0, "cannot_execute");
    assert!(failure(&finish).1.starts_with("cannot execute no-such-program"), "{finish:?}");
}

#[tokio::test]
async fn a_command_gets_arguments_input_folder_and_variables() {
    let shell = shell().await;
    let script = r#"pwd; echo "$MINE"; printf '%s|' "$@"; cat"#;
    let payload = value!({
        "argv": ["sh", "-c", script, "sh", "a b", "$HOME", ""],
        "env": {"MINE": "x=y"},
        "cwd": "/usr",
        "stdin": "typed",
    });
    let (finish, said) = run(&*shell, json(payload)).await;
    assert_eq!(finish.ending, Ending::Success);
    assert_eq!(said.stdout(), "/usr\nx=y\na b|$HOME||typed");
}

#[tokio::test]
async fn a_command_sees_its_attempt_and_no_secrets() {
    let mut options = ExecutorOptions::new(Some(guard().await));
    options.command.env = BTreeMap::from([("SITE".to_owned(), "north".to_owned())]);
    let shell = executor(&Registry::builtin(options), "SHELL");
    let (_, said) = run(&*shell, json(value!({"argv": ["env"], "env": {"OWN": "1"}}))).await;
    let stdout = said.stdout();
    let env: BTreeMap<&str, &str> = stdout.lines().filter_map(|line| line.split_once('=')).collect();
    assert_eq!(env["TASKLANE_TASK_NAME"], "my task");
    assert_eq!(env["TASKLANE_ATTEMPT"], "3");
    assert_eq!(env["TASKLANE_FENCE"], "3");
    assert_eq!((env["SITE"], env["OWN"]), ("north", "1"));
    assert_eq!(env["PATH"], std::env::var("PATH").unwrap());
    // Cargo sets many variables for tests, which stand for the variables of any worker.
    assert!(std::env::var_os("CARGO_MANIFEST_DIR").is_some());
    let known = [
        "HOME",
        "LANG",
        "LANGUAGE",
        "LOGNAME",
        "OWN",
        "PATH",
        "SHELL",
        "SITE",
        "SSL_CERT_DIR",
        "SSL_CERT_FILE",
        "TMPDIR",
        "TZ",
        "USER",
    ];
    for name in env.keys() {
        let expected = known.contains(name) || name.starts_with("LC_") || name.starts_with("TASKLANE_");
        assert!(expected, "{name} should not be there");
    }
    let tasklane: Vec<_> = env.keys().filter(|name| name.starts_with("TASKLANE_")).collect();
    assert_eq!(tasklane.len(), 6, "{tasklane:?}");
}

#[tokio::test]
async fn wrong_payloads_are_named() {
    let shell = shell().await;
    let refused = |payload| refusal(&*shell, json(payload));
    assert_eq!(refusal(&*shell, text(" \n")), "the script is empty");
    assert_eq!(refused(value!(["ls"])), "must be a string or an object");
    assert_eq!(refused(value!({})), "field argv: must be a list that begins with the program");
    assert_eq!(refused(value!({"argv": "ls"})), "field argv: must be a list of strings");
    assert_eq!(refused(value!({"argv": ["ls", 1]})), "field argv: must be a list of strings");
    assert_eq!(refused(value!({"argv": ["a\0b"]})), "field argv: must not contain NUL");
    assert_eq!(refused(value!({"argv": ["ls"], "env": {"A": 1}})), "field env.A: must be a string");
    assert_eq!(
        refused(value!({"argv": ["ls"], "env": {"A=B": ""}})),
        "field env.A=B: is not a name of a variable"
    );
    assert_eq!(
        refused(value!({"argv": ["ls"], "env": {"TASKLANE_FENCE": "9"}})),
        "field env.TASKLANE_FENCE: names that begin with TASKLANE_ are Tasklane's own"
    );
    assert_eq!(
        refused(value!({"argv": ["ls"], "cmd": "ls"})),
        "field cmd: is not known; there are argv, script, env, cwd, stdin"
    );
    let python = python().await;
    let refused = |payload| refusal(&*python, json(payload));
    assert_eq!(refused(value!({})), "field script: script or file must be given");
    // The missing field may be the misspelt one.
    assert_eq!(
        refused(value!({"scrpt": "x"})),
        "field scrpt: is not known; there are script, file, args, env, stdin"
    );
    assert_eq!(
        refused(value!({"script": "1", "file": "x.py"})),
        "field file: there is a script already; only one of them is possible"
    );
    assert_eq!(refused(value!({"script": ""})), "field script: must not be empty");
}

#[tokio::test]
async fn a_script_that_is_too_long_for_an_argument_runs() {
    let shell = shell().await;
    let script = format!("# {}\necho done", "x".repeat(200 << 10));
    let (finish, said) = run(&*shell, text(&script)).await;
    assert_eq!((finish.ending, said.stdout().as_str()), (Ending::Success, "done\n"));
}

#[tokio::test]
async fn output_is_passed_on_while_it_is_printed() {
    let shell = shell().await;
    let dir = tempfile::tempdir().unwrap();
    let gate = dir.path().join("gate");
    let script = format!("mkfifo {0}; echo first; read x < {0}; echo second", gate.display());
    let recorder = Recorder::new();
    let running = {
        let (shell, recorder) = (Arc::clone(&shell), Arc::clone(&recorder));
        tokio::spawn(async move { run_with(&*shell, text(&script), recorder).await })
    };
    recorder.until(|said| said.stdout == b"first\n").await;
    tokio::task::spawn_blocking(move || fs::write(gate, "go\n").unwrap()).await.unwrap();
    assert_eq!(running.await.unwrap().ending, Ending::Success);
    assert_eq!(recorder.said().stdout(), "first\nsecond\n");
}

#[tokio::test]
async fn a_flood_of_output_is_counted_to_the_last_byte() {
    const BYTES: usize = 256 << 20;
    let shell = shell().await;
    let (finish, said) = run(&*shell, text(&format!("head -c {BYTES} /dev/zero; echo end >&2"))).await;
    assert_eq!(finish.ending, Ending::Success);
    assert_eq!(said.total, BYTES + 4);
    assert!(said.longest <= 64 << 10);
    // Only the end of it is the result: each NUL is six characters of JSON.
    assert_eq!(finish.result.data.len(), 4096 * 6 + 2);
}

#[tokio::test]
async fn a_result_file_is_the_result() {
    let python = python().await;
    let script = "
import json, os, sys
print('noise')
json.dump({'answer': 6 * 7, 'args': sys.argv[1:]}, open(os.environ['TASKLANE_RESULT_FILE'], 'w'))
";
    let (finish, said) = run(&*python, json(value!({"script": script, "args": ["a", "b c"]}))).await;
    assert_eq!(finish.ending, Ending::Success);
    assert_eq!(finish.result.data, r#"{"answer": 42, "args": ["a", "b c"]}"#);
    assert_eq!(said.stdout(), "noise\n");

    let shell = shell().await;
    let (finish, _) = run(&*shell, text("echo '{oops' > $TASKLANE_RESULT_FILE")).await;
    assert_eq!((failure(&finish).0, failure(&finish).2), ("result_invalid", RetryAdvice::Never));
    // JSON that some programs could not parse is no result, and does not hang the task either.
    for unreadable in ["1e999", r#""\ud800""#] {
        let script = format!("printf '%s' '{unreadable}' > $TASKLANE_RESULT_FILE");
        let (finish, _) = run(&*shell, text(&script)).await;
        assert_eq!(
            (failure(&finish).0, failure(&finish).2),
            ("result_invalid", RetryAdvice::Never),
            "{unreadable}"
        );
    }
    let exact = "printf '%s' '{\"id\":123456789012345678901234567890}' > $TASKLANE_RESULT_FILE";
    let (finish, _) = run(&*shell, text(exact)).await;
    assert_eq!(finish.result.data, r#"{"id":123456789012345678901234567890}"#);
    let big = "yes 1234567890 | tr -d '\\n' | head -c 300000 > $TASKLANE_RESULT_FILE";
    let (finish, _) = run(&*shell, text(big)).await;
    assert_eq!(
        failure(&finish),
        ("result_too_large", "the result has 300000 bytes, at most 262144", RetryAdvice::Never)
    );
}

#[tokio::test]
async fn progress_is_followed_while_it_runs() {
    let mut options = ExecutorOptions::new(Some(guard().await));
    options.command.progress_every = Duration::from_millis(10);
    let python = executor(&Registry::builtin(options), "PYTHON_SCRIPT");
    let dir = tempfile::tempdir().unwrap();
    let gate = dir.path().join("gate");
    let script = format!(
        "
import os
os.mkfifo('{0}')
with open(os.environ['TASKLANE_PROGRESS_FILE'], 'a') as progress:
    print(10, file=progress, flush=True)
    open('{0}').read()
    print('{{\"percent\": 90.5, \"message\": \"nearly\"}}', file=progress)
",
        gate.display()
    );
    let recorder = Recorder::new();
    let running = {
        let recorder = Arc::clone(&recorder);
        tokio::spawn(async move { run_with(&*python, text(&script), recorder).await })
    };
    let said = recorder.until(|said| !said.progress.is_empty()).await;
    assert_eq!((said.progress[0].percent, said.progress[0].message.as_str()), (Some(10), ""));
    tokio::task::spawn_blocking(move || fs::write(gate, "go").unwrap()).await.unwrap();
    assert_eq!(running.await.unwrap().ending, Ending::Success);
    let last = recorder.said().progress.pop().unwrap();
    assert_eq!((last.percent, last.message.as_str()), (Some(90), "nearly"));
}

#[tokio::test]
async fn python_runs_scripts_and_files() {
    let python = python().await;
    let (finish, _) = run(&*python, text("print(6*7)")).await;
    assert_eq!(finish.result.data, r#""42\n""#);
    let (finish, said) = run(&*python, text("x = 1\nraise ValueError('no')")).await;
    assert_eq!(failure(&finish).1, "exit code 1");
    let stderr = String::from_utf8(said.stderr).unwrap();
    assert!(stderr.contains("raise ValueError('no')"), "the traceback shows the line: {stderr}");
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("job.py");
    fs::write(&file, "import os; print(os.environ['WHO'])").unwrap();
    let (finish, _) = run(&*python, json(value!({"file": file, "env": {"WHO": "me"}}))).await;
    assert_eq!(finish.result.data, r#""me\n""#);
}

/// Starts a process that ignores SIGTERM in a session of its own; prints its number when it runs.
const STUBBORN: &str = r#"setsid sh -c 'trap "" TERM; echo $$; while :; do sleep 1000; done' &"#;

#[tokio::test]
async fn a_stopped_attempt_leaves_nothing() {
    let shell = shell().await;
    let recorder = Recorder::new();
    let running = {
        let recorder = Arc::clone(&recorder);
        tokio::spawn(async move { run_with(&*shell, text(&format!("{STUBBORN} wait")), recorder).await })
    };
    let said = recorder.until(|said| said.stdout.ends_with(b"\n")).await;
    let stubborn = pid(said.stdout().trim().parse().unwrap());
    recorder.stop(Duration::from_millis(50));
    let finish = running.await.unwrap();
    assert_eq!(finish.result.message, "ended by signal 15 (SIGTERM)");
    assert!(!runs(stubborn));
}

#[tokio::test]
async fn a_stopped_attempt_may_end_well() {
    let shell = shell().await;
    let recorder = Recorder::new();
    let script = "trap 'echo saved; exit 0' TERM; echo up; while :; do sleep 0.1; done";
    let running = {
        let recorder = Arc::clone(&recorder);
        tokio::spawn(async move { run_with(&*shell, text(script), recorder).await })
    };
    recorder.until(|said| said.stdout == b"up\n").await;
    recorder.stop(PATIENCE);
    assert_eq!(running.await.unwrap().ending, Ending::Success);
    assert_eq!(recorder.said().stdout(), "up\nsaved\n");
}

#[tokio::test]
async fn a_dropped_attempt_is_killed() {
    let shell = shell().await;
    let recorder = Recorder::new();
    let running = {
        let recorder = Arc::clone(&recorder);
        tokio::spawn(async move { run_with(&*shell, text(&format!("{STUBBORN} wait")), recorder).await })
    };
    let said = recorder.until(|said| said.stdout.ends_with(b"\n")).await;
    running.abort();
    guard_support::gone(pid(said.stdout().trim().parse().unwrap())).await;
}

#[tokio::test]
async fn what_is_left_behind_is_ended_and_remarked() {
    let guard =
        Guard::start(GuardOptions { leftover_grace: Duration::from_millis(50), ..options() }).await.unwrap();
    let shell = executor(&Registry::builtin(ExecutorOptions::new(Some(guard))), "SHELL");
    let dir = tempfile::tempdir().unwrap();
    let gate = dir.path().join("gate");
    // It ends only when the other one runs.
    let script = format!(
        "mkfifo {0}; setsid sh -c 'trap \"\" TERM; echo $$ > {0}; while :; do sleep 1000; done' & cat {0}",
        gate.display()
    );
    let (finish, said) = run(&*shell, text(&script)).await;
    assert_eq!(finish.ending, Ending::Success);
    assert!(!runs(pid(said.stdout().trim().parse().unwrap())));
    let remark = String::from_utf8(said.system).unwrap();
    assert!(remark.starts_with("processes that the command left behind and that were ended: "), "{remark}");
}

#[tokio::test]
async fn an_attempt_removes_its_files() {
    let guard = guard().await;
    let shell = executor(&Registry::builtin(ExecutorOptions::new(Some(guard.clone()))), "SHELL");
    let (finish, said) =
        run(&*shell, text("echo 1 > $TASKLANE_RESULT_FILE; echo $TASKLANE_RESULT_FILE")).await;
    assert_eq!(finish.result.data, "1");
    assert!(said.stdout().starts_with(guard.dir().to_str().unwrap()));
    // A thread of its own removes them; the test ends when it has, or hangs and shows it by its name.
    while fs::read_dir(guard.dir()).unwrap().count() > 0 {
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn a_folder_that_is_used_again_is_as_if_new() {
    let shell = shell().await;
    let look = "cd \"$(dirname \"$TASKLANE_RESULT_FILE\")\" && ls -A && stat -c %a .";
    for leave in
        ["true", "chmod 755 .", "touch .left", "mkdir -p left/over", "echo 1 > \"$TASKLANE_RESULT_FILE\""]
    {
        let (finish, said) = run(&*shell, text(&format!("{look} && {leave}"))).await;
        assert_eq!(finish.ending, Ending::Success);
        assert_eq!(said.stdout(), "700\n", "before {leave}");
    }
    let (_, said) = run(&*shell, text(look)).await;
    assert_eq!(said.stdout(), "700\n");
}
