//! The scenarios: the load on the target, and the figures taken from it.

use std::collections::HashMap;
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use futures::{StreamExt, TryStreamExt};
use indicatif::ProgressBar;
use jiff::Timestamp;
use tasklane_client::TaskRequest;
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

use crate::cli::out::bar;

use super::bare;
use super::report::{Comparison, Latencies, Latency, Report, Usage, rate};
use super::target::{Ends, ResourceUse, SHELL, Target, TaskTimes, request, wall};
use super::{Args, Scenario};

/// How often it is asked how many tasks are finished.
const ASK_EVERY: Duration = Duration::from_millis(20);
/// Tasks looked at for latencies.
const SAMPLE: usize = 100_000;
/// A fresh queue, with which a long one is compared.
const FRESH: u64 = 100_000;

pub(super) async fn run(args: &Args, target: &Target) -> Result<Report> {
    let (unfinished, _) = target.counts(&args.queue).await?;
    if unfinished > 0 {
        bail!("queue {} still has {unfinished} unfinished tasks; name another by --queue", args.queue);
    }
    match args.scenario {
        Scenario::Burst | Scenario::Shell => burst(args, target).await,
        Scenario::Steady => steady(args, target).await,
        Scenario::Single | Scenario::Sync => each(args, target).await,
        Scenario::Backlog => backlog(args, target).await,
        Scenario::Keys => super::keys::keys(args, target).await,
        Scenario::Crowd => super::keys::crowd(args, target).await,
    }
}

/// The counts and clocks before tasks are submitted.
pub(super) struct Before {
    since: Timestamp,
    pub(super) started: Instant,
    pub(super) finished: u64,
    used: ResourceUse,
    client: Option<Usage>,
}

impl Before {
    pub(super) async fn of(queue: &str, target: &Target) -> Result<Self> {
        Ok(Self {
            finished: target.counts(queue).await?.1,
            used: target.used().await?,
            client: target.client_usage(),
            since: Timestamp::now(),
            started: Instant::now(),
        })
    }

    /// The report on what has happened since.
    pub(super) async fn report(
        self,
        args: &Args,
        target: &Target,
        tasks: u64,
        seconds: f64,
    ) -> Result<Report> {
        let used = target.used().await?;
        let commits = used.commits - self.used.commits;
        let since =
            |now: Usage, before: Usage| Usage { cpu_seconds: now.cpu_seconds - before.cpu_seconds, ..now };
        Ok(Report {
            scenario: args.scenario,
            target: target.name(),
            tasks,
            seconds,
            completed_per_second: rate(tasks, seconds),
            submitted_per_second: 0.0,
            start: Latency::default(),
            done: Latency::default(),
            answer: None,
            commits,
            #[expect(clippy::cast_precision_loss, reason = "it is a rounded number for people")]
            mean_batch: rate(used.written - self.used.written, commits.max(1) as f64),
            server: since(used.usage, self.used.usage),
            client: target.client_usage().zip(self.client).map(|(now, before)| since(now, before)),
            compared: None,
        })
    }
}

async fn burst(args: &Args, target: &Target) -> Result<Report> {
    let tasks = args.tasks();
    let bare = match args.scenario {
        Scenario::Shell => Some(bare_processes(target, tasks).await?),
        _ => None,
    };
    let before = Before::of(&args.queue, target).await?;
    let (since, begun) = (before.since, before.started);
    submit(args, target, tasks).await?;
    let submitted = begun.elapsed().as_secs_f64();
    drain(&args.queue, target, before.finished, tasks).await?;
    let seconds = begun.elapsed().as_secs_f64();
    let mut report = before.report(args, target, tasks, seconds).await?;
    report.submitted_per_second = rate(tasks, submitted);
    (report.start, report.done) =
        latencies(&target.newest(&args.queue, since, SAMPLE).await?, |task| task.created);
    report.compared = bare.map(|per_second| Comparison {
        with: "a bare loop",
        per_second,
        ratio: report.completed_per_second / per_second,
        queued_anon_bytes: None,
    });
    Ok(report)
}

async fn bare_processes(target: &Target, tasks: u64) -> Result<f64> {
    let parallel = target.capacity().await?;
    tokio::task::spawn_blocking(move || bare::processes_per_second(SHELL, tasks, parallel)).await?
}

async fn submit(args: &Args, target: &Target, tasks: u64) -> Result<()> {
    let request = request(args);
    let progress = bar(tasks, "submitted");
    let sizes = (0..tasks).step_by(usize::try_from(args.batch)?).map(|at| args.batch.min(tasks - at));
    futures::stream::iter(sizes)
        .map(|size| {
            let (request, progress) = (&request, &progress);
            async move {
                target.submit_batch(request, size).await?;
                progress.inc(size);
                anyhow::Ok(())
            }
        })
        .buffer_unordered(args.connections())
        .try_collect::<()>()
        .await?;
    progress.finish_and_clear();
    Ok(())
}

/// Waits until so many more tasks are finished than there were before.
pub(super) async fn drain(queue: &str, target: &Target, before: u64, tasks: u64) -> Result<()> {
    let progress = bar(tasks, "finished");
    loop {
        let (unfinished, finished) = target.counts(queue).await?;
        let done = finished.saturating_sub(before);
        progress.set_position(done.min(tasks));
        if done >= tasks {
            progress.finish_and_clear();
            return Ok(());
        }
        if unfinished == 0 {
            bail!("only {done} of {tasks} tasks are there; does something else use queue {queue}?");
        }
        tokio::time::sleep(ASK_EVERY).await;
    }
}

/// From a moment of each task until its start and its end, by the server's times.
fn latencies(tasks: &[TaskTimes], from: impl Fn(&TaskTimes) -> Timestamp) -> (Latency, Latency) {
    let (mut start, mut done) = (Latencies::default(), Latencies::default());
    for task in tasks {
        for (latencies, at) in [(&mut start, task.started), (&mut done, task.finished)] {
            if let Some(at) = at {
                latencies.add(Duration::try_from(at.duration_since(from(task))).unwrap_or_default());
            }
        }
    }
    (start.latency(), done.latency())
}

/// Tasks at a fixed rate. Each has its time, and latencies count from then, however late it is sent.
async fn steady(args: &Args, target: &Target) -> Result<Report> {
    let tasks = args.tasks();
    let request = request(args);
    // The first connection and the first use of a queue are not what is measured.
    target.submit_and_wait(&request).await?;
    let (ends, following) = target.follow_ends();
    let before = Before::of(&args.queue, target).await?;
    let (since, begun) = (before.since, before.started);
    let progress = bar(tasks, "submitted");
    let answers = paced(args, target, &request, tasks, &progress).await?;
    progress.finish_and_clear();
    drain(&args.queue, target, before.finished, tasks).await?;
    let seconds = begun.elapsed().as_secs_f64();
    let mut report = before.report(args, target, tasks, seconds).await?;
    let mut answer = Latencies::default();
    let mut due = HashMap::new();
    for sent in answers {
        answer.add(sent.answered.saturating_duration_since(sent.due));
        due.insert(sent.id, sent.due);
    }
    report.submitted_per_second = rate(tasks, seconds);
    report.answer = Some(answer.latency());
    report.done = ends_after(&due, &ends);
    following.abort();
    let due: HashMap<String, Timestamp> =
        due.into_iter().map(|(id, at)| Ok((id, wall(at)?))).collect::<Result<_>>()?;
    let mut measured = target.newest(&args.queue, since, usize::try_from(tasks)?).await?;
    measured.retain(|task| due.contains_key(&task.id));
    (report.start, _) = latencies(&measured, |task| due[&task.id]);
    Ok(report)
}

/// A request that was answered.
struct AnsweredRequest {
    id: String,
    due: Instant,
    answered: Instant,
}

async fn paced(
    args: &Args,
    target: &Target,
    request: &TaskRequest,
    tasks: u64,
    progress: &ProgressBar,
) -> Result<Vec<AnsweredRequest>> {
    /// Requests that may be unanswered: beyond that the server does not keep up.
    const OPEN_MAX: usize = 10_000;
    let mut ticks = ticks(args.rate, tasks);
    let mut open = futures::stream::FuturesUnordered::new();
    let mut answers = Vec::new();
    loop {
        let due = tokio::select! {
            biased;
            due = ticks.recv() => due,
            Some(answer) = open.next(), if !open.is_empty() => {
                answers.push(answer?);
                continue;
            }
        };
        let Some(due) = due else { break };
        if open.len() >= OPEN_MAX {
            bail!("the server does not keep up with {} tasks a second", args.rate);
        }
        progress.inc(1);
        open.push(async move {
            let id = target.submit(request).await?;
            anyhow::Ok(AnsweredRequest { id, due, answered: Instant::now() })
        });
    }
    while let Some(answer) = open.next().await {
        answers.push(answer?);
    }
    Ok(answers)
}

/// Tells when each task is due. From a thread of its own: the timers of the runtime are a millisecond apart.
fn ticks(per_second: u64, count: u64) -> UnboundedReceiver<Instant> {
    let (tick, ticks) = unbounded_channel();
    std::thread::spawn(move || {
        let begun = Instant::now();
        for number in 0..count {
            let due = begun + Duration::from_secs_f64(rate(number, 1.0) / rate(per_second, 1.0));
            std::thread::sleep(due.saturating_duration_since(Instant::now()));
            if tick.send(due).is_err() {
                break;
            }
        }
    });
    ticks
}

fn ends_after(due: &HashMap<String, Instant>, ends: &Ends) -> Latency {
    let ends = ends.lock().unwrap_or_else(PoisonError::into_inner);
    let mut latencies = Latencies::default();
    for (id, due) in due {
        if let Some(end) = ends.get(id) {
            latencies.add(end.saturating_duration_since(*due));
        }
    }
    latencies.latency()
}

/// One task for each request, waited for or not.
async fn each(args: &Args, target: &Target) -> Result<Report> {
    let tasks = args.tasks();
    let request = Arc::new(request(args));
    target.submit_and_wait(&request).await?;
    let before = Before::of(&args.queue, target).await?;
    let (since, begun) = (before.since, before.started);
    let progress = bar(tasks, "submitted");
    let answers: Vec<Duration> = futures::stream::iter(0..tasks)
        .map(|_| {
            let (request, progress) = (&request, &progress);
            async move {
                let asked = Instant::now();
                if args.scenario == Scenario::Sync {
                    target.submit_and_wait(request).await?;
                } else {
                    target.submit(request).await?;
                }
                progress.inc(1);
                anyhow::Ok(asked.elapsed())
            }
        })
        .buffer_unordered(args.connections())
        .try_collect()
        .await?;
    progress.finish_and_clear();
    let submitted = begun.elapsed().as_secs_f64();
    drain(&args.queue, target, before.finished, tasks).await?;
    let seconds = begun.elapsed().as_secs_f64();
    let mut report = before.report(args, target, tasks, seconds).await?;
    report.submitted_per_second = rate(tasks, submitted);
    let mut answer = Latencies::default();
    for latency in answers {
        answer.add(latency);
    }
    report.answer = Some(answer.latency());
    (report.start, report.done) =
        latencies(&target.newest(&args.queue, since, SAMPLE).await?, |task| task.created);
    Ok(report)
}

/// Fills a paused queue and lets it run, first with few tasks, then with many.
async fn backlog(args: &Args, target: &Target) -> Result<Report> {
    let drained = args.drain.min(args.tasks());
    let (_, fresh, _) = fill_and_drain(args, target, FRESH.min(drained), drained).await?;
    let (report, per_second, queued) = fill_and_drain(args, target, args.tasks(), drained).await?;
    let compared = Comparison {
        with: "a queue with no more than that",
        per_second: fresh,
        ratio: per_second / fresh,
        queued_anon_bytes: Some(queued),
    };
    // The rest is finished too, so that the queue can be used again.
    while !args.keep && target.counts(&args.queue).await?.0 > 0 {
        tokio::time::sleep(ASK_EVERY * 5).await;
    }
    Ok(Report { compared: Some(compared), ..report })
}

/// Answers the report, the speed of the first `drained`, and the server's own memory with all tasks queued.
async fn fill_and_drain(
    args: &Args,
    target: &Target,
    tasks: u64,
    drained: u64,
) -> Result<(Report, f64, u64)> {
    target.pause(&args.queue, true).await?;
    let begun = Instant::now();
    submit(args, target, tasks).await?;
    let submitted = rate(tasks, begun.elapsed().as_secs_f64());
    let queued = target.used().await?.usage.anon_bytes;
    let before = Before::of(&args.queue, target).await?;
    let begun = Instant::now();
    target.pause(&args.queue, false).await?;
    let drained = drained.min(tasks);
    drain(&args.queue, target, before.finished, drained).await?;
    let seconds = begun.elapsed().as_secs_f64();
    let mut report = before.report(args, target, drained, seconds).await?;
    report.submitted_per_second = submitted;
    let per_second = report.completed_per_second;
    Ok((report, per_second, queued))
}
