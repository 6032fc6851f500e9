//! The lane machine: its state, and the one `match` that sends each input to its handler.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use indexmap::IndexMap;
use rustc_hash::FxBuildHasher;
use slab::Slab;

use crate::commit::Group;
use crate::id::{Epoch, LaneId, LineKey, QueueKey, Seq, SessionId, TaskId};
use crate::invariant::Invariants;
use crate::message::{OwnerBatch, TaskEvent};
use crate::policy::VersionedPolicy;
use crate::read::LaneRead;
use crate::rng::Rng;
use crate::task::TaskResult;
use crate::time::Timestamp;

use super::clock::{Anchor, ClockRecord, Rewrite};
use super::counters::Counters;
use super::entry::{Entry, Handle};
use super::input::{Effect, Input, SubmitToken};
use super::limits::Limits;
use super::lines::{Class, ClassKey, Line, PROVISIONAL_SEQ, Queue};
use super::on_page::LoadStage;
use super::on_submit::Submission;
use super::workers::{LoadRank, Worker};
use super::write::Batch;

/// Bodies up to this size stay in memory with their task; the driver reads larger ones when the task is sent.
pub const BODY_BYTES_MAX: usize = 4 << 10;

/// Options of a lane: its bounds and times.
#[derive(Clone, Debug)]
pub struct LaneOptions {
    /// Tasks of a line kept in memory; up to twice as many for a moment.
    pub window: usize,
    /// Waiting tasks of all lines together kept in memory. Where there are many lines, their windows are
    /// shorter, but every line has room for a few.
    pub tasks_max: usize,
    /// Delayed tasks of the lane kept in memory.
    pub delayed_window: usize,
    /// Lines kept in memory.
    pub lines_max: usize,
    /// Rows in one read.
    pub page: usize,
    /// Groups in one commit, before the driver packs them.
    pub batch: usize,
    /// While a commit is under way, a second one follows it once this many groups wait.
    pub ahead: usize,
    /// Reads of lines under way at once.
    pub line_reads: usize,
    /// The interval of the sweep, which finds the effects of lost hints.
    pub sweep_every: Duration,
    /// How long a change that no answer waits for (accepted, started) may wait for company.
    pub lazy_write: Duration,
    /// How long a task waits for the answer of an asked worker that may be the best choice. Longer than four
    /// messages take on a busy machine, and short beside the start of a process there.
    pub answer_within: Duration,
    /// The owner resends a dispatch that is unanswered for this long at the next heartbeat.
    pub resend_after: Duration,
    /// The owner recalls an attempt after this many heartbeats that do not name it.
    pub beats_missing_max: u8,
    /// Recalls unanswered before the session is revoked.
    pub recalls_max: u8,
    /// How long past its timeout an attempt may run before its session is revoked.
    pub overrun_grace: Duration,
    /// A task fails when more of its attempts than this were lost after they had started.
    pub lost_max: u32,
    /// A task fails when more of its attempts than this were lost before they had started. Higher, because
    /// most of them only waited at a worker that was lost; and a limit, because a task may take its worker
    /// down at once.
    pub lost_before_start_max: u32,
    /// The most bytes of data that an attempt may answer with, up to [`TaskResult::DATA_BYTES_LIMIT`].
    pub result_bytes_max: usize,
    /// Whether an insert and its first assignment can be one group.
    pub insert_and_assign: bool,
    /// Which invariants are on.
    pub invariants: Invariants,
}

impl Default for LaneOptions {
    fn default() -> Self {
        Self {
            window: 16_384,
            tasks_max: 100_000,
            delayed_window: 1024,
            lines_max: 1 << 17,
            page: 2048,
            batch: 2048,
            ahead: 1024,
            line_reads: 16,
            sweep_every: Duration::from_secs(5),
            lazy_write: Duration::from_millis(100),
            answer_within: Duration::from_millis(20),
            resend_after: Duration::from_secs(1),
            beats_missing_max: 3,
            recalls_max: 3,
            overrun_grace: Duration::from_secs(30),
            lost_max: 5,
            lost_before_start_max: 20,
            result_bytes_max: 256 << 10,
            insert_and_assign: true,
            invariants: Invariants::ALL_ON,
        }
    }
}

/// Schedules the tasks of one lane, for its one owner. See the [module](super).
#[derive(Debug)]
#[expect(clippy::struct_excessive_bools, reason = "the state of several independent reads")]
#[expect(clippy::struct_field_names, reason = "a lane knows its number, which is called lane everywhere")]
pub struct Lane {
    pub(super) options: LaneOptions,
    pub(super) lane: LaneId,
    pub(super) epoch: Epoch,
    pub(super) rng: Rng,
    pub(super) now: Timestamp,
    /// Where the wall clock of this owner stands.
    pub(super) anchor: Anchor,
    /// The steps of the lane's clock.
    pub(super) clock: ClockRecord,
    /// The pass over the store after a step of the clock: reads all delayed tasks once and writes them back
    /// moved.
    pub(super) rewrite: Option<Rewrite>,
    pub(super) counters: Counters,

    pub(super) loading: LoadStage,
    pub(super) releasing: bool,

    pub(super) entries: Slab<Entry>,
    pub(super) by_id: IndexMap<TaskId, Handle, FxBuildHasher>,

    /// Queues in use, and some that were in use a moment ago.
    pub(super) queues: Slab<Queue>,
    pub(super) queue_by_key: BTreeMap<QueueKey, Handle>,
    /// Queues left after the last search for idle queues.
    pub(super) queues_kept: usize,
    /// Queues that have something to assign, by their turn.
    pub(super) active: BTreeSet<(u64, Handle)>,
    pub(super) pass: u64,
    /// Policies of all queues, also of queues without tasks in memory.
    pub(super) policies: BTreeMap<QueueKey, VersionedPolicy>,
    pub(super) policies_revision: u64,
    /// The policy version of each queue that the store records as applied by this lane.
    pub(super) applied: BTreeMap<QueueKey, u64>,

    pub(super) lines: Slab<Line>,
    pub(super) line_by_key: IndexMap<LineKey, Handle, FxBuildHasher>,
    /// Tasks of a line kept in memory: [`LaneOptions::window`], or a fair share of `tasks_max` where lines
    /// are many.
    pub(super) window: usize,
    /// Tasks in all windows together.
    pub(super) waiting: usize,
    /// The number of waiting tasks at which windows are cut to their share.
    pub(super) cut_windows_at: usize,
    /// Lines whose window is getting short.
    pub(super) refill: BTreeSet<Handle>,
    pub(super) lines_cursor: Option<LineKey>,
    /// The first pass over the lines in the store is done.
    pub(super) lines_loaded: bool,
    /// The store may hold lines that are not in memory.
    pub(super) lines_more: bool,
    pub(super) lines_reading: bool,
    /// Lines were left in the store, or dropped, and the pass under way may have passed them.
    pub(super) lines_missed: bool,

    pub(super) classes: Slab<Class>,
    pub(super) class_by_key: BTreeMap<ClassKey, Handle>,

    pub(super) limits: Limits,

    pub(super) workers: Slab<Worker>,
    pub(super) worker_by_session: BTreeMap<SessionId, Handle>,
    pub(super) members_revision: Option<u64>,
    pub(super) uses: u64,
    /// The [`LoadRank`] and last use of each worker, by handle: close together, because every assignment
    /// looks at many.
    pub(super) loads: Vec<LoadRank>,
    /// Workers with messages of this step.
    pub(super) talkative: Vec<Handle>,

    pub(super) delayed: BTreeMap<(Timestamp, Seq), Handle>,
    pub(super) delayed_bound: Option<(Timestamp, Seq)>,
    pub(super) delayed_more: bool,
    pub(super) delayed_missed: Option<(Timestamp, Seq)>,
    pub(super) delayed_reading: bool,

    pub(super) timers: BTreeSet<(Timestamp, Timer)>,
    pub(super) next_sweep: Timestamp,
    pub(super) expiring_reading: bool,

    /// Entries with something to write.
    pub(super) unwritten: Vec<Handle>,
    /// Groups that belong to no entry: inbox rows without effect, records.
    pub(super) loose: Vec<Group>,
    pub(super) urgent: bool,
    /// Entries that may wait to be written, and since when; some have been written meanwhile.
    pub(super) lazy: VecDeque<(Timestamp, Handle)>,
    /// The commits under way, in their order.
    pub(super) batches: VecDeque<Batch>,
    /// The number of commits begun by this owner.
    pub(super) begun: u64,
    /// The commit begun last when a task changed again while a commit was writing it.
    pub(super) overtaken: u64,
    pub(super) submissions: BTreeMap<SubmitToken, Submission>,
    pub(super) provisional_seq: u64,
    /// Groups with inserts of tasks that stay out of memory.
    pub(super) bare_inserts: Vec<super::on_submit::BareInsert>,

    pub(super) reads: BTreeMap<u64, LaneRead>,
    pub(super) next_read: u64,
    /// Tasks that became final while a read was under way, with the last read that may show them unfinished.
    pub(super) tombstones: BTreeMap<TaskId, u64>,
    pub(super) cursor: Seq,
    pub(super) arrivals_reading: bool,
    pub(super) arrivals_wanted: bool,
    /// Tasks to read because the store did not have them in the expected version.
    pub(super) reread: BTreeSet<TaskId>,
    /// Commands for tasks that must be read first.
    pub(super) commands: BTreeMap<TaskId, Vec<Seq>>,
    pub(super) commands_unread: Vec<TaskId>,
    /// Inbox rows whose command is being applied.
    pub(super) inbox_known: BTreeSet<Seq>,

    /// Committed changes, sent at the end of the step.
    pub(super) changed: Vec<TaskEvent>,
    /// Watched tasks whose end is durable.
    pub(super) ended: Vec<TaskId>,
    /// Sessions that do not receive, reported at the end of the step.
    pub(super) not_receiving: Vec<SessionId>,
    /// Sessions to revoke at the end of the step.
    pub(super) revocations: Vec<SessionId>,
    /// Classes with ready lines and no worker with room: the lane asks their workers for room.
    pub(super) starved: BTreeSet<Handle>,
}

/// The purpose of a timer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Timer {
    /// The task must have started.
    StartBy(TaskId),
    /// A rate by key allows the next assignment of a line.
    LineRate(Handle),
    /// A rate over the whole queue allows the next assignment.
    QueueRate(Handle),
    /// A worker that was asked for room must have answered.
    Answer(Handle),
    /// A worker that has joined must have answered the greeting.
    Greeting(Handle),
}

impl Lane {
    /// A lane that was just claimed under `epoch`. It does nothing before [`Input::Start`].
    pub fn new(options: LaneOptions, lane: LaneId, epoch: Epoch, seed: u64, now: Timestamp) -> Self {
        assert!(options.result_bytes_max <= TaskResult::DATA_BYTES_LIMIT, "stores take no larger results");
        Self {
            next_sweep: now + options.sweep_every,
            window: options.window,
            cut_windows_at: options.tasks_max,
            options,
            lane,
            epoch,
            rng: Rng::new(seed),
            now,
            anchor: Anchor::default(),
            clock: ClockRecord::default(),
            rewrite: None,
            counters: Counters::default(),
            loading: LoadStage::New,
            releasing: false,
            entries: Slab::new(),
            by_id: IndexMap::default(),
            queues: Slab::new(),
            queue_by_key: BTreeMap::new(),
            queues_kept: 0,
            active: BTreeSet::new(),
            pass: 0,
            policies: BTreeMap::new(),
            policies_revision: 0,
            applied: BTreeMap::new(),
            lines: Slab::new(),
            line_by_key: IndexMap::default(),
            waiting: 0,
            refill: BTreeSet::new(),
            lines_cursor: None,
            lines_loaded: false,
            lines_more: false,
            lines_reading: false,
            lines_missed: false,
            classes: Slab::new(),
            class_by_key: BTreeMap::new(),
            limits: Limits::default(),
            workers: Slab::new(),
            worker_by_session: BTreeMap::new(),
            members_revision: None,
            uses: 0,
            loads: Vec::new(),
            talkative: Vec::new(),
            delayed: BTreeMap::new(),
            delayed_bound: None,
            delayed_more: true,
            delayed_missed: None,
            delayed_reading: false,
            timers: BTreeSet::new(),
            expiring_reading: false,
            unwritten: Vec::new(),
            loose: Vec::new(),
            urgent: false,
            lazy: VecDeque::new(),
            batches: VecDeque::new(),
            begun: 0,
            overtaken: 0,
            submissions: BTreeMap::new(),
            provisional_seq: PROVISIONAL_SEQ,
            bare_inserts: Vec::new(),
            reads: BTreeMap::new(),
            next_read: 0,
            tombstones: BTreeMap::new(),
            cursor: Seq(0),
            arrivals_reading: false,
            arrivals_wanted: false,
            reread: BTreeSet::new(),
            commands: BTreeMap::new(),
            commands_unread: Vec::new(),
            inbox_known: BTreeSet::new(),
            changed: Vec::new(),
            ended: Vec::new(),
            not_receiving: Vec::new(),
            revocations: Vec::new(),
            starved: BTreeSet::new(),
        }
    }

    /// Takes one input and collects the effects.
    pub fn step(&mut self, input: Input, now: Timestamp, effects: &mut Vec<Effect>) {
        self.take(input, now, effects);
        self.settle(now, effects);
    }

    /// Takes one of several inputs that came together; [`settle`](Self::settle) follows the last.
    pub fn take(&mut self, input: Input, now: Timestamp, effects: &mut Vec<Effect>) {
        if let Input::ClockStepped { by } = input {
            self.on_clock_stepped(by);
        }
        self.advance(now);
        match input {
            Input::Start => self.on_start(effects),
            Input::Page { read, page } => self.on_page(read, page, effects),
            Input::Committed { outcomes } => self.on_committed(outcomes, effects),
            Input::Submit { token, tasks } => self.on_submit(token, tasks, effects),
            Input::Worker(batch) => self.on_worker(batch),
            Input::Members { revision, members } => self.on_members(revision, members),
            Input::Policy { queue, policy } => self.on_policy(&queue, policy),
            Input::CompletionHandled(tasks) => self.on_completion_handled(&tasks),
            Input::Hint => self.arrivals_wanted = true,
            Input::Release => {
                self.releasing = true;
                self.urgent |= !self.loose.is_empty();
            }
            Input::ClockStepped { .. } | Input::Tick => {}
        }
    }

    /// Acts on the inputs: assigns, asks for more, writes, sends.
    pub fn settle(&mut self, now: Timestamp, effects: &mut Vec<Effect>) {
        self.advance(now);
        if self.loading.is_complete() {
            self.on_tick(effects);
            self.assign();
            self.announce();
            self.cut_long_windows();
            self.forget_idle_queues_if_many();
            self.ask(effects);
        }
        self.flush(effects);
        self.send(effects);
    }

    /// When [`Input::Tick`] is due, unless another input comes first.
    pub fn next_deadline(&self) -> Option<Timestamp> {
        if !self.loading.is_complete() {
            return None;
        }
        let delayed = self.delayed.first_key_value().map(|(&(due, _), _)| due);
        let timer = self.timers.first().map(|&(at, _)| at);
        let lazy = self.lazy.front().filter(|_| self.batches.is_empty());
        let lazy = lazy.map(|&(since, _)| since + self.options.lazy_write);
        [delayed, timer, lazy, Some(self.next_sweep)].into_iter().flatten().min()
    }

    /// The driver lets time go back by a step of the wall clock, and reports the step as an input. Where the
    /// clocks of owners differ, stored times may go back too.
    fn advance(&mut self, now: Timestamp) {
        self.now = self.now.max(now);
    }

    fn send(&mut self, effects: &mut Vec<Effect>) {
        for handle in std::mem::take(&mut self.talkative) {
            let Some(worker) = self.workers.get_mut(handle) else { continue };
            let messages = std::mem::take(&mut worker.outbox);
            if messages.is_empty() {
                continue;
            }
            let session = worker.session;
            effects.push(Effect::Send(OwnerBatch { lane: self.lane, epoch: self.epoch, session, messages }));
        }
        effects.extend(self.not_receiving.drain(..).map(|session| Effect::NotReceiving { session }));
        effects.extend(self.revocations.drain(..).map(|session| Effect::Revoke { session }));
        if !self.changed.is_empty() {
            effects.push(Effect::Changed(std::mem::take(&mut self.changed)));
        }
        // Not before the lane can take the confirmation.
        if !self.ended.is_empty() && self.loading.is_complete() {
            effects.push(Effect::Completed(std::mem::take(&mut self.ended)));
        }
    }

    /// Whether the lane has loaded everything that it needs before it may act.
    pub fn is_loaded(&self) -> bool {
        self.loading.is_complete()
    }

    /// Whether nothing waits to be written.
    pub fn is_settled(&self) -> bool {
        self.batches.is_empty()
            && self.unwritten.is_empty()
            && self.lazy.is_empty()
            && self.loose.is_empty()
            && self.bare_inserts.is_empty()
    }

    /// How often rare things happened.
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// Tasks in memory: windows, delayed tasks, and tasks in flight.
    pub fn tasks_in_memory(&self) -> usize {
        self.entries.len()
    }

    /// Queues in memory.
    pub fn queues_in_memory(&self) -> usize {
        self.queues.len()
    }

    /// Lines and limit keys in memory.
    pub fn lines_in_memory(&self) -> (usize, usize) {
        (self.lines.len(), self.limits.len())
    }
}
