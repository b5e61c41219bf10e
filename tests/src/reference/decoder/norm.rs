//! Norms with a weight: RMSNorm (arXiv 1910.07467), or `LayerNorm` without a bias.

use super::super::Unreadable;
use super::super::source::{Source, rms_norm};
use super::config::Config;

#[derive(Debug)]
pub(super) struct Norm {
    weight: Vec<f64>,
    eps: f64,
    is_centred: bool,
}

impl Norm {
    pub(super) fn load(
        source: &mut Source<'_>,
        config: &Config,
        name: &str,
        len: usize,
    ) -> Result<Self, Unreadable> {
        Ok(Self {
            weight: source.vector(name, len)?,
            eps: config.eps,
            is_centred: config.family.is_centred,
        })
    }

    pub(super) fn of(&self, x: &[f64]) -> Vec<f64> {
        if !self.is_centred {
            return rms_norm(x, &self.weight, self.eps);
        }
        // The variance is the mean square of what is left of the mean.
        let mean = x.iter().sum::<f64>() / x.len() as f64;
        let centred: Vec<f64> = x.iter().map(|x| x - mean).collect();
        rms_norm(&centred, &self.weight, self.eps)
    }

    /// Normalises each row, or head, of `x`.
    pub(super) fn of_each(&self, x: &mut [f64]) {
        for row in x.chunks_exact_mut(self.weight.len()) {
            row.copy_from_slice(&self.of(row));
        }
    }
}
