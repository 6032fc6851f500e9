//! The example of embedding, as a user would run it.

#![allow(clippy::unwrap_used, reason = "in tests a panic is an answer")]

use std::process::Command;

#[test]
fn the_example_of_embedding_runs_to_its_end() {
    // Built with the tests, beside the folder of the tests themselves.
    let tests = std::env::current_exe().unwrap();
    let example = tests.parent().unwrap().parent().unwrap().join("examples/embed");
    let folder = tempfile::tempdir().unwrap();
    let ran = Command::new(&example).current_dir(folder.path()).output();
    let ran = ran.unwrap_or_else(|error| panic!("{}: {error}", example.display()));
    let printed = String::from_utf8_lossy(&ran.stdout);
    assert!(ran.status.success(), "{}\n{printed}\n{}", ran.status, String::from_utf8_lossy(&ran.stderr));
}
