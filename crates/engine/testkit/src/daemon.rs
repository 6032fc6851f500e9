//! A server process that lives as long as its handle, and never longer than the test process.

use std::ffi::OsString;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

/// A server that is not ready after this time never is.
const START_MAX: Duration = Duration::from_mins(1);

/// The keeper runs the server and waits for the end of its own input, which comes when the test process ends in any way.
/// It then ends the server and removes the folder, unless its input says `keep`.
const KEEPER: &str = r#"
signal=$1
shift
"$@" >>"$0/log" 2>&1 &
pid=$!
echo $pid
read word
kill -$signal $pid 2>/dev/null
kill -CONT $pid 2>/dev/null
wait $pid 2>/dev/null
test "$word" = keep || rm -rf "$0"
"#;

/// One server process with a folder of its own.
#[derive(Debug)]
pub struct Daemon {
    folder: PathBuf,
    command: Vec<OsString>,
    end_signal: &'static str,
    process: Option<Process>,
}

#[derive(Debug)]
struct Process {
    keeper: Child,
    input: Option<ChildStdin>,
    pid: Pid,
}

impl Daemon {
    /// Makes the folder. `name` starts the folder's name.
    pub fn new(name: &str) -> Self {
        let folder = tempfile::Builder::new().prefix(&format!("tasklane-{name}")).tempdir().unwrap().keep();
        Self { folder, command: Vec::new(), end_signal: "KILL", process: None }
    }

    /// Ends the server by another signal than `KILL` when the handle is dropped. A PostgreSQL needs `QUIT`: its children
    /// end with it.
    #[must_use]
    pub fn ended_by(mut self, signal: &'static str) -> Self {
        self.end_signal = signal;
        self
    }

    /// Where the server keeps its files; `log` has its output.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Starts the server and waits until it is ready.
    pub fn start<A: Into<OsString>>(
        &mut self,
        command: impl IntoIterator<Item = A>,
        ready: impl FnMut() -> bool,
    ) {
        self.command = command.into_iter().map(Into::into).collect();
        self.restart(ready);
    }

    /// Starts the server again by the same command.
    pub fn restart(&mut self, mut ready: impl FnMut() -> bool) {
        assert!(self.process.is_none(), "the server runs already");
        let mut keeper = Command::new("sh")
            .arg("-c")
            .arg(KEEPER)
            .arg(&self.folder)
            .arg(self.end_signal)
            .args(&self.command)
            .current_dir(&self.folder)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let input = keeper.stdin.take();
        let mut line = String::new();
        BufReader::new(keeper.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let pid = Pid::from_raw(line.trim().parse().unwrap()).unwrap();
        self.process = Some(Process { keeper, input, pid });
        let started = Instant::now();
        while !ready() {
            assert!(self.is_running(), "the server ended: {}", self.log());
            assert!(started.elapsed() < START_MAX, "the server does not become ready: {}", self.log());
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Ends the server as `kill -9` does, and keeps its files.
    pub fn kill(&mut self) {
        self.end(Signal::KILL);
    }

    /// Ends the server by a signal, waits until it has ended, and keeps its files.
    pub fn end(&mut self, signal: Signal) {
        self.signal(signal);
        let started = Instant::now();
        while self.is_running() {
            assert!(started.elapsed() < START_MAX, "the server does not end: {}", self.log());
            std::thread::sleep(Duration::from_millis(2));
        }
        self.release("keep\n");
    }

    /// Stops the process, connections stay open. [`resume`](Self::resume) continues it.
    pub fn pause(&self) {
        self.signal(Signal::STOP);
    }

    /// Continues a paused process.
    pub fn resume(&self) {
        self.signal(Signal::CONT);
    }

    /// Sends a signal to the running server.
    pub fn signal(&self, signal: Signal) {
        kill_process(self.process.as_ref().expect("the server runs").pid, signal).unwrap();
    }

    /// The process id of the running server.
    pub fn pid(&self) -> u32 {
        self.process.as_ref().expect("the server runs").pid.as_raw_nonzero().get().cast_unsigned()
    }

    /// Whether the process exists and has not ended.
    pub fn is_running(&self) -> bool {
        let Some(process) = &self.process else { return false };
        let stat = fs::read_to_string(format!("/proc/{}/stat", process.pid.as_raw_nonzero()));
        // The state follows the name in parentheses.
        stat.is_ok_and(|stat| !stat.rsplit(')').next().is_some_and(|rest| rest.trim_start().starts_with('Z')))
    }

    /// Everything that the server has printed.
    pub fn log(&self) -> String {
        fs::read_to_string(self.folder.join("log")).unwrap_or_default()
    }

    fn release(&mut self, word: &str) {
        if let Some(mut process) = self.process.take() {
            let mut input = process.input.take().unwrap();
            // The keeper may have ended already.
            let _ = input.write_all(word.as_bytes());
            drop(input);
            process.keeper.wait().unwrap();
        }
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        self.release("");
        let _ = fs::remove_dir_all(&self.folder);
    }
}

/// A port that the kernel chose and nothing uses.
pub fn free_port() -> u16 {
    TcpListener::bind(("127.0.0.1", 0)).unwrap().local_addr().unwrap().port()
}

/// Waits for a state of real servers; panics with `what` when it never comes.
pub fn wait_until(what: &str, mut reached: impl FnMut() -> bool) {
    let started = Instant::now();
    while !reached() {
        assert!(started.elapsed() < START_MAX, "{what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}
