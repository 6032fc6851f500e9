//! Whether the kernel killed something because memory ran out.
//!
//! The kernel does not report the killed process; there are only counters. So the rule is: the command was
//! killed by a signal that the shim did not send, and the nearest counter rose while it ran. The nearest
//! counter is that of the shim's own control group, else that of the machine.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

/// The counter nearest to this process, and its file: opening that takes longer than reading it.
#[derive(Debug, Default)]
pub(super) struct OomCounter {
    file: Option<File>,
    text: Vec<u8>,
}

impl OomCounter {
    /// Number of processes killed so far; `None` if there is no counter.
    pub(super) fn kills(&mut self) -> Option<u64> {
        if let Some(file) = &self.file
            && let Some(kills) = field(file, &mut self.text)
        {
            return Some(kills);
        }
        // On the first call, and when the group has been removed.
        let groups = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
        let machine = PathBuf::from("/proc/vmstat");
        files(&groups).into_iter().chain([machine]).find_map(|path| {
            let file = File::open(path).ok()?;
            let kills = field(&file, &mut self.text)?;
            self.file = Some(file);
            Some(kills)
        })
    }
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
fn field(file: &File, text: &mut Vec<u8>) -> Option<u64> {
    read_all(file, text).ok()?;
    let text = std::str::from_utf8(text).ok()?;
    text.lines().find_map(|line| line.strip_prefix("oom_kill ")?.trim().parse().ok())
}

/// Reads a file from its start. The kernel gives a part of it at a time.
fn read_all(file: &File, text: &mut Vec<u8>) -> io::Result<()> {
    const PART: usize = 4 << 10;
    text.clear();
    loop {
        let len = text.len();
        text.resize(len + PART, 0);
        let got = file.read_at(&mut text[len..], len as u64)?;
        text.truncate(len + got);
        if got == 0 {
            return Ok(());
        }
    }
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
    fn a_counter_is_read_anew_each_time() {
        let mut counter = OomCounter::default();
        let first = counter.kills();
        assert!(first.is_some(), "every kernel counts at least for the machine");
        assert!(counter.file.is_some());
        assert!(counter.kills() >= first);
    }

    #[test]
    fn a_file_of_many_parts_is_read_whole() {
        let mut text = Vec::new();
        let file = tempfile::tempfile().unwrap();
        let long = format!("{}oom_kill 7\n", "oom 1\n".repeat(5_000));
        file.write_all_at(long.as_bytes(), 0).unwrap();
        assert_eq!(field(&file, &mut text), Some(7));
    }
}
