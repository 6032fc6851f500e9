//! Shims run one attempt after the other: no state of one reaches the next, and no attempt depends on an idle
//! shim.

#![allow(clippy::unwrap_used, reason = "tests fail by panicking")]

mod guard_support;

use std::fs;
use std::io::Write;
use std::time::Duration;

use guard_support::*;
use rustix::pipe::pipe;
use rustix::process::{Pid, Signal, WaitOptions, kill_process, waitpid};
use tasklane_runtime::guard::{Child, CommandEnd, FailedStep, Guard, GuardError, SpawnRequest, Stdin};

/// Waits for a line before it goes on with a script, so that the test can look at it.
async fn gated(guard: &Guard, then: &str) -> (Child, fs::File) {
    let (input, gate) = pipe().unwrap();
    let waits = format!("echo up; read x; {then}");
    let mut child = guard.spawn(SpawnRequest { stdin: Stdin::File(input), ..script(&waits) }).await.unwrap();
    assert_eq!(line(&mut child).await, "up");
    (child, gate.into())
}

/// Runs this many attempts together, and returns the shims that they leave.
async fn warm_up(guard: &Guard, count: usize) -> Vec<Pid> {
    let children: Vec<_> = futures::future::join_all((0..count).map(|_| gated(guard, "exit 0"))).await;
    for (mut child, mut gate) in children {
        gate.write_all(b"go\n").unwrap();
        assert_eq!(child.tree.ended().await.how, CommandEnd::Code(0));
    }
    let shims = shims_of(pid(guard.pid().await));
    assert_eq!(shims.len(), count);
    shims
}

fn open_files(pid: Pid) -> usize {
    fs::read_dir(format!("/proc/{}/fd", pid.as_raw_pid())).unwrap().count()
}

#[tokio::test]
async fn an_attempt_sees_nothing_of_the_one_before() {
    let guard = guard().await;
    let dir = tempfile::tempdir().unwrap();
    let first = SpawnRequest {
        cwd: Some(dir.path().into()),
        stdin: Stdin::Bytes(b"secret\nmore\n".to_vec()),
        env: vec![("PATH".into(), "/usr/bin:/bin".into()), ("SECRET".into(), "1".into())],
        ..script("read x; ulimit -n 5; umask 0; trap '' TERM; sleep 1000 & echo $PPID; kill -9 $!")
    };
    let mut child = guard.spawn(first).await.unwrap();
    let shim = pid_line(&mut child).await;
    child.tree.terminate();
    child.tree.ended().await;
    let files = open_files(shim);

    let (mut child, mut gate) = gated(&guard, "exit 3").await;
    assert_eq!(parent(pid(child.tree.pid())), shim, "it is used again");
    let about = format!("/proc/{}", child.tree.pid());
    assert_eq!(fs::read_link(format!("{about}/cwd")).unwrap(), std::env::current_dir().unwrap());
    assert_eq!(
        fs::read(format!("{about}/environ")).unwrap(),
        b"PATH=/usr/local/bin:/usr/bin:/bin\0".to_vec()
    );
    assert_eq!(fs::read_dir(format!("{about}/fd")).unwrap().count(), 3);
    let status = fs::read_to_string(format!("{about}/status")).unwrap();
    for set in ["SigBlk", "SigIgn", "SigPnd"] {
        let line = status.lines().find(|line| line.starts_with(set)).unwrap();
        assert_eq!(line.split_whitespace().nth(1), Some("0000000000000000"), "{line}");
    }
    gate.write_all(b"go\n").unwrap();
    let ended = child.tree.ended().await;
    assert_eq!((ended.how, ended.leftovers), (CommandEnd::Code(3), 0));

    let mut child = guard.spawn(script("cat; readlink /proc/self/fd/0")).await.unwrap();
    assert_eq!(all(&mut child.stdout).await, "/dev/null\n");
    child.tree.ended().await;
    // A command that cannot start leaves nothing either.
    for request in [
        SpawnRequest { cwd: Some("/no/such/folder".into()), ..script("true") },
        SpawnRequest { argv: vec!["/no/such/program".into()], ..script("") },
        SpawnRequest { argv: Vec::new(), stdin: Stdin::Bytes(vec![1]), ..script("") },
    ] {
        guard.spawn(request).await.unwrap_err();
    }
    assert_eq!(shims_of(pid(guard.pid().await)), [shim]);
    assert_eq!(open_files(shim), files);
}

#[tokio::test]
async fn a_command_too_long_for_a_message_starts_nevertheless() {
    let guard = guard().await;
    warm_up(&guard, 1).await;
    let long = format!(": {}; exit 6", "x".repeat(100 << 10));
    let mut child = guard.spawn(script(&long)).await.unwrap();
    assert_eq!(child.tree.ended().await.how, CommandEnd::Code(6));
}

#[tokio::test]
async fn a_late_order_does_not_hit_the_next_attempt() {
    let guard = guard().await;
    for _ in 0..200 {
        let mut first = guard.spawn(script("exit 3")).await.unwrap();
        for _ in 0..5 {
            first.tree.terminate();
            first.tree.kill();
        }
        let how = first.tree.ended().await.how;
        assert!(matches!(how, CommandEnd::Code(3) | CommandEnd::Signal(_)), "{how:?}");
        first.tree.stop(Duration::ZERO);
        let mut second = guard.spawn(script("exit 4")).await.unwrap();
        first.tree.kill();
        assert_eq!(second.tree.ended().await.how, CommandEnd::Code(4));
    }
}

#[tokio::test]
async fn a_shim_that_is_killed_while_it_waits_is_replaced() {
    let guard = guard().await;
    let shims = warm_up(&guard, 3).await;
    for &shim in &shims {
        kill(shim);
        gone(shim).await;
    }
    for _ in 0..4 {
        let mut child = guard.spawn(script("exit 5")).await.unwrap();
        assert_eq!(child.tree.ended().await.how, CommandEnd::Code(5));
    }
    assert!(shims_of(pid(guard.pid().await)).iter().all(|shim| !shims.contains(shim)));
}

#[tokio::test]
async fn a_shim_that_is_stopped_while_it_waits_does_no_harm() {
    let guard = guard().await;
    for _ in 0..20 {
        for shim in warm_up(&guard, 2).await {
            kill_process(shim, Signal::STOP).unwrap();
        }
        let mut child = guard.spawn(script("exit 5")).await.unwrap();
        let ended = tokio::time::timeout(PATIENCE, child.tree.ended()).await.expect("it ends");
        assert_eq!(ended.how, CommandEnd::Code(5));
    }
}

#[tokio::test]
async fn a_task_that_stops_its_shim_is_ended_in_time() {
    // Such a task ran on after its timeout, and its worker lost one session after the other.
    let guard = guard().await;
    let again_and_again = "trap '' TERM; echo $$; while :; do kill -STOP $PPID; done";
    for stops in ["kill -STOP $PPID; echo $$; sleep 1000", again_and_again] {
        let mut child = guard.spawn(script(stops)).await.unwrap();
        let main = pid_line(&mut child).await;
        child.tree.stop(Duration::from_millis(50));
        tokio::time::timeout(PATIENCE, child.tree.ended()).await.expect("it ends");
        assert!(!runs(main));
    }
    // A command that ends by itself is not held up either.
    let mut child = guard.spawn(script("kill -STOP $PPID; exit 7")).await.unwrap();
    let ended = tokio::time::timeout(PATIENCE, child.tree.ended()).await.expect("it ends");
    assert_eq!(ended.how, CommandEnd::Code(7));
}

/// Signals wake a process that a signal has stopped, but not a process that a debugger holds.
#[tokio::test]
async fn a_shim_that_cannot_be_woken_is_killed_and_its_attempt_ended() {
    let guard = guard().await;
    let mut child = guard.spawn(script("trap '' TERM; echo $$; sleep 1000")).await.unwrap();
    let main = pid_line(&mut child).await;
    let shim = parent(main);
    let (held, is_held) = std::sync::mpsc::channel();
    let debugger = std::thread::spawn(move || {
        halt(shim);
        held.send(()).unwrap();
        let (_, end) = waitpid(Some(shim), WaitOptions::empty()).unwrap().unwrap();
        end.terminating_signal()
    });
    is_held.recv().unwrap();
    child.tree.stop(Duration::from_millis(50));
    let ended = tokio::time::timeout(PATIENCE, child.tree.ended()).await.expect("it ends");
    assert_eq!(ended.how, CommandEnd::Unknown, "its shim could not report how");
    assert!(!runs(main));
    assert_eq!(debugger.join().unwrap(), Some(libc::SIGKILL));
    let mut child = guard.spawn(script("exit 7")).await.unwrap();
    assert_eq!(child.tree.ended().await.how, CommandEnd::Code(7));
}

/// Holds a process as a debugger does, and waits until it has stopped. Lasts as long as this thread.
#[expect(unsafe_code, reason = "no safe interface offers ptrace")]
fn halt(pid: Pid) {
    let none = std::ptr::null_mut::<libc::c_void>();
    let answers = [libc::PTRACE_SEIZE, libc::PTRACE_INTERRUPT].map(|request| {
        // SAFETY: these requests neither read nor write memory of this process.
        unsafe { libc::ptrace(request, pid.as_raw_pid(), none, none) }
    });
    assert_eq!(answers, [0, 0], "{}", std::io::Error::last_os_error());
    let (_, status) = waitpid(Some(pid), WaitOptions::empty()).unwrap().unwrap();
    assert!(status.stopped());
}

#[tokio::test]
async fn shims_that_are_not_needed_end() {
    let guard = guard().await;
    for shim in warm_up(&guard, 12).await {
        gone(shim).await;
    }
    let mut child = guard.spawn(script("exit 8")).await.unwrap();
    assert_eq!(child.tree.ended().await.how, CommandEnd::Code(8));
}

#[tokio::test]
async fn a_killed_guard_takes_waiting_shims_with_it() {
    let guard = guard().await;
    let shims = warm_up(&guard, 3).await;
    let (mut child, _gate) = gated(&guard, "exit 0").await;
    kill_process(shims[0], Signal::STOP).unwrap();
    kill(pid(guard.pid().await));
    assert_eq!(child.tree.ended().await.how, CommandEnd::Unknown);
    for shim in shims {
        gone(shim).await;
    }
}

#[tokio::test]
async fn programs_are_found_as_shells_find_them() {
    use std::os::unix::fs::PermissionsExt;
    let guard = guard().await;
    let dir = tempfile::tempdir().unwrap();
    let (closed, open) = (dir.path().join("closed"), dir.path().join("open"));
    for folder in [&closed, &open] {
        fs::create_dir(folder).unwrap();
        // Without a line that names its interpreter.
        fs::write(folder.join("tool"), "echo tool $1\n").unwrap();
        fs::set_permissions(folder.join("tool"), fs::Permissions::from_mode(0o644)).unwrap();
    }
    let path = format!("{}:{}:/no/such", closed.display(), open.display());
    let request = || SpawnRequest {
        argv: vec!["tool".into(), "x".into()],
        env: vec![("PATH".into(), path.clone())],
        ..script("")
    };
    let error = guard.spawn(request()).await.unwrap_err();
    let GuardError::Spawn { step: FailedStep::Execute, source, .. } = error else { panic!("{error:?}") };
    assert_eq!(source.kind(), std::io::ErrorKind::PermissionDenied);
    fs::set_permissions(open.join("tool"), fs::Permissions::from_mode(0o755)).unwrap();
    let mut child = guard.spawn(request()).await.unwrap();
    assert_eq!(all(&mut child.stdout).await, "tool x\n");
}
