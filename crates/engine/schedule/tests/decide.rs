//! What a schedule does, step by step.

#![expect(clippy::unwrap_used, reason = "tests fail by panicking")]

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tasklane_core::id::{LaneId, Name, QueueKey, TaskId};
use tasklane_core::invariant::Invariants;
use tasklane_core::retry::RetryPolicy;
use tasklane_core::task::{Fingerprint, NewTask, Occasion, Priority, TaskBody, TaskHead, TaskSpec, Webhook};
use tasklane_core::time::Timestamp;
use tasklane_schedule::{
    BUFFER_MAX, FIRES_MAX, Fate, Fire, Look, Missed, News, Overlap, Rule, Schedule, Stand, Submitted, Times,
    When,
};

const HOUR: i64 = 3600;

fn at(seconds: i64) -> Timestamp {
    Timestamp::from_millis(seconds * 1000)
}

fn hourly() -> Rule {
    Rule {
        when: When::Cron("0 * * * *".to_owned()),
        timezone: "UTC".to_owned(),
        from: None,
        until: None,
        jitter: Duration::ZERO,
        overlap: Overlap::Skip,
        missed: Missed::RunOnce,
        missed_after: None,
        catch_up: Duration::from_hours(24),
        pause_after: None,
        late_after: None,
        webhooks: Vec::new(),
        task: "{}".to_owned(),
    }
}

/// A schedule and what is known of its tasks.
struct Story {
    schedule: Schedule,
    times: Times,
    ended: BTreeMap<TaskId, Stand>,
    made: u64,
    /// The clock is trusted.
    settled: bool,
}

impl Story {
    fn new(rule: Rule) -> Self {
        let times = Times::new(&rule.when, &rule.timezone).unwrap();
        let schedule = Schedule::new(rule, &times, at(1));
        Self { schedule, times, ended: BTreeMap::new(), made: 0, settled: true }
    }

    fn task(&mut self) -> NewTask {
        self.made += 1;
        let head = TaskHead {
            queue: QueueKey::new(Name::new("n").unwrap(), Name::new("q").unwrap()),
            task_type: Name::new("T").unwrap(),
            priority: Priority::default(),
            labels: BTreeMap::new(),
            flow: Vec::new(),
            hash_bucket: None,
            execution_timeout: Duration::from_secs(1),
            start_timeout: None,
            progress_timeout: None,
            runs_as: None,
            retry: RetryPolicy::default(),
        };
        NewTask {
            id: TaskId::from_time(LaneId(0), at(0), self.made),
            spec: TaskSpec { head: Arc::new(head), body: Arc::new(TaskBody::default()) },
            created_at: at(0),
            due: at(0),
            fingerprint: Fingerprint { version: 1, hash: 0 },
            queue_len_max: None,
            unique: None,
            shift: None,
        }
    }

    /// Decides and plans.
    fn plan(&mut self, now: i64) -> Vec<(TaskId, i64)> {
        let look =
            Look { now: at(now), settled: self.settled, stands: &self.ended, invariants: Invariants::ALL_ON };
        let fires = self.schedule.decide("s", &self.times, &look);
        for fire in fires {
            let task = self.task();
            self.schedule.plan(fire, Ok(task), at(now));
        }
        let planned = self.schedule.state.planned.iter();
        planned.map(|planned| (planned.task.id, planned.fire.nominal.as_micros() / 1_000_000)).collect()
    }

    /// Decides, plans and submits; answers the times that were fired.
    fn fire(&mut self, now: i64) -> Vec<i64> {
        let planned = self.plan(now);
        for (task, _) in &planned {
            self.schedule.settle(*task, Submitted::Yes, at(now));
        }
        planned.into_iter().map(|(_, nominal)| nominal).collect()
    }

    /// The last task ends.
    fn end(&mut self, how: Stand) {
        let task = *self.schedule.state.open.last().expect("one is open");
        self.ended.insert(task, how);
    }

    fn fates(&self) -> Vec<(i64, &'static str)> {
        let history = self.schedule.state.history.iter();
        history
            .map(|past| {
                let what = match past.what {
                    Fate::Fired { .. } => "fired",
                    Fate::Skipped { .. } => "skipped",
                    Fate::Missed { .. } => "missed",
                };
                (past.fire.nominal.as_micros() / 1_000_000, what)
            })
            .collect()
    }

    fn due(&self, now: i64) -> Option<i64> {
        self.schedule.due("s", at(now)).map(|due| due.as_micros() / 1_000_000)
    }
}

#[test]
fn each_time_is_fired_once() {
    let mut story = Story::new(Rule { overlap: Overlap::AllowAll, ..hourly() });
    assert_eq!(story.due(1), Some(HOUR));
    assert_eq!(story.fire(HOUR - 1), [0; 0]);
    assert_eq!(story.fire(HOUR), [HOUR]);
    assert_eq!(story.fire(HOUR), [0; 0]);
    assert_eq!(story.due(HOUR), Some(2 * HOUR));
    assert_eq!(story.fire(HOUR - 10), [0; 0], "a clock that goes back fires nothing again");
    assert_eq!(story.fire(2 * HOUR + 1), [2 * HOUR]);
    assert_eq!(story.fates(), [(HOUR, "fired"), (2 * HOUR, "fired")]);
}

#[test]
fn what_is_planned_is_submitted_before_anything_else_is_decided() {
    let mut story = Story::new(Rule { overlap: Overlap::AllowAll, ..hourly() });
    let planned = story.plan(HOUR);
    assert_eq!(story.due(HOUR), Some(HOUR), "until it is settled");
    assert_eq!(story.plan(2 * HOUR), planned, "the same task, however often it is looked at");
    story.schedule.settle(planned[0].0, Submitted::Yes, at(2 * HOUR));
    story.schedule.settle(planned[0].0, Submitted::Yes, at(2 * HOUR));
    assert_eq!(story.fates(), [(HOUR, "fired")]);
    assert_eq!(story.fire(2 * HOUR), [2 * HOUR]);
}

#[test]
fn overlap_skip() {
    let mut story = Story::new(hourly());
    assert_eq!(story.fire(HOUR), [HOUR]);
    assert_eq!(story.fire(2 * HOUR), [0; 0]);
    story.end(Stand::Success);
    assert_eq!(story.fire(3 * HOUR), [3 * HOUR]);
    assert_eq!(story.fates(), [(HOUR, "fired"), (2 * HOUR, "skipped"), (3 * HOUR, "fired")]);
}

#[test]
fn overlap_buffer_one() {
    let mut story = Story::new(Rule { overlap: Overlap::BufferOne, ..hourly() });
    assert_eq!(story.fire(HOUR), [HOUR]);
    assert_eq!(story.fire(2 * HOUR), [0; 0]);
    assert_eq!(story.fire(3 * HOUR), [0; 0]);
    assert_eq!(story.due(3 * HOUR), Some(3 * HOUR + 60), "the end is looked for");
    story.end(Stand::Failure);
    assert_eq!(story.fire(3 * HOUR + 60), [2 * HOUR]);
    assert_eq!(story.fates(), [(HOUR, "fired"), (3 * HOUR, "skipped"), (2 * HOUR, "fired")]);
}

#[test]
fn a_time_that_waits_is_told_of_when_the_schedule_is_paused() {
    let mut story = Story::new(Rule { overlap: Overlap::BufferOne, ..hourly() });
    story.fire(HOUR);
    story.fire(2 * HOUR);
    story.schedule.pause("disabled", at(2 * HOUR + 1));
    story.end(Stand::Success);
    assert_eq!(story.fire(2 * HOUR + 2), [0; 0]);
    assert_eq!(story.fates(), [(HOUR, "fired"), (2 * HOUR, "skipped")]);
}

#[test]
fn overlap_buffer_all() {
    let mut story = Story::new(Rule { overlap: Overlap::BufferAll, ..hourly() });
    for hour in 1..=4 {
        let expected: &[i64] = if hour == 1 { &[HOUR] } else { &[] };
        assert_eq!(story.fire(hour * HOUR), expected);
    }
    assert_eq!(story.schedule.state.buffered_count(), 3);
    assert_eq!(story.due(4 * HOUR), Some(4 * HOUR + 60), "the end is looked for");
    for hour in 2..=4 {
        story.end(Stand::Success);
        assert_eq!(story.fire(4 * HOUR + hour * 60), [hour * HOUR], "one after the other");
        assert_eq!(story.fire(4 * HOUR + hour * 60 + 1), [0; 0]);
    }
    assert_eq!(story.fates(), [1, 2, 3, 4].map(|hour| (hour * HOUR, "fired")));
}

/// With the overlap `skip`, which was the default beside it, one of four missed times was fired.
#[test]
fn all_that_was_missed_is_run_one_after_the_other() {
    let mut story = Story::new(Rule { missed: Missed::RunAll, overlap: Overlap::BufferAll, ..hourly() });
    assert_eq!(story.fire(4 * HOUR + 600), [HOUR]);
    for hour in 2..=4 {
        assert_eq!(story.fire(4 * HOUR + 601), [0; 0], "the task before is unfinished");
        story.end(Stand::Success);
        assert_eq!(story.fire(4 * HOUR + 602), [hour * HOUR]);
    }
    assert_eq!(story.fates(), [1, 2, 3, 4].map(|hour| (hour * HOUR, "fired")));
}

#[test]
fn more_than_the_buffer_holds_is_skipped() {
    let when = When::Cron("* * * * *".to_owned());
    let catch_up = Duration::from_hours(1000);
    let rule = Rule { when, catch_up, missed: Missed::RunAll, overlap: Overlap::BufferAll, ..hourly() };
    let mut story = Story::new(rule);
    let passed = i64::try_from(BUFFER_MAX).unwrap() + 3;
    assert_eq!(story.fire(passed * 60), [60]);
    assert_eq!(story.schedule.state.buffered_count(), BUFFER_MAX);
    let skipped = [passed - 1, passed].map(|minute| (minute * 60, "skipped"));
    assert_eq!(story.fates(), [skipped[0], skipped[1], (60, "fired")]);
    let Fate::Skipped { reason } = &story.schedule.state.history[0].what else { panic!("not skipped") };
    assert_eq!(reason, "1000 others wait for the task before, the most that may");
}

#[test]
fn what_waits_is_skipped_when_the_schedule_is_paused_or_changed() {
    let waiting = || {
        let mut story = Story::new(Rule { overlap: Overlap::BufferAll, ..hourly() });
        for hour in 1..=4 {
            story.fire(hour * HOUR);
        }
        story
    };
    let mut paused = waiting();
    paused.schedule.pause("disabled", at(4 * HOUR + 1));
    let skipped = [2, 3, 4].map(|hour| (hour * HOUR, "skipped"));
    assert_eq!(paused.fates()[1..], skipped);
    let mut changed = waiting();
    changed.schedule.change(
        Rule { overlap: Overlap::BufferOne, ..hourly() },
        &changed.times,
        at(4 * HOUR + 1),
    );
    assert_eq!(changed.fates()[1..], skipped[1..], "one may still wait");
    assert_eq!(changed.schedule.state.buffered, Some(at(2 * HOUR)));
    let mut kept = waiting();
    kept.schedule.change(Rule { overlap: Overlap::BufferAll, ..hourly() }, &kept.times, at(4 * HOUR + 1));
    assert_eq!(kept.schedule.state.buffered_count(), 3);
}

#[test]
fn overlap_cancel_other() {
    let mut story = Story::new(Rule { overlap: Overlap::CancelOther, ..hourly() });
    assert_eq!(story.fire(HOUR), [HOUR]);
    let first = story.schedule.state.open.clone();
    assert_eq!(story.fire(2 * HOUR), [0; 0]);
    assert_eq!(story.schedule.state.cancels, first);
    assert_eq!(story.fire(3 * HOUR), [0; 0], "it has not ended");
    story.end(Stand::Neither);
    assert_eq!(story.fire(3 * HOUR + 1), [3 * HOUR]);
    assert_eq!(story.fates(), [(HOUR, "fired"), (2 * HOUR, "skipped"), (3 * HOUR, "fired")]);
}

#[test]
fn what_was_missed_is_skipped_run_once_or_run() {
    for (missed, expected) in [
        (Missed::Skip, vec![]),
        (Missed::RunOnce, vec![5 * HOUR]),
        (Missed::RunAll, (1..=5).map(|n| n * HOUR).collect()),
    ] {
        let mut story = Story::new(Rule { missed, overlap: Overlap::AllowAll, ..hourly() });
        assert_eq!(story.fire(5 * HOUR + 600), expected, "{missed:?}");
        assert_eq!(story.due(5 * HOUR + 600), Some(6 * HOUR), "{missed:?}");
        assert_eq!(story.fire(6 * HOUR + 59), [6 * HOUR], "a little late is not missed");
    }
    let mut story = Story::new(Rule { missed: Missed::Skip, overlap: Overlap::AllowAll, ..hourly() });
    assert_eq!(story.fire(5 * HOUR + 10), [5 * HOUR], "what has just come is fired");
    let Fate::Missed { count, .. } = story.schedule.state.history[0].what else { panic!("not missed") };
    assert_eq!((story.fates()[0], count), ((HOUR, "missed"), 4));
}

/// A schedule of every two seconds that skips what it has missed fired 31 times at once after 75 seconds.
#[test]
fn how_late_is_missed_follows_how_often_it_fires_and_can_be_set() {
    let every = |seconds: u64| Rule {
        when: When::Every { interval: Duration::from_secs(seconds), anchor: at(0) },
        missed: Missed::Skip,
        overlap: Overlap::AllowAll,
        ..hourly()
    };
    let fired = |rule: Rule, now: i64| Story::new(rule).fire(now);
    assert_eq!(fired(every(2), 75), [70, 72, 74], "five seconds at least");
    assert_eq!(fired(every(20), 79), [60], "the distance to the following time");
    assert_eq!(fired(every(20), 81), [80]);
    assert_eq!(fired(every(600), 661), [0; 0], "a minute at most");
    assert_eq!(fired(every(600), 660), [600]);
    let set = |seconds| Some(Duration::from_secs(seconds));
    assert_eq!(fired(Rule { missed_after: set(1), ..every(2) }, 75), [74]);
    assert_eq!(fired(Rule { missed_after: set(75), ..every(2) }, 75).len(), 37);
    let jitter = Duration::from_secs(100);
    assert_eq!(
        fired(Rule { missed_after: set(1), jitter, ..every(600) }, 701),
        [600],
        "jitter is no lateness"
    );
}

#[test]
fn nothing_older_than_the_window_is_caught_up_with() {
    let rule = Rule {
        missed: Missed::RunAll,
        overlap: Overlap::AllowAll,
        catch_up: Duration::from_hours(2),
        ..hourly()
    };
    let mut story = Story::new(rule);
    assert_eq!(story.fire(5 * HOUR + 600), [4 * HOUR, 5 * HOUR]);
    assert_eq!(story.fates(), [(HOUR, "missed"), (4 * HOUR, "fired"), (5 * HOUR, "fired")]);
}

#[test]
fn years_without_a_server_are_passed_over_at_once() {
    for missed in [Missed::Skip, Missed::RunOnce] {
        let when = When::Cron("* * * * * *".to_owned());
        let catch_up = Duration::from_hours(24 * 3650);
        let mut story = Story::new(Rule { when, missed, catch_up, overlap: Overlap::AllowAll, ..hourly() });
        let now = 2 * 365 * 24 * HOUR;
        let fired = story.fire(now);
        let late = usize::from(missed == Missed::RunOnce);
        assert_eq!(fired.len(), 6 + late, "the last five seconds, and {late} before them");
        assert_eq!(story.due(now), Some(now + 1));
    }
}

#[test]
fn failures_in_a_row_pause_it() {
    let mut story = Story::new(Rule { pause_after: Some(2), ..hourly() });
    for (hour, how) in [(1, Stand::Failure), (2, Stand::Success), (3, Stand::Failure), (4, Stand::Failure)] {
        assert_eq!(story.fire(hour * HOUR), [hour * HOUR]);
        story.end(how);
    }
    assert_eq!(story.fire(5 * HOUR), [0; 0]);
    assert_eq!(story.schedule.state.paused.as_deref(), Some("2 failures in a row"));
    assert_eq!(story.due(5 * HOUR), None);
    let times = story.times.clone();
    story.schedule.resume(&times, at(6 * HOUR + 1));
    assert_eq!(story.fire(7 * HOUR), [7 * HOUR], "what passed meanwhile is not made up for");
}

#[test]
fn a_fire_without_a_task_counts_as_a_failure() {
    let mut story = Story::new(Rule { pause_after: Some(2), ..hourly() });
    let fire = Fire { nominal: at(HOUR), backfill: 0 };
    story.schedule.plan(fire, Err("the queue wants metadata.tenant".to_owned()), at(HOUR));
    let planned = story.plan(HOUR);
    story.schedule.settle(planned[0].0, Submitted::No("its queue is full".to_owned()), at(HOUR));
    assert_eq!(story.schedule.state.paused.as_deref(), Some("2 failures in a row"));
    assert_eq!(story.fates(), [(HOUR, "skipped"), (HOUR, "skipped")]);
}

#[test]
fn bounds_hold_and_an_end_is_an_end() {
    let rule =
        Rule { from: Some(at(3 * HOUR)), until: Some(at(4 * HOUR)), overlap: Overlap::AllowAll, ..hourly() };
    let mut story = Story::new(rule);
    assert_eq!(story.due(1), Some(3 * HOUR), "a bound belongs to what it bounds");
    assert_eq!(story.fire(3 * HOUR), [3 * HOUR]);
    assert_eq!(story.fire(4 * HOUR), [4 * HOUR]);
    assert_eq!((story.fire(5 * HOUR), story.due(5 * HOUR)), (vec![], None));
}

#[test]
fn jitter_moves_a_fire_always_by_the_same() {
    let jitter = Duration::from_mins(30);
    let rule = Rule { jitter, missed: Missed::Skip, overlap: Overlap::AllowAll, ..hourly() };
    let mut story = Story::new(rule);
    let mut moved = Vec::new();
    for hour in 1..20 {
        let due = story.due(1).unwrap();
        assert_eq!(story.fire(due - 1), [0; 0]);
        assert_eq!(story.fire(due + 1), [hour * HOUR], "and it is not missed for that");
        moved.push(due - hour * HOUR);
    }
    assert!(moved.iter().all(|by| (0..=1800).contains(by)), "{moved:?}");
    moved.dedup();
    assert!(moved.len() > 10, "{moved:?}");
}

#[test]
fn a_backfill_fires_all_times_in_parts() {
    let mut story = Story::new(hourly());
    assert_eq!(story.schedule.backfill(at(HOUR), at(250 * HOUR)), Some(1));
    assert_eq!(story.schedule.backfill(at(HOUR), at(2 * HOUR)), None, "one at a time");
    let mut fired = Vec::new();
    while story.schedule.state.backfill.is_some() {
        assert_eq!(story.due(1), Some(1));
        let part = story.fire(1);
        assert!(part.len() <= FIRES_MAX);
        fired.extend(part);
    }
    assert_eq!(fired, (1..=250).map(|n| n * HOUR).collect::<Vec<_>>());
    assert!(story.schedule.state.history.iter().all(|past| past.fire.backfill == 1));
    assert!(story.schedule.state.open.is_empty(), "they stand in nobody's way");
    assert_eq!(story.schedule.backfill(at(HOUR), at(2 * HOUR)), Some(2));
}

/// A schedule whose news somebody is told.
fn told() -> Rule {
    let on = vec![Occasion::Failing, Occasion::Late];
    let webhooks = vec![Webhook { url: "http://a".to_owned(), on }];
    Rule { webhooks, late_after: Some(Duration::from_mins(10)), overlap: Overlap::AllowAll, ..hourly() }
}

impl Story {
    /// What is news since the last call.
    fn news(&mut self) -> Vec<News> {
        std::mem::take(&mut self.schedule.state.alerts).into_iter().map(|alert| alert.what).collect()
    }
}

#[test]
fn failing_is_told_once_and_its_end_too() {
    let mut story = Story::new(Rule { pause_after: Some(3), ..told() });
    for hour in 1..=2 {
        story.fire(hour * HOUR);
        story.end(Stand::Failure);
        story.fire(hour * HOUR + 60);
    }
    assert_eq!(story.news(), [News::Failing]);
    story.fire(3 * HOUR);
    story.end(Stand::Success);
    story.fire(3 * HOUR + 60);
    assert_eq!(story.news(), [News::Recovered]);
    for hour in 4..=6 {
        story.fire(hour * HOUR);
        story.end(Stand::Failure);
        story.fire(hour * HOUR + 60);
    }
    assert_eq!(story.news(), [News::Failing, News::Paused]);
}

#[test]
fn a_fire_that_is_refused_is_a_failure_and_late_after_a_while() {
    let mut story = Story::new(told());
    for (task, _) in story.plan(HOUR) {
        story.schedule.settle(task, Submitted::No("its queue is full".to_owned()), at(HOUR));
    }
    assert_eq!(story.news(), [News::Failing]);
    assert_eq!(story.due(HOUR), Some(HOUR + 600));
    story.fire(HOUR + 600);
    assert_eq!(story.news(), [News::Late]);
}

#[test]
fn recovery_is_told_with_a_success_and_not_before() {
    let mut story = Story::new(Rule { pause_after: Some(1), ..told() });
    story.fire(HOUR);
    story.end(Stand::Failure);
    story.fire(HOUR + 60);
    assert_eq!(story.news(), [News::Failing, News::Paused]);
    story.schedule.resume(&story.times, at(HOUR + 120));
    story.fire(2 * HOUR);
    assert_eq!(story.news(), []);
    story.end(Stand::Success);
    story.fire(2 * HOUR + 60);
    assert_eq!(story.news(), [News::Recovered]);
}

#[test]
fn who_is_added_while_it_fails_is_told_of_the_next_failure() {
    let mut story = Story::new(Rule { webhooks: Vec::new(), pause_after: Some(9), ..told() });
    story.fire(HOUR);
    story.end(Stand::Failure);
    story.fire(HOUR + 60);
    story.schedule.change(told(), &story.times, at(HOUR + 120));
    story.fire(2 * HOUR);
    story.end(Stand::Failure);
    story.fire(2 * HOUR + 60);
    assert_eq!(story.news(), [News::Failing]);
}

#[test]
fn a_task_that_fails_before_it_begins_does_not_make_it_on_time() {
    let mut story = Story::new(told());
    for hour in 1..=2 {
        story.fire(hour * HOUR);
        story.fire(hour * HOUR + 600);
        story.end(Stand::NeverBegan);
        story.fire(hour * HOUR + 700);
    }
    assert_eq!(story.news(), [News::Late, News::Failing]);
}

#[test]
fn times_that_are_replaced_again_and_again_are_late() {
    let rule = Rule { when: When::Cron("* * * * *".to_owned()), overlap: Overlap::CancelOther, ..told() };
    let mut story = Story::new(rule);
    let mut news = Vec::new();
    for minute in 1..=13 {
        story.fire(minute * 60);
        if minute == 1 {
            story.end(Stand::Begun);
        }
        news.extend(story.news());
    }
    assert_eq!(news, [News::Late]);
}

#[test]
fn a_task_that_has_not_begun_in_time_is_late() {
    let mut story = Story::new(told());
    story.fire(HOUR);
    assert_eq!(story.due(HOUR), Some(HOUR + 600));
    assert!(story.fire(HOUR + 600).is_empty());
    assert_eq!(story.news(), [News::Late]);
    // Somebody looks now and then whether it has begun.
    assert_eq!(story.due(HOUR + 600), Some(HOUR + 630));
    story.end(Stand::Begun);
    story.fire(HOUR + 630);
    assert_eq!(story.news(), [News::OnTime]);
    assert_eq!(story.due(HOUR + 630), Some(2 * HOUR));
}

#[test]
fn a_task_that_began_in_time_is_not_late() {
    let mut story = Story::new(told());
    story.fire(HOUR);
    story.end(Stand::Begun);
    story.fire(HOUR + 600);
    assert_eq!(story.news(), []);
    assert_eq!(story.due(HOUR + 600), Some(2 * HOUR));
}

#[test]
fn times_without_a_task_are_late_unless_another_runs_in_time() {
    let mut skipping = Story::new(Rule { overlap: Overlap::Skip, ..told() });
    skipping.fire(HOUR);
    skipping.end(Stand::Begun);
    skipping.fire(2 * HOUR);
    assert_eq!(skipping.news(), [], "not yet");
    skipping.fire(2 * HOUR + 600);
    assert_eq!(skipping.news(), [News::Late]);
    skipping.end(Stand::Success);
    skipping.fire(3 * HOUR);
    skipping.end(Stand::Begun);
    skipping.fire(3 * HOUR + 600);
    assert_eq!(skipping.news(), [News::OnTime]);

    let patient = Rule { overlap: Overlap::Skip, late_after: Some(Duration::from_hours(3)), ..told() };
    let mut patient = Story::new(patient);
    patient.fire(HOUR);
    patient.end(Stand::Begun);
    patient.fire(2 * HOUR);
    patient.end(Stand::Success);
    patient.fire(3 * HOUR);
    patient.end(Stand::Begun);
    patient.fire(5 * HOUR);
    assert_eq!(patient.news(), [], "the next one ran in time");

    let mut away = Story::new(told());
    away.fire(5 * HOUR + 1200);
    assert_eq!(away.news(), [News::Late]);
    let mut once = Story::new(told());
    assert_eq!(once.fire(HOUR + 1200), [HOUR]);
    assert_eq!(once.news(), [News::Late], "however soon its task begins now");
    once.end(Stand::Begun);
    once.fire(HOUR + 1230);
    assert_eq!(once.news(), [News::OnTime]);
}

#[test]
fn nobody_is_told_what_they_did_not_ask_for() {
    let mut story = Story::new(Rule { webhooks: Vec::new(), ..told() });
    story.fire(HOUR);
    story.fire(HOUR + 600);
    assert_eq!(story.news(), []);
    assert!(story.schedule.state.late.is_some(), "it is known all the same");
}

/// A task that began while a triggered fire was planned and not settled was seen and forgotten: the schedule stayed late.
#[test]
fn a_begin_that_is_seen_while_something_is_planned_counts() {
    let mut story = Story::new(told());
    assert_eq!(story.fire(HOUR), [HOUR]);
    story.fire(HOUR + 601);
    assert!(story.schedule.state.late.is_some(), "late");
    story.schedule.state.alerts.clear();
    let first = *story.schedule.state.open.last().unwrap();
    story.ended.insert(first, Stand::Begun);
    // What a trigger does: it plans, and somebody decides before that is settled.
    let task = story.task();
    let id = task.id;
    story.schedule.plan(Fire { nominal: at(HOUR + 620), backfill: 0 }, Ok(task), at(HOUR + 620));
    story.plan(HOUR + 620);
    story.schedule.settle(id, Submitted::Yes, at(HOUR + 620));
    story.fire(HOUR + 650);
    assert!(story.schedule.state.late.is_none(), "the first task runs: {:?}", story.schedule.state);
}

/// What the commit before has stored is read, and what is stored without the new settings is the same as before.
#[test]
fn what_was_stored_before_is_read() {
    let stored = r#"{"r":{"w":{"cron":"0 * * * *"},"z":"UTC","j":0,"o":"b","m":"o","c":86400000000,"t":"{}"},
        "s":{"ca":1000000,"ua":1000000,"n":3600000000,"b":1800000000,"fl":0,"bn":0,"an":0,"h":[]}}"#;
    let read: Schedule = serde_json::from_str(stored).unwrap();
    assert_eq!((read.rule.missed_after, read.state.buffered_count()), (None, 1));
    assert_eq!(read.rule, Rule { overlap: Overlap::BufferOne, ..hourly() });
    let written: serde_json::Value = serde_json::to_value(&read).unwrap();
    assert_eq!(written, serde_json::from_str::<serde_json::Value>(stored).unwrap());
}

const DAY: i64 = 24 * HOUR;

fn daily() -> Rule {
    Rule { when: When::Cron("0 0 * * *".to_owned()), ..hourly() }
}

fn secondly(missed: Missed) -> Rule {
    let when = When::Every { interval: Duration::from_secs(1), anchor: at(0) };
    Rule { when, missed, overlap: Overlap::AllowAll, ..hourly() }
}

#[test]
fn a_clock_that_was_ahead_for_a_moment_moves_no_time() {
    let mut story = Story::new(daily());
    story.settled = false;
    assert!(story.fire(10 * DAY + 7 * HOUR).is_empty());
    assert_eq!(story.schedule.state.next, Some(at(11 * DAY)), "by the clock as it is");
    assert!(story.schedule.is_stirred(&story.times, at(60)));
    assert!(story.fire(60).is_empty());
    assert_eq!((story.due(60), story.fates()), (Some(DAY), vec![]));
    story.settled = true;
    assert!(!story.schedule.is_stirred(&story.times, at(660)));
    assert_eq!(story.fire(DAY), [DAY]);
}

/// A server planned a fire while the clock was ten days ahead, and died before the submit. The look at the plan was due by that
/// clock, so no server looked at the plan for ten days after the clock went back.
#[test]
fn a_fire_planned_by_a_clock_that_was_ahead_is_submitted_when_it_goes_back() {
    let mut story = Story::new(Rule { overlap: Overlap::AllowAll, ..hourly() });
    story.settled = false;
    assert_eq!(story.plan(10 * DAY).len(), 1);
    assert_eq!(story.due(10 * DAY), Some(10 * DAY));
    assert!(story.schedule.is_stirred(&story.times, at(60)));
    assert_eq!(story.fire(60), [10 * DAY]);
    assert!(story.fire(61).is_empty());
    assert!(!story.schedule.is_stirred(&story.times, at(62)));
}

/// The same of a fire that waits for the end of the task before: the next look was due by the clock that was ahead.
#[test]
fn a_fire_that_waits_is_looked_at_when_the_clock_goes_back() {
    let mut story = Story::new(Rule { overlap: Overlap::BufferOne, until: Some(at(2 * HOUR)), ..hourly() });
    assert_eq!(story.fire(HOUR), [HOUR]);
    assert!(story.fire(2 * HOUR).is_empty(), "the first task runs");
    assert_eq!(story.due(10 * DAY), Some(10 * DAY + 60));
    assert!(story.schedule.is_stirred(&story.times, at(2 * HOUR)));
    story.end(Stand::Success);
    assert_eq!(story.fire(2 * HOUR), [2 * HOUR]);
}

#[test]
fn one_time_that_passed_by_a_wrong_clock_is_fired_when_it_comes() {
    let mut story = Story::new(Rule { when: When::At(at(DAY)), ..hourly() });
    story.settled = false;
    assert!(story.fire(10 * DAY).is_empty());
    assert!(story.fire(60).is_empty());
    story.settled = true;
    assert_eq!(story.fire(DAY), [DAY]);
    // What has been fired is not fired again, wherever the clock goes.
    assert!(story.fire(60).is_empty());
    assert_eq!((story.due(60), story.fire(DAY)), (None, vec![]));
}

#[test]
fn a_jump_of_the_clock_makes_no_flood_of_tasks() {
    let mut story = Story::new(secondly(Missed::RunAll));
    assert_eq!(story.fire(2).len(), 1);
    story.settled = false;
    // Ahead: what comes now is fired, what passed is put off.
    let ahead: Vec<i64> = (0..20).flat_map(|n| story.fire(10 * DAY + n)).collect();
    assert!(ahead.len() < 30 && ahead[0] >= 10 * DAY - 5, "{ahead:?}");
    // Back: every second again. Those that really passed meanwhile are made up for, and no others.
    let back: Vec<i64> = (23..30).flat_map(|n| story.fire(n)).collect();
    story.settled = true;
    let settled: Vec<i64> = (30..40).flat_map(|n| story.fire(n)).collect();
    assert_eq!(back, [24, 25, 26, 27, 28, 29]);
    assert_eq!(settled.len(), 10 + 21, "{settled:?}");
}

#[test]
fn what_passed_in_a_jump_that_lasts_is_made_up_for_when_the_clock_has_settled() {
    for (missed, expected) in [(Missed::RunAll, 3594), (Missed::RunOnce, 1), (Missed::Skip, 0)] {
        let mut story = Story::new(secondly(missed));
        story.fire(2);
        story.settled = false;
        let now: Vec<i64> = story.fire(3602);
        assert_eq!(now.last(), Some(&3602), "what comes now is fired at once");
        assert_eq!((now.len(), story.fire(3603).len()), (6, 1), "{now:?}");
        story.settled = true;
        let mut made_up = 0;
        while !story.schedule.state.put_off.is_empty() {
            made_up += story.fire(3603).len();
        }
        assert_eq!(made_up, expected, "{missed:?}");
    }
}

#[test]
fn times_fired_by_a_clock_that_went_back_and_forth_are_not_made_up_for() {
    let mut story = Story::new(secondly(Missed::RunAll));
    while story.schedule.state.next <= Some(at(10 * DAY)) {
        story.fire(10 * DAY);
    }
    story.settled = false;
    assert!(story.fire(100).is_empty(), "the next second is the next time");
    assert_eq!(story.fire(101), [101]);
    assert_eq!(story.fire(10 * DAY + 1), [10 * DAY + 1]);
    story.settled = true;
    assert_eq!(story.fire(10 * DAY + 2), [10 * DAY + 2]);
    assert!(story.schedule.state.put_off.is_empty());
}

#[test]
fn a_clock_that_goes_back_by_little_fires_nothing_twice() {
    let mut story = Story::new(hourly());
    assert_eq!(story.fire(HOUR), [HOUR]);
    assert!(story.fire(HOUR - 30).is_empty());
    assert!(story.fire(HOUR).is_empty());
    assert_eq!(story.due(HOUR), Some(2 * HOUR));
}
