//! Limits the length of reasoning.

use super::scan::Scan;
use crate::assistant::Reasoning;

/// Counts the tokens of reasoning, and then closes it.
#[derive(Clone, Debug)]
pub(super) struct Budget {
    scan: Scan,
    n_most: usize,
    n_used: usize,
    /// The tokens that close it.
    closing: Vec<u32>,
    /// Index of the next one, once the first was forced.
    at: usize,
}

impl Budget {
    pub(super) fn new(n_most: usize, reasoning: Reasoning, closing: Vec<u32>) -> Self {
        Self {
            scan: Scan::new(Some(reasoning), Vec::new()),
            n_most,
            n_used: 0,
            closing,
            at: 0,
        }
    }

    pub(super) fn restart(&mut self) {
        self.scan.restart();
        self.n_used = 0;
        self.at = 0;
    }

    /// The token that must come next. Waits for the end of an incomplete character.
    pub(super) fn forced(&self) -> Option<u32> {
        let is_due = self.scan.is_inside() && self.n_used >= self.n_most;
        let is_forced = self.at > 0 || (is_due && !self.scan.is_mid_char());
        self.closing.get(self.at).copied().filter(|_| is_forced)
    }

    /// The tokens that must come next, in order; empty if the next one is free.
    pub(super) fn rest(&self) -> &[u32] {
        match self.forced() {
            Some(_) => &self.closing[self.at..],
            None => &[],
        }
    }

    /// Handles a forced token that the grammar does not allow: the first token of the mark is tried again later; the
    /// tokens after it are left to the grammar.
    pub(super) fn yield_to_grammar(&mut self) {
        self.at = 0;
    }

    /// Advances by a token that was sampled or forced.
    pub(super) fn push(&mut self, piece: &[u8], is_forced: bool) {
        let was_inside = self.scan.is_inside();
        self.scan.push(piece);
        while self.scan.next().is_some() {}
        if !is_forced {
            self.n_used += usize::from(was_inside && self.scan.is_inside());
            return;
        }
        self.at += 1;
        if self.at == self.closing.len() {
            self.at = 0;
            self.scan.leave();
        }
    }
}
