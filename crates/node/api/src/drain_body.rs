//! A connection whose client still sends after its answer.
//!
//! A request may be refused before its body has arrived: it is too large, or has no token. Many clients send
//! the whole body before they read an answer. If the server closed the connection under them, their system
//! would discard the answer and report a broken pipe. So the server sends the answer with `connection:
//! close`, closes its own side, and then reads and discards the rest for a while. A small rest is read before
//! the answer, and the connection goes on.

use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::body::Bytes;
use hyper::body::{Body, Frame, Incoming, SizeHint};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep};

/// Dropped bytes: a few times the largest body.
const BYTES_MAX: usize = 128 << 20;
/// However much still comes, it is over after this time, …
const WITHIN: Duration = Duration::from_secs(30);
/// … and when nothing has come for this long.
const SILENT_MAX: Duration = Duration::from_secs(2);
/// A discarded body is read if no more than this is left of it, …
const DRAINED_MAX: u64 = 64 << 10;
/// … and it arrives within this time. The answer waits for it.
const DRAINED_WITHIN: Duration = Duration::from_millis(500);

/// The unread part of the last request's body.
#[derive(Clone, Debug, Default)]
pub(crate) struct Unread(Arc<UnreadBody>);

#[derive(Debug, Default)]
struct UnreadBody {
    /// It was dropped before its end.
    is_cut: AtomicBool,
    /// The rest of the body.
    rest: Mutex<Option<Incoming>>,
}

impl Unread {
    /// The body of a new request.
    pub(crate) fn watch(&self, body: Incoming) -> WatchedBody {
        let has_ended = body.is_end_stream();
        self.0.is_cut.store(false, Ordering::Relaxed);
        WatchedBody { body: Some(body), has_ended, unread: self.clone() }
    }

    /// Reads the rest of a discarded body, if it is small and about to arrive. True if nothing is left, so
    /// that the connection can serve the next request. A client that announces its body with `Expect` waits
    /// for a request to send it: the server does not ask for such a body.
    pub(crate) async fn drain(&self, is_expecting: bool) -> bool {
        let rest = self.0.rest.lock().unwrap_or_else(PoisonError::into_inner).take();
        let Some(mut body) = rest else { return true };
        if is_expecting || body.size_hint().upper().is_none_or(|bytes| bytes > DRAINED_MAX) {
            return false;
        }
        let read = async {
            while let Some(frame) = poll_fn(|cx| Pin::new(&mut body).poll_frame(cx)).await {
                if frame.is_err() {
                    return false;
                }
            }
            true
        };
        let is_read = tokio::time::timeout(DRAINED_WITHIN, read).await.unwrap_or(false);
        if is_read {
            self.0.is_cut.store(false, Ordering::Relaxed);
        }
        is_read
    }
}

/// A body that says when it is dropped too early.
#[derive(Debug)]
pub(crate) struct WatchedBody {
    /// Taken when this is dropped.
    body: Option<Incoming>,
    has_ended: bool,
    unread: Unread,
}

impl Body for WatchedBody {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        let this = self.get_mut();
        let Some(body) = &mut this.body else { return Poll::Ready(None) };
        let frame = ready!(Pin::new(&mut *body).poll_frame(cx));
        this.has_ended = frame.is_none() || body.is_end_stream();
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.body.as_ref().is_none_or(Body::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        self.body.as_ref().map_or_else(SizeHint::default, Body::size_hint)
    }
}

impl Drop for WatchedBody {
    fn drop(&mut self) {
        if !self.has_ended {
            let unread = &self.unread.0;
            unread.is_cut.store(true, Ordering::Relaxed);
            *unread.rest.lock().unwrap_or_else(PoisonError::into_inner) = self.body.take();
        }
    }
}

/// A stream that is closed only when the other side has sent what it had begun, or has had time for it.
#[derive(Debug)]
pub(crate) struct DrainBody<S> {
    stream: S,
    unread: Unread,
    closing: Option<Closing>,
}

#[derive(Debug)]
struct Closing {
    until: Instant,
    bytes_left: usize,
    silence: Pin<Box<Sleep>>,
}

impl Closing {
    fn begin() -> Self {
        let now = Instant::now();
        let silence = Box::pin(tokio::time::sleep_until(now + SILENT_MAX));
        Self { until: now + WITHIN, bytes_left: BYTES_MAX, silence }
    }
}

impl<S> DrainBody<S> {
    pub(crate) fn new(stream: S, unread: Unread) -> Self {
        Self { stream, unread, closing: None }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for DrainBody<S> {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_read(cx, buf)
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncWrite for DrainBody<S> {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().stream).poll_write(cx, buf)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().stream).poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        if this.closing.is_none() {
            ready!(Pin::new(&mut this.stream).poll_shutdown(cx))?;
            if !this.unread.0.is_cut.load(Ordering::Relaxed) {
                return Poll::Ready(Ok(()));
            }
        }
        let closing = this.closing.get_or_insert_with(Closing::begin);
        let mut dropped = [0; 16 << 10];
        loop {
            let mut buf = ReadBuf::new(&mut dropped);
            match Pin::new(&mut this.stream).poll_read(cx, &mut buf) {
                Poll::Ready(Ok(())) if !buf.filled().is_empty() => {
                    closing.bytes_left = closing.bytes_left.saturating_sub(buf.filled().len());
                    let now = Instant::now();
                    if closing.bytes_left == 0 || now >= closing.until {
                        return Poll::Ready(Ok(()));
                    }
                    closing.silence.as_mut().reset((now + SILENT_MAX).min(closing.until));
                }
                // The other side is done, or gone.
                Poll::Ready(_) => return Poll::Ready(Ok(())),
                Poll::Pending => {
                    ready!(closing.silence.as_mut().poll(cx));
                    return Poll::Ready(Ok(()));
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::AsyncWriteExt;

    use super::*;

    fn unread(unread: bool) -> Unread {
        Unread(Arc::new(UnreadBody { is_cut: AtomicBool::new(unread), ..UnreadBody::default() }))
    }

    #[tokio::test(start_paused = true)]
    async fn what_still_comes_is_taken_until_it_ends_or_pauses() {
        let (ours, mut theirs) = tokio::io::duplex(10);
        let closed = tokio::spawn(async move { DrainBody::new(ours, unread(true)).shutdown().await });
        theirs.write_all(&[7; 1000]).await.unwrap();
        tokio::time::sleep(SILENT_MAX / 2).await;
        theirs.write_all(&[7; 1000]).await.unwrap();
        let begun = Instant::now();
        closed.await.unwrap().unwrap();
        assert!(begun.elapsed() <= SILENT_MAX + Duration::from_millis(2));
        theirs.write_all(&[7; 1000]).await.unwrap_err();
    }

    #[tokio::test(start_paused = true)]
    async fn one_that_sends_for_ever_is_closed_all_the_same() {
        let (ours, mut theirs) = tokio::io::duplex(10);
        let begun = Instant::now();
        let closed = tokio::spawn(async move { DrainBody::new(ours, unread(true)).shutdown().await });
        while theirs.write_all(&[7; 10]).await.is_ok() {
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
        closed.await.unwrap().unwrap();
        assert!(begun.elapsed() <= WITHIN + SILENT_MAX);
    }

    #[tokio::test(start_paused = true)]
    async fn where_all_was_read_nothing_is_waited_for() {
        let (ours, _theirs) = tokio::io::duplex(10);
        let begun = Instant::now();
        DrainBody::new(ours, unread(false)).shutdown().await.unwrap();
        assert!(begun.elapsed() < Duration::from_millis(2));
    }
}
