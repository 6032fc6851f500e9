//! An attempt that records its own life: this program, started by a worker as the command of a `SHELL` task.
//!
//! It is started some hundred times a second, so it does little: it writes two lines of history, one at its
//! start and one at its end, and between them looks for other attempts of the same task. That look is the
//! exact check for two live attempts: each process first enters itself into the file of its task and then
//! reads it, so of two that live at the same time at least one finds the other.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Seek, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::Duration;

use super::clock::{Boot, Wall};

/// The first argument by which this program becomes an attempt.
pub(crate) const MODE: &str = "chaos-attempt";
/// Names the folder of the run.
pub(crate) const FOLDER_VARIABLE: &str = "CHAOS_FOLDER";
/// Names the process of the worker, such as `w1.3` for the third start of `w1`.
pub(crate) const WORKER_VARIABLE: &str = "CHAOS_WORKER";
/// Lines of all attempts, in a file for each worker.
pub(crate) const HISTORY: &str = "history";
/// The processes of each task, in a file for each.
pub(crate) const LIVE: &str = "live";

/// The exit code of an attempt that could not write down what it should.
pub(crate) const BROKEN: u8 = 97;
/// The exit code of an attempt that fails by its task's plan.
pub(crate) const FAILED: u8 = 1;
/// Attempts before this number fail, of a task that fails at first.
const FAILS_BEFORE: u32 = 3;

/// The work of an attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Behaviour {
    /// Waits, and ends well.
    Succeeds,
    /// Fails at its first attempts.
    FailsFirst,
    /// Fails always.
    Fails,
    /// As the first, with a child that has left its session.
    Family,
    /// That child.
    Member,
}

impl Behaviour {
    const ALL: [Self; 5] = [Self::Succeeds, Self::FailsFirst, Self::Fails, Self::Family, Self::Member];

    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::Succeeds => "succeeds",
            Self::FailsFirst => "fails-first",
            Self::Fails => "fails",
            Self::Family => "family",
            Self::Member => "member",
        }
    }
}

/// Is the attempt that the arguments after [`MODE`] and the environment describe.
pub(crate) fn run(args: &[String]) -> ExitCode {
    match try_run(args) {
        Ok(code) => ExitCode::from(code),
        Err(error) => {
            // Kept with the output of the task.
            println!("the attempt cannot record itself: {error}");
            ExitCode::from(BROKEN)
        }
    }
}

fn try_run(args: &[String]) -> io::Result<u8> {
    let [millis, behaviour, ..] = args else { return Err(io::Error::other("arguments are missing")) };
    let millis: u64 = millis.parse().map_err(io::Error::other)?;
    let behaviour = Behaviour::ALL.into_iter().find(|known| known.as_str() == behaviour);
    let behaviour = behaviour.ok_or_else(|| io::Error::other("no such behaviour"))?;
    let me = Attempt::from_environment()?;
    if behaviour == Behaviour::Member {
        rustix::process::setsid()?;
        me.enter()?;
        std::thread::sleep(Duration::from_millis(millis));
        return Ok(0);
    }
    let others = me.enter()?;
    me.write(&format!(
        "S {} {} {} {} {} {} {}\n",
        me.task,
        me.number,
        me.worker,
        me.process.pid,
        me.process.ticks,
        Boot::now().0,
        Wall::now().0
    ))?;
    for (number, process) in others {
        me.write(&format!("V {} {} {number} {}\n", me.task, me.number, process.pid))?;
    }
    let mut member = None;
    if behaviour == Behaviour::Family {
        let millis = millis.to_string();
        let args = [MODE, &millis, Behaviour::Member.as_str()];
        member = Some(Command::new(std::env::current_exe()?).args(args).spawn()?);
    }
    std::thread::sleep(Duration::from_millis(millis));
    if let Some(mut member) = member {
        // Nothing is left behind by an attempt that ends in order.
        member.kill()?;
        member.wait()?;
    }
    let number = me.number;
    let fails = behaviour == Behaviour::Fails || behaviour == Behaviour::FailsFirst && number < FAILS_BEFORE;
    let code = if fails { FAILED } else { 0 };
    me.write(&format!("E {} {number} {} {} {} {code}\n", me.task, me.worker, Boot::now().0, Wall::now().0))?;
    Ok(code)
}

/// Makes the folders that attempts write to.
pub(crate) fn prepare(folder: &Path) -> io::Result<()> {
    std::fs::create_dir_all(folder.join(HISTORY))?;
    for byte in 0..=u8::MAX {
        std::fs::create_dir_all(folder.join(LIVE).join(format!("{byte:02x}")))?;
    }
    Ok(())
}

struct Attempt {
    folder: PathBuf,
    worker: String,
    task: String,
    number: u32,
    process: Process,
}

impl Attempt {
    fn from_environment() -> io::Result<Self> {
        let variable =
            |name: &str| std::env::var(name).map_err(|error| io::Error::other(format!("{name}: {error}")));
        Ok(Self {
            folder: PathBuf::from(variable(FOLDER_VARIABLE)?),
            worker: variable(WORKER_VARIABLE)?,
            task: variable("TASKLANE_TASK_ID")?,
            number: variable("TASKLANE_ATTEMPT")?.parse().map_err(io::Error::other)?,
            process: Process::own()?,
        })
    }

    /// Enters this process into the file of its task. Answers which processes of other attempts, or of this number but
    /// not of this attempt's family, are alive.
    fn enter(&self) -> io::Result<Vec<(u32, Process)>> {
        let shard = self.task.get(self.task.len().saturating_sub(2)..).unwrap_or("00");
        let path = self.folder.join(LIVE).join(shard).join(&self.task);
        let mut file = OpenOptions::new().create(true).read(true).append(true).open(path)?;
        let Process { pid, ticks } = self.process;
        file.write_all(format!("{} {pid} {ticks}\n", self.number).as_bytes())?;
        let mut text = String::new();
        file.rewind()?;
        file.read_to_string(&mut text)?;
        let others = text.lines().filter_map(|line| {
            let mut words = line.split(' ');
            let number = words.next()?.parse().ok()?;
            let process = Process { pid: words.next()?.parse().ok()?, ticks: words.next()?.parse().ok()? };
            Some((number, process))
        });
        Ok(others.filter(|(_, process)| *process != self.process && process.is_alive()).collect())
    }

    /// One line, in one piece: several attempts write to the same file.
    fn write(&self, line: &str) -> io::Result<()> {
        let name = self.worker.split('.').next().unwrap_or("none");
        let mut file: File =
            OpenOptions::new().create(true).append(true).open(self.folder.join(HISTORY).join(name))?;
        file.write_all(line.as_bytes())
    }
}

/// A process that cannot be taken for another one: its number, and when it was started, in ticks of the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Process {
    pub(crate) pid: u32,
    pub(crate) ticks: u64,
}

impl Process {
    fn own() -> io::Result<Self> {
        let pid = std::process::id();
        let (_, ticks) = stat(pid).ok_or_else(|| io::Error::other("/proc does not know this process"))?;
        Ok(Self { pid, ticks })
    }

    /// Whether it can still do anything. One that has ended and was not fetched yet cannot.
    pub(crate) fn is_alive(self) -> bool {
        stat(self.pid).is_some_and(|(state, ticks)| ticks == self.ticks && !matches!(state, 'Z' | 'X' | 'x'))
    }
}

/// State and start of a process.
fn stat(pid: u32) -> Option<(char, u64)> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name of the program may contain anything.
    let (_, rest) = text.rsplit_once(") ")?;
    let mut words = rest.split(' ');
    let state = words.next()?.chars().next()?;
    // The 22nd field of the line; the state is the third.
    let ticks = words.nth(18)?.parse().ok()?;
    Some((state, ticks))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_is_alive_until_it_has_ended() {
        let own = Process::own().unwrap();
        assert!(own.is_alive());
        assert!(!Process { ticks: own.ticks + 1, ..own }.is_alive());
        let mut child = Command::new("sleep").arg("60").spawn().unwrap();
        let (_, ticks) = stat(child.id()).unwrap();
        let process = Process { pid: child.id(), ticks };
        assert!(process.is_alive());
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(!process.is_alive());
    }
}
