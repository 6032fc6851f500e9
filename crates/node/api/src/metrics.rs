//! Metrics, as Prometheus reads them.
//!
//! What the node counts is read when it is asked for, so that it cannot disagree with `/api/v1/stats`; only requests
//! are counted here.

use std::fmt;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use prometheus_client::encoding::text::{encode_eof, encode_registry};
use prometheus_client::encoding::{EncodeLabelSet, LabelSetEncoder};
use prometheus_client::metrics::counter::{ConstCounter, Counter};
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;
use tasklane_core::status::Status;

use crate::problem::{self, Problem};
use crate::state::Api;

/// What the text is.
pub(crate) const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// Queues that have metrics of their own: each adds eight rows.
const QUEUES_MAX: usize = 1000;

/// Pairs of a metric.
type Labels = Vec<(&'static str, String)>;

/// Requests, counted as they are answered.
#[derive(Clone)]
pub(crate) struct HttpMetrics {
    requests: Family<HttpLabels, Counter>,
    seconds: Family<RouteLabels, Histogram, fn() -> Histogram>,
}

impl fmt::Debug for HttpMetrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HttpMetrics").finish_non_exhaustive()
    }
}

impl Default for HttpMetrics {
    fn default() -> Self {
        Self { requests: Family::default(), seconds: Family::new_with_constructor(histogram) }
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
pub(crate) async fn text(api: &Api) -> Result<String, Problem> {
    // A store that does not answer is no reason to tell nothing of this server: then least of all.
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
    let by_queue = Rows::default();
    for counts in queues.iter().take(QUEUES_MAX) {
        for status in Status::ALL {
            let labels = vec![
                ("namespace", counts.queue.namespace.to_string()),
                ("queue", counts.queue.queue.to_string()),
                ("status", status.to_string()),
            ];
            by_queue.set(&labels, counts.by_status[usize::from(status.code())]);
        }
    }
    registry.register("queue_tasks", "Tasks by queue and status", by_queue.0);
    let running_at = Rows::default();
    for worker in api.node.workers() {
        let running = worker.stats.as_ref().map_or(0, |stats| u64::from(stats.running));
        running_at.set(&vec![("worker", worker.descriptor.name.to_string())], running);
    }
    registry.register("worker_running", "Attempts that a worker holds", running_at.0);
    let owned = stats.lanes.iter().filter(|lane| lane.phase == "owning").count();
    let single: [(&str, &str, u64); 6] = [
        ("store_up", "Whether the store answers: 1, or 0", u64::from(is_up)),
        ("lanes_owned", "Lanes that this server schedules", owned as u64),
        ("workers", "Live workers", stats.workers as u64),
        ("capacity", "Attempts that workers could hold", stats.capacity),
        ("running", "Attempts that workers hold", stats.running),
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
            "For how long the first of the tasks that wait to be archived has waited",
            lag,
        );
        let tasks = ConstCounter::new(archive.tasks);
        registry.register("archived_tasks", "Tasks that this server has archived", tasks);
    }
    let started = Gauge::<i64>::default();
    started.set(stats.started_at.as_millis() / 1000);
    registry.register("start_time_seconds", "When this server was started", started);
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
    Ok(text)
}

/// A gauge with one row for each set of labels.
#[derive(Default)]
struct Rows(Family<Labels, Gauge<u64, AtomicU64>>);

impl Rows {
    fn set(&self, labels: &Labels, value: u64) {
        self.0.get_or_create(labels).set(value);
    }
}
