//! Limits, rates and pauses.

use tasklane_core::commit::SubmitOutcome;
use tasklane_core::id::LimitId;
use tasklane_core::policy::{ConcurrencyLimit, Rate};
use tasklane_core::status::Status;
use tasklane_sim::harness::{Story, task};

use crate::{at_once, at_once_by_user, per_second, per_second_by_user};

#[test]
fn no_more_run_at_once_than_the_queue_allows() {
    let lane = Story::new();
    lane.policy(|p| p.concurrency = vec![at_once(2)]);
    let w1 = lane.worker("w1", 10);
    let ids = lane.submit_all((0..5).map(|_| task()));
    let other = lane.submit(task().queue("other"));
    assert_eq!(w1.runs(), [ids[0], ids[1], other]);
    w1.finishes(ids[0]);
    assert_eq!(w1.runs(), [ids[2]]);
    w1.fails(ids[1]);
    assert_eq!(w1.runs(), [ids[3]]);
    w1.hands_back(ids[2]);
    w1.beats();
    assert_eq!(w1.takes(), [ids[2]], "the returned task counts no more, and goes first");
    w1.finishes(ids[3]);
    assert_eq!(w1.takes(), [ids[4]]);
}

#[test]
fn a_key_at_its_limit_hides_no_other_key() {
    let lane = Story::new();
    lane.policy(|p| p.concurrency = vec![at_once_by_user(1)]);
    let w1 = lane.worker("w1", 10);
    let alice = lane.submit_all((0..3).map(|_| task().flow("user", "alice").priority(9)));
    let bob = lane.submit(task().flow("user", "bob").priority(0));
    let nobody = lane.submit(task().priority(0));
    let taken = w1.runs();
    assert_eq!(taken.len(), 3);
    assert!([alice[0], bob, nobody].iter().all(|id| taken.contains(id)));
    w1.finishes(bob);
    assert!(w1.takes().is_empty());
    w1.finishes(alice[0]);
    assert_eq!(w1.takes(), [alice[1]]);
}

#[test]
fn lines_of_one_key_share_its_limit() {
    let lane = Story::new();
    lane.policy(|p| p.concurrency = vec![at_once_by_user(1)]);
    let w1 = lane.worker_with("w1", 10, |d| {
        d.labels.insert("zone".to_owned(), "a".to_owned());
    });
    let first = lane.submit(task().flow("user", "alice"));
    let second = lane.submit(task().flow("user", "alice").label("zone", "a"));
    assert_eq!(w1.runs(), [first]);
    w1.finishes(first);
    assert_eq!(w1.runs(), [second]);
}

#[test]
fn a_task_obeys_all_of_its_limits() {
    let lane = Story::new();
    lane.policy(|p| p.concurrency = vec![at_once(3), at_once_by_user(2)]);
    let w1 = lane.worker("w1", 10);
    let alice = lane.submit_all((0..3).map(|_| task().flow("user", "alice")));
    let bob = lane.submit_all((0..3).map(|_| task().flow("user", "bob")));
    let taken = w1.runs();
    assert_eq!(taken.len(), 3);
    assert!(!taken.contains(&alice[2]) && !taken.contains(&bob[2]));
    for id in taken {
        w1.finishes(id);
        w1.runs();
    }
    let running = alice.iter().chain(&bob).filter(|id| lane.status(**id) != Status::Success);
    assert_eq!(running.count(), 3);
}

#[test]
fn starts_follow_the_rate_exactly() {
    let lane = Story::new();
    lane.policy(|p| p.rate = vec![per_second(2, 2)]);
    let w1 = lane.worker("w1", 100);
    let ids = lane.submit_all((0..6).map(|_| task()));
    assert_eq!(w1.runs(), ids[..2]);
    lane.advance_millis(499);
    assert!(w1.runs().is_empty());
    lane.advance_millis(1);
    assert_eq!(w1.runs(), [ids[2]]);
    for id in &ids[3..] {
        lane.advance_millis(500);
        assert_eq!(w1.runs(), [*id]);
    }
    lane.advance(100);
    let burst = lane.submit_all((0..4).map(|_| task()));
    assert_eq!(w1.runs(), burst[..2], "a quiet time saves up no more than the burst");
}

#[test]
fn rates_by_key_are_kept_apart() {
    let lane = Story::new();
    lane.policy(|p| p.rate = vec![per_second_by_user(1, 1)]);
    let w1 = lane.worker("w1", 100);
    let alice = lane.submit_all((0..3).map(|_| task().flow("user", "alice")));
    let bob = lane.submit_all((0..1).map(|_| task().flow("user", "bob")));
    assert_eq!(w1.runs(), [alice[0], bob[0]]);
    lane.advance(1);
    assert_eq!(w1.runs(), [alice[1]]);
    lane.advance(1);
    assert_eq!(w1.runs(), [alice[2]]);
}

#[test]
fn rate_state_is_forgotten_when_it_says_nothing_any_more() {
    let lane = Story::new();
    lane.policy(|p| p.rate = vec![per_second_by_user(1, 1)]);
    let w1 = lane.worker("w1", 1);
    lane.submit(task().flow("user", "alice"));
    let record = format!("Rate default/q/{}/alice", LimitId::of("user"));
    assert!(lane.record_keys().contains(&record));
    w1.works_off();
    lane.advance(10);
    assert_eq!(lane.record_keys(), ["AppliedPolicy default/q"]);
    assert_eq!(lane.machine().lines_in_memory(), (0, 0));
}

#[test]
fn a_raised_limit_lets_waiting_tasks_go_at_once() {
    let lane = Story::new();
    lane.policy(|p| p.concurrency = vec![at_once(1)]);
    let w1 = lane.worker("w1", 10);
    let ids = lane.submit_all((0..5).map(|_| task()));
    assert_eq!(w1.runs(), ids[..1]);
    lane.policy(|p| p.concurrency = vec![at_once(3)]);
    assert_eq!(w1.runs(), ids[1..3]);
    lane.policy(|p| p.concurrency.clear());
    assert_eq!(w1.runs(), ids[3..]);
}

#[test]
fn a_lowered_limit_stops_nothing_that_runs() {
    let lane = Story::new();
    lane.policy(|p| p.concurrency = vec![at_once(3)]);
    let w1 = lane.worker("w1", 10);
    let ids = lane.submit_all((0..4).map(|_| task()));
    w1.runs();
    lane.policy(|p| p.concurrency = vec![at_once(1)]);
    w1.finishes(ids[0]);
    w1.finishes(ids[1]);
    assert!(w1.takes().is_empty() && w1.stops().is_empty());
    w1.finishes(ids[2]);
    assert_eq!(w1.takes(), [ids[3]]);
}

#[test]
fn a_new_limit_counts_what_runs_already() {
    let lane = Story::new();
    let w1 = lane.worker("w1", 10);
    let ids = lane.submit_all((0..2).map(|_| task().flow("user", "alice")));
    w1.runs();
    lane.policy(|p| p.concurrency = vec![at_once(2), at_once_by_user(1)]);
    let third = lane.submit(task().flow("user", "alice"));
    w1.finishes(ids[0]);
    assert!(w1.takes().is_empty(), "alice still has one");
    w1.finishes(ids[1]);
    assert_eq!(w1.takes(), [third]);
}

#[test]
fn a_changed_rate_applies_to_waiting_tasks() {
    let lane = Story::new();
    lane.policy(|p| {
        p.rate = vec![per_second(1, 1)];
        p.rate[0].rate.per = std::time::Duration::from_hours(1);
    });
    let w1 = lane.worker("w1", 10);
    let ids = lane.submit_all((0..2).map(|_| task()));
    assert_eq!(w1.runs(), [ids[0]]);
    lane.advance(60);
    assert!(w1.runs().is_empty());
    lane.policy(|p| p.rate = vec![per_second(1, 1)]);
    lane.advance(1);
    assert_eq!(w1.runs(), [ids[1]]);
}

#[test]
fn a_paused_queue_assigns_nothing_and_disturbs_nothing() {
    let lane = Story::new();
    let w1 = lane.worker("w1", 2);
    let running = lane.submit(task());
    w1.runs();
    lane.policy(|p| p.paused = true);
    let waiting = lane.submit(task());
    let elsewhere = lane.submit(task().queue("other"));
    assert_eq!(w1.takes(), [elsewhere]);
    w1.finishes(running);
    assert_eq!(lane.status(running), Status::Success);
    assert!(w1.takes().is_empty());
    lane.policy(|p| p.paused = false);
    assert_eq!(w1.takes(), [waiting]);
}

#[test]
fn a_policy_that_nobody_told_is_found_by_the_sweep() {
    let lane = Story::new();
    let w1 = lane.worker("w1", 9);
    lane.store_policy("q", |p| p.paused = true);
    let before = lane.submit(task());
    assert_eq!(w1.takes(), [before]);
    assert!(lane.record_keys().is_empty(), "it does not bind before the lane has applied it");
    lane.advance(5);
    lane.submit(task());
    assert!(w1.takes().is_empty());
    assert_eq!(lane.record_keys(), ["AppliedPolicy default/q"]);
}

#[test]
fn a_full_queue_refuses() {
    let lane = Story::new();
    lane.submit_all((0..3).map(|_| task().queue_len_max(2)));
    let answer = lane.answer().unwrap();
    assert!(matches!(answer[..2], [SubmitOutcome::Created { .. }, SubmitOutcome::Created { .. }]));
    assert_eq!(answer[2], SubmitOutcome::QueueFull);
    assert_eq!(lane.counters().insert_refused, 1);
    let w1 = lane.worker("w1", 9);
    assert_eq!(w1.works_off().len(), 2);
}

#[test]
fn a_limit_that_tasks_bring_along_counts_them_together() {
    let lane = Story::new();
    let w1 = lane.worker("w1", 10);
    let few = lane.submit_all((0..2).map(|_| task().own_limit("api", "stripe", 1)));
    let more = lane.submit_all((0..2).map(|_| task().own_limit("api", "stripe", 2)));
    let elsewhere = lane.submit(task().queue("other").own_limit("api", "stripe", 1));
    let other = lane.submit(task().own_limit("api", "paypal", 1));
    assert_eq!(w1.runs(), [few[0], more[0], elsewhere, other], "one number holds for one task");
    w1.finishes(more[0]);
    assert_eq!(w1.runs(), [more[1]], "not the task that must be alone");
    w1.finishes(few[0]);
    assert!(w1.runs().is_empty());
    w1.finishes(more[1]);
    assert_eq!(w1.runs(), [few[1]]);
}

#[test]
fn a_task_is_limited_by_its_queue_and_by_itself() {
    let lane = Story::new();
    lane.policy(|p| p.concurrency = vec![at_once_by_user(2)]);
    let w1 = lane.worker("w1", 10);
    let plain = lane.submit_all((0..2).map(|_| task().flow("user", "alice")));
    assert_eq!(w1.runs(), plain);
    let alone = lane.submit(task().own_limit("user", "alice", 1));
    w1.finishes(plain[0]);
    assert!(w1.runs().is_empty(), "it wants to be alone");
    w1.finishes(plain[1]);
    assert_eq!(w1.runs(), [alone]);
    let third = lane.submit(task().flow("user", "alice"));
    assert_eq!(w1.runs(), [third], "that the other wanted to be alone is not its concern");
}

#[test]
fn a_rate_that_tasks_bring_along_outlives_its_owner() {
    let lane = Story::new();
    let rate = Rate { limit: 1, per: std::time::Duration::from_secs(10), burst: 1 };
    let w1 = lane.worker("w1", 10);
    let ids = lane.submit_all((0..2).map(|_| task().own_rate("api", "stripe", rate)));
    let faster = Rate { limit: 2, ..rate };
    let other = lane.submit(task().own_rate("api", "stripe", faster));
    assert_eq!(w1.runs(), [ids[0], other], "another rate is another limit");
    lane.advance(9);
    lane.takeover();
    w1.beats();
    assert!(!w1.runs().contains(&ids[1]));
    lane.advance(1);
    assert_eq!(w1.runs(), [ids[1]]);
}

#[test]
fn a_changed_template_counts_later_tasks() {
    let lane = Story::new();
    lane.policy(|p| p.concurrency = vec![at_once_by_user(1)]);
    let w1 = lane.worker("w1", 10);
    let before = lane.submit_all((0..2).map(|_| task().flow("user", "alice")));
    assert_eq!(w1.runs(), [before[0]]);
    lane.policy(|p| p.concurrency[0].key = Some("team".to_owned()));
    assert_eq!(w1.runs(), [before[1]], "nothing counts them any more");
    let after = lane.submit_all((0..2).map(|_| task().flow("team", "red")));
    assert_eq!(w1.runs(), [after[0]]);
}

#[test]
fn one_key_with_many_tasks_does_not_delay_another_with_few() {
    let lane = Story::new();
    lane.policy(|p| p.concurrency = vec![at_once_by_user(100)]);
    lane.submit_all((0..1_000).map(|_| task().flow("user", "greedy")));
    let modest = lane.submit_all((0..5).map(|_| task().flow("user", "modest")));
    let w1 = lane.worker("w1", 1);
    let order = &w1.works_off()[..10];
    let turns: Vec<usize> =
        order.iter().enumerate().filter(|(_, id)| modest.contains(id)).map(|(n, _)| n).collect();
    assert_eq!(turns, [1, 3, 5, 7, 9], "each has every second turn");
}

#[test]
fn a_unique_key_is_held_until_its_task_has_finished() {
    let lane = Story::new();
    let w1 = lane.worker("w1", 9);
    let first = lane.submit(task().unique("nightly"));
    lane.submit_all([
        task().unique("nightly"),
        task().unique("hourly"),
        task().queue("other").unique("nightly"),
    ]);
    let answer = lane.answer().unwrap();
    assert_eq!(answer[0], SubmitOutcome::Exists { task: first });
    assert!(answer[1..].iter().all(|outcome| matches!(outcome, SubmitOutcome::Created { .. })));
    assert_eq!(w1.works_off().len(), 3);
    let again = lane.submit(task().unique("nightly"));
    assert_eq!(w1.works_off(), [again]);
    assert_eq!(lane.machine().tasks_in_memory(), 0, "a refused task is forgotten");
}

#[test]
fn a_task_that_is_not_created_takes_no_part_of_a_rate() {
    let lane = Story::new();
    lane.policy(|p| p.rate = vec![per_second(1, 2)]);
    let w1 = lane.worker("w1", 9);
    let first = lane.submit(task().unique("nightly"));
    assert_eq!(w1.runs(), [first]);
    lane.submit(task().unique("nightly"));
    assert!(matches!(lane.answer().unwrap()[..], [SubmitOutcome::Exists { .. }]));
    let other = lane.submit(task());
    assert_eq!(w1.runs(), [other], "the second of two at once");
}

#[test]
fn turns_are_as_long_as_the_tasks_of_their_own_queue_allow() {
    let lane = Story::new();
    for queue in ["fast", "slow"] {
        lane.policy_of(queue, |p| p.concurrency = vec![at_once_by_user(100)]);
    }
    let of = |queue: &'static str, user: &'static str| move |_| task().queue(queue).flow("user", user);
    let w1 = lane.worker("w1", 1);
    lane.submit_all((0..500).map(of("fast", "a")));
    // Five hundred in half a second.
    for _ in 0..500 {
        let ids = w1.runs();
        lane.advance_millis(1);
        w1.finishes(ids[0]);
    }
    let greedy = lane.submit_all((0..9).map(of("slow", "greedy")));
    let modest = lane.submit_all((0..2).map(of("slow", "modest")));
    let order = w1.works_off();
    let place = |id| order.iter().position(|found| *found == id);
    assert!(place(modest[1]) < place(greedy[3]), "{order:?}");
}

#[test]
fn what_waits_at_a_worker_does_not_start_faster_than_the_rate() {
    let lane = Story::new();
    lane.policy(|p| p.rate = vec![per_second(1, 2)]);
    let w1 = lane.worker("w1", 100);
    let ids = lane.submit_all((0..6).map(|_| task()));
    assert_eq!(w1.takes(), ids[..2]);
    lane.advance(10);
    assert!(w1.takes().is_empty(), "two wait at the worker: no third one joins them");
    w1.starts(ids[0]);
    w1.starts(ids[1]);
    lane.advance(1);
    assert!(w1.takes().is_empty(), "the distance is kept from when they started");
    lane.advance(1);
    assert_eq!(w1.runs(), [ids[2]]);
}

#[test]
fn a_key_with_many_lines_has_one_turn_as_others_do() {
    let lane = Story::new();
    lane.policy(|p| {
        p.concurrency =
            vec![at_once_by_user(100), ConcurrencyLimit { key: Some("order".to_owned()), ..at_once(1) }];
    });
    let of = |user: &str, order: u32| task().flow("user", user).flow("order", &format!("{user}-{order}"));
    lane.submit_all((0..200).map(|n| of("greedy", n)));
    let modest = lane.submit_all((0..5).map(|n| of("modest", n)));
    let w1 = lane.worker("w1", 1);
    let order = &w1.works_off()[..12];
    assert!(modest.iter().all(|id| order.contains(id)), "{order:?}");
}

/// A line that could not run for some rounds used to have two turns at once when it could.
#[test]
fn a_key_that_missed_rounds_does_not_catch_up_with_them() {
    let lane = Story::new();
    lane.policy(|p| p.concurrency = vec![at_once_by_user(1)]);
    let w1 = lane.worker("w1", 2);
    let users = ["a", "b", "c"];
    let ids = users.map(|user| lane.submit_all((0..20).map(|_| task().flow("user", user))));
    let user_of = |id| users[ids.iter().position(|of_user| of_user.contains(&id)).unwrap()];
    let mut running = w1.runs();
    let held = running.remove(1);
    assert_eq!(user_of(held), "b");
    for _ in 0..9 {
        w1.finishes(running[0]);
        running = w1.runs();
    }
    w1.finishes(held);
    running.extend(w1.runs());
    let mut pairs = Vec::new();
    for _ in 0..4 {
        for id in running {
            w1.finishes(id);
        }
        running = w1.runs();
        pairs.push(running.iter().map(|id| user_of(*id)).collect::<String>());
    }
    assert_eq!(pairs, ["ac", "ba", "cb", "ac"]);
}

#[test]
fn queues_share_a_single_place() {
    let lane = Story::new();
    let w1 = lane.worker("w1", 1);
    lane.submit_all((0..20).map(|_| task().queue("long")));
    let short = lane.submit_all((0..5).map(|_| task().queue("short")));
    let order = &w1.works_off()[..12];
    assert!(short.iter().all(|id| order.contains(id)), "{order:?}");
}
