//! Steps of the wall clock: durations keep their length, times of day come sooner or later.

use std::collections::BTreeSet;

use tasklane_core::commit::SubmitOutcome;
use tasklane_core::id::{LaneId, TaskId};
use tasklane_core::message::RetryAdvice;
use tasklane_core::status::Status;
use tasklane_core::time::Shift;
use tasklane_sim::harness::{Story, Worker, task};

use crate::per_second;

/// The lane of every story.
const LANE: LaneId = LaneId(3);
const HOUR: i64 = 3600;
const DAY: i64 = 24 * HOUR;

fn small() -> Story {
    Story::with(|o| (o.window, o.delayed_window, o.page) = (8, 8, 8))
}

/// The worker gets nothing until `millis` have passed, and then these tasks. Tasks of one moment have no
/// order, as some come from the store.
fn expect_after(lane: &Story, worker: &Worker, millis: u64, ids: &[TaskId]) {
    lane.advance_millis(millis - 1);
    assert_eq!(worker.takes(), [], "too early");
    lane.advance_millis(1);
    assert_eq!(BTreeSet::from_iter(worker.takes()), ids.iter().copied().collect());
}

#[test]
fn a_delay_keeps_its_length() {
    for step in [HOUR, -HOUR, 10 * DAY, -10 * DAY, 1, -1] {
        let lane = Story::new();
        let w1 = lane.worker("w1", 9);
        let ids = [lane.submit(task().delay(5)), lane.arrive(task().delay(5))];
        lane.advance(2);
        lane.clock_steps(step);
        expect_after(&lane, &w1, 3_000, &ids);
        let later = lane.submit(task().delay(5));
        expect_after(&lane, &w1, 5_000, &[later]);
    }
}

#[test]
fn a_time_of_day_comes_when_the_clock_shows_it() {
    let lane = Story::new();
    let w1 = lane.worker("w1", 9);
    let soon = lane.submit(task().after(2 * 3600));
    let evening = lane.arrive(task().after(3 * 3600));
    lane.clock_steps(2 * HOUR);
    lane.advance(0);
    assert_eq!(w1.takes(), [soon]);
    lane.clock_steps(-HOUR);
    expect_after(&lane, &w1, 2 * 3_600_000, &[evening]);
}

#[test]
fn what_is_submitted_while_the_clock_steps_counts_from_after_the_step() {
    let lane = Story::new();
    let w1 = lane.worker("w1", 9);
    let made = task().delay(5).many(LANE, lane.now(), 1..2);
    lane.clock_steps(HOUR);
    let id = made[0].id;
    lane.submit_made(made);
    expect_after(&lane, &w1, 5_000, &[id]);
}

#[test]
fn the_wait_for_a_retry_keeps_its_length() {
    for step in [HOUR, -HOUR] {
        let lane = Story::new();
        let w1 = lane.worker("w1", 9);
        let id = lane.submit(task());
        w1.runs();
        w1.fails_with(id, RetryAdvice::Policy);
        lane.advance(4);
        lane.clock_steps(step);
        expect_after(&lane, &w1, 6_000, &[id]);
    }
}

#[test]
fn the_time_to_start_keeps_its_length() {
    for step in [HOUR, -HOUR] {
        let lane = small();
        // More tasks than memory holds, and some that are not due.
        let ready = lane.submit_all((0..40).map(|_| task().start_timeout(20)));
        let delayed = lane.submit_all((0..40).map(|_| task().delay(5).start_timeout(15)));
        lane.advance(3);
        lane.clock_steps(step);
        lane.advance(16);
        for id in ready.iter().chain(&delayed) {
            assert_eq!(lane.status(*id), Status::Pending, "{step}");
        }
        // The next sweep finds the tasks behind the window.
        lane.advance(7);
        for id in ready.iter().chain(&delayed) {
            assert_eq!(lane.error(*id).as_deref(), Some("start_timeout"), "{step}");
        }
    }
}

#[test]
fn a_rate_goes_on_evenly() {
    for step in [HOUR, -HOUR] {
        let lane = Story::new();
        lane.policy(|p| p.rate = vec![per_second(1, 1)]);
        let w1 = lane.worker("w1", 9);
        let ids = lane.submit_all((0..3).map(|_| task()));
        assert_eq!(w1.takes(), ids[..1]);
        w1.starts(ids[0]);
        lane.advance_millis(400);
        lane.clock_steps(step);
        expect_after(&lane, &w1, 600, &ids[1..2]);
        w1.starts(ids[1]);
        // The next owner reads the rate from the store.
        lane.advance_millis(300);
        lane.takeover();
        w1.beats();
        expect_after(&lane, &w1, 700, &ids[2..]);
    }
}

#[test]
fn an_attempt_is_not_overrun_by_a_step() {
    let lane = Story::new();
    let w1 = lane.worker("w1", 1);
    let id = lane.submit(task().timeout(60));
    w1.runs();
    lane.clock_steps(DAY);
    lane.advance(30);
    assert_eq!(lane.revoked(), []);
    // Nor by a step that the owner before has noticed.
    lane.takeover();
    w1.beats();
    lane.advance(30);
    assert_eq!((lane.revoked(), lane.status(id)), (vec![], Status::Running));
    w1.has_run_for(id, 100);
    w1.beats();
    lane.advance(10);
    assert_eq!(lane.revoked(), [w1.session()]);
}

/// Most tasks are in the store when the clock steps, in an order that is wrong from then on.
#[test]
fn delays_in_the_store_keep_their_length_and_are_found_in_time() {
    for (step, kill) in [(HOUR, false), (-HOUR, false), (HOUR, true), (-HOUR, true)] {
        let lane = small();
        let w1 = lane.worker("w1", 1000);
        let far = lane.submit_all((0..50).map(|n| task().after(1800 + n)));
        let ids: Vec<TaskId> = (0..50)
            .map(|n| {
                let make = task().delay(60 + n);
                if n % 2 == 0 { lane.submit(make) } else { lane.store_only(make) }
            })
            .collect();
        lane.hint();
        assert!(lane.machine().tasks_in_memory() <= 16);
        lane.advance(10);
        if kill {
            // Before the owner could write more than the step itself.
            lane.hold_reads();
            lane.clock_steps(step);
            lane.takeover();
            lane.release_reads();
        } else {
            lane.clock_steps(step);
        }
        // Tasks that have come due may run already.
        let due_far = if step > 0 { far.clone() } else { Vec::new() };
        let in_memory = lane.machine().tasks_in_memory();
        assert!(in_memory <= 40 + due_far.len(), "{in_memory}");
        w1.beats();
        lane.advance_millis(49_999);
        assert_eq!(w1.takes().len(), due_far.len(), "only tasks due by the clock");
        let mut taken = Vec::new();
        for _ in 0..50 {
            lane.advance_millis(1);
            taken.extend(w1.takes());
            lane.advance_millis(999);
        }
        assert_eq!(taken, ids, "step {step}, kill {kill}");
    }
}

#[test]
fn what_was_read_after_a_step_is_not_read_by_every_owner() {
    let lane = small();
    lane.submit_all((0..100).map(|n| task().delay(1000 + n)));
    lane.clock_steps(HOUR);
    lane.settle();
    lane.submit(task());
    let before = lane.counters().stored_time_moved;
    assert!(before > 50, "{before} were moved");
    lane.takeover();
    lane.settle();
    assert_eq!(lane.counters().stored_time_moved, 0);
}

#[test]
fn a_step_between_two_owners_is_found_on_the_same_machine() {
    for (boot, found) in [(7, 1), (8, 0)] {
        let lane = small();
        lane.takeover_on(7);
        let w1 = lane.worker("w1", 100);
        let ids = lane.submit_all((0..30).map(|_| task().delay(60)));
        lane.advance(10);
        let by = lane.clock_steps_unseen(HOUR);
        assert_eq!(by, Shift::from_millis(HOUR * 1000));
        lane.takeover_on(boot);
        assert_eq!(lane.counters().clock_step_found, found);
        w1.beats();
        if found == 1 {
            expect_after(&lane, &w1, 50_000, &ids);
        } else {
            lane.advance(1);
            assert_eq!(w1.takes(), ids, "another machine cannot find the step");
        }
    }
}

#[test]
fn a_unique_key_is_held_for_as_long_as_it_was_asked_for() {
    for step in [HOUR, -HOUR] {
        let lane = Story::new();
        lane.submit(task().unique_for("k", 60));
        lane.advance(10);
        lane.clock_steps(step);
        lane.advance(49);
        lane.submit(task().unique("k"));
        assert!(matches!(lane.answer().unwrap()[..], [SubmitOutcome::Exists { .. }]), "{step}");
        lane.takeover();
        lane.advance(1);
        lane.submit(task().unique("k"));
        assert!(matches!(lane.answer().unwrap()[..], [SubmitOutcome::Created { .. }]), "{step}");
    }
}

#[test]
fn steps_that_come_faster_than_they_are_dealt_with_add_up() {
    let lane = small();
    let w1 = lane.worker("w1", 1000);
    let ids = lane.submit_all((0..60).map(|_| task().delay(100)));
    for step in [HOUR, -2 * HOUR, DAY, 3, -DAY, 5 * HOUR] {
        lane.hold_reads();
        lane.hold_commits();
        lane.clock_steps(step);
        lane.advance(1);
        lane.release_commits();
        lane.release_reads();
    }
    lane.clock_steps(-HOUR);
    lane.takeover();
    lane.clock_steps(-HOUR);
    w1.beats();
    lane.advance_millis(93_999);
    assert_eq!(w1.takes(), []);
    lane.advance_millis(1);
    let mut taken = w1.takes();
    taken.sort_unstable();
    let mut ids = ids;
    ids.sort_unstable();
    assert_eq!(taken, ids);
}
