//! The processes under attack.

use std::net::{Ipv4Addr, SocketAddr};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use rustix::process::Pid;
use tasklane_client::Client;

use super::options::Scenario;
use super::plan::Class;
use super::steps::{AHEAD_AT_FIRST, Clock};
use super::tally::Tally;
use super::wire::ask;
use crate::chaos::attempt::{FOLDER_VARIABLE, WORKER_VARIABLE};
use crate::chaos::options::{SERVER_TTL, WORKER_TTL};
use crate::chaos::process::{Member, MemberOptions, Role, Spawner, children_of};
use crate::chaos::{Database, Disk, Topology};

/// The variable that names the file with the offset of the clock. Only builds for tests know it.
const CLOCK_VARIABLE: &str = "TASKLANE_TEST_CLOCK";
/// The namespace of the honest load.
pub(super) const HONEST: &str = "honest";
/// The namespace of hostile requests and tasks.
pub(super) const HOSTILE: &str = "hostile";
/// Descriptors that a server may open, and the part of them that it may open without raising its limit.
pub(super) const DESCRIPTORS_MAX: usize = 3072;
const DESCRIPTORS_SOFT: usize = 1024;
/// Attempts at a time.
const CAPACITY: usize = 24;
/// How long a server may take to be ready.
pub(super) const READY_WITHIN: Duration = Duration::from_secs(45);

/// The system under attack.
#[derive(Debug)]
pub(super) struct System {
    pub(super) members: Vec<Arc<Member>>,
    pub(super) tally: Arc<Tally>,
    pub(super) folder: PathBuf,
    pub(super) spawner: Spawner,
    /// What starts the program as an attacked system has it: few descriptors, and a clock that can be set.
    pub(super) launcher: PathBuf,
    pub(super) clock: Clock,
    /// Held by a move that the next kill or step of the clock must not disturb.
    pub(super) turn: tokio::sync::Mutex<()>,
    pub(super) database: Option<Database>,
}

impl System {
    /// Makes the parts; nothing but the database is started.
    pub(super) async fn new(
        scenario: &Scenario,
        program: &Path,
        folder: &Path,
        tally: Arc<Tally>,
    ) -> Result<Self> {
        let spawner = Spawner::start();
        let ahead = if scenario.plays(Class::Steps) { AHEAD_AT_FIRST } else { 0 };
        let clock = Clock::start(folder, ahead)?;
        let launcher = launcher(program, folder, &clock)?;
        let database = Database::start(scenario.store, folder, spawner.clone(), Disk::SurvivesDeath).await?;
        let roles: &[(Role, &str)] = match scenario.store {
            Topology::Sqlite => &[(Role::Dev, "s1")],
            Topology::Postgres | Topology::Redis => {
                &[(Role::Server, "s1"), (Role::Server, "s2"), (Role::Worker, "w1"), (Role::Worker, "w2")]
            }
        };
        let mut members = Vec::new();
        for (role, name) in roles {
            let mut args = settings(*role);
            args.extend(database.iter().flat_map(|database| ["--store".to_owned(), database.own_url()]));
            members.push(Arc::new(Member::new(MemberOptions {
                name: (*name).to_owned(),
                role: *role,
                ip: Ipv4Addr::LOCALHOST,
                program: launcher.clone(),
                first: None,
                args,
                drain_grace: Duration::ZERO,
                folder: folder.to_owned(),
                spawner: spawner.clone(),
            })?));
        }
        let turn = tokio::sync::Mutex::default();
        let folder = folder.to_owned();
        Ok(Self { members, tally, folder, spawner, launcher, clock, turn, database })
    }

    /// Members with an API.
    pub(super) fn servers(&self) -> Vec<&Arc<Member>> {
        self.members.iter().filter(|member| member.role != Role::Worker).collect()
    }

    /// Members that run attempts.
    pub(super) fn workers(&self) -> Vec<&Arc<Member>> {
        self.members.iter().filter(|member| member.role != Role::Server).collect()
    }

    /// Where hostile requests go.
    pub(super) fn target(&self) -> SocketAddr {
        self.servers().first().map_or_else(|| SocketAddr::from(([127, 0, 0, 1], 0)), |server| server.api)
    }

    pub(super) fn clients(&self, namespace: &str) -> Result<Vec<Client>> {
        let client =
            |server: &&Arc<Member>| Ok(Client::builder(&server.url()).namespace(namespace).build()?);
        self.servers().iter().map(client).collect()
    }

    /// Waits until all servers can do their work.
    pub(super) async fn until_ready(&self) -> Result<()> {
        for server in self.servers() {
            until_ready(server).await?;
        }
        Ok(())
    }
}

/// Waits until a server can do its work.
pub(super) async fn until_ready(server: &Member) -> Result<()> {
    let deadline = Instant::now() + READY_WITHIN;
    loop {
        let answer = ask(server.api, "/readyz", Duration::from_secs(5)).await;
        match answer {
            Some(answer) if answer.status == 200 => return Ok(()),
            _ if Instant::now() > deadline => {
                let said = answer.map(|answer| String::from_utf8_lossy(&answer.body).into_owned());
                bail!("{} is not ready after {READY_WITHIN:?}: {said:?}", server.name);
            }
            _ => tokio::time::sleep(Duration::from_millis(50)).await,
        }
    }
}

fn settings(role: Role) -> Vec<String> {
    let mut pairs = vec![
        format!("session.server_ttl={}ms", SERVER_TTL.as_millis()),
        format!("session.server_renew_every={}ms", (SERVER_TTL / 5).as_millis()),
        format!("session.worker_ttl={}ms", WORKER_TTL.as_millis()),
        format!("session.worker_renew_every={}ms", (WORKER_TTL / 5).as_millis()),
    ];
    if role != Role::Server {
        pairs.push("worker.drain_grace=0s".to_owned());
        pairs.push("worker.stop_grace=1s".to_owned());
        pairs.push(format!("worker.env=[PATH, {FOLDER_VARIABLE}, {WORKER_VARIABLE}]"));
        pairs.push(format!("worker.capacity={CAPACITY}"));
    }
    pairs.into_iter().flat_map(|pair| ["--set".to_owned(), pair]).collect()
}

fn launcher(program: &Path, folder: &Path, clock: &Clock) -> Result<PathBuf> {
    let path = folder.join("launch");
    let clock = clock.file().display();
    let text = format!(
        "#!/bin/sh\nulimit -S -n {DESCRIPTORS_SOFT}\nulimit -H -n {DESCRIPTORS_MAX}\nexport {CLOCK_VARIABLE}='{clock}'\nexec '{}' \"$@\"\n",
        program.display()
    );
    std::fs::write(&path, text)?;
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755))?;
    Ok(path)
}

/// The shims of a guard: the small processes that own its attempts.
pub(super) fn shims_of(guard: Pid) -> Vec<Pid> {
    let is_shim = |pid: &Pid| {
        let name = std::fs::read_to_string(format!("/proc/{}/comm", pid.as_raw_nonzero()));
        name.is_ok_and(|name| name.trim() == "tasklane-shim")
    };
    children_of(guard).into_iter().filter(is_shim).collect()
}
