//! Rotary position embedding: frequencies per model, angles per position.

use crate::kernels::KernelTable;
use crate::kernels::contract::double;
use crate::kernels::table::{RopeArgs, RopePairing};

/// How rotary frequencies and their effect are scaled for longer contexts.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RopeScaling {
    /// The method.
    pub kind: RopeScalingKind,
    /// Above 0; 2 halves the positions. 1 for no scaling.
    pub factor: f32,
    /// Context length before scaling, in tokens: YaRN's bounds follow from it, and longrope
    /// changes from its short factors to its long ones there.
    pub n_ctx_orig: usize,
    /// Factor on the rotated part of queries and keys in addition to YaRN's own; 1 for none.
    pub attn_factor: f32,
    /// Further settings of YaRN.
    pub yarn: Yarn,
}

/// Settings of YaRN, as `rope.scaling.yarn_…` gives them (Peng et al. 2023; llama.cpp's `rope_yarn`,
/// transformers' `_compute_yarn_parameters`).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Yarn {
    /// Fraction of the ramp between kept and divided frequencies that is applied: 1 all, 0 none, and
    /// then YaRN's factor is not applied either.
    pub ext_factor: f32,
    /// Replaces YaRN's own factor, `1 + 0.1 ln factor`.
    pub attn_factor: Option<f32>,
    /// Turns in the original context above which a frequency is kept.
    pub beta_fast: f32,
    /// Turns below which it is divided.
    pub beta_slow: f32,
    /// Whether the ends of the ramp are whole dimensions, as for most models; else they are where the turns put them
    /// (`rope.scaling.yarn_truncate`, a key of Sluice's own for transformers' `truncate`).
    pub truncates: bool,
    /// `mscale_all_dim`: YaRN's factor is divided by `1 + 0.1 log_multiplier ln factor`.
    pub log_multiplier: f32,
}

impl Yarn {
    /// The published settings.
    pub const DEFAULT: Self = Self {
        ext_factor: 1.0,
        attn_factor: None,
        beta_fast: 32.0,
        beta_slow: 1.0,
        truncates: true,
        log_multiplier: 0.0,
    };
}

impl RopeScaling {
    /// No scaling.
    pub const NONE: Self = Self {
        kind: RopeScalingKind::None,
        factor: 1.0,
        n_ctx_orig: 0,
        attn_factor: 1.0,
        yarn: Yarn::DEFAULT,
    };
}

/// Methods of [`RopeScaling`], as `rope.scaling.type` names them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum RopeScalingKind {
    /// No scaling.
    None,
    /// All frequencies divided by the factor.
    Linear,
    /// Low frequencies divided, high ones kept, a ramp between (Peng et al. 2023).
    Yarn,
    /// Divisors of each frequency in the file, for contexts up to the original one and beyond.
    LongRope,
}

/// Which of a longrope model's two sets of divisors a text is computed with.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LongRope {
    /// The short ones up to the original context, the long ones for a longer text, as in transformers.
    #[default]
    ByLength,
    /// The short ones, whatever the length.
    Short,
    /// The long ones, whatever the length.
    Long,
}

/// A rotation of queries and keys, used by some of a model's layers.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RopeConfig {
    /// Dimensions of a head that are rotated; even, up to the head's length.
    pub n_rot: usize,
    /// Base of the frequencies.
    pub freq_base: f32,
    /// Whether [`RopeScaling::factor`] applies.
    pub is_scaled: bool,
    /// Which dimensions rotate together.
    pub pairing: RopePairing,
}

impl RopeConfig {
    /// The divisor of the frequencies.
    const fn factor(&self, scaling: &RopeScaling) -> f32 {
        if self.is_scaled { scaling.factor } else { 1.0 }
    }
}

/// The rotary frequencies of some layers, (n_rot / 2), in f64: `base^(-2i / n_rot)`, scaled.
#[derive(Clone, Copy, Debug)]
pub struct Rope<'m> {
    frequencies: &'m [f64],
    pairing: RopePairing,
    /// Factor on the rotated part.
    scale: f64,
}

impl<'m> Rope<'m> {
    pub(super) fn new(config: &RopeConfig, scaling: &RopeScaling, frequencies: &'m [f64]) -> Self {
        Self {
            frequencies,
            pairing: config.pairing,
            scale: attention_factor(scaling, config.factor(scaling)),
        }
    }

    /// The rotation without the factor, for input that is already scaled.
    pub(crate) const fn unscaled(self) -> Self {
        Self { scale: 1.0, ..self }
    }

    /// Dimensions that are rotated.
    pub const fn n_rot(&self) -> usize {
        2 * self.frequencies.len()
    }

    /// Cosines and sines of the angles at `position`, each (n_rot / 2), times the factor on the
    /// rotated part. A negative position rotates back.
    ///
    /// # Panics
    /// If a slice is shorter than n_rot / 2.
    pub fn angles(&self, position: i64, cos: &mut [f32], sin: &mut [f32]) {
        for (i, frequency) in self.frequencies.iter().enumerate() {
            #[expect(clippy::cast_precision_loss, reason = "positions are below 2^32")]
            let (c, s) = double::cos_sin(position as f64 * frequency);
            #[expect(clippy::cast_possible_truncation, reason = "the contract rounds here")]
            {
                (cos[i], sin[i]) = ((c * self.scale) as f32, (s * self.scale) as f32);
            }
        }
    }

    /// Rotates a head in place.
    pub fn rotate(&self, table: &KernelTable, head: &mut [f32], cos: &[f32], sin: &[f32]) {
        table.rope(&mut RopeArgs {
            head,
            cos,
            sin,
            pairing: self.pairing,
        });
    }
}

/// Computes the frequencies of a rotation into `out` (n_rot / 2); `factors` are the file's divisors, if it has
/// any (Llama 3, longrope).
pub(super) fn frequencies(
    config: &RopeConfig,
    scaling: &RopeScaling,
    factors: Option<&[f32]>,
    out: &mut [f64],
) {
    let scale = 1.0 / f64::from(config.factor(scaling));
    let ln_base = double::ln(f64::from(config.freq_base));
    let ramp = Ramp::new(scaling, config.n_rot, ln_base);
    let ext_factor = f64::from(scaling.yarn.ext_factor);
    #[expect(clippy::cast_precision_loss, reason = "a few hundred dimensions")]
    for (i, out) in out.iter_mut().enumerate() {
        let exponent = -((2 * i) as f64) / config.n_rot as f64;
        let divisor = factors.map_or(1.0, |factors| f64::from(factors[i]));
        *out = double::exp(exponent * ln_base) * scale / divisor;
        if scaling.kind == RopeScalingKind::Yarn {
            let kept = double::exp(exponent * ln_base) / divisor;
            let share = ramp.at(i) * ext_factor;
            *out = *out * (1.0 - share) + kept * share;
        }
    }
}

/// The factor on queries and keys whose frequencies are divided by `factor` (YaRN).
///
/// `1 + 0.1 ln factor` for a model with a stretched context, as in llama.cpp, or the value that the
/// file gives instead; layers that are not stretched keep 1.
fn attention_factor(scaling: &RopeScaling, factor: f32) -> f64 {
    let own = f64::from(scaling.attn_factor);
    if scaling.kind != RopeScalingKind::Yarn {
        return own;
    }
    let yarn = &scaling.yarn;
    if factor > 1.0
        && let Some(given) = yarn.attn_factor
    {
        return own * f64::from(given);
    }
    if yarn.ext_factor == 0.0 {
        return own;
    }
    let stretch = |factor: f32| 1.0 + 0.1 * double::ln(f64::from(factor));
    if factor > 1.0 && yarn.log_multiplier != 0.0 {
        let ln = double::ln(f64::from(factor));
        return own * stretch(factor) / (1.0 + 0.1 * f64::from(yarn.log_multiplier) * ln);
    }
    if scaling.factor <= 1.0 {
        // llama.cpp cancels the kernel's factor by the model's, whatever its sign.
        return own * stretch(factor) / stretch(scaling.factor);
    }
    own * stretch(factor)
}

/// YaRN's ramp: 1 for frequencies that turn often within the original context, 0 for those that
/// turn less than once.
struct Ramp {
    low: f64,
    high: f64,
}

impl Ramp {
    #[expect(clippy::cast_precision_loss, reason = "contexts are below 2^32")]
    fn new(scaling: &RopeScaling, n_rot: usize, ln_base: f64) -> Self {
        // The dimension whose frequency makes that number of turns.
        let dimension = |turns: f64| {
            let length = scaling.n_ctx_orig.max(1) as f64 / (turns * 2.0 * core::f64::consts::PI);
            n_rot as f64 * double::ln(length) / (2.0 * ln_base)
        };
        let (low, high) = (
            dimension(f64::from(scaling.yarn.beta_fast)),
            dimension(f64::from(scaling.yarn.beta_slow)),
        );
        let (low, high) = match scaling.yarn.truncates {
            true => (floor(low), -floor(-high)),
            false => (low, high),
        };
        Self {
            low: low.max(0.0),
            high: high.min(n_rot as f64 - 1.0),
        }
    }

    #[expect(clippy::cast_precision_loss, reason = "a few hundred dimensions")]
    fn at(&self, i: usize) -> f64 {
        let y = (i as f64 - self.low) / (self.high - self.low).max(0.001);
        1.0 - y.clamp(0.0, 1.0)
    }
}

/// The largest integer not above x; exact for |x| < 2^51.
fn floor(x: f64) -> f64 {
    let x = x.clamp(-1e15, 1e15);
    #[expect(clippy::cast_possible_truncation, reason = "clamped")]
    #[expect(clippy::cast_precision_loss, reason = "clamped")]
    let whole = x as i64 as f64;
    if whole > x { whole - 1.0 } else { whole }
}
