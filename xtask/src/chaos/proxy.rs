//! A TCP proxy between one process and the database, which can be cut, or hold back what passes through it.

use std::net::{Ipv4Addr, SocketAddr};

use anyhow::{Context, Result};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinHandle;

/// How a proxy treats the bytes that pass through it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mode {
    /// Passes everything on.
    Pass,
    /// Takes no connections.
    Refuse,
    /// Holds the bytes of the process.
    HoldRequests,
    /// Holds the bytes of the database.
    HoldAnswers,
    /// Takes everything and passes nothing on.
    Swallow,
}

#[derive(Clone, Copy, Debug)]
struct State {
    mode: Mode,
    /// Connections that were made before the last cut end.
    cuts: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Direction {
    Request,
    Answer,
}

impl Mode {
    fn holds(self, direction: Direction) -> bool {
        match self {
            Self::HoldRequests => direction == Direction::Request,
            Self::HoldAnswers => direction == Direction::Answer,
            Self::Pass | Self::Refuse | Self::Swallow => false,
        }
    }
}

/// A proxy. Ends with this.
#[derive(Debug)]
pub(super) struct Proxy {
    pub(super) address: SocketAddr,
    state: watch::Sender<State>,
    listener: JoinHandle<()>,
}

impl Proxy {
    /// Starts one at an address, on a free port.
    pub(super) async fn start(ip: Ipv4Addr, target: SocketAddr) -> Result<Self> {
        let listener = TcpListener::bind((ip, 0)).await.context("cannot start a proxy")?;
        let address = listener.local_addr()?;
        let (state, seen) = watch::channel(State { mode: Mode::Pass, cuts: 0 });
        let listener = tokio::spawn(accept(listener, target, seen));
        Ok(Self { address, state, listener })
    }

    /// Ends all connections, and treats new ones by `mode`.
    pub(super) fn cut(&self, mode: Mode) {
        self.state.send_modify(|state| *state = State { mode, cuts: state.cuts + 1 });
    }

    /// Treats all connections by `mode` from now on.
    pub(super) fn set(&self, mode: Mode) {
        self.state.send_modify(|state| state.mode = mode);
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.listener.abort();
    }
}

async fn accept(listener: TcpListener, target: SocketAddr, state: watch::Receiver<State>) {
    loop {
        let Ok((client, _)) = listener.accept().await else {
            // No descriptors left, most likely.
            tokio::task::yield_now().await;
            continue;
        };
        if state.borrow().mode != Mode::Refuse {
            tokio::spawn(pass(client, target, state.clone()));
        }
    }
}

/// Connects, and passes on in both directions until one of them ends or the line is cut.
async fn pass(client: TcpStream, target: SocketAddr, state: watch::Receiver<State>) {
    let born = state.borrow().cuts;
    let Ok(server) = TcpStream::connect(target).await else { return };
    // As without a proxy between: small messages are not kept waiting for larger ones.
    let _ = client.set_nodelay(true).and_then(|()| server.set_nodelay(true));
    let (from_client, to_client) = client.into_split();
    let (from_server, to_server) = server.into_split();
    let requests = pump(from_client, to_server, Direction::Request, state.clone(), born);
    let answers = pump(from_server, to_client, Direction::Answer, state, born);
    tokio::select! {
        () = requests => {}
        () = answers => {}
    }
}

async fn pump(
    mut from: OwnedReadHalf,
    mut to: OwnedWriteHalf,
    direction: Direction,
    mut state: watch::Receiver<State>,
    born: u64,
) {
    let mut buffer = vec![0; 1 << 16];
    let mut filled = 0;
    loop {
        let now = *state.borrow_and_update();
        if now.cuts != born {
            return;
        }
        if now.mode.holds(direction) {
            if state.changed().await.is_err() {
                return;
            }
            continue;
        }
        if filled > 0 {
            let passed_on = now.mode == Mode::Swallow || to.write_all(&buffer[..filled]).await.is_ok();
            if !passed_on {
                return;
            }
            filled = 0;
        }
        tokio::select! {
            changed = state.changed() => if changed.is_err() { return },
            read = from.read(&mut buffer) => match read {
                Ok(0) | Err(_) => return,
                Ok(n) => filled = n,
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn echo() -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                tokio::spawn(async move {
                    let (mut from, mut to) = stream.split();
                    let _ = tokio::io::copy(&mut from, &mut to).await;
                });
            }
        });
        address
    }

    #[tokio::test]
    async fn what_is_held_comes_later_and_what_is_cut_never() {
        let proxy = Proxy::start(Ipv4Addr::LOCALHOST, echo().await).await.unwrap();
        let mut stream = TcpStream::connect(proxy.address).await.unwrap();
        let mut answer = [0; 2];
        stream.write_all(b"ab").await.unwrap();
        stream.read_exact(&mut answer).await.unwrap();
        assert_eq!(&answer, b"ab");

        proxy.set(Mode::HoldAnswers);
        stream.write_all(b"cd").await.unwrap();
        // Another connection is held as well: nothing passes until the mode changes.
        let mut other = TcpStream::connect(proxy.address).await.unwrap();
        other.write_all(b"xy").await.unwrap();
        proxy.set(Mode::Pass);
        stream.read_exact(&mut answer).await.unwrap();
        assert_eq!(&answer, b"cd");
        other.read_exact(&mut answer).await.unwrap();
        assert_eq!(&answer, b"xy");

        proxy.cut(Mode::Pass);
        assert!(matches!(stream.read(&mut answer).await, Ok(0) | Err(_)));
        let mut again = TcpStream::connect(proxy.address).await.unwrap();
        again.write_all(b"ef").await.unwrap();
        again.read_exact(&mut answer).await.unwrap();
        assert_eq!(&answer, b"ef");
    }
}
