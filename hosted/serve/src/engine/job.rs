//! What is asked of the engine's thread, and what it answers.

use crate::metrics::Metrics;
use core::fmt;
use core::time::Duration;
use sluice::adapter::Blend;
use sluice::sequence::{Choose, Ended, TokenReport};
use sluice::session::StepError;
use sluice::speculate::{Drafter, SpeculationOptions};
use sluice::{Limits, Model};
use sluice_core::pooling::Pooling;
use std::sync::Arc;
use std::time::Instant;
use tokio::sync::mpsc;

/// Number of a model among those that the engine has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ModelId(pub u32);

/// A text to be written. Dropping the receiver of its events cancels it; a receiver that does not read
/// stops it until there is room again.
pub struct Job {
    /// The request's id, for logs.
    pub request: Arc<str>,
    /// The model.
    pub model: ModelId,
    /// Tokens of the prompt, at least one.
    pub prompt: Vec<u32>,
    /// The choices, each a text of its own behind the prompt.
    pub choices: Vec<Choice>,
    /// Lower comes first; 0 is usual.
    pub priority: i32,
    /// When it arrived.
    pub arrived: Instant,
    /// When it ends, whatever it has written.
    pub deadline: Option<Instant>,
    /// Longest time to write after the first token.
    pub predict_for: Option<Duration>,
    /// Whether pages of earlier texts may be used, and its own kept for later ones.
    pub uses_cache: bool,
    /// Texts with another salt share no pages.
    pub salt: Arc<str>,
    /// Tokens at the beginning that stay when the context is shifted; `None` ends the text there.
    pub shift: Option<usize>,
    /// Lengths of the prompt where later ones are likely to part from it: ends of messages.
    pub borders: Vec<usize>,
    /// Whether [`Event::Progress`] is wanted.
    pub tells_progress: bool,
    /// The slot that is asked for (`id_slot`).
    pub slot: Option<u32>,
    /// The adapters it is computed with, and what they are called.
    pub adapter: Option<(Blend, Arc<str>)>,
    /// Whether events may come late, many at once: where nothing is told before the end. Ends come at once.
    pub gathers: bool,
    /// Where the events go, of all choices, one or several at a time.
    pub events: mpsc::Sender<Vec<Event>>,
}

impl fmt::Debug for Job {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Job")
            .field("request", &self.request)
            .field("n_prompt", &self.prompt.len())
            .field("n_choices", &self.choices.len())
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for Choice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Choice")
            .field("number", &self.number)
            .field("n_predict", &self.n_predict)
            .finish_non_exhaustive()
    }
}

/// One text of a request.
pub struct Choice {
    /// Number within the request: part of the random counter.
    pub number: u32,
    /// Chooses its tokens; it has the seed and, where there is one, the grammar.
    pub sampler: Box<dyn Choose + Send>,
    /// Most tokens to write.
    pub n_predict: Option<usize>,
    /// Go on behind tokens that end a text.
    pub ignore_eos: bool,
    /// What ends it, beside the vocabulary's tokens.
    pub stops: Stops,
    /// Control tokens are part of the text: for answers that are parsed.
    pub shows_special: bool,
}

/// What ends a text, beside the vocabulary's tokens and its length.
#[derive(Clone, Debug, Default)]
pub struct Stops {
    /// Texts.
    pub texts: Vec<String>,
    /// Tokens.
    pub tokens: Vec<u32>,
    /// Show what ended it.
    pub are_shown: bool,
    /// Texts do not end it in the first so many tokens; that tokens do not is the sampler's part.
    pub n_min: usize,
}

/// What happened to a job.
#[derive(Debug)]
pub enum Event {
    /// It is being read; so many tokens of the prompt were known already.
    Started {
        /// Tokens that were found in the cache.
        cached: usize,
        /// The sequence that it runs in.
        slot: u32,
    },
    /// A part of the prompt was read.
    Progress {
        /// Tokens of the prompt.
        total: usize,
        /// Found in the cache.
        cached: usize,
        /// Read so far, with those.
        processed: usize,
        /// Since it began to be read.
        time: Duration,
    },
    /// A token of a choice.
    Token {
        /// Index of the choice in [`Job::choices`].
        choice: usize,
        /// The token.
        token: u32,
        /// What text is complete with it.
        piece: String,
        /// How likely it was, if the sampler records that.
        report: Option<TokenReport>,
    },
    /// The token that ends a choice and is no part of its text.
    EndToken {
        /// Index of the choice in [`Job::choices`].
        choice: usize,
        /// The token.
        token: u32,
        /// Text before it that was held back, because a stop text might have begun there.
        piece: String,
        /// How likely it was, if the sampler records that.
        report: Option<TokenReport>,
    },
    /// A choice has ended. When all have, the channel closes.
    Ended {
        /// Index of the choice.
        choice: usize,
        /// Why.
        why: Why,
        /// What it took.
        timings: Timings,
    },
}

/// Why a choice ended.
#[derive(Debug)]
pub enum Why {
    /// As the engine says: the end of the text, its length, the context.
    Ended(Ended),
    /// By this stop text.
    Stop(String),
    /// Its deadline came.
    Late,
    /// It failed.
    Failed(JobError),
}

/// What a choice took.
#[derive(Clone, Copy, Debug, Default)]
pub struct Timings {
    /// Tokens of the prompt that were in the cache.
    pub cached: usize,
    /// Tokens of the prompt that were read.
    pub n_prompt: usize,
    /// From the beginning of reading to the first token.
    pub prompt: Duration,
    /// Tokens written.
    pub n_predicted: usize,
    /// From the first token to the last.
    pub predict: Duration,
    /// From arrival to the beginning of reading.
    pub queued: Duration,
    /// Times that its state was dropped to make room, and computed again.
    pub n_preempted: usize,
    /// Draft tokens of it that were verified.
    pub n_drafted: usize,
    /// Those that were right.
    pub n_accepted: usize,
}

/// Why a job was refused, or failed.
#[derive(Clone, Debug, thiserror::Error)]
#[expect(missing_docs, reason = "the fields are described with their variants")]
pub enum JobError {
    /// Too many are waiting.
    #[error("{n_waiting} requests are waiting already")]
    Busy {
        n_waiting: usize,
        /// When it may be worth asking again.
        retry: Duration,
    },
    /// The prompt leaves no room.
    #[error(
        "the request exceeds the available context size: the prompt has {n_tokens} tokens, the context {n_ctx}"
    )]
    TooLong { n_tokens: usize, n_ctx: usize },
    /// The model was unloaded, or the server ends.
    #[error("the model is not loaded any more")]
    Gone,
    /// What was asked of a slot cannot be done.
    #[error("{0}")]
    Slot(String),
    /// The engine or the sampler failed.
    #[error("{0}")]
    Failed(String),
}

impl JobError {
    /// What a client is told of a step that failed. Where its server's files lie is not among it.
    pub(super) fn of_step(step: Option<&StepError>, error: &dyn fmt::Display) -> Self {
        Self::Failed(match step {
            Some(StepError::Experts(_)) => EXPERTS.to_owned(),
            _ => error.to_string(),
        })
    }
}

const EXPERTS: &str =
    "an expert of the model could not be read from disk; the server's log says why";

/// Texts to be embedded. Dropping the receiver cancels it.
#[derive(Debug)]
pub struct EmbedJob {
    /// The request's id, for logs.
    pub request: Arc<str>,
    /// The model.
    pub model: ModelId,
    /// The tokens of each text, at least one.
    pub texts: Vec<Vec<u32>>,
    /// From tokens to a text.
    pub pooling: Pooling,
    /// The adapters they are computed with.
    pub adapter: Option<Blend>,
    /// When it arrived.
    pub arrived: Instant,
    /// One vector for each text (n_embd), in order and one behind the other; without pooling one for each token. Not
    /// normalised.
    pub answer: tokio::sync::oneshot::Sender<Result<Vec<f32>, JobError>>,
}

/// A text whose tokens are to be scored. Dropping the receiver cancels it.
#[derive(Debug)]
pub struct ScoreJob {
    /// The model.
    pub model: ModelId,
    /// The text, at least one token.
    pub tokens: Vec<u32>,
    /// How many of the likeliest are told with each token.
    pub n_top: usize,
    /// The adapters it is computed with.
    pub adapter: Option<Blend>,
    /// A score for each token but the first.
    pub answer: tokio::sync::oneshot::Sender<Result<Vec<Score>, JobError>>,
}

/// How likely a token was behind those before it.
#[derive(Clone, Debug)]
pub struct Score {
    /// The token, and the likeliest in its place.
    pub report: TokenReport,
    /// Its place among all tokens, from 1.
    pub rank: usize,
}

/// What a model is run with.
#[derive(Debug)]
pub struct ModelOptions {
    /// The model.
    pub model: Model,
    /// Its context: `n_ctx` tokens over all texts at once, `n_seq` texts, the types of keys and values, the most
    /// tokens of a step. What caches need is added.
    pub limits: Limits,
    /// Counts what happens.
    pub metrics: Arc<Metrics>,
    /// How far to speculate; `None` for not at all.
    pub speculation: Option<SpeculationOptions>,
    /// A model that drafts.
    pub drafter: Option<Box<dyn Drafter>>,
}
