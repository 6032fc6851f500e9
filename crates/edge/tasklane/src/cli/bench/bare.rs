//! The limit of the machine itself: a loop that starts processes and reads their output, and does nothing
//! else.

use std::io::Read as _;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use anyhow::{Context, Result};

use super::report::rate;

/// How many processes a second one loop on each of so many threads starts and awaits.
pub(super) fn processes_per_second(command: &str, count: u64, parallel: u32) -> Result<f64> {
    let begun = AtomicU64::new(0);
    let started = Instant::now();
    std::thread::scope(|scope| {
        let loops: Vec<_> = (0..parallel)
            .map(|_| {
                scope.spawn(|| -> Result<()> {
                    while begun.fetch_add(1, Ordering::Relaxed) < count {
                        one(command)?;
                    }
                    Ok(())
                })
            })
            .collect();
        loops.into_iter().try_for_each(|thread| thread.join().expect("the loop does not panic"))
    })?;
    Ok(rate(count, started.elapsed().as_secs_f64()))
}

fn one(command: &str) -> Result<()> {
    let mut child = Command::new("/bin/sh")
        .args(["-c", command])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .context("cannot start /bin/sh")?;
    let (mut out, mut err) = (child.stdout.take(), child.stderr.take());
    let mut printed = Vec::new();
    out.as_mut().context("its output was asked for")?.read_to_end(&mut printed)?;
    err.as_mut().context("its errors were asked for")?.read_to_end(&mut printed)?;
    child.wait()?;
    Ok(())
}
