//! The processes of a cluster: started, signalled, ended and started again.

use std::fs::File;
use std::io::Write;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex, mpsc};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use rustix::process::{Pid, Signal, kill_process};

use super::attempt::{FOLDER_VARIABLE, WORKER_VARIABLE};
use super::clock::Boot;

/// Starts processes that end with this one, however it ends.
///
/// The kernel ends a process with the *thread* that started it, so one thread that stays starts them all.
#[derive(Clone, Debug)]
pub(crate) struct Spawner {
    orders: mpsc::Sender<Order>,
}

type Order = (Command, mpsc::Sender<std::io::Result<Child>>);

impl Spawner {
    pub(crate) fn start() -> Self {
        let (orders, taken) = mpsc::channel::<Order>();
        std::thread::spawn(move || {
            while let Ok((mut command, answer)) = taken.recv() {
                // The caller may have ended; then no caller wants the process.
                if let Err(mpsc::SendError(Ok(mut child))) = answer.send(command.spawn()) {
                    let _ = child.kill();
                }
            }
        });
        Self { orders }
    }

    pub(crate) fn spawn(&self, command: Command) -> Result<Child> {
        let program = command.get_program().to_string_lossy().into_owned();
        let (answer, answered) = mpsc::channel();
        self.orders.send((command, answer)).context("the starting thread is gone")?;
        let child = answered.recv().context("the starting thread is gone")?;
        child.with_context(|| format!("cannot start {program}"))
    }
}

/// A command that ends with the thread that starts it, and as another user if one is named.
pub(crate) fn ending_with_us(program: &Path, user: Option<u32>) -> Command {
    let mut command = Command::new("setpriv");
    command.arg("--pdeathsig=KILL");
    if let Some(user) = user {
        command.args([&format!("--reuid={user}"), &format!("--regid={user}"), "--clear-groups"]);
    }
    command.arg("--").arg(program);
    command
}

/// The role of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    Server,
    Worker,
    /// Both in one process.
    Dev,
}

/// A process of the cluster, which may be started many times.
#[derive(Debug)]
pub(crate) struct Member {
    pub(crate) name: String,
    pub(crate) role: Role,
    /// Its address, and that of its proxies: no other process has it.
    pub(crate) ip: Ipv4Addr,
    /// Where its API is, if it has one.
    pub(crate) api: SocketAddr,
    /// How long it lets attempts finish when it is asked to end.
    pub(crate) drain_grace: Duration,
    program: PathBuf,
    /// The program of its first start, if another.
    first: Option<PathBuf>,
    args: Vec<String>,
    folder: PathBuf,
    spawner: Spawner,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    child: Option<Child>,
    /// Counts its starts.
    starts: u32,
    /// It is to run: if it does not, that is its own doing.
    wanted: bool,
    /// Ends that the harness did not cause.
    exits: Vec<Exit>,
}

/// A process that ended by itself.
#[derive(Clone, Debug)]
pub(crate) struct Exit {
    pub(crate) who: String,
    pub(crate) at: Boot,
    pub(crate) status: ExitStatus,
    /// The last line of its log.
    pub(crate) why: String,
}

/// The parts of a new member.
#[derive(Debug)]
pub(crate) struct MemberOptions {
    pub(crate) name: String,
    pub(crate) role: Role,
    pub(crate) ip: Ipv4Addr,
    pub(crate) program: PathBuf,
    /// The program of its first start, if another.
    pub(crate) first: Option<PathBuf>,
    /// All arguments except its addresses, its name and its data folder.
    pub(crate) args: Vec<String>,
    pub(crate) drain_grace: Duration,
    /// The folder of the run.
    pub(crate) folder: PathBuf,
    pub(crate) spawner: Spawner,
}

/// How long a process may take to end after SIGKILL.
const KILL_PATIENCE: Duration = Duration::from_secs(20);
/// How often to look whether a process has ended.
const LOOK_EVERY: Duration = Duration::from_millis(10);
/// How long a process that ended by itself is left alone, as a service manager does.
const BACK_AFTER: Duration = Duration::from_millis(500);

impl Member {
    pub(crate) fn new(options: MemberOptions) -> Result<Self> {
        let MemberOptions { name, role, ip, program, first, mut args, drain_grace, folder, spawner } =
            options;
        let port = TcpListener::bind((ip, 0))?.local_addr()?.port();
        let api = SocketAddr::from((ip, port));
        let word = match role {
            Role::Server => "server",
            Role::Worker => "worker",
            Role::Dev => "dev",
        };
        args.insert(0, word.to_owned());
        if role != Role::Worker {
            args.extend(["--listen".to_owned(), api.to_string()]);
        }
        if role != Role::Server {
            args.extend(["--name".to_owned(), name.clone()]);
        }
        args.extend(["--data-dir".to_owned(), folder.join("data").join(&name).display().to_string()]);
        let state = Mutex::default();
        Ok(Self { name, role, ip, api, drain_grace, program, first, args, folder, spawner, state })
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.api)
    }

    pub(crate) fn log(&self) -> PathBuf {
        self.folder.join("logs").join(format!("{}.log", self.name))
    }

    /// The process that runs now, such as `w1.3`.
    pub(crate) fn instance(&self) -> String {
        format!("{}.{}", self.name, self.with(|state| state.starts))
    }

    pub(crate) fn exits(&self) -> Vec<Exit> {
        self.with(|state| state.exits.clone())
    }

    /// Starts it, unless it runs.
    pub(crate) fn start(&self) -> Result<()> {
        self.with(|state| {
            state.wanted = true;
            if state.child.is_none() { self.start_with(state) } else { Ok(()) }
        })
    }

    fn start_with(&self, state: &mut State) -> Result<()> {
        state.starts += 1;
        let instance = format!("{}.{}", self.name, state.starts);
        let mut log = File::options().create(true).append(true).open(self.log())?;
        writeln!(log, "---- {instance} is started at {}", Boot::now().0)?;
        let first = self.first.as_ref().filter(|_| state.starts == 1);
        let mut command = ending_with_us(first.unwrap_or(&self.program), None);
        command
            .args(&self.args)
            // Nothing of the caller's settings: only what is said here.
            .env_clear()
            .envs(std::env::vars_os().filter(|(name, _)| name == "PATH" || name == "HOME"))
            .env(FOLDER_VARIABLE, &self.folder)
            .env(WORKER_VARIABLE, &instance)
            .current_dir(&self.folder)
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log);
        state.child = Some(self.spawner.spawn(command)?);
        Ok(())
    }

    /// Its number, while it runs.
    pub(crate) fn pid(&self) -> Option<Pid> {
        self.with(|state| state.child.as_ref().map(Pid::from_child))
    }

    /// The process that guards its attempts.
    pub(crate) fn guard(&self) -> Option<Pid> {
        let children = children_of(self.pid()?);
        children.into_iter().find(|child| {
            let line = std::fs::read(format!("/proc/{}/cmdline", child.as_raw_nonzero()));
            line.is_ok_and(|line| line.starts_with(b"tasklane-guard"))
        })
    }

    /// Kills it, and a second process at the same moment if one is named.
    pub(crate) async fn kill(&self, with: Option<Pid>) -> Result<()> {
        let pid = self.with(|state| {
            state.wanted = false;
            state.child.as_ref().map(Pid::from_child)
        });
        // The guard first: it would act on the death of the other.
        for pid in with.into_iter().chain(pid) {
            signal(pid, Signal::KILL);
        }
        self.ended(KILL_PATIENCE).await.with_context(|| format!("{} cannot be killed", self.name))
    }

    /// Asks it to end. Answers whether it did so within this time; else it is killed.
    pub(crate) async fn terminate(&self, within: Duration) -> Result<bool> {
        let pid = self.with(|state| {
            state.wanted = false;
            state.child.as_ref().map(Pid::from_child)
        });
        if let Some(pid) = pid {
            signal(pid, Signal::TERM);
        }
        if self.ended(within).await.is_ok() {
            return Ok(true);
        }
        self.kill(None).await?;
        Ok(false)
    }

    async fn ended(&self, within: Duration) -> Result<()> {
        let deadline = Instant::now() + within;
        loop {
            let gone = self.with(|state| {
                let gone = match &mut state.child {
                    Some(child) => child.try_wait()?.is_some(),
                    None => true,
                };
                if gone {
                    state.child = None;
                }
                anyhow::Ok(gone)
            })?;
            if gone {
                return Ok(());
            }
            if Instant::now() > deadline {
                bail!("{} did not end within {within:?}", self.name);
            }
            tokio::time::sleep(LOOK_EVERY).await;
        }
    }

    /// Starts it again if it ended by itself, a moment later.
    fn look_after(&self) -> Result<()> {
        self.with(|state| {
            if !state.wanted {
                return Ok(());
            }
            if let Some(child) = &mut state.child
                && let Some(status) = child.try_wait()?
            {
                let who = format!("{}.{}", self.name, state.starts);
                state.exits.push(Exit { who, at: Boot::now(), status, why: self.last_words() });
                state.child = None;
            }
            let last = state.exits.last().map(|exit| exit.at);
            let rested = last.is_none_or(|at| Boot::now().since(at) > BACK_AFTER);
            if state.child.is_none() && rested { self.start_with(state) } else { Ok(()) }
        })
    }

    fn last_words(&self) -> String {
        let log = std::fs::read(self.log()).unwrap_or_default();
        let log = String::from_utf8_lossy(&log);
        log.lines().rev().find(|line| !line.trim().is_empty()).unwrap_or_default().to_owned()
    }

    fn with<T>(&self, then: impl FnOnce(&mut State) -> T) -> T {
        then(&mut self.state.lock().expect("no thread panics while holding it"))
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        self.with(|state| {
            if let Some(child) = &mut state.child {
                let _ = child.kill();
                let _ = child.wait();
            }
        });
    }
}

/// Restarts members that end by themselves.
pub(crate) async fn look_after(members: Vec<Arc<Member>>) {
    loop {
        tokio::time::sleep(Duration::from_millis(100)).await;
        for member in &members {
            if let Err(error) = member.look_after() {
                println!("{}: {error:#}", member.name);
            }
        }
    }
}

/// Sends a signal. A process that is gone needs none.
pub(crate) fn signal(pid: Pid, signal: Signal) {
    let _ = kill_process(pid, signal);
}

/// The processes that a process has started and not left behind.
pub(crate) fn children_of(parent: Pid) -> Vec<Pid> {
    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    let is_child = |pid: &i32| {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        let after_name = stat.rsplit_once(") ").map_or("", |(_, rest)| rest);
        let ppid = after_name.split(' ').nth(1).and_then(|ppid| ppid.parse::<i32>().ok());
        ppid == Some(parent.as_raw_nonzero().get())
    };
    pids.filter(is_child).filter_map(Pid::from_raw).collect()
}

impl std::fmt::Display for Exit {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { who, why, .. } = self;
        match (self.status.code(), self.status.signal()) {
            (Some(code), _) => write!(f, "{who} ended by itself with code {code}: {why}"),
            (None, Some(signal)) => write!(f, "{who} was ended by signal {signal}: {why}"),
            (None, None) => write!(f, "{who} ended by itself: {why}"),
        }
    }
}
