//! Text from a model: prompts in, tokens out.
//!
//! A [`Generator`] is a session with one sequence. It remembers which tokens are in the KV cache, so that
//! a prompt that begins like the last one costs only what is new ([`Generator::prompt`]); it can
//! make room when the context is full ([`Generator::shift`]), and be written to disk and read
//! back ([`prompt_cache`]). [`Session::generate`] is the short way to a text.
#![forbid(unsafe_code)]

mod pieces;
pub mod prompt_cache;
mod timings;

pub use crate::sequence::EndReason;
pub use crate::session::GenerateError;
pub use pieces::Pieces;
pub use timings::{GeneratorTimings, Span};

use crate::adapter::AdapterBlend;
use crate::sequence::{Choose, Chosen, Sequence, Settings, TokenReport};
use crate::session::{Session, StepHooks};
use sluice_core::engine::{EngineError, Wants};
use sluice_core::tokenizer::Detokenizer;
use std::collections::VecDeque;
use std::time::Instant;

/// The result of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// A token was chosen. It is not in the context yet.
    Token(u32),
    /// No token was wanted.
    Nothing,
    /// The stop flag was set; the step has not happened.
    Interrupted,
}

/// A generated token.
#[derive(Clone, Copy, Debug)]
pub struct GeneratedToken<'w> {
    /// The token.
    pub token: u32,
    /// The text that it completes: whole characters.
    pub piece: &'w str,
    /// How likely it was, if the chooser records that. `None` for text left over after the last
    /// token.
    pub report: Option<&'w TokenReport>,
}

/// When to stop.
#[derive(Clone, Copy, Debug)]
pub struct Until {
    /// Maximum number of tokens; `None` for no limit.
    pub n_predict: Option<usize>,
    /// Continue after tokens that end a text.
    pub ignore_eos: bool,
    /// When the context is full: tokens to keep at its beginning while half of the others are removed.
    /// `None` ends the text.
    pub shift: Option<usize>,
}

/// A model at work on one sequence.
#[derive(Debug)]
pub struct Generator {
    session: Session,
    sequence: Sequence,
    /// Times so far.
    pub timings: GeneratorTimings,
    /// A token that [`Self::write`] has shown but not entered.
    pending: Option<u32>,
    /// Tokens that were chosen but not shown: all except the last are in the context.
    ready: VecDeque<Chosen>,
}

impl Generator {
    /// A generator over a session that has room for another sequence, whose tokens `sampler` chooses.
    ///
    /// # Errors
    /// [`GenerateError::NoSequence`].
    pub fn new(
        mut session: Session,
        sampler: Box<dyn Choose + Send>,
    ) -> Result<Self, GenerateError> {
        let sequence = session.add_with(&Settings::default(), sampler)?;
        Ok(Self {
            session,
            sequence,
            timings: GeneratorTimings::default(),
            pending: None,
            ready: VecDeque::new(),
        })
    }

    /// The session.
    #[must_use]
    pub const fn session(&self) -> &Session {
        &self.session
    }

    /// The session, to configure speculation.
    pub const fn session_mut(&mut self) -> &mut Session {
        &mut self.session
    }

    /// Tokens in the context.
    #[must_use]
    pub fn tokens(&self) -> &[u32] {
        self.sequence.tokens()
    }

    /// The token that was shown last, if it is not in the context yet.
    #[must_use]
    pub const fn pending(&self) -> Option<u32> {
        self.pending
    }

    /// Tokens that fit into the context.
    #[must_use]
    pub fn n_ctx(&self) -> usize {
        self.session.limits().n_ctx
    }

    /// Tokens that context shifts have removed since the context was last empty.
    #[must_use]
    pub const fn n_shifted(&self) -> usize {
        self.sequence.n_shifted
    }

    /// Whether no further token fits.
    #[must_use]
    pub fn is_full(&self) -> bool {
        self.tokens().len() >= self.n_ctx()
    }

    /// Chooses tokens with `sampler` from now on.
    pub fn set_sampler(&mut self, sampler: Box<dyn Choose + Send>) {
        self.sequence.set_sampler(sampler);
    }

    /// Uses these adapters from now on. Text read with others is forgotten: a text is never computed with changing
    /// adapters.
    ///
    /// # Errors
    /// [`GenerateError::Engine`].
    pub fn set_adapter(&mut self, adapter: Option<AdapterBlend>) -> Result<(), GenerateError> {
        if self.sequence.adapter() != adapter.as_ref() {
            self.truncate(0)?;
            self.sequence.set_adapter(adapter)?;
        }
        Ok(())
    }

    /// Goes on to the next random stream: the same prompt and seed give another text.
    pub const fn choose_anew(&mut self) {
        self.sequence.number = self.sequence.number.wrapping_add(1);
    }

    /// Makes `tokens` the contents of the context and chooses the token after them, if `wants` is
    /// logits. A common beginning of the context is not computed again, except for the last token,
    /// whose logits are needed.
    ///
    /// A recurrent model's state before the last token is kept, as the checkpoint with the number of the
    /// sequence, where [`crate::Limits::n_checkpoints`] leaves room: later prompts with the same beginning continue
    /// from there.
    ///
    /// # Errors
    /// [`GenerateError`]; the context then holds a beginning of `tokens`.
    pub fn prompt(&mut self, tokens: &[u32], wants: Wants) -> Result<Next, GenerateError> {
        let (n_tokens, n_ctx) = (tokens.len(), self.n_ctx());
        if n_tokens > n_ctx {
            return Err(GenerateError::TooLong { n_tokens, n_ctx });
        }
        // A text that was computed with other rotary divisors is not a beginning of this one.
        self.session.fit(&mut self.sequence, n_tokens)?;
        let same = common_prefix(self.tokens(), tokens);
        let kept = same.min(n_tokens.saturating_sub(1));
        let kept = self.truncate(kept)?;
        self.timings.reused += kept;
        self.sequence.sampler.begin();
        let start = Instant::now();
        let (mut new, mut next) = (&tokens[kept..], Next::Nothing);
        if self.keeps_state() {
            let (head, last) = new.split_at(new.len().saturating_sub(1));
            next = self.read(head, 0)?;
            self.keep_state()?;
            new = last;
        }
        if next != Next::Interrupted {
            next = self.read(new, usize::from(wants == Wants::Logits))?;
        }
        self.timings.first_token = Some(start.elapsed()).filter(|_| matches!(next, Next::Token(_)));
        Ok(next)
    }

    /// Enters `token` at the end of the context and chooses the next one.
    ///
    /// # Errors
    /// [`GenerateError`]; the context is then as before, or a beginning of it if it was being read again (longrope).
    pub fn decode(&mut self, token: u32) -> Result<Next, GenerateError> {
        // One token is asked for, so that none are drafted.
        self.sequence.n_left = 1;
        self.go_on(token)
    }

    /// Continues from `next`, the result of a prompt. `each` is handed the text token by token, and
    /// returns whether it wants more. The last token that was chosen is not entered into the
    /// context.
    ///
    /// # Errors
    /// [`GenerateError`].
    pub fn write(
        &mut self,
        mut next: Next,
        until: &Until,
        mut each: impl FnMut(&GeneratedToken<'_>) -> bool,
    ) -> Result<EndReason, GenerateError> {
        let model = self.session.model().clone();
        let tokenizer = model.tokenizer();
        let mut detokenizer = Detokenizer::continuing();
        let mut left = until.n_predict.unwrap_or(usize::MAX);
        let mut piece = String::new();
        let mut last = None;
        let ended = loop {
            let token = match next {
                Next::Token(token) => token,
                Next::Nothing => break EndReason::Length,
                Next::Interrupted => break EndReason::Interrupted,
            };
            let chosen = self.ready.pop_front();
            let report = chosen.as_ref().and_then(|chosen| chosen.report.as_ref());
            if tokenizer.is_end_of_generation(token) && !until.ignore_eos {
                break EndReason::EndOfText;
            }
            piece.clear();
            detokenizer.push(tokenizer, token, |part| piece.push_str(part))?;
            left = left.saturating_sub(1);
            last = Some(token);
            self.pending = last;
            if !each(&GeneratedToken {
                token,
                piece: &piece,
                report,
            }) {
                self.forget_ready(chosen.as_ref())?;
                break EndReason::Closed;
            }
            if let Some(following) = self.ready.front() {
                // It was drafted, and this one is in the context already.
                (next, self.pending) = (Next::Token(following.token), None);
                continue;
            }
            if self.sequence.sampler.is_complete() {
                break EndReason::EndOfText;
            }
            if left == 0 {
                break EndReason::Length;
            }
            if self.is_full() {
                match until.shift {
                    Some(n_keep) if self.shift(n_keep)? > 0 => {}
                    _ => break EndReason::ContextFull,
                }
            }
            self.sequence.ignore_eos = until.ignore_eos;
            self.sequence.n_left = left;
            next = self.go_on(token)?;
            if next != Next::Interrupted {
                self.pending = None;
            }
        };
        self.ready.clear();
        piece.clear();
        detokenizer.finish(|part| piece.push_str(part));
        if let Some(token) = last.filter(|_| !piece.is_empty()) {
            each(&GeneratedToken {
                token,
                piece: &piece,
                report: None,
            });
        }
        Ok(ended)
    }

    /// Enters `token` with the tokens drafted after it; all tokens chosen then are ready. If the text becomes too long
    /// for its rotary divisors, it is read again first, as a prompt.
    fn go_on(&mut self, token: u32) -> Result<Next, GenerateError> {
        self.sequence.push(&[token], 1);
        self.session.fit_queue(&mut self.sequence)?;
        let is_again = self.sequence.is_prompt();
        let mut next = Next::Nothing;
        while !self.sequence.queue().is_empty() && next != Next::Interrupted {
            next = self.step(|timings| match is_again {
                true => &mut timings.prompt,
                false => &mut timings.eval,
            })?;
        }
        Ok(next)
    }

    /// Takes back what was read after the last token shown.
    fn forget_ready(&mut self, shown: Option<&Chosen>) -> Result<(), GenerateError> {
        if let Some(shown) = shown.filter(|_| !self.ready.is_empty()) {
            self.session
                .drop_behind(&mut self.sequence, shown.position)?;
        }
        Ok(())
    }

    /// Removes the older half of the tokens after the first `n_keep`, and moves the rest up (context
    /// shift). Returns the number of tokens removed.
    ///
    /// # Errors
    /// [`GenerateError::Engine`].
    pub fn shift(&mut self, n_keep: usize) -> Result<usize, GenerateError> {
        self.session.shift(&mut self.sequence, n_keep)
    }

    /// Keeps the first `len` tokens of the context. Returns how many it keeps: fewer, where the model's state
    /// after `len` is not stored.
    ///
    /// # Errors
    /// [`GenerateError::Engine`]: the context has fewer tokens.
    pub fn truncate(&mut self, len: usize) -> Result<usize, GenerateError> {
        let kept = self.session.truncate(&mut self.sequence, len)?;
        self.pending = None;
        Ok(kept)
    }

    /// Reads a part of a prompt.
    fn read(&mut self, tokens: &[u32], n_wanted: usize) -> Result<Next, GenerateError> {
        self.sequence.push(tokens, n_wanted);
        // Nothing is drafted after a prompt: the caller may not continue.
        self.sequence.n_left = 1;
        let mut next = Next::Nothing;
        while !self.sequence.queue().is_empty() && next != Next::Interrupted {
            next = self.step(|timings| &mut timings.prompt)?;
        }
        Ok(next)
    }

    /// Whether the state before a prompt's last token is kept.
    fn keeps_state(&self) -> bool {
        let has_room = self.session.limits().n_checkpoints > self.sequence.slot as usize;
        has_room && self.session.model().config().is_recurrent()
    }

    /// Keeps the state at the end of the context, instead of the one kept before.
    fn keep_state(&mut self) -> Result<(), GenerateError> {
        let slot = self.sequence.slot;
        let kept = self.session.with_state(|state| {
            state.forget(slot);
            match state.is_empty(slot) {
                true => Ok(()),
                false => state.checkpoint(slot, slot),
            }
        });
        Ok(kept.map_err(EngineError::from)?)
    }

    /// Runs a step over the queue and adds its time to `span`. Tokens that a failed step has not read are removed from
    /// the queue.
    fn step(
        &mut self,
        span: impl Fn(&mut GeneratorTimings) -> &mut Span,
    ) -> Result<Next, GenerateError> {
        self.session.fit_queue(&mut self.sequence)?;
        let before = self.sequence.tokens.len();
        let entered = self
            .session
            .enter(&mut [&mut self.sequence], &StepHooks::default());
        let entered = match entered {
            Ok(entered) => entered,
            Err(error) => {
                self.sequence.push(&[], 0);
                self.sequence.queue.clear();
                return match error {
                    GenerateError::Step(error) if error.is_cancelled() => Ok(Next::Interrupted),
                    error => Err(error),
                };
            }
        };
        let n_kept = self.sequence.tokens.len() - before;
        let time = entered.step + entered.drafting;
        span(&mut self.timings).add(n_kept, time.as_nanos());
        if let Some(error) = self.sequence.failure() {
            self.sequence.ended = None;
            return Err(error.into());
        }
        self.ready = self.sequence.chosen.drain(..).collect();
        let Some(first) = self.ready.front() else {
            return Ok(Next::Nothing);
        };
        let sampling = &mut self.timings.sampling;
        sampling.add(entered.n_chosen, entered.choosing.as_nanos());
        Ok(Next::Token(first.token))
    }
}

/// Length of the common beginning of two texts, in tokens.
#[must_use]
pub fn common_prefix(a: &[u32], b: &[u32]) -> usize {
    a.iter().zip(b).take_while(|(a, b)| a == b).count()
}
