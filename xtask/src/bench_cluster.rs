//! `cargo xtask bench-cluster`: the speed of Tasklane on PostgreSQL and on Redis, beside the speed of each of
//! them alone in the same run, and how much faster two servers drain a spread queue than one.
//!
//! Client, servers, workers and database share the cores of one machine. The report shows the share of each,
//! because that shows the limit.

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use futures::future::try_join_all;
use futures::{StreamExt, TryStreamExt};
use tasklane_client::{BatchItem, Client, TaskRequest};
use tokio_postgres::NoTls;

use crate::cargo::{cargo, run as run_program};
use crate::chaos::{Database, Disk, Spawner, Topology};
use crate::figures::{Bar, Figures, bench, number, rate};
use crate::quota::Quota;
use crate::server::{Server, target};

/// What to measure.
#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// Only on this
    #[arg(long, value_enum)]
    store: Option<Topology>,
    /// Rounds; the report shows their medians
    #[arg(long, default_value_t = 3)]
    rounds: usize,
    /// Tasks in a burst
    #[arg(long, default_value_t = 100_000)]
    tasks: u64,
    /// Cores that each server may use where servers are the limit
    #[arg(long, default_value_t = 0.25)]
    server_cores: f64,
    /// Only figures whose name contains this
    #[arg(long, default_value = "")]
    only: String,
}

/// Tasks of each kind of write in a transaction.
const BATCH: u64 = 1000;
/// Transactions under way at once, where the store can do with more than one.
const CONNECTIONS: u64 = 2;
/// About as large as ours.
const STATE: usize = 100;
const SPEC: usize = 300;
/// Workers beside one or two servers.
const WORKERS: usize = 2;
/// Bytes of a task's payload.
const PAYLOAD: usize = 200;
/// Requests at once while a queue is filled.
const FILLERS: usize = 4;
/// How often a queue is looked at while it is drained.
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// A queue over all lanes.
const SPREAD_QUEUE: &str = "spread";

pub(crate) fn run(options: &Options) -> Result<()> {
    run_program(&mut cargo(&["build", "--release", "--package", "tasklane"]))?;
    let program = target().join("release/tasklane");
    // On the disk that builds are on, not in memory.
    let folder = tempfile::Builder::new().prefix("bench-").tempdir_in(target())?;
    // The database may run as another user.
    std::fs::set_permissions(folder.path(), std::os::unix::fs::PermissionsExt::from_mode(0o755))?;
    let stores = options.store.map_or_else(|| vec![Topology::Postgres, Topology::Redis], |store| vec![store]);
    let mut figures = Figures::new(&options.only);
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    for round in 1..=options.rounds {
        println!("round {round} of {}", options.rounds);
        for &store in &stores {
            let work = folder.path().join(format!("{store}-{round}"));
            std::fs::create_dir(&work)?;
            let bed = Bed {
                store,
                program: &program,
                work: &work,
                tasks: options.tasks,
                server_cores: options.server_cores,
            };
            bed.measure(&runtime, &mut figures)?;
            std::fs::remove_dir_all(&work)?;
        }
    }
    figures.tell();
    Ok(())
}

/// The processes and rates of one round on one store.
#[derive(Clone, Copy)]
struct Bed<'a> {
    store: Topology,
    program: &'a Path,
    work: &'a Path,
    tasks: u64,
    server_cores: f64,
}

impl Bed<'_> {
    fn measure(self, runtime: &tokio::runtime::Runtime, figures: &mut Figures) -> Result<()> {
        let Self { store, tasks, .. } = self;
        let database = runtime.block_on(self.database("alone"))?;
        let limit = runtime.block_on(async {
            match store {
                Topology::Postgres => postgres_alone(&database.own_url(), tasks).await,
                Topology::Redis => redis_alone(&database.own_url(), tasks).await,
                Topology::Sqlite => bail!("bench-limits measures SQLite"),
            }
        })?;
        drop(database);
        figures.add(&format!("{store} alone, three writes"), "/s", None, limit);
        if figures.wants("burst") {
            let database = runtime.block_on(self.database("burst"))?;
            let url = database.own_url();
            let server = Server::start_with(
                self.program,
                &["dev", "--listen", "127.0.0.1:0", "--store", &url, "--data-dir"],
                &self.work.join("dev"),
                &[],
            )?;
            let done = self.burst(&server, "bench")?;
            let bar = Bar::AtLeast(if store == Topology::Redis { 25_000.0 } else { 20_000.0 });
            figures.add(&format!("burst on {store}"), "/s", Some(bar), done);
            figures.add(&format!("burst on {store}, part of the store's limit"), "", None, done / limit);
        }
        if figures.wants("spread") {
            for cores in [None, Some(self.server_cores)] {
                let one = self.spread(runtime, 1, cores, figures)?;
                let two = self.spread(runtime, 2, cores, figures)?;
                let name = format!("spread on {store}{}, two servers by one", shown(cores));
                figures.add(&name, "", Some(Bar::AtLeast(1.0)), two / one);
            }
        }
        Ok(())
    }

    async fn database(self, name: &str) -> Result<Database> {
        let folder = self.work.join(format!("database-{name}"));
        std::fs::create_dir(&folder)?;
        let started = Database::start(self.store, &folder, Spawner::start(), Disk::Usual).await?;
        started.context("the store needs a database")
    }

    fn burst(self, server: &Server, queue: &str) -> Result<f64> {
        let tasks = self.tasks.to_string();
        let report = bench(self.program, self.work, &server.url, &["burst", "-n", &tasks, "--queue", queue])?;
        number(&report, "/completedPerSecond")
    }

    /// Drains a queue over all lanes, with some servers and always as many workers. Servers may have no more than a part of
    /// a core each, as on machines of their own; else they share the cores with all others.
    fn spread(
        self,
        runtime: &tokio::runtime::Runtime,
        count: usize,
        cores: Option<f64>,
        figures: &mut Figures,
    ) -> Result<f64> {
        let Self { store, program, work, .. } = self;
        let database = runtime.block_on(self.database(&format!("spread-{count}{}", cores.is_some())))?;
        let url = database.own_url();
        let mut servers = Vec::new();
        for n in 0..count {
            let data = work.join(format!("server-{count}-{n}{}", cores.is_some()));
            let args = ["server", "--listen", "127.0.0.1:0", "--store", &url, "--data-dir"];
            servers.push(Server::start_with(program, &args, &data, &[])?);
        }
        let workers = (0..WORKERS)
            .map(|n| {
                let data = work.join(format!("worker-{count}-{n}{}", cores.is_some()));
                Worker::start(program, &url, &data, &[])
            })
            .collect::<Result<Vec<_>>>()?;
        let said = Command::new(program)
            .args(["queue", "set", SPREAD_QUEUE, "--spread", ""])
            .env("TASKLANE_URL", &servers[0].url)
            .stdin(Stdio::null())
            .output()?;
        ensure!(said.status.success(), "{}", String::from_utf8_lossy(&said.stderr));
        let client = Client::new(&servers[0].url)?;
        println!("  drain of a spread queue, servers: {count}{}", shown(cores));
        runtime.block_on(fill(&client, self.tasks))?;
        let mut quotas = Vec::new();
        for (n, server) in servers.iter().enumerate().filter(|_| cores.is_some()) {
            let quota = Quota::new(&format!("server-{n}"), cores.unwrap_or_default())?;
            quota.add(server.process.id())?;
            quotas.push(quota);
        }
        let used = |pids: &[u32]| pids.iter().map(|pid| cpu_seconds(*pid)).sum::<f64>();
        let of_servers: Vec<u32> = servers.iter().map(|server| server.process.id()).collect();
        let of_workers: Vec<u32> = workers.iter().map(|worker| worker.0.id()).collect();
        let (began, before) = (Instant::now(), (used(&of_servers), used(&of_workers)));
        let (database_before, all_before) = (used(&database.pids()), busy_seconds());
        runtime.block_on(drain(&client))?;
        let seconds = began.elapsed().as_secs_f64();
        let done = rate(self.tasks, began.elapsed());
        let name = format!("spread on {store}{}, servers: {count}", shown(cores));
        figures.add(&name, "/s", None, done);
        for (part, busy) in [
            ("servers", used(&of_servers) - before.0),
            ("workers", used(&of_workers) - before.1),
            ("database", used(&database.pids()) - database_before),
            ("all", busy_seconds() - all_before),
        ] {
            figures.add(&format!("{name}: cores that {part} used"), "", None, busy / seconds);
        }
        // Before their quotas.
        drop(servers);
        Ok(done)
    }
}

fn shown(cores: Option<f64>) -> String {
    cores.map(|cores| format!(", {cores} of a core each")).unwrap_or_default()
}

/// Fills the paused queue.
async fn fill(client: &Client, tasks: u64) -> Result<()> {
    client.pause_queue(SPREAD_QUEUE, true).await?;
    let payload = "x".repeat(PAYLOAD);
    let task = TaskRequest { queue: Some(SPREAD_QUEUE.to_owned()), ..TaskRequest::new("t", "NOOP", payload) };
    let batch = vec![task; usize::try_from(BATCH)?];
    let batches = futures::stream::iter(0..tasks / BATCH).map(|_| client.submit_batch(&batch));
    let answers: Vec<Vec<BatchItem>> = batches.buffer_unordered(FILLERS).try_collect().await?;
    ensure!(
        answers.iter().flatten().all(|item| matches!(item, BatchItem::Submitted(_))),
        "not all tasks were taken in"
    );
    Ok(())
}

/// Lets the queue run until it is empty.
async fn drain(client: &Client) -> Result<()> {
    // This is answered when it holds everywhere, which takes a second; tasks begin at once.
    let resumed = client.resume_queue(SPREAD_QUEUE);
    let emptied = async {
        while client.queue(SPREAD_QUEUE).await?.unfinished() > 0 {
            tokio::time::sleep(LOOK_EVERY).await;
        }
        Ok(())
    };
    futures::try_join!(resumed, emptied)?;
    Ok(())
}

/// A worker process, ended with this.
pub(crate) struct Worker(Child);

impl Worker {
    pub(crate) fn start(program: &Path, url: &str, data: &Path, args: &[&str]) -> Result<Self> {
        let child = Command::new(program)
            .args(["worker", "--store", url, "--data-dir"])
            .arg(data)
            .args(args)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn();
        Ok(Self(child.context("cannot start a worker")?))
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The share of all cores that a process has used since its start; nothing if it has ended.
fn cpu_seconds(pid: u32) -> f64 {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    // Behind the name, which may contain anything.
    seconds_of(stat.rsplit(')').next().unwrap_or_default(), &[11, 12])
}

/// The share of all cores that all processes have used since the machine was started.
fn busy_seconds() -> f64 {
    let stat = std::fs::read_to_string("/proc/stat").unwrap_or_default();
    // All but idling and waiting for disks.
    seconds_of(stat.lines().next().unwrap_or_default(), &[1, 2, 3, 6, 7])
}

fn seconds_of(line: &str, fields: &[usize]) -> f64 {
    let words: Vec<&str> = line.split_whitespace().collect();
    let ticks: f64 = fields.iter().filter_map(|&at| words.get(at)?.parse::<f64>().ok()).sum();
    #[expect(clippy::cast_precision_loss, reason = "a hundred")]
    let in_a_second = rustix::param::clock_ticks_per_second() as f64;
    ticks / in_a_second
}

/// Whole lives of tasks a second on PostgreSQL: inserted, assigned and finished, each written; the three of different
/// tasks in one transaction, on two connections.
async fn postgres_alone(url: &str, tasks: u64) -> Result<f64> {
    println!("  three writes, postgres, sslmode=disable");
    let connect = async || -> Result<tokio_postgres::Client> {
        let (client, connection) = tokio_postgres::connect(url, NoTls).await?;
        tokio::spawn(connection);
        Ok(client)
    };
    // The leanest layout: nothing can be found but by key, and what changes is not indexed.
    let table = "CREATE TABLE bare (key bigint PRIMARY KEY, status smallint NOT NULL, state bytea NOT NULL, \
                 spec bytea NOT NULL) WITH (fillfactor = 50)";
    connect().await?.batch_execute(table).await?;
    let batches = tasks.div_ceil(BATCH * CONNECTIONS);
    let write = async |first: u64| -> Result<()> {
        let client = connect().await?;
        let insert =
            client.prepare("INSERT INTO bare SELECT key, 0, $2, $3 FROM unnest($1::bigint[]) AS key").await?;
        let change = client
            .prepare("UPDATE bare SET status = $2, state = $3 WHERE key = ANY($1::bigint[]) AND status = $4")
            .await?;
        let (state, spec) = (vec![1_u8; STATE], vec![2_u8; SPEC]);
        let keys = |batch: u64| -> Vec<i64> {
            (0..BATCH).map(|n| ((first * batches + batch) * BATCH + n).cast_signed()).collect()
        };
        for batch in 0..batches + 2 {
            client.batch_execute("BEGIN").await?;
            if batch < batches {
                client.execute(&insert, &[&keys(batch), &state, &spec]).await?;
            }
            for (behind, from, to) in [(1, 0_i16, 1_i16), (2, 1, 5)] {
                if let Some(earlier) = batch.checked_sub(behind).filter(|earlier| *earlier < batches) {
                    let changed = client.execute(&change, &[&keys(earlier), &to, &state, &from]).await?;
                    ensure!(changed == BATCH, "tasks are not in state {from}");
                }
            }
            client.batch_execute("COMMIT").await?;
        }
        Ok(())
    };
    let started = Instant::now();
    try_join_all((0..CONNECTIONS).map(write)).await?;
    Ok(rate(batches * BATCH * CONNECTIONS, started.elapsed()))
}

/// The same on Redis: one value for each task, one script for each batch.
async fn redis_alone(url: &str, tasks: u64) -> Result<f64> {
    println!("  three writes, redis");
    let script = redis::Script::new(
        "local function change(from, last, before, after)
           for key = from, last do
             local value = redis.call('GET', key)
             if value:byte(1) ~= before then error('not in state ' .. before) end
             redis.call('SET', key, string.char(after) .. value:sub(2))
           end
         end
         local size = tonumber(ARGV[1])
         for batch, moved in ipairs({{0, 1}, {1, 5}}) do
           local first = tonumber(ARGV[batch + 2])
           if first >= 0 then change(first, first + size - 1, moved[1], moved[2]) end
         end
         local first = tonumber(ARGV[2])
         if first >= 0 then
           for key = first, first + size - 1 do redis.call('SET', key, ARGV[5]) end
         end",
    );
    let client = redis::Client::open(url)?;
    let mut connection = client.get_multiplexed_async_connection().await?;
    let batches = tasks.div_ceil(BATCH).cast_signed();
    let mut value = vec![0_u8];
    value.extend(vec![1; STATE + SPEC]);
    let started = Instant::now();
    for batch in 0..batches + 2 {
        let first = |batch: i64| if (0..batches).contains(&batch) { batch * BATCH.cast_signed() } else { -1 };
        let mut call = script.arg(BATCH);
        call.arg(first(batch)).arg(first(batch - 1)).arg(first(batch - 2)).arg(&value);
        let () = call.invoke_async(&mut connection).await?;
    }
    Ok(rate(batches.cast_unsigned() * BATCH, started.elapsed()))
}
