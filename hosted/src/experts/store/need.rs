//! The needs of the layer at work, and evictions for it.
#![forbid(unsafe_code)]

use super::slots::Progress;
use super::{Shared, State};
use core::sync::atomic::Ordering;
use sluice_core::engine::{ExpertPart, NeededExperts};
use std::time::Instant;

/// The experts that the layer at work needs.
#[derive(Debug)]
pub(super) struct Need {
    /// Ids, ascending.
    pub(super) ids: Vec<u32>,
    first_id: u32,
    /// Gate and up are done: only downs are needed.
    is_down: bool,
    /// How many of the ids have been asked for, by part.
    n_asked: [usize; 2],
    /// Whether there is room for all of them.
    all_fit: bool,
    /// By id, the last layer's turn that needed it.
    marks: Box<[u64]>,
    pub(super) turn: u64,
    /// The layer that has experts next.
    pub(super) next: Option<usize>,
}

impl Need {
    pub(super) fn new(n_ids: usize, n_in_layer_max: usize) -> Self {
        Self {
            ids: Vec::with_capacity(n_in_layer_max),
            first_id: 0,
            is_down: false,
            n_asked: [0; 2],
            all_fit: true,
            marks: vec![0; n_ids].into(),
            turn: 0,
            next: None,
        }
    }

    pub(super) fn has(&self, id: u32) -> bool {
        self.marks[id as usize] == self.turn
    }

    /// Marks that nothing is needed.
    pub(super) fn end(&mut self) {
        self.ids.clear();
        self.turn += 1;
        self.n_asked = [0; 2];
    }

    /// Whether everything that may have room has been asked for.
    fn is_asked(&self) -> bool {
        let n = self.ids.len();
        let [gate_up, down] = self.n_asked;
        (self.is_down || gate_up == n) && (down == n || !self.is_down && !self.all_fit)
    }
}

impl Shared {
    /// A layer's turn begins.
    pub(super) fn announce(&self, needed: &NeededExperts<'_>) {
        let Some(places) = self.places.layers[needed.layer].as_ref() else {
            return;
        };
        let mut state = self.lock();
        let need = &mut state.need;
        need.end();
        need.first_id = places.first_id;
        need.is_down = false;
        for &expert in needed.experts {
            let id = places.first_id + expert;
            need.ids.push(id);
            need.marks[id as usize] = need.turn;
            for (left, n) in self.to_read.iter().zip(needed.readers) {
                let n = u32::try_from(n).unwrap_or(u32::MAX);
                left[expert as usize].store(n, Ordering::SeqCst);
            }
        }
        state.need.next = self.next_with_experts(needed.layer + 1);
        self.count(&mut state, needed.layer);
        self.drop_guesses(&mut state, Some(needed.layer));
        let n_foreground = self.slots.len() - state.guessed.len();
        state.need.all_fit = state.need.ids.len() <= n_foreground;
        self.layer.store(needed.layer + 1, Ordering::SeqCst);
        state.ahead.governor.begin_turn(Instant::now());
        self.ask_for_more(&mut state);
        let waits = state.flights.n_awaited() > 0;
        state.ahead.governor.has_asked(waits);
        drop(state);
        self.wake();
    }

    /// The first layer from `first` on that has experts.
    pub(super) fn next_with_experts(&self, first: usize) -> Option<usize> {
        let mut layers = first..self.places.layers.len();
        layers.find(|&layer| self.places.layers[layer].is_some())
    }

    /// Counts hits, and how many of them were guessed.
    fn count(&self, state: &mut State, layer: usize) {
        for i in 0..state.need.ids.len() {
            let id = state.need.ids[i];
            state.stats.needed += 1;
            state.worth.used(id);
            let parts = [ExpertPart::GateUp, ExpertPart::Down];
            let slot = self.slots.of(id);
            let progress = slot.map(|slot| parts.map(|part| self.slots.progress(slot, part)));
            let is_hit = progress == Some([Progress::Ready; 2]);
            if is_hit {
                state.stats.hits += 1;
            } else if progress.is_some_and(|parts| parts.contains(&Progress::Coming)) {
                state.stats.late += 1;
            }
            if let Some(slot) = slot {
                for part in parts {
                    // What failed before is retried, once none of it is under way any more.
                    if self.slots.progress(slot, part) != Progress::Failed {
                        continue;
                    }
                    match state.info[slot].n_reading[part as usize] {
                        0 => self.slots.set_progress(slot, part, Progress::Empty),
                        _ => self.needs_silent(state, slot),
                    }
                }
                state.came_true(slot, layer);
                state.order.put(slot, state.worth.of(id), id);
            }
            if let Some(tracing) = &mut state.trace {
                tracing.hits.push(is_hit);
                tracing.experts.push(id - state.need.first_id);
            }
        }
        state.trace(layer);
    }

    /// Asks for what the layer needs and is not requested yet, as far as there is room; then for guesses.
    pub(super) fn ask_for_more(&self, state: &mut State) {
        for part in [ExpertPart::GateUp, ExpertPart::Down] {
            let need = &state.need;
            let is_early = part == ExpertPart::Down && !need.is_down && !need.all_fit;
            if is_early || part == ExpertPart::GateUp && need.is_down {
                continue;
            }
            let which = part as usize;
            while let Some(&id) = state.need.ids.get(state.need.n_asked[which]) {
                // Requested by a worker before its turn, and used by all workers since.
                let is_over = self.left(state, id, part) == 0;
                if !is_over && !self.ensure(state, id, part, false) {
                    break;
                }
                state.need.n_asked[which] += 1;
            }
        }
        // If even the layer's needs do not fit, nothing is evicted for a guess.
        if state.need.is_asked() && state.need.all_fit {
            self.ask_for_guesses(state);
        }
        self.flush();
    }

    /// A worker asks for a missing part. False if room for it is short now.
    pub(super) fn ask(&self, state: &mut State, id: u32, part: ExpertPart) -> bool {
        if !state.need.has(id) {
            return false;
        }
        if part == ExpertPart::Down && !state.need.is_down {
            state.need.is_down = true;
            self.ask_for_more(state);
        }
        let is_there = self.ensure(state, id, part, true);
        self.flush();
        is_there
    }

    /// Makes sure that a part is present or under way. `is_awaited`: a worker can do nothing else.
    fn ensure(&self, state: &mut State, id: u32, part: ExpertPart, is_awaited: bool) -> bool {
        let slot = match self.slots.of(id) {
            Some(slot) => slot,
            None => {
                let awaited = is_awaited.then_some(id);
                let Some(slot) = self.room(state, awaited) else {
                    return false;
                };
                self.fill(state, slot, id);
                slot
            }
        };
        match self.slots.progress(slot, part) {
            Progress::Empty => self.read_part(state, slot, id, part, false),
            _ => true,
        }
    }

    /// Gives an empty slot to an expert.
    pub(super) fn fill(&self, state: &mut State, slot: usize, id: u32) {
        self.slots.take(slot, id);
        state.worth.inserted(id);
        state.order.put(slot, state.worth.of(id), id);
    }

    /// Empties a slot: of an expert that the layer does not need; else of one that all workers are done with; else, for
    /// a worker that can do nothing without `awaited`, of one that is needed later.
    fn room(&self, state: &mut State, awaited: Option<u32>) -> Option<usize> {
        if let Some(slot) = self.spare_room(state) {
            return Some(slot);
        }
        let slots = (0..self.slots.len()).filter(|&slot| self.is_spent(state, slot, awaited));
        // Downs are read in ascending order, so the last is wanted last.
        let slot = slots.max_by_key(|&slot| self.slots.id(slot))?;
        if !self.evict(slot) {
            return None;
        }
        state.order.remove(slot);
        state.stats.evictions += 1;
        Some(slot)
    }

    /// An empty slot; if need be, evicts the least valuable of the experts that the layer does not need.
    pub(super) fn spare_room(&self, state: &mut State) -> Option<usize> {
        if let Some(slot) = state.free.pop() {
            return Some(slot);
        }
        let (need, info) = (&state.need, &state.info);
        let slot = state.order.pop(|slot| {
            let is_needed = self.slots.id(slot).is_some_and(|id| need.has(id));
            !is_needed && info[slot].n_reading == [0; 2] && self.evict(slot)
        })?;
        state.stats.evictions += 1;
        Some(slot)
    }

    /// Empties a slot, unless a worker has borrowed from it; the pages of neurons are given back.
    pub(super) fn evict(&self, slot: usize) -> bool {
        let id = self.slots.id(slot);
        let is_empty = self.slots.evict(slot);
        if let (true, Some(home), Some(id)) = (is_empty, &self.home, id) {
            let (layer, cluster) = self.places.of_id(id);
            let parts = self.places.layers[layer]
                .iter()
                .flat_map(|places| &places.parts);
            for piece in parts.flat_map(|part| &part.pieces) {
                home.release(&piece.pages_of(cluster));
            }
        }
        is_empty
    }

    /// Whether all workers are done with what the layer needs of a slot, or `awaited` is needed before it.
    fn is_spent(&self, state: &State, slot: usize, awaited: Option<u32>) -> bool {
        let (info, need) = (&state.info[slot], &state.need);
        let is_busy = info.n_reading != [0; 2] || self.slots.is_lent(slot);
        let Some(id) = self
            .slots
            .id(slot)
            .filter(|_| info.guess.is_none() && !is_busy)
        else {
            return false;
        };
        if !need.has(id) {
            return true;
        }
        if !need.is_down {
            return self.left(state, id, ExpertPart::GateUp) == 0;
        }
        // Gate and up are done; down may be read into any slot.
        let has_none = self.slots.progress(slot, ExpertPart::Down) == Progress::Empty;
        let is_over = has_none || self.left(state, id, ExpertPart::Down) == 0;
        is_over || awaited.is_some_and(|awaited| awaited < id)
    }

    /// How many workers have yet to be lent a part of an expert that the layer needs.
    fn left(&self, state: &State, id: u32, part: ExpertPart) -> u32 {
        let expert = (id - state.need.first_id) as usize;
        self.to_read[part as usize][expert].load(Ordering::SeqCst)
    }
}
