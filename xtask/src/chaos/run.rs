//! One run from start to end.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use futures::stream::{StreamExt, TryStreamExt};
use tasklane_client::{self as api, Client, TaskQuery};
use tasklane_core::id::TaskId;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

use super::attempt;
use super::check::{Evidence, judge};
use super::database::{Database, Disk};
use super::history::{Follower, History};
use super::load::{self, Book, Load, ask};
use super::namespace;
use super::nemesis::{Connected, Nemesis};
use super::options::{CI_TOPOLOGIES, Options, SERVER_TTL, Scenario, Topology, WORKER_TTL};
use super::plan::plan;
use super::process::{Member, MemberOptions, Role, Spawner, look_after};
use super::proxy::Proxy;
use super::recovery;
use super::report;
use super::watch::Watch;
use crate::cargo::{build_program, root};

/// How long the cluster may take to be ready.
const READY_PATIENCE: Duration = Duration::from_mins(1);
/// How long a run may take longer than asked for, because the nemesis has to wait for enough attempts.
const OVERTIME: f64 = 1.5;
/// Without progress for this long, the remaining tasks are stuck.
const STUCK_AFTER: Duration = Duration::from_mins(3);
/// How long answers may take when all is well again.
const ANSWER_WITHIN: Duration = Duration::from_secs(30);
/// Between the two looks at all tasks.
const SECOND_LOOK_AFTER: Duration = Duration::from_secs(5);
/// Tasks on a page of the list.
const PAGE: u32 = 1000;
/// Questions at a time, when attempts of many tasks are asked for.
const QUESTIONS: usize = 16;
/// Tasks of which it is asked why they are stuck.
const STUCK_TOLD: usize = 20;
/// How often it is said how far the run is.
const TELL_EVERY: Duration = Duration::from_secs(15);

/// `cargo xtask chaos`.
pub(crate) fn run_command(options: &Options) -> Result<()> {
    let program = match &options.program {
        Some(program) => std::path::absolute(program)?,
        None => build_program(root())?,
    };
    if options.ci { play_each(Options::of_ci, &program) } else { play(options, &program, "") }
}

/// What CI runs: short, and on all topologies.
pub(crate) fn check() -> Result<()> {
    play_each(Options::of_ci, &build_program(root())?)
}

/// From one program to another, on all topologies.
pub(crate) fn upgrade(from: &Path, to: &Path) -> Result<()> {
    play_each(|topology| Options::of_upgrade(topology, from), to)
}

/// Plays on all topologies at once, where each can be in a network namespace of its own: they mostly wait.
fn play_each(options: impl Fn(Topology) -> Options + Copy + Send, program: &Path) -> Result<()> {
    if namespace::entrance().is_none() {
        return CI_TOPOLOGIES.into_iter().try_for_each(|topology| play(&options(topology), program, ""));
    }
    std::thread::scope(|scope| {
        let plays = CI_TOPOLOGIES.map(|topology| {
            scope.spawn(move || play(&options(topology), program, &format!("{topology:<9} ")))
        });
        let ended = plays.map(|play| play.join().unwrap_or_else(|_| bail!("a thread panicked")));
        ended.into_iter().collect()
    })
}

/// Plays in a network namespace of its own where that is possible. Printed lines then begin with `whose`.
fn play(options: &Options, program: &Path, whose: &str) -> Result<()> {
    if options.isolated {
        namespace::prepare()?;
        return play_here(options, program);
    }
    let topology = options.topology.context("a topology is needed")?;
    let entrance = if topology == Topology::Sqlite { None } else { namespace::entrance() };
    let Some(entrance) = entrance else {
        if topology != Topology::Sqlite {
            println!(
                "SKIPPED: blackhole routes; no network namespace can be made here (needs unshare, setpriv and ip)"
            );
        }
        return play_here(options, program);
    };
    let scenario = options.scenario();
    let mut command = Command::new(entrance[0]);
    // It ends with this thread; said inside, because a new user namespace would forget it.
    command.args(&entrance[1..]).args(["setpriv", "--pdeathsig=KILL", "--"]).arg(std::env::current_exe()?);
    command.args(["chaos", "--isolated", "--topology"]);
    command.arg(topology.to_string());
    let numbers = [
        ("--minutes", options.minutes.to_string()),
        ("--seed", scenario.seed.to_string()),
        ("--servers", scenario.servers.to_string()),
        ("--workers", scenario.workers.to_string()),
        ("--rate", scenario.rate.to_string()),
        ("--capacity", scenario.capacity.to_string()),
    ];
    for (name, value) in numbers {
        command.args([name, &value]);
    }
    if let Some(only) = &options.only {
        command.args(["--only", only]);
    }
    if options.calm {
        command.arg("--calm");
    }
    if let Some(from) = &options.upgrade_from {
        command.arg("--upgrade-from").arg(std::path::absolute(from)?);
    }
    if let Some(keep) = &options.keep {
        command.arg("--keep").arg(std::path::absolute(keep)?);
    }
    command.arg("--program").arg(program).stdout(Stdio::piped());
    let mut playing = command.spawn().context("cannot enter a namespace")?;
    let told = playing.stdout.take().context("its output was asked for")?;
    for line in BufReader::new(told).lines() {
        println!("{whose}{}", line?);
    }
    ensure!(playing.wait()?.success(), "the run on {topology} failed");
    Ok(())
}

fn play_here(options: &Options, program: &Path) -> Result<()> {
    let scenario = options.scenario();
    let folder = if let Some(keep) = &options.keep {
        let is_used = std::fs::read_dir(keep).is_ok_and(|mut entries| entries.next().is_some());
        ensure!(!is_used, "{} is not empty", keep.display());
        std::path::absolute(keep)?
    } else {
        let prefix = format!("chaos-{}-{}-", scenario.topology, scenario.seed);
        tempfile::Builder::new().prefix(&prefix).tempdir()?.keep()
    };
    std::fs::create_dir_all(folder.join("logs"))?;
    // The database may run as another user.
    std::fs::set_permissions(&folder, std::os::unix::fs::PermissionsExt::from_mode(0o755))?;
    let again = options.command(&scenario);
    std::fs::write(folder.join("command"), format!("{again}\n"))?;
    println!("{again}");
    let programs = Programs { now: program, first: options.upgrade_from.as_deref() };
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let played = runtime.block_on(async {
        tokio::select! {
            played = Box::pin(play_all(&scenario, programs, &folder)) => played,
            _ = tokio::signal::ctrl_c() => bail!("interrupted"),
        }
    });
    runtime.shutdown_timeout(Duration::from_secs(1));
    let failed = match played {
        Ok(true) => None,
        Ok(false) => Some("the run failed: see above".to_owned()),
        Err(error) => Some(format!("{error:#}")),
    };
    let Some(why) = failed else {
        if options.keep.is_none() {
            std::fs::remove_dir_all(&folder).context("cannot remove the folder of the run")?;
        }
        println!("all promises were kept");
        return Ok(());
    };
    println!("history, logs and database are kept in {}", folder.display());
    println!("the same faults in the same order: {again}");
    bail!("{why}")
}

/// The programs that members run.
#[derive(Clone, Copy, Debug)]
struct Programs<'a> {
    now: &'a Path,
    /// At their first start, if something else.
    first: Option<&'a Path>,
}

/// Plays, judges, and reports. Answers whether all was well.
async fn play_all(scenario: &Scenario, programs: Programs<'_>, folder: &Path) -> Result<bool> {
    attempt::prepare(folder)?;
    // A copy, so that building meanwhile does no harm; and no link, because it is executed as another name.
    let own = folder.join("attempt");
    std::fs::copy(std::env::current_exe()?, &own).context("cannot copy this program")?;
    let spawner = Spawner::start();
    let (nemesis, members) = start(scenario, programs, folder, spawner).await?;
    let nemesis = Arc::new(nemesis);
    let _supervisor = AbortOnDropHandle::new(tokio::spawn(look_after(members.clone())));
    for member in &members {
        member.start()?;
    }
    let servers: Vec<&Arc<Member>> = members.iter().filter(|member| member.role != Role::Worker).collect();
    let clients = servers.iter().map(|server| Client::new(&server.url())).collect::<Result<Vec<_>, _>>()?;
    until_ready(scenario, &clients).await?;
    load::prepare(&clients[0]).await?;
    println!("the cluster is ready; the faults of seed {} begin", scenario.seed);

    let watching: Vec<_> = servers
        .iter()
        .zip(&clients)
        .map(|(server, client)| {
            let watch = Arc::clone(&nemesis.watch);
            AbortOnDropHandle::new(tokio::spawn(watch.follow(server.name.clone(), client.clone())))
        })
        .collect();
    let book = Arc::new(Book::default());
    let load = Load {
        clients: clients.clone(),
        book: Arc::clone(&book),
        program: own,
        rate: scenario.rate,
        seed: scenario.seed,
    };
    let stop = CancellationToken::new();
    let loading = AbortOnDropHandle::new(tokio::spawn(load.run(stop.clone())));
    let telling = AbortOnDropHandle::new(tokio::spawn(tell(Arc::clone(&nemesis), Arc::clone(&book))));

    let begun = Instant::now();
    let plan = plan(scenario);
    let played = Arc::clone(&nemesis).play(plan, begun + scenario.length.mul_f64(OVERTIME)).await;
    tokio::time::sleep_until(begun + scenario.length).await;
    stop.cancel();
    played?;
    nemesis.make_up().await?;
    println!("the faults end; {} attempts run", nemesis.follower.running().len());

    let unrest = settle(&clients, loading, &nemesis.follower).await;
    if unrest.is_some() {
        std::fs::write(folder.join("stuck"), why_stuck(&clients).await)?;
    }
    let left_alive = nemesis.follower.running().iter().map(|running| running.attempt).collect();
    let (tasks, attempts, counts) = look(&clients).await?;
    tokio::time::sleep(SECOND_LOOK_AFTER).await;
    let tasks_later = all_tasks(&clients).await?;
    drop((telling, watching));
    let faults = nemesis.done.lock().expect("no thread panics while holding it").clone();
    let evidence = Evidence {
        scenario: scenario.clone(),
        orders: book.close(),
        history: History::read(folder)?,
        tasks,
        tasks_later,
        attempts,
        counts,
        events: nemesis.watch.events(),
        claims: nemesis.watch.claims(),
        faults,
        left_alive,
        panics: panics(&members),
        exits: members.iter().flat_map(|member| member.exits()).collect(),
        unrest,
    };
    let verdict = judge(&evidence);
    let times = recovery::measure(&evidence);
    let text = report::report(&evidence, &verdict, &times);
    std::fs::write(folder.join("report"), &text)?;
    std::fs::write(folder.join("violations"), verdict.violations.join("\n"))?;
    println!("{text}");
    let stories = report::stories(&evidence, &verdict);
    if !stories.is_empty() {
        std::fs::create_dir_all(folder.join("stories"))?;
    }
    for (task, story) in stories {
        std::fs::write(folder.join("stories").join(task.to_string()), story)?;
    }
    let is_well = verdict.violations.is_empty() && (verdict.vacuous.is_empty() || scenario.only.is_some());
    if is_well {
        for member in &members {
            member.terminate(Duration::from_secs(30)).await?;
        }
    }
    Ok(is_well)
}

/// Makes all parts of the cluster; only the database is started.
async fn start(
    scenario: &Scenario,
    programs: Programs<'_>,
    folder: &Path,
    spawner: Spawner,
) -> Result<(Nemesis, Vec<Arc<Member>>)> {
    let database = Database::start(scenario.topology, folder, spawner.clone(), Disk::SurvivesDeath).await?;
    let mut members = Vec::new();
    let mut made = |name: String, role: Role, ip: Ipv4Addr, args: Vec<String>, n: usize| -> Result<_> {
        let member = Arc::new(Member::new(MemberOptions {
            name,
            role,
            ip,
            program: programs.now.to_owned(),
            first: programs.first.map(Path::to_owned),
            args,
            drain_grace: drain_grace(role, n),
            folder: folder.to_owned(),
            spawner: spawner.clone(),
        })?);
        members.push(Arc::clone(&member));
        Ok(member)
    };
    let mut servers = Vec::new();
    let mut workers = Vec::new();
    let role = if scenario.topology == Topology::Sqlite { Role::Dev } else { Role::Server };
    let all =
        (0..scenario.servers).map(|n| (role, n)).chain((0..scenario.workers).map(|n| (Role::Worker, n)));
    for (role, n) in all {
        let (letter, block) = if role == Role::Worker { ("w", 2) } else { ("s", 1) };
        let ip = Ipv4Addr::new(127, 0, block, u8::try_from(n + 1).context("too many processes")?);
        let mut args = settings(scenario, role, n);
        let (mut proxy, mut bus) = (None, None);
        if let Some(database) = &database {
            let to_store = Proxy::start(ip, database.address).await?;
            args.extend(["--store".to_owned(), database.url(to_store.address)]);
            proxy = Some(to_store);
            if scenario.topology == Topology::Redis {
                let to_bus = Proxy::start(ip, database.address).await?;
                args.extend(["--set".to_owned(), format!("bus={}", database.url(to_bus.address))]);
                bus = Some(to_bus);
            }
        }
        let member = made(format!("{letter}{}", n + 1), role, ip, args, n)?;
        let connected = Connected { member, proxy, bus };
        if role == Role::Worker { workers.push(connected) } else { servers.push(connected) }
    }
    let nemesis = Nemesis {
        servers,
        workers,
        database,
        follower: Follower::new(folder),
        watch: Arc::new(Watch::default()),
        log: Mutex::new(File::create(folder.join("faults"))?),
        busy: Mutex::default(),
        done: Mutex::default(),
    };
    Ok((nemesis, members))
}

/// Some workers let their attempts go on for a while when they are asked to end; others stop them at once.
fn drain_grace(role: Role, n: usize) -> Duration {
    if role == Role::Server || n.is_multiple_of(2) { Duration::ZERO } else { Duration::from_secs(2) }
}

fn settings(scenario: &Scenario, role: Role, n: usize) -> Vec<String> {
    let renewed = |ttl: Duration| ttl / 5;
    let grace = drain_grace(role, n);
    let variables = format!("[PATH, {}, {}]", attempt::FOLDER_VARIABLE, attempt::WORKER_VARIABLE);
    let mut pairs = vec![
        format!("session.server_ttl={}ms", SERVER_TTL.as_millis()),
        format!("session.server_renew_every={}ms", renewed(SERVER_TTL).as_millis()),
        format!("session.worker_ttl={}ms", WORKER_TTL.as_millis()),
        format!("session.worker_renew_every={}ms", renewed(WORKER_TTL).as_millis()),
    ];
    if role != Role::Server {
        pairs.push(format!("worker.drain_grace={}ms", grace.as_millis()));
        pairs.push("worker.stop_grace=1s".to_owned());
        pairs.push(format!("worker.env={variables}"));
        pairs.push(format!("worker.capacity={}", scenario.capacity));
    }
    pairs.into_iter().flat_map(|pair| ["--set".to_owned(), pair]).collect()
}

async fn until_ready(scenario: &Scenario, clients: &[Client]) -> Result<()> {
    let deadline = Instant::now() + READY_PATIENCE;
    let workers = scenario.workers.max(1) as u64;
    for client in clients {
        loop {
            let said = tokio::time::timeout(Duration::from_secs(2), client.stats()).await;
            match said {
                Ok(Ok(stats)) if stats.workers >= workers => break,
                _ if Instant::now() > deadline => {
                    bail!("{} is not ready: {said:?}", client.url());
                }
                _ => tokio::time::sleep(Duration::from_millis(100)).await,
            }
        }
    }
    Ok(())
}

/// Prints the progress of the run.
async fn tell(nemesis: Arc<Nemesis>, book: Arc<Book>) {
    let begun = Instant::now();
    loop {
        tokio::time::sleep(TELL_EVERY).await;
        println!(
            "{:>4.0} s: {} tasks acknowledged, {} attempts started, {} run, {} faults",
            begun.elapsed().as_secs_f64(),
            book.acknowledged(),
            nemesis.follower.started(),
            nemesis.follower.running().len(),
            nemesis.done.lock().expect("no thread panics while holding it").len()
        );
    }
}

/// Waits until all that was sent is acknowledged and all that was acknowledged is final. Answers what is not, when
/// nothing moves any more.
async fn settle(clients: &[Client], loading: AbortOnDropHandle<()>, follower: &Follower) -> Option<String> {
    let mut last = (0, 0);
    let mut moved = Instant::now();
    loop {
        tokio::time::sleep(Duration::from_secs(1)).await;
        let stats = ask(clients, ANSWER_WITHIN, |client| async move { client.stats().await }).await;
        let why = match &stats {
            Ok(stats) => {
                let is_open =
                    |name: &str| api::Status::ALL.iter().any(|s| s.as_str() == name && !s.is_final());
                let open: BTreeMap<&String, &u64> =
                    stats.tasks.iter().filter(|(name, n)| is_open(name) && **n > 0).collect();
                let final_: u64 = stats.tasks.iter().filter(|(name, _)| !is_open(name)).map(|(_, n)| n).sum();
                let now = (final_, follower.started());
                if now != last {
                    (last, moved) = (now, Instant::now());
                }
                if open.is_empty() && loading.is_finished() {
                    return None;
                }
                let sending = if loading.is_finished() { "" } else { ", and submits are not acknowledged" };
                format!("tasks are stuck: {open:?}{sending}")
            }
            Err(error) => format!("no server answers: {error:#}"),
        };
        if moved.elapsed() > STUCK_AFTER {
            return Some(why);
        }
    }
}

/// The servers' states and some unfinished tasks.
async fn why_stuck(clients: &[Client]) -> String {
    let mut said = Vec::new();
    for client in clients {
        let url = client.url();
        let stats = tokio::time::timeout(ANSWER_WITHIN, client.stats()).await;
        said.push(match stats {
            Ok(Ok(stats)) => format!("{url}: {}", serde_json::to_string_pretty(&stats).unwrap_or_default()),
            other => format!("{url}: {other:?}"),
        });
        let workers = tokio::time::timeout(ANSWER_WITHIN, client.workers()).await;
        said.push(format!("{url}: {workers:#?}"));
    }
    let open = api::Status::ALL.into_iter().filter(|status| !status.is_final()).collect();
    let query = TaskQuery { statuses: open, limit: Some(PAGE), ..TaskQuery::default() };
    let mut stuck = clients[0].list_all(query).take(STUCK_TOLD).boxed();
    while let Ok(Some(task)) = stuck.try_next().await {
        let explained = tokio::time::timeout(ANSWER_WITHIN, clients[0].explain(&task.task_id)).await;
        said.push(format!("{task:#?}\n{explained:#?}"));
    }
    said.join("\n")
}

type Look = (Vec<api::Task>, BTreeMap<TaskId, Vec<api::Attempt>>, BTreeMap<String, u64>);

/// All that the API says of all tasks.
async fn look(clients: &[Client]) -> Result<Look> {
    let tasks = all_tasks(clients).await?;
    let ids: BTreeSet<String> =
        tasks.iter().filter(|task| task.attempt > 1).map(|task| task.task_id.clone()).collect();
    let attempts = futures::stream::iter(ids)
        .map(|id| async move {
            let asked = id.clone();
            let attempts = ask(clients, ANSWER_WITHIN, |client| {
                let id = asked.clone();
                async move { client.attempts(&id).await }
            });
            let attempts = attempts.await.with_context(|| format!("attempts of {id}"))?;
            anyhow::Ok((id.parse::<TaskId>()?, attempts))
        })
        .buffer_unordered(QUESTIONS)
        .try_collect()
        .await?;
    let stats = ask(clients, ANSWER_WITHIN, |client| async move { client.stats().await }).await?;
    Ok((tasks, attempts, stats.tasks))
}

async fn all_tasks(clients: &[Client]) -> Result<Vec<api::Task>> {
    let query = TaskQuery { limit: Some(PAGE), ..TaskQuery::default() };
    let mut tasks = Vec::new();
    let mut cursor: Option<String> = None;
    loop {
        let page = ask(clients, ANSWER_WITHIN, |client| {
            let (query, cursor) = (query.clone(), cursor.clone());
            async move { client.list(&query, cursor.as_deref()).await }
        });
        let page = page.await.context("cannot list the tasks")?;
        tasks.extend(page.tasks);
        cursor = page.cursor;
        if cursor.is_none() {
            return Ok(tasks);
        }
    }
}

/// Log lines that show a panic.
fn panics(members: &[Arc<Member>]) -> Vec<String> {
    let mut found = Vec::new();
    for member in members {
        let log: PathBuf = member.log();
        let text = String::from_utf8_lossy(&std::fs::read(log).unwrap_or_default()).into_owned();
        let lines = text.lines().filter(|line| line.contains("panicked at"));
        found.extend(lines.map(|line| format!("{} has panicked: {line}", member.name)));
    }
    found.truncate(20);
    found
}
