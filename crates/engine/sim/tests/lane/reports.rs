//! Reports of workers are bounded: an oversized commit would stop the lane.

use tasklane_core::message::{Ending, RetryAdvice};
use tasklane_core::status::Status;
use tasklane_core::task::{TaskError, TaskResult};
use tasklane_sim::harness::{Story, task};

/// Data that is one byte too long.
fn too_large() -> TaskResult {
    TaskResult { data: "x".repeat((256 << 10) + 1), ..TaskResult::default() }
}

fn failed(message: &str) -> Ending {
    Ending::Failed { error: TaskError::new("exit_code", message), retry: RetryAdvice::Policy }
}

#[test]
fn a_result_that_is_too_large_fails_the_task_for_good() {
    let lane = Story::new();
    let w1 = lane.worker("w1", 2);
    let (id, other) = (lane.submit(task().retries(3)), lane.submit(task()));
    w1.runs();
    w1.answers(id, Ending::Success, too_large());
    assert_eq!((lane.status(id), lane.error(id).as_deref()), (Status::Failed, Some("result_too_large")));
    assert_eq!(lane.result(id), None);
    w1.finishes(other);
    assert_eq!(lane.status(other), Status::Success);
}

#[test]
fn a_result_at_the_bound_is_kept_whole() {
    let lane = Story::new();
    let w1 = lane.worker("w1", 1);
    let id = lane.submit(task());
    w1.runs();
    let result = TaskResult { code: 0, message: "done".to_owned(), data: "x".repeat(256 << 10) };
    w1.answers(id, Ending::Success, result.clone());
    assert_eq!(lane.status(id), Status::Success);
    assert_eq!(lane.result(id), Some(result));
}

#[test]
fn what_went_wrong_is_kept_when_the_result_is_too_large() {
    let lane = Story::new();
    let w1 = lane.worker("w1", 2);
    let (fails, cancelled) = (lane.submit(task().retries(3)), lane.submit(task()));
    w1.runs();
    w1.answers(fails, failed("1"), too_large());
    assert_eq!((lane.status(fails), lane.error(fails).as_deref()), (Status::Retrying, Some("exit_code")));
    assert_eq!(lane.result(fails), None);
    lane.cancel(cancelled);
    w1.answers(cancelled, Ending::Cancelled, too_large());
    assert_eq!(lane.status(cancelled), Status::Cancelled);
}

#[test]
fn a_long_message_is_cut_and_says_so() {
    let lane = Story::new();
    let w1 = lane.worker("w1", 3);
    let long = "é".repeat(1 << 20);
    let ids = lane.submit_all([task().retries(0), task(), task()]);
    w1.runs();
    w1.answers(ids[0], failed(&long), TaskResult { code: 1, message: long.clone(), ..TaskResult::default() });
    let (error, result) = (lane.stored(ids[0]).error.unwrap(), lane.result(ids[0]).unwrap());
    for message in [error.message, result.message] {
        assert!(message.len() <= TaskError::MESSAGE_BYTES_MAX && message.ends_with("(cut)"));
    }
    w1.ends(ids[1], Ending::TimedOut { error: TaskError::new(&long, long.clone()) });
    let error = lane.stored(ids[1]).error.unwrap();
    assert!(error.code.len() <= TaskError::CODE_BYTES_MAX);
    assert!(error.message.len() <= TaskError::MESSAGE_BYTES_MAX);
    // The memory store refuses a group that no store would take.
    w1.hands_back_because(ids[2], &long);
    assert_eq!(lane.status(ids[2]), Status::Pending);
}
