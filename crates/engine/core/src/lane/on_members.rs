//! Members, as the coordinator reports them. The owner gives an attempt up when its session has ended, and
//! not before.

use std::collections::BTreeSet;

use crate::id::SessionId;
use crate::member::{Member, Role};

use super::entry::Handle;
use super::machine::Lane;

impl Lane {
    pub(super) fn on_members(&mut self, revision: u64, members: Vec<Member>) {
        if self.members_revision.is_some_and(|seen| revision < seen) {
            return;
        }
        self.members_revision = Some(revision);
        let mut alive = BTreeSet::new();
        for member in members {
            let Role::Worker(descriptor) = member.role else { continue };
            alive.insert(member.session);
            let handle = self.intern_worker(member.session);
            if self.workers[handle].descriptor.as_ref() != Some(&descriptor) {
                let weight = descriptor.weight;
                let before = self.workers[handle].descriptor.replace(descriptor);
                if before.is_some_and(|before| before.weight != weight) {
                    // The next turns go by the new weights alone.
                    for (_, queue) in &mut self.queues {
                        queue.turns.clear();
                    }
                }
                self.update_worker_classes(handle);
                if self.loading.is_complete() {
                    self.greet(handle);
                }
            }
        }
        let gone: Vec<Handle> = self
            .workers
            .iter()
            .filter(|(_, w)| !alive.contains(&w.session))
            .map(|(handle, _)| handle)
            .collect();
        for worker in gone {
            if self.loading.is_complete() {
                self.end_worker(worker);
            } else {
                // Its attempts are not all known yet: judged when loading is complete.
                self.workers[worker].descriptor = None;
                self.update_worker_classes(worker);
            }
        }
    }

    /// Recomputes the classes that a worker serves.
    pub(super) fn update_worker_classes(&mut self, worker: Handle) {
        let classes: Vec<Handle> = self.classes.iter().map(|(handle, _)| handle).collect();
        for class in classes {
            self.serve_class(class);
        }
        self.refresh_worker(worker);
    }

    /// A session has ended: all of its attempts are lost.
    pub(super) fn end_worker(&mut self, worker: Handle) {
        self.workers[worker].descriptor = None;
        self.update_worker_classes(worker);
        let holds: Vec<Handle> = self.workers[worker].holds.iter().copied().collect();
        for entry in holds {
            self.lose_with_worker(entry);
        }
        self.end_asking(worker);
        self.end_greeting(worker);
        for (_, queue) in &mut self.queues {
            if let Some(turn) = queue.turns.get_mut(worker) {
                *turn = 0;
            }
        }
        let session: SessionId = self.workers[worker].session;
        self.worker_by_session.remove(&session);
        self.talkative.retain(|&w| w != worker);
        self.workers.remove(worker);
    }
}
