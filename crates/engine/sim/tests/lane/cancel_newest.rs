//! Limits that cancel the newest task instead of letting it wait.

use tasklane_core::id::TaskId;
use tasklane_core::policy::{Concurrency, ConcurrencyLimit, WhenReached};
use tasklane_core::status::Status;
use tasklane_sim::harness::{Make, Story, task};

use crate::{at_once_by_user, only_by_user};

fn of_alice() -> Make {
    task().flow("user", "alice")
}

fn statuses(lane: &Story, ids: &[TaskId]) -> Vec<Status> {
    ids.iter().map(|id| lane.status(*id)).collect()
}

#[test]
fn no_more_wait_or_run_than_the_limit_says() {
    let lane = Story::new();
    lane.policy(|p| p.concurrency = vec![only_by_user(2)]);
    let w1 = lane.worker("w1", 1);
    let ids = lane.submit_all((0..4).map(|_| of_alice()));
    let bob = lane.submit(task().flow("user", "bob"));
    assert_eq!(
        statuses(&lane, &ids),
        [Status::Scheduled, Status::Pending, Status::Cancelled, Status::Cancelled]
    );
    assert_eq!(lane.error(ids[2]).as_deref(), Some("limit_reached"));
    assert_eq!(w1.works_off(), [ids[0], bob, ids[1]], "in turns");
    let next = lane.submit(of_alice());
    assert_eq!(w1.works_off(), [next], "there is room again");
}

#[test]
fn a_limit_over_the_whole_queue_cancels_too() {
    let lane = Story::new();
    let concurrency = Concurrency { limit: 2, when_reached: WhenReached::CancelNewest };
    lane.policy(|p| p.concurrency = vec![ConcurrencyLimit { key: None, concurrency }]);
    let ids = lane.submit_all([task(), task().priority(0), task().priority(9), of_alice()]);
    assert_eq!(
        statuses(&lane, &ids),
        [Status::Pending, Status::Pending, Status::Cancelled, Status::Cancelled],
        "the newest goes, not the least urgent"
    );
    let w1 = lane.worker("w1", 9);
    assert_eq!(w1.works_off().len(), 2);
}

#[test]
fn the_same_request_twice_cancels_nothing() {
    let lane = Story::new();
    lane.policy(|p| p.concurrency = vec![only_by_user(1)]);
    let w1 = lane.worker("w1", 1);
    let first = lane.submit(of_alice().request_id("r"));
    assert_eq!(w1.works_off(), [first]);
    lane.submit_all([of_alice().request_id("r"), of_alice().request_id("other")]);
    assert_eq!(w1.works_off().len(), 1, "the earlier task took no place");
}

#[test]
fn a_task_that_ran_before_waits_for_its_retry() {
    let lane = Story::new();
    lane.policy(|p| p.concurrency = vec![only_by_user(1)]);
    let w1 = lane.worker("w1", 1);
    let first = lane.submit(of_alice());
    w1.runs();
    w1.fails(first);
    let second = lane.submit(of_alice());
    assert_eq!(w1.runs(), [second], "a task that waits for its retry takes no place");
    lane.advance(10);
    assert_eq!((lane.decided(first), lane.status(second)), (Some(Status::Pending), Status::Running));
    let third = lane.submit(of_alice());
    assert_eq!(lane.status(third), Status::Cancelled);
    w1.finishes(second);
    assert_eq!(w1.works_off(), [first]);
}

#[test]
fn it_holds_after_a_takeover_and_for_what_the_store_holds() {
    let lane = Story::new();
    lane.policy(|p| p.concurrency = vec![only_by_user(2)]);
    let w1 = lane.worker("w1", 1);
    let running = lane.submit(of_alice());
    assert_eq!(w1.runs(), [running]);
    let stored = lane.store_all((0..3).map(|_| of_alice()));
    lane.takeover();
    w1.beats();
    lane.settle();
    assert_eq!(statuses(&lane, &stored), [Status::Pending, Status::Cancelled, Status::Cancelled]);
    let newest = lane.arrive(of_alice());
    assert_eq!(lane.status(newest), Status::Cancelled);
    w1.finishes(running);
    assert_eq!(w1.works_off(), [stored[0]]);
}

#[test]
fn a_changed_policy_applies_to_what_waits() {
    let lane = Story::new();
    lane.policy(|p| p.concurrency = vec![at_once_by_user(1)]);
    let ids = lane.submit_all((0..3).map(|_| of_alice()));
    assert_eq!(statuses(&lane, &ids), [Status::Pending; 3]);
    lane.policy(|p| p.concurrency = vec![only_by_user(1)]);
    assert_eq!(statuses(&lane, &ids), [Status::Pending, Status::Cancelled, Status::Cancelled]);
    let w1 = lane.worker("w1", 9);
    assert_eq!(w1.works_off(), [ids[0]]);
}

#[test]
fn all_that_waits_is_judged_however_little_memory_holds() {
    for limit in [3, 20] {
        let lane = Story::with(|options| {
            options.window = 4;
            options.page = 3;
            options.tasks_max = 16;
        });
        lane.policy(|p| p.concurrency = vec![only_by_user(limit)]);
        let ids = lane.submit_all((0..40).map(|n| of_alice().priority(n % 10)));
        lane.store_all((0..20).map(|_| of_alice()));
        lane.hint();
        lane.settle();
        let kept: Vec<_> = ids.iter().filter(|id| lane.status(**id) == Status::Pending).copied().collect();
        assert_eq!(kept, ids[..usize::try_from(limit).unwrap()], "the oldest are left");
        let w1 = lane.worker("w1", 9);
        assert_eq!(w1.works_off().len(), kept.len());
    }
}

#[test]
fn a_task_that_cancels_for_itself_cancels_none_that_waits() {
    let lane = Story::new();
    let limit = |when_reached| Concurrency { limit: 1, when_reached };
    let own = |when_reached| task().own_concurrency("api", "stripe", limit(when_reached));
    let waits = lane.submit_all((0..2).map(|_| own(WhenReached::Wait)));
    let cancels = lane.submit(own(WhenReached::CancelNewest));
    let later = lane.submit(own(WhenReached::Wait));
    assert_eq!(lane.status(cancels), Status::Cancelled);
    let w1 = lane.worker("w1", 9);
    assert_eq!(w1.works_off(), [waits[0], waits[1], later]);
}

#[test]
fn what_was_not_created_leaves_nothing_behind() {
    let lane = Story::new();
    lane.policy(|p| p.concurrency = vec![only_by_user(1)]);
    let w1 = lane.worker("w1", 9);
    let users: Vec<String> = (0..5).map(|n| format!("u{n}")).collect();
    let of = |user: &String| task().flow("user", user).request_id(user);
    lane.submit_all(users.iter().map(of));
    assert_eq!(w1.works_off().len(), 5);
    lane.submit_all(users.iter().map(of));
    assert!(w1.works_off().is_empty());
    assert_eq!(lane.machine().lines_in_memory(), (0, 0));
}
