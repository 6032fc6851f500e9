//! The log: lines to standard error, for people or for programs.
//!
//! Names and errors in them come from others. For people, characters that would move the cursor or hide text
//! are escaped; for everyone, passwords and query strings of URLs are masked.

use std::io::{IsTerminal, Write};

use anyhow::Context;
use tasklane::config::{LogConfig, LogFormat};
use tasklane_core::mask::masked;
use tasklane_core::printable::printable;
use tracing_subscriber::EnvFilter;
use tracing_subscriber::field::MakeExt;
use tracing_subscriber::fmt::FormatFields;
use tracing_subscriber::fmt::format::debug_fn;
use tracing_subscriber::util::SubscriberInitExt;

/// Begins to log as configured.
pub(crate) fn start(config: &LogConfig) -> anyhow::Result<()> {
    let filter: EnvFilter = config
        .level
        .parse()
        .with_context(|| format!("log.level {:?} is neither a level nor a list of filters", config.level))?;
    let lines = tracing_subscriber::fmt().with_env_filter(filter).with_writer(|| Masking(std::io::stderr()));
    match config.format {
        LogFormat::Text => {
            let is_terminal = std::io::stderr().is_terminal();
            lines.with_ansi(is_terminal).fmt_fields(fields()).finish().try_init()?;
        }
        LogFormat::Json => lines.json().flatten_event(true).with_current_span(true).finish().try_init()?,
    }
    Ok(())
}

/// Writes the message and the fields of a line: `message name=value`.
fn fields() -> impl for<'writer> FormatFields<'writer> + 'static {
    debug_fn(|writer, field, value| {
        let value = format!("{value:?}");
        match field.name() {
            "message" => writer.write_str(&printable(&value)),
            name => write!(writer, "{name}={}", printable(&value)),
        }
    })
    .delimited(" ")
}

/// Masks the URLs in each line that passes through it. Lines come whole.
#[derive(Debug)]
struct Masking<W>(W);

impl<W: Write> Write for Masking<W> {
    fn write(&mut self, line: &[u8]) -> std::io::Result<usize> {
        match std::str::from_utf8(line) {
            Ok(text) => self.0.write_all(masked(text).as_bytes())?,
            Err(_) => self.0.write_all(line)?,
        }
        Ok(line.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        self.0.flush()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use super::*;

    #[derive(Clone, Default)]
    struct Kept(Arc<Mutex<Vec<u8>>>);

    impl Write for Kept {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0.lock().unwrap().write(bytes)
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_line_neither_moves_the_cursor_nor_tells_secrets() {
        let (kept, json) = (Kept::default(), Kept::default());
        let log = || {
            let name = "a\x1b[2J\u{202e}b\nINFO forged";
            let error = "no answer (http://me:pw@host/x?token=s3cret)";
            tracing::info_span!("of", %name).in_scope(|| tracing::warn!(name, %error, "{name} failed"));
        };
        let writer = kept.clone();
        let lines = tracing_subscriber::fmt().with_writer(move || Masking(writer.clone())).with_ansi(false);
        tracing::subscriber::with_default(lines.fmt_fields(fields()).finish(), log);
        let writer = json.clone();
        let lines = tracing_subscriber::fmt().with_writer(move || Masking(writer.clone())).json();
        tracing::subscriber::with_default(lines.finish(), log);

        let text = String::from_utf8(kept.0.lock().unwrap().clone()).unwrap();
        assert!(text.ends_with("no answer (http://***@host/x?***)\n"), "{text}");
        assert!(text.contains(r"a\u{1b}[2J\u{202e}b\nINFO forged failed name="), "{text}");
        assert!(!text.contains(['\x1b', '\u{202e}']) && text.lines().count() == 1, "{text}");
        let json = String::from_utf8(json.0.lock().unwrap().clone()).unwrap();
        assert!(json.contains("http://***@host/x?***") && !json.contains("s3cret"), "{json}");
        serde_json::from_str::<serde_json::Value>(&json).unwrap();
    }
}
