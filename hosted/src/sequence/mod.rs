//! One text being processed: its tokens in the KV cache, the tokens still to be entered, and the choice of its
//! tokens.
#![forbid(unsafe_code)]

mod choose;
mod guard;
mod plain;
mod stop;
mod unfinished;

pub use choose::{ChoiceContext, ChoiceError, Choose, TokenReport};
pub use plain::PlainSampler;
pub use stop::StopStrings;
pub use unfinished::UnfinishedText;

use crate::adapter::AdapterBlend;
use crate::identity::Identity;
use core::fmt;
use core::ops::Range;
use guard::Guarded;
use sluice_core::engine::Outputs;
use sluice_core::sampler::SamplerConfig;
use sluice_core::speculate::DraftToken;
use sluice_core::tokenizer::{Detokenizer, Tokenizer};
use std::sync::Arc;

/// Settings of a text. The default draws with llama.cpp's settings and seed 0 until the model
/// ends the text or the context is full.
#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    /// The samplers, their order and the seed.
    pub sampler: SamplerConfig,
    /// Number of this choice within its request: with a different number the same seed gives a different text.
    /// Independent of the sequence's place in the KV cache.
    pub number: u32,
    /// Maximum number of tokens to write; `None` for no limit.
    pub n_predict: Option<usize>,
    /// Continue after tokens that end a text.
    pub ignore_eos: bool,
    /// Do not end the text where the context is full: the caller makes room before the next step
    /// ([`crate::Session::shift`]).
    pub shifts: bool,
    /// Texts that end the text where they occur; they are not shown.
    pub stops: Vec<String>,
    /// Tokens that end the text, in addition to the vocabulary's; not shown either.
    pub stop_tokens: Vec<u32>,
    /// Show the stop text, or the stop token, that ended it.
    pub shows_stops: bool,
    /// Number of tokens at the beginning in which stop texts are ignored.
    pub n_unstopped: usize,
    /// The adapters to compute with; `None` for the model alone.
    pub adapter: Option<AdapterBlend>,
    /// Texts of a domain share statistics of which tokens follow which, where the session speculates
    /// ([`crate::speculate`]): the text itself does not change, but its speed may reveal the others.
    pub domain: u64,
    /// Read names of control tokens in the prompt as those tokens: for prompts that the program wrote
    /// itself.
    pub parse_special: bool,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            sampler: SamplerConfig::DEFAULT,
            number: 0,
            n_predict: None,
            ignore_eos: false,
            shifts: false,
            stops: Vec::new(),
            stop_tokens: Vec::new(),
            shows_stops: false,
            n_unstopped: 0,
            adapter: None,
            domain: 0,
            parse_special: false,
        }
    }
}

/// A token that was chosen.
#[derive(Clone, Debug)]
pub(crate) struct Chosen {
    /// Length of the text that it continues.
    pub(crate) position: usize,
    pub(crate) token: u32,
    pub(crate) report: Option<TokenReport>,
}

/// Why a text ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EndReason {
    /// The model ended it.
    EndOfText,
    /// It has reached the requested length.
    Length,
    /// The context is full.
    ContextFull,
    /// The reader of the text wants no more.
    Closed,
    /// The stop flag was set.
    Interrupted,
    /// No token could be chosen; [`Sequence::failure`] has the reason.
    Failed,
}

impl EndReason {
    /// The reason in one word, for other programs.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::EndOfText => "stop",
            Self::Length => "length",
            Self::ContextFull => "context_full",
            Self::Closed => "closed",
            Self::Interrupted => "interrupted",
            Self::Failed => "error",
        }
    }
}

/// A text in a session. Dropping it frees its place in the session.
pub struct Sequence {
    /// Its number in the KV cache.
    pub(crate) slot: u32,
    /// Identifies the session, and marks the slot as used.
    pub(crate) claim: Arc<()>,
    /// Tokens in the KV cache.
    pub(crate) tokens: Vec<u32>,
    /// Tokens to be entered next.
    pub(crate) queue: Vec<u32>,
    /// Number of trailing queue tokens that need logits.
    pub(crate) n_wanted: usize,
    /// Tokens that may follow the queue, to be verified with it.
    pub(crate) drafts: Vec<DraftToken>,
    /// Whether drafts were made for the next step.
    pub(crate) is_drafted: bool,
    /// See [`Settings::domain`].
    pub(crate) domain: u64,
    /// Number of verified draft tokens, and how many of them were right.
    pub(crate) n_drafted: usize,
    pub(crate) n_accepted: usize,
    /// Tokens that were chosen in the last step.
    pub(crate) chosen: Vec<Chosen>,
    /// Tokens that context shifts have removed.
    pub(crate) n_shifted: usize,
    /// Tokens that no context shift has moved.
    pub(crate) n_kept: usize,
    pub(crate) sampler: Guarded,
    /// See [`Settings::number`].
    pub(crate) number: u32,
    pub(crate) adapter: Option<AdapterBlend>,
    /// Identity of the adapters that its state was computed with, if there were any.
    pub(crate) adapter_identity: Option<Identity>,
    pub(crate) detokenizer: Detokenizer,
    pub(crate) stops: StopStrings,
    /// See [`Settings::stop_tokens`].
    pub(crate) stop_tokens: Vec<u32>,
    /// See [`Settings::shows_stops`].
    pub(crate) shows_stops: bool,
    /// Number of tokens left in which stop texts are ignored.
    pub(crate) n_unstopped: usize,
    pub(crate) ignore_eos: bool,
    /// See [`Settings::shifts`].
    pub(crate) shifts: bool,
    /// Number of tokens it may still write.
    pub(crate) n_left: usize,
    pub(crate) ended: Option<EndReason>,
    pub(crate) failure: Option<ChoiceError>,
}

impl Sequence {
    /// An empty sequence at `slot`.
    pub(crate) fn new(
        slot: u32,
        claim: Arc<()>,
        settings: &Settings,
        sampler: Box<dyn Choose + Send>,
    ) -> Self {
        let mut stops = StopStrings::new();
        for text in &settings.stops {
            stops.add(text, settings.shows_stops);
        }
        Self {
            slot,
            claim,
            tokens: Vec::new(),
            queue: Vec::new(),
            n_wanted: 0,
            drafts: Vec::new(),
            is_drafted: false,
            domain: settings.domain,
            n_drafted: 0,
            n_accepted: 0,
            chosen: Vec::new(),
            n_shifted: 0,
            n_kept: 0,
            sampler: Guarded::new(sampler),
            number: settings.number,
            adapter: settings.adapter.clone(),
            adapter_identity: settings.adapter.as_ref().map(AdapterBlend::identity),
            detokenizer: Detokenizer::continuing(),
            stops,
            stop_tokens: settings.stop_tokens.clone(),
            shows_stops: settings.shows_stops,
            n_unstopped: settings.n_unstopped,
            ignore_eos: settings.ignore_eos,
            shifts: settings.shifts,
            n_left: settings.n_predict.unwrap_or(usize::MAX),
            ended: None,
            failure: None,
        }
    }

    /// Its number among the sequences of its session.
    #[must_use]
    pub const fn slot(&self) -> u32 {
        self.slot
    }

    /// Tokens that it may still write.
    #[must_use]
    pub const fn n_left(&self) -> usize {
        self.n_left
    }

    /// Tokens that the model has read.
    #[must_use]
    pub fn tokens(&self) -> &[u32] {
        &self.tokens
    }

    /// Tokens that it is to read next: the rest of a prompt, or the token chosen last.
    #[must_use]
    pub fn queue(&self) -> &[u32] {
        &self.queue
    }

    /// Queues `tokens` for the model to read, after the tokens already queued. A token is chosen after each of the
    /// last `n_wanted` tokens of the queue.
    ///
    /// With one, the text continues with it by itself. With several, as when a draft token is checked, the
    /// tokens are returned as [events](crate::session::TokenEvent), and the caller decides what is read
    /// then.
    pub fn push(&mut self, tokens: &[u32], n_wanted: usize) {
        self.queue.extend_from_slice(tokens);
        self.n_wanted = n_wanted.min(self.queue.len());
        self.drafts.clear();
        self.is_drafted = false;
    }

    /// Chooses its tokens with `sampler` from now on.
    pub fn set_sampler(&mut self, sampler: Box<dyn Choose + Send>) {
        self.sampler = Guarded::new(sampler);
    }

    /// Uses these adapters from now on.
    ///
    /// # Errors
    /// The tokens read so far were computed with others.
    pub fn set_adapter(&mut self, adapter: Option<AdapterBlend>) -> Result<(), OtherAdapters> {
        let identity = adapter.as_ref().map(AdapterBlend::identity);
        if !self.tokens.is_empty() && identity != self.adapter_identity {
            return Err(OtherAdapters);
        }
        self.adapter_identity = identity;
        self.adapter = adapter;
        Ok(())
    }

    /// Whether it is computed with the same adapters as `other`.
    pub(crate) fn has_adapters_of(&self, other: &Self) -> bool {
        self.adapter.as_ref().map(AdapterBlend::identity) == other.adapter_identity
    }

    /// Whether more than one token is queued: it is being read, not written.
    pub(crate) fn is_prompt(&self) -> bool {
        self.queue.len() > 1
    }

    /// Whether it writes by itself: one token is to be read, and another to be chosen.
    pub(crate) fn is_being_written(&self) -> bool {
        self.queue.len() == 1 && self.n_wanted == 1
    }

    /// Number of its draft tokens that were verified, and how many of them were accepted.
    #[must_use]
    pub const fn drafts(&self) -> (usize, usize) {
        (self.n_drafted, self.n_accepted)
    }

    /// Releases its adapters but remembers their identity: for a text that has ended and whose state is kept.
    pub fn release_adapter(&mut self) {
        self.adapter = None;
    }

    /// [`AdapterBlend::identity`] of the adapters that its state was computed with; `None` for the model alone.
    #[must_use]
    pub const fn adapter_identity(&self) -> Option<Identity> {
        self.adapter_identity
    }

    /// The adapters it is computed with.
    #[must_use]
    pub const fn adapter(&self) -> Option<&AdapterBlend> {
        self.adapter.as_ref()
    }

    /// Why it ended; `None` while it continues.
    #[must_use]
    pub const fn ended(&self) -> Option<EndReason> {
        self.ended
    }

    /// Why no token could be chosen, once: it ended as [`EndReason::Failed`].
    pub const fn failure(&mut self) -> Option<ChoiceError> {
        self.failure.take()
    }

    /// The stop text that it ended with.
    #[must_use]
    pub fn stopped_by(&self) -> Option<&str> {
        self.stops.found()
    }

    /// Whether `token` ends the text and is not shown: one of the vocabulary's end tokens, or of
    /// [`Settings::stop_tokens`].
    #[must_use]
    pub fn is_hidden_end(&self, token: u32, tokenizer: &Tokenizer<'_>) -> bool {
        let is_end = tokenizer.is_end_of_generation(token) && !self.ignore_eos;
        is_end || (!self.shows_stops && self.stop_tokens.contains(&token))
    }

    /// Tokens that context shifts have removed.
    #[must_use]
    pub const fn n_shifted(&self) -> usize {
        self.n_shifted
    }

    /// Shows control tokens as part of its text from now on.
    pub fn show_special(&mut self) {
        self.detokenizer = self.detokenizer.clone().showing_special();
    }

    /// Ends it.
    pub(crate) fn end(&mut self, why: EndReason) {
        self.ended = Some(why);
        self.queue.clear();
        self.drafts.clear();
        self.is_drafted = false;
        self.n_wanted = 0;
    }

    /// Moves the tokens that a step has read, its `entries`, from the queue into the text, and chooses the tokens
    /// after them that were wanted. Draft tokens are added to the text only if they were chosen.
    pub(crate) fn take(
        &mut self,
        entries: Range<usize>,
        outputs: &Outputs<'_>,
        tokenizer: &Tokenizer<'_>,
    ) {
        let n_queued = self.queue.len().min(entries.len());
        for (i, entry) in entries.enumerate() {
            let token = match i.checked_sub(n_queued) {
                None => self.queue[i],
                Some(draft) => self.drafts[draft].token,
            };
            self.tokens.push(token);
            let Some(logits) = outputs.logits(entry) else {
                continue;
            };
            let draft = match (i + 1).checked_sub(n_queued) {
                Some(draft) => self.drafts.get(draft),
                None => None,
            };
            let draft = draft.map(|draft| draft.token);
            match self.choose(logits, outputs.hidden(entry)) {
                Ok(token) => {
                    self.chosen.push(Chosen {
                        position: self.tokens.len(),
                        token,
                        report: self.sampler.report().cloned(),
                    });
                    let ends =
                        self.stop_tokens.contains(&token) || self.is_hidden_end(token, tokenizer);
                    let goes_on = draft == Some(token) && !ends && !self.sampler.is_complete();
                    if draft.is_some() && !goes_on {
                        break;
                    }
                }
                // Correct draft tokens are reported first; the next step fails as it would have without drafts.
                Err(_) if i >= n_queued => {
                    self.tokens.pop();
                    break;
                }
                // The tokens are in the KV cache, so the text must contain them too.
                Err(error) => {
                    self.failure = self.failure.take().or(Some(error));
                    if draft.is_some() {
                        break;
                    }
                }
            }
        }
        self.queue.drain(..n_queued);
        self.n_wanted = self.n_wanted.min(self.queue.len());
        if self.failure.is_some() {
            self.end(EndReason::Failed);
        }
    }

    /// Chooses the token after all tokens in the KV cache.
    fn choose(&mut self, logits: &[f32], hidden: Option<&[f32]>) -> Result<u32, ChoiceError> {
        let position = self.tokens.len().saturating_add(self.n_shifted);
        let choice = ChoiceContext {
            history: &self.tokens,
            position: u32::try_from(position).unwrap_or(u32::MAX),
            number: self.number,
            hidden,
        };
        self.sampler.choose(logits, &choice)
    }
}

impl fmt::Debug for Sequence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sequence")
            .field("slot", &self.slot)
            .field("n_tokens", &self.tokens.len())
            .field("n_queued", &self.queue.len())
            .field("ended", &self.ended)
            .finish_non_exhaustive()
    }
}

/// The tokens of a text were computed with other adapters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OtherAdapters;

impl fmt::Display for OtherAdapters {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the existing text was computed with other adapters")
    }
}

impl core::error::Error for OtherAdapters {}
