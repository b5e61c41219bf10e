//! Speculation in a session's steps.

use super::limits::DRAFTS_MAX;
use super::texts::BatchStats;
use super::{GenerateError, Session, StepHooks};
use crate::sequence::Sequence;
use crate::speculate::{Drafter, Speculation, SpeculationOptions};

impl Session {
    /// Speculates from now on, where the session was made for it ([`crate::Limits::n_draft`]); `None` ends it.
    /// Texts are the same with and without.
    pub fn set_speculation(&mut self, options: Option<SpeculationOptions>) {
        let limits = *self.limits();
        let keeps_states = limits.n_checkpoints > 0 && self.model.config().is_recurrent();
        self.speculation = options.filter(|_| self.n_draft > 0).map(|options| {
            let n_max = options.n_max.min(self.n_draft);
            let options = SpeculationOptions { n_max, ..options };
            Box::new(Speculation::new(options, &limits, keeps_states))
        });
    }

    /// Adds a drafting model, used while the session speculates at all. One that reads hidden states needs a session
    /// that provides them ([`crate::Limits::n_hidden`]); in another it does nothing.
    pub fn set_drafter(&mut self, drafter: Option<Box<dyn Drafter>>) {
        let gives_hidden = self.limits().n_hidden > 0;
        if let Some(speculation) = &mut self.speculation {
            speculation.set_drafter(drafter.filter(|own| gives_hidden || !own.reads_hidden()));
        }
    }

    /// State of speculation; `None` if it is off.
    #[must_use]
    pub fn speculation(&self) -> Option<&Speculation> {
        self.speculation.as_deref()
    }

    /// As [`Self::speculation`], to take out its failure.
    pub fn speculation_mut(&mut self) -> Option<&mut Speculation> {
        self.speculation.as_deref_mut()
    }

    /// Drafts for the writing texts among `sequences`, for the next step, which would otherwise do it itself; the step
    /// also reads `n_beside` tokens of prompts. Returns the number of rows that this adds to the step.
    pub fn draft(&mut self, sequences: &mut [&mut Sequence], n_beside: usize) -> usize {
        if sequences.iter().any(|text| self.check(text).is_err()) {
            // The step reports the error.
            return 0;
        }
        let limits = self.limits();
        // Each text, including one that is being read, has a row of its own.
        let n_rows = limits.n_outputs.min(limits.n_batch);
        let n_rows = n_rows.saturating_sub(sequences.len()).min(DRAFTS_MAX);
        let Some(speculation) = &mut self.speculation else {
            return 0;
        };
        let n_draft = speculation.draft(sequences, n_beside, n_rows);
        n_draft - self.drop_unlike(sequences)
    }

    /// Drops draft tokens after which a longrope model's text would be computed with other divisors. Returns how many.
    fn drop_unlike(&self, sequences: &mut [&mut Sequence]) -> usize {
        let model = self.engine.get().model();
        let drop = |sequence: &mut &mut Sequence| {
            let (len, n) = (sequence.tokens.len() + 1, sequence.drafts.len());
            sequence.drafts.truncate(model.alike_up_to(len) - len);
            n - sequence.drafts.len()
        };
        sequences.iter_mut().map(drop).sum()
    }

    /// Drafts for the texts that the caller has not drafted for.
    pub(super) fn draft_for_step(
        &mut self,
        sequences: &mut [&mut Sequence],
        hooks: &StepHooks<'_>,
    ) {
        let mut written = sequences.iter().filter(|text| text.is_being_written());
        if self.speculation.is_none() || written.all(|sequence| sequence.is_drafted) {
            return;
        }
        let share = |i: usize| hooks.shares.and_then(|shares| shares.get(i).copied());
        let prompts = sequences.iter().enumerate();
        let prompts = prompts.filter(|(_, sequence)| sequence.is_prompt());
        let n =
            prompts.map(|(i, sequence)| sequence.queue.len().min(share(i).unwrap_or(usize::MAX)));
        let n_beside = n.sum::<usize>().min(self.limits().n_batch);
        self.draft(sequences, n_beside);
    }

    /// Takes back the wrong draft tokens, and learns from all of them.
    pub(super) fn settle(
        &mut self,
        sequences: &mut [&mut Sequence],
        entered: &mut BatchStats,
    ) -> Result<(), GenerateError> {
        for sequence in sequences.iter_mut() {
            if !sequence.drafts.is_empty() && !sequence.chosen.is_empty() {
                entered.n_draft += sequence.drafts.len();
                entered.n_accepted += sequence.chosen.len() - 1;
            }
            self.drop_behind(sequence, sequence.tokens.len())?;
        }
        if let Some(speculation) = &mut self.speculation
            && entered.n_tokens > 0
        {
            let verified = entered.n_draft > 0;
            speculation.note_step(
                entered.n_tokens,
                entered.n_positions,
                entered.step,
                verified,
            );
            for sequence in sequences.iter_mut().filter(|sequence| sequence.is_drafted) {
                speculation.note_drawn(sequence);
            }
        }
        Ok(())
    }
}
