//! Programs that tests start.

use std::collections::BTreeSet;
use std::env;
use std::fs;
use std::path::PathBuf;
use std::sync::Mutex;

/// Debian keeps the programs of each version of PostgreSQL in a folder of its own, and administrators' programs out of
/// the path of ordinary users.
const MORE_FOLDERS: [&str; 2] = ["/usr/sbin", "/usr/local/sbin"];
const POSTGRES_VERSIONS: &str = "/usr/lib/postgresql";

/// Finds a program that the project installs for its tests. A missing program is reported once and skips the test; it
/// fails the test where tests must not be skipped.
pub fn find(program: &str) -> Option<PathBuf> {
    let found = locate(program);
    assert!(found.is_some() || !is_required(), "{program} is missing, and tests must not be skipped");
    if found.is_none() {
        report_missing(program);
    }
    found
}

/// Finds a program that Debian does not have. Its absence skips the test aloud, even where others must not be skipped.
pub fn find_optional(program: &str) -> Option<PathBuf> {
    let found = locate(program);
    if found.is_none() {
        report_missing(program);
    }
    found
}

fn locate(program: &str) -> Option<PathBuf> {
    let path = env::var_os("PATH").unwrap_or_default();
    let versions = fs::read_dir(POSTGRES_VERSIONS).into_iter().flatten().flatten();
    let mut folders = env::split_paths(&path)
        .chain(MORE_FOLDERS.map(PathBuf::from))
        .chain(versions.map(|version| version.path().join("bin")));
    folders.find_map(|folder| Some(folder.join(program)).filter(|path| path.is_file()))
}

fn is_required() -> bool {
    env::var_os("CI").is_some_and(|ci| !ci.is_empty() && ci != "false")
        || env::var_os("TASKLANE_REQUIRE_SERVERS").is_some_and(|required| required == "1")
}

fn report_missing(program: &str) {
    static REPORTED: Mutex<BTreeSet<String>> = Mutex::new(BTreeSet::new());
    if REPORTED.lock().unwrap().insert(program.to_owned()) {
        eprintln!("SKIPPED: {program} is not in PATH; tests that need it do nothing");
    }
}
