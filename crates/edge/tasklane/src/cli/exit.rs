//! How a command ends: exit codes, and errors with a remedy.

use std::io::Write;
use std::process::ExitCode;

use serde_json::{Value, json};
use tasklane::config::ConfigError;
use tasklane_client::{Error, Problem, Task};
use tasklane_core::mask::masked;
use tasklane_core::printable::{printable, printable_lines};

use super::out::Out;

/// The codes, as `--help` and `docs/cli.md` state them.
pub(crate) const CODES: &str = "\
Exit codes: 0 done · 1 failed · 2 wrong usage or refused input · 3 not found · 4 conflict ·
5 server not reachable · 6 not allowed · 7 busy, try again later · 124 timed out ·
130 cancelled. `run` and `wait` end with the exit code of the task's own command.";

/// An exit code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Exit(pub(crate) u8);

impl Exit {
    pub(crate) const OK: Self = Self(0);
    pub(crate) const FAILED: Self = Self(1);
    pub(crate) const USAGE: Self = Self(2);
    pub(crate) const NOT_FOUND: Self = Self(3);
    pub(crate) const CONFLICT: Self = Self(4);
    pub(crate) const UNREACHABLE: Self = Self(5);
    pub(crate) const NOT_ALLOWED: Self = Self(6);
    pub(crate) const BUSY: Self = Self(7);
    pub(crate) const TIME_IS_UP: Self = Self(124);
    pub(crate) const CANCELLED: Self = Self(130);

    /// The code for a task: its command's own where there is one.
    pub(crate) fn of_task(task: &Task) -> Self {
        use tasklane_client::Status;
        match task.status {
            Status::Success => Self::OK,
            Status::Cancelled => Self::CANCELLED,
            Status::Failed => {
                // Other tasks have codes of their own, such as the status of an answer over HTTP.
                let is_command = task.error.as_ref().is_some_and(|error| error.code == "exit_code");
                let result = task.result.as_ref().filter(|_| is_command);
                let code = result.and_then(|result| u8::try_from(result.code).ok());
                code.filter(|code| *code != 0).map_or(Self::FAILED, Self)
            }
            _ => Self::TIME_IS_UP,
        }
    }

    /// The word for an error that is not the server's.
    fn word(self) -> &'static str {
        match self {
            Self::USAGE => "usage",
            Self::UNREACHABLE => "unreachable",
            _ => "failed",
        }
    }

    pub(crate) fn of_problem(problem: &Problem) -> Self {
        match problem.status {
            401 | 403 => Self::NOT_ALLOWED,
            404 => Self::NOT_FOUND,
            409 | 412 => Self::CONFLICT,
            429 | 503 | 507 => Self::BUSY,
            400..=499 => Self::USAGE,
            _ => Self::FAILED,
        }
    }
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        Self::from(exit.0)
    }
}

/// A mistake in what was typed, found by us and not by clap.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(crate) struct Usage(pub(crate) String);

/// Says what went wrong and what to do about it, and gives the code to end with.
pub(crate) fn report(error: &anyhow::Error, out: Out) -> Exit {
    // Whoever reads our output has had enough of it.
    let pipe_closed = error.chain().filter_map(|cause| cause.downcast_ref::<std::io::Error>());
    if pipe_closed.map(std::io::Error::kind).any(|kind| kind == std::io::ErrorKind::BrokenPipe) {
        return Exit::OK;
    }
    let (exit, hint) = advice(error);
    let mut text = if out.is_json() {
        as_json(error, exit, hint.as_deref()).to_string()
    } else {
        let hint = hint.map(|hint| format!("\nhint: {hint}")).unwrap_or_default();
        format!("error: {}{hint}", told(error))
    };
    text.push('\n');
    // An error that cannot be written has nowhere else to go.
    let _ = std::io::stderr().lock().write_all(text.as_bytes());
    exit
}

/// One object: the server's problem where there is one, else the fields that a problem has.
fn as_json(error: &anyhow::Error, exit: Exit, hint: Option<&str>) -> Value {
    let mut told = match client_error(error).and_then(Error::problem) {
        Some(problem) => json!(problem),
        None => json!({ "code": exit.word(), "detail": told(error) }),
    };
    if let Some(hint) = hint {
        told["hint"] = hint.into();
    }
    told
}

/// The whole chain of causes, but for the transport only its root cause: the layers between repeat it in
/// other words. A server's text is one line, whatever is in it.
fn told(error: &anyhow::Error) -> String {
    let mut parts: Vec<String> = Vec::new();
    for cause in error.chain() {
        let of_server = cause.downcast_ref::<Error>();
        let text = cause.to_string();
        parts.push(if of_server.is_some() { printable(&text).into_owned() } else { text });
        if matches!(of_server, Some(Error::Transport { .. })) {
            parts.push(error.root_cause().to_string());
            break;
        }
    }
    parts.dedup();
    masked(&printable_lines(&parts.join(": "))).into_owned()
}

fn client_error(error: &anyhow::Error) -> Option<&Error> {
    error.chain().find_map(|cause| cause.downcast_ref::<Error>())
}

fn advice(error: &anyhow::Error) -> (Exit, Option<String>) {
    if error.is::<Usage>() || error.is::<ConfigError>() {
        return (Exit::USAGE, None);
    }
    let Some(error) = client_error(error) else { return (Exit::FAILED, None) };
    match error {
        Error::Url { .. } => (Exit::USAGE, None),
        Error::Transport { unreachable: true, .. } => {
            let hint = "start a server with `tasklane dev`, or name another server by --url or TASKLANE_URL";
            (Exit::UNREACHABLE, Some(hint.to_owned()))
        }
        Error::Transport { .. } => (Exit::UNREACHABLE, None),
        Error::Problem(problem) => (Exit::of_problem(problem), problem_hint(problem)),
        _ => (Exit::FAILED, None),
    }
}

pub(crate) fn problem_hint(problem: &Problem) -> Option<String> {
    let hint = match problem.code.as_str() {
        "unauthorized" => "set TASKLANE_TOKEN or --token to the server's token".to_owned(),
        "user_not_allowed" => {
            "run this command as the server's user, or configure a token for the server".to_owned()
        }
        "task_not_found" => {
            "`tasklane list` shows the tasks of this namespace; --namespace chooses another".to_owned()
        }
        "queue_not_found" => {
            "`tasklane queue list` shows the queues; --create pauses a queue before its first task".to_owned()
        }
        "already_registered" => "--replace replaces the registered definition".to_owned(),
        "worker_not_found" => "`tasklane worker list` shows the workers".to_owned(),
        "task_unfinished" => "`tasklane wait` waits for its end, `tasklane cancel` stops it".to_owned(),
        "policy_conflict" => "another client changed it meanwhile; run the command again".to_owned(),
        "queue_full" => match problem.retry_after {
            Some(after) => format!("try again in {} s", after.as_secs()),
            None => "try again later".to_owned(),
        },
        _ => return None,
    };
    Some(hint)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn task(status: &str, code: i32) -> Task {
        task_with(status, code, "exit_code")
    }

    fn task_with(status: &str, code: i32, error: &str) -> Task {
        let mut told = json!({ "taskId": "t", "status": status, "result": { "code": code } });
        if status == "FAILED" {
            told["error"] = json!({ "code": error, "message": "" });
        }
        serde_json::from_value(told).unwrap()
    }

    /// The status of an answer over HTTP was taken for the exit code of a command.
    #[test]
    fn a_task_that_is_no_command_fails_with_1() {
        assert_eq!(Exit::of_task(&task_with("FAILED", 200, "http_status")), Exit::FAILED);
    }

    #[test]
    fn a_task_gives_its_own_code() {
        assert_eq!(Exit::of_task(&task("SUCCESS", 0)), Exit::OK);
        assert_eq!(Exit::of_task(&task("FAILED", 42)), Exit(42));
        assert_eq!(Exit::of_task(&task("FAILED", 500)), Exit::FAILED);
        assert_eq!(Exit::of_task(&task("FAILED", 0)), Exit::FAILED);
        assert_eq!(Exit::of_task(&task("CANCELLED", 0)), Exit::CANCELLED);
        assert_eq!(Exit::of_task(&task("RUNNING", 0)), Exit::TIME_IS_UP);
    }

    #[test]
    fn refusals_have_codes_of_their_own() {
        let exit = |status| Exit::of_problem(&Problem { status, ..Problem::default() }).0;
        assert_eq!([401, 403, 404, 409, 413, 422, 429, 500, 503].map(exit), [6, 6, 3, 4, 2, 2, 7, 1, 7]);
    }
}
