//! The output of attempts, on its way to Logs.
//!
//! An attempt never waits for Logs and memory never grows without bound: the bytes of each attempt are
//! limited, and so are the waiting bytes of all attempts together. Bytes above a limit are counted, and the
//! count is put in the place of the output. One task ships the waiting output, so a burst of small lines is
//! one append.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tasklane_core::message::AttemptId;
use tasklane_core::time::Timestamp;
use tasklane_ports::{LogChunk, LogPosition, LogStream, Logs};
use tokio::sync::Notify;

use crate::clock;
use crate::notifier::Notifier;

/// Bounds of stored output.
#[derive(Clone, Debug)]
pub struct OutputOptions {
    /// Of one attempt. Default: 16 MiB.
    pub attempt_bytes_max: usize,
    /// Waiting to be stored, of all attempts together. Default: 32 MiB.
    pub waiting_bytes_max: usize,
    /// How long output may wait for more output. Default: 50 ms.
    pub ship_every: Duration,
}

impl Default for OutputOptions {
    fn default() -> Self {
        Self {
            attempt_bytes_max: 16 << 20,
            waiting_bytes_max: 32 << 20,
            ship_every: Duration::from_millis(50),
        }
    }
}

/// The largest chunk.
const CHUNK_BYTES_MAX: usize = 32 << 10;
/// Bytes in one append.
const BATCH_BYTES_MAX: usize = 256 << 10;
/// Longest wait between tries while Logs cannot be reached.
const RETRY_MAX: Duration = Duration::from_secs(1);

/// Takes the output of all attempts of a worker to Logs.
#[derive(Debug)]
pub(super) struct Shipper {
    shared: Arc<ShipperInner>,
    task: tokio::task::JoinHandle<()>,
}

#[derive(Debug)]
struct ShipperInner {
    options: OutputOptions,
    waiting_bytes: AtomicUsize,
    /// Attempts with output to ship.
    dirty: Mutex<VecDeque<Arc<AttemptOutput>>>,
    wake: Notify,
    /// A caller waits for the rest of an attempt's output.
    urgent: Notify,
}

/// The output of one attempt.
#[derive(Debug)]
pub(super) struct AttemptOutput {
    attempt: AttemptId,
    shared: Arc<ShipperInner>,
    state: Mutex<UnshippedOutput>,
    kept: Notify,
}

#[derive(Debug, Default)]
struct UnshippedOutput {
    pieces: VecDeque<Piece>,
    next_number: u32,
    /// Bytes taken so far.
    taken: usize,
    /// Bytes over the attempt's limit.
    over: u64,
    /// Bytes that came while too much was waiting, since the last mark.
    skipped: u64,
    /// In the list of attempts with output to ship, or being shipped.
    listed: bool,
}

#[derive(Debug)]
struct Piece {
    stream: LogStream,
    at: Timestamp,
    bytes: Vec<u8>,
}

impl Shipper {
    pub(super) fn start(options: OutputOptions, logs: Arc<dyn Logs>, notifier: Arc<Notifier>) -> Self {
        let shared = Arc::new(ShipperInner {
            options,
            waiting_bytes: AtomicUsize::new(0),
            dirty: Mutex::default(),
            wake: Notify::new(),
            urgent: Notify::new(),
        });
        let task = tokio::spawn(ship(Arc::clone(&shared), logs, notifier));
        Self { shared, task }
    }

    pub(super) fn attempt(&self, attempt: AttemptId) -> Arc<AttemptOutput> {
        Arc::new(AttemptOutput {
            attempt,
            shared: Arc::clone(&self.shared),
            state: Mutex::default(),
            kept: Notify::new(),
        })
    }
}

impl Drop for Shipper {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl AttemptOutput {
    /// Takes printed bytes.
    pub(super) fn put(self: &Arc<Self>, stream: LogStream, bytes: &[u8]) {
        let options = &self.shared.options;
        let mut state = lock(&self.state);
        let room = options.attempt_bytes_max.saturating_sub(state.taken);
        let (kept, over) = bytes.split_at(bytes.len().min(room));
        if !kept.is_empty() {
            if self.shared.waiting_bytes.load(Ordering::Relaxed) + kept.len() > options.waiting_bytes_max {
                state.skipped += kept.len() as u64;
            } else {
                self.mark_skipped(&mut state);
                state.taken += kept.len();
                self.shared.waiting_bytes.fetch_add(kept.len(), Ordering::Relaxed);
                state.append(stream, kept);
            }
        }
        if !over.is_empty() {
            if state.over == 0 {
                let limit = options.attempt_bytes_max;
                self.remark(
                    &mut state,
                    &format!("output limit of {limit} bytes reached, the rest is not kept"),
                );
            }
            state.over += over.len() as u64;
        }
        self.list(state);
    }

    /// Ends the output: adds the count of dropped bytes.
    pub(super) fn close(self: &Arc<Self>) {
        let mut state = lock(&self.state);
        self.mark_skipped(&mut state);
        if state.over > 0 {
            let remark = format!("{} bytes of output over the limit were not kept", state.over);
            self.remark(&mut state, &remark);
        }
        self.list(state);
    }

    /// Whether Logs has all of the output.
    pub(super) fn is_kept(&self) -> bool {
        !lock(&self.state).listed
    }

    /// Waits until Logs has all of the output.
    pub(super) async fn kept(&self) {
        loop {
            let kept = self.kept.notified();
            if self.is_kept() {
                return;
            }
            self.shared.urgent.notify_one();
            kept.await;
        }
    }

    fn mark_skipped(&self, state: &mut UnshippedOutput) {
        if state.skipped > 0 {
            let remark = format!("{} bytes of output were not kept: the store was too slow", state.skipped);
            state.skipped = 0;
            self.remark(state, &remark);
        }
    }

    fn remark(&self, state: &mut UnshippedOutput, text: &str) {
        let bytes = format!("{text}\n").into_bytes();
        self.shared.waiting_bytes.fetch_add(bytes.len(), Ordering::Relaxed);
        state.pieces.push_back(Piece { stream: LogStream::System, at: clock::wall(), bytes });
    }

    fn list(self: &Arc<Self>, mut state: MutexGuard<'_, UnshippedOutput>) {
        if !state.listed && !state.pieces.is_empty() {
            state.listed = true;
            drop(state);
            lock(&self.shared.dirty).push_back(Arc::clone(self));
            self.shared.wake.notify_one();
        }
    }
}

impl UnshippedOutput {
    fn append(&mut self, stream: LogStream, mut bytes: &[u8]) {
        if let Some(last) = self.pieces.back_mut().filter(|last| last.stream == stream) {
            let (fits, rest) =
                bytes.split_at(bytes.len().min(CHUNK_BYTES_MAX.saturating_sub(last.bytes.len())));
            last.bytes.extend_from_slice(fits);
            bytes = rest;
        }
        for chunk in bytes.chunks(CHUNK_BYTES_MAX) {
            self.pieces.push_back(Piece { stream, at: clock::wall(), bytes: chunk.to_vec() });
        }
    }
}

/// Ships waiting output. Never returns.
async fn ship(shared: Arc<ShipperInner>, logs: Arc<dyn Logs>, notifier: Arc<Notifier>) {
    loop {
        let (chunks, from) = collect(&shared);
        if from.is_empty() {
            shared.wake.notified().await;
            continue;
        }
        append(&*logs, &chunks).await;
        let bytes: usize = chunks.iter().map(|chunk| chunk.bytes.len()).sum();
        shared.waiting_bytes.fetch_sub(bytes, Ordering::Relaxed);
        notifier.output(from.iter().map(|output| output.attempt.task));
        for output in from {
            let mut state = lock(&output.state);
            if state.pieces.is_empty() {
                state.listed = false;
                drop(state);
                output.kept.notify_waiters();
            } else {
                drop(state);
                lock(&shared.dirty).push_back(output);
            }
        }
        tokio::select! {
            () = tokio::time::sleep(shared.options.ship_every) => {}
            () = shared.urgent.notified() => {}
        }
    }
}

/// Takes a batch of waiting output, from each attempt in its turn.
fn collect(shared: &ShipperInner) -> (Vec<LogChunk>, Vec<Arc<AttemptOutput>>) {
    let (mut chunks, mut from, mut bytes) = (Vec::new(), Vec::new(), 0);
    while bytes < BATCH_BYTES_MAX {
        let Some(output) = lock(&shared.dirty).pop_front() else { break };
        let mut state = lock(&output.state);
        while bytes < BATCH_BYTES_MAX
            && let Some(piece) = state.pieces.pop_front()
        {
            bytes += piece.bytes.len();
            let position = LogPosition { attempt: output.attempt.number, number: state.next_number };
            state.next_number += 1;
            let Piece { stream, at, bytes } = piece;
            chunks.push(LogChunk { task: output.attempt.task, position, stream, at, bytes });
        }
        drop(state);
        from.push(output);
    }
    (chunks, from)
}

async fn append(logs: &dyn Logs, chunks: &[LogChunk]) {
    let mut wait = Duration::from_millis(50);
    while let Err(error) = logs.append(chunks).await {
        if !error.is_retryable() {
            tracing::error!(%error, chunks = chunks.len(), "output was not stored");
            return;
        }
        tracing::warn!(%error, "output is not stored yet, retrying");
        tokio::time::sleep(wait).await;
        wait = (wait * 2).min(RETRY_MAX);
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
