//! Generates clients from the committed description, checks their types, and calls a real server through them.
//!
//! `xtask/clients` pins the generators, linters and type checkers and has the two programs that call the server. The
//! tools are installed once for each version of these pins, into the user's cache folder.

use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;

use anyhow::{Context, Result, bail, ensure};

use crate::cargo::{build_program, output, root, run};
use crate::server::{Server, target};
use crate::servers;

/// The description that clients are generated from.
const DESCRIPTION: &str = "docs/openapi.json";

/// The first major version of Node.js that all tools run on.
const NODE_MIN: u32 = 20;

/// A file in the folder of tools, written when all of them are installed.
const INSTALLED: &str = "installed";

pub(crate) fn check() -> Result<()> {
    let tools = install()?;
    let work = target().join("clients");
    // Generators leave files of earlier versions of the description behind; the cache of mypy stays.
    for generated in ["python", "typescript"] {
        let folder = work.join(generated);
        if folder.exists() {
            fs::remove_dir_all(&folder).context("cannot remove the clients of an earlier run")?;
        }
        fs::create_dir_all(&folder).context("cannot make a folder for generated clients")?;
    }
    let (linted, python, typescript) = thread::scope(|scope| {
        let linted = scope.spawn(|| lint(&tools));
        let python = scope.spawn(|| generate_python(&tools, &work));
        let typescript = generate_typescript(&tools, &work.join("typescript"));
        (linted.join(), python.join(), typescript)
    });
    linted.expect("the linters do not panic")?;
    python.expect("the generator does not panic")?;
    typescript?;

    let tasklane = build_program(root())?;
    let data = target().join("clients-check");
    if data.exists() {
        fs::remove_dir_all(&data).context("cannot remove the data of an earlier run")?;
    }
    let server = Server::start(&tasklane, &data, &[])?;
    run(Command::new(python_of(&tools))
        .arg(root().join("xtask/clients/check.py"))
        .arg(&server.url)
        .env("PYTHONPATH", work.join("python"))
        .env("PYTHONDONTWRITEBYTECODE", "1"))?;
    run(Command::new("node").arg(work.join("typescript/built/check.js")).arg(&server.url))
}

fn lint(tools: &Path) -> Result<()> {
    let pins = root().join("xtask/clients");
    run(node_tool(tools, "redocly")
        .args(["lint", DESCRIPTION, "--config"])
        .arg(pins.join("redocly.yaml"))
        .env("REDOCLY_TELEMETRY", "off")
        .env("REDOCLY_SUPPRESS_UPDATE_NOTICE", "true"))?;
    run(node_tool(tools, "spectral")
        .args(["lint", DESCRIPTION, "--fail-severity=error", "--ruleset"])
        .arg(pins.join("spectral.yaml")))
}

/// Generates the Python client and checks its types, and those of its use.
fn generate_python(tools: &Path, work: &Path) -> Result<()> {
    let folder = work.join("python");
    run(Command::new(python_of(tools))
        .args(["-m", "openapi_python_client", "generate", "--fail-on-warning", "--overwrite", "--meta=none"])
        .args(["--path", DESCRIPTION, "--config", "xtask/clients/python.yaml", "--output-path"])
        .arg(folder.join("tasklane_client"))
        .current_dir(root()))?;
    run(Command::new(python_of(tools))
        .args(["-m", "mypy", "--strict", "--cache-dir"])
        .arg(work.join("mypy"))
        .arg("xtask/clients/check.py")
        .arg(folder.join("tasklane_client"))
        .env("MYPYPATH", &folder)
        .current_dir(root()))
}

/// Generates the TypeScript types and compiles their use.
fn generate_typescript(tools: &Path, folder: &Path) -> Result<()> {
    // Modules are looked for in the folders above the program.
    std::os::unix::fs::symlink(tools.join("node_modules"), folder.join("node_modules"))
        .context("cannot link the TypeScript packages")?;
    for file in ["package.json", "check.ts"] {
        fs::copy(root().join("xtask/clients").join(file), folder.join(file))
            .with_context(|| format!("cannot copy {file}"))?;
    }
    run(node_tool(tools, "openapi-typescript")
        .arg(DESCRIPTION)
        .arg("-o")
        .arg(folder.join("generated/api.ts")))?;
    run(node_tool(tools, "tsc")
        .args([
            "--strict",
            "--target",
            "es2022",
            "--module",
            "nodenext",
            "--skipLibCheck",
            "--outDir",
            "built",
            "check.ts",
        ])
        .current_dir(folder))
}

fn node_tool(tools: &Path, name: &str) -> Command {
    let mut command = Command::new(tools.join("node_modules/.bin").join(name));
    command.current_dir(root());
    command
}

fn python_of(tools: &Path) -> PathBuf {
    tools.join("python/bin/python")
}

/// Installs the tools, unless these versions are there.
fn install() -> Result<PathBuf> {
    let pins = root().join("xtask/clients");
    let tools = cache()?.join(format!("clients-{:016x}", version(&pins)?));
    if tools.join(INSTALLED).exists() {
        return Ok(tools);
    }
    need_node()?;
    if tools.exists() {
        fs::remove_dir_all(&tools).context("cannot remove tools that were installed in part")?;
    }
    fs::create_dir_all(&tools).context("cannot make a folder for tools")?;
    servers::venv(&tools.join("python"), &pins.join("requirements.txt"))?;
    for file in ["package.json", "package-lock.json"] {
        fs::copy(pins.join(file), tools.join(file)).with_context(|| format!("cannot copy {file}"))?;
    }
    run(Command::new("npm")
        .args(["ci", "--ignore-scripts", "--no-audit", "--no-fund", "--loglevel=error"])
        .current_dir(&tools))?;
    fs::write(tools.join(INSTALLED), "").context("cannot mark the tools as installed")?;
    Ok(tools)
}

/// The folder for tools, which outlives checkouts and build folders.
fn cache() -> Result<PathBuf> {
    let folder = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let cache = folder("XDG_CACHE_HOME").or_else(|| folder("HOME").map(|home| home.join(".cache")));
    Ok(cache.context("tools are installed below HOME or XDG_CACHE_HOME: set one of them")?.join("tasklane"))
}

/// A number that changes with the pins.
fn version(pins: &Path) -> Result<u64> {
    let mut hasher = DefaultHasher::new();
    for file in ["requirements.txt", "package-lock.json"] {
        fs::read(pins.join(file)).with_context(|| format!("cannot read {file}"))?.hash(&mut hasher);
    }
    Ok(hasher.finish())
}

fn need_node() -> Result<()> {
    let found = || output(Command::new("node").arg("--version"));
    let version = found().or_else(|_| servers::install(&["nodejs", "npm"]).and_then(|()| found())).with_context(|| {
        format!("generated clients need Node.js {NODE_MIN} or newer, with npm; on Debian or Ubuntu: apt-get install nodejs npm")
    })?;
    let major =
        version.trim().trim_start_matches('v').split('.').next().and_then(|major| major.parse::<u32>().ok());
    let Some(major) = major else { bail!("`node --version` printed {version:?}") };
    ensure!(
        major >= NODE_MIN,
        "generated clients need Node.js {NODE_MIN} or newer, not {major}: install it so that it is found in PATH"
    );
    Ok(())
}
