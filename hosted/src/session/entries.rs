//! The entries of a step: which sequences take part, and in which order.

use super::{GenerateError, Session};
use crate::adapter::AdapterBlend;
use crate::sequence::Sequence;
use sluice_core::engine::{BatchEntry, Wants};
use std::collections::HashMap;

impl Session {
    /// The entries of the next step, and for each sequence its part of them. Entries of a blend are adjacent, so that
    /// they are one product.
    pub(super) fn fill(
        &mut self,
        sequences: &mut [&mut Sequence],
        blends: &Blends,
        shares: Option<&[usize]>,
        batch: &mut Vec<BatchEntry>,
        parts: &mut Vec<(usize, usize)>,
    ) -> Result<(), GenerateError> {
        self.share(sequences, shares, parts)?;
        self.drop_drafts_without_room(sequences, parts);
        batch.clear();
        let speculation = self.speculation.as_ref();
        let reads_hidden = speculation.is_some_and(|all| all.reads_hidden());
        let logits = match reads_hidden || self.shows_hidden {
            true => Wants::LogitsAndHidden,
            false => Wants::Logits,
        };
        let others = if reads_hidden {
            Wants::Hidden
        } else {
            Wants::Nothing
        };
        for is_prompt in [false, true] {
            for (i, adapter) in blends.in_order() {
                let (sequence, part) = (&*sequences[i], &mut parts[i]);
                if is_prompt == sequence.is_prompt() {
                    let start = batch.len();
                    let all = entries(sequence, adapter, others, logits);
                    batch.extend(all.take(part.1));
                    *part = (start, batch.len());
                }
            }
        }
        Ok(())
    }

    /// Drops draft tokens if pages are short: they must not take one that a text may need.
    fn drop_drafts_without_room(
        &self,
        sequences: &mut [&mut Sequence],
        parts: &mut [(usize, usize)],
    ) {
        let state = self.state();
        let needed = |with_drafts: bool| {
            let each = sequences.iter().zip(&*parts).map(|(sequence, (_, n))| {
                let n = if with_drafts {
                    *n
                } else {
                    sequence.queue.len().min(*n)
                };
                state.pages_needed(sequence.slot, n)
            });
            each.sum::<usize>()
        };
        // Keep a page for each text: one that finds none at the end of its last page ends.
        let (plain, drafting) = (needed(false), needed(true));
        let is_short = drafting > plain && drafting + sequences.len() > state.free_pages();
        for (sequence, (_, n)) in sequences.iter_mut().zip(parts) {
            let n_queued = sequence.queue.len();
            if is_short {
                *n = n_queued.min(*n);
            }
            sequence.drafts.truncate(n.saturating_sub(n_queued));
        }
    }

    /// How many tokens each sequence reads, as (0, n). Texts that are being written come first: a long prompt must not
    /// hold them up.
    fn share(
        &mut self,
        sequences: &mut [&mut Sequence],
        shares: Option<&[usize]>,
        parts: &mut Vec<(usize, usize)>,
    ) -> Result<(), GenerateError> {
        parts.clear();
        parts.resize(sequences.len(), (0, 0));
        self.sweep()?;
        let limits = self.limits();
        let (mut n_left, mut n_outputs) = (limits.n_batch, limits.n_outputs);
        for is_prompt in [false, true] {
            for (i, sequence) in sequences.iter_mut().enumerate() {
                self.check(sequence)?;
                sequence.chosen.clear();
                if is_prompt != sequence.is_prompt() {
                    continue;
                }
                let n_queued = sequence.queue.len();
                let first_wanted = n_queued - sequence.n_wanted;
                let share = shares.map_or(usize::MAX, |shares| shares.get(i).copied().unwrap_or(0));
                let n_draft = match sequence.is_being_written() && share > 0 {
                    true => sequence.drafts.len(),
                    false => 0,
                };
                let n = (n_queued.min(share) + n_draft)
                    .min(n_left)
                    .min(first_wanted + n_outputs);
                n_left -= n;
                n_outputs -= n.saturating_sub(first_wanted);
                parts[i] = (0, n);
            }
        }
        Ok(())
    }
}

/// All tokens that a sequence may read, followed by its draft tokens.
fn entries(
    sequence: &Sequence,
    adapter: Option<u32>,
    others: Wants,
    logits: Wants,
) -> impl Iterator<Item = BatchEntry> {
    let first_wanted = sequence.queue.len() - sequence.n_wanted;
    let position = sequence.tokens.len();
    let drafts = sequence.drafts.iter().map(|draft| draft.token);
    let tokens = sequence.queue.iter().copied().chain(drafts).enumerate();
    tokens.map(move |(i, token)| BatchEntry {
        adapter,
        ..BatchEntry::new(
            token,
            sequence.slot,
            position_of(position + i),
            if i < first_wanted { others } else { logits },
        )
    })
}

fn position_of(len: usize) -> u32 {
    u32::try_from(len).expect("contexts are below 2^24 tokens, and no text has 2^32")
}

/// The blends of some sequences.
pub(super) struct Blends {
    /// Each blend once.
    pub(super) all: Vec<AdapterBlend>,
    /// The sequences: first those without one, then blend by blend; with the number of its blend, from 1 on, or 0.
    order: Vec<(u32, usize)>,
}

impl Blends {
    pub(super) fn of(sequences: &[&mut Sequence]) -> Self {
        let mut all: Vec<AdapterBlend> = Vec::new();
        let mut known = HashMap::new();
        let numbers = sequences.iter().map(|sequence| {
            let Some(blend) = &sequence.adapter else {
                return 0;
            };
            *known.entry(sequence.adapter_identity).or_insert_with(|| {
                all.push(blend.clone());
                u32::try_from(all.len()).expect("sequences are at most 2^16")
            })
        });
        let mut order: Vec<_> = numbers.zip(0..).collect();
        order.sort_unstable();
        Self { all, order }
    }

    /// The numbers of sequences with their blends' numbers.
    fn in_order(&self) -> impl Iterator<Item = (usize, Option<u32>)> {
        let order = self.order.iter();
        order.map(|&(number, i)| (i, number.checked_sub(1)))
    }
}
