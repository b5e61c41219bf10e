//! Experts that a layer to come may need: read when nothing else is to be read, as long as that pays
//! ([`Governor`]).
#![forbid(unsafe_code)]

use super::governor::{GUESS_MAX, Governor, Reason};
use super::slots::Progress;
use super::{Shared, State};
use sluice_core::engine::ExpertPart;
use std::collections::VecDeque;
use std::time::Instant;

/// Number of experts that a guess names in addition to those a token uses.
pub(super) const N_MORE: usize = 4;
/// Maximum number of guessed experts that wait to be read.
const QUEUE_MAX: usize = 128;

/// Guesses, and what has become of them.
#[derive(Debug)]
pub(super) struct Ahead {
    /// Maximum number of experts read by guesses for a layer; with 0, guesses are only noted in traces.
    n_guesses: usize,
    /// Id, layer and place in its guess of experts to read.
    queue: VecDeque<(u32, usize, u8)>,
    /// By layer, the experts that were guessed last.
    guesses: Box<[([u32; GUESS_MAX], usize)]>,
    pub(super) governor: Governor,
    /// Reads of guesses under way.
    pub(super) n_reading: usize,
}

/// Maximum reads of guesses at once: one expert's. A needed read may have to wait for them.
const N_READING_MAX: usize = 2;

impl Ahead {
    pub(super) fn new(n_layers: usize, n_guesses: usize) -> Self {
        Self {
            n_guesses,
            queue: VecDeque::with_capacity(QUEUE_MAX),
            guesses: vec![([0; GUESS_MAX], 0); n_layers].into(),
            governor: Governor::new(n_layers),
            n_reading: 0,
        }
    }

    /// The experts that were guessed for a layer.
    pub(super) fn guess(&self, layer: usize) -> &[u32] {
        let (guess, len) = &self.guesses[layer];
        &guess[..*len]
    }
}

impl State {
    /// A layer needs the expert in a slot: if it was guessed, it is kept like any other from now on.
    pub(super) fn came_true(&mut self, slot: usize, layer: usize) {
        let Some(place) = self.info[slot].guess.take() else {
            return;
        };
        self.guessed.retain(|&other| other != slot);
        self.stats.guessed_needed += 1;
        self.ahead.governor.note(layer, place, true);
        // What is still on its way is waited for now.
        self.ahead.n_reading -= self.flights.await_guess(slot);
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
        if ahead.n_guesses == 0 {
            return;
        }
        for (place, &expert) in (0..).zip(experts) {
            let id = places.first_id + expert;
            let is_known = self.slots.of(id).is_some();
            if !is_known && ahead.queue.len() < QUEUE_MAX {
                ahead.queue.push_back((id, layer, place));
            }
        }
        // Before the preceding layer's own needs are known, a guess is only noted.
        if state.need.next == Some(layer) {
            self.ask_for_more(&mut state);
        }
    }

    /// Reads guessed experts, one after the other, while no read is waited for.
    pub(super) fn ask_for_guesses(&self, state: &mut State) {
        while state.flights.n_awaited() == 0
            && state.ahead.n_reading < N_READING_MAX
            && state.guessed.len() < state.ahead.n_guesses
        {
            let Some((index, reason)) = self.next_guess(state) else {
                return;
            };
            // Without a slot, neither the guess nor a trial is used up.
            let Some(slot) = self.spare_room(state) else {
                return;
            };
            let Some((id, _, place)) = state.ahead.queue.remove(index) else {
                return state.free.push(slot);
            };
            state.ahead.governor.spend(reason);
            self.slots.take(slot, id);
            state.info[slot].guess = Some(place);
            state.guessed.push(slot);
            state.stats.guessed += 1;
            for part in [ExpertPart::GateUp, ExpertPart::Down] {
                // If the drive is given up for now, the first part has failed, and the slot is free again.
                if self.slots.id(slot) == Some(id) {
                    self.read_part(state, slot, id, part, true);
                }
            }
        }
    }

    /// The place in the queue of the first guess that is to be read, and why. Guesses that do not pay stay queued until
    /// it is known whether they came true.
    fn next_guess(&self, state: &State) -> Option<(usize, Reason)> {
        let (now, ahead) = (Instant::now(), &state.ahead);
        let mut guesses = ahead.queue.iter().enumerate();
        guesses.find_map(|(index, &(id, layer, place))| {
            let is_known = self.slots.of(id).is_some();
            let reason = ahead.governor.admits(layer, place, now);
            reason.filter(|_| !is_known).map(|reason| (index, reason))
        })
    }

    /// A layer is at work, or a step has ended (`layer` is `None` then): experts guessed for it in vain are
    /// evicted before any that was ever needed, and are not read any more.
    pub(super) fn drop_guesses(&self, state: &mut State, layer: Option<usize>) {
        let is_over = |of: usize| layer.is_none_or(|layer| of <= layer);
        let (ahead, need) = (&mut state.ahead, &state.need);
        ahead.queue.retain(|&(id, of, place)| {
            if layer == Some(of) {
                ahead.governor.note(of, place, need.has(id));
            }
            !is_over(of)
        });
        let mut i = 0;
        while let Some(&slot) = state.guessed.get(i) {
            let id = self.slots.id(slot).unwrap_or_default();
            let (of, _) = self.places.of_id(id);
            if !is_over(of) {
                i += 1;
                continue;
            }
            state.guessed.swap_remove(i);
            if let (Some(place), true) = (state.info[slot].guess.take(), layer == Some(of)) {
                state.ahead.governor.note(of, place, false);
            }
            state.order.put(slot, state.worth.of(id), id);
        }
    }

    /// A guess whose read failed does not count as an expert.
    pub(super) fn forget_guess(&self, state: &mut State, slot: usize) {
        let info = state.info[slot];
        let parts = [ExpertPart::GateUp, ExpertPart::Down];
        let has_failed = parts
            .iter()
            .any(|part| self.slots.progress(slot, *part) == Progress::Failed);
        let is_idle = info.guess.is_some() && info.n_reading == [0; 2];
        if has_failed && is_idle && self.evict(slot) {
            state.info[slot].guess = None;
            state.guessed.retain(|&other| other != slot);
            state.free.push(slot);
        }
    }
}
