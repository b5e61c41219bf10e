//! The jobs that the engine's thread takes, and the events it returns.

use super::domain::CacheDomain;
use super::meter::TokenMeter;
use super::share::Share;
use core::fmt;
use core::time::Duration;
use sluice::adapter::AdapterBlend;
use sluice::sequence::{Choose, EndReason, TokenReport, UnfinishedText};
use sluice::session::StepError;
use sluice_core::pooling::Pooling;
use std::sync::Arc;
use std::time::Instant;
use tokio::sync::mpsc;

/// The number of a model in the engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ModelId(pub u32);

/// A text to be generated. Dropping the receiver of its events cancels it. For a receiver that does not read, 1 MiB of
/// events is kept in addition to the channel; then the text gives up its place until the receiver reads.
pub struct Job {
    /// The request's id, for logs.
    pub request: Arc<str>,
    /// The model.
    pub model: ModelId,
    /// Tokens of the prompt, at least one.
    pub prompt: Vec<u32>,
    /// The choices: each is a separate text after the same prompt.
    pub choices: Vec<Choice>,
    /// Whose it is.
    pub share: Share,
    /// Lower values are computed first, each step as if the request had come a second earlier; 0 is usual.
    pub priority: i32,
    /// When it arrived.
    pub arrived: Instant,
    /// When it ends, even if it is not complete.
    pub deadline: Option<Instant>,
    /// Maximum time from the first token to the end.
    pub predict_for: Option<Duration>,
    /// Whether pages of earlier texts may be used, and its own pages cached.
    pub uses_cache: bool,
    /// Whose caches it uses.
    pub domain: CacheDomain,
    /// Counts its tokens.
    pub meter: Option<Arc<dyn TokenMeter>>,
    /// Tokens at the beginning that are kept when the context is shifted; `None` ends the text when the context is
    /// full.
    pub shift: Option<usize>,
    /// Prompt lengths at which later prompts are likely to diverge: the ends of messages.
    pub borders: Vec<usize>,
    /// Whether to send [`Event::Progress`].
    pub tells_progress: bool,
    /// The slot that its first choice runs in, and waits for (`id_slot`).
    pub slot: Option<u32>,
    /// The adapters it is computed with, and their name.
    pub adapter: Option<(AdapterBlend, Arc<str>)>,
    /// Whether events may be held back and sent many at once, because the reader waits for the end. Ends are sent at
    /// once.
    pub gathers: bool,
    /// Records the events of its only choice, and keeps what continues it when its client disconnects.
    pub keeper: Option<Box<dyn TextKeeper>>,
    /// Receives the events of all choices, one or several at a time.
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
    /// Chooses its tokens; it has the seed and the grammar, if there is one.
    pub sampler: Box<dyn Choose + Send>,
    /// Maximum number of tokens to write.
    pub n_predict: Option<usize>,
    /// Whether to continue after tokens that end a text.
    pub ignore_eos: bool,
    /// What ends it in addition to the vocabulary's tokens.
    pub stops: Stops,
    /// Whether control tokens are part of the text, for answers that are parsed.
    pub shows_special: bool,
}

/// What ends a text in addition to the vocabulary's tokens and its length.
#[derive(Clone, Debug, Default)]
pub struct Stops {
    /// Texts.
    pub texts: Vec<String>,
    /// Tokens.
    pub tokens: Vec<u32>,
    /// Whether the text includes what ended it.
    pub are_shown: bool,
    /// Number of tokens at the beginning in which texts do not end it; the sampler excludes the tokens.
    pub n_min: usize,
}

/// Keeps a text for a request that goes on with its stream later. Dropped when nothing will be added.
pub trait TextKeeper: Send + fmt::Debug {
    /// Whether the text is to end as if its client had disconnected.
    fn is_left(&self) -> bool;
    /// Records an event of the text.
    fn record(&self, event: &Event);
    /// Returns what continues the text that was broken off before this job, once.
    fn take_unfinished(&self) -> Option<UnfinishedText>;
    /// Keeps what continues the text, whose client has disconnected; `None` if nothing can.
    fn keep_unfinished(&self, text: Option<UnfinishedText>);
}

/// What happened to a job.
#[derive(Clone, Debug)]
pub enum Event {
    /// The prompt is being read.
    Started {
        /// Tokens that were found in the cache.
        cached: usize,
        /// The sequence that it runs in.
        slot: u32,
        /// How long the request had waited. The event itself is sent with the first step.
        queued: Duration,
    },
    /// It goes on in another sequence, after it gave up its place to others.
    Moved {
        /// The sequence that it runs in.
        slot: u32,
    },
    /// A part of the prompt was read.
    Progress {
        /// Tokens of the prompt.
        total: usize,
        /// Tokens found in the cache.
        cached: usize,
        /// Tokens read so far, including those.
        processed: usize,
        /// Time since it began to be read.
        time: Duration,
    },
    /// A token of a choice.
    Token {
        /// Index of the choice in [`Job::choices`].
        choice: usize,
        /// The token.
        token: u32,
        /// The text that it completes.
        piece: String,
        /// Its probability, if the sampler records it.
        report: Option<TokenReport>,
    },
    /// The text of a choice is read again from its beginning, as a longrope model's is once it is long: what passes
    /// until its next token is time of the prompt.
    ReadAgain {
        /// Index of the choice in [`Job::choices`].
        choice: usize,
        /// Tokens that were read before.
        n_tokens: usize,
    },
    /// The token that ends a choice and is not part of its text.
    EndToken {
        /// Index of the choice in [`Job::choices`].
        choice: usize,
        /// The token.
        token: u32,
        /// Text before it that was held back, because a stop text might have begun there.
        piece: String,
        /// Its probability, if the sampler records it.
        report: Option<TokenReport>,
    },
    /// A choice has ended. When all have, the channel closes.
    Ended {
        /// Index of the choice.
        choice: usize,
        /// Why.
        why: Why,
        /// Its times and counts.
        timings: Timings,
    },
}

impl Event {
    /// Its approximate size.
    pub(super) fn n_bytes(&self) -> usize {
        let (piece, report) = match self {
            Self::Token { piece, report, .. } | Self::EndToken { piece, report, .. } => {
                (piece.len(), report.as_ref())
            }
            _ => (0, None),
        };
        let top = report.map_or(0, |report| size_of_val(&*report.top));
        size_of::<Self>() + piece + top
    }
}

/// Why a choice ended.
#[derive(Clone, Debug)]
pub enum Why {
    /// The text, its length or the context ended.
    Ended(EndReason),
    /// This stop text was written.
    Stop(String),
    /// Its deadline passed.
    Late,
    /// It failed.
    Failed(JobError),
}

impl Why {
    /// The text failed with this error.
    pub(super) fn failed(error: &dyn fmt::Display) -> Self {
        Self::Failed(JobError::Failed(error.to_string()))
    }
}

/// Times and counts of a choice.
#[derive(Clone, Copy, Debug, Default)]
pub struct Timings {
    /// Tokens of the prompt found in the cache.
    pub cached: usize,
    /// Tokens of the prompt that were read, and those of a text that were read again.
    pub n_prompt: usize,
    /// Time from the beginning of reading to the first token, and that of reading again.
    pub prompt: Duration,
    /// Tokens written.
    pub n_predicted: usize,
    /// Time from the first token to the last, without that of reading again.
    pub predict: Duration,
    /// Time from arrival to the beginning of reading.
    pub queued: Duration,
    /// Number of times its state was dropped to make room and computed again.
    pub n_preempted: usize,
    /// Number of times the older half of its context was dropped.
    pub n_shifts: usize,
    /// Draft tokens that were verified.
    pub n_drafted: usize,
    /// Draft tokens that were right.
    pub n_accepted: usize,
}

impl Timings {
    /// The times and counts of a text that was computed in two parts: this one, and then `other`.
    pub(crate) fn plus(&self, other: &Self) -> Self {
        // Once something was computed, what the second part found in the cache is not news.
        let cached = if self.n_prompt > 0 {
            self.cached
        } else {
            other.cached
        };
        Self {
            cached,
            n_prompt: self.n_prompt + other.n_prompt,
            prompt: self.prompt + other.prompt,
            n_predicted: self.n_predicted + other.n_predicted,
            predict: self.predict + other.predict,
            queued: self.queued + other.queued,
            n_preempted: self.n_preempted + other.n_preempted,
            n_shifts: self.n_shifts + other.n_shifts,
            n_drafted: self.n_drafted + other.n_drafted,
            n_accepted: self.n_accepted + other.n_accepted,
        }
    }
}

/// Why a job was refused, or failed.
#[derive(Clone, Debug, thiserror::Error)]
#[expect(missing_docs, reason = "the fields are described with their variants")]
pub enum JobError {
    /// Too many of this share are waiting.
    #[error("{n_waiting} requests are already queued")]
    Busy {
        n_waiting: usize,
        /// How long to wait before trying again.
        retry: Duration,
    },
    /// The prompt does not fit into the context.
    #[error(
        "the request exceeds the available context size: the prompt has {n_tokens} tokens, the context {n_ctx}"
    )]
    TooLong { n_tokens: usize, n_ctx: usize },
    /// The model was unloaded, or the server is stopping.
    #[error("the model is no longer loaded")]
    Gone,
    /// The text in the slot belongs to other clients.
    #[error("slot {slot} holds a text of another key's group")]
    Foreign { slot: u32 },
    /// The action on a slot failed.
    #[error("{0}")]
    Slot(String),
    /// The engine or the sampler failed.
    #[error("{0}")]
    Failed(String),
}

impl JobError {
    /// The error that a client gets when a step fails. It must not name the server's files.
    pub(super) fn of_step(step: Option<&StepError>, error: &dyn fmt::Display) -> Self {
        Self::Failed(match step {
            Some(StepError::Experts(_)) => EXPERTS.to_owned(),
            _ => error.to_string(),
        })
    }
}

const EXPERTS: &str = "an expert of the model could not be read from disk; see the server's log";

/// Texts to be embedded. Dropping the receiver cancels it.
#[derive(Debug)]
pub struct EmbedJob {
    /// The request's id, for logs.
    pub request: Arc<str>,
    /// The model.
    pub model: ModelId,
    /// The tokens of each text, at least one.
    pub texts: Vec<Vec<u32>>,
    /// How the vectors of tokens become the vector of a text.
    pub pooling: Pooling,
    /// The adapters they are computed with.
    pub adapter: Option<AdapterBlend>,
    /// Whose they are.
    pub share: Share,
    /// When it arrived.
    pub arrived: Instant,
    /// Receives a vector (n_embd) for each text, in order, in one buffer; without pooling one for each token. Not
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
    /// Number of likely tokens to report with each token.
    pub n_top: usize,
    /// The adapters it is computed with.
    pub adapter: Option<AdapterBlend>,
    /// Whose it is.
    pub share: Share,
    /// Whose caches it uses.
    pub domain: CacheDomain,
    /// Counts its tokens.
    pub meter: Option<Arc<dyn TokenMeter>>,
    /// Receives a score for each token except the first.
    pub answer: tokio::sync::oneshot::Sender<Result<Vec<Score>, JobError>>,
}

/// The probability of a token after those before it.
#[derive(Clone, Debug)]
pub struct Score {
    /// The token and its log-probability, and the most likely tokens at its position.
    pub report: TokenReport,
    /// Its rank among all tokens, from 1.
    pub rank: usize,
}
