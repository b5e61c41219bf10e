//! Rotary embeddings: the base, and how the context is extended.
//!
//! `config.json` describes them in `rope_scaling`, or since transformers 5 in `rope_parameters`,
//! with the base inside it or at the top level. Kinds: none, linear, YaRN (keys), llama 3 (a tensor
//! of divisors per frequency), longrope of Phi-3 (two such tensors and a factor).

mod divisors;

pub use divisors::Divisors;

use super::context::narrow;
use super::{Family, Shape};
use crate::HfError;
use crate::config::Config;
use crate::unread::check_config;
use serde_json::Value;
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
    /// Whether the ends of YaRN's ramp are whole dimensions, unless it is as the architecture implies.
    truncates: Option<bool>,
    /// A description that another one replaces.
    replaced: Option<Config>,
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
    /// Whether a file that does not say so means that the ends of YaRN's ramp are whole dimensions.
    pub(super) truncates: bool,
}

impl RopeTraits {
    pub(super) const PLAIN: Self = Self {
        base: 10_000.0,
        kinds: &[],
        window: WindowBase::Never,
        has_sections: false,
        truncates: true,
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

/// YaRN's numbers in config.json, and GGUF's names for them.
const YARN: [(&str, &str); 5] = [
    ("extrapolation_factor", "scaling.yarn_ext_factor"),
    // Replaces YaRN's own factor; vLLM's name is for one in addition to it.
    ("attention_factor", "scaling.yarn_attn_factor"),
    ("attn_factor", "scaling.attn_factor"),
    ("beta_fast", "scaling.yarn_beta_fast"),
    ("beta_slow", "scaling.yarn_beta_slow"),
];

/// transformers' default for Phi-3's context before it was extended.
const N_CTX_PHI3: u32 = 4096;

impl RotarySettings {
    /// Reads the configuration of rotary embeddings.
    ///
    /// # Errors
    /// [`HfError::Config`]: a scaling that cannot be converted.
    pub fn read(family: &Family, config: &Config) -> Result<Self, HfError> {
        let own_traits = &family.traits.rope;
        let accepts = |kind| own_traits.kinds.contains(&kind);
        let (whole, replaced) = described(family, config);
        // Families with two kinds of attention have a description for each.
        let (full, window) = (
            whole.part("full_attention"),
            whole.part("sliding_attention"),
        );
        let whole_says_truncate = whole.bool("truncate");
        let scaling = if full.is_empty() { whole } else { full };
        let own = scaling.maybe_number(&["rope_theta"])?;
        let beside = config.maybe_number(BASES)?;
        let base = own.or(beside).unwrap_or(own_traits.base);
        let name = scaling.str("rope_type").or_else(|| scaling.str("type"));
        let kind = match name {
            None | Some("default") => ScalingKind::None,
            // An older name of the sections alone.
            Some("mrope") if own_traits.has_sections => ScalingKind::None,
            Some("linear") if !accepts(ScalingKind::LongRope) => ScalingKind::Linear,
            // Phi-3's old names.
            Some("longrope" | "su" | "yarn") if accepts(ScalingKind::LongRope) => {
                ScalingKind::LongRope
            }
            Some("yarn") => ScalingKind::Yarn,
            Some("llama3") => ScalingKind::Llama3,
            Some("dynamic") if accepts(ScalingKind::Alpha) => ScalingKind::Alpha,
            Some("proportional") if accepts(ScalingKind::Share) => ScalingKind::Share,
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
        // The one outside of the scaling comes first, as in transformers, where Phi-3 always has one.
        let (inner, outer) = (
            scaling.maybe_count(original)?,
            config.maybe_count(original)?,
        );
        let n_ctx_original = match kind {
            ScalingKind::LongRope => outer.or(Some(N_CTX_PHI3)),
            _ => outer.or(inner),
        };
        // With a description for each kind of attention, transformers does not read it.
        let truncates = whole_says_truncate.unwrap_or(true);
        let is_implied = kind != ScalingKind::Yarn || truncates == own_traits.truncates;
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
            truncates: (!is_implied).then_some(truncates),
            replaced,
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

    /// Whether the frequencies are other than the base's.
    pub(super) fn is_scaled(&self) -> bool {
        self.kind != ScalingKind::None
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
        if let Some(replaced) = &self.replaced {
            let (told, base) = (replaced.named(""), self.base);
            let told = told.trim_end_matches('.');
            warnings.push(format!(
                "{told} is replaced by rope_scaling, as in transformers; the base of the frequencies is {base}"
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
            for (from, to) in YARN {
                if let Some(x) = number(from) {
                    header.set(&key(to), narrow(x));
                }
            }
            if let Some(truncates) = self.truncates {
                header.set(&key("scaling.yarn_truncate"), truncates);
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
}

/// The description of the rotation that transformers uses, and the one that it replaces, if that says otherwise.
fn described(family: &Family, config: &Config) -> (Config, Option<Config>) {
    let (new, old) = (config.part("rope_parameters"), config.part("rope_scaling"));
    if old.is_empty() || new.is_empty() {
        return (if old.is_empty() { new } else { old }, None);
    }
    let mut map = new.map().clone();
    let kinds: &[&str] = match family.is_encoder() {
        true => &["full_attention", "sliding_attention"],
        false => &["full_attention"],
    };
    let mut is_nested = false;
    for kind in kinds {
        if let Some(Value::Object(own)) = map.get_mut(*kind) {
            own.extend(old.map().clone());
            is_nested = true;
        }
    }
    if is_nested {
        return (new.with(map), None);
    }
    let mut entries = new.map().iter();
    let is_lost = entries.any(|(key, value)| old.map().get(key) != Some(value) && !value.is_null());
    (old, is_lost.then_some(new))
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
