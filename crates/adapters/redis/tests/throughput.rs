//! Measures the store alone: whole life cycles of tasks, committed in batches, one after the other. It
//! asserts nothing and runs only on request: `cargo test --profile ci -p tasklane-redis --test throughput --
//! --ignored --nocapture`.

#![expect(clippy::print_stdout, reason = "what was measured is printed")]

mod support;

use std::sync::Arc;
use std::time::Instant;

use support::RedisServer;
use tasklane_core::commit::Group;
use tasklane_core::status::Status::{Dispatched, Running, Scheduled, Success};
use tasklane_core::task::NewTask;
use tasklane_ports::Store;
use tasklane_ports::conformance::fixture::{
    APPLIED, LANE, Owner, advance, at, changing, create, inserting_assigned, tasks,
};
use tasklane_ports::conformance::run_long;

fn assigning(new: &NewTask) -> Group {
    changing(new.id, &new.state(), &[Scheduled])
}

fn finishing(new: &NewTask) -> Group {
    let (_, assigned) = advance(&new.state(), &[Scheduled], at(1_000));
    changing(new.id, &assigned, &[Dispatched, Running, Success])
}

/// Measures the time of a part and the server's CPU for it: on a machine with other work only the CPU is
/// comparable.
struct Watch<'a> {
    server: &'a RedisServer,
    tasks: u32,
    started: Instant,
    cpu: f64,
}

impl<'a> Watch<'a> {
    fn start(server: &'a RedisServer, tasks: u32) -> Self {
        Self { server, tasks, started: Instant::now(), cpu: cpu_seconds(server) }
    }

    fn stop(self, what: &str) {
        let tasks = f64::from(self.tasks);
        let rate = tasks / self.started.elapsed().as_secs_f64();
        let cpu = (cpu_seconds(self.server) - self.cpu) * 1e6 / tasks;
        println!("  {what:<42} {rate:>8.0}/s, {cpu:>5.1} us of the server's CPU each");
    }
}

fn cpu_seconds(server: &RedisServer) -> f64 {
    let info = server.command(&["INFO", "cpu"]);
    let seconds = |name: &str| {
        let line = info.lines().find_map(|line| line.strip_prefix(name));
        line.and_then(|seconds| seconds.trim().parse::<f64>().ok()).unwrap_or(f64::NAN)
    };
    seconds("used_cpu_user:") + seconds("used_cpu_sys:")
}

async fn commit_all(owner: &mut Owner, new: &[NewTask], batch: usize, group: fn(&NewTask) -> Group) {
    for batch in new.chunks(batch) {
        let groups: Vec<_> = batch.iter().map(group).collect();
        assert!(owner.commit(groups).await.iter().all(|outcome| *outcome == APPLIED));
    }
}

async fn measure(server: &RedisServer, batch: usize, count: u32) {
    let store: Arc<dyn Store> = Arc::new(support::connect(&server.url(), &support::fresh_options()).await);
    let mut owner = Owner::claim(&store, LANE).await;
    let new = tasks(0..u64::from(count));
    let whole = Watch::start(server, count);
    let part = Watch::start(server, count);
    for batch in new.chunks(batch) {
        create(&*store, batch).await;
    }
    part.stop("submit");
    let part = Watch::start(server, count);
    commit_all(&mut owner, &new, batch, assigning).await;
    part.stop("assign");
    let part = Watch::start(server, count);
    commit_all(&mut owner, &new, batch, finishing).await;
    part.stop("finish");
    whole.stop("life cycle of 3 writes");

    let new = tasks(u64::from(count)..2 * u64::from(count));
    let whole = Watch::start(server, count);
    for batch in new.chunks(batch) {
        let groups: Vec<_> = batch.iter().cloned().map(inserting_assigned).collect();
        owner.commit(groups).await;
        let groups: Vec<_> = batch.iter().map(finishing).collect();
        assert!(owner.commit(groups).await.iter().all(|outcome| *outcome == APPLIED));
    }
    whole.stop("life cycle of 2 writes");
}

#[test]
#[ignore = "a measurement"]
fn life_cycles() {
    run_long("life cycles", async {
        for (mode, append_only) in [("without persistence", "no"), ("append-only file, everysec", "yes")] {
            let server = RedisServer::start_with(&["--save", "", "--appendonly", append_only])?;
            for (batch, count) in [(1, 5_000), (10, 20_000), (100, 100_000), (1000, 100_000)] {
                println!("{mode}, batches of {batch}");
                measure(&server, batch, count).await;
            }
        }
        Some(())
    });
}
