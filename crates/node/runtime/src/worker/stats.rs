//! Statistics of the worker's machine.

use tasklane_core::id::SessionId;
use tasklane_core::message::WorkerStats;
use tasklane_core::time::Timestamp;

use crate::clock;

/// Measures between two calls.
#[derive(Debug)]
pub(super) struct Meter {
    session: SessionId,
    last: Option<(Timestamp, u64)>,
}

impl Meter {
    pub(super) fn new(session: SessionId) -> Self {
        Self { session, last: None }
    }

    pub(super) fn measure(&mut self, running: u32, queued: u32) -> WorkerStats {
        let now = clock::steady();
        let busy = read("/proc/stat").and_then(|text| busy_ticks(&text)).unwrap_or(0);
        let cpu_percent = self.last.map_or(0, |(then, before)| {
            let seconds = now.since(then).as_secs_f64().max(0.001);
            let ticks = busy.saturating_sub(before);
            #[expect(
                clippy::cast_possible_truncation,
                clippy::cast_sign_loss,
                clippy::cast_precision_loss,
                reason = "a percentage for people"
            )]
            let percent = (ticks as f64 / TICKS_PER_SECOND / seconds * 100.0).round() as u32;
            percent
        });
        self.last = Some((now, busy));
        let memory_bytes = read("/proc/meminfo").and_then(|text| memory_used(&text)).unwrap_or(0);
        WorkerStats { session: self.session, cpu_percent, memory_bytes, running, queued, at: clock::wall() }
    }
}

/// `USER_HZ`, which is 100 on every Linux.
const TICKS_PER_SECOND: f64 = 100.0;

fn read(path: &str) -> Option<String> {
    std::fs::read_to_string(path).ok()
}

/// Time that all cores together were not idle.
fn busy_ticks(stat: &str) -> Option<u64> {
    let fields: Vec<u64> =
        stat.lines().next()?.split_whitespace().skip(1).filter_map(|field| field.parse().ok()).collect();
    let (idle, iowait) = (fields.get(3)?, fields.get(4)?);
    Some(fields.iter().take(8).sum::<u64>() - idle - iowait)
}

fn memory_used(meminfo: &str) -> Option<u64> {
    let kib = |name: &str| -> Option<u64> {
        let line = meminfo.lines().find_map(|line| line.strip_prefix(name))?;
        line.trim().trim_end_matches("kB").trim().parse().ok()
    };
    Some((kib("MemTotal:")?.saturating_sub(kib("MemAvailable:")?)) * 1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_kernel_says_is_understood() {
        assert_eq!(busy_ticks("cpu  10 20 30 1000 5 1 2 3 0 0\ncpu0 1 1 1 1\n"), Some(66));
        assert_eq!(memory_used("MemTotal: 100 kB\nMemFree: 10 kB\nMemAvailable:  40 kB\n"), Some(60 * 1024));
    }
}
