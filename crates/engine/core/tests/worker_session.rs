//! Stories about the worker-session machine: it accepts dispatches, resends reports, and stops everything in
//! time.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tasklane_core::id::{AttemptNo, DispatchNo, Epoch, LaneId, Name, QueueKey, SessionId, TaskId};
use tasklane_core::message::{
    AckReason, AttemptId, Dispatch, Ending, Finish, Heartbeat, HeldState, OwnerBatch, Report, RetryAdvice,
    ToLane, ToWorker,
};
use tasklane_core::retry::RetryPolicy;
use tasklane_core::task::{Priority, Progress, TaskError, TaskHead, TaskResult};
use tasklane_core::time::Timestamp;
use tasklane_core::worker::{Effect, Input, StopReason, WorkerOptions, WorkerSession};

const SESSION: SessionId = SessionId::from_random(7);
const A: AttemptId = attempt(1);
const B: AttemptId = attempt(2);
const C: AttemptId = attempt(3);

const fn attempt(task: u128) -> AttemptId {
    AttemptId { task: TaskId::from_random(task), number: AttemptNo(1) }
}

/// A session that began at time zero, and all its effects.
struct Stage {
    machine: WorkerSession,
    now: Timestamp,
    said: Vec<(LaneId, ToLane)>,
    started: Vec<AttemptId>,
    stopped: Vec<(AttemptId, StopReason)>,
    renewals: u32,
    fenced_at: Option<Timestamp>,
    drained: bool,
    pauses: Vec<Duration>,
    resumed: u32,
}

impl Stage {
    /// One lane, room to run one attempt and to keep another waiting.
    fn new() -> Self {
        Self::with(|_| {})
    }

    fn with(change: impl FnOnce(&mut WorkerOptions)) -> Self {
        let mut options = WorkerOptions { capacity: 1, prefetch: 1, ..WorkerOptions::default() };
        change(&mut options);
        let mut stage = Self {
            machine: WorkerSession::new(options, SESSION, Timestamp::ZERO),
            now: Timestamp::ZERO,
            said: Vec::new(),
            started: Vec::new(),
            stopped: Vec::new(),
            renewals: 0,
            fenced_at: None,
            drained: false,
            pauses: Vec::new(),
            resumed: 0,
        };
        stage.step(Input::Tick);
        stage
    }

    fn step(&mut self, input: Input) {
        let mut effects = Vec::new();
        self.machine.step(input, self.now, &mut effects);
        for effect in effects {
            match effect {
                Effect::Start(dispatch) => self.started.push(dispatch.attempt),
                Effect::Stop { attempt, reason } => self.stopped.push((attempt, reason)),
                Effect::Fence => self.fenced_at = Some(self.now),
                Effect::Send(batch) => {
                    self.said.extend(batch.messages.into_iter().map(|message| (batch.lane, message)));
                }
                Effect::Renew => self.renewals += 1,
                Effect::Drained => self.drained = true,
                Effect::Pause { wait, .. } => self.pauses.push(wait),
                Effect::Resume => self.resumed += 1,
            }
        }
    }

    /// The owner of lane 0 sends messages.
    fn hears(&mut self, epoch: u64, messages: impl Into<Vec<ToWorker>>) {
        self.hears_of(0, epoch, messages);
    }

    fn hears_of(&mut self, lane: u16, epoch: u64, messages: impl Into<Vec<ToWorker>>) {
        let (lane, epoch, messages) = (LaneId(lane), Epoch(epoch), messages.into());
        self.step(Input::Owner(OwnerBatch { lane, epoch, session: SESSION, messages }));
    }

    /// Lets time pass up to so many seconds after the beginning.
    fn until(&mut self, secs: i64) {
        let until = Timestamp::from_millis(secs * 1000);
        while let Some(at) = self.machine.next_deadline().filter(|at| *at <= until) {
            self.now = self.now.max(at);
            self.step(Input::Tick);
        }
        self.now = until;
        self.step(Input::Tick);
    }

    /// An attempt ends by itself.
    fn ends(&mut self, attempt: AttemptId, ending: Ending) {
        let finish = Finish { ran: Duration::ZERO, ending, result: TaskResult::default() };
        self.step(Input::Ended { attempt, finish: Box::new(finish) });
    }

    fn succeeds(&mut self, attempt: AttemptId) {
        self.ends(attempt, Ending::Success);
    }

    fn fails(&mut self, attempt: AttemptId) {
        self.ends(
            attempt,
            Ending::Failed { error: TaskError::new("exit_code", "1"), retry: RetryAdvice::Policy },
        );
    }

    fn cannot_start(&mut self, attempt: AttemptId) {
        self.ends(attempt, Ending::NotStarted { reason: "no file descriptors are left".to_owned() });
    }

    fn is_acked(&mut self, attempt: AttemptId) {
        self.hears(1, [ToWorker::Ack { attempt, verdict: AckReason::Committed }]);
    }

    /// The reports since the last look, in words; other messages are discarded.
    fn reports(&mut self) -> Vec<(AttemptId, &'static str)> {
        let word = |report: &Report| match report {
            Report::Accepted => "accepted",
            Report::Started { .. } => "started",
            Report::Progress(_) => "progress",
            Report::HandedBack { .. } => "handed back",
            Report::Finished(finish) => match finish.ending {
                Ending::Success => "success",
                Ending::Failed { .. } => "failed",
                Ending::TimedOut { .. } => "timed out",
                Ending::Cancelled => "cancelled",
                Ending::NotStarted { .. } => "not started",
            },
        };
        let report = |(_, message)| match message {
            ToLane::Report { attempt, report } => Some((attempt, word(&report))),
            _ => None,
        };
        std::mem::take(&mut self.said).into_iter().filter_map(report).collect()
    }

    /// The last heartbeat to a lane; other messages are discarded.
    fn heartbeat(&mut self, lane: u16) -> Option<Heartbeat> {
        let heartbeat = |(to, message)| match message {
            ToLane::Heartbeat(heartbeat) if to == LaneId(lane) => Some(heartbeat),
            _ => None,
        };
        std::mem::take(&mut self.said).into_iter().filter_map(heartbeat).next_back()
    }

    /// The highest credit of a lane since the last look; other messages are discarded.
    fn credit(&mut self, lane: u16) -> Option<u64> {
        let credit = |(to, message)| match message {
            ToLane::Credit { credit, .. } if to == LaneId(lane) => Some(credit.0),
            _ => None,
        };
        std::mem::take(&mut self.said).into_iter().filter_map(credit).max()
    }

    /// The highest credit of each lane since the last look; other messages are discarded.
    fn credit_of(&mut self, lanes: &[u16]) -> Vec<u64> {
        let said = std::mem::take(&mut self.said);
        let of = |lane: &u16| {
            let credit = said.iter().filter_map(|(to, message)| match message {
                ToLane::Credit { credit, .. } if *to == LaneId(*lane) => Some(credit.0),
                _ => None,
            });
            credit.max().unwrap_or(0)
        };
        lanes.iter().map(of).collect()
    }

    fn started(&mut self) -> Vec<AttemptId> {
        std::mem::take(&mut self.started)
    }

    fn stopped(&mut self) -> Vec<(AttemptId, StopReason)> {
        std::mem::take(&mut self.stopped)
    }
}

fn dispatch(k: u64, attempt: AttemptId) -> ToWorker {
    dispatch_with(k, attempt, None)
}

fn dispatch_with(k: u64, attempt: AttemptId, progress_timeout: Option<Duration>) -> ToWorker {
    let name = |text| Name::new(text).expect("a valid name");
    let head = TaskHead {
        queue: QueueKey::new(name("default"), name("q")),
        task_type: name("job"),
        priority: Priority::default(),
        labels: BTreeMap::new(),
        flow: Vec::new(),
        hash_bucket: None,
        execution_timeout: Duration::from_mins(1),
        start_timeout: None,
        progress_timeout,
        runs_as: None,
        retry: RetryPolicy::default(),
    };
    ToWorker::Dispatch(Dispatch {
        k: DispatchNo(k),
        attempt,
        head: Arc::new(head),
        body: Some(Arc::default()),
    })
}

fn recall(k: u64, attempt: AttemptId) -> ToWorker {
    ToWorker::Recall { k: DispatchNo(k), attempt }
}

fn demand() -> ToWorker {
    demand_up_to(1, 0)
}

fn demand_up_to(wanted: u32, up_to: u64) -> ToWorker {
    ToWorker::Demand { wanted, up_to: DispatchNo(up_to) }
}

fn skip(first: u64, last: u64) -> ToWorker {
    ToWorker::Skip { first: DispatchNo(first), last: DispatchNo(last) }
}

#[test]
fn a_dispatch_is_started_or_else_accepted() {
    let mut worker = Stage::new();
    worker.hears(1, [dispatch(1, A), dispatch(2, B)]);
    assert_eq!(worker.started(), [A]);
    assert_eq!(worker.reports(), [(A, "started"), (B, "accepted")]);
}

#[test]
fn an_attempt_whose_output_is_being_kept_leaves_its_room_to_the_next() {
    let mut worker = Stage::new();
    worker.hears(1, [dispatch(1, A), dispatch(2, B)]);
    worker.started();
    worker.reports();
    worker.step(Input::Exited { attempt: A });
    assert_eq!(worker.started(), [B]);
    assert_eq!(worker.reports(), [(B, "started")], "its end is not reported yet");
    assert_eq!(worker.machine.load(), 2, "it is still held");
    // It cannot be stopped any more, and its run time does not grow.
    worker.until(1);
    worker.hears(1, [ToWorker::Stop { attempt: A }]);
    assert!(worker.stopped().is_empty());
    worker.succeeds(A);
    assert_eq!(worker.machine.load(), 1);
    let Some(Report::Finished(finish)) = worker.machine.last_report(A) else { panic!("it has ended") };
    assert_eq!(finish.ran, Duration::ZERO);
}

/// A worker whose attempts have taken this long, with nothing to do. Returns it and its credit.
fn after_attempts_of(micros: i64) -> (Stage, u64) {
    after_attempts_with(micros, |_| {})
}

fn after_attempts_with(micros: i64, change: impl FnOnce(&mut WorkerOptions)) -> (Stage, u64) {
    let mut worker = Stage::with(|o| {
        (o.capacity, o.prefetch, o.prefetch_max, o.surplus) = (2, 2, 100, 0);
        o.prefetch_for = Duration::from_millis(10);
        change(o);
    });
    worker.hears(1, []);
    for number in 1..=64 {
        worker.hears(1, [dispatch(number, attempt(number.into()))]);
        worker.now = Timestamp::from_micros(worker.now.as_micros() + micros);
        worker.succeeds(attempt(number.into()));
        worker.is_acked(attempt(number.into()));
    }
    let credit = worker.credit(0).expect("credit was given");
    worker.started();
    worker.reports();
    (worker, credit)
}

#[test]
fn the_shorter_attempts_are_the_more_may_wait() {
    assert_eq!(after_attempts_of(1).1, 64 + 2 + 100);
    assert_eq!(after_attempts_of(500).1, 64 + 2 + 40);
    assert_eq!(after_attempts_of(20_000).1, 64 + 2 + 2);
}

/// Of many attempts of half a second, one or two beyond the room used to wait that long, though other workers
/// were idle.
#[test]
fn nothing_more_waits_behind_attempts_that_take_longer_than_it_should_wait() {
    let many = |o: &mut WorkerOptions| (o.capacity, o.prefetch, o.surplus) = (20, 0, 0);
    assert_eq!(after_attempts_with(9_000, many).1, 64 + 20 + 22);
    assert_eq!(after_attempts_with(11_000, many).1, 64 + 20);
}

/// Attempts are short on average, but in the last two seconds no more than a few hundred have ended.
#[test]
fn not_many_more_may_wait_than_end_until_the_next_heartbeat() {
    let mut worker = Stage::with(|o| (o.capacity, o.prefetch, o.prefetch_max, o.surplus) = (2, 2, 10_000, 0));
    worker.hears(1, []);
    let ends = |worker: &mut Stage, numbers: std::ops::RangeInclusive<u64>| {
        for number in numbers {
            worker.hears(1, [dispatch(number, attempt(number.into()))]);
            worker.succeeds(attempt(number.into()));
            worker.is_acked(attempt(number.into()));
        }
        worker.credit(0)
    };
    assert_eq!(ends(&mut worker, 1..=10), Some(10 + 2 + 256));
    assert_eq!(ends(&mut worker, 11..=300), Some(300 + 2 + 1200));
    worker.until(2);
    // The worker keeps its promises, but makes no more before it has become faster.
    assert_eq!(ends(&mut worker, 301..=900), None);
    assert_eq!(ends(&mut worker, 901..=1501), Some(1501 + 2 + 1201));
}

#[test]
fn the_larger_attempts_are_the_fewer_may_wait() {
    let credit = |bytes| after_attempts_with(1, |o| o.prefetch_bytes = bytes).1;
    let ToWorker::Dispatch(one) = dispatch(1, A) else { unreachable!() };
    let bytes = one.body.expect("it has one").bytes();
    assert_eq!(credit(10 * bytes), 64 + 2 + 10);
    assert_eq!(credit(1), 64 + 2 + 2);
    // The worker does not keep all promises that it made while attempts were small.
    let (mut worker, _) = after_attempts_with(1, |o| o.prefetch_bytes = 10 * bytes);
    worker.hears(1, (65..=120).map(|k| dispatch(k, attempt(k.into()))).collect::<Vec<_>>());
    assert_eq!((worker.machine.load(), worker.machine.counters().surplus_handed_back), (21, 56 - 21));
}

#[test]
fn what_waits_behind_attempts_that_have_become_long_is_handed_back() {
    let (mut worker, _) = after_attempts_of(500);
    let sent: Vec<ToWorker> = (65..=84).map(|k| dispatch(k, attempt(k.into()))).collect();
    worker.hears(1, sent);
    assert_eq!(worker.started().len(), 2);
    worker.reports();
    worker.until(10);
    let reports = worker.reports();
    let handed_back: Vec<_> = reports.iter().filter(|(_, word)| *word == "handed back").collect();
    assert_eq!(worker.machine.load(), 4);
    assert_eq!(worker.machine.counters().prefetch_handed_back, 16);
    // Each report is repeated with every heartbeat until it is acknowledged.
    assert_eq!(handed_back.len() % 16, 0);
    assert!(!handed_back.is_empty());
}

/// As many as the surplus used to stay for as long as the attempts before them took, though other workers
/// were idle.
#[test]
fn nothing_waits_behind_long_attempts_where_nothing_need_wait() {
    let (mut worker, _) =
        after_attempts_with(500, |o| (o.capacity, o.prefetch, o.prefetch_max, o.surplus) = (2, 0, 100, 4));
    worker.hears(1, (65..=70).map(|k| dispatch(k, attempt(k.into()))).collect::<Vec<_>>());
    worker.until(4);
    assert_eq!((worker.machine.load(), worker.machine.counters().prefetch_handed_back), (2, 4));
}

/// All slots have long attempts for a moment: that is no reason to hand back attempts that end soon.
#[test]
fn what_waits_behind_a_mixture_stays_if_as_many_have_ended() {
    let (mut worker, _) = after_attempts_of(500);
    let sent: Vec<ToWorker> = (65..=84).map(|k| dispatch(k, attempt(k.into()))).collect();
    worker.hears(1, sent);
    worker.until(2);
    assert_eq!(worker.machine.counters().prefetch_handed_back, 0);
    worker.until(4);
    assert_eq!(worker.machine.counters().prefetch_handed_back, 16);
}

#[test]
fn a_repeated_dispatch_is_answered_and_not_started_again() {
    let mut worker = Stage::new();
    worker.hears(1, [dispatch(1, A), dispatch(2, B)]);
    worker.started();
    worker.reports();
    worker.hears(1, [dispatch(1, A), dispatch(2, B)]);
    assert!(worker.started().is_empty());
    assert_eq!(worker.reports(), [(A, "started"), (B, "accepted")]);
    worker.succeeds(A);
    assert_eq!(worker.started(), [B]);
    worker.reports();
    worker.hears(1, [dispatch(1, A)]);
    assert_eq!(worker.reports(), [(A, "success")]);
}

#[test]
fn a_dispatch_number_is_taken_once() {
    let mut worker = Stage::new();
    worker.hears(1, [dispatch(1, A)]);
    worker.succeeds(A);
    worker.is_acked(A);
    worker.started();
    worker.reports();
    worker.hears(1, [dispatch(1, A)]);
    assert!(worker.started().is_empty() && worker.reports().is_empty(), "it came too late");
}

#[test]
fn an_attempt_that_a_new_owner_sends_again_goes_on() {
    let mut worker = Stage::new();
    worker.hears(1, [dispatch(5, A)]);
    worker.started();
    worker.reports();
    worker.hears(2, [dispatch(1, A)]);
    assert!(worker.started().is_empty());
    assert_eq!(worker.reports(), [(A, "started")]);
}

#[test]
fn an_earlier_owner_is_not_heard() {
    let mut worker = Stage::new();
    worker.hears(2, [ToWorker::Demand { wanted: 0, up_to: DispatchNo(0) }]);
    worker.reports();
    worker.hears(1, [dispatch(1, A), recall(2, B)]);
    assert!(worker.started().is_empty() && worker.reports().is_empty());
    worker.hears(2, [dispatch(1, A)]);
    worker.hears(1, [ToWorker::Stop { attempt: A }]);
    assert!(worker.stopped().is_empty());
}

#[test]
fn what_was_meant_for_an_earlier_session_is_not_heard() {
    let mut worker = Stage::new();
    let session = SessionId::from_random(6);
    let messages = vec![dispatch(1, A)];
    worker.step(Input::Owner(OwnerBatch { lane: LaneId(0), epoch: Epoch(1), session, messages }));
    assert!(worker.started().is_empty() && worker.reports().is_empty());
}

#[test]
fn a_new_owner_is_told_everything_at_once_and_counts_from_the_start() {
    let mut worker = Stage::with(|o| o.capacity = 3);
    worker.hears(1, [dispatch(1, A), dispatch(2, B)]);
    worker.succeeds(B);
    worker.heartbeat(0);
    worker.hears(4, [ToWorker::Demand { wanted: 0, up_to: DispatchNo(0) }]);
    let credit = worker.said.iter().find_map(|(_, message)| match message {
        ToLane::Credit { epoch, credit, .. } => Some((*epoch, *credit)),
        _ => None,
    });
    assert_eq!(credit, Some((Epoch(4), DispatchNo(3))));
    let heartbeat = worker.heartbeat(0).unwrap();
    assert_eq!((heartbeat.epoch, heartbeat.used, heartbeat.load), (Epoch(4), DispatchNo(0), 0));
    let held: Vec<_> = heartbeat.held.iter().map(|held| (held.attempt, held.state)).collect();
    assert_eq!(held, [(A, HeldState::Running(Duration::ZERO)), (B, HeldState::Ended)]);
}

#[test]
fn a_last_report_is_repeated_until_it_is_acknowledged() {
    for verdict in [AckReason::Committed, AckReason::Stale] {
        let mut worker = Stage::new();
        worker.hears(1, [dispatch(1, A)]);
        worker.succeeds(A);
        worker.reports();
        for secs in [2, 4, 6] {
            worker.until(secs);
            assert_eq!(worker.reports(), [(A, "success")]);
            assert!(worker.machine.awaits_ack(A));
        }
        worker.hears(1, [ToWorker::Ack { attempt: A, verdict }]);
        worker.until(8);
        assert!(worker.reports().is_empty() && !worker.machine.awaits_ack(A));
    }
}

#[test]
fn an_acknowledgement_ends_nothing_that_runs() {
    let mut worker = Stage::new();
    worker.hears(1, [dispatch(1, A)]);
    worker.is_acked(A);
    worker.succeeds(A);
    assert!(worker.machine.awaits_ack(A));
}

#[test]
fn heartbeats_list_what_is_held() {
    let mut worker = Stage::new();
    worker.hears(1, [dispatch(1, A), dispatch(2, B), recall(4, C)]);
    worker.until(2);
    let heartbeat = worker.heartbeat(0).unwrap();
    let held: Vec<_> = heartbeat.held.iter().map(|held| (held.attempt, held.state)).collect();
    assert_eq!(
        held,
        [(A, HeldState::Running(Duration::from_secs(2))), (B, HeldState::Queued), (C, HeldState::Ended)]
    );
    assert_eq!(
        (heartbeat.used, heartbeat.load),
        (DispatchNo(2), 0),
        "3 has not come yet; no other lane has any"
    );
    let beat = heartbeat.beat;
    worker.until(4);
    assert!(worker.heartbeat(0).unwrap().beat > beat);
}

#[test]
fn a_recall_that_overtakes_its_dispatch_uses_it_up() {
    let mut worker = Stage::new();
    worker.hears(1, [recall(1, A)]);
    assert_eq!(worker.reports(), [(A, "handed back")]);
    worker.hears(1, [dispatch(1, A)]);
    assert_eq!(worker.reports(), [(A, "handed back")]);
    worker.is_acked(A);
    worker.hears(1, [dispatch(1, A)]);
    assert!(worker.reports().is_empty() && worker.started().is_empty());
}

#[test]
fn a_recalled_attempt_in_the_queue_never_starts() {
    let mut worker = Stage::new();
    worker.hears(1, [dispatch(1, A), dispatch(2, B)]);
    worker.reports();
    worker.hears(1, [recall(2, B)]);
    assert_eq!(worker.reports(), [(B, "handed back")]);
    worker.succeeds(A);
    assert_eq!(worker.started(), [A]);
    worker.reports();
    worker.hears(1, [recall(2, B)]);
    assert_eq!(worker.reports(), [(B, "handed back")], "asked again, answered again");
}

#[test]
fn a_recalled_attempt_that_has_started_goes_on() {
    let mut worker = Stage::new();
    worker.hears(1, [dispatch(1, A)]);
    worker.reports();
    worker.hears(1, [recall(1, A)]);
    assert_eq!(worker.reports(), [(A, "started")]);
    assert!(worker.stopped().is_empty());
    worker.succeeds(A);
    worker.reports();
    worker.hears(1, [recall(1, A)]);
    assert_eq!(worker.reports(), [(A, "success")]);
}

#[test]
fn an_attempt_stopped_in_the_queue_is_handed_back() {
    let mut worker = Stage::new();
    worker.hears(1, [dispatch(1, A), dispatch(2, B)]);
    worker.reports();
    worker.hears(1, [ToWorker::Stop { attempt: B }]);
    assert_eq!(worker.reports(), [(B, "handed back")]);
    worker.succeeds(A);
    assert_eq!(worker.started(), [A]);
}

#[test]
fn a_running_attempt_is_stopped_once_and_ends_as_cancelled() {
    let mut worker = Stage::new();
    worker.hears(1, [dispatch(1, A)]);
    for _ in 0..3 {
        worker.hears(1, [ToWorker::Stop { attempt: A }]);
    }
    assert_eq!(worker.stopped(), [(A, StopReason::Cancelled)]);
    worker.reports();
    worker.fails(A);
    assert_eq!(worker.reports(), [(A, "cancelled")]);
}

#[test]
fn a_success_stays_one_though_it_was_stopped() {
    let mut worker = Stage::new();
    worker.hears(1, [dispatch(1, A), ToWorker::Stop { attempt: B }]);
    worker.hears(1, [ToWorker::Stop { attempt: A }]);
    worker.reports();
    worker.succeeds(A);
    assert_eq!(worker.reports(), [(A, "success")]);
}

#[test]
fn an_attempt_that_tells_of_no_progress_is_stopped_and_one_that_does_goes_on() {
    let mut worker = Stage::with(|o| o.ttl = Duration::from_hours(1));
    worker.until(5);
    worker.hears(1, [dispatch_with(1, A, Some(Duration::from_secs(10)))]);
    worker.until(14);
    worker.reports();
    worker.step(Input::Progress {
        attempt: A,
        progress: Progress { percent: Some(50), message: String::new() },
    });
    assert_eq!(worker.reports(), [(A, "progress")]);
    worker.until(23);
    assert!(worker.stopped().is_empty());
    worker.until(24);
    assert_eq!(worker.stopped(), [(A, StopReason::TimedOut)]);
    worker.reports();
    worker.fails(A);
    assert_eq!(worker.reports(), [(A, "timed out")]);
}

/// The last progress used to be dropped: a run that was cancelled in its first second never showed its
/// progress.
#[test]
fn what_an_attempt_tells_while_it_is_stopped_is_passed_on_and_gives_it_no_more_time() {
    let mut worker = Stage::with(|o| o.ttl = Duration::from_hours(1));
    worker.until(5);
    worker.hears(1, [dispatch_with(1, A, Some(Duration::from_secs(10)))]);
    worker.hears(1, [ToWorker::Stop { attempt: A }]);
    assert_eq!(worker.stopped(), [(A, StopReason::Cancelled)]);
    worker.reports();
    let progress = Progress { percent: Some(50), message: String::new() };
    worker.step(Input::Progress { attempt: A, progress });
    assert_eq!(worker.reports(), [(A, "progress")]);
    worker.until(70);
    assert!(worker.stopped().is_empty(), "it was stopped once");
    worker.fails(A);
    assert_eq!(worker.reports(), [(A, "cancelled")]);
}

#[test]
fn an_attempt_past_its_timeout_is_stopped_and_ends_as_timed_out() {
    let mut worker = Stage::with(|o| o.ttl = Duration::from_hours(1));
    worker.until(5);
    worker.hears(1, [dispatch(1, A)]);
    worker.until(64);
    assert!(worker.stopped().is_empty());
    worker.until(65);
    assert_eq!(worker.stopped(), [(A, StopReason::TimedOut)]);
    worker.reports();
    worker.fails(A);
    assert_eq!(worker.reports(), [(A, "timed out")]);
}

#[test]
fn draining_gives_back_what_waits_and_ends_when_all_is_acknowledged() {
    let mut worker = Stage::new();
    worker.hears(1, [dispatch(1, A), dispatch(2, B)]);
    worker.reports();
    worker.step(Input::Drain);
    assert_eq!(worker.reports(), [(B, "handed back")]);
    worker.hears(1, [dispatch(3, C)]);
    assert_eq!(worker.reports(), [(C, "handed back")]);
    worker.succeeds(A);
    assert_eq!(worker.credit(0), None, "there is no room any more");
    worker.is_acked(A);
    worker.is_acked(B);
    assert!(!worker.drained);
    worker.is_acked(C);
    assert!(worker.drained);
    assert_eq!(worker.started(), [A]);
}

#[test]
fn what_still_runs_when_the_worker_leaves_is_stopped_and_given_back() {
    let mut worker = Stage::with(|o| (o.capacity, o.prefetch) = (3, 3));
    worker.hears(1, [dispatch(1, A), dispatch(2, B), dispatch(3, C)]);
    worker.hears(1, [ToWorker::Stop { attempt: C }]);
    worker.step(Input::Drain);
    worker.stopped();
    worker.reports();
    worker.step(Input::Leave);
    assert_eq!(worker.stopped(), [(A, StopReason::Leaving), (B, StopReason::Leaving)]);
    worker.fails(A);
    worker.succeeds(B);
    worker.fails(C);
    assert_eq!(worker.reports(), [(A, "handed back"), (B, "success"), (C, "cancelled")]);
    for attempt in [A, B, C] {
        assert!(!worker.drained);
        worker.is_acked(attempt);
    }
    assert!(worker.drained);
}

#[test]
fn an_idle_worker_is_drained_at_once() {
    let mut worker = Stage::new();
    worker.step(Input::Drain);
    assert!(worker.drained);
}

#[test]
fn everything_stops_before_the_session_can_have_ended() {
    let mut worker = Stage::new();
    worker.hears(1, [dispatch(1, A)]);
    worker.until(10);
    assert_eq!(worker.fenced_at, None);
    worker.until(20);
    assert_eq!(worker.fenced_at, Some(Timestamp::from_millis(11_000)), "TTL less the margin");
    assert!(worker.machine.is_fenced());
    assert_eq!(worker.machine.next_deadline(), None);
    worker.reports();
    worker.hears(1, [dispatch(2, B)]);
    worker.succeeds(A);
    assert!(worker.reports().is_empty(), "an ended session reports nothing more");
    worker.started();
    worker.step(Input::Renewed { asked_at: Timestamp::from_millis(19_000) });
    worker.hears(1, [dispatch(3, C)]);
    assert!(worker.started().is_empty(), "nor does it start an attempt");
}

#[test]
fn a_renewal_counts_from_before_it_was_asked() {
    let mut worker = Stage::new();
    worker.until(10);
    worker.step(Input::Renewed { asked_at: Timestamp::from_millis(3_000) });
    assert_eq!(worker.machine.fence_at(), Timestamp::from_millis(14_000));
    worker.step(Input::Renewed { asked_at: Timestamp::from_millis(1_000) });
    assert_eq!(
        worker.machine.fence_at(),
        Timestamp::from_millis(14_000),
        "an older answer takes nothing back"
    );
    worker.until(14);
    assert_eq!(worker.fenced_at, Some(Timestamp::from_millis(14_000)));
}

#[test]
fn a_renewal_that_is_answered_too_late_does_not_help() {
    let mut worker = Stage::new();
    worker.now = Timestamp::from_millis(11_000);
    worker.step(Input::Renewed { asked_at: Timestamp::from_millis(9_000) });
    assert!(worker.machine.is_fenced());
}

#[test]
fn the_session_is_renewed_in_time() {
    let mut worker = Stage::new();
    for asked in [3, 6, 9, 12, 15, 18] {
        worker.until(asked);
        worker.step(Input::Renewed { asked_at: worker.now });
    }
    assert_eq!((worker.renewals, worker.fenced_at), (6, None));
}

#[test]
fn after_a_refused_renewal_what_waits_goes_elsewhere_and_what_runs_goes_on() {
    let mut worker = Stage::new();
    worker.hears(1, [dispatch(1, A), dispatch(2, B)]);
    worker.reports();
    worker.step(Input::Refused);
    assert_eq!(worker.reports(), [(B, "handed back")]);
    assert!(worker.stopped().is_empty());
    worker.until(10);
    assert_eq!(worker.renewals, 0);
    worker.succeeds(A);
    assert!(worker.reports().contains(&(A, "success")));
    worker.until(11);
    assert!(worker.fenced_at.is_some());
}

#[test]
fn more_capacity_starts_what_waits_and_less_stops_nothing() {
    let mut worker = Stage::with(|o| o.prefetch = 4);
    worker.hears(1, [dispatch(1, A), dispatch(2, B), dispatch(3, C)]);
    assert_eq!(worker.started(), [A]);
    worker.step(Input::Capacity(2));
    assert_eq!(worker.started(), [B]);
    worker.step(Input::Capacity(1));
    assert!(worker.stopped().is_empty());
    worker.succeeds(A);
    assert!(worker.started().is_empty());
    worker.succeeds(B);
    assert_eq!(worker.started(), [C]);
}

#[test]
fn a_lane_gets_credit_for_all_room_and_more_as_room_returns() {
    let mut worker = Stage::new();
    worker.hears(1, [demand()]);
    assert_eq!(worker.credit(0), Some(2));
    worker.hears(1, [dispatch(1, A), dispatch(2, B)]);
    assert_eq!(worker.credit(0), None);
    worker.succeeds(A);
    assert_eq!(worker.credit(0), Some(3));
    worker.succeeds(B);
    assert_eq!(worker.credit(0), Some(4));
}

#[test]
fn lanes_without_work_share_the_room() {
    let mut worker = Stage::with(|o| (o.capacity, o.prefetch, o.lanes) = (3, 1, 2));
    worker.hears_of(0, 1, [ToWorker::Demand { wanted: 0, up_to: DispatchNo(0) }]);
    assert_eq!(worker.credit(0), Some(2));
    worker.hears_of(1, 1, [ToWorker::Demand { wanted: 0, up_to: DispatchNo(0) }]);
    assert_eq!(worker.credit(1), Some(2));
}

/// More lanes than room: returned credit used to go to lanes that did not need it, and the busy lane got it
/// back slowly.
#[test]
fn room_that_returns_goes_to_the_lane_that_has_work() {
    let mut worker = Stage::with(|o| (o.capacity, o.prefetch, o.lanes) = (2, 0, 16));
    for lane in 1..16 {
        worker.hears_of(lane, 1, [ToWorker::Demand { wanted: 0, up_to: DispatchNo(0) }]);
        assert_eq!(worker.credit(lane), (lane < 3).then_some(1));
    }
    worker.hears_of(0, 1, [demand()]);
    worker.hears_of(1, 1, [skip(1, 1)]);
    worker.hears_of(2, 1, [skip(1, 1)]);
    assert_eq!(worker.credit(0), Some(2));
    worker.hears_of(0, 1, [dispatch(1, A), dispatch(2, B)]);
    worker.succeeds(A);
    assert_eq!(worker.credit(0), Some(3), "though its owner has not asked for more yet");
    worker.hears_of(0, 1, [dispatch(3, C), demand()]);
    worker.succeeds(B);
    assert_eq!(worker.credit(0), Some(4));
    // It needs no more: every lane gets some.
    worker.succeeds(C);
    assert_eq!(worker.credit(0), Some(5));
    worker.hears_of(0, 1, [skip(4, 5)]);
    assert_eq!(worker.credit(1), Some(2));
}

#[test]
fn room_that_one_lane_does_not_need_is_asked_back_for_another() {
    let mut worker = Stage::with(|o| (o.capacity, o.prefetch, o.lanes) = (3, 1, 2));
    worker.hears_of(0, 1, [demand()]);
    assert_eq!(worker.credit(0), Some(4), "no other lane wanted it");
    worker.hears_of(1, 1, [demand()]);
    assert!(worker.heartbeat(0).unwrap().wanted_back);
    worker.hears_of(1, 1, [demand()]);
    assert!(worker.heartbeat(0).is_none(), "asked once");
    worker.hears_of(0, 1, [skip(2, 4)]);
    assert_eq!(worker.credit(1), Some(3), "the returned credit");
    worker.hears_of(0, 1, [dispatch(1, A), dispatch(2, B)]);
    assert_eq!(worker.started(), [A], "a number that was given back is used up");
}

/// A worker of two lanes with room for four. The first lane was promised all of it, and the second one wants
/// some.
fn promised_and_wanted(change: impl FnOnce(&mut WorkerOptions)) -> Stage {
    let mut worker = Stage::with(|o| {
        (o.capacity, o.prefetch, o.lanes, o.ttl) = (3, 1, 2, Duration::from_hours(1));
        change(o);
    });
    worker.hears_of(0, 1, [demand()]);
    assert_eq!(worker.credit(0), Some(4));
    worker.hears_of(1, 1, [demand_up_to(4, 4)]);
    assert!(worker.heartbeat(0).is_some_and(|heartbeat| heartbeat.wanted_back));
    worker
}

/// Room promised to a lane without an owner used to be lost to the other lanes until a server owned it again.
#[test]
fn what_a_silent_owner_was_promised_goes_to_another_lane() {
    let mut worker = promised_and_wanted(|o| o.silent_after = 3);
    worker.until(5);
    assert_eq!(worker.credit(1), None, "two heartbeats are not enough");
    worker.until(6);
    assert_eq!(worker.credit(1), Some(4));
    assert_eq!(worker.machine.counters().promise_passed_on, 1);
}

#[test]
fn an_owner_that_says_anything_keeps_its_promise() {
    let mut worker = promised_and_wanted(|o| o.silent_after = 3);
    for secs in [5, 9, 13, 17, 21] {
        worker.until(secs);
        assert_eq!(worker.credit(1), None);
        worker.hears_of(0, 1, []);
    }
}

#[test]
fn an_owner_that_is_not_asked_may_be_silent() {
    let mut worker = Stage::with(|o| (o.capacity, o.lanes, o.ttl) = (3, 2, Duration::from_hours(1)));
    worker.hears_of(0, 1, [demand()]);
    worker.until(60);
    worker.hears_of(1, 1, [demand()]);
    assert_eq!(worker.credit(1), None, "its owner was never asked");
}

#[test]
fn a_silent_owner_may_still_use_its_promise_and_the_surplus_is_handed_back() {
    let attempts: Vec<AttemptId> = (1..=8).map(attempt).collect();
    let sent = |range: std::ops::Range<usize>| -> Vec<ToWorker> {
        (1..).zip(&attempts[range]).map(|(k, &attempt)| dispatch(k, attempt)).collect()
    };
    let mut worker = promised_and_wanted(|o| (o.silent_after, o.surplus) = (1, 2));
    worker.until(2);
    worker.hears_of(1, 1, sent(0..4));
    worker.reports();
    worker.hears_of(0, 1, sent(4..8));
    let accepted = |at: usize| (attempts[at], "accepted");
    let handed_back = |at: usize| (attempts[at], "handed back");
    assert_eq!(worker.reports(), [handed_back(6), handed_back(7), accepted(4), accepted(5)]);
    assert_eq!((worker.machine.load(), worker.machine.load_max()), (6, 6));
    assert_eq!(worker.started(), attempts[..3]);
    // The worker promises no more before it has worked off the surplus.
    worker.hears_of(1, 1, [demand()]);
    assert_eq!(worker.credit(1), Some(4), "it is answered");
    for &done in &attempts[..2] {
        worker.succeeds(done);
        assert_eq!(worker.credit(1), None);
    }
    worker.succeeds(attempts[2]);
    assert_eq!(worker.credit(1), Some(5));
}

#[test]
fn demand_of_several_lanes_is_shared_evenly() {
    let mut worker = Stage::with(|o| (o.capacity, o.prefetch, o.lanes) = (4, 0, 3));
    worker.hears_of(0, 1, [demand()]);
    worker.said.clear();
    worker.hears_of(1, 1, [demand()]);
    worker.hears_of(2, 1, [demand()]);
    worker.said.clear();
    worker.hears_of(0, 1, [skip(1, 4)]);
    let given: Vec<(u16, u64)> = worker
        .said
        .iter()
        .filter_map(|(lane, message)| match message {
            ToLane::Credit { credit, .. } => Some((lane.0, credit.0)),
            _ => None,
        })
        .collect();
    assert_eq!(given, [(1, 2), (2, 2)]);
}

/// An ended attempt frees one place. It used to go to the lowest busy lane each time, and the others rarely
/// got one.
#[test]
fn lanes_with_work_take_turns() {
    let mut worker = Stage::with(|o| (o.capacity, o.prefetch, o.lanes) = (1, 0, 3));
    for lane in 0..3 {
        worker.hears_of(lane, 1, [demand()]);
    }
    let mut turns = Vec::new();
    let mut credits = BTreeMap::new();
    for n in 0..9 {
        let given = std::mem::take(&mut worker.said).into_iter().find_map(|(lane, message)| match message {
            ToLane::Credit { credit, .. } if credits.insert(lane, credit).unwrap_or_default() < credit => {
                Some((lane.0, credit.0))
            }
            _ => None,
        });
        let (lane, k) = given.expect("a lane gets the place");
        turns.push(lane);
        let attempt = AttemptId { task: TaskId::from_random(100 + n), number: AttemptNo(1) };
        worker.hears_of(lane, 1, [dispatch(k, attempt), demand()]);
        worker.succeeds(attempt);
    }
    assert_eq!(turns, [0, 1, 2, 0, 1, 2, 0, 1, 2]);
}

/// Credits of a lane since the last look, each with the demand that it answers.
fn credits(worker: &mut Stage, lane: u16) -> Vec<(u64, u64)> {
    let credit = |(to, message)| match message {
        ToLane::Credit { credit, answered, .. } if to == LaneId(lane) => Some((credit.0, answered.0)),
        _ => None,
    };
    std::mem::take(&mut worker.said).into_iter().filter_map(credit).collect()
}

#[test]
fn a_lane_that_asks_is_answered_also_when_there_is_no_room() {
    let mut worker = Stage::with(|o| (o.capacity, o.prefetch) = (1, 0));
    worker.hears(1, [demand_up_to(1, 1)]);
    assert_eq!(credits(&mut worker, 0), [(1, 1)]);
    worker.hears(1, [dispatch(1, A), demand_up_to(3, 4)]);
    assert_eq!(credits(&mut worker, 0), [(1, 4)], "no more for now");
    worker.succeeds(A);
    assert_eq!(credits(&mut worker, 0), [(2, 4)], "the demand is kept");
    worker.step(Input::Drain);
    worker.hears(1, [demand_up_to(9, 20)]);
    assert_eq!(credits(&mut worker, 0), [(2, 20)]);
}

#[test]
fn an_answer_waits_for_credit_that_other_lanes_give_back() {
    let mut worker = Stage::with(|o| (o.capacity, o.prefetch, o.lanes) = (6, 0, 3));
    for lane in 0..3 {
        worker.hears_of(lane, 1, [demand_up_to(0, 0)]);
    }
    worker.said.clear();
    worker.hears_of(0, 1, [demand_up_to(4, 6)]);
    let asked_back = |lane: u16| {
        let wants = |m: &ToLane| matches!(m, ToLane::Heartbeat(heartbeat) if heartbeat.wanted_back);
        worker.said.iter().any(|(to, message)| *to == LaneId(lane) && wants(message))
    };
    assert_eq!([0, 1, 2].map(asked_back), [false, true, true]);
    assert_eq!(credits(&mut worker, 0), [], "there may be more in a moment");
    worker.hears_of(1, 1, [skip(1, 2)]);
    assert_eq!(credits(&mut worker, 0), [(4, 0)]);
    // The last one has work of its own.
    worker.hears_of(2, 1, [demand_up_to(1, 3)]);
    assert_eq!(credits(&mut worker, 0), [(4, 6)]);
}

#[test]
fn lanes_that_ask_get_no_more_than_they_want() {
    let mut worker = Stage::with(|o| (o.capacity, o.prefetch, o.lanes) = (10, 0, 2));
    let modest = [demand_up_to(2, 2)];
    let greedy = [demand_up_to(100, 100)];
    let batch = |lane: u16, messages: Vec<ToWorker>| OwnerBatch {
        lane: LaneId(lane),
        epoch: Epoch(1),
        session: SESSION,
        messages,
    };
    // They come together.
    let mut effects = Vec::new();
    worker.machine.take(Input::Owner(batch(0, greedy.into())), Timestamp::ZERO, &mut effects);
    worker.machine.take(Input::Owner(batch(1, modest.into())), Timestamp::ZERO, &mut effects);
    worker.step(Input::Tick);
    assert_eq!(worker.credit_of(&[0, 1]), [8, 2]);
}

#[test]
fn a_late_or_repeated_demand_adds_nothing() {
    let mut worker = Stage::with(|o| (o.capacity, o.prefetch, o.lanes) = (10, 0, 2));
    worker.hears_of(1, 1, [demand_up_to(0, 0)]);
    worker.hears_of(0, 1, [demand_up_to(3, 3)]);
    worker.said.clear();
    worker.hears_of(0, 1, [demand_up_to(3, 3), demand_up_to(1, 1)]);
    assert_eq!(credits(&mut worker, 0), []);
}

/// A lane used to keep the credit left over from a burst, and each other lane had to ask for its next task.
#[test]
fn when_no_lane_has_work_every_lane_gets_a_little_again() {
    let mut worker = Stage::with(|o| (o.capacity, o.prefetch, o.lanes) = (3, 0, 3));
    worker.hears_of(0, 1, [demand_up_to(3, 3)]);
    for lane in 1..3 {
        worker.hears_of(lane, 1, [demand_up_to(0, 0)]);
        assert_eq!(worker.credit(lane), None);
    }
    worker.until(2);
    assert!(!worker.heartbeat(0).unwrap().wanted_back, "it had work a moment ago");
    worker.until(4);
    assert!(worker.heartbeat(0).unwrap().wanted_back);
    worker.hears_of(0, 1, [skip(1, 3)]);
    assert_eq!(worker.credit_of(&[0, 1, 2]), [4, 1, 1]);
}

/// An owner that knew of the worker's burst for another lane used to pass it over until the next heartbeat.
#[test]
fn owners_that_know_a_higher_load_learn_that_it_has_fallen() {
    let mut worker = Stage::with(|o| (o.capacity, o.prefetch, o.lanes) = (4, 0, 2));
    worker.hears_of(1, 1, [demand_up_to(0, 0)]);
    worker.hears_of(0, 1, [dispatch(1, A), dispatch(2, B)]);
    worker.until(2);
    assert_eq!(worker.heartbeat(1).unwrap().load, 2);
    let loads = |worker: &mut Stage, lane: u16| -> Vec<u32> {
        let load = |(to, message)| match message {
            ToLane::Credit { load, .. } if to == LaneId(lane) => Some(load),
            _ => None,
        };
        std::mem::take(&mut worker.said).into_iter().filter_map(load).collect()
    };
    worker.succeeds(A);
    worker.succeeds(B);
    assert_eq!(loads(&mut worker, 1), []);
    worker.until(3);
    assert_eq!(loads(&mut worker, 1), [0], "once, though two have ended");
}

#[test]
fn unacknowledged_reports_take_room() {
    let mut worker = Stage::with(|o| (o.prefetch, o.unacked_max) = (0, 0));
    worker.hears(1, [demand()]);
    assert_eq!(worker.credit(0), Some(1));
    worker.hears(1, [dispatch(1, A)]);
    worker.succeeds(A);
    assert_eq!(worker.credit(0), None);
    worker.is_acked(A);
    assert_eq!(worker.credit(0), Some(2));
}

#[test]
fn a_dispatch_beyond_the_credit_is_not_refused() {
    // The message that raised the credit may have been lost; the worker has room for the dispatch.
    let mut worker = Stage::new();
    worker.hears(1, [dispatch(1, A), dispatch(2, B), dispatch(3, C)]);
    assert_eq!(worker.started(), [A]);
    assert_eq!(worker.machine.load(), 3);
}

/// An attempt that could not start for want of file descriptors used to fail, and so did the attempts behind
/// it, one after the other.
#[test]
fn a_worker_whose_machine_lacks_something_hands_back_and_pauses() {
    let mut worker = Stage::with(|o| (o.capacity, o.prefetch) = (2, 2));
    worker.hears(1, [dispatch(1, A), dispatch(2, B), dispatch(3, C)]);
    assert_eq!(worker.started(), [A, B]);
    worker.reports();
    worker.cannot_start(A);
    assert_eq!(worker.reports(), [(A, "handed back"), (C, "handed back")]);
    worker.cannot_start(B);
    assert_eq!(worker.reports(), [(B, "handed back")]);
    assert_eq!(
        worker.pauses,
        [Duration::from_secs(1)],
        "attempts that fail together are one reason to pause"
    );

    // An owner that does not know of the pause yet.
    worker.hears(1, [demand(), dispatch(4, attempt(4))]);
    assert_eq!(worker.reports(), [(attempt(4), "handed back")]);
    assert_eq!((worker.started(), worker.resumed), (vec![], 0));
    worker.until(1);
    assert_eq!(worker.resumed, 1);
    worker.hears(1, [dispatch(5, attempt(5))]);
    assert_eq!(worker.started(), [attempt(5)]);
}

#[test]
fn pauses_grow_until_an_attempt_has_started_and_ended() {
    let mut worker = Stage::with(|o| (o.prefetch, o.pause_max) = (0, Duration::from_secs(4)));
    // The session is kept alive.
    let step = |worker: &mut Stage, secs: i64, n: u64, starts: bool| {
        let asked_at = Timestamp::from_millis(secs * 1000);
        worker.step(Input::Renewed { asked_at });
        worker.until(secs);
        worker.hears(1, [dispatch(n, attempt(n.into()))]);
        assert_eq!(worker.started(), [attempt(n.into())]);
        if starts { worker.succeeds(attempt(n.into())) } else { worker.cannot_start(attempt(n.into())) }
    };
    for (n, at) in [(1, 0), (2, 1), (3, 3), (4, 7)] {
        step(&mut worker, at, n, false);
    }
    assert_eq!(worker.pauses, [1, 2, 4, 4].map(Duration::from_secs));
    step(&mut worker, 11, 5, true);
    step(&mut worker, 11, 6, false);
    assert_eq!(worker.pauses.last(), Some(&Duration::from_secs(1)));
}
