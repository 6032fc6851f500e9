//! File descriptors of this process: their limit, and the errors when none is left.
//!
//! Each connection, each pipe of a command and each file takes one. Most systems start programs with a soft
//! limit of 1024, which is for programs that use `select`, and a hard limit that is far higher.

use std::error::Error;
use std::fmt;
use std::io;
use std::sync::OnceLock;

use rustix::io::Errno;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// The soft limit before it was raised.
static BEFORE: OnceLock<Option<u64>> = OnceLock::new();

/// Raises the soft limit of this process to the hard one. Commands of tasks get the limit as it was.
pub fn raise_limit() {
    let limit = getrlimit(Resource::Nofile);
    BEFORE.get_or_init(|| limit.current);
    if let Err(error) = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit }) {
        tracing::warn!(%error, "the limit of open files cannot be raised");
    }
}

/// The soft limit as it was before [`raise_limit`]; `None` if it was not raised, or there was none.
pub(crate) fn limit_before() -> Option<u64> {
    BEFORE.get().copied().flatten()
}

/// How many descriptors this process may have.
pub fn limit() -> u64 {
    getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX)
}

/// How many descriptors this process has.
pub fn open() -> u64 {
    // Kernels from 6.2 on give the number as the size of the folder.
    let said = std::fs::metadata("/proc/self/fd").map_or(0, |folder| folder.len());
    if said > 0 {
        return said;
    }
    match std::fs::read_dir("/proc/self/fd") {
        // One entry is the descriptor of the folder itself.
        Ok(entries) => (entries.count() as u64).saturating_sub(1),
        Err(error) if Lack::of(&error) == Some(Lack::Descriptors) => limit(),
        Err(_) => 0,
    }
}

/// A resource that the machine lacks to start something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lack {
    /// This process or the machine has as many open files as its limit allows.
    Descriptors,
    /// There is no memory.
    Memory,
    /// This user or the machine has as many processes as its limit allows.
    Processes,
}

impl Lack {
    /// The resource that an error of the system names as missing.
    pub fn of(error: &io::Error) -> Option<Self> {
        match Errno::from_io_error(error)? {
            Errno::MFILE | Errno::NFILE => Some(Self::Descriptors),
            Errno::NOMEM | Errno::NOBUFS => Some(Self::Memory),
            Errno::AGAIN => Some(Self::Processes),
            _ => None,
        }
    }

    /// The same for an error whose source may be an error of the system.
    pub fn behind(error: &(dyn Error + 'static)) -> Option<Self> {
        let own = error.downcast_ref::<io::Error>().and_then(Self::of);
        own.or_else(|| error.source().and_then(Self::behind))
    }
}

impl fmt::Display for Lack {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Descriptors => "the machine is out of file descriptors",
            Self::Memory => "the machine is out of memory",
            Self::Processes => "the machine is out of processes",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_machine_lacks_is_told_from_what_a_task_did_wrong() {
        let of = |errno: Errno| Lack::of(&errno.into());
        assert_eq!(of(Errno::MFILE), Some(Lack::Descriptors));
        assert_eq!(of(Errno::NFILE), Some(Lack::Descriptors));
        assert_eq!(of(Errno::NOMEM), Some(Lack::Memory));
        assert_eq!(of(Errno::AGAIN), Some(Lack::Processes));
        for errno in [Errno::NOENT, Errno::ACCESS, Errno::TOOBIG, Errno::NOSPC, Errno::NOEXEC] {
            assert_eq!(of(errno), None);
        }
        assert_eq!(Lack::of(&io::Error::other("something else")), None);
    }

    #[test]
    fn a_lack_is_found_behind_other_errors() {
        #[derive(Debug, thiserror::Error)]
        #[error("cannot connect")]
        struct Outer(#[source] io::Error);
        let lacking = Outer(Errno::MFILE.into());
        assert_eq!(Lack::behind(&lacking), Some(Lack::Descriptors));
        assert_eq!(Lack::behind(&Outer(Errno::CONNREFUSED.into())), None);
    }

    #[test]
    fn a_process_has_descriptors_and_a_limit() {
        let before = open();
        let _files: Vec<_> = (0..50).map(|_| std::fs::File::open("/dev/null").unwrap()).collect();
        // Other tests run in this process too.
        assert!(before > 0 && open() >= 50 && open() < limit());
    }
}
