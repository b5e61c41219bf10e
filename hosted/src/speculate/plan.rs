//! Which drafts are verified.

use super::drafter::{Ask, Drafter};
use super::{POSITIONS_MAX, Speculation};
use crate::sequence::{Choose as _, Sequence};
use sluice_core::speculate::{Class, DraftToken, GAIN_MIN, worth};
use sluice_core::state::PAGE_TOKENS;
use std::time::Instant;

impl Speculation {
    /// Takes the draft tokens without cost, from the source that is likelier right.
    pub(super) fn look_up(&mut self, sequence: &mut Sequence) {
        let n_max = self.n_most(sequence);
        let slot = sequence.slot as usize;
        self.texts[slot].sources.clear();
        if n_max == 0 {
            return;
        }
        let forced = sequence.sampler.forced();
        let forced = forced.into_iter().take(n_max);
        let class = Class::FORCED;
        let forced: Vec<_> = forced.map(|token| DraftToken { token, class }).collect();
        let found = if self.options.ngrams {
            self.find(sequence, n_max)
        } else {
            Vec::new()
        };
        let text = &mut self.texts[slot];
        let first = |drafts: &Vec<DraftToken>| {
            let chances = text.chances(&self.acceptance, &drafts[..drafts.len().min(1)]);
            chances.first().copied().unwrap_or(0.0)
        };
        let mut sources: Vec<_> = core::iter::once(forced).chain(found).collect();
        sources.retain(|drafts| !drafts.is_empty());
        let best = sources.iter().max_by(|a, b| first(a).total_cmp(&first(b)));
        if let Some(best) = best {
            let tokens: Vec<_> = best.iter().map(|draft| draft.token).collect();
            let n = sequence.sampler.n_allowed(&tokens);
            sequence
                .drafts
                .extend_from_slice(&best[..n.min(best.len())]);
        }
        text.sources = sources;
    }

    /// Drafts from the text itself and from its domain's table.
    fn find(&mut self, sequence: &Sequence, n_max: usize) -> Vec<Vec<DraftToken>> {
        let all = &sequence.tokens;
        let text = &mut self.texts[sequence.slot as usize];
        let start = text.follow(all, self.n_ctx);
        let mut drafts = [DraftToken::NONE; POSITIONS_MAX];
        let index = text.index.as_ref();
        let n = index.map_or(0, |index| index.draft(&mut drafts[..n_max]));
        let own = drafts[..n].to_vec();
        let table = self.table(sequence.domain);
        table.learn(all, start);
        let n = table.draft(all, &mut drafts[..n_max]);
        vec![own, drafts[..n].to_vec()]
    }

    /// Maximum number of drafts after a text: it must not grow beyond its end.
    fn n_most(&self, sequence: &Sequence) -> usize {
        let n_left = sequence.n_left.saturating_sub(1);
        let len = sequence.tokens.len();
        let n_room = match self.stands_at_pages {
            // A step that passes a page's end would not store its state.
            true => (PAGE_TOKENS - len % PAGE_TOKENS) % PAGE_TOKENS,
            false => self.n_ctx.saturating_sub(len),
        };
        let n_room = n_room.min(self.n_ctx.saturating_sub(len));
        self.options.n_max.min(n_left).min(n_room)
    }

    /// Keeps the draft tokens of the texts `written` that are worth a row; asks the drafter where that is better.
    /// Returns the number of draft tokens kept.
    pub(super) fn choose(
        &mut self,
        sequences: &mut [&mut Sequence],
        written: &[usize],
        n_beside: usize,
        n_rows: usize,
    ) -> usize {
        if written.is_empty() {
            return 0;
        }
        let positions = written.iter().map(|&i| sequences[i].tokens.len());
        let base = (written.len() + n_beside, positions.sum());
        self.ask(sequences, written, base.0, base.1);
        let mut chances = Vec::new();
        for &i in written {
            let sequence = &sequences[i];
            let text = &self.texts[sequence.slot as usize];
            let each = text.chances(&self.acceptance, &sequence.drafts);
            chances.extend(each.into_iter().map(|chance| (chance, i)));
        }
        // Within a text probabilities only fall, so the taken ones are a beginning of its draft tokens.
        chances.sort_by(|a, b| b.0.total_cmp(&a.0));
        chances.truncate(n_rows);
        let n = match self.options.is_fixed {
            true => chances.len(),
            false => {
                let each = chances.iter().map(|(chance, _)| *chance);
                worth(&self.costs, base.0, base.1, written.len(), each)
            }
        };
        let mut taken = 0;
        for &i in written {
            let own = chances[..n].iter().filter(|(_, of)| *of == i).count();
            let own = if own < self.options.n_min { 0 } else { own };
            sequences[i].drafts.truncate(own);
            taken += own;
        }
        taken
    }

    /// Asks the drafter for draft tokens of the texts where that is better than drafts without cost.
    fn ask(
        &mut self,
        sequences: &mut [&mut Sequence],
        written: &[usize],
        n_rows: usize,
        n_positions: usize,
    ) {
        let Some(mut drafter) = self.drafter.take() else {
            return;
        };
        let can = |i: &&usize| {
            let sequence = &sequences[**i];
            self.n_most(sequence) > 0 && drafter.can_draft(sequence.slot, &sequence.tokens)
        };
        let able: Vec<usize> = written.iter().filter(can).copied().collect();
        let plan = self.plan_draft(
            &*drafter,
            sequences,
            written.len(),
            &able,
            n_rows,
            n_positions,
        );
        for &i in written {
            if !plan.asked.contains(&i) {
                let text = &mut self.texts[sequences[i].slot as usize];
                text.acceptance.fade(Class::ANY_MODEL);
            }
        }
        if plan.asked.is_empty() {
            self.acceptance.fade(Class::ANY_MODEL);
        } else {
            let start = Instant::now();
            let outcome = self.draw(&mut *drafter, sequences, &plan);
            self.figures.draft_model += start.elapsed();
            if let Err(error) = outcome {
                // Texts continue without it.
                self.failure = Some(format!("{}: {error}", drafter.name()));
                return;
            }
        }
        self.drafter = Some(drafter);
    }

    /// How many tokens the drafter is to draft, for which texts.
    fn plan_draft(
        &self,
        drafter: &dyn Drafter,
        sequences: &[&mut Sequence],
        n_writing: usize,
        able: &[usize],
        n_rows: usize,
        n_positions: usize,
    ) -> Plan {
        let has_none = |i: &usize| sequences[*i].drafts.is_empty();
        if self.options.is_fixed {
            let asked = able.iter().copied().filter(has_none).collect();
            let (n, least) = (self.options.n_max, 0.0);
            return Plan { asked, n, least };
        }
        let mut best = Plan::default();
        let plain = self.costs.expect(n_rows, n_positions);
        if plain <= 0.0 || self.costs.is_old(n_rows) || able.is_empty() {
            return best;
        }
        let (tokens, deep) = (count(n_writing), n_positions / n_rows.max(1));
        let time = |n: usize| self.costs.expect(n_rows + n, n_positions + n * deep);
        let free = able.iter().map(|&i| self.free_gain(sequences[i]));
        let free: Vec<(f64, usize)> = free.collect();
        let n_free: usize = free.iter().map(|(_, n)| n).sum();
        let gained: f64 = free.iter().map(|(gain, _)| gain).sum();
        let mut best_rate = GAIN_MIN * ((tokens + gained) / time(n_free)).max(tokens / plain);
        for n in 1..=self.options.n_max {
            let gain = |i: usize| self.model_gain(sequences[i], n);
            let pairs = able.iter().zip(&free);
            let asked: Vec<_> = pairs.filter(|(i, free)| gain(**i) > free.0).collect();
            if asked.is_empty() {
                continue;
            }
            let slots: Vec<u32> = asked.iter().map(|(i, _)| sequences[**i].slot).collect();
            let drafting = match drafter.expect(&slots) {
                // Try it once, with one token, to measure it.
                0.0 if n == 1 => DRAFT_COST * plain,
                0.0 => break,
                known => known,
            };
            let tokens = tokens + asked.iter().map(|(i, _)| gain(**i)).sum::<f64>();
            let step = time(asked.len() * n);
            let rate = tokens / (step + drafting * count(n));
            if rate > best_rate {
                best_rate = rate;
                let row = (step - plain).max(0.0) / count(n) + drafting;
                best = Plan {
                    n,
                    least: rate * row / count(asked.len()),
                    asked: asked.into_iter().map(|(i, _)| *i).collect(),
                };
            }
        }
        best
    }

    /// Expected gain from the draft tokens of a text, in tokens, and their number.
    fn free_gain(&self, sequence: &Sequence) -> (f64, usize) {
        let text = &self.texts[sequence.slot as usize];
        let chances = text.chances(&self.acceptance, &sequence.drafts);
        (chances.iter().copied().map(f64::from).sum(), chances.len())
    }

    /// Expected gain from `n` drafts of a model, in tokens.
    fn model_gain(&self, sequence: &Sequence, n: usize) -> f64 {
        let text = &self.texts[sequence.slot as usize];
        let rate = text.acceptance.rate(&self.acceptance, Class::ANY_MODEL);
        let n = n.min(self.n_most(sequence));
        let mut chance = 1.0;
        let each = (0..n).map(|_| {
            chance *= f64::from(rate);
            chance
        });
        each.sum()
    }

    /// Runs the drafter.
    fn draw(
        &mut self,
        drafter: &mut dyn Drafter,
        sequences: &mut [&mut Sequence],
        plan: &Plan,
    ) -> Result<(), Box<dyn core::error::Error>> {
        let (texts, session) = (&self.texts, &self.acceptance);
        let goes_on: Vec<_> = plan
            .asked
            .iter()
            .map(|&i| {
                let slot = sequences[i].slot as usize;
                move |drafts: &[DraftToken]| {
                    let chances = texts[slot].chances(session, drafts);
                    chances
                        .last()
                        .is_none_or(|chance| f64::from(*chance) >= plan.least)
                }
            })
            .collect();
        let mut asks: Vec<Ask<'_>> = Vec::with_capacity(plan.asked.len());
        for (&i, goes_on) in plan.asked.iter().zip(&goes_on) {
            let sequence = &*sequences[i];
            asks.push(Ask {
                slot: sequence.slot,
                domain: sequence.domain,
                text: &sequence.tokens,
                n_shifted: sequence.n_shifted,
                number: sequence.number,
                sampler: sequence.sampler.copy(),
                n_max: plan.n.min(self.n_most(sequence)),
                p_min: self.options.p_min,
                goes_on,
                drafts: Vec::new(),
            });
        }
        drafter.draft(&mut asks)?;
        // They may be returned in any order.
        let drawn: Vec<_> = asks.into_iter().map(|ask| (ask.slot, ask.drafts)).collect();
        for (slot, drafts) in drawn.into_iter().filter(|(_, drafts)| !drafts.is_empty()) {
            let asked = plan.asked.iter().find(|i| sequences[**i].slot == slot);
            if let Some(&i) = asked {
                self.texts[slot as usize].sources.push(drafts.clone());
                sequences[i].drafts = drafts;
            }
        }
        Ok(())
    }
}

/// A plan for the drafter.
#[derive(Debug, Default)]
struct Plan {
    asked: Vec<usize>,
    /// Draft tokens per text.
    n: usize,
    /// A draft token that is less likely right than this is not worth making.
    least: f64,
}

/// Assumed cost of a draft token before one was made, as a part of a step.
const DRAFT_COST: f64 = 0.2;

#[expect(clippy::cast_precision_loss, reason = "counts are far below 2^53")]
const fn count(n: usize) -> f64 {
    n as f64
}
