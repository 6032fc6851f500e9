//! What a schedule does when the wall clock steps.
//!
//! Times are absolute: whatever the clock shows is fired, at once, forwards and backwards. But a clock that jumped ahead
//! may jump back. So the times that passed in the jump are put off until it has settled, while those that come now are
//! fired as ever; and when it goes back, the next time is planned again.
//!
//! ```text
//!   planned   ·   ·   ·   ·   ·   ·   ·   ·   ·
//!   ahead     ▲───── put off ─────▲ fired as they come, until the clock
//!   back      ▲ goes back: what was put off and is to come is dropped, and the next time is this one
//!   settled                         what was put off is missed: skipped, run once, or run in full
//! ```

use std::time::Duration;

use tasklane_core::time::Timestamp;

use crate::decide::LOOK_AGAIN;
use crate::rule::{Fate, Fire, Schedule, Span, State};
use crate::{Times, When};

/// A clock that goes back by less may show a time again that was fired just now, and must not fire it twice.
pub const BACK_MIN: Duration = Duration::from_mins(1);

/// The most spans that are put off; a clock that steps on and on loses the oldest.
const PUT_OFF_MAX: usize = 16;

impl Schedule {
    /// Whether a step of the clock, or its settling, changes something here before the schedule is due.
    pub fn is_stirred(&self, times: &Times, now: Timestamp) -> bool {
        // The stored time of a look counts from the clock as it was, which may lie days ahead.
        let looks_soon = self.looks_again(now).is_some_and(|at| at <= now + LOOK_AGAIN);
        looks_soon || (self.state.paused.is_none() && self.nearer(times, now).is_some())
    }

    /// The time that is next by a clock that went back; `None` where the planned one is.
    fn nearer(&self, times: &Times, now: Timestamp) -> Option<Timestamp> {
        let nearest = self.rule.after(times, now + BACK_MIN)?;
        let is_far = match self.state.next {
            Some(next) => next > nearest,
            // One that fires once has fired; another one ended by a clock that was ahead.
            None => !matches!(self.rule.when, When::At(_)) || !self.state.put_off.is_empty(),
        };
        if is_far { self.rule.after(times, now) } else { None }
    }

    /// The clock went back: the next time is one that comes again.
    pub(crate) fn plan_again(&mut self, times: &Times, now: Timestamp) {
        let Some(nearer) = self.nearer(times, now) else { return };
        let state = &mut self.state;
        let dealt_with = state.put_off.first().map(|span| span.from).or(state.next);
        state.dealt_with = state.dealt_with.max(dealt_with);
        state.next = Some(nearer);
        for span in &mut state.put_off {
            span.end = span.end.min(nearer);
        }
        state.put_off.retain(|span| span.from < span.end);
    }

    /// The clock is ahead once more, and settled: what was dealt with before it went back is not dealt with twice.
    pub(crate) fn pass_over_dealt_with(&mut self, times: &Times, now: Timestamp) {
        let State { next, dealt_with, .. } = &mut self.state;
        if let Some(dealt_with) = dealt_with.filter(|dealt_with| *dealt_with <= now)
            && next.is_some_and(|next| next < dealt_with)
        {
            *next = self.rule.after(times, dealt_with - Duration::from_micros(1));
        }
    }

    /// Puts the times off that are missed by a clock that is not settled.
    pub(crate) fn put_off_missed(&mut self, times: &Times, now: Timestamp) {
        for span in &mut self.state.put_off {
            span.begun = false;
        }
        let Some(first) = self.state.next else { return };
        let end = self.late(times, first, now);
        if first >= end {
            return;
        }
        // What was fired before the clock went back, and comes again now that it is ahead once more, is not fired twice.
        let dealt_with = self.state.dealt_with.unwrap_or(first);
        let resumed = if dealt_with <= now { end.max(dealt_with) } else { end };
        let next = self.rule.after(times, resumed - Duration::from_micros(1));
        let state = &mut self.state;
        state.next = next;
        let from = first.max(dealt_with);
        if from < end {
            state.put_off.push(Span { from, end, begun: false });
        }
        if state.put_off.len() > PUT_OFF_MAX {
            let lost = state.put_off.remove(0);
            let reason = "the clock stepped again and again".to_owned();
            state.tell(Fire { nominal: lost.from, backfill: 0 }, now, Fate::Missed { reason, count: 1 });
        }
    }

    /// Deals with the times that were put off, as with all that are missed. The clock is settled.
    pub(crate) fn make_up(&mut self, id: &str, times: &Times, now: Timestamp, fires: &mut Vec<Fire>) {
        while let Some(Span { from, end, .. }) = self.state.put_off.first().copied() {
            let next = self.state.next.replace(from);
            self.pass_over_missed(times, now, end);
            self.fire_due(id, times, now, end, fires);
            let left = std::mem::replace(&mut self.state.next, next).filter(|left| *left < end);
            let Some(left) = left else {
                self.state.put_off.remove(0);
                continue;
            };
            self.state.put_off[0] = Span { from: left, end, begun: true };
            return;
        }
        if self.state.dealt_with.is_some_and(|dealt_with| dealt_with <= now) {
            self.state.dealt_with = None;
        }
    }
}
