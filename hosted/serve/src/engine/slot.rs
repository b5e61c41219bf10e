//! What can be done with a slot.

use core::time::Duration;
use sluice::adapter::Blend;
use std::path::PathBuf;

/// What is to be done with a slot.
#[derive(Clone, Debug)]
pub enum SlotAction {
    /// Save its text and state to a file.
    Save(PathBuf),
    /// Restore them from a file; they were computed with these adapters.
    Restore(PathBuf, Option<Blend>),
    /// Remove them.
    Erase,
}

/// What was done with a slot.
#[derive(Clone, Copy, Debug, Default)]
pub struct SlotDone {
    /// Tokens that were saved, restored or removed.
    pub n_tokens: usize,
    /// Bytes written or read.
    pub n_bytes: u64,
    /// How long it took.
    pub time: Duration,
}
