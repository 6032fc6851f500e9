//! More tasks than memory holds, and a store that differs from memory.

use tasklane_core::commit::SubmitOutcome;
use tasklane_core::id::TaskId;
use tasklane_core::status::Status;
use tasklane_sim::harness::{Story, task};

fn small() -> Story {
    Story::with(|o| (o.window, o.delayed_window, o.page) = (8, 8, 16))
}

#[test]
fn thousands_of_stored_tasks_pass_through_a_small_window_in_order() {
    let lane = small();
    let ids = lane.store_all((0..3000).map(|_| task()));
    lane.hint();
    assert!(lane.machine().tasks_in_memory() <= 16);
    let w1 = lane.worker("w1", 5);
    assert_eq!(w1.works_off(), ids);
    assert_eq!(lane.machine().tasks_in_memory(), 0);
    assert_eq!(lane.machine().lines_in_memory(), (0, 0));
}

#[test]
fn thousands_of_submitted_tasks_pass_through_a_small_window_in_order() {
    let lane = small();
    let ids = lane.submit_all((0..3000).map(|_| task()));
    assert!(lane.machine().tasks_in_memory() <= 16);
    assert_eq!(lane.answer().unwrap().len(), 3000);
    let w1 = lane.worker("w1", 5);
    assert_eq!(w1.works_off(), ids);
}

#[test]
fn an_urgent_task_gets_into_a_full_window() {
    let lane = small();
    let many = lane.submit_all((0..100).map(|_| task()));
    let urgent = [lane.submit(task().priority(9)), lane.arrive(task().priority(8))];
    let w1 = lane.worker("w1", 1);
    let done = w1.works_off();
    assert_eq!(done[..2], urgent);
    assert_eq!(done[2..], many);
}

#[test]
fn tasks_that_arrive_while_others_are_worked_off_keep_their_place() {
    let lane = small();
    let w1 = lane.worker("w1", 3);
    let mut ids = lane.submit_all((0..50).map(|_| task()));
    let mut done = Vec::new();
    for round in 0..100 {
        done.extend(w1.runs());
        ids.push(if round % 2 == 0 { lane.submit(task()) } else { lane.arrive(task()) });
        for id in done.iter().rev().take(3).copied().collect::<Vec<_>>() {
            if lane.decided(id) == Some(Status::Running) {
                w1.finishes(id);
            }
        }
    }
    done.extend(w1.runs());
    for id in done.clone() {
        if lane.decided(id) == Some(Status::Running) {
            w1.finishes(id);
        }
    }
    done.extend(w1.works_off());
    assert_eq!(done, ids);
}

/// Unwritten tasks could not be dropped, and the owner used to keep them in memory once they were written.
#[test]
fn a_submission_that_pushes_others_out_of_the_window_stays_bounded() {
    let lane = small();
    let low = (0..40).map(|_| task().priority(1));
    let high = (0..40).map(|_| task().priority(9));
    let ids = lane.submit_all(low.chain(high));
    assert!(lane.machine().tasks_in_memory() <= 16, "{}", lane.machine().tasks_in_memory());
    let done = lane.worker("w1", 3).works_off();
    assert_eq!(done[..40], ids[40..]);
    assert_eq!(done[40..], ids[..40]);
}

#[test]
fn delayed_tasks_beyond_the_window_come_in_time() {
    let lane = small();
    let w1 = lane.worker("w1", 3);
    // The last first, so that every task pushes others out of the window.
    let mut ids = lane.submit_all((1..=60).rev().map(|secs| task().after(secs)));
    ids.reverse();
    assert!(lane.machine().tasks_in_memory() <= 16);
    for id in ids {
        lane.advance_millis(999);
        assert!(w1.takes().is_empty());
        lane.advance_millis(1);
        assert_eq!(w1.works_off(), [id]);
    }
}

#[test]
fn more_lines_than_memory_holds_are_all_served() {
    let lane = Story::with(|o| (o.window, o.page, o.lines_max) = (4, 4, 4));
    let ids = lane.submit_all((0..40).map(|n| task().flow("user", &n.to_string())));
    assert!(lane.machine().lines_in_memory().0 <= 4);
    let w1 = lane.worker("w1", 2);
    let mut done = w1.works_off();
    for _ in 0..40 {
        lane.advance(5);
        done.extend(w1.works_off());
    }
    done.sort_unstable();
    let mut wanted = ids;
    wanted.sort_unstable();
    assert_eq!(done, wanted);
}

#[test]
fn lines_that_cannot_run_make_room_for_those_that_can() {
    let lane = Story::with(|o| (o.window, o.page, o.lines_max) = (4, 4, 4));
    lane.store_all((0..20).map(|n| task().of_type(&format!("nobody-{n}"))));
    lane.hint();
    let id = lane.arrive(task());
    let w1 = lane.worker("w1", 1);
    lane.advance(60);
    assert_eq!(w1.takes(), [id]);
}

/// Only lines without a worker used to make room, so that lines of a paused queue hid all others.
#[test]
fn lines_of_a_paused_queue_make_room_for_those_that_can_run() {
    let lane = Story::with(|o| (o.window, o.page, o.lines_max) = (4, 4, 4));
    let w1 = lane.worker("w1", 1);
    lane.policy_of("paused", |p| p.paused = true);
    lane.store_all((0..20).map(|n| task().queue("paused").flow("user", &n.to_string())));
    lane.hint();
    let id = lane.arrive(task());
    lane.advance(60);
    assert_eq!(w1.takes(), [id]);
}

#[test]
fn what_happened_while_a_commit_was_under_way_is_written_once() {
    let lane = Story::new();
    let w1 = lane.worker("w1", 2);
    let id = lane.submit(task());
    lane.hold_commits();
    lane.submit(task());
    w1.runs();
    w1.finishes(id);
    lane.release_commits();
    let (scheduled, rest) =
        (vec![Status::Scheduled], vec![Status::Dispatched, Status::Running, Status::Success]);
    assert_eq!(lane.written(id), [scheduled, rest]);
    assert_eq!(lane.counters().path_coalesced, 1);
}

#[test]
fn a_second_commit_follows_the_first_once_enough_waits() {
    let lane = Story::with(|o| o.ahead = 2);
    let (_, _, before) = lane.effort();
    lane.hold_commits();
    lane.submit(task());
    lane.submit(task());
    assert_eq!(lane.effort().2, before + 1);
    lane.submit(task());
    lane.submit_all([task(), task(), task()]);
    assert_eq!((lane.effort().2, lane.counters().commit_ahead), (before + 2, 1));
    lane.release_commits();
    assert_eq!(lane.effort().2, before + 3);
}

/// The lazy list used to be read only while no commit was under way, and under load one always is.
#[test]
fn what_nobody_waits_for_is_written_also_while_a_commit_is_under_way() {
    let lane = Story::with(|o| o.ahead = 1);
    let w1 = lane.worker("w1", 1);
    let id = lane.submit(task());
    w1.runs();
    lane.hold_commits();
    lane.submit(task());
    lane.advance_millis(50);
    assert_eq!(lane.status(id), Status::Scheduled);
    lane.advance_millis(50);
    assert_eq!(lane.status(id), Status::Running);
}

/// As long as enough assigned tasks waited to be written, the client of a delayed task used to get no answer.
#[test]
fn tasks_that_cannot_run_yet_are_taken_in_also_while_others_are_assigned() {
    let lane = Story::with(|o| o.batch = 4);
    lane.worker("w1", 20);
    lane.hold_commits();
    lane.submit(task());
    let assigned = lane.submit_all((0..8).map(|_| task()));
    let later = lane.submit_all((0..2).map(|_| task().after(3600)));
    lane.release_commits();
    let order = |ids: &[TaskId]| ids.iter().map(|id| lane.arrival(*id).0).collect::<Vec<_>>();
    assert_eq!((order(&assigned), order(&later)), (vec![2, 3, 4, 6, 7, 8, 10, 11], vec![5, 9]));
}

#[test]
fn a_large_body_is_not_kept_in_memory_once_it_is_stored() {
    let lane = Story::new();
    let (large, small) =
        (lane.submit(task().payload_bytes(5 << 10)), lane.submit(task().payload_bytes(1 << 10)));
    let w1 = lane.worker("w1", 3);
    let at_once = lane.submit(task().payload_bytes(5 << 10));
    let sent: Vec<_> = w1.mailbox().iter().map(|d| (d.attempt.task, d.body.is_some())).collect();
    assert_eq!(sent, [(large, false), (small, true), (at_once, true)]);
}

#[test]
fn what_ended_is_written_before_what_it_made_room_for() {
    let lane = Story::with(|o| o.ahead = 1);
    let w1 = lane.worker("w1", 1);
    let (first, second) = (lane.submit(task()), lane.submit(task()));
    w1.runs();
    lane.hold_commits();
    lane.advance_millis(100);
    let both = || (lane.status(first), lane.status(second));
    assert_eq!(both(), (Status::Running, Status::Pending));
    // The commit under way contains the first task, so its end cannot be in the next one; nor can the second
    // task, then.
    w1.finishes(first);
    assert_eq!(lane.decided(second), Some(Status::Scheduled));
    lane.submit(task());
    assert_eq!(both(), (Status::Running, Status::Pending));
    lane.release_commits();
    assert_eq!(both(), (Status::Success, Status::Scheduled));
}

#[test]
fn an_insert_and_its_assignment_are_one_write() {
    let lane = Story::new();
    lane.worker("w1", 1);
    let (_, _, before) = lane.effort();
    let id = lane.submit(task());
    assert_eq!(lane.status(id), Status::Scheduled);
    assert_eq!(lane.effort().2, before + 1);
}

#[test]
fn what_nobody_waits_for_is_written_a_moment_later() {
    let lane = Story::new();
    let w1 = lane.worker("w1", 1);
    let id = lane.submit(task());
    w1.runs();
    assert_eq!(lane.status(id), Status::Scheduled);
    assert_eq!(lane.decided(id), Some(Status::Running));
    lane.advance_millis(100);
    assert_eq!(lane.status(id), Status::Running);
}

#[test]
fn a_task_that_the_store_has_otherwise_is_read_again() {
    let lane = Story::new();
    let (gone, changed, other) = (lane.submit(task()), lane.submit(task()), lane.submit(task()));
    lane.meddle(gone, &[Status::Cancelled]);
    lane.meddle(changed, &[Status::Scheduled, Status::Pending]);
    let w1 = lane.worker("w1", 3);
    assert_eq!(lane.counters().group_mismatch, 2);
    let mut taken = w1.takes();
    taken.sort_unstable();
    let mut wanted = [changed, other];
    wanted.sort_unstable();
    assert_eq!(taken, wanted);
    assert_eq!(w1.attempt(changed).number.0, 2);
    assert_eq!(lane.counters().dispatch_number_skipped, 2);
    assert_eq!(lane.status(gone), Status::Cancelled);
    assert_eq!(lane.decided(gone), None);
}

#[test]
fn a_request_that_the_store_has_already_runs_once() {
    let lane = Story::new();
    let w1 = lane.worker("w1", 2);
    let stored = lane.store_only(task().request_id("r"));
    let submitted = lane.submit(task().request_id("r"));
    assert_eq!(stored, submitted);
    assert_eq!(lane.answer(), Some(vec![SubmitOutcome::Duplicate]));
    assert_eq!(lane.counters().insert_duplicate, 1);
    assert_eq!(w1.works_off(), [stored]);
    assert_eq!(lane.stored(stored).attempt.0, 1);
}

#[test]
fn a_request_that_arrives_while_it_is_submitted_runs_once() {
    let lane = Story::new();
    let w1 = lane.worker("w1", 2);
    lane.hold_reads();
    let id = lane.arrive(task().request_id("r"));
    lane.submit(task().request_id("r"));
    assert_eq!(lane.answer(), Some(vec![SubmitOutcome::Duplicate]));
    lane.release_reads();
    assert_eq!(w1.works_off(), [id]);

    lane.hold_commits();
    let id = lane.submit(task().request_id("s"));
    lane.arrive(task().request_id("s"));
    lane.release_commits();
    assert!(matches!(lane.answer().as_deref(), Some([SubmitOutcome::Created { .. }])));
    assert_eq!(w1.works_off(), [id]);
    assert_eq!(lane.stored(id).attempt.0, 1);
}

#[test]
fn another_request_under_the_same_id_is_refused() {
    let lane = Story::new();
    let w1 = lane.worker("w1", 2);
    let stored = lane.store_only(task().request_id("r").priority(9));
    lane.submit(task().request_id("r").fingerprint(7));
    assert_eq!(lane.answer(), Some(vec![SubmitOutcome::RequestIdReused]));
    assert_eq!(w1.mailbox()[0].head.priority.get(), 9, "the first one runs, as it was sent");
    assert_eq!(w1.works_off(), [stored]);
}

#[test]
fn a_request_repeated_within_a_submission_and_after_it_is_created_once() {
    let lane = Story::new();
    lane.submit_all([task().request_id("r"), task().request_id("r")]);
    let answer = lane.answer().unwrap();
    let created = answer.iter().filter(|outcome| matches!(outcome, SubmitOutcome::Created { .. })).count();
    assert_eq!((created, answer.len()), (1, 2));
    let id = lane.submit(task().request_id("r"));
    assert_eq!(lane.answer(), Some(vec![SubmitOutcome::Duplicate]));
    let w1 = lane.worker("w1", 9);
    assert_eq!(w1.works_off(), [id]);
    lane.submit(task().request_id("r"));
    assert_eq!(lane.answer(), Some(vec![SubmitOutcome::Duplicate]), "also when it is finished");
    assert!(w1.works_off().is_empty());
    assert_eq!(lane.status(id), Status::Success);
}

#[test]
fn a_duplicate_of_a_running_task_leaves_it_alone() {
    let lane = Story::new();
    let w1 = lane.worker("w1", 2);
    let id = lane.submit(task().request_id("r"));
    w1.runs();
    lane.submit(task().request_id("r"));
    assert_eq!(lane.answer(), Some(vec![SubmitOutcome::Duplicate]));
    w1.finishes(id);
    assert_eq!(lane.status(id), Status::Success);
    assert_eq!(lane.stored(id).attempt.0, 1);
}

#[test]
fn a_lost_hint_costs_one_sweep() {
    let lane = Story::new();
    let w1 = lane.worker("w1", 1);
    let id = lane.store_only(task());
    lane.advance(4);
    assert!(w1.takes().is_empty());
    lane.advance(1);
    assert_eq!(w1.takes(), [id]);
}

#[test]
fn a_row_that_was_read_before_its_task_ended_is_dropped() {
    let lane = Story::new();
    let w1 = lane.worker("w1", 1);
    let before = lane.store_only(task().of_type("nobody"));
    lane.hold_reads();
    let id = lane.submit(task());
    w1.works_off();
    assert_eq!(lane.status(id), Status::Success);
    lane.release_reads();
    assert_eq!(lane.counters().stale_row_dropped, 1);
    assert_eq!(lane.decided(id), None);
    assert_eq!(lane.decided(before), Some(Status::Pending));
}

#[test]
fn submissions_during_a_slow_commit_are_answered_together() {
    let lane = Story::new();
    lane.hold_commits();
    lane.submit(task());
    let (_, _, before) = lane.effort();
    let ids = [lane.submit(task()), lane.submit(task()), lane.submit(task())];
    assert_eq!(lane.effort().2, before, "one commit at a time");
    lane.release_commits();
    assert_eq!(lane.effort().2, before + 1);
    assert!(ids.iter().all(|id| lane.status(*id) == Status::Pending));
}
