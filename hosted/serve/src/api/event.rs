//! What happens to a request for text.

use crate::engine::{Score, Timings, Why};
use core::time::Duration;
use sluice::Model;
use sluice::sequence::{Ended, TokenReport};
use sluice_text::assistant::Delta;
use sluice_text::sampling::SamplingSettings;

/// What is known when the texts of a request begin.
#[derive(Clone, Debug)]
pub struct Start {
    /// The model.
    pub model: Model,
    /// What the request called it: the model's name, or that of an adapter.
    pub name: String,
    /// Equal for equal weights, adapters and rules of arithmetic.
    pub fingerprint: String,
    /// Seconds since 1970.
    pub created: u64,
    /// How tokens are chosen, with the seed.
    pub sampling: SamplingSettings,
    /// Maximum tokens of a text.
    pub max_tokens: Option<usize>,
    /// Texts that end a text.
    pub stop: Vec<String>,
    /// The prompts.
    pub prompts: Vec<PromptInfo>,
    /// Texts of each prompt.
    pub n: usize,
}

/// A prompt as the model reads it.
#[derive(Clone, Debug, Default)]
pub struct PromptInfo {
    /// Its text, where the request asks for it.
    pub text: String,
    /// Its tokens.
    pub n_tokens: usize,
}

/// What happens to a text. Texts are counted over all prompts of the request.
#[derive(Clone, Debug)]
pub enum AnswerEvent {
    /// The tokens of its prompt, with a score for all but the first.
    Scores {
        /// The text.
        at: usize,
        /// The tokens.
        tokens: Vec<u32>,
        /// Their scores.
        scores: Vec<Score>,
    },
    /// A part of its prompt was read.
    Progress {
        /// The text.
        at: usize,
        /// How far it is read.
        progress: PromptProgress,
    },
    /// A token.
    Piece {
        /// The text.
        at: usize,
        /// The token.
        piece: AnswerPiece,
    },
    /// The token that ends it and is not part of it, with text that was held back before it.
    EndToken {
        /// The text.
        at: usize,
        /// The token.
        piece: AnswerPiece,
    },
    /// Its end.
    End {
        /// The text.
        at: usize,
        /// How it ended.
        end: End,
    },
}

/// A token, with the text that is complete with it.
#[derive(Clone, Debug)]
pub struct AnswerPiece {
    /// The token.
    pub token: u32,
    /// The text.
    pub text: String,
    /// What the text adds to an answer of a chat.
    pub deltas: Vec<Delta>,
    /// How likely the token was.
    pub report: Option<TokenReport>,
    /// What the text took so far.
    pub timings: Option<Timings>,
}

/// How far a prompt is read.
#[derive(Clone, Copy, Debug)]
pub struct PromptProgress {
    /// Tokens of the prompt.
    pub total: usize,
    /// Tokens that were found in the cache.
    pub cached: usize,
    /// Tokens that were read, with those of the cache.
    pub processed: usize,
    /// Since it began to be read.
    pub time: Duration,
}

/// How a text ended.
#[derive(Clone, Debug)]
pub struct End {
    /// Why.
    pub reason: Reason,
    /// What was held back of an answer of a chat.
    pub deltas: Vec<Delta>,
    /// What it took.
    pub timings: Timings,
    /// The slot that it ran in.
    pub slot: u32,
    /// Tokens of its prompt.
    pub n_prompt: usize,
}

/// Why a text ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reason {
    /// The model ended it.
    EndOfText,
    /// By this stop text.
    Stop(String),
    /// It has the maximum number of tokens.
    Length,
    /// The context is full.
    ContextFull,
    /// Its time was over.
    Late,
}

impl Reason {
    /// `None` where it failed.
    pub(crate) fn of(why: &Why) -> Option<Self> {
        Some(match why {
            Why::Ended(Ended::EndOfText) => Self::EndOfText,
            Why::Ended(Ended::Length) => Self::Length,
            Why::Ended(Ended::ContextFull) => Self::ContextFull,
            Why::Stop(text) => Self::Stop(text.clone()),
            Why::Late => Self::Late,
            Why::Ended(Ended::Closed | Ended::Interrupted | Ended::Failed) | Why::Failed(_) => {
                return None;
            }
        })
    }
}

/// Tokens of a request.
#[derive(Clone, Copy, Debug, Default)]
pub struct Usage {
    /// Of its prompts.
    pub n_prompt: usize,
    /// Of its prompts, found in the cache.
    pub n_cached: usize,
    /// Written.
    pub n_predicted: usize,
}

/// What a request took in all.
#[derive(Clone, Copy, Debug, Default)]
pub struct Total {
    /// Its tokens.
    pub usage: Usage,
    /// Of the text that ended last.
    pub timings: Timings,
}
