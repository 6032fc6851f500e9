//! The bars of a lane: tasks that cannot run do not delay tasks that can, and memory stays bounded, however
//! many tasks wait. Time is simulated; "at once" means that no time passes at all and that the machine takes
//! a bounded number of steps.
//!
//! One test, because each part fills a store with a million tasks.

use tasklane_core::id::{LaneId, TaskId};
use tasklane_core::lane::LaneOptions;
use tasklane_core::policy::{Concurrency, ConcurrencyLimit, WhenReached};
use tasklane_sim::harness::{Make, Story, Worker, name, task};

/// Tasks that wait.
const WAITING: u64 = 1_000_000;
/// Tasks submitted together.
const BATCH: usize = 2_000;
/// Ids of the waiting tasks begin here; the harness counts its own from 1.
const MANY: u64 = 1 << 32;
/// Steps, reads and commits that a task may take from its submission to its end.
const EFFORT_MAX: u64 = 15;

/// Tasks in memory while all others wait: twice the window of each of two long lines, and a few.
fn in_memory_max() -> usize {
    4 * LaneOptions::default().window + 100
}

/// Fills the lane with `count` tasks, half of them through the store and half through the owner.
fn fill(lane: &Story, make: &Make, first: u64, count: u64) {
    for (batch, from) in (first..first + count).step_by(BATCH).enumerate() {
        let tasks = make.many(LaneId(3), lane.now(), from..(from + BATCH as u64).min(first + count));
        if batch % 2 == 0 {
            lane.store_made(tasks);
            lane.hint();
        } else {
            lane.submit_made(tasks);
        }
        let held = lane.machine().tasks_in_memory();
        assert!(held < in_memory_max(), "{held} tasks in memory after {from}");
    }
}

/// The steps, reads and commits of the machine so far.
fn effort(lane: &Story) -> u64 {
    let (steps, reads, commits) = lane.effort();
    steps + reads + commits
}

/// A task, submitted either way, starts and ends at once.
fn expect_at_once(lane: &Story, worker: &Worker, make: &Make) {
    let ways: [fn(&Story, Make) -> TaskId; 2] = [Story::submit, Story::arrive];
    for submit in ways {
        let (before, now) = (effort(lane), lane.now());
        let id = submit(lane, make.clone());
        assert_eq!(worker.works_off(), [id]);
        let spent = effort(lane) - before;
        assert!(spent <= EFFORT_MAX, "{spent} steps, reads and commits for one task");
        assert_eq!(lane.now(), now);
        let held = lane.machine().tasks_in_memory();
        assert!(held < in_memory_max(), "{held} tasks in memory");
    }
}

#[test]
fn what_cannot_run_delays_nothing_and_takes_no_memory() {
    nobody_runs_the_type();
    one_key_has_nearly_all();
}

/// A million tasks of a type that no worker runs.
fn nobody_runs_the_type() {
    let lane = Story::large();
    let worker = lane.worker("w1", 4);
    fill(&lane, &task().of_type("nobody").priority(9), MANY, WAITING);
    for round in 0..10 {
        expect_at_once(&lane, &worker, &task().priority(round));
        lane.advance(5);
    }
    // A new owner is as fast: it reads a few pages, not a million tasks.
    let behind = lane.store_only(task().priority(0));
    let before = effort(&lane);
    lane.takeover();
    assert_eq!(worker.works_off(), [behind]);
    let spent = effort(&lane) - before;
    assert!(spent < 50, "{spent} steps, reads and commits for a takeover");
    expect_at_once(&lane, &worker, &task());
    // When a worker offers the type after all, the tasks run.
    worker.offers(|d| d.task_types = [name("nobody")].into());
    assert_eq!(worker.runs().len(), 4);
}

/// A million tasks, nine of ten under one key whose limit is reached.
fn one_key_has_nearly_all() {
    let lane = Story::large();
    let concurrency = Concurrency { limit: 1, when_reached: WhenReached::Wait };
    let by_user = ConcurrencyLimit { key: Some("user".to_owned()), concurrency };
    lane.policy(|p| p.concurrency = vec![by_user]);
    let worker = lane.worker("w1", 4);
    let (greedy, modest) = (task().flow("user", "greedy").priority(9), task().flow("user", "modest"));
    fill(&lane, &greedy, MANY, WAITING * 9 / 10);
    let running = worker.runs();
    assert_eq!(running.len(), 1, "the key is at its limit");
    fill(&lane, &modest, MANY + WAITING, WAITING / 10);
    // The other key's tasks run one after the other while the first one is stuck.
    for _ in 0..1_000 {
        let ids = worker.runs();
        assert_eq!(ids.len(), 1);
        worker.finishes(ids[0]);
    }
    let second = worker.runs();
    for round in 0..10 {
        expect_at_once(&lane, &worker, &task().flow("user", &format!("user-{round}")));
        expect_at_once(&lane, &worker, &task());
        lane.advance(5);
    }
    lane.takeover();
    expect_at_once(&lane, &worker, &task().flow("user", "somebody"));
    // The keys themselves go on too, one at a time.
    worker.finishes(running[0]);
    worker.finishes(second[0]);
    assert_eq!(worker.runs().len(), 2);
    let held = lane.machine().tasks_in_memory();
    assert!(held < in_memory_max(), "{held} tasks in memory");
}
