//! Stories about one lane: what the machine decides, told through workers that are moved by hand.

mod cancel;
mod explain;
mod limits;
mod order;
mod paging;
mod reports;
mod room;
mod strategies;
mod takeover;
mod timeouts;
mod workers;

use std::time::Duration;

use tasklane_core::policy::{Limit, LimitScope, Rate};
use tasklane_sim::harness::name;

/// At most `max` at once, over the whole queue.
fn at_once(max: u32) -> Limit {
    Limit { name: name("all"), scope: LimitScope::Queue, concurrency: Some(max), rate: None }
}

/// At most `max` at once for each user.
fn at_once_by_user(max: u32) -> Limit {
    Limit { name: name("user"), scope: LimitScope::Key, concurrency: Some(max), rate: None }
}

/// `limit` in a second, up to `burst` together, over the whole queue.
fn per_second(limit: u32, burst: u32) -> Limit {
    let rate = Some(Rate { limit, per: Duration::from_secs(1), burst });
    Limit { name: name("pace"), scope: LimitScope::Queue, concurrency: None, rate }
}

/// The same for each user.
fn per_second_by_user(limit: u32, burst: u32) -> Limit {
    Limit { name: name("user"), scope: LimitScope::Key, ..per_second(limit, burst) }
}
