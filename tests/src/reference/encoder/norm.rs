//! Norms: by the mean square, or layer norms with a bias or none.

use super::super::Unreadable;
use super::super::source::{Source, rms_norm};
use super::config::Config;

#[derive(Debug)]
pub(super) struct Norm {
    weight: Vec<f64>,
    bias: Option<Vec<f64>>,
    is_rms: bool,
    eps: f64,
}

impl Norm {
    pub(super) fn load(
        source: &mut Source<'_>,
        config: &Config,
        stem: &str,
    ) -> Result<Self, Unreadable> {
        let name = format!("{stem}.weight");
        let len = source.len(&name).unwrap_or(config.n_embd);
        Ok(Self {
            weight: source.vector(&name, len)?,
            bias: source.optional_vector(&format!("{stem}.bias"), len)?,
            is_rms: config.is_rms,
            eps: config.eps,
        })
    }

    /// If the file has it.
    pub(super) fn optional(
        source: &mut Source<'_>,
        config: &Config,
        stem: &str,
    ) -> Result<Option<Self>, Unreadable> {
        let there = source.has(&format!("{stem}.weight"));
        there.then(|| Self::load(source, config, stem)).transpose()
    }

    pub(super) const fn len(&self) -> usize {
        self.weight.len()
    }

    pub(super) fn apply(&self, x: &mut [f64]) {
        if self.is_rms {
            return x.copy_from_slice(&rms_norm(x, &self.weight, self.eps));
        }
        let n = x.len() as f64;
        let mean = x.iter().sum::<f64>() / n;
        let variance = x.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / n;
        for (i, x) in x.iter_mut().enumerate() {
            let bias = self.bias.as_ref().map_or(0.0, |bias| bias[i]);
            *x = (*x - mean) / (variance + self.eps).sqrt() * self.weight[i] + bias;
        }
    }

    /// The norm of `x`; `x` itself if `norm` is `None`.
    pub(super) fn of(norm: Option<&Self>, x: &[f64]) -> Vec<f64> {
        let mut x = x.to_vec();
        if let Some(norm) = norm {
            norm.apply(&mut x);
        }
        x
    }
}
