//! A TCP proxy that holds requests back or loses answers.

use std::sync::Arc;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Notify, watch};
use tokio::task::JoinHandle;

/// The behaviour of a proxy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    /// Passes everything on.
    Pass,
    /// Keeps requests until the mode changes.
    HoldRequests,
    /// Passes requests on, and breaks the connection instead of passing an answer on.
    LoseAnswers,
    /// Passes a part of a request on, and then breaks the connection.
    CutRequests,
    /// Accepts no connection and breaks the open ones.
    Refuse,
    /// Passes everything on but notifications, as a pooler in transaction mode does.
    DropNotifications,
}

/// A proxy in front of a server.
#[derive(Debug)]
pub(crate) struct Proxy {
    port: u16,
    mode: watch::Sender<Mode>,
    held: Arc<Notify>,
    listener: JoinHandle<()>,
}

impl Proxy {
    /// Starts one in front of a local port.
    pub(crate) async fn start(target: u16) -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let (mode, seen) = watch::channel(Mode::Pass);
        let held = Arc::new(Notify::new());
        let listener = tokio::spawn(accept(listener, target, seen, Arc::clone(&held)));
        Self { port, mode, held, listener }
    }

    /// Without the request for TLS, whose answer is no message of the protocol.
    pub(crate) fn url(&self) -> String {
        format!("postgres://tasklane@127.0.0.1:{}/postgres?sslmode=disable", self.port)
    }

    pub(crate) fn set(&self, mode: Mode) {
        self.mode.send_replace(mode);
    }

    /// Waits until a request is held.
    pub(crate) async fn held(&self) {
        self.held.notified().await;
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.listener.abort();
    }
}

async fn accept(listener: TcpListener, target: u16, mode: watch::Receiver<Mode>, held: Arc<Notify>) {
    while let Ok((client, _)) = listener.accept().await {
        if *mode.borrow() == Mode::Refuse {
            continue;
        }
        let Ok(server) = TcpStream::connect(("127.0.0.1", target)).await else { continue };
        let (from_client, to_client) = client.into_split();
        let (from_server, to_server) = server.into_split();
        let (requests, answers) = (mode.clone(), mode.clone());
        let held = Arc::clone(&held);
        tokio::spawn(async move {
            tokio::select! {
                () = pass_requests(from_client, to_server, requests, held) => {}
                () = pass_answers(from_server, to_client, answers) => {}
            }
        });
    }
}

async fn pass_requests(
    mut from: OwnedReadHalf,
    mut to: OwnedWriteHalf,
    mut mode: watch::Receiver<Mode>,
    held: Arc<Notify>,
) {
    let mut buffer = vec![0; 1 << 16];
    while let Ok(n @ 1..) = from.read(&mut buffer).await {
        while *mode.borrow_and_update() == Mode::HoldRequests {
            held.notify_one();
            if mode.changed().await.is_err() {
                return;
            }
        }
        let now = *mode.borrow();
        if now == Mode::CutRequests {
            // The first half of the request; the rest never arrives.
            let _ = to.write_all(&buffer[..n / 2]).await;
            return;
        }
        if now == Mode::Refuse || to.write_all(&buffer[..n]).await.is_err() {
            return;
        }
    }
}

async fn pass_answers(mut from: OwnedReadHalf, mut to: OwnedWriteHalf, mode: watch::Receiver<Mode>) {
    let mut buffer = vec![0; 1 << 16];
    let mut pending = Vec::new();
    while let Ok(n @ 1..) = from.read(&mut buffer).await {
        pending.extend(&buffer[..n]);
        let drops_notifications = *mode.borrow() == Mode::DropNotifications;
        let answer = take_messages(&mut pending, |kind| !(drops_notifications && kind == b'A'));
        let lose = matches!(*mode.borrow(), Mode::LoseAnswers | Mode::Refuse);
        if lose || to.write_all(&answer).await.is_err() {
            return;
        }
    }
}

/// Takes the messages that are complete, and answers the wanted kinds.
fn take_messages(pending: &mut Vec<u8>, wanted: impl Fn(u8) -> bool) -> Vec<u8> {
    let (mut taken, mut answer) = (0, Vec::new());
    while let Some([kind, a, b, c, d]) = pending.get(taken..taken + 5) {
        let end = taken + 1 + u32::from_be_bytes([*a, *b, *c, *d]) as usize;
        if end > pending.len() {
            break;
        }
        if wanted(*kind) {
            answer.extend(&pending[taken..end]);
        }
        taken = end;
    }
    pending.drain(..taken);
    answer
}
