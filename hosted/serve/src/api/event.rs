//! The events of a text generation request.

use super::StreamId;
use crate::engine::{Score, Timings, Why};
use core::time::Duration;
use sluice::model::ModelSource;
use sluice::sequence::{EndReason, TokenReport};
use sluice_text::assistant::Delta;
use sluice_text::sampling::SamplingSettings;
use std::time::Instant;

/// What is known when the texts of a request start.
#[derive(Clone, Debug)]
pub struct Start {
    /// The model's file, with its tokenizer.
    pub model: ModelSource,
    /// The name that the request used: the model's, or an adapter's.
    pub name: String,
    /// Equal for equal weights, adapters and rules of arithmetic.
    pub fingerprint: String,
    /// The identity of its stream.
    pub stream: StreamId,
    /// Hash of what the texts depend on besides the request's body and the model: prompts, and the server's defaults. 0
    /// for texts without a stream.
    pub settings: u32,
    /// How tokens are chosen, with the seed.
    pub sampling: SamplingSettings,
    /// Maximum tokens of a text.
    pub max_tokens: Option<usize>,
    /// Stop texts.
    pub stop: Vec<String>,
    /// The prompts.
    pub prompts: Vec<PromptInfo>,
    /// The number of texts for each prompt.
    pub n: usize,
    /// The number of tokens of the context.
    pub n_ctx: usize,
    /// When the request arrived.
    pub arrived: Instant,
    /// Time from then until its model was in memory.
    pub load_time: Duration,
    /// The number of messages that were left out because the conversation did not fit into the context.
    pub n_left_out: usize,
}

/// A prompt as the model reads it.
#[derive(Clone, Debug, Default)]
pub struct PromptInfo {
    /// Its text, if the request asked for it.
    pub text: String,
    /// The number of its tokens.
    pub n_tokens: usize,
}

/// An event of a text. Texts are numbered over all prompts of the request.
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
    /// A part of its prompt has been read.
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
    /// The token that ends the text without being part of it, with any text that was held back before it.
    EndToken {
        /// The text.
        at: usize,
        /// The token.
        piece: AnswerPiece,
    },
    /// The end of the text.
    End {
        /// The text.
        at: usize,
        /// How it ended.
        end: End,
    },
}

impl AnswerEvent {
    /// The text that it is about.
    #[must_use]
    pub const fn at(&self) -> usize {
        match self {
            Self::Scores { at, .. }
            | Self::Progress { at, .. }
            | Self::Piece { at, .. }
            | Self::EndToken { at, .. }
            | Self::End { at, .. } => *at,
        }
    }
}

/// A token, with the text that it completes.
#[derive(Clone, Debug)]
pub struct AnswerPiece {
    /// The token.
    pub token: u32,
    /// The text.
    pub text: String,
    /// What the token adds to the answer of a chat.
    pub deltas: Vec<Delta>,
    /// The token's log-probability and the most likely alternatives.
    pub report: Option<TokenReport>,
    /// The text's timings so far.
    pub timings: Option<Timings>,
}

/// How much of a prompt has been read.
#[derive(Clone, Copy, Debug)]
pub struct PromptProgress {
    /// Tokens of the prompt.
    pub total: usize,
    /// Tokens found in the cache.
    pub cached: usize,
    /// Tokens read so far, including cached ones.
    pub processed: usize,
    /// Time since reading began.
    pub time: Duration,
}

/// How a text ended.
#[derive(Clone, Debug)]
pub struct End {
    /// Why it ended.
    pub reason: Reason,
    /// The rest of a chat's answer, which had been held back.
    pub deltas: Vec<Delta>,
    /// Its times and counts.
    pub timings: Timings,
    /// The slot that it ran in.
    pub slot: u32,
    /// The number of tokens of its prompt.
    pub n_prompt: usize,
}

/// Why a text ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reason {
    /// The model ended it.
    EndOfText,
    /// This stop text was written.
    Stop(String),
    /// It reached the maximum number of tokens.
    Length,
    /// The context is full.
    ContextFull,
    /// Its deadline passed.
    Late,
}

impl Reason {
    /// `None` where it failed.
    pub(crate) fn of(why: &Why) -> Option<Self> {
        Some(match why {
            Why::Ended(EndReason::EndOfText) => Self::EndOfText,
            Why::Ended(EndReason::Length) => Self::Length,
            Why::Ended(EndReason::ContextFull) => Self::ContextFull,
            Why::Stop(text) => Self::Stop(text.clone()),
            Why::Late => Self::Late,
            Why::Ended(EndReason::Closed | EndReason::Interrupted | EndReason::Failed)
            | Why::Failed(_) => {
                return None;
            }
        })
    }
}

/// Token counts of a request.
#[derive(Clone, Copy, Debug, Default)]
pub struct Usage {
    /// Tokens of its prompts.
    pub n_prompt: usize,
    /// Tokens of its prompts that were found in the cache.
    pub n_cached: usize,
    /// Tokens written.
    pub n_predicted: usize,
}

/// Total resources used by a request.
#[derive(Clone, Copy, Debug, Default)]
pub struct Total {
    /// Its token counts.
    pub usage: Usage,
    /// Timings of the text that ended last.
    pub timings: Timings,
}

/// The bytes of a token's text.
#[must_use]
pub fn token_bytes(model: &ModelSource, id: u32) -> Vec<u8> {
    let tokenizer = model.tokenizer();
    let mut piece = vec![0; tokenizer.piece_len_max()];
    match tokenizer.decode_piece(id, &mut piece) {
        Ok(bytes) if !bytes.is_empty() => bytes.to_vec(),
        // A control token is shown by its name.
        _ => tokenizer.piece(id).to_vec(),
    }
}
