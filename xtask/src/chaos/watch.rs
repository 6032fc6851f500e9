//! The servers' own account during faults: the lanes that they own, and the events of tasks.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tasklane_client::{Client, Event, EventItem, Status};
use tasklane_core::id::TaskId;

use super::clock::Boot;

/// How often each server is asked for its lanes: how exact times of recovery are.
const ASK_EVERY: Duration = Duration::from_millis(100);
/// A server that does not answer within this time is asked again.
const ANSWER_WITHIN: Duration = Duration::from_secs(2);
/// Wait before events are followed again.
const FOLLOW_AGAIN_AFTER: Duration = Duration::from_millis(300);
/// The API's word for a lane that its owner works on.
const OWNING: &str = "owning";
/// Contradictions kept: the first ones say what went wrong.
const WRONG_MAX: usize = 50;

/// A lane was seen to have a new owner.
#[derive(Clone, Debug)]
pub(super) struct Claim {
    pub(super) lane: u16,
    pub(super) epoch: u64,
    /// The name of the server.
    pub(super) server: String,
    pub(super) at: Boot,
}

/// How a task ended, as the events say: its status and the number of its attempt.
pub(super) type Final = (Status, u32);

/// The findings so far.
#[derive(Debug, Default)]
pub(super) struct Watch {
    claims: Mutex<Vec<Claim>>,
    events: Mutex<Events>,
}

/// The content of the events.
#[derive(Clone, Debug, Default)]
pub(super) struct Events {
    pub(super) finals: HashMap<TaskId, Final>,
    /// Events that contradict others.
    pub(super) wrong: Vec<String>,
    pub(super) seen: u64,
    pub(super) gaps: u64,
}

impl Watch {
    /// Watches a server until its task is dropped.
    pub(super) async fn follow(self: Arc<Self>, name: String, client: Client) {
        let lanes = self.follow_lanes(&name, &client);
        let events = self.follow_events(&client);
        tokio::join!(lanes, events);
    }

    async fn follow_lanes(&self, name: &str, client: &Client) {
        loop {
            tokio::time::sleep(ASK_EVERY).await;
            let Ok(Ok(stats)) = tokio::time::timeout(ANSWER_WITHIN, client.stats()).await else { continue };
            let mut claims = self.claims.lock().expect("no thread panics while holding it");
            for lane in stats.lanes.iter().filter(|lane| lane.phase == OWNING) {
                let Some(epoch) = lane.epoch else { continue };
                let known = claims.iter().any(|claim| (claim.lane, claim.epoch) == (lane.lane, epoch));
                if !known {
                    let (server, at) = (name.to_owned(), Boot::now());
                    claims.push(Claim { lane: lane.lane, epoch, server, at });
                }
            }
        }
    }

    async fn follow_events(&self, client: &Client) {
        // Within one server's account nothing follows a task's end.
        let mut ended = HashSet::new();
        loop {
            let mut follow = client.events(None);
            while let Some(Ok(item)) = follow.next().await {
                let mut events = self.events.lock().expect("no thread panics while holding it");
                match item {
                    EventItem::Event(event) => events.add(&event, &mut ended),
                    EventItem::Gap => events.gaps += 1,
                }
            }
            tokio::time::sleep(FOLLOW_AGAIN_AFTER).await;
        }
    }

    /// The lanes that a server owns, as far as it has reported them, with their epochs.
    pub(super) fn lanes_of(&self, server: &str) -> Vec<(u16, u64)> {
        let claims = self.claims.lock().expect("no thread panics while holding it");
        let mut latest: BTreeMap<u16, &Claim> = BTreeMap::new();
        for claim in claims.iter() {
            let known = latest.entry(claim.lane).or_insert(claim);
            if claim.epoch > known.epoch {
                *known = claim;
            }
        }
        let own = latest.values().filter(|claim| claim.server == server);
        own.map(|claim| (claim.lane, claim.epoch)).collect()
    }

    pub(super) fn claims(&self) -> Vec<Claim> {
        self.claims.lock().expect("no thread panics while holding it").clone()
    }

    pub(super) fn events(&self) -> Events {
        self.events.lock().expect("no thread panics while holding it").clone()
    }
}

impl Events {
    fn add(&mut self, event: &Event, ended: &mut HashSet<TaskId>) {
        self.seen += 1;
        let Ok(task) = event.task_id.parse::<TaskId>() else { return };
        let Event { status, attempt, .. } = *event;
        let told = (status, attempt);
        let contradicts = match self.finals.get(&task) {
            Some(known) if status.is_final() => *known != told,
            _ => !status.is_final() && ended.contains(&task),
        };
        if contradicts && self.wrong.len() < WRONG_MAX {
            let known = self.finals.get(&task);
            self.wrong.push(format!(
                "events: task {task} was final as {known:?} and became {status} (attempt {attempt})"
            ));
        }
        if status.is_final() {
            ended.insert(task);
            self.finals.entry(task).or_insert(told);
        }
    }
}
