//! The effect of each kind of write within the writer's transaction.
//!
//! A request checks first and writes only when it is sure to succeed, so that a refusal leaves nothing behind
//! and needs no savepoint. Later failures come from SQLite (no room, a bad disk) and undo the transaction.

use tasklane_core::commit::{Group, GroupOutcome, SubmitOutcome};
use tasklane_core::id::{Epoch, LaneId, QueueKey};
use tasklane_core::policy::QueueBinding;
use tasklane_core::status::Version;
use tasklane_ports::codec::{decode, encode};
use tasklane_ports::{ClaimLane, LogChunk, PutPolicy, StoreError};

use crate::error::Failure;
use crate::keys::seq_of;
use crate::outcomes;
use crate::rows::{ChangeRow, CommitRows, InsertRow, NewRow, StateRow};
use crate::write_state::{LaneRow, StoredTask, WriteState};

/// A write.
pub(crate) trait Request: Send + 'static {
    type Response: Send + 'static;

    /// About how many rows and bytes it writes.
    fn size(&self) -> Size;

    /// Applies the request. The inner error is the answer of a request that was refused and wrote nothing;
    /// the outer one undoes the transaction.
    fn apply(&self, write_state: &mut WriteState<'_>) -> Result<Result<Self::Response, StoreError>, Failure>;
}

/// How much a request writes.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Size {
    pub(crate) ops: usize,
    pub(crate) bytes: usize,
}

/// `Store::submit`.
pub(crate) struct SubmitRows {
    pub(crate) lane: LaneId,
    pub(crate) tasks: Vec<(NewRow, StateRow)>,
    pub(crate) size: Size,
}

impl Request for SubmitRows {
    type Response = Vec<SubmitOutcome>;

    fn size(&self) -> Size {
        self.size
    }

    fn apply(&self, write_state: &mut WriteState<'_>) -> Result<Result<Self::Response, StoreError>, Failure> {
        let mut outcomes = Vec::with_capacity(self.tasks.len());
        for (task, state) in &self.tasks {
            outcomes.push(match create(write_state, self.lane, task, state)? {
                Ok(created) => SubmitOutcome::Created { seq: seq_of(created.key) },
                Err(outcome) => outcome,
            });
        }
        Ok(Ok(outcomes))
    }
}

/// Creates a task, or answers the refusal.
fn create(
    write_state: &mut WriteState<'_>,
    lane: LaneId,
    task: &NewRow,
    state: &StateRow,
) -> Result<Result<StoredTask, SubmitOutcome>, Failure> {
    if let Some(refused) = refusal(write_state, task)? {
        return Ok(Err(refused));
    }
    match write_state.add_task(lane, task, state)? {
        Some(created) => Ok(Ok(created)),
        None => Ok(Err(existing(write_state, task)?.expect("only an id that is taken is not added"))),
    }
}

/// Why a task cannot be created, as far as that is known without an attempt: an attempt is cheaper than a
/// search for an id that is hardly ever there.
fn refusal(write_state: &mut WriteState<'_>, task: &NewRow) -> Result<Option<SubmitOutcome>, Failure> {
    let refused = if let Some(task) = write_state.holder(task)? {
        SubmitOutcome::Exists { task }
    } else if is_full(write_state, task)? {
        SubmitOutcome::QueueFull
    } else {
        return Ok(None);
    };
    // A repeated request gets its duplicate outcome, also where another refusal applies.
    Ok(Some(existing(write_state, task)?.unwrap_or(refused)))
}

/// Whether the queue has its maximum of waiting tasks.
fn is_full(write_state: &mut WriteState<'_>, task: &NewRow) -> Result<bool, Failure> {
    let Some(max) = task.queue_len_max else { return Ok(false) };
    let queue = write_state.queue(&task.queue)?;
    Ok(write_state.waiting(queue)? >= u64::from(max))
}

/// Like [`refusal`], with a search for the id.
fn could_create(write_state: &mut WriteState<'_>, task: &NewRow) -> Result<Option<SubmitOutcome>, Failure> {
    match refusal(write_state, task)? {
        Some(refused) => Ok(Some(refused)),
        None => existing(write_state, task),
    }
}

/// The outcome for a task whose id is taken.
fn existing(write_state: &mut WriteState<'_>, task: &NewRow) -> Result<Option<SubmitOutcome>, Failure> {
    let Some(found) = write_state.task(task.id)? else { return Ok(None) };
    let same = write_state.fingerprint(found.key)?.agrees(task.fingerprint);
    Ok(Some(if same { SubmitOutcome::Duplicate } else { SubmitOutcome::RequestIdReused }))
}

impl Request for CommitRows {
    type Response = Vec<GroupOutcome>;

    fn size(&self) -> Size {
        Size {
            ops: self.commit.groups.iter().map(Group::ops).sum(),
            bytes: self.commit.groups.iter().map(Group::bytes).sum(),
        }
    }

    fn apply(&self, write_state: &mut WriteState<'_>) -> Result<Result<Self::Response, StoreError>, Failure> {
        let commit = &self.commit;
        let lane = commit.lane;
        let LaneRow { epoch, owner, commit: last, outcomes: stored, .. } = write_state.lane(lane)?;
        if *epoch != commit.epoch || *owner != Some(commit.owner) {
            return Ok(Err(StoreError::Fenced { lane, held: commit.epoch, current: *epoch }));
        }
        if commit.number == *last && last.0 > 0 {
            return Ok(Ok(outcomes::unpack(&decode::<outcomes::OutcomeRuns>(stored)?)));
        }
        if commit.number != last.next() {
            return Ok(Err(StoreError::OutOfOrder { lane, number: commit.number, last: *last }));
        }
        let mut outcomes = Vec::with_capacity(self.groups.len());
        for (rows, group) in self.groups.iter().zip(commit.groups.iter()) {
            let outcome = write_group(write_state, lane, rows.insert.as_ref(), rows.change.as_ref())?;
            if matches!(outcome, GroupOutcome::Applied { .. }) {
                for seq in &group.inbox_done {
                    write_state.drop_command(lane, *seq)?;
                }
                for record in &group.records {
                    let (kind, key) = (record.key.kind.code(), &record.key.key);
                    match &record.value {
                        Some(value) => write_state.put_record(lane, kind, key, value)?,
                        None => write_state.drop_record(lane, kind, key)?,
                    }
                }
            }
            outcomes.push(outcome);
        }
        let row = write_state.lane_mut(lane)?;
        row.commit = commit.number;
        row.outcomes = encode(&outcomes::pack(&outcomes));
        Ok(Ok(outcomes))
    }
}

/// Writes the tasks of a group, or nothing.
fn write_group(
    write_state: &mut WriteState<'_>,
    lane: LaneId,
    insert: Option<&InsertRow>,
    change: Option<&ChangeRow>,
) -> Result<GroupOutcome, Failure> {
    let Some(InsertRow { task, state }) = insert else {
        let Some(change) = change else { return Ok(GroupOutcome::Applied { seq: None }) };
        return match changeable(write_state, lane, change)? {
            Ok(found) => {
                write_change(write_state, lane, change, found)?;
                Ok(GroupOutcome::Applied { seq: None })
            }
            Err(found) => Ok(GroupOutcome::Mismatch { found }),
        };
    };
    let created = match (state, change) {
        (Some(state), None) => create(write_state, lane, task, state)?,
        // Created in the state that the change leads to, so that no trace of the one before it is written.
        (None, Some(change)) if change.fits(Version::NEW) => {
            let created = create(write_state, lane, task, &change.state)?;
            if let Ok(created) = &created {
                write_rest(write_state, created.key, change)?;
            }
            created
        }
        (None, _) => {
            let refused = could_create(write_state, task)?;
            return Ok(refused.map_or(GroupOutcome::Mismatch { found: None }, GroupOutcome::NotCreated));
        }
        // Unusual but possible: the group changes another task beside the new one.
        (Some(state), Some(change)) => {
            if let Some(refused) = could_create(write_state, task)? {
                return Ok(GroupOutcome::NotCreated(refused));
            }
            match changeable(write_state, lane, change)? {
                Ok(found) => write_change(write_state, lane, change, found)?,
                Err(found) => return Ok(GroupOutcome::Mismatch { found }),
            }
            create(write_state, lane, task, state)?
        }
    };
    Ok(match created {
        Ok(created) => GroupOutcome::Applied { seq: Some(seq_of(created.key)) },
        Err(outcome) => GroupOutcome::NotCreated(outcome),
    })
}

/// The task that a change may be written to, or the mismatch. An owner must not change a task of another
/// lane.
fn changeable(
    write_state: &mut WriteState<'_>,
    lane: LaneId,
    change: &ChangeRow,
) -> Result<Result<StoredTask, Option<Version>>, Failure> {
    let found = if change.task.lane() == lane { write_state.task(change.task)? } else { None };
    Ok(match found {
        Some(found) if change.fits(found.version) => Ok(found),
        other => Err(other.map(|found| found.version)),
    })
}

fn write_change(
    write_state: &mut WriteState<'_>,
    lane: LaneId,
    change: &ChangeRow,
    found: StoredTask,
) -> Result<(), Failure> {
    write_state.change(lane, change.task, found, &change.state)?;
    write_rest(write_state, found.key, change)
}

/// Writes the attempts and the result of a change.
fn write_rest(write_state: &mut WriteState<'_>, key: i64, change: &ChangeRow) -> Result<(), Failure> {
    for (number, record) in &change.ended {
        write_state.put_attempt(key, *number, record)?;
    }
    if let Some(result) = &change.result {
        write_state.put_result(key, result)?;
    }
    Ok(())
}

impl Request for ClaimLane {
    type Response = Epoch;

    fn size(&self) -> Size {
        Size { ops: 1, bytes: 0 }
    }

    fn apply(&self, write_state: &mut WriteState<'_>) -> Result<Result<Self::Response, StoreError>, Failure> {
        let row = write_state.lane(self.lane)?;
        let next = self.seen.next();
        if row.epoch == next && row.owner == Some(self.owner) && row.commit.0 == 0 {
            return Ok(Ok(next));
        }
        if row.epoch != self.seen {
            return Ok(Err(StoreError::ClaimLost { lane: self.lane, current: row.epoch }));
        }
        let seq = row.seq;
        *write_state.lane_mut(self.lane)? = LaneRow {
            epoch: next,
            owner: Some(self.owner),
            failures: self.failures,
            seq,
            ..LaneRow::default()
        };
        write_state.claimed(self.lane, next);
        Ok(Ok(next))
    }
}

/// `Store::post`.
pub(crate) struct PostRows {
    pub(crate) lane: LaneId,
    pub(crate) commands: Vec<Vec<u8>>,
}

impl Request for PostRows {
    type Response = ();

    fn size(&self) -> Size {
        Size { ops: self.commands.len(), bytes: self.commands.iter().map(Vec::len).sum() }
    }

    fn apply(&self, write_state: &mut WriteState<'_>) -> Result<Result<Self::Response, StoreError>, Failure> {
        for command in &self.commands {
            write_state.add_command(self.lane, command)?;
        }
        Ok(Ok(()))
    }
}

/// `Store::bind_queue`.
pub(crate) struct BindQueue {
    pub(crate) queue: QueueKey,
    pub(crate) binding: QueueBinding,
}

impl Request for BindQueue {
    type Response = QueueBinding;

    fn size(&self) -> Size {
        Size { ops: 1, bytes: 0 }
    }

    fn apply(&self, write_state: &mut WriteState<'_>) -> Result<Result<Self::Response, StoreError>, Failure> {
        let queue = write_state.queue(&self.queue)?;
        if let Some(binding) = write_state.binding(queue)? {
            return Ok(Ok(decode(&binding)?));
        }
        write_state.bind(queue, &encode(&self.binding))?;
        Ok(Ok(self.binding.clone()))
    }
}

impl Request for PutPolicy {
    type Response = u64;

    fn size(&self) -> Size {
        Size { ops: 1, bytes: 0 }
    }

    fn apply(&self, write_state: &mut WriteState<'_>) -> Result<Result<Self::Response, StoreError>, Failure> {
        let queue = write_state.queue(&self.queue)?;
        let current = write_state.policy_version(queue)?;
        if current != self.expected {
            return Ok(Err(StoreError::PolicyConflict {
                queue: self.queue.clone(),
                expected: self.expected,
                current,
            }));
        }
        let version = current + 1;
        write_state.put_policy(queue, version, &encode(&self.policy))?;
        Ok(Ok(version))
    }
}

/// `Logs::append`.
pub(crate) struct AppendLogs(pub(crate) Vec<LogChunk>);

impl Request for AppendLogs {
    type Response = ();

    fn size(&self) -> Size {
        Size { ops: self.0.len(), bytes: self.0.iter().map(|chunk| chunk.bytes.len()).sum() }
    }

    fn apply(&self, write_state: &mut WriteState<'_>) -> Result<Result<Self::Response, StoreError>, Failure> {
        for chunk in &self.0 {
            write_state.add_log(chunk)?;
        }
        Ok(Ok(()))
    }
}
