//! The scaling factor of a frame: a weighted softmax over its features.
//!
//! `e_i = exp(clip(f_i, -88, 88))` for f0 to f6, `p_i = e_i / (Σ e + 1e-6)`, scaling = Σ w_i p_i
//! with w = 9, 8, 7, 5, 4, 3, 2. The value before clamping enters the next frame's temporal
//! coherence: `f2 = a · before + (1 - a) · f2`.

use super::features::Features;

/// The state of a stream between frames.
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

    /// The frame's scaling, 0 to 10, which becomes the held one.
    pub(super) fn scale(&mut self, features: &Features) -> f32 {
        let mut e = [0.0; 7];
        for (e, f) in e.iter_mut().zip(features.0) {
            *e = exp(f64::from(f.clamp(-88.0, 88.0)));
        }
        let mut weighted = WEIGHTS;
        for (w, e) in weighted.iter_mut().zip(e) {
            *w *= e;
        }
        let (sum, weighted) = (entropy_last(e, 1e-6), entropy_last(weighted, 0.0));
        #[expect(clippy::cast_possible_truncation, reason = "rounds to the nearest f32")]
        let scaling = (weighted / sum) as f32;
        self.before = scaling;
        self.held()
    }

    /// The scaling of the last evaluated frame; 1 before the first.
    pub(super) const fn held(&self) -> f32 {
        self.before.clamp(0.0, 10.0)
    }
}

/// The sum of all and `more`, with f3 last, because the entropy is available last.
#[inline]
fn entropy_last([f0, f1, f2, f3, f4, f5, f6]: [f64; 7], more: f64) -> f64 {
    ((f0 + f1) + (f2 + f4)) + ((f5 + f6) + more) + f3
}

/// e^x for |x| ≤ 88, relative error below 1e-9, far below the result's rounding to
/// f32. Without divisions, and in short chains: the caller waits for a frame's scaling.
#[inline]
fn exp(x: f64) -> f64 {
    /// Adding and subtracting it rounds to an integer, which is in the low bits of the sum.
    const MAGIC: f64 = 6_755_399_441_055_744.0;
    let shifted = x * core::f64::consts::LOG2_E + MAGIC;
    let n = shifted - MAGIC;
    let r = x - n * core::f64::consts::LN_2;
    let (r2, r4) = (r * r, (r * r) * (r * r));
    // 1 / k! for k = 0 to 8, in pairs of pairs.
    let low = (1.0 + r) + (1.0 / 2.0 + r * (1.0 / 6.0)) * r2;
    let high = (1.0 / 24.0 + r * (1.0 / 120.0)) + (1.0 / 720.0 + r * (1.0 / 5040.0)) * r2;
    let p = low + (high + r4 * (1.0 / 40320.0)) * r4;
    // Times 2^n: n is added to the exponent; the bits of its sign are shifted out.
    f64::from_bits(p.to_bits().wrapping_add(shifted.to_bits() << 52))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_exponential_is_within_its_stated_error() {
        assert_eq!(exp(0.0).to_bits(), 1f64.to_bits());
        for i in -8800..=8800 {
            let x = f64::from(i) / 100.0;
            let exact = crate::kernels::contract::double::exp(x);
            assert!((exp(x) / exact - 1.0).abs() < 1e-9, "{x}");
        }
    }
}
