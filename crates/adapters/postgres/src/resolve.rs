//! Resolves the parts of a commit or a submit before the write.
//!
//! Nearly always all parts apply. So the first call assumes that ([`optimistic`]): it checks its assumptions
//! and writes everything. If an assumption does not hold, nothing is written. The adapter then reads the
//! stored values ([`StoredFacts`]), resolves each part in its order ([`resolve`]), and calls again with the
//! parts that apply. That call assumes that the read values still hold, so it fails again when another writer
//! has changed them; each failure means that another writer has made progress.

use rustc_hash::{FxHashMap, FxHashSet};
use tasklane_core::commit::{Group, GroupOutcome, RecordChange, RecordKey, SubmitOutcome, TaskChange};
use tasklane_core::id::{AttemptNo, LaneId, QueueKey, Seq, TaskId};
use tasklane_core::status::Version;
use tasklane_core::task::{AttemptRecord, Fingerprint, NewTask, TaskResult, TaskState};
use tasklane_core::time::Timestamp;

use crate::write_lane::{LaneWriteBuilder, QueueNo};

/// The numbers of the queues that the parts name.
pub(crate) type Queues = FxHashMap<QueueKey, QueueNo>;

/// The change of a task with everything that must go with it: a group of a commit, or one task of a submit.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Part<'a> {
    insert: Option<&'a NewTask>,
    change: Option<&'a TaskChange>,
    done: &'a [Seq],
    records: &'a [RecordChange],
    /// The queue of a changed task that is not new here, if it is known.
    pub(crate) changed_in: Option<QueueNo>,
}

impl<'a> Part<'a> {
    pub(crate) fn of_task(task: &'a NewTask) -> Self {
        Self { insert: Some(task), change: None, done: &[], records: &[], changed_in: None }
    }

    pub(crate) fn of_group(group: &'a Group) -> Self {
        Self {
            insert: group.insert.as_deref(),
            change: group.change.as_ref(),
            done: &group.inbox_done,
            records: &group.records,
            changed_in: None,
        }
    }

    /// The changed task, unless it is new here.
    pub(crate) fn changed(&self) -> Option<TaskId> {
        self.change.filter(|_| self.first_change().is_none()).map(|change| change.task)
    }

    /// The new task, and its queue.
    pub(crate) fn inserted(&self) -> Option<(TaskId, &'a QueueKey)> {
        self.insert.map(|new| (new.id, &new.spec.head.queue))
    }

    /// The task that the part ends.
    pub(crate) fn finished(&self) -> Option<TaskId> {
        self.change.filter(|change| change.state.status.is_final()).map(|change| change.task)
    }

    /// The change of the inserted task, where there is one.
    fn first_change(&self) -> Option<&'a TaskChange> {
        self.change.filter(|change| self.insert.is_some_and(|new| new.id == change.task))
    }
}

/// The values to read before parts are resolved.
#[derive(Debug, Default)]
pub(crate) struct FactsQuery<'a> {
    pub(crate) ids: FxHashSet<TaskId>,
    /// Unique keys.
    pub(crate) keys: FxHashSet<(QueueNo, &'a str)>,
    /// Queues with a maximum length.
    pub(crate) queues: FxHashSet<QueueNo>,
}

impl<'a> FactsQuery<'a> {
    pub(crate) fn of(lane: LaneId, parts: &[Part<'a>], queues: &Queues) -> Self {
        let mut query = Self::default();
        for part in parts {
            if let Some(new) = part.insert {
                let queue = queues[&new.spec.head.queue];
                query.ids.insert(new.id);
                if let Some(unique) = &new.unique {
                    query.keys.insert((queue, &unique.key));
                }
                if new.queue_len_max.is_some() {
                    query.queues.insert(queue);
                }
            }
            if let Some(change) = part.change.filter(|change| change.task.lane() == lane) {
                query.ids.insert(change.task);
            }
        }
        query
    }
}

/// Stored values.
#[derive(Debug, Default)]
pub(crate) struct StoredFacts {
    /// The queried tasks that exist, and the tasks that hold a key.
    pub(crate) tasks: FxHashMap<TaskId, StoredTask>,
    /// The task that took a key last, and the end of its hold where that is a time.
    pub(crate) keys: FxHashMap<(QueueNo, String), (TaskId, Option<Timestamp>)>,
    /// How many tasks wait in a queue.
    pub(crate) waiting: FxHashMap<QueueNo, i64>,
}

/// A stored task.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StoredTask {
    pub(crate) version: Version,
    pub(crate) queue: QueueNo,
    pub(crate) fingerprint: Fingerprint,
}

/// Assumes that every part applies. `None` where that is impossible, or needs two steps: a task or a unique
/// key that comes twice.
pub(crate) fn optimistic(lane: LaneId, parts: &[Part<'_>], queues: &Queues) -> Option<LaneWriteBuilder> {
    let mut builder = LaneWriteBuilder::new(lane);
    let mut tasks = FxHashSet::with_capacity_and_hasher(parts.len(), rustc_hash::FxBuildHasher);
    let mut taken = FxHashSet::default();
    let mut extras = Extras::default();
    // Upper bound of the additional waiting tasks: changed tasks count for every queue.
    let (mut returned, mut added) = (0, FxHashMap::<QueueNo, i64>::default());
    for part in parts {
        let mut seq = None;
        if let Some(new) = part.insert {
            let queue = queues[&new.spec.head.queue];
            let first = part.first_change();
            let fits = first.is_none_or(|change| change.fits(Version::NEW));
            if !tasks.insert(new.id) || !fits || (part.change.is_some() && first.is_none()) {
                return None;
            }
            if let Some(unique) = &new.unique {
                if !taken.insert((queue, unique.key.as_str())) {
                    return None;
                }
                builder.require_key(queue, &unique.key, new.keyed_at(), None);
                builder.take_key(queue, unique, new.id);
            }
            let waiting = added.entry(queue).or_default();
            if let Some(max) = new.queue_len_max {
                builder.require_below(queue, i64::from(max) - *waiting - returned);
            }
            let own;
            let state = if let Some(change) = first {
                &change.state
            } else {
                own = new.state();
                &own
            };
            *waiting += i64::from(state.status.is_waiting());
            seq = Some(builder.create(new, queue, state, first.and_then(|change| change.result.as_deref())));
        } else if let Some(change) = part.change {
            let fits = change.task.lane() == lane && change.fits(change.expected);
            if !tasks.insert(change.task) || !fits {
                return None;
            }
            returned += i64::from(change.state.status.is_waiting() && !change.expected.status.is_waiting());
            builder.change(
                change.task,
                part.changed_in?,
                change.expected,
                &change.state,
                change.result.as_deref(),
            );
        }
        extras.add(part);
        builder.outcomes.push(GroupOutcome::Applied { seq });
    }
    extras.write(&mut builder);
    Some(builder)
}

/// Resolves each part against the stored values and the effects of the parts before it.
pub(crate) fn resolve(
    lane: LaneId,
    parts: &[Part<'_>],
    queues: &Queues,
    facts: &StoredFacts,
) -> LaneWriteBuilder {
    let mut builder = LaneWriteBuilder::new(lane);
    let mut overlay = Overlay {
        facts,
        tasks: FxHashMap::default(),
        touched: Vec::new(),
        keys: FxHashMap::default(),
        added: FxHashMap::default(),
    };
    let mut extras = Extras::default();
    let mut created = 0;
    for part in parts {
        let outcome = overlay.apply(lane, part, queues, &mut created);
        if matches!(outcome, GroupOutcome::Applied { .. }) {
            extras.add(part);
        }
        builder.outcomes.push(outcome);
    }
    overlay.write(&mut builder);
    extras.write(&mut builder);
    builder
}

/// Stored values, with the effects of resolved parts on top.
struct Overlay<'a> {
    facts: &'a StoredFacts,
    /// Index of a task in `touched`.
    tasks: FxHashMap<TaskId, usize>,
    /// In the order of the first change.
    touched: Vec<TouchedTask<'a>>,
    keys: FxHashMap<(QueueNo, &'a str), (TaskId, Option<Timestamp>)>,
    /// The waiting tasks of a queue beyond the stored count.
    added: FxHashMap<QueueNo, i64>,
}

/// A task that is created or changed.
struct TouchedTask<'a> {
    id: TaskId,
    /// Set if it is created here.
    new: Option<&'a NewTask>,
    /// The stored version; `Version::NEW` for a task created here.
    before: Version,
    queue: QueueNo,
    fingerprint: Fingerprint,
    version: Version,
    /// `None` for a new task without a change.
    state: Option<&'a TaskState>,
    result: Option<&'a TaskResult>,
}

impl<'a> Overlay<'a> {
    fn stored(&self, id: TaskId) -> Option<StoredTask> {
        match self.tasks.get(&id) {
            Some(&at) => {
                let TouchedTask { version, queue, fingerprint, .. } = self.touched[at];
                Some(StoredTask { version, queue, fingerprint })
            }
            None => self.facts.tasks.get(&id).copied(),
        }
    }

    fn apply(&mut self, lane: LaneId, part: &Part<'a>, queues: &Queues, created: &mut u64) -> GroupOutcome {
        if let Some(new) = part.insert
            && let Some(refusal) = self.refusal(new, queues[&new.spec.head.queue])
        {
            return GroupOutcome::NotCreated(refusal);
        }
        if let Some(change) = part.change {
            let stored = self.stored(change.task).filter(|_| change.task.lane() == lane);
            let found = stored.map(|stored| stored.version);
            let is_new = part.first_change().is_some();
            let against = if is_new { Some(Version::NEW) } else { found };
            if !against.is_some_and(|version| change.fits(version)) {
                return GroupOutcome::Mismatch { found };
            }
        }
        let mut seq = None;
        if let Some(new) = part.insert {
            *created += 1;
            seq = Some(Seq(*created));
            self.create(new, queues[&new.spec.head.queue]);
        }
        if let Some(change) = part.change {
            self.change(change);
        }
        GroupOutcome::Applied { seq }
    }

    /// Why a task is not created, if it is not.
    fn refusal(&self, new: &NewTask, queue: QueueNo) -> Option<SubmitOutcome> {
        if let Some(stored) = self.stored(new.id) {
            let same = stored.fingerprint.agrees(new.fingerprint);
            return Some(if same { SubmitOutcome::Duplicate } else { SubmitOutcome::RequestIdReused });
        }
        if let Some(task) = self.holder(new, queue) {
            return Some(SubmitOutcome::Exists { task });
        }
        (self.waiting(queue) >= i64::from(new.queue_len_max?)).then_some(SubmitOutcome::QueueFull)
    }

    fn holder(&self, new: &NewTask, queue: QueueNo) -> Option<TaskId> {
        let key = new.unique.as_ref()?.key.as_str();
        let &(task, until) =
            self.keys.get(&(queue, key)).or_else(|| self.facts.keys.get(&(queue, key.to_owned())))?;
        let held = match until {
            Some(until) => until > new.keyed_at(),
            None => self.stored(task).is_some_and(|stored| !stored.version.status.is_final()),
        };
        held.then_some(task)
    }

    fn waiting(&self, queue: QueueNo) -> i64 {
        let of = |counts: &FxHashMap<QueueNo, i64>| counts.get(&queue).copied().unwrap_or(0);
        of(&self.facts.waiting) + of(&self.added)
    }

    fn create(&mut self, new: &'a NewTask, queue: QueueNo) {
        if let Some(unique) = &new.unique {
            self.keys.insert((queue, &unique.key), (new.id, unique.until));
        }
        *self.added.entry(queue).or_default() += 1;
        self.touch(TouchedTask {
            id: new.id,
            new: Some(new),
            before: Version::NEW,
            queue,
            fingerprint: new.fingerprint,
            version: Version::NEW,
            state: None,
            result: None,
        });
    }

    fn change(&mut self, change: &'a TaskChange) {
        let at = if let Some(&at) = self.tasks.get(&change.task) {
            at
        } else {
            let StoredTask { version, queue, fingerprint } = self.facts.tasks[&change.task];
            let (id, new, state, result) = (change.task, None, None, None);
            self.touch(TouchedTask { id, new, before: version, queue, fingerprint, version, state, result })
        };
        let task = &mut self.touched[at];
        let (from, to) = (task.version, change.state.version());
        let waits = |version: Version| i64::from(version.status.is_waiting());
        *self.added.entry(task.queue).or_default() += waits(to) - waits(from);
        task.version = to;
        task.state = Some(&change.state);
        task.result = change.result.as_deref().or(task.result);
    }

    fn touch(&mut self, task: TouchedTask<'a>) -> usize {
        let at = self.touched.len();
        self.tasks.insert(task.id, at);
        self.touched.push(task);
        at
    }

    fn write(&self, builder: &mut LaneWriteBuilder) {
        for task in &self.touched {
            let Some(new) = task.new else {
                if let Some(state) = task.state {
                    builder.change(task.id, task.queue, task.before, state, task.result);
                }
                continue;
            };
            match task.state {
                Some(state) => builder.create(new, task.queue, state, task.result),
                None => builder.create(new, task.queue, &new.state(), None),
            };
            if let Some(unique) = &new.unique {
                let key = unique.key.as_str();
                let before = self.facts.keys.get(&(task.queue, key.to_owned())).map(|(task, _)| *task);
                builder.require_key(task.queue, key, new.keyed_at(), before);
                // A later task may have taken the key since.
                if self.keys[&(task.queue, key)].0 == task.id {
                    builder.take_key(task.queue, unique, task.id);
                }
            }
            if new.queue_len_max.is_some() {
                builder
                    .require_below(task.queue, self.facts.waiting.get(&task.queue).copied().unwrap_or(0) + 1);
            }
        }
    }
}

/// The extras of parts that apply. Of several writes to the same key, the last one counts.
#[derive(Default)]
struct Extras<'a> {
    done: Vec<Seq>,
    attempts: FxHashMap<(TaskId, AttemptNo), &'a AttemptRecord>,
    records: FxHashMap<&'a RecordKey, &'a RecordChange>,
}

impl<'a> Extras<'a> {
    fn add(&mut self, part: &Part<'a>) {
        self.done.extend_from_slice(part.done);
        for record in part.records {
            self.records.insert(&record.key, record);
        }
        if let Some(change) = part.change {
            for attempt in &change.ended {
                self.attempts.insert((change.task, attempt.number), attempt);
            }
        }
    }

    fn write(self, builder: &mut LaneWriteBuilder) {
        self.done.into_iter().for_each(|seq| builder.done(seq));
        for ((task, _), attempt) in self.attempts {
            builder.attempt(task, attempt);
        }
        self.records.into_values().for_each(|record| builder.record(record));
    }
}
