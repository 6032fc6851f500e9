//! When a composite reports its progress: at most once a second, and within a second of its begin and of the end of a
//! child.

use std::time::Duration;

use tokio::time::Instant;

const EVERY: Duration = Duration::from_secs(1);

/// The reports of one composite.
#[derive(Debug)]
pub(in crate::node) struct Reports {
    last: Instant,
    any: bool,
    child_ended: bool,
}

impl Reports {
    pub(in crate::node) fn new(now: Instant) -> Self {
        Self { last: now, any: false, child_ended: false }
    }

    /// Whether there was a report.
    pub(in crate::node) fn any(&self) -> bool {
        self.any
    }

    pub(in crate::node) fn is_due(&self, now: Instant) -> bool {
        now.duration_since(self.last) >= EVERY
    }

    pub(in crate::node) fn reported(&mut self, now: Instant) {
        *self = Self { last: now, any: true, child_ended: false };
    }

    /// There is something to report.
    pub(in crate::node) fn child_ended(&mut self) {
        self.child_ended = true;
    }

    /// The time until the next report, if there is something to report. The first report gives the number of children.
    pub(in crate::node) fn due_in(&self, now: Instant) -> Option<Duration> {
        (self.child_ended || !self.any).then(|| EVERY.saturating_sub(now.duration_since(self.last)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The report waited for the next read of the store, which may be a minute away.
    #[test]
    fn the_end_of_a_child_is_reported_within_a_second() {
        let begin = Instant::now();
        let mut reports = Reports::new(begin);
        reports.reported(begin);
        assert_eq!(reports.due_in(begin), None, "nothing has happened");
        reports.child_ended();
        let soon = begin + Duration::from_millis(300);
        assert_eq!((reports.due_in(soon), reports.is_due(soon)), (Some(Duration::from_millis(700)), false));
        let later = begin + Duration::from_secs(3);
        assert_eq!((reports.due_in(later), reports.is_due(later)), (Some(Duration::ZERO), true));
        reports.reported(later);
        assert_eq!((reports.due_in(later), reports.is_due(later)), (None, false));
    }

    /// The progress of a run was empty until its first node had ended, or until the next look at the store.
    #[test]
    fn the_first_report_waits_for_no_part() {
        let begin = Instant::now();
        let mut reports = Reports::new(begin);
        assert!(!reports.any());
        assert_eq!((reports.due_in(begin), reports.is_due(begin)), (Some(EVERY), false));
        let due = begin + EVERY;
        assert_eq!((reports.due_in(due), reports.is_due(due)), (Some(Duration::ZERO), true));
        reports.reported(due);
        assert_eq!((reports.due_in(due), reports.any()), (None, true));
    }
}
