//! Rotary position embedding: frequencies per model, angles per position.

use super::config::{ModelConfig, RopeScaling};
use crate::kernels::KernelTable;
use crate::kernels::contract::double;
use crate::kernels::table::{Rope as Rotation, RopePairing};

/// The rotary frequencies of a model, (n_rot / 2), in f64: `base^(-2i / n_rot)`, scaled.
#[derive(Clone, Copy, Debug)]
pub struct Rope<'m> {
    frequencies: &'m [f64],
    pairing: RopePairing,
}

impl<'m> Rope<'m> {
    pub(super) const fn new(frequencies: &'m [f64], pairing: RopePairing) -> Self {
        Self {
            frequencies,
            pairing,
        }
    }

    /// Dimensions rotated.
    pub const fn n_rot(&self) -> usize {
        2 * self.frequencies.len()
    }

    /// Cosines and sines of the angles at `position`, each (n_rot / 2). A negative position
    /// rotates back.
    ///
    /// # Panics
    /// If a slice is shorter than n_rot / 2.
    pub fn angles(&self, position: i64, cos: &mut [f32], sin: &mut [f32]) {
        for (i, frequency) in self.frequencies.iter().enumerate() {
            #[expect(clippy::cast_precision_loss, reason = "positions are below 2^32")]
            let (c, s) = double::cos_sin(position as f64 * frequency);
            #[expect(clippy::cast_possible_truncation, reason = "the contract rounds here")]
            {
                (cos[i], sin[i]) = (c as f32, s as f32);
            }
        }
    }

    /// Rotates a head in place.
    pub fn rotate(&self, table: &KernelTable, head: &mut [f32], cos: &[f32], sin: &[f32]) {
        table.rope(&mut Rotation {
            head,
            cos,
            sin,
            pairing: self.pairing,
        });
    }
}

/// Computes the frequencies of `config` into `out` (n_rot / 2); `factors` divide them, where
/// the file has some (llama 3).
pub(super) fn frequencies(config: &ModelConfig, factors: Option<&[f32]>, out: &mut [f64]) {
    let scale = match config.rope_scaling {
        RopeScaling::None => 1.0,
        RopeScaling::Linear { factor } => 1.0 / f64::from(factor),
    };
    let ln_base = double::ln(f64::from(config.rope_freq_base));
    #[expect(clippy::cast_precision_loss, reason = "a few hundred dimensions")]
    for (i, out) in out.iter_mut().enumerate() {
        let exponent = -((2 * i) as f64) / config.n_rot as f64;
        let factor = factors.map_or(1.0, |factors| f64::from(factors[i]));
        *out = double::exp(exponent * ln_base) * scale / factor;
    }
}
