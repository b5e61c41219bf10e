//! How a command ended, and the exit code for it.

use core::fmt;

/// How a command ended, if not with an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ending {
    Done,
    /// Something failed, and the error was reported.
    Failed,
    Interrupted,
    /// With the exit code of another program.
    Code(u8),
}

/// The arguments contradict each other: exit code 2.
#[derive(Debug)]
pub(crate) struct UsageError(pub(crate) String);

impl fmt::Display for UsageError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl core::error::Error for UsageError {}

pub(crate) const EXIT_DONE: u8 = 0;
pub(crate) const EXIT_ERROR: u8 = 1;
pub(crate) const EXIT_USAGE: u8 = 2;
/// 128 + SIGINT, as in shells.
pub(crate) const EXIT_INTERRUPTED: u8 = 130;
