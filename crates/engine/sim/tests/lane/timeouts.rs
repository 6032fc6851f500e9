//! Tasks that do not start in time, and attempts that do not end in time.

use tasklane_core::id::TaskId;
use tasklane_core::status::Status;
use tasklane_core::task::AttemptOutcome;
use tasklane_sim::harness::{Story, task};

fn expect_start_timeout(lane: &Story, id: TaskId) {
    assert_eq!(lane.status(id), Status::Failed);
    assert_eq!(lane.error(id).as_deref(), Some("start_timeout"));
}

#[test]
fn a_task_that_waits_too_long_fails() {
    let lane = Story::new();
    let id = lane.submit(task().start_timeout(5));
    lane.advance_millis(4_999);
    assert_eq!(lane.status(id), Status::Pending);
    lane.advance_millis(1);
    expect_start_timeout(&lane, id);
    assert!(lane.worker("w1", 1).takes().is_empty());
}

#[test]
fn the_start_timeout_counts_from_the_due_time() {
    let lane = Story::new();
    let id = lane.submit(task().after(10).start_timeout(5));
    lane.advance_millis(14_999);
    assert_eq!(lane.status(id), Status::Pending);
    lane.advance_millis(1);
    expect_start_timeout(&lane, id);
}

#[test]
fn tasks_behind_the_window_fail_too() {
    let lane = Story::with(|o| (o.window, o.page) = (2, 3));
    let ids = lane.submit_all((0..50).map(|_| task().start_timeout(7)));
    assert!(lane.machine().tasks_in_memory() <= 4);
    lane.advance(6);
    assert!(ids.iter().all(|id| lane.status(*id) == Status::Pending));
    lane.advance(6);
    for id in ids {
        expect_start_timeout(&lane, id);
    }
    assert_eq!(lane.machine().tasks_in_memory(), 0);
}

#[test]
fn a_task_that_started_in_time_goes_on() {
    let lane = Story::new();
    let w1 = lane.worker("w1", 1);
    let id = lane.submit(task().start_timeout(5));
    lane.advance(4);
    w1.runs();
    lane.advance(60);
    assert_eq!(lane.status(id), Status::Running);
    assert!(w1.recalls().is_empty());
}

#[test]
fn a_dispatched_task_that_does_not_start_is_recalled() {
    let lane = Story::new();
    let w1 = lane.worker("w1", 1);
    let id = lane.submit(task().start_timeout(5));
    w1.takes();
    lane.advance(5);
    assert_eq!(w1.recalls(), [id]);
    assert!(lane.status(id).is_in_flight(), "only the worker can say that it will not start");
    w1.hands_back(id);
    expect_start_timeout(&lane, id);
    assert_eq!(lane.attempts(id), [AttemptOutcome::HandedBack]);
}

/// The lost attempt used to become a failed one, with the task's error and end.
#[test]
fn a_task_that_waits_too_long_after_an_attempt_leaves_the_attempt_as_it_was() {
    let lane = Story::new();
    let w1 = lane.worker("w1", 1);
    let id = lane.submit(task().start_timeout(5));
    w1.runs();
    w1.dies();
    lane.advance(5);
    expect_start_timeout(&lane, id);
    assert_eq!(lane.attempts(id), [AttemptOutcome::Lost]);
}

/// The worker used to answer for an attempt that was never written. The next owner gave its number again, and
/// took the old answer for a report about the running attempt.
#[test]
fn a_worker_does_not_hear_of_an_attempt_before_it_is_written() {
    let lane = Story::new();
    let w1 = lane.worker("w1", 1);
    lane.hold_commits();
    let id = lane.submit(task().start_timeout(5));
    lane.advance(5);
    assert!(w1.recalls().is_empty());
    lane.release_commits();
    assert_eq!((w1.takes(), w1.recalls()), (vec![], vec![id]));
}

#[test]
fn a_scheduled_task_whose_dispatch_was_lost_is_recalled() {
    let lane = Story::new();
    let w1 = lane.worker("w1", 1);
    w1.not_receiving(true);
    let id = lane.submit(task().start_timeout(5));
    lane.advance(5);
    w1.not_receiving(false);
    w1.beats();
    assert_eq!(w1.recalls(), [id], "resent at the next heartbeat");
    assert_eq!(lane.status(id), Status::Scheduled);
}

#[test]
fn a_recalled_task_that_has_started_goes_on() {
    let lane = Story::new();
    let w1 = lane.worker("w1", 1);
    let id = lane.submit(task().start_timeout(5));
    w1.takes();
    lane.advance(5);
    assert_eq!(w1.recalls(), [id]);
    w1.starts(id);
    w1.beats();
    assert!(w1.recalls().is_empty());
    w1.finishes(id);
    assert_eq!(lane.status(id), Status::Success);
}

#[test]
fn a_retry_has_its_own_start_deadline() {
    let lane = Story::new();
    let w1 = lane.worker("w1", 1);
    let id = lane.submit(task().start_timeout(5));
    w1.runs();
    lane.advance(100);
    w1.fails(id);
    w1.dies();
    lane.advance(14);
    assert_eq!(lane.status(id), Status::Pending);
    lane.advance(1);
    expect_start_timeout(&lane, id);
}

#[test]
fn a_task_whose_worker_was_lost_gets_its_start_timeout_again() {
    let lane = Story::new();
    let w1 = lane.worker("w1", 1);
    let id = lane.submit(task().start_timeout(5));
    w1.runs();
    lane.advance(100);
    w1.dies();
    lane.advance(4);
    assert_eq!(lane.status(id), Status::Pending);
    lane.advance(1);
    expect_start_timeout(&lane, id);
}

/// An attempt that had started used to keep its old deadline when it was handed back, and its task failed as
/// not started.
#[test]
fn a_started_task_that_is_handed_back_gets_its_start_timeout_again() {
    let lane = Story::new();
    let w1 = lane.worker("w1", 1);
    let id = lane.submit(task().start_timeout(5));
    w1.runs();
    lane.advance(100);
    w1.hands_back(id);
    assert_eq!(lane.status(id), Status::Pending);
    lane.advance(4);
    assert_eq!(lane.status(id), Status::Pending);
    lane.advance(1);
    expect_start_timeout(&lane, id);
}

#[test]
fn an_attempt_far_past_its_timeout_costs_its_worker_the_session() {
    let lane = Story::new();
    let w1 = lane.worker("w1", 2);
    let id = lane.submit(task().timeout(10));
    w1.runs();
    lane.advance(40);
    assert!(lane.revoked().is_empty(), "the grace is not over");
    lane.advance(10);
    assert_eq!(lane.revoked(), [w1.session()]);
    assert_eq!(lane.counters().attempt_overrun, 1);
    assert_eq!(lane.status(id), Status::Running, "it may still run there");
    lane.submit(task());
    assert!(w1.takes().is_empty(), "a revoked worker gets nothing more");
    lane.advance(30);
    assert_eq!(lane.revoked().len(), 1);
    let w2 = lane.worker("w2", 2);
    w1.dies();
    assert!(w2.takes().contains(&id));
}
