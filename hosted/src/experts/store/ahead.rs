//! Experts that a layer to come may need: read when nothing else is to be read, as long as that pays.
//!
//! From the end of a layer's last read to the next layer's turn the drive has nothing to do: the gap. A guess that comes
//! true spares its whole read, T, later on. One that is read with `gap` left makes the next layer's reads T − gap late, if
//! it has some, and if it does not come true, what has left for it may have to be read again. So it pays if
//! `p T > q (T − gap) + (1 − p) T`: p is the share of guesses that come true, q of layers that have to read.
#![forbid(unsafe_code)]

use super::slots::Progress;
use super::{Shared, State};
use core::time::Duration;
use sluice_core::engine::ExpertPart;
use std::collections::VecDeque;
use std::time::Instant;

/// Experts that a guess names beside as many as a token takes.
pub(super) const N_MORE: usize = 4;
/// Most experts of a guess that are looked at.
const GUESS_MAX: usize = 64;
/// Most guessed experts that wait to be read.
const QUEUE_MAX: usize = 128;

/// Guesses, and what has become of them.
#[derive(Debug)]
pub(super) struct Ahead {
    /// Most experts that are read by guesses for a layer; with 0 they are only noted in traces.
    n_guesses: usize,
    /// Id, layer and place in its guess of experts to read.
    queue: VecDeque<(u32, usize, u8)>,
    /// By layer, the experts that were guessed last.
    guesses: Box<[([u32; GUESS_MAX], usize)]>,
    /// By place in a guess, the share that came true lately.
    places: [Share; GUESS_MAX],
    /// By layer, the same, once one of its guesses was read.
    layers: Box<[Option<Share>]>,
    /// Guesses that were read, as far as it matters.
    n_tried: u32,
    /// Reads that were waited for since the last guess that was read though it does not pay.
    n_awaited: u32,
    /// Since when no read is waited for.
    idle_since: Option<Instant>,
    /// How long that lasts until the next layer's turn, in seconds, lately.
    gap: f32,
    /// The share of layers that had to wait for a read lately.
    waiting: f32,
    /// How long an expert's read by a guess takes alone, in seconds, lately; 0 as long as there was none.
    read: f32,
    /// Reads of guesses under way.
    pub(super) n_reading: usize,
}

/// So many guesses are read before it is asked whether they pay.
const N_TRIED: u32 = 64;
/// Most reads of guesses at once: an expert's. A read that is needed may have to wait for them.
const N_READING_MAX: usize = 2;
/// For so many reads that were waited for, a guess that does not pay is read, to see whether that is still right.
const PROBE: u32 = 256;
/// How much the last guess counts.
const RATE: f32 = 0.1;

impl Ahead {
    pub(super) fn new(n_layers: usize, n_guesses: usize) -> Self {
        Self {
            n_guesses,
            queue: VecDeque::with_capacity(QUEUE_MAX),
            guesses: vec![([0; GUESS_MAX], 0); n_layers].into(),
            places: [Share::FIRST; GUESS_MAX],
            layers: vec![None; n_layers].into(),
            n_tried: 0,
            n_awaited: 0,
            idle_since: None,
            gap: 0.0,
            waiting: 1.0,
            read: 0.0,
            n_reading: 0,
        }
    }

    /// The experts that were guessed for a layer.
    pub(super) fn guess(&self, layer: usize) -> &[u32] {
        let (guess, len) = &self.guesses[layer];
        &guess[..*len]
    }

    /// What became of a layer's guess at a place.
    fn note(&mut self, layer: usize, place: u8, came_true: bool) {
        let of_place = &mut self.places[usize::from(place)];
        let of_layer = self.layers[layer].get_or_insert(*of_place);
        for share in [of_place, of_layer] {
            share.note(came_true);
        }
    }

    /// No read is waited for any more.
    pub(super) fn is_idle(&mut self, now: Instant) {
        self.idle_since.get_or_insert(now);
    }

    /// The next layer's turn: whether it waits for reads.
    pub(super) fn turn(&mut self, waits: bool) {
        let now = Instant::now();
        if let Some(since) = self.idle_since.take() {
            follow(&mut self.gap, (now - since).as_secs_f32());
        }
        follow(&mut self.waiting, f32::from(u8::from(waits)));
        self.idle_since = (!waits).then_some(now);
    }

    /// A part of an expert is read for a layer that waits for it.
    pub(super) fn has_to_read(&mut self) {
        self.n_awaited = self.n_awaited.saturating_add(1);
    }

    /// An expert was read by a guess. With others at the same time it takes longer than alone.
    pub(super) fn has_read(&mut self, time: Duration, is_alone: bool) {
        if self.read == 0.0 {
            self.read = time.as_secs_f32();
        } else if is_alone {
            follow(&mut self.read, time.as_secs_f32());
        }
    }

    /// Whether a guess is to be read now.
    fn admits(&mut self, layer: usize, place: u8, now: Instant) -> bool {
        let of_place = self.places[usize::from(place)];
        let of_layer = self.layers[layer].unwrap_or(of_place);
        let share = of_place.of.midpoint(of_layer.of);
        let idle = self
            .idle_since
            .map_or(0.0, |since| (now - since).as_secs_f32());
        let late = self.read - (self.gap - idle).max(0.0);
        let pays = (2.0 * share - 1.0) * self.read >= self.waiting * late.max(0.0);
        if pays || self.n_tried < N_TRIED {
            self.n_tried += 1;
            return true;
        }
        let is_probe = self.n_awaited >= PROBE;
        if is_probe {
            self.n_awaited = 0;
        }
        is_probe
    }
}

/// Of guesses of a kind, the share that came true.
#[derive(Clone, Copy, Debug)]
struct Share {
    of: f32,
    n: f32,
}

impl Share {
    /// What is thought of guesses before the first.
    const FIRST: Self = Self { of: 0.75, n: 1.0 };

    /// The mean of all at first, then more and more of the last ones.
    fn note(&mut self, came_true: bool) {
        self.n += 1.0;
        let rate = RATE.max(self.n.recip());
        self.of += rate * (f32::from(u8::from(came_true)) - self.of);
    }
}

/// Lets a figure go some of the way to the last one seen.
fn follow(figure: &mut f32, seen: f32) {
    *figure += RATE * (seen - *figure);
}

impl State {
    /// A layer needs what is in a slot: if it was guessed, it stays now as others do.
    pub(super) fn came_true(&mut self, slot: usize, layer: usize) {
        let Some(place) = self.info[slot].guess.take() else {
            return;
        };
        self.guessed.retain(|&other| other != slot);
        self.stats.guessed_needed += 1;
        self.ahead.note(layer, place, true);
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
        // Before its own layer has said what it needs, a guess is only noted.
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
            let Some((id, layer, place)) = state.ahead.queue.pop_front() else {
                return;
            };
            let is_known = self.slots.of(id).is_some();
            if is_known || !state.ahead.admits(layer, place, Instant::now()) {
                continue;
            }
            let Some(slot) = self.spare_room(state) else {
                return;
            };
            self.slots.take(slot, id);
            state.info[slot].guess = Some(place);
            state.guessed.push(slot);
            state.stats.guessed += 1;
            for part in [ExpertPart::GateUp, ExpertPart::Down] {
                // Where the drive is left alone, the first part has failed, and the slot is free again.
                if self.slots.id(slot) == Some(id) {
                    self.read_part(state, (slot, id, part), true);
                }
            }
        }
    }

    /// A layer is at work, or a step has ended (`layer` is none then): what was guessed for it, and did not come true,
    /// leaves before what was ever needed, and is not read any more.
    pub(super) fn drop_guesses(&self, state: &mut State, layer: Option<usize>) {
        let is_over = |of: usize| layer.is_none_or(|layer| of <= layer);
        state.ahead.queue.retain(|(_, of, _)| !is_over(*of));
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
                state.ahead.note(of, place, false);
            }
            state.order.put(slot, state.worth.of(id), id);
        }
    }

    /// A guess whose read failed is no expert at all.
    pub(super) fn forget_guess(&self, state: &mut State, slot: usize) {
        let info = state.info[slot];
        let parts = [ExpertPart::GateUp, ExpertPart::Down];
        let has_failed = parts
            .iter()
            .any(|part| self.slots.progress(slot, *part) == Progress::Failed);
        let is_idle = info.guess.is_some() && info.n_reading == [0; 2];
        if has_failed && is_idle && self.slots.evict(slot) {
            state.info[slot].guess = None;
            state.guessed.retain(|&other| other != slot);
            state.free.push(slot);
        }
    }
}
