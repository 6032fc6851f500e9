//! The attempts' own records: read as a whole at the end, and followed while they run.

use std::collections::{BTreeMap, HashMap};
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use anyhow::{Context, Result};
use tasklane_core::id::{AttemptNo, TaskId};
use tasklane_core::message::AttemptId;

use super::attempt::{HISTORY, Process};
use super::clock::{Boot, Wall};

/// The first line of an attempt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Start {
    pub(crate) attempt: AttemptId,
    /// The process of the worker, such as `w1.3`.
    pub(crate) worker: String,
    pub(crate) process: Process,
    pub(crate) at: Boot,
    pub(crate) wall: Wall,
}

/// The last line of an attempt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct End {
    pub(crate) attempt: AttemptId,
    pub(crate) worker: String,
    pub(crate) at: Boot,
    pub(crate) wall: Wall,
    pub(crate) code: u8,
}

/// An attempt that found a process of another one alive.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TwoAlive {
    pub(crate) attempt: AttemptId,
    pub(crate) other: AttemptNo,
    pub(crate) pid: u32,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Line {
    Start(Start),
    End(End),
    TwoAlive(TwoAlive),
}

/// All that attempts wrote.
#[derive(Debug, Default)]
pub(crate) struct History {
    pub(crate) starts: Vec<Start>,
    pub(crate) ends: Vec<End>,
    pub(crate) two_alive: Vec<TwoAlive>,
}

impl History {
    /// Reads the history of a run, ordered by time.
    pub(crate) fn read(folder: &Path) -> Result<Self> {
        let mut history = Self::default();
        for path in files(folder) {
            let text = std::fs::read_to_string(&path).context("cannot read the history")?;
            for line in text.lines() {
                let line = parse(line).with_context(|| format!("{}: not a line: {line}", path.display()))?;
                match line {
                    Line::Start(start) => history.starts.push(start),
                    Line::End(end) => history.ends.push(end),
                    Line::TwoAlive(found) => history.two_alive.push(found),
                }
            }
        }
        history.starts.sort_by_key(|start| start.at);
        history.ends.sort_by_key(|end| end.at);
        Ok(history)
    }
}

fn files(folder: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder.join(HISTORY)).into_iter().flatten().flatten();
    let mut files: Vec<PathBuf> = entries.map(|entry| entry.path()).collect();
    files.sort();
    files
}

fn parse(line: &str) -> Option<Line> {
    let words: Vec<&str> = line.split(' ').collect();
    let attempt = |task: &str, number: &str| {
        Some(AttemptId { task: task.parse::<TaskId>().ok()?, number: AttemptNo(number.parse().ok()?) })
    };
    Some(match words[..] {
        ["S", task, number, worker, pid, ticks, at, wall] => Line::Start(Start {
            attempt: attempt(task, number)?,
            worker: worker.to_owned(),
            process: Process { pid: pid.parse().ok()?, ticks: ticks.parse().ok()? },
            at: Boot(at.parse().ok()?),
            wall: Wall(wall.parse().ok()?),
        }),
        ["E", task, number, worker, at, wall, code] => Line::End(End {
            attempt: attempt(task, number)?,
            worker: worker.to_owned(),
            at: Boot(at.parse().ok()?),
            wall: Wall(wall.parse().ok()?),
            code: code.parse().ok()?,
        }),
        ["V", task, number, other, pid] => Line::TwoAlive(TwoAlive {
            attempt: attempt(task, number)?,
            other: AttemptNo(other.parse().ok()?),
            pid: pid.parse().ok()?,
        }),
        _ => return None,
    })
}

/// An attempt that runs.
#[derive(Clone, Debug)]
pub(crate) struct Running {
    pub(crate) attempt: AttemptId,
    /// The process of its worker.
    pub(crate) worker: String,
    process: Process,
}

/// Follows the history while it is written.
#[derive(Debug)]
pub(crate) struct Follower {
    folder: PathBuf,
    state: Mutex<Followed>,
}

#[derive(Debug, Default)]
struct Followed {
    /// How far each file was read; only whole lines count.
    offsets: BTreeMap<PathBuf, u64>,
    running: HashMap<AttemptId, Running>,
    started: u64,
}

impl Follower {
    pub(crate) fn new(folder: &Path) -> Self {
        Self { folder: folder.to_owned(), state: Mutex::default() }
    }

    /// How many attempts have started so far.
    pub(crate) fn started(&self) -> u64 {
        self.with(|state| state.started)
    }

    /// The attempts that run at this moment.
    pub(crate) fn running(&self) -> Vec<Running> {
        self.with(|state| {
            // Those that were killed had no time to write it down.
            state.running.retain(|_, running| running.process.is_alive());
            state.running.values().cloned().collect()
        })
    }

    fn with<T>(&self, then: impl FnOnce(&mut Followed) -> T) -> T {
        let mut state = self.state.lock().expect("no thread panics while holding it");
        for path in files(&self.folder) {
            state.follow(&path);
        }
        then(&mut state)
    }
}

impl Followed {
    fn follow(&mut self, path: &Path) {
        let offset = self.offsets.entry(path.to_owned()).or_default();
        let mut text = String::new();
        let read = File::open(path).and_then(|mut file| {
            file.seek(SeekFrom::Start(*offset))?;
            file.read_to_string(&mut text)
        });
        let Some(whole) = read.ok().and_then(|_| text.rfind('\n')) else { return };
        *offset += whole as u64 + 1;
        for line in text[..whole].lines().filter_map(parse) {
            match line {
                Line::Start(Start { attempt, worker, process, .. }) => {
                    self.started += 1;
                    self.running.insert(attempt, Running { attempt, worker, process });
                }
                Line::End(End { attempt, .. }) => drop(self.running.remove(&attempt)),
                Line::TwoAlive(_) => {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_read_as_they_are_written() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir(folder.path().join(HISTORY)).unwrap();
        let task = "00000000-0000-8000-8000-000000000001";
        let text = format!(
            "S {task} 1 w1.2 77 5 100 200\nV {task} 1 3 78\nE {task} 1 w1.2 300 400 0\nS {task} 2 w1.2 79"
        );
        let path = folder.path().join(HISTORY).join("w1");
        std::fs::write(&path, &text).unwrap();
        let follower = Follower::new(folder.path());
        assert_eq!(follower.started(), 1, "the last line is not whole");
        std::fs::write(&path, format!("{text} 6 500 600\n")).unwrap();
        assert_eq!(follower.started(), 2);
        let history = History::read(folder.path()).unwrap();
        assert_eq!((history.starts.len(), history.ends.len(), history.two_alive.len()), (2, 1, 1));
        assert_eq!(history.ends[0].at.since(history.starts[0].at).as_micros(), 200);
    }
}
