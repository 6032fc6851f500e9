//! `PYTHON_SCRIPT`: a script in the payload, or a file on the worker's machine.

use std::sync::Arc;

use async_trait::async_trait;
use tasklane_core::message::Dispatch;
use tasklane_core::task::Payload;
use tasklane_ports::{Execution, Executor, ExecutorError};

use super::CommandOptions;
use super::command::{AttemptDir, CommandExecution, Recipe};
use super::payload::{self, Fault, PayloadForm};
use crate::guard::{Guard, Stdin};

/// Runs Python scripts.
#[derive(Clone, Debug)]
pub struct Python {
    guard: Guard,
    options: Arc<CommandOptions>,
}

#[derive(Debug)]
pub(super) struct PythonPayload {
    program: Program,
    args: Vec<String>,
    env: Vec<(String, String)>,
    stdin: Option<String>,
}

#[derive(Debug)]
enum Program {
    Script(String),
    File(String),
}

impl Python {
    /// Starts its scripts through this guard.
    pub fn new(guard: Guard, options: Arc<CommandOptions>) -> Self {
        Self { guard, options }
    }
}

pub(super) fn read(payload: &Payload) -> Result<PythonPayload, Fault> {
    let mut fields = match payload::read(payload)? {
        PayloadForm::Text(script) if script.trim().is_empty() => {
            return Err(payload::bad("the script is empty"));
        }
        PayloadForm::Text(script) => {
            return Ok(PythonPayload {
                program: Program::Script(script),
                args: Vec::new(),
                env: Vec::new(),
                stdin: None,
            });
        }
        PayloadForm::Fields(fields) => fields,
    };
    let given = (fields.text("script")?, fields.text("file")?);
    let args = fields.texts("args")?.unwrap_or_default();
    let (env, stdin) = (fields.env()?, fields.text("stdin")?);
    // An error names a misspelt field rather than a missing one, which may be the same.
    fields.end("script, file, args, env, stdin")?;
    let program = match given {
        (Some(script), None) if !script.trim().is_empty() => Program::Script(script),
        (None, Some(file)) if !file.is_empty() => Program::File(file),
        (Some(_), Some(_)) => {
            return payload::rule("file", "there is a script already; only one of them is possible");
        }
        (None, None) => return payload::rule("script", "script or file must be given"),
        (Some(_), None) => return payload::rule("script", "must not be empty"),
        (None, Some(_)) => return payload::rule("file", "must not be empty"),
    };
    Ok(PythonPayload { program, args, env, stdin })
}

#[async_trait]
impl Executor for Python {
    fn check(&self, dispatch: &Dispatch) -> Result<(), ExecutorError> {
        Ok(read(payload::given(dispatch)?).map(drop)?)
    }

    async fn prepare(&self, dispatch: &Dispatch) -> Result<Box<dyn Execution>, ExecutorError> {
        let PythonPayload { program, args, env, stdin } = read(payload::given(dispatch)?)?;
        let dir = AttemptDir::make(&self.guard, dispatch)?;
        let file = match program {
            // A file, so that a traceback shows the lines.
            Program::Script(script) => dir.write("script.py", &script)?,
            Program::File(file) => file,
        };
        // Unbuffered, so that lines are seen when they are printed.
        let mut argv = vec![self.options.python.clone(), "-u".to_owned(), file];
        argv.extend(args);
        let stdin = stdin.map_or(Stdin::Null, |text| Stdin::Bytes(text.into_bytes()));
        let recipe = Recipe { argv, env, cwd: None, stdin };
        Ok(Box::new(CommandExecution::new(self.guard.clone(), &self.options, dispatch, dir, recipe)))
    }
}
