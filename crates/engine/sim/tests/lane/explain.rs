//! Explanations of tasks that do not run.

use tasklane_core::lane::{Holder, Reason};
use tasklane_core::policy::{Strategy, WhenFull};
use tasklane_sim::harness::{Story, name, task};

use crate::{at_once, at_once_by_user, per_second};

#[test]
fn no_capable_worker() {
    let lane = Story::new();
    lane.worker("w1", 1);
    let id = lane.submit(task().of_type("train"));
    let none = Reason::NoCapableWorker { task_type: name("train"), workers: 1 };
    assert_eq!(lane.explain(id), [none, Reason::Position(0)]);
}

#[test]
fn all_full_and_its_position() {
    let lane = Story::new();
    let w1 = lane.worker("w1", 1);
    lane.worker_with("idle", 1, |d| d.task_types.clear());
    let ids = lane.submit_all((0..3).map(|_| task()));
    w1.runs();
    assert_eq!(lane.explain(ids[2]), [Reason::AllFull { workers: 1 }, Reason::Position(1)]);
    assert!(lane.explain(ids[0]).is_empty(), "it runs");
}

#[test]
fn a_limit_and_who_holds_it() {
    let lane = Story::new();
    lane.policy(|p| p.concurrency = vec![at_once(2)]);
    let w1 = lane.worker("w1", 9);
    let since = lane.now();
    let ids = lane.submit_all((0..3).map(|_| task()));
    w1.runs();
    let Reason::Limit { template, key, running, max, held_by } = lane.explain(ids[2])[0].clone() else {
        panic!("not a limit")
    };
    assert_eq!((template, key, running, max), (None, None, 2, 2));
    let holder = |task| Holder { task, attempt: tasklane_core::id::AttemptNo(1), since: Some(since) };
    assert_eq!(held_by, [holder(ids[0]), holder(ids[1])]);
}

#[test]
fn a_limit_by_key() {
    let lane = Story::new();
    lane.policy(|p| p.concurrency = vec![at_once_by_user(1)]);
    lane.worker("w1", 9);
    let ids = lane.submit_all((0..2).map(|_| task().flow("user", "alice")));
    let reasons = lane.explain(ids[1]);
    let Reason::Limit { template, key, running: 1, max: 1, .. } = &reasons[0] else { panic!("{reasons:?}") };
    assert_eq!((template.as_deref(), key.as_deref()), (Some("user"), Some("alice")));
}

#[test]
fn a_rate_and_until_when() {
    let lane = Story::new();
    lane.policy(|p| p.rate = vec![per_second(1, 1)]);
    lane.worker("w1", 9);
    let ids = lane.submit_all((0..2).map(|_| task()));
    let until = lane.in_secs(1);
    assert_eq!(lane.explain(ids[1])[0], Reason::Rate { template: None, key: None, until });
}

#[test]
fn a_pause() {
    let lane = Story::new();
    lane.policy(|p| p.paused = true);
    lane.worker("w1", 9);
    let id = lane.submit(task());
    assert_eq!(lane.explain(id), [Reason::Paused, Reason::Position(0)]);
}

#[test]
fn a_delay_and_a_retry() {
    let lane = Story::new();
    let w1 = lane.worker("w1", 9);
    let failing = lane.submit(task());
    let delayed = lane.submit(task().after(60));
    w1.runs();
    w1.fails(failing);
    assert_eq!(lane.explain(failing), [Reason::RetryingAt(lane.in_secs(10))]);
    assert_eq!(lane.explain(delayed), [Reason::DelayedUntil(lane.in_secs(60))]);
}

#[test]
fn a_delay_and_a_retry_behind_the_window() {
    let lane = Story::with(|o| o.delayed_window = 1);
    lane.submit_all((0..5).map(|_| task().after(1)));
    let delayed = lane.submit(task().after(60));
    assert_eq!(lane.decided(delayed), None);
    assert_eq!(lane.explain(delayed), [Reason::DelayedUntil(lane.in_secs(60))]);
}

#[test]
fn more_than_so_many_are_before_it() {
    let lane = Story::with(|o| o.window = 4);
    let ids = lane.submit_all((0..100).map(|_| task()));
    let reasons = lane.explain(ids[99]);
    assert!(matches!(reasons[0], Reason::NoCapableWorker { .. }), "{reasons:?}");
    assert!(matches!(reasons[1], Reason::MoreThan(4..=8)), "{reasons:?}");
}

#[test]
fn a_line_that_is_not_in_memory_is_explained_too() {
    let lane = Story::with(|o| o.lines_max = 1);
    lane.submit(task().of_type("train"));
    let id = lane.submit(task().of_type("test"));
    assert_eq!(lane.decided(id), None);
    let none = Reason::NoCapableWorker { task_type: name("test"), workers: 0 };
    assert_eq!(lane.explain(id), [none, Reason::MoreThan(0)]);
}

/// The explanation used to name only the task's place: the other worker was counted as having room.
#[test]
fn a_hashed_line_that_is_not_in_memory_waits_for_its_own_worker() {
    let lane = Story::with(|o| o.lines_max = 1);
    lane.policy(|p| p.strategy = Strategy::ConsistentHash { when_full: WhenFull::Wait });
    let worker = |text| lane.worker_with(text, 1, |d| _ = d.task_types.insert(name("test")));
    let (w1, w2) = (worker("w1"), worker("w2"));
    lane.submit(task().hash_key("k"));
    assert_eq!(w1.takes().len() + w2.takes().len(), 1);
    let id = lane.submit(task().of_type("test").hash_key("k"));
    assert_eq!(lane.decided(id), None);
    assert_eq!(lane.explain(id), [Reason::AllFull { workers: 1 }, Reason::MoreThan(0)]);
}

#[test]
fn sent_and_then_queued_at_its_worker() {
    let lane = Story::new();
    let w1 = lane.worker("w1", 1);
    let session = w1.session();
    let id = lane.submit(task());
    assert_eq!(lane.explain(id), [Reason::Sent { session }]);
    w1.takes();
    assert_eq!(lane.explain(id), [Reason::QueuedAtWorker { session }]);
    lane.cancel(id);
    assert_eq!(lane.explain(id), [Reason::CancelRequested, Reason::QueuedAtWorker { session }]);
}

#[test]
fn loading() {
    let lane = Story::new();
    let w1 = lane.worker("w1", 1);
    let id = lane.submit(task());
    lane.hold_reads();
    lane.takeover();
    while lane.decided(id).is_none() {
        assert!(lane.answer_read());
    }
    let session = w1.session();
    assert_eq!(lane.explain(id), [Reason::Loading, Reason::Sent { session }]);
}
