//! A text in the pool.

use super::prefix::{Chain, Key};
use crate::engine::request::Request;
use sluice::Sequence;
use sluice::session::SavedText;
use std::rc::Rc;

/// A text that is being read or written: its sequence, and the keys of its pages.
#[derive(Debug)]
pub(crate) struct Text {
    request: Rc<Request>,
    sequence: Sequence,
    chain: Chain,
    /// Number of its pages that were offered to the prefix cache.
    pub(super) n_kept: usize,
    /// The slot that it was asked to run in.
    pub(super) pinned: Option<u32>,
    /// Whether it gave up its place and its state.
    pub(super) is_parked: bool,
    /// The state of a parked text that cannot be read again, because it was shifted.
    pub(super) saved: Option<SavedText>,
}

impl Text {
    pub(super) fn new(
        request: Rc<Request>,
        pinned: Option<u32>,
        sequence: Sequence,
        chain: Chain,
    ) -> Self {
        Self {
            pinned,
            request,
            sequence,
            chain,
            n_kept: 0,
            is_parked: false,
            saved: None,
        }
    }

    /// A copy of the text in another sequence, whichever that is.
    pub(super) fn fork(&self, sequence: Sequence) -> Self {
        Self {
            n_kept: self.n_kept,
            ..Self::new(Rc::clone(&self.request), None, sequence, self.chain.clone())
        }
    }

    pub(crate) const fn request(&self) -> &Rc<Request> {
        &self.request
    }

    /// Whether the slot that it was asked to run in is in `taken`.
    pub(crate) fn waits_for(&self, taken: &[u32]) -> bool {
        self.pinned.is_some_and(|slot| taken.contains(&slot))
    }

    pub(crate) const fn sequence(&self) -> &Sequence {
        &self.sequence
    }

    pub(crate) const fn sequence_mut(&mut self) -> &mut Sequence {
        &mut self.sequence
    }

    pub(super) fn into_sequence(self) -> Sequence {
        self.sequence
    }

    /// The keys of its pages.
    pub(crate) const fn chain(&self) -> &Chain {
        &self.chain
    }

    /// Turns to the keys for a text that is computed with the long divisors of a longrope model, or without.
    pub(super) fn fit(&mut self, is_long: bool) {
        if self.chain.is_long() != is_long {
            self.chain.fit(is_long);
            self.n_kept = 0;
        }
    }

    /// The keys of its full pages, up to the last token read.
    pub(super) fn keys(&mut self) -> &[Key] {
        self.chain.of(self.sequence.tokens())
    }

    /// The keys of the full pages of `tokens`, which the text will begin with.
    pub(super) fn keys_of(&mut self, tokens: &[u32]) -> &[Key] {
        self.chain.of(tokens)
    }

    /// Whether it gave up its place and its state, which is restored later.
    pub(crate) const fn is_parked(&self) -> bool {
        self.is_parked
    }

    /// Whether its state is kept in memory while it is parked.
    pub(crate) const fn is_saved(&self) -> bool {
        self.saved.is_some()
    }

    /// Number of tokens to choose after the queued ones: none for a prompt that is only to be read.
    pub(super) fn n_wanted(&self) -> usize {
        self.sequence.n_left().min(1)
    }

    /// Number of tokens read.
    pub(crate) fn n_read(&self) -> usize {
        self.sequence.tokens().len()
    }

    /// Number of tokens queued.
    pub(crate) fn n_queued(&self) -> usize {
        self.sequence.queue().len()
    }

    /// Number of tokens once all queued ones are read.
    pub(crate) fn n_tokens(&self) -> usize {
        let saved = self.saved.as_ref();
        self.n_read() + self.n_queued() + saved.map_or(0, |saved| saved.tokens().len())
    }
}
