//! Time zones as stretches of constant offset.
//!
//! The obvious way to find the next fire time is to walk over what the clock shows, and to turn each time of day that
//! fits into an instant. That fails where the clock jumps: a time of day may belong to no instant or to two, and each of
//! these cases has to be mended on its own, together with where the walk began.
//!
//! Instead, time is cut where the offset changes. Within a stretch the clock runs evenly, and a time of day is an
//! instant and back. Only two questions are left at the beginning of a stretch, for rules that want each time of day
//! once: which times were skipped, and which times were shown before.
//!
//! ```text
//! instants     ──────────────────┼──────────────────▶
//! forward      … 01:58  01:59    │ 03:00  03:01 …       stopped 02:00 < shows 03:00: skipped in between
//! back         … 02:58  02:59    │ 02:00  02:01 …       stopped 03:00 > shows 02:00: shown before, until 03:00
//! ```

use jiff::civil::DateTime;
use jiff::tz::{Offset, TimeZone, TimeZoneDatabase};
use jiff::{SignedDuration, Timestamp};

use crate::cron::Cron;

/// A time without a change of offset.
#[derive(Debug)]
pub(crate) struct Stretch {
    /// The change at its beginning; `None` if the zone never had another offset.
    pub(crate) begin: Option<Change>,
    /// When it is over; never, if nothing is known of it.
    pub(crate) end: Option<Timestamp>,
    offset: Offset,
}

/// A jump of the clock.
#[derive(Debug)]
pub(crate) struct Change {
    pub(crate) at: Timestamp,
    /// The local time at that moment without the change.
    pub(crate) stopped: DateTime,
    /// The local time after the change.
    pub(crate) shows: DateTime,
}

/// The zone of this name in the bundled database.
pub(crate) fn find(name: &str) -> Option<TimeZone> {
    // The database has a name for an unknown zone, which no schedule can mean.
    TimeZoneDatabase::bundled().get(name).ok().filter(|zone| !zone.is_unknown())
}

/// All names of the bundled database.
pub(crate) fn names() -> Vec<String> {
    TimeZoneDatabase::bundled().available().map(|name| name.to_string()).collect()
}

/// The stretch that `at` lies in.
pub(crate) fn stretch(zone: &TimeZone, at: Timestamp) -> Stretch {
    let instant = SignedDuration::from_nanos(1);
    // `preceding` leaves out a change at the very moment of the question, and that change counts here.
    let changed = at.checked_add(instant).ok().and_then(|after| zone.preceding(after).next());
    let begin = changed.and_then(|transition| {
        let at = transition.timestamp();
        let before = zone.to_offset(at.checked_sub(instant).ok()?);
        Some(Change { at, stopped: before.to_datetime(at), shows: transition.offset().to_datetime(at) })
    });
    let end = zone.following(at).next().map(|transition| transition.timestamp());
    Stretch { begin, end, offset: zone.to_offset(at) }
}

impl Stretch {
    /// The first fire time in this stretch that is not before `from`, but before `until`.
    pub(crate) fn first(&self, cron: &Cron, from: Timestamp, until: Timestamp) -> Option<Timestamp> {
        let until = self.offset.to_datetime(self.end.map_or(until, |end| end.min(until)));
        let mut first = self.offset.to_datetime(from);
        if let Some(change) = &self.begin
            && cron.fixed
        {
            if change.at == from && cron.first_in(change.stopped..change.shows).is_some() {
                return Some(from);
            }
            // No two changes are so close that what was shown before the last one matters: a test looks after that.
            first = first.max(change.stopped);
        }
        self.offset.to_timestamp(cron.first_in(first..until)?).ok()
    }
}
