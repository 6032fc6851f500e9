//! Moves the wall clock of this process, for tests only: a build without the feature `test-clock` has no such
//! module.
//!
//! `TASKLANE_TEST_CLOCK` names a file that holds the shift in milliseconds. To change it, a test writes
//! another file and renames it, so that no half of a number is read.
//! `TASKLANE_TEST_BOOT_ID` is the boot id of another start of the machine.

use std::path::PathBuf;
use std::time::Duration;

use tasklane_core::time::{Shift, Timestamp};

/// Time between reads of the file.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// The boot id to go by instead of the kernel's.
pub(crate) fn boot_id() -> Option<String> {
    std::env::var("TASKLANE_TEST_BOOT_ID").ok()
}

/// The shift of the wall clock.
#[derive(Debug)]
pub(crate) struct TestClock {
    file: Option<PathBuf>,
    looked_at: Option<Timestamp>,
    shift: Shift,
}

impl Default for TestClock {
    fn default() -> Self {
        let file = std::env::var_os("TASKLANE_TEST_CLOCK").map(PathBuf::from);
        Self { file, looked_at: None, shift: Shift::ZERO }
    }
}

impl TestClock {
    /// The shift of the wall clock now. A file that is absent, or holds no number, changes nothing.
    pub(crate) fn shift(&mut self, steady: Timestamp) -> Shift {
        let Some(file) = &self.file else { return Shift::ZERO };
        if self.looked_at.is_none_or(|at| steady.since(at) >= LOOK_EVERY) {
            self.looked_at = Some(steady);
            let number = std::fs::read_to_string(file).ok().and_then(|text| text.trim().parse().ok());
            self.shift = number.map_or(self.shift, Shift::from_millis);
        }
        self.shift
    }
}
