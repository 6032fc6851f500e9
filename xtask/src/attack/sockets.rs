//! Exhausted connections and descriptors: more of them than a server can have.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::plan::Class;
use super::system::{DESCRIPTORS_MAX, System};
use super::tally::Reason;

/// How a crowd of connections behaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Crowd {
    /// They send nothing: more than the server has descriptors without raising its limit.
    Idle,
    /// They send half a head: more than the server has descriptors at all.
    HalfHeads,
    /// They declare 4 MiB and send a byte.
    SlowBodies,
    /// They answer nothing: each asks for a stream and reads none of it.
    UnreadStreams,
}

impl Crowd {
    pub(super) const ALL: [Self; 4] = [Self::Idle, Self::HalfHeads, Self::SlowBodies, Self::UnreadStreams];

    pub(super) const fn as_str(self) -> &'static str {
        match self {
            Self::Idle => "idle connections",
            Self::HalfHeads => "half-sent heads",
            Self::SlowBodies => "slow bodies",
            Self::UnreadStreams => "streams that are not read",
        }
    }

    const fn size(self) -> usize {
        match self {
            Self::Idle => 1_400,
            Self::HalfHeads => DESCRIPTORS_MAX + 200,
            Self::SlowBodies => 300,
            Self::UnreadStreams => 700,
        }
    }

    const fn sends(self) -> &'static [u8] {
        match self {
            Self::Idle => b"",
            Self::HalfHeads => b"POST /api/v1/tasks HTTP/1.1\r\nhost: 127.0.0.1\r\nx-half: ",
            Self::SlowBodies => {
                b"POST /api/v1/tasks HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\n\
                  content-length: 4194304\r\n\r\n{"
            }
            Self::UnreadStreams => b"GET /api/v1/events HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n",
        }
    }
}

/// How many connections are opened at once, and the pause before the next ones: the backlog of the kernel is not what is
/// attacked.
const AT_ONCE: usize = 50;
const PAUSE: Duration = Duration::from_millis(25);
/// How long a crowd stays.
const STAY: Duration = Duration::from_secs(4);
/// A connection that cannot be made within this time is left out.
const CONNECT_WITHIN: Duration = Duration::from_secs(2);

/// Opens a crowd of connections, and lets them stay for a while.
pub(super) async fn crowd(system: &Arc<System>, crowd: Crowd) -> Result<()> {
    let _crowded = system.tally.outage(Reason::Crowded);
    let to = system.target();
    let mut open = Vec::new();
    let mut left = crowd.size();
    while left > 0 {
        let now = left.min(AT_ONCE);
        left -= now;
        let connect = async || {
            let mut stream = tokio::time::timeout(CONNECT_WITHIN, TcpStream::connect(to)).await.ok()?.ok()?;
            stream.write_all(crowd.sends()).await.ok()?;
            Some(stream)
        };
        open.extend(futures::future::join_all((0..now).map(|_| connect())).await.into_iter().flatten());
        tokio::time::sleep(PAUSE).await;
    }
    let opened = open.len();
    tokio::time::sleep(STAY).await;
    let mut closed = 0;
    for stream in &mut open {
        let mut byte = [0; 1];
        let ended = tokio::time::timeout(Duration::ZERO, stream.read(&mut byte)).await;
        closed += usize::from(matches!(ended, Ok(Ok(0) | Err(_))));
    }
    println!("{}: {opened} opened, {closed} closed by the server", crowd.as_str());
    system.tally.count(Class::Sockets, crowd.as_str());
    Ok(())
}
