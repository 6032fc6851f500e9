//! `cargo xtask bench-lane`: the speed of the lane machine alone, and the memory of a waiting task.
//!
//! Everything around the machine is as cheap as it can be: commits are applied at once, and workers report
//! each attempt as accepted, started and finished in one batch. The benchmark times the machine's own work,
//! on one core.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use tasklane_core::commit::GroupOutcome;
use tasklane_core::id::{DispatchNo, Epoch, LaneId, LimitId, Name, QueueKey, Seq, SessionId, TaskId};
use tasklane_core::lane::{Effect, Input, Lane, LaneOptions, SubmitToken};
use tasklane_core::member::{Member, Role, WorkerDescriptor};
use tasklane_core::message::{Ending, Finish, Heartbeat, OwnerBatch, Report, ToLane, ToWorker, WorkerBatch};
use tasklane_core::read::{LanePage, LaneRead};
use tasklane_core::retry::RetryPolicy;
use tasklane_core::task::{
    Fingerprint, FlowKey, NewTask, Payload, Priority, TaskBody, TaskHead, TaskResult, TaskSpec,
};
use tasklane_core::time::Timestamp;

/// What to measure.
#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// Tasks that go through submit, assign, start and finish
    #[arg(long, default_value_t = 1_000_000)]
    tasks: u64,
    /// Workers that they are spread over
    #[arg(long, default_value_t = 100)]
    workers: u128,
    /// Tasks submitted at once
    #[arg(long, default_value_t = 1000)]
    batch: u64,
}

/// Waiting tasks whose memory is measured.
const WAITING: u64 = 100_000;
/// Room that each worker gives the lane.
const ROOM: u64 = 64;

pub(crate) fn run(options: &Options) -> anyhow::Result<()> {
    let mut bench = Bench::new(options.workers, LaneOptions::default());
    let started = cpu_time();
    let mut submitted = 0;
    while bench.finished < options.tasks {
        if submitted < options.tasks {
            let batch = options.batch.min(options.tasks - submitted);
            let tasks = (0..batch).map(|at| task(submitted + at, "noop")).collect();
            submitted += batch;
            bench.step(Input::Submit { token: SubmitToken(submitted), tasks });
        }
        bench.carry_out();
        anyhow::ensure!(
            submitted < options.tasks || bench.finished == submitted,
            "some tasks did not finish"
        );
    }
    let (whole, machine) = (cpu_time().saturating_sub(started), bench.machine);
    println!(
        "{} tasks over {} workers: {:.0} tasks/s in the machine ({:.2} s), {:.0} tasks/s with the harness ({:.2} s)",
        options.tasks,
        options.workers,
        rate(options.tasks, machine),
        machine.as_secs_f64(),
        rate(options.tasks, whole),
        whole.as_secs_f64()
    );
    println!(
        "{} commits, {:.0} groups in each, {:.2} groups for each task",
        bench.commits,
        ratio(bench.groups, bench.commits),
        ratio(bench.groups, options.tasks)
    );
    // All are kept until the end, so that none takes the memory that another has left.
    let (one_line, bytes) = waiting_bytes(None)?;
    println!("{bytes} bytes for each waiting task in the window, with a payload of 200 bytes");
    let (one_key, of_one_key) = waiting_bytes(Some(1))?;
    let (many_keys, of_many_keys) = waiting_bytes(Some(WAITING))?;
    let bytes = of_many_keys.saturating_sub(of_one_key);
    println!("{bytes} bytes more for each of {WAITING} keys with one waiting task");
    drop((one_line, one_key, many_keys));
    Ok(())
}

fn rate(tasks: u64, time: Duration) -> f64 {
    ratio(tasks, 1) / time.as_secs_f64()
}

#[expect(clippy::cast_precision_loss, reason = "a few digits are printed")]
fn ratio(a: u64, b: u64) -> f64 {
    a as f64 / b as f64
}

/// Memory of a window full of tasks that no worker runs, with so many keys, for each task.
fn waiting_bytes(keys: Option<u64>) -> anyhow::Result<(Bench, u64)> {
    let window = usize::try_from(WAITING)?;
    let options =
        LaneOptions { window, tasks_max: 2 * window, lines_max: 2 * window, ..LaneOptions::default() };
    let mut bench = Bench::new(1, options);
    let before = resident()?;
    for batch in 0..WAITING / 1000 {
        let numbers = (0..1000).map(|at| batch * 1000 + at);
        let tasks =
            numbers.map(|number| with_key(task(number, "ghost"), keys.map(|keys| number % keys))).collect();
        bench.step(Input::Submit { token: SubmitToken(batch), tasks });
        bench.carry_out();
    }
    anyhow::ensure!(bench.lane.tasks_in_memory() == window, "the window holds all of them");
    let bytes = (resident()? - before) / WAITING;
    Ok((bench, bytes))
}

fn with_key(mut task: NewTask, key: Option<u64>) -> NewTask {
    if let Some(key) = key {
        let limit = LimitId::of("{{ metadata.tenant }}");
        let key = FlowKey { limit, key: format!("tenant-{key:06}").into(), own: None };
        let number = task.fingerprint.hash;
        let head = Arc::make_mut(&mut task.spec.head);
        head.flow = vec![key];
        // No two are the same, so that none shares its head: the benchmark compares the memory of keys, not
        // of tasks.
        head.execution_timeout += Duration::from_micros(number);
    }
    task
}

/// Memory of this process, in bytes.
fn resident() -> anyhow::Result<u64> {
    let status = std::fs::read_to_string("/proc/self/status").context("reads the memory of this process")?;
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).context("RssAnon is there")?;
    let kib: u64 = line.trim().trim_end_matches(" kB").parse()?;
    Ok(kib * 1024)
}

/// CPU time of this thread: what else the machine is doing does not count.
fn cpu_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec.unsigned_abs(), time.tv_nsec.try_into().unwrap_or(0))
}

struct Bench {
    lane: Lane,
    now: Timestamp,
    machine: Duration,
    effects: Vec<Effect>,
    seq: u64,
    finished: u64,
    commits: u64,
    groups: u64,
    credit: BTreeMap<SessionId, u64>,
}

impl Bench {
    fn new(workers: u128, options: LaneOptions) -> Self {
        let now = Timestamp::from_millis(1_700_000_000_000);
        let mut bench = Self {
            lane: Lane::new(options, LaneId(0), Epoch(1), 1, now),
            now,
            machine: Duration::ZERO,
            effects: Vec::new(),
            seq: 0,
            finished: 0,
            commits: 0,
            groups: 0,
            credit: BTreeMap::new(),
        };
        let members: Vec<Member> = (1..=workers).map(member).collect();
        bench.step(Input::Members { revision: 1, members: members.clone() });
        bench.step(Input::Start);
        bench.carry_out();
        for member in members {
            bench.credit.insert(member.session, ROOM);
            let heartbeat = Heartbeat {
                beat: 1,
                epoch: Epoch(1),
                credit: DispatchNo(ROOM),
                used: DispatchNo(0),
                held: Vec::new(),
                load: 0,
                wanted_back: false,
            };
            let messages = vec![ToLane::Heartbeat(heartbeat)];
            bench.step(Input::Worker(WorkerBatch { lane: LaneId(0), session: member.session, messages }));
        }
        bench.machine = Duration::ZERO;
        bench
    }

    fn step(&mut self, input: Input) {
        self.now = self.now + Duration::from_micros(10);
        let started = cpu_time();
        self.lane.step(input, self.now, &mut self.effects);
        self.machine += cpu_time().saturating_sub(started);
    }

    /// Does what the machine asks for until it asks for nothing more.
    fn carry_out(&mut self) {
        while !self.effects.is_empty() {
            for effect in std::mem::take(&mut self.effects) {
                match effect {
                    Effect::Read { read, what, .. } => {
                        self.step(Input::Page { read, page: empty_page(&what) });
                    }
                    Effect::Commit { groups, .. } => {
                        self.commits += 1;
                        self.groups += groups.len() as u64;
                        let outcomes = groups.iter().map(|group| {
                            let seq = group.insert.as_ref().map(|_| {
                                self.seq += 1;
                                Seq(self.seq)
                            });
                            GroupOutcome::Applied { seq }
                        });
                        let outcomes = outcomes.collect();
                        drop(groups);
                        self.step(Input::Committed { outcomes });
                    }
                    Effect::Send(batch) => self.answer(batch),
                    Effect::Changed(events) => {
                        self.finished += events.iter().filter(|event| event.status.is_final()).count() as u64;
                    }
                    Effect::Submitted { .. }
                    | Effect::NotReceiving { .. }
                    | Effect::Revoke { .. }
                    | Effect::Completed(_)
                    | Effect::Reload => {}
                }
            }
        }
    }

    /// A worker executes everything it is sent, at once.
    fn answer(&mut self, batch: OwnerBatch) {
        let mut messages = Vec::new();
        for message in batch.messages {
            if let ToWorker::Dispatch(dispatch) = message {
                let attempt = dispatch.attempt;
                let finish =
                    Finish { ran: Duration::ZERO, ending: Ending::Success, result: TaskResult::default() };
                messages.push(ToLane::Report { attempt, report: Report::Accepted });
                messages.push(ToLane::Report { attempt, report: Report::Started { ago: Duration::ZERO } });
                messages.push(ToLane::Report { attempt, report: Report::Finished(Box::new(finish)) });
            }
        }
        if messages.is_empty() {
            return;
        }
        let credit = self.credit.entry(batch.session).or_default();
        *credit += messages.len() as u64 / 3;
        messages.push(ToLane::Credit {
            epoch: Epoch(1),
            credit: DispatchNo(*credit),
            load: 0,
            answered: DispatchNo(0),
        });
        self.step(Input::Worker(WorkerBatch { lane: LaneId(0), session: batch.session, messages }));
    }
}

fn empty_page(what: &LaneRead) -> LanePage {
    match what {
        LaneRead::Cursor => LanePage::Cursor(Seq(0)),
        LaneRead::Records { .. } => LanePage::Records { rows: Vec::new(), more: false },
        LaneRead::Inbox { .. } => LanePage::Inbox { rows: Vec::new(), more: false },
        LaneRead::Arrivals { after } => LanePage::Arrivals { rows: Vec::new(), next: *after, more: false },
        LaneRead::Policies { after } => {
            LanePage::Policies { rows: Vec::new(), revision: *after, more: false }
        }
        LaneRead::InFlight { .. }
        | LaneRead::Lines { .. }
        | LaneRead::Line { .. }
        | LaneRead::Delayed { .. }
        | LaneRead::Expiring { .. }
        | LaneRead::Tasks { .. } => LanePage::Tasks { rows: Vec::new(), more: false },
    }
}

fn name(text: &str) -> Name {
    Name::new(text).expect("a valid name")
}

fn member(number: u128) -> Member {
    let descriptor = WorkerDescriptor {
        name: name(&format!("worker-{number}")),
        capacity: 32,
        weight: 1,
        labels: BTreeMap::new(),
        task_types: BTreeSet::from([name("noop")]),
        draining: false,
        pause_reason: None,
        address: String::new(),
    };
    Member { session: SessionId::from_random(number), role: Role::Worker(descriptor) }
}

fn task(number: u64, task_type: &str) -> NewTask {
    let created_at = Timestamp::from_millis(1_700_000_000_000);
    let head = TaskHead {
        queue: QueueKey::new(name("default"), name("default")),
        task_type: name(task_type),
        priority: Priority::default(),
        labels: BTreeMap::new(),
        flow: Vec::new(),
        hash_bucket: None,
        execution_timeout: Duration::from_mins(5),
        start_timeout: None,
        progress_timeout: None,
        runs_as: None,
        retry: RetryPolicy::default(),
    };
    let body =
        TaskBody { name: "bench".to_owned(), payload: Payload::Text("x".repeat(200)), ..TaskBody::default() };
    NewTask {
        id: TaskId::from_time(LaneId(0), created_at, number),
        spec: TaskSpec { head: Arc::new(head), body: Arc::new(body) },
        created_at,
        due: created_at,
        fingerprint: Fingerprint { version: 1, hash: number },
        queue_len_max: None,
        unique: None,
        shift: None,
    }
}
