//! Measures the store alone: whole life cycles of tasks, committed in batches. It asserts nothing and runs
//! only on request: `cargo test --profile ci -p tasklane-postgres --test throughput -- --ignored --nocapture
//! --test-threads 1`.

#![expect(
    clippy::print_stdout,
    clippy::unwrap_used,
    reason = "what was measured is printed, and what fails, panics"
)]

mod support;

use std::sync::Arc;
use std::time::Instant;

use futures::StreamExt;
use futures::future::join_all;
use futures::stream::FuturesOrdered;
use support::PostgresServer;
use tasklane_core::commit::{Commit, Group, GroupOutcome};
use tasklane_core::id::LaneId;
use tasklane_core::status::Status::{Dispatched, Running, Scheduled, Success};
use tasklane_core::task::NewTask;
use tasklane_ports::Store;
use tasklane_ports::conformance::fixture::{
    LANE, Owner, TaskBuilder, advance, at, changing, create, inserting_assigned,
};
use tasklane_ports::conformance::run_long;

fn assigning(new: &NewTask) -> Group {
    changing(new.id, &new.state(), &[Scheduled])
}

fn finishing(new: &NewTask) -> Group {
    let (_, assigned) = advance(&new.state(), &[Scheduled], at(1_000));
    changing(new.id, &assigned, &[Dispatched, Running, Success])
}

fn tasks(lane: LaneId, numbers: std::ops::Range<u64>) -> Vec<NewTask> {
    let create = |n| TaskBuilder::new(lane, n).created_at(at(i64::try_from(n / 100).unwrap())).build();
    numbers.map(create).collect()
}

/// Measures the time of a part and the CPU of server and process for it: on a machine with other work only
/// the CPU is comparable.
struct Watch<'a> {
    server: &'a PostgresServer,
    tasks: u64,
    started: Instant,
    cpu: (f64, f64),
}

impl<'a> Watch<'a> {
    fn start(server: &'a PostgresServer, tasks: u64) -> Self {
        Self { server, tasks, started: Instant::now(), cpu: cpu_seconds(server) }
    }

    #[expect(clippy::cast_precision_loss, reason = "a few hundred thousand")]
    fn stop(self, what: &str) {
        let tasks = self.tasks as f64;
        let rate = tasks / self.started.elapsed().as_secs_f64();
        let (server, own) = cpu_seconds(self.server);
        let each = |now: f64, before: f64| (now - before) * 1e6 / tasks;
        println!(
            "  {what:<42} {rate:>8.0}/s, CPU of each: {:>5.1} us server, {:>4.1} us here",
            each(server, self.cpu.0),
            each(own, self.cpu.1)
        );
    }
}

/// CPU of all present processes of the server, and of this process.
fn cpu_seconds(server: &PostgresServer) -> (f64, f64) {
    let stat = |pid: &str| -> Option<(String, f64)> {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
        let ticks: f64 = fields[11].parse::<f64>().ok()? + fields[12].parse::<f64>().ok()?;
        Some((fields[1].to_owned(), ticks / 100.0))
    };
    let main = server.pid().to_string();
    let processes = std::fs::read_dir("/proc").unwrap().flatten().filter_map(|entry| {
        let pid = entry.file_name().into_string().ok()?;
        pid.parse::<u32>().ok()?;
        let (parent, seconds) = stat(&pid)?;
        (pid == main || parent == main).then_some(seconds)
    });
    (processes.sum(), stat("self").unwrap().1)
}

fn check(outcomes: Vec<GroupOutcome>) {
    assert!(outcomes.into_iter().all(|outcome| matches!(outcome, GroupOutcome::Applied { .. })));
}

/// Sends commits of one lane, two of them at a time.
async fn commit_all(owner: &mut Owner, batches: impl Iterator<Item = Vec<Group>>) {
    let store = Arc::clone(&owner.store);
    let send = |commit: Commit| {
        let store = Arc::clone(&store);
        async move { store.commit(&commit).await.unwrap() }
    };
    let mut under_way = FuturesOrdered::new();
    for groups in batches {
        if under_way.len() == UNDER_WAY {
            check(under_way.next().await.unwrap());
        }
        under_way.push_back(send(owner.next(groups)));
    }
    while let Some(outcomes) = under_way.next().await {
        check(outcomes);
    }
}

const UNDER_WAY: usize = 2;

/// One lane, from submit to the end in three writes, then in two.
async fn measure(server: &PostgresServer, batch: usize, count: u64) {
    let store: Arc<dyn Store> = Arc::new(support::connect(&server.url(), &support::fresh_options()).await);
    let mut owner = Owner::claim(&store, LANE).await;
    let new = tasks(LANE, 0..count);
    let whole = Watch::start(server, count);
    let part = Watch::start(server, count);
    for batch in new.chunks(batch) {
        create(&*store, batch).await;
    }
    part.stop("submit");
    let part = Watch::start(server, count);
    commit_all(&mut owner, new.chunks(batch).map(|batch| batch.iter().map(assigning).collect())).await;
    part.stop("assign");
    let part = Watch::start(server, count);
    commit_all(&mut owner, new.chunks(batch).map(|batch| batch.iter().map(finishing).collect())).await;
    part.stop("finish");
    whole.stop("life cycle of 3 writes");
    for lanes in [1, 2, 4] {
        two_writes(server, &store, lanes, batch, count).await;
    }
}

/// Several lanes in parallel, each task created and assigned in one write and ended by the next but one.
async fn two_writes(server: &PostgresServer, store: &Arc<dyn Store>, lanes: u16, batch: usize, count: u64) {
    let lane = move |number: u16| LaneId(100 + 10 * lanes + number);
    let each = count / u64::from(lanes);
    let work: Vec<_> = (0..lanes).map(|number| tasks(lane(number), 0..each)).collect();
    let whole = Watch::start(server, each * u64::from(lanes));
    let cycles = work.into_iter().zip(0..).map(|(new, number)| {
        let store = Arc::clone(store);
        tokio::spawn(async move {
            let mut owner = Owner::claim(&store, lane(number)).await;
            let inserts = |batch: &[NewTask]| batch.iter().cloned().map(inserting_assigned).collect();
            let ends = |batch: &[NewTask]| batch.iter().map(finishing).collect();
            commit_all(&mut owner, new.chunks(batch).flat_map(|batch| [inserts(batch), ends(batch)])).await;
        })
    });
    join_all(cycles).await.into_iter().for_each(|done| done.unwrap());
    whole.stop(&format!("life cycle of 2 writes, {lanes} lanes"));
}

fn life_cycles(batch: usize, count: u64) {
    run_long("life cycles", async {
        let server = PostgresServer::start_with(&["max_wal_size=4GB"])?;
        println!("batches of {batch}");
        measure(&server, batch, count).await;
        Some(())
    });
}

#[test]
#[ignore = "a measurement"]
fn batches_of_1() {
    life_cycles(1, 3_000);
}

#[test]
#[ignore = "a measurement"]
fn batches_of_10() {
    life_cycles(10, 20_000);
}

#[test]
#[ignore = "a measurement"]
fn batches_of_100() {
    life_cycles(100, 50_000);
}

#[test]
#[ignore = "a measurement"]
fn batches_of_500() {
    life_cycles(500, 100_000);
}

#[test]
#[ignore = "a measurement"]
fn batches_of_1000() {
    life_cycles(1_000, 100_000);
}
