//! A TCP proxy that holds requests back or loses answers.

use std::borrow::Cow;
use std::pin::pin;
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
    /// Keeps answers until the mode changes, as if the client did not read.
    HoldAnswers,
    /// Passes requests on, and breaks the connection instead of passing an answer on.
    LoseAnswers,
    /// Accepts no connection and breaks the open ones.
    Refuse,
}

/// A proxy in front of a server, or of all nodes of a cluster.
#[derive(Debug)]
pub(crate) struct Proxy {
    ports: Vec<u16>,
    mode: watch::Sender<Mode>,
    held: Arc<Notify>,
    silenced: watch::Sender<u32>,
    listeners: Vec<JoinHandle<()>>,
}

impl Proxy {
    /// Starts one in front of a local port.
    pub(crate) async fn start(target: u16) -> Self {
        Self::before(&[target]).await
    }

    /// Starts one in front of several local ports. The nodes of a cluster announce each other's addresses; in
    /// answers to the client the proxy replaces them by its own.
    pub(crate) async fn before(targets: &[u16]) -> Self {
        let mut places = Vec::new();
        for target in targets {
            let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
            let port = listener.local_addr().unwrap().port();
            places.push((listener, *target, port));
        }
        let told = |port: u16| format!(":{port}\r\n");
        let names: Names = places.iter().map(|(_, target, port)| (told(*target), told(*port))).collect();
        let ports = places.iter().map(|(_, _, port)| *port).collect();
        let (mode, seen) = watch::channel(Mode::Pass);
        let held = Arc::new(Notify::new());
        let (silenced, _) = watch::channel(0);
        let listen = |(listener, target, _)| {
            let signals = (seen.clone(), silenced.subscribe());
            tokio::spawn(accept(listener, target, signals, Arc::clone(&held), Arc::clone(&names)))
        };
        let listeners = places.into_iter().map(listen).collect();
        Self { ports, mode, held, silenced, listeners }
    }

    pub(crate) fn url(&self) -> String {
        match self.ports.as_slice() {
            [port] => format!("redis://127.0.0.1:{port}"),
            ports => {
                let nodes: Vec<_> = ports.iter().map(|port| format!("127.0.0.1:{port}")).collect();
                format!("redis+cluster://{}", nodes.join(","))
            }
        }
    }

    pub(crate) fn set(&self, mode: Mode) {
        self.mode.send_replace(mode);
    }

    /// No byte passes the present connections any more, and neither side closes them. New connections pass.
    pub(crate) fn silence(&self) {
        self.silenced.send_modify(|times| *times += 1);
    }

    /// Waits until a request is held.
    pub(crate) async fn held(&self) {
        self.held.notified().await;
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.listeners.iter().for_each(JoinHandle::abort);
    }
}

/// Ports in answers to `CLUSTER SLOTS`, each with its replacement. The ports of tests are higher than every
/// slot number, so no other number in an answer matches one.
type Names = Arc<[(String, String)]>;

async fn accept(
    listener: TcpListener,
    target: u16,
    (mode, silenced): (watch::Receiver<Mode>, watch::Receiver<u32>),
    held: Arc<Notify>,
    names: Names,
) {
    while let Ok((client, _)) = listener.accept().await {
        if *mode.borrow() == Mode::Refuse {
            continue;
        }
        let Ok(server) = TcpStream::connect(("127.0.0.1", target)).await else { continue };
        let (from_client, to_client) = client.into_split();
        let (from_server, to_server) = server.into_split();
        let (requests, answers) = (mode.clone(), mode.clone());
        let (held, names) = (Arc::clone(&held), Arc::clone(&names));
        let mut silenced = silenced.clone();
        silenced.mark_unchanged();
        tokio::spawn(async move {
            let mut passing = pin!(async {
                tokio::select! {
                    () = pass_requests(from_client, to_server, requests, held) => {}
                    () = pass_answers(from_server, to_client, answers, names) => {}
                }
            });
            tokio::select! {
                () = &mut passing => {}
                // Both ends stay open, so that neither side notices.
                Ok(()) = silenced.changed() => std::future::pending().await,
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
        if *mode.borrow() == Mode::Refuse || to.write_all(&buffer[..n]).await.is_err() {
            return;
        }
    }
}

async fn pass_answers(
    mut from: OwnedReadHalf,
    mut to: OwnedWriteHalf,
    mut mode: watch::Receiver<Mode>,
    names: Names,
) {
    let mut buffer = vec![0; 1 << 16];
    while let Ok(n @ 1..) = from.read(&mut buffer).await {
        while *mode.borrow_and_update() == Mode::HoldAnswers {
            if mode.changed().await.is_err() {
                return;
            }
        }
        let answer = renamed(&buffer[..n], &names);
        let lose = matches!(*mode.borrow(), Mode::LoseAnswers | Mode::Refuse);
        if lose || to.write_all(&answer).await.is_err() {
            return;
        }
    }
}

fn renamed<'a>(answer: &'a [u8], names: &Names) -> Cow<'a, [u8]> {
    match str::from_utf8(answer) {
        Ok(text) if names.len() > 1 => {
            let text = names.iter().fold(text.to_owned(), |text, (name, other)| text.replace(name, other));
            Cow::Owned(text.into_bytes())
        }
        _ => Cow::Borrowed(answer),
    }
}
