//! `tasklane stats`: how the server is doing.

use serde_json::Value;
use tasklane_client::{Client, Stats, Status};

use super::exit::Exit;
use super::out::{Out, pairs};
use super::value::shown_time;

/// Show the state of the server
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Show all counters too
    #[arg(long)]
    counters: bool,
}

pub(crate) async fn run(args: Args, client: &Client, out: Out) -> anyhow::Result<Exit> {
    let stats = client.stats().await?;
    out.either(&stats, |stats| shown(stats, args.counters)).map(|()| Exit::OK)
}

fn shown(stats: &Stats, counters: bool) -> String {
    let count = |status: &Status| stats.tasks.get(status.as_str()).copied().unwrap_or(0);
    let lanes = stats.lanes.iter().map(|lane| format!("{} ({})", lane.lane, lane.phase));
    let mut text = pairs(&[
        ("version", stats.version.clone()),
        ("started", shown_time(stats.started_at)),
        ("workers", format!("{} with {} of {} in use", stats.workers, stats.running, stats.capacity)),
        ("lanes", lanes.collect::<Vec<_>>().join(", ")),
    ]);
    text.push('\n');
    let rows: Vec<(&str, String)> =
        Status::ALL.iter().map(|status| (status.as_str(), count(status).to_string())).collect();
    text.push_str(&pairs(&rows));
    if counters {
        text.push('\n');
        let rows: Vec<(&str, String)> =
            stats.counters.iter().map(|(name, count)| (name.as_str(), Value::to_string(count))).collect();
        text.push_str(&pairs(&rows));
    }
    text
}
