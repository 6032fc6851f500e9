//! Retention, as servers apply it: the real bounds, over a store behind the network. The server that owns the first lane
//! removes tasks that finished long ago and locks that have ended. It also notes the time, with which a server that starts
//! compares its clock.
//!
//! The ages of removed tasks are checked by a clock that never steps.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use tasklane_core::id::TaskId;
use tasklane_core::retention::Bounds;
use tasklane_core::time::Timestamp;
use tasklane_ports::{
    Content, Document, DocumentKey, DocumentKind, DueList, ExpiredQuery, ExpiredTasks, PutDocument,
    TaskCursor,
};

use crate::server::ServerInput;
use crate::store::{ReplyTo, StoreRequest};
use crate::worker::name;
use crate::world::{Event, World};

/// What a server does about retention at the moment.
#[derive(Debug, Default)]
pub(crate) struct Keeper {
    /// Counts the requests. Answers to a request that was given up are dropped.
    round: u64,
    since: Timestamp,
    is_asking: bool,
    /// When the next look is due.
    next_look: Timestamp,
}

/// What retention asks of the store.
#[derive(Clone, Debug)]
pub(crate) enum KeeperRequest {
    /// Tasks whose time is over.
    Expired { retire: ExpiredQuery, decided_at: Timestamp },
    /// Their removal.
    Retire { expired: ExpiredTasks, decided_at: Timestamp },
    /// Locks whose wall time is over.
    EndedLocks(DueList),
    /// The removal of locks.
    RemoveLocks { removals: Vec<PutDocument>, started_at: Timestamp },
    /// The noted time.
    ReadNote,
    /// Another one.
    WriteNote(PutDocument),
}

/// What the store answers.
#[derive(Clone, Debug)]
pub(crate) enum KeeperReply {
    Expired { expired: ExpiredTasks, decided_at: Timestamp },
    Retired { next: Option<TaskCursor> },
    Locks(Vec<Document>),
    LocksRemoved,
    Note(Option<Document>),
    Noted,
    Failed,
}

/// Finished tasks, as a clock without steps sees them.
#[derive(Debug, Default)]
pub(crate) struct Kept {
    /// When each task finished, at the earliest.
    finished: BTreeMap<TaskId, Timestamp>,
    pub(crate) forgotten: BTreeSet<TaskId>,
}

/// An answer that takes longer is given up.
const PATIENCE: Duration = Duration::from_secs(10);
/// How often a server looks for what is old.
const LOOK_EVERY: Duration = Duration::from_secs(5);
/// Tasks that a server looks at in one go.
const PAGE: usize = 60;
/// A lock that ended this long ago is removed.
const LOCKS_KEPT: Duration = Duration::from_secs(10);
/// What the times of servers and of this module differ by: two servers that follow a reference differ by twice the size of
/// the smallest step.
const SLACK: Duration = Duration::from_millis(1200);

fn note_key() -> DocumentKey {
    DocumentKey { kind: DocumentKind::Deployment, namespace: name("tasklane"), id: name("clock") }
}

fn note_of(wall: Timestamp, expected: u64) -> PutDocument {
    let content = Some(Content { due: None, value: wall.as_micros().to_string().into_bytes() });
    PutDocument { key: note_key(), expected, content }
}

impl World {
    /// Servers have run before: the store knows the time.
    pub(crate) fn plan_retention(&mut self) {
        self.store.put_documents(&[note_of(self.now, 0)]);
    }

    /// The last time that the store knows of.
    pub(crate) fn noted_time(&self) -> Option<Timestamp> {
        let noted = self.store.documents(&[note_key()]).pop().flatten()?;
        Some(Timestamp::from_micros(str::from_utf8(&noted.value).ok()?.parse().ok()?))
    }

    fn keeper(&mut self, index: usize) -> &mut Keeper {
        &mut self.servers[index].process.as_mut().expect("the server is running").keeper
    }

    /// A server looks for what is old, if it owns the first lane: one server is enough.
    pub(crate) fn look_at_retention(&mut self, index: usize) {
        let now = self.now;
        let is_owner = self.servers[index]
            .process
            .as_ref()
            .is_some_and(|server| server.lanes.first().is_some_and(|lane| lane.epoch().is_some()));
        let keeper = self.keeper(index);
        let is_busy = keeper.is_asking && now < keeper.since + PATIENCE;
        if !is_owner || is_busy || now < keeper.next_look {
            return;
        }
        keeper.next_look = now + LOOK_EVERY;
        if self.knows_the_time(index) {
            self.look_for_expired(index, None);
        }
    }

    fn look_for_expired(&mut self, index: usize, after: Option<TaskCursor>) {
        let clock = self.clock_of(index);
        let Some(bounds) = self.scenario.retention().bounds(&clock, self.scenario.invariants) else {
            self.keeper(index).is_asking = false;
            return self.report.path("retention_waited");
        };
        let Bounds { finished_before, forget_before } = bounds;
        let retire = ExpiredQuery { finished_before, forget_before, after, limit: PAGE };
        self.ask_keeper(index, KeeperRequest::Expired { retire, decided_at: self.now });
    }

    fn ask_keeper(&mut self, index: usize, request: KeeperRequest) {
        let (incarnation, now) = (self.servers[index].incarnation, self.now);
        let keeper = self.keeper(index);
        (keeper.round, keeper.since, keeper.is_asking) = (keeper.round + 1, now, true);
        let round = keeper.round;
        self.call_store(StoreRequest::Keeper(request), ReplyTo::Keeper { index, incarnation, round });
    }

    pub(crate) fn answer_keeper(&mut self, reply_to: &ReplyTo, reply: KeeperReply, delay: Duration) {
        if let ReplyTo::Keeper { index, incarnation, round } = *reply_to {
            let input = ServerInput::Kept { round, reply: Box::new(reply) };
            self.after(delay, Event::Server { index, incarnation, input });
        }
    }

    /// The store has answered a server about retention.
    pub(crate) fn keeper_reply(&mut self, index: usize, round: u64, reply: KeeperReply) {
        let clock = self.clock_of(index);
        let keeper = self.keeper(index);
        if keeper.round != round {
            return;
        }
        keeper.is_asking = false;
        match reply {
            KeeperReply::Expired { expired, decided_at } => {
                if expired.strip.is_empty() && expired.forget.is_empty() {
                    self.after_page(index, expired.next);
                } else {
                    self.ask_keeper(index, KeeperRequest::Retire { expired, decided_at });
                }
            }
            KeeperReply::Retired { next } => self.after_page(index, next),
            KeeperReply::Locks(locks) => {
                let (removals, started_at) = self.lock_removals(index, &locks);
                self.ask_keeper(index, KeeperRequest::RemoveLocks { removals, started_at });
            }
            KeeperReply::LocksRemoved if clock.is_settled() => {
                self.ask_keeper(index, KeeperRequest::ReadNote);
            }
            KeeperReply::Note(noted) if clock.is_settled() => {
                let note = note_of(clock.wall, noted.map_or(0, |noted| noted.version));
                self.ask_keeper(index, KeeperRequest::WriteNote(note));
            }
            KeeperReply::LocksRemoved | KeeperReply::Note(_) | KeeperReply::Noted | KeeperReply::Failed => {}
        }
    }

    /// A page of tasks is done: the next one follows, or the locks.
    fn after_page(&mut self, index: usize, next: Option<TaskCursor>) {
        let clock = self.clock_of(index);
        if next.is_some() {
            self.look_for_expired(index, next);
        } else if clock.is_settled() {
            let until = clock.wall - LOCKS_KEPT;
            let list = DueList { kind: DocumentKind::Lock, until, after: None, limit: PAGE };
            self.ask_keeper(index, KeeperRequest::EndedLocks(list));
        }
    }

    /// The store does what retention asks.
    pub(crate) fn apply_keeper(&mut self, request: KeeperRequest) -> KeeperReply {
        match request {
            KeeperRequest::Expired { retire, decided_at } => {
                KeeperReply::Expired { expired: self.store.expired(&retire), decided_at }
            }
            KeeperRequest::Retire { expired, decided_at } => {
                self.check_ages(&expired, decided_at);
                self.store.retire(&expired.strip, &expired.forget);
                KeeperReply::Retired { next: expired.next }
            }
            KeeperRequest::EndedLocks(list) => KeeperReply::Locks(self.store.documents_by_time(&list)),
            KeeperRequest::RemoveLocks { removals, started_at } => {
                self.remove_locks(&removals, started_at);
                KeeperReply::LocksRemoved
            }
            KeeperRequest::ReadNote => KeeperReply::Note(self.store.documents(&[note_key()]).pop().flatten()),
            KeeperRequest::WriteNote(note) => {
                self.store.put_documents(&[note]);
                KeeperReply::Noted
            }
        }
    }

    /// A task has finished, at a time of the wall clock.
    pub(crate) fn note_finished(&mut self, task: TaskId, wall: Timestamp) {
        let at = self.shown_at(wall);
        self.kept.finished.insert(task, at);
    }

    /// Tasks are removed: each is as old as retention says, by a clock without steps.
    fn check_ages(&mut self, expired: &ExpiredTasks, decided_at: Timestamp) {
        let retention = self.scenario.retention();
        let unseen = self.scenario.unseen_step_max();
        let stripped = expired.strip.iter().map(|task| (*task, retention.tasks, "the data of task"));
        let forgotten = expired.forget.iter().map(|task| (*task, retention.request_ids, "the id of task"));
        for (task, keep, what) in stripped.chain(forgotten).collect::<Vec<_>>() {
            let Some(finished) = self.kept.finished.get(&task) else {
                self.checker.fail(self.now, format!("{what} {task} is removed, and it has not finished"));
                continue;
            };
            let age = decided_at.since(*finished);
            if age + SLACK + unseen < keep {
                let text = format!("{what} {task} is removed {age:?} after its end, and kept for {keep:?}");
                self.checker.fail(self.now, text);
            }
        }
        for _ in &expired.strip {
            self.report.path("task_stripped");
        }
        for task in &expired.forget {
            self.report.path("task_forgotten");
            self.kept.forgotten.insert(*task);
        }
    }
}
