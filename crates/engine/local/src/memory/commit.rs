//! An owner's commits. Each group is first judged, then written, so that a skipped one leaves no trace.

use std::sync::Arc;

use tasklane_core::command::Command;
use tasklane_core::commit::{Commit, Group, GroupOutcome, TaskChange};
use tasklane_core::id::LaneId;
use tasklane_core::invariant::Invariant;
use tasklane_core::status::Version;
use tasklane_ports::StoreError;

use super::history::{HistoryEvent, StateSummary};
use super::lane::Lane;
use super::state::MemoryState;

impl MemoryState {
    /// See [`Store::commit`](tasklane_ports::Store::commit).
    pub fn commit(&mut self, commit: &Commit) -> Result<Vec<GroupOutcome>, StoreError> {
        let ops = commit.groups.iter().map(Group::ops).sum();
        let bytes = commit.groups.iter().map(Group::bytes).sum();
        self.check_size("commit", ops, bytes)?;
        let unclaimed = Lane::default();
        let lane = self.lanes.get(&commit.lane).unwrap_or(&unclaimed);
        let invariants = self.options.invariants;
        let fenced = lane.epoch != commit.epoch
            || (invariants.on(Invariant::OwnerId) && lane.owner != Some(commit.owner));
        if fenced {
            return Err(StoreError::Fenced { lane: commit.lane, held: commit.epoch, current: lane.epoch });
        }
        let last = lane.commit;
        let repeated = last.0 > 0 && commit.number == last;
        if repeated && invariants.on(Invariant::CommitRepeat) {
            return Ok(lane.outcomes.clone());
        }
        if !repeated && commit.number != last.next() && invariants.on(Invariant::CommitNumber) {
            return Err(StoreError::OutOfOrder { lane: commit.lane, number: commit.number, last });
        }
        self.begin_call();
        let outcomes: Vec<_> = commit.groups.iter().map(|group| self.apply(commit, group)).collect();
        let lane = self.lanes.entry(commit.lane).or_default();
        lane.commit = commit.number;
        lane.outcomes.clone_from(&outcomes);
        Ok(outcomes)
    }

    fn apply(&mut self, commit: &Commit, group: &Group) -> GroupOutcome {
        if self.options.strict {
            check_lane(commit.lane, group);
        }
        if let Some(new) = &group.insert
            && let Some(refusal) = self.refusal(new)
        {
            return GroupOutcome::NotCreated(refusal);
        }
        if let Some(change) = &group.change
            && !self.may_change(commit, group, change)
        {
            return GroupOutcome::Mismatch { found: self.version_in(commit.lane, change) };
        }
        let mut keys = 0;
        let mut seq = None;
        if let Some(new) = &group.insert {
            assert_eq!(new.id.lane(), commit.lane, "task {} is inserted into another lane", new.id);
            let (number, written) = self.insert(new, false);
            seq = Some(number);
            keys += written;
        }
        if let Some(change) = &group.change {
            keys += self.change(commit, change);
        }
        let in_group = self.options.invariants.on(Invariant::InboxDoneInGroup);
        let lane = self.lanes.entry(commit.lane).or_default();
        let mut removed = Vec::new();
        for done in group.inbox_done.iter().filter(|_| in_group) {
            if let Some(Command::Cancel { task }) = lane.inbox.remove(done) {
                keys += 1;
                removed.push(HistoryEvent::InboxDone { task, seq: *done, lane: commit.lane });
            }
        }
        for record in &group.records {
            keys += 1;
            match &record.value {
                Some(value) => lane.records.insert(record.key.clone(), value.clone()),
                None => lane.records.remove(&record.key),
            };
        }
        for event in removed {
            self.record(|| event);
        }
        let promised = group.ops();
        assert!(
            !self.options.strict || keys <= promised,
            "a group of {promised} operations wrote {keys} keys: {group:?}"
        );
        GroupOutcome::Applied { seq }
    }

    fn may_change(&self, commit: &Commit, group: &Group, change: &TaskChange) -> bool {
        let inserted = group.insert.as_ref().is_some_and(|new| new.id == change.task);
        let stored = if inserted { Some(Version::NEW) } else { self.version_in(commit.lane, change) };
        stored.is_some_and(|stored| change.fits(stored))
    }

    /// The stored version of the changed task; `None` for a task of another lane, which this owner must not change.
    fn version_in(&self, lane: LaneId, change: &TaskChange) -> Option<Version> {
        self.tasks.get(&change.task).filter(|_| change.task.lane() == lane).map(|task| task.state.version())
    }

    /// Writes a change that was found to be right. Answers how many keys that took.
    fn change(&mut self, commit: &Commit, change: &TaskChange) -> usize {
        let id = change.task;
        let task = self.tasks.get_mut(&id).expect("only tasks that exist are changed");
        let from = task.state.version();
        let before = (task.place(id), task.deadline());
        assert_eq!(task.state.created_at, change.state.created_at, "task {id} gets another creation time");
        task.state = change.state.clone();
        let mut keys = 1 + change.ended.len();
        for ended in &change.ended {
            task.attempts.insert(ended.number, ended.clone());
        }
        if let Some(result) = &change.result {
            task.result = Some(Arc::new(result.as_ref().clone()));
            keys += 1;
        }
        let after = (task.place(id), task.deadline());
        keys += self.lanes.entry(commit.lane).or_default().relocate(id, before, after);
        if from.status != change.state.status {
            let queue = Arc::clone(&task.head);
            self.count(&queue.queue, from.status, -1);
            self.count(&queue.queue, change.state.status, 1);
        }
        self.record(|| HistoryEvent::Changed {
            task: id,
            lane: commit.lane,
            epoch: commit.epoch,
            owner: commit.owner,
            number: commit.number,
            from,
            path: change.path.clone(),
            to: StateSummary::of(&change.state),
        });
        keys
    }
}

fn check_lane(lane: LaneId, group: &Group) {
    let inserted = group.insert.as_ref().map(|new| new.id);
    let changed = group.change.as_ref().map(|change| change.task);
    for task in [inserted, changed].into_iter().flatten() {
        assert_eq!(task.lane(), lane, "a group of lane {lane} touches task {task} of lane {}", task.lane());
    }
    if let (Some(inserted), Some(changed)) = (inserted, changed) {
        assert_eq!(inserted, changed, "a group inserts one task and changes another");
    }
}
