//! The scaling factor of a frame: a weighted softmax over its features.
//!
//! `e_i = exp(clip(f_i, -88, 88))` for f0 to f6, `p_i = e_i / (Σ e + 1e-6)`, scaling = Σ w_i p_i
//! with w = 9, 8, 7, 5, 4, 3, 2. The value before clamping is what the next frame's temporal
//! coherence takes in: `f2 = a · before + (1 - a) · f2`.

use super::features::Features;

/// What a stream remembers between frames.
#[derive(Clone, Copy, Debug)]
pub(super) struct Scaler {
    alpha: f32,
    /// Unclamped scaling of the last evaluated frame.
    before: f32,
    coherence: Option<f32>,
}

const WEIGHTS: [f64; 7] = [9.0, 8.0, 7.0, 5.0, 4.0, 3.0, 2.0];

impl Scaler {
    pub(super) const fn new(alpha: f32) -> Self {
        Self {
            alpha,
            before: 1.0,
            coherence: None,
        }
    }

    /// f2 of the next frame. Once per evaluated frame.
    pub(super) fn coherence(&mut self) -> f32 {
        let mean = match self.coherence {
            None => self.before,
            Some(mean) => self.alpha * self.before + (1.0 - self.alpha) * mean,
        };
        *self.coherence.insert(mean)
    }

    /// The frame's scaling, 0 to 10, which becomes what is held.
    pub(super) fn scale(&mut self, features: &Features) -> f32 {
        let e = exp(features.0.map(|f| f64::from(f.clamp(-88.0, 88.0))));
        let sum = e.iter().sum::<f64>() + 1e-6;
        let weighted: f64 = WEIGHTS.iter().zip(e).map(|(w, e)| w * e).sum();
        #[expect(clippy::cast_possible_truncation, reason = "rounds to the nearest f32")]
        let scaling = (weighted / sum) as f32;
        self.before = scaling;
        self.held()
    }

    /// The scaling of the last evaluated frame; 1 before any.
    pub(super) const fn held(&self) -> f32 {
        self.before.clamp(0.0, 10.0)
    }
}

/// e^x for |x| ≤ 88, error below 1e-12 relative. Polynomials without divisions, step by step side
/// by side: one alone is a chain of operations that wait for each other.
#[inline]
fn exp<const N: usize>(x: [f64; N]) -> [f64; N] {
    /// Adding and subtracting it rounds to an integer.
    const MAGIC: f64 = 6_755_399_441_055_744.0;
    /// 1 / k! for k = 11 down to 0.
    const TERMS: [f64; 12] = {
        let mut terms = [1.0; 12];
        let (mut k, mut factorial) = (1, 1.0);
        while k < 12 {
            factorial *= k as f64;
            terms[11 - k] = 1.0 / factorial;
            k += 1;
        }
        terms
    };
    let (mut n, mut r, mut p) = ([0.0; N], [0.0; N], [0.0; N]);
    for i in 0..N {
        n[i] = (x[i] * core::f64::consts::LOG2_E + MAGIC) - MAGIC;
        r[i] = x[i] - n[i] * 0.693_147_180_369_123_8 - n[i] * 1.908_214_929_270_587_7e-10;
    }
    for term in TERMS {
        for i in 0..N {
            p[i] = p[i] * r[i] + term;
        }
    }
    for i in 0..N {
        #[expect(clippy::cast_possible_truncation, reason = "|n| is at most 127")]
        let exponent = (n[i] as i64 + 1023).cast_unsigned();
        p[i] *= f64::from_bits(exponent << 52);
    }
    p
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_exponential_is_within_its_stated_error() {
        assert_eq!(exp([0.0])[0].to_bits(), 1f64.to_bits());
        for i in -8800..=8800 {
            let x = f64::from(i) / 100.0;
            let exact = crate::kernels::contract::double::exp(x);
            assert!((exp([x])[0] / exact - 1.0).abs() < 1e-12, "{x}");
        }
    }
}
