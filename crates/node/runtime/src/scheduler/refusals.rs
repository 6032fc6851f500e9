//! How often a store that refuses is told of. A lane asks again several times a second; a disk may be full for hours.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// While it lasts it is told this often.
const TELL_EVERY: Duration = Duration::from_secs(10);

/// What a store refuses, by what it was asked for: one that takes nothing more can still be read.
#[derive(Debug, Default)]
pub(super) struct Refusals(Mutex<BTreeMap<&'static str, Refusal>>);

#[derive(Debug)]
struct Refusal {
    told_at: Instant,
    /// Since then.
    untold: u64,
    total: u64,
}

impl Refusals {
    /// Notes a refusal. If it is to be told: how many there were since the last one that was.
    pub(super) fn refused(&self, asked: &'static str, now: Instant) -> Option<u64> {
        let mut refusals = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(refusal) = refusals.get_mut(asked) else {
            refusals.insert(asked, Refusal { told_at: now, untold: 0, total: 1 });
            return Some(1);
        };
        refusal.untold += 1;
        refusal.total += 1;
        if now.saturating_duration_since(refusal.told_at) < TELL_EVERY {
            return None;
        }
        refusal.told_at = now;
        Some(std::mem::take(&mut refusal.untold))
    }

    /// Notes that the store did what it was asked for. If it had refused before: how often.
    pub(super) fn done(&self, asked: &'static str) -> Option<u64> {
        let mut refusals = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        refusals.remove(asked).map(|refusal| refusal.total)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_is_told_then_one_in_ten_seconds_then_the_end() {
        let (refusals, start) = (Refusals::default(), Instant::now());
        let told: Vec<(u64, u64)> = (0..=100)
            .filter_map(|n| Some((n, refusals.refused("commit", start + n * Duration::from_millis(200))?)))
            .map(|(n, count)| (u64::from(n) / 5, count))
            .collect();
        assert_eq!(told, [(0, 1), (10, 50), (20, 50)]);
        assert_eq!(refusals.done("load"), None);
        assert_eq!(refusals.refused("load", start), Some(1));
        assert_eq!(refusals.done("commit"), Some(101));
        assert_eq!(refusals.done("commit"), None);
        assert_eq!(refusals.refused("commit", start), Some(1));
    }
}
