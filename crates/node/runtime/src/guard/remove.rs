//! Removing a folder that a stranger has filled.
//!
//! It may be as deep and as wide as it likes. Going down into it would take a stack frame and a descriptor for each
//! level, so it is flattened instead: folders within folders are moved up, until nothing is deeper than one level.

use std::fs::{self, Permissions};
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{OnceLock, mpsc};

/// Removes a folder and all that is in it, in constant memory.
pub fn remove_tree(root: &Path) -> io::Result<()> {
    let mut next = 0;
    loop {
        let mut is_empty = true;
        for entry in fs::read_dir(root)? {
            let entry = entry?;
            is_empty = false;
            if entry.file_type()?.is_dir() {
                empty_into(&entry.path(), root, &mut next)?;
                fs::remove_dir(entry.path())?;
            } else {
                fs::remove_file(entry.path())?;
            }
        }
        if is_empty {
            return fs::remove_dir(root);
        }
    }
}

/// Removes the files of a folder and moves its folders up.
fn empty_into(folder: &Path, root: &Path, next: &mut u64) -> io::Result<()> {
    // Its owner may have locked it; so may the owner of what is moved, whose parent changes.
    let _ = fs::set_permissions(folder, Permissions::from_mode(0o700));
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            let _ = fs::set_permissions(entry.path(), Permissions::from_mode(0o700));
            move_up(&entry.path(), root, next)?;
        } else {
            fs::remove_file(entry.path())?;
        }
    }
    Ok(())
}

fn move_up(folder: &Path, root: &Path, next: &mut u64) -> io::Result<()> {
    loop {
        *next += 1;
        match fs::rename(folder, root.join(format!(".tasklane-{next}"))) {
            Err(error)
                if matches!(
                    error.kind(),
                    io::ErrorKind::AlreadyExists
                        | io::ErrorKind::DirectoryNotEmpty
                        | io::ErrorKind::NotADirectory
                ) => {}
            done => return done,
        }
    }
}

/// Takes a folder out of the way at once, and removes it on a thread of its own: nobody waits for it.
pub(crate) fn remove_later(folder: &Path) -> io::Result<()> {
    static SWEEPER: OnceLock<mpsc::Sender<PathBuf>> = OnceLock::new();
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let Some(parent) = folder.parent() else { return Ok(()) };
    let moved = parent.join(format!(".removed-{}", NEXT.fetch_add(1, Ordering::Relaxed)));
    match fs::rename(folder, &moved) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        renamed => renamed?,
    }
    let sweeper = SWEEPER.get_or_init(|| {
        let (sender, folders) = mpsc::channel::<PathBuf>();
        std::thread::spawn(move || {
            for folder in folders {
                if let Err(error) = remove_tree(&folder) {
                    tracing::warn!(path = %folder.display(), %error, "cannot remove the folder of an attempt");
                }
            }
        });
        sender
    });
    sweeper.send(moved).map_err(io::Error::other)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Such a folder took the whole process with it: it was gone into level by level, on a small stack.
    #[test]
    fn a_deep_and_a_wide_folder_are_removed() {
        let home = tempfile::tempdir().unwrap();
        let root = home.path().join("attempt");
        fs::create_dir(&root).unwrap();
        // Deeper than any path may be long: built from the inside out.
        for level in 0..5_000 {
            let inner = root.join("d");
            if level > 0 {
                fs::rename(&inner, root.join("inner")).unwrap();
            }
            fs::create_dir(&inner).unwrap();
            fs::write(inner.join("file"), "x").unwrap();
            if level > 0 {
                fs::rename(root.join("inner"), inner.join("d")).unwrap();
            }
        }
        for number in 0..2_000 {
            fs::write(root.join(format!("f{number}")), "").unwrap();
        }
        std::os::unix::fs::symlink("/etc", root.join("link")).unwrap();
        fs::create_dir(root.join(".tasklane-1")).unwrap();
        fs::set_permissions(root.join("d"), Permissions::from_mode(0o000)).unwrap();
        remove_tree(&root).unwrap();
        assert!(!root.exists() && Path::new("/etc/passwd").exists());
    }
}
