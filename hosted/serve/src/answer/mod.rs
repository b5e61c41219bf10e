//! From the engine's events to a reply, whole or as a stream.

mod chat;
mod clock;
mod completion;
mod native;
mod run;
mod stream;

pub(crate) use chat::ChatShape;
pub(crate) use completion::CompletionShape;
pub(crate) use native::NativeShape;
pub(crate) use run::{Prompted, Run};

use crate::api::reply::Usage;
use crate::engine::{Score, Timings, Why};
use core::time::Duration;
use serde_json::Value;
use sluice::sequence::{Ended, TokenReport};

/// How a route writes an answer. Every method returns the chunks of a stream; where the reply comes whole, they
/// are dropped, and [`Self::whole`] makes it of what was collected.
pub(crate) trait Shape: Send + Unpin + 'static {
    /// How many of the likeliest tokens are told with each token of a prompt, if its scores are.
    fn scores(&self) -> Option<usize> {
        None
    }

    /// The tokens of a prompt with the scores of all but the first, for choice `at`, before anything of it.
    fn scored(&mut self, _at: usize, _tokens: &[u32], _scores: &[Score]) {}

    /// A piece of choice `at`, counted over all prompts of the request.
    fn piece(&mut self, at: usize, piece: &Piece<'_>) -> Vec<Value>;

    /// So far a prompt was read.
    fn progress(&mut self, at: usize, progress: &Progress) -> Vec<Value>;

    /// The token that ends a choice and is no part of its text, with text that was held back before it.
    fn end_token(&mut self, at: usize, end: &Piece<'_>) -> Vec<Value>;

    /// A choice has ended.
    fn ended(&mut self, at: usize, end: &End) -> Vec<Value>;

    /// All have.
    fn last(&mut self, total: &Total) -> Vec<Value>;

    /// The reply where it comes whole.
    fn whole(&mut self, total: &Total) -> Value;

    /// Whether a stream ends with `[DONE]`.
    fn says_done(&self) -> bool {
        true
    }
}

/// A token, with the text that is complete with it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Piece<'p> {
    pub(crate) token: u32,
    pub(crate) text: &'p str,
    pub(crate) report: Option<&'p TokenReport>,
    /// What it took so far, if a request wants that with every token.
    pub(crate) timings: Option<Timings>,
}

/// How far a prompt is read.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Progress {
    pub(crate) total: usize,
    pub(crate) cached: usize,
    pub(crate) processed: usize,
    pub(crate) time: Duration,
}

impl Progress {
    pub(crate) fn to_value(self) -> Value {
        serde_json::json!({
            "total": self.total,
            "cache": self.cached,
            "processed": self.processed,
            "time_ms": crate::api::reply::millis(self.time),
        })
    }
}

/// How a choice ended.
#[derive(Clone, Debug)]
pub(crate) struct End {
    pub(crate) reason: Reason,
    pub(crate) timings: Timings,
    pub(crate) slot: u32,
    /// Tokens of its prompt.
    pub(crate) n_prompt: usize,
}

/// Why a choice ended, as far as clients care.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Reason {
    /// The model ended it.
    EndOfText,
    /// A stop text came up.
    Stop(String),
    /// It is as long as was asked for.
    Length,
    /// The context is full.
    ContextFull,
    /// Its time was over.
    Late,
}

impl Reason {
    /// `None` where it failed.
    fn of(why: &Why) -> Option<Self> {
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

    /// OpenAI's `finish_reason`.
    pub(crate) const fn finish(&self) -> &'static str {
        match self {
            Self::EndOfText | Self::Stop(_) => "stop",
            Self::Length | Self::ContextFull | Self::Late => "length",
        }
    }

    /// llama-server's `stop_type`.
    pub(crate) const fn stop_type(&self) -> &'static str {
        match self {
            Self::EndOfText => "eos",
            Self::Stop(_) => "word",
            Self::Length | Self::ContextFull | Self::Late => "limit",
        }
    }
}

/// What a request took in all.
#[derive(Clone, Debug, Default)]
pub(crate) struct Total {
    pub(crate) usage: Usage,
    /// Of its last choice that ended.
    pub(crate) timings: Timings,
}
