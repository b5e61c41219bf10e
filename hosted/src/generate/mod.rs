//! Text from a model: prompts in, tokens out.
//!
//! A [`Generator`] is one sequence at work. It remembers which tokens are in the KV cache, so that
//! a prompt that begins like the last one costs only what is new ([`Generator::prompt`]); it can
//! make room when the context is full ([`Generator::shift`]), and be written to disk and read
//! back ([`prompt_cache`]). How tokens are chosen is the caller's ([`Choose`]).
#![forbid(unsafe_code)]

mod choose;
pub mod prompt_cache;
mod stop;
mod timings;

pub use choose::{Choice, ChoiceError, Choose, TokenReport};
pub use stop::StopStrings;
pub use timings::{Span, Timings};

use crate::host::profile::Profile;
use crate::host::workers::Workers;
use crate::step::{StepError, run_step};
use core::fmt;
use sluice_core::engine::{BatchEntry, Engine, EngineError, StepOptions, Wants};
use sluice_core::team::{Stop, StopFlag};
use sluice_core::tokenizer::{Detokenizer, Tokenizer, TokenizerError};
use std::time::Instant;

/// Why there is no next token.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum GenerateError {
    /// A step failed.
    #[error(transparent)]
    Step(#[from] StepError),
    /// The KV cache refused.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// The logits are broken, or everything is masked.
    #[error("no token could be chosen: {0}")]
    Choice(#[from] ChoiceError),
    /// A token cannot be shown.
    #[error(transparent)]
    Token(#[from] TokenizerError),
    /// More tokens than the context has.
    #[error("{n_tokens} tokens are more than the context of {n_ctx}")]
    TooLong {
        /// Tokens of the prompt.
        n_tokens: usize,
        /// Tokens that fit.
        n_ctx: usize,
    },
}

/// What a step led to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// A token was chosen. It is not in the context yet.
    Token(u32),
    /// None was wanted.
    Nothing,
    /// The stop flag was set; the step has not happened.
    Interrupted,
}

/// A token as it comes out.
#[derive(Clone, Copy, Debug)]
pub struct Written<'w> {
    /// The token.
    pub token: u32,
    /// What text is complete with it: whole characters.
    pub piece: &'w str,
    /// How likely it was, if the chooser records that. Nothing for text that is only left over
    /// behind the last token.
    pub report: Option<&'w TokenReport>,
}

/// How far to go on.
#[derive(Clone, Copy, Debug)]
pub struct Until {
    /// Most tokens; `None` for no limit.
    pub n_predict: Option<usize>,
    /// Go on behind tokens that end a text.
    pub ignore_eos: bool,
    /// When the context is full: tokens at its beginning to keep while half of the others go.
    /// `None` ends the text.
    pub shift: Option<usize>,
}

/// Why a text ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// The model ended it.
    EndOfText,
    /// It is as long as was asked for.
    Length,
    /// The context is full.
    ContextFull,
    /// Whoever took the text wants no more.
    Closed,
    /// The stop flag was set.
    Interrupted,
}

impl Ended {
    /// In one word, for other programs.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::EndOfText => "stop",
            Self::Length => "length",
            Self::ContextFull => "context_full",
            Self::Closed => "closed",
            Self::Interrupted => "interrupted",
        }
    }
}

/// A model at work on one sequence.
pub struct Generator<'g, 'm> {
    engine: Engine<'m>,
    workers: &'g mut Workers,
    stop: &'g StopFlag,
    chooser: &'g mut dyn Choose,
    /// Where time goes, if that is to be known.
    pub profile: Option<Profile<'g>>,
    /// What took how long so far.
    pub timings: Timings,
    /// Number of the random stream; see [`Choice::stream`].
    pub stream: u32,
    /// What is in the KV cache.
    tokens: Vec<u32>,
    /// A token that [`Self::write`] has shown and not entered.
    pending: Option<u32>,
    /// Tokens that context shifts have removed.
    n_shifted: usize,
}

impl fmt::Debug for Generator<'_, '_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Generator")
            .field("n_tokens", &self.tokens.len())
            .field("n_shifted", &self.n_shifted)
            .finish_non_exhaustive()
    }
}

impl<'g, 'm> Generator<'g, 'm> {
    /// Over an engine whose sequence 0 is empty.
    pub fn new(
        engine: Engine<'m>,
        workers: &'g mut Workers,
        stop: &'g StopFlag,
        chooser: &'g mut dyn Choose,
    ) -> Self {
        Self {
            engine,
            workers,
            stop,
            chooser,
            profile: None,
            timings: Timings::default(),
            stream: 0,
            tokens: Vec::new(),
            pending: None,
            n_shifted: 0,
        }
    }

    /// Tokens in the context.
    #[must_use]
    pub fn tokens(&self) -> &[u32] {
        &self.tokens
    }

    /// The token that was shown last, if it is not in the context yet.
    #[must_use]
    pub const fn pending(&self) -> Option<u32> {
        self.pending
    }

    /// Tokens that fit into the context.
    #[must_use]
    pub const fn n_ctx(&self) -> usize {
        self.engine.limits().n_ctx
    }

    /// Tokens that context shifts have removed since the context was last empty.
    #[must_use]
    pub const fn n_shifted(&self) -> usize {
        self.n_shifted
    }

    /// Whether no further token fits.
    #[must_use]
    pub fn is_full(&self) -> bool {
        self.tokens.len() >= self.n_ctx()
    }

    /// Makes `tokens` what is in the context and chooses the token behind them, if `wants` is
    /// logits. What the context begins with already is not computed again, but for the last token,
    /// whose logits are needed.
    ///
    /// # Errors
    /// [`GenerateError`]; the context then holds a beginning of `tokens`.
    pub fn prompt(&mut self, tokens: &[u32], wants: Wants) -> Result<Next, GenerateError> {
        let (n_tokens, n_ctx) = (tokens.len(), self.n_ctx());
        if n_tokens > n_ctx {
            return Err(GenerateError::TooLong { n_tokens, n_ctx });
        }
        let same = common_prefix(&self.tokens, tokens);
        let kept = same.min(n_tokens.saturating_sub(1));
        self.truncate(kept)?;
        self.timings.reused += kept;
        self.chooser.begin();
        let start = Instant::now();
        let mut next = Next::Nothing;
        let mut entries = Vec::new();
        let n_batch = self.engine.limits().n_batch;
        for chunk in tokens[kept..].chunks(n_batch) {
            let is_last = self.tokens.len() + chunk.len() == n_tokens;
            entries.clear();
            let positions = position(self.tokens.len())..;
            entries.extend(
                positions
                    .zip(chunk)
                    .map(|(position, &token)| BatchEntry::new(token, 0, position, Wants::Nothing)),
            );
            if let Some(last) = entries.last_mut().filter(|_| is_last) {
                last.wants = wants;
            }
            let (stepped, ns) = self.step(&entries)?;
            next = stepped;
            if next == Next::Interrupted {
                break;
            }
            self.timings.prompt.add(chunk.len(), ns);
        }
        self.timings.first_token = Some(start.elapsed()).filter(|_| matches!(next, Next::Token(_)));
        Ok(next)
    }

    /// Enters `token` at the end of the context and chooses the one behind it.
    ///
    /// # Errors
    /// [`GenerateError`]; the context is then as before.
    pub fn decode(&mut self, token: u32) -> Result<Next, GenerateError> {
        let entry = BatchEntry::new(token, 0, position(self.tokens.len()), Wants::Logits);
        let (next, ns) = self.step(&[entry])?;
        if next != Next::Interrupted {
            self.timings.eval.add(1, ns);
        }
        Ok(next)
    }

    /// Goes on from `next`, which a prompt led to. `each` is handed the text as it comes, token by
    /// token, and says whether it wants more. The last token that was chosen is not
    /// entered into the context.
    ///
    /// # Errors
    /// [`GenerateError`].
    pub fn write(
        &mut self,
        mut next: Next,
        until: &Until,
        tokenizer: &Tokenizer<'_>,
        mut each: impl FnMut(&Written<'_>) -> bool,
    ) -> Result<Ended, GenerateError> {
        let mut detokenizer = Detokenizer::continuing();
        let mut left = until.n_predict.unwrap_or(usize::MAX);
        let mut piece = String::new();
        let mut last = None;
        let ended = loop {
            let token = match next {
                Next::Token(token) => token,
                Next::Nothing => break Ended::Length,
                Next::Interrupted => break Ended::Interrupted,
            };
            if tokenizer.is_end_of_generation(token) && !until.ignore_eos {
                break Ended::EndOfText;
            }
            piece.clear();
            detokenizer.push(tokenizer, token, |part| piece.push_str(part))?;
            left = left.saturating_sub(1);
            last = Some(token);
            self.pending = last;
            let report = self.chooser.report();
            if !each(&Written {
                token,
                piece: &piece,
                report,
            }) {
                break Ended::Closed;
            }
            if self.chooser.is_complete() {
                break Ended::EndOfText;
            }
            if left == 0 {
                break Ended::Length;
            }
            if self.is_full() {
                match until.shift {
                    Some(n_keep) if self.shift(n_keep)? > 0 => {}
                    _ => break Ended::ContextFull,
                }
            }
            next = self.decode(token)?;
            if next != Next::Interrupted {
                self.pending = None;
            }
        };
        piece.clear();
        detokenizer.finish(|part| piece.push_str(part));
        if let Some(token) = last.filter(|_| !piece.is_empty()) {
            each(&Written {
                token,
                piece: &piece,
                report: None,
            });
        }
        Ok(ended)
    }

    /// Removes the older half of what stands behind the first `n_keep` tokens, and moves the rest
    /// up (context shift). Returns how many tokens went.
    ///
    /// # Errors
    /// [`GenerateError::Engine`].
    pub fn shift(&mut self, n_keep: usize) -> Result<usize, GenerateError> {
        let n_gone = self.tokens.len().saturating_sub(n_keep) / 2;
        if n_gone > 0 {
            let range = n_keep..n_keep + n_gone;
            self.engine.remove(0, range.clone())?;
            self.tokens.drain(range);
            self.n_shifted += n_gone;
        }
        Ok(n_gone)
    }

    /// Keeps the first `len` tokens of the context.
    ///
    /// # Errors
    /// [`GenerateError::Engine`]: the context has fewer.
    pub fn truncate(&mut self, len: usize) -> Result<(), GenerateError> {
        let kv = self.engine.kv_mut();
        kv.truncate(0, len).map_err(EngineError::from)?;
        self.tokens.truncate(len);
        self.pending = None;
        if len == 0 {
            self.n_shifted = 0;
        }
        Ok(())
    }

    /// Runs a step and chooses from the logits of its last entry, if that wants them. Returns the
    /// step's time in nanoseconds, without the choice's.
    fn step(&mut self, batch: &[BatchEntry]) -> Result<(Next, u128), GenerateError> {
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
        self.tokens.extend(batch.iter().map(|entry| entry.token));
        let mut next = Next::Nothing;
        if let Some(logits) = outputs.logits(batch.len() - 1) {
            let start = Instant::now();
            let choice = Choice {
                history: &self.tokens,
                position: position(self.tokens.len().saturating_add(self.n_shifted)),
                stream: self.stream,
            };
            next = Next::Token(self.chooser.choose(logits, &choice)?);
            self.timings.sampling.add(1, start.elapsed().as_nanos());
        }
        self.profile.as_mut().map(Profile::collect);
        Ok((next, step_ns))
    }
}

/// How many tokens two texts begin with alike.
#[must_use]
pub fn common_prefix(a: &[u32], b: &[u32]) -> usize {
    a.iter().zip(b).take_while(|(a, b)| a == b).count()
}

fn position(len: usize) -> u32 {
    u32::try_from(len).expect("contexts are below 2^24 tokens, and no text has 2^32")
}
