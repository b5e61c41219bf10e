//! Rotation of heads to their positions.

/// How a head's first elements rotate.
#[derive(Clone, Debug)]
pub(super) struct Rope {
    /// Radians a position, of each pair.
    frequencies: Vec<f64>,
    /// Whether (2i, 2i + 1) rotate together, otherwise (i, i + half).
    pub(super) is_neighbours: bool,
    /// Factor on what is rotated.
    magnitude: f64,
}

/// Longer contexts than a model was trained with.
///
/// Source: YaRN (Peng and others, 2023), with the limits of 32 and 1 turns that all published files have.
#[derive(Clone, Copy, Debug)]
pub(super) struct Yarn {
    pub(super) factor: f64,
    pub(super) n_ctx_orig: f64,
    pub(super) magnitude: f64,
}

impl Rope {
    pub(super) fn new(n_rot: usize, base: f64) -> Self {
        let pairs = (0..n_rot / 2).map(|pair| pair as f64);
        let frequency = |pair: f64| base.powf(-2.0 * pair / n_rot as f64);
        Self {
            frequencies: pairs.map(frequency).collect(),
            is_neighbours: false,
            magnitude: 1.0,
        }
    }

    pub(super) fn of_neighbours(self) -> Self {
        Self {
            is_neighbours: true,
            ..self
        }
    }

    /// With a divisor for each frequency.
    pub(super) fn divided(mut self, divisors: &[f64]) -> Self {
        for (frequency, divisor) in self.frequencies.iter_mut().zip(divisors) {
            *frequency /= divisor;
        }
        self
    }

    /// Pairs that turn often stay, those that turn less than once slow down, with a ramp between.
    pub(super) fn stretched(mut self, base: f64, yarn: Yarn) -> Self {
        let n_rot = 2.0 * self.frequencies.len() as f64;
        // The dimension that makes this number of turns within the original context.
        let dimension = |turns: f64| {
            let wavelengths = yarn.n_ctx_orig / (turns * core::f64::consts::TAU);
            n_rot * wavelengths.ln() / (2.0 * base.ln())
        };
        let low = dimension(32.0).floor().max(0.0);
        let high = dimension(1.0).ceil().min(n_rot - 1.0);
        for (pair, frequency) in self.frequencies.iter_mut().enumerate() {
            let ramp = ((pair as f64 - low) / (high - low).max(0.001)).clamp(0.0, 1.0);
            *frequency *= ramp / yarn.factor + (1.0 - ramp);
        }
        self.magnitude = yarn.magnitude;
        self
    }

    /// Turns the first elements of `head`; the rest stays.
    pub(super) fn turn(&self, head: &mut [f64], position: usize) {
        let half = self.frequencies.len();
        for (pair, frequency) in self.frequencies.iter().enumerate() {
            let (sin, cos) = (position as f64 * frequency).sin_cos();
            let (i, j) = match self.is_neighbours {
                true => (2 * pair, 2 * pair + 1),
                false => (pair, pair + half),
            };
            let (a, b) = (head[i] * self.magnitude, head[j] * self.magnitude);
            head[i] = a * cos - b * sin;
            head[j] = a * sin + b * cos;
        }
    }
}
