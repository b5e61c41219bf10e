//! Actions on slots.

use core::time::Duration;
use sluice::adapter::AdapterBlend;
use sluice::generate::prompt_cache::PromptCache;

/// An action on a slot. Files are the caller's: the engine does not wait for a disk.
#[derive(Clone, Debug)]
pub enum SlotAction {
    /// Return its text and state.
    Save,
    /// Replace them; they were computed with these adapters.
    Restore(Box<PromptCache>, Option<AdapterBlend>),
    /// Remove them.
    Erase,
}

/// The result of an action.
#[derive(Clone, Debug, Default)]
pub struct SlotDone {
    /// Tokens that were saved, restored or removed.
    pub n_tokens: usize,
    /// What was saved.
    pub saved: Option<Box<PromptCache>>,
    /// How long it took.
    pub time: Duration,
}
