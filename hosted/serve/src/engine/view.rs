//! The state of a model, as other threads see it.

use sluice::Session;
use sluice_core::state::PAGE_TOKENS;
use std::sync::Arc;

/// The state of a slot.
#[derive(Clone, Debug, Default)]
pub struct SlotView {
    /// Its number.
    pub id: u32,
    /// Whether its text is being read or written.
    pub is_processing: bool,
    /// The group of keys whose text it holds; `None` if it is empty.
    pub group: Option<Arc<str>>,
    /// The request, if one is being processed.
    pub request: Option<Arc<str>>,
    /// Number of tokens in its context.
    pub n_past: usize,
    /// Number of tokens of the prompt.
    pub n_prompt: usize,
    /// Number of tokens written.
    pub n_decoded: usize,
    /// Number of tokens that it may still write; `None` for no limit.
    pub n_remain: Option<usize>,
    /// Whether it drafts tokens.
    pub speculates: bool,
}

/// The state of a model. Reading it never waits for a step.
#[derive(Clone, Debug, Default)]
pub struct ModelView {
    /// Slots, running and idle.
    pub slots: Vec<SlotView>,
    /// Number of requests that wait for a slot.
    pub n_waiting: usize,
    /// Number of running choices.
    pub n_running: usize,
    /// Pages of the KV cache held by sequences, as a fraction of the maximum (0 to 1).
    pub kv_usage: f64,
    /// Number of pages that the prefix cache holds in memory.
    pub cached_pages: usize,
    /// Maximum number of pages that the prefix cache holds in memory.
    pub cache_pages_max: usize,
}

impl ModelView {
    /// The state of a model that has done nothing yet.
    pub(super) fn idle(session: &Session) -> Self {
        let limits = session.limits();
        Self {
            slots: SlotView::empty(limits.n_seq, session.speculation().is_some()),
            cache_pages_max: limits.n_held / PAGE_TOKENS,
            ..Self::default()
        }
    }
}

impl SlotView {
    /// `n` slots without texts.
    pub(super) fn empty(n: usize, speculates: bool) -> Vec<Self> {
        let slot = |id| Self {
            id,
            speculates,
            ..Self::default()
        };
        (0..).take(n).map(slot).collect()
    }
}
