//! Names of keys. All keys of a lane share the hash tag `{prefix:lane}`, so that one script may touch them
//! all in a cluster. Keys that belong to no lane have the tag `{prefix}`.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};

use tasklane_core::id::{LaneId, TaskId};
use tasklane_ports::DocumentKind;

use crate::cluster::slot_of;

/// The keys of a lane, in the order in which `writing.lua` takes them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub(crate) enum LaneKey {
    /// Hash: epoch, owner, last commit and its outcomes, failures, last arrival number, how far arrivals are
    /// trimmed.
    Lane,
    /// Hash: packed state by task.
    State,
    /// Hash: spec by task, without a body that is large.
    Spec,
    /// Hash: large body by task.
    Body,
    /// Hash: result by task.
    Result,
    /// Hash: ended attempts by task, one after the other.
    Attempts,
    /// Sorted set: line, rank, due time, arrival, id.
    Ready,
    /// Sorted set: due time, arrival, id.
    Delayed,
    /// Sorted set: start deadline, arrival, id.
    Expiring,
    /// Sorted set: id.
    InFlight,
    /// List: one entry for each arrival number that is not trimmed; the id of a task, or empty for a command.
    Arrivals,
    /// Sorted set: arrival, command.
    Inbox,
    /// Sorted set: kind, key.
    RecordKeys,
    /// Hash: value by kind and key.
    Records,
    /// Hash: count by queue and status.
    Counts,
    /// Sorted set: creation time, id.
    Created,
    /// Hash: by queue and unique key the task that took it last, and the end of its hold where that is a
    /// time.
    Unique,
    /// Hash: queue and unique key by task.
    UniqueOf,
    /// Sorted set: parent, creation time, id.
    Children,
    /// Hash: parent by task.
    ParentOf,
}

impl LaneKey {
    const NAMES: [&str; 20] = [
        "lane",
        "state",
        "task:detail",
        "body",
        "task:result",
        "attempts",
        "task:queue",
        "delayed",
        "expiring",
        "inflight",
        "arrivals",
        "inbox",
        "recordkeys",
        "records",
        "counts",
        "created",
        "unique",
        "uniqueof",
        "children",
        "parentof",
    ];
}

#[derive(Debug)]
pub(crate) struct LaneKeys {
    tag: String,
    slot: u16,
    keys: [String; 20],
    /// The lane is in the list of lanes.
    listed: AtomicBool,
}

impl LaneKeys {
    pub(crate) fn new(prefix: &str, lane: LaneId) -> Self {
        let tag = format!("{prefix}:{lane}");
        let slot = slot_of(&tag);
        let keys = LaneKey::NAMES.map(|name| format!("{{{tag}}}:{name}"));
        Self { tag, slot, keys, listed: AtomicBool::new(false) }
    }

    pub(crate) fn slot(&self) -> u16 {
        self.slot
    }

    pub(crate) fn key(&self, key: LaneKey) -> &str {
        &self.keys[key as usize]
    }

    pub(crate) fn all(&self) -> impl ExactSizeIterator<Item = &str> {
        self.keys.iter().map(String::as_str)
    }

    pub(crate) fn log_of(&self, task: TaskId) -> String {
        format!("{{{}}}:log:{}", self.tag, task.0.simple())
    }

    pub(crate) fn is_listed(&self) -> bool {
        self.listed.load(Ordering::Acquire)
    }

    pub(crate) fn set_listed(&self) {
        self.listed.store(true, Ordering::Release);
    }
}

/// Keys that belong to no lane.
#[derive(Debug)]
pub(crate) struct SharedKeys {
    pub(crate) slot: u16,
    /// Hash: the version of the data.
    pub(crate) meta: String,
    /// Set: the lanes that were ever used.
    pub(crate) lanes: String,
    /// Hash: binding by queue.
    pub(crate) bindings: String,
    /// Hash: revision, version and policy by queue.
    pub(crate) policies: String,
    /// Sorted set: revision, queue.
    pub(crate) policy_changes: String,
    /// Counts the changes of policies.
    pub(crate) policy_revision: String,
    documents: BTreeMap<DocumentKind, DocumentKeys>,
}

/// Keys of the documents of a kind.
#[derive(Debug)]
pub(crate) struct DocumentKeys {
    /// Hash: the document by name.
    pub(crate) values: String,
    /// Sorted set: names.
    pub(crate) names: String,
    /// Sorted set: time, name.
    pub(crate) times: String,
    /// Counts the changes of all of them.
    pub(crate) version: String,
}

impl SharedKeys {
    pub(crate) fn new(prefix: &str) -> Self {
        let key = |name: &str| format!("{{{prefix}}}:{name}");
        let documents = |kind: &str| DocumentKeys {
            values: key(&format!("{kind}s")),
            names: key(&format!("{kind}names")),
            times: key(&format!("{kind}times")),
            version: key("documentversion"),
        };
        Self {
            slot: slot_of(prefix),
            meta: key("meta"),
            lanes: key("lanes"),
            bindings: key("bindings"),
            policies: key("policies"),
            policy_changes: key("policychanges"),
            policy_revision: key("policyrevision"),
            documents: DocumentKind::ALL.map(|kind| (kind, documents(kind.as_str()))).into(),
        }
    }

    pub(crate) fn documents(&self, kind: DocumentKind) -> &DocumentKeys {
        &self.documents[&kind]
    }
}

/// Keys of sessions and grants, in the order in which `sessions.lua` takes them.
#[derive(Debug)]
pub(crate) struct MemberKeys {
    pub(crate) slot: u16,
    /// The channel of changes.
    pub(crate) channel: String,
    keys: [String; 6],
}

impl MemberKeys {
    pub(crate) fn new(prefix: &str) -> Self {
        let tag = format!("{prefix}:members");
        let key = |name: &str| format!("{{{tag}}}:{name}");
        let keys = ["worker:pool", "renewals", "revoked", "schedule:leader", "revision", "used"].map(key);
        Self { slot: slot_of(&tag), channel: key("changed"), keys }
    }

    pub(crate) fn all(&self) -> impl ExactSizeIterator<Item = &str> {
        self.keys.iter().map(String::as_str)
    }

    /// The keys that a failure detector reads: renewals and the revision.
    pub(crate) fn looked_at(&self) -> impl ExactSizeIterator<Item = &str> {
        [&self.keys[1], &self.keys[4]].map(String::as_str).into_iter()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_keys_of_a_lane_share_a_slot() {
        let keys = LaneKeys::new("tl", LaneId(7));
        assert_eq!(keys.key(LaneKey::Created), "{tl:7}:created");
        assert_eq!(keys.key(LaneKey::Lane), "{tl:7}:lane");
        assert_eq!(keys.slot(), slot_of("tl:7"));
        assert_eq!(keys.key(LaneKey::ParentOf), "{tl:7}:parentof");
        assert_eq!(keys.all().len(), LaneKey::ParentOf as usize + 1);
        assert!(keys.log_of(TaskId::from_random(1)).starts_with("{tl:7}:log:"));
    }

    #[test]
    fn a_judge_looks_at_renewals_and_the_revision() {
        let keys = MemberKeys::new("tl");
        let looked_at: Vec<_> = keys.looked_at().collect();
        assert_eq!(looked_at, ["{tl:members}:renewals", "{tl:members}:revision"]);
        assert_eq!(keys.channel, "{tl:members}:changed");
    }

    #[test]
    fn people_find_what_they_look_for() {
        let members = MemberKeys::new("tl");
        let members: Vec<_> = members.all().collect();
        assert_eq!((members[0], members[3]), ("{tl:members}:worker:pool", "{tl:members}:schedule:leader"));
        let lane = LaneKeys::new("tl", LaneId(7));
        let found = [LaneKey::Ready, LaneKey::Spec, LaneKey::Result].map(|key| lane.key(key));
        assert_eq!(found, ["{tl:7}:task:queue", "{tl:7}:task:detail", "{tl:7}:task:result"]);
    }
}
