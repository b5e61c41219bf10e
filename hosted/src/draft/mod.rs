//! A smaller model that drafts for a larger one.
//!
//! It reads the same texts in a session of its own on the same threads, and draws from its own logits with a copy of
//! each text's sampler. Draws of both depend on the same random numbers, so that they agree wherever the two models
//! are near each other, at any temperature.
#![forbid(unsafe_code)]

mod error;
mod head;
mod options;
mod sampler;
mod source;
mod vocabulary;

pub use error::DraftError;
pub use head::HeadDrafter;
pub use options::{DraftKind, DraftOptions};
pub use source::{DraftSource, SpeculationSetup};

use crate::generate::common_prefix;
use crate::model::Model;
use crate::sequence::{Sequence, Settings};
use crate::session::{GenerateError, Limits, Session, StepError, StepHooks};
use crate::sparse_modes::SparseMode;
use crate::speculate::{Ask, Drafter, POSITIONS_MAX};
use crate::team::Team;
use sampler::DraftSampler;
use sluice_core::costs::Costs;
use sluice_core::engine::EngineError;
use sluice_core::model::ModelConfig;
use sluice_core::speculate::{Class, DraftToken};
use sluice_core::state::StateError;
use std::time::Instant;

/// A model that drafts.
#[derive(Debug)]
pub struct DraftModel {
    session: Session,
    /// By the number of the sequence drafted for.
    texts: Vec<Option<Sequence>>,
    costs: Costs,
    /// Tokens of the longest text that it drafts for, including draft tokens.
    n_ctx: usize,
    /// The domain of each text ([`Settings::domain`]).
    domains: Vec<u64>,
    /// The larger model.
    target: Model,
    /// Whether the larger model's output layer scores its likeliest tokens again.
    rescores: bool,
    name: &'static str,
}

impl DraftModel {
    /// `model` drafts for texts of a session over `target` that was made with `limits`.
    ///
    /// # Errors
    /// Another vocabulary, an encoder, or no memory.
    pub fn new(
        model: &Model,
        target: &Model,
        team: &Team,
        limits: &Limits,
        name: &'static str,
    ) -> Result<Self, DraftError> {
        vocabulary::check(model, target)?;
        let n_draft = limits.n_draft;
        let limits = Limits {
            n_draft: 0,
            n_held: 0,
            // Where the model's steps are short, texts must be caught up with all the same.
            n_batch: 0,
            adapter_rank: 0,
            observes: false,
            selects: false,
            // Taking back a rejected draft.
            n_behind: n_draft + 1,
            n_checkpoints: 0,
            windows_give_back: false,
            // Its file need not be by neuron where the model's is.
            sparse: limits.sparse.filter(|&mode| mode == SparseMode::Off),
            ..*limits
        };
        let n_seq = limits.n_seq;
        Ok(Self {
            session: model.session_on(team, limits)?,
            texts: (0..n_seq).map(|_| None).collect(),
            costs: Costs::new(),
            n_ctx: limits.n_ctx,
            domains: vec![0; n_seq],
            target: target.clone(),
            rescores: false,
            name,
        })
    }

    /// Lets the larger model's output layer score the likeliest tokens again, for a draft that is the same model with
    /// coarser weights: nothing happens where the two are of different shapes.
    #[must_use]
    pub fn rescoring(mut self) -> Self {
        let (own, other) = (self.model().config(), self.target.config());
        let shape = |config: &ModelConfig| (config.architecture, config.n_embd, config.n_vocab);
        self.rescores = shape(own) == shape(other);
        self.session.shows_hidden = self.rescores;
        self
    }

    /// Drafts for texts of at most `n_ctx` tokens, draft tokens included.
    #[must_use]
    pub fn within(mut self, n_ctx: usize) -> Self {
        self.n_ctx = n_ctx.min(self.n_ctx);
        self
    }

    /// The model.
    #[must_use]
    pub const fn model(&self) -> &Model {
        self.session.model()
    }

    /// Tokens that it would have to read of a text.
    fn n_unread(&self, slot: u32, text: &[u32]) -> usize {
        let known = self.texts.get(slot as usize).and_then(Option::as_ref);
        let known = known.map_or(0, |known| common_prefix(known.tokens(), text));
        text.len() - known
    }

    /// Lets the draft sequence of an ask read its text.
    fn begin(&mut self, ask: &mut Ask<'_>) -> Result<(), Box<dyn core::error::Error>> {
        let place = &mut self.texts[ask.slot as usize];
        let mut sequence = match place.take() {
            Some(sequence) => sequence,
            None => self.session.add(&Settings::default())?,
        };
        let domain = &mut self.domains[ask.slot as usize];
        let same = match *domain == ask.domain {
            true => common_prefix(sequence.tokens(), ask.text).min(ask.text.len() - 1),
            // How long it takes must not reveal what another domain has written.
            false => 0,
        };
        *domain = ask.domain;
        let known = self.session.truncate(&mut sequence, same)?;
        sequence.n_shifted = ask.n_shifted;
        sequence.number = ask.number;
        let exact = self.rescores.then(|| self.target.clone());
        let n_vocab = self.target.config().n_vocab;
        sequence.set_sampler(Box::new(DraftSampler::new(
            ask.sampler.take(),
            n_vocab,
            exact,
        )));
        sequence.push(&ask.text[known..], 1);
        *place = Some(sequence);
        Ok(())
    }

    /// Runs a step over the sequences of `active` asks.
    fn step(&mut self, asks: &mut [Ask<'_>]) -> Result<(), GenerateError> {
        let mut sequences: Vec<_> = Vec::with_capacity(asks.len());
        let is_active = |slot: usize| asks.iter().any(|ask| ask.slot as usize == slot);
        for (slot, sequence) in self.texts.iter_mut().enumerate() {
            if let Some(sequence) = sequence.as_mut().filter(|_| is_active(slot)) {
                sequences.push(sequence);
            }
        }
        sequences.retain(|sequence| !sequence.queue().is_empty());
        // Includes the time to wake its threads.
        let start = Instant::now();
        let shares = vec![READ_AT_ONCE; sequences.len()];
        let hooks = StepHooks {
            shares: Some(&shares),
            ..StepHooks::default()
        };
        let entered = self.session.enter(&mut sequences, &hooks)?;
        // The time to read a prompt does not predict the time of a draft token.
        if entered.n_tokens <= FEW * asks.len() {
            let ns = start.elapsed().as_secs_f64() * 1e9;
            self.costs.note(entered.n_tokens, entered.n_positions, ns);
        }
        Ok(())
    }

    /// As [`Self::step`]; when the KV cache is full, forgets the texts without an ask, and then all. False if there
    /// still is not enough room.
    fn step_with_room(&mut self, asks: &mut [Ask<'_>]) -> Result<bool, GenerateError> {
        for keeps_asked in [true, false] {
            match self.step(asks) {
                Err(error) if is_full(&error) => {
                    let is_asked = |slot: usize| asks.iter().any(|ask| ask.slot as usize == slot);
                    for (slot, text) in self.texts.iter_mut().enumerate() {
                        if !(keeps_asked && is_asked(slot)) {
                            *text = None;
                        }
                    }
                }
                done => return done.map(|()| true),
            }
        }
        Ok(false)
    }

    /// Takes the drawn token; returns whether the ask continues.
    fn take(&mut self, ask: &mut Ask<'_>) -> bool {
        let Some(sequence) = &mut self.texts[ask.slot as usize] else {
            return false;
        };
        if sequence.failure().is_some() {
            sequence.ended = None;
            return false;
        }
        let Some(chosen) = sequence.chosen.pop() else {
            // More is unread than fits into a step: continued the next time.
            return false;
        };
        let report = chosen.report.unwrap_or_default();
        let probability = report.chosen.log_probability.exp();
        if probability < ask.p_min {
            return false;
        }
        ask.drafts.push(DraftToken {
            token: chosen.token,
            class: Class::model(probability),
        });
        let goes_on = ask.drafts.len() < ask.n_max && (ask.goes_on)(&ask.drafts);
        if goes_on {
            sequence.push(&[chosen.token], 1);
        }
        goes_on
    }
}

impl Drafter for DraftModel {
    fn name(&self) -> &'static str {
        self.name
    }

    fn can_draft(&self, slot: u32, text: &[u32]) -> bool {
        let is_known = |token: &u32| (*token as usize) < self.session.model().config().n_vocab;
        let n_new = self.n_unread(slot, text);
        let fits = text.len() + POSITIONS_MAX <= self.n_ctx;
        fits && text[text.len() - n_new..].iter().all(is_known)
    }

    fn expect(&self, slots: &[u32]) -> f64 {
        let texts = slots.iter().map(|slot| &self.texts[*slot as usize]);
        let lens = texts.flatten().map(|text| text.tokens().len());
        self.costs.expect(slots.len(), lens.sum())
    }

    fn draft(&mut self, asks: &mut [Ask<'_>]) -> Result<(), Box<dyn core::error::Error>> {
        for ask in asks.iter_mut() {
            self.begin(ask)?;
        }
        let mut n = asks.len();
        while n > 0 {
            if !self.step_with_room(&mut asks[..n])? {
                break;
            }
            // Asks that continue are moved to the front.
            let mut i = 0;
            while i < n {
                if self.take(&mut asks[i]) {
                    i += 1;
                } else {
                    n -= 1;
                    asks.swap(i, n);
                }
            }
        }
        Ok(())
    }
}

/// Tokens of a text read per step, so that a long prompt does not hold up the other texts.
const READ_AT_ONCE: usize = 128;

/// Tokens of a text that take about as long as one.
const FEW: usize = 8;

/// Whether a step failed because there are no pages left.
const fn is_full(error: &GenerateError) -> bool {
    matches!(
        error,
        GenerateError::Engine(EngineError::State(StateError::Full { .. }))
            | GenerateError::Step(StepError::Engine(EngineError::State(
                StateError::Full { .. }
            )))
    )
}
