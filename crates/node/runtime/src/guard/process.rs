//! The guard process: carries orders to shims and their reports back, and ends everything when the worker is gone.

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::io::{self, Read as _, Write as _};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rustix::buffer::spare_capacity;
use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::{Errno, fcntl_dupfd_cloexec};
use rustix::net::{AddressFamily, RecvFlags, SocketFlags, SocketType, recv, socketpair};
use rustix::process::{
    Pid, PidfdFlags, Resource, Rlimit, Signal, WaitOptions, getpid, getppid, getrlimit, kill_process,
    pidfd_open, set_child_subreaper, setrlimit, setsid, wait,
};

use super::child::{CommandEnd, ProcessTreeEnd};
use super::clock::{Alarm, boottime};
use super::shim::{self, SPAWN_BYTES_MAX, WORD_BYTES_MAX, drain};
use super::sys::{self, Forked, SharedDeadline};
use super::tree::{self, Process};
use super::wire::{
    ChildId, ControlRequest, FailedStep, Frame, FromGuard, Inbox, Settings, Spawn, SpawnFds, ToGuard, ToShim,
    decode, encode, send_packet,
};

/// Set for a program that is started as a guard. Its socket is then its standard input.
pub(super) const ASKED_BY: &str = "TASKLANE_BECOME_GUARD";

/// Set for a program that is started for a session cleanup. The cleanup data is its standard input.
const SESSION_CLEANUP: &str = "TASKLANE_SESSION_CLEANUP";

/// How long a worker whose socket is closed may take to die.
const DEAD_WITHIN: Timespec = Timespec { tv_sec: 5, tv_nsec: 0 };

/// Whether this program could be started again as a guard.
static CALLED: AtomicBool = AtomicBool::new(false);

/// Becomes the guard, and never returns, if this process was started to be one. Else returns immediately.
///
/// Call it first in `main`, before any thread is started, in every program that starts a
/// [`Guard`](super::Guard): the guard is the same program, started again.
pub fn run_if_asked() {
    CALLED.store(true, Ordering::Relaxed);
    if std::env::var_os(ASKED_BY).is_none() {
        return;
    }
    let code = match run() {
        Ok(()) => 0,
        Err(e) => {
            // The worker's standard error is the only place left for this error.
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
/// epoll knows shims by their own number plus this.
const FIRST_SHIM: u64 = 16;
/// The shortest and the longest wait before the guard looks again at processes that do not end.
const LOOK_AGAIN_MIN: Duration = Duration::from_millis(20);
const LOOK_AGAIN_MAX: Duration = Duration::from_secs(1);
/// How long a shim waits for its next attempt. So the shims never outnumber the attempts that ran together
/// within this time.
const IDLE_MAX: Duration = Duration::from_secs(10);
/// How long a shim may take to end everything, once it must. A slower shim is stopped, or its commands hinder
/// it; the guard then does its work.
const OVERDUE_AFTER: Duration = Duration::from_secs(5);

fn run() -> io::Result<()> {
    // From here on only SIGKILL and SIGSTOP concern the guard: not the terminal, nor a service manager that
    // signals every process it finds. The guard ends when the worker does.
    sys::block_all_signals()?;
    sys::default_all_signals();
    setsid()?;
    // If a shim is killed, its descendants become children of the guard.
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
            // The worker ended before its first message.
            Ok(0) => return Ok(()),
            Ok(_) => {}
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => {
                poll(&mut [PollFd::new(&socket, PollFlags::IN)], None)?;
            }
            Err(e) => return Err(e),
        }
    };
    let ToGuard::Hello { settings, locks } = hello else {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "the worker sent no hello"));
    };
    let held: Vec<OwnedFd> = inbox.take_fds().into();
    if held.len() != locks {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "a lock is missing"));
    }
    let dir = settings.dir.clone();
    let mut guard = GuardProcess::new(socket, inbox, held, settings)?;
    guard.run()?;
    remove(&dir);
    let session_cleanup = guard.session_cleanup();
    // Not earlier: the lock is released with the guard, and a process that waits for the lock must find
    // nothing of this worker.
    drop(guard);
    match session_cleanup {
        Some(session_cleanup) => Err(run_session_cleanup(&session_cleanup)),
        None => Ok(()),
    }
}

/// Becomes the program once more, for the session cleanup. Returns only on an error.
fn run_session_cleanup(session_cleanup: &[u8]) -> io::Error {
    let stdin = match super::handle::in_memory(session_cleanup) {
        Ok(stdin) => stdin,
        Err(e) => return e,
    };
    Command::new("/proc/self/exe")
        .arg0("tasklane-session-cleanup")
        .env_remove(ASKED_BY)
        .env(SESSION_CLEANUP, "1")
        .stdin(stdin)
        .exec()
}

/// The session cleanup of a killed program, if this process was started to do it.
///
/// Call it first in `main`, after [`run_if_asked`].
pub fn session_cleanup_if_asked() -> Option<Vec<u8>> {
    std::env::var_os(SESSION_CLEANUP)?;
    let mut session_cleanup = Vec::new();
    io::stdin().read_to_end(&mut session_cleanup).ok()?;
    Some(session_cleanup)
}

/// Removes the folder that the worker would have removed itself.
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
    /// To the worker; `None` once it has ended and everything must end.
    socket: Option<OwnedFd>,
    /// Readable when the worker's process is dead.
    worker: Option<OwnedFd>,
    /// The session cleanup to run then.
    session_cleanup: Vec<u8>,
    inbox: Inbox,
    /// Frames that the worker has not received yet: at most two for each attempt.
    outbox: VecDeque<Frame>,
    children: OwnedFd,
    alarm: Alarm,
    locks: Vec<OwnedFd>,
    settings: Settings,
    deadline: SharedDeadline,
    files_max: Rlimit,
    /// Shims that run an attempt or wait for one.
    shims: HashMap<ShimId, Shim>,
    next_shim: ShimId,
    /// Which shim runs an attempt that has not ended.
    attempts: BTreeMap<ChildId, ShimId>,
    /// Shims without an attempt, and since when. The guard uses the last one first, so that the others grow
    /// old.
    idle: VecDeque<(ShimId, Duration)>,
    /// When stopped attempts must have ended.
    overdue_at: BTreeMap<ChildId, Duration>,
    /// When all attempts must have ended.
    all_overdue_at: Option<Duration>,
    /// Shims that have not been reaped, including shims that are no longer in `shims`.
    shim_pids: HashSet<Pid>,
    /// Attempts whose shim was killed. They have ended when the shim has been reaped, because only then all
    /// its children are the guard's, and no process that the guard inherited is left.
    bereft: Vec<(ChildId, Pid)>,
    look_again: Duration,
    /// The worker's socket was full.
    is_held_up: bool,
}

/// Numbers the shims of a guard.
type ShimId = u64;

#[derive(Debug)]
struct Shim {
    socket: OwnedFd,
    pid: Pid,
    /// The attempt that it runs. The guard gives it a new attempt only when it has reported the end of the
    /// one before.
    attempt: Option<ChildId>,
}

impl GuardProcess {
    fn new(socket: OwnedFd, inbox: Inbox, locks: Vec<OwnedFd>, settings: Settings) -> io::Result<Self> {
        let epoll = epoll::create(CreateFlags::CLOEXEC)?;
        let add =
            |fd: &dyn AsFd, data| epoll::add(&epoll, fd.as_fd(), EventData::new_u64(data), EventFlags::IN);
        let children = sys::child_signals()?;
        let alarm = Alarm::new()?;
        add(&socket, SOCKET)?;
        add(&children, CHILDREN)?;
        add(&alarm, ALARM)?;
        // The end of the socket shows the same, unless another process holds the worker's side of it.
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
        // One descriptor for each attempt, and four more while one is started. Commands get back the limit as
        // it was.
        let own = getrlimit(Resource::Nofile);
        let files_max = Rlimit { current: settings.open_files.or(own.current), ..own };
        let _ = setrlimit(Resource::Nofile, Rlimit { current: own.maximum, ..own });
        let mut guard = Self {
            epoll,
            socket: Some(socket),
            worker,
            session_cleanup: Vec::new(),
            inbox,
            outbox: VecDeque::new(),
            children,
            alarm,
            locks,
            settings,
            deadline: SharedDeadline::new()?,
            files_max,
            shims: HashMap::new(),
            next_shim: 0,
            attempts: BTreeMap::new(),
            idle: VecDeque::new(),
            overdue_at: BTreeMap::new(),
            all_overdue_at: None,
            shim_pids: HashSet::new(),
            bereft: Vec::new(),
            look_again: LOOK_AGAIN_MIN,
            is_held_up: false,
        };
        guard.tell(FromGuard::Ready);
        Ok(guard)
    }

    /// Runs until the worker and everything that it had started have ended.
    fn run(&mut self) -> io::Result<()> {
        let mut events = Vec::with_capacity(64);
        loop {
            // While the guard waits for processes to end; else a signal wakes it.
            if self.socket.is_none() || !self.bereft.is_empty() {
                let empty = self.reap()?;
                self.look_after_the_bereft();
                if self.socket.is_none() && empty {
                    return Ok(());
                }
            }
            let had_worker = self.socket.is_some();
            self.flush();
            if had_worker && self.socket.is_none() {
                // A write found the worker gone. If no process is left to end, nothing would wake the guard.
                continue;
            }
            self.alarm.set(self.wake_at())?;
            match epoll::wait(&self.epoll, spare_capacity(&mut events), None) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(errno) => return Err(errno.into()),
            }
            for event in events.drain(..) {
                match event.data.u64() {
                    SOCKET => self.take_messages(),
                    CHILDREN => {
                        drain(&self.children);
                        self.reap()?;
                    }
                    ALARM => {
                        self.alarm.rearm();
                        self.end_the_overdue(boottime());
                    }
                    WORKER => self.worker_is_gone(),
                    shim => self.take_report(shim - FIRST_SHIM),
                }
            }
        }
    }

    /// The session cleanup to run now that everything has ended: only if the worker is certainly dead, and
    /// not if it has merely closed its guard.
    fn session_cleanup(&mut self) -> Option<Vec<u8>> {
        let worker = self.worker.as_ref().filter(|_| !self.session_cleanup.is_empty())?;
        let dead = poll(&mut [PollFd::new(worker, PollFlags::IN)], Some(&DEAD_WITHIN)).ok()?;
        (dead > 0).then(|| std::mem::take(&mut self.session_cleanup))
    }

    /// When to look at the clock at the latest.
    fn wake_at(&self) -> Option<Duration> {
        let oldest = self.idle.front().map(|(_, since)| *since + IDLE_MAX);
        let all = self.all_overdue_at.filter(|_| !self.attempts.is_empty());
        oldest.into_iter().chain(all).chain(self.overdue_at.values().copied()).min()
    }

    fn take_messages(&mut self) {
        let Some(socket) = &self.socket else { return };
        let filled = self.inbox.fill(socket);
        loop {
            match self.inbox.next::<ToGuard>() {
                Ok(Some(message)) => self.on_message(message),
                Ok(None) => break,
                Err(_) => return self.worker_is_gone(),
            }
        }
        match filled {
            Ok(1..) => {}
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => {}
            Ok(0) | Err(_) => self.worker_is_gone(),
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
            ToGuard::Order { id, order } => {
                self.order(id, order);
                let grace = match order {
                    ControlRequest::Kill => Duration::ZERO,
                    ControlRequest::Terminate { grace: Some(grace) } => grace,
                    ControlRequest::Terminate { grace: None } | ControlRequest::Look => return,
                };
                if self.attempts.contains_key(&id) {
                    let at = boottime().saturating_add(grace).saturating_add(OVERDUE_AFTER);
                    let known = self.overdue_at.entry(id).or_insert(at);
                    *known = at.min(*known);
                }
            }
            ToGuard::SessionCleanup(session_cleanup) => self.session_cleanup = session_cleanup,
            ToGuard::Deadline(deadline) => {
                let nearer = match (self.deadline.get(), deadline) {
                    (None, new) => new.is_some(),
                    (Some(old), new) => new.is_some_and(|new| new < old),
                };
                self.deadline.set(deadline);
                self.all_overdue_at = deadline.map(|at| at.max(boottime() + OVERDUE_AFTER));
                // Shims see a later deadline when the earlier one has come.
                if nearer {
                    let ids: Vec<ChildId> = self.attempts.keys().copied().collect();
                    for id in ids {
                        self.order(id, ControlRequest::Look);
                    }
                }
            }
        }
    }

    fn spawn(&mut self, spawn: Spawn) -> Result<(), (FailedStep, Errno)> {
        let no_fork = |errno: Errno| (FailedStep::Fork, errno);
        let mut fds = self.inbox.take_fds();
        let next = || fds.pop_front().ok_or_else(|| Errno::MFILE.into());
        let fds = SpawnFds::take(&spawn, next).map_err(|_| no_fork(Errno::MFILE))?;
        // A worker that was stopped may wake up and ask for an attempt after its trust window.
        let margin = self.settings.kill_margin + self.settings.lease_grace;
        if self.deadline.get().is_some_and(|at| boottime() + margin >= at) {
            return Err((FailedStep::Lease, Errno::TIMEDOUT));
        }
        match self.give_to_idle(spawn, &fds) {
            Some(spawn) => self.fork_shim(spawn, fds).map_err(no_fork),
            None => Ok(()),
        }
    }

    /// Gives an attempt to an idle shim. Returns it if no idle shim can take it.
    fn give_to_idle(&mut self, spawn: Spawn, fds: &SpawnFds) -> Option<Spawn> {
        if self.idle.is_empty() {
            return Some(spawn);
        }
        let id = spawn.id;
        let message = ToShim::Spawn(spawn);
        let bytes = encode(&message);
        let fds: Vec<BorrowedFd<'_>> = fds.all().collect();
        while bytes.len() <= SPAWN_BYTES_MAX
            && let Some((number, _)) = self.idle.pop_back()
        {
            let Some(shim) = self.shims.get_mut(&number) else { continue };
            match send_packet(&shim.socket, &bytes, &fds) {
                Ok(()) => {
                    shim.attempt = Some(id);
                    self.attempts.insert(id, number);
                    return None;
                }
                // The shim was killed while it waited, and has received nothing.
                Err(_) => self.forget(number),
            }
        }
        match message {
            ToShim::Spawn(spawn) => Some(spawn),
            ToShim::Order { .. } => unreachable!("it was made above"),
        }
    }

    fn fork_shim(&mut self, spawn: Spawn, fds: SpawnFds) -> Result<(), Errno> {
        let (ours, control) =
            socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
        let (id, number) = (spawn.id, self.next_shim);
        let data = EventData::new_u64(FIRST_SHIM + number);
        epoll::add(&self.epoll, &ours, data, EventFlags::IN)?;
        match sys::fork() {
            Ok(Forked::Child) => shim::run(shim::Parts {
                spawn,
                fds,
                control,
                locks: std::mem::take(&mut self.locks),
                settings: self.settings.clone(),
                deadline: self.deadline,
                files_max: self.files_max,
            }),
            Ok(Forked::Parent(pid)) => {
                self.next_shim += 1;
                self.shim_pids.insert(pid);
                self.shims.insert(number, Shim { socket: ours, pid, attempt: Some(id) });
                self.attempts.insert(id, number);
                Ok(())
            }
            Err(e) => {
                let _ = epoll::delete(&self.epoll, &ours);
                Err(e.raw_os_error().map_or(Errno::AGAIN, Errno::from_raw_os_error))
            }
        }
    }

    fn order(&mut self, id: ChildId, order: ControlRequest) {
        // The attempt is unknown if it has ended; the report of that is under way to the worker.
        if let Some(shim) = self.attempts.get(&id).and_then(|number| self.shims.get(number)) {
            // A stopped shim may have no room for more; it is overdue then.
            let _ = send_packet(&shim.socket, &encode(&ToShim::Order { id, order }), &[]);
        }
    }

    /// One report at a time: epoll reports the socket again if there are more.
    fn take_report(&mut self, number: ShimId) {
        let Some(shim) = self.shims.get_mut(&number) else { return };
        let mut word = [0; WORD_BYTES_MAX];
        match recv(&shim.socket, &mut word, RecvFlags::DONTWAIT) {
            // Reset: the shim ended with an order unread, as when it is killed. The reset comes first and
            // once; its last reports come after it.
            Err(Errno::AGAIN | Errno::INTR | Errno::CONNRESET) => {}
            Ok((len, _)) if len > 0 => match decode::<FromGuard>(&word[..len]) {
                Ok(report @ (FromGuard::Ended { id, .. } | FromGuard::NotStarted { id, .. }))
                    if shim.attempt == Some(id) =>
                {
                    shim.attempt = None;
                    self.attempts.remove(&id);
                    self.overdue_at.remove(&id);
                    self.idle.push_back((number, boottime()));
                    self.tell(report);
                }
                Ok(report @ FromGuard::Started { .. }) => self.tell(report),
                Ok(_) | Err(_) => {}
            },
            Ok(_) | Err(_) => self.forget(number),
        }
    }

    /// Forgets a shim. If it died without a last report, its processes are the guard's now.
    fn forget(&mut self, number: ShimId) {
        let Some(shim) = self.shims.remove(&number) else { return };
        // By hand: a fork that has not closed its copy yet would keep it registered.
        let _ = epoll::delete(&self.epoll, &shim.socket);
        match shim.attempt {
            Some(id) => {
                self.attempts.remove(&id);
                self.overdue_at.remove(&id);
                self.bereft.push((id, shim.pid));
                self.look_again = LOOK_AGAIN_MIN;
            }
            None => self.idle.retain(|(idle, _)| *idle != number),
        }
    }

    /// Ends shims that have waited long, and kills shims that should have ended their attempts by now.
    fn end_the_overdue(&mut self, now: Duration) {
        while let Some(&(number, since)) = self.idle.front()
            && since + IDLE_MAX <= now
        {
            self.forget(number);
        }
        if self.all_overdue_at.is_some_and(|at| at <= now) {
            self.all_overdue_at = None;
            self.overdue_at.extend(self.attempts.keys().map(|&id| (id, now)));
        }
        let late: Vec<ChildId> =
            self.overdue_at.iter().filter(|(_, at)| **at <= now).map(|(id, _)| *id).collect();
        for id in late {
            self.overdue_at.remove(&id);
            if let Some(shim) = self.attempts.get(&id).and_then(|number| self.shims.get(number)) {
                // Its socket shows when it has ended.
                let _ = kill_process(shim.pid, Signal::KILL);
            }
        }
    }

    /// Reaps children that have ended. True if there are no others.
    fn reap(&mut self) -> io::Result<bool> {
        loop {
            match wait(WaitOptions::NOHANG | WaitOptions::UNTRACED) {
                Ok(Some((pid, status))) if status.stopped() => {
                    // By its attempt, or by a stranger: no other process has a reason to.
                    if self.shim_pids.contains(&pid) {
                        let _ = kill_process(pid, Signal::CONT);
                    }
                }
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

    /// Ends the processes that killed shims have left to the guard, and reports their attempts when none
    /// remains.
    fn look_after_the_bereft(&mut self) {
        if self.bereft.is_empty() && self.socket.is_some() {
            return;
        }
        let inherited: Vec<Process> =
            tree::own_children().into_iter().filter(|p| !self.shim_pids.contains(&p.pid)).collect();
        if inherited.is_empty() {
            let ended = ProcessTreeEnd { how: CommandEnd::Unknown, leftovers: 0, oom_killed: None };
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
            let _ = self.alarm.set(Some(boottime() + self.look_again));
            self.look_again = (self.look_again * 2).min(LOOK_AGAIN_MAX);
        }
    }

    fn worker_is_gone(&mut self) {
        if let Some(socket) = self.socket.take() {
            let _ = epoll::delete(&self.epoll, &socket);
        }
        if let Some(worker) = &self.worker {
            let _ = epoll::delete(&self.epoll, worker);
        }
        // A shim ends everything below it when the guard closes its socket. The same happens when the guard
        // is killed, so that path is not rare.
        let numbers: Vec<ShimId> = self.shims.keys().copied().collect();
        for number in numbers {
            self.forget(number);
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
        let is_held_up = !self.outbox.is_empty();
        if is_held_up != self.is_held_up {
            self.is_held_up = is_held_up;
            let wanted = if is_held_up { EventFlags::IN | EventFlags::OUT } else { EventFlags::IN };
            let _ = epoll::modify(&self.epoll, socket, EventData::new_u64(SOCKET), wanted);
        }
    }
}
