//! A model's own head for the token after the next, as its draft.
//!
//! The head is a layer that reads, at each position, the token there and the hidden state that the model had before
//! it. Past the end of the text it continues from its own hidden states. Source: DeepSeek-V3 (2024), multi-token
//! prediction.

use super::sampler::probability;
use super::{DraftError, FEW};
use crate::model::{LoadOptions, Model};
use crate::sequence::{ChoiceContext, Choose};
use crate::session::{Limits, Session, StepError, StepHooks};
use crate::sparse_modes::SparseMode;
use crate::speculate::{Ask, Drafter, POSITIONS_MAX};
use crate::team::Team;
use core::error::Error;
use sluice_core::costs::Costs;
use sluice_core::engine::{BatchEntry, EngineError, Wants};
use sluice_core::sampler::greedy;
use sluice_core::speculate::{Class, DraftToken};
use sluice_core::state::StateError;

/// The head at work.
#[derive(Debug)]
pub struct HeadDrafter {
    session: Session,
    texts: Vec<Text>,
    costs: Costs,
    n_embd: usize,
}

/// The head's state of a text. Its positions begin where hidden states of the model are first available.
#[derive(Clone, Debug, Default)]
struct Text {
    /// All tokens that the model has read.
    tokens: Vec<u32>,
    /// Tokens before the first that the head has read, or is to read.
    base: usize,
    /// Number of tokens that the head has read after the `base` tokens.
    n_read: usize,
    /// Hidden states before the unread tokens, and the last one; (n, n_embd).
    hidden: Vec<f32>,
}

impl HeadDrafter {
    /// The head of `model`, for a session over it with `limits` on `team`. `None` where its file has none.
    ///
    /// # Errors
    /// The head cannot be loaded, or memory is short.
    pub fn new(
        model: &Model,
        team: &Team,
        limits: &Limits,
        load: LoadOptions<'_>,
    ) -> Result<Option<Self>, DraftError> {
        let head = model.next_token_head_with(team, load);
        let Some(head) = head.map_err(DraftError::Load)? else {
            return Ok(None);
        };
        let limits = Limits {
            n_draft: 0,
            n_held: 0,
            n_hidden: 0,
            n_outputs: limits.n_seq,
            adapter_rank: 0,
            observes: false,
            selects: false,
            n_checkpoints: 0,
            windows_give_back: false,
            sparse: limits.sparse.filter(|&mode| mode == SparseMode::Off),
            ..*limits
        };
        let session = head.session_on(team, limits)?;
        Ok(Some(Self {
            n_embd: head.config().n_embd,
            session,
            texts: vec![Text::default(); limits.n_seq],
            costs: Costs::new(),
        }))
    }

    /// With many tokens unread, after a long prompt or a long time without drafts, the head starts over near the end.
    fn forget_old(&mut self, slot: u32) {
        let text = &mut self.texts[slot as usize];
        let n_unread = text.hidden.len() / self.n_embd;
        if let Some(n_gone) = n_unread.checked_sub(UNREAD_MAX).filter(|n| *n > 0) {
            // Several at once, so that not every token moves all.
            let n_gone = n_gone + UNREAD_MAX / 2;
            text.hidden.drain(..n_gone * self.n_embd);
            text.base += text.n_read + n_gone;
            text.n_read = 0;
        }
    }

    /// Forgets what the head has read of a text from `len` of its tokens on.
    fn take_back(&mut self, slot: u32, len: usize) -> Result<(), EngineError> {
        let rewound = self.session.with_state(|state| state.rewind(slot, len));
        rewound.map_err(EngineError::from)
    }

    /// Makes room in the head's cache: forgets the texts without an ask.
    fn forget_others(&mut self, asks: &[Ask<'_>]) -> Result<(), EngineError> {
        for slot in (0u32..).take(self.texts.len()) {
            let text = &mut self.texts[slot as usize];
            let len = match asks.iter().any(|ask| ask.slot == slot) {
                true => text.n_read,
                false => {
                    *text = Text::default();
                    0
                }
            };
            self.take_back(slot, len)?;
        }
        Ok(())
    }

    /// Reads the unread tokens of the asks' texts, in steps of as many tokens as fit; the last entry of each gives
    /// logits. Returns them with the head's hidden states.
    fn read(&mut self, asks: &[Ask<'_>]) -> Result<Vec<Behind>, StepError> {
        let n_batch = self.session.limits().n_batch;
        let mut behind = vec![Behind::default(); asks.len()];
        let (mut batch, mut rows) = (Vec::new(), Vec::new());
        for (i, ask) in asks.iter().enumerate() {
            let text = &self.texts[ask.slot as usize];
            let start = text.base + text.n_read;
            for (j, position) in (start..ask.text.len()).enumerate() {
                let is_last = position + 1 == ask.text.len();
                let wants = if is_last {
                    Wants::LogitsAndHidden
                } else {
                    Wants::Nothing
                };
                let at = entry_position(position - text.base);
                let token = ask.text[position];
                batch.push((i, BatchEntry::new(token, ask.slot, at, wants)));
                rows.extend_from_slice(&text.hidden[j * self.n_embd..(j + 1) * self.n_embd]);
            }
        }
        let mut rows = &rows[..];
        for part in batch.chunks(n_batch) {
            let (these, rest) = rows.split_at(part.len() * self.n_embd);
            rows = rest;
            self.step(part, these, &mut behind)?;
        }
        for ask in asks {
            let text = &mut self.texts[ask.slot as usize];
            text.n_read = ask.text.len() - text.base;
            text.hidden.clear();
        }
        Ok(behind)
    }

    /// Runs a step of the head over entries of asks.
    fn step(
        &mut self,
        part: &[(usize, BatchEntry)],
        hidden: &[f32],
        behind: &mut [Behind],
    ) -> Result<(), StepError> {
        let entries: Vec<_> = part.iter().map(|(_, entry)| *entry).collect();
        let hooks = StepHooks {
            hidden: Some(hidden),
            ..StepHooks::default()
        };
        let ran = self.session.run(&entries, &hooks, |outputs, time| {
            for (at, (i, _)) in part.iter().enumerate() {
                if let (Some(logits), Some(hidden)) = (outputs.logits(at), outputs.hidden(at)) {
                    behind[*i] = Behind {
                        logits: logits.to_vec(),
                        hidden: hidden.to_vec(),
                    };
                }
            }
            (outputs.report().n_positions, time)
        });
        let (n_positions, time) = ran?;
        // The time to read a prompt does not predict the time of a draft token.
        if part.len() <= FEW * behind.len() {
            let ns = time.as_secs_f64() * 1e9;
            self.costs.note(part.len(), n_positions, ns);
        }
        Ok(())
    }

    /// Draws a draft token after `text`, an ask's text with its draft tokens, and appends it; true to continue.
    fn draw(
        ask: &mut Ask<'_>,
        text: &mut Vec<u32>,
        logits: &[f32],
        sampler: &mut Option<Box<dyn Choose + Send>>,
    ) -> bool {
        let position = text.len().saturating_add(ask.n_shifted);
        let choice = ChoiceContext {
            history: text,
            position: u32::try_from(position).unwrap_or(u32::MAX),
            number: ask.number,
            hidden: None,
        };
        let drawn = match sampler {
            _ if logits.is_empty() => None,
            Some(sampler) => sampler.choose(logits, &choice).ok(),
            None => greedy(logits).ok(),
        };
        let Some(token) = drawn else {
            return false;
        };
        let probability = probability(logits, token);
        if probability < ask.p_min {
            return false;
        }
        text.push(token);
        ask.drafts.push(DraftToken {
            token,
            class: Class::model(probability),
        });
        ask.drafts.len() < ask.n_max && (ask.goes_on)(&ask.drafts)
    }
}

/// Tokens that a head may have to read before it drafts.
const UNREAD_MAX: usize = 1024;

/// Whether a step failed because there are no pages left.
const fn is_full(error: &StepError) -> bool {
    matches!(
        error,
        StepError::Engine(EngineError::State(StateError::Full { .. }))
    )
}

fn entry_position(position: usize) -> u32 {
    u32::try_from(position).expect("contexts are below 2^24 tokens")
}

/// The head's output after a text.
#[derive(Clone, Debug, Default)]
struct Behind {
    logits: Vec<f32>,
    hidden: Vec<f32>,
}

impl Drafter for HeadDrafter {
    fn name(&self) -> &'static str {
        "draft-mtp"
    }

    fn reads_hidden(&self) -> bool {
        true
    }

    fn saw(&mut self, slot: u32, before: usize, tokens: &[u32], hidden: &[f32]) {
        let text = &mut self.texts[slot as usize];
        let rows = tokens.len() * self.n_embd;
        if text.tokens.len() == before && text.base <= before && before > 0 {
            text.tokens.extend_from_slice(tokens);
            text.hidden.extend_from_slice(&hidden[..rows]);
            self.forget_old(slot);
            return;
        }
        // Another text, or one that was taken back: it starts after the first known state, which is nothing at the
        // beginning of a text.
        text.tokens.truncate(before);
        text.tokens.resize(before, u32::MAX);
        text.tokens.extend_from_slice(tokens);
        text.n_read = 0;
        text.hidden.clear();
        text.base = before;
        match before {
            0 => text.hidden.resize(self.n_embd, 0.0),
            _ => text.base += 1,
        }
        text.hidden.extend_from_slice(&hidden[..rows]);
        self.forget_old(slot);
    }

    fn can_draft(&self, slot: u32, text: &[u32]) -> bool {
        let known = &self.texts[slot as usize];
        let n = known.tokens.len();
        // The token that is to be read next is not known yet; what was read before the base does not matter.
        let is_same = n > known.base.saturating_sub(1)
            && text.len() == n + 1
            && known.tokens[known.base.min(n)..] == text[known.base.min(n)..n];
        let n_ctx = self.session.limits().n_ctx;
        is_same && text.len() - known.base + POSITIONS_MAX <= n_ctx
    }

    fn expect(&self, slots: &[u32]) -> f64 {
        let read = slots.iter().map(|slot| self.texts[*slot as usize].n_read);
        self.costs.expect(slots.len(), read.sum())
    }

    fn draft(&mut self, asks: &mut [Ask<'_>]) -> Result<(), Box<dyn Error>> {
        for ask in asks.iter() {
            let n_read = self.texts[ask.slot as usize].n_read;
            self.take_back(ask.slot, n_read)?;
        }
        let read = match self.read(asks) {
            Err(error) if is_full(&error) => {
                self.forget_others(asks)?;
                self.read(asks)
            }
            read => read,
        };
        let mut behind = match read {
            Err(error) if is_full(&error) => return Ok(()),
            read => read?,
        };
        let mut samplers: Vec<_> = asks.iter_mut().map(|ask| ask.sampler.take()).collect();
        let mut texts: Vec<_> = asks.iter().map(|ask| ask.text.to_vec()).collect();
        let mut active: Vec<usize> = (0..asks.len()).collect();
        loop {
            active.retain(|&i| {
                let logits = &behind[i].logits;
                Self::draw(&mut asks[i], &mut texts[i], logits, &mut samplers[i])
            });
            if active.is_empty() {
                break;
            }
            let (mut part, mut rows) = (Vec::new(), Vec::new());
            for &i in &active {
                let (ask, text) = (&asks[i], &self.texts[asks[i].slot as usize]);
                let last = ask.drafts.last().ok_or("a draft token was made")?;
                let at = text.n_read + ask.drafts.len() - 1;
                let at = entry_position(at);
                let entry = BatchEntry::new(last.token, ask.slot, at, Wants::LogitsAndHidden);
                part.push((i, entry));
                rows.extend_from_slice(&behind[i].hidden);
            }
            self.step(&part, &rows, &mut behind)?;
        }
        // Its readings of draft tokens are taken back: the model's own states replace them.
        for ask in asks.iter() {
            let n_read = self.texts[ask.slot as usize].n_read;
            self.take_back(ask.slot, n_read)?;
        }
        Ok(())
    }
}
