//! The usual pipeline as one value: llama.cpp's order and llama.cpp's defaults.

use super::{
    Candidate, Candidates, LogitsProcessor, MinP, RepetitionPenalty, SampleContext, SampleError,
    Temperature, TopK, TopP, greedy, sample,
};

/// Settings of a [`SamplerChain`]. The default is llama.cpp's, with seed 0.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SamplerConfig {
    /// Key of the random numbers. llama.cpp draws one where none is given; core has no source
    /// of randomness, so that is the caller's part.
    pub seed: u64,
    /// Divisor of the logits, default 0.8; 0 or less chooses the best token.
    pub temperature: f32,
    /// Keep so many tokens, default 40; 0 keeps all.
    pub top_k: u32,
    /// Keep the tokens that reach this probability together, default 0.95; 1 keeps all.
    pub top_p: f32,
    /// Keep tokens so many times as likely as the best, default 0.05; 0 keeps all.
    pub min_p: f32,
    /// How many of the latest tokens are penalised, default 64; 0 none.
    pub repeat_last_n: u32,
    /// Penalty factor above 0, default 1 (none).
    pub repeat_penalty: f32,
    /// Subtracted per occurrence, default 0.
    pub frequency_penalty: f32,
    /// Subtracted once from tokens that occurred, default 0.
    pub presence_penalty: f32,
}

impl Default for SamplerConfig {
    fn default() -> Self {
        Self {
            seed: 0,
            temperature: 0.8,
            top_k: 40,
            top_p: 0.95,
            min_p: 0.05,
            repeat_last_n: 64,
            repeat_penalty: 1.0,
            frequency_penalty: 0.0,
            presence_penalty: 0.0,
        }
    }
}

/// Penalties, top-k, top-p, min-p, temperature, draw: in this order.
///
/// It is itself a [`LogitsProcessor`] (everything but the draw), so it can stand in a longer
/// list.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SamplerChain {
    config: SamplerConfig,
}

impl SamplerChain {
    /// A chain with these settings.
    ///
    /// # Errors
    /// [`SampleError::Setting`] naming a setting that is not finite, or a `repeat_penalty` that
    /// is not above 0.
    pub fn new(config: SamplerConfig) -> Result<Self, SampleError> {
        let settings = [
            ("temperature", config.temperature),
            ("top_p", config.top_p),
            ("min_p", config.min_p),
            ("repeat_penalty", config.repeat_penalty),
            ("frequency_penalty", config.frequency_penalty),
            ("presence_penalty", config.presence_penalty),
        ];
        for (name, value) in settings {
            if !value.is_finite() || (name == "repeat_penalty" && value <= 0.0) {
                return Err(SampleError::Setting { name });
            }
        }
        Ok(Self { config })
    }

    /// Chooses the next token from `logits: (n_vocab)`.
    ///
    /// `first` (biases, a grammar's mask, the caller's own) runs before the chain. `storage`
    /// needs one entry per logit; what it holds afterwards is unspecified. A caller who wants
    /// the remaining candidates applies the chain to [`Candidates`] and calls [`sample`].
    ///
    /// # Errors
    /// Any [`SampleError`] of [`Candidates::from_logits`] or [`sample`].
    pub fn sample(
        &mut self,
        logits: &[f32],
        storage: &mut [Candidate],
        first: &mut [&mut dyn LogitsProcessor],
        context: &SampleContext<'_>,
    ) -> Result<u32, SampleError> {
        // Without penalties every step keeps the best token the best: no list is needed.
        if self.config.temperature <= 0.0 && first.is_empty() && self.penalty().is_neutral() {
            return greedy(logits);
        }
        let mut candidates = Candidates::from_logits(storage, logits)?;
        for processor in first {
            processor.apply(&mut candidates, context);
        }
        self.apply(&mut candidates, context);
        sample(&mut candidates, context)
    }

    /// The context of a draw with this chain's seed.
    #[must_use]
    pub fn context<'h>(
        &self,
        history: &'h [u32],
        sequence: u32,
        position: u32,
    ) -> SampleContext<'h> {
        SampleContext {
            history,
            sequence,
            position,
            seed: self.config.seed,
        }
    }

    /// The settings.
    #[must_use]
    pub fn config(&self) -> &SamplerConfig {
        &self.config
    }

    fn penalty(&self) -> RepetitionPenalty {
        let SamplerConfig {
            repeat_last_n,
            repeat_penalty,
            frequency_penalty,
            presence_penalty,
            ..
        } = self.config;
        RepetitionPenalty {
            repeat_last_n,
            repeat_penalty,
            frequency_penalty,
            presence_penalty,
        }
    }
}

impl LogitsProcessor for SamplerChain {
    fn apply(&mut self, candidates: &mut Candidates<'_>, context: &SampleContext<'_>) {
        let SamplerConfig {
            temperature,
            top_k,
            top_p,
            min_p,
            ..
        } = self.config;
        self.penalty().apply(candidates, context);
        TopK { k: top_k }.apply(candidates, context);
        TopP { p: top_p }.apply(candidates, context);
        MinP { p: min_p }.apply(candidates, context);
        Temperature { temperature }.apply(candidates, context);
    }
}
