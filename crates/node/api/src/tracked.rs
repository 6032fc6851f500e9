//! A stream that reports its reads and writes to its [`Connection`], and answers a client that has
//! half-closed it.
//!
//! A client may say that it sends no more (`shutdown` of its side, as `nc -N` does) and still wait for its
//! answer. To the server that looks like a client that has left, until something is sent to it. So the server
//! answers such a client, but a wait for a task soon ends for it.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::Sleep;

use crate::connections::Connection;

/// An answer to a client that has half-closed its connection begins within this time.
const ANSWER_WITHIN: Duration = Duration::from_secs(10);

/// See the [module](self).
#[derive(Debug)]
pub(crate) struct Tracked {
    stream: TcpStream,
    connection: Arc<Connection>,
    /// Runs while the client sends no more and its answer has not begun.
    half_closed: Option<Pin<Box<Sleep>>>,
    /// Our side is closed: what still comes is no request.
    is_shut: bool,
}

impl Tracked {
    pub(crate) fn new(stream: TcpStream, connection: Arc<Connection>) -> Self {
        Self { stream, connection, half_closed: None, is_shut: false }
    }

    /// Passes on what a write answered.
    fn note_unsent<T>(&self, written: Poll<T>) -> Poll<T> {
        if written.is_pending() {
            self.connection.cannot_send();
        }
        written
    }

    /// Fails for a client that waits for its answer and is gone, in all likelihood.
    fn check_client(&mut self, cx: &mut Context<'_>) -> io::Result<()> {
        if !self.connection.is_asked() {
            self.half_closed = None;
            return Ok(());
        }
        if self.half_closed.is_none() {
            match self.stream.poll_peek(cx, &mut ReadBuf::new(&mut [0])) {
                Poll::Ready(Ok(0)) => {}
                Poll::Ready(Err(error)) => return Err(error),
                // It has sent its next request already, or is silent.
                Poll::Ready(Ok(_)) | Poll::Pending => return Ok(()),
            }
        }
        let wait = self.half_closed.get_or_insert_with(|| Box::pin(tokio::time::sleep(ANSWER_WITHIN)));
        match wait.as_mut().poll(cx) {
            Poll::Ready(()) => Err(io::Error::new(io::ErrorKind::TimedOut, "the client has closed its side")),
            Poll::Pending => Ok(()),
        }
    }
}

impl AsyncRead for Tracked {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let before = buf.filled().len();
        let read = Pin::new(&mut this.stream).poll_read(cx, buf);
        if read.is_pending() {
            this.connection.has_read_all();
        }
        ready!(read)?;
        if buf.filled().len() > before && !this.is_shut {
            this.connection.received();
        }
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Tracked {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let written = Pin::new(&mut this.stream).poll_write(cx, buf);
        this.note_unsent(written)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let written = Pin::new(&mut this.stream).poll_write_vectored(cx, bufs);
        this.note_unsent(written)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    /// Called whenever everything that there is to send was written, also while there is nothing.
    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        ready!(Pin::new(&mut this.stream).poll_flush(cx))?;
        this.connection.flushed();
        Poll::Ready(this.check_client(cx))
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        this.is_shut = true;
        Pin::new(&mut this.stream).poll_shutdown(cx)
    }
}
