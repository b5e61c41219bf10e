//! Tensors of divisors of rotary frequencies: Llama 3's, longrope's, and those that keep columns still.

use super::super::Shape;
use super::super::context::narrow;
use super::{RotarySettings, ScalingKind, YARN};
use crate::HfError;
use sluice::file::GgufHeader;

/// Divisors of frequencies, a tensor of the GGUF file.
#[derive(Clone, Debug)]
pub struct Divisors {
    /// GGUF's name.
    pub tensor: &'static str,
    /// One for each pair of columns.
    pub values: Vec<f32>,
}

impl RotarySettings {
    /// The divisor tensors. Phi-3's attention factor is a key instead.
    ///
    /// # Errors
    /// [`HfError::Config`].
    pub fn factors(
        &self,
        header: &mut GgufHeader,
        shape: &Shape,
    ) -> Result<Vec<Divisors>, HfError> {
        let one = |values| {
            let tensor = "rope_freqs.weight";
            Ok(vec![Divisors { tensor, values }])
        };
        match self.kind {
            ScalingKind::Llama3 => one(self.llama3(shape)?),
            ScalingKind::LongRope => self.longrope(header, shape),
            ScalingKind::Share => one(self.still_columns(shape)?),
            ScalingKind::Linear => self.scaling.number(&["factor"]).map(|_| Vec::new()),
            ScalingKind::Yarn => {
                self.scaling.number(&["factor"])?;
                for (key, _) in YARN {
                    self.scaling.maybe_number(&[key])?;
                }
                Ok(Vec::new())
            }
            ScalingKind::None | ScalingKind::Alpha => Ok(Vec::new()),
        }
    }

    /// Llama 3's divisors: 1 for short waves, `factor` for long ones, blended in between. Computed
    /// in f32 and in upstream's order, so that the bits agree.
    fn llama3(&self, shape: &Shape) -> Result<Vec<f32>, HfError> {
        let number = |key, default| -> Result<f32, HfError> {
            let value = self.scaling.maybe_number(&[key])?.unwrap_or(default);
            Ok(narrow(value))
        };
        let factor = number("factor", 8.0)?;
        let low = number("low_freq_factor", 1.0)?;
        let high = number("high_freq_factor", 4.0)?;
        let n_ctx = self.n_ctx_original.or(self.n_ctx);
        let n_ctx = narrow(f64::from(n_ctx.unwrap_or(8192)));
        if [factor, low, high, n_ctx].iter().any(|x| *x <= 0.0) {
            return Err(self
                .scaling
                .error(&["factor"], "or another of its numbers is not above 0"));
        }
        let head_dim = shape.head_dim;
        let exponents = (0..head_dim).step_by(2);
        let divisors = exponents.map(|i| {
            let exponent = f64::from(narrow(f64::from(i)) / narrow(f64::from(head_dim)));
            let freq = narrow(self.base.powf(exponent)).recip();
            let wave = freq.recip() * core::f32::consts::TAU;
            if wave < n_ctx / high {
                return 1.0;
            }
            if wave > n_ctx / low {
                return factor;
            }
            let smooth = (wave.recip() * n_ctx - low) / (high - low);
            ((1.0 - smooth) / factor + smooth).recip()
        });
        Ok(divisors.collect())
    }

    /// 1 for the column pairs that rotate; for the others, a divisor that stops them.
    fn still_columns(&self, shape: &Shape) -> Result<Vec<f32>, HfError> {
        let head_dim = u32::try_from(shape.size("global_head_dim")).unwrap_or(0);
        let share = self.scaling.number(&["partial_rotary_factor"])?;
        if !(0.0..=1.0).contains(&share) {
            let what = format!("is {share}, not in 0..=1");
            return Err(self.scaling.error(&["partial_rotary_factor"], &what));
        }
        let n_turning = share * f64::from(head_dim) / 2.0;
        let pairs = 0..head_dim / 2;
        let divisors = pairs.map(|pair| match f64::from(pair + 1) <= n_turning {
            true => 1.0,
            false => 1e30,
        });
        Ok(divisors.collect())
    }

    fn longrope(&self, header: &mut GgufHeader, shape: &Shape) -> Result<Vec<Divisors>, HfError> {
        let missing = || {
            self.scaling
                .error(&["max_position_embeddings"], "is missing")
        };
        let n_ctx = self.n_ctx.ok_or_else(missing)?;
        let n_original = self.n_ctx_original.unwrap_or(n_ctx);
        let scale = self.scaling.maybe_number(&["factor"])?;
        let scale = scale.unwrap_or(f64::from(n_ctx) / f64::from(n_original));
        let attention = match self.scaling.maybe_number(&["attention_factor"])? {
            Some(given) => given,
            None if scale > 1.0 => (1.0 + scale.ln() / f64::from(n_original).ln()).sqrt(),
            None => 1.0,
        };
        header.set("phi3.rope.scaling.attn_factor", narrow(attention));
        let n_factor = (self.n_rot(shape)? / 2) as usize;
        let list = |key| {
            let numbers = self.scaling.numbers(key)?.unwrap_or_default();
            if numbers.len() == n_factor {
                return Ok(numbers);
            }
            let what = format!("has {} factors, expected {n_factor}", numbers.len());
            Err(self.scaling.error(&[key], &what))
        };
        let divisors = |tensor, values| Divisors { tensor, values };
        Ok(vec![
            divisors("rope_factors_long.weight", list("long_factor")?),
            divisors("rope_factors_short.weight", list("short_factor")?),
        ])
    }
}
