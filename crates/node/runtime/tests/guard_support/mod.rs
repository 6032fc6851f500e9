//! Helpers for the tests of guard and executors.
#![allow(dead_code, reason = "each test program uses its own part of it")]

use std::fs;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, kill_process, pidfd_open};
use tasklane_runtime::guard::{Child, Guard, GuardOptions, SpawnRequest, Stdin};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, BufReader};

/// Long enough for a loaded machine; a test that waits longer has failed.
pub(crate) const PATIENCE: Duration = Duration::from_mins(1);

/// Options of a guard whose program is the binary that cargo built beside this test.
pub(crate) fn options() -> GuardOptions {
    GuardOptions { program: Some(env!("CARGO_BIN_EXE_tasklane-guard").into()), ..GuardOptions::default() }
}

pub(crate) async fn guard() -> Guard {
    Guard::start(options()).await.unwrap()
}

/// A shell script that gets nothing but a `PATH`.
pub(crate) fn script(script: &str) -> SpawnRequest {
    SpawnRequest {
        argv: vec!["/bin/sh".into(), "-c".into(), script.into()],
        env: vec![("PATH".into(), "/usr/local/bin:/usr/bin:/bin".into())],
        cwd: None,
        stdin: Stdin::Null,
    }
}

/// The next line that a child prints.
pub(crate) async fn line(child: &mut Child) -> String {
    let mut line = String::new();
    let mut reader = BufReader::with_capacity(1, &mut child.stdout);
    tokio::time::timeout(PATIENCE, reader.read_line(&mut line)).await.expect("a line in time").unwrap();
    line.trim().to_owned()
}

/// The next line, which is the number of a process.
pub(crate) async fn pid_line(child: &mut Child) -> Pid {
    pid(line(child).await.parse().unwrap())
}

/// All output until its end.
pub(crate) async fn all(mut reader: impl tokio::io::AsyncRead + Unpin) -> String {
    let mut text = String::new();
    reader.read_to_string(&mut text).await.unwrap();
    text
}

pub(crate) fn pid(raw: i32) -> Pid {
    Pid::from_raw(raw).unwrap()
}

/// Waits until a process has ended.
pub(crate) async fn gone(pid: Pid) {
    let Ok(handle) = pidfd_open(pid, PidfdFlags::empty()) else { return };
    let ended = tokio::task::spawn_blocking(move || {
        let patience = Timespec::try_from(PATIENCE).unwrap();
        poll(&mut [PollFd::new(&handle, PollFlags::IN)], Some(&patience)).unwrap() == 1
    });
    assert!(ended.await.unwrap(), "process {pid:?} still runs");
}

/// Whether a process runs at this moment.
pub(crate) fn runs(pid: Pid) -> bool {
    state(pid).is_some_and(|state| state != 'Z')
}

/// The state of a process, by the letter that the kernel gives it.
pub(crate) fn state(pid: Pid) -> Option<char> {
    stat(pid).map(|(state, _)| state)
}

/// The parent of a process.
pub(crate) fn parent(child: Pid) -> Pid {
    pid(stat(child).expect("it runs").1)
}

/// The shims of a guard, whether they run an attempt or wait for one.
pub(crate) fn shims_of(guard: Pid) -> Vec<Pid> {
    let guard = guard.as_raw_pid();
    let children = fs::read_to_string(format!("/proc/{guard}/task/{guard}/children")).unwrap();
    let mut shims: Vec<Pid> = children.split_whitespace().map(|child| pid(child.parse().unwrap())).collect();
    shims.retain(|&shim| runs(shim));
    shims
}

fn stat(pid: Pid) -> Option<(char, i32)> {
    let stat = fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_pid())).ok()?;
    let mut fields = stat[stat.rfind(')')? + 1..].split_whitespace();
    Some((fields.next()?.chars().next()?, fields.next()?.parse().ok()?))
}

pub(crate) fn kill(pid: Pid) {
    kill_process(pid, Signal::KILL).unwrap();
}
