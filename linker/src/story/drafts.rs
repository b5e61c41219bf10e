//! Drafts of the text's continuation, from the text itself.

use super::StoryError;
use super::room::Room;
use sluice_core::costs::Costs;
use sluice_core::speculate::{Acceptance, DraftToken, Ngrams, POSITIONS_MAX, worth};

/// The index of the text and the statistics of its drafts.
pub(super) struct Drafts<'m> {
    index: Ngrams<&'m mut [u32]>,
    /// Recent, and since the beginning.
    acceptance: Acceptance,
    all: Acceptance,
    /// In ticks.
    costs: Costs,
    found: [DraftToken; POSITIONS_MAX],
    n_found: usize,
    /// Maximum in a step.
    n_max: usize,
}

impl<'m> Drafts<'m> {
    /// Up to `n_max` draft tokens in a step, for a text of up to `n_ctx` tokens.
    pub(super) fn new(n_max: usize, n_ctx: usize, room: &mut Room<'m>) -> Result<Self, StoryError> {
        let n_words = Ngrams::<&mut [u32]>::n_words(n_ctx);
        let words = room.slice("drafts (draft=)", n_words)?;
        Ok(Self {
            index: Ngrams::new(n_ctx, words).ok_or(StoryError::TooLarge)?,
            acceptance: Acceptance::of_text(),
            all: Acceptance::of_session(),
            costs: Costs::new(),
            found: [DraftToken::NONE; POSITIONS_MAX],
            n_found: 0,
            n_max: n_max.min(POSITIONS_MAX),
        })
    }

    /// Up to `n_most` draft tokens that continue `text`: those that are worth a row.
    pub(super) fn draft(&mut self, text: &[u32], n_most: usize) -> &[DraftToken] {
        self.index.follow(text);
        let found = &mut self.found[..self.n_max.min(n_most)];
        self.n_found = self.index.draft(found);
        let found = &self.found[..self.n_found];
        let chances = self.acceptance.chances(&self.all, found);
        let n = worth(&self.costs, 1, text.len(), 1, chances);
        &found[..n]
    }

    /// Records that a step of `n_rows` tokens, which looked back at `n_positions`, took this many ticks.
    #[expect(
        clippy::cast_precision_loss,
        reason = "a step's ticks are far below 2^53"
    )]
    pub(super) fn note_step(&mut self, n_rows: usize, n_positions: usize, ticks: u64) {
        self.costs.note(n_rows, n_positions, ticks as f64);
    }

    /// Learns from the tokens that were drawn after the text.
    pub(super) fn note_drawn(&mut self, drawn: &[u32]) {
        let found = &self.found[..self.n_found];
        let drawn = drawn.iter().copied();
        self.acceptance.compare(&mut self.all, found, drawn);
        self.n_found = 0;
    }
}
