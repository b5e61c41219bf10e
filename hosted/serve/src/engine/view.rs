//! What a model's part of the engine is doing, as others see it.

use std::sync::Arc;

/// A slot at the moment.
#[derive(Clone, Debug, Default)]
pub struct SlotView {
    /// Its number.
    pub id: u32,
    /// Whether a text is being read or written in it.
    pub is_processing: bool,
    /// The request, if one is being processed.
    pub request: Option<Arc<str>>,
    /// Tokens in its context.
    pub n_past: usize,
    /// Tokens of the prompt.
    pub n_prompt: usize,
    /// Tokens written.
    pub n_decoded: usize,
    /// Tokens that it may still write; `None` for no limit.
    pub n_remain: Option<usize>,
    /// Whether its tokens are drafted.
    pub speculates: bool,
}

/// What a model's part of the engine is doing. Reading it never waits for a step.
#[derive(Clone, Debug, Default)]
pub struct ModelView {
    /// Slots, running and idle.
    pub slots: Vec<SlotView>,
    /// Requests that wait for a slot.
    pub n_waiting: usize,
    /// Choices that run.
    pub n_running: usize,
    /// Pages of the KV cache that sequences hold, as a part of the maximum (0 to 1).
    pub kv_usage: f64,
    /// Pages that the prefix cache holds in memory.
    pub cached_pages: usize,
    /// Maximum number of pages that the prefix cache holds in memory.
    pub cache_pages_max: usize,
}
