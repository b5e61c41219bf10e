//! The state of one text.

use sluice_core::speculate::{Acceptance, DraftToken, Ngrams};

/// A text: its index, the draft tokens that its next tokens are compared with, and how often those were right.
pub(super) struct Text {
    pub(super) index: Option<Ngrams<Vec<u32>>>,
    /// The drafts that each source would have made.
    pub(super) sources: Vec<Vec<DraftToken>>,
    pub(super) acceptance: Acceptance,
}

impl Text {
    pub(super) const fn new() -> Self {
        Self {
            index: None,
            sources: Vec::new(),
            acceptance: Acceptance::of_text(),
        }
    }

    /// Indexes `text`; returns where its new part begins.
    pub(super) fn follow(&mut self, text: &[u32], n_ctx: usize) -> usize {
        let index = self.index.get_or_insert_with(|| {
            let words = vec![0; Ngrams::<Vec<u32>>::n_words(n_ctx)];
            Ngrams::new(n_ctx, words).expect("as many as it needs")
        });
        let n_before = index.tokens().len();
        let start = index.follow(text);
        if start < n_before {
            // Another text, though it may begin the same way.
            self.acceptance = Acceptance::of_text();
        }
        start
    }

    /// The expected share of correct tokens among such drafts, each together with all before it.
    pub(super) fn chances(&self, session: &Acceptance, drafts: &[DraftToken]) -> Vec<f32> {
        self.acceptance.chances(session, drafts).collect()
    }

    /// Compares the drafts of all sources, verified or not, with the tokens that followed.
    pub(super) fn compare(
        &mut self,
        drawn: impl Iterator<Item = u32> + Clone,
        session: &mut Acceptance,
    ) {
        for drafts in self.sources.drain(..) {
            self.acceptance.compare(session, &drafts, drawn.clone());
        }
    }
}
