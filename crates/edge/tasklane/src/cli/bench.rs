//! `tasklane bench`: how fast a server takes in and finishes tasks that do nothing.

use std::time::{Duration, Instant};

use anyhow::bail;
use futures::{StreamExt, TryStreamExt};
use jiff::Timestamp;
use serde::Serialize;
use tasklane_client::{BatchItem, Client, TaskQuery, TaskRequest};

use super::exit::Exit;
use super::out::{Out, bar, pairs};
use super::value::shown_duration;

/// How often it is asked how many tasks are left.
const ASK_EVERY: Duration = Duration::from_millis(50);

/// Tasks looked at for latencies.
const SAMPLE: usize = 1000;

/// Measure a server: submit NOOP tasks in batches and wait until all are finished
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// How many tasks
    #[arg(long, short = 'n', default_value_t = 10_000, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    tasks: u64,

    /// Tasks in a batch
    #[arg(long, default_value_t = 1000, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=10_000))]
    batch: u64,

    /// Batches under way at once
    #[arg(long, default_value_t = 4, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=64))]
    parallel: u64,

    /// The queue to use
    #[arg(long, default_value = "bench")]
    queue: String,
}

/// What was measured.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Measured {
    tasks: u64,
    submit_seconds: f64,
    submitted_per_second: f64,
    total_seconds: f64,
    finished_per_second: f64,
    /// From submission to the end, of the last tasks, in milliseconds.
    latency_p50_ms: f64,
    latency_p99_ms: f64,
}

pub(crate) async fn run(args: Args, client: &Client, out: Out) -> anyhow::Result<Exit> {
    let before = client.queue(&args.queue).await?.unfinished();
    if before > 0 {
        bail!("queue {} still has {before} unfinished tasks; name another by --queue", args.queue);
    }
    let since = Timestamp::now();
    let started = Instant::now();
    submit(&args, client).await?;
    let submitted = started.elapsed();
    drain(&args, client).await?;
    let total = started.elapsed();
    let (p50, p99) = latencies(&args, since, client).await?;
    let measured = Measured {
        tasks: args.tasks,
        submit_seconds: submitted.as_secs_f64(),
        submitted_per_second: rate(args.tasks, submitted),
        total_seconds: total.as_secs_f64(),
        finished_per_second: rate(args.tasks, total),
        latency_p50_ms: p50.as_secs_f64() * 1000.0,
        latency_p99_ms: p99.as_secs_f64() * 1000.0,
    };
    out.either(&measured, shown).map(|()| Exit::OK)
}

async fn submit(args: &Args, client: &Client) -> anyhow::Result<()> {
    let request = TaskRequest {
        queue: Some(args.queue.clone()),
        ..TaskRequest::new("bench", "NOOP", serde_json::Value::Null)
    };
    let progress = bar(args.tasks, "submitted");
    let sizes =
        (0..args.tasks).step_by(usize::try_from(args.batch)?).map(|at| args.batch.min(args.tasks - at));
    futures::stream::iter(sizes)
        .map(|size| {
            let (request, progress) = (&request, &progress);
            async move {
                let tasks: Vec<&TaskRequest> = (0..size).map(|_| request).collect();
                for answer in client.submit_batch(&tasks).await? {
                    if let BatchItem::Refused(problem) = answer {
                        bail!("a task was refused: {problem}");
                    }
                }
                progress.inc(size);
                Ok(())
            }
        })
        .buffer_unordered(usize::try_from(args.parallel)?)
        .try_collect::<()>()
        .await?;
    progress.finish_and_clear();
    Ok(())
}

async fn drain(args: &Args, client: &Client) -> anyhow::Result<()> {
    let progress = bar(args.tasks, "finished");
    loop {
        let left = client.queue(&args.queue).await?.unfinished();
        progress.set_position(args.tasks.saturating_sub(left));
        if left == 0 {
            progress.finish_and_clear();
            return Ok(());
        }
        tokio::time::sleep(ASK_EVERY).await;
    }
}

async fn latencies(args: &Args, since: Timestamp, client: &Client) -> anyhow::Result<(Duration, Duration)> {
    let query = TaskQuery {
        queue: Some(args.queue.clone()),
        created_after: Some(since),
        limit: Some(500),
        ..TaskQuery::default()
    };
    let tasks: Vec<_> = client.list_all(query).take(SAMPLE).try_collect().await?;
    let mut times: Vec<Duration> = tasks
        .iter()
        .filter_map(|task| Duration::try_from(task.finished_at?.duration_since(task.created_at?)).ok())
        .collect();
    times.sort_unstable();
    Ok((percentile(&times, 50), percentile(&times, 99)))
}

/// The time that this many percent do not exceed.
fn percentile(sorted: &[Duration], percent: usize) -> Duration {
    let at = (sorted.len() * percent).div_ceil(100).saturating_sub(1);
    sorted.get(at).copied().unwrap_or_default()
}

fn rate(count: u64, time: Duration) -> f64 {
    #[expect(clippy::cast_precision_loss, reason = "a rate is not exact")]
    let count = count as f64;
    count / time.as_secs_f64().max(f64::EPSILON)
}

fn shown(measured: &Measured) -> String {
    let time = |seconds: f64| shown_duration(Duration::from_secs_f64(seconds));
    pairs(&[
        ("tasks", measured.tasks.to_string()),
        (
            "submitted",
            format!("{:.0}/s, in {}", measured.submitted_per_second, time(measured.submit_seconds)),
        ),
        ("finished", format!("{:.0}/s, in {}", measured.finished_per_second, time(measured.total_seconds))),
        (
            "latency",
            format!(
                "{} median, {} at 99 %, of the last {}",
                time(measured.latency_p50_ms / 1000.0),
                time(measured.latency_p99_ms / 1000.0),
                SAMPLE.min(usize::try_from(measured.tasks).unwrap_or(SAMPLE))
            ),
        ),
    ])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_values_that_occurred() {
        let times: Vec<Duration> = (1..=100).map(Duration::from_millis).collect();
        assert_eq!(percentile(&times, 50), Duration::from_millis(50));
        assert_eq!(percentile(&times, 99), Duration::from_millis(99));
        assert_eq!(percentile(&times[..1], 99), Duration::from_millis(1));
        assert_eq!(percentile(&[], 50), Duration::ZERO);
    }
}
