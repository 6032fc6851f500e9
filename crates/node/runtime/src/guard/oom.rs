//! Whether the kernel killed something because memory ran out.
//!
//! Nobody is told which process it was; there are only counters. So: if the command was killed by a signal that we did
//! not send, and the counter nearest to us rose while it ran, memory it was. The nearest counter is that of our own
//! control group, else that of the machine.

use std::fs;
use std::path::{Path, PathBuf};

/// A counter as it was.
#[derive(Debug)]
pub(super) struct OomCounter {
    before: Option<u64>,
}

impl OomCounter {
    pub(super) fn new() -> Self {
        Self { before: kills() }
    }

    /// Whether it rose since; unknown if there is none.
    pub(super) fn rose(&self) -> Option<bool> {
        Some(kills()? > self.before?)
    }
}

fn kills() -> Option<u64> {
    let groups = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let own = files(&groups).into_iter().find_map(|file| field(&file));
    own.or_else(|| field(Path::new("/proc/vmstat")))
}

/// Where the control groups of this process count, by both versions of control groups.
fn files(groups: &str) -> Vec<PathBuf> {
    let file =
        |root: &str, group: &str, name: &str| Path::new(root).join(group.trim_start_matches('/')).join(name);
    let mut files = Vec::new();
    for line in groups.lines() {
        let mut parts = line.splitn(3, ':');
        let (Some(_), Some(kinds), Some(group)) = (parts.next(), parts.next(), parts.next()) else {
            continue;
        };
        if kinds.is_empty() {
            files.push(file("/sys/fs/cgroup", group, "memory.events"));
        } else if kinds.split(',').any(|kind| kind == "memory") {
            files.push(file("/sys/fs/cgroup/memory", group, "memory.oom_control"));
        }
    }
    files
}

/// The line `oom_kill N`, which all of these files have.
fn field(file: &Path) -> Option<u64> {
    let text = fs::read_to_string(file).ok()?;
    text.lines().find_map(|line| line.strip_prefix("oom_kill ")?.trim().parse().ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_versions_of_control_groups_are_known() {
        let groups = "4:cpu,memory:/a/b\n3:cpuset:/\n0::/c\n";
        let expected = ["/sys/fs/cgroup/memory/a/b/memory.oom_control", "/sys/fs/cgroup/c/memory.events"]
            .map(PathBuf::from);
        assert_eq!(files(groups), expected);
    }

    #[test]
    fn a_counter_that_stands_still_did_not_rise() {
        assert_ne!(OomCounter::new().rose(), Some(true));
        assert_eq!(OomCounter { before: None }.rose(), None);
    }
}
