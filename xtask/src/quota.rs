//! Gives processes a part of a core: as if they ran on a smaller machine of their own.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

/// A control group with a quota of processor time. Removed with this, when its processes are gone.
#[derive(Debug)]
pub(crate) struct Quota(PathBuf);

/// In which the quota is counted.
const PERIOD_MICROS: u32 = 20_000;

impl Quota {
    /// Gives the processes in it this much of a core.
    pub(crate) fn new(name: &str, cores: f64) -> Result<Self> {
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a part of a period")]
        let micros = (cores * f64::from(PERIOD_MICROS)) as u32;
        let (first, second) = (Path::new("/sys/fs/cgroup/cpu"), Path::new("/sys/fs/cgroup"));
        let is_second = fs::read_to_string(second.join("cgroup.controllers"))
            .is_ok_and(|found| found.split_whitespace().any(|controller| controller == "cpu"));
        let parent = match () {
            () if first.join("cpu.cfs_quota_us").exists() => first,
            () if is_second => second,
            () => bail!("this machine has no control groups with quotas of processor time"),
        };
        let group = parent.join(format!("tasklane-{}-{name}", std::process::id()));
        fs::create_dir(&group).with_context(|| format!("cannot make {}; it needs root", group.display()))?;
        let quota = Self(group);
        if is_second {
            quota.write("cpu.max", &format!("{micros} {PERIOD_MICROS}"))?;
        } else {
            quota.write("cpu.cfs_period_us", &PERIOD_MICROS.to_string())?;
            quota.write("cpu.cfs_quota_us", &micros.to_string())?;
        }
        Ok(quota)
    }

    /// Puts a process into it, with all of its threads.
    pub(crate) fn add(&self, pid: u32) -> Result<()> {
        self.write("cgroup.procs", &pid.to_string())
    }

    fn write(&self, file: &str, value: &str) -> Result<()> {
        let path = self.0.join(file);
        fs::write(&path, value).with_context(|| format!("cannot write {}", path.display()))
    }
}

impl Drop for Quota {
    fn drop(&mut self) {
        // An empty group that stays does no harm.
        let _ = fs::remove_dir(&self.0);
    }
}
