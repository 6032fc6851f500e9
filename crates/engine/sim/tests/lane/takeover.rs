//! Takeovers: a new owner begins with the content of the store.

use tasklane_core::lane::Reason;
use tasklane_core::message::{AckReason, Ending, ToWorker};
use tasklane_core::status::Status;
use tasklane_sim::harness::{Story, task};

use crate::{at_once, at_once_by_user, per_second};

/// A new owner used to stay silent until the next heartbeat of each worker.
#[test]
fn a_new_owner_makes_itself_known_and_assigns_at_once() {
    let lane = Story::new();
    let w1 = lane.worker("w1", 1);
    lane.lose_messages(true);
    let id = lane.store_only(task());
    lane.lose_messages(false);
    lane.takeover();
    assert_eq!(w1.takes(), [id]);
}

#[test]
fn a_running_attempt_is_not_disturbed() {
    let lane = Story::new();
    let w1 = lane.worker("w1", 1);
    let id = lane.submit(task());
    w1.runs();
    lane.settle();
    lane.takeover();
    w1.beats();
    assert!(w1.takes().is_empty() && w1.told().is_empty());
    assert_eq!(lane.decided(id), Some(Status::Running));
    assert!(lane.counters().attempt_adopted > 0);
    w1.finishes(id);
    assert_eq!(lane.status(id), Status::Success);
    assert_eq!(lane.stored(id).attempt.0, 1);
}

#[test]
fn an_attempt_that_ended_meanwhile_is_reported_to_the_new_owner() {
    let lane = Story::new();
    let w1 = lane.worker("w1", 1);
    let id = lane.submit(task());
    w1.runs();
    lane.takeover();
    w1.finishes(id);
    assert_eq!(lane.status(id), Status::Success);
}

#[test]
fn a_scheduled_attempt_is_sent_again_under_the_new_epoch() {
    let lane = Story::new();
    let w1 = lane.worker("w1", 1);
    let id = lane.submit(task());
    let first = w1.mailbox();
    lane.takeover();
    w1.beats();
    let again = w1.mailbox();
    assert_eq!(again[0].attempt, first[0].attempt, "the same attempt");
    assert_eq!(lane.counters().dispatch_after_takeover, 1);
    assert_eq!(w1.works_off(), [id]);
}

#[test]
fn a_scheduled_attempt_that_the_worker_has_is_adopted() {
    let lane = Story::new();
    let w1 = lane.worker("w1", 1);
    let id = lane.submit(task());
    w1.takes();
    assert_eq!(lane.status(id), Status::Scheduled, "the acceptance is not written yet");
    lane.takeover();
    w1.beats();
    assert!(w1.takes().is_empty());
    assert_eq!(lane.decided(id), Some(Status::Dispatched));
    assert_eq!(lane.counters().dispatch_after_takeover, 0);
}

#[test]
fn attempts_of_sessions_that_ended_meanwhile_are_lost() {
    let lane = Story::new();
    let w1 = lane.worker("w1", 1);
    let w2 = lane.worker_with("w2", 1, |d| d.draining = true);
    let id = lane.submit(task());
    w1.runs();
    w1.vanishes();
    lane.takeover();
    assert_eq!(lane.status(id), Status::Pending);
    let state = lane.stored(id);
    assert_eq!((state.lost, state.lost_before_start), (0, 1), "its start was not written");
    w2.offers(|d| d.draining = false);
    w2.beats();
    assert_eq!(w2.takes(), [id]);
}

#[test]
fn limits_count_what_is_in_flight() {
    let lane = Story::new();
    lane.policy(|p| p.concurrency = vec![at_once(3), at_once_by_user(1)]);
    let w1 = lane.worker("w1", 9);
    let alice = lane.submit_all((0..2).map(|_| task().flow("user", "alice")));
    let others = lane.submit_all((0..3).map(|n| task().flow("user", &n.to_string())));
    let running = w1.runs();
    assert_eq!(running.len(), 3);
    lane.takeover();
    w1.beats();
    assert!(w1.takes().is_empty());
    w1.finishes(others[0]);
    assert_eq!(w1.runs(), [others[2]], "not alice's");
    w1.finishes(alice[0]);
    assert_eq!(w1.runs(), [alice[1]]);
}

#[test]
fn rates_go_on_where_they_were() {
    let lane = Story::new();
    lane.policy(|p| p.rate = vec![per_second(1, 2)]);
    let w1 = lane.worker("w1", 9);
    let ids = lane.submit_all((0..4).map(|_| task()));
    assert_eq!(w1.runs(), ids[..2]);
    lane.takeover();
    w1.beats();
    lane.advance_millis(999);
    assert!(w1.runs().is_empty());
    lane.advance_millis(1);
    assert_eq!(w1.runs(), [ids[2]]);
}

/// A stored time that lay ahead used to be cut to a full bucket from the present moment, at every reading, so
/// that it blocked its key until it was reached after all.
#[test]
fn a_rate_stored_by_a_clock_that_was_ahead_blocks_no_longer_than_a_full_bucket() {
    let lane = Story::new();
    lane.policy(|p| p.rate = vec![per_second(1, 1)]);
    let w1 = lane.worker("w1", 9);
    let ids = lane.submit_all((0..2).map(|_| task()));
    assert_eq!(w1.runs(), ids[..1]);
    lane.takeover_behind(3600);
    w1.beats();
    lane.advance_millis(999);
    assert!(w1.runs().is_empty());
    lane.advance_millis(1);
    assert_eq!(w1.runs(), ids[1..]);
}

#[test]
fn the_inbox_is_applied() {
    let lane = Story::new();
    let w1 = lane.worker("w1", 1);
    let (running, waiting) = (lane.submit(task()), lane.submit(task()));
    w1.runs();
    lane.post_cancel(running);
    lane.post_cancel(waiting);
    lane.takeover();
    assert_eq!(lane.status(waiting), Status::Cancelled);
    assert!(lane.stored(running).cancel_requested);
    w1.beats();
    assert!(w1.stops().contains(&running));
    assert_eq!(lane.inbox_len(), 0);
}

#[test]
fn every_owner_sends_stop_until_the_attempt_ends() {
    let lane = Story::new();
    let w1 = lane.worker("w1", 1);
    let id = lane.submit(task());
    w1.runs();
    lane.cancel(id);
    for _ in 0..3 {
        w1.told();
        lane.takeover();
        lane.advance(2);
        w1.beats();
        assert!(w1.stops().contains(&id));
    }
    w1.ends(id, Ending::Cancelled);
    assert_eq!(lane.status(id), Status::Cancelled);
}

#[test]
fn delayed_and_retrying_tasks_come_in_time() {
    let lane = Story::new();
    let w1 = lane.worker("w1", 2);
    let failing = lane.submit(task());
    w1.runs();
    w1.fails(failing);
    let delayed = lane.submit(task().after(5));
    lane.takeover();
    w1.beats();
    lane.advance_millis(4_999);
    assert!(w1.takes().is_empty());
    lane.advance_millis(1);
    assert_eq!(w1.takes(), [delayed]);
    lane.advance(5);
    assert_eq!(w1.takes(), [failing]);
}

#[test]
fn start_deadlines_are_watched_by_the_new_owner() {
    let lane = Story::new();
    let w1 = lane.worker("w1", 1);
    let (taken, waiting) = (lane.submit(task().start_timeout(5)), lane.submit(task().start_timeout(5)));
    w1.takes();
    lane.takeover();
    lane.advance(5);
    assert_eq!(lane.status(waiting), Status::Failed);
    w1.beats();
    assert!(w1.recalls().contains(&taken));
    w1.hands_back(taken);
    assert_eq!(lane.error(taken).as_deref(), Some("start_timeout"));
}

#[test]
fn no_report_is_called_stale_before_loading_is_complete() {
    let lane = Story::new();
    let w1 = lane.worker("w1", 1);
    let id = lane.submit(task());
    w1.runs();
    let attempt = w1.attempt(id);
    lane.hold_reads();
    lane.takeover();
    w1.finishes(id);
    assert_eq!(lane.counters().report_while_loading, 1);
    assert!(w1.told().is_empty());
    lane.release_reads();
    w1.claims_success(attempt);
    assert_eq!(lane.status(id), Status::Success);
    assert!(w1.told().contains(&ToWorker::Ack { attempt, verdict: AckReason::Committed }));
}

#[test]
fn what_arrives_during_loading_is_not_missed() {
    let lane = Story::new();
    lane.worker("w1", 9);
    let before = lane.store_only(task().of_type("nobody"));
    lane.hold_reads();
    lane.takeover();
    let mut during = Vec::new();
    while !lane.is_loaded() {
        during.push(lane.store_only(task().of_type("nobody")));
        during.push(lane.store_only(task().of_type("nobody").after(60)));
        assert!(lane.answer_read());
    }
    lane.release_reads();
    for id in during.into_iter().chain([before]) {
        assert!(lane.decided(id).is_some(), "{id} was missed");
    }
}

#[test]
fn a_worker_that_comes_and_goes_during_loading_is_known_at_its_end() {
    let lane = Story::new();
    let w1 = lane.worker("w1", 1);
    let id = lane.submit(task());
    w1.runs();
    lane.hold_reads();
    lane.takeover();
    w1.dies();
    let w2 = lane.worker("w2", 1);
    lane.release_reads();
    w2.beats();
    assert_eq!(w2.takes(), [id]);
}

#[test]
fn a_lane_with_thousands_of_waiting_tasks_is_loaded_in_small_pieces() {
    let lane = Story::with(|o| (o.window, o.page) = (8, 16));
    let ids = lane.submit_all((0..2000).map(|_| task()));
    let (_, before, _) = lane.effort();
    lane.takeover();
    assert!(lane.effort().1 - before < 20);
    assert!(lane.machine().tasks_in_memory() <= 16);
    let w1 = lane.worker("w1", 7);
    assert_eq!(w1.works_off(), ids);
}

#[test]
fn the_newest_policy_is_applied() {
    let lane = Story::new();
    let w1 = lane.worker("w1", 1);
    lane.policy(|p| p.paused = true);
    let id = lane.submit(task());
    lane.takeover();
    w1.beats();
    assert!(w1.takes().is_empty());
    assert_eq!(lane.explain(id)[0], Reason::Paused);
}
