//! `SHELL`: a script for `/bin/sh`, or a command with its arguments.

use std::sync::Arc;

use async_trait::async_trait;
use tasklane_core::message::Dispatch;
use tasklane_core::task::Payload;
use tasklane_ports::{Execution, Executor, ExecutorError};

use super::CommandOptions;
use super::command::{AttemptDir, CommandExecution, Recipe};
use super::payload::{self, Fault, PayloadForm};
use crate::guard::{Guard, Stdin};

/// The longest script that can be an argument; the kernel takes 128 KiB with the NUL at its end.
const ARGUMENT_BYTES_MAX: usize = (128 << 10) - 1;

/// Runs shell scripts and commands.
#[derive(Clone, Debug)]
pub struct Shell {
    guard: Guard,
    options: Arc<CommandOptions>,
}

#[derive(Debug, PartialEq)]
enum Work {
    Script(String),
    Command(Vec<String>),
}

#[derive(Debug)]
pub(super) struct ShellPayload {
    work: Work,
    env: Vec<(String, String)>,
    cwd: Option<String>,
    stdin: Option<String>,
}

impl Shell {
    /// Starts its commands through this guard.
    pub fn new(guard: Guard, options: Arc<CommandOptions>) -> Self {
        Self { guard, options }
    }
}

pub(super) fn read(payload: &Payload) -> Result<ShellPayload, Fault> {
    let mut fields = match payload::read(payload)? {
        PayloadForm::Text(script) if script.trim().is_empty() => {
            return Err(payload::bad("the script is empty"));
        }
        PayloadForm::Text(script) if script.contains('\0') => {
            return Err(payload::bad("must not contain NUL"));
        }
        PayloadForm::Text(script) => {
            return Ok(ShellPayload { work: Work::Script(script), env: Vec::new(), cwd: None, stdin: None });
        }
        PayloadForm::Fields(fields) => fields,
    };
    let given = (fields.texts("argv")?, fields.text("script")?);
    let (env, cwd, stdin) = (fields.env()?, fields.text("cwd")?, fields.text("stdin")?);
    // A misspelt field is reported before a missing field, which may be the same.
    fields.end("argv, script, env, cwd, stdin")?;
    let work = match given {
        (None, Some(script)) if !script.trim().is_empty() => Work::Script(script),
        (None, Some(_)) => return payload::rule("script", "must not be empty"),
        (Some(_), Some(_)) => return payload::rule("script", "must not be given together with argv"),
        (Some(argv), None) if argv.first().is_some_and(|program| !program.is_empty()) => Work::Command(argv),
        (_, None) => return payload::rule("argv", "must be a list that begins with the program"),
    };
    Ok(ShellPayload { work, env, cwd, stdin })
}

#[async_trait]
impl Executor for Shell {
    fn check(&self, dispatch: &Dispatch) -> Result<(), ExecutorError> {
        Ok(read(payload::given(dispatch)?).map(drop)?)
    }

    async fn prepare(&self, dispatch: &Dispatch) -> Result<Box<dyn Execution>, ExecutorError> {
        let ShellPayload { work, env, cwd, stdin } = read(payload::given(dispatch)?)?;
        let dir = AttemptDir::make(&self.guard, dispatch)?;
        let shell = self.options.shell.clone();
        let argv = match work {
            Work::Script(script) if script.len() <= ARGUMENT_BYTES_MAX => {
                vec![shell, "-c".to_owned(), script]
            }
            Work::Script(script) => vec![shell, dir.write("script.sh", &script)?],
            Work::Command(argv) => argv,
        };
        let stdin = stdin.map_or(Stdin::Null, |text| Stdin::Bytes(text.into_bytes()));
        let recipe = Recipe { argv, env, cwd: cwd.map(Into::into), stdin };
        Ok(Box::new(CommandExecution::new(self.guard.clone(), &self.options, dispatch, dir, recipe)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `args` instead of `argv` was answered with the rule of `argv`, and the word that was wrong was not named.
    #[test]
    fn a_misspelt_field_is_named_also_when_the_command_is_missing() {
        let read = |json: &str| read(&Payload::Json(json.to_owned())).expect_err("a wrong payload");
        let fault = format!("{:?}", read(r#"{"args":["ls"]}"#));
        assert!(fault.contains("args"), "{fault}");
        let fault = format!("{:?}", read(r#"{"cwd":"/"}"#));
        assert!(fault.contains("argv"), "{fault}");
    }
}
