//! Detects lost sessions for coordinators on systems without leases of their own.
//!
//! Such a system keeps no time, but a number for each session that rises with every renewal. Each watching
//! process reads the numbers at intervals and counts by its own steady clock: a session whose number has
//! stood still for a whole TTL has not been renewed for one. The session's holder counts from before it sent
//! that renewal. The detector counts from the arrival of the answer that showed its number, which is later;
//! so the holder has stopped, whatever the two clocks show. The detector then ends the session by
//! compare-and-set on the number it has seen: a renewal that came meanwhile keeps the session alive.
//!
//! ```text
//! holder   ask ─ renewed ──────────────── stops
//! detector           look ── look ── … ── look ── end, if the number is still the same
//!                    └──────── one TTL ────┘
//! ```
//!
//! No promise of the layers above needs an accurate detector. But while the system itself is unreachable, no
//! holder can renew, and a detector that counted on would end all sessions when the system is back. So
//! counting needs an unbroken view: a poll that failed, or came too long after the previous one, restarts all
//! counts, and holders have a whole TTL to renew.

use std::collections::BTreeMap;
use std::time::Duration;

use tasklane_core::id::SessionId;
use tasklane_core::time::Timestamp;

/// Polls for each TTL.
const LOOKS: u32 = 5;
/// The shortest time between two polls, …
const PAUSE_MIN: Duration = Duration::from_millis(200);
/// … and the longest.
const PAUSE_MAX: Duration = Duration::from_secs(1);
/// A poll that comes later than this part of a TTL after the previous one may have missed a renewal.
const BREAK: u32 = 3;
/// The detector polls a due session without delay, but leaves this pause between two polls.
const PAUSE_DUE: Duration = Duration::from_millis(20);

/// A session as a poll shows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Renewal {
    /// The session.
    pub session: SessionId,
    /// Rises with each renewal.
    pub number: u64,
    /// How long the session lives without a renewal.
    pub ttl: Duration,
}

/// The numbers that a failure detector has seen. `now` is a steady time and never goes backwards.
#[derive(Clone, Debug, Default)]
pub struct FailureDetector {
    seen: BTreeMap<SessionId, ObservedRenewal>,
    /// When the last poll was answered, unless the view is broken.
    looked_at: Option<Timestamp>,
}

#[derive(Clone, Copy, Debug)]
struct ObservedRenewal {
    number: u64,
    ttl: Duration,
    /// When the number was seen first, without a break in the view since.
    since: Timestamp,
}

impl FailureDetector {
    /// Takes all sessions that a poll showed. `now` is when its answer arrived. Answers the overdue sessions,
    /// which the caller ends if they still have the same number.
    pub fn observe(&mut self, shown: impl IntoIterator<Item = Renewal>, now: Timestamp) -> Vec<Renewal> {
        let gap = self.looked_at.map(|looked_at| now.since(looked_at));
        let before = std::mem::take(&mut self.seen);
        let mut overdue = Vec::new();
        for renewal in shown {
            let Renewal { session, number, ttl } = renewal;
            let unbroken = gap.is_some_and(|gap| gap <= ttl / BREAK);
            let same = before.get(&session).filter(|seen| unbroken && seen.number == number);
            let since = same.map_or(now, |seen| seen.since);
            if now.since(since) >= ttl {
                overdue.push(renewal);
            }
            self.seen.insert(session, ObservedRenewal { number, ttl, since });
        }
        self.looked_at = Some(now);
        overdue
    }

    /// A poll has failed, or ending a session has: all counts restart with the next poll.
    pub fn lost_view(&mut self) {
        self.looked_at = None;
    }

    /// When to poll again.
    pub fn next_poll(&self, now: Timestamp) -> Timestamp {
        let shortest = self.seen.values().map(|seen| seen.ttl).min();
        let pause = shortest.map_or(PAUSE_MAX, |ttl| (ttl / LOOKS).clamp(PAUSE_MIN, PAUSE_MAX));
        let due = self.seen.values().map(|seen| seen.since + seen.ttl).min();
        match due {
            // Without a view nothing is due.
            Some(due) if self.looked_at.is_some() => (now + pause).min(due.max(now + PAUSE_DUE)),
            _ => now + pause,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TTL: Duration = Duration::from_secs(3);

    fn at(millis: i64) -> Timestamp {
        Timestamp::from_millis(millis)
    }

    fn shown(id: u128, number: u64) -> Renewal {
        Renewal { session: SessionId::from_random(id), number, ttl: TTL }
    }

    /// Polls every half second, the last time at `until`, and answers when the detector first found a session
    /// overdue.
    fn follow(
        detector: &mut FailureDetector,
        from: i64,
        until: i64,
        show: impl Fn(i64) -> Vec<Renewal>,
    ) -> Option<(i64, Vec<Renewal>)> {
        (from..=until).step_by(500).find_map(|millis| {
            let overdue = detector.observe(show(millis), at(millis));
            (!overdue.is_empty()).then_some((millis, overdue))
        })
    }

    #[test]
    fn a_number_that_stands_still_for_a_whole_ttl_is_overdue() {
        let mut detector = FailureDetector::default();
        let overdue = follow(&mut detector, 0, 10_000, |_| vec![shown(1, 7)]);
        assert_eq!(overdue, Some((3_000, vec![shown(1, 7)])));
    }

    #[test]
    fn a_renewal_begins_the_count_anew_for_its_session_alone() {
        let mut detector = FailureDetector::default();
        let show = |millis| vec![shown(1, 0), shown(2, u64::from(millis >= 2_000))];
        assert_eq!(follow(&mut detector, 0, 3_000, show), Some((3_000, vec![shown(1, 0)])));
        let show = |_| vec![shown(2, 1)];
        assert_eq!(follow(&mut detector, 3_500, 9_000, show), Some((5_000, vec![shown(2, 1)])));
    }

    #[test]
    fn a_renewed_session_lives_for_ever() {
        let mut detector = FailureDetector::default();
        let show = |millis: i64| vec![shown(1, u64::try_from(millis / 2_500).unwrap())];
        assert_eq!(follow(&mut detector, 0, 100_000, show), None);
    }

    #[test]
    fn a_look_that_comes_too_late_begins_all_counts_anew() {
        let mut detector = FailureDetector::default();
        assert_eq!(follow(&mut detector, 0, 2_500, |_| vec![shown(1, 7), shown(2, 1)]), None);
        // The detector bears a gap of a third of a TTL, and no longer one.
        assert_eq!(detector.looked_at, Some(at(2_500)));
        let overdue = follow(&mut detector, 3_501, 9_000, |_| vec![shown(1, 7), shown(2, 1)]);
        assert_eq!(overdue, Some((6_501, vec![shown(1, 7), shown(2, 1)])));
    }

    #[test]
    fn a_look_that_comes_a_little_late_changes_nothing() {
        let mut detector = FailureDetector::default();
        assert_eq!(follow(&mut detector, 0, 2_000, |_| vec![shown(1, 7)]), None);
        assert_eq!(detector.observe([shown(1, 7)], at(3_000)), [shown(1, 7)]);
    }

    #[test]
    fn what_is_a_break_depends_on_the_ttl() {
        let mut detector = FailureDetector::default();
        let long = Renewal { ttl: TTL * 10, ..shown(2, 0) };
        for millis in [0, 2_000, 4_000, 6_000] {
            assert_eq!(detector.observe([shown(1, 0), long], at(millis)), []);
        }
        for millis in (8_000..30_000).step_by(2_000) {
            assert_eq!(detector.observe([shown(1, 0), long], at(millis)), []);
        }
        assert_eq!(detector.observe([shown(1, 0), long], at(30_000)), [long]);
    }

    #[test]
    fn after_an_outage_everyone_has_a_whole_ttl() {
        let mut detector = FailureDetector::default();
        let show = |_| (0..100).map(|id| shown(id, 3)).collect::<Vec<_>>();
        assert_eq!(follow(&mut detector, 0, 2_500, show), None);
        detector.lost_view();
        let (ended_at, overdue) = follow(&mut detector, 2_600, 20_000, show).unwrap();
        assert_eq!((ended_at, overdue.len()), (5_600, 100));
    }

    #[test]
    fn sessions_that_are_gone_are_forgotten() {
        let mut detector = FailureDetector::default();
        detector.observe([shown(1, 0), shown(2, 0)], at(0));
        detector.observe([shown(2, 0)], at(500));
        assert_eq!(detector.seen.len(), 1);
        // A session that returns under the same name is counted from then.
        assert_eq!(follow(&mut detector, 1_000, 3_500, |_| vec![shown(1, 0)]), None);
    }

    #[test]
    fn looks_are_made_in_time_and_not_too_often() {
        let mut detector = FailureDetector::default();
        assert_eq!(detector.next_poll(at(0)), at(1_000));
        detector.observe([shown(1, 0)], at(0));
        assert_eq!(detector.next_poll(at(0)), at(600));
        // The detector does not sleep through the moment at which a session is overdue, …
        detector.observe([shown(1, 0)], at(900));
        detector.observe([shown(1, 0)], at(1_800));
        detector.observe([shown(1, 0)], at(2_700));
        assert_eq!(detector.next_poll(at(2_800)), at(3_000));
        // … and pauses between polls of a session that it cannot end.
        assert_eq!(detector.observe([shown(1, 0)], at(3_000)), [shown(1, 0)]);
        assert_eq!(detector.next_poll(at(3_000)), at(3_020));
        detector.lost_view();
        assert_eq!(detector.next_poll(at(3_000)), at(3_600));
        let shortest = |ttl: Duration| {
            let mut detector = FailureDetector::default();
            detector.observe([Renewal { ttl, ..shown(1, 0) }], at(0));
            detector.next_poll(at(0))
        };
        assert_eq!(shortest(Duration::from_millis(500)), at(200));
        assert_eq!(shortest(Duration::from_mins(5)), at(1_000));
    }
}
