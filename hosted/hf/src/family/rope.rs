//! Rotary embeddings: the base, and how the context is extended.
//!
//! `config.json` describes them in `rope_scaling`, or since transformers 5 in `rope_parameters`,
//! with the base inside it or at the top level. Kinds: none, linear, YaRN (keys), llama 3 (a tensor
//! of divisors per frequency), longrope of Phi-3 (two such tensors and a factor).

use super::context::narrow;
use super::{Family, Shape};
use crate::HfError;
use crate::config::Config;
use crate::unread::check_config;
use sluice::file::{GgufHeader, MetaValue};

/// A configuration's rotary embeddings.
#[derive(Debug)]
pub struct RotarySettings {
    /// The part of the configuration that describes the scaling; may be empty.
    scaling: Config,
    kind: ScalingKind,
    /// The base of the frequencies.
    pub(super) freq_base: f32,
    base: f64,
    /// The base in layers with a window, if it is given.
    freq_base_window: Option<f32>,
    n_ctx: Option<u32>,
    n_ctx_original: Option<u32>,
    /// Number of column pairs that rotate by each of several positions.
    sections: Option<Vec<i32>>,
    /// The share of a head's columns that rotate; below 1 only for Phi-3.
    share: f64,
}

/// What families accept of rotary embeddings.
pub(crate) struct RopeTraits {
    /// The default base; 0 without rotation.
    pub(super) base: f64,
    /// Kinds of scaling in addition to linear and YaRN.
    pub(super) kinds: &'static [ScalingKind],
    pub(super) window: WindowBase,
    /// config.json may give the number of columns that rotate by each of several positions.
    pub(super) has_sections: bool,
}

impl RopeTraits {
    pub(super) const PLAIN: Self = Self {
        base: 10_000.0,
        kinds: &[],
        window: WindowBase::Never,
        has_sections: false,
    };

    /// The engine reads a tensor of divisors.
    pub(super) const DIVIDED: Self = Self {
        kinds: &[ScalingKind::Llama3],
        ..Self::PLAIN
    };

    pub(super) const fn of_base(base: f64) -> Self {
        Self {
            base,
            ..Self::PLAIN
        }
    }
}

/// Whether layers with a window have a base of their own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WindowBase {
    Never,
    /// It is written if config.json gives it.
    IfGiven,
    /// It is written even if config.json gives a single base.
    Always,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ScalingKind {
    None,
    Linear,
    Yarn,
    Llama3,
    LongRope,
    /// Hunyuan's: changes the base.
    Alpha,
    /// A share of the columns rotates, at the speed they would have if all did.
    Share,
}

/// config.json's names for the base.
const BASES: &[&str] = &[
    "rope_theta",
    "theta",
    "global_rope_theta",
    "rotary_emb_base",
];

/// Divisors of frequencies, a tensor of the GGUF file.
#[derive(Clone, Debug)]
pub struct Divisors {
    /// GGUF's name.
    pub tensor: &'static str,
    /// One for each pair of columns.
    pub values: Vec<f32>,
}

impl RotarySettings {
    /// Reads the configuration of rotary embeddings.
    ///
    /// # Errors
    /// [`HfError::Config`]: a scaling that cannot be converted.
    pub fn read(family: &Family, config: &Config) -> Result<Self, HfError> {
        let own_traits = &family.traits.rope;
        let accepts = |kind| own_traits.kinds.contains(&kind);
        let (new, old) = (config.part("rope_parameters"), config.part("rope_scaling"));
        let whole = if new.is_empty() { old } else { new };
        // Families with two kinds of attention have a description for each.
        let (full, window) = (
            whole.part("full_attention"),
            whole.part("sliding_attention"),
        );
        let scaling = if full.is_empty() { whole } else { full };
        let own = scaling.maybe_number(&["rope_theta"])?;
        let beside = config.maybe_number(BASES)?;
        let base = own.or(beside).unwrap_or(own_traits.base);
        let name = scaling.str("rope_type").or_else(|| scaling.str("type"));
        let kind = match name {
            None | Some("default") => ScalingKind::None,
            Some("linear") => ScalingKind::Linear,
            Some("yarn") => ScalingKind::Yarn,
            Some("llama3") => ScalingKind::Llama3,
            Some("dynamic") if accepts(ScalingKind::Alpha) => ScalingKind::Alpha,
            Some("proportional") if accepts(ScalingKind::Share) => ScalingKind::Share,
            Some("longrope" | "su") if accepts(ScalingKind::LongRope) => ScalingKind::LongRope,
            Some(other) => {
                let what = format!("is {other:?}, which is not supported");
                return Err(config.error(&["rope_scaling type"], &what));
            }
        };
        if kind == ScalingKind::Llama3 && !accepts(kind) {
            let what = "is llama3, but this architecture has no tensor for it";
            return Err(config.error(&["rope_scaling type"], what));
        }
        // Both names may be present, with the same value.
        let _other = scaling.find(&["rope_type", "type"]);
        let n_ctx = config.maybe_count(&["max_position_embeddings"])?;
        let original = &["original_max_position_embeddings"];
        let n_ctx_original = match scaling.maybe_count(original)? {
            Some(n) => Some(n),
            None => config.maybe_count(original)?,
        };
        let share = match accepts(ScalingKind::LongRope) {
            true => {
                let key = &["partial_rotary_factor"];
                let inner = scaling.maybe_number(key)?;
                inner.or(config.maybe_number(key)?).unwrap_or(1.0)
            }
            false => 1.0,
        };
        Ok(Self {
            sections: sections(family, &scaling)?,
            freq_base_window: window_base(family, config, &window, base)?,
            scaling,
            kind,
            freq_base: narrow(base),
            base,
            n_ctx,
            n_ctx_original,
            share,
        })
    }

    /// The scaling section of config.json.
    pub(super) const fn scaling(&self) -> &Config {
        &self.scaling
    }

    /// The base as config.json gives it.
    pub(super) const fn base(&self) -> f64 {
        self.base
    }

    /// Hunyuan's alpha, which changes the base, if the scaling is of that kind.
    pub(super) fn alpha(&self, default: f64) -> Result<Option<f64>, HfError> {
        let alpha = self.scaling.maybe_number(&["alpha"])?.unwrap_or(default);
        // Present in published files, but not used by this kind.
        for unused in [
            "beta_fast",
            "beta_slow",
            "factor",
            "mscale",
            "mscale_all_dim",
        ] {
            self.scaling.find(&[unused]);
        }
        Ok((self.kind == ScalingKind::Alpha).then_some(alpha))
    }

    /// Whether the base differs from `base`.
    pub(super) fn differs_from(&self, base: f32) -> bool {
        self.kind != ScalingKind::None || self.freq_base.to_bits() != base.to_bits()
    }

    /// Refuses or warns about the remaining keys; call it after [`super::Description::write`] and [`Self::factors`].
    ///
    /// # Errors
    /// [`HfError::Config`].
    pub fn check_rest(&self, family: &Family, warnings: &mut Vec<String>) -> Result<(), HfError> {
        if self.kind == ScalingKind::Yarn && self.scaling.bool("truncate") == Some(false) {
            let told = self.scaling.named("truncate");
            warnings.push(format!(
                "{told} is false, but in GGUF the ends of the ramp are whole dimensions"
            ));
        }
        check_config(&self.scaling, family.architecture, warnings)
    }

    /// Writes the keys; tensors are returned by [`Self::factors`].
    pub(super) fn write(&self, header: &mut GgufHeader, architecture: &str) {
        let key = |name: &str| format!("{architecture}.rope.{name}");
        let number = |name| self.scaling.maybe_number(&[name]).ok().flatten();
        let name = match self.kind {
            ScalingKind::Linear => "linear",
            ScalingKind::Yarn => "yarn",
            _ => "",
        };
        if let (false, Some(factor)) = (name.is_empty(), number("factor")) {
            header.set(&key("scaling.type"), name);
            header.set(&key("scaling.factor"), narrow(factor));
        }
        if self.kind == ScalingKind::Yarn {
            if let Some(n_ctx) = self.n_ctx_original {
                header.set(&key("scaling.original_context_length"), n_ctx);
            }
            let yarn = [
                ("extrapolation_factor", "scaling.yarn_ext_factor"),
                ("attention_factor", "scaling.yarn_attn_factor"),
                ("attn_factor", "scaling.yarn_attn_factor"),
                ("beta_fast", "scaling.yarn_beta_fast"),
                ("beta_slow", "scaling.yarn_beta_slow"),
            ];
            for (from, to) in yarn {
                if let (Some(x), false) = (number(from), header.contains(&key(to))) {
                    header.set(&key(to), narrow(x));
                }
            }
        }
        if let Some(sections) = &self.sections {
            header.set(&key("dimension_sections"), MetaValue::i32s(sections));
        }
        if self.freq_base > 0.0 {
            header.set(&key("freq_base"), self.freq_base);
        }
        if let Some(base) = self.freq_base_window {
            header.set(&key("freq_base_swa"), base);
        }
    }

    /// The context that the model was trained with before it was extended.
    pub(super) const fn original_context(&self) -> Option<u32> {
        self.n_ctx_original
    }

    /// Columns of a head that rotate, by Phi-3's share.
    pub(super) fn n_rot(&self, shape: &Shape) -> Result<u32, HfError> {
        let share = self.share;
        if !(share > 0.0 && share <= 1.0) {
            let what = format!("is {share}, not in 0..=1");
            return Err(self.scaling.error(&["partial_rotary_factor"], &what));
        }
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "a share of a u32; the fraction is dropped, as upstream does"
        )]
        let columns = (share * f64::from(shape.n_embd)) as u32;
        Ok(columns / shape.n_head)
    }

    /// The number of a head's columns that rotate, by the share in the configuration or `default`.
    pub(super) fn rotated(
        &self,
        config: &Config,
        head_dim: u32,
        default: f64,
    ) -> Result<u32, HfError> {
        let key = &["partial_rotary_factor"];
        let (inner, beside) = (self.scaling.maybe_number(key)?, config.maybe_number(key)?);
        let share = inner.or(beside).unwrap_or(default);
        if !(share > 0.0 && share <= 1.0) {
            return Err(config.error(key, &format!("is {share}, not in 0..=1")));
        }
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "a share of a u32; the fraction is dropped, as upstream does"
        )]
        let columns = (share * f64::from(head_dim)) as u32;
        Ok(columns)
    }

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
            ScalingKind::Yarn | ScalingKind::Linear => {
                self.scaling.number(&["factor"])?;
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
        let n_ctx = narrow(f64::from(self.n_ctx_original.unwrap_or(8192)));
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
        // Equal to the ratio of the contexts.
        let _factor = self.scaling.find(&["factor"]);
        let scale = f64::from(n_ctx) / f64::from(n_original);
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

/// Number of column pairs that rotate by time, height, width and a fourth position.
fn sections(family: &Family, scaling: &Config) -> Result<Option<Vec<i32>>, HfError> {
    let key = "mrope_section";
    if !family.traits.rope.has_sections {
        return Ok(None);
    }
    // Already in the architecture's order.
    let _interleaved = scaling.find(&["mrope_interleaved"]);
    let Some(numbers) = scaling.numbers(key)? else {
        return Ok(None);
    };
    #[expect(clippy::cast_possible_truncation, reason = "the range is checked")]
    let whole = |x: &f32| (x.fract() == 0.0 && (0.0..=1e6).contains(x)).then_some(*x as i32);
    let sections: Option<Vec<_>> = numbers.iter().map(whole).collect();
    match sections {
        Some(mut sections) if sections.len() <= 4 => {
            sections.resize(4, 0);
            Ok(Some(sections))
        }
        _ => Err(scaling.error(&[key], "is not a list of up to four counts")),
    }
}

/// The base in layers with a window, which are not scaled.
fn window_base(
    family: &Family,
    config: &Config,
    window: &Config,
    base: f64,
) -> Result<Option<f32>, HfError> {
    let accepted = family.traits.rope.window;
    if accepted == WindowBase::Never {
        return Ok(None);
    }
    let kind = window.str("rope_type").filter(|kind| *kind != "default");
    if let Some(kind) = kind {
        let what = format!("is {kind:?}, but in GGUF these layers are not scaled");
        return Err(window.error(&["rope_type"], &what));
    }
    let own = window.maybe_number(&["rope_theta"])?;
    let beside = config.maybe_number(&["rope_local_base_freq", "local_rope_theta"])?;
    let same = (accepted == WindowBase::Always).then_some(base);
    Ok(own.or(beside).or(same).map(narrow))
}
