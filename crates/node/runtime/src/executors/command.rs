//! Running a command as an attempt: the code that `SHELL` and `PYTHON_SCRIPT` share.

use std::fs::DirBuilder;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use async_trait::async_trait;
use tasklane_core::message::{Dispatch, Finish, RetryAdvice};
use tasklane_core::task::{TaskError, TaskResult};
use tasklane_ports::{Attempt, Execution, ExecutorError, LogStream};
use tokio::time::{Instant, MissedTickBehavior, interval_at};

use super::CommandOptions;
use super::environment::{PROGRESS_FILE, RESULT_FILE, environment};
use super::output::CommandStream;
use super::progress::ProgressFile;
use super::result::{failed, judge, read_result};
use crate::guard::{Child, FailedStep, Guard, GuardError, ProcessTreeEnd, SpawnRequest, Stdin, remove_later};
use crate::worker;

/// What to run.
#[derive(Debug)]
pub(super) struct Recipe {
    pub(super) argv: Vec<String>,
    /// The task's own variables.
    pub(super) env: Vec<(String, String)>,
    pub(super) cwd: Option<PathBuf>,
    pub(super) stdin: Stdin,
}

/// The folder of one attempt. If it holds anything at the end, a thread removes it and the attempt does not
/// wait. Else it is kept and gets the name of another attempt: renaming takes a small part of the time of
/// making and removing.
#[derive(Debug)]
pub(super) struct AttemptDir {
    path: PathBuf,
    guard: Guard,
    /// Nothing was in it at the end.
    is_empty: bool,
}

const MODE: u32 = 0o700;

impl AttemptDir {
    pub(super) fn make(guard: &Guard, dispatch: &Dispatch) -> Result<Self, ExecutorError> {
        let attempt = dispatch.attempt;
        let path = guard.dir().join(format!("{}-{}", attempt.task, attempt.number));
        let make = |recursive| DirBuilder::new().recursive(recursive).mode(MODE).create(&path);
        let renamed = guard.take_spare_dir().is_some_and(|spare| std::fs::rename(spare, &path).is_ok());
        // A process may have written to it under its earlier name.
        let is_made = if renamed { is_pristine(&path) } else { make(false).is_ok() };
        if !is_made {
            // An earlier try to prepare this attempt may have left something, or the guard's folder is gone.
            remove_later(&path).map_err(unavailable)?;
            make(true).map_err(unavailable)?;
        }
        Ok(Self { path, guard: guard.clone(), is_empty: false })
    }

    /// Writes a file and answers its path.
    pub(super) fn write(&self, name: &str, text: &str) -> Result<String, ExecutorError> {
        let path = self.path.join(name);
        std::fs::write(&path, text).map_err(unavailable)?;
        path.into_os_string()
            .into_string()
            .map_err(|path| unavailable(format!("{} is not text", path.display())))
    }
}

impl Drop for AttemptDir {
    fn drop(&mut self) {
        if self.is_empty && self.guard.keep_spare_dir(&self.path) {
            return;
        }
        if let Err(error) = remove_later(&self.path) {
            tracing::warn!(path = %self.path.display(), %error, "cannot remove the folder of an attempt");
        }
    }
}

/// Whether a folder is as if it had just been made.
fn is_pristine(path: &Path) -> bool {
    let is_own = || std::fs::symlink_metadata(path).is_ok_and(|about| about.mode() & 0o7777 == MODE);
    is_empty(path) && is_own()
}

fn is_empty(path: &Path) -> bool {
    std::fs::read_dir(path).is_ok_and(|mut entries| entries.next().is_none())
}

fn unavailable(source: impl Into<tasklane_ports::Source>) -> ExecutorError {
    ExecutorError::Unavailable { source: source.into() }
}

/// A command that is ready to run.
#[derive(Debug)]
pub(super) struct CommandExecution {
    guard: Guard,
    options: Arc<CommandOptions>,
    dir: AttemptDir,
    request: SpawnRequest,
}

impl CommandExecution {
    pub(super) fn new(
        guard: Guard,
        options: &Arc<CommandOptions>,
        dispatch: &Dispatch,
        dir: AttemptDir,
        recipe: Recipe,
    ) -> Self {
        let env = environment(options, dispatch, &recipe.env, &dir.path);
        let cwd = recipe.cwd.or_else(|| options.cwd.clone());
        let request = SpawnRequest { argv: recipe.argv, env, cwd, stdin: recipe.stdin };
        Self { guard, options: Arc::clone(options), dir, request }
    }
}

#[async_trait]
impl Execution for CommandExecution {
    async fn run(self: Box<Self>, attempt: Arc<dyn Attempt>) -> Finish {
        let Self { guard, options, mut dir, request } = *self;
        let child = match guard.spawn(request).await {
            Ok(child) => child,
            Err(error) => return not_started(&error),
        };
        let mut progress = ProgressFile::new(dir.path.join(PROGRESS_FILE));
        let (ended, stdout_tail) = follow(child, &options, &mut progress, &*attempt).await;
        dir.is_empty = is_empty(&dir.path);
        if !dir.is_empty
            && let Some(progress) = progress.look()
        {
            attempt.progress(progress);
        }
        if ended.leftovers > 0 {
            let remark =
                format!("processes that the command left behind and that were ended: {}\n", ended.leftovers);
            attempt.output(LogStream::System, remark.as_bytes());
        }
        let written = if dir.is_empty {
            Ok(None)
        } else {
            read_result(&dir.path.join(RESULT_FILE), options.result_bytes_max)
        };
        judge(&options, ended, written, &stdout_tail)
    }
}

/// Forwards output and progress of a command, and ends it on a stop.
async fn follow(
    child: Child,
    options: &CommandOptions,
    progress: &mut ProgressFile,
    attempt: &dyn Attempt,
) -> (ProcessTreeEnd, String) {
    let Child { stdout, stderr, mut tree } = child;
    let mut stdout = CommandStream::new(stdout, LogStream::Stdout, options.stdout_tail_bytes);
    let mut stderr = CommandStream::new(stderr, LogStream::Stderr, 0);
    let mut looks = interval_at(Instant::now() + options.progress_every, options.progress_every);
    looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut stopped = attempt.stopped();
    let mut stopping = false;
    let ended = loop {
        tokio::select! {
            ended = tree.ended() => break ended,
            stop = &mut stopped, if !stopping => {
                stopping = true;
                tree.stop(stop.grace);
            }
            () = stdout.pass_on(attempt) => {}
            () = stderr.pass_on(attempt) => {}
            _ = looks.tick() => {
                if let Some(progress) = progress.look() {
                    attempt.progress(progress);
                }
            }
        }
    };
    // All writers have ended, so the pipes hold all that is left.
    stdout.pass_on_rest(attempt);
    stderr.pass_on_rest(attempt);
    (ended, stdout.tail())
}

fn not_started(error: &GuardError) -> Finish {
    if let Some(lack) = error.lack() {
        return worker::not_started(lack, error);
    }
    let code = match error {
        GuardError::Spawn { step: FailedStep::ChangeDir | FailedStep::Execute, .. }
        | GuardError::TooLarge => "cannot_execute",
        GuardError::Spawn { step: FailedStep::Lease, .. } => TaskError::LEASE_LOST,
        GuardError::Spawn { step: FailedStep::Fork, .. } | GuardError::Start(_) | GuardError::NotPrepared => {
            "cannot_start"
        }
        GuardError::Lost => TaskError::GUARD_LOST,
    };
    let message = error.to_string();
    // Another worker may have the missing program or folder.
    let result = TaskResult { code: -1, message: message.clone(), data: String::new() };
    failed(TaskError::new(code, message), RetryAdvice::Policy, result)
}
