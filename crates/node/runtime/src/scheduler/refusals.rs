//! How often refusals of the store are logged. A lane retries several times a second; a disk may be full for
//! hours, or have room for small writes and none for large ones.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// While refusals last, they are logged this often.
const TELL_EVERY: Duration = Duration::from_secs(10);

/// A store that refuses writes can still be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum StoreAccess {
    Read,
    Write,
}

/// The current refusals of a store.
#[derive(Debug, Default)]
pub(super) struct Refusals(Mutex<BTreeMap<StoreAccess, Refusal>>);

#[derive(Debug)]
struct Refusal {
    told_at: Instant,
    /// Refusals since then.
    untold: u64,
    /// Refusals since the last success; 0 after one.
    total: u64,
    /// Whether the refusals were logged.
    is_told: bool,
}

impl Refusals {
    /// Notes a refusal. If it is due to be logged: the number of refusals since the last logged one.
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

    /// Notes a success. If refusals before it were logged: their number.
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
