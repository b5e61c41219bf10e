//! Actions on slots.

use core::time::Duration;
use sluice::adapter::AdapterBlend;
use std::path::PathBuf;

/// An action on a slot.
#[derive(Clone, Debug)]
pub enum SlotAction {
    /// Save its text and state to a file.
    Save(PathBuf),
    /// Restore them from a file; they were computed with these adapters.
    Restore(PathBuf, Option<AdapterBlend>),
    /// Remove them.
    Erase,
}

/// The result of an action.
#[derive(Clone, Copy, Debug, Default)]
pub struct SlotDone {
    /// Tokens that were saved, restored or removed.
    pub n_tokens: usize,
    /// Bytes written or read.
    pub n_bytes: u64,
    /// How long it took.
    pub time: Duration,
}
