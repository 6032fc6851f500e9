//! Workers that are lost, refuse, repeat themselves, or do not receive.

use tasklane_core::id::AttemptNo;
use tasklane_core::lane::Reason;
use tasklane_core::message::{AckReason, AttemptId, Ending, Report, RetryAdvice, ToWorker};
use tasklane_core::status::Status;
use tasklane_core::task::{AttemptOutcome, TaskError};
use tasklane_sim::harness::{Story, Worker, task};

fn verdicts(worker: &Worker) -> Vec<AckReason> {
    let verdict = |message| match message {
        ToWorker::Ack { verdict, .. } => Some(verdict),
        _ => None,
    };
    worker.told().into_iter().filter_map(verdict).collect()
}

#[test]
fn the_task_of_a_lost_worker_goes_to_another() {
    let lane = Story::new();
    let w1 = lane.worker("w1", 2);
    let ids = lane.submit_all([task(), task()]);
    w1.takes();
    w1.starts(ids[0]);
    let later = lane.submit(task());
    w1.dies();
    assert_eq!(lane.status(ids[0]), Status::Pending);
    let w2 = lane.worker("w2", 9);
    assert_eq!(w2.runs(), [ids[0], ids[1], later], "they keep their place");
    let state = lane.stored(ids[0]);
    assert_eq!((state.attempt.0, state.retries, state.lost), (2, 0, 1));
    let queued = lane.stored(ids[1]);
    assert_eq!((queued.attempt.0, queued.lost, queued.lost_before_start), (2, 0, 1), "it had not started");
    assert_eq!(lane.earlier_attempts(ids[0]), [AttemptOutcome::Lost]);
    assert_eq!(lane.counters().attempt_lost, 2);
}

#[test]
fn a_task_that_loses_its_workers_is_stopped() {
    let lane = Story::with(|o| o.lost_max = 2);
    let poison = lane.submit(task());
    for lost in 1..=2 {
        let worker = lane.worker("w", 1);
        assert_eq!(worker.runs(), [poison]);
        worker.dies();
        assert_eq!(lane.status(poison), Status::Pending, "after {lost} losses");
    }
    let last = lane.worker("w", 1);
    last.runs();
    last.dies();
    assert_eq!(lane.status(poison), Status::Failed);
    assert_eq!(lane.error(poison).as_deref(), Some("lost_limit"));
    assert_eq!(lane.counters().lost_limit, 1);
    assert_eq!(lane.attempts(poison), [AttemptOutcome::Lost; 3]);
}

/// Attempts that only waited at killed workers used to count like attempts that ran there, so that tasks
/// failed that had never run.
#[test]
fn attempts_that_never_started_have_a_limit_of_their_own() {
    let lane = Story::with(|o| (o.lost_max, o.lost_before_start_max) = (0, 3));
    let id = lane.submit(task());
    for lost in 1..=3 {
        let worker = lane.worker("w", 1);
        assert_eq!(worker.takes(), [id]);
        worker.dies();
        assert_eq!(lane.status(id), Status::Pending, "after {lost} losses");
    }
    let last = lane.worker("w", 1);
    last.takes();
    last.dies();
    assert_eq!(lane.status(id), Status::Failed, "the task may take its workers down");
    assert_eq!(lane.error(id).as_deref(), Some("lost_limit"));
    let state = lane.stored(id);
    assert_eq!((state.lost, state.lost_before_start), (0, 4));
}

/// A guard that was killed used to cost a task of another tenant its retries, so that the task failed.
#[test]
fn an_attempt_whose_guard_was_killed_is_lost() {
    let lane = Story::with(|o| o.lost_max = 1);
    let w1 = lane.worker("w1", 1);
    let id = lane.submit(task().retries(0));
    let guard_lost = || Ending::Failed {
        error: TaskError::new(TaskError::GUARD_LOST, "the guard process was killed"),
        retry: RetryAdvice::Policy,
    };
    w1.runs();
    w1.ends(id, guard_lost());
    assert_eq!(lane.attempts(id), [AttemptOutcome::Lost]);
    assert_eq!(w1.runs(), [id], "at once");
    let state = lane.stored(id);
    assert_eq!((state.attempt.0, state.retries, state.lost, state.lost_before_start), (2, 0, 1, 0));
    w1.ends(id, guard_lost());
    assert_eq!(lane.status(id), Status::Failed, "the task may kill the guard");
    assert_eq!(lane.error(id).as_deref(), Some("lost_limit"));
}

#[test]
fn a_cancelled_task_whose_guard_was_killed_is_cancelled() {
    let lane = Story::new();
    let w1 = lane.worker("w1", 1);
    let id = lane.submit(task());
    w1.runs();
    lane.cancel(id);
    let error = TaskError::new(TaskError::GUARD_LOST, "the guard process was killed");
    w1.ends(id, Ending::Failed { error, retry: RetryAdvice::Policy });
    assert_eq!(lane.status(id), Status::Cancelled);
    assert_eq!(lane.attempts(id), [AttemptOutcome::Lost]);
}

/// A worker that joined before its connection was up used to get nothing before its first heartbeat, two
/// seconds after all others.
#[test]
fn a_worker_whose_greeting_was_lost_is_greeted_again() {
    let lane = Story::new();
    lane.lose_messages(true);
    let worker = lane.worker("w1", 2);
    let id = lane.submit(task());
    lane.advance_millis(19);
    lane.lose_messages(false);
    assert!(worker.takes().is_empty());
    lane.advance_millis(1);
    assert_eq!(worker.takes(), [id]);
}

/// A restarted server sent each worker one greeting when a lane was loaded. Workers connect later than that, so the greeting
/// was lost, and the first workers to send a heartbeat got all tasks.
#[test]
fn a_worker_that_connects_after_the_lane_has_loaded_is_greeted_again() {
    let lane = Story::new();
    let workers = ["w1", "w2", "w3"].map(|name| lane.worker(name, 4));
    lane.lose_messages(true);
    lane.hold_reads();
    lane.takeover();
    lane.advance(1);
    lane.release_reads();
    // As long as it takes the workers to learn of the server and to connect.
    lane.advance(1);
    lane.lose_messages(false);
    lane.advance(1);
    lane.submit_all((0..6).map(|_| task()));
    assert_eq!(workers.map(|worker| worker.takes().len()), [2, 2, 2]);
}

#[test]
fn a_worker_that_never_answers_is_not_greeted_for_ever() {
    let lane = Story::new();
    lane.lose_messages(true);
    let worker = lane.worker("w1", 2);
    let id = lane.submit(task());
    lane.advance(10);
    lane.lose_messages(false);
    lane.advance(10);
    assert!(worker.takes().is_empty());
    worker.beats();
    assert_eq!(worker.takes(), [id]);
}

#[test]
fn a_task_that_is_handed_back_goes_elsewhere_under_a_new_number() {
    let lane = Story::new();
    let w1 = lane.worker("w1", 1);
    let id = lane.submit(task());
    w1.takes();
    let w2 = lane.worker("w2", 1);
    w1.hands_back(id);
    assert_eq!(w2.takes(), [id]);
    assert_eq!(w2.attempt(id).number.0, 2);
    assert_eq!(lane.earlier_attempts(id), [AttemptOutcome::HandedBack]);
    assert_eq!(lane.stored(id).retries, 0);
}

#[test]
fn a_worker_that_handed_back_gets_nothing_before_its_next_heartbeat() {
    let lane = Story::new();
    let w1 = lane.worker("w1", 1);
    let id = lane.submit(task());
    w1.takes();
    w1.hands_back(id);
    assert_eq!(lane.status(id), Status::Pending);
    assert!(w1.takes().is_empty());
    w1.beats();
    assert_eq!(w1.takes(), [id]);
    assert_eq!(w1.attempt(id).number.0, 2);
}

#[test]
fn a_draining_worker_gets_nothing_more() {
    let lane = Story::new();
    let w1 = lane.worker("w1", 2);
    let running = lane.submit(task());
    w1.runs();
    w1.offers(|d| d.draining = true);
    lane.submit(task());
    assert!(w1.takes().is_empty());
    w1.finishes(running);
    assert_eq!(lane.status(running), Status::Success);
}

#[test]
fn a_late_report_of_an_old_attempt_is_dropped() {
    let lane = Story::new();
    let w1 = lane.worker("w1", 1);
    let id = lane.submit(task());
    w1.takes();
    let old = w1.attempt(id);
    w1.hands_back(id);
    w1.beats();
    w1.runs();
    w1.told();
    w1.claims_success(old);
    assert_eq!(lane.decided(id), Some(Status::Running));
    assert_eq!(lane.counters().report_of_old_attempt, 1);
    lane.settle();
    w1.claims_success(old);
    assert!(verdicts(&w1).contains(&AckReason::Stale));
    w1.finishes(id);
    assert_eq!(lane.stored(id).attempt.0, 2);
    assert_eq!(lane.status(id), Status::Success);
}

#[test]
fn a_report_of_another_session_is_dropped() {
    let lane = Story::new();
    let w1 = lane.worker("w1", 1);
    let w2 = lane.worker_with("w2", 1, |d| d.task_types.clear());
    let id = lane.submit(task());
    w1.runs();
    lane.settle();
    w2.claims_success(w1.attempt(id));
    assert_eq!(lane.status(id), Status::Running);
    assert_eq!(lane.counters().report_of_other_session, 1);
    assert_eq!(verdicts(&w2), [AckReason::Stale]);
}

#[test]
fn a_report_of_a_session_that_has_ended_is_not_heard() {
    let lane = Story::new();
    let w1 = lane.worker("w1", 1);
    let id = lane.submit(task());
    w1.runs();
    let attempt = w1.attempt(id);
    w1.dies();
    w1.claims_success(attempt);
    assert_eq!(lane.status(id), Status::Pending);
}

#[test]
fn a_repeated_report_counts_once() {
    let lane = Story::new();
    let w1 = lane.worker("w1", 1);
    let id = lane.submit(task());
    w1.runs();
    let attempt = w1.attempt(id);
    w1.finishes(id);
    assert_eq!(verdicts(&w1), [AckReason::Committed]);
    w1.claims_success(attempt);
    w1.claims(attempt, Report::Accepted);
    assert_eq!(verdicts(&w1), [AckReason::Stale], "only last reports are answered");
    assert_eq!(lane.counters().report_of_idle_task, 2);
    assert_eq!(lane.finished(), [id]);
}

#[test]
fn nothing_is_sent_before_it_is_written() {
    let lane = Story::new();
    let w1 = lane.worker("w1", 1);
    lane.hold_commits();
    let id = lane.submit(task());
    assert!(w1.mailbox().is_empty() && lane.answer().is_none());
    lane.release_commits();
    assert_eq!(w1.takes(), [id]);
    assert!(lane.answer().is_some());
}

#[test]
fn nothing_is_acknowledged_before_it_is_written() {
    let lane = Story::new();
    let w1 = lane.worker("w1", 1);
    let id = lane.submit(task());
    w1.runs();
    let attempt = w1.attempt(id);
    lane.hold_commits();
    w1.finishes(id);
    w1.claims_success(attempt);
    assert!(verdicts(&w1).is_empty() && lane.finished().is_empty());
    lane.release_commits();
    assert_eq!(verdicts(&w1), [AckReason::Committed]);
}

#[test]
fn a_lost_dispatch_is_sent_again_under_its_number() {
    let lane = Story::new();
    let w1 = lane.worker("w1", 1);
    let id = lane.submit(task());
    let first = w1.mailbox();
    w1.loses_mail();
    w1.beats();
    assert!(w1.mailbox().is_empty(), "it may still be on its way");
    lane.advance(1);
    w1.beats();
    assert_eq!(w1.mailbox(), first);
    assert_eq!(lane.counters().dispatch_resent, 1);
    assert_eq!(w1.works_off(), [id]);
    assert_eq!(lane.stored(id).attempt.0, 1);
}

#[test]
fn lost_reports_are_found_in_heartbeats() {
    let lane = Story::new();
    let w1 = lane.worker("w1", 2);
    let ids = lane.submit_all([task(), task()]);
    w1.takes();
    w1.has_run_for(ids[1], 3);
    lane.advance(3);
    w1.beats();
    lane.settle();
    assert_eq!(lane.status(ids[0]), Status::Dispatched);
    assert_eq!(lane.status(ids[1]), Status::Running);
    assert_eq!(lane.stored(ids[1]).started_at, Some(lane.now() - std::time::Duration::from_millis(3_200)));
}

/// The first recall used to be sent twice, in the heartbeat that led to it.
#[test]
fn a_worker_that_never_knows_its_attempt_is_asked_for_it_and_then_given_up() {
    let lane = Story::new();
    let w1 = lane.worker("w1", 1);
    let id = lane.submit(task());
    w1.loses_mail();
    for _ in 0..3 {
        lane.advance(2);
        w1.beats();
        w1.loses_mail();
        assert!(w1.recalls().is_empty());
    }
    assert_eq!(lane.counters().dispatch_resent, 3);
    for _ in 0..3 {
        lane.advance(2);
        w1.beats();
        assert_eq!(w1.recalls(), [id]);
        assert!(lane.revoked().is_empty());
    }
    lane.advance(2);
    w1.beats();
    assert_eq!(lane.revoked(), [w1.session()]);
    assert_eq!(lane.status(id), Status::Scheduled, "until its session has ended");
    w1.dies();
    assert_eq!(lane.status(id), Status::Pending);
}

#[test]
fn a_worker_that_does_not_receive_is_given_up_despite_heartbeats() {
    let lane = Story::new();
    let w1 = lane.worker("w1", 1);
    w1.not_receiving(true);
    lane.submit(task());
    for _ in 0..20 {
        lane.advance(2);
        w1.beats();
    }
    assert_eq!(lane.revoked(), [w1.session()]);
    assert_eq!(lane.counters().recall_sent, 3);
}

#[test]
fn a_worker_that_does_not_receive_is_reported_and_gets_nothing_more_until_it_does() {
    let lane = Story::new();
    let w1 = lane.worker("w1", 9);
    w1.not_receiving(true);
    let first = lane.submit(task());
    for _ in 0..5 {
        lane.advance(2);
        w1.beats();
    }
    assert!(
        lane.not_receiving().iter().all(|&session| session == w1.session())
            && !lane.not_receiving().is_empty()
    );
    assert_eq!(lane.counters().worker_not_receiving, 1);
    let second = lane.submit(task());
    assert_eq!(lane.status(second), Status::Pending);
    w1.not_receiving(false);
    lane.advance(2);
    w1.beats();
    assert_eq!(w1.recalls(), [first]);
    let attempt = AttemptId { task: first, number: AttemptNo(1) };
    w1.claims(attempt, Report::HandedBack { reason: "recalled".to_owned() });
    let said = lane.not_receiving().len();
    lane.advance(2);
    w1.beats();
    assert_eq!(lane.not_receiving().len(), said);
    let taken = w1.runs();
    assert!(taken.contains(&first) && taken.contains(&second), "{taken:?}");
}

/// Its session is new: it has never received a message of the owner.
#[test]
fn a_worker_that_never_learns_of_the_owner_is_not_receiving() {
    let lane = Story::new();
    let w1 = lane.worker("w1", 1);
    w1.not_receiving(true);
    lane.takeover();
    let id = lane.submit(task());
    for _ in 0..5 {
        lane.advance(2);
        w1.beats();
    }
    assert_eq!(lane.status(id), Status::Pending, "a worker that does not receive gets no task");
    assert!(lane.not_receiving().contains(&w1.session()));
}

#[test]
fn a_worker_without_heartbeats_is_left_to_the_coordinator() {
    let lane = Story::new();
    let w1 = lane.worker("w1", 1);
    let id = lane.submit(task());
    w1.runs();
    lane.advance(200);
    assert!(lane.revoked().is_empty());
    assert_eq!(lane.status(id), Status::Running);
}

#[test]
fn an_attempt_that_nobody_knows_any_more_is_stopped() {
    let lane = Story::new();
    let w1 = lane.worker("w1", 2);
    let id = lane.submit(task());
    w1.takes();
    let attempt = w1.attempt(id);
    w1.claims(attempt, Report::HandedBack { reason: "said so".to_owned() });
    w1.beats();
    assert_eq!(w1.mailbox()[0].attempt.number.0, 2);
    lane.settle();
    w1.beats();
    assert_eq!(w1.stops(), [id], "it was given back and is still there");
}

#[test]
fn a_worker_is_sent_no_more_than_it_has_room_for() {
    let lane = Story::new();
    let (w1, w2) = (lane.worker("w1", 2), lane.worker("w2", 3));
    let ids = lane.submit_all((0..9).map(|_| task()));
    assert_eq!((w1.runs().len(), w2.runs().len()), (2, 3));
    w1.finishes(*ids.iter().find(|id| lane.stored(**id).session == Some(w1.session())).unwrap());
    assert_eq!((w1.runs().len(), w2.runs().len()), (1, 0));
}

#[test]
fn an_old_heartbeat_is_ignored() {
    let lane = Story::new();
    let w1 = lane.worker("w1", 1);
    let id = lane.submit(task());
    w1.takes();
    w1.hands_back(id);
    w1.beats();
    assert_eq!(w1.takes(), [id]);
    lane.settle();
    assert_eq!(lane.status(id), Status::Dispatched);
}

/// The explanation used to be that no worker offers the type, though the only one paused for want of file
/// descriptors.
#[test]
fn a_worker_that_pauses_gets_nothing_and_is_named_as_the_reason() {
    let lane = Story::new();
    let w1 = lane.worker("w1", 1);
    let id = lane.submit(task());
    w1.takes();
    w1.starts(id);
    w1.ends(id, Ending::NotStarted { reason: "no file descriptors are left".to_owned() });
    w1.offers(|worker| worker.pause_reason = Some("no file descriptors are left".to_owned()));
    w1.beats();
    assert_eq!(w1.takes(), []);
    let state = lane.stored(id);
    assert_eq!((state.status, state.retries, state.lost), (Status::Pending, 0, 0));
    assert_eq!(lane.earlier_attempts(id), [AttemptOutcome::HandedBack]);
    let reason = "no file descriptors are left".to_owned();
    assert_eq!(lane.explain(id)[0], Reason::WorkersPause { workers: 1, reason });
    w1.offers(|worker| worker.pause_reason = None);
    w1.beats();
    assert_eq!(w1.takes(), [id]);
}
