//! The result of an attempt, and the verdict on its end.

use std::io::{ErrorKind, Read};
use std::path::Path;
use std::time::Duration;

use tasklane_core::message::{Ending, Finish, RetryAdvice};
use tasklane_core::task::{TaskError, TaskResult};

use super::CommandOptions;
use super::progress::open_plain;
use crate::guard::{CommandEnd, ProcessTreeEnd};
use crate::request::{JSON_DEPTH_MAX, check_readable, too_deep};

/// The end of an attempt that succeeded.
pub(crate) fn succeeded(result: TaskResult) -> Finish {
    // The worker measures how long it ran.
    Finish { ran: Duration::ZERO, ending: Ending::Success, result }
}

/// The end of an attempt that failed.
pub(crate) fn failed(error: TaskError, retry: RetryAdvice, result: TaskResult) -> Finish {
    Finish { ran: Duration::ZERO, ending: Ending::Failed { error, retry }, result }
}

/// The error of JSON text that is too long.
pub(super) fn too_large(len: usize, max: usize) -> TaskError {
    TaskError::new("result_too_large", format!("the result has {len} bytes, at most {max}"))
}

/// The error of JSON text that is nested deeper than many parsers allow.
pub(super) fn nested_too_deep() -> TaskError {
    let message = format!("the result is nested deeper than {JSON_DEPTH_MAX} levels");
    TaskError::new("result_invalid", message)
}

/// The content of a command's result file: `None` if there is no file. A symlink or folder in its place is
/// not followed and is an error.
pub(super) fn read_result(path: &Path, max: usize) -> Result<Option<String>, TaskError> {
    let Some(file) = open_plain(path) else {
        let why = match std::fs::symlink_metadata(path) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            Ok(about) if about.is_file() => "cannot be read",
            Ok(_) | Err(_) => "is not a regular file",
        };
        return Err(TaskError::new("result_invalid", format!("the result file {why}")));
    };
    let len = file.metadata().map_or(0, |about| about.len());
    let len = usize::try_from(len).unwrap_or(usize::MAX);
    let mut bytes = Vec::new();
    let invalid = |why: &dyn std::fmt::Display| {
        TaskError::new("result_invalid", format!("the result file is not JSON: {why}"))
    };
    file.take(max as u64 + 1).read_to_end(&mut bytes).map_err(|e| invalid(&e))?;
    if bytes.len() > max {
        return Err(too_large(len, max));
    }
    let text = std::str::from_utf8(&bytes).map_err(|e| invalid(&e))?.trim();
    if text.is_empty() {
        return Ok(None);
    }
    serde_json::from_str::<serde::de::IgnoredAny>(text).map_err(|e| invalid(&e))?;
    if too_deep(text) {
        return Err(nested_too_deep());
    }
    check_readable(text).map_err(|rule| TaskError::new("result_invalid", format!("the result {rule}")))?;
    Ok(Some(text.to_owned()))
}

/// The result and the advice that follow from the end of a command.
pub(super) fn judge(
    options: &CommandOptions,
    ended: ProcessTreeEnd,
    written: Result<Option<String>, TaskError>,
    stdout_tail: &str,
) -> Finish {
    let (code, message) = describe(ended);
    let tail =
        || if stdout_tail.is_empty() { String::new() } else { serde_json::json!(stdout_tail).to_string() };
    let (data, unusable) = match written {
        Ok(Some(data)) => (data, None),
        Ok(None) => (tail(), None),
        Err(error) => (tail(), Some(error)),
    };
    let result = TaskResult { code, message: message.clone(), data };
    let error = |code| TaskError::new(code, message.clone());
    match ended.how {
        // A retry would write the same again.
        CommandEnd::Code(0) => match unusable {
            Some(error) => failed(error, RetryAdvice::Never, result),
            None => succeeded(TaskResult { message: String::new(), ..result }),
        },
        _ if ended.oom_killed == Some(true) => failed(error("out_of_memory"), RetryAdvice::Policy, result),
        CommandEnd::Code(code) => {
            let retry = if options.never_retry_exit_codes.contains(&code) {
                RetryAdvice::Never
            } else {
                options
                    .retry_later_exit_codes
                    .get(&code)
                    .map_or(RetryAdvice::Policy, |&after| RetryAdvice::After(after))
            };
            failed(error("exit_code"), retry, result)
        }
        CommandEnd::Signal(_) => failed(error("signal"), RetryAdvice::Policy, result),
        CommandEnd::Unknown => failed(error(TaskError::GUARD_LOST), RetryAdvice::Policy, result),
    }
}

/// A number and a text for it.
fn describe(ended: ProcessTreeEnd) -> (i32, String) {
    let memory = if ended.oom_killed == Some(true) { "memory ran out: " } else { "" };
    match ended.how {
        CommandEnd::Code(code) => (code, format!("{memory}exit code {code}")),
        // Shells use this number.
        CommandEnd::Signal(signal) => (128 + signal, format!("{memory}ended by {}", signal_name(signal))),
        CommandEnd::Unknown => (-1, "the process that watched it was killed".to_owned()),
    }
}

fn signal_name(signal: i32) -> String {
    let name = match signal {
        libc::SIGHUP => "SIGHUP",
        libc::SIGINT => "SIGINT",
        libc::SIGQUIT => "SIGQUIT",
        libc::SIGILL => "SIGILL",
        libc::SIGTRAP => "SIGTRAP",
        libc::SIGABRT => "SIGABRT",
        libc::SIGBUS => "SIGBUS",
        libc::SIGFPE => "SIGFPE",
        libc::SIGKILL => "SIGKILL",
        libc::SIGUSR1 => "SIGUSR1",
        libc::SIGSEGV => "SIGSEGV",
        libc::SIGUSR2 => "SIGUSR2",
        libc::SIGPIPE => "SIGPIPE",
        libc::SIGALRM => "SIGALRM",
        libc::SIGTERM => "SIGTERM",
        libc::SIGXCPU => "SIGXCPU",
        libc::SIGXFSZ => "SIGXFSZ",
        libc::SIGSYS => "SIGSYS",
        _ => return format!("signal {signal}"),
    };
    format!("signal {signal} ({name})")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ended(how: CommandEnd) -> ProcessTreeEnd {
        ProcessTreeEnd { how, leftovers: 0, oom_killed: Some(false) }
    }

    fn verdict(finish: &Finish) -> (&str, &str, RetryAdvice) {
        match &finish.ending {
            Ending::Failed { error, retry } => (&error.code, &error.message, *retry),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn exit_codes_advise_on_retrying() {
        let mut options = CommandOptions::default();
        options.never_retry_exit_codes.insert(2);
        let judge = |code| judge(&options, ended(CommandEnd::Code(code)), Ok(None), "");
        assert_eq!(verdict(&judge(1)), ("exit_code", "exit code 1", RetryAdvice::Policy));
        assert_eq!(verdict(&judge(2)).2, RetryAdvice::Never);
        assert_eq!(verdict(&judge(75)).2, RetryAdvice::After(Duration::from_mins(1)));
        assert_eq!(judge(0).ending, Ending::Success);
        assert!(judge(0).result.is_empty());
    }

    #[test]
    fn what_killed_it_is_named() {
        let options = CommandOptions::default();
        let killed = ended(CommandEnd::Signal(libc::SIGKILL));
        let finish = judge(&options, killed, Ok(None), "");
        assert_eq!(verdict(&finish), ("signal", "ended by signal 9 (SIGKILL)", RetryAdvice::Policy));
        assert_eq!(finish.result.code, 137);
        let starved = ProcessTreeEnd { oom_killed: Some(true), ..killed };
        let finish = judge(&options, starved, Ok(None), "");
        assert_eq!(verdict(&finish).0, "out_of_memory");
        assert_eq!(verdict(&finish).1, "memory ran out: ended by signal 9 (SIGKILL)");
        assert_eq!(verdict(&judge(&options, ended(CommandEnd::Unknown), Ok(None), "")).0, "guard_lost");
    }

    #[test]
    fn the_file_comes_before_standard_output() {
        let options = CommandOptions::default();
        let data = |written: Option<&str>, tail: &str| {
            judge(&options, ended(CommandEnd::Code(0)), Ok(written.map(str::to_owned)), tail).result.data
        };
        assert_eq!(data(Some("{}"), "printed"), "{}");
        assert_eq!(data(None, "say \"hi\"\n"), r#""say \"hi\"\n""#);
        assert_eq!(data(None, ""), "");
    }

    #[test]
    fn a_result_that_cannot_be_used_fails_a_success_only() {
        let options = CommandOptions::default();
        let unusable = || Err(TaskError::new("result_invalid", "why"));
        let finish = judge(&options, ended(CommandEnd::Code(0)), unusable(), "");
        assert_eq!(verdict(&finish), ("result_invalid", "why", RetryAdvice::Never));
        let finish = judge(&options, ended(CommandEnd::Code(3)), unusable(), "");
        assert_eq!(verdict(&finish).0, "exit_code");
    }

    #[test]
    fn result_files_are_checked() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("result");
        let read = || read_result(&path, 16).map_err(|error| error.code);
        assert_eq!(read(), Ok(None));
        for (text, expected) in [
            ("", Ok(None)),
            (" {\"a\": 1}\n", Ok(Some("{\"a\": 1}".to_owned()))),
            ("not json", Err("result_invalid".to_owned())),
            ("{} {}", Err("result_invalid".to_owned())),
            ("\"0123456789abcd\"", Ok(Some("\"0123456789abcd\"".to_owned()))),
            ("\"0123456789abcde\"", Err("result_too_large".to_owned())),
        ] {
            std::fs::write(&path, text).unwrap();
            assert_eq!(read(), expected, "{text}");
        }
        let elsewhere = dir.path().join("elsewhere");
        std::fs::write(&elsewhere, "{}").unwrap();
        let instead: [&dyn Fn(); 4] = [
            &|| std::os::unix::fs::symlink(&elsewhere, &path).unwrap(),
            &|| std::os::unix::fs::symlink("nowhere", &path).unwrap(),
            &|| std::fs::create_dir(&path).unwrap(),
            &|| drop(std::os::unix::net::UnixListener::bind(&path).unwrap()),
        ];
        for put in instead {
            std::fs::remove_file(&path).or_else(|_| std::fs::remove_dir(&path)).unwrap();
            put();
            let error = read_result(&path, 16).unwrap_err();
            assert_eq!(
                (&*error.code, &*error.message),
                ("result_invalid", "the result file is not a regular file")
            );
        }
        std::fs::remove_file(&path).unwrap();
        std::fs::write(&path, b"\"\xff\"").unwrap();
        assert_eq!(read(), Err("result_invalid".to_owned()));
        let nested = |depth| format!("{}{}", "[".repeat(depth), "]".repeat(depth));
        std::fs::write(&path, nested(JSON_DEPTH_MAX)).unwrap();
        assert!(read_result(&path, 1 << 20).is_ok());
        std::fs::write(&path, nested(JSON_DEPTH_MAX + 1)).unwrap();
        assert_eq!(read_result(&path, 1 << 20).unwrap_err().code, "result_invalid");
    }
}
