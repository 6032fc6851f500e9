//! Counts of moves, and violations with the command that repeats them.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::sync::{Arc, Mutex, MutexGuard};

use super::plan::Class;
use crate::chaos::clock::Boot;

/// Violations of one kind that are kept.
const KEPT_MAX: usize = 20;

/// Counts and violations of a run.
#[derive(Debug, Default)]
pub(super) struct Tally {
    moves: Mutex<BTreeMap<(Class, String), usize>>,
    /// Answers to hostile requests by status.
    statuses: Mutex<BTreeMap<String, usize>>,
    violations: Mutex<BTreeMap<String, Vec<String>>>,
    outages: Mutex<Vec<Outage>>,
}

/// A time in which the attack itself keeps the server from answering.
#[derive(Clone, Copy, Debug)]
struct Outage {
    from: Boot,
    until: Option<Boot>,
    reason: Reason,
}

/// Why answers may fail to come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reason {
    /// A process of the system is down.
    Down,
    /// So many connections are open that idle ones are closed for new ones.
    Crowded,
}

/// An outage that lasts until this is dropped.
#[derive(Debug)]
pub(super) struct During {
    tally: Arc<Tally>,
    at: usize,
}

impl Tally {
    pub(super) fn count(&self, class: Class, kind: &str) {
        *lock(&self.moves).entry((class, kind.to_owned())).or_default() += 1;
    }

    pub(super) fn answered(&self, status: impl Into<String>) {
        *lock(&self.statuses).entry(status.into()).or_default() += 1;
    }

    /// Moves of a class so far.
    pub(super) fn moves(&self, class: Class) -> usize {
        lock(&self.moves).iter().filter(|((of, _), _)| *of == class).map(|(_, n)| n).sum()
    }

    pub(super) fn moves_of(&self, class: Class, kind: &str) -> usize {
        lock(&self.moves).get(&(class, kind.to_owned())).copied().unwrap_or(0)
    }

    /// Something that must not happen. `kind` is what it is counted under.
    pub(super) fn violation(&self, kind: &str, what: &str) {
        let mut violations = lock(&self.violations);
        let kept = violations.entry(kind.to_owned()).or_default();
        if kept.len() < KEPT_MAX {
            println!("VIOLATION {kind}: {what}");
            kept.push(what.to_owned());
        }
    }

    pub(super) fn violations(&self) -> Vec<String> {
        let violations = lock(&self.violations);
        violations
            .iter()
            .flat_map(|(kind, all)| all.iter().map(move |what| format!("{kind}: {what}")))
            .collect()
    }

    /// The attack itself keeps answers away from now on.
    pub(super) fn outage(self: &Arc<Self>, reason: Reason) -> During {
        let mut outages = lock(&self.outages);
        outages.push(Outage { from: Boot::now(), until: None, reason });
        During { tally: Arc::clone(self), at: outages.len() - 1 }
    }

    /// Whether the attack kept answers away at some time between these.
    pub(super) fn is_excused(&self, from: Boot, until: Boot, reasons: &[Reason]) -> bool {
        lock(&self.outages).iter().any(|outage| {
            let ends_later = outage.until.is_none_or(|end| end >= from);
            reasons.contains(&outage.reason) && outage.from <= until && ends_later
        })
    }

    /// How long a process of the system was down between these, in microseconds.
    pub(super) fn down_between(&self, from: Boot, until: Boot) -> u64 {
        let down = |outage: &Outage| {
            let end = outage.until.unwrap_or(until).min(until);
            end.0.saturating_sub(outage.from.max(from).0)
        };
        lock(&self.outages).iter().filter(|outage| outage.reason == Reason::Down).map(down).sum()
    }

    /// All counts, as text.
    pub(super) fn report(&self) -> String {
        let mut text = String::new();
        let moves = lock(&self.moves);
        for class in Class::ALL {
            let of_class: Vec<_> = moves.iter().filter(|((of, _), _)| *of == class).collect();
            let total: usize = of_class.iter().map(|(_, n)| **n).sum();
            let kinds: Vec<String> = of_class.iter().map(|((_, kind), n)| format!("{n} {kind}")).collect();
            let _ = writeln!(text, "{total:>7} {:<9} {}", class.as_str(), kinds.join(", "));
        }
        let statuses = lock(&self.statuses);
        let statuses: Vec<String> = statuses.iter().map(|(status, n)| format!("{n} {status}")).collect();
        let _ = writeln!(text, "answers to hostile requests: {}", statuses.join(", "));
        text
    }
}

impl Drop for During {
    fn drop(&mut self) {
        lock(&self.tally.outages)[self.at].until = Some(Boot::now());
    }
}

pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().expect("no thread panics while holding it")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_are_excused_while_a_process_is_down() {
        let tally = Arc::new(Tally::default());
        let before = Boot::now();
        std::thread::sleep(std::time::Duration::from_millis(2));
        let down = tally.outage(Reason::Down);
        let during = Boot::now();
        assert!(tally.is_excused(during, during, &[Reason::Down]));
        assert!(!tally.is_excused(before, before, &[Reason::Down]));
        assert!(!tally.is_excused(during, during, &[Reason::Crowded]));
        drop(down);
        std::thread::sleep(std::time::Duration::from_millis(2));
        let after = Boot::now();
        assert!(!tally.is_excused(after, after, &[Reason::Down]));
        assert!(tally.is_excused(before, after, &[Reason::Down]));
    }
}
