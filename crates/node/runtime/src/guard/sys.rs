//! What the guard needs of the system that no safe interface offers. All unsafe code of the crate is here.
#![expect(unsafe_code, reason = "fork, signal masks and shared memory; each block says why it is sound")]

use std::ffi::c_int;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::ptr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous};
use rustix::process::{
    Pid, Resource, Rlimit, Signal, getppid, set_parent_process_death_signal, setrlimit, setsid,
};

use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// Which side of a fork this is.
#[derive(Debug)]
pub(super) enum Forked {
    Child,
    Parent(Pid),
}

/// Forks. Only for processes with one thread: in the child nothing but the calling thread goes on, and a lock that
/// another one held would never be opened.
pub(super) fn fork() -> io::Result<Forked> {
    // SAFETY: the guard has one thread (it starts none, and runs before `main` could), so that the child is a complete
    // copy in which everything may be used.
    let pid = unsafe { libc::fork() };
    match pid {
        0 => Ok(Forked::Child),
        pid if pid > 0 => Ok(Forked::Parent(Pid::from_raw(pid).expect("not zero"))),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Ends this process at once: no destructors, nothing flushed. A forked child must not run those of its parent.
pub(super) fn exit_now(code: c_int) -> ! {
    // SAFETY: never returns, touches no memory.
    unsafe { libc::_exit(code) }
}

/// Blocks every signal that can be blocked: nothing but SIGKILL and SIGSTOP reaches this process any more.
pub(super) fn block_all_signals() -> io::Result<()> {
    let mut all = MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: `sigfillset` initialises the set before `sigprocmask` reads it.
    let answer = unsafe {
        libc::sigfillset(all.as_mut_ptr());
        libc::sigprocmask(libc::SIG_SETMASK, all.as_ptr(), ptr::null_mut())
    };
    check(answer)
}

/// A descriptor that becomes readable when a child has ended. SIGCHLD must be blocked.
pub(super) fn child_signals() -> io::Result<OwnedFd> {
    let mut set = MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: the set is initialised before it is read, and a descriptor that the kernel has just made is ours.
    unsafe {
        libc::sigemptyset(set.as_mut_ptr());
        libc::sigaddset(set.as_mut_ptr(), libc::SIGCHLD);
        let fd = libc::signalfd(-1, set.as_ptr(), libc::SFD_CLOEXEC | libc::SFD_NONBLOCK);
        check(fd)?;
        Ok(OwnedFd::from_raw_fd(fd))
    }
}

/// Closes all descriptors above 2 but these. Whoever owned them must not use or drop them afterwards, so this is for the
/// start of a process and for the child of a fork, whose copies of its parent's values are never dropped.
pub(super) fn close_all_but(keep: &[BorrowedFd<'_>]) -> io::Result<()> {
    let mut keep: Vec<RawFd> = keep.iter().map(AsRawFd::as_raw_fd).collect();
    keep.sort_unstable();
    let mut from = 3;
    for fd in keep {
        close_range(from, fd - 1)?;
        from = from.max(fd + 1);
    }
    close_range(from, RawFd::MAX)
}

fn close_range(first: RawFd, last: RawFd) -> io::Result<()> {
    if first > last {
        return Ok(());
    }
    // SAFETY: callers promise that nobody uses what is closed here.
    let answer = unsafe { libc::syscall(libc::SYS_close_range, first, last, 0) };
    if answer == 0 {
        return Ok(());
    }
    // Kernels before 5.9: one by one.
    let open: Vec<RawFd> = std::fs::read_dir("/proc/self/fd")?
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
        .filter(|fd| (first..=last).contains(fd))
        .collect();
    for fd in open {
        // SAFETY: as above; the descriptor of the listing itself is closed already and gives a harmless EBADF.
        unsafe { libc::close(fd) };
    }
    Ok(())
}

const SIGNAL_MAX: c_int = 64;

/// Makes the command start as if from a fresh login: its own session, no blocked and no ignored signals. It is killed
/// when the thread that starts it dies, should nobody be left to do that.
pub(super) fn start_afresh(command: &mut Command, parent: Pid, files_max: Rlimit) {
    let prepare = move || {
        setsid()?;
        set_parent_process_death_signal(Some(Signal::KILL))?;
        if getppid() != Some(parent) {
            return Err(io::Error::from(rustix::io::Errno::SRCH));
        }
        setrlimit(Resource::Nofile, files_max)?;
        // Ignored signals stay ignored across exec: those of the worker's own parent (nohup) and Rust's SIGPIPE.
        for signal in 1..=SIGNAL_MAX {
            // By the system call, because the C library refuses to touch two that a parent may have ignored.
            let default = [0_u64; 8];
            // SAFETY: all zero is a valid `sigaction` of the kernel, of at most this size, which says "default". The
            // numbers that may not be changed are refused, which is fine.
            unsafe {
                libc::syscall(libc::SYS_rt_sigaction, signal, &raw const default, ptr::null::<u8>(), 8)
            };
        }
        // SAFETY: the set is initialised before it is read.
        unsafe {
            let mut none = MaybeUninit::<libc::sigset_t>::uninit();
            libc::sigemptyset(none.as_mut_ptr());
            check(libc::sigprocmask(libc::SIG_SETMASK, none.as_ptr(), ptr::null_mut()))
        }
    };
    // SAFETY: it runs between fork and exec in a copy of a process with one thread, where everything may be called.
    unsafe { command.pre_exec(prepare) };
}

fn check(answer: c_int) -> io::Result<()> {
    if answer < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// A descriptor that tokio watches.
pub(super) fn watched(fd: OwnedFd, interest: Interest) -> io::Result<AsyncFd<OwnedFd>> {
    // SAFETY: an `OwnedFd` always gives out the same descriptor and keeps it open until it is dropped.
    Ok(unsafe { AsyncFd::register_with_interest(fd, interest) }?)
}

/// A time that one process sets and its forks read.
#[derive(Clone, Copy, Debug)]
pub(super) struct SharedDeadline(&'static AtomicU64);

impl SharedDeadline {
    const NONE: u64 = u64::MAX;

    /// Memory for it, which lasts as long as the process. No deadline at first.
    pub(super) fn new() -> io::Result<Self> {
        let len = size_of::<AtomicU64>();
        // SAFETY: a fresh mapping that nothing else points to and that is never unmapped. It is zeroed, at least as
        // large and as aligned as the atomic (mappings are whole pages), and other processes use it only as an atomic.
        let word = unsafe {
            let memory =
                mmap_anonymous(ptr::null_mut(), len, ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED)?;
            &*memory.cast::<AtomicU64>()
        };
        word.store(Self::NONE, Ordering::SeqCst);
        Ok(Self(word))
    }

    /// By the boot-time clock.
    pub(super) fn get(self) -> Option<Duration> {
        let micros = self.0.load(Ordering::SeqCst);
        (micros != Self::NONE).then(|| Duration::from_micros(micros))
    }

    pub(super) fn set(self, deadline: Option<Duration>) {
        let micros = deadline.map_or(Self::NONE, |at| u64::try_from(at.as_micros()).unwrap_or(Self::NONE));
        self.0.store(micros, Ordering::SeqCst);
    }
}
