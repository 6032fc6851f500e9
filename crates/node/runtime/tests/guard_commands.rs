//! Commands under a guard: how they start, their environment, and that nothing of them is left.

#![allow(clippy::unwrap_used, reason = "tests fail by panicking")]

mod guard_support;

use std::fs;
use std::io::Write;
use std::time::Duration;

use guard_support::*;
use rustix::pipe::pipe;
use rustix::process::{Signal, kill_process};
use tasklane_runtime::guard::{
    CommandEnd, FailedStep, Guard, GuardError, GuardOptions, ProcessTreeEnd, SpawnRequest, Stdin, boottime,
};
use tokio::io::AsyncReadExt;

/// Ignores SIGTERM, in a session of its own, and prints its number.
const STUBBORN: &str = r#"setsid sh -c 'trap "" TERM; echo $$; while :; do sleep 1000; done' &"#;

#[tokio::test]
async fn exit_code_signal_and_output_come_back() {
    let guard = guard().await;
    let mut child = guard.spawn(script("echo out; echo err >&2; exit 7")).await.unwrap();
    let clean = ProcessTreeEnd { how: CommandEnd::Code(7), leftovers: 0, oom_killed: Some(false) };
    assert_eq!(child.tree.ended().await, clean);
    assert_eq!(child.tree.ended().await, clean, "asked again, it answers the same");
    assert_eq!(all(&mut child.stdout).await, "out\n");
    assert_eq!(all(&mut child.stderr).await, "err\n");

    let mut child = guard.spawn(script("kill -SEGV $$")).await.unwrap();
    assert_eq!(child.tree.ended().await.how, CommandEnd::Signal(libc::SIGSEGV));

    // Killed by its own script, with no lack of memory.
    let mut child = guard.spawn(script("kill -KILL $$")).await.unwrap();
    let ended = child.tree.ended().await;
    assert_eq!(ended.how, CommandEnd::Signal(libc::SIGKILL));
    assert_ne!(ended.oom_killed, Some(true));
}

#[tokio::test]
async fn standard_input_is_what_was_given() {
    let guard = guard().await;
    let bytes: Vec<u8> = (0..=255).cycle().take(300_000).collect();
    let request = SpawnRequest { stdin: Stdin::Bytes(bytes.clone()), ..script("cat") };
    let mut child = guard.spawn(request).await.unwrap();
    let mut got = Vec::new();
    child.stdout.read_to_end(&mut got).await.unwrap();
    assert_eq!(got, bytes);
    assert_eq!(child.tree.ended().await.how, CommandEnd::Code(0));

    let mut child = guard.spawn(script("cat")).await.unwrap();
    assert_eq!(all(&mut child.stdout).await, "");
}

#[tokio::test]
async fn large_output_arrives_whole() {
    const BYTES: usize = 64 << 20;
    let guard = guard().await;
    let mut child = guard.spawn(script(&format!("head -c {BYTES} /dev/zero"))).await.unwrap();
    let mut buffer = vec![1; 64 << 10];
    let mut total = 0;
    loop {
        match child.stdout.read(&mut buffer).await.unwrap() {
            0 => break,
            n => total += n,
        }
    }
    assert_eq!(total, BYTES);
    assert_eq!(child.tree.ended().await.how, CommandEnd::Code(0));
}

#[tokio::test]
async fn what_cannot_start_says_why() {
    let guard = guard().await;
    let request = SpawnRequest { argv: vec!["no-such-program".into()], ..script("") };
    let error = guard.spawn(request).await.unwrap_err();
    assert!(matches!(error, GuardError::Spawn { step: FailedStep::Execute, .. }), "{error:?}");
    assert!(error.to_string().starts_with("cannot execute no-such-program: No such file"), "{error}");

    let request = SpawnRequest { cwd: Some("/no/such/folder".into()), ..script("true") };
    let error = guard.spawn(request).await.unwrap_err();
    assert!(matches!(error, GuardError::Spawn { step: FailedStep::ChangeDir, .. }), "{error:?}");
    assert!(error.to_string().starts_with("cannot enter the folder /no/such/folder: No such"), "{error}");

    let request = SpawnRequest { argv: Vec::new(), ..script("") };
    assert!(guard.spawn(request).await.is_err());

    let request = SpawnRequest { argv: vec!["x".repeat(9 << 20)], ..script("") };
    assert!(matches!(guard.spawn(request).await, Err(GuardError::TooLarge)));

    let mut child = guard.spawn(script("pwd")).await.unwrap();
    assert_eq!(child.tree.ended().await.how, CommandEnd::Code(0), "the guard goes on");
}

#[tokio::test]
async fn a_command_sees_nothing_of_the_worker() {
    let guard = guard().await;
    let (input, keep) = pipe().unwrap();
    let mut keep = fs::File::from(keep);
    let env = [("PATH", "/usr/bin:/bin"), ("ONLY", "this")].map(|(k, v)| (k.to_owned(), v.to_owned()));
    let request = SpawnRequest {
        argv: vec!["cat".into()],
        env: env.into(),
        cwd: Some("/".into()),
        stdin: Stdin::File(input),
    };
    let mut child = guard.spawn(request).await.unwrap();
    // It has loaded its libraries when it answers.
    keep.write_all(b"up\n").unwrap();
    assert_eq!(line(&mut child).await, "up");
    let about = format!("/proc/{}", child.tree.pid());

    assert_eq!(fs::read(format!("{about}/environ")).unwrap(), b"ONLY=this\0PATH=/usr/bin:/bin\0");
    let mut fds: Vec<_> =
        fs::read_dir(format!("{about}/fd")).unwrap().map(|fd| fd.unwrap().file_name()).collect();
    fds.sort();
    assert_eq!(fds, ["0", "1", "2"]);
    assert_eq!(fs::read_link(format!("{about}/cwd")).unwrap().as_os_str(), "/");
    // Rust ignores SIGPIPE and the guard blocks everything; neither may reach the command.
    let status = fs::read_to_string(format!("{about}/status")).unwrap();
    for set in ["SigBlk", "SigIgn", "SigPnd"] {
        let line = status.lines().find(|line| line.starts_with(set)).unwrap();
        assert_eq!(line.split_whitespace().nth(1), Some("0000000000000000"), "{line}");
    }
    let own = rustix::process::getsid(Some(pid(child.tree.pid()))).unwrap();
    assert_eq!(own.as_raw_pid(), child.tree.pid(), "a session of its own");
    let limit = |who: &str| {
        let limits = fs::read_to_string(format!("/proc/{who}/limits")).unwrap();
        limits.lines().find(|line| line.starts_with("Max open files")).unwrap().to_owned()
    };
    assert_eq!(limit(&child.tree.pid().to_string()), limit("self"));
}

#[tokio::test]
async fn kill_reaches_what_called_setsid() {
    let guard = guard().await;
    let mut child = guard.spawn(script(&format!("{STUBBORN} wait"))).await.unwrap();
    let stubborn = pid_line(&mut child).await;
    child.tree.kill();
    assert_eq!(child.tree.ended().await.how, CommandEnd::Signal(libc::SIGKILL));
    assert!(!runs(stubborn));
}

#[tokio::test]
async fn stop_asks_first_and_kills_what_does_not_listen() {
    let guard = guard().await;
    // Obeys SIGTERM, and prints that; the process that it starts at its end is ended too, long before the
    // grace time has passed.
    let polite = "trap 'echo bye; sleep 1000 & exit 3' TERM; echo up; while :; do sleep 0.1; done";
    let mut child = guard.spawn(script(polite)).await.unwrap();
    assert_eq!(line(&mut child).await, "up");
    child.tree.stop(PATIENCE * 10);
    let ended = tokio::time::timeout(PATIENCE, child.tree.ended()).await.expect("it ends");
    assert_eq!(ended.how, CommandEnd::Code(3));
    assert_eq!(all(&mut child.stdout).await, "bye\n");

    // Its shell obeys, but the process that it started does not.
    let mut child = guard.spawn(script(&format!("{STUBBORN} wait"))).await.unwrap();
    let stubborn = pid_line(&mut child).await;
    child.tree.stop(Duration::from_millis(50));
    assert_eq!(child.tree.ended().await.how, CommandEnd::Signal(libc::SIGTERM));
    assert!(!runs(stubborn));

    // Stopped by a signal, it cannot react until it goes on.
    let mut child = guard.spawn(script("trap 'exit 4' TERM; kill -STOP $$; exit 5")).await.unwrap();
    while state(pid(child.tree.pid())) != Some('T') {
        tokio::task::yield_now().await;
    }
    child.tree.stop(PATIENCE);
    assert_eq!(child.tree.ended().await.how, CommandEnd::Code(4));
}

#[tokio::test]
async fn terminate_alone_does_not_kill() {
    let guard = guard().await;
    let ignores_term = "trap 'echo told' TERM; echo up; until read x; do :; done; echo $x";
    let (input, output) = pipe().unwrap();
    let mut child =
        guard.spawn(SpawnRequest { stdin: Stdin::File(input), ..script(ignores_term) }).await.unwrap();
    assert_eq!(line(&mut child).await, "up");
    child.tree.terminate();
    assert_eq!(line(&mut child).await, "told");
    fs::File::from(output).write_all(b"still here\n").unwrap();
    assert_eq!(line(&mut child).await, "still here");
    assert_eq!(child.tree.ended().await.how, CommandEnd::Code(0));
}

#[tokio::test]
async fn leftovers_are_ended_and_counted() {
    let options = GuardOptions { leftover_grace: Duration::from_millis(50), ..options() };
    let guard = Guard::start(options).await.unwrap();
    let (input, output) = pipe().unwrap();
    let leaves = SpawnRequest { stdin: Stdin::File(input), ..script(&format!("{STUBBORN} read x")) };
    let mut child = guard.spawn(leaves).await.unwrap();
    let stubborn = pid_line(&mut child).await;
    fs::File::from(output).write_all(b"now\n").unwrap();
    let ended = child.tree.ended().await;
    assert_eq!(ended.how, CommandEnd::Code(0), "processes left behind do not change how it ended");
    assert!((1..=2).contains(&ended.leftovers), "{ended:?}");
    assert!(!runs(stubborn));
}

#[tokio::test]
async fn a_chain_of_forks_cannot_run_away() {
    // Every process lives for an instant: it forks, ends, and its child starts yet another session.
    let chain =
        "import os,sys\nprint('up',flush=True)\nwhile True:\n if os.fork(): os._exit(0)\n os.setsid()\n";
    let options = GuardOptions { leftover_grace: Duration::from_millis(20), ..options() };
    let guard = Guard::start(options).await.unwrap();
    let request = SpawnRequest { argv: vec!["python3".into(), "-c".into(), chain.into()], ..script("") };
    let mut child = guard.spawn(request).await.unwrap();
    assert_eq!(line(&mut child).await, "up");
    let ended = tokio::time::timeout(PATIENCE, child.tree.ended()).await.expect("it ends");
    assert_eq!(ended.how, CommandEnd::Code(0));
    // No process is left to hold the pipe.
    assert_eq!(all(&mut child.stdout).await, "");
}

#[tokio::test]
async fn dropping_a_child_kills_it() {
    let guard = guard().await;
    let mut child = guard.spawn(script(&format!("{STUBBORN} wait"))).await.unwrap();
    let stubborn = pid_line(&mut child).await;
    let main = pid(child.tree.pid());
    drop(child);
    gone(stubborn).await;
    gone(main).await;
}

#[tokio::test]
async fn a_killed_shim_leaves_nothing() {
    let guard = guard().await;
    let mut other = guard.spawn(script("echo up; read x")).await.unwrap();
    line(&mut other).await;
    let mut child = guard.spawn(script(&format!("{STUBBORN} wait"))).await.unwrap();
    let stubborn = pid_line(&mut child).await;
    kill(parent(pid(child.tree.pid())));
    assert_eq!(child.tree.ended().await.how, CommandEnd::Unknown);
    assert!(!runs(stubborn));
    assert_eq!(other.tree.ended().await.how, CommandEnd::Code(1), "other attempts are left alone");
}

#[tokio::test]
async fn a_killed_guard_leaves_nothing_and_is_replaced() {
    let guard = guard().await;
    let mut child = guard.spawn(script(&format!("{STUBBORN} wait"))).await.unwrap();
    let stubborn = pid_line(&mut child).await;
    kill(pid(guard.pid().await));
    assert_eq!(child.tree.ended().await.how, CommandEnd::Unknown);
    assert!(!runs(stubborn));
    guard.lost().await;
    let mut child = guard.spawn(script("exit 9")).await.unwrap();
    assert_eq!(child.tree.ended().await.how, CommandEnd::Code(9));
}

/// A new guard does not know the processes of the guard before it. If it closed the worker's session while
/// some of them still run, another worker would run the same task.
#[tokio::test]
async fn a_new_guard_says_nothing_before_all_of_the_last_is_gone() {
    let guard = guard().await;
    let mut child = guard.spawn(script("echo $$; sleep 1000")).await.unwrap();
    let command = pid_line(&mut child).await;
    let first = pid(guard.pid().await);
    let shim = parent(command);
    // A guard that runs would wake the shim.
    kill_process(first, Signal::STOP).unwrap();
    kill_process(shim, Signal::STOP).unwrap();
    kill(first);
    guard.lost().await;
    let mut revived = std::pin::pin!(guard.revive());
    let early = tokio::time::timeout(Duration::from_millis(300), &mut revived).await;
    assert!(early.is_err(), "the command of a stopped shim still runs: {}", runs(command));
    assert_ne!(pid(guard.pid().await), first, "commands can be started meanwhile");
    kill_process(shim, Signal::CONT).unwrap();
    revived.await.unwrap();
    assert!(!runs(command));
}

#[tokio::test]
async fn signals_that_can_be_blocked_do_not_end_the_guard() {
    let guard = guard().await;
    let (input, output) = pipe().unwrap();
    let asks = SpawnRequest { stdin: Stdin::File(input), ..script("echo up; read x; exit 6") };
    let mut child = guard.spawn(asks).await.unwrap();
    assert_eq!(line(&mut child).await, "up");
    // As a terminal or a service manager sends them to all they know.
    let shim = parent(pid(child.tree.pid()));
    for signal in [Signal::INT, Signal::TERM, Signal::HUP, Signal::QUIT] {
        kill_process(pid(guard.pid().await), signal).unwrap();
        kill_process(shim, signal).unwrap();
    }
    fs::File::from(output).write_all(b"go\n").unwrap();
    assert_eq!(child.tree.ended().await.how, CommandEnd::Code(6));
    assert_eq!(guard.spawn(script("exit 7")).await.unwrap().tree.ended().await.how, CommandEnd::Code(7));
}

#[tokio::test]
async fn close_ends_everything() {
    let guard = guard().await;
    let mut child = guard.spawn(script(&format!("{STUBBORN} wait"))).await.unwrap();
    let stubborn = pid_line(&mut child).await;
    let process = pid(guard.pid().await);
    fs::write(guard.dir().join("left"), "something").unwrap();
    guard.close().await;
    assert!(!runs(stubborn));
    assert!(!runs(process));
    assert!(!guard.dir().exists());
}

#[tokio::test]
async fn nothing_outlives_the_deadline() {
    let options = GuardOptions {
        lease_grace: Duration::from_millis(100),
        kill_margin: Duration::from_millis(100),
        ..options()
    };
    let guard = Guard::start(options).await.unwrap();
    let deadline = boottime() + Duration::from_secs(2);
    guard.set_deadline(Some(deadline));
    let mut child = guard.spawn(script(&format!("{STUBBORN} wait"))).await.unwrap();
    let stubborn = pid_line(&mut child).await;
    assert_eq!(child.tree.ended().await.how, CommandEnd::Signal(libc::SIGTERM), "asked first");
    assert!(!runs(stubborn), "then killed");
    let error = guard.spawn(script("true")).await.unwrap_err();
    assert!(matches!(error, GuardError::Spawn { step: FailedStep::Lease, .. }), "{error:?}");

    guard.set_deadline(Some(boottime() + PATIENCE));
    assert_eq!(guard.spawn(script("true")).await.unwrap().tree.ended().await.how, CommandEnd::Code(0));
}

#[tokio::test]
async fn a_deadline_that_moves_is_followed() {
    let options = GuardOptions {
        lease_grace: Duration::from_millis(10),
        kill_margin: Duration::from_millis(10),
        ..options()
    };
    let guard = Guard::start(options).await.unwrap();
    let first = boottime() + Duration::from_millis(800);
    guard.set_deadline(Some(first));
    let (input, output) = pipe().unwrap();
    let asks = SpawnRequest { stdin: Stdin::File(input), ..script("echo up; read x; echo $x; read x") };
    let mut child = guard.spawn(asks).await.unwrap();
    assert_eq!(line(&mut child).await, "up");
    // Later: it lives on when the first one has passed.
    guard.set_deadline(Some(boottime() + PATIENCE));
    while boottime() < first + Duration::from_millis(50) {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let mut output = fs::File::from(output);
    output.write_all(b"alive\n").unwrap();
    assert_eq!(line(&mut child).await, "alive");
    // Nearer: it ends although a later one was set.
    guard.set_deadline(Some(boottime()));
    let how = child.tree.ended().await.how;
    assert!(matches!(how, CommandEnd::Signal(libc::SIGTERM | libc::SIGKILL)), "{how:?}");
}

#[tokio::test]
async fn an_order_in_the_last_moment_does_not_hide_how_it_ended() {
    // A shim that ended with an order unread was taken for a killed shim: its socket gives an error before
    // its last reports. Stopping commands that end by themselves meets that moment from time to time.
    let guard = guard().await;
    for _ in 0..200 {
        let mut child = guard.spawn(script("exit 3")).await.unwrap();
        for _ in 0..20 {
            child.tree.terminate();
        }
        let how = child.tree.ended().await.how;
        assert!(matches!(how, CommandEnd::Code(3) | CommandEnd::Signal(libc::SIGTERM)), "{how:?}");
    }
}

#[tokio::test]
async fn many_at_once() {
    let guard = guard().await;
    let one = |n: i32| {
        let guard = guard.clone();
        async move { guard.spawn(script(&format!("exit {n}"))).await.unwrap().tree.ended().await.how }
    };
    let ended = futures::future::join_all((0..100).map(one)).await;
    for (n, how) in (0..).zip(ended) {
        assert_eq!(how, CommandEnd::Code(n));
    }
}

#[tokio::test]
async fn a_program_that_is_not_prepared_is_told_so() {
    let error = Guard::start(GuardOptions::default()).await.unwrap_err();
    assert!(matches!(error, GuardError::NotPrepared));
    assert!(error.to_string().contains("run_if_asked"), "{error}");
}
