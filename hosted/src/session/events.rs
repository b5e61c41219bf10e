//! One step of several texts, and its results: tokens, text, ends.

use super::texts::BatchStats;
use super::{GenerateError, Session, StepHooks};
use crate::sequence::{Choose as _, EndReason, Sequence, TokenReport};
use sluice_core::engine::EngineError;
use sluice_core::state::PAGE_TOKENS;

/// A chosen token, and its effects.
#[derive(Clone, Debug)]
pub struct TokenEvent {
    /// Index of the sequence among those the step was given.
    pub sequence: usize,
    /// Length of the text that the token continues.
    pub position: usize,
    /// The token.
    pub token: u32,
    /// The text that it completes: whole characters, without any stop text.
    pub piece: String,
    /// Why the text ends here, if it does.
    pub ended: Option<EndReason>,
    /// How likely the token was, if the text's sampler records that.
    pub report: Option<TokenReport>,
}

impl Session {
    /// Advances all of `sequences` that have something to read: one step of the model over all of them, which takes
    /// first the texts that are being written and then as much of the prompts as fits. Returns the chosen tokens,
    /// several of a text where draft tokens were right; none, if only parts of prompts were read. A sequence for which
    /// no token could be chosen ends as [`EndReason::Failed`], and the others continue.
    ///
    /// # Errors
    /// [`GenerateError`]; after a failed step the sequences are as before.
    pub fn step(
        &mut self,
        sequences: &mut [&mut Sequence],
    ) -> Result<Vec<TokenEvent>, GenerateError> {
        Ok(self.step_with(sequences, &StepHooks::default())?.0)
    }

    /// As [`Self::step`], with hooks such as a deadline; also returns statistics. Adapters are the sequences' own.
    ///
    /// # Errors
    /// As [`Self::step`].
    pub fn step_with(
        &mut self,
        sequences: &mut [&mut Sequence],
        hooks: &StepHooks<'_>,
    ) -> Result<(Vec<TokenEvent>, BatchStats), GenerateError> {
        let by_hand = sequences
            .iter()
            .map(|sequence| sequence.n_wanted > 1)
            .collect::<Vec<_>>();
        let entered = self.enter(sequences, hooks)?;
        let mut events = Vec::new();
        for (index, sequence) in sequences.iter_mut().enumerate() {
            let chosen = core::mem::take(&mut sequence.chosen);
            let n_chosen = chosen.len();
            for (i, chosen) in chosen.into_iter().enumerate() {
                let mut event = TokenEvent {
                    sequence: index,
                    position: chosen.position,
                    token: chosen.token,
                    piece: String::new(),
                    ended: None,
                    report: chosen.report,
                };
                if !by_hand[index] {
                    let is_last = i + 1 == n_chosen;
                    self.go_on(sequence, chosen.token, is_last, &mut event.piece)?;
                    event.ended = sequence.ended;
                }
                let position = event.position;
                let has_ended = event.ended.is_some();
                events.push(event);
                if has_ended {
                    // A stop text ends within correct draft tokens: the tokens after it were not written.
                    self.drop_behind(sequence, position)?;
                    break;
                }
            }
            self.fit_queue(sequence)?;
        }
        Ok((events, entered))
    }

    /// Shows a token and lets the sequence read it next, or ends the text. After all but the last token chosen in
    /// a step, the next one has been read already.
    fn go_on(
        &self,
        sequence: &mut Sequence,
        token: u32,
        is_last: bool,
        piece: &mut String,
    ) -> Result<(), GenerateError> {
        let tokenizer = self.model.tokenizer();
        let mut why = None;
        if sequence.is_hidden_end(token, tokenizer) {
            why = Some(EndReason::EndOfText);
        } else {
            let (stops, mut found) = (&mut sequence.stops, sequence.stop_tokens.contains(&token));
            let looks = sequence.n_unstopped == 0;
            sequence.detokenizer.push(tokenizer, token, |part| {
                if looks {
                    found |= stops.push(part, |shown| piece.push_str(shown));
                } else {
                    piece.push_str(part);
                }
            })?;
            sequence.n_left = sequence.n_left.saturating_sub(1);
            sequence.n_unstopped = sequence.n_unstopped.saturating_sub(1);
            if found || (is_last && sequence.sampler.is_complete()) {
                why = Some(EndReason::EndOfText);
            } else if sequence.n_left == 0 {
                why = Some(EndReason::Length);
            } else if is_last && !sequence.shifts && self.is_full(sequence) {
                why = Some(EndReason::ContextFull);
            }
        }
        match why {
            None if is_last && sequence.ended.is_none() => sequence.push(&[token], 1),
            None => {}
            Some(why) => {
                let stops = &mut sequence.stops;
                if stops.found().is_none() {
                    let mut rest = String::new();
                    sequence.detokenizer.finish(|part| rest.push_str(part));
                    stops.push(&rest, |shown| piece.push_str(shown));
                    stops.finish(|shown| piece.push_str(shown));
                }
                sequence.end(why);
            }
        }
        Ok(())
    }

    /// Takes a text back to `len` tokens, where all tokens after them are draft tokens.
    pub(crate) fn drop_behind(
        &mut self,
        sequence: &mut Sequence,
        len: usize,
    ) -> Result<(), GenerateError> {
        let slot = sequence.slot;
        sequence.tokens.truncate(len);
        if self.state().len(slot) > len {
            let taken_back = self.with_state(|state| state.rewind(slot, len));
            taken_back.map_err(EngineError::from)?;
        }
        Ok(())
    }

    /// Whether no further token of a sequence fits, given the others.
    fn is_full(&self, sequence: &Sequence) -> bool {
        let (state, len) = (self.state(), sequence.tokens.len());
        len >= self.limits().n_ctx || (state.free_pages() == 0 && len.is_multiple_of(PAGE_TOKENS))
    }
}
