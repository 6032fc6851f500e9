//! Another process: this test binary, started again with a role.

use std::io::{BufRead, BufReader, Lines};
use std::process::{Child, ChildStdout, Command, Stdio};

const ROLE: &str = "TASKLANE_DIRECT_TEST_ROLE";

/// This binary in a role, with its output.
#[derive(Debug)]
pub(crate) struct Other {
    process: Child,
    lines: Lines<BufReader<ChildStdout>>,
}

impl Other {
    /// Runs the ignored test `other_process` of this binary.
    pub(crate) fn start(role: &str) -> Self {
        let mut process = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "other_process", "--ignored", "--nocapture"])
            .env(ROLE, role)
            // The process ends with this one: its input closes.
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(process.stdout.take().unwrap()).lines();
        Self { process, lines }
    }

    /// The next line of its output; `None` at the end.
    pub(crate) fn hear(&mut self) -> Option<String> {
        self.lines.by_ref().map_while(Result::ok).find_map(|line| line.strip_prefix("> ").map(str::to_owned))
    }

    /// Sends a signal to it.
    pub(crate) fn signal(&self, signal: &str) {
        let id = self.process.id().to_string();
        assert!(Command::new("kill").args([signal, &id]).status().unwrap().success());
    }

    pub(crate) fn kill(&mut self) {
        // SIGKILL.
        self.process.kill().unwrap();
        self.process.wait().unwrap();
    }
}

impl Drop for Other {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// The role of this process, if it was started as another one.
pub(crate) fn role() -> Option<String> {
    let role = std::env::var(ROLE).ok()?;
    std::thread::spawn(|| {
        // The input never has a line: the read returns when the parent process has ended.
        let _ = std::io::stdin().read_line(&mut String::new());
        std::process::exit(1);
    });
    // Ends the line that the test runner has begun.
    println!();
    Some(role)
}

/// Writes a line for [`Other::hear`].
pub(crate) fn say(what: &str) {
    println!("> {what}");
}
