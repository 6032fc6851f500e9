//! Limits by key: their cost, and the cost of one crowded key to the others.

use std::time::{Duration, Instant};

use anyhow::Result;
use futures::{StreamExt, TryStreamExt};
use tasklane_client::TaskRequest;

use crate::cli::out::bar;

use super::Args;
use super::report::{Comparison, Report, rate};
use super::scenarios::{Before, drain};
use super::target::{Target, request};

/// The key that has nearly all tasks.
const CROWDED: &str = "crowded";

/// Fills a paused queue with tasks of many keys and lets it run, in turns without limits and with them.
pub(super) async fn keys(args: &Args, target: &Target) -> Result<Report> {
    let plain_queue = format!("{}-plain", args.queue);
    let task = |queue: &str, n: u64| of_key(args, queue, &(n % args.keys).to_string());
    let tasks = |queue: &str| -> Vec<TaskRequest> { (0..args.tasks()).map(|n| task(queue, n)).collect() };
    let (plain_tasks, tasks) = (tasks(&plain_queue), tasks(&args.queue));
    let (mut plain, mut limited) = (Vec::new(), Vec::new());
    for _ in 0..args.rounds {
        plain.push(fill_and_drain(args, target, &plain_queue, &plain_tasks, None, args.tasks()).await?);
        let limit = Some(args.key_limit);
        limited.push(fill_and_drain(args, target, &args.queue, &tasks, limit, args.tasks()).await?);
    }
    Ok(compared(median(limited), "the same tasks without limits", &median(plain)))
}

/// Nine of ten tasks have one key, whose limit is reached all the time. How fast are the others, beside those and alone?
pub(super) async fn crowd(args: &Args, target: &Target) -> Result<Report> {
    let others = args.tasks() / 10;
    let alone_queue = format!("{}-alone", args.queue);
    let of_others = |queue: &str, n: u64| of_key(args, queue, &(n % args.keys).to_string());
    let alone_tasks: Vec<TaskRequest> = (0..others).map(|n| of_others(&alone_queue, n)).collect();
    let crowded = of_key(args, &args.queue, CROWDED);
    // Every tenth is one of the others, so that they arrive among the crowd.
    let one_of = |n: u64| if n % 10 == 9 { of_others(&args.queue, n / 10) } else { crowded.clone() };
    let tasks: Vec<TaskRequest> = (0..others * 10).map(one_of).collect();
    let holder = TaskRequest {
        queue: crowded.queue.clone(),
        metadata: crowded.metadata.clone(),
        priority: Some(9),
        execution_timeout: Some(Duration::from_hours(1)),
        ..TaskRequest::new("holder", "SHELL", "sleep 3600")
    };
    target.set_key_limit(&args.queue, Some(1), false).await?;
    let holder = target.submit(&holder).await?;
    target.until_running(&holder).await?;
    let (mut alone, mut beside) = (Vec::new(), Vec::new());
    for _ in 0..args.rounds {
        alone.push(fill_and_drain(args, target, &alone_queue, &alone_tasks, Some(1), others).await?);
        beside.push(fill_and_drain(args, target, &args.queue, &tasks, Some(1), others).await?);
    }
    // The rest of the crowd would otherwise run on after the benchmark.
    target.cancel_queue(&args.queue).await?;
    Ok(compared(median(beside), "the same tasks alone", &median(alone)))
}

/// The one in the middle by its speed.
fn median(mut reports: Vec<Report>) -> Report {
    reports.sort_by(|a, b| a.completed_per_second.total_cmp(&b.completed_per_second));
    let middle = (reports.len() - 1) / 2;
    reports.swap_remove(middle)
}

fn of_key(args: &Args, queue: &str, key: &str) -> TaskRequest {
    let metadata = [("key".to_owned(), key.to_owned())].into();
    TaskRequest { queue: Some(queue.to_owned()), metadata, ..request(args) }
}

fn compared(report: Report, with: &'static str, other: &Report) -> Report {
    let per_second = other.completed_per_second;
    let ratio = report.completed_per_second / per_second;
    Report { compared: Some(Comparison { with, per_second, ratio, queued_anon_bytes: None }), ..report }
}

/// Fills a paused queue and measures how fast the first `drained` are finished once it runs.
async fn fill_and_drain(
    args: &Args,
    target: &Target,
    queue: &str,
    tasks: &[TaskRequest],
    limit: Option<u32>,
    drained: u64,
) -> Result<Report> {
    target.set_key_limit(queue, limit, true).await?;
    let progress = bar(tasks.len() as u64, "submitted");
    let begun = Instant::now();
    futures::stream::iter(tasks.chunks(usize::try_from(args.batch)?))
        .map(|batch| {
            let progress = &progress;
            async move {
                target.submit_all(batch).await?;
                progress.inc(batch.len() as u64);
                anyhow::Ok(())
            }
        })
        .buffer_unordered(args.connections())
        .try_collect::<()>()
        .await?;
    progress.finish_and_clear();
    let submitted = rate(tasks.len() as u64, begun.elapsed().as_secs_f64());
    let before = Before::of(queue, target).await?;
    target.pause(queue, false).await?;
    drain(queue, target, before.finished, drained).await?;
    let seconds = before.started.elapsed().as_secs_f64();
    let report = before.report(args, target, drained, seconds).await?;
    Ok(Report { submitted_per_second: submitted, ..report })
}
