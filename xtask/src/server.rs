//! A real server for checks and measurements.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use anyhow::{Context, Result};

use crate::cargo::root;

/// Where cargo puts what it builds.
pub(crate) fn target() -> PathBuf {
    std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root().join("target"), PathBuf::from)
}

/// A server that is ended with this.
#[derive(Debug)]
pub(crate) struct Server {
    pub(crate) process: Child,
    pub(crate) url: String,
}

impl Server {
    /// Starts `program` over a data folder, with these variables besides those of this process.
    pub(crate) fn start(program: &Path, data: &Path, env: &[(&str, &str)]) -> Result<Self> {
        Self::start_with(program, &["dev", "--listen", "127.0.0.1:0", "--data-dir"], data, env)
    }

    /// The same with other arguments, the data folder behind them.
    pub(crate) fn start_with(
        program: &Path,
        args: &[&str],
        data: &Path,
        env: &[(&str, &str)],
    ) -> Result<Self> {
        let mut process = Command::new(program)
            .args(args)
            .arg(data)
            .envs(env.iter().copied())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .context("cannot start the server")?;
        let printed = process.stdout.take().context("its output was asked for")?;
        let mut lines = BufReader::new(printed).lines();
        let url = lines.find_map(|line| {
            let line = line.ok()?;
            let at = line.find("http://127.0.0.1:")?;
            Some(line[at..].split_whitespace().next()?.trim_end_matches('/').to_owned())
        });
        // What else it prints is read, so that it never waits for us.
        std::thread::spawn(move || lines.for_each(drop));
        let mut server = Self { process, url: String::new() };
        server.url = url.with_context(|| {
            format!("the server did not say where it listens: {:?}", server.process.try_wait())
        })?;
        Ok(server)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
