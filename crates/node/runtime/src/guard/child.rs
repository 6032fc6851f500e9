//! An attempt's processes, as the worker sees them.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tokio::net::unix::pipe;
use tokio::sync::oneshot;

use super::connection::GuardConnection;
use super::wire::{ChildId, ControlRequest};

/// How the processes of an attempt ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProcessTreeEnd {
    /// How the command itself ended.
    pub how: CommandEnd,
    /// Processes that still ran when the command had ended. The shim ended them too.
    pub leftovers: u32,
    /// Whether the command was killed because memory ran out; `None` if no counter is readable.
    pub oom_killed: Option<bool>,
}

/// How a command ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum CommandEnd {
    /// By itself, with this exit code.
    Code(i32),
    /// By this signal.
    Signal(i32),
    /// The shim of the attempt was killed. Nothing of the attempt is left, but its exit status is lost.
    Unknown,
}

/// How long to wait before another try to get a descriptor.
const DESCRIPTOR_AGAIN: Duration = Duration::from_millis(50);

/// A command that was started.
#[derive(Debug)]
pub struct Child {
    /// The output of the command.
    pub stdout: pipe::Receiver,
    /// The errors that the command prints.
    pub stderr: pipe::Receiver,
    /// The command and all that it starts.
    pub tree: Tree,
}

/// A command and all that it starts. Dropping this kills all of it.
#[derive(Debug)]
pub struct Tree {
    pid: i32,
    control: Control,
    report: Option<oneshot::Receiver<ProcessTreeEnd>>,
    /// Closed when its shim has ended.
    alive: Option<OwnedFd>,
    ended: Option<ProcessTreeEnd>,
}

impl Tree {
    pub(super) fn new(
        pid: i32,
        control: Control,
        report: oneshot::Receiver<ProcessTreeEnd>,
        alive: OwnedFd,
    ) -> Self {
        Self { pid, control, report: Some(report), alive: Some(alive), ended: None }
    }

    /// The process number of the command.
    pub fn pid(&self) -> i32 {
        self.pid
    }

    /// Waits until nothing of the tree is left. Output may still wait in the pipes. May be dropped and called
    /// again.
    pub async fn ended(&mut self) -> ProcessTreeEnd {
        if let Some(ended) = self.ended {
            return ended;
        }
        let mut ended = ProcessTreeEnd { how: CommandEnd::Unknown, leftovers: 0, oom_killed: None };
        if let Some(report) = &mut self.report {
            match report.await {
                Ok(told) => {
                    ended = told;
                    self.alive = None;
                }
                // The guard has ended. The shim is now killing everything, and then its end of the pipe is
                // closed.
                Err(_) => self.report = None,
            }
        }
        if let Some(alive) = &self.alive {
            let alive = loop {
                match alive.try_clone().and_then(pipe::Receiver::from_owned_fd) {
                    Ok(alive) => break alive,
                    // No descriptor is left. A tree that may still run must not be called ended.
                    Err(_) => tokio::time::sleep(DESCRIPTOR_AGAIN).await,
                }
            };
            // The pipe carries no data, so it becomes readable at its end only.
            let _ = alive.readable().await;
        }
        self.control.armed = false;
        self.ended = Some(ended);
        ended
    }

    /// SIGTERM to all of it.
    pub fn terminate(&self) {
        self.control.order(ControlRequest::Terminate { grace: None });
    }

    /// SIGTERM to all of it, and SIGKILL after this time to the processes that are left, even if the worker
    /// dies meanwhile.
    pub fn stop(&self, grace: Duration) {
        self.control.order(ControlRequest::Terminate { grace: Some(grace) });
    }

    /// SIGKILL to all of it until nothing is left.
    pub fn kill(&self) {
        self.control.order(ControlRequest::Kill);
    }
}

/// Orders to the shim. Dropped while armed, it kills.
#[derive(Debug)]
pub(super) struct Control {
    pub(super) connection: Arc<GuardConnection>,
    pub(super) id: ChildId,
    pub(super) armed: bool,
}

impl Control {
    fn order(&self, order: ControlRequest) {
        self.connection.order(self.id, order);
    }
}

impl Drop for Control {
    fn drop(&mut self) {
        if self.armed {
            self.order(ControlRequest::Kill);
        }
    }
}
