//! The shim: the subreaper of one attempt, which starts its command and ends whatever it leaves behind.
//!
//! It ends when it has no children left. Until then it waits for one of four things: a child has ended, the guard has
//! an order, the guard is gone, or it is time to signal.

use std::collections::HashSet;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, recv, send};
use rustix::process::{Pid, Rlimit, WaitOptions, WaitStatus, getpid, set_child_subreaper, setsid, wait};

use super::child::{Ended, HowEnded};
use super::clock::{Alarm, boottime};
use super::oom::OomCounter;
use super::sys::{self, SharedDeadline};
use super::tree;
use super::wire::{ChildId, FailedStep, FromGuard, Order, Settings, Spawn, decode, encode};

/// The longest order or report, in bytes.
pub(super) const WORD_BYTES_MAX: usize = 256;

/// What a shim is made of, in the child of the fork.
#[derive(Debug)]
pub(super) struct Parts {
    pub(super) spawn: Spawn,
    pub(super) stdin: Option<OwnedFd>,
    pub(super) stdout: OwnedFd,
    pub(super) stderr: OwnedFd,
    /// Held as long as the shim lives, so that the worker can see its end even when the guard is gone.
    pub(super) alive: OwnedFd,
    pub(super) control: OwnedFd,
    pub(super) lock: Option<OwnedFd>,
    pub(super) settings: Settings,
    pub(super) deadline: SharedDeadline,
    /// Open files that a command may have: the guard allows itself more.
    pub(super) files_max: Rlimit,
}

/// Runs one attempt in the child of a fork, to its end.
pub(super) fn run(parts: Parts) -> ! {
    // A panic must not unwind into the guard's frames of which this process has a copy.
    let ran = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| run_to_end(parts)));
    sys::exit_now(i32::from(!matches!(ran, Ok(Ok(())))))
}

fn run_to_end(parts: Parts) -> io::Result<()> {
    let Parts { spawn, stdin, stdout, stderr, alive, control, lock, settings, deadline, files_max } = parts;
    let mut keep = vec![stdout.as_fd(), stderr.as_fd(), alive.as_fd(), control.as_fd()];
    keep.extend(stdin.as_ref().map(AsFd::as_fd));
    keep.extend(lock.as_ref().map(AsFd::as_fd));
    // Above all the guard's ends of the other shims' sockets: held here, they would never be seen to close.
    sys::close_all_but(&keep)?;
    let me = getpid();
    // A group of its own: `kill -9 0` by the command must not reach the shim, nor the guard's other children.
    setsid()?;
    set_child_subreaper(Some(me))?;
    rustix::thread::set_name(c"tasklane-shim")?;

    let id = spawn.id;
    let children = sys::child_signals()?;
    let alarm = Alarm::new()?;
    let oom = OomCounter::new();
    let main = match start(spawn, [stdin, Some(stdout), Some(stderr)], me, files_max) {
        Ok(main) => main,
        Err((step, e)) => {
            let errno = e.raw_os_error().unwrap_or(Errno::INVAL.raw_os_error());
            return report(&control, &FromGuard::NotStarted { id, step, errno });
        }
    };
    report(&control, &FromGuard::Started { id, pid: main.as_raw_pid() })?;
    let mut shim = Shim {
        main,
        control: Some(control),
        settings,
        deadline,
        oom,
        phase: Phase::Running,
        told: HashSet::new(),
        ended: None,
        swept: false,
    };
    let ended = shim.watch(&children, &alarm)?;
    if let Some(control) = &shim.control {
        report(control, &FromGuard::Ended { id, ended })?;
    }
    // Held until here.
    drop((alive, lock));
    Ok(())
}

fn start(
    spawn: Spawn,
    stdio: [Option<OwnedFd>; 3],
    me: Pid,
    files_max: Rlimit,
) -> Result<Pid, (FailedStep, io::Error)> {
    let failed = |step| move |e: io::Error| (step, e);
    if let Some(cwd) = &spawn.cwd {
        // Here and not in the command's own process, so that a wrong folder can be told from a wrong program.
        rustix::process::chdir(cwd).map_err(|e| failed(FailedStep::ChangeDir)(e.into()))?;
    }
    let mut argv = spawn.argv.iter();
    let program = argv.next().ok_or_else(|| failed(FailedStep::Execute)(Errno::INVAL.into()))?;
    let mut command = Command::new(PathBuf::from(program));
    let [input, output, errors] = stdio.map(|fd| fd.map_or_else(Stdio::null, Stdio::from));
    command.args(argv).env_clear().envs(spawn.env).stdin(input).stdout(output).stderr(errors);
    command.arg0(program);
    sys::start_afresh(&mut command, me, files_max);
    let child = command.spawn().map_err(failed(FailedStep::Execute))?;
    Ok(Pid::from_child(&child))
}

#[derive(Debug)]
struct Shim {
    main: Pid,
    /// To the guard; `None` once it is gone.
    control: Option<OwnedFd>,
    settings: Settings,
    deadline: SharedDeadline,
    oom: OomCounter,
    phase: Phase,
    /// Who has got SIGTERM.
    told: HashSet<Pid>,
    /// How the command itself ended, once it has.
    ended: Option<Ended>,
    /// What it left behind has got SIGTERM.
    swept: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Running,
    /// SIGTERM was sent; SIGKILL follows then, if nothing else comes first.
    Terminating {
        kill_at: Option<Duration>,
    },
    /// SIGKILL, again and again; the next pass after this pause at the latest.
    Killing {
        pause: Duration,
    },
}

impl Shim {
    /// Until no child is left.
    fn watch(&mut self, children: &OwnedFd, alarm: &Alarm) -> io::Result<Ended> {
        loop {
            drain(children);
            let empty = self.reap()?;
            if empty && let Some(ended) = self.ended.take() {
                return Ok(ended);
            }
            let wake_at = self.act(boottime());
            alarm.set(wake_at)?;
            let mut events = vec![PollFd::new(children, PollFlags::IN), PollFd::new(alarm, PollFlags::IN)];
            events.extend(self.control.as_ref().map(|control| PollFd::new(control, PollFlags::IN)));
            match poll(&mut events, None) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(errno) => return Err(errno.into()),
            }
            self.take_orders();
        }
    }

    /// Takes leave of all children that have ended. True if there are no others.
    fn reap(&mut self) -> io::Result<bool> {
        loop {
            match wait(WaitOptions::NOHANG) {
                Ok(Some((pid, status))) if pid == self.main => self.on_main_ended(status),
                Ok(Some(_)) | Err(Errno::INTR) => {}
                Ok(None) => return Ok(false),
                Err(Errno::CHILD) => return Ok(true),
                Err(errno) => return Err(errno.into()),
            }
        }
    }

    fn on_main_ended(&mut self, status: WaitStatus) {
        let how = match (status.exit_status(), status.terminating_signal()) {
            (Some(code), _) => HowEnded::Code(code),
            (None, Some(signal)) => HowEnded::Signal(signal),
            // It was stopped or continued, which we never asked to hear of.
            (None, None) => return,
        };
        // A shell passes on what happened to its last child in this form.
        let killed = matches!(how, HowEnded::Signal(libc::SIGKILL) | HowEnded::Code(137));
        let by_us = matches!(self.phase, Phase::Killing { .. });
        let oom_killed = if killed && !by_us { self.oom.rose() } else { Some(false) };
        let left = tree::count_alive(&tree::with_descendants(tree::own_children()));
        let leftovers = u32::try_from(left).unwrap_or(u32::MAX);
        self.ended = Some(Ended { how, leftovers, oom_killed });
    }

    /// Signals what is to be signalled by now. Answers when to look again at the latest.
    fn act(&mut self, now: Duration) -> Option<Duration> {
        let lease_end = self.deadline.get().map(|at| at.saturating_sub(self.settings.kill_margin));
        let lease_warning = lease_end.map(|at| at.saturating_sub(self.settings.lease_grace));
        let past = |at: Option<Duration>| at.is_some_and(|at| at <= now);

        if self.ended.is_some() && !self.swept {
            // Also when SIGTERM was sent before: what was started since has not got it.
            self.swept = true;
            self.terminate(Some(now + self.settings.leftover_grace));
        } else if self.phase == Phase::Running && past(lease_warning) {
            self.terminate(None);
        }
        if let Phase::Terminating { kill_at } = self.phase
            && (past(kill_at) || past(lease_end))
        {
            self.phase = Phase::Killing { pause: PAUSE_MIN };
        }
        match &mut self.phase {
            Phase::Running => lease_warning,
            Phase::Terminating { kill_at } => kill_at.iter().copied().chain(lease_end).min(),
            Phase::Killing { pause } => {
                tree::kill(tree::own_children());
                let wake_at = now + *pause;
                *pause = (*pause * 2).min(PAUSE_MAX);
                Some(wake_at)
            }
        }
    }

    /// SIGTERM to all who have not got it, and SIGKILL at this time, or at an earlier one that is known already.
    fn terminate(&mut self, kill_at: Option<Duration>) {
        let known = match self.phase {
            Phase::Running => None,
            Phase::Terminating { kill_at } => kill_at,
            Phase::Killing { .. } => return,
        };
        tree::terminate(&mut self.told);
        self.phase = Phase::Terminating { kill_at: kill_at.into_iter().chain(known).min() };
    }

    fn take_orders(&mut self) {
        while let Some(control) = &self.control {
            let mut word = [0; WORD_BYTES_MAX];
            match recv(control, &mut word, RecvFlags::DONTWAIT) {
                Err(Errno::AGAIN) => return,
                Err(Errno::INTR) => {}
                Ok((len, _)) if len > 0 => {
                    if let Ok(order) = decode(&word[..len]) {
                        self.on_order(order);
                    }
                }
                Ok(_) | Err(_) => {
                    // The guard is gone, so nobody is interested and nobody else will clean up.
                    self.control = None;
                    self.on_order(Order::Kill);
                }
            }
        }
    }

    fn on_order(&mut self, order: Order) {
        match order {
            Order::Terminate { grace } => self.terminate(grace.map(|grace| boottime() + grace)),
            Order::Kill if !matches!(self.phase, Phase::Killing { .. }) => {
                self.phase = Phase::Killing { pause: PAUSE_MIN };
            }
            // The deadline is looked at after every order.
            Order::Look | Order::Kill => {}
        }
    }
}

/// Between two passes of SIGKILL: most trees are gone after the first, and one that cannot be killed must not cost
/// much.
const PAUSE_MIN: Duration = Duration::from_millis(1);
const PAUSE_MAX: Duration = Duration::from_millis(100);

/// Takes everything out of a descriptor that says no more than "look".
pub(super) fn drain(fd: &OwnedFd) {
    let mut sink = [0; 1024];
    while matches!(rustix::io::read(fd, &mut sink), Ok(n) if n > 0) {}
}

fn report(control: &OwnedFd, word: &FromGuard) -> io::Result<()> {
    let id: ChildId = match word {
        FromGuard::Ready => return Ok(()),
        FromGuard::Started { id, .. } | FromGuard::NotStarted { id, .. } | FromGuard::Ended { id, .. } => *id,
    };
    let bytes = encode(word);
    assert!(bytes.len() <= WORD_BYTES_MAX, "report of {id} is longer than the guard reads");
    match send(control, &bytes, SendFlags::NOSIGNAL) {
        // The guard is gone; that shows in the next look.
        Ok(_) | Err(Errno::PIPE | Errno::CONNRESET) => Ok(()),
        Err(errno) => Err(errno.into()),
    }
}
