//! Metrics, as Prometheus reads them.
//!
//! The counts of the node are read at each scrape, so that they cannot disagree with `/api/v1/stats`; only
//! requests are counted here.

use std::cmp::Reverse;
use std::fmt::{self, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use prometheus_client::encoding::text::{encode_eof, encode_registry};
use prometheus_client::encoding::{EncodeLabelSet, LabelSetEncoder};
use prometheus_client::metrics::counter::{ConstCounter, Counter};
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;
use tasklane_core::status::Status;
use tasklane_ports::QueueCounts;

use crate::problem::{self, Problem};
use crate::state::Api;

/// Queues that have metrics of their own: each adds eight rows.
const QUEUES_MAX: usize = 1000;

/// Namespace and queue of the rows that add up all further queues. No name has these characters.
const OTHER: &str = "(other)";

/// How the metrics are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Format {
    /// The text format of Prometheus, which every reader takes.
    Plain,
    /// `OpenMetrics`, for readers that ask for it.
    OpenMetrics,
}

impl Format {
    /// The format that `Accept` headers ask for.
    pub(crate) fn accepted<'a>(headers: impl Iterator<Item = &'a str>) -> Self {
        let (mut plain, mut open) = (0.0, 0.0);
        for range in headers.flat_map(|header| header.split(',')) {
            let mut parts = range.split(';').map(str::trim);
            let kind = parts.next().unwrap_or_default().to_ascii_lowercase();
            let weight = parts.find_map(|part| part.strip_prefix("q=")).map_or(Ok(1.0), str::parse::<f32>);
            let best = match kind.as_str() {
                "application/openmetrics-text" => &mut open,
                "text/plain" | "text/*" => &mut plain,
                _ => continue,
            };
            *best = weight.unwrap_or(0.0).max(*best);
        }
        if open > 0.0 && open >= plain { Self::OpenMetrics } else { Self::Plain }
    }

    pub(crate) fn content_type(self) -> &'static str {
        match self {
            Self::Plain => "text/plain; version=0.0.4; charset=utf-8",
            Self::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
        }
    }
}

/// Pairs of a metric.
type Labels = Vec<(&'static str, String)>;

/// Requests, counted as they are answered.
#[derive(Clone)]
pub(crate) struct HttpMetrics {
    requests: Family<HttpLabels, Counter>,
    seconds: Family<RouteLabels, Histogram, fn() -> Histogram>,
    /// Queues without rows of their own at the last reading; the log has a line when there are some for the first time.
    left_out: Arc<AtomicUsize>,
}

impl fmt::Debug for HttpMetrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HttpMetrics").finish_non_exhaustive()
    }
}

impl Default for HttpMetrics {
    fn default() -> Self {
        let seconds = Family::new_with_constructor(histogram as fn() -> Histogram);
        Self { requests: Family::default(), seconds, left_out: Arc::default() }
    }
}

fn histogram() -> Histogram {
    Histogram::new([0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0])
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct HttpLabels {
    method: &'static str,
    route: String,
    status: u16,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct RouteLabels {
    method: &'static str,
    route: String,
}

impl EncodeLabelSet for HttpLabels {
    fn encode(&self, encoder: &mut LabelSetEncoder<'_>) -> fmt::Result {
        let route = ("route", self.route.as_str());
        [("method", self.method), route].encode(encoder)?;
        [("status", self.status.to_string())].encode(encoder)
    }
}

impl EncodeLabelSet for RouteLabels {
    fn encode(&self, encoder: &mut LabelSetEncoder<'_>) -> fmt::Result {
        [("method", self.method), ("route", self.route.as_str())].encode(encoder)
    }
}

impl HttpMetrics {
    /// Counts an answer. The route is the template of the path, so that there are few of them.
    pub(crate) fn answered(&self, method: &'static str, route: &str, status: u16, took: Duration) {
        let route = route.to_owned();
        self.requests.get_or_create(&HttpLabels { method, route: route.clone(), status }).inc();
        self.seconds.get_or_create(&RouteLabels { method, route }).observe(took.as_secs_f64());
    }
}

/// All metrics, as text.
pub(crate) async fn text(api: &Api, format: Format) -> Result<String, Problem> {
    // A store that does not answer is no reason to hide the metrics of this server: an operator needs them
    // most then.
    let counted = api.node.all_counts().await;
    let is_up = counted.is_ok();
    let queues = counted.unwrap_or_default();
    let stats = api.node.stats_with(&queues).await;

    let mut registry = Registry::with_prefix("tasklane");
    let tasks = Rows::default();
    for status in Status::ALL.into_iter().filter(|_| is_up) {
        tasks.set(&vec![("status", status.to_string())], stats.counts[usize::from(status.code())]);
    }
    registry.register("tasks", "Tasks by status", tasks.0);
    let (by_queue, left_out) = by_queue(queues);
    registry.register("queue_tasks", "Tasks by queue and status", by_queue.0);
    if api.metrics.left_out.swap(left_out, Ordering::Relaxed) == 0 && left_out > 0 {
        tracing::warn!(
            left_out,
            "metrics: {QUEUES_MAX} queues have rows of their own, the rest is added up as queue {OTHER:?}"
        );
    }
    let running_at = Rows::default();
    for worker in api.node.workers() {
        let running = worker.stats.as_ref().map_or(0, |stats| u64::from(stats.running));
        running_at.set(&vec![("worker", worker.descriptor.name.to_string())], running);
    }
    registry.register("worker_running", "Attempts that a worker runs", running_at.0);
    let owned = stats.lanes.iter().filter(|lane| lane.phase == "owning").count();
    let single: [(&str, &str, u64); 7] = [
        ("queues_left_out", "Queues that are added up in queue_tasks as queue (other)", left_out as u64),
        ("store_up", "Whether the store answers: 1, or 0", u64::from(is_up)),
        ("lanes_owned", "Lanes that this server schedules", owned as u64),
        ("workers", "Live workers", stats.workers as u64),
        ("capacity", "Attempts that workers can run at once", stats.capacity),
        ("running", "Attempts that workers run", stats.running),
        ("lanes", "Lanes that this server knows", stats.lanes.len() as u64),
    ];
    for (name, help, value) in single {
        let gauge = Gauge::<u64, AtomicU64>::default();
        gauge.set(value);
        registry.register(name, help, gauge);
    }
    if let Some(archive) = api.node.archive_stats() {
        let lag = Gauge::<f64, AtomicU64>::default();
        lag.set(archive.lag.as_secs_f64());
        registry.register(
            "archive_lag_seconds",
            "Waiting time of the first task in line for the archive",
            lag,
        );
        let tasks = ConstCounter::new(archive.tasks);
        registry.register("archived_tasks", "Tasks that this server has archived", tasks);
    }
    let clock = stats.clock;
    if let Some(offset) = clock.offset {
        let seconds = Gauge::<f64, AtomicU64>::default();
        seconds.set(
            Duration::from_micros(offset.as_micros().unsigned_abs())
                .as_secs_f64()
                .copysign(if offset.is_back() { -1.0 } else { 1.0 }),
        );
        registry.register(
            "clock_offset_seconds",
            "Offset of the coordinator's clock from this machine's clock",
            seconds,
        );
    }
    let settled = Gauge::<u64, AtomicU64>::default();
    settled.set(u64::from(clock.clock.is_settled()));
    registry.register("clock_settled", "Whether the clock has settled, so that retention may act", settled);
    registry.register("clock_steps", "Steps of the clock since the start", ConstCounter::new(clock.steps));
    let started = Gauge::<i64>::default();
    started.set(stats.started_at.as_millis() / 1000);
    registry.register("start_time_seconds", "Start time of this server", started);
    for (name, value) in &stats.counters {
        registry.register(*name, "Counted by the lanes of this server", ConstCounter::new(*value));
    }
    let http = api.metrics.clone();
    registry.register("http_requests", "Requests answered", http.requests);
    registry.register("http_request_seconds", "Time until the answer began", http.seconds);

    let mut text = String::new();
    encode_registry(&mut text, &registry)
        .and_then(|()| encode_eof(&mut text))
        .map_err(|_| Problem::new(&problem::INTERNAL, "the metrics could not be written"))?;
    Ok(match format {
        Format::OpenMetrics => text,
        Format::Plain => plain(&text),
    })
}

/// A row for each queue and status, and how many queues have none. The queues with the most unfinished tasks have rows of
/// their own; all others are added up, so that the sum over all rows is right.
fn by_queue(mut queues: Vec<QueueCounts>) -> (Rows, usize) {
    let count = |queue: &QueueCounts, status: Status| queue.by_status[usize::from(status.code())];
    if queues.len() > QUEUES_MAX {
        let unfinished = |queue: &QueueCounts| -> u64 {
            Status::ALL
                .into_iter()
                .filter(|status| !status.is_final())
                .map(|status| count(queue, status))
                .sum()
        };
        // Stable: among equals the first by name stay.
        queues.sort_by_key(|queue| Reverse(unfinished(queue)));
    }
    let rest = queues.split_off(queues.len().min(QUEUES_MAX));
    let rows = Rows::default();
    let set = |namespace: &str, queue: &str, status: Status, count: u64| {
        let labels = [("namespace", namespace.to_owned()), ("queue", queue.to_owned())];
        rows.set(&labels.into_iter().chain([("status", status.to_string())]).collect(), count);
    };
    for status in Status::ALL {
        for queue in &queues {
            set(queue.queue.namespace.as_str(), queue.queue.queue.as_str(), status, count(queue, status));
        }
        if !rest.is_empty() {
            set(OTHER, OTHER, status, rest.iter().map(|queue| count(queue, status)).sum());
        }
    }
    (rows, rest.len())
}

/// `OpenMetrics` in the text format of Prometheus: there a counter has the name of its samples, and no line marks the end.
fn plain(open: &str) -> String {
    let mut text = String::with_capacity(open.len());
    let mut help = None;
    for line in open.lines() {
        if let Some(described) = line.strip_prefix("# HELP ") {
            help = described.split_once(' ');
        } else if let Some((name, kind)) =
            line.strip_prefix("# TYPE ").and_then(|typed| typed.split_once(' '))
        {
            let (end, kind) = match kind {
                "counter" => ("_total", kind),
                "unknown" => ("", "untyped"),
                kind => ("", kind),
            };
            if let Some((_, help)) = help.take().filter(|(described, _)| *described == name) {
                let _ = writeln!(text, "# HELP {name}{end} {help}");
            }
            let _ = writeln!(text, "# TYPE {name}{end} {kind}");
        } else if !line.starts_with("# UNIT ") && line != "# EOF" {
            text.push_str(line);
            text.push('\n');
        }
    }
    text
}

/// A gauge with one row for each set of labels.
#[derive(Default)]
struct Rows(Family<Labels, Gauge<u64, AtomicU64>>);

impl Rows {
    fn set(&self, labels: &Labels, value: u64) {
        self.0.get_or_create(labels).set(value);
    }
}
