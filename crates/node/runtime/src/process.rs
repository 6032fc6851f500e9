//! Resource use of this process.

use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

/// Resource use of a process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ProcessUsage {
    /// Time on all cores together since the start.
    pub cpu: Duration,
    /// Private memory, without the file pages that the system could drop.
    pub anon_bytes: u64,
    /// The most memory of any kind so far.
    pub peak_bytes: u64,
}

impl ProcessUsage {
    /// Of this process, now. Values that the system does not report are zero.
    pub fn now() -> Self {
        let cpu = clock_gettime(ClockId::ProcessCPUTime);
        let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
        Self {
            cpu: Duration::try_from(cpu).unwrap_or_default(),
            anon_bytes: kib(&status, "RssAnon:") * 1024,
            peak_bytes: kib(&status, "VmHWM:") * 1024,
        }
    }
}

fn kib(status: &str, name: &str) -> u64 {
    let line = status.lines().find_map(|line| line.strip_prefix(name));
    line.and_then(|line| line.trim().trim_end_matches("kB").trim().parse().ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_uses_something() {
        let usage = ProcessUsage::now();
        assert!(usage.cpu > Duration::ZERO && usage.anon_bytes > 0, "{usage:?}");
        assert!(usage.peak_bytes >= usage.anon_bytes, "{usage:?}");
    }

    #[test]
    fn what_the_kernel_says_is_understood() {
        assert_eq!(kib("VmHWM:\t  120 kB\nRssAnon:\t   33 kB\n", "RssAnon:"), 33);
        assert_eq!(kib("", "RssAnon:"), 0);
    }
}
