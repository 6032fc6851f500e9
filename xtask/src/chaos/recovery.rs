//! How long the cluster took to get over a fault.
//!
//! After a fault of a worker: until a task that it ran starts again, for each of them. After a fault of a server: until
//! all lanes that it owned have another owner. A recovery is undisturbed if no other fault that bears on it fell into it,
//! and if the workers that were left had room for all that ran.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::time::Duration;

use tasklane_core::id::TaskId;
use tasklane_core::message::AttemptId;

use super::check::Evidence;
use super::clock::Boot;
use super::history::Start;
use super::nemesis::Fault;
use super::options::{SERVER_TTL, WORKER_TTL};
use super::plan::{Kind, Victim};
use super::watch::Claim;

/// One recovery.
#[derive(Clone, Copy, Debug)]
struct Recovery {
    kind: Kind,
    time: Duration,
    is_undisturbed: bool,
}

/// Times of one kind of fault.
#[derive(Clone, Debug)]
pub(super) struct Times {
    pub(super) kind: Kind,
    /// Sorted.
    pub(super) all: Vec<Duration>,
    /// Those of them into which no other fault fell, sorted.
    pub(super) undisturbed: Vec<Duration>,
    /// The longest time that is promised.
    pub(super) bar: Option<Duration>,
}

/// The value below which this share of sorted times lies.
pub(super) fn percentile(sorted: &[Duration], percent: usize) -> Option<Duration> {
    let at = (sorted.len() * percent).div_ceil(100).saturating_sub(1);
    sorted.get(at).copied()
}

/// Times by kind of fault.
pub(super) fn measure(evidence: &Evidence) -> Vec<Times> {
    let Evidence { scenario, faults, history, claims, .. } = evidence;
    let ended: HashSet<AttemptId> = history.ends.iter().map(|end| end.attempt).collect();
    let mut starts: HashMap<TaskId, Vec<&Start>> = HashMap::new();
    for start in &history.starts {
        starts.entry(start.attempt.task).or_default().push(start);
    }
    let again = |fault: &Fault| -> Vec<Boot> {
        let lost = fault.attempts.iter().filter(|attempt| !ended.contains(attempt));
        let next = lost.filter_map(|lost| {
            let later = |start: &&&Start| start.attempt.number > lost.number && start.at > fault.at;
            starts.get(&lost.task)?.iter().find(later).map(|start| start.at)
        });
        next.collect()
    };
    let owned = |fault: &Fault| {
        let next = |lane: u16, epoch: u64| {
            let later = |claim: &&Claim| claim.lane == lane && claim.epoch > epoch && claim.at > fault.at;
            claims.iter().find(later).map(|claim| claim.at)
        };
        // If one of them was not seen again, neither was the recovery.
        let all: Option<Vec<Boot>> = fault.lanes.iter().map(|(lane, epoch)| next(*lane, *epoch)).collect();
        all?.into_iter().max()
    };
    let capacity = usize::try_from(scenario.capacity).unwrap_or(usize::MAX);
    // The capacity of the other workers; one process alone can take all that it had.
    let room = if scenario.workers > 0 { capacity * (scenario.workers - 1) } else { usize::MAX };
    let mut recoveries = Vec::new();
    for fault in faults {
        let is_seen_by_lanes = fault.kind.victim() == Victim::Server && fault.attempts.is_empty();
        let ends = if is_seen_by_lanes { owned(fault).into_iter().collect() } else { again(fault) };
        for over in ends {
            let time = over.since(fault.at).saturating_sub(fault.grace);
            let has_room = is_seen_by_lanes || fault.running < room;
            let is_disturbed = faults.iter().any(|other| bears(other, fault, over, is_seen_by_lanes));
            recoveries.push(Recovery { kind: fault.kind, time, is_undisturbed: has_room && !is_disturbed });
        }
    }
    let mut times: BTreeMap<Kind, Times> = BTreeMap::new();
    for Recovery { kind, time, is_undisturbed } in recoveries {
        let entry = times.entry(kind).or_insert_with(|| Times {
            kind,
            all: Vec::new(),
            undisturbed: Vec::new(),
            bar: kind.bar(),
        });
        entry.all.push(time);
        if is_undisturbed {
            entry.undisturbed.push(time);
        }
    }
    for times in times.values_mut() {
        times.all.sort_unstable();
        times.undisturbed.sort_unstable();
    }
    times.into_values().collect()
}

/// Whether one fault bears on the recovery from another, which took until `over`.
fn bears(other: &Fault, fault: &Fault, over: Boot, is_seen_by_lanes: bool) -> bool {
    let after = match other.kind {
        // Lanes do not need workers.
        kind if is_seen_by_lanes && kind.victim() == Victim::Worker => return false,
        // Their loss shows only when their sessions have expired.
        Kind::WorkerAndGuardKilled => WORKER_TTL,
        Kind::ServerAndGuardKilled => SERVER_TTL,
        kind if kind.victim() == Victim::Worker => Duration::ZERO,
        _ => AFTERMATH,
    };
    let is_other = (other.at, &other.victim) != (fault.at, &fault.victim);
    is_other && other.at < over && (other.until > fault.at || fault.at.since(other.until) < after)
}

/// For how long after its end a fault counts as bearing on others: servers still share lanes, clients
/// reconnect.
const AFTERMATH: Duration = Duration::from_secs(3);

#[cfg(test)]
mod tests {
    use super::*;

    fn fault(kind: Kind, at: u64, until: u64) -> Fault {
        Fault {
            kind,
            victim: format!("{kind} at {at}"),
            at: Boot(at * 1_000_000),
            until: Boot(until * 1_000_000),
            running: 30,
            attempts: Vec::new(),
            lanes: Vec::new(),
            grace: Duration::ZERO,
        }
    }

    #[test]
    fn what_bears_on_a_recovery() {
        let killed = fault(Kind::WorkerKilled, 100, 101);
        let bears = |other: &Fault, by_lanes: bool| bears(other, &killed, Boot(103_000_000), by_lanes);
        assert!(!bears(&killed, false), "not on itself");
        // Before, meanwhile, afterwards.
        assert!(!bears(&fault(Kind::WorkerKilled, 98, 99), false));
        assert!(bears(&fault(Kind::WorkerKilled, 102, 103), false));
        assert!(!bears(&fault(Kind::WorkerKilled, 104, 105), false));
        // The loss of its worker does not show yet, so the worker gets tasks for ten seconds.
        assert!(bears(&fault(Kind::WorkerAndGuardKilled, 90, 91), false));
        assert!(!bears(&fault(Kind::WorkerAndGuardKilled, 80, 81), false));
        // Lanes do not need workers.
        assert!(!bears(&fault(Kind::WorkerPaused, 95, 108), true));
        assert!(bears(&fault(Kind::WorkerPaused, 95, 108), false));
        // Clients connect again.
        assert!(bears(&fault(Kind::DatabaseKilled, 96, 98), true));
        assert!(!bears(&fault(Kind::DatabaseKilled, 94, 96), true));
    }

    #[test]
    fn percentiles_are_values_that_occurred() {
        let times: Vec<Duration> = (1..=10).map(Duration::from_secs).collect();
        assert_eq!(percentile(&times, 50), Some(Duration::from_secs(5)));
        assert_eq!(percentile(&times, 99), Some(Duration::from_secs(10)));
        assert_eq!(percentile(&times[..1], 50), Some(Duration::from_secs(1)));
        assert_eq!(percentile(&[], 50), None);
    }
}
