//! Schedules keep their bytes: see `tasklane_testkit::golden`.

#![allow(clippy::unwrap_used, reason = "in tests a panic is an answer")]

use std::sync::Arc;
use std::time::Duration;

use tasklane_core::id::{Name, QueueKey, TaskId};
use tasklane_core::task::{Fingerprint, NewTask, Occasion, Priority, TaskBody, TaskHead, TaskSpec, Webhook};
use tasklane_core::time::Timestamp;
use tasklane_schedule::{
    Alert, AlertKind, Backfill, Fate, Fire, MissedPolicy, Overlap, PastFire, PlannedFire, Rule, Schedule,
    ScheduleState, Span, UnbegunFire, When,
};
use tasklane_testkit::golden::check;
use tasklane_testkit::variants;

const AT: Timestamp = Timestamp::from_millis(1_800_000_000_000);
const LATER: Timestamp = Timestamp::from_millis(1_800_000_060_000);
const SECONDS: Duration = Duration::new(90, 500_000_000);

fn task() -> TaskId {
    TaskId::from_random(7)
}

fn new_task() -> NewTask {
    let name = |text| Name::new(text).unwrap();
    let head = TaskHead {
        queue: QueueKey::new(name("default"), name("mail")),
        task_type: name("NOOP"),
        runs_as: None,
        priority: Priority::default(),
        labels: [].into(),
        flow: Vec::new(),
        hash_bucket: None,
        execution_timeout: SECONDS,
        start_timeout: None,
        progress_timeout: None,
        retry: tasklane_core::retry::RetryPolicy::default(),
    };
    let body = TaskBody { name: "t".to_owned(), schedule: Some("s".to_owned()), ..TaskBody::default() };
    NewTask {
        id: task(),
        spec: TaskSpec { head: Arc::new(head), body: Arc::new(body) },
        created_at: AT,
        due: AT,
        fingerprint: Fingerprint { version: 1, hash: 2 },
        queue_len_max: None,
        unique: None,
        shift: None,
    }
}

fn rule() -> Rule {
    Rule {
        when: When::Cron("0 3 * * *".to_owned()),
        timezone: "Europe/Berlin".to_owned(),
        from: Some(AT),
        until: Some(LATER),
        jitter: Duration::from_secs(5),
        overlap: Overlap::BufferOne,
        missed: MissedPolicy::RunAll,
        missed_after: Some(SECONDS),
        catch_up: Duration::from_hours(1),
        pause_after: Some(3),
        late_after: Some(SECONDS),
        webhooks: vec![Webhook {
            url: "https://example.com".to_owned(),
            on: vec![Occasion::Failing, Occasion::Late],
        }],
        task: r#"{"taskName":"t","taskType":"NOOP"}"#.to_owned(),
    }
}

fn state() -> ScheduleState {
    let fire = Fire { nominal: AT, backfill: 2 };
    ScheduleState {
        paused: Some("3 failures in a row".to_owned()),
        next: Some(LATER),
        put_off: vec![
            Span { from: AT, end: LATER, begun: true },
            Span { from: AT, end: LATER, begun: false },
        ],
        dealt_with: Some(LATER),
        planned: vec![PlannedFire { fire, task: Box::new(new_task()) }],
        cancels: vec![task()],
        buffered: Some(AT),
        waiting: vec![LATER],
        open: vec![task()],
        failures: 2,
        backfill: Some(Backfill { number: 2, after: AT, until: LATER }),
        backfills: 2,
        failing: true,
        late: Some(AT),
        unbegun: vec![
            UnbegunFire { nominal: AT, task: Some(task()), reason: String::new() },
            UnbegunFire { nominal: LATER, task: None, reason: "the queue is full".to_owned() },
        ],
        alerts: vec![alert(AlertKind::Failing, None), alert(AlertKind::Late, Some(AT))],
        alerted: 2,
        history: vec![PastFire { fire, at: LATER, what: Fate::Fired { task: task() } }],
        ..ScheduleState::new(AT)
    }
}

fn alert(what: AlertKind, nominal: Option<Timestamp>) -> Alert {
    Alert { number: 1, at: LATER, what, failures: 2, nominal, reason: "task 7 has failed".to_owned() }
}

#[test]
fn schedules_keep_their_bytes() {
    check("schedule", |golden| {
        golden.packed("Schedule", &Schedule { rule: rule(), state: state() });
        let least = Rule {
            from: None,
            until: None,
            missed_after: None,
            pause_after: None,
            late_after: None,
            webhooks: Vec::new(),
            ..rule()
        };
        golden.packed("Schedule least", &Schedule { rule: least, state: ScheduleState::new(AT) });
        golden.variants(
            "When",
            variants!(When: Cron, Quartz, Every, At),
            [
                When::Cron("@daily".to_owned()),
                When::Quartz("0 0 3 ? * MON".to_owned()),
                When::Every { interval: SECONDS, anchor: AT },
                When::At(AT),
            ],
        );
        golden.variants(
            "Overlap",
            variants!(Overlap: Skip, BufferOne, BufferAll, CancelOther, AllowAll),
            [Overlap::Skip, Overlap::BufferOne, Overlap::BufferAll, Overlap::CancelOther, Overlap::AllowAll],
        );
        golden.variants(
            "Missed",
            variants!(MissedPolicy: Skip, RunOnce, RunAll),
            [MissedPolicy::Skip, MissedPolicy::RunOnce, MissedPolicy::RunAll],
        );
        let reason = || "the task before has not finished".to_owned();
        golden.variants(
            "Fate",
            variants!(Fate: Fired, Skipped, Missed),
            [
                Fate::Fired { task: task() },
                Fate::Skipped { reason: reason() },
                Fate::Missed { reason: reason(), count: 4 },
            ],
        );
        golden.variants(
            "News",
            variants!(AlertKind: Failing, Paused, Recovered, Late, OnTime),
            [AlertKind::Failing, AlertKind::Paused, AlertKind::Recovered, AlertKind::Late, AlertKind::OnTime],
        );
    });
}
