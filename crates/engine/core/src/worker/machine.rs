//! The worker-session machine: its state, inputs and effects.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use crate::id::{LaneId, SessionId};
use crate::invariant::{Invariant, Invariants};
use crate::message::{
    AttemptId, Dispatch, Ending, Finish, Heartbeat, HeldAttempt, HeldState, Report, ToLane, WorkerBatch,
};
use crate::task::{Progress, TaskError};
use crate::time::Timestamp;

use super::credit::LaneCredit;
use super::input::{Effect, Input, StopReason};

/// Options of a worker: its bounds and times.
#[derive(Clone, Debug)]
pub struct WorkerOptions {
    /// Attempts run at once.
    pub capacity: u32,
    /// Attempts that may wait here for their turn, however long they take.
    pub prefetch: u32,
    /// The most that may wait, where attempts are short. Not more than `prefetch` if this is lower.
    pub prefetch_max: u32,
    /// How long the waiting attempts should keep the worker busy: long enough to fill the time until more
    /// come. By this and the mean run time the worker computes how many may wait.
    pub prefetch_for: Duration,
    /// The approximate bytes that attempts may have that wait beyond `prefetch`.
    pub prefetch_bytes: usize,
    /// Attempts beyond that which may wait here too: attempts of a silent owner, whose promise was given to
    /// another lane. The worker hands further ones back.
    pub surplus: u32,
    /// The worker takes an owner for silent if it has asked the owner for unneeded credit and received no
    /// message for this many heartbeats.
    pub silent_after: u32,
    /// Reports that may be unacknowledged before they count against the room. A large one counts for several.
    pub unacked_max: u32,
    /// How many lanes the deployment has.
    pub lanes: u16,
    /// How long the session lives without renewal.
    pub ttl: Duration,
    /// How long before the end of the lease the worker stops everything.
    pub fence_margin: Duration,
    /// How often the session is renewed: at least three times in a TTL.
    pub renew_every: Duration,
    /// How often the worker sends every lane a heartbeat.
    pub heartbeat_every: Duration,
    /// The first pause: how long the worker takes no new work after its machine lacked something that an
    /// attempt needs to start.
    pub pause_min: Duration,
    /// Each pause is twice as long as the one before, up to this, until an attempt that did start has ended.
    pub pause_max: Duration,
    /// Which invariants are on.
    pub invariants: Invariants,
}

impl Default for WorkerOptions {
    fn default() -> Self {
        Self {
            capacity: 4,
            prefetch: 4,
            prefetch_max: 0,
            prefetch_for: Duration::from_millis(50),
            prefetch_bytes: 32 << 20,
            surplus: 4,
            silent_after: 3,
            unacked_max: 1000,
            lanes: 1,
            ttl: Duration::from_secs(15),
            fence_margin: Duration::from_secs(4),
            renew_every: Duration::from_secs(3),
            heartbeat_every: Duration::from_secs(2),
            pause_min: Duration::from_secs(1),
            pause_max: Duration::from_mins(1),
            invariants: Invariants::ALL_ON,
        }
    }
}

/// One session of a worker. See the [module](super).
#[derive(Debug)]
pub struct WorkerSession {
    pub(super) options: WorkerOptions,
    pub(super) session: SessionId,
    pub(super) now: Timestamp,
    pub(super) capacity: u32,
    pub(super) lane_credits: BTreeMap<LaneId, LaneCredit>,
    /// The lane that was given room last.
    pub(super) served_last: LaneId,
    pub(super) attempts: BTreeMap<AttemptId, Attempt>,
    /// Attempts that wait for their turn, in the order of arrival.
    pub(super) queued: VecDeque<AttemptId>,
    pub(super) running: u32,
    /// Attempts whose processes are gone and whose output is not stored yet.
    exited: u32,
    /// Attempts that came with the last inputs; attempts that do not start at once are reported as accepted.
    pub(super) arrived: Vec<AttemptId>,
    /// The mean run time of attempts, in microseconds; the last ones count most. 0 before the first.
    mean_run: u64,
    /// The mean size of attempts, in bytes.
    mean_bytes: u64,
    /// Attempts that have ended since the last heartbeat, …
    ended_since_beat: u32,
    /// … and between that one and the one before.
    ended_last_beat: u32,
    /// Weight of the unacknowledged reports on attempts that have ended.
    pub(super) unacked: usize,
    pub(super) timeouts: BTreeSet<(Timestamp, AttemptId)>,
    /// The lease counts from here.
    lease_from: Timestamp,
    next_renew: Timestamp,
    next_heartbeat: Timestamp,
    /// When the worker reports a fallen load to owners.
    pub(super) load_at: Option<Timestamp>,
    beat: u64,
    /// The end of the pause, and its reason: the machine lacked something that an attempt needs to start.
    pub(super) pause: Option<(Timestamp, String)>,
    /// How long the last pause was. Zero when an attempt has started and ended since.
    last_pause: Duration,
    pub(super) draining: bool,
    drained: bool,
    pub(super) fenced: bool,
    pub(super) counters: Counters,
}

/// How often rare things happened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Room was given to a lane though a silent owner may still use it.
    pub promise_passed_on: u64,
    /// Attempts handed back because the worker had no room for them.
    pub surplus_handed_back: u64,
    /// Attempts handed back because the attempts before them take longer than estimated.
    pub prefetch_handed_back: u64,
}

impl Counters {
    /// Names and counts.
    pub fn iter(&self) -> impl Iterator<Item = (&'static str, u64)> {
        [
            ("promise_passed_on", self.promise_passed_on),
            ("surplus_handed_back", self.surplus_handed_back),
            ("prefetch_handed_back", self.prefetch_handed_back),
        ]
        .into_iter()
    }
}

/// An attempt that this worker knows.
#[derive(Debug)]
pub(super) struct Attempt {
    pub(super) lane: LaneId,
    pub(super) state: AttemptState,
}

#[derive(Debug)]
pub(super) enum AttemptState {
    /// Waits for its turn.
    Queued(Dispatch),
    /// Executes.
    Running {
        since: Timestamp,
        /// When its timeout ends, …
        timeout: Timestamp,
        /// … and the longest time that it may go without reporting progress.
        quiet_max: Option<Duration>,
        /// The earlier of the two ends: when the worker stops it unless it reports progress.
        stop_at: Timestamp,
        stopping: Option<StopReason>,
        /// How long it ran, once its processes are gone.
        exited: Option<Duration>,
    },
    /// Ended; the worker resends the report until it is acknowledged.
    Ended(Report),
}

impl WorkerSession {
    /// A session that was opened by a request sent at `asked_at`.
    pub fn new(options: WorkerOptions, session: SessionId, asked_at: Timestamp) -> Self {
        Self {
            session,
            now: asked_at,
            capacity: options.capacity,
            lane_credits: (0..options.lanes).map(|lane| (LaneId(lane), LaneCredit::default())).collect(),
            served_last: LaneId(u16::MAX),
            attempts: BTreeMap::new(),
            queued: VecDeque::new(),
            running: 0,
            exited: 0,
            arrived: Vec::new(),
            mean_run: 0,
            mean_bytes: 0,
            ended_since_beat: 0,
            ended_last_beat: 0,
            unacked: 0,
            timeouts: BTreeSet::new(),
            lease_from: asked_at,
            next_renew: asked_at + options.renew_every,
            next_heartbeat: asked_at,
            load_at: None,
            beat: 0,
            pause: None,
            last_pause: Duration::ZERO,
            draining: false,
            drained: false,
            fenced: false,
            counters: Counters::default(),
            options,
        }
    }

    /// Takes one input and collects the effects.
    pub fn step(&mut self, input: Input, now: Timestamp, effects: &mut Vec<Effect>) {
        self.take(input, now, effects);
        self.settle(now, effects);
    }

    /// Takes one of several inputs that came together; [`settle`](Self::settle) follows the last.
    pub fn take(&mut self, input: Input, now: Timestamp, effects: &mut Vec<Effect>) {
        self.now = self.now.max(now);
        self.check_lease(effects);
        if self.fenced {
            return;
        }
        match input {
            Input::Renewed { asked_at } => {
                let from = if self.options.invariants.on(Invariant::LeaseFromBeforeAsked) {
                    asked_at
                } else {
                    self.now
                };
                self.lease_from = self.lease_from.max(from);
            }
            Input::Refused => {
                // The session runs out. Attempts that have not started can run elsewhere at once.
                self.drain();
                self.next_renew = Timestamp::MAX;
            }
            Input::Owner(batch) => self.on_owner(batch, effects),
            Input::Exited { attempt } => self.on_exited(attempt, true),
            Input::Ended { attempt, finish } => self.on_ended(attempt, *finish, effects),
            Input::Progress { attempt, progress } => self.on_progress(attempt, progress),
            Input::Capacity(capacity) => self.capacity = capacity,
            Input::Drain => self.drain(),
            Input::Leave => self.leave(effects),
            Input::Tick => {}
        }
    }

    /// Acts on the inputs: starts attempts, gives out room, sends.
    pub fn settle(&mut self, now: Timestamp, effects: &mut Vec<Effect>) {
        self.now = self.now.max(now);
        self.check_lease(effects);
        if self.fenced {
            return;
        }
        self.on_tick(effects);
        self.start_next(effects);
        self.accept();
        self.share();
        self.report_load();
        self.send(effects);
        if self.draining && !self.drained && self.attempts.is_empty() {
            self.drained = true;
            effects.push(Effect::Drained);
        }
    }

    /// When [`Input::Tick`] is due, unless another input comes first.
    pub fn next_deadline(&self) -> Option<Timestamp> {
        if self.fenced {
            return None;
        }
        let timeout = self.timeouts.first().map(|&(at, _)| at);
        let pause = self.pause.as_ref().map(|(until, _)| *until);
        [
            Some(self.next_renew),
            Some(self.next_heartbeat),
            Some(self.fence_at()),
            timeout,
            self.load_at,
            pause,
        ]
        .into_iter()
        .flatten()
        .min()
    }

    /// When the worker sends the next heartbeats.
    pub fn next_heartbeat(&self) -> Timestamp {
        self.next_heartbeat
    }

    /// When the worker stops everything, unless the session is renewed. The guard process gets this time too.
    pub fn fence_at(&self) -> Timestamp {
        if !self.options.invariants.on(Invariant::SelfFencing) {
            return Timestamp::MAX;
        }
        self.lease_from + self.options.ttl - self.options.fence_margin
    }

    /// The session is done.
    pub fn is_fenced(&self) -> bool {
        self.fenced
    }

    /// Attempts that wait or execute here.
    pub fn load(&self) -> u32 {
        self.running + self.exited + u32::try_from(self.queued.len()).unwrap_or(u32::MAX)
    }

    /// The most attempts that may wait or execute here, unless the capacity was lowered.
    pub fn load_max(&self) -> u32 {
        let prefetch = self.options.prefetch.max(self.options.prefetch_max);
        self.capacity.saturating_add(prefetch).saturating_add(self.options.surplus)
    }

    /// How many attempts may wait here now. Where short and long attempts are mixed the mean is unreliable,
    /// so not many more may wait than end from one heartbeat to the next.
    pub(super) fn prefetch(&self) -> u32 {
        /// This many may wait for a moment in any case.
        const FEW: u32 = 256;
        // Attempts that began together end together: an attempt that waits behind them waits for as long as
        // they take.
        if u128::from(self.mean_run) > self.options.prefetch_for.as_micros() {
            return self.options.prefetch;
        }
        let seen = match self.ended_last_beat {
            0 => self.ended_since_beat.saturating_mul(4),
            ended => ended.max(self.ended_since_beat),
        };
        self.busy_for(self.options.prefetch_for).min(seen.max(FEW).max(self.options.prefetch))
    }

    /// How many waiting attempts keep the worker busy for this time, within the bounds.
    fn busy_for(&self, time: Duration) -> u32 {
        let least = self.options.prefetch;
        if self.mean_run == 0 {
            return least;
        }
        let busy_for = time.as_micros().saturating_mul(u128::from(self.capacity));
        let in_time = busy_for / u128::from(self.mean_run);
        let in_room = self.options.prefetch_bytes as u64 / self.mean_bytes.max(1);
        let fitting = in_time.min(in_room.into());
        u32::try_from(fitting).unwrap_or(u32::MAX).clamp(least, self.options.prefetch_max.max(least))
    }

    /// Whether the waiting attempts are far larger than allowed: the worker gave the credit while attempts
    /// were small.
    pub(super) fn is_overweight(&self) -> bool {
        let (waiting, least) =
            (self.queued.len() as u64, u64::from(self.options.prefetch + self.options.surplus));
        waiting > least && waiting * self.mean_bytes > 2 * self.options.prefetch_bytes as u64
    }

    /// How often rare things happened.
    pub fn counters(&self) -> Counters {
        self.counters
    }

    /// Whether the worker still resends a report on this attempt.
    pub fn awaits_ack(&self, attempt: AttemptId) -> bool {
        self.last_report(attempt).is_some()
    }

    /// The last report on an ended attempt, until it is acknowledged.
    pub fn last_report(&self, attempt: AttemptId) -> Option<&Report> {
        match &self.attempts.get(&attempt)?.state {
            AttemptState::Ended(report) => Some(report),
            AttemptState::Queued(_) | AttemptState::Running { .. } => None,
        }
    }

    fn check_lease(&mut self, effects: &mut Vec<Effect>) {
        if !self.fenced && self.now >= self.fence_at() {
            self.fenced = true;
            self.queued.clear();
            self.attempts.clear();
            self.timeouts.clear();
            effects.push(Effect::Fence);
        }
    }

    fn on_tick(&mut self, effects: &mut Vec<Effect>) {
        if self.now >= self.next_renew {
            self.next_renew = self.now + self.options.renew_every;
            effects.push(Effect::Renew);
        }
        if self.pause.as_ref().is_some_and(|(until, _)| *until <= self.now) {
            self.pause = None;
            effects.push(Effect::Resume);
        }
        while let Some(&(at, attempt)) = self.timeouts.first() {
            if at > self.now {
                break;
            }
            self.timeouts.pop_first();
            self.stop(attempt, StopReason::TimedOut, effects);
        }
        if self.now >= self.next_heartbeat {
            self.next_heartbeat = self.now + self.options.heartbeat_every;
            if self.options.invariants.on(Invariant::ReportRepetition) {
                self.repeat_reports();
            }
            // Before the heartbeats: these announce that the worker is ready for more.
            self.return_prefetched();
            let lanes: Vec<LaneId> = self.lane_credits.keys().copied().collect();
            for lane in lanes {
                self.heartbeat(lane, false);
            }
            self.even_out();
        }
    }

    /// Sends a lane a full heartbeat.
    pub(super) fn heartbeat(&mut self, lane: LaneId, wanted_back: bool) {
        self.beat += 1;
        let held = self.attempts.iter().filter(|(_, attempt)| attempt.lane == lane).map(|(&id, attempt)| {
            HeldAttempt {
                attempt: id,
                state: match &attempt.state {
                    AttemptState::Queued(_) => HeldState::Queued,
                    AttemptState::Running { since, .. } => HeldState::Running(self.now.since(*since)),
                    AttemptState::Ended(_) => HeldState::Ended,
                },
            }
        });
        let held = held.collect();
        let (beat, load) = (self.beat, self.load());
        let Some(lane_credit) = self.lane_credits.get_mut(&lane) else { return };
        if !wanted_back {
            lane_credit.unanswered += u32::from(lane_credit.asked_back);
            (lane_credit.asked_back, lane_credit.is_returning) = (false, false);
        }
        lane_credit.load_sent = load.saturating_sub(lane_credit.attempts);
        let load = lane_credit.load_sent;
        lane_credit.credit_sent = lane_credit.credit;
        let (epoch, credit, used) = (lane_credit.epoch, lane_credit.credit, lane_credit.used.floor());
        lane_credit.outbox.push(ToLane::Heartbeat(Heartbeat {
            beat,
            epoch,
            credit,
            used,
            held,
            load,
            wanted_back,
        }));
    }

    fn repeat_reports(&mut self) {
        for (&id, attempt) in &self.attempts {
            if let (AttemptState::Ended(report), Some(lane_credit)) =
                (&attempt.state, self.lane_credits.get_mut(&attempt.lane))
            {
                lane_credit.outbox.push(ToLane::Report { attempt: id, report: report.clone() });
            }
        }
    }

    /// Adds a report on an attempt to the lane's outbox.
    pub(super) fn report(&mut self, lane: LaneId, attempt: AttemptId, report: Report) {
        let lane_credit = self.lane_credits.entry(lane).or_default();
        lane_credit.outbox.push(ToLane::Report { attempt, report });
    }

    /// An attempt has ended: reports it, and keeps the report until it is acknowledged.
    pub(super) fn conclude(&mut self, lane: LaneId, attempt: AttemptId, report: Report) {
        let state = AttemptState::Ended(report.clone());
        let before = self.attempts.insert(attempt, Attempt { lane, state });
        if let Some(Attempt { lane, state: AttemptState::Queued(_) | AttemptState::Running { .. } }) = before
            && let Some(lane_credit) = self.lane_credits.get_mut(&lane)
        {
            lane_credit.attempts = lane_credit.attempts.saturating_sub(1);
        }
        self.unacked += weight(&report);
        self.report(lane, attempt, report);
    }

    /// Reports the arrived attempts that could not start at once as accepted. Started attempts have their own
    /// report.
    fn accept(&mut self) {
        for id in std::mem::take(&mut self.arrived) {
            if let Some(Attempt { lane, state: AttemptState::Queued(_) }) = self.attempts.get(&id) {
                let lane = *lane;
                self.report(lane, id, Report::Accepted);
            }
        }
    }

    /// Updates the mean run time.
    fn learn(&mut self, ran: Duration) {
        self.mean_run = mean(self.mean_run, u64::try_from(ran.as_micros()).unwrap_or(u64::MAX));
    }

    /// Updates the mean size.
    pub(super) fn weigh(&mut self, dispatch: &Dispatch) {
        let bytes = dispatch.body.as_ref().map_or(0, |body| body.bytes());
        self.mean_bytes = mean(self.mean_bytes, bytes as u64);
    }

    /// Attempts were short, so many wait here; now they are long, and other workers may have room for them.
    /// The worker hands back the attempts that would still wait at the next heartbeat; if none has ended
    /// since the last one, it hands back all of them. Where short and long attempts are mixed, as many may
    /// end until the next heartbeat as have ended since the last.
    fn return_prefetched(&mut self) {
        let ended = std::mem::take(&mut self.ended_since_beat);
        self.ended_last_beat = ended;
        if self.running < self.capacity || self.queued.is_empty() {
            return;
        }
        // No attempt has ended for as long as the youngest runs.
        let youngest = self.attempts.values().filter_map(|attempt| match attempt.state {
            AttemptState::Running { since, exited: None, .. } => Some(since),
            AttemptState::Running { .. } | AttemptState::Queued(_) | AttemptState::Ended(_) => None,
        });
        let Some(since) = youngest.max() else { return };
        let least = u64::try_from(self.now.since(since).as_micros()).unwrap_or(u64::MAX);
        self.mean_run = self.mean_run.max(least.min(u64::MAX >> 8));
        let every = self.options.heartbeat_every;
        let is_stuck = ended == 0 && self.now >= since + every;
        let kept = if is_stuck { self.options.prefetch } else { self.busy_for(every).max(ended) };
        let kept = usize::try_from(kept).unwrap_or(usize::MAX);
        for id in self.queued.split_off(kept.min(self.queued.len())) {
            let Some(lane) = self.attempts.get(&id).map(|attempt| attempt.lane) else { continue };
            self.counters.prefetch_handed_back += 1;
            let reason = "the attempts before it take longer than estimated".to_owned();
            self.conclude(lane, id, Report::HandedBack { reason });
        }
    }

    fn start_next(&mut self, effects: &mut Vec<Effect>) {
        while self.running < self.capacity {
            let Some(id) = self.queued.pop_front() else { break };
            let now = self.now;
            let Some(attempt) = self.attempts.get_mut(&id) else { continue };
            let AttemptState::Queued(dispatch) = &attempt.state else { continue };
            let dispatch = dispatch.clone();
            let timeout = now + dispatch.head.execution_timeout;
            let quiet_max = dispatch.head.progress_timeout;
            let stop_at = quiet_max.map_or(timeout, |quiet| timeout.min(now + quiet));
            attempt.state = AttemptState::Running {
                since: now,
                timeout,
                quiet_max,
                stop_at,
                stopping: None,
                exited: None,
            };
            let lane = attempt.lane;
            self.timeouts.insert((stop_at, id));
            self.running += 1;
            self.report(lane, id, Report::Started { ago: Duration::ZERO });
            effects.push(Effect::Start(dispatch));
        }
    }

    /// Ends a running attempt, once.
    pub(super) fn stop(&mut self, id: AttemptId, reason: StopReason, effects: &mut Vec<Effect>) {
        let Some(attempt) = self.attempts.get_mut(&id) else { return };
        if let AttemptState::Running { stopping, exited: None, .. } = &mut attempt.state
            && stopping.is_none()
        {
            *stopping = Some(reason);
            effects.push(Effect::Stop { attempt: id, reason });
        }
    }

    /// Passes on the progress of an attempt. Unless the attempt is at its end, it gets more time until its
    /// next progress.
    fn on_progress(&mut self, id: AttemptId, progress: Progress) {
        let now = self.now;
        let Some(attempt) = self.attempts.get_mut(&id) else { return };
        let lane = attempt.lane;
        let AttemptState::Running { timeout, quiet_max, stop_at, stopping, exited, .. } = &mut attempt.state
        else {
            return;
        };
        let is_at_its_end = stopping.is_some() || exited.is_some();
        if let Some(quiet) = quiet_max.filter(|_| !is_at_its_end) {
            self.timeouts.remove(&(*stop_at, id));
            *stop_at = (*timeout).min(now + quiet);
            self.timeouts.insert((*stop_at, id));
        }
        self.report(lane, id, Report::Progress(Box::new(progress.bounded())));
    }

    /// The machine lacks something that an attempt needs to start. The attempts that wait behind it may start
    /// elsewhere.
    fn begin_pause(&mut self, reason: String, effects: &mut Vec<Effect>) {
        // Several attempts that start together fail together, and are one reason to pause.
        if self.draining || self.pause.is_some() {
            return;
        }
        let wait = (self.last_pause * 2).clamp(self.options.pause_min, self.options.pause_max);
        self.last_pause = wait;
        self.hand_back_queued(&reason);
        self.pause = Some((self.now + wait, reason.clone()));
        effects.push(Effect::Pause { reason, wait });
    }

    /// The next attempt may start in its place. Its run time is final, and there is nothing left to stop.
    fn on_exited(&mut self, id: AttemptId, did_start: bool) {
        let Some(attempt) = self.attempts.get_mut(&id) else { return };
        let AttemptState::Running { since, stop_at, exited: exited @ None, .. } = &mut attempt.state else {
            return;
        };
        let ran = self.now.since(*since);
        *exited = Some(ran);
        self.timeouts.remove(&(*stop_at, id));
        self.running -= 1;
        self.exited += 1;
        if did_start {
            self.last_pause = Duration::ZERO;
            self.ended_since_beat = self.ended_since_beat.saturating_add(1);
            self.learn(ran);
        }
    }

    fn on_ended(&mut self, id: AttemptId, mut finish: Finish, effects: &mut Vec<Effect>) {
        self.on_exited(id, !matches!(finish.ending, Ending::NotStarted { .. }));
        let Some(attempt) = self.attempts.get(&id) else { return };
        let AttemptState::Running { since, timeout, quiet_max, stop_at, stopping, exited: Some(ran) } =
            attempt.state
        else {
            return;
        };
        let lane = attempt.lane;
        self.exited -= 1;
        if let Ending::NotStarted { reason } = finish.ending {
            self.conclude(lane, id, Report::HandedBack { reason: reason.clone() });
            return self.begin_pause(reason, effects);
        }
        finish.ran = ran;
        // The reason of its stop explains its end better than its own answer. A success stays one.
        if finish.ending != Ending::Success {
            match stopping {
                Some(StopReason::Cancelled) => finish.ending = Ending::Cancelled,
                Some(StopReason::Leaving) => {
                    let reason = "the worker left before the attempt had ended".to_owned();
                    return self.conclude(lane, id, Report::HandedBack { reason });
                }
                Some(StopReason::TimedOut) => {
                    let error = match quiet_max {
                        Some(quiet) if stop_at < timeout => {
                            let message = format!("the attempt reported no progress for {quiet:?}");
                            TaskError::new(TaskError::PROGRESS_TIMEOUT, message)
                        }
                        _ => {
                            let limit = timeout.since(since);
                            TaskError::new(
                                TaskError::TIMEOUT,
                                format!("the attempt ran longer than {limit:?}"),
                            )
                        }
                    };
                    finish.ending = Ending::TimedOut { error };
                }
                None => {}
            }
        }
        self.conclude(lane, id, Report::Finished(Box::new(finish)));
    }

    pub(super) fn hand_back_queued(&mut self, reason: &str) {
        for id in std::mem::take(&mut self.queued) {
            let Some(lane) = self.attempts.get(&id).map(|attempt| attempt.lane) else { continue };
            self.conclude(lane, id, Report::HandedBack { reason: reason.to_owned() });
        }
    }

    fn drain(&mut self) {
        self.draining = true;
        self.hand_back_queued("the worker is draining");
    }

    fn leave(&mut self, effects: &mut Vec<Effect>) {
        self.drain();
        let running = self.attempts.iter().filter(|(_, a)| matches!(a.state, AttemptState::Running { .. }));
        let running: Vec<AttemptId> = running.map(|(&id, _)| id).collect();
        for id in running {
            self.stop(id, StopReason::Leaving, effects);
        }
    }

    /// A report is acknowledged.
    pub(super) fn settle_report(&mut self, id: AttemptId) {
        if let Some(Attempt { state: AttemptState::Ended(report), .. }) = self.attempts.get(&id) {
            self.unacked -= weight(report);
            self.attempts.remove(&id);
        }
    }

    fn send(&mut self, effects: &mut Vec<Effect>) {
        for (&lane, lane_credit) in &mut self.lane_credits {
            if !lane_credit.outbox.is_empty() {
                let messages = std::mem::take(&mut lane_credit.outbox);
                effects.push(Effect::Send(WorkerBatch { lane, session: self.session, messages }));
            }
        }
    }
}

/// A mean in which the last values count most; 0 before the first.
fn mean(mean: u64, value: u64) -> u64 {
    const REMEMBERED: u64 = 16;
    let value = value.clamp(1, u64::MAX / REMEMBERED);
    match mean {
        0 => value,
        mean => (mean * (REMEMBERED - 1) + value).div_ceil(REMEMBERED),
    }
}

/// The weight of an unacknowledged report.
fn weight(report: &Report) -> usize {
    /// This many bytes weigh as much as another report.
    const BYTES: usize = 4 << 10;
    match report {
        Report::Finished(finish) => 1 + finish.result.bytes() / BYTES,
        Report::Accepted | Report::Started { .. } | Report::Progress(_) | Report::HandedBack { .. } => 1,
    }
}
