//! Prefill and decode: tokens in, tokens out, timed.

use super::footer::Timings;
use super::profile::Profile;
use anyhow::Context as _;
use sluice::core::engine::{BatchEntry, Engine, EngineError, StepOptions, Wants};
use sluice::core::sampler::{Candidate, LogitBias, LogitBiases, LogitsProcessor, SamplerChain};
use sluice::core::team::{Stop, StopFlag};
use sluice::step::{StepError, run_step};
use sluice::workers::Workers;
use std::time::Instant;

/// A model at work on one sequence.
pub(super) struct Generator<'g, 'm> {
    pub(super) engine: Engine<'m>,
    pub(super) workers: &'g mut Workers,
    pub(super) stop: &'g StopFlag,
    pub(super) sampler: SamplerChain,
    /// Tokens that must not be chosen, as biases of minus infinity.
    pub(super) forbidden: Vec<LogitBias>,
    /// Room for one entry per token of the vocabulary.
    pub(super) candidates: Vec<Candidate>,
    pub(super) profile: Option<Profile<'g>>,
    pub(super) timings: Timings,
    /// Prompt and generated tokens.
    pub(super) history: Vec<u32>,
}

/// What a step led to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Next {
    /// A token was chosen.
    Token(u32),
    /// None was wanted.
    Nothing,
    /// The stop flag was set; the step has not happened.
    Interrupted,
}

impl Generator<'_, '_> {
    /// Enters the prompt, `n_batch` tokens at a time. Chooses the token after it if `wants` is
    /// logits.
    ///
    /// # Errors
    /// A worker failed, or the model's output is broken.
    pub(super) fn prefill(
        &mut self,
        prompt: &[u32],
        n_batch: usize,
        wants: Wants,
    ) -> anyhow::Result<Next> {
        let mut next = Next::Nothing;
        let mut entries = Vec::with_capacity(n_batch.min(prompt.len()));
        let mut position = 0;
        let start = Instant::now();
        for chunk in prompt.chunks(n_batch) {
            let is_last = position as usize + chunk.len() == prompt.len();
            entries.clear();
            entries.extend(
                (position..)
                    .zip(chunk)
                    .map(|(position, &token)| BatchEntry::new(token, 0, position, Wants::Nothing)),
            );
            if let Some(last) = entries.last_mut().filter(|_| is_last) {
                last.wants = wants;
            }
            self.history.extend_from_slice(chunk);
            let (stepped, ns) = self.step(&entries)?;
            next = stepped;
            if next == Next::Interrupted {
                break;
            }
            self.timings.prompt.add(chunk.len(), ns);
            position += u32::try_from(chunk.len()).context("the prompt is too long")?;
        }
        self.timings.first_token = Some(start.elapsed()).filter(|_| matches!(next, Next::Token(_)));
        Ok(next)
    }

    /// Enters `token` at the end of the sequence and chooses the one after it.
    ///
    /// # Errors
    /// As [`Self::prefill`].
    pub(super) fn decode(&mut self, token: u32) -> anyhow::Result<Next> {
        let position = u32::try_from(self.history.len()).context("the text is too long")?;
        let entry = BatchEntry::new(token, 0, position, Wants::Logits);
        self.history.push(token);
        let (next, ns) = self.step(&[entry])?;
        if next != Next::Interrupted {
            self.timings.eval.add(1, ns);
        }
        Ok(next)
    }

    /// Runs a step and draws from the logits of its last entry, if that wants them. Returns the
    /// step's time in nanoseconds, without the draw's.
    fn step(&mut self, batch: &[BatchEntry]) -> anyhow::Result<(Next, u128)> {
        let wait = *self.workers.wait_policy();
        let mut options = StepOptions::new(&wait, self.stop);
        options.trace = self.profile.as_ref().map(Profile::ring);
        let start = Instant::now();
        let stepped = run_step(&mut self.engine, self.workers, batch, options);
        let step_ns = start.elapsed().as_nanos();
        let outputs = match stepped {
            Err(StepError::Engine(EngineError::Stopped(Stop::Cancelled))) => {
                return Ok((Next::Interrupted, step_ns));
            }
            result => result?,
        };
        let Some(logits) = outputs.logits(batch.len() - 1) else {
            self.profile.as_mut().map(Profile::collect);
            return Ok((Next::Nothing, step_ns));
        };
        let start = Instant::now();
        let position = u32::try_from(self.history.len()).context("the text is too long")?;
        let context = self.sampler.context(&self.history, 0, position);
        let mut forbid = LogitBiases(&self.forbidden);
        let mut first: [&mut dyn LogitsProcessor; 1] = [&mut forbid];
        let first = if self.forbidden.is_empty() {
            &mut first[..0]
        } else {
            &mut first[..]
        };
        let token = self
            .sampler
            .sample(logits, &mut self.candidates, first, &context)
            .context("no token could be chosen")?;
        self.timings.sampling.add(1, start.elapsed().as_nanos());
        self.profile.as_mut().map(Profile::collect);
        Ok((Next::Token(token), step_ns))
    }
}
