//! Each owner reports completions until a server has handled them.

use tasklane_core::status::Status;
use tasklane_sim::harness::{Story, task};

#[test]
fn the_end_of_a_watched_task_is_told_when_it_is_durable() {
    let lane = Story::new();
    let w1 = lane.worker("w1", 2);
    let [watched, other] = lane.submit_all([task().watched(), task()])[..] else { unreachable!("two tasks") };
    w1.runs();
    lane.hold_commits();
    w1.finishes(other);
    w1.finishes(watched);
    assert!(lane.completions().is_empty(), "it is not durable yet");
    lane.release_commits();
    assert_eq!(lane.status(watched), Status::Success);
    assert_eq!(lane.completions(), [watched]);
}

#[test]
fn an_end_that_nobody_has_looked_at_is_told_to_the_next_owner() {
    let lane = Story::new();
    let w1 = lane.worker("w1", 1);
    let id = lane.submit(task().watched());
    w1.runs();
    w1.finishes(id);
    assert_eq!(lane.completions(), [id]);
    lane.takeover();
    assert_eq!(lane.completions(), [id]);
    lane.completion_handled(&[id]);
    lane.takeover();
    assert!(lane.completions().is_empty());
}

#[test]
fn a_cancelled_task_has_ended_too() {
    let lane = Story::new();
    let id = lane.submit(task().watched());
    lane.cancel(id);
    assert_eq!(lane.status(id), Status::Cancelled);
    assert_eq!(lane.completions(), [id]);
}
