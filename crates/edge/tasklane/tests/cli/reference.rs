//! `docs/cli.md` holds the output of `--help`, so that the two cannot diverge. `UPDATE=1 cargo test -p
//! tasklane --test cli` rewrites it.

use std::fmt::Write;

use super::{output, stdout, tasklane};

/// Every command with its own help.
const COMMANDS: &[&[&str]] = &[
    &["dev"],
    &["server"],
    &["worker"],
    &["run"],
    &["submit"],
    &["get"],
    &["list"],
    &["logs"],
    &["cancel"],
    &["retry"],
    &["wait"],
    &["explain"],
    &["queue", "list"],
    &["queue", "get"],
    &["queue", "set"],
    &["queue", "keys"],
    &["queue", "pause"],
    &["queue", "resume"],
    &["schedule", "list"],
    &["schedule", "get"],
    &["schedule", "put"],
    &["schedule", "delete"],
    &["schedule", "enable"],
    &["schedule", "disable"],
    &["schedule", "trigger"],
    &["schedule", "backfill"],
    &["schedule", "next"],
    &["schedule", "preview"],
    &["schedule", "history"],
    &["workflow", "run"],
    &["workflow", "get"],
    &["workflow", "runs"],
    &["workflow", "cancel"],
    &["workflow", "retry"],
    &["workflow", "list"],
    &["workflow", "show"],
    &["workflow", "put"],
    &["workflow", "delete"],
    &["executor", "list"],
    &["executor", "get"],
    &["executor", "put"],
    &["executor", "delete"],
    &["analyzer", "list"],
    &["analyzer", "get"],
    &["analyzer", "put"],
    &["analyzer", "delete"],
    &["job", "get"],
    &["job", "delete"],
    &["lock", "list"],
    &["lock", "take"],
    &["lock", "release"],
    &["webhook", "deliveries"],
    &["webhook", "secret"],
    &["webhook", "endpoints"],
    &["webhook", "test"],
    &["worker", "list"],
    &["worker", "get"],
    &["worker", "set"],
    &["worker", "drain"],
    &["stats"],
    &["bulk", "cancel"],
    &["bulk", "retry"],
    &["events"],
    &["bench"],
    &["config", "show"],
    &["config", "check"],
    &["completions"],
];

const HEAD: &str = "\
# The command line

<!-- Generated from the output of --help by a test: UPDATE=1 cargo test -p tasklane --test cli -->

```sh
tasklane dev                        # a whole Tasklane in one process
tasklane run -- make test           # a command as a task: live output, its exit code
tasklane list --status FAILED       # which tasks failed?
tasklane explain ID                 # why is it not running?
tasklane logs -f ID                 # its output, live
tasklane bulk retry --status FAILED --created-after 2h
```

Results go to standard output, remarks and progress bars to standard error. With `--json` every command prints the JSON
of the API; lists and streams print one object a line, for `jq` and `while read`. An error is one object on standard error, with
`code`, `detail` and, if there is one, `hint`. Durations are written `500ms`, `90s`, `5m`, `1h30m`; times `2030-01-31T12:00:00Z`, or,
in filters, as a time ago: `2h`.

Text of others, such as names and errors, is shown with its control characters, escape sequences and invisible characters
escaped (`\\u{1b}`). So is the output of tasks on a terminal, unless `--raw` is given; a pipe or a file gets the exact bytes.

Every command that calls a server takes `--url` (or `TASKLANE_URL`; by default `http://127.0.0.1:7070`), `--token` (or
`TASKLANE_TOKEN`) and `--namespace` (or `TASKLANE_NAMESPACE`). For `dev` and `config show`, `--token` sets the token that the
server requires.

## Exit codes
| code | meaning |
|---|---|
| 0 | done; for `run` and `wait`: the task succeeded |
| 1 | failed |
| 2 | wrong usage, or refused input |
| 3 | not found |
| 4 | conflict: the task has finished already or not yet, the request id belongs to another request, the policy has changed meanwhile |
| 5 | the server cannot be reached |
| 6 | not allowed: the token is missing or wrong, or the user is not the server's |
| 7 | busy: the queue is full or the server is overloaded; try again later |
| 124 | the wait timed out and the task is not finished |
| 130 | the task was cancelled, or Ctrl-C |

`submit --batch` ends with 7 if all refused tasks may be accepted later, and with 1 otherwise.
`schedule preview` ends with 2 if the server refuses the expression, also because no day fits it (`0 0 30 2 *`), and
with 1 if it has no next time (its years have passed). `run` and `wait` end with the exit code of the
task's own command if it has one. Programs that must distinguish the two use `--json` and read `status` and
`result.code`.
";

#[test]
fn the_page_shows_what_help_says() {
    let mut page = HEAD.to_owned();
    for command in COMMANDS {
        let args: Vec<&str> = command.iter().copied().chain(["--help"]).collect();
        let output = output(&mut tasklane(&args));
        assert_eq!(output.status.code(), Some(0), "{command:?}");
        let _ =
            write!(page, "\n## `tasklane {}`\n```\n{}\n```\n", command.join(" "), own_part(&stdout(&output)));
    }
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../../docs/cli.md");
    if std::env::var_os("UPDATE").is_some() {
        std::fs::write(path, &page).unwrap();
    }
    let stored = std::fs::read_to_string(path).unwrap_or_default();
    assert_eq!(stored, page, "run UPDATE=1 cargo test -p tasklane --test cli");
}

#[test]
fn every_command_is_on_the_page() {
    let help = stdout(&output(&mut tasklane(&["--help"])));
    let (_, commands) = help.split_once("Commands:\n").unwrap();
    // Further lines of a long description are indented more.
    let names = commands.lines().take_while(|line| !line.is_empty()).filter(|line| !line.starts_with("   "));
    for line in names {
        let name = line.split_whitespace().next().unwrap();
        let known = COMMANDS.iter().any(|command| command[0] == name);
        assert!(known || name == "help", "{name} is missing");
    }
    assert!(help.contains("Exit codes: 0 done"), "{help}");
}

/// A server has no worker: its help offered to name it and to set its capacity.
#[test]
fn the_help_of_a_process_is_about_that_process() {
    let help = |command| stdout(&output(&mut tasklane(&[command, "--help"])));
    for flag in ["--name <NAME>", "--capacity <N>"] {
        assert!(!help("server").contains(flag), "{flag}");
        assert!(help("worker").contains(flag) && help("dev").contains(flag), "{flag}");
    }
    assert!(help("server").contains("The address of the API"));
    assert!(help("worker").contains("The address of /healthz and /readyz"));
}

/// The help without what is the same for all commands.
fn own_part(help: &str) -> String {
    let sections = help.split("\n\n").filter(|section| !section.starts_with("Server:"));
    let mut lines: Vec<&str> = Vec::new();
    for section in sections {
        // Options of the whole program that clap sets among the command's own.
        let own = section.lines().filter(|line| {
            let line = line.trim_start();
            !line.starts_with("--json ") && !line.starts_with("-h, --help")
        });
        let own: Vec<&str> = own.map(str::trim_end).collect();
        if own != ["Options:"] {
            lines.extend(own);
            lines.push("");
        }
    }
    lines.join("\n").trim_end().to_owned()
}
