//! Removing a folder whose content a stranger has made.
//!
//! The folder may have any depth and width. Descending would take a stack frame and a descriptor for each
//! level, so the tree is flattened instead: folders within folders are moved up, until nothing is deeper than
//! one level.
//!
//! The removal touches nothing outside of the tree, even if the stranger changes the tree meanwhile. Every
//! step names an entry of a folder that is held open, no step follows a symlink, and a folder on another
//! mount (a bind mount too) is left alone: such a tree stays, and the caller gets an error that names the
//! mount.

use std::fs::{self, Permissions};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{OnceLock, mpsc};

use rustix::ffi::{CStr, CString};
use rustix::fs::{AtFlags, CWD, Dir, Mode, OFlags, StatxFlags, openat, renameat, statx, unlinkat};
use rustix::io::Errno;

/// Removes a folder and all that is in it, in constant memory. A symlink is removed itself.
pub fn remove_tree(root: &Path) -> io::Result<()> {
    let name = root.file_name().ok_or(io::ErrorKind::InvalidInput)?;
    let name = CString::new(name.as_encoded_bytes())?;
    let parent = match root.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    let parent = openat(CWD, parent, FOLDER | OFlags::PATH, Mode::empty())?;
    let mount = Mount::of(parent.as_fd())?;
    match take(&parent, &name, mount)? {
        Entry::Gone => Ok(()),
        Entry::Mounted => Err(mounted(&name)),
        Entry::Folder(root) => {
            Tree { root, mount, next: 0, mounted: None }.empty()?;
            Ok(unlinkat(&parent, &name, AtFlags::REMOVEDIR)?)
        }
    }
}

const FOLDER: OFlags = OFlags::DIRECTORY.union(OFlags::CLOEXEC);

/// A tree on its way out.
struct Tree {
    root: OwnedFd,
    mount: Mount,
    /// Number of the next folder that is moved up.
    next: u64,
    /// A foreign mount that was found in it.
    mounted: Option<CString>,
}

/// The outcome of removing one entry.
enum Entry {
    Gone,
    /// A folder of the same mount, whose mode now lets this process change it.
    Folder(OwnedFd),
    /// Something is mounted there.
    Mounted,
}

impl Tree {
    /// Removes everything in the root. Each round removes one level; a round without progress is the last.
    fn empty(&mut self) -> io::Result<()> {
        loop {
            let (mut is_empty, mut progress) = (true, false);
            for entry in Dir::read_from(&self.root)? {
                let entry = entry?;
                if !is_dots(entry.file_name()) {
                    is_empty = false;
                    progress |= self.remove(entry.file_name())?;
                }
            }
            if is_empty {
                return Ok(());
            }
            if !progress {
                return Err(mounted(&self.mounted.take().unwrap_or_default()));
            }
        }
    }

    /// Removes an entry of the root. False if nothing of it could be removed.
    fn remove(&mut self, name: &CStr) -> io::Result<bool> {
        let folder = match take(&self.root, name, self.mount)? {
            Entry::Gone => return Ok(true),
            Entry::Folder(folder) => folder,
            Entry::Mounted => {
                self.mounted = Some(name.to_owned());
                return Ok(false);
            }
        };
        let progress = self.flatten(&folder)?;
        match unlinkat(&self.root, name, AtFlags::REMOVEDIR) {
            Ok(()) | Err(Errno::NOENT) => Ok(true),
            // A mount is left in it, or the stranger is still at work.
            Err(Errno::NOTEMPTY | Errno::EXIST | Errno::BUSY | Errno::NOTDIR) => Ok(progress),
            Err(errno) => Err(errno.into()),
        }
    }

    /// Removes the files of a folder and moves its folders up to the root. False if nothing could be removed
    /// or moved.
    fn flatten(&mut self, folder: &OwnedFd) -> io::Result<bool> {
        let mut progress = false;
        for entry in Dir::read_from(folder)? {
            let entry = entry?;
            let name = entry.file_name();
            if is_dots(name) {
                continue;
            }
            progress |= match take(folder, name, self.mount)? {
                Entry::Gone => true,
                // Moving a folder changes the folder too: its parent entry. So it had to be opened.
                Entry::Folder(_) => self.move_up(folder, name)?,
                Entry::Mounted => {
                    self.mounted = Some(name.to_owned());
                    false
                }
            };
        }
        Ok(progress)
    }

    fn move_up(&mut self, folder: &OwnedFd, name: &CStr) -> io::Result<bool> {
        loop {
            self.next += 1;
            match renameat(folder, name, &self.root, format!(".tasklane-{}", self.next)) {
                Ok(()) | Err(Errno::NOENT) => return Ok(true),
                Err(Errno::EXIST | Errno::NOTEMPTY | Errno::NOTDIR | Errno::ISDIR) => {}
                Err(Errno::BUSY) => return Ok(false),
                Err(errno) => return Err(errno.into()),
            }
        }
    }
}

/// The mount of a folder. Bind mounts of one device differ by their ids, which kernels before 5.8 do not
/// report.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Mount {
    device: (u32, u32),
    id: Option<u64>,
}

impl Mount {
    fn of(folder: BorrowedFd<'_>) -> io::Result<Self> {
        let wanted = StatxFlags::BASIC_STATS | StatxFlags::MNT_ID;
        let about = statx(folder, c"", AtFlags::EMPTY_PATH, wanted)?;
        let has_id = about.stx_mask & StatxFlags::MNT_ID.bits() != 0;
        let device = (about.stx_dev_major, about.stx_dev_minor);
        Ok(Self { device, id: has_id.then_some(about.stx_mnt_id) })
    }
}

/// Removes an entry, or opens it if it is a folder.
fn take(parent: &OwnedFd, name: &CStr, mount: Mount) -> io::Result<Entry> {
    match unlinkat(parent, name, AtFlags::empty()) {
        Ok(()) | Err(Errno::NOENT) => return Ok(Entry::Gone),
        Err(Errno::BUSY) => return Ok(Entry::Mounted),
        Err(Errno::ISDIR) => {}
        Err(errno) => return Err(errno.into()),
    }
    let path = match openat(parent, name, FOLDER | OFlags::NOFOLLOW | OFlags::PATH, Mode::empty()) {
        // Another entry has taken its place; the next round removes it.
        Err(Errno::NOTDIR | Errno::LOOP | Errno::NOENT) => return Ok(Entry::Gone),
        opened => opened?,
    };
    if Mount::of(path.as_fd())? != mount {
        return Ok(Entry::Mounted);
    }
    // Its owner may have locked it. By its descriptor, because the name may stand for another entry by now.
    let itself = format!("/proc/self/fd/{}", path.as_raw_fd());
    let _ = fs::set_permissions(itself, Permissions::from_mode(0o700));
    Ok(Entry::Folder(openat(&path, c".", FOLDER | OFlags::NOFOLLOW, Mode::empty())?))
}

fn is_dots(name: &CStr) -> bool {
    matches!(name.to_bytes(), b"." | b"..")
}

fn mounted(name: &CStr) -> io::Error {
    io::Error::new(
        io::ErrorKind::ResourceBusy,
        format!(
            "something is mounted at {}, which is left alone: unmount it and remove the folder",
            name.to_string_lossy()
        ),
    )
}

/// Renames a folder immediately and removes it on a thread of its own, so that no caller waits.
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
    use std::os::unix::fs::symlink;
    use std::process::Command;

    use rustix::fs::{RenameFlags, renameat_with};

    use super::*;

    /// Such a folder killed the whole process: the removal descended level by level, on a small stack.
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
        symlink("/etc", root.join("link")).unwrap();
        fs::create_dir(root.join(".tasklane-1")).unwrap();
        fs::set_permissions(root.join("d"), Permissions::from_mode(0o000)).unwrap();
        remove_tree(&root).unwrap();
        assert!(!root.exists() && Path::new("/etc/passwd").exists());
    }

    /// A folder of another user with a file in it that only its mode protects.
    fn foreign(home: &Path) -> PathBuf {
        let foreign = home.join("foreign");
        fs::create_dir_all(foreign.join("inner")).unwrap();
        fs::write(foreign.join("inner/precious"), "x").unwrap();
        fs::set_permissions(&foreign, Permissions::from_mode(0o750)).unwrap();
        foreign
    }

    fn assert_untouched(foreign: &Path) {
        assert!(foreign.join("inner/precious").exists());
        assert_eq!(fs::metadata(foreign).unwrap().permissions().mode() & 0o777, 0o750);
    }

    #[test]
    fn symlinks_are_removed_and_what_they_show_to_stays() {
        let home = tempfile::tempdir().unwrap();
        let (root, foreign) = (home.path().join("attempt"), foreign(home.path()));
        fs::create_dir_all(root.join("a/b")).unwrap();
        symlink(&foreign, root.join("link")).unwrap();
        symlink(&foreign, root.join("a/link")).unwrap();
        symlink(&foreign, root.join("a/b/link")).unwrap();
        remove_tree(&root).unwrap();
        assert!(!root.exists());
        assert_untouched(&foreign);
        // The folder itself became a symlink.
        symlink(&foreign, &root).unwrap();
        remove_tree(&root).unwrap();
        assert!(root.symlink_metadata().is_err());
        assert_untouched(&foreign);
    }

    /// A process that outlived its attempt exchanges a folder for a symlink while the tree is removed: an
    /// entry that was a folder when it was looked at leads out of the tree when it is entered.
    #[test]
    fn a_folder_that_becomes_a_symlink_meanwhile_leads_nowhere() {
        let home = tempfile::tempdir().unwrap();
        let (root, foreign) = (home.path().join("attempt"), foreign(home.path()));
        let done = std::sync::atomic::AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let (swapped, link) = (root.join("d"), home.path().join("link"));
                let _ = symlink(&foreign, &link);
                while !done.load(Ordering::Relaxed) {
                    let _ = renameat_with(CWD, &swapped, CWD, &link, RenameFlags::EXCHANGE);
                }
            });
            for _ in 0..500 {
                let _ = fs::create_dir_all(root.join("d/e"));
                let _ = fs::write(root.join("d/e/file"), "x");
                let _ = remove_tree(&root);
            }
            done.store(true, Ordering::Relaxed);
        });
        assert_untouched(&foreign);
    }

    /// Runs a test of this file again in a namespace of its own, where it may mount. False where it is in one already.
    fn in_own_mounts(name: &str) -> bool {
        const INSIDE: &str = "TASKLANE_TEST_MOUNTS";
        if std::env::var_os(INSIDE).is_some() {
            return false;
        }
        let is_root = rustix::process::geteuid().is_root();
        let ran = Command::new("unshare")
            .args(if is_root { ["--mount"].as_slice() } else { &["--user", "--map-root-user", "--mount"] })
            .arg(std::env::current_exe().unwrap())
            .args(["--exact", name, "--nocapture"])
            .env(INSIDE, "1")
            .output();
        match ran {
            Ok(ran) => {
                let said = String::from_utf8_lossy(&ran.stdout).into_owned();
                let errors = String::from_utf8_lossy(&ran.stderr);
                if errors.contains("unshare failed") {
                    io::Write::write_all(&mut io::stderr(), b"SKIPPED: no namespace for mounts\n").unwrap();
                } else {
                    assert!(ran.status.success() && said.contains("1 passed"), "{said}{errors}");
                }
            }
            Err(error) => panic!("unshare: {error}"),
        }
        true
    }

    #[test]
    fn what_is_mounted_in_it_stays() {
        if in_own_mounts("guard::remove::tests::what_is_mounted_in_it_stays") {
            return;
        }
        let home = tempfile::tempdir().unwrap();
        let (root, foreign) = (home.path().join("attempt"), foreign(home.path()));
        let run = |program: &str, args: &[&std::ffi::OsStr]| {
            let ran = Command::new(program).args(args).status().unwrap();
            assert!(ran.success(), "{program} {args:?}");
        };
        for place in ["d", "a/b", "a/b/c/d"] {
            let place = root.join(place);
            fs::create_dir_all(&place).unwrap();
            fs::write(root.join("file"), "x").unwrap();
            run("mount", &["--bind".as_ref(), foreign.as_os_str(), place.as_os_str()]);
            let error = remove_tree(&root).unwrap_err();
            assert!(error.to_string().contains("is mounted at"), "{error}");
            assert!(!root.join("file").exists(), "the rest is removed");
            assert_untouched(&foreign);
            run("umount", &[foreign_mount(&foreign).as_os_str()]);
            remove_tree(&root).unwrap();
            assert!(!root.exists());
            assert_untouched(&foreign);
        }
        // The folder itself is a mount.
        fs::create_dir(&root).unwrap();
        run("mount", &["--bind".as_ref(), foreign.as_os_str(), root.as_os_str()]);
        remove_tree(&root).unwrap_err();
        assert_untouched(&foreign);
        run("umount", &[root.as_os_str()]);
    }

    /// Where the last mount of this process is: it may have been moved with its folder.
    fn foreign_mount(foreign: &Path) -> PathBuf {
        let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap();
        let last = mounts.lines().last().unwrap();
        let place = PathBuf::from(last.split(' ').nth(4).unwrap());
        assert!(place != foreign && place.join("inner/precious").exists(), "{last}");
        place
    }
}
