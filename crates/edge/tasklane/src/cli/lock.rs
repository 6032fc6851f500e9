//! `tasklane lock`: one owner at a time.

use std::time::Duration;

use tasklane_client::{Client, Lock};

use super::exit::Exit;
use super::out::{Out, pairs, remark};
use super::value;

/// Take and release locks
#[derive(Debug, clap::Subcommand)]
pub(crate) enum Command {
    /// List the held locks
    List,
    /// Take a lock for a time, or renew it
    Take {
        /// The lock
        name: String,

        /// The name of the owner
        #[arg(long)]
        owner: String,

        /// The time until the lock expires, unless it is renewed
        #[arg(long, default_value = "30s", value_parser = value::duration, value_name = "DURATION")]
        ttl: Duration,
    },
    /// Release a lock
    Release {
        /// The lock
        name: String,

        /// The name of the owner
        #[arg(long)]
        owner: String,
    },
}

pub(crate) async fn run(command: Command, client: &Client, out: Out) -> anyhow::Result<Exit> {
    match command {
        Command::List => {
            let locks = client.locks().await?;
            out.rows(&locks, &["NAME", "OWNER", "TOKEN", "UNTIL"], cells)?;
            if locks.is_empty() {
                remark("no lock is held");
            }
        }
        Command::Take { name, owner, ttl } => {
            let lock = client.take_lock(&name, &owner, ttl).await?;
            out.either(&lock, shown)?;
        }
        Command::Release { name, owner } => client.release_lock(&name, &owner).await?,
    }
    Ok(Exit::OK)
}

fn cells(lock: &Lock) -> Vec<String> {
    vec![lock.name.clone(), lock.owner.clone(), lock.token.to_string(), value::shown_time(Some(lock.until))]
}

fn shown(lock: &Lock) -> String {
    pairs(&[("token", lock.token.to_string()), ("until", value::shown_time(Some(lock.until)))])
}
