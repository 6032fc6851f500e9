//! Shared by the tests of this crate.

use tempfile::TempDir;

/// A folder for a test. Under the build's own folder, because `/tmp` is not on a disk everywhere.
pub(crate) fn folder() -> TempDir {
    tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a folder in the build folder")
}
