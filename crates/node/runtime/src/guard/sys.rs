//! System calls of the guard that no safe interface offers. All unsafe code of the crate is here.
#![expect(unsafe_code, reason = "fork, signal masks and shared memory; each block states why it is sound")]

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::ptr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use rustix::fs::{Mode, OFlags, open};
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous};
use rustix::process::{
    Pid, Signal, WaitOptions, chdir, getpid, getppid, set_parent_process_death_signal, setsid, waitpid,
};
use rustix::stdio::{dup2_stderr, dup2_stdin, dup2_stdout};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

use super::wire::FailedStep;

/// Which side of a fork this is.
#[derive(Debug)]
pub(super) enum Forked {
    Child,
    Parent(Pid),
}

/// Forks. Only for processes with one thread: in the child only the calling thread goes on, and a lock that
/// another thread held would never be opened.
pub(super) fn fork() -> io::Result<Forked> {
    // SAFETY: the guard has one thread (it starts none, and runs before `main` could), so that the child is a
    // complete copy in which everything may be used.
    let pid = unsafe { libc::fork() };
    match pid {
        0 => Ok(Forked::Child),
        pid if pid > 0 => Ok(Forked::Parent(Pid::from_raw(pid).expect("not zero"))),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Ends this process immediately: no destructors, nothing flushed. A forked child must not run those of its
/// parent.
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

/// Closes all descriptors above 2 but these. Their owners must not use or drop them afterwards, so this is
/// for the start of a process and for the child of a fork, whose copies of its parent's values are never
/// dropped.
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
    // SAFETY: callers promise that no code uses the descriptors that are closed here.
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

/// Gives every signal its default action, which started processes inherit: an ignored signal stays ignored
/// across exec, and the worker's own parent (nohup) or Rust (SIGPIPE) may have asked for that.
pub(super) fn default_all_signals() {
    for signal in 1..=SIGNAL_MAX {
        // By the system call, because the C library refuses to touch two signals that a parent may have
        // ignored.
        let default = [0_u64; 8];
        // SAFETY: all zero is a valid `sigaction` of the kernel, of at most this size, which means "default".
        // The kernel refuses the numbers that may not be changed, which is fine.
        unsafe { libc::syscall(libc::SYS_rt_sigaction, signal, &raw const default, ptr::null::<u8>(), 8) };
    }
}

/// A command in the form in which the kernel takes it.
#[derive(Debug)]
pub(super) struct Image {
    /// The paths where its program may be, in this order.
    pub(super) paths: Vec<CString>,
    pub(super) argv: Vec<CString>,
    pub(super) env: Vec<CString>,
    pub(super) cwd: Option<CString>,
}

/// Memory for a process until it executes its program.
#[derive(Debug)]
pub(super) struct Stack(Box<[MaybeUninit<u128>]>);

impl Stack {
    const BYTES: usize = 64 << 10;

    pub(super) fn new() -> Self {
        Self(Box::new_uninit_slice(Self::BYTES / size_of::<u128>()))
    }
}

/// Starts a command as if from a fresh login: its own session, no blocked signals, no descriptors but these
/// three (and nothing to read where there is no first). The kernel kills it when the thread that starts it
/// dies, in case no process is left to do that.
///
/// Only for processes with one thread and with all signals blocked. The new process runs in the memory of
/// this one, which sleeps until the program is executed: copying that memory would take longer than all the
/// rest.
pub(super) fn start(
    image: &Image,
    stdio: [Option<BorrowedFd<'_>>; 3],
    stack: &mut Stack,
) -> Result<Pid, (FailedStep, Errno)> {
    let pointers = |strings: &[CString]| -> Vec<*const c_char> {
        strings.iter().map(|string| string.as_ptr()).chain([ptr::null()]).collect()
    };
    let (argv, env) = (pointers(&image.argv), pointers(&image.env));
    let mut script = vec![SHELL.as_ptr(), ptr::null()];
    script.extend(argv.iter().skip(1));
    if argv.len() < 2 {
        return Err((FailedStep::Execute, Errno::INVAL));
    }
    let mut birth = Birth { image, stdio, parent: getpid(), argv, env, script, failed: None };
    let top = stack.0.as_mut_ptr_range().end;
    // SAFETY: the child has a stack of its own, and this process sleeps until it has executed its program or
    // ended, so that no other code uses the value behind `birth`. All signals are blocked, so that no handler
    // runs in it.
    let pid = unsafe {
        libc::clone(
            be_born,
            top.cast(),
            libc::CLONE_VM | libc::CLONE_VFORK | libc::SIGCHLD,
            (&raw mut birth).cast(),
        )
    };
    if pid < 0 {
        let errno = io::Error::last_os_error().raw_os_error();
        return Err((FailedStep::Fork, errno.map_or(Errno::AGAIN, Errno::from_raw_os_error)));
    }
    let pid = Pid::from_raw(pid).expect("not zero");
    match birth.failed {
        None => Ok(pid),
        Some(failed) => {
            // The child is about to end, and the shim must not take it for a child of the next command.
            while matches!(waitpid(Some(pid), WaitOptions::empty()), Err(Errno::INTR)) {}
            Err(failed)
        }
    }
}

/// Runs programs in formats that the kernel does not know.
const SHELL: &CStr = c"/bin/sh";

/// The data of a new process in the memory of its parent. The process may not allocate there, nor panic.
struct Birth<'a> {
    image: &'a Image,
    stdio: [Option<BorrowedFd<'a>>; 3],
    parent: Pid,
    argv: Vec<*const c_char>,
    env: Vec<*const c_char>,
    /// The arguments for a shell that runs the program as a script; the second is its path.
    script: Vec<*const c_char>,
    failed: Option<(FailedStep, Errno)>,
}

extern "C" fn be_born(birth: *mut c_void) -> c_int {
    // SAFETY: it points to the value in `start`, which waits.
    let birth = unsafe { &mut *birth.cast::<Birth<'_>>() };
    birth.failed = Some(match birth.prepare() {
        Ok(()) => (FailedStep::Execute, birth.execute()),
        Err(failed) => failed,
    });
    exit_now(127)
}

impl Birth<'_> {
    fn prepare(&self) -> Result<(), (FailedStep, Errno)> {
        let no_process = |errno| (FailedStep::Fork, errno);
        setsid().map_err(no_process)?;
        set_parent_process_death_signal(Some(Signal::KILL)).map_err(no_process)?;
        if getppid() != Some(self.parent) {
            return Err(no_process(Errno::SRCH));
        }
        if let Some(cwd) = &self.image.cwd {
            chdir(cwd.as_c_str()).map_err(|errno| (FailedStep::ChangeDir, errno))?;
        }
        let [input, output, errors] = self.stdio;
        match input {
            Some(input) => dup2_stdin(input),
            None => open(c"/dev/null", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).and_then(dup2_stdin),
        }
        .map_err(no_process)?;
        output.map_or(Ok(()), dup2_stdout).map_err(no_process)?;
        errors.map_or(Ok(()), dup2_stderr).map_err(no_process)?;
        // SAFETY: the set is initialised before it is read.
        unsafe {
            let mut none = MaybeUninit::<libc::sigset_t>::uninit();
            libc::sigemptyset(none.as_mut_ptr());
            libc::sigprocmask(libc::SIG_SETMASK, none.as_ptr(), ptr::null_mut());
        }
        Ok(())
    }

    /// Looks for the program as a shell does. Returns only if there is none.
    fn execute(&mut self) -> Errno {
        let mut answer = Errno::NOENT;
        for path in &self.image.paths {
            let mut errno = execve(path, &self.argv, &self.env);
            if errno == Errno::NOEXEC {
                if let Some(second) = self.script.get_mut(1) {
                    *second = path.as_ptr();
                }
                errno = execve(SHELL, &self.script, &self.env);
            }
            match errno {
                Errno::ACCESS => answer = errno,
                Errno::NOENT | Errno::NOTDIR | Errno::STALE | Errno::NODEV | Errno::TIMEDOUT => {}
                other => return other,
            }
        }
        answer
    }
}

/// Both lists end with a null.
fn execve(path: &CStr, argv: &[*const c_char], env: &[*const c_char]) -> Errno {
    // SAFETY: the strings live as long as the `Image` that owns them.
    unsafe { libc::execve(path.as_ptr(), argv.as_ptr(), env.as_ptr()) };
    io::Error::last_os_error().raw_os_error().map_or(Errno::INVAL, Errno::from_raw_os_error)
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

    /// Memory for it, which lasts as long as the process. At first there is no deadline.
    pub(super) fn new() -> io::Result<Self> {
        let len = size_of::<AtomicU64>();
        // SAFETY: a fresh mapping that nothing else points to and that is never unmapped. It is zeroed, at
        // least as large and as aligned as the atomic (mappings are whole pages), and other processes use it
        // only as an atomic.
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
