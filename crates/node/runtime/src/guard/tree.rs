//! Finding and signalling everything below a process, while it changes.
//!
//! No list of processes is ever complete: between reading it and acting on it, a process may fork, end, or
//! get another parent. So no code relies on one pass. To end a tree, the caller repeats the pass until its
//! subreaper has no children left, which the kernel knows for certain.

use std::collections::{BTreeMap, HashSet};
use std::fs;
use std::io;

use rustix::io::Errno;
use rustix::process::{
    Pid, PidfdFlags, Signal, getpgid, getpgrp, getpid, kill_process, kill_process_group, pidfd_open,
    pidfd_send_signal,
};

/// A process, and its parent when it was seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Process {
    pub(super) pid: Pid,
    parent: Pid,
}

/// The children of this process.
pub(super) fn own_children() -> Vec<Process> {
    let me = getpid();
    match children(me) {
        Ok(children) => children,
        Err(_) => below_by_scan(me).into_iter().filter(|process| process.parent == me).collect(),
    }
}

/// These processes and all below them, parents first.
pub(super) fn with_descendants(roots: Vec<Process>) -> Vec<Process> {
    let mut found = roots;
    let mut next = 0;
    while let Some(process) = found.get(next).copied() {
        next += 1;
        match children(process.pid) {
            Ok(children) => found.extend(children),
            // A kernel without lists of children. A process that has ended has an empty list, not this error.
            Err(_) => return scan_with_descendants(&found[..next]),
        }
    }
    found
}

/// Sends SIGTERM once to each process below this one that is not yet in `told`, and wakes stopped processes.
pub(super) fn terminate(told: &mut HashSet<Pid>) {
    const PASSES_MAX: usize = 8;
    for _ in 0..PASSES_MAX {
        let new: Vec<Process> =
            with_descendants(own_children()).into_iter().filter(|process| told.insert(process.pid)).collect();
        if new.is_empty() {
            return;
        }
        for process in new {
            // A failure means that it has ended.
            let _ = send(process, Signal::TERM);
            let _ = send(process, Signal::CONT);
        }
    }
}

/// One pass of SIGKILL over these processes and all below them.
///
/// Whole process groups first: the kernel kills a group in one step that no fork slips through, which ends
/// chains of processes that live shorter than a pass takes.
pub(super) fn kill(roots: Vec<Process>) {
    let found = with_descendants(roots);
    let own = getpgrp();
    let groups: HashSet<Pid> = found.iter().filter_map(|process| getpgid(Some(process.pid)).ok()).collect();
    for group in groups.into_iter().filter(|&group| group != own && !group.is_init()) {
        let _ = kill_process_group(group, Signal::KILL);
    }
    for process in found {
        let _ = send(process, Signal::KILL);
    }
}

/// Number of these processes that have not ended. A zombie does not count.
pub(super) fn count_alive(processes: &[Process]) -> usize {
    processes.iter().filter(|process| stat(process.pid).is_some_and(|stat| stat.state != b'Z')).count()
}

/// Signals a process unless its number has passed to another one meanwhile.
fn send(process: Process, signal: Signal) -> rustix::io::Result<()> {
    let me = getpid();
    if process.parent == me {
        // Only this process reaps it, so its number is still its own.
        return kill_process(process.pid, signal);
    }
    let handle = match pidfd_open(process.pid, PidfdFlags::empty()) {
        Ok(handle) => handle,
        Err(Errno::NOSYS) => return kill_process(process.pid, signal),
        Err(errno) => return Err(errno),
    };
    // The handle belongs to the process that has the number now. It is the right process if it is still the
    // same parent's child, or has become a child of this process because that parent has ended.
    match stat(process.pid) {
        Some(stat) if stat.parent == process.parent.as_raw_pid() || stat.parent == me.as_raw_pid() => {
            pidfd_send_signal(handle, signal)
        }
        _ => Err(Errno::SRCH),
    }
}

/// The children of all threads of a process; none if it has ended. An error if the kernel keeps no such
/// lists.
fn children(parent: Pid) -> io::Result<Vec<Process>> {
    let Ok(threads) = fs::read_dir(format!("/proc/{}/task", parent.as_raw_pid())) else {
        return Ok(Vec::new());
    };
    let mut found = Vec::new();
    for thread in threads.flatten() {
        let path = thread.path();
        match fs::read_to_string(path.join("children")) {
            Ok(list) => found.extend(
                list.split_ascii_whitespace()
                    .filter_map(|pid| Pid::from_raw(pid.parse().ok()?))
                    .map(|pid| Process { pid, parent }),
            ),
            Err(e) if e.kind() == io::ErrorKind::NotFound && path.join("stat").exists() => return Err(e),
            Err(_) => {}
        }
    }
    Ok(found)
}

/// All processes below one, found by looking at every process of the machine.
fn below_by_scan(root: Pid) -> Vec<Process> {
    let root = Process { pid: root, parent: root };
    scan_with_descendants(&[root]).into_iter().skip(1).collect()
}

fn scan_with_descendants(roots: &[Process]) -> Vec<Process> {
    let mut by_parent: BTreeMap<i32, Vec<Pid>> = BTreeMap::new();
    for entry in fs::read_dir("/proc").into_iter().flatten().flatten() {
        let pid = entry.file_name().to_str().and_then(|name| name.parse().ok()).and_then(Pid::from_raw);
        if let Some(pid) = pid
            && let Some(stat) = stat(pid)
        {
            by_parent.entry(stat.parent).or_default().push(pid);
        }
    }
    let mut found = roots.to_vec();
    let mut seen: HashSet<Pid> = found.iter().map(|process| process.pid).collect();
    let mut next = 0;
    while let Some(process) = found.get(next).copied() {
        next += 1;
        for &pid in by_parent.get(&process.pid.as_raw_pid()).into_iter().flatten() {
            if seen.insert(pid) {
                found.push(Process { pid, parent: process.pid });
            }
        }
    }
    found
}

struct Stat {
    state: u8,
    parent: i32,
}

fn stat(pid: Pid) -> Option<Stat> {
    let line = fs::read(format!("/proc/{}/stat", pid.as_raw_pid())).ok()?;
    // `pid (name) state ppid …`; the name may contain anything, so it ends at the last parenthesis.
    let after = line.iter().rposition(|&byte| byte == b')')? + 1;
    let mut fields = line.get(after..)?.split(|&byte| byte == b' ').filter(|field| !field.is_empty());
    let state = *fields.next()?.first()?;
    let parent = std::str::from_utf8(fields.next()?).ok()?.parse().ok()?;
    Some(Stat { state, parent })
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader};
    use std::process::{Command, Stdio};

    use super::*;

    #[test]
    fn both_ways_of_looking_find_the_same_processes() {
        // Two levels; the line says that both exist.
        let mut child = Command::new("/bin/sh")
            .args(["-c", "sh -c 'echo up; read x; true'; true"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut String::new()).unwrap();
        let root = Pid::from_child(&child);
        let own = own_children().into_iter().find(|process| process.pid == root).unwrap();
        let found = with_descendants(vec![own]);
        assert_eq!(found.len(), 2);
        assert_eq!(found, scan_with_descendants(&[own]));
        assert_eq!(below_by_scan(root), found[1..]);
        assert_eq!(count_alive(&found), 2);
        drop(child.stdin.take());
        child.wait().unwrap();
        assert_eq!(count_alive(&found), 0);
    }

    #[test]
    fn a_number_that_went_to_another_process_is_not_signalled() {
        let mut child = Command::new("/bin/cat").stdin(Stdio::piped()).spawn().unwrap();
        // A record with a parent that it never had.
        let stranger = Process { pid: Pid::from_child(&child), parent: Pid::INIT };
        // A child of this process, so it counts as an inherited one.
        assert!(send(stranger, Signal::CONT).is_ok());
        let foreign = Process { pid: Pid::INIT, parent: Pid::from_child(&child) };
        assert_eq!(send(foreign, Signal::CONT), Err(Errno::SRCH));
        drop(child.stdin.take());
        assert!(child.wait().unwrap().success());
    }
}
