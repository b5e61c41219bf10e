//! The process that owns the threads of a handle.

use crate::status::{Failure, Status};

/// The process in which a handle was created.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Process(u32);

impl Process {
    pub(crate) fn current() -> Self {
        Self(std::process::id())
    }

    /// # Errors
    /// The process is a child created by fork: the handle's threads are in the parent.
    pub(crate) fn check(self) -> Result<(), Failure> {
        if self.0 == std::process::id() {
            return Ok(());
        }
        let message = "the handle was created before a fork, and its threads are in the parent: create a new one \
             from the model";
        Err(Failure::new(Status::SLUICE_INVALID_ARGUMENT, message))
    }
}
