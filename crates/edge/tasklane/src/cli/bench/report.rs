//! The figures of a run, and how they are shown.

use std::time::Duration;

use hdrhistogram::Histogram;
use serde::Serialize;

use crate::cli::out::pairs;
use crate::cli::value::shown_duration;

use super::Scenario;

/// The figures of a run.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Report {
    pub(super) scenario: Scenario,
    pub(super) target: String,
    /// Tasks that are counted.
    pub(super) tasks: u64,
    pub(super) seconds: f64,
    /// Completions that are committed.
    pub(super) completed_per_second: f64,
    /// Tasks that were acknowledged as durable, while tasks were submitted.
    pub(super) submitted_per_second: f64,
    /// From when a task was submitted, or was due to be, until its attempt began.
    pub(super) start: Latency,
    /// … until its end.
    pub(super) done: Latency,
    /// From a request to its answer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) answer: Option<Latency>,
    /// Commits that the lanes asked the store for.
    pub(super) commits: u64,
    /// Tasks written by each of them.
    pub(super) mean_batch: f64,
    pub(super) server: Usage,
    /// Absent where the server is in this process.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) client: Option<Usage>,
    /// The run that it is compared with.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) compared: Option<Comparison>,
}

/// Something else that was measured in the same run.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Comparison {
    pub(super) with: &'static str,
    pub(super) per_second: f64,
    /// Ours by theirs.
    pub(super) ratio: f64,
    /// Memory of the server's own with all tasks queued.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) queued_anon_bytes: Option<u64>,
}

/// The resources that a process used during the run.
#[derive(Clone, Copy, Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Usage {
    pub(super) cpu_seconds: f64,
    pub(super) anon_bytes: u64,
    pub(super) peak_bytes: u64,
}

/// Latencies, in milliseconds.
#[derive(Clone, Copy, Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Latency {
    pub(super) count: u64,
    pub(super) p50_ms: f64,
    pub(super) p90_ms: f64,
    pub(super) p99_ms: f64,
    pub(super) max_ms: f64,
}

/// Gathers latencies.
#[derive(Debug)]
pub(super) struct Latencies(Histogram<u64>);

impl Default for Latencies {
    fn default() -> Self {
        Self(Histogram::new(3).expect("three digits can be kept"))
    }
}

impl Latencies {
    pub(super) fn add(&mut self, latency: Duration) {
        // It grows as needed; only what is beyond all bounds is left out.
        let _ = self.0.record(u64::try_from(latency.as_micros()).unwrap_or(u64::MAX));
    }

    pub(super) fn latency(&self) -> Latency {
        let at = |quantile: f64| millis(self.0.value_at_quantile(quantile));
        Latency {
            count: self.0.len(),
            p50_ms: at(0.5),
            p90_ms: at(0.9),
            p99_ms: at(0.99),
            max_ms: millis(self.0.max()),
        }
    }
}

#[expect(clippy::cast_precision_loss, reason = "three digits are kept")]
fn millis(micros: u64) -> f64 {
    micros as f64 / 1000.0
}

/// So many in so much time.
#[expect(clippy::cast_precision_loss, reason = "a rate is not exact")]
pub(super) fn rate(count: u64, seconds: f64) -> f64 {
    count as f64 / seconds.max(f64::EPSILON)
}

/// For people.
pub(super) fn shown(report: &Report) -> String {
    let compared = report.compared.as_ref();
    let memory = compared.and_then(|compared| compared.queued_anon_bytes);
    pairs(&[
        ("target", report.target.clone()),
        ("tasks", report.tasks.to_string()),
        (
            "completed",
            format!(
                "{:.0}/s, in {}",
                report.completed_per_second,
                shown_duration(Duration::from_secs_f64(report.seconds))
            ),
        ),
        ("submitted", format!("{:.0}/s", report.submitted_per_second)),
        (
            "compared",
            compared.map_or_else(String::new, |c| {
                format!("{:.0} % of {}: {:.0}/s", c.ratio * 100.0, c.with, c.per_second)
            }),
        ),
        ("with all queued", memory.map_or_else(String::new, |bytes| format!("{} of memory", mib(bytes)))),
        ("submit → start", latency(&report.start)),
        ("submit → done", latency(&report.done)),
        ("answer", report.answer.as_ref().map_or_else(String::new, latency)),
        ("commits", format!("{}, of {:.0} tasks each", report.commits, report.mean_batch)),
        ("server", usage(&report.server)),
        ("client", report.client.as_ref().map_or_else(String::new, usage)),
    ])
}

fn latency(latency: &Latency) -> String {
    if latency.count == 0 {
        return String::new();
    }
    let ms = |ms: f64| shown_duration(Duration::from_secs_f64(ms / 1000.0));
    format!(
        "p50 {}, p90 {}, p99 {}, max {}",
        ms(latency.p50_ms),
        ms(latency.p90_ms),
        ms(latency.p99_ms),
        ms(latency.max_ms)
    )
}

fn usage(usage: &Usage) -> String {
    format!(
        "{:.2} s of CPU, {} of memory, {} at its peak",
        usage.cpu_seconds,
        mib(usage.anon_bytes),
        mib(usage.peak_bytes)
    )
}

fn mib(bytes: u64) -> String {
    format!("{} MiB", bytes >> 20)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_those_of_what_was_added() {
        let mut latencies = Latencies::default();
        for millis in 1..=1000 {
            latencies.add(Duration::from_millis(millis));
        }
        let latency = latencies.latency();
        assert_eq!(latency.count, 1000);
        for (found, expected) in [
            (latency.p50_ms, 500.0),
            (latency.p90_ms, 900.0),
            (latency.p99_ms, 990.0),
            (latency.max_ms, 1000.0),
        ] {
            assert!((found / expected - 1.0).abs() < 0.002, "{found} is not {expected}");
        }
    }
}
