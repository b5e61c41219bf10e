//! Longrope: a text is computed with the divisors for its length, and read again when it becomes long.

use super::{GenerateError, Session};
use crate::sequence::Sequence;

impl Session {
    /// Whether a text of `n_tokens` is computed with the long divisors of a longrope model.
    #[must_use]
    pub fn is_long_at(&self, n_tokens: usize) -> bool {
        self.engine.get().model().is_long_at(n_tokens)
    }

    /// Whether a sequence is computed with them.
    #[must_use]
    pub fn is_long(&self, sequence: &Sequence) -> bool {
        self.state().is_long(sequence.slot)
    }

    /// Prepares the sequence with this number in the KV cache for a text of `n_tokens` in all. If its tokens were
    /// computed with the other divisors they are removed, and have to be read again: then true.
    ///
    /// # Errors
    /// An unknown sequence.
    pub fn fit_slot(&mut self, slot: u32, n_tokens: usize) -> Result<bool, GenerateError> {
        let fitted = self.engine.with_mut(|engine| engine.fit(slot, n_tokens));
        Ok(fitted?)
    }

    /// Prepares a sequence for a text of `n_tokens` in all; removes and returns its tokens if they have to be read
    /// again. A text without its beginning (context shift) keeps its long divisors.
    ///
    /// # Errors
    /// Another session's sequence.
    pub fn fit(
        &mut self,
        sequence: &mut Sequence,
        n_tokens: usize,
    ) -> Result<Vec<u32>, GenerateError> {
        self.check(sequence)?;
        if sequence.n_shifted > 0 && self.is_long(sequence) {
            return Ok(Vec::new());
        }
        if !self.fit_slot(sequence.slot, n_tokens)? {
            return Ok(Vec::new());
        }
        sequence.drafts.clear();
        sequence.is_drafted = false;
        Ok(core::mem::take(&mut sequence.tokens))
    }

    /// Prepares a sequence for its queue, before which it puts the tokens that have to be read again.
    pub(crate) fn fit_queue(&mut self, sequence: &mut Sequence) -> Result<(), GenerateError> {
        if sequence.queue.is_empty() {
            return Ok(());
        }
        // A text that fills the context is shifted before it becomes longer.
        let n_tokens = sequence.tokens.len() + sequence.queue.len();
        let n_tokens = n_tokens.min(self.limits().n_ctx);
        let again = self.fit(sequence, n_tokens)?;
        sequence.queue.splice(0..0, again);
        Ok(())
    }
}
