//! Whether it pays to read a guess.
//!
//! From the end of a layer's last read to the next layer's turn the drive is idle: the gap. A guess that comes true
//! saves its whole read, T, later on. A guess read with `gap` left delays the next layer's reads, if there are any, by
//! T − gap, and if it does not come true, the expert evicted for it may have to be read again. So it pays if
//! `p T > q (T − gap) + (1 − p) T`: p is the share of guesses that come true, q of layers that have to read.
#![forbid(unsafe_code)]

use core::time::Duration;
use std::time::Instant;

/// Maximum number of experts considered in a guess.
pub(super) const GUESS_MAX: usize = 64;

/// Measurements of guesses and reads.
#[derive(Debug)]
pub(super) struct Governor {
    /// By place in a guess, the share that came true recently.
    places: [Share; GUESS_MAX],
    /// By layer, the share that came true recently, and the share expected from the places of the guesses.
    layers: Box<[[Share; 2]]>,
    /// Guesses that may still be read without paying.
    n_trials: u32,
    /// Awaited reads since the last guess that was read although it does not pay.
    n_awaited: u32,
    /// Since when no read is awaited.
    idle_since: Option<Instant>,
    /// Recent time from then until the next layer's turn, in seconds.
    gap: f32,
    /// The share of layers that recently had to wait for a read.
    waiting: f32,
    /// Recent time of an expert's guessed read alone, in seconds; 0 before the first.
    read: f32,
}

/// Number of guesses that are read just to measure their time.
const N_TRIALS: u32 = 8;
/// Once per this number of awaited reads, a guess that does not pay is read to measure its current time.
const PROBE: u32 = 256;
/// Weight of the last guess.
const RATE: f32 = 0.1;

impl Governor {
    pub(super) fn new(n_layers: usize) -> Self {
        Self {
            places: [Share::FIRST; GUESS_MAX],
            layers: vec![[Share::FIRST; 2]; n_layers].into(),
            n_trials: N_TRIALS,
            n_awaited: 0,
            idle_since: None,
            gap: 0.0,
            waiting: 1.0,
            read: 0.0,
        }
    }

    /// Notes whether a layer's guess at a place came true.
    pub(super) fn note(&mut self, layer: usize, place: u8, came_true: bool) {
        let of_place = &mut self.places[usize::from(place)];
        let found = f32::from(u8::from(came_true));
        of_place.note(found);
        let [of_layer, expected] = &mut self.layers[layer];
        of_layer.note(found);
        expected.note(of_place.of);
    }

    /// How likely a guess is to come true.
    fn odds(&self, layer: usize, place: u8) -> f32 {
        let [of_layer, expected] = self.layers[layer];
        let of_place = self.places[usize::from(place)].of;
        (of_place * of_layer.of / expected.of.max(0.01)).min(1.0)
    }

    /// No read is awaited any more.
    pub(super) fn is_idle(&mut self, now: Instant) {
        self.idle_since.get_or_insert(now);
    }

    /// A step is over: the time until the next one is not a gap.
    pub(super) const fn end_step(&mut self) {
        self.idle_since = None;
    }

    /// The next layer's turn begins, and it has not asked for reads yet.
    pub(super) fn begin_turn(&mut self, now: Instant) {
        if let Some(since) = self.idle_since.replace(now) {
            follow(&mut self.gap, (now - since).as_secs_f32());
        }
    }

    /// A layer has asked for what it needs: whether it waits for reads.
    pub(super) fn has_asked(&mut self, waits: bool) {
        follow(&mut self.waiting, f32::from(u8::from(waits)));
        if waits {
            self.idle_since = None;
        }
    }

    /// A part of an expert is read for a layer that waits for it.
    pub(super) const fn has_to_read(&mut self) {
        self.n_awaited = self.n_awaited.saturating_add(1);
        self.idle_since = None;
    }

    /// An expert was read by a guess. With others at the same time it takes longer than alone.
    pub(super) fn has_read(&mut self, time: Duration, is_alone: bool) {
        if self.read == 0.0 {
            self.read = time.as_secs_f32();
        } else if is_alone {
            follow(&mut self.read, time.as_secs_f32());
        }
    }

    /// Why a guess is to be read now, if it is. What that uses up is given to [`Self::spend`] when it is read.
    pub(super) fn admits(&self, layer: usize, place: u8, now: Instant) -> Option<Reason> {
        let odds = self.odds(layer, place);
        let idle = self
            .idle_since
            .map_or(0.0, |since| (now - since).as_secs_f32());
        let late = self.read - (self.gap - idle).max(0.0);
        let pays = (2.0 * odds - 1.0) * self.read >= self.waiting * late.max(0.0);
        match pays {
            true => Some(Reason::Pays),
            false if self.n_trials > 0 => Some(Reason::Trial),
            false => (self.n_awaited >= PROBE).then_some(Reason::Probe),
        }
    }

    /// A guess is read.
    pub(super) const fn spend(&mut self, reason: Reason) {
        match reason {
            Reason::Pays => {}
            Reason::Trial => self.n_trials = self.n_trials.saturating_sub(1),
            Reason::Probe => self.n_awaited = 0,
        }
    }
}

/// Why a guess is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reason {
    Pays,
    /// To measure the time of a read.
    Trial,
    /// To measure its current time.
    Probe,
}

/// The share of guesses of a kind that came true.
#[derive(Clone, Copy, Debug)]
struct Share {
    of: f32,
    n: f32,
}

impl Share {
    /// The assumption before the first guess.
    const FIRST: Self = Self { of: 0.75, n: 1.0 };

    /// The mean of all at first, then increasingly of the most recent ones.
    fn note(&mut self, found: f32) {
        self.n += 1.0;
        let rate = RATE.max(self.n.recip());
        self.of += rate * (found - self.of);
    }
}

/// Moves a figure part of the way towards the last value.
fn follow(figure: &mut f32, seen: f32) {
    *figure += RATE * (seen - *figure);
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAYS: Option<Reason> = Some(Reason::Pays);
    const MS: Duration = Duration::from_millis(1);

    /// One that has tried enough, and whose reads take 2 ms.
    fn seasoned() -> Governor {
        let mut governor = Governor::new(2);
        governor.n_trials = 0;
        governor.has_read(2 * MS, true);
        governor
    }

    #[test]
    fn a_guess_pays_if_the_gap_and_its_odds_are_large_enough() {
        let mut governor = seasoned();
        let now = Instant::now();
        // No gap, and each layer waits: only certainty would pay.
        for i in 0..20 {
            governor.note(0, 3, i % 8 != 0);
        }
        assert_eq!(governor.admits(0, 3, now), None);
        // Half of the read fits the gap: odds of 0.75 and more pay.
        governor.gap = 0.001;
        assert_eq!(governor.admits(0, 3, now), PAYS);
        assert_eq!(governor.admits(1, 2, now), PAYS);
        governor.places[2].of = 0.7;
        assert_eq!(governor.admits(1, 2, now), None);
        // Most of the gap is over.
        governor.is_idle(now);
        assert_eq!(governor.admits(1, 2, now + MS), None);
        // Where layers seldom wait, a late guess seldom matters.
        governor.waiting = 0.1;
        assert_eq!(governor.admits(1, 2, now + MS), PAYS);
        // Guesses that rather fail than come true never pay.
        governor.waiting = 0.0;
        governor.places[2].of = 0.49;
        assert_eq!(governor.admits(1, 2, now), None);
    }

    #[test]
    fn a_layer_whose_guesses_fail_does_not_spoil_another() {
        let mut governor = seasoned();
        governor.gap = 0.002;
        for i in 0..40 {
            governor.note(i % 2, 0, i % 2 == 0);
        }
        let now = Instant::now();
        assert_eq!(governor.admits(0, 0, now), PAYS);
        assert_eq!(governor.admits(1, 0, now), None);
    }

    #[test]
    fn what_does_not_pay_is_tried_now_and_then() {
        let mut governor = Governor::new(1);
        governor.has_read(2 * MS, true);
        governor.places = [Share { of: 0.0, n: 9.0 }; GUESS_MAX];
        let now = Instant::now();
        let mut read = || {
            let reason = governor.admits(0, 0, now);
            reason.inspect(|reason| governor.spend(*reason))
        };
        let n = (0..1000).filter(|_| read() == Some(Reason::Trial)).count();
        assert_eq!(n, N_TRIALS as usize);
        assert_eq!(read(), None);
        for _ in 0..PROBE {
            governor.has_to_read();
        }
        // A guess without a slot is not read, and so it is not the probe.
        assert_eq!(governor.admits(0, 0, now), Some(Reason::Probe));
        let mut read = || {
            let reason = governor.admits(0, 0, now);
            reason.inspect(|reason| governor.spend(*reason))
        };
        assert_eq!([read(), read()], [Some(Reason::Probe), None]);
    }

    #[test]
    fn the_time_between_steps_is_no_gap() {
        let mut governor = seasoned();
        governor.is_idle(Instant::now() - 100 * MS);
        governor.end_step();
        governor.begin_turn(Instant::now());
        assert_eq!(governor.gap.to_bits(), 0);
        governor.has_to_read();
        governor.is_idle(Instant::now() - 100 * MS);
        governor.begin_turn(Instant::now());
        assert!(governor.gap >= 0.01, "{}", governor.gap);
    }
}
