//! `cargo xtask upgrade`: a cluster that runs the program of an earlier commit becomes one of today's, process by
//! process, while tasks run.

use std::path::PathBuf;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};

use crate::cargo::{build_program, output, root};
use crate::chaos;
use crate::server::target;

#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// The commit to come from
    #[arg(long, value_name = "REVISION", default_value = BEFORE)]
    from: String,
}

/// The commit before this one.
const BEFORE: &str = "HEAD^";

/// The version under which the program of an earlier commit is built.
const EARLIER: &str = "0.0.0-earlier";

pub(crate) fn run(options: &Options) -> Result<()> {
    let commit = commit(&options.from).with_context(|| format!("there is no commit {}", options.from))?;
    upgrade_from(&commit)
}

/// What CI runs.
pub(crate) fn check() -> Result<()> {
    let Ok(commit) = commit(BEFORE) else {
        println!("SKIPPED: this copy of the repository does not have the commit before its last one");
        return Ok(());
    };
    upgrade_from(&commit)
}

fn upgrade_from(commit: &str) -> Result<()> {
    let earlier = earlier_program(commit)?;
    let now = build_program(root())?;
    chaos::upgrade(&earlier, &now)
}

fn commit(revision: &str) -> Result<String> {
    let name = format!("{revision}^{{commit}}");
    let found =
        output(Command::new("git").args(["rev-parse", "--verify", "--quiet", &name]).current_dir(root()))?;
    Ok(found.trim().to_owned())
}

/// The program of a commit, built unless it was before.
fn earlier_program(commit: &str) -> Result<PathBuf> {
    let folder = target().join("upgrade");
    let program = folder.join(format!("tasklane-{commit}"));
    if program.exists() {
        return Ok(program);
    }
    let tree = folder.join("tree");
    if tree.exists() {
        std::fs::remove_dir_all(&tree).context("cannot remove an earlier tree")?;
    }
    std::fs::create_dir_all(&tree)?;
    println!("the tree of {commit}");
    let mut archive = Command::new("git")
        .args(["archive", "--format=tar", commit])
        .current_dir(root())
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .context("cannot start git")?;
    let files = archive.stdout.take().context("its output was asked for")?;
    let unpacked =
        Command::new("tar").arg("-xC").arg(&tree).stdin(files).status().context("cannot start tar")?;
    ensure!(archive.wait()?.success() && unpacked.success(), "cannot unpack the tree of {commit}");
    // Cargo knows packages by their place in the workspace and by their version, and would take those of today for these.
    let manifest = tree.join("Cargo.toml");
    let text = std::fs::read_to_string(&manifest)?;
    let now = format!("version = \"{}\"", env!("CARGO_PKG_VERSION"));
    ensure!(text.contains(&now), "the version of {commit} is another one");
    std::fs::write(&manifest, text.replacen(&now, &format!("version = \"{EARLIER}\""), 1))?;
    std::fs::copy(build_program(&tree)?, &program).context("cannot copy the program")?;
    let said = output(Command::new(&program).arg("--version"))?;
    ensure!(said.contains(EARLIER), "the program of {commit} calls itself {said}");
    Ok(program)
}
