//! Experts that a layer to come may need: read when nothing else is to be read, as long as guesses come true.
#![forbid(unsafe_code)]

use super::slots::Progress;
use super::{Pool, Shared, State};
use sluice_core::engine::ExpertPart;
use std::collections::VecDeque;

/// Experts that a guess names beside as many as a token takes.
pub(super) const N_MORE: usize = 4;
/// Most experts of a guess that are looked at.
const GUESS_MAX: usize = 64;
/// Most guessed experts that wait to be read.
const QUEUE_MAX: usize = 128;

/// Guesses, and what has become of them.
#[derive(Debug)]
pub(super) struct Ahead {
    /// Whether guessed experts are read, or only noted in traces.
    pub(super) reads: bool,
    /// Id, layer and place in its guess of experts to read.
    queue: VecDeque<(u32, usize, u8)>,
    /// By layer, the experts that were guessed last.
    guesses: Box<[([u32; GUESS_MAX], usize)]>,
    /// By place in a guess, the share that came true lately.
    shares: [f32; GUESS_MAX],
    /// Guesses that were passed over.
    n_passed: u32,
    /// Reads of guesses under way.
    pub(super) n_reading: usize,
}

/// A guess is read if so many of its place came true lately.
const SHARE_MIN: f32 = 0.5;
/// Most reads of guesses at once: an expert's. A read that is needed may have to wait for them.
const N_READING_MAX: usize = 2;
/// Of those that are passed over, one in so many is read to see whether that is still right.
const PROBE: u32 = 64;
/// How much the last guess counts.
const RATE: f32 = 0.05;

impl Ahead {
    pub(super) fn new(n_layers: usize, reads: bool) -> Self {
        Self {
            reads,
            queue: VecDeque::with_capacity(QUEUE_MAX),
            guesses: vec![([0; GUESS_MAX], 0); n_layers].into(),
            shares: [0.5; GUESS_MAX],
            n_passed: 0,
            n_reading: 0,
        }
    }

    /// The experts that were guessed for a layer.
    pub(super) fn guess(&self, layer: usize) -> &[u32] {
        let (guess, len) = &self.guesses[layer];
        &guess[..*len]
    }

    /// What became of a guess at a place.
    pub(super) fn note(&mut self, place: u8, came_true: bool) {
        let share = &mut self.shares[usize::from(place)];
        *share += RATE * (f32::from(u8::from(came_true)) - *share);
    }

    fn admits(&mut self, place: u8) -> bool {
        if self.shares[usize::from(place)] >= SHARE_MIN {
            return true;
        }
        self.n_passed += 1;
        self.n_passed.is_multiple_of(PROBE)
    }
}

impl State {
    /// The layer is at work: what was guessed for it and not read is no use any more.
    pub(super) fn drop_guesses(&mut self, layer: usize) {
        self.ahead.queue.retain(|(_, of, _)| *of > layer);
    }

    /// Notes a layer's need in the trace.
    pub(super) fn trace(&mut self, layer: usize) {
        let (Some(tracing), Ok(number)) = (&mut self.trace, u32::try_from(layer)) else {
            return;
        };
        let guess = self.ahead.guess(layer);
        let (experts, hits) = (&tracing.experts, &tracing.hits);
        tracing
            .writer
            .record(tracing.n_steps, number, experts, hits, guess);
        tracing.experts.clear();
        tracing.hits.clear();
    }
}

impl Shared {
    /// A guess at what a layer will need.
    pub(super) fn expect(&self, layer: usize, experts: &[u32]) {
        let Some(places) = self.places.layers[layer].as_ref() else {
            return;
        };
        let mut state = self.lock();
        let experts = &experts[..experts.len().min(GUESS_MAX)];
        let ahead = &mut state.ahead;
        let (guess, len) = &mut ahead.guesses[layer];
        guess[..experts.len()].copy_from_slice(experts);
        *len = experts.len();
        if !ahead.reads {
            return;
        }
        for (place, &expert) in (0..).zip(experts) {
            let id = places.first_id + expert;
            let is_known = self.slots.of(id).is_some();
            if !is_known && ahead.queue.len() < QUEUE_MAX && ahead.admits(place) {
                ahead.queue.push_back((id, layer, place));
            }
        }
        // Before its own layer has said what it needs, a guess is only noted.
        if state.need.next == Some(layer) {
            self.ask_for_more(&mut state);
        }
    }

    /// Reads guessed experts, one after the other, while no read is waited for.
    pub(super) fn ask_for_guesses(&self, state: &mut State) {
        while state.flights.n_awaited() == 0 && state.ahead.n_reading < N_READING_MAX {
            let Some((id, _, place)) = state.ahead.queue.pop_front() else {
                return;
            };
            if self.slots.of(id).is_some() {
                continue;
            }
            let Some(slot) = self.guess_room(state) else {
                return;
            };
            self.fill(state, slot, id);
            state.info[slot].guess = Some(place);
            state.stats.guessed += 1;
            for part in [ExpertPart::GateUp, ExpertPart::Down] {
                // Where the drive is left alone, the first part has failed, and the slot is free again.
                if self.slots.id(slot) == Some(id) {
                    self.read_part(state, (slot, id, part), true);
                }
            }
        }
    }

    /// An empty slot for a guess: the oldest one's.
    fn guess_room(&self, state: &mut State) -> Option<usize> {
        if let Some(slot) = state.free[Pool::Guessed as usize].pop() {
            return Some(slot);
        }
        let can_go = |&slot: &usize| {
            let info = &state.info[slot];
            let is_idle = info.n_reading == [0; 2] && !self.slots.is_lent(slot);
            // What was guessed in this turn is for the next.
            is_idle
                && info.filled < state.need.turn
                && !self.slots.id(slot).is_some_and(|id| state.need.has(id))
        };
        let slots = state.guessed.iter().copied().filter(can_go);
        let slot = slots.min_by_key(|&slot| state.info[slot].filled)?;
        if !self.slots.evict(slot) {
            return None;
        }
        if let Some(place) = state.info[slot].guess.take() {
            state.ahead.note(place, false);
        }
        Some(slot)
    }

    /// A guess whose read failed is no expert at all.
    pub(super) fn forget_guess(&self, state: &mut State, slot: usize) {
        let info = state.info[slot];
        let parts = [ExpertPart::GateUp, ExpertPart::Down];
        let has_failed = parts
            .iter()
            .any(|part| self.slots.progress(slot, *part) == Progress::Failed);
        let is_needed = self.slots.id(slot).is_some_and(|id| state.need.has(id));
        let is_idle = info.pool == Pool::Guessed && info.n_reading == [0; 2] && !is_needed;
        if has_failed && is_idle && self.slots.evict(slot) {
            state.info[slot].guess = None;
            state.free[Pool::Guessed as usize].push(slot);
        }
    }
}
