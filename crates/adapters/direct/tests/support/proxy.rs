//! A TCP proxy that stops passing bytes, without an error to either side.

use std::sync::Arc;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinHandle;

/// What happens to connections, by their numbers.
#[derive(Clone, Copy, Debug, Default)]
struct Rules {
    /// The number of the next connection.
    next: u64,
    /// Connections with lower numbers stay open, and no byte passes.
    held_below: u64,
    /// Connections with lower numbers are broken.
    cut_below: u64,
}

/// A proxy in front of a server.
#[derive(Debug)]
pub(crate) struct Proxy {
    port: u16,
    rules: Arc<watch::Sender<Rules>>,
    listener: JoinHandle<()>,
}

impl Proxy {
    /// Starts one in front of the place that an endpoint names.
    pub(crate) async fn start(endpoint: &str) -> Self {
        let target = endpoint.split_once('/').unwrap().0.to_owned();
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let rules = Arc::new(watch::Sender::new(Rules::default()));
        let listener = tokio::spawn(accept(listener, target, Arc::clone(&rules)));
        Self { port, rules, listener }
    }

    /// The endpoint of the server behind the proxy, with the proxy's address.
    pub(crate) fn endpoint(&self, of: &str) -> String {
        format!("127.0.0.1:{}/{}", self.port, of.split_once('/').unwrap().1)
    }

    /// Holds all bytes, of present and of new connections.
    pub(crate) fn hold(&self) {
        self.rules.send_modify(|rules| rules.held_below = u64::MAX);
    }

    /// Holds all bytes of present connections. New ones pass.
    pub(crate) fn hold_present(&self) {
        self.rules.send_modify(|rules| rules.held_below = rules.next);
    }

    /// Everything passes again.
    pub(crate) fn pass(&self) {
        self.rules.send_modify(|rules| rules.held_below = 0);
    }

    /// Breaks all connections.
    pub(crate) fn cut(&self) {
        self.rules.send_modify(|rules| rules.cut_below = rules.next);
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.cut();
        self.listener.abort();
    }
}

async fn accept(listener: TcpListener, target: String, rules: Arc<watch::Sender<Rules>>) {
    while let Ok((client, _)) = listener.accept().await {
        let Ok(server) = TcpStream::connect(&target).await else { continue };
        let mut number = 0;
        rules.send_modify(|rules| {
            number = rules.next;
            rules.next += 1;
        });
        let (from_client, to_client) = client.into_split();
        let (from_server, to_server) = server.into_split();
        let (there, back, mut cut) = (rules.subscribe(), rules.subscribe(), rules.subscribe());
        tokio::spawn(async move {
            tokio::select! {
                () = pass(from_client, to_server, number, there) => {}
                () = pass(from_server, to_client, number, back) => {}
                _ = cut.wait_for(|rules| number < rules.cut_below) => {}
            }
        });
    }
}

async fn pass(
    mut from: OwnedReadHalf,
    mut to: OwnedWriteHalf,
    number: u64,
    mut rules: watch::Receiver<Rules>,
) {
    let mut buffer = vec![0; 1 << 16];
    while let Ok(n @ 1..) = from.read(&mut buffer).await {
        if rules.wait_for(|rules| number >= rules.held_below).await.is_err() {
            return;
        }
        if to.write_all(&buffer[..n]).await.is_err() {
            return;
        }
    }
}
