//! Workers: their list, and commands for them.

use std::collections::BTreeMap;
use std::sync::PoisonError;
use std::time::{Duration, Instant};

use tasklane_core::id::SessionId;
use tasklane_core::member::{Role, WorkerDescriptor};
use tasklane_core::message::{Control, Message, WorkerStats};
use tasklane_ports::{Address, View};

use super::Node;

/// A live worker.
#[derive(Clone, Debug)]
pub struct WorkerInfo {
    /// Its session.
    pub session: SessionId,
    /// Its capacity, weight, labels and task types.
    pub descriptor: WorkerDescriptor,
    /// Its last statistics.
    pub stats: Option<WorkerStats>,
    /// The worker sends but does not receive: it gets no work.
    pub not_receiving: bool,
}

/// A change of a worker's offer; absent fields stay as they are.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WorkerChange {
    /// Attempts that it runs together.
    pub capacity: Option<u32>,
    /// Its share under the weighted strategy.
    pub weight: Option<u32>,
    /// All of its labels.
    pub labels: Option<BTreeMap<String, String>>,
}

impl WorkerChange {
    fn controls(&self) -> Vec<Control> {
        let Self { capacity, weight, labels } = self.clone();
        [capacity.map(Control::Capacity), weight.map(Control::Weight), labels.map(Control::Labels)]
            .into_iter()
            .flatten()
            .collect()
    }

    fn is_shown_by(&self, worker: &WorkerDescriptor) -> bool {
        self.capacity.is_none_or(|capacity| worker.capacity == capacity)
            && self.weight.is_none_or(|weight| worker.weight == weight)
            && self.labels.as_ref().is_none_or(|labels| worker.labels == *labels)
    }
}

/// Why a worker did not carry out a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WorkerError {
    /// No live worker has this name or session.
    #[error("no live worker has this name or session")]
    NotFound,
    /// The worker was asked repeatedly and did not answer.
    #[error("the worker did not answer in time")]
    NoAnswer,
}

/// How long a worker may take to answer.
const ANSWER_WITHIN: Duration = Duration::from_secs(5);
/// How long a worker counts as not receiving: owners report it again with every heartbeat.
const NOT_RECEIVING_FOR: Duration = Duration::from_secs(10);
/// Wait before the command is resent: messages may be lost.
const ASK_AGAIN: Duration = Duration::from_millis(500);

impl Node {
    /// All live workers, by name, without the system workers.
    pub fn workers(&self) -> Vec<WorkerInfo> {
        let view = self.0.parts.scheduler.view();
        let stats = self.0.stats.lock().unwrap_or_else(PoisonError::into_inner);
        let not_receiving = self.0.not_receiving.lock().unwrap_or_else(PoisonError::into_inner);
        let is_not_receiving = |session| {
            not_receiving.get(&session).is_some_and(|since: &Instant| since.elapsed() < NOT_RECEIVING_FOR)
        };
        let mut workers: Vec<WorkerInfo> = descriptors(&view)
            .filter(|(_, descriptor)| !descriptor.name.is_system())
            .map(|(session, descriptor)| WorkerInfo {
                session,
                descriptor: descriptor.clone(),
                stats: stats.get(&session).cloned(),
                not_receiving: is_not_receiving(session),
            })
            .collect();
        drop((stats, not_receiving));
        workers.sort_by(|a, b| (&a.descriptor.name, a.session).cmp(&(&b.descriptor.name, b.session)));
        workers
    }

    /// Changes the offer of a worker, until its next start. The worker keeps the attempts that it has.
    pub async fn change_worker(&self, worker: &str, change: WorkerChange) -> Result<WorkerInfo, WorkerError> {
        self.control(worker, &change.controls(), |descriptor| change.is_shown_by(descriptor)).await
    }

    /// Drains a worker: it finishes its attempts, takes no more, and leaves.
    pub async fn drain(&self, worker: &str) -> Result<WorkerInfo, WorkerError> {
        self.control(worker, &[Control::Drain], |d| d.draining).await
    }

    /// Resends the command until the worker's descriptor shows it.
    async fn control(
        &self,
        worker: &str,
        controls: &[Control],
        done: impl Fn(&WorkerDescriptor) -> bool,
    ) -> Result<WorkerInfo, WorkerError> {
        let named =
            |info: &WorkerInfo| info.descriptor.name.as_str() == worker || info.session.to_string() == worker;
        let found = self.workers().into_iter().find(named).ok_or(WorkerError::NotFound)?;
        let mut views = self.0.parts.scheduler.views();
        let asking = async {
            loop {
                // One at a time: a worker of an earlier version obeys the commands that it knows, and passes
                // over the rest.
                for control in controls {
                    let message = vec![Message::Control(control.clone())];
                    let _ = self.0.parts.bus.publish(Address::Session(found.session), message).await;
                }
                let shown = views.wait_for(|view| {
                    let descriptor = descriptors(view).find(|(session, _)| *session == found.session);
                    // A worker that has left has nothing more to do.
                    descriptor.is_none_or(|(_, descriptor)| done(descriptor))
                });
                if let Ok(shown) = tokio::time::timeout(ASK_AGAIN, shown).await {
                    return shown.is_ok();
                }
            }
        };
        match tokio::time::timeout(ANSWER_WITHIN, asking).await {
            Ok(true) => Ok(self.workers().into_iter().find(|w| w.session == found.session).unwrap_or(found)),
            Ok(false) | Err(_) => Err(WorkerError::NoAnswer),
        }
    }

    /// Notes the report of a lane's owner that a worker does not receive.
    pub(super) fn keep_not_receiving(&self, session: SessionId) {
        let mut not_receiving = self.0.not_receiving.lock().unwrap_or_else(PoisonError::into_inner);
        not_receiving.retain(|_, since| since.elapsed() < NOT_RECEIVING_FOR);
        if not_receiving.insert(session, Instant::now()).is_none() {
            tracing::warn!(%session, "the worker sends heartbeats but receives no messages: it gets no work");
        }
    }

    pub(super) fn keep_stats(&self, stats: WorkerStats) {
        let view = self.0.parts.scheduler.view();
        let mut all = self.0.stats.lock().unwrap_or_else(PoisonError::into_inner);
        all.retain(|session, _| view.members.contains_key(session));
        if view.members.contains_key(&stats.session) {
            all.insert(stats.session, stats);
        }
    }
}

fn descriptors(view: &View) -> impl Iterator<Item = (SessionId, &WorkerDescriptor)> {
    view.members.values().filter_map(|member| match &member.role {
        Role::Worker(descriptor) => Some((member.session, descriptor)),
        Role::Server { .. } => None,
    })
}
