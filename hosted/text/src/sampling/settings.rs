//! Settings of a sampler, which do not depend on a model.
#![forbid(unsafe_code)]

use sluice_core::sampler::{LogitBias, SamplerConfig};

/// Settings of a [`Sampler`](super::Sampler). The defaults are llama.cpp's.
#[derive(Clone, Debug, PartialEq)]
pub struct SamplingSettings {
    /// The samplers, their order and the seed.
    pub config: SamplerConfig,
    /// Added to the logits before anything else.
    pub biases: Vec<LogitBias>,
    /// Sequences of tokens, of which the last token is never chosen where the others were just written: vLLM's
    /// `bad_words`. Tokens of the prompt are not written.
    pub bad_words: Vec<Vec<u32>>,
    /// Whether the frequency and presence penalties count tokens of the prompt, as llama.cpp's do, and not only those
    /// that were written, as OpenAI's.
    pub counts_prompt: bool,
    /// Never choose a token that ends the text.
    pub ignore_eos: bool,
    /// Texts that interrupt repetitions for DRY.
    pub dry_sequence_breakers: Vec<String>,
    /// Whether to record the log-probability of each sampled token, and for how many of the most likely
    /// tokens ([`Sampler::report`](super::Sampler::report)).
    pub n_probs: Option<usize>,
    /// Whether these are the probabilities that tokens are drawn with, after all samplers but Mirostat; by default they
    /// are the model's.
    pub post_sampling: bool,
}

impl SamplingSettings {
    /// llama.cpp's sequence breakers.
    pub const DRY_SEQUENCE_BREAKERS: [&str; 4] = ["\n", ":", "\"", "*"];
}

impl Default for SamplingSettings {
    fn default() -> Self {
        Self {
            config: SamplerConfig::DEFAULT,
            biases: Vec::new(),
            bad_words: Vec::new(),
            counts_prompt: true,
            ignore_eos: false,
            dry_sequence_breakers: Self::DRY_SEQUENCE_BREAKERS.map(String::from).into(),
            n_probs: None,
            post_sampling: false,
        }
    }
}
