//! Fuzzes the API of a real server by its own description, with schemathesis from the Python package index.

use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use anyhow::{Context, Result, ensure};

use crate::cargo::{cargo, root, run};
use crate::servers;

/// The versions of schemathesis and all it stands on that are known to work together.
const PACKAGES: &str = "xtask/schemathesis.txt";
/// Requests made up for each operation.
const EXAMPLES: &str = "40";
/// The same requests in each run.
const SEED: &str = "7";

pub(crate) fn check() -> Result<()> {
    let program = install()?;
    // The program that the tests have used; nothing is compiled after them.
    run(&mut cargo(&["test", "--workspace", "--all-features", "--profile=ci", "--no-run", "--quiet"]))?;
    let data = target().join("api-check");
    if data.exists() {
        std::fs::remove_dir_all(&data).context("cannot remove the data of an earlier run")?;
    }
    let mut server = Server::start(&data)?;
    let checked = run(Command::new(program)
        .arg("--config-file")
        .arg(root().join("xtask/schemathesis.toml"))
        .args(["run", &format!("{}/api/openapi.json", server.url), "--checks=all", "--mode=all"])
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
        let make = || run(Command::new("python3").args(["-m", "venv"]).arg(&venv));
        // On Debian that is a package of its own.
        make().or_else(|_| servers::install(&["python3-venv"]).and_then(|()| make())).context(
            "schemathesis needs Python with venv; on Debian or Ubuntu: apt-get install python3-venv",
        )?;
        run(Command::new(venv.join("bin/pip"))
            .args(["install", "--quiet", "-r"])
            .arg(root().join(PACKAGES)))?;
    }
    Ok(program)
}

fn target() -> PathBuf {
    std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root().join("target"), PathBuf::from)
}

/// A server that is ended with this.
struct Server {
    process: Child,
    url: String,
}

impl Server {
    fn start(data: &std::path::Path) -> Result<Self> {
        let mut process = Command::new(target().join("ci/tasklane"))
            .args(["dev", "--listen", "127.0.0.1:0", "--data-dir"])
            .arg(data)
            // What the fuzzer makes up is not executed.
            .env("TASKLANE_WORKER_TASK_TYPES", "[NOOP]")
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
