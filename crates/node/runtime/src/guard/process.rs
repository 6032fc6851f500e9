//! The guard process: carries orders to shims and their reports back, and ends everything when the worker is gone.

use std::collections::{BTreeMap, HashSet, VecDeque};
use std::io::{self, Write as _};
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rustix::buffer::spare_capacity;
use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::{Errno, fcntl_dupfd_cloexec};
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, recv, send, socketpair};
use rustix::process::{
    Pid, PidfdFlags, Resource, Rlimit, WaitOptions, getpid, getppid, getrlimit, pidfd_open,
    set_child_subreaper, setrlimit, setsid, wait,
};

use super::child::{Ended, HowEnded};
use super::clock::{Alarm, boottime};
use super::shim::{self, WORD_BYTES_MAX, drain};
use super::sys::{self, Forked, SharedDeadline};
use super::tree::{self, Process};
use super::wire::{ChildId, FailedStep, Frame, FromGuard, Inbox, Order, Settings, Spawn, ToGuard, encode};

/// Says that a program is started as a guard. Its socket is then its standard input.
pub(super) const ASKED_BY: &str = "TASKLANE_BECOME_GUARD";

/// Whether this program could be started again as a guard.
static CALLED: AtomicBool = AtomicBool::new(false);

/// Becomes the guard, and never returns, if this process was started to be one. Else returns at once.
///
/// To be called first thing in `main`, before any thread is started, by every program that starts a
/// [`Guard`](super::Guard): the guard is the same program, started again.
pub fn run_if_asked() {
    CALLED.store(true, Ordering::Relaxed);
    if std::env::var_os(ASKED_BY).is_none() {
        return;
    }
    let code = match run() {
        Ok(()) => 0,
        Err(e) => {
            // Nobody is left to tell but whoever reads the worker's standard error.
            let _ = writeln!(io::stderr(), "tasklane guard: {e}");
            1
        }
    };
    sys::exit_now(code)
}

/// Whether [`run_if_asked`] was called.
pub(super) fn was_called() -> bool {
    CALLED.load(Ordering::Relaxed)
}

const SOCKET: u64 = 0;
const CHILDREN: u64 = 1;
const WORKER: u64 = 2;
const ALARM: u64 = 3;
/// Shims are known to epoll by the number of their attempt and this.
const FIRST_SHIM: u64 = 16;
/// How soon to look again at processes that will not go.
const LOOK_AGAIN: Duration = Duration::from_millis(20);

fn run() -> io::Result<()> {
    // From here on only SIGKILL and SIGSTOP concern the guard: not the terminal, nor a service manager that signals
    // everything it finds. It ends when the worker does.
    sys::block_all_signals()?;
    setsid()?;
    // Should a shim be killed, what was below it comes to the guard.
    set_child_subreaper(Some(getpid()))?;
    rustix::thread::set_name(c"tasklane-guard")?;
    let socket = fcntl_dupfd_cloexec(rustix::stdio::stdin(), 3)?;
    let null = OwnedFd::from(std::fs::OpenOptions::new().read(true).write(true).open("/dev/null")?);
    rustix::stdio::dup2_stdin(&null)?;
    rustix::stdio::dup2_stdout(&null)?;
    sys::close_all_but(&[socket.as_fd(), null.as_fd()])?;

    let mut inbox = Inbox::default();
    let hello = loop {
        if let Some(hello) = inbox.next::<ToGuard>()? {
            break hello;
        }
        match inbox.fill(&socket) {
            // The worker was gone before it said a word.
            Ok(0) => return Ok(()),
            Ok(_) => {}
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => {
                poll(&mut [PollFd::new(&socket, PollFlags::IN)], None)?;
            }
            Err(e) => return Err(e),
        }
    };
    let ToGuard::Hello { settings, locked } = hello else {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "the worker did not say hello"));
    };
    let lock = if locked { Some(inbox.take_fd()?) } else { None };
    let dir = settings.dir.clone();
    let mut guard = GuardProcess::new(socket, inbox, lock, settings)?;
    guard.run()?;
    remove(&dir);
    // Not earlier: with it goes the lock, and whoever waits for that shall find nothing of this worker.
    drop(guard);
    Ok(())
}

/// What the worker would have removed itself.
fn remove(dir: &Path) {
    match super::remove_tree(dir) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => {
            let _ = writeln!(io::stderr(), "tasklane guard: cannot remove {}: {e}", dir.display());
        }
        _ => {}
    }
}

#[derive(Debug)]
struct GuardProcess {
    epoll: OwnedFd,
    /// To the worker; `None` once it is gone and everything is to end.
    socket: Option<OwnedFd>,
    /// Readable when the worker's process is dead; `None` from then on.
    worker: Option<OwnedFd>,
    inbox: Inbox,
    /// What the worker has not taken yet: at most two words for each attempt.
    outbox: VecDeque<Frame>,
    children: OwnedFd,
    alarm: Alarm,
    lock: Option<OwnedFd>,
    settings: Settings,
    deadline: SharedDeadline,
    files_max: Rlimit,
    /// Of attempts that have not ended.
    shims: BTreeMap<ChildId, Shim>,
    /// Those of them, and of others, that have not been reaped.
    shim_pids: HashSet<Pid>,
    /// Attempts whose shim was killed. They have ended when that has been reaped, because only then all its children
    /// are ours, and nothing is left that the guard inherited.
    bereft: Vec<(ChildId, Pid)>,
}

#[derive(Debug)]
struct Shim {
    socket: OwnedFd,
    pid: Pid,
}

impl GuardProcess {
    fn new(socket: OwnedFd, inbox: Inbox, lock: Option<OwnedFd>, settings: Settings) -> io::Result<Self> {
        let epoll = epoll::create(CreateFlags::CLOEXEC)?;
        let add =
            |fd: &dyn AsFd, data| epoll::add(&epoll, fd.as_fd(), EventData::new_u64(data), EventFlags::IN);
        let children = sys::child_signals()?;
        let alarm = Alarm::new()?;
        add(&socket, SOCKET)?;
        add(&children, CHILDREN)?;
        add(&alarm, ALARM)?;
        // The end of the socket says the same, unless somebody else holds the worker's side of it.
        let mut worker = None;
        if let Some(pid) = Pid::from_raw(settings.worker) {
            match pidfd_open(pid, PidfdFlags::empty()) {
                Ok(handle) => {
                    add(&handle, WORKER)?;
                    worker = Some(handle);
                }
                Err(Errno::NOSYS) => {}
                Err(errno) => return Err(errno.into()),
            }
            if getppid() != Some(pid) {
                return Err(io::Error::other("the worker is gone"));
            }
        }
        // One descriptor for each attempt, and four more while one is started. Commands get back the limit as it was.
        let files_max = getrlimit(Resource::Nofile);
        let _ = setrlimit(Resource::Nofile, Rlimit { current: files_max.maximum, ..files_max });
        let mut guard = Self {
            epoll,
            socket: Some(socket),
            worker,
            inbox,
            outbox: VecDeque::new(),
            children,
            alarm,
            lock,
            settings,
            deadline: SharedDeadline::new()?,
            files_max,
            shims: BTreeMap::new(),
            shim_pids: HashSet::new(),
            bereft: Vec::new(),
        };
        guard.tell(FromGuard::Ready);
        Ok(guard)
    }

    /// Until the worker is gone, and everything that it had started.
    fn run(&mut self) -> io::Result<()> {
        let mut events = Vec::with_capacity(64);
        loop {
            self.take_messages();
            let empty = self.reap()?;
            self.look_after_the_bereft();
            if self.socket.is_none() && empty {
                return Ok(());
            }
            self.flush();
            if self.socket.is_none() && empty {
                continue;
            }
            match epoll::wait(&self.epoll, spare_capacity(&mut events), None) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(errno) => return Err(errno.into()),
            }
            for event in events.drain(..) {
                match event.data.u64() {
                    // Messages are looked for in every round.
                    SOCKET => {}
                    CHILDREN => drain(&self.children),
                    ALARM => self.alarm.set(None)?,
                    WORKER => self.worker_is_gone(),
                    shim => self.take_reports(shim - FIRST_SHIM),
                }
            }
        }
    }

    fn take_messages(&mut self) {
        while let Some(socket) = &self.socket {
            let filled = self.inbox.fill(socket);
            loop {
                match self.inbox.next::<ToGuard>() {
                    Ok(Some(message)) => self.on_message(message),
                    Ok(None) => break,
                    Err(_) => return self.worker_is_gone(),
                }
            }
            match filled {
                Ok(0) => return self.worker_is_gone(),
                Ok(_) => {}
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => return,
                Err(_) => return self.worker_is_gone(),
            }
        }
    }

    fn on_message(&mut self, message: ToGuard) {
        match message {
            ToGuard::Hello { .. } => {}
            ToGuard::Spawn(spawn) => {
                let id = spawn.id;
                if let Err((step, errno)) = self.spawn(spawn) {
                    self.tell(FromGuard::NotStarted { id, step, errno: errno.raw_os_error() });
                }
            }
            ToGuard::Order { id, order } => self.order(id, order),
            ToGuard::Deadline(deadline) => {
                let nearer = match (self.deadline.get(), deadline) {
                    (None, new) => new.is_some(),
                    (Some(old), new) => new.is_some_and(|new| new < old),
                };
                self.deadline.set(deadline);
                // Shims see a later one when the earlier one has come.
                if nearer {
                    let ids: Vec<ChildId> = self.shims.keys().copied().collect();
                    for id in ids {
                        self.order(id, Order::Look);
                    }
                }
            }
        }
    }

    fn spawn(&mut self, spawn: Spawn) -> Result<(), (FailedStep, Errno)> {
        let no_fork = |errno: Errno| (FailedStep::Fork, errno);
        let mut next_fd = || self.inbox.take_fd().map_err(|_| no_fork(Errno::BADF));
        let (stdout, stderr, alive) = (next_fd()?, next_fd()?, next_fd()?);
        let stdin = if spawn.has_stdin { Some(next_fd()?) } else { None };
        // A worker that was stopped may wake up and ask for what it may no longer have.
        let margin = self.settings.kill_margin + self.settings.lease_grace;
        if self.deadline.get().is_some_and(|at| boottime() + margin >= at) {
            return Err((FailedStep::Lease, Errno::TIMEDOUT));
        }
        let (ours, control) =
            socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)
                .map_err(no_fork)?;
        let id = spawn.id;
        let data = EventData::new_u64(FIRST_SHIM + id);
        epoll::add(&self.epoll, &ours, data, EventFlags::IN).map_err(no_fork)?;
        match sys::fork() {
            Ok(Forked::Child) => shim::run(shim::Parts {
                spawn,
                stdin,
                stdout,
                stderr,
                alive,
                control,
                lock: self.lock.take(),
                settings: self.settings.clone(),
                deadline: self.deadline,
                files_max: self.files_max,
            }),
            Ok(Forked::Parent(pid)) => {
                self.shim_pids.insert(pid);
                self.shims.insert(id, Shim { socket: ours, pid });
                Ok(())
            }
            Err(e) => {
                let _ = epoll::delete(&self.epoll, &ours);
                Err(no_fork(e.raw_os_error().map_or(Errno::AGAIN, Errno::from_raw_os_error)))
            }
        }
    }

    fn order(&mut self, id: ChildId, order: Order) {
        // Unknown if it has ended, which the worker is about to hear.
        if let Some(shim) = self.shims.get(&id) {
            let _ = send(&shim.socket, &encode(&order), SendFlags::NOSIGNAL | SendFlags::DONTWAIT);
        }
    }

    fn take_reports(&mut self, id: ChildId) {
        while let Some(shim) = self.shims.get(&id) {
            let mut word = [0; WORD_BYTES_MAX];
            match recv(&shim.socket, &mut word, RecvFlags::DONTWAIT) {
                Err(Errno::AGAIN) => return,
                // Reset: it ended with an order unread, as when it is stopped in its last moment. That is said first
                // and once; its last words come after it.
                Err(Errno::INTR | Errno::CONNRESET) => {}
                Ok((len, _)) if len > 0 => match super::wire::decode::<FromGuard>(&word[..len]) {
                    Ok(report @ (FromGuard::Ended { .. } | FromGuard::NotStarted { .. })) => {
                        self.forget(id);
                        self.tell(report);
                    }
                    Ok(report) => self.tell(report),
                    Err(_) => {}
                },
                // It died without a last word: somebody killed it, and what it watched is ours now.
                Ok(_) | Err(_) => {
                    self.bereft.push((id, shim.pid));
                    self.forget(id);
                }
            }
        }
    }

    fn forget(&mut self, id: ChildId) {
        if let Some(shim) = self.shims.remove(&id) {
            // By hand: a fork that has not closed its copy yet would keep it registered.
            let _ = epoll::delete(&self.epoll, &shim.socket);
        }
    }

    /// Takes leave of children that have ended. True if there are no others.
    fn reap(&mut self) -> io::Result<bool> {
        loop {
            match wait(WaitOptions::NOHANG) {
                Ok(Some((pid, _))) => {
                    self.shim_pids.remove(&pid);
                }
                Ok(None) => return Ok(false),
                Err(Errno::INTR) => {}
                Err(Errno::CHILD) => return Ok(true),
                Err(errno) => return Err(errno.into()),
            }
        }
    }

    /// Ends what killed shims have left to us, and reports their attempts when nothing of it remains.
    fn look_after_the_bereft(&mut self) {
        if self.bereft.is_empty() && self.socket.is_some() {
            return;
        }
        let inherited: Vec<Process> =
            tree::own_children().into_iter().filter(|p| !self.shim_pids.contains(&p.pid)).collect();
        if inherited.is_empty() {
            let ended = Ended { how: HowEnded::Unknown, leftovers: 0, oom_killed: None };
            let (dying, over) = std::mem::take(&mut self.bereft)
                .into_iter()
                .partition(|(_, shim)| self.shim_pids.contains(shim));
            self.bereft = dying;
            let over: Vec<(ChildId, Pid)> = over;
            for (id, _) in over {
                self.tell(FromGuard::Ended { id, ended });
            }
        } else {
            tree::kill(inherited);
            let _ = self.alarm.set(Some(boottime() + LOOK_AGAIN));
        }
    }

    fn worker_is_gone(&mut self) {
        if let Some(socket) = self.socket.take() {
            let _ = epoll::delete(&self.epoll, &socket);
        }
        if let Some(worker) = self.worker.take() {
            let _ = epoll::delete(&self.epoll, &worker);
        }
        // A shim whose guard hangs up ends everything below it. The same happens when the guard is killed, so that
        // path is no rare one.
        let ids: Vec<ChildId> = self.shims.keys().copied().collect();
        for id in ids {
            self.forget(id);
        }
    }

    fn tell(&mut self, word: FromGuard) {
        if self.socket.is_some() {
            self.outbox.push_back(Frame::new(&word, Vec::new()));
        }
    }

    fn flush(&mut self) {
        let Some(socket) = &self.socket else { return };
        while let Some(frame) = self.outbox.front_mut() {
            match frame.send(socket) {
                Ok(true) => drop(self.outbox.pop_front()),
                Ok(false) => break,
                Err(_) => return self.worker_is_gone(),
            }
        }
        let wanted = if self.outbox.is_empty() { EventFlags::IN } else { EventFlags::IN | EventFlags::OUT };
        let _ = epoll::modify(&self.epoll, socket, EventData::new_u64(SOCKET), wanted);
    }
}
