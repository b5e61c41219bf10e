//! The time that a step takes, learnt from earlier steps.
//!
//! A step's time is the time of its rows, measured for ranges of row counts, plus the time for the positions
//! that attention looks back at, which is nearly proportional to their number.

/// Upper ends of the ranges of row counts.
const EDGES: [usize; 20] = [
    1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 1024, 4096,
];
/// Positions in one unit of `Costs::positions`.
const POSITIONS_UNIT: f64 = 4096.0;
/// Fraction of an error that is corrected per step.
const RATE: f64 = 0.3;
/// Samples are clamped to this multiple of the expected time, so that stalls of the machine do not skew the model.
const SURPRISE_MAX: f64 = 3.0;
/// Steps after which a range's measurement is stale.
const OLD: u32 = 512;
/// The assumed cost of one more row, as a fraction of the step, where no such steps were measured: low, so that they
/// are tried.
const ROW_COST: f64 = 0.06;
/// Factor by which steps may exceed the measured row counts, so that larger ones are tried.
const GROWTH: usize = 2;

/// The measurement for a range of row counts.
#[derive(Clone, Copy, Debug)]
struct Known {
    rows: f64,
    /// Nanoseconds, without attention.
    time: f64,
    /// Index of the last step in this range.
    at: u32,
}

/// Measured times of steps.
#[derive(Clone, Debug)]
pub struct Costs {
    known: [Option<Known>; EDGES.len()],
    /// Nanoseconds for [`POSITIONS_UNIT`].
    positions: f64,
    n_steps: u32,
}

impl Default for Costs {
    fn default() -> Self {
        Self::new()
    }
}

impl Costs {
    /// A model without measurements.
    pub const fn new() -> Self {
        Self {
            known: [None; EDGES.len()],
            positions: 0.0,
            n_steps: 0,
        }
    }

    /// Learns from a step of `n_rows` tokens, which came after `n_positions` others and took `ns`.
    pub fn note(&mut self, n_rows: usize, n_positions: usize, ns: f64) {
        let cell = cell(n_rows);
        self.n_steps = self.n_steps.wrapping_add(1);
        let at = self.n_steps;
        let (rows, units) = (count(n_rows), count(n_positions) / POSITIONS_UNIT);
        match &mut self.known[cell] {
            None => {
                let time = (ns - self.positions * units).max(ns * 0.1);
                self.known[cell] = Some(Known { rows, time, at });
            }
            Some(known) => {
                // The error is distributed as in normalised least mean squares.
                let scaled = known.time * rows / known.rows;
                let expected = if known.rows > 16.0 {
                    scaled
                } else {
                    known.time
                };
                known.at = at;
                let whole = expected + self.positions * units;
                let error = RATE * (ns.min(SURPRISE_MAX * whole) - whole);
                let norm = 1.0 + units * units;
                known.rows += RATE * (rows - known.rows);
                known.time = (known.time + RATE * (expected - known.time) + error / norm).max(1.0);
                self.positions = (self.positions + error * units / norm).max(0.0);
            }
        }
    }

    /// Nanoseconds that a step will take; 0 without measurements.
    pub fn predict(&self, n_rows: usize, n_positions: usize) -> f64 {
        let attention = self.positions * count(n_positions) / POSITIONS_UNIT;
        self.rows(count(n_rows)) + attention
    }

    /// As [`Self::predict`], but row counts without a recent measurement are assumed to cost little more than measured
    /// ones, so that they are tried.
    pub fn expect(&self, n_rows: usize, n_positions: usize) -> f64 {
        let is_known = |known: &&Known| self.age(known) < OLD;
        let mut below = self.known[..=cell(n_rows)].iter().rev().flatten();
        let Some(below) = below.find(is_known) else {
            return self.predict(n_rows, n_positions);
        };
        let attention = self.positions * count(n_positions) / POSITIONS_UNIT;
        let more = (count(n_rows) - below.rows).max(0.0);
        let guessed = below.time * (1.0 + ROW_COST * more);
        let mut above = self.known[cell(n_rows)..].iter().flatten().filter(is_known);
        let rows = match above.find(|known| known.rows >= count(n_rows)) {
            Some(above) if above.rows > below.rows => {
                let part = more / (above.rows - below.rows);
                guessed.min(below.time + part * (above.time - below.time).max(0.0))
            }
            _ => guessed,
        };
        rows + attention
    }

    /// Whether steps of about `n_rows` rows were never measured, or not recently.
    pub fn is_old(&self, n_rows: usize) -> bool {
        self.known[cell(n_rows)].is_none_or(|known| self.age(&known) >= OLD)
    }

    const fn age(&self, known: &Known) -> u32 {
        self.n_steps.wrapping_sub(known.at)
    }

    /// Nanoseconds of `rows` rows, without attention.
    fn rows(&self, rows: f64) -> f64 {
        let mut below: Option<Known> = None;
        for &known in self.known.iter().flatten() {
            if known.rows >= rows {
                return match below {
                    // Fewer rows than any measured step are assumed to take the same time.
                    None => known.time,
                    Some(below) => {
                        let span = (known.rows - below.rows).max(1.0);
                        let part = (rows - below.rows) / span;
                        below.time + part * (known.time - below.time).max(0.0)
                    }
                };
            }
            below = Some(known);
        }
        below.map_or(0.0, |known| known.time * rows / known.rows.max(1.0))
    }

    /// How many prompt tokens at `position` fit into `ns` together with `n_rows` other rows, which look back at
    /// `n_positions`: up to `max`.
    pub fn fitting(
        &self,
        ns: f64,
        n_rows: usize,
        n_positions: usize,
        position: usize,
        max: usize,
    ) -> usize {
        let most = self
            .known
            .iter()
            .flatten()
            .map(|known| known.rows)
            .fold(0.0, f64::max);
        // Nothing is measured for much longer steps, so they are approached gradually.
        let bound = (0..)
            .map(|i| 32 * GROWTH.pow(i))
            .find(|&bound| count(bound) > most);
        let max = max.min(bound.unwrap_or(usize::MAX));
        let fits = |n: &usize| self.predict(n_rows + n, n_positions + n * (position + n / 2)) <= ns;
        let (mut low, mut high) = (0, max);
        while low < high {
            let middle = (low + high).div_ceil(2);
            if fits(&middle) {
                low = middle;
            } else {
                high = middle - 1;
            }
        }
        low
    }
}

/// The range of `n_rows` rows.
fn cell(n_rows: usize) -> usize {
    let cell = EDGES.partition_point(|&edge| edge < n_rows);
    cell.min(EDGES.len() - 1)
}

#[expect(clippy::cast_precision_loss, reason = "counts are far below 2^53")]
const fn count(n: usize) -> f64 {
    n as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A machine: weights are read once a step, and rows and positions have a cost.
    fn real(n_rows: usize, n_positions: usize) -> f64 {
        let rows = count(n_rows);
        20e6f64.max(1.5e6 * rows) + 2e6 + count(n_positions) * 700.0
    }

    #[test]
    fn steps_are_predicted_after_a_few() {
        let mut costs = Costs::new();
        assert_eq!(costs.fitting(50e6, 1, 10, 0, 512), 32);
        let (mut depth, mut worst) = (100, 0f64);
        for i in 0..400 {
            let n = costs.fitting(50e6, 1, 200, depth, 512).max(16);
            let positions = 200 + n * (depth + n / 2);
            let time = real(1 + n, positions);
            if i > 100 {
                worst = worst.max((costs.predict(1 + n, positions) - time).abs() / time);
            }
            costs.note(1 + n, positions, time);
            costs.note(1, 200 + i, real(1, 200 + i));
            depth = (depth + n) % 4000;
        }
        assert!(worst < 0.25, "{worst}");
        let n = costs.fitting(50e6, 1, 200, 0, 512);
        assert!((22..=40).contains(&n), "{n}");
        assert!((costs.predict(1, 300) / real(1, 300) - 1.0).abs() < 0.1);
    }

    #[test]
    fn a_change_of_the_machine_is_followed() {
        let mut costs = Costs::new();
        (0..50).for_each(|_| costs.note(8, 0, 10e6));
        (0..20).for_each(|_| costs.note(8, 0, 30e6));
        assert!((costs.predict(8, 0) / 30e6 - 1.0).abs() < 0.02);
    }
}
