//! Holds up threads of another process, as an endless loop on them would.

#![allow(unsafe_code, reason = "there is no safe way to ptrace")]

use std::fs;
use std::sync::mpsc;
use std::thread::JoinHandle;

/// Threads that take no step until this is dropped.
pub(crate) struct HeldThreads {
    release: Option<mpsc::Sender<()>>,
    holder: Option<JoinHandle<()>>,
}

impl HeldThreads {
    /// Holds all threads of a child process that have a name.
    pub(crate) fn named(name: &'static str, pid: u32) -> Self {
        let (release, released) = mpsc::channel();
        let (ready, held) = mpsc::channel();
        // All calls for a thread must come from the thread that holds it.
        let holder = std::thread::spawn(move || {
            let threads = threads(name, pid);
            for thread in &threads {
                hold(*thread);
            }
            ready.send(threads.len()).unwrap();
            let _ = released.recv();
            for thread in threads {
                // A thread that is gone needs no release.
                let _ = ptrace(libc::PTRACE_DETACH, thread);
            }
        });
        let count = held.recv().unwrap();
        assert!(count > 0, "no thread of {pid} is called {name}");
        Self { release: Some(release), holder: Some(holder) }
    }
}

impl Drop for HeldThreads {
    fn drop(&mut self) {
        drop(self.release.take());
        if let Some(holder) = self.holder.take() {
            holder.join().unwrap();
        }
    }
}

fn threads(name: &str, pid: u32) -> Vec<i32> {
    let all = fs::read_dir(format!("/proc/{pid}/task")).unwrap().map(|entry| entry.unwrap());
    let named = all.filter(|thread| fs::read_to_string(thread.path().join("comm")).unwrap().trim() == name);
    named.map(|thread| thread.file_name().to_str().unwrap().parse().unwrap()).collect()
}

fn hold(thread: i32) {
    assert_eq!(ptrace(libc::PTRACE_SEIZE, thread), 0, "{}", std::io::Error::last_os_error());
    assert_eq!(ptrace(libc::PTRACE_INTERRUPT, thread), 0, "{}", std::io::Error::last_os_error());
    let mut status = 0;
    // SAFETY: the status is a place for what the call writes.
    let waited = unsafe { libc::waitpid(thread, &raw mut status, libc::__WALL) };
    assert_eq!(waited, thread, "{}", std::io::Error::last_os_error());
}

fn ptrace(request: libc::c_uint, thread: i32) -> libc::c_long {
    // SAFETY: these requests take no memory of ours.
    unsafe { libc::ptrace(request, thread, 0_usize, 0_usize) }
}
