//! Where log lines go: to standard error, for people or for programs.

use std::io::IsTerminal;

use anyhow::Context;
use tasklane::config::{LogConfig, LogFormat};
use tracing_subscriber::EnvFilter;
use tracing_subscriber::util::SubscriberInitExt;

/// Begins to log as configured.
pub(crate) fn start(config: &LogConfig) -> anyhow::Result<()> {
    let filter: EnvFilter = config
        .level
        .parse()
        .with_context(|| format!("log.level {:?} is neither a level nor a list of filters", config.level))?;
    let lines = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr);
    match config.format {
        LogFormat::Text => lines.with_ansi(std::io::stderr().is_terminal()).finish().try_init()?,
        LogFormat::Json => lines.json().flatten_event(true).with_current_span(true).finish().try_init()?,
    }
    Ok(())
}
