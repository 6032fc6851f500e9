//! `cargo xtask upgrade`: a cluster that runs the program of an earlier commit becomes one of today's, process by
//! process, while tasks run.

use std::path::{Path, PathBuf};
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

/// What stands before the version in the manifest of a workspace.
const PACKAGE: &str = "[workspace.package]\nversion = \"";

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
        return is_earlier(&program).map(|()| program);
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
    let (before, package) = text.split_once(PACKAGE).with_context(|| format!("{commit} has no {PACKAGE}"))?;
    let (_, after) = package.split_once('"').with_context(|| format!("{commit} has a version of no kind"))?;
    std::fs::write(&manifest, format!("{before}{PACKAGE}{EARLIER}\"{after}"))?;
    let built = build_program(&tree)?;
    is_earlier(&built)?;
    // It has its name when it is whole.
    let copy = folder.join("copy");
    std::fs::copy(built, &copy).context("cannot copy the program")?;
    std::fs::rename(copy, &program).context("cannot keep the program")?;
    Ok(program)
}

/// Makes sure that a program was built from an earlier tree.
fn is_earlier(program: &Path) -> Result<()> {
    let said = output(Command::new(program).arg("--version"))?;
    ensure!(said.contains(EARLIER), "{} calls itself {said}: remove it", program.display());
    Ok(())
}
