//! How heads rotate: frequencies, scaled as files say.
//!
//! Sources: `RoPE` (arXiv 2104.09864), `YaRN` (arXiv 2309.00071), DeepSeek's form of its magnitude.

use super::super::Unreadable;
use super::families::{Family, LocalRope};
use super::keys::Keys;

#[derive(Clone, Copy, Debug)]
pub(super) struct Rope {
    /// Whether (2i, 2i + 1) rotate together, otherwise (i, i + n_rot / 2).
    is_neighbours: bool,
    pub(super) n_rot: usize,
    pub(super) n_ctx_orig: usize,
    freq_base: f64,
    local_freq_base: f64,
    /// Whether layers with windows are scaled as the others are.
    scales_local: bool,
    scaling: Scaling,
    factor: f64,
    /// On what is rotated.
    magnitude: f64,
    /// Numbers of turns within the original context between which YaRN's ramp is.
    beta_fast: f64,
    beta_slow: f64,
    /// Whether the ramp begins and ends at whole dimensions.
    truncates: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Scaling {
    /// Also longrope, whose factor is mostly 1.
    Linear,
    Yarn,
}

impl Rope {
    pub(super) fn load(
        keys: &Keys<'_>,
        family: &Family,
        head_len: usize,
    ) -> Result<Self, Unreadable> {
        let n_rot = keys.length_or("rope.dimension_count", head_len)?;
        if n_rot > head_len || !n_rot.is_multiple_of(2) {
            return Err(Unreadable::new(format!(
                "RoPE turns {n_rot} of {head_len} elements"
            )));
        }
        let factor = keys.number_or("rope.scaling.factor", 1.0)?;
        let (scaling, factor) = match keys.text_or("rope.scaling.type", "linear")? {
            "none" => (Scaling::Linear, 1.0),
            "linear" | "longrope" => (Scaling::Linear, factor),
            "yarn" => (Scaling::Yarn, factor),
            name => return Err(Unreadable::new(format!("RoPE scaling {name}"))),
        };
        let number_if = |there: bool, name: &str, default| match there {
            true => keys.number_or(name, default),
            false => Ok(default),
        };
        let yarn = family.has_yarn_keys;
        let multiplier = number_if(yarn, "rope.scaling.yarn_log_multiplier", 0.0)?;
        let magnitude = match scaling {
            Scaling::Linear => 1.0,
            Scaling::Yarn => stretch(factor, 1.0) / stretch(factor, multiplier),
        };
        let freq_base = keys.number_or("rope.freq_base", 10_000.0)?;
        let (has_local_base, local_freq_base) = match family.local_rope {
            LocalRope::AsAll | LocalRope::Unscaled => (false, freq_base),
            LocalRope::OwnBase => (true, freq_base),
            LocalRope::OwnBaseUnscaled => (true, 10_000.0),
        };
        let context = keys.length("context_length")?;
        Ok(Self {
            is_neighbours: family.is_neighbours,
            n_rot,
            n_ctx_orig: keys.length_or("rope.scaling.original_context_length", context)?,
            freq_base,
            local_freq_base: number_if(has_local_base, "rope.freq_base_swa", local_freq_base)?,
            scales_local: matches!(family.local_rope, LocalRope::AsAll | LocalRope::OwnBase),
            scaling,
            factor,
            magnitude: magnitude * keys.number_or("rope.scaling.attn_factor", 1.0)?,
            beta_fast: number_if(yarn, "rope.scaling.yarn_beta_fast", 32.0)?,
            beta_slow: number_if(yarn, "rope.scaling.yarn_beta_slow", 1.0)?,
            // All published models of gpt-oss say `truncate: false`.
            truncates: keys.flag_or("rope.scaling.yarn_truncate", family.name != "gpt-oss")?,
        })
    }

    /// Rotates the first `n_rot` elements of every head in `heads`, each of `head_len`, to `position`.
    /// `divisors` divide the frequencies, one per pair.
    pub(super) fn rotate(
        &self,
        heads: &mut [f64],
        head_len: usize,
        position: usize,
        is_local: bool,
        divisors: &[f64],
    ) {
        for head in heads.chunks_exact_mut(head_len) {
            for (pair, divisor) in divisors.iter().enumerate() {
                let (frequency, scale) = self.frequency(pair, *divisor, is_local);
                let (sin, cos) = (position as f64 * frequency).sin_cos();
                let (i, j) = match self.is_neighbours {
                    true => (2 * pair, 2 * pair + 1),
                    false => (pair, pair + self.n_rot / 2),
                };
                let (a, b) = (head[i] * scale, head[j] * scale);
                head[i] = a * cos - b * sin;
                head[j] = a * sin + b * cos;
            }
        }
    }

    /// The frequency of a pair, and the factor on what is rotated.
    fn frequency(&self, pair: usize, divisor: f64, is_local: bool) -> (f64, f64) {
        let base = match is_local {
            true => self.local_freq_base,
            false => self.freq_base,
        };
        let n_rot = self.n_rot as f64;
        let kept = base.powf(-2.0 * pair as f64 / n_rot) / divisor;
        if is_local && !self.scales_local {
            return (kept, 1.0);
        }
        let divided = kept / self.factor;
        let frequency = match self.scaling {
            Scaling::Linear => divided,
            Scaling::Yarn => {
                // The dimension that makes this number of turns within the original context.
                let dimension = |turns: f64| {
                    let wavelengths = self.n_ctx_orig as f64 / (turns * core::f64::consts::TAU);
                    n_rot * wavelengths.ln() / (2.0 * base.ln())
                };
                let (low, high) = (dimension(self.beta_fast), dimension(self.beta_slow));
                let (low, high) = match self.truncates {
                    true => (low.floor(), high.ceil()),
                    false => (low, high),
                };
                let (low, high) = (low.max(0.0), high.min(n_rot - 1.0));
                let ramp = ((pair as f64 - low) / (high - low).max(0.001)).clamp(0.0, 1.0);
                divided * ramp + kept * (1.0 - ramp)
            }
        };
        (frequency, self.magnitude)
    }
}

/// YaRN's magnitude factor for rotated elements; 1 if the scaling factor is at most 1 or the multiplier is 0.
fn stretch(factor: f64, multiplier: f64) -> f64 {
    1.0 + 0.1 * multiplier * factor.max(1.0).ln()
}
