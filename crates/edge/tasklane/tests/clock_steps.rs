//! Servers whose wall clock is wrong by an hour and then corrected: delays keep their length, and times of
//! day come when the corrected clock shows them. The clock of this machine, which is right all along,
//! measures when a task started.
//!
//! Without this a task with a delay of a few seconds started at once, or an hour late, for as long as the server ran.

#![cfg(feature = "test-clock")]
#![allow(clippy::unwrap_used, reason = "in tests a panic is an answer")]

mod support;

use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use futures::future::join_all;
use serde_json::json;
use support::Server;

const HOUR: i64 = 3_600_000;
/// Smaller changes of the clock of this machine are not taken for a step.
const SLEWING: Duration = Duration::from_millis(500);

/// When and how the clock is corrected.
#[derive(Clone, Copy, Debug)]
enum Corrected {
    WhileRunning,
    /// The server is killed once it has seen the correction.
    BeforeKill,
    /// The server is killed, and runs again with the right clock.
    WhileDown,
}

/// The kind of time that a task waits for.
#[derive(Clone, Copy, Debug)]
enum Wait {
    Delay(Duration),
    Until(Duration),
}

/// A task that was submitted: it must not start before this time.
#[derive(Debug)]
struct Expected {
    id: String,
    not_before: Duration,
    started: PathBuf,
    what: String,
}

fn now() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap()
}

async fn submit(server: &Server, folder: &Path, what: &str, wait: Wait) -> Expected {
    let started = folder.join(what);
    let payload = format!("date +%s%N > '{}'", started.display());
    let before = now();
    let mut task = json!({ "taskName": what, "taskType": "SHELL", "payload": payload });
    let not_before = match wait {
        Wait::Delay(delay) => {
            task["delay"] = json!(format!("{}ms", delay.as_millis()));
            before + delay
        }
        Wait::Until(time) => {
            task["runAt"] =
                json!(jiff::Timestamp::from_duration(time.try_into().unwrap()).unwrap().to_string());
            time
        }
    };
    let id = server.api().submit(task).await;
    Expected { id, not_before, started, what: what.to_owned() }
}

async fn play(ahead: i64, corrected: Corrected) {
    let folder = tempfile::tempdir().unwrap();
    let (data, clock) = (folder.path().join("data"), folder.path().join("clock"));
    std::fs::write(&clock, ahead.to_string()).unwrap();
    let env = [("TASKLANE_TEST_CLOCK", clock.to_str().unwrap())];
    let start = || Server::start_with(&data, &["--listen", "127.0.0.1:0"], &env);
    let secs = Duration::from_secs;

    let mut server = start();
    let mut expected = vec![submit(&server, folder.path(), "delayed before", Wait::Delay(secs(7))).await];
    // A clock that is ahead has shown that time already, and the task starts.
    if ahead < 0 {
        expected.push(submit(&server, folder.path(), "timed before", Wait::Until(now() + secs(7))).await);
    }
    if let Corrected::WhileDown = corrected {
        server.kill();
    }
    // In one step, so that the server reads the whole number.
    let right = folder.path().join("right");
    std::fs::write(&right, "0").unwrap();
    std::fs::rename(&right, &clock).unwrap();
    match corrected {
        Corrected::WhileRunning => {}
        Corrected::BeforeKill => {
            // The step is written before the lane does anything else.
            let noop = server.api().submit(json!({ "taskName": "seen", "taskType": "NOOP" })).await;
            server.api().finished(&noop).await;
            server.kill();
            server = start();
        }
        Corrected::WhileDown => server = start(),
    }
    expected.push(submit(&server, folder.path(), "delayed after", Wait::Delay(secs(3))).await);
    expected.push(submit(&server, folder.path(), "timed after", Wait::Until(now() + secs(3))).await);

    for Expected { id, not_before, started, what } in expected {
        let task = server.api().finished(&id).await;
        assert_eq!(task["status"], "SUCCESS", "{task}");
        let nanos = std::fs::read_to_string(started).unwrap();
        let started = Duration::from_nanos(nanos.trim().parse().unwrap());
        let early = not_before.saturating_sub(started);
        assert!(early < SLEWING, "{what}, {ahead} ms, {corrected:?}: started {early:?} too early: {task}");
    }
    server.terminate();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_corrected_clock_makes_no_delay_longer_or_shorter() {
    let ways = [Corrected::WhileRunning, Corrected::BeforeKill, Corrected::WhileDown];
    join_all(ways.into_iter().flat_map(|way| [play(HOUR, way), play(-HOUR, way)])).await;
}
