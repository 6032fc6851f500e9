//! Executes the plan of faults, and records its moves.
//!
//! It waits for events that the plan cannot know: that a process has recovered from its last fault, that
//! another one of its kind has no fault, so that the cluster can get on, and that enough attempts run for
//! this fault to matter.

use std::collections::BTreeSet;
use std::fmt;
use std::fs::File;
use std::io::Write;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use anyhow::{Context, Result};
use rustix::process::{Pid, Signal};
use tasklane_core::message::AttemptId;
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::clock::Boot;
use super::database::Database;
use super::history::Follower;
use super::namespace;
use super::plan::{Kind, Planned, SETTLE, Victim};
use super::process::{Member, signal};
use super::proxy::{Mode, Proxy};
use super::watch::Watch;

/// A fault hits while at least so many attempts run.
pub(super) const RUNNING_MIN: usize = 20;
/// How long that is waited for; a fault that hits fewer is counted as such.
const RUNNING_PATIENCE: Duration = Duration::from_mins(1);
/// How often to look whether a fault can begin.
const LOOK_EVERY: Duration = Duration::from_millis(50);
/// How long a process may take to end in order, besides the time that it lets its attempts have.
const END_PATIENCE: Duration = Duration::from_secs(20);

/// Something that went wrong.
#[derive(Clone, Debug)]
pub(super) struct Fault {
    pub(super) kind: Kind,
    /// Such as `w1.3`, the third start of `w1`.
    pub(super) victim: String,
    pub(super) at: Boot,
    /// When all was well again, but for what the victim still had to do.
    pub(super) until: Boot,
    /// Attempts that ran at that moment, everywhere …
    pub(super) running: usize,
    /// … and those of the victim.
    pub(super) attempts: Vec<AttemptId>,
    /// Lanes that the victim owned, with their epochs.
    pub(super) lanes: Vec<(u16, u64)>,
    /// How long the victim let its attempts go on.
    pub(super) grace: Duration,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { kind, victim, at, until, running, attempts, lanes, .. } = self;
        let took = until.since(*at).as_secs_f64();
        let (attempts, lanes) = (attempts.len(), lanes.len());
        write!(
            f,
            "{} {kind}: {victim}, {took:.3} s, {running} attempts ran, {attempts} of them there, {lanes} lanes owned",
            at.0
        )
    }
}

/// A member and what stands between it and the systems that it uses.
#[derive(Debug)]
pub(super) struct Connected {
    pub(super) member: Arc<Member>,
    /// To the database.
    pub(super) proxy: Option<Proxy>,
    /// To the bus, where that is a system of its own.
    pub(super) bus: Option<Proxy>,
}

impl Connected {
    fn proxies(&self) -> impl Iterator<Item = &Proxy> {
        self.proxy.iter().chain(&self.bus)
    }
}

/// Whoever makes things go wrong.
#[derive(Debug)]
pub(super) struct Nemesis {
    pub(super) servers: Vec<Connected>,
    pub(super) workers: Vec<Connected>,
    pub(super) database: Option<Database>,
    pub(super) follower: Follower,
    pub(super) watch: Arc<Watch>,
    /// Where faults are written down.
    pub(super) log: Mutex<File>,
    /// Who has trouble: a class of victims, and which of them.
    pub(super) busy: Mutex<BTreeSet<(u8, usize)>>,
    pub(super) done: Mutex<Vec<Fault>>,
}

impl Nemesis {
    /// Executes a plan, to its end or until a time. Answers what went wrong on the side of the harness.
    pub(super) async fn play(self: Arc<Self>, plan: Vec<Planned>, until: Instant) -> Result<()> {
        let begun = Instant::now();
        let mut under_way = JoinSet::new();
        for planned in plan {
            tokio::time::sleep_until(begun + planned.at).await;
            self.take(&planned).await;
            let running = self.enough_running().await;
            if Instant::now() > until {
                self.release(&planned);
                break;
            }
            let nemesis = Arc::clone(&self);
            under_way.spawn(async move {
                let done = nemesis.perform(&planned, running).await;
                nemesis.release(&planned);
                done.with_context(|| format!("a fault could not be played: {}", planned.kind))
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

    /// Makes sure that everybody runs and reaches everybody.
    pub(super) async fn make_up(&self) -> Result<()> {
        if let Some(database) = &self.database {
            database.resume();
            database.start_again().await?;
        }
        for connected in self.servers.iter().chain(&self.workers) {
            for proxy in connected.proxies() {
                proxy.set(Mode::Pass);
            }
            for pid in connected.member.pid().into_iter().chain(connected.member.guard()) {
                signal(pid, Signal::CONT);
            }
            connected.member.start()?;
        }
        Ok(())
    }

    fn class(&self, victim: Victim) -> (u8, &[Connected]) {
        match victim {
            Victim::Worker => (0, &self.workers),
            Victim::Server => (1, &self.servers),
            Victim::Database => (2, &[]),
            Victim::Bus => (3, &[]),
        }
    }

    /// Waits until the victim has no other trouble and one of its kind is left in peace.
    async fn take(&self, planned: &Planned) {
        let (class, members) = self.class(planned.kind.victim());
        loop {
            {
                let mut busy = self.busy.lock().expect("no thread panics while holding it");
                let troubled = busy.iter().filter(|(other, _)| *other == class).count();
                let leaves_one = members.len() < 2 || troubled + 1 < members.len();
                if leaves_one && busy.insert((class, planned.victim)) {
                    return;
                }
            }
            tokio::time::sleep(LOOK_EVERY).await;
        }
    }

    fn release(&self, planned: &Planned) {
        let (class, _) = self.class(planned.kind.victim());
        self.busy.lock().expect("no thread panics while holding it").remove(&(class, planned.victim));
    }

    async fn enough_running(&self) -> usize {
        let deadline = Instant::now() + RUNNING_PATIENCE;
        loop {
            let running = self.follower.running().len();
            if running >= RUNNING_MIN || Instant::now() > deadline {
                return running;
            }
            tokio::time::sleep(LOOK_EVERY).await;
        }
    }

    async fn perform(&self, planned: &Planned, running: usize) -> Result<()> {
        let (_, members) = self.class(planned.kind.victim());
        let fault = match members.get(planned.victim) {
            Some(victim) => self.hit(planned, victim, running).await?,
            None => self.hit_shared(planned, running).await?,
        };
        {
            let mut log = self.log.lock().expect("no thread panics while holding it");
            writeln!(log, "{fault}")?;
        }
        self.done.lock().expect("no thread panics while holding it").push(fault);
        // It is left in peace for a moment.
        tokio::time::sleep(SETTLE).await;
        Ok(())
    }

    /// Hits one member with a fault.
    async fn hit(&self, planned: &Planned, victim: &Connected, running: usize) -> Result<Fault> {
        let Planned { kind, hold, back_after, .. } = *planned;
        let Connected { member, .. } = victim;
        let guard = member.guard();
        let instance = member.instance();
        let its_own = self.follower.running().into_iter().filter(|running| running.worker == instance);
        let mut fault = Fault {
            kind,
            attempts: its_own.map(|running| running.attempt).collect(),
            lanes: self.watch.lanes_of(&member.name),
            victim: instance,
            at: Boot::now(),
            until: Boot::now(),
            running,
            grace: Duration::ZERO,
        };
        match kind {
            Kind::WorkerKilled | Kind::ServerKilled => {
                member.kill(None).await?;
                tokio::time::sleep(back_after).await;
                member.start()?;
            }
            Kind::WorkerAndGuardKilled | Kind::ServerAndGuardKilled => {
                member.kill(guard).await?;
                tokio::time::sleep(back_after).await;
                member.start()?;
            }
            Kind::WorkerPaused | Kind::ServerPaused => pause(member.pid(), hold).await,
            Kind::GuardPaused => pause(guard, hold).await,
            Kind::WorkerAndGuardPaused => pause(guard.into_iter().chain(member.pid()), hold).await,
            Kind::WorkerStopped | Kind::ServerStopped => {
                fault.grace = member.drain_grace;
                if !member.terminate(member.drain_grace + END_PATIENCE).await? {
                    println!("{} did not end when it was asked to, and was killed", fault.victim);
                }
                tokio::time::sleep(back_after).await;
                member.start()?;
            }
            Kind::WorkerCut | Kind::ServerCut => {
                victim.proxies().for_each(|proxy| proxy.cut(Mode::Refuse));
                tokio::time::sleep(hold).await;
                victim.proxies().for_each(|proxy| proxy.set(Mode::Pass));
            }
            Kind::WorkerRequestsHeld | Kind::ServerRequestsHeld => {
                hold_back(victim, Mode::HoldRequests, hold).await;
            }
            Kind::WorkerAnswersHeld | Kind::ServerAnswersHeld => {
                hold_back(victim, Mode::HoldAnswers, hold).await;
            }
            Kind::ServerUnreachable => {
                namespace::lose(member.ip)?;
                tokio::time::sleep(hold).await;
                namespace::find(member.ip)?;
            }
            Kind::DatabaseKilled | Kind::DatabasePaused | Kind::BusLost => {
                unreachable!("they have no victim of their own")
            }
        }
        fault.until = Boot::now();
        Ok(fault)
    }

    /// Hits a system that all members use with a fault.
    async fn hit_shared(&self, planned: &Planned, running: usize) -> Result<Fault> {
        let Planned { kind, hold, back_after, .. } = *planned;
        let at = Boot::now();
        if let Some(database) = &self.database {
            match kind {
                Kind::DatabaseKilled => {
                    database.kill().await?;
                    tokio::time::sleep(back_after).await;
                    database.start_again().await?;
                }
                Kind::DatabasePaused => {
                    database.pause();
                    tokio::time::sleep(hold).await;
                    database.resume();
                }
                _ => {
                    let buses = || self.servers.iter().chain(&self.workers).filter_map(|c| c.bus.as_ref());
                    buses().for_each(|bus| bus.set(Mode::Swallow));
                    tokio::time::sleep(hold).await;
                    // Bytes lost in the middle of a connection cannot be made up for.
                    buses().for_each(|bus| bus.cut(Mode::Pass));
                }
            }
        }
        let victim = if kind == Kind::BusLost { "bus" } else { "database" }.to_owned();
        let (attempts, lanes) = (Vec::new(), Vec::new());
        let grace = Duration::ZERO;
        Ok(Fault { kind, victim, at, until: Boot::now(), running, attempts, lanes, grace })
    }
}

/// Stops processes for a while.
async fn pause(pids: impl IntoIterator<Item = Pid>, hold: Duration) {
    let pids: Vec<Pid> = pids.into_iter().collect();
    for pid in &pids {
        signal(*pid, Signal::STOP);
    }
    tokio::time::sleep(hold).await;
    for pid in &pids {
        signal(*pid, Signal::CONT);
    }
}

/// Holds back what passes in one direction for a while.
async fn hold_back(victim: &Connected, mode: Mode, hold: Duration) {
    victim.proxies().for_each(|proxy| proxy.set(mode));
    tokio::time::sleep(hold).await;
    victim.proxies().for_each(|proxy| proxy.set(Mode::Pass));
}
