//! The messages between worker, guard and shims, and their transport: frames over a stream socket, with
//! descriptors beside them. All of them run the same program, so nothing here has versions.

use std::collections::VecDeque;
use std::fmt::Debug;
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::child::ProcessTreeEnd;

/// The longest frame: the largest payload, and room for an environment.
const FRAME_BYTES_MAX: usize = 8 << 20;
/// Descriptors that travel with one frame, at most.
const FDS_MAX: usize = 4;

/// An open file that parts of this process share: closed when the last of them drops it.
pub type HeldFile = Arc<dyn OpenFile>;

/// A file that can be passed to another process.
pub trait OpenFile: AsFd + Debug + Send + Sync {}

impl<T: AsFd + Debug + Send + Sync> OpenFile for T {}

/// Numbers the attempts of one guard.
pub(super) type ChildId = u64;

/// From the worker to the guard.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum ToGuard {
    /// The first message. With this many locked files as descriptors.
    Hello { settings: Settings, locks: usize },
    /// Start this. With stdout, stderr and the sign of life as descriptors, and stdin if it has one.
    Spawn(Spawn),
    /// An order for one attempt.
    Order { id: ChildId, order: ControlRequest },
    /// The worker's trust window ends at this time of the boot-time clock.
    Deadline(Option<Duration>),
    /// The input of the program when it is started once more for the session cleanup, after the worker has
    /// died and everything of it has ended. An empty value starts nothing.
    SessionCleanup(Vec<u8>),
}

/// The settings of a guard at its start.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Settings {
    /// The process whose death ends everything.
    pub(super) worker: i32,
    /// A folder to remove at the end.
    pub(super) dir: PathBuf,
    pub(super) leftover_grace: Duration,
    pub(super) lease_grace: Duration,
    pub(super) kill_margin: Duration,
    /// Number of files that a command may open, if it differs from the guard's.
    pub(super) open_files: Option<u64>,
}

/// A command to start.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Spawn {
    pub(super) id: ChildId,
    pub(super) argv: Vec<String>,
    pub(super) env: Vec<(String, String)>,
    pub(super) cwd: Option<PathBuf>,
    pub(super) has_stdin: bool,
}

/// From the guard to a shim.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum ToShim {
    /// Start this, as the next attempt. With the same descriptors as [`ToGuard::Spawn`].
    Spawn(Spawn),
    /// An order for this attempt. It may have ended, and another one may have begun.
    Order { id: ChildId, order: ControlRequest },
}

/// The orders for an attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum ControlRequest {
    /// SIGTERM to all of it; SIGKILL after this time, if one is given.
    Terminate { grace: Option<Duration> },
    /// SIGKILL to all of it until nothing is left.
    Kill,
    /// The deadline has come nearer: look at it.
    Look,
}

/// From the guard to the worker; messages about an attempt come from its shim through the guard.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(super) enum FromGuard {
    /// The guard is at work.
    Ready,
    /// The command runs.
    Started { id: ChildId, pid: i32 },
    /// The command did not start.
    NotStarted { id: ChildId, step: FailedStep, errno: i32 },
    /// Nothing of the attempt is left.
    Ended { id: ChildId, ended: ProcessTreeEnd },
}

/// The step of a start that failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum FailedStep {
    /// No process or descriptor was left for it.
    Fork,
    /// Its working directory cannot be entered.
    ChangeDir,
    /// Its program cannot be executed.
    Execute,
    /// The worker's trust window has ended or is about to end.
    Lease,
}

/// One value in the form in which it travels.
pub(super) fn encode<T: Serialize>(value: &T) -> Vec<u8> {
    rmp_serde::to_vec(value).expect("plain data with string keys can always be encoded")
}

/// Back from [`encode`].
pub(super) fn decode<T: DeserializeOwned>(bytes: &[u8]) -> io::Result<T> {
    rmp_serde::from_slice(bytes).map_err(|e| io::Error::new(io::ErrorKind::InvalidData, e))
}

/// Descriptors that travel with a command, in this order.
#[derive(Debug)]
pub(super) struct SpawnFds {
    pub(super) stdout: OwnedFd,
    pub(super) stderr: OwnedFd,
    /// Held until the attempt has ended, so that the worker can see its end even when the guard is gone.
    pub(super) alive: OwnedFd,
    pub(super) stdin: Option<OwnedFd>,
}

impl SpawnFds {
    pub(super) fn take(spawn: &Spawn, mut next: impl FnMut() -> io::Result<OwnedFd>) -> io::Result<Self> {
        Ok(Self {
            stdout: next()?,
            stderr: next()?,
            alive: next()?,
            stdin: if spawn.has_stdin { Some(next()?) } else { None },
        })
    }

    pub(super) fn all(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        [&self.stdout, &self.stderr, &self.alive].into_iter().chain(&self.stdin).map(AsFd::as_fd)
    }
}

/// Sends a whole message to a shim, or nothing of it.
pub(super) fn send_packet(socket: &OwnedFd, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> rustix::io::Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FDS_MAX))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !fds.is_empty() {
        assert!(control.push(SendAncillaryMessage::ScmRights(fds)), "there is room for FDS_MAX");
    }
    let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
    sendmsg(socket, &[IoSlice::new(bytes)], &mut control, flags).map(drop)
}

/// Waits for a whole message and the descriptors that came with it. Empty at the end.
pub(super) fn recv_packet<'a>(
    socket: &OwnedFd,
    buffer: &'a mut [u8],
) -> io::Result<(&'a [u8], VecDeque<OwnedFd>)> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FDS_MAX))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let got = loop {
        match recvmsg(socket, &mut [IoSliceMut::new(buffer)], &mut control, RecvFlags::CMSG_CLOEXEC) {
            Err(Errno::INTR) => {}
            Err(Errno::CONNRESET) => return Ok((&[], VecDeque::new())),
            got => break got?,
        }
    };
    let mut fds = VecDeque::new();
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(some) = message {
            fds.extend(some);
        }
    }
    Ok((&buffer[..got.bytes], fds))
}

/// A frame on its way out.
#[derive(Debug)]
pub(super) struct Frame {
    bytes: Vec<u8>,
    sent: usize,
    fds: Vec<HeldFile>,
}

impl Frame {
    pub(super) fn new<T: Serialize>(value: &T, fds: Vec<HeldFile>) -> Self {
        assert!(fds.len() <= FDS_MAX, "at most {FDS_MAX} descriptors travel with a frame");
        let body = encode(value);
        assert!(body.len() <= FRAME_BYTES_MAX, "callers keep what they send below the largest frame");
        let len = u32::try_from(body.len()).expect("less than the largest frame");
        let mut bytes = Vec::with_capacity(4 + body.len());
        bytes.extend_from_slice(&len.to_le_bytes());
        bytes.extend_from_slice(&body);
        Self { bytes, sent: 0, fds }
    }

    /// Sends as much as the socket takes now; true when all is sent.
    pub(super) fn send(&mut self, socket: impl AsFd) -> io::Result<bool> {
        let socket = socket.as_fd();
        while self.sent < self.bytes.len() {
            let fds: Vec<_> = self.fds.iter().map(|file| file.as_fd()).collect();
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FDS_MAX))];
            let mut control = SendAncillaryBuffer::new(&mut space);
            if !fds.is_empty() {
                assert!(control.push(SendAncillaryMessage::ScmRights(&fds)), "there is room for FDS_MAX");
            }
            let part = [IoSlice::new(&self.bytes[self.sent..])];
            match sendmsg(socket, &part, &mut control, SendFlags::DONTWAIT | SendFlags::NOSIGNAL) {
                Ok(n) => self.sent += n,
                Err(Errno::AGAIN) => return Ok(false),
                Err(Errno::INTR) => continue,
                Err(errno) => return Err(errno.into()),
            }
            // The descriptors went with the first byte.
            self.fds.clear();
        }
        Ok(true)
    }
}

/// Frames on their way in.
#[derive(Debug, Default)]
pub(super) struct Inbox {
    bytes: Vec<u8>,
    /// The descriptors of each frame that has some, in the order of the frames. A frame has fewer than were
    /// sent if this process had no room for all of them.
    fds: VecDeque<VecDeque<OwnedFd>>,
}

impl Inbox {
    /// Reads the available bytes. `Ok(0)` is the end; `WouldBlock` when there are none now.
    pub(super) fn fill(&mut self, socket: impl AsFd) -> io::Result<usize> {
        let socket = socket.as_fd();
        let mut part = [0; 16 << 10];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FDS_MAX))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
        let got = loop {
            match recvmsg(socket, &mut [IoSliceMut::new(&mut part)], &mut control, flags) {
                Err(Errno::INTR) => {}
                // The other side died with some of our frames unread.
                Err(Errno::CONNRESET) => return Ok(0),
                got => break got?,
            }
        };
        // One read returns the descriptors of one frame at most: the kernel ensures that.
        let mut came = VecDeque::new();
        for message in control.drain() {
            if let RecvAncillaryMessage::ScmRights(fds) = message {
                came.extend(fds);
            }
        }
        if !came.is_empty() || got.flags.contains(ReturnFlags::CTRUNC) {
            self.fds.push_back(came);
        }
        self.bytes.extend_from_slice(&part[..got.bytes]);
        Ok(got.bytes)
    }

    /// The next frame that is complete.
    pub(super) fn next<T: DeserializeOwned>(&mut self) -> io::Result<Option<T>> {
        let Some((len, rest)) = self.bytes.split_first_chunk::<4>() else { return Ok(None) };
        let len = u32::from_le_bytes(*len) as usize;
        if len > FRAME_BYTES_MAX {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "frame too long"));
        }
        let Some(body) = rest.get(..len) else { return Ok(None) };
        let value = decode(body)?;
        self.bytes.drain(..4 + len);
        Ok(Some(value))
    }

    /// The descriptors of the next frame that was sent with some.
    pub(super) fn take_fds(&mut self) -> VecDeque<OwnedFd> {
        self.fds.pop_front().unwrap_or_default()
    }
}

/// Whether a command is small enough to travel.
pub(super) fn fits(argv: &[String], env: &[(String, String)]) -> bool {
    let strings = argv.iter().chain(env.iter().flat_map(|(k, v)| [k, v]));
    strings.map(|s| s.len() + 8).sum::<usize>() < FRAME_BYTES_MAX / 2
}

#[cfg(test)]
mod tests {
    use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
    use rustix::pipe::pipe;

    use super::*;

    fn pair() -> (OwnedFd, OwnedFd) {
        socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None).unwrap()
    }

    #[test]
    fn descriptors_stay_with_their_frames() {
        let (a, b) = pair();
        let pipes: Vec<_> = (0..3).map(|_| pipe().unwrap()).collect();
        for (n, (_, write)) in pipes.iter().enumerate() {
            let fd = write.try_clone().unwrap();
            assert!(Frame::new(&n, vec![Arc::new(fd)]).send(&a).unwrap());
        }
        let mut inbox = Inbox::default();
        for (n, (read, _)) in pipes.iter().enumerate() {
            let got = loop {
                match inbox.next::<usize>().unwrap() {
                    Some(got) => break got,
                    None => assert_ne!(inbox.fill(&b).unwrap(), 0),
                }
            };
            assert_eq!(got, n);
            let fd = inbox.take_fds().pop_front().unwrap();
            rustix::io::write(&fd, &[u8::try_from(n).unwrap()]).unwrap();
            let mut byte = [9];
            rustix::io::read(read, &mut byte).unwrap();
            assert_eq!(usize::from(byte[0]), n);
        }
        assert!(inbox.take_fds().is_empty());
    }

    #[test]
    fn a_frame_larger_than_the_socket_buffer_arrives_in_parts() {
        let (a, b) = pair();
        let long = "x".repeat(1 << 20);
        let mut frame = Frame::new(&long, Vec::new());
        let mut inbox = Inbox::default();
        let mut rounds = 0;
        while !frame.send(&a).unwrap() {
            rounds += 1;
            while inbox.fill(&b).is_ok() {}
        }
        while inbox.fill(&b).is_ok() {}
        assert!(rounds > 0);
        assert_eq!(inbox.next::<String>().unwrap(), Some(long));
    }

    #[test]
    fn a_frame_of_nonsense_is_an_error() {
        let mut inbox = Inbox { bytes: vec![0xff; 8], fds: VecDeque::new() };
        assert!(inbox.next::<String>().is_err());
    }
}
