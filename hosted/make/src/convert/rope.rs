//! Rotary embeddings: the base, and how a longer context is reached.
//!
//! `config.json` says it in `rope_scaling`, or since transformers 5 in `rope_parameters`, with the
//! base inside or beside. Kinds: none, linear, YaRN (keys), llama 3 (a tensor of divisors per
//! frequency), longrope of Phi-3 (two such tensors and a factor).
#![forbid(unsafe_code)]

use super::ConvertError;
use super::config::Config;
use super::family::{Family, Kind, Shape, narrow};
use serde_json::{Map, Value};
use sluice::file::GgufHeader;

/// What a configuration says about rotary embeddings.
#[derive(Debug)]
pub(super) struct Rope {
    /// The part of the configuration that describes the scaling; may be empty.
    scaling: Config,
    config: Config,
    kind: ScalingKind,
    /// The base of the frequencies.
    pub(super) freq_base: f32,
    base: f64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ScalingKind {
    None,
    Linear,
    Yarn,
    Llama3,
    LongRope,
}

/// Divisors of frequencies that are a tensor of the GGUF file.
pub(super) type Factors = (&'static str, Vec<f32>);

impl Rope {
    pub(super) fn read(family: &Family, config: &Config) -> Result<Self, ConvertError> {
        let object = |key| config.find(&[key]).and_then(Value::as_object);
        let map = object("rope_parameters").or_else(|| object("rope_scaling"));
        // Families with two kinds of attention keep a description for each.
        let full = map.and_then(|map| map.get("full_attention")?.as_object());
        let scaling = config.part(full.or(map).cloned().unwrap_or_default());
        let default_base = match family.kind {
            Kind::Mixtral => 1e6,
            _ => 10_000.0,
        };
        let own = scaling.maybe_number(&["rope_theta"])?;
        let beside = config.maybe_number(&["rope_theta"])?;
        let base = own.or(beside).unwrap_or(default_base);
        let name = scaling.str("rope_type").or_else(|| scaling.str("type"));
        let kind = match name {
            None | Some("default") => ScalingKind::None,
            Some("linear") => ScalingKind::Linear,
            Some("yarn") => ScalingKind::Yarn,
            Some("llama3") => ScalingKind::Llama3,
            Some("longrope" | "su") if family.kind == Kind::Phi3 => ScalingKind::LongRope,
            Some(other) => {
                let what = format!("is {other:?}, which cannot be converted");
                return Err(config.error(&["rope_scaling type"], &what));
            }
        };
        if kind == ScalingKind::Llama3 && !family.is_llama() {
            let what = "is llama3, which this architecture has no tensor for";
            return Err(config.error(&["rope_scaling type"], what));
        }
        Ok(Self {
            scaling,
            config: config.part(own_part(config)),
            kind,
            freq_base: narrow(base),
            base,
        })
    }

    /// Writes keys; factors that are tensors are in [`Self::factors`].
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
            if let Ok(Some(n_ctx)) = self.original_context() {
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
        header.set(&key("freq_base"), self.freq_base);
    }

    /// The context that the model was trained with before it was extended.
    pub(super) fn original_context(&self) -> Result<Option<u32>, ConvertError> {
        let key = "original_max_position_embeddings";
        let inner = self.scaling.maybe_count(&[key])?;
        Ok(inner.or(self.config.maybe_count(&[key])?))
    }

    /// Columns of a head that are rotated: Phi-3's share of all.
    pub(super) fn n_rot(&self, shape: &Shape) -> Result<u32, ConvertError> {
        let key = &["partial_rotary_factor"];
        let inner = self.scaling.maybe_number(key)?;
        let share = inner.or(self.config.maybe_number(key)?).unwrap_or(1.0);
        if !(share > 0.0 && share <= 1.0) {
            return Err(self.config.error(key, &format!("is {share}, not in 0..=1")));
        }
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "a share of a u32; the fraction is dropped, as upstream does"
        )]
        let columns = (share * f64::from(shape.n_embd)) as u32;
        Ok(columns / shape.n_head)
    }

    /// The tensors of factors, and Phi-3's factor on attention, which is a key.
    pub(super) fn factors(
        &self,
        header: &mut GgufHeader,
        shape: &Shape,
    ) -> Result<Vec<Factors>, ConvertError> {
        match self.kind {
            ScalingKind::Llama3 => Ok(vec![("rope_freqs.weight", self.llama3(shape)?)]),
            ScalingKind::LongRope => self.longrope(header, shape),
            ScalingKind::Yarn | ScalingKind::Linear => {
                self.scaling.number(&["factor"])?;
                Ok(Vec::new())
            }
            ScalingKind::None => Ok(Vec::new()),
        }
    }

    /// Llama 3's divisors: 1 for short waves, `factor` for long ones, a blend between. In f32 and
    /// in this order, as upstream computes them, so that the bits agree.
    fn llama3(&self, shape: &Shape) -> Result<Vec<f32>, ConvertError> {
        let number = |key, default| -> Result<f32, ConvertError> {
            let value = self.scaling.maybe_number(&[key])?.unwrap_or(default);
            Ok(narrow(value))
        };
        let factor = number("factor", 8.0)?;
        let low = number("low_freq_factor", 1.0)?;
        let high = number("high_freq_factor", 4.0)?;
        let n_ctx = number("original_max_position_embeddings", 8192.0)?;
        if [factor, low, high, n_ctx].iter().any(|x| *x <= 0.0) {
            return Err(self
                .config
                .error(&["rope_scaling"], "has a factor that is not above 0"));
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

    fn longrope(
        &self,
        header: &mut GgufHeader,
        shape: &Shape,
    ) -> Result<Vec<Factors>, ConvertError> {
        let n_ctx = self.config.count(&["max_position_embeddings"])?;
        let n_original = self.original_context()?.unwrap_or(n_ctx);
        let scale = f64::from(n_ctx) / f64::from(n_original);
        let attention = if scale > 1.0 {
            (1.0 + scale.ln() / f64::from(n_original).ln()).sqrt()
        } else {
            1.0
        };
        header.set("phi3.rope.scaling.attn_factor", narrow(attention));
        let n_factor = (self.n_rot(shape)? / 2) as usize;
        let list = |key| {
            let numbers = self.scaling.numbers(key)?.unwrap_or_default();
            if numbers.len() == n_factor {
                return Ok(numbers);
            }
            let what = format!("has {} factors where {n_factor} are due", numbers.len());
            Err(self.scaling.error(&[key], &what))
        };
        Ok(vec![
            ("rope_factors_long.weight", list("long_factor")?),
            ("rope_factors_short.weight", list("short_factor")?),
        ])
    }
}

/// The few entries beside the scaling that belong to it.
fn own_part(config: &Config) -> Map<String, Value> {
    let keys = [
        "original_max_position_embeddings",
        "max_position_embeddings",
        "partial_rotary_factor",
    ];
    let entries = keys.iter().filter_map(|&key| {
        let value = config.find(&[key])?;
        Some((key.to_owned(), value.clone()))
    });
    entries.collect()
}
