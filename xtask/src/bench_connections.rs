//! `cargo xtask bench-connections`: ten thousand connections stay open at a server, and tasks start beside them, and beside
//! clients that are slow, as soon as without them.
//!
//! Machines differ from minute to minute, so rounds with and without the connections take turns, and medians are compared.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use futures::stream::{self, StreamExt, TryStreamExt};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};
use tokio::task::JoinSet;

use crate::cargo::{cargo, run as run_program};
use crate::figures::{Bar, Figures, bench, number};
use crate::server::{Server, target};

/// What to measure.
#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// Rounds with the connections, and as many without; the report shows their medians
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// Connections that stay open
    #[arg(long, default_value_t = 10_000)]
    connections: usize,
    /// Clients that send or read slowly beside them
    #[arg(long, default_value_t = 100)]
    slow: usize,
    /// Tasks a second
    #[arg(long, default_value_t = 500)]
    rate: u32,
    /// How long tasks are submitted in a round, in seconds
    #[arg(long, default_value_t = 10)]
    seconds: u32,
    /// A program to measure instead of a release that is built first
    #[arg(long, value_name = "FILE")]
    program: Option<PathBuf>,
}

/// Connections from one address of this machine: fewer than it has ports to give.
const FROM_ONE_ADDRESS: usize = 20_000;
/// Connections opened at once.
const OPENED_AT_ONCE: usize = 64;
/// How long a slow client waits between two bytes that it sends, or two pieces that it reads.
const SLOW_PAUSE: Duration = Duration::from_millis(50);
/// What tasks may wait longer beside the connections: this much of what they wait without, …
const TIMES_MAX: f64 = 1.5;
/// … or this many milliseconds.
const MORE_MS_MAX: f64 = 2.0;
/// The server's memory, in MiB, with all connections open.
const MEMORY_MAX: f64 = 300.0;

const REQUEST: &[u8] = b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n";
const ANSWER: &[u8] = b"HTTP/1.1 200 OK\r\n";
/// What slow clients ask for.
const SMALL: &[u8] = b"GET /healthz HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n";
const LARGE: &[u8] = b"GET /api/openapi.json HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n";

pub(crate) fn run(options: &Options) -> Result<()> {
    let limit = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit })?;
    let program = if let Some(program) = &options.program {
        std::path::absolute(program)?
    } else {
        run_program(&mut cargo(&["build", "--release", "--package", "tasklane"]))?;
        target().join("release/tasklane")
    };
    let folder = tempfile::Builder::new().prefix("bench-").tempdir_in(target())?;
    let server = Server::start(&program, &folder.path().join("data"), &[])?;
    let address: SocketAddr = server.url.trim_start_matches("http://").parse()?;
    let runtime = tokio::runtime::Runtime::new()?;
    let mut rounds = Vec::new();
    for round in 1..=options.rounds {
        println!("round {round} of {}", options.rounds);
        let alone = steady(&program, folder.path(), &server, options)?;
        let open = runtime.block_on(open(address, options.connections))?;
        let mut slow = JoinSet::new();
        for n in 0..options.slow {
            slow.spawn_on(slow_client(address, n % 2 == 0), runtime.handle());
        }
        let beside = steady(&program, folder.path(), &server, options)?;
        let memory = resident(server.process.id())?;
        let left = runtime.block_on(still_open(open));
        runtime.block_on(slow.shutdown());
        rounds.push(Round { alone, beside, memory, left });
    }
    tell(options, rounds);
    Ok(())
}

/// The figures of a round.
struct Round {
    /// Milliseconds until 99 of 100 tasks started, without the connections, …
    alone: f64,
    /// … and beside them.
    beside: f64,
    /// Of the server, in MiB.
    memory: f64,
    /// Connections that were still open at its end.
    left: usize,
}

#[expect(clippy::cast_precision_loss, reason = "far fewer than a float can count")]
fn tell(options: &Options, rounds: Vec<Round>) {
    let mut alone: Vec<f64> = rounds.iter().map(|round| round.alone).collect();
    alone.sort_by(f64::total_cmp);
    let median = alone[alone.len() / 2];
    let bar = (median * TIMES_MAX).max(median + MORE_MS_MAX);
    let mut figures = Figures::new("");
    let steady = format!("steady {}/s, submit → start p99", options.rate);
    for round in rounds {
        let open = Some(Bar::AtLeast(options.connections as f64));
        figures.add("connections that stayed open", "", open, round.left as f64);
        figures.add("memory of the server with them", "MiB", Some(Bar::Below(MEMORY_MAX)), round.memory);
        figures.add(&format!("{steady}, alone"), "ms", None, round.alone);
        figures.add(&format!("{steady}, beside them"), "ms", Some(Bar::Below(bar)), round.beside);
    }
    figures.tell();
}

fn steady(program: &Path, work: &Path, server: &Server, options: &Options) -> Result<f64> {
    let (rate, time) = (options.rate.to_string(), format!("{}s", options.seconds));
    let report = bench(program, work, &server.url, &["steady", "--rate", &rate, "--for", &time])?;
    number(&report, "/start/p99Ms")
}

/// Opens connections, each of which has been answered once.
async fn open(address: SocketAddr, count: usize) -> Result<Vec<TcpStream>> {
    let opened = stream::iter(0..count).map(|n| async move {
        let nth = u8::try_from(2 + n / FROM_ONE_ADDRESS).context("more connections than addresses")?;
        let socket = TcpSocket::new_v4()?;
        socket.bind((Ipv4Addr::new(127, 0, 0, nth), 0).into())?;
        let mut stream = socket.connect(address).await.context("cannot connect")?;
        ensure!(ask(&mut stream).await, "the connection was closed at once");
        Ok(stream)
    });
    opened.buffer_unordered(OPENED_AT_ONCE).try_collect().await
}

/// Whether a request on this connection is answered.
async fn ask(stream: &mut TcpStream) -> bool {
    let asked = async {
        stream.write_all(REQUEST).await?;
        let mut answer = Vec::new();
        while !answer.ends_with(b"ok\n") {
            if stream.read_buf(&mut answer).await? == 0 {
                break;
            }
        }
        std::io::Result::Ok(answer.starts_with(ANSWER))
    };
    asked.await.unwrap_or(false)
}

async fn still_open(streams: Vec<TcpStream>) -> usize {
    let asked = stream::iter(streams).map(|mut stream| async move { usize::from(ask(&mut stream).await) });
    asked.buffer_unordered(OPENED_AT_ONCE).fold(0, async |sum, open| sum + open).await
}

/// Sends a request byte by byte, or reads a large answer piece by piece, again and again.
async fn slow_client(address: SocketAddr, sends_slowly: bool) {
    loop {
        let turn = async {
            let mut stream = TcpStream::connect(address).await?;
            if sends_slowly {
                for byte in SMALL {
                    stream.write_all(&[*byte]).await?;
                    tokio::time::sleep(SLOW_PAUSE).await;
                }
            } else {
                stream.write_all(LARGE).await?;
            }
            let mut piece = [0; 1024];
            while stream.read(&mut piece).await? > 0 {
                tokio::time::sleep(SLOW_PAUSE).await;
            }
            std::io::Result::Ok(())
        };
        // The server may close it for being slow; the next one comes at once.
        if turn.await.is_err() {
            tokio::time::sleep(SLOW_PAUSE).await;
        }
    }
}

/// Memory of a process that is in use, in MiB.
fn resident(pid: u32) -> Result<f64> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status"))?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).context("no VmRSS")?;
    let kib: u32 = line.trim().trim_end_matches("kB").trim().parse()?;
    Ok(f64::from(kib) / 1024.0)
}
