//! A model's predictions for a given text: the basis of perplexities, divergences and importance
//! matrices.
#![forbid(unsafe_code)]

use crate::session::{GenerateError, Limits, Session, StepError, StepHooks};
use sluice_core::engine::{BatchEntry, EngineError, Observer, Wants};
use sluice_core::model::ModelConfig;

/// Why a text was not read to its end.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EvaluateError {
    /// The session lacks room for it.
    #[error(transparent)]
    Session(#[from] GenerateError),
    /// A step failed.
    #[error(transparent)]
    Step(StepError),
    /// A text has no tokens.
    #[error("text {0} is empty, and the model adds no tokens of its own")]
    Empty(usize),
    /// The stop flag was set.
    #[error("interrupted")]
    Stopped,
}

impl From<StepError> for EvaluateError {
    fn from(error: StepError) -> Self {
        match error {
            error if error.is_cancelled() => Self::Stopped,
            error => Self::Step(error),
        }
    }
}

impl From<EngineError> for EvaluateError {
    fn from(error: EngineError) -> Self {
        Self::Session(error.into())
    }
}

impl Limits {
    /// For [`Session::read`] over chunks of at most `longest` tokens.
    #[must_use]
    pub fn for_reading(config: &ModelConfig, longest: usize, observed: bool) -> Self {
        let n_batch = (OUTPUT_FLOATS / config.n_vocab).clamp(1, longest.clamp(1, BATCH_MAX));
        Self {
            n_ctx: longest.max(1),
            n_batch,
            n_outputs: n_batch,
            observes: observed,
            ..Self::default()
        }
    }
}

impl Session {
    /// Reads each chunk from an empty context. The logits (n_vocab) after every token of a chunk but
    /// the first `skipped` are handed to `each`, with the numbers of chunk and token, in order.
    /// `observer` sees the inputs of all linear layers. [`Limits::for_reading`] makes a session that is
    /// fast at it.
    ///
    /// # Errors
    /// [`EvaluateError`].
    pub fn read(
        &mut self,
        chunks: &[&[u32]],
        skipped: usize,
        observer: Option<&dyn Observer>,
        each: impl FnMut(usize, usize, &[f32]),
    ) -> Result<(), EvaluateError> {
        let hooks = StepHooks {
            observer,
            ..StepHooks::default()
        };
        self.read_with(chunks, skipped, &hooks, each)
    }

    /// As [`Self::read`], with any hooks.
    ///
    /// # Errors
    /// [`EvaluateError`].
    pub fn read_with(
        &mut self,
        chunks: &[&[u32]],
        skipped: usize,
        hooks: &StepHooks<'_>,
        mut each: impl FnMut(usize, usize, &[f32]),
    ) -> Result<(), EvaluateError> {
        let (slot, _claim) = self.claim()?;
        let n_batch = self.limits().n_batch.min(self.limits().n_outputs);
        for (c, chunk) in chunks.iter().enumerate() {
            self.with_state(|state| state.clear(slot))
                .map_err(EngineError::from)?;
            self.fit_slot(slot, chunk.len())?;
            for (start, part) in (0..).step_by(n_batch).zip(chunk.chunks(n_batch)) {
                let mut batch = batch(slot, part, start, skipped);
                let adapter = self.own_adapter();
                batch.iter_mut().for_each(|entry| entry.adapter = adapter);
                self.run(&batch, hooks, |outputs, _| {
                    for i in 0..part.len() {
                        if let Some(logits) = outputs.logits(i) {
                            each(c, start + i, logits);
                        }
                    }
                })?;
            }
        }
        Ok(())
    }
}

/// Tokens of sequence `slot` from position `start` on.
fn batch(slot: u32, tokens: &[u32], start: usize, skipped: usize) -> Vec<BatchEntry> {
    let entry = |(i, &token): (usize, &u32)| {
        let position = start + i;
        let wants = if position < skipped {
            Wants::Nothing
        } else {
            Wants::Logits
        };
        let position = u32::try_from(position).expect("contexts are below 2^24 tokens");
        BatchEntry::new(token, slot, position, wants)
    };
    tokens.iter().enumerate().map(entry).collect()
}

/// Natural logarithms of the probabilities of all tokens, from logits, in f64.
pub fn log_softmax(logits: &[f32], out: &mut Vec<f64>) {
    let top = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let of_top = |x: f32| f64::from(x) - f64::from(top);
    let sum: f64 = logits.iter().map(|&x| of_top(x).exp()).sum();
    out.clear();
    out.extend(logits.iter().map(|&x| of_top(x) - sum.ln()));
}

/// Maximum tokens in a step.
const BATCH_MAX: usize = 512;
/// Maximum floats of logits in a step's output: 64 MiB.
const OUTPUT_FLOATS: usize = 1 << 24;
