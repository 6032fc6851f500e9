//! The shim: the subreaper of one attempt at a time, which starts its command and ends all of its processes.
//!
//! An attempt has ended when the shim has no children left. Until then the shim waits for one of four things:
//! a child has ended, the guard has an order, the guard has ended, or a signal is due. Then it waits for the
//! next attempt, to spare it a fork; all state of one attempt is a value that ends with it.

use std::collections::HashSet;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, recv, send};
use rustix::process::{
    Pid, Resource, Rlimit, Signal, WaitOptions, WaitStatus, getpid, set_child_subreaper,
    set_parent_process_death_signal, setrlimit, setsid, wait,
};

use super::child::{CommandEnd, ProcessTreeEnd};
use super::clock::{Alarm, boottime};
use super::image::image;
use super::oom::OomCounter;
use super::sys::{self, SharedDeadline, Stack};
use super::tree;
use super::wire::{
    ChildId, ControlRequest, FailedStep, FromGuard, Settings, Spawn, SpawnFds, ToShim, decode, encode,
    recv_packet,
};

/// The longest order or report, in bytes.
pub(super) const WORD_BYTES_MAX: usize = 256;
/// The longest command that an idle shim receives; a longer command gets a new shim, which has it in its
/// memory.
pub(super) const SPAWN_BYTES_MAX: usize = 64 << 10;

/// The parts of a shim, in the child of the fork.
#[derive(Debug)]
pub(super) struct Parts {
    /// Its first attempt.
    pub(super) spawn: Spawn,
    pub(super) fds: SpawnFds,
    pub(super) control: OwnedFd,
    pub(super) locks: Vec<OwnedFd>,
    pub(super) settings: Settings,
    pub(super) deadline: SharedDeadline,
    /// Open files that a command may have: the guard allows itself more.
    pub(super) files_max: Rlimit,
}

/// Runs one attempt after the other in the child of a fork, until the guard hangs up.
pub(super) fn run(parts: Parts) -> ! {
    // A panic must not unwind into the guard's frames of which this process has a copy.
    let ran = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| run_to_end(parts)));
    sys::exit_now(i32::from(!matches!(ran, Ok(Ok(())))))
}

fn run_to_end(parts: Parts) -> io::Result<()> {
    let Parts { spawn, fds, control, locks, settings, deadline, files_max } = parts;
    let mut keep: Vec<_> = fds.all().collect();
    keep.push(control.as_fd());
    keep.extend(locks.iter().map(AsFd::as_fd));
    // Above all the guard's ends of the other shims' sockets: held here, they would never close for those
    // shims.
    sys::close_all_but(&keep)?;
    // A group of its own: `kill -9 0` by the command must not reach the shim, nor the guard's other children.
    setsid()?;
    set_child_subreaper(Some(getpid()))?;
    rustix::thread::set_name(c"tasklane-shim")?;
    // Inherited by commands.
    setrlimit(Resource::Nofile, files_max)?;

    let mut shim = Shim {
        control: Some(control),
        settings,
        deadline,
        children: sys::child_signals()?,
        alarm: Alarm::new()?,
        oom: OomCounter::default(),
        stack: Stack::new(),
    };
    let mut next = Some((spawn, fds));
    let mut buffer = vec![0; SPAWN_BYTES_MAX];
    while let Some((spawn, fds)) = next {
        shim.run(spawn, fds)?;
        next = shim.next(&mut buffer)?;
    }
    // Held until here.
    drop(locks);
    Ok(())
}

/// State that lasts longer than an attempt. Nothing of it depends on one.
#[derive(Debug)]
struct Shim {
    /// To the guard; `None` once it has ended.
    control: Option<OwnedFd>,
    settings: Settings,
    deadline: SharedDeadline,
    children: OwnedFd,
    /// It may be set for an attempt that has ended; the receiver always reads the clock.
    alarm: Alarm,
    oom: OomCounter,
    stack: Stack,
}

impl Shim {
    /// One attempt, to its end.
    fn run(&mut self, spawn: Spawn, fds: SpawnFds) -> io::Result<()> {
        let id = spawn.id;
        let SpawnFds { stdout, stderr, alive, stdin } = fds;
        let oom_kills = self.oom.kills();
        let started = image(spawn).map_err(|errno| (FailedStep::Execute, errno)).and_then(|image| {
            let stdio = [stdin.as_ref(), Some(&stdout), Some(&stderr)].map(|fd| fd.map(AsFd::as_fd));
            sys::start(&image, stdio, &mut self.stack)
        });
        drop((stdin, stdout, stderr));
        let last_word = match started {
            Ok(main) => {
                self.report(&FromGuard::Started { id, pid: main.as_raw_pid() })?;
                let attempt = Attempt {
                    id,
                    main,
                    oom_kills,
                    phase: Phase::Running,
                    told: HashSet::new(),
                    ended: None,
                    swept: false,
                };
                let ended = attempt.watch(self)?;
                FromGuard::Ended { id, ended }
            }
            Err((step, errno)) => FromGuard::NotStarted { id, step, errno: errno.raw_os_error() },
        };
        drop(alive);
        // From here on nothing is left to clean up: even a stopped shim does not outlive the guard.
        set_parent_process_death_signal(Some(Signal::KILL))?;
        self.report(&last_word)
    }

    /// Waits for the next attempt. `None` when the guard closes the socket.
    fn next(&mut self, buffer: &mut [u8]) -> io::Result<Option<(Spawn, SpawnFds)>> {
        let Some(control) = &self.control else { return Ok(None) };
        loop {
            let (bytes, mut fds) = recv_packet(control, buffer)?;
            if bytes.is_empty() {
                return Ok(None);
            }
            match decode(bytes)? {
                // The order came after the end of its attempt.
                ToShim::Order { .. } => {}
                ToShim::Spawn(spawn) => {
                    // If the guard has ended by now, its end of the socket shows it too.
                    set_parent_process_death_signal(None)?;
                    let next = || fds.pop_front().ok_or_else(|| Errno::MFILE.into());
                    if let Ok(fds) = SpawnFds::take(&spawn, next) {
                        return Ok(Some((spawn, fds)));
                    }
                    // This process had no room for all of its descriptors.
                    set_parent_process_death_signal(Some(Signal::KILL))?;
                    let (step, errno) = (FailedStep::Fork, Errno::MFILE.raw_os_error());
                    self.report(&FromGuard::NotStarted { id: spawn.id, step, errno })?;
                }
            }
        }
    }

    fn report(&self, word: &FromGuard) -> io::Result<()> {
        let Some(control) = &self.control else { return Ok(()) };
        let bytes = encode(word);
        assert!(bytes.len() <= WORD_BYTES_MAX, "{word:?} is longer than the guard reads");
        match send(control, &bytes, SendFlags::NOSIGNAL) {
            // The guard has ended; the next poll shows that.
            Ok(_) | Err(Errno::PIPE | Errno::CONNRESET) => Ok(()),
            Err(errno) => Err(errno.into()),
        }
    }
}

/// The state of one attempt.
#[derive(Debug)]
struct Attempt {
    id: ChildId,
    main: Pid,
    /// The counter before the attempt started.
    oom_kills: Option<u64>,
    phase: Phase,
    /// The processes that have got SIGTERM.
    told: HashSet<Pid>,
    /// How the command itself ended, once it has.
    ended: Option<ProcessTreeEnd>,
    /// The processes that the command left have got SIGTERM.
    swept: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Running,
    /// SIGTERM was sent; SIGKILL follows at this time, if nothing else comes first.
    Terminating {
        kill_at: Option<Duration>,
    },
    /// SIGKILL, repeatedly; the next pass after this pause at the latest.
    Killing {
        pause: Duration,
    },
}

impl Attempt {
    /// Until no child is left.
    fn watch(mut self, shim: &mut Shim) -> io::Result<ProcessTreeEnd> {
        loop {
            let wake_at = self.act(boottime(), shim);
            shim.alarm.set(wake_at)?;
            let (children, alarm) =
                (PollFd::new(&shim.children, PollFlags::IN), PollFd::new(&shim.alarm, PollFlags::IN));
            let control = shim.control.as_ref().unwrap_or(&shim.children);
            let mut events = [children, alarm, PollFd::new(control, PollFlags::IN)];
            match poll(&mut events, None) {
                Ok(_) => {}
                Err(Errno::INTR) => continue,
                Err(errno) => return Err(errno.into()),
            }
            let [children, alarm, control] = events.map(|event| !event.revents().is_empty());
            if alarm {
                shim.alarm.rearm();
            }
            if children || alarm {
                drain(&shim.children);
                let empty = self.reap(&mut shim.oom)?;
                if empty && let Some(ended) = self.ended {
                    return Ok(ended);
                }
            }
            if control {
                self.take_orders(shim);
            }
        }
    }

    /// Reaps all children that have ended. True if there are no others.
    fn reap(&mut self, oom: &mut OomCounter) -> io::Result<bool> {
        let mut main_ended = false;
        let empty = loop {
            match wait(WaitOptions::NOHANG) {
                Ok(Some((pid, status))) if pid == self.main => {
                    self.on_main_ended(status, oom);
                    main_ended = self.ended.is_some();
                }
                Ok(Some(_)) | Err(Errno::INTR) => {}
                Ok(None) => break false,
                Err(Errno::CHILD) => break true,
                Err(errno) => return Err(errno.into()),
            }
        };
        if main_ended
            && !empty
            && let Some(ended) = &mut self.ended
        {
            let left = tree::count_alive(&tree::with_descendants(tree::own_children()));
            ended.leftovers = u32::try_from(left).unwrap_or(u32::MAX);
        }
        Ok(empty)
    }

    fn on_main_ended(&mut self, status: WaitStatus, oom: &mut OomCounter) {
        let how = match (status.exit_status(), status.terminating_signal()) {
            (Some(code), _) => CommandEnd::Code(code),
            (None, Some(signal)) => CommandEnd::Signal(signal),
            // The child was stopped or continued, which this wait did not ask for.
            (None, None) => return,
        };
        // A shell reports the end of its last child in this form.
        let killed = matches!(how, CommandEnd::Signal(libc::SIGKILL) | CommandEnd::Code(137));
        let by_us = matches!(self.phase, Phase::Killing { .. });
        let oom_killed = if killed && !by_us {
            oom.kills().zip(self.oom_kills).map(|(now, before)| now > before)
        } else {
            Some(false)
        };
        self.ended = Some(ProcessTreeEnd { how, leftovers: 0, oom_killed });
    }

    /// Sends the signals that are due. Returns when to look again at the latest.
    fn act(&mut self, now: Duration, shim: &Shim) -> Option<Duration> {
        let settings = &shim.settings;
        let lease_end = shim.deadline.get().map(|at| at.saturating_sub(settings.kill_margin));
        let lease_warning = lease_end.map(|at| at.saturating_sub(settings.lease_grace));
        let past = |at: Option<Duration>| at.is_some_and(|at| at <= now);

        if self.ended.is_some() && !self.swept {
            // Also when SIGTERM was sent before: processes started since then have not got it.
            self.swept = true;
            self.terminate(Some(now + settings.leftover_grace));
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

    /// SIGTERM to all processes that have not got it, and SIGKILL at this time, or at an earlier time that is
    /// set already.
    fn terminate(&mut self, kill_at: Option<Duration>) {
        let known = match self.phase {
            Phase::Running => None,
            Phase::Terminating { kill_at } => kill_at,
            Phase::Killing { .. } => return,
        };
        tree::terminate(&mut self.told);
        self.phase = Phase::Terminating { kill_at: kill_at.into_iter().chain(known).min() };
    }

    fn take_orders(&mut self, shim: &mut Shim) {
        while let Some(control) = &shim.control {
            let mut word = [0; WORD_BYTES_MAX];
            match recv(control, &mut word, RecvFlags::DONTWAIT) {
                Err(Errno::AGAIN) => return,
                Err(Errno::INTR) => {}
                Ok((len, _)) if len > 0 => match decode(&word[..len]) {
                    Ok(ToShim::Order { id, order }) if id == self.id => self.on_order(order),
                    // An order for an earlier attempt. (The guard sends no other attempt before this one has
                    // ended.)
                    Ok(ToShim::Order { .. } | ToShim::Spawn(_)) | Err(_) => {}
                },
                Ok(_) | Err(_) => {
                    // The guard has ended, so no process waits for the report and no other process cleans up.
                    shim.control = None;
                    self.on_order(ControlRequest::Kill);
                }
            }
        }
    }

    fn on_order(&mut self, order: ControlRequest) {
        match order {
            ControlRequest::Terminate { grace } => self.terminate(grace.map(|grace| boottime() + grace)),
            ControlRequest::Kill if !matches!(self.phase, Phase::Killing { .. }) => {
                self.phase = Phase::Killing { pause: PAUSE_MIN };
            }
            // The shim checks the deadline after every order.
            ControlRequest::Look | ControlRequest::Kill => {}
        }
    }
}

/// Between two passes of SIGKILL: most trees have ended after the first, and a tree that cannot be killed
/// must not cost much.
const PAUSE_MIN: Duration = Duration::from_millis(1);
const PAUSE_MAX: Duration = Duration::from_millis(100);

/// Empties a descriptor whose data means no more than "look".
pub(super) fn drain(fd: &OwnedFd) {
    // Signals of one kind do not queue up.
    let mut sink = [0; 256];
    let _ = rustix::io::read(fd, &mut sink);
}
