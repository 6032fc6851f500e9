//! A network namespace of our own, where routes can be taken away without any other process noticing.
//!
//! Each process of the cluster has an address of its own on the loopback interface. A blackhole route to it
//! loses every packet that is sent there, without a word to the sender: connections neither end nor go on, as
//! when a cable is cut.

use std::net::Ipv4Addr;
use std::process::{Command, Stdio};

use anyhow::{Result, ensure};

/// The words before a command that put it into a new network namespace; `None` where that is not permitted.
pub(super) fn entrance() -> Option<Vec<&'static str>> {
    // Whoever is root may; others may where they can be root of a user namespace, with their own user kept, because
    // databases refuse to run as root.
    let ways: [&[&str]; 2] = [
        &["unshare", "--net", "--"],
        &["unshare", "--user", "--map-current-user", "--keep-caps", "--net", "--"],
    ];
    let works = |way: &&[&str]| {
        let try_it = "ip link set lo up && ip route add blackhole 127.9.9.9/32 table local";
        let tried = Command::new(way[0])
            .args(&way[1..])
            .args(["setpriv", "--pdeathsig=KILL", "--", "sh", "-c", try_it])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .status();
        tried.is_ok_and(|status| status.success())
    };
    ways.into_iter().find(works).map(<[&str]>::to_vec)
}

/// To be called inside, before anything listens.
pub(super) fn prepare() -> Result<()> {
    ip(&["link", "set", "lo", "up"])
}

/// Loses what is sent to an address, from now on.
pub(super) fn lose(address: Ipv4Addr) -> Result<()> {
    ip(&["route", "replace", "blackhole", &format!("{address}/32"), "table", "local"])
}

/// Loses nothing any more.
pub(super) fn find(address: Ipv4Addr) -> Result<()> {
    ip(&["route", "del", "blackhole", &format!("{address}/32"), "table", "local"])
}

fn ip(args: &[&str]) -> Result<()> {
    let done = Command::new("ip").args(args).stdin(Stdio::null()).output()?;
    ensure!(
        done.status.success(),
        "ip {} failed: {}",
        args.join(" "),
        String::from_utf8_lossy(&done.stderr).trim()
    );
    Ok(())
}
