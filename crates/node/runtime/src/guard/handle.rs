//! Starting a guard, and starting commands through it.

use std::fs::DirBuilder;
use std::io::{self, Seek, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::DirBuilderExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use rustix::fs::{MemfdFlags, memfd_create};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use rustix::pipe::{PipeFlags, pipe_with};
use tokio::net::unix::pipe;

use crate::descriptors::{self, Lack};

use super::child::{Child, Control, Tree};
use super::connection::{GuardConnection, Registered};
use super::process::{ASKED_BY, was_called};
use super::wire::{FailedStep, HeldFile, Settings, Spawn, ToGuard, fits};

/// How long a new guard may take to send its first message.
const START_TIMEOUT: Duration = Duration::from_secs(10);

/// Empty folders that are kept for other attempts.
const SPARE_DIRS_MAX: usize = 64;

/// Options of a guard.
#[derive(Debug)]
pub struct GuardOptions {
    /// Locked files, at most four. Guard and shims hold them and commands do not, so that the locks are free when
    /// nothing of any attempt is left.
    pub locks: Vec<HeldFile>,
    /// The program to start as the guard: by default the current one, which needs
    /// [`run_if_asked`](super::run_if_asked) at the start of `main`.
    pub program: Option<PathBuf>,
    /// Where a folder for the attempts' files is made, which the guard removes at its end. The system's folder for
    /// temporary files by default.
    pub dir: Option<PathBuf>,
    /// Between SIGTERM and SIGKILL for processes that a command left behind.
    pub leftover_grace: Duration,
    /// Between SIGTERM and SIGKILL when the deadline comes near.
    pub lease_grace: Duration,
    /// Between SIGKILL and the deadline.
    pub kill_margin: Duration,
}

impl Default for GuardOptions {
    fn default() -> Self {
        Self {
            locks: Vec::new(),
            program: None,
            dir: None,
            leftover_grace: Duration::from_secs(2),
            lease_grace: Duration::from_secs(2),
            kill_margin: Duration::from_secs(1),
        }
    }
}

/// Errors of a guard.
#[derive(Debug, thiserror::Error)]
pub enum GuardError {
    /// This program cannot be started again as a guard.
    #[error(
        "the guard is this program, started again: call tasklane_runtime::guard::run_if_asked() first thing in main"
    )]
    NotPrepared,
    /// The guard did not start.
    #[error("cannot start the guard: {0}")]
    Start(#[source] io::Error),
    /// The command did not start.
    #[error("{}: {source}", describe(*step, what))]
    Spawn {
        /// At which step.
        step: FailedStep,
        /// The program or folder of that step.
        what: String,
        /// The error of the system.
        source: io::Error,
    },
    /// The guard ended while the command was being started; it did not run, or runs no more.
    #[error("the guard process was killed")]
    Lost,
    /// Arguments and environment exceed the size that a command can get.
    #[error("arguments and environment are too large")]
    TooLarge,
}

impl GuardError {
    /// The resource that the machine lacks, if this is why the command did not start.
    pub(crate) fn lack(&self) -> Option<Lack> {
        match self {
            Self::Start(source) | Self::Spawn { source, .. } => Lack::of(source),
            Self::NotPrepared | Self::Lost | Self::TooLarge => None,
        }
    }
}

fn describe(step: FailedStep, what: &str) -> String {
    match step {
        FailedStep::Fork => "cannot start a process".to_owned(),
        FailedStep::ChangeDir => format!("cannot enter the folder {what}"),
        FailedStep::Execute => format!("cannot execute {what}"),
        FailedStep::Lease => "the worker's lease is over".to_owned(),
    }
}

/// A command to start.
#[derive(Debug)]
pub struct SpawnRequest {
    /// The program, looked for in the `PATH` of `env`, and its arguments.
    pub argv: Vec<String>,
    /// The whole environment; nothing is inherited.
    pub env: Vec<(String, String)>,
    /// The folder where it starts; by default that of the worker.
    pub cwd: Option<PathBuf>,
    /// Its standard input.
    pub stdin: Stdin,
}

/// The standard input of a command.
#[derive(Debug)]
pub enum Stdin {
    /// Nothing.
    Null,
    /// These bytes.
    Bytes(Vec<u8>),
    /// This file or pipe.
    File(OwnedFd),
}

/// The guard process of this worker. Cheap to clone; dropping the last clone ends everything.
#[derive(Clone, Debug)]
pub struct Guard {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    options: GuardOptions,
    dir: PathBuf,
    connection: tokio::sync::Mutex<Arc<GuardConnection>>,
    /// Kept here too, for a guard that has to be started again.
    deadline: Mutex<Deadline>,
    session_cleanup: Mutex<Vec<u8>>,
    /// Empty folders within `dir`.
    spare_dirs: Mutex<Vec<PathBuf>>,
}

#[derive(Debug)]
struct Deadline {
    boottime: Option<Duration>,
    connection: Arc<GuardConnection>,
}

impl Guard {
    /// Starts the guard process. Best early, while the program is small.
    pub async fn start(options: GuardOptions) -> Result<Self, GuardError> {
        let parent = options.dir.clone().unwrap_or_else(std::env::temp_dir);
        let dir = parent.join(format!("tasklane-{:016x}", rand::random::<u64>()));
        let connection = start_process(&options, &dir).await?;
        connection.is_sole_now();
        let deadline = Mutex::new(Deadline { boottime: None, connection: Arc::clone(&connection) });
        let connection = tokio::sync::Mutex::new(connection);
        let (session_cleanup, spare_dirs) = (Mutex::default(), Mutex::default());
        Ok(Self {
            shared: Arc::new(Shared { options, dir, connection, deadline, session_cleanup, spare_dirs }),
        })
    }

    /// A folder for the files of attempts, for this user alone. The guard removes it at its end.
    pub fn dir(&self) -> &Path {
        &self.shared.dir
    }

    /// An unused empty folder within [`dir`](Self::dir).
    pub(crate) fn take_spare_dir(&self) -> Option<PathBuf> {
        self.shared.spare_dirs.lock().unwrap_or_else(PoisonError::into_inner).pop()
    }

    /// Keeps an empty folder for another attempt. False if there are enough.
    pub(crate) fn keep_spare_dir(&self, path: &Path) -> bool {
        let mut spare = self.shared.spare_dirs.lock().unwrap_or_else(PoisonError::into_inner);
        let wanted = spare.len() < SPARE_DIRS_MAX;
        if wanted {
            spare.push(path.to_owned());
        }
        wanted
    }

    /// The process number of the guard.
    pub async fn pid(&self) -> i32 {
        self.shared.connection.lock().await.pid().as_raw_pid()
    }

    /// Starts a command. If the guard has been killed, a new guard is started first.
    pub async fn spawn(&self, request: SpawnRequest) -> Result<Child, GuardError> {
        let connection = self.connection().await?;
        let SpawnRequest { argv, env, cwd, stdin } = request;
        if !fits(&argv, &env) {
            return Err(GuardError::TooLarge);
        }
        let program = argv.first().cloned().unwrap_or_default();
        let folder = cwd.clone();
        let no_fork =
            |source: io::Error| GuardError::Spawn { step: FailedStep::Fork, what: String::new(), source };

        let stdin = match stdin {
            Stdin::Null => None,
            Stdin::Bytes(bytes) => Some(in_memory(&bytes).map_err(no_fork)?),
            Stdin::File(file) => Some(file),
        };
        let pair = || pipe_with(PipeFlags::CLOEXEC).map_err(|e| no_fork(e.into()));
        let [(stdout, their_stdout), (stderr, their_stderr), (alive, their_alive)] =
            [pair()?, pair()?, pair()?];
        let reader = |fd| pipe::Receiver::from_owned_fd(fd).map_err(no_fork);
        let (stdout, stderr) = (reader(stdout)?, reader(stderr)?);

        let Registered { id, started, ended } = connection.register().ok_or(GuardError::Lost)?;
        // If this future is dropped from here on, the command is killed.
        let mut control = Control { connection: Arc::clone(&connection), id, armed: true };
        let spawn = Spawn { id, argv, env, cwd, has_stdin: stdin.is_some() };
        let mut fds = vec![their_stdout, their_stderr, their_alive];
        fds.extend(stdin);
        connection.spawn(spawn, fds);
        match started.await {
            Ok(Ok(pid)) => Ok(Child { stdout, stderr, tree: Tree::new(pid, control, ended, alive) }),
            Ok(Err((step, source))) => {
                control.armed = false;
                let what = match step {
                    FailedStep::ChangeDir => folder.unwrap_or_default().display().to_string(),
                    FailedStep::Fork | FailedStep::Execute | FailedStep::Lease => program,
                };
                Err(GuardError::Spawn { step, what, source })
            }
            Err(_) => {
                // The command may have started nevertheless; then its shim is about to end it.
                if let Ok(alive) = pipe::Receiver::from_owned_fd(alive) {
                    let _ = alive.readable().await;
                }
                Err(GuardError::Lost)
            }
        }
    }

    /// Sets the time, on the [boot-time clock](super::boottime), at which everything must have ended: the end
    /// of the worker's trust window. SIGKILL comes `kill_margin` before it and SIGTERM `lease_grace` earlier,
    /// even if the worker has died. Each renewal moves it forward; at first there is no deadline.
    pub fn set_deadline(&self, boottime: Option<Duration>) {
        let mut deadline = self.shared.deadline.lock().unwrap_or_else(PoisonError::into_inner);
        deadline.boottime = boottime;
        deadline.connection.deadline(boottime);
    }

    /// Sets the session cleanup for the case that this process is killed. When the process is dead and
    /// everything that it had started has ended, the program is started once more and [reads
    /// this](super::session_cleanup_if_asked). An empty value starts nothing.
    pub async fn set_session_cleanup(&self, session_cleanup: Vec<u8>) {
        let connection = self.shared.connection.lock().await;
        let mut known = self.shared.session_cleanup.lock().unwrap_or_else(PoisonError::into_inner);
        *known = session_cleanup;
        if connection.is_sole() {
            connection.session_cleanup(known.clone());
        }
    }

    /// Waits until the guard process has ended, whether it was killed or closed.
    pub async fn lost(&self) {
        let connection = Arc::clone(&*self.shared.connection.lock().await);
        connection.closed().await;
    }

    /// Starts another guard process if this one has ended, and waits until the new one has the session
    /// cleanup.
    pub async fn revive(&self) -> Result<(), GuardError> {
        self.connection().await?.sole().await;
        Ok(())
    }

    /// Kills everything and waits until it and the guard have ended.
    pub async fn close(&self) {
        let connection = Arc::clone(&*self.shared.connection.lock().await);
        connection.close().await;
    }

    /// The connection; a new one if the guard has been killed.
    async fn connection(&self) -> Result<Arc<GuardConnection>, GuardError> {
        let mut connection = self.shared.connection.lock().await;
        if connection.is_closed() {
            tracing::warn!(
                pid = connection.pid().as_raw_pid(),
                "the guard process has ended; starting another"
            );
            let new = start_process(&self.shared.options, &self.shared.dir).await?;
            let before = std::mem::replace(&mut *connection, new);
            tokio::spawn(inherit(Arc::downgrade(&self.shared), before, Arc::downgrade(&connection)));
            let mut deadline = self.shared.deadline.lock().unwrap_or_else(PoisonError::into_inner);
            deadline.connection = Arc::clone(&connection);
            connection.deadline(deadline.boottime);
        }
        Ok(Arc::clone(&connection))
    }
}

/// Sends a new guard the session cleanup when nothing is left of the guard before it, nor of any before that:
/// the new guard does not know the processes of the earlier ones, which may still run.
async fn inherit(shared: Weak<Shared>, before: Arc<GuardConnection>, connection: Weak<GuardConnection>) {
    before.sole().await;
    before.nothing_left().await;
    if let (Some(shared), Some(connection)) = (shared.upgrade(), connection.upgrade()) {
        let session_cleanup = shared.session_cleanup.lock().unwrap_or_else(PoisonError::into_inner);
        connection.is_sole_now();
        connection.session_cleanup(session_cleanup.clone());
    }
}

async fn start_process(options: &GuardOptions, dir: &Path) -> Result<Arc<GuardConnection>, GuardError> {
    let own = PathBuf::from("/proc/self/exe");
    let program = match &options.program {
        Some(program) => program,
        None if was_called() => &own,
        None => return Err(GuardError::NotPrepared),
    };
    DirBuilder::new().recursive(true).mode(0o700).create(dir).map_err(GuardError::Start)?;
    let (socket, theirs) = socketpair(
        AddressFamily::UNIX,
        SocketType::STREAM,
        SocketFlags::CLOEXEC | SocketFlags::NONBLOCK,
        None,
    )
    .map_err(|e| GuardError::Start(e.into()))?;
    let guard = Command::new(program)
        .arg0("tasklane-guard")
        // The worker's variables must not leak to a process that runs beside commands of the same user.
        .env_clear()
        .env(ASKED_BY, "1")
        .envs(std::env::vars_os().filter(|(name, _)| name == "LD_LIBRARY_PATH"))
        .stdin(Stdio::from(theirs))
        .stdout(Stdio::null())
        .spawn()
        .map_err(GuardError::Start)?;
    // Without locks, each holder of a lock holds the end of a pipe instead: it closes with the last holder.
    let (held, remains): (Vec<HeldFile>, _) = if options.locks.is_empty() {
        let (remains, held) = pipe_with(PipeFlags::CLOEXEC).map_err(|e| GuardError::Start(e.into()))?;
        let remains = pipe::Receiver::from_owned_fd(remains).map_err(GuardError::Start)?;
        (vec![Arc::new(held)], Some(remains))
    } else {
        (options.locks.clone(), None)
    };
    let connection = Arc::new(GuardConnection::new(socket, guard, remains).map_err(GuardError::Start)?);
    let settings = Settings {
        worker: rustix::process::getpid().as_raw_pid(),
        dir: dir.to_owned(),
        leftover_grace: options.leftover_grace,
        lease_grace: options.lease_grace,
        kill_margin: options.kill_margin,
        open_files: descriptors::limit_before(),
    };
    connection.send(&ToGuard::Hello { settings, locks: held.len() }, held);
    match tokio::time::timeout(START_TIMEOUT, connection.ready()).await {
        Ok(true) => Ok(connection),
        Ok(false) => Err(GuardError::Start(io::Error::other("it ended at once"))),
        Err(_) => Err(GuardError::Start(io::ErrorKind::TimedOut.into())),
    }
}

/// A file without a name, which holds these bytes and is at its start.
pub(super) fn in_memory(bytes: &[u8]) -> io::Result<OwnedFd> {
    let mut file = std::fs::File::from(memfd_create(c"tasklane-stdin", MemfdFlags::CLOEXEC)?);
    file.write_all(bytes)?;
    file.rewind()?;
    Ok(file.into())
}
