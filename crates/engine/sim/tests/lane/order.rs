//! The order of tasks, and tasks that wait for their time.

use std::time::Duration;

use tasklane_core::message::{Ending, RetryAdvice};
use tasklane_core::status::Status;
use tasklane_core::task::{AttemptOutcome, TaskError};
use tasklane_sim::harness::{Story, task};

#[test]
fn urgent_tasks_go_first() {
    let lane = Story::new();
    let low = lane.submit(task().priority(1));
    let high = lane.submit(task().priority(9));
    let middle = lane.arrive(task());
    let w1 = lane.worker("w1", 3);
    assert_eq!(w1.takes(), [high, middle, low]);
}

#[test]
fn what_was_due_earlier_goes_first() {
    let lane = Story::new();
    let later = lane.submit(task().after(5));
    let earlier = lane.submit(task().after(3));
    lane.advance(6);
    let last = lane.submit(task());
    let w1 = lane.worker("w1", 3);
    assert_eq!(w1.takes(), [earlier, later, last]);
}

#[test]
fn what_arrived_earlier_goes_first() {
    let lane = Story::new();
    let ids = [lane.submit(task()), lane.arrive(task()), lane.submit(task()), lane.arrive(task())];
    let w1 = lane.worker("w1", 4);
    assert_eq!(w1.takes(), ids);
}

#[test]
fn a_worker_with_room_gets_a_new_task_at_once() {
    let lane = Story::new();
    let w1 = lane.worker("w1", 2);
    let local = lane.submit(task());
    let stored = lane.arrive(task());
    assert_eq!(w1.runs(), [local, stored]);
    w1.finishes(local);
    w1.finishes(stored);
    assert_eq!(lane.status(local), Status::Success);
    assert_eq!(lane.finished(), [local, stored]);
    assert_eq!(lane.machine().tasks_in_memory(), 0);
}

#[test]
fn only_workers_of_the_type_and_with_the_labels_get_a_task() {
    let lane = Story::new();
    let plain = lane.worker("plain", 9);
    let gpu = lane.worker_with("gpu", 9, |d| {
        d.task_types.insert(tasklane_sim::harness::name("train"));
        d.labels.insert("zone".to_owned(), "a".to_owned());
    });
    let train = lane.submit(task().of_type("train"));
    let in_a = lane.submit(task().label("zone", "a"));
    let in_b = lane.submit(task().label("zone", "b"));
    assert!(plain.takes().is_empty());
    assert_eq!(gpu.takes(), [train, in_a]);
    plain.offers(|d| drop(d.labels.insert("zone".to_owned(), "b".to_owned())));
    assert_eq!(plain.takes(), [in_b]);
}

#[test]
fn a_delayed_task_waits_for_its_time() {
    let lane = Story::new();
    let w1 = lane.worker("w1", 9);
    let ids = [lane.submit(task().after(10)), lane.arrive(task().after(10))];
    lane.advance_millis(9_999);
    assert!(w1.takes().is_empty());
    lane.advance_millis(1);
    assert_eq!(w1.takes(), ids);
}

#[test]
fn a_failed_task_is_tried_again_after_growing_waits_and_then_given_up() {
    let lane = Story::new();
    let w1 = lane.worker("w1", 1);
    let id = lane.submit(task());
    for wait in [10, 20, 40] {
        assert_eq!(w1.runs(), [id]);
        w1.fails(id);
        assert_eq!(lane.status(id), Status::Retrying);
        assert_eq!(lane.stored(id).due, lane.in_secs(wait));
        lane.advance(wait - 1);
        assert!(w1.takes().is_empty());
        lane.advance(1);
    }
    assert_eq!(w1.runs(), [id]);
    w1.fails(id);
    assert_eq!(lane.status(id), Status::Failed);
    assert_eq!(lane.error(id).as_deref(), Some("exit_code"));
    let state = lane.stored(id);
    assert_eq!((state.attempt.0, state.retries, state.lost), (4, 3, 0));
    assert_eq!(lane.earlier_attempts(id), [AttemptOutcome::Failed; 3]);
}

#[test]
fn an_executor_may_name_the_wait_whatever_the_policy_says() {
    let lane = Story::new();
    let w1 = lane.worker("w1", 2);
    let (long, short) = (lane.submit(task()), lane.submit(task()));
    w1.runs();
    w1.fails_with(long, RetryAdvice::After(Duration::from_mins(1)));
    w1.fails_with(short, RetryAdvice::After(Duration::from_secs(1)));
    assert_eq!(lane.stored(long).due, lane.in_secs(60));
    assert_eq!(lane.stored(short).due, lane.in_secs(1));
}

#[test]
fn an_executor_may_say_that_it_would_fail_again() {
    let lane = Story::new();
    let w1 = lane.worker("w1", 1);
    let id = lane.submit(task());
    w1.runs();
    w1.fails_with(id, RetryAdvice::Never);
    assert_eq!(lane.status(id), Status::Failed);
    assert_eq!(lane.stored(id).attempt.0, 1);
}

#[test]
fn a_task_without_retries_fails_at_once() {
    let lane = Story::new();
    let w1 = lane.worker("w1", 1);
    let id = lane.submit(task().retries(0));
    w1.runs();
    w1.fails(id);
    assert_eq!(lane.status(id), Status::Failed);
}

#[test]
fn a_timed_out_attempt_and_one_that_was_stopped_by_nobody_are_tried_again() {
    let lane = Story::new();
    let w1 = lane.worker("w1", 1);
    let id = lane.submit(task());
    w1.runs();
    w1.ends(id, Ending::TimedOut { error: TaskError::new("timeout", "too long") });
    lane.advance(10);
    w1.runs();
    w1.ends(id, Ending::Cancelled);
    assert_eq!(lane.status(id), Status::Retrying);
    assert_eq!(lane.error(id).as_deref(), Some("stopped"));
    assert_eq!(lane.earlier_attempts(id), [AttemptOutcome::TimedOut, AttemptOutcome::Failed]);
}

#[test]
fn a_waiting_retry_holds_no_room() {
    let lane = Story::new();
    let w1 = lane.worker("w1", 1);
    let failing = lane.submit(task());
    let next = lane.submit(task());
    assert_eq!(w1.runs(), [failing]);
    w1.fails(failing);
    assert_eq!(w1.runs(), [next]);
    lane.advance(10);
    assert_eq!(lane.decided(failing), Some(Status::Pending));
    w1.finishes(next);
    assert_eq!(w1.runs(), [failing]);
}

#[test]
fn queues_of_a_lane_share_by_weight() {
    let lane = Story::new();
    lane.policy_of("heavy", |p| p.weight = 3);
    lane.submit_all((0..60).map(|_| task()));
    let heavy = lane.submit_all((0..60).map(|_| task().queue("heavy")));
    let w1 = lane.worker("w1", 40);
    let of_heavy = w1.takes().iter().filter(|id| heavy.contains(id)).count();
    assert!((29..=31).contains(&of_heavy), "{of_heavy} of 40 went to the queue with three times the weight");
}

#[test]
fn a_queue_that_was_idle_does_not_get_the_turns_it_missed() {
    let lane = Story::new();
    let w1 = lane.worker("w1", 10);
    lane.submit_all((0..100).map(|_| task()));
    assert_eq!(w1.works_off().len(), 100);
    lane.submit_all((0..10).map(|_| task()));
    w1.works_off();
    w1.offers(|d| d.draining = true);
    lane.submit_all((0..40).map(|_| task()));
    let newcomers = lane.submit_all((0..40).map(|_| task().queue("new")));
    w1.offers(|d| d.draining = false);
    let got = w1.takes().iter().filter(|id| newcomers.contains(id)).count();
    assert_eq!(got, 5);
}

#[test]
fn a_lane_that_is_being_released_assigns_nothing_more() {
    let lane = Story::new();
    let w1 = lane.worker("w1", 1);
    let running = lane.submit(task());
    w1.runs();
    lane.release();
    lane.submit(task());
    w1.finishes(running);
    assert!(w1.takes().is_empty());
    assert_eq!(lane.status(running), Status::Success);
    assert!(lane.machine().is_settled());
}
