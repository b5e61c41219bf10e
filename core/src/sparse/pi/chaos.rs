//! Jitter, orders and numbers that are the same in every run: from the digits of π, or from a hash of a counter.
//!
//! One hundred digits repeat: orders of 100 items are the same in every round, and orders of n items begin at only
//! `100 / gcd(n, 100)` different digits. [`PiChaos::hashed`] has neither limit. [`PiScheduler`] and
//! [`DeterministicJitter`] take it unless digits are asked for.

use super::super::SparsityError;
use super::super::error::{check_finite, check_len};
use super::constants::PI_DIGITS;
use core::cmp::Ordering;

/// A deterministic generator.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PiChaos {
    /// The next digit, or the next counter.
    position: usize,
    jitter_scale: f32,
    /// The seed of the hash; `None` for digits.
    seed: Option<u64>,
}

impl Default for PiChaos {
    fn default() -> Self {
        Self::new()
    }
}

impl PiChaos {
    /// From the digits of π, as the predecessor's.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            position: 0,
            jitter_scale: 0.001,
            seed: None,
        }
    }

    /// From a hash of a counter: other seeds, other numbers.
    #[must_use]
    pub const fn hashed(seed: u64) -> Self {
        Self {
            seed: Some(seed),
            ..Self::new()
        }
    }

    /// With another scale of the jitter; it is 0.001.
    #[must_use]
    pub const fn with_jitter_scale(self, scale: f32) -> Self {
        Self {
            jitter_scale: scale,
            ..self
        }
    }

    /// A small number for an index, within ± half of the scale: `(digit - 4.5) / 9 · scale`, or one from the hash.
    #[must_use]
    pub fn jitter(&self, index: usize) -> f32 {
        let unit = match self.seed {
            None => (f32::from(PI_DIGITS[index % PI_DIGITS.len()]) - 4.5) / 9.0,
            Some(seed) => unit_of(hash(seed, index as u64)) - 0.5,
        };
        unit * self.jitter_scale
    }

    /// Jitters of `start` and the indices after it.
    pub fn jitter_into(&self, start: usize, out: &mut [f32]) {
        for (i, x) in out.iter_mut().enumerate() {
            *x = self.jitter(start.wrapping_add(i));
        }
    }

    /// The next digit, 0 to 9.
    #[expect(clippy::cast_possible_truncation, reason = "a digit")]
    pub fn next_digit(&mut self) -> u8 {
        match self.seed {
            None => {
                let digit = PI_DIGITS[self.position % PI_DIGITS.len()];
                self.position = (self.position + 1) % PI_DIGITS.len();
                digit
            }
            Some(seed) => scaled(self.next_hash(seed), 10) as u8,
        }
    }

    /// The next number from 0 to below 1: three digits by 1000, or 24 bits of the hash.
    pub fn next_float(&mut self) -> f32 {
        match self.seed {
            None => {
                let [a, b, c] = [0; 3].map(|_| f32::from(self.next_digit()));
                (a * 100.0 + b * 10.0 + c) / 1000.0
            }
            Some(seed) => unit_of(self.next_hash(seed)),
        }
    }

    /// The next integer below `max`; 0 where that is 0. Digits reach at most 1000 different ones.
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a number below `max`, from 0 on"
    )]
    pub fn next_int(&mut self, max: usize) -> usize {
        match (max, self.seed) {
            (0, _) => 0,
            (max, None) => (self.next_float() * max as f32) as usize % max,
            (max, Some(seed)) => scaled(self.next_hash(seed), max as u64) as usize,
        }
    }

    /// Begins again.
    pub const fn reset(&mut self) {
        self.position = 0;
    }

    /// Goes on from a position.
    pub const fn seed(&mut self, position: usize) {
        self.position = match self.seed {
            None => position % PI_DIGITS.len(),
            Some(_) => position,
        };
    }

    /// Writes a permutation of the indices of `order`: Fisher and Yates, from the top.
    pub fn permutation_into(&mut self, order: &mut [usize]) {
        for (i, place) in order.iter_mut().enumerate() {
            *place = i;
        }
        for i in (1..order.len()).rev() {
            let j = self.next_int(i + 1);
            order.swap(i, j);
        }
    }

    /// Writes the order of a round: by digits, from digit `round · n mod 100`.
    pub fn schedule_order_into(&self, round: usize, order: &mut [usize]) {
        let mut chaos = *self;
        chaos.seed(round.wrapping_mul(order.len()));
        chaos.permutation_into(order);
    }

    fn next_hash(&mut self, seed: u64) -> u64 {
        let number = hash(seed, self.position as u64);
        self.position = self.position.wrapping_add(1);
        number
    }
}

/// The finaliser of `SplitMix64` (Steele, Lea and Flood 2014), of a counter.
const fn hash(seed: u64, counter: u64) -> u64 {
    let step = counter.wrapping_add(1).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    let z = seed.wrapping_add(step);
    let z = (z ^ z >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let z = (z ^ z >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ z >> 31
}

/// 24 bits as a number from 0 to below 1.
const fn unit_of(hash: u64) -> f32 {
    (hash >> 40) as f32 / (1u32 << 24) as f32
}

/// A number below `max`.
const fn scaled(hash: u64, max: u64) -> u64 {
    ((hash as u128 * max as u128) >> 64) as u64
}

/// Adds jitter to numbers, to break ties.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DeterministicJitter {
    chaos: PiChaos,
}

impl DeterministicJitter {
    /// Within ± half of `magnitude`, from the hash.
    #[must_use]
    pub const fn new(magnitude: f32) -> Self {
        Self {
            chaos: PiChaos::hashed(0).with_jitter_scale(magnitude),
        }
    }

    /// From the digits of π, which have ten values: most ties stay.
    #[must_use]
    pub const fn with_digits(magnitude: f32) -> Self {
        Self {
            chaos: PiChaos::new().with_jitter_scale(magnitude),
        }
    }

    /// A value with the jitter of an index.
    #[must_use]
    pub fn apply(&self, value: f32, index: usize) -> f32 {
        value + self.chaos.jitter(index)
    }

    /// Adds its jitter to each value.
    pub fn apply_in_place(&self, values: &mut [f32]) {
        for (i, x) in values.iter_mut().enumerate() {
            *x = self.apply(*x, i);
        }
    }

    /// Of indices of equal values, the one with the largest jitter, the last of several.
    ///
    /// # Errors
    /// No indices. The predecessor returns 0.
    pub fn break_tie(&self, indices: &[usize]) -> Result<usize, SparsityError> {
        let jitter = |index: &&usize| self.chaos.jitter(**index);
        let largest = indices
            .iter()
            .max_by(|a, b| jitter(a).total_cmp(&jitter(b)));
        largest
            .copied()
            .ok_or(SparsityError::Empty { what: "indices" })
    }
}

/// Orders of items, round after round.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PiScheduler<'a> {
    num_items: usize,
    round: usize,
    chaos: PiChaos,
    weights: &'a [f32],
}

impl<'a> PiScheduler<'a> {
    /// Of `num_items` items, from the hash.
    #[must_use]
    pub const fn new(num_items: usize) -> Self {
        Self {
            num_items,
            round: 0,
            chaos: PiChaos::hashed(0),
            weights: &[],
        }
    }

    /// From the digits of π, as the predecessor's.
    #[must_use]
    pub const fn with_digits(num_items: usize) -> Self {
        Self {
            chaos: PiChaos::new(),
            ..Self::new(num_items)
        }
    }

    /// With a weight for each item.
    ///
    /// # Errors
    /// Another number of weights; a weight that is not finite.
    pub fn with_weights(self, weights: &'a [f32]) -> Result<Self, SparsityError> {
        check_len("weights", weights.len(), self.num_items)?;
        check_finite("weights", weights)?;
        Ok(Self { weights, ..self })
    }

    /// Number of items.
    #[must_use]
    pub const fn num_items(&self) -> usize {
        self.num_items
    }

    /// The round.
    #[must_use]
    pub const fn round(&self) -> usize {
        self.round
    }

    /// The next round.
    pub const fn next_round(&mut self) {
        self.round = self.round.wrapping_add(1);
    }

    /// Round 0.
    pub const fn reset(&mut self) {
        self.round = 0;
    }

    /// Writes the order of this round.
    ///
    /// # Errors
    /// Another length than the number of items.
    pub fn order_into(&self, order: &mut [usize]) -> Result<(), SparsityError> {
        self.order_of(self.round, order)
    }

    /// Writes the items, heaviest first; equal weights are ordered by their jitter, the largest first, and equal jitters by
    /// index. Without weights it is the round's order. (The predecessor adds the jitter to the weights, which changes
    /// the order of close ones, and vanishes in large ones.)
    ///
    /// # Errors
    /// Another length than the number of items.
    pub fn weighted_order_into(&self, order: &mut [usize]) -> Result<(), SparsityError> {
        self.order_of(self.round, order)?;
        if !self.weights.is_empty() {
            let jitter = |i: usize| self.chaos.jitter(i);
            order.sort_unstable_by(|&a, &b| {
                let by_jitter = || jitter(b).total_cmp(&jitter(a));
                self.by_weight(a, b).then_with(by_jitter).then(a.cmp(&b))
            });
        }
        Ok(())
    }

    /// Writes the order for updates of a round: two items of the heavier half, then one of the lighter. `halves` is
    /// working memory.
    ///
    /// # Errors
    /// Another length than the number of items.
    pub fn lora_update_order_into(
        &self,
        round: usize,
        halves: &mut [usize],
        order: &mut [usize],
    ) -> Result<(), SparsityError> {
        check_len("halves", halves.len(), self.num_items)?;
        self.order_of(round, order)?;
        if self.weights.is_empty() {
            return Ok(());
        }
        // The place in the round's order decides among equal weights.
        for (place, item) in order.iter().enumerate() {
            halves[*item] = place;
        }
        let places = &*halves;
        order.sort_unstable_by(|&a, &b| self.by_weight(a, b).then(places[a].cmp(&places[b])));
        halves.copy_from_slice(order);
        let (heavy, light) = halves.split_at(self.num_items / 2);
        let (mut heavy, mut light) = (heavy.iter(), light.iter());
        for (i, place) in order.iter_mut().enumerate() {
            let next = match i % 3 < 2 {
                true => heavy.next().or_else(|| light.next()),
                false => light.next().or_else(|| heavy.next()),
            };
            *place = *next.unwrap_or(place);
        }
        Ok(())
    }

    /// Writes a sample of the indices below `total`, as many as `batch` holds at most; returns their number. `order` is
    /// working memory of `total` places.
    ///
    /// # Errors
    /// Another length of `order`.
    pub fn sample_into(
        &self,
        total: usize,
        order: &mut [usize],
        batch: &mut [usize],
    ) -> Result<usize, SparsityError> {
        check_len("order", order.len(), total)?;
        self.chaos.schedule_order_into(self.round, order);
        let n = batch.len().min(total);
        batch[..n].copy_from_slice(&order[..n]);
        Ok(n)
    }

    /// The heavier item first; both zeros are equal.
    fn by_weight(&self, a: usize, b: usize) -> Ordering {
        let [a, b] = [a, b].map(|i| self.weights[i] + 0.0);
        b.total_cmp(&a)
    }

    fn order_of(&self, round: usize, order: &mut [usize]) -> Result<(), SparsityError> {
        check_len("order", order.len(), self.num_items)?;
        self.chaos.schedule_order_into(round, order);
        Ok(())
    }
}
