//! Deleted and damaged files, at a server of their own: it must report each loss, and must not acknowledge
//! anything that is lost already.

use std::net::Ipv4Addr;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use serde_json::json;

use super::plan::Class;
use super::system::{System, until_ready};
use super::tasks::{foreign_damage, make_foreign};
use super::wire::{Shot, ask, fire};
use crate::chaos::process::{Member, MemberOptions, Role};

/// The damage to files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Damage {
    DatabaseDeleted,
    FolderDeleted,
    LogTruncated,
    LogOverwritten,
    LogDeleted,
    LockRemoved,
    PermissionsOpened,
    FoldersLinked,
}

impl Damage {
    pub(super) const ALL: [Self; 8] = [
        Self::DatabaseDeleted,
        Self::FolderDeleted,
        Self::LogTruncated,
        Self::LogOverwritten,
        Self::LogDeleted,
        Self::LockRemoved,
        Self::PermissionsOpened,
        Self::FoldersLinked,
    ];

    const fn as_str(self) -> &'static str {
        match self {
            Self::DatabaseDeleted => "database deleted while it is used",
            Self::FolderDeleted => "data folder deleted while it is used",
            Self::LogTruncated => "write-ahead log cut short",
            Self::LogOverwritten => "write-ahead log overwritten",
            Self::LogDeleted => "write-ahead log deleted",
            Self::LockRemoved => "lock file removed and a second server started",
            Self::PermissionsOpened => "permissions opened",
            Self::FoldersLinked => "folders replaced by links to foreign ones",
        }
    }
}

/// A loss is noticed within a second; the rest is for a busy machine.
const NOTICED_WITHIN: Duration = Duration::from_secs(6);
/// A second server is watched for this long.
const WATCHED_FOR: Duration = Duration::from_secs(4);
const ANSWER_WITHIN: Duration = Duration::from_secs(5);
/// Tasks that the damaged store holds.
const TASKS: usize = 30;

/// A server of this check's own.
struct Victim {
    server: Member,
    folder: PathBuf,
    data: PathBuf,
}

impl Victim {
    fn new(system: &System, nth: usize) -> Result<Self> {
        let folder = system.folder.join("files").join(nth.to_string());
        std::fs::create_dir_all(folder.join("logs"))?;
        make_foreign(&folder)?;
        let server = member(system, &folder)?;
        let data = folder.join("data").join(&server.name);
        Ok(Self { server, folder, data })
    }

    async fn start(&self) -> Result<()> {
        self.server.start()?;
        until_ready(&self.server).await
    }

    /// Hands in a task. Answers the status.
    async fn submit(&self) -> u16 {
        let task =
            json!({"taskName": "kept", "taskType": "NOOP", "delay": "1h", "payload": "x".repeat(2_000)});
        let body = serde_json::to_vec(&task).unwrap_or_default();
        let shot = Shot::request("POST", "/api/v1/tasks", "", Some(&body));
        fire(self.server.api, &shot, ANSWER_WITHIN).await.answers.first().map_or(0, |answer| answer.status)
    }

    async fn fill(&self) -> Result<()> {
        for _ in 0..TASKS {
            let status = self.submit().await;
            ensure!(status == 201, "a submit was answered with {status}");
        }
        Ok(())
    }

    /// What its server logged since a length, and the length now.
    fn log_since(&self, length: usize) -> (String, usize) {
        let log = std::fs::read(self.server.log()).unwrap_or_default();
        (String::from_utf8_lossy(log.get(length..).unwrap_or_default()).into_owned(), log.len())
    }

    /// The file of the database, or one beside it.
    fn database(&self, suffix: &str) -> PathBuf {
        self.data.join(format!("tasklane.db{suffix}"))
    }
}

fn member(system: &System, folder: &Path) -> Result<Member> {
    Member::new(MemberOptions {
        name: "files".to_owned(),
        role: Role::Dev,
        ip: Ipv4Addr::LOCALHOST,
        program: system.launcher.clone(),
        first: None,
        args: Vec::new(),
        drain_grace: Duration::ZERO,
        folder: folder.to_owned(),
        spawner: system.spawner.clone(),
    })
}

/// Damages the files of a server of its own.
pub(super) async fn damage(system: &Arc<System>, damage: Damage, nth: usize) -> Result<()> {
    let victim = Victim::new(system, nth)?;
    let found = match damage {
        Damage::DatabaseDeleted | Damage::FolderDeleted => deleted(&victim, damage).await,
        Damage::LogTruncated | Damage::LogOverwritten | Damage::LogDeleted => log(&victim, damage).await,
        Damage::LockRemoved => lock_removed(system, &victim).await,
        Damage::PermissionsOpened => opened(&victim).await,
        Damage::FoldersLinked => linked(&victim).await,
    };
    let name = damage.as_str();
    system.tally.count(Class::Files, name);
    let found = found.with_context(|| format!("{name} could not be played"));
    let wrong = found.unwrap_or_else(|error| vec![format!("{error:#}")]);
    for what in foreign_damage(&victim.folder).iter().chain(&wrong) {
        system.tally.violation(&format!("files, {name}"), what);
    }
    victim.server.kill(victim.server.guard()).await?;
    if wrong.is_empty() {
        std::fs::remove_dir_all(&victim.folder)?;
    }
    Ok(())
}

/// Nothing is acknowledged any more soon after, and the log says why.
async fn deleted(victim: &Victim, damage: Damage) -> Result<Vec<String>> {
    victim.start().await?;
    victim.fill().await?;
    let (_, length) = victim.log_since(0);
    if damage == Damage::FolderDeleted {
        std::fs::remove_dir_all(&victim.data)?;
    } else {
        for suffix in ["", "-wal", "-shm"] {
            let _ = std::fs::remove_file(victim.database(suffix));
        }
    }
    let deadline = Instant::now() + NOTICED_WITHIN;
    let mut wrong = Vec::new();
    loop {
        let status = victim.submit().await;
        // It may also choose to end.
        if matches!(status, 0 | 503) {
            break;
        }
        if Instant::now() > deadline {
            wrong.push(format!("a submit was answered with {status} {NOTICED_WITHIN:?} after the loss"));
            break;
        }
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    let (log, _) = victim.log_since(length);
    if !told(&log, "deleted") {
        wrong.push(format!("the log does not report the loss: {log}"));
    }
    Ok(wrong)
}

/// Whether a warning or an error of a log is about something.
fn told(log: &str, about: &str) -> bool {
    let is_loud = |line: &str| ["WARN", "ERROR", "error"].iter().any(|level| line.contains(level));
    log.lines().any(|line| is_loud(line) && line.to_lowercase().contains(about))
}

/// The next start reports the loss of a part of the write-ahead log.
async fn log(victim: &Victim, damage: Damage) -> Result<Vec<String>> {
    victim.start().await?;
    victim.fill().await?;
    victim.server.kill(victim.server.guard()).await?;
    let path = victim.database("-wal");
    let bytes = std::fs::read(&path).unwrap_or_default();
    ensure!(!bytes.is_empty(), "there is no write-ahead log");
    match damage {
        Damage::LogTruncated => std::fs::write(&path, &bytes[..bytes.len() / 2 + 13])?,
        Damage::LogOverwritten => {
            let mut bytes = bytes;
            let half = bytes.len() / 2;
            bytes[half..].fill(0x5a);
            std::fs::write(&path, bytes)?;
        }
        _ => std::fs::remove_file(&path)?,
    }
    let (_, length) = victim.log_since(0);
    victim.server.start()?;
    let ready = until_ready(&victim.server).await;
    let (log, _) = victim.log_since(length);
    let is_told = ["wal", "write-ahead"].iter().any(|word| told(&log, word));
    if is_told {
        return Ok(Vec::new());
    }
    Ok(vec![format!("the start does not report the damage (ready: {}): {log}", ready.is_ok())])
}

/// The lock is held by a descriptor, not by a name in a folder.
async fn lock_removed(system: &System, victim: &Victim) -> Result<Vec<String>> {
    victim.start().await?;
    for entry in std::fs::read_dir(&victim.data)?.flatten() {
        if entry.path().extension().is_some_and(|extension| extension == "lock") {
            std::fs::remove_file(entry.path())?;
        }
    }
    let second = member(system, &victim.folder)?;
    second.start()?;
    let deadline = Instant::now() + WATCHED_FOR;
    let mut wrong = Vec::new();
    while Instant::now() < deadline && wrong.is_empty() {
        if ask(second.api, "/healthz", ANSWER_WITHIN).await.is_some_and(|answer| answer.status == 200) {
            let ready = ask(second.api, "/readyz", ANSWER_WITHIN).await;
            if ready.is_some_and(|answer| answer.status == 200) {
                wrong.push("a second server is ready beside the first one".to_owned());
            }
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    second.kill(second.guard()).await?;
    let status = victim.submit().await;
    if !matches!(status, 201 | 503) {
        wrong.push(format!("the first server answers with {status}"));
    }
    Ok(wrong)
}

/// A start closes what others could read.
async fn opened(victim: &Victim) -> Result<Vec<String>> {
    victim.start().await?;
    victim.fill().await?;
    victim.server.kill(victim.server.guard()).await?;
    let mut paths = vec![victim.data.clone()];
    paths.extend(std::fs::read_dir(&victim.data)?.flatten().map(|entry| entry.path()));
    for path in &paths {
        let mode = if path.is_dir() { 0o777 } else { 0o666 };
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode))?;
    }
    victim.start().await?;
    let mut wrong = Vec::new();
    for path in [victim.data.clone(), victim.database(""), victim.database("-wal")] {
        let Ok(about) = std::fs::metadata(&path) else { continue };
        let mode = about.permissions().mode() & 0o777;
        if mode & 0o077 != 0 {
            wrong.push(format!("{} has mode {mode:o} after a start", path.display()));
        }
    }
    Ok(wrong)
}

/// Tidying up at a start stays in its own folders.
async fn linked(victim: &Victim) -> Result<Vec<String>> {
    victim.start().await?;
    victim.server.kill(victim.server.guard()).await?;
    for entry in std::fs::read_dir(&victim.data)?.flatten() {
        if entry.path().is_dir() {
            std::fs::remove_dir_all(entry.path())?;
            symlink(victim.folder.join("foreign"), entry.path())?;
        }
    }
    victim.server.start()?;
    // It may refuse to start; what counts is the foreign folder.
    let deadline = Instant::now() + WATCHED_FOR;
    while Instant::now() < deadline {
        if ask(victim.server.api, "/readyz", ANSWER_WITHIN).await.is_some_and(|answer| answer.status == 200) {
            break;
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    Ok(Vec::new())
}
