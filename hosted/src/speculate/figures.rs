//! Statistics of draft tokens.

use core::fmt;
use core::time::Duration;
use sluice_core::speculate::{DraftToken, POSITIONS_MAX};

/// Statistics of draft tokens since the session began.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Figures {
    /// How often drafts of a text were verified.
    pub n_drafts: u64,
    /// Number of verified draft tokens.
    pub n_draft: u64,
    /// Number of correct draft tokens.
    pub n_accepted: u64,
    /// Correct draft tokens by their place after the text.
    pub accepted_at: [u64; POSITIONS_MAX],
    /// Drafts from the text itself and from n-grams.
    pub ngrams: SourceFigures,
    /// Drafts forced by a grammar.
    pub forced: SourceFigures,
    /// Drafts of a model.
    pub model: SourceFigures,
    /// Time spent drafting, including a model's.
    pub drafting: Duration,
    /// Time spent drafting with a model.
    pub draft_model: Duration,
    /// Whole time of the steps that verified draft tokens.
    pub verifying: Duration,
    /// Tokens drawn in steps over texts being written, drafted or not.
    pub n_drawn: u64,
    /// Number of these steps, summed over texts.
    pub n_passes: u64,
}

/// Statistics of the draft tokens of one source.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SourceFigures {
    /// Number of verified draft tokens.
    pub n_draft: u64,
    /// Number of correct draft tokens.
    pub n_accepted: u64,
}

impl Figures {
    /// Notes that `n_accepted` of the `drafts` of a text were right.
    pub(super) fn note(&mut self, drafts: &[DraftToken], n_accepted: usize) {
        self.n_drafts += 1;
        for (i, draft) in drafts.iter().enumerate() {
            let is_right = u64::from(i < n_accepted);
            self.n_draft += 1;
            self.n_accepted += is_right;
            self.accepted_at[i.min(POSITIONS_MAX - 1)] += is_right;
            let source = match draft.class {
                class if class.is_model() => &mut self.model,
                class if class.is_forced() => &mut self.forced,
                _ => &mut self.ngrams,
            };
            source.n_draft += 1;
            source.n_accepted += is_right;
        }
    }

    /// The difference from `before`.
    #[must_use]
    pub fn since(&self, before: &Self) -> Self {
        let source = |now: SourceFigures, before: SourceFigures| SourceFigures {
            n_draft: now.n_draft - before.n_draft,
            n_accepted: now.n_accepted - before.n_accepted,
        };
        let mut accepted_at = self.accepted_at;
        for (now, before) in accepted_at.iter_mut().zip(before.accepted_at) {
            *now -= before;
        }
        Self {
            n_drafts: self.n_drafts - before.n_drafts,
            n_draft: self.n_draft - before.n_draft,
            n_accepted: self.n_accepted - before.n_accepted,
            accepted_at,
            ngrams: source(self.ngrams, before.ngrams),
            forced: source(self.forced, before.forced),
            model: source(self.model, before.model),
            drafting: self.drafting.saturating_sub(before.drafting),
            draft_model: self.draft_model.saturating_sub(before.draft_model),
            verifying: self.verifying.saturating_sub(before.verifying),
            n_drawn: self.n_drawn - before.n_drawn,
            n_passes: self.n_passes - before.n_passes,
        }
    }

    /// The share of verified drafts that were right; 0 without any.
    #[must_use]
    pub fn acceptance(&self) -> f64 {
        part(self.n_accepted, self.n_draft)
    }

    /// Tokens that a text gained in a step, on average.
    #[must_use]
    pub fn tokens_per_pass(&self) -> f64 {
        part(self.n_drawn, self.n_passes)
    }
}

impl fmt::Display for Figures {
    /// Formats them for a profile.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ms = |time: Duration| time.as_secs_f64() * 1e3;
        writeln!(
            f,
            "drafts: {} verified in {} passes, {} accepted ({:.1}%), {:.2} tokens per pass",
            self.n_draft,
            self.n_drafts,
            self.n_accepted,
            100.0 * self.acceptance(),
            self.tokens_per_pass()
        )?;
        let sources = [
            ("n-grams", self.ngrams),
            ("grammar", self.forced),
            ("model", self.model),
        ];
        for (name, source) in sources {
            if source.n_draft > 0 {
                let (all, right) = (source.n_draft, source.n_accepted);
                let part = 100.0 * part(right, all);
                writeln!(f, "  {name}: {right} of {all} accepted ({part:.1}%)")?;
            }
        }
        write!(
            f,
            "  drafting took {:.2} ms, including {:.2} ms of the draft model; verifying passes {:.2} ms",
            ms(self.drafting),
            ms(self.draft_model),
            ms(self.verifying)
        )
    }
}

#[expect(clippy::cast_precision_loss, reason = "counts are far below 2^53")]
fn part(a: u64, b: u64) -> f64 {
    if b == 0 { 0.0 } else { a as f64 / b as f64 }
}
