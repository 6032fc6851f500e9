//! How often a store that refuses is told of. A lane asks again several times a second; a disk may be full for hours, or
//! have room for small writes and none for large ones.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// While it lasts it is told this often.
const TELL_EVERY: Duration = Duration::from_secs(10);

/// A store that takes nothing more can still be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum StoreAccess {
    Read,
    Write,
}

/// What a store refuses.
#[derive(Debug, Default)]
pub(super) struct Refusals(Mutex<BTreeMap<StoreAccess, Refusal>>);

#[derive(Debug)]
struct Refusal {
    told_at: Instant,
    /// Since then.
    untold: u64,
    /// Since it last did what it was asked for; 0 while it does.
    total: u64,
    /// That it refuses now was told.
    is_told: bool,
}

impl Refusals {
    /// Notes a refusal. If it is to be told: how many there were since the last one that was.
    pub(super) fn refused(&self, kind: StoreAccess, now: Instant) -> Option<u64> {
        let mut refusals = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(refusal) = refusals.get_mut(&kind) else {
            refusals.insert(kind, Refusal { told_at: now, untold: 0, total: 1, is_told: true });
            return Some(1);
        };
        refusal.untold += 1;
        refusal.total += 1;
        if now.saturating_duration_since(refusal.told_at) < TELL_EVERY {
            return None;
        }
        refusal.told_at = now;
        refusal.is_told = true;
        Some(std::mem::take(&mut refusal.untold))
    }

    /// Notes that the store did what it was asked for. If it is known to have refused before: how often.
    pub(super) fn done(&self, kind: StoreAccess) -> Option<u64> {
        let mut refusals = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let refusal = refusals.get_mut(&kind)?;
        let total = std::mem::take(&mut refusal.total);
        std::mem::take(&mut refusal.is_told).then_some(total)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_is_told_then_one_in_ten_seconds_then_the_end() {
        let (refusals, start) = (Refusals::default(), Instant::now());
        let told: Vec<(u64, u64)> = (0..=100)
            .filter_map(|n| {
                Some((n, refusals.refused(StoreAccess::Write, start + n * Duration::from_millis(200))?))
            })
            .map(|(n, count)| (u64::from(n) / 5, count))
            .collect();
        assert_eq!(told, [(0, 1), (10, 50), (20, 50)]);
        assert_eq!(refusals.done(StoreAccess::Read), None);
        assert_eq!(refusals.refused(StoreAccess::Read, start), Some(1));
        assert_eq!(refusals.done(StoreAccess::Write), Some(101));
        assert_eq!(refusals.done(StoreAccess::Write), None);
    }

    /// A disk that is nearly full: a claim goes through, the commit after it does not.
    #[test]
    fn a_store_that_comes_and_goes_is_told_no_more_often() {
        let (refusals, start) = (Refusals::default(), Instant::now());
        let mut told = 0;
        for n in 0..100 {
            told += u32::from(
                refusals.refused(StoreAccess::Write, start + n * Duration::from_millis(200)).is_some(),
            );
            told += u32::from(refusals.done(StoreAccess::Write).is_some());
        }
        assert_eq!(told, 4, "twice in twenty seconds, each with its end");
    }
}
