//! Stored and bus types of this crate keep their bytes: see `tasklane_testkit::golden`.

#![allow(clippy::unwrap_used, reason = "in tests a panic is an answer")]

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use tasklane_core::command::Command;
use tasklane_core::commit::{GroupOutcome, RecordKind, SubmitOutcome};
use tasklane_core::id::{
    AttemptNo, DispatchNo, Epoch, LaneId, LimitId, Name, QueueKey, Seq, SessionId, TaskId,
};
use tasklane_core::lock::SteadyEnd;
use tasklane_core::member::{Role, WorkerDescriptor};
use tasklane_core::message::{
    AckReason, AttemptId, Control, Dispatch, Ending, EventBatch, EventPlace, Finish, Heartbeat, HeldAttempt,
    HeldState, Message, OwnerBatch, Report, RetryAdvice, TaskEvent, ToLane, ToWorker, WorkerBatch,
    WorkerStats,
};
use tasklane_core::policy::{
    Concurrency, ConcurrencyLimit, QueueBinding, QueuePolicy, Rate, RateLimit, Strategy, UniqueRule,
    VersionedPolicy, WhenFull, WhenReached,
};
use tasklane_core::retry::RetryPolicy;
use tasklane_core::status::{Status, Version};
use tasklane_core::task::{
    AttemptOutcome, AttemptRecord, ChildOf, Fingerprint, FlowKey, NewTask, Occasion, OwnLimit, Payload,
    Priority, Progress, TaskBody, TaskError, TaskHead, TaskResult, TaskSpec, TaskState, Unique, Webhook,
};
use tasklane_core::time::{Shift, Timestamp};
use tasklane_testkit::golden::check;
use tasklane_testkit::variants;
use uuid::Uuid;

const LANE: LaneId = LaneId(3);
const AT: Timestamp = Timestamp::from_micros(1_800_000_000_000_001);
const LATER: Timestamp = Timestamp::from_micros(1_800_000_001_500_000);
const SECONDS: Duration = Duration::new(90, 500_000_000);

fn name(text: &str) -> Name {
    Name::new(text).unwrap()
}

fn queue() -> QueueKey {
    QueueKey::new(name("default"), name("mail"))
}

fn task() -> TaskId {
    TaskId::from_random(0x0003_0102_0304_8506_8708_090a_0b0c_0d0e)
}

fn session() -> SessionId {
    SessionId::from_random(0x1112_1314_1516_4718_9921_2223_2425_2627)
}

fn pairs(text: &str) -> BTreeMap<String, String> {
    BTreeMap::from([(text.to_owned(), "1".to_owned())])
}

#[expect(clippy::unnecessary_wraps, reason = "fields of this kind are optional")]
fn some<T>(value: &str, of: impl Fn(String) -> T) -> Option<T> {
    Some(of(value.to_owned()))
}

fn error() -> TaskError {
    TaskError::new("exit_code", "it ended with 2")
}

fn result() -> TaskResult {
    TaskResult { code: -2, message: "done".to_owned(), data: r#"{"n":1}"#.to_owned() }
}

fn rate() -> Rate {
    Rate { limit: 600, per: SECONDS, burst: 5 }
}

fn unique_rule() -> UniqueRule {
    UniqueRule { key: "{{ metadata.k }}".to_owned(), hold_for: Some(SECONDS) }
}

fn webhook() -> Webhook {
    Webhook { url: "https://example.com/hook".to_owned(), on: vec![Occasion::Finished, Occasion::Late] }
}

fn retry() -> RetryPolicy {
    RetryPolicy {
        max_retries: 4,
        delay: Duration::from_millis(1500),
        backoff_percent: 150,
        delay_max: Duration::from_mins(2),
        jitter_percent: 20,
    }
}

fn limits() -> [OwnLimit; 2] {
    let concurrency = Concurrency { limit: 2, when_reached: WhenReached::CancelNewest };
    [OwnLimit::Concurrency(concurrency), OwnLimit::Rate(rate())]
}

fn head() -> TaskHead {
    let limit = LimitId::of("{{ metadata.k }}");
    let own = limits().map(Some).into_iter().chain([None]);
    TaskHead {
        queue: queue(),
        task_type: name("SHELL"),
        runs_as: Some(name("PYTHON")),
        priority: Priority::new(7).unwrap(),
        labels: pairs("gpu"),
        flow: own.map(|own| FlowKey { limit, key: "k1".into(), own }).collect(),
        hash_bucket: Some(1023),
        execution_timeout: Duration::from_mins(5),
        start_timeout: Some(SECONDS),
        progress_timeout: Some(Duration::from_secs(30)),
        retry: retry(),
    }
}

/// With nothing but what every head has.
fn least_head() -> TaskHead {
    TaskHead {
        runs_as: None,
        labels: BTreeMap::new(),
        flow: Vec::new(),
        hash_bucket: None,
        start_timeout: None,
        progress_timeout: None,
        ..head()
    }
}

fn body() -> TaskBody {
    TaskBody {
        name: "a mail".to_owned(),
        payload: Payload::Json("[1]".to_owned()),
        run: some("ls", Payload::Text),
        metadata: pairs("k"),
        request_id: some("r1", String::from),
        hash_key: some("h1", String::from),
        unique: Some(Box::new(unique_rule())),
        parent: Some(task()),
        child_name: some("n1", String::from),
        composite: true,
        webhooks: vec![webhook()],
        watched: true,
        archived: true,
        schedule: some("nightly", String::from),
        nominal_time: Some(AT),
        relative: true,
    }
}

fn new_task() -> NewTask {
    NewTask {
        id: task(),
        spec: TaskSpec { head: Arc::new(head()), body: Arc::new(body()) },
        created_at: AT,
        due: LATER,
        fingerprint: Fingerprint { version: 1, hash: u64::MAX - 1 },
        queue_len_max: Some(9),
        unique: Some(Unique::new("u1", Some(LATER))),
        shift: Some(Shift::from_micros(-7)),
    }
}

fn state() -> TaskState {
    TaskState {
        status: Status::Running,
        attempt: AttemptNo(4),
        retries: 1,
        lost: 2,
        lost_before_start: 3,
        due: AT,
        delayed: true,
        relative: true,
        shift: Some(Shift::from_micros(5)),
        start_by: Some(LATER),
        cancel_requested: true,
        created_at: AT,
        scheduled_at: Some(AT),
        dispatched_at: Some(AT),
        started_at: Some(AT),
        finished_at: Some(LATER),
        session: Some(session()),
        worker: Some(name("w1")),
        error: Some(error()),
        progress: Some(Box::new(progress())),
        child_of: Some(Box::new(ChildOf { composite: task(), name: "n1".to_owned() })),
        composite: true,
        watched: true,
    }
}

fn progress() -> Progress {
    Progress { percent: Some(40), message: "4 of 10".to_owned() }
}

fn attempt() -> AttemptRecord {
    AttemptRecord {
        number: AttemptNo(2),
        session: Some(session()),
        worker: Some(name("w1")),
        scheduled_at: AT,
        started_at: Some(AT),
        ended_at: Some(LATER),
        outcome: Some(AttemptOutcome::Failed),
        error: Some(error()),
    }
}

fn all_statuses() -> impl Iterator<Item = Status> {
    Status::ALL.into_iter()
}

#[test]
fn tasks_keep_their_bytes() {
    check("task", |golden| {
        golden.packed("TaskHead", &head());
        golden.packed("TaskHead least", &least_head());
        golden.variants("OwnLimit", variants!(OwnLimit: Concurrency, Rate), limits());
        golden.packed("TaskBody", &body());
        golden.packed("TaskBody least", &TaskBody { name: "t".to_owned(), ..TaskBody::default() });
        let payloads = [Payload::Text("a".to_owned()), Payload::Json("{}".to_owned())];
        golden.variants("Payload", variants!(Payload: Text, Json), payloads);
        let occasions = [Occasion::Finished, Occasion::Failed, Occasion::Failing, Occasion::Late];
        golden.variants("Occasion", variants!(Occasion: Finished, Failed, Failing, Late), occasions);
        golden.packed("NewTask", &new_task());
        golden.packed(
            "NewTask least",
            &NewTask { queue_len_max: None, unique: None, shift: None, ..new_task() },
        );
        golden.packed("Unique", &Unique::new("u1", None));
        golden.packed("TaskState", &state());
        let least = TaskSpec { head: Arc::new(least_head()), body: Arc::default() };
        golden
            .packed("TaskState least", &NewTask { spec: least, due: AT, shift: None, ..new_task() }.state());
        golden.packed("AttemptRecord", &attempt());
        let bare = AttemptRecord {
            session: None,
            worker: None,
            started_at: None,
            ended_at: None,
            outcome: None,
            error: None,
            ..attempt()
        };
        golden.packed("AttemptRecord least", &bare);
        let outcomes = [
            AttemptOutcome::Success,
            AttemptOutcome::Failed,
            AttemptOutcome::TimedOut,
            AttemptOutcome::Cancelled,
            AttemptOutcome::Lost,
            AttemptOutcome::HandedBack,
        ];
        golden.variants(
            "AttemptOutcome",
            variants!(AttemptOutcome: Success, Failed, TimedOut, Cancelled, Lost, HandedBack),
            outcomes,
        );
        golden.packed("TaskResult", &result());
        golden.packed("TaskResult least", &TaskResult::default());
        golden.packed("Progress least", &Progress::default());
        golden.variants(
            "Status",
            variants!(Status: Pending, Scheduled, Dispatched, Running, Retrying, Success, Failed, Cancelled),
            all_statuses(),
        );
        golden.packed("SteadyEnd", &SteadyEnd { boot: Uuid::from_u128(7), until: AT });
    });
}

#[test]
fn messages_keep_their_bytes() {
    let attempt = AttemptId { task: task(), number: AttemptNo(2) };
    let dispatch =
        Dispatch { k: DispatchNo(5), attempt, head: Arc::new(head()), body: Some(Arc::new(body())) };
    let finish = Finish { ran: SECONDS, ending: Ending::Success, result: result() };
    let held = |state| HeldAttempt { attempt, state };
    let heartbeat = Heartbeat {
        beat: 8,
        epoch: Epoch(6),
        credit: DispatchNo(9),
        used: DispatchNo(4),
        held: vec![held(HeldState::Running(SECONDS))],
        load: 3,
        wanted_back: true,
    };
    let event = TaskEvent {
        task: task(),
        queue: queue(),
        status: Status::Success,
        attempt: AttemptNo(2),
        at: AT,
        composite: Some(task()),
    };
    let place = EventPlace { lane: LANE, epoch: Epoch(6), number: 11 };
    let events = EventBatch { origin: session(), place: Some(place), events: vec![event] };
    let stats = WorkerStats {
        session: session(),
        cpu_percent: 250,
        memory_bytes: 1 << 33,
        running: 4,
        queued: 2,
        at: AT,
    };
    let to_worker = || {
        [
            ToWorker::Dispatch(dispatch.clone()),
            ToWorker::Dispatch(Dispatch { body: None, head: Arc::new(least_head()), ..dispatch.clone() }),
            ToWorker::Skip { first: DispatchNo(1), last: DispatchNo(4) },
            ToWorker::Recall { k: DispatchNo(5), attempt },
            ToWorker::Stop { attempt },
            ToWorker::Ack { attempt, verdict: AckReason::Committed },
            ToWorker::Demand { wanted: 3, up_to: DispatchNo(12) },
        ]
    };
    let reports = || {
        [
            Report::Accepted,
            Report::Started { ago: SECONDS },
            Report::Progress(Box::new(progress())),
            Report::HandedBack { reason: "the worker leaves".to_owned() },
            Report::Finished(Box::new(finish.clone())),
        ]
    };
    let to_lane = || {
        [
            ToLane::Report { attempt, report: Report::Accepted },
            ToLane::Heartbeat(heartbeat.clone()),
            ToLane::Credit { epoch: Epoch(6), credit: DispatchNo(9), load: 1, answered: DispatchNo(8) },
        ]
    };
    let policy = Box::new(VersionedPolicy { version: 2, policy: QueuePolicy::default() });
    let owner =
        OwnerBatch { lane: LANE, epoch: Epoch(6), session: session(), messages: to_worker()[2..].into() };
    check("message", |golden| {
        golden.variants(
            "Message",
            variants!(Message: ToWorker, ToLane, Hint, Changed, Stats, Control, Servers, NotReceiving, Policy),
            [
                Message::ToWorker(owner),
                Message::ToLane(WorkerBatch { lane: LANE, session: session(), messages: to_lane().into() }),
                Message::Hint { lane: LANE },
                Message::Changed(events.clone()),
                Message::Stats(stats),
                Message::Control(Control::Drain),
                Message::Servers(vec!["10.0.0.5:7070".to_owned()]),
                Message::NotReceiving { session: session() },
                Message::Policy { lane: LANE, queue: queue(), policy },
            ],
        );
        golden.packed("EventBatch least", &EventBatch { place: None, ..events });
        golden.variants(
            "Control",
            variants!(Control: Capacity, Weight, Labels, Drain),
            [Control::Capacity(4), Control::Weight(2), Control::Labels(pairs("gpu")), Control::Drain],
        );
        golden.variants(
            "ToWorker",
            variants!(ToWorker: Dispatch, Skip, Recall, Stop, Ack, Demand),
            to_worker(),
        );
        golden.variants(
            "AckReason",
            variants!(AckReason: Committed, Stale),
            [AckReason::Committed, AckReason::Stale],
        );
        golden.variants("ToLane", variants!(ToLane: Report, Heartbeat, Credit), to_lane());
        golden.variants(
            "Report",
            variants!(Report: Accepted, Started, Progress, HandedBack, Finished),
            reports(),
        );
        golden.variants(
            "Ending",
            variants!(Ending: Success, Failed, TimedOut, Cancelled, NotStarted),
            [
                Ending::Success,
                Ending::Failed { error: error(), retry: RetryAdvice::Policy },
                Ending::TimedOut { error: error() },
                Ending::Cancelled,
                Ending::NotStarted { reason: "no file descriptor is left".to_owned() },
            ],
        );
        golden.variants(
            "RetryAdvice",
            variants!(RetryAdvice: Policy, After, Never),
            [RetryAdvice::Policy, RetryAdvice::After(SECONDS), RetryAdvice::Never],
        );
        golden.variants(
            "HeldState",
            variants!(HeldState: Queued, Running, Ended),
            [HeldState::Queued, HeldState::Running(SECONDS), HeldState::Ended],
        );
    });
}

#[test]
fn members_commands_and_outcomes_keep_their_bytes() {
    let worker = WorkerDescriptor {
        name: name("w1"),
        capacity: 8,
        weight: 2,
        labels: pairs("gpu"),
        task_types: BTreeSet::from([name("HTTP"), name("SHELL")]),
        draining: true,
        pause_reason: some("no memory is left", String::from),
        address: "10.0.0.7:7071".to_owned(),
    };
    let least = WorkerDescriptor { pause_reason: None, address: String::new(), ..worker.clone() };
    let server = |bus: &str| Role::Server { address: "10.0.0.5:7070".to_owned(), bus: bus.to_owned() };
    let version = Version { status: Status::Retrying, attempt: AttemptNo(2) };
    let submitted = || {
        [
            SubmitOutcome::Created { seq: Seq(4) },
            SubmitOutcome::Duplicate,
            SubmitOutcome::RequestIdReused,
            SubmitOutcome::Exists { task: task() },
            SubmitOutcome::QueueFull,
        ]
    };
    check("member", |golden| {
        golden.variants(
            "Role",
            variants!(Role: Server, Worker),
            [server("10.0.0.5:7072"), server(""), Role::Worker(worker), Role::Worker(least)],
        );
        golden.variants("Command", variants!(Command: Cancel), [Command::Cancel { task: task() }]);
        golden.variants(
            "GroupOutcome",
            variants!(GroupOutcome: Applied, NotCreated, Mismatch),
            [
                GroupOutcome::Applied { seq: Some(Seq(4)) },
                GroupOutcome::Applied { seq: None },
                GroupOutcome::NotCreated(SubmitOutcome::Duplicate),
                GroupOutcome::Mismatch { found: Some(version) },
                GroupOutcome::Mismatch { found: None },
            ],
        );
        golden.variants(
            "SubmitOutcome",
            variants!(SubmitOutcome: Created, Duplicate, RequestIdReused, Exists, QueueFull),
            submitted(),
        );
    });
}

#[test]
fn policies_keep_their_bytes() {
    let key = || some("{{ metadata.k }}", String::from);
    let concurrency = Concurrency { limit: 2, when_reached: WhenReached::Wait };
    let policy = QueuePolicy {
        paused: true,
        len_max: Some(100),
        strategy: Strategy::ConsistentHash { when_full: WhenFull::Next },
        weight: 3,
        concurrency: vec![ConcurrencyLimit { key: key(), concurrency }],
        rate: vec![RateLimit { key: None, rate: rate() }],
        unique: Some(unique_rule()),
        webhooks: vec![webhook()],
        spread: key(),
        retry: retry(),
        execution_timeout: SECONDS,
    };
    check("policy", |golden| {
        golden.packed("QueuePolicy", &policy);
        golden.packed("QueuePolicy default", &QueuePolicy::default());
        golden.packed("VersionedPolicy", &VersionedPolicy { version: 7, policy: QueuePolicy::default() });
        golden.variants(
            "Strategy",
            variants!(Strategy: Random, RoundRobin, LeastLoad, Weighted, ConsistentHash),
            [
                Strategy::Random,
                Strategy::RoundRobin,
                Strategy::LeastLoad,
                Strategy::Weighted,
                Strategy::ConsistentHash { when_full: WhenFull::Wait },
            ],
        );
        golden.variants("WhenFull", variants!(WhenFull: Wait, Next), [WhenFull::Wait, WhenFull::Next]);
        golden.variants(
            "WhenReached",
            variants!(WhenReached: Wait, CancelNewest),
            [WhenReached::Wait, WhenReached::CancelNewest],
        );
        golden.packed("UniqueRule", &UniqueRule { hold_for: None, ..unique_rule() });
        let spread = QueueBinding::Spread { lanes: 16, key: "{{ metadata.k }}".to_owned() };
        golden.variants(
            "QueueBinding",
            variants!(QueueBinding: Lane, Spread),
            [QueueBinding::Lane(LANE), spread],
        );
    });
}

/// Names and numbers that are stored as they are, and values that every version must compute alike.
#[test]
fn names_and_computed_values_stay() {
    check("value", |golden| {
        for status in Status::ALL {
            golden.text(&format!("Status::code {status}"), status.code());
        }
        for (kind, what) in [
            (RecordKind::Rate, "rate"),
            (RecordKind::AppliedPolicy, "applied policy"),
            (RecordKind::Completion, "completion note"),
        ] {
            golden.text(&format!("RecordKind::code {what}"), kind.code());
        }
        assert_eq!(RecordKind::ALL.len(), 3, "each kind has its entry");
        golden.text("Fingerprint::RETRY", Fingerprint::RETRY);
        golden.text("Name::SYSTEM_PREFIX", Name::SYSTEM_PREFIX);
        golden.text("WorkerDescriptor::NAME_LABEL", WorkerDescriptor::NAME_LABEL);
        let codes =
            [TaskError::TIMEOUT, TaskError::PROGRESS_TIMEOUT, TaskError::GUARD_LOST, TaskError::LEASE_LOST];
        golden.text("codes of TaskError", codes.join(" "));
        golden.text("TaskId::from_request", TaskId::from_request(LANE, &queue(), None, "r1"));
        golden.text("TaskId::from_request spread", TaskId::from_request(LANE, &queue(), Some("k1"), "r1"));
        golden.text("TaskId::from_time", TaskId::from_time(LANE, AT, 42));
        golden.text("QueueKey::default_lane", queue().default_lane(1000));
        golden.text("QueueKey::spread_lane", queue().spread_lane("k1", 1000));
        golden.text("TaskHead::bucket_of", TaskHead::bucket_of("h1"));
        golden.text("TaskHead::line", format!("{:?}", head().line()));
        golden.text("TaskHead::line least", format!("{:?}", least_head().line()));
        golden.text("LimitId::of", LimitId::of("{{ metadata.k }}"));
        golden.text("LimitId::of_own_rate", LimitId::of_own_rate("{{ metadata.k }}", &rate()));
    });
}

/// Fields that earlier versions did not write have their default.
#[test]
fn values_of_earlier_versions_are_read() {
    let demand: ToWorker = serde_json::from_str(r#"{"Demand":{"wanted":3}}"#).unwrap();
    assert_eq!(demand, ToWorker::Demand { wanted: 3, up_to: DispatchNo(0) });
    let credit: ToLane = serde_json::from_str(r#"{"Credit":{"epoch":6,"credit":9,"load":1}}"#).unwrap();
    let expected =
        ToLane::Credit { epoch: Epoch(6), credit: DispatchNo(9), load: 1, answered: DispatchNo(0) };
    assert_eq!(credit, expected);
    assert_eq!(serde_json::from_str::<QueuePolicy>("{}").unwrap(), QueuePolicy::default());
}
