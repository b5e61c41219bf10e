//! What is known of one text.

use sluice_core::speculate::{Acceptance, Class, Guess, Ngrams};

/// A text: its index, the guesses that its next tokens are compared with, and how often those were right.
pub(super) struct Text {
    pub(super) index: Option<Ngrams<Vec<u32>>>,
    /// What each source would have guessed.
    pub(super) sources: Vec<Vec<Guess>>,
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

    /// Makes `text` what is indexed; returns from where on it is new.
    pub(super) fn follow(&mut self, text: &[u32], n_ctx: usize) -> usize {
        let index = self.index.get_or_insert_with(|| {
            let words = vec![0; Ngrams::<Vec<u32>>::n_words(n_ctx)];
            Ngrams::new(n_ctx, words).expect("as many as it needs")
        });
        let start = index.follow(text);
        if start == 0 {
            self.acceptance = Acceptance::of_text();
        }
        start
    }

    /// The part of such guesses that are right, each with all before it.
    pub(super) fn chances(&self, session: &Acceptance, guesses: &[Guess]) -> Vec<f32> {
        let mut chance = 1.0;
        let each = guesses.iter().map(|guess| {
            chance *= self.acceptance.rate(session, guess.class);
            chance
        });
        each.collect()
    }

    /// What followed is known: guesses of all sources were right or not, whether verified or not.
    pub(super) fn compare(
        &mut self,
        drawn: impl Iterator<Item = u32> + Clone,
        session: &mut Acceptance,
    ) {
        for guesses in self.sources.drain(..) {
            for (guess, token) in guesses.iter().zip(drawn.clone()) {
                let is_right = guess.token == token;
                let any = guess.class.is_model().then_some(Class::ANY_MODEL);
                for class in [Some(guess.class), any].into_iter().flatten() {
                    self.acceptance.note(class, is_right);
                    session.note(class, is_right);
                }
                if !is_right {
                    break;
                }
            }
        }
    }
}
