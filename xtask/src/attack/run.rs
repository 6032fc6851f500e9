//! One run from start to end.

use std::collections::BTreeSet;
use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use rustix::process::{Resource, getrlimit, setrlimit};
use tasklane_client::{Client, Status, Task, TaskQuery};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

use super::check::{Evidence, judge};
use super::honest::{Book, Due, Honest, SCHEDULES};
use super::options::{Options, Scenario};
use super::plan::{Class, Move, Planned, plan};
use super::probe::{Probe, Size};
use super::requests::Hostile;
use super::steps::{ensure_moved, shift, step};
use super::system::{HONEST, System};
use super::tally::{Tally, lock};
use super::tasks::{KILLS_ITS_SERVER, foreign_damage, long_sleep, make_foreign};
use super::{costly, files, kills, sockets, tasks};
use crate::cargo::{build_program, output, root};
use crate::chaos::attempt;
use crate::chaos::clock::Boot;
use crate::chaos::history::{Follower, History};
use crate::chaos::process::look_after;

/// How often the run says how far it is.
const TELL_EVERY: Duration = Duration::from_secs(15);
/// Costly inputs, hostile tasks and damaged servers at a time.
const COSTLY_AT_ONCE: usize = 2;
const TASKS_AT_ONCE: usize = 12;
const DAMAGES_AT_ONCE: usize = 2;
/// Without progress for this long, open tasks are stuck.
const STUCK_AFTER: Duration = Duration::from_secs(90);
/// A server ends within this time when it is asked to.
const ENDS_WITHIN: Duration = Duration::from_secs(30);
/// The descriptors that a server may have more than at its start when all is quiet again.
const DESCRIPTORS_MORE: u64 = 64;
const RESIDENT_MAX_KIB: u64 = 400 << 10;
/// The descriptors that this program needs for its crowds.
const OWN_DESCRIPTORS: u64 = 8_192;

/// `cargo xtask attack`.
pub(crate) fn run_command(options: &Options) -> Result<()> {
    let program = match &options.program {
        Some(program) => std::path::absolute(program)?,
        None => build_program(root())?,
    };
    if options.ci { attack(&Options::of_ci(seed_of_commit()?), &program) } else { attack(options, &program) }
}

/// Each commit has a seed of its own, so that CI plays other moves each time and a failure can be played again.
fn seed_of_commit() -> Result<u64> {
    let commit = output(Command::new("git").args(["rev-parse", "HEAD"]).current_dir(root()))?;
    let digits = commit.trim().get(..8).context("git names no commit")?;
    u64::from_str_radix(digits, 16).context("the name of a commit is a number")
}

fn attack(options: &Options, program: &Path) -> Result<()> {
    let scenario = options.scenario();
    let folder = folder(options, &scenario)?;
    let again = options.command(&scenario);
    std::fs::write(folder.join("command"), format!("{again}\n"))?;
    println!("{again}");
    raise_own_limit()?;
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let played = runtime.block_on(async {
        tokio::select! {
            played = Box::pin(play_all(&scenario, program, &folder)) => played,
            _ = tokio::signal::ctrl_c() => bail!("interrupted"),
        }
    });
    runtime.shutdown_timeout(Duration::from_secs(1));
    let why = match played {
        Ok(true) => {
            if options.keep.is_none() {
                std::fs::remove_dir_all(&folder).context("cannot remove the folder of the run")?;
            }
            println!("no violation");
            return Ok(());
        }
        Ok(false) => "the run failed: see above".to_owned(),
        Err(error) => format!("{error:#}"),
    };
    println!("logs, history and data are kept in {}", folder.display());
    println!("the same moves in the same order: {again}");
    bail!("{why}")
}

fn folder(options: &Options, scenario: &Scenario) -> Result<PathBuf> {
    let folder = if let Some(keep) = &options.keep {
        let is_used = std::fs::read_dir(keep).is_ok_and(|mut entries| entries.next().is_some());
        ensure!(!is_used, "{} is not empty", keep.display());
        std::path::absolute(keep)?
    } else {
        tempfile::Builder::new().prefix(&format!("attack-{}-", scenario.seed)).tempdir()?.keep()
    };
    std::fs::create_dir_all(folder.join("logs"))?;
    // PostgreSQL runs as another user.
    std::fs::set_permissions(&folder, std::os::unix::fs::PermissionsExt::from_mode(0o755))?;
    Ok(folder)
}

fn raise_own_limit() -> Result<()> {
    let mut limit = getrlimit(Resource::Nofile);
    let most = limit.maximum.unwrap_or(OWN_DESCRIPTORS);
    ensure!(
        most >= OWN_DESCRIPTORS / 2,
        "the attack needs {OWN_DESCRIPTORS} descriptors: ulimit -Hn is {most}"
    );
    limit.current = Some(limit.current.unwrap_or(most).max(OWN_DESCRIPTORS.min(most)));
    setrlimit(Resource::Nofile, limit).context("cannot raise the limit of descriptors")
}

/// Plays, judges and reports. Answers whether all was well.
async fn play_all(scenario: &Scenario, program: &Path, folder: &Path) -> Result<bool> {
    attempt::prepare(folder)?;
    make_foreign(folder)?;
    // A copy, so that a build meanwhile does no harm.
    let own = folder.join("attempt");
    std::fs::copy(std::env::current_exe()?, &own).context("cannot copy this program")?;
    let tally = Arc::new(Tally::default());
    let system = Arc::new(System::new(scenario, program, folder, Arc::clone(&tally)).await?);
    for member in &system.members {
        member.start()?;
    }
    system.until_ready().await?;
    if scenario.plays(Class::Steps) {
        ensure_moved(&system).await?;
    }
    let _supervisor = AbortOnDropHandle::new(tokio::spawn(look_after(system.members.clone())));
    let book = Arc::new(Book::default());
    let honest = Arc::new(Honest {
        clients: system.clients(HONEST)?,
        book: Arc::clone(&book),
        system: Arc::clone(&system),
        program: own,
        rate: scenario.rate,
        seed: scenario.seed,
    });
    honest.prepare().await?;
    let at_first = sizes(&system);
    let hostile = Arc::new(Hostile::new(&system, scenario.seed).await?);
    println!("the system is ready; the attack of seed {} begins", scenario.seed);

    let begun = Boot::now();
    let probe = Arc::new(Probe::default());
    let probing = AbortOnDropHandle::new(tokio::spawn(Arc::clone(&probe).run(Arc::clone(&system))));
    let telling = AbortOnDropHandle::new(tokio::spawn(tell(Arc::clone(&system), Arc::clone(&book))));
    let stop = CancellationToken::new();
    let loading = AbortOnDropHandle::new(tokio::spawn(Arc::clone(&honest).run(stop.clone())));
    let requests = Class::Requests.count(scenario);
    let sending = AbortOnDropHandle::new(tokio::spawn(hostile.run(requests, scenario.length)));
    let until = Instant::now() + scenario.length;
    play(&system, plan(scenario)).await?;
    tokio::time::sleep_until(until).await;
    sending.await?;
    println!("the attack ends; running work settles");
    let ended = Boot::now();
    for (name, _) in SCHEDULES {
        until_done(&honest.clients, |client| async move { client.delete_schedule(name).await }).await?;
    }
    stop.cancel();
    loading.await?;
    drop(telling);
    let is_settled = settle(&system, &book, &honest.clients[0]).await?;
    drop(probing);
    quiet(&system, &at_first);

    let orders = lock(&book.orders).clone();
    let evidence = Evidence {
        orders,
        tasks: all_tasks(&honest.clients[0], Vec::new()).await?,
        history: History::read(folder)?,
        clock: &system.clock,
        tally: &tally,
        begun,
        ended,
        disturbances: tally.moves(Class::Kills) + 2 * tally.moves(Class::Steps),
    };
    judge(&evidence);
    if !is_settled {
        println!("some tasks did not come to an end");
    }
    end(&system).await?;
    report(scenario, &system, &probe, &evidence, folder)
}

/// Plays all moves at their times.
async fn play(system: &Arc<System>, plan: Vec<Planned>) -> Result<()> {
    let begun = Instant::now();
    let mut under_way = JoinSet::new();
    let [one, two, some, few] =
        [1, COSTLY_AT_ONCE, TASKS_AT_ONCE, DAMAGES_AT_ONCE].map(|room| Arc::new(Semaphore::new(room)));
    for (nth, planned) in plan.into_iter().enumerate() {
        tokio::time::sleep_until(begun + planned.at).await;
        let system = Arc::clone(system);
        let room = match planned.play {
            Move::Kill { .. } | Move::Step(_) => None,
            Move::Crowd(_) => Some(Arc::clone(&one)),
            Move::Costly(_) => Some(Arc::clone(&two)),
            Move::Task(_) => Some(Arc::clone(&some)),
            Move::Damage(_) => Some(Arc::clone(&few)),
        };
        under_way.spawn(async move {
            let _room = match room {
                Some(room) => Some(room.acquire_owned().await.context("never closed")?),
                None => None,
            };
            match planned.play {
                Move::Kill { victim, back_after } => kills::kill(&system, victim, back_after, nth).await,
                Move::Step(planned) => step(&system, planned).await,
                Move::Crowd(crowd) => sockets::crowd(&system, crowd).await,
                Move::Costly(at) => costly::cost(&system, at).await,
                Move::Task(at) => tasks::play(&system, at).await,
                Move::Damage(damage) => files::damage(&system, damage, nth).await,
            }
            .with_context(|| format!("{:?} could not be played", planned.play))
        });
        while let Some(done) = under_way.try_join_next() {
            done??;
        }
    }
    while let Some(done) = under_way.join_next().await {
        done??;
    }
    Ok(())
}

async fn tell(system: Arc<System>, book: Arc<Book>) {
    let begun = Instant::now();
    let follower = Follower::new(&system.folder);
    loop {
        tokio::time::sleep(TELL_EVERY).await;
        let moves = Class::ALL.map(|class| format!("{} {}", system.tally.moves(class), class.as_str()));
        println!(
            "{:>5.0} s: {} honest tasks, {} attempts; {}",
            begun.elapsed().as_secs_f64(),
            book.acknowledged(),
            follower.started(),
            moves.join(", ")
        );
    }
}

/// Asks until it is done: a server may still be on its way back.
async fn until_done<F: Future<Output = Result<(), tasklane_client::Error>>>(
    clients: &[Client],
    ask: impl Fn(Client) -> F,
) -> Result<()> {
    let deadline = Instant::now() + STUCK_AFTER;
    let mut last = None;
    while Instant::now() < deadline {
        for client in clients {
            match ask(client.clone()).await {
                Ok(()) => return Ok(()),
                Err(error) => last = Some(error),
            }
        }
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    Err(last.context("there is no server to ask")?).context("no server does it")
}

/// Lets all tasks that wait for a time become due, and waits until all have ended. Answers whether they have.
async fn settle(system: &System, book: &Book, client: &Client) -> Result<bool> {
    let due = |due| if let Due::At(at) = due { Some(at) } else { None };
    let last = lock(&book.orders).values().filter_map(|order| due(order.due)).max();
    let ahead = last.map_or(0, |last| (last - system.clock.now()) / 1000 + 1_000);
    if ahead > 0 {
        shift(system, ahead).await?;
    }
    let open: Vec<Status> = Status::ALL.into_iter().filter(|status| !status.is_final()).collect();
    let follower = Follower::new(&system.folder);
    let (mut seen, mut moved) = ((usize::MAX, 0), Instant::now());
    while moved.elapsed() < STUCK_AFTER {
        let left = all_tasks(client, open.clone()).await?.len();
        if left == 0 {
            return Ok(true);
        }
        let now = (left, follower.started());
        if now != seen {
            (seen, moved) = (now, Instant::now());
        }
        tokio::time::sleep(Duration::from_millis(500)).await;
    }
    Ok(false)
}

async fn all_tasks(client: &Client, statuses: Vec<Status>) -> Result<Vec<Task>> {
    let query = TaskQuery { statuses, limit: Some(1000), ..TaskQuery::default() };
    let mut tasks = Vec::new();
    let mut cursor: Option<String> = None;
    loop {
        let page = client.list(&query, cursor.as_deref()).await.context("cannot list the tasks")?;
        tasks.extend(page.tasks);
        cursor = page.cursor;
        if cursor.is_none() {
            return Ok(tasks);
        }
    }
}

fn sizes(system: &System) -> Vec<Option<Size>> {
    system.servers().iter().map(|server| server.pid().and_then(Size::of)).collect()
}

/// When all is quiet, servers are about as small as at their start.
fn quiet(system: &System, at_first: &[Option<Size>]) {
    for (server, (first, last)) in system.servers().iter().zip(at_first.iter().zip(sizes(system))) {
        let (Some(first), Some(last)) = (first, last) else {
            system.tally.violation("a server is gone", &server.name);
            continue;
        };
        println!("{}: {first:?} at first, {last:?} in the end", server.name);
        if last.descriptors > first.descriptors + DESCRIPTORS_MORE || last.resident_kib > RESIDENT_MAX_KIB {
            let what = format!("{}: {first:?} at first, {last:?} in the end", server.name);
            system.tally.violation("a server keeps what it was made to take", &what);
        }
    }
}

/// Ends all in order, and looks for what is left.
async fn end(system: &System) -> Result<()> {
    for member in &system.members {
        if !member.terminate(ENDS_WITHIN).await? {
            system.tally.violation("a server does not end when it is asked to", &member.name);
        }
    }
    let killed = system.tally.moves_of(Class::Tasks, KILLS_ITS_SERVER);
    let exits: Vec<String> =
        system.members.iter().flat_map(|member| member.exits()).map(|exit| exit.to_string()).collect();
    if exits.len() > killed {
        let what = format!("{} of them, {killed} were killed by tasks: {exits:?}", exits.len());
        system.tally.violation("servers ended by themselves", &what);
    }
    for member in &system.members {
        let log = std::fs::read(member.log()).unwrap_or_default();
        let text = String::from_utf8_lossy(&log);
        for line in text.lines().filter(|line| line.contains("panicked at")) {
            system.tally.violation("a panic", &format!("{}: {line}", member.name));
        }
        // Colours are for terminals only, and this log is a file.
        for line in text.lines().filter(|line| line.contains(['\u{1b}', '\u{202e}'])) {
            system.tally.violation("terminal escapes in a log", &line.escape_debug().to_string());
        }
    }
    tokio::time::sleep(Duration::from_secs(1)).await;
    for left in left_behind(system) {
        system.tally.violation("a process is left behind", &left);
    }
    for damage in foreign_damage(&system.folder) {
        system.tally.violation("foreign files", &damage);
    }
    Ok(())
}

/// Processes that a process of this run has started and that still run.
fn left_behind(system: &System) -> Vec<String> {
    let marks = [system.folder.display().to_string(), long_sleep()];
    let ours: BTreeSet<u32> =
        system.database.iter().flat_map(crate::chaos::Database::pids).chain([std::process::id()]).collect();
    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let described = |pid: u32| {
        let read = |name: &str| {
            String::from_utf8_lossy(&std::fs::read(format!("/proc/{pid}/{name}")).unwrap_or_default())
                .into_owned()
        };
        let (line, environment) = (read("cmdline"), read("environ"));
        let is_marked = marks.iter().any(|mark| line.contains(mark) || environment.contains(mark));
        is_marked.then(|| format!("{pid}: {}", line.replace('\0', " ")))
    };
    pids.filter(|pid| !ours.contains(pid)).filter_map(described).collect()
}

/// Prints the report. Answers whether all was well.
fn report(
    scenario: &Scenario,
    system: &System,
    probe: &Probe,
    evidence: &Evidence,
    folder: &Path,
) -> Result<bool> {
    let tally = &system.tally;
    let violations = tally.violations();
    let mut little = Vec::new();
    for class in Class::ALL {
        let (is, wanted) = (tally.moves(class), class.floor(scenario));
        if is < wanted {
            little.push(format!("{}: {is}, at least {wanted} are wanted", class.as_str()));
        }
    }
    let orders = evidence.orders.len();
    let mut text = tally.report();
    let _ = writeln!(
        text,
        "honest: {orders} tasks acknowledged, {} tasks in all, {} attempts; the probe was served {} times, the \
         slowest after {} ms\nthe server took at most {} MiB and {} descriptors",
        evidence.tasks.len(),
        evidence.history.starts.len(),
        probe.asked.load(Ordering::Relaxed),
        probe.slowest_micros.load(Ordering::Relaxed) / 1000,
        probe.resident_max_kib.load(Ordering::Relaxed) >> 10,
        probe.descriptors_max.load(Ordering::Relaxed),
    );
    let _ = writeln!(text, "violations: {}", violations.len());
    for violation in &violations {
        let _ = writeln!(text, "  {violation}");
    }
    let _ = writeln!(text, "too little of: {}", little.len());
    for what in &little {
        let _ = writeln!(text, "  {what}");
    }
    std::fs::write(folder.join("report"), &text)?;
    println!("\n{text}");
    Ok(violations.is_empty() && little.is_empty() && orders > 0)
}
