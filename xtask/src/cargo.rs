//! Calls of cargo and other programs, from the root of the workspace.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};
use serde::Deserialize;

use crate::server::target;

/// The root of the workspace.
pub(crate) fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("xtask lies in the root")
}

/// A call of the cargo that runs us.
pub(crate) fn cargo(args: &[&str]) -> Command {
    let program = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(program);
    // Variables that cargo has set for this program: build scripts of others look at them, and would be run
    // again.
    for (name, _) in std::env::vars_os() {
        let name = name.to_string_lossy().into_owned();
        if name.starts_with("CARGO_PKG_") || name.starts_with("CARGO_MANIFEST_") {
            command.env_remove(name);
        }
    }
    command.args(args).current_dir(root()).stdin(Stdio::null());
    command
}

/// Builds `tasklane` as the tests use it, from the workspace in a folder, and answers where it is. Whoever builds one
/// from another folder afterwards builds it there too.
pub(crate) fn build_program(workspace: &Path) -> Result<PathBuf> {
    // Cargo gives packages the features that all that is built needs, so that anything less than this would compile
    // every dependency once more; a test brings the program along.
    let args =
        ["test", "--workspace", "--all-features", "--profile=ci", "--no-run", "--quiet", "--test=cluster"];
    run(cargo(&args).current_dir(workspace).env("CARGO_TARGET_DIR", target()))?;
    Ok(target().join("ci/tasklane"))
}

/// Runs a program, which prints for itself, and fails if it does.
pub(crate) fn run(command: &mut Command) -> Result<()> {
    let line = line_of(command);
    println!("$ {line}");
    let status = command.status().with_context(|| format!("failed to start `{line}`"))?;
    if !status.success() {
        bail!("`{line}` failed: {status}");
    }
    Ok(())
}

/// Runs a program and answers what it prints.
pub(crate) fn output(command: &mut Command) -> Result<String> {
    let line = line_of(command);
    let output = command
        .stderr(Stdio::inherit())
        .stdin(Stdio::null())
        .output()
        .with_context(|| format!("failed to start `{line}`"))?;
    if !output.status.success() {
        bail!("`{line}` failed: {}", output.status);
    }
    String::from_utf8(output.stdout).with_context(|| format!("`{line}` printed something else than UTF-8"))
}

fn line_of(command: &Command) -> String {
    let program = Path::new(command.get_program()).file_name().unwrap_or_else(|| command.get_program());
    let words = std::iter::once(program).chain(command.get_args());
    words.map(|word| word.to_string_lossy()).collect::<Vec<_>>().join(" ")
}

/// What `cargo metadata` says of all packages in use.
#[derive(Debug, Deserialize)]
pub(crate) struct Metadata {
    pub(crate) packages: Vec<Package>,
}

/// A package, ours or another's.
#[derive(Debug, Deserialize)]
pub(crate) struct Package {
    pub(crate) name: String,
    pub(crate) version: String,
    pub(crate) license: Option<String>,
    /// Where it was fetched from; nowhere, if it is ours.
    pub(crate) source: Option<String>,
    pub(crate) manifest_path: PathBuf,
    pub(crate) dependencies: Vec<Dependency>,
}

/// A line under `[dependencies]` or one of its kin.
#[derive(Debug, Deserialize)]
pub(crate) struct Dependency {
    /// `dev`, `build`, or none for the normal kind.
    pub(crate) kind: Option<String>,
    /// Folder of a package of ours.
    pub(crate) path: Option<PathBuf>,
}

impl Metadata {
    /// Asks cargo, for all features and the platform that we run on.
    pub(crate) fn read() -> Result<Self> {
        let version = output(Command::new("rustc").arg("-vV").current_dir(root()))?;
        let host = version.lines().find_map(|line| line.strip_prefix("host: "));
        let host = host.context("rustc -vV names no host")?;
        let args = ["metadata", "--format-version=1", "--all-features", "--filter-platform", host];
        serde_json::from_str(&output(&mut cargo(&args))?).context("failed to read cargo's metadata")
    }
}
