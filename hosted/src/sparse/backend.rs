//! Text from a real model, by the predecessor's names.

use super::error::{InferenceError, SparseResult};
use crate::model::Model;
use crate::sequence::{EndReason, Settings};
use crate::session::{Limits, Session};
use sluice_core::sampler::SamplerConfig;
use std::path::Path;
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

/// Continues tokens.
pub trait InferenceBackend: Send + Sync {
    /// The logits of the token that follows.
    ///
    /// # Errors
    /// No tokens, too many, or one that the vocabulary does not have.
    fn forward(&mut self, input_ids: &[u32]) -> SparseResult<Vec<f32>>;

    /// The tokens, and up to `max_new_tokens` that follow.
    ///
    /// # Errors
    /// As [`InferenceBackend::forward`].
    fn generate(&mut self, input_ids: &[u32], max_new_tokens: usize) -> SparseResult<Vec<u32>>;

    /// Tokens of the vocabulary.
    fn vocab_size(&self) -> usize;

    /// Its name.
    fn name(&self) -> &str;
}

/// How tokens are chosen.
#[derive(Clone, Debug, PartialEq)]
pub struct GenerationConfig {
    /// Maximum number of new tokens.
    pub max_new_tokens: usize,
    /// Temperature; 0 chooses the likeliest.
    pub temperature: f32,
    /// Number of likeliest tokens to choose among; 0 for all.
    pub top_k: usize,
    /// Share of the probability to choose among.
    pub top_p: f32,
    /// Divides the logits of tokens of the last 64.
    pub repetition_penalty: f32,
    /// Tokens that end the text, in addition to the vocabulary's own.
    pub stop_tokens: Vec<u32>,
    /// Seed of the choice: the same seed, the same text.
    pub seed: u64,
}

impl Default for GenerationConfig {
    fn default() -> Self {
        Self {
            max_new_tokens: 100,
            temperature: 0.7,
            top_k: 50,
            top_p: 0.9,
            repetition_penalty: 1.1,
            stop_tokens: Vec::new(),
            seed: 0,
        }
    }
}

/// Counts of generated tokens.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct GenerationStats {
    /// Tokens so far.
    pub tokens_generated: usize,
    /// Mean time of a token, in milliseconds.
    pub avg_token_time_ms: f64,
    /// Time so far, in milliseconds.
    pub total_time_ms: f64,
}

/// Generates with a model. Modes that leave neurons out are the model's
/// ([`crate::model::ModelSource::with_sparse`]).
#[derive(Debug)]
pub struct SparseInferenceBackend {
    model: Model,
    /// Locked only to make this type `Sync`.
    session: Mutex<Session>,
    name: String,
    stats: GenerationStats,
}

impl SparseInferenceBackend {
    /// Of a GGUF or `.slc` file.
    ///
    /// # Errors
    /// The file is not a model that can be run, or memory does not suffice.
    pub fn from_gguf(path: impl AsRef<Path>) -> SparseResult<Self> {
        Self::from_model(&Model::open(path)?, Limits::default())
    }

    /// Of a loaded model.
    ///
    /// # Errors
    /// No memory for a session.
    pub fn from_model(model: &Model, limits: Limits) -> SparseResult<Self> {
        Ok(Self {
            session: Mutex::new(model.session(limits)?),
            name: model.name().to_owned(),
            model: model.clone(),
            stats: GenerationStats::default(),
        })
    }

    /// The model.
    #[must_use]
    pub const fn model(&self) -> &Model {
        &self.model
    }

    /// The token that follows, the likeliest; `None` where the text ends.
    ///
    /// # Errors
    /// As [`InferenceBackend::forward`].
    pub fn next_token(&mut self, input_ids: &[u32]) -> SparseResult<Option<u32>> {
        let config = GenerationConfig {
            max_new_tokens: 1,
            temperature: 0.0,
            repetition_penalty: 1.0,
            ..GenerationConfig::default()
        };
        let tokens = self.generate(input_ids, &config)?;
        Ok(tokens.get(input_ids.len()).copied())
    }

    /// The tokens, and those that follow; a token that ends the text is not among them. They are fewer than asked for
    /// where the text ends, or its context is full.
    ///
    /// # Errors
    /// As [`InferenceBackend::forward`]; a setting out of range, a stop token that the vocabulary does not have.
    pub fn generate(
        &mut self,
        input_ids: &[u32],
        config: &GenerationConfig,
    ) -> SparseResult<Vec<u32>> {
        self.check(input_ids)?;
        self.check_known("stop_tokens", &config.stop_tokens)?;
        let start = Instant::now();
        let mut tokens = input_ids.to_vec();
        if config.max_new_tokens == 0 {
            return Ok(tokens);
        }
        let settings = Settings {
            sampler: SamplerConfig {
                temperature: config.temperature,
                top_k: u32::try_from(config.top_k).unwrap_or(u32::MAX),
                top_p: config.top_p,
                // What is not asked for does not choose, unlike in the engine's defaults.
                min_p: 0.0,
                repeat_penalty: config.repetition_penalty,
                seed: config.seed,
                ..SamplerConfig::DEFAULT
            },
            n_predict: Some(config.max_new_tokens),
            stop_tokens: config.stop_tokens.clone(),
            ..Settings::default()
        };
        let session = self.session.get_mut();
        let session = session.unwrap_or_else(PoisonError::into_inner);
        let mut sequence = session.add(&settings)?;
        sequence.push(input_ids, 1);
        while sequence.ended().is_none() {
            for event in session.step(&mut [&mut sequence])? {
                let is_stop = config.stop_tokens.contains(&event.token)
                    || self.model.tokenizer().is_end_of_generation(event.token);
                if !is_stop {
                    tokens.push(event.token);
                }
            }
        }
        if let (Some(EndReason::Failed), Some(error)) = (sequence.ended(), sequence.failure()) {
            return Err(InferenceError::Failed(error.to_string()).into());
        }
        session.remove(sequence)?;
        let stats = &mut self.stats;
        stats.tokens_generated += tokens.len() - input_ids.len();
        stats.total_time_ms += start.elapsed().as_secs_f64() * 1e3;
        stats.avg_token_time_ms = stats.total_time_ms / stats.tokens_generated.max(1) as f64;
        Ok(tokens)
    }

    /// Counts so far.
    #[must_use]
    pub const fn generation_stats(&self) -> &GenerationStats {
        &self.stats
    }

    /// Forgets the counts. Nothing else is kept from one text to the next.
    pub fn reset(&mut self) {
        self.stats = GenerationStats::default();
    }

    /// Whether the vocabulary has all tokens of a list.
    fn check_known(&self, what: &str, ids: &[u32]) -> SparseResult<()> {
        let n_vocab = self.model.config().n_vocab;
        let unknown = |id: &u32| usize::try_from(*id).map_or(true, |id| id >= n_vocab);
        match ids.iter().position(unknown) {
            None => Ok(()),
            Some(index) => Err(InferenceError::Failed(format!(
                "{what}[{index}] is {}: the vocabulary has {n_vocab} tokens",
                ids[index]
            ))
            .into()),
        }
    }

    fn check(&mut self, input_ids: &[u32]) -> SparseResult<()> {
        if input_ids.is_empty() {
            return Err(InferenceError::Failed("input_ids is empty".into()).into());
        }
        self.check_known("input_ids", input_ids)?;
        let session = self.session.get_mut();
        let session = session.unwrap_or_else(PoisonError::into_inner);
        let n_ctx = session.limits().n_ctx;
        if input_ids.len() > n_ctx {
            return Err(InferenceError::Failed(format!(
                "input_ids has {} tokens: the context has {n_ctx}",
                input_ids.len()
            ))
            .into());
        }
        Ok(())
    }
}

impl InferenceBackend for SparseInferenceBackend {
    fn forward(&mut self, input_ids: &[u32]) -> SparseResult<Vec<f32>> {
        self.check(input_ids)?;
        let mut logits = Vec::new();
        let last = input_ids.len() - 1;
        let session = self.session.get_mut();
        let session = session.unwrap_or_else(PoisonError::into_inner);
        session.read(&[input_ids], last, None, |_, _, row| {
            logits.clear();
            logits.extend_from_slice(row);
        })?;
        Ok(logits)
    }

    fn generate(&mut self, input_ids: &[u32], max_new_tokens: usize) -> SparseResult<Vec<u32>> {
        let config = GenerationConfig {
            max_new_tokens,
            ..GenerationConfig::default()
        };
        Self::generate(self, input_ids, &config)
    }

    fn vocab_size(&self) -> usize {
        self.model.config().n_vocab
    }

    fn name(&self) -> &str {
        &self.name
    }
}
