//! What came of guesses, counted.

use core::fmt;
use core::time::Duration;
use sluice_core::speculate::{Guess, POSITIONS_MAX};

/// What came of guesses since the session began.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Figures {
    /// Times that guesses of a text were verified.
    pub n_drafts: u64,
    /// Guesses that were verified.
    pub n_guesses: u64,
    /// Guesses that were right.
    pub n_right: u64,
    /// The right ones by their place behind the text.
    pub right_at: [u64; POSITIONS_MAX],
    /// Those of the text itself and of n-grams.
    pub ngrams: SourceFigures,
    /// Those that a grammar forced.
    pub forced: SourceFigures,
    /// Those of a model.
    pub model: SourceFigures,
    /// Time that guessing took, that of a model included.
    pub guessing: Duration,
    /// Of it, that of a model.
    pub drafting: Duration,
    /// Tokens drawn in steps over texts that are written, guessed or not.
    pub n_drawn: u64,
    /// Steps over them, added up over texts.
    pub n_passes: u64,
}

/// What came of guesses of one source.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SourceFigures {
    /// Guesses that were verified.
    pub n_guesses: u64,
    /// Guesses that were right.
    pub n_right: u64,
}

impl Figures {
    /// `n_right` of the `guesses` of a text were right.
    pub(super) fn note(&mut self, guesses: &[Guess], n_right: usize) {
        self.n_drafts += 1;
        for (i, guess) in guesses.iter().enumerate() {
            let is_right = u64::from(i < n_right);
            self.n_guesses += 1;
            self.n_right += is_right;
            self.right_at[i.min(POSITIONS_MAX - 1)] += is_right;
            let source = match guess.class {
                class if class.is_model() => &mut self.model,
                class if class.is_forced() => &mut self.forced,
                _ => &mut self.ngrams,
            };
            source.n_guesses += 1;
            source.n_right += is_right;
        }
    }

    /// What came since these were the figures.
    #[must_use]
    pub fn since(&self, before: &Self) -> Self {
        let source = |now: SourceFigures, before: SourceFigures| SourceFigures {
            n_guesses: now.n_guesses - before.n_guesses,
            n_right: now.n_right - before.n_right,
        };
        let mut right_at = self.right_at;
        for (now, before) in right_at.iter_mut().zip(before.right_at) {
            *now -= before;
        }
        Self {
            n_drafts: self.n_drafts - before.n_drafts,
            n_guesses: self.n_guesses - before.n_guesses,
            n_right: self.n_right - before.n_right,
            right_at,
            ngrams: source(self.ngrams, before.ngrams),
            forced: source(self.forced, before.forced),
            model: source(self.model, before.model),
            guessing: self.guessing.saturating_sub(before.guessing),
            drafting: self.drafting.saturating_sub(before.drafting),
            n_drawn: self.n_drawn - before.n_drawn,
            n_passes: self.n_passes - before.n_passes,
        }
    }

    /// The part of verified guesses that were right; 0 without any.
    #[must_use]
    pub fn acceptance(&self) -> f64 {
        part(self.n_right, self.n_guesses)
    }

    /// Tokens that a text gained in a step, on average.
    #[must_use]
    pub fn tokens_per_pass(&self) -> f64 {
        part(self.n_drawn, self.n_passes)
    }
}

impl fmt::Display for Figures {
    /// As a part of a profile.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ms = |time: Duration| time.as_secs_f64() * 1e3;
        writeln!(
            f,
            "guesses: {} verified in {} passes, {} accepted ({:.1}%), {:.2} tokens a pass",
            self.n_guesses,
            self.n_drafts,
            self.n_right,
            100.0 * self.acceptance(),
            self.tokens_per_pass()
        )?;
        let sources = [
            ("n-grams", self.ngrams),
            ("grammar", self.forced),
            ("model", self.model),
        ];
        for (name, source) in sources {
            if source.n_guesses > 0 {
                let (all, right) = (source.n_guesses, source.n_right);
                let part = 100.0 * part(right, all);
                writeln!(f, "  {name}: {right} of {all} accepted ({part:.1}%)")?;
            }
        }
        write!(
            f,
            "  guessing took {:.2} ms, of it the draft model {:.2} ms",
            ms(self.guessing),
            ms(self.drafting)
        )
    }
}

#[expect(clippy::cast_precision_loss, reason = "counts are far below 2^53")]
fn part(a: u64, b: u64) -> f64 {
    if b == 0 { 0.0 } else { a as f64 / b as f64 }
}
