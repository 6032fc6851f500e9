//! The worker's side of the socket to the guard.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::OwnedFd;
use std::process;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rustix::net::{Shutdown, shutdown};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::net::unix::pipe;
use tokio::sync::{mpsc, oneshot, watch};

use super::child::ProcessTreeEnd;
use super::sys;
use super::wire::{ChildId, ControlRequest, FailedStep, Frame, FromGuard, HeldFile, Inbox, Spawn, ToGuard};

/// A connection to one guard process, while it lasts.
#[derive(Debug)]
pub(super) struct GuardConnection {
    pid: Pid,
    /// Few messages for each attempt and one for each renewal: bounded by the attempts of the worker.
    outgoing: mpsc::UnboundedSender<Outgoing>,
    waiting: Arc<Mutex<PendingAttempts>>,
    ready: watch::Receiver<GuardState>,
    /// Closed when guard and shims have ended; `None` where a lock shows that.
    remains: Option<pipe::Receiver>,
    /// True when no process of an earlier guard is left.
    sole: watch::Sender<bool>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum GuardState {
    Starting,
    Ready,
    /// The connection is closed, and the guard may be cleaning up.
    Closed,
    /// The process has ended.
    Gone,
}

#[derive(Debug)]
enum Outgoing {
    Frame(Frame),
    HangUp,
}

/// The callers that wait for a message about an attempt.
#[derive(Debug, Default)]
struct PendingAttempts {
    next_id: ChildId,
    attempts: BTreeMap<ChildId, PendingAttempt>,
    closed: bool,
}

#[derive(Debug)]
struct PendingAttempt {
    started: Option<oneshot::Sender<StartAnswer>>,
    ended: oneshot::Sender<ProcessTreeEnd>,
}

/// The process number, or what went wrong.
pub(super) type StartAnswer = Result<i32, (FailedStep, io::Error)>;

/// The number from [`GuardConnection::register`], and the channel of its answers.
#[derive(Debug)]
pub(super) struct Registered {
    pub(super) id: ChildId,
    pub(super) started: oneshot::Receiver<StartAnswer>,
    pub(super) ended: oneshot::Receiver<ProcessTreeEnd>,
}

impl GuardConnection {
    /// Takes over the socket to a guard that was just started.
    pub(super) fn new(
        socket: OwnedFd,
        guard: process::Child,
        remains: Option<pipe::Receiver>,
    ) -> io::Result<Self> {
        let pid = Pid::from_child(&guard);
        let socket = Arc::new(sys::watched(socket, Interest::READABLE | Interest::WRITABLE)?);
        let (outgoing, queue) = mpsc::unbounded_channel();
        let waiting = Arc::new(Mutex::new(PendingAttempts::default()));
        let (state, ready) = watch::channel(GuardState::Starting);
        tokio::spawn(write(Arc::clone(&socket), queue));
        tokio::spawn(read(socket, Arc::clone(&waiting), state, guard));
        Ok(Self { pid, outgoing, waiting, ready, remains, sole: watch::Sender::new(false) })
    }

    pub(super) fn pid(&self) -> Pid {
        self.pid
    }

    /// Waits for the first message of the guard. False if it ended instead.
    pub(super) async fn ready(&self) -> bool {
        let mut ready = self.ready.clone();
        ready
            .wait_for(|state| *state >= GuardState::Ready)
            .await
            .is_ok_and(|state| *state == GuardState::Ready)
    }

    /// Whether the guard receives nothing any more.
    pub(super) fn is_closed(&self) -> bool {
        *self.ready.borrow() >= GuardState::Closed
    }

    /// Waits until the connection is closed.
    pub(super) async fn closed(&self) {
        let _ = self.ready.clone().wait_for(|state| *state >= GuardState::Closed).await;
    }

    /// Whether no process of an earlier guard is left.
    pub(super) fn is_sole(&self) -> bool {
        *self.sole.borrow()
    }

    /// Notes that no process of an earlier guard is left.
    pub(super) fn is_sole_now(&self) {
        self.sole.send_replace(true);
    }

    /// Waits until no process of an earlier guard is left.
    pub(super) async fn sole(&self) {
        let _ = self.sole.subscribe().wait_for(|sole| *sole).await;
    }

    /// Waits until the guard and everything that it had started have ended.
    pub(super) async fn nothing_left(&self) {
        let _ = self.ready.clone().wait_for(|state| *state >= GuardState::Gone).await;
        if let Some(remains) = &self.remains {
            // The pipe carries no data.
            let _ = remains.readable().await;
        }
    }

    /// Closes the connection, and waits until the guard has ended everything and itself.
    pub(super) async fn close(&self) {
        let _ = self.outgoing.send(Outgoing::HangUp);
        let _ = self.ready.clone().wait_for(|state| *state >= GuardState::Gone).await;
    }

    /// A number for a new attempt. `None` if the guard has ended.
    pub(super) fn register(&self) -> Option<Registered> {
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        if waiting.closed {
            return None;
        }
        let id = waiting.next_id;
        waiting.next_id += 1;
        let (tell_started, started) = oneshot::channel();
        let (tell_ended, ended) = oneshot::channel();
        waiting.attempts.insert(id, PendingAttempt { started: Some(tell_started), ended: tell_ended });
        Some(Registered { id, started, ended })
    }

    pub(super) fn spawn(&self, spawn: Spawn, fds: Vec<OwnedFd>) {
        let fds = fds.into_iter().map(|fd| -> HeldFile { Arc::new(fd) });
        self.send(&ToGuard::Spawn(spawn), fds.collect());
    }

    pub(super) fn order(&self, id: ChildId, order: ControlRequest) {
        self.send(&ToGuard::Order { id, order }, Vec::new());
    }

    pub(super) fn deadline(&self, boottime: Option<Duration>) {
        self.send(&ToGuard::Deadline(boottime), Vec::new());
    }

    pub(super) fn session_cleanup(&self, session_cleanup: Vec<u8>) {
        self.send(&ToGuard::SessionCleanup(session_cleanup), Vec::new());
    }

    pub(super) fn send(&self, message: &ToGuard, fds: Vec<HeldFile>) {
        // After the end of the guard the frame is lost, and then everything has ended anyway.
        let _ = self.outgoing.send(Outgoing::Frame(Frame::new(message, fds)));
    }
}

async fn write(socket: Arc<AsyncFd<OwnedFd>>, mut queue: mpsc::UnboundedReceiver<Outgoing>) {
    while let Some(Outgoing::Frame(mut frame)) = queue.recv().await {
        let sent = socket.async_io(Interest::WRITABLE, |fd| {
            if frame.send(fd)? { Ok(()) } else { Err(io::ErrorKind::WouldBlock.into()) }
        });
        if sent.await.is_err() {
            break;
        }
    }
    // The owner asked for it, or all senders are gone. The guard ends, and the reader notices its end.
    let _ = shutdown(socket.get_ref(), Shutdown::Write);
}

async fn read(
    socket: Arc<AsyncFd<OwnedFd>>,
    waiting: Arc<Mutex<PendingAttempts>>,
    state: watch::Sender<GuardState>,
    guard: process::Child,
) {
    let mut inbox = Inbox::default();
    while let Ok(1..) = socket.async_io(Interest::READABLE, |fd| inbox.fill(fd)).await {
        while let Ok(Some(word)) = inbox.next() {
            if matches!(word, FromGuard::Ready) {
                state.send_replace(GuardState::Ready);
            } else {
                on_word(&mut waiting.lock().unwrap_or_else(PoisonError::into_inner), word);
            }
        }
    }
    {
        let mut waiting = waiting.lock().unwrap_or_else(PoisonError::into_inner);
        waiting.closed = true;
        // The closed channels show the waiting callers that there will be no answer.
        waiting.attempts.clear();
    }
    state.send_replace(GuardState::Closed);
    drop(socket);
    reap(guard).await;
    state.send_replace(GuardState::Gone);
}

fn on_word(waiting: &mut PendingAttempts, word: FromGuard) {
    match word {
        FromGuard::Ready => {}
        FromGuard::Started { id, pid } => {
            if let Some(started) = waiting.attempts.get_mut(&id).and_then(|waiter| waiter.started.take()) {
                let _ = started.send(Ok(pid));
            }
        }
        FromGuard::NotStarted { id, step, errno } => {
            if let Some(PendingAttempt { started: Some(started), .. }) = waiting.attempts.remove(&id) {
                let _ = started.send(Err((step, io::Error::from_raw_os_error(errno))));
            }
        }
        FromGuard::Ended { id, ended } => {
            if let Some(waiter) = waiting.attempts.remove(&id) {
                let _ = waiter.ended.send(ended);
            }
        }
    }
}

/// Waits for the end of the guard process, which lasts until its last tree has ended.
async fn reap(mut guard: process::Child) {
    let handle = pidfd_open(Pid::from_child(&guard), PidfdFlags::empty());
    if let Ok(handle) = handle
        && let Ok(handle) = sys::watched(handle, Interest::READABLE)
    {
        let _ = handle.readable().await;
    }
    // The handle above makes this immediate; a kernel without such handles needs polling.
    while let Ok(None) = guard.try_wait() {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}
