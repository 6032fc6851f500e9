//! The database of a cluster, started in the folder of the run.
//!
//! Faults here are crashes of processes, not losses of power, so writes do not wait for the disk where that
//! changes nothing: data that a database has handed to the kernel survives its death.

use std::fs::File;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::os::unix::fs::chown;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use rustix::process::{Pid, Signal};

use super::options::Topology;
use super::process::{Spawner, children_of, ending_with_us, signal};

/// How long it may take to answer after a start, recovery included.
const START_PATIENCE: Duration = Duration::from_mins(1);
/// The user `nobody`, without other rights; PostgreSQL refuses to run as root.
const NOBODY: u32 = 65_534;

/// A database that can be killed, stopped and started again.
#[derive(Debug)]
pub(crate) struct Database {
    kind: Kind,
    pub(crate) address: SocketAddr,
    folder: PathBuf,
    spawner: Spawner,
    disk: Disk,
    child: Mutex<Option<Child>>,
}

/// The point that a write has reached before the database answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Disk {
    /// As such servers are usually set up: PostgreSQL waits for the disk, Redis writes once a second.
    Usual,
    /// Answered writes survive the process; they need not survive a loss of power.
    SurvivesDeath,
}

#[derive(Clone, Debug)]
enum Kind {
    /// With the folder of its programs.
    Postgres(PathBuf),
    Redis,
}

impl Database {
    /// Makes and starts the database of a topology, if it needs one.
    pub(crate) async fn start(
        topology: Topology,
        folder: &Path,
        spawner: Spawner,
        disk: Disk,
    ) -> Result<Option<Self>> {
        let kind = match topology {
            Topology::Sqlite => return Ok(None),
            Topology::Redis => Kind::Redis,
            Topology::Postgres => Kind::Postgres(postgres_programs()?),
        };
        let folder = folder.join("database");
        std::fs::create_dir_all(&folder)?;
        let port = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?.port();
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        let database = Self { kind, address, folder, spawner, disk, child: Mutex::default() };
        database.make()?;
        database.start_again().await?;
        Ok(Some(database))
    }

    /// The URL by which it is reached at an address.
    pub(crate) fn url(&self, at: SocketAddr) -> String {
        match &self.kind {
            // Figures name the mode: TLS would be a part of them.
            Kind::Postgres(_) => format!("postgres://tasklane@{at}/postgres?sslmode=disable"),
            Kind::Redis => format!("redis://{at}"),
        }
    }

    /// The URL by which it is reached.
    pub(crate) fn own_url(&self) -> String {
        self.url(self.address)
    }

    /// The numbers of its processes.
    pub(crate) fn pids(&self) -> Vec<u32> {
        self.processes().iter().map(|pid| pid.as_raw_nonzero().get().cast_unsigned()).collect()
    }

    fn make(&self) -> Result<()> {
        let Kind::Postgres(programs) = &self.kind else { return Ok(()) };
        if user().is_some() {
            chown(&self.folder, Some(NOBODY), Some(NOBODY))?;
        }
        let made = ending_with_us(&programs.join("initdb"), user())
            .args(["-U", "tasklane", "--auth=trust", "-E", "UTF8", "--no-locale", "--no-sync", "-D"])
            .arg(self.folder.join("data"))
            .current_dir(&self.folder)
            .stdin(Stdio::null())
            .output()?;
        ensure!(made.status.success(), "initdb failed: {}", String::from_utf8_lossy(&made.stderr));
        Ok(())
    }

    fn command(&self) -> Result<Command> {
        let log = File::options().create(true).append(true).open(self.folder.join("log"))?;
        let port = self.address.port().to_string();
        let mut command = match &self.kind {
            Kind::Postgres(programs) => {
                let mut command = ending_with_us(&programs.join("postgres"), user());
                command.arg("-D").arg(self.folder.join("data"));
                let sockets = format!("unix_socket_directories={}", self.folder.display());
                let port = format!("port={port}");
                let fsync = if self.disk == Disk::Usual { "fsync=on" } else { "fsync=off" };
                for setting in ["listen_addresses=127.0.0.1", &port, &sockets, "max_connections=400", fsync] {
                    command.args(["-c", setting]);
                }
                command
            }
            Kind::Redis => {
                let mut command = ending_with_us(Path::new("redis-server"), None);
                // With `everysec` it may answer before it has written: then its death loses what it answered.
                command.args(["--bind", "127.0.0.1", "--port", &port, "--save", "", "--appendonly", "yes"]);
                let fsync = if self.disk == Disk::Usual { "everysec" } else { "always" };
                command.args(["--appendfsync", fsync, "--maxmemory-policy", "noeviction", "--dir"]);
                command.arg(&self.folder);
                command
            }
        };
        command.current_dir(&self.folder).stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
        Ok(command)
    }

    /// Starts it, and waits until it answers.
    pub(crate) async fn start_again(&self) -> Result<()> {
        let deadline = Instant::now() + START_PATIENCE;
        loop {
            if !self.runs()? {
                // What its last life has left behind may keep it from starting for a moment.
                let child = self.spawner.spawn(self.command()?)?;
                *self.child.lock().expect("no thread panics while holding it") = Some(child);
            }
            if tokio::task::block_in_place(|| self.answers()) {
                return Ok(());
            }
            if Instant::now() > deadline {
                let log = std::fs::read_to_string(self.folder.join("log")).unwrap_or_default();
                let tail: Vec<&str> = log.lines().rev().take(5).collect();
                bail!("the database does not start: {tail:?}");
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    fn runs(&self) -> Result<bool> {
        let mut child = self.child.lock().expect("no thread panics while holding it");
        let gone = match &mut *child {
            Some(child) => child.try_wait()?.is_some(),
            None => true,
        };
        if gone {
            *child = None;
        }
        Ok(!gone)
    }

    fn answers(&self) -> bool {
        match &self.kind {
            Kind::Postgres(programs) => {
                let port = self.address.port().to_string();
                let asked = Command::new(programs.join("pg_isready"))
                    .args(["-q", "-h", "127.0.0.1", "-p", &port, "-U", "tasklane", "-d", "postgres"])
                    .stdin(Stdio::null())
                    .status();
                asked.is_ok_and(|status| status.success())
            }
            Kind::Redis => {
                let ask = || -> std::io::Result<bool> {
                    let mut stream = TcpStream::connect(self.address)?;
                    stream.set_read_timeout(Some(Duration::from_secs(1)))?;
                    stream.write_all(b"PING\r\n")?;
                    let mut answer = [0; 5];
                    stream.read_exact(&mut answer)?;
                    Ok(&answer == b"+PONG")
                };
                ask().unwrap_or(false)
            }
        }
    }

    /// All of its processes, the main process first.
    fn processes(&self) -> Vec<Pid> {
        let child = self.child.lock().expect("no thread panics while holding it");
        let Some(first) = child.as_ref().map(Pid::from_child) else { return Vec::new() };
        std::iter::once(first).chain(children_of(first)).collect()
    }

    /// Ends it without a word.
    pub(crate) async fn kill(&self) -> Result<()> {
        for pid in self.processes() {
            signal(pid, Signal::KILL);
        }
        while self.runs()? {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        Ok(())
    }

    /// Lets it do nothing until [`Self::resume`].
    pub(crate) fn pause(&self) {
        let paused: Vec<Pid> = self.processes();
        for pid in &paused {
            signal(*pid, Signal::STOP);
        }
        // Processes started meanwhile.
        for pid in self.processes().into_iter().filter(|pid| !paused.contains(pid)) {
            signal(pid, Signal::STOP);
        }
    }

    pub(crate) fn resume(&self) {
        for pid in self.processes() {
            signal(pid, Signal::CONT);
        }
    }
}

impl Drop for Database {
    fn drop(&mut self) {
        for pid in self.processes() {
            signal(pid, Signal::KILL);
        }
        if let Some(child) = self.child.lock().expect("no thread panics while holding it").as_mut() {
            let _ = child.wait();
        }
    }
}

/// Whom PostgreSQL runs as, if not as us.
fn user() -> Option<u32> {
    rustix::process::geteuid().is_root().then_some(NOBODY)
}

/// Where the programs of PostgreSQL are. Debian keeps them out of the path.
fn postgres_programs() -> Result<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let mut folders: Vec<PathBuf> = std::env::split_paths(&path).collect();
    let versions = std::fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten();
    let mut versions: Vec<PathBuf> = versions.map(|version| version.path().join("bin")).collect();
    versions.sort();
    folders.extend(versions.into_iter().rev());
    let programs = ["initdb", "postgres", "pg_isready"];
    let is_there = |folder: &PathBuf| programs.iter().all(|p| folder.join(p).is_file());
    folders.into_iter().find(is_there).context("PostgreSQL is not there: run `cargo xtask servers`")
}
