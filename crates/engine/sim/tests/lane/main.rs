//! Stories about one lane: the decisions of the machine, shown by workers that the test moves by hand.

mod cancel;
mod cancel_newest;
mod clock;
mod completions;
mod explain;
mod keys;
mod limits;
mod memory_budget;
mod order;
mod paging;
mod reports;
mod strategies;
mod takeover;
mod timeouts;
mod workers;

use std::time::Duration;

use tasklane_core::policy::{Concurrency, ConcurrencyLimit, Rate, RateLimit, WhenReached};

/// At most `max` at once, over the whole queue.
fn at_once(max: u32) -> ConcurrencyLimit {
    let concurrency = Concurrency { limit: max, when_reached: WhenReached::Wait };
    ConcurrencyLimit { key: None, concurrency }
}

/// At most `max` at once for each user.
fn at_once_by_user(max: u32) -> ConcurrencyLimit {
    ConcurrencyLimit { key: Some("user".to_owned()), ..at_once(max) }
}

/// The same, but tasks above the limit are cancelled.
fn only_by_user(max: u32) -> ConcurrencyLimit {
    let concurrency = Concurrency { limit: max, when_reached: WhenReached::CancelNewest };
    ConcurrencyLimit { key: Some("user".to_owned()), concurrency }
}

/// `limit` in a second, up to `burst` together, over the whole queue.
fn per_second(limit: u32, burst: u32) -> RateLimit {
    RateLimit { key: None, rate: Rate { limit, per: Duration::from_secs(1), burst } }
}

/// The same for each user.
fn per_second_by_user(limit: u32, burst: u32) -> RateLimit {
    RateLimit { key: Some("user".to_owned()), ..per_second(limit, burst) }
}
