//! Exhausted connections and descriptors: more of them than a server can have.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Result, ensure};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::plan::Class;
use super::system::{DESCRIPTORS_MAX, READY_WITHIN, System};
use super::tally::Reason;
use super::wire::ask;
use crate::chaos::process::{Member, MemberOptions, Role};

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
    /// They have no token, send request after request, and read next to nothing: at a server of their own with few
    /// connections.
    Unread,
}

impl Crowd {
    pub(super) const ALL: [Self; 5] =
        [Self::Idle, Self::HalfHeads, Self::SlowBodies, Self::UnreadStreams, Self::Unread];

    pub(super) const fn as_str(self) -> &'static str {
        match self {
            Self::Idle => "idle connections",
            Self::HalfHeads => "half-sent heads",
            Self::SlowBodies => "slow bodies",
            Self::UnreadStreams => "streams that are not read",
            Self::Unread => "answers that are not read",
        }
    }

    const fn size(self) -> usize {
        match self {
            Self::Idle => 1_400,
            Self::HalfHeads => DESCRIPTORS_MAX + 200,
            Self::SlowBodies => 300,
            Self::UnreadStreams => 700,
            Self::Unread => 3 * FEW_CONNECTIONS,
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
            Self::Unread => b"GET /healthz HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n",
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

/// The connections of the server of [`Crowd::Unread`].
const FEW_CONNECTIONS: usize = 20;
/// An honest client has its answer within this time.
const SERVED_WITHIN: Duration = Duration::from_secs(5);

/// Opens a crowd of connections, and lets them stay for a while.
pub(super) async fn crowd(system: &Arc<System>, crowd: Crowd) -> Result<()> {
    if crowd == Crowd::Unread {
        return unread(system).await;
    }
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

/// Honest clients are served beside clients without a token that do not read their answers.
async fn unread(system: &System) -> Result<()> {
    let folder = tempfile::Builder::new().prefix("unread-").tempdir_in(&system.folder)?;
    std::fs::create_dir_all(folder.path().join("logs"))?;
    let few = format!("limits.connections_max={FEW_CONNECTIONS}");
    let args = ["--set", &few, "--set", "token=no-client-of-the-crowd-has-it"];
    let server = Member::new(MemberOptions {
        name: "unread".to_owned(),
        role: Role::Dev,
        ip: Ipv4Addr::LOCALHOST,
        program: system.launcher.clone(),
        first: None,
        args: args.map(str::to_owned).into(),
        drain_grace: Duration::ZERO,
        folder: folder.path().to_owned(),
        spawner: system.spawner.clone(),
    })?;
    server.start()?;
    until_healthy(&server).await?;
    let mut crowd = JoinSet::new();
    for nth in 0..Crowd::Unread.size() {
        crowd.spawn(send_unread(server.api, nth));
    }
    let until = Instant::now() + STAY;
    while Instant::now() < until {
        tokio::time::sleep(PAUSE).await;
        let answer = ask(server.api, "/healthz", SERVED_WITHIN).await;
        if answer.as_ref().is_none_or(|answer| answer.status != 200) {
            let status = answer.map(|answer| answer.status);
            let what = format!("/healthz beside answers that are not read: {status:?}");
            system.tally.violation("an honest client was not served", &what);
        }
    }
    crowd.shutdown().await;
    server.kill(server.guard()).await?;
    system.tally.count(Class::Sockets, Crowd::Unread.as_str());
    Ok(())
}

async fn until_healthy(server: &Member) -> Result<()> {
    let until = Instant::now() + READY_WITHIN;
    while ask(server.api, "/healthz", SERVED_WITHIN).await.is_none_or(|answer| answer.status != 200) {
        ensure!(Instant::now() < until, "{} does not answer", server.name);
        tokio::time::sleep(PAUSE).await;
    }
    Ok(())
}

/// Sends requests for as long as it can: of every three clients one asks for what it may not have, and one reads a little.
async fn send_unread(to: SocketAddr, nth: usize) {
    let requests = match nth % 3 {
        0 => &b"GET /api/v1/tasks HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n"[..],
        _ => Crowd::Unread.sends(),
    };
    let requests = requests.repeat(1000);
    loop {
        tokio::time::sleep(PAUSE).await;
        let Ok(stream) = TcpStream::connect(to).await else { continue };
        let (mut reading, mut writing) = stream.into_split();
        let write = async { while writing.write_all(&requests).await.is_ok() {} };
        let read = async {
            if nth % 3 != 1 {
                std::future::pending::<()>().await;
            }
            loop {
                tokio::time::sleep(Duration::from_millis(700)).await;
                if !matches!(reading.read(&mut [0; 4096]).await, Ok(1..)) {
                    return;
                }
            }
        };
        tokio::select! {
            () = write => {}
            () = read => {}
        }
    }
}
