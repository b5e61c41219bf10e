//! What a file's keys say of a decoder.

use super::super::Unreadable;
use super::super::experts::{ExpertConfig, Score};
use super::super::file::{File, Value};
use super::super::network::Activation;
use super::families::{Family, Gating, Rotated, Router, Scales, Shared};
use super::keys::Keys;
use super::rope::Rope;

#[derive(Debug)]
pub(super) struct Config {
    pub(super) family: &'static Family,
    pub(super) n_layer: usize,
    /// Number of layers after the first `n_layer`, which predict further tokens and are not evaluated.
    pub(super) n_nextn: usize,
    pub(super) n_embd: usize,
    pub(super) n_head: usize,
    /// Number of KV heads of every layer; 0 if the layer is a convolution.
    pub(super) n_head_kv: Vec<usize>,
    pub(super) n_ff: usize,
    pub(super) activation: Activation,
    /// Elements of a query or key head.
    pub(super) head_len: usize,
    /// Elements of a value head.
    pub(super) value_len: usize,
    /// What norms add to the mean square.
    pub(super) eps: f64,
    pub(super) rope: Rope,
    /// Which layers rotate.
    pub(super) rotated: Vec<bool>,
    /// Keys that a token of a local layer sees; 0 where there are no such layers.
    window: usize,
    /// Which layers are local.
    local_layers: Vec<bool>,
    experts: Option<ExpertConfig>,
    /// Which layers have experts.
    mixtures: Vec<bool>,
    /// Taps of convolutions.
    pub(super) conv_len: usize,
    pub(super) factors: Factors,
    /// A share t and a length n: queries at p grow by 1 + t · ln(1 + ⌊p / n⌋).
    pub(super) temperature: Option<(f64, usize)>,
}

/// Factors and caps by what they apply to; a cap of 0 has no effect.
#[derive(Clone, Copy, Debug)]
pub(super) struct Factors {
    pub(super) embedding: f64,
    /// On what the parts of a layer add.
    pub(super) residual: f64,
    pub(super) attention: f64,
    pub(super) attention_cap: f64,
    pub(super) logits: f64,
    pub(super) logit_cap: f64,
}

impl Config {
    pub(super) fn load(file: &File) -> Result<Self, Unreadable> {
        let Some(Value::Text(arch)) = file.value("general.architecture") else {
            return Err(Unreadable::new("no architecture"));
        };
        let Some(family) = Family::named(arch) else {
            return Err(Unreadable::new(format!("architecture {arch}")));
        };
        let keys = Keys::new(file, arch);
        let config = Self::of_family(&keys, family)?;
        keys.finish()?;
        Ok(config)
    }

    fn of_family(keys: &Keys<'_>, family: &'static Family) -> Result<Self, Unreadable> {
        let n_embd = keys.length("embedding_length")?;
        let n_head = keys.length("attention.head_count")?;
        let n_all = keys.length("block_count")?;
        let n_nextn = match family.has_nextn {
            true => keys.length_or("nextn_predict_layers", 0)?,
            false => 0,
        };
        let n_layer = n_all.saturating_sub(n_nextn);
        let n_head_kv = heads_kv(keys, family, n_all, n_head)?;
        let default_len = n_embd / n_head;
        let head_len = keys.length_or("attention.key_length", default_len)?;
        let rope = Rope::load(keys, family, head_len)?;
        let (window, local_layers) = windows(keys, family, n_all)?;
        let eps = match family.is_centred {
            true => "attention.layer_norm_epsilon",
            false => "attention.layer_norm_rms_epsilon",
        };
        let share = match family.has_yarn_keys {
            true => keys.number_or("attention.temperature_scale", 0.0)?,
            false => 0.0,
        };
        let activation = activation(keys, family)?;
        let experts = experts(keys, family, activation, n_embd)?;
        Ok(Self {
            family,
            activation,
            n_layer,
            n_nextn,
            n_embd,
            n_head,
            n_head_kv,
            n_ff: keys.length("feed_forward_length")?,
            head_len,
            value_len: keys.length_or("attention.value_length", default_len)?,
            eps: keys.number(eps)?,
            rope,
            rotated: rotated(keys, family, window, &local_layers)?,
            window,
            local_layers,
            experts,
            mixtures: match experts {
                Some(_) => mixtures(keys, n_all)?,
                None => vec![false; n_all],
            },
            conv_len: match family.has_convolutions {
                true => keys.length("shortconv.l_cache")?,
                false => 0,
            },
            factors: Factors::load(keys, family, [n_layer, n_embd, n_head, head_len])?,
            temperature: (share > 0.0).then_some((share, rope.n_ctx_orig)),
        })
    }

    /// Keys that a token of a layer sees, itself among them.
    pub(super) fn window(&self, layer: usize) -> Option<usize> {
        self.is_local(layer).then_some(self.window)
    }

    pub(super) fn is_local(&self, layer: usize) -> bool {
        self.window > 0 && self.local_layers[layer]
    }

    /// What a layer's experts have in common, if it has any.
    pub(super) fn experts(&self, layer: usize) -> Option<ExpertConfig> {
        self.experts.filter(|_| self.mixtures[layer])
    }
}

impl Factors {
    fn load(
        keys: &Keys<'_>,
        family: &Family,
        [n_layer, n_embd, n_head, head_len]: [usize; 4],
    ) -> Result<Self, Unreadable> {
        // Gemma's 27B models, known by their depth, scale by the width per head.
        let is_27b = [("gemma2", 46), ("gemma3", 62)].contains(&(family.name, n_layer));
        let scaled_len = if is_27b { n_embd / n_head } else { head_len };
        let plain = Self {
            embedding: 1.0,
            residual: 1.0,
            attention: 1.0 / (scaled_len as f64).sqrt(),
            attention_cap: 0.0,
            logits: 1.0,
            logit_cap: 0.0,
        };
        // 0 stands for none.
        let factor = |name: &str, default| match keys.number_or(name, 0.0) {
            Ok(0.0) => Ok(default),
            factor => factor,
        };
        Ok(match family.scales {
            Scales::None => plain,
            Scales::Gemma {
                caps: [attention_cap, logit_cap],
            } => Self {
                embedding: (n_embd as f64).sqrt(),
                attention_cap: keys.number_or("attn_logit_softcapping", attention_cap)?,
                logit_cap: keys.number_or("final_logit_softcapping", logit_cap)?,
                attention: factor("attention.scale", plain.attention)?,
                ..plain
            },
            Scales::Granite => Self {
                embedding: factor("embedding_scale", 1.0)?,
                residual: factor("residual_scale", 1.0)?,
                attention: factor("attention.scale", plain.attention)?,
                logits: 1.0 / keys.number("logit_scale")?,
                ..plain
            },
            Scales::MiniCpm => Self {
                embedding: factor("embedding_scale", 12.0)?,
                residual: factor("residual_scale", 1.4 / (n_layer as f64).sqrt())?,
                logits: 1.0 / factor("logit_scale", n_embd as f64 / 256.0)?,
                ..plain
            },
            Scales::Logits => Self {
                logits: factor("logit_scale", 1.0)?,
                ..plain
            },
        })
    }
}

/// KV heads of every layer: one number, or a list in which 0 may be a convolution.
fn heads_kv(
    keys: &Keys<'_>,
    family: &Family,
    n_layer: usize,
    n_head: usize,
) -> Result<Vec<usize>, Unreadable> {
    let heads = keys.lengths_or("attention.head_count_kv", n_head, n_layer)?;
    let is_sound = |&kv: &usize| match kv {
        0 => family.has_convolutions,
        _ => n_head.is_multiple_of(kv),
    };
    if n_head == 0 || !heads.iter().all(is_sound) {
        return Err(Unreadable::new(format!("{n_head} heads share {heads:?}")));
    }
    Ok(heads)
}

/// How many tokens local layers see, and which they are: listed, or all but the last of each period.
fn windows(
    keys: &Keys<'_>,
    family: &Family,
    n_layer: usize,
) -> Result<(usize, Vec<bool>), Unreadable> {
    const PATTERN: &str = "attention.sliding_window_pattern";
    let Some(windows) = family.windows else {
        return Ok((0, vec![false; n_layer]));
    };
    let window = keys.length_or("attention.sliding_window", windows.default)?;
    if let Some(listed) = keys.flags(PATTERN, n_layer)? {
        return Ok((window, listed));
    }
    let period = keys.length_or(PATTERN, windows.period)?;
    if period == 0 {
        return Err(Unreadable::new("layers with windows are not listed"));
    }
    let dense = if windows.is_dense_first {
        0
    } else {
        period - 1
    };
    let is_local = |i| i % period != dense;
    Ok((window, (0..n_layer).map(is_local).collect()))
}

/// Which layers rotate.
fn rotated(
    keys: &Keys<'_>,
    family: &Family,
    window: usize,
    local_layers: &[bool],
) -> Result<Vec<bool>, Unreadable> {
    let n_layer = local_layers.len();
    Ok(match family.rotated {
        Rotated::All => vec![true; n_layer],
        Rotated::ThreeOfFour => (0..n_layer).map(|i| (i + 1) % 4 != 0).collect(),
        Rotated::FirstOfFourNot => (0..n_layer).map(|i| window == 0 || i % 4 != 0).collect(),
        Rotated::Local if window > 0 => local_layers.to_vec(),
        Rotated::Local => vec![true; n_layer],
        Rotated::Finetuned => vec![keys.flag_or("rope.scaling.finetuned", true)?; n_layer],
        Rotated::Listed => {
            let listed = keys.flags("attention.rope_pattern", n_layer)?;
            listed.unwrap_or_else(|| vec![true; n_layer])
        }
    })
}

/// Which layers have experts.
fn mixtures(keys: &Keys<'_>, n_layer: usize) -> Result<Vec<bool>, Unreadable> {
    let n_dense = keys.length_or("leading_dense_block_count", 0)?;
    let step = keys.length_or("interleave_moe_layer_step", 1)?.max(1);
    let is_mixture = |i| i >= n_dense && (i + 1) % step == 0;
    Ok((0..n_layer).map(is_mixture).collect())
}

/// The family's, or the one that the file names.
fn activation(keys: &Keys<'_>, family: &Family) -> Result<Activation, Unreadable> {
    let threshold = keys.number_or("activation_threshold", 0.0)?;
    Ok(match keys.text_or("activation", "")? {
        "relu" | "fatrelu" => Activation::Relu(threshold),
        "drelu" => Activation::Drelu,
        "" => family.activation,
        other => return Err(Unreadable::new(format!("activation {other}"))),
    })
}

fn experts(
    keys: &Keys<'_>,
    family: &Family,
    activation: Activation,
    n_embd: usize,
) -> Result<Option<ExpertConfig>, Unreadable> {
    let n_expert = keys.length_or("expert_count", 0)?;
    if n_expert == 0 {
        return Ok(None);
    }
    let Some(router) = family.router else {
        return Err(Unreadable::new(format!("{} with experts", family.name)));
    };
    let n_ff_dense = keys.length("feed_forward_length")?;
    let n_ff = keys.length_or("expert_feed_forward_length", n_ff_dense)?;
    const SHARED: &str = "expert_shared_feed_forward_length";
    Ok(Some(ExpertConfig {
        n_expert,
        n_used: keys.length("expert_used_count")?,
        n_ff,
        n_embd,
        score: score(keys, router)?,
        is_normalised: match router.is_normalised {
            Some(is_normalised) => is_normalised,
            None => keys.flag_or("expert_weights_norm", false)?,
        },
        scale: match router.has_scale {
            true => keys.number_or("expert_weights_scale", 1.0)?,
            false => 1.0,
        },
        has_selection: router.has_selection,
        activation,
        n_ff_shared: match router.shared {
            Shared::None => 0,
            Shared::Length => keys.length_or(SHARED, 0)?,
            Shared::LengthOrFf { .. } => keys.length_or(SHARED, n_ff_dense)?,
            Shared::Count => keys.length("expert_shared_count")? * n_ff,
        },
        is_shared_gated: matches!(router.shared, Shared::LengthOrFf { is_gated: true }),
    }))
}

fn score(keys: &Keys<'_>, router: Router) -> Result<Score, Unreadable> {
    let default = match router.gating {
        Gating::Is(score) => return Ok(score),
        Gating::Key(default) => default,
    };
    match (keys.length_or("expert_gating_func", 0)?, default) {
        (0, Some(score)) => Ok(score),
        (1, _) => Ok(Score::Softmax),
        (2, _) => Ok(Score::Sigmoid),
        (func, _) => Err(Unreadable::new(format!("gating function {func}"))),
    }
}
