//! How long the cluster took to get over a fault.
//!
//! After a fault of a worker: until the first of the tasks that it ran starts again. After a fault of a server: until all
//! lanes that it owned have another owner. A recovery is undisturbed if no other fault that bears on it fell into it.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::time::Duration;

use tasklane_core::id::TaskId;
use tasklane_core::message::AttemptId;

use super::clock::Boot;
use super::history::{History, Start};
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
    /// What it should be at most.
    pub(super) bar: Option<Duration>,
}

/// What a recovery should take at most.
fn bar(kind: Kind) -> Option<Duration> {
    match kind {
        Kind::WorkerKilled => Some(Duration::from_secs(2)),
        Kind::WorkerAndGuardKilled => Some(WORKER_TTL * 3 / 2),
        Kind::ServerKilled | Kind::ServerAndGuardKilled => Some(SERVER_TTL * 3 / 2),
        Kind::WorkerStopped | Kind::ServerStopped => Some(Duration::from_secs(1)),
        _ => None,
    }
}

/// The value below which this share of sorted times lies.
pub(super) fn percentile(sorted: &[Duration], percent: usize) -> Option<Duration> {
    let at = (sorted.len() * percent).div_ceil(100).saturating_sub(1);
    sorted.get(at).copied()
}

/// Times by kind of fault.
pub(super) fn measure(faults: &[Fault], history: &History, claims: &[Claim]) -> Vec<Times> {
    let ended: HashSet<AttemptId> = history.ends.iter().map(|end| end.attempt).collect();
    let mut starts: HashMap<TaskId, Vec<&Start>> = HashMap::new();
    for start in &history.starts {
        starts.entry(start.attempt.task).or_default().push(start);
    }
    let again = |fault: &Fault| {
        let lost = fault.attempts.iter().filter(|attempt| !ended.contains(attempt));
        let next = lost.filter_map(|lost| {
            let later = |start: &&&Start| start.attempt.number > lost.number && start.at > fault.at;
            starts.get(&lost.task)?.iter().find(later).map(|start| start.at)
        });
        next.min()
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
    let recoveries = faults.iter().filter_map(|fault| {
        let is_seen_by_lanes = fault.kind.victim() == Victim::Server && fault.attempts.is_empty();
        let over = if is_seen_by_lanes { owned(fault) } else { again(fault) }?;
        let time = over.since(fault.at).saturating_sub(fault.grace);
        let bears = |other: &&Fault| {
            let is_other = (other.at, &other.victim) != (fault.at, &fault.victim);
            // Work of a worker goes to others; their troubles do not hold it up while one is left.
            is_other
                && other.kind.victim() != Victim::Worker
                && other.at < over
                && Boot(other.until.0 + AFTERMATH) > fault.at
        };
        let is_undisturbed = !faults.iter().any(|other| bears(&other));
        Some(Recovery { kind: fault.kind, time, is_undisturbed })
    });
    let mut times: BTreeMap<Kind, Times> = BTreeMap::new();
    for Recovery { kind, time, is_undisturbed } in recoveries {
        let entry = times.entry(kind).or_insert_with(|| Times {
            kind,
            all: Vec::new(),
            undisturbed: Vec::new(),
            bar: bar(kind),
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

/// For how long after its end a fault counts as bearing on others, in microseconds: servers still share lanes anew,
/// clients connect again.
const AFTERMATH: u64 = 3_000_000;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_values_that_occurred() {
        let times: Vec<Duration> = (1..=10).map(Duration::from_secs).collect();
        assert_eq!(percentile(&times, 50), Some(Duration::from_secs(5)));
        assert_eq!(percentile(&times, 99), Some(Duration::from_secs(10)));
        assert_eq!(percentile(&times[..1], 50), Some(Duration::from_secs(1)));
        assert_eq!(percentile(&[], 50), None);
    }
}
