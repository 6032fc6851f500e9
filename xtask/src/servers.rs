//! Servers that tests start for themselves. This checks that their programs exist, and starts nothing.

use std::env;
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};

use crate::cargo::{output, run};

/// A program that tests start, and the Debian package that brings it.
struct Server {
    program: &'static str,
    package: &'static str,
}

const SERVERS: &[Server] = &[
    Server { program: "redis-server", package: "redis-server" },
    Server { program: "postgres", package: "postgresql" },
    Server { program: "pgbouncer", package: "pgbouncer" },
    // Makes the certificates of private authorities.
    Server { program: "openssl", package: "openssl" },
];

/// Debian keeps the programs of each version of PostgreSQL in a folder of its own, out of the path. Tests look there too.
const POSTGRES_VERSIONS: &str = "/usr/lib/postgresql";
/// Servers that belong to the system lie here, which is not in every user's path.
const SYSTEM_PROGRAMS: &str = "/usr/sbin";

pub(crate) fn ensure() -> Result<()> {
    let missing: Vec<&Server> = SERVERS.iter().filter(|server| !is_installed(server.program)).collect();
    if !missing.is_empty() {
        let packages: Vec<&str> = missing.iter().map(|server| server.package).collect();
        install(&packages).with_context(|| {
            let programs: Vec<&str> = missing.iter().map(|server| server.program).collect();
            format!(
                "tests need {}; on Debian or Ubuntu: sudo apt-get install {}; elsewhere: install them so that they are \
                 found in PATH",
                programs.join(", "),
                packages.join(" ")
            )
        })?;
    }
    for server in SERVERS {
        if !is_installed(server.program) {
            bail!("package {} is installed, but {} is not found", server.package, server.program);
        }
        println!("{} is installed", server.program);
    }
    Ok(())
}

fn is_installed(program: &str) -> bool {
    let path = env::var_os("PATH").unwrap_or_default();
    let versions = fs::read_dir(POSTGRES_VERSIONS).into_iter().flatten().flatten();
    let mut folders = env::split_paths(&path)
        .chain([SYSTEM_PROGRAMS.into()])
        .chain(versions.map(|version| version.path().join("bin")));
    folders.any(|folder| folder.join(program).is_file())
}

/// Installs packages where that needs no password.
pub(crate) fn install(packages: &[&str]) -> Result<()> {
    if !is_installed("apt-get") {
        bail!("there is no apt-get here to install them with");
    }
    let prefix: &[&str] = if is_root()? {
        &[]
    } else if may_sudo() {
        &["sudo", "-n"]
    } else {
        bail!("installing them needs root or sudo without a password");
    };
    let apt = |args: &[&str]| {
        // RUNLEVEL=1 keeps packages from starting a server of their own.
        let words =
            [prefix, &["env", "DEBIAN_FRONTEND=noninteractive", "RUNLEVEL=1", "apt-get"], args].concat();
        run(Command::new(words[0]).args(&words[1..]).stdin(Stdio::null()))
    };
    let install =
        [&["install", "-y", "--no-install-recommends", "-o", "DPkg::Lock::Timeout=300"], packages].concat();
    // The list of packages may be missing or too old to install from.
    apt(&install).or_else(|_| apt(&["update"]).and_then(|()| apt(&install)))
}

/// Makes a Python environment of pinned packages.
pub(crate) fn venv(folder: &Path, requirements: &Path) -> Result<()> {
    let make = || run(Command::new("python3").args(["-m", "venv"]).arg(folder));
    // On Debian that is a package of its own.
    make()
        .or_else(|_| install(&["python3-venv"]).and_then(|()| make()))
        .context("the check needs Python with venv; on Debian or Ubuntu: apt-get install python3-venv")?;
    run(Command::new(folder.join("bin/pip")).args(["install", "--quiet", "-r"]).arg(requirements))
}

fn is_root() -> Result<bool> {
    Ok(output(Command::new("id").arg("-u"))?.trim() == "0")
}

fn may_sudo() -> bool {
    let asked = Command::new("sudo").args(["-n", "true"]).stdin(Stdio::null()).stderr(Stdio::null()).status();
    asked.is_ok_and(|status| status.success())
}
