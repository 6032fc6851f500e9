//! The data folder, which is for the user of the server alone: it holds payloads and results, and working
//! folders of attempts. Earlier versions made the folder and its files as the umask said.

use std::fs::{DirBuilder, Permissions};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::path::Path;

use anyhow::{Context, Result};

/// The entries of the folder besides the database.
pub(crate) const WORK: &str = "work";
pub(crate) const GUARD_LOCK: &str = "guard.lock";
/// The common beginning of the names of the database and its files.
const DATABASE: &str = "tasklane.db";

/// Makes the folder if it is not there, and takes it from others if they may read it.
pub(crate) fn prepare(folder: &Path) -> Result<()> {
    let cannot = || format!("cannot create {}", folder.display());
    if !folder.exists() {
        if let Some(above) = folder.parent() {
            std::fs::create_dir_all(above).with_context(cannot)?;
        }
        DirBuilder::new().recursive(true).mode(0o700).create(folder).with_context(cannot)?;
        return Ok(());
    }
    // The folder itself is made private, however it is reached.
    let folder = &folder.canonicalize().with_context(|| format!("cannot find {}", folder.display()))?;
    for (name, mode) in [(WORK, 0o700), (GUARD_LOCK, 0o600)] {
        make_private(&folder.join(name), mode);
    }
    let foreign = foreign_entry(folder);
    match foreign {
        None => make_private(folder, 0o700),
        // Perhaps a home, or a folder of the system: others may need it.
        Some(name) if is_open(folder) => tracing::warn!(
            folder = %folder.display(),
            "other users can list the data folder; it is left unchanged because {name:?} in it is not Tasklane's. Tasklane's \
             own files in it are private. Use a separate folder with --data-dir"
        ),
        Some(_) => {}
    }
    Ok(())
}

/// The name of something in the folder that is not ours.
fn foreign_entry(folder: &Path) -> Option<String> {
    let names = std::fs::read_dir(folder).ok()?.flatten().map(|entry| entry.file_name());
    let mut names = names.map(|name| name.to_string_lossy().into_owned());
    names.find(|name| {
        !name.starts_with(DATABASE) && ![WORK, GUARD_LOCK, "lost+found"].contains(&name.as_str())
    })
}

fn is_open(path: &Path) -> bool {
    path.symlink_metadata().is_ok_and(|about| !about.is_symlink() && about.mode() & 0o077 != 0)
}

fn make_private(path: &Path, mode: u32) {
    // The target of a symlink in the folder is not ours to change.
    if !is_open(path) {
        return;
    }
    let path_shown = path.display();
    match std::fs::set_permissions(path, Permissions::from_mode(mode)) {
        Ok(()) => {
            tracing::info!(path = %path_shown, "a file of the data folder was readable by other users; it is private now");
        }
        Err(error) => {
            tracing::warn!(path = %path_shown, %error, "a file of the data folder is readable by other users, and its mode cannot be changed");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mode(path: &Path) -> u32 {
        path.metadata().unwrap().mode() & 0o777
    }

    #[test]
    fn a_folder_is_made_private_unless_it_is_not_ours_alone() {
        let home = tempfile::tempdir().unwrap();
        let folder = home.path().join("above/data");
        prepare(&folder).unwrap();
        assert_eq!(mode(&folder), 0o700);

        // As an earlier version left it.
        std::fs::create_dir(folder.join(WORK)).unwrap();
        std::fs::write(folder.join(GUARD_LOCK), "").unwrap();
        std::fs::write(folder.join("tasklane.db-wal"), "").unwrap();
        let open = |path: &Path, mode| std::fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
        let open_all = || {
            open(&folder, 0o755);
            open(&folder.join(WORK), 0o755);
            open(&folder.join(GUARD_LOCK), 0o644);
        };
        open_all();
        prepare(&folder).unwrap();
        assert_eq!(
            (mode(&folder), mode(&folder.join(WORK)), mode(&folder.join(GUARD_LOCK))),
            (0o700, 0o700, 0o600)
        );

        std::fs::write(folder.join("notes.txt"), "").unwrap();
        open_all();
        prepare(&folder).unwrap();
        assert_eq!(
            (mode(&folder), mode(&folder.join(WORK)), mode(&folder.join(GUARD_LOCK))),
            (0o755, 0o700, 0o600)
        );
    }
}
