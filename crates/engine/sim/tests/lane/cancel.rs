//! Cancels of a task in every status.

use tasklane_core::message::{AckReason, Ending, ToWorker};
use tasklane_core::status::Status;
use tasklane_core::task::{AttemptOutcome, TaskError};
use tasklane_sim::harness::{Story, Worker, task};

/// A lane, a worker, and a task that runs there and is cancelled.
fn cancelled_while_running() -> (Story, Worker, tasklane_core::id::TaskId) {
    let lane = Story::new();
    let w1 = lane.worker("w1", 1);
    let id = lane.submit(task());
    w1.runs();
    lane.cancel(id);
    assert_eq!(w1.stops(), [id]);
    assert!(lane.stored(id).cancel_requested);
    assert_eq!(lane.inbox_len(), 0, "the command goes in the group that applies it");
    (lane, w1, id)
}

#[test]
fn a_pending_task_is_cancelled_at_once() {
    let lane = Story::new();
    let id = lane.submit(task());
    lane.cancel(id);
    assert_eq!(lane.status(id), Status::Cancelled);
    assert_eq!((lane.inbox_len(), lane.machine().tasks_in_memory()), (0, 0));
    assert!(lane.worker("w1", 1).takes().is_empty());
}

#[test]
fn a_delayed_task_is_cancelled_at_once() {
    let lane = Story::new();
    let w1 = lane.worker("w1", 1);
    let id = lane.submit(task().after(10));
    lane.cancel(id);
    assert_eq!(lane.status(id), Status::Cancelled);
    lane.advance(20);
    assert!(w1.takes().is_empty());
}

#[test]
fn a_task_that_waits_for_its_retry_is_cancelled_at_once() {
    let lane = Story::new();
    let w1 = lane.worker("w1", 1);
    let id = lane.submit(task());
    w1.runs();
    w1.fails(id);
    lane.cancel(id);
    assert_eq!(lane.status(id), Status::Cancelled);
    assert_eq!(lane.counters().cancel_of_retrying, 1);
    assert_eq!(lane.attempts(id), [AttemptOutcome::Failed], "the cancel does not change the attempt");
    lane.advance(20);
    assert!(w1.takes().is_empty());
}

#[test]
fn a_task_behind_the_window_is_read_and_cancelled() {
    let lane = Story::with(|o| o.window = 2);
    let ids = lane.submit_all((0..20).map(|_| task()));
    lane.cancel(ids[19]);
    assert_eq!(lane.status(ids[19]), Status::Cancelled);
    assert_eq!(lane.counters().cancel_of_paged_task, 1);
    let w1 = lane.worker("w1", 3);
    assert_eq!(w1.works_off(), ids[..19]);
}

#[test]
fn a_delayed_task_behind_the_window_is_read_and_cancelled() {
    let lane = Story::with(|o| o.delayed_window = 2);
    let ids = lane.submit_all((1..=20).map(|n| task().after(n)));
    lane.cancel(ids[19]);
    assert_eq!(lane.status(ids[19]), Status::Cancelled);
    let w1 = lane.worker("w1", 3);
    for id in &ids[..19] {
        lane.advance(1);
        assert_eq!(w1.works_off(), [*id]);
    }
    lane.advance(10);
    assert!(w1.works_off().is_empty());
}

#[test]
fn a_scheduled_task_ends_when_its_worker_gives_it_back() {
    let lane = Story::new();
    let w1 = lane.worker("w1", 1);
    let id = lane.submit(task());
    lane.cancel(id);
    assert_eq!(lane.status(id), Status::Scheduled);
    assert_eq!(w1.stops(), [id]);
    w1.hands_back(id);
    assert_eq!(lane.status(id), Status::Cancelled);
}

#[test]
fn a_dispatched_task_ends_when_its_worker_gives_it_back() {
    let lane = Story::new();
    let w1 = lane.worker("w1", 1);
    let id = lane.submit(task());
    w1.takes();
    lane.cancel(id);
    assert_eq!(w1.stops(), [id]);
    w1.hands_back(id);
    assert_eq!(lane.status(id), Status::Cancelled);
}

#[test]
fn a_running_task_is_told_to_stop_until_it_ends() {
    let (lane, w1, id) = cancelled_while_running();
    for _ in 0..3 {
        lane.advance(2);
        w1.beats();
        assert_eq!(w1.stops(), [id]);
    }
    assert_eq!(lane.counters().stop_resent, 3);
    w1.ends(id, Ending::Cancelled);
    assert_eq!(lane.status(id), Status::Cancelled);
    w1.beats();
    assert!(w1.stops().is_empty());
}

#[test]
fn a_success_wins_against_a_cancel() {
    let (lane, w1, id) = cancelled_while_running();
    w1.finishes(id);
    assert_eq!(lane.status(id), Status::Success);
    assert_eq!(lane.counters().success_despite_cancel, 1);
}

#[test]
fn a_failure_after_a_cancel_is_not_tried_again() {
    let (lane, w1, id) = cancelled_while_running();
    w1.fails(id);
    assert_eq!(lane.status(id), Status::Cancelled);
    assert_eq!(lane.error(id).as_deref(), Some("exit_code"));

    let (lane, w1, id) = cancelled_while_running();
    w1.ends(id, Ending::TimedOut { error: TaskError::new("timeout", "too long") });
    assert_eq!(lane.status(id), Status::Cancelled);
}

#[test]
fn a_lost_worker_after_a_cancel_ends_the_task() {
    let (lane, w1, id) = cancelled_while_running();
    w1.dies();
    assert_eq!(lane.status(id), Status::Cancelled);
    assert_eq!(lane.error(id).as_deref(), Some("worker_lost"));
    assert_eq!(lane.attempts(id), [AttemptOutcome::Lost]);
}

#[test]
fn a_task_that_waits_after_a_lost_attempt_is_cancelled_at_once() {
    let lane = Story::new();
    let w1 = lane.worker("w1", 1);
    let id = lane.submit(task());
    w1.runs();
    w1.dies();
    lane.cancel(id);
    assert_eq!(lane.status(id), Status::Cancelled);
    assert_eq!(lane.attempts(id), [AttemptOutcome::Lost]);
}

#[test]
fn a_finished_task_stays_as_it_is_and_the_command_goes() {
    let lane = Story::new();
    let w1 = lane.worker("w1", 1);
    let id = lane.submit(task());
    w1.works_off();
    lane.cancel(id);
    assert_eq!(lane.status(id), Status::Success);
    assert_eq!((lane.inbox_len(), lane.counters().cancel_too_late), (0, 1));
}

#[test]
fn a_command_for_a_task_that_never_was_goes() {
    let lane = Story::new();
    let elsewhere = Story::new().submit(task().request_id("never"));
    lane.cancel(elsewhere);
    assert_eq!(lane.inbox_len(), 0);
}

#[test]
fn a_second_cancel_changes_nothing() {
    let (lane, w1, id) = cancelled_while_running();
    lane.cancel(id);
    assert_eq!(lane.inbox_len(), 0);
    w1.ends(id, Ending::Cancelled);
    assert_eq!(lane.status(id), Status::Cancelled);
}

#[test]
fn a_cancel_whose_hint_was_lost_is_found_by_the_sweep() {
    let lane = Story::new();
    let id = lane.submit(task());
    lane.post_cancel(id);
    assert_eq!(lane.status(id), Status::Pending);
    lane.advance(5);
    assert_eq!(lane.status(id), Status::Cancelled);
}

#[test]
fn a_cancel_while_the_insert_is_being_written_follows_it() {
    let lane = Story::new();
    lane.hold_commits();
    let id = lane.submit(task());
    lane.cancel(id);
    assert_eq!(lane.status(id), Status::Pending);
    lane.release_commits();
    assert_eq!(lane.status(id), Status::Cancelled);
    assert_eq!(lane.inbox_len(), 0);
}

#[test]
fn a_cancel_while_the_assignment_is_being_written_stops_the_attempt() {
    let lane = Story::new();
    let w1 = lane.worker("w1", 1);
    lane.hold_commits();
    let id = lane.submit(task());
    lane.cancel(id);
    assert!(w1.takes().is_empty());
    lane.release_commits();
    assert_eq!(w1.mailbox().len(), 1);
    assert!(w1.stops().contains(&id));
    w1.hands_back(id);
    assert_eq!(lane.status(id), Status::Cancelled);
}

#[test]
fn a_cancel_while_the_success_is_being_written_comes_too_late() {
    let lane = Story::new();
    let w1 = lane.worker("w1", 1);
    let id = lane.submit(task());
    w1.runs();
    lane.hold_commits();
    w1.finishes(id);
    lane.cancel(id);
    lane.release_commits();
    assert_eq!(lane.status(id), Status::Success);
    assert_eq!((lane.inbox_len(), lane.counters().cancel_too_late), (0, 1));
    let acks =
        w1.told().into_iter().filter(|m| matches!(m, ToWorker::Ack { verdict: AckReason::Committed, .. }));
    assert_eq!(acks.count(), 1);
}
