//! What a file's keys say of a decoder.

use super::super::Unreadable;
use super::super::experts::ExpertConfig;
use super::super::file::{File, Value};

#[derive(Clone, Debug)]
pub(super) struct Config {
    pub(super) n_layer: usize,
    pub(super) n_embd: usize,
    pub(super) n_head: usize,
    /// Of every layer; 0 where the layer is a convolution.
    pub(super) n_head_kv: Vec<usize>,
    pub(super) n_ff: usize,
    /// Elements of a query or key head.
    pub(super) head_len: usize,
    /// Elements of a value head.
    pub(super) value_len: usize,
    pub(super) n_rot: usize,
    pub(super) n_ctx_orig: usize,
    pub(super) rope: Rope,
    pub(super) rms_eps: f64,
    pub(super) has_head_norms: bool,
    /// Whether those norms span all heads.
    pub(super) has_row_norms: bool,
    pub(super) experts: ExpertConfig,
    pub(super) has_post_norms: bool,
    /// A logit per query head that takes part in the softmax without a value.
    pub(super) has_sinks: bool,
    /// Taps of convolutions.
    pub(super) conv_len: usize,
    /// Names of the last norm, and of the one before the feed-forward part.
    pub(super) output_norm: &'static str,
    pub(super) ffn_norm: &'static str,
    pub(super) is_fused: bool,
    pub(super) is_gelu: bool,
    pub(super) embedding_scale: f64,
    pub(super) attention_scale: f64,
    pub(super) attention_cap: f64,
    pub(super) logit_cap: f64,
    /// Keys that a token of a local layer sees; 0 where there are no such layers.
    window: usize,
    /// Which layers are local.
    local_layers: Vec<bool>,
}

/// How heads rotate.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rope {
    /// Whether (2i, 2i + 1) rotate together, otherwise (i, i + n_rot / 2).
    pub(super) is_neighbours: bool,
    freq_base: f64,
    local_freq_base: f64,
    /// Local layers are not scaled in gemma3.
    scales_local: bool,
    scaling: Scaling,
    factor: f64,
    attn_factor: f64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Scaling {
    /// Also longrope, whose factor is mostly 1.
    Linear,
    Yarn,
}

impl Config {
    #[expect(clippy::too_many_lines, reason = "a list of all keys, each once")]
    pub(super) fn load(file: &File) -> Result<Self, Unreadable> {
        let Some(Value::Text(arch)) = file.value("general.architecture") else {
            return Err(Unreadable::new("no architecture"));
        };
        let arch = arch.as_str();
        const KNOWN: [&str; 10] = [
            "llama", "qwen2", "qwen3", "phi3", "gemma2", "gemma3", "olmoe", "qwen3moe", "lfm2",
            "gpt-oss",
        ];
        if !KNOWN.contains(&arch) {
            return Err(Unreadable::new(format!("architecture {arch}")));
        }
        let key = |key: &str| format!("{arch}.{key}");
        let length = |name: &str| file.length(&key(name));
        let optional = |name: &str, default| match file.value(&key(name)) {
            Some(_) => length(name),
            None => Ok(default),
        };
        let number = |name: &str, default| file.number(&key(name)).unwrap_or(default);
        let n_embd = length("embedding_length")?;
        let n_head = length("attention.head_count")?;
        let n_layer = length("block_count")?;
        let n_head_kv = heads_kv(file, arch, n_layer, n_head)?;
        let head_len = optional("attention.key_length", n_embd / n_head)?;
        let n_rot = optional("rope.dimension_count", head_len)?;
        if n_rot > head_len || !n_rot.is_multiple_of(2) {
            return Err(Unreadable::new(format!(
                "RoPE turns {n_rot} of {head_len} elements"
            )));
        }
        let eps_key = key("attention.layer_norm_rms_epsilon");
        let rms_eps = file.number(&eps_key);
        let is_gemma = arch.starts_with("gemma");
        // The 27B models, known by their depth, scale by the width per head.
        let is_27b = (arch, n_layer) == ("gemma2", 46) || (arch, n_layer) == ("gemma3", 62);
        let scaled_len = if is_27b { n_embd / n_head } else { head_len };
        let (attention_cap, logit_cap) = match arch {
            "gemma2" => (50.0, 30.0),
            _ => (0.0, 0.0),
        };
        let mut config = Self {
            n_layer,
            n_embd,
            n_head,
            n_head_kv,
            n_ff: length("feed_forward_length")?,
            head_len,
            value_len: optional("attention.value_length", n_embd / n_head)?,
            n_rot,
            n_ctx_orig: optional(
                "rope.scaling.original_context_length",
                length("context_length")?,
            )?,
            rope: Rope::load(file, arch)?,
            rms_eps: rms_eps.ok_or_else(|| Unreadable::new(format!("{eps_key} is missing")))?,
            has_head_norms: matches!(arch, "qwen3" | "gemma3" | "olmoe" | "qwen3moe" | "lfm2"),
            has_row_norms: arch == "olmoe",
            experts: ExpertConfig::load(file, arch)?,
            has_post_norms: is_gemma,
            has_sinks: arch == "gpt-oss",
            conv_len: optional("shortconv.l_cache", 0)?,
            output_norm: match arch {
                "lfm2" => "token_embd_norm.weight",
                _ => "output_norm.weight",
            },
            ffn_norm: match arch {
                "gpt-oss" => "post_attention_norm",
                _ => "ffn_norm",
            },
            is_fused: arch == "phi3",
            is_gelu: is_gemma,
            embedding_scale: if is_gemma {
                (n_embd as f64).sqrt()
            } else {
                1.0
            },
            attention_scale: 1.0 / (scaled_len as f64).sqrt(),
            attention_cap: number("attn_logit_softcapping", attention_cap),
            logit_cap: number("final_logit_softcapping", logit_cap),
            window: 0,
            local_layers: vec![false; n_layer],
        };
        if is_gemma || arch == "gpt-oss" {
            let window = if arch == "gemma2" { 4096 } else { 0 };
            config.window = optional("attention.sliding_window", window)?;
            config.local_layers = local_layers(file, arch, n_layer)?;
        } else if arch == "lfm2" && file.value(&key("attention.sliding_window")).is_some() {
            return Err(Unreadable::new("lfm2 with windows"));
        }
        Ok(config)
    }

    /// Keys that a token of a layer sees, itself among them.
    pub(super) fn window(&self, layer: usize) -> Option<usize> {
        self.is_local(layer).then_some(self.window)
    }

    pub(super) fn is_local(&self, layer: usize) -> bool {
        self.window > 0 && self.local_layers[layer]
    }

    /// The frequency of a pair, and the factor on what is rotated.
    pub(super) fn frequency(&self, pair: usize, divisor: f64, is_local: bool) -> (f64, f64) {
        let rope = &self.rope;
        let base = if is_local {
            rope.local_freq_base
        } else {
            rope.freq_base
        };
        let factor = if is_local && !rope.scales_local {
            1.0
        } else {
            rope.factor
        };
        let exponent = -2.0 * pair as f64 / self.n_rot as f64;
        let kept = base.powf(exponent) / divisor;
        let divided = kept / factor;
        match rope.scaling {
            Scaling::Linear => (divided, rope.attn_factor),
            Scaling::Yarn => {
                // The dimension that turns so often within the original context.
                let dimension = |turns: f64| {
                    let wavelengths = self.n_ctx_orig as f64 / (turns * core::f64::consts::TAU);
                    self.n_rot as f64 * wavelengths.ln() / (2.0 * base.ln())
                };
                let low = dimension(32.0).floor().max(0.0);
                let high = dimension(1.0).ceil().min(self.n_rot as f64 - 1.0);
                let ramp = ((pair as f64 - low) / (high - low).max(0.001)).clamp(0.0, 1.0);
                let stretch = if factor > 1.0 {
                    0.1 * factor.ln() + 1.0
                } else {
                    1.0
                };
                (
                    divided * ramp + kept * (1.0 - ramp),
                    rope.attn_factor * stretch,
                )
            }
        }
    }
}

impl Rope {
    fn load(file: &File, arch: &str) -> Result<Self, Unreadable> {
        let number = |name: &str| file.number(&format!("{arch}.{name}"));
        let factor = number("rope.scaling.factor").unwrap_or(1.0);
        let (scaling, factor) = match file.value(&format!("{arch}.rope.scaling.type")) {
            None => (Scaling::Linear, factor),
            Some(Value::Text(name)) => match name.as_str() {
                "none" => (Scaling::Linear, 1.0),
                "linear" | "longrope" => (Scaling::Linear, factor),
                "yarn" => (Scaling::Yarn, factor),
                _ => return Err(Unreadable::new(format!("RoPE scaling {name}"))),
            },
            Some(other) => return Err(Unreadable::new(format!("RoPE scaling {other:?}"))),
        };
        let freq_base = number("rope.freq_base").unwrap_or(10_000.0);
        let local = if arch == "gemma3" {
            10_000.0
        } else {
            freq_base
        };
        Ok(Self {
            is_neighbours: arch == "llama",
            freq_base,
            local_freq_base: number("rope.freq_base_swa").unwrap_or(local),
            scales_local: arch != "gemma3",
            scaling,
            factor,
            attn_factor: number("rope.scaling.attn_factor").unwrap_or(1.0),
        })
    }
}

/// KV heads of every layer: one number, or a list in which 0 is a layer without attention.
fn heads_kv(
    file: &File,
    arch: &str,
    n_layer: usize,
    n_head: usize,
) -> Result<Vec<usize>, Unreadable> {
    let key = format!("{arch}.attention.head_count_kv");
    let heads: Vec<usize> = match file.value(&key) {
        None => vec![n_head; n_layer],
        Some(Value::Array(listed)) => {
            let length = |value: &Value| match value {
                Value::Integer(number) => usize::try_from(*number).ok(),
                _ => None,
            };
            let heads: Option<_> = listed.iter().map(length).collect();
            heads.ok_or_else(|| Unreadable::new(format!("{key} are not lengths")))?
        }
        Some(_) => vec![file.length(&key)?; n_layer],
    };
    let may_be_none = arch == "lfm2";
    let is_sound = |&kv: &usize| match kv {
        0 => may_be_none,
        _ => n_head.is_multiple_of(kv),
    };
    if n_head == 0 || heads.len() != n_layer || !heads.iter().all(is_sound) {
        return Err(Unreadable::new(format!("{n_head} heads share {heads:?}")));
    }
    Ok(heads)
}

/// Which layers are local: listed, or all but the last of each period.
fn local_layers(file: &File, arch: &str, n_layer: usize) -> Result<Vec<bool>, Unreadable> {
    let key = format!("{arch}.attention.sliding_window_pattern");
    let of_period = |period| (0..n_layer).map(|i| i % period < period - 1).collect();
    let is_local: Vec<bool> = match file.value(&key) {
        Some(Value::Array(listed)) => listed.iter().map(|x| *x == Value::Bool(true)).collect(),
        Some(_) => of_period(file.length(&key)?),
        None => of_period(if arch == "gemma3" { 6 } else { 2 }),
    };
    if is_local.len() != n_layer {
        return Err(Unreadable::new(format!("{key} for {n_layer} layers")));
    }
    Ok(is_local)
}
