//! Fuzzes the API of a real server by its own strict description, with schemathesis from the Python package index.

use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::cargo::{build_program, root, run};
use crate::server::{Server, target};
use crate::servers;

/// The versions of schemathesis and all it stands on that are known to work together.
const PACKAGES: &str = "xtask/schemathesis.txt";
/// Requests made up for each operation.
const EXAMPLES: &str = "40";
/// The same requests in each run.
const SEED: &str = "7";

pub(crate) fn check() -> Result<()> {
    let program = install()?;
    let tasklane = build_program(root())?;
    let data = target().join("api-check");
    if data.exists() {
        std::fs::remove_dir_all(&data).context("cannot remove the data of an earlier run")?;
    }
    // The server does not execute the fuzzer's tasks.
    let env = [("TASKLANE_WORKER_TASK_TYPES", "[NOOP]")];
    let mut server = Server::start(&tasklane, &data, &env)?;
    let checked = run(Command::new(program)
        .arg("--config-file")
        .arg(root().join("xtask/schemathesis.toml"))
        .args(["run", &format!("{}/api/openapi-strict.json", server.url), "--url", &server.url])
        .args(["--checks=all", "--mode=all"])
        .args(["--phases=examples,coverage,fuzzing,stateful", "--max-examples", EXAMPLES, "--seed", SEED])
        // A stream never ends by itself, and a worker that was drained is gone.
        .args(["--exclude-path=/api/v1/events", "--exclude-path=/api/v1/workers/{name}/drain"])
        // One thread: generating on two trips over itself inside Python's own compiler.
        .args(["--request-timeout=20", "--workers=1"])
        .current_dir(target()));
    // Whatever the fuzzer thinks of it: a server that is gone did not pass.
    ensure!(server.process.try_wait()?.is_none(), "the server has ended while its API was checked");
    checked
}

/// Puts schemathesis into an environment of its own.
fn install() -> Result<PathBuf> {
    let venv = target().join("schemathesis");
    let program = venv.join("bin/schemathesis");
    if !program.exists() {
        servers::venv(&venv, &root().join(PACKAGES))?;
    }
    Ok(program)
}
