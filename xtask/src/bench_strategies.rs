//! `cargo xtask bench-strategies`: how evenly bursts are spread over workers, how soon their tasks start, and whether a
//! worker with room is idle while tasks wait. With `--before`, the same of an earlier program, in turns.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use futures::TryStreamExt;
use jiff::Timestamp;
use serde_json::{Map, Value};
use tasklane_client::{BatchItem, Client, Status, Task, TaskQuery, TaskRequest};

use crate::bench_cluster::Worker;
use crate::cargo::{cargo, run as run_program};
use crate::chaos::{Database, Disk, Spawner, Topology};
use crate::figures::{Bar, Figures};
use crate::server::{Server, target};

/// What to measure.
#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// Only on this store
    #[arg(long, value_enum)]
    store: Option<Topology>,
    /// Servers of each cluster
    #[arg(long, value_delimiter = ',', default_value = "1,3")]
    servers: Vec<usize>,
    /// Bursts of each strategy in a round
    #[arg(long, default_value_t = 20)]
    bursts: usize,
    /// Rounds; the medians are printed
    #[arg(long, default_value_t = 1)]
    rounds: usize,
    /// This program instead of a release build
    #[arg(long, value_name = "PROGRAM")]
    program: Option<PathBuf>,
    /// An earlier program to compare with
    #[arg(long, value_name = "PROGRAM")]
    before: Option<PathBuf>,
}

/// Workers of each cluster: names, weights, and attempts at once.
const WORKERS: [(&str, u32); 3] = [("w1", 1), ("w2", 1), ("w3", 4)];
const CAPACITY: usize = 20;
/// Half of the capacity of all.
const BURST: usize = 30;
/// The strategies, each with the tasks of a burst that every worker should get.
const STRATEGIES: [(&str, [usize; 3]); 3] =
    [("leastLoad", [10, 10, 10]), ("roundRobin", [10, 10, 10]), ("weighted", [5, 5, 20])];
/// Three times the capacity of all.
const FLOOD: usize = 3 * CAPACITY * WORKERS.len();
/// Tasks one by one into an idle cluster.
const SINGLE: usize = 50;
const PATIENCE: Duration = Duration::from_mins(1);
const LOOK_EVERY: Duration = Duration::from_millis(50);

pub(crate) fn run(options: &Options) -> Result<()> {
    let program = if let Some(program) = &options.program {
        program.canonicalize()?
    } else {
        run_program(&mut cargo(&["build", "--release", "--package", "tasklane"]))?;
        target().join("release/tasklane")
    };
    let folder = tempfile::Builder::new().prefix("bench-").tempdir_in(target())?;
    // The database may run as another user.
    std::fs::set_permissions(folder.path(), std::os::unix::fs::PermissionsExt::from_mode(0o755))?;
    let stores = options.store.map_or_else(|| vec![Topology::Postgres, Topology::Redis], |store| vec![store]);
    let mut figures = Figures::new("");
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let before = options.before.as_deref().map(|program| (program, "before: "));
    for round in 1..=options.rounds {
        println!("round {round} of {}", options.rounds);
        for &store in &stores {
            for &servers in &options.servers {
                for (program, whose) in before.into_iter().chain([(program.as_path(), "")]) {
                    let work = folder.path().join(format!("{store}-{servers}-{round}-{}", whose.len()));
                    std::fs::create_dir(&work)?;
                    let bed = Bed { store, servers, program, work: &work, bursts: options.bursts, whose };
                    runtime.block_on(bed.measure(&mut figures))?;
                    std::fs::remove_dir_all(&work)?;
                }
            }
        }
    }
    figures.tell();
    Ok(())
}

/// The processes and rates of one round on one cluster.
#[derive(Clone, Copy)]
struct Bed<'a> {
    store: Topology,
    servers: usize,
    program: &'a Path,
    work: &'a Path,
    bursts: usize,
    whose: &'static str,
}

impl Bed<'_> {
    async fn measure(self, figures: &mut Figures) -> Result<()> {
        let Self { store, servers, program, work, whose, .. } = self;
        println!("  {whose}{store}, servers: {servers}");
        let database = Database::start(store, work, Spawner::start(), Disk::Usual).await?;
        let database = database.context("the store needs a database")?;
        let url = database.own_url();
        let mut started = Vec::new();
        for n in 0..servers {
            let args = ["server", "--listen", "127.0.0.1:0", "--store", &url, "--data-dir"];
            started.push(Server::start_with(program, &args, &work.join(format!("server-{n}")), &[])?);
        }
        let workers = WORKERS.map(|(name, weight)| {
            let (capacity, weight) =
                (format!("worker.capacity={CAPACITY}"), format!("worker.weight={weight}"));
            let args = ["--name", name, "--set", &capacity, "--set", &weight];
            Worker::start(program, &url, &work.join(name), &args)
        });
        let _workers = workers.into_iter().collect::<Result<Vec<_>>>()?;
        let client = Client::new(&started[0].url)?;
        until("all workers", async || Ok(client.workers().await?.len() == WORKERS.len())).await?;
        let name = |what: &str| format!("{whose}{store}, servers {servers}: {what}");
        singles(&client, figures, &name).await?;
        for (strategy, shares) in STRATEGIES {
            let mut far = 0;
            for burst in 0..self.bursts {
                let tasks =
                    run_tasks(&client, &format!("{strategy}-{burst}"), strategy, BURST, "sleep 1").await?;
                let got = WORKERS.map(|(worker, _)| {
                    tasks.iter().filter(|task| task.worker.as_deref() == Some(worker)).count()
                });
                let off = got.iter().zip(shares).map(|(got, share)| got.abs_diff(share)).max().unwrap_or(0);
                let most = got.iter().max().unwrap_or(&0) - got.iter().min().unwrap_or(&0);
                let is_far = if strategy == "weighted" { off > 1 } else { most > 1 };
                far += usize::from(is_far);
                if is_far {
                    println!("    {strategy}, burst {burst}: {got:?}");
                }
                figures.add(&name("last start of a burst"), "ms", None, last_start(&tasks));
            }
            #[expect(clippy::cast_precision_loss, reason = "a few")]
            let far = far as f64;
            figures.add(&name(&format!("{strategy}, uneven bursts")), "", Some(Bar::Below(1.0)), far);
        }
        let tasks = run_tasks(&client, "flood", "leastLoad", FLOOD, "sleep 0.5").await?;
        figures.add(&name("longest idle with work"), "ms", Some(Bar::Below(50.0)), longest_idle(&tasks)?);
        Ok(())
    }
}

/// Submits tasks one by one into an idle cluster.
async fn singles(client: &Client, figures: &mut Figures, name: &impl Fn(&str) -> String) -> Result<()> {
    let mut times = Vec::new();
    for _ in 0..SINGLE {
        let began = Instant::now();
        let task = client.submit_and_wait(&TaskRequest::new("single", "NOOP", ""), PATIENCE).await?;
        ensure!(task.status == Status::Success, "a task ended as {}", task.status);
        times.push(began.elapsed().as_secs_f64() * 1000.0);
    }
    times.sort_by(f64::total_cmp);
    figures.add(&name("one task, p50"), "ms", None, times[SINGLE / 2]);
    Ok(())
}

/// Runs tasks that come at once into a queue of their own.
async fn run_tasks(
    client: &Client,
    queue: &str,
    strategy: &str,
    count: usize,
    command: &str,
) -> Result<Vec<Task>> {
    let policy = Map::from_iter([("strategy".to_owned(), Value::from(strategy))]);
    client.put_queue(queue, 0, &policy).await?;
    let task = TaskRequest { queue: Some(queue.to_owned()), ..TaskRequest::shell("burst", command) };
    let answers = client.submit_batch(&vec![task; count]).await?;
    ensure!(
        answers.iter().all(|item| matches!(item, BatchItem::Submitted(_))),
        "not all tasks were taken in"
    );
    until("the end of a burst", async || Ok(client.queue(queue).await?.unfinished() == 0)).await?;
    let query = TaskQuery { queue: Some(queue.to_owned()), ..TaskQuery::default() };
    let tasks: Vec<Task> = client.list_all(query).try_collect().await?;
    ensure!(tasks.len() == count && tasks.iter().all(|task| task.attempt == 1), "tasks ran more than once");
    Ok(tasks)
}

/// From the first submit to the last start, in milliseconds.
fn last_start(tasks: &[Task]) -> f64 {
    let first = tasks.iter().filter_map(|task| task.created_at).min();
    let last = tasks.iter().filter_map(|task| task.started_at).max();
    first.zip(last).map_or(f64::NAN, |(first, last)| last.duration_since(first).as_secs_f64() * 1000.0)
}

/// The longest time for which a worker had room while a task waited, in milliseconds, from the first start on.
fn longest_idle(tasks: &[Task]) -> Result<f64> {
    let times: Option<Vec<(Timestamp, Timestamp, &str)>> = tasks
        .iter()
        .map(|task| Some((task.started_at?, task.finished_at?, task.worker.as_deref()?)))
        .collect();
    let times = times.context("a task has no times")?;
    let (first, last) = (times.iter().map(|time| time.0).min(), times.iter().map(|time| time.0).max());
    let (first, last) = first.zip(last).context("no task ran")?;
    let mut changes: BTreeMap<&str, Vec<(Timestamp, i64)>> = BTreeMap::new();
    for &(began, ended, worker) in &times {
        changes.entry(worker).or_default().extend([(began, 1), (ended, -1)]);
    }
    let mut longest = 0.0_f64;
    for of_worker in changes.values_mut() {
        of_worker.sort_unstable();
        let (mut running, mut idle_since) = (0, Some(first));
        for &(at, change) in of_worker.iter().filter(|(at, _)| *at <= last).chain([&(last, 0)]) {
            running += change;
            let has_room = usize::try_from(running).is_ok_and(|running| running < CAPACITY);
            match idle_since {
                Some(since) if !has_room || at == last => {
                    longest = longest.max(at.duration_since(since).as_secs_f64() * 1000.0);
                    idle_since = None;
                }
                None if has_room => idle_since = Some(at),
                _ => {}
            }
        }
    }
    Ok(longest)
}

async fn until(what: &str, mut holds: impl AsyncFnMut() -> Result<bool>) -> Result<()> {
    let began = Instant::now();
    while !holds().await? {
        if began.elapsed() > PATIENCE {
            bail!("{what} did not come within {PATIENCE:?}");
        }
        tokio::time::sleep(LOOK_EVERY).await;
    }
    Ok(())
}
