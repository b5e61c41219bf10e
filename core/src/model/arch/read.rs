//! Reading a model's description: first what all families share, then the family's own settings.

use super::draft::{Draft, ExpertLayers, Pattern, PerLayer, RopeLayers, optional_size};
use super::powerinfer::{DOWN_BY_NEURON, is_one as is_powerinfer, turned_type};
use super::unread::refuse_unread;
use super::{Architecture, Family, Keys, OUTPUT, TOKEN_EMBD};
use crate::gguf::{Gguf, optional};
use crate::kernels::WeightType;
use crate::kernels::activation::ActivationKinds;
use crate::kernels::contract::sqrt;
use crate::model::activation::Activation;
use crate::model::config::{Fusion, LAYERS_MAX, LayerActivations, ModelConfig};
use crate::model::error::ModelError;
use crate::model::rope::{RopeConfig, RopeScaling, RopeScalingKind, Yarn};
use crate::model::shape::{Attention, Ffn};
use crate::model::site::{Input, Vector};
use heapless::Vec;

impl ModelConfig {
    /// Reads the description of the model in `gguf`.
    ///
    /// # Errors
    /// An architecture that is not supported, a missing or mistyped key, or a number outside
    /// its range, each named.
    pub fn from_gguf(gguf: &Gguf<'_>) -> Result<Self, ModelError> {
        let (_, draft) = Draft::of(gguf)?;
        let config = draft.finish()?;
        config.check()?;
        Ok(config)
    }
}

impl<'a> Draft<'a> {
    /// The full description in `gguf`, and its family.
    pub(super) fn of(gguf: &Gguf<'a>) -> Result<(&'static Family, Self), ModelError> {
        let name = gguf.str("general.architecture")?;
        if gguf.tensor_count() == 0 {
            return Err(ModelError::NoTensors);
        }
        let mut known = Architecture::all().filter(|known| known.name() == name);
        let Some(architecture) = known.next() else {
            return Err(ModelError::UnknownArchitecture { name: name.into() });
        };
        let keys = Keys::new(gguf, architecture.name());
        let n_expert = keys.size_or("expert_count", 0)?;
        let architecture = match n_expert {
            0 => architecture,
            // One name may stand for models with experts and without.
            _ if architecture.family().has_experts() => architecture,
            _ => known.next().ok_or(ModelError::NotImplemented {
                what: "mixture of experts in this architecture",
                name: keys.name("expert_count"),
            })?,
        };
        let family = architecture.family();
        let mut draft = Self::read(architecture, &keys)?;
        read_activation(&keys, &mut draft, "activation")?;
        refuse_more_blocks(&keys, draft.n_block)?;
        (family.adjust)(&keys, &mut draft)?;
        refuse_unread(&keys, family.keys)?;
        Ok((family, draft))
    }

    /// The settings that all families share.
    fn read(architecture: Architecture, keys: &Keys<'_, 'a>) -> Result<Self, ModelError> {
        let family = architecture.family();
        let n_block = keys.size("block_count")?;
        // The blocks at the end that predict further tokens are models of their own.
        let n_layer = n_block.saturating_sub(keys.size_or("nextn_predict_layers", 0)?);
        if n_layer == 0 || n_layer > LAYERS_MAX {
            #[expect(clippy::cast_precision_loss, reason = "for a message")]
            return Err(keys.refuse("block_count", n_block as f64, "1 to 512"));
        }
        let n_embd = keys.size("embedding_length")?;
        let n_head = PerLayer::read(keys, "attention.head_count", None, n_block)?;
        let head_dim = n_embd.checked_div(n_head.of(0)).unwrap_or(0);
        let head_dim_k = keys.size_or("attention.key_length", head_dim)?;
        // If all layers have experts, files may give only the experts' width.
        let n_ff_absent = family.has_experts().then_some(0);
        let n_ff = PerLayer::read(keys, "feed_forward_length", n_ff_absent, n_block)?;
        let heads = Some(n_head.of(0));
        let n_head_kv = PerLayer::read(keys, "attention.head_count_kv", heads, n_block)?;
        let n_rot = optional_size(keys, "rope.dimension_count")?.unwrap_or(head_dim_k);
        let config = read_ends(architecture, keys, n_rot, n_ff.of(0))?;
        #[expect(clippy::cast_precision_loss, reason = "heads are at most 2^24 long")]
        let scale = 1.0 / sqrt(head_dim_k as f32);
        Ok(Self {
            config,
            n_layer,
            n_block,
            attention: Attention {
                n_head: n_head.of(0),
                n_head_kv: n_head_kv.of(0),
                head_dim_k,
                head_dim_v: keys.size_or("attention.value_length", head_dim)?,
                rope: Some(0),
                window: None,
                qk_norm: family.qk_norm,
                norms_rotated: false,
                norms_values: false,
                values_from_keys: false,
                scale,
                temperature: None,
                soft_cap: 0.0,
                has_sink: false,
                max_alibi_bias: 0.0,
                keys_of: None,
                has_gate: false,
                latent: None,
            },
            ffn: Ffn {
                n_ff: n_ff.of(0),
                is_gated: family.is_gated(),
                activation: family.activation,
            },
            experts: None,
            expert_layers: ExpertLayers::ALL,
            has_post_norms: family.has(Vector::MixerPostNorm),
            is_parallel: false,
            has_output_scale: false,
            has_second_norm: false,
            values_from_keys: [false; LAYERS_MAX],
            n_shared: 0,
            window_head_dim: None,
            n_head,
            n_head_kv,
            n_ff,
            window: 0,
            windows: Pattern::Never,
            window_rope: None,
            rope_layers: RopeLayers::All,
            instead: None,
            recurrent: Pattern::Never,
            is_mixer_or_channel: false,
        })
    }
}

/// Reads the name of an activation from `key`; files without it have the family's. Sluice's own keys are `activation` and
/// `activation_threshold`: llama.cpp has one activation for each architecture.
pub(super) fn read_activation(
    keys: &Keys<'_, '_>,
    draft: &mut Draft<'_>,
    key: &str,
) -> Result<(), ModelError> {
    let threshold = keys.f32_or("activation_threshold", 0.0)?;
    let name = keys.text(key)?;
    if !(threshold == 0.0 || threshold > 0.0 && threshold.is_finite() && name == Some("fatrelu")) {
        let range = "0, or a positive number with the activation fatrelu";
        return Err(keys.refuse("activation_threshold", f64::from(threshold), range));
    }
    let Some(name) = name else {
        // PowerInfer's files of this name have ReLU.
        if draft.ffn.activation == Activation::Silu && is_powerinfer(keys.gguf()) {
            draft.ffn.activation = Activation::Relu { threshold };
        }
        return Ok(());
    };
    draft.ffn.activation = match name {
        "gelu" | "geglu" => Activation::GeluErf,
        "gelu_pytorch_tanh" => Activation::Gelu,
        "silu" | "swish" | "swiglu" => Activation::Silu,
        "relu" | "fatrelu" => Activation::Relu { threshold },
        "drelu" => Activation::Drelu,
        _ => {
            return Err(ModelError::NotImplemented {
                what: "an activation",
                name: name.into(),
            });
        }
    };
    Ok(())
}

/// Everything outside of the layers.
fn read_ends(
    architecture: Architecture,
    keys: &Keys<'_, '_>,
    n_rot: usize,
    n_ff: usize,
) -> Result<ModelConfig, ModelError> {
    let family = architecture.family();
    let token_embd = keys.gguf().tensor(TOKEN_EMBD);
    let token_embd = token_embd.ok_or(ModelError::MissingTensor {
        name: TOKEN_EMBD.into(),
    })?;
    let tied_output = keys.gguf().tensor(OUTPUT).is_none();
    let output = if tied_output { TOKEN_EMBD } else { OUTPUT };
    let n_ctx_train = keys.size("context_length")?;
    if n_ctx_train == 0 {
        return Err(keys.refuse("context_length", 0.0, "at least 1"));
    }
    let eps = family.eps_key();
    let mut ropes = Vec::new();
    let rope = RopeConfig {
        n_rot,
        freq_base: keys.f32_or("rope.freq_base", 10_000.0)?,
        is_scaled: true,
        pairing: family.rope_pairing,
    };
    ropes
        .push(rope)
        .unwrap_or_else(|_| unreachable!("there is room for one"));
    Ok(ModelConfig {
        architecture,
        fused: Fusion::of(family, keys, n_ff),
        n_embd: keys.size("embedding_length")?,
        n_vocab: usize::try_from(token_embd.dims[1]).unwrap_or(usize::MAX),
        n_ctx_train,
        norm_eps: match optional(keys.f32(eps))? {
            Some(eps) => eps,
            // Files of Nemotron may have only the other key.
            None => match optional(keys.f32("attention.layer_norm_epsilon"))? {
                Some(eps) => eps,
                None => keys.f32(eps)?,
            },
        },
        kinds: Vec::new(),
        layers: Vec::new(),
        ropes,
        rope_scaling: read_scaling(keys, n_ctx_train)?,
        logit_soft_cap: 0.0,
        logit_scale: 1.0,
        embedding_scale: 1.0,
        residual_scale: 1.0,
        n_embd_layer: 0,
        is_causal: true,
        norms_replace_stream: false,
        tied_output,
        activations: read_activations(family, keys.gguf()),
        output_activations: kinds_of(keys.gguf(), output),
        next_token: None,
    })
}

/// The kinds of activations that the weights of a matrix multiply; none if it is absent.
pub(super) fn kinds_of(gguf: &Gguf<'_>, name: &str) -> ActivationKinds {
    (gguf.tensor(name))
        .and_then(|tensor| WeightType::from_ggml(tensor.ty))
        .map_or(ActivationKinds::empty(), ActivationKinds::for_weights)
}

/// The kinds of activations that the weights of the layers in `gguf` multiply.
fn read_activations(family: &Family, gguf: &Gguf<'_>) -> LayerActivations {
    let mut all = LayerActivations::all(ActivationKinds::empty());
    for tensor in gguf.tensors() {
        let Some(ty) = WeightType::from_ggml(tensor.ty) else {
            continue;
        };
        if tensor.name == super::LAYER_MODEL_PROJ {
            all.stream |= ActivationKinds::for_weights(ty);
        }
        let Some(name) = (tensor.name.strip_prefix("blk."))
            .and_then(|name| name.strip_suffix(".weight"))
            .and_then(|name| Some(name.split_once('.')?.1))
        else {
            continue;
        };
        if family.has_vector(name) {
            continue;
        }
        let kinds = ActivationKinds::for_weights(ty);
        if name == super::GATE_UP_EXPS {
            all.experts |= kinds;
        }
        if name == DOWN_BY_NEURON {
            let turned = WeightType::from_ggml(turned_type(ty.ggml()));
            all.neurons |= turned.map_or(kinds, ActivationKinds::for_weights);
        }
        match family.matrix(name).map(|(site, of)| (site.input(), of)) {
            Some((Input::Mixed, _)) => all.mixed |= kinds,
            Some((Input::Neurons, _)) => all.neurons |= kinds,
            Some((Input::Stream, of_experts)) => {
                all.stream |= kinds;
                if of_experts {
                    all.experts |= kinds;
                }
            }
            // Fused matrices that read the stream, or unused. Files write a matrix of one row in one
            // dimension, as they write norms, but tables name every one that is not fused.
            None if tensor.n_dims >= 2 => all.stream |= kinds,
            None => {}
        }
    }
    all
}

/// # Errors
/// The file has a block after its first `n`: an answer without it would be nonsense.
fn refuse_more_blocks(keys: &Keys<'_, '_>, n: usize) -> Result<(), ModelError> {
    let has_more = keys.gguf().tensors().any(|tensor| {
        let rest = tensor.name.strip_prefix("blk.");
        let index = rest.and_then(|rest| rest.split_once('.')?.0.parse().ok());
        index.is_some_and(|index: usize| index >= n)
    });
    if has_more {
        #[expect(clippy::cast_precision_loss, reason = "for a message")]
        return Err(keys.refuse("block_count", n as f64, "as many as the file has blocks"));
    }
    Ok(())
}

fn read_scaling(keys: &Keys<'_, '_>, n_ctx_train: usize) -> Result<RopeScaling, ModelError> {
    const TYPE: &str = "rope.scaling.type";
    let factor = optional(keys.f32("rope.scaling.factor"))?
        // The spelling of files from 2023.
        .or(optional(keys.f32("rope.scale_linear"))?)
        .filter(|&factor| factor != 0.0);
    let kind = match keys.text(TYPE)?.unwrap_or("linear") {
        "linear" if factor.is_none() => RopeScalingKind::None,
        "none" => RopeScalingKind::None,
        "linear" => RopeScalingKind::Linear,
        "yarn" => RopeScalingKind::Yarn,
        "longrope" => RopeScalingKind::LongRope,
        name => {
            return Err(ModelError::NotImplemented {
                what: "rotary scaling",
                name: name.into(),
            });
        }
    };
    let factor = factor.filter(|_| kind != RopeScalingKind::None);
    Ok(RopeScaling {
        kind,
        factor: factor.unwrap_or(1.0),
        n_ctx_orig: keys.size_or("rope.scaling.original_context_length", n_ctx_train)?,
        attn_factor: keys.f32_or("rope.scaling.attn_factor", 1.0)?,
        yarn: read_yarn(keys)?,
    })
}

/// Whether the ends of YaRN's ramp are whole dimensions.
pub(super) const YARN_TRUNCATE: &str = "rope.scaling.yarn_truncate";

fn read_yarn(keys: &Keys<'_, '_>) -> Result<Yarn, ModelError> {
    let of = |key, default| keys.f32_or(key, default);
    let (fast, slow) = ("rope.scaling.yarn_beta_fast", "rope.scaling.yarn_beta_slow");
    let yarn = Yarn {
        ext_factor: of("rope.scaling.yarn_ext_factor", Yarn::DEFAULT.ext_factor)?,
        attn_factor: optional(keys.f32("rope.scaling.yarn_attn_factor"))?,
        beta_fast: of(fast, Yarn::DEFAULT.beta_fast)?,
        beta_slow: of(slow, Yarn::DEFAULT.beta_slow)?,
        truncates: keys.bool_or(YARN_TRUNCATE, Yarn::DEFAULT.truncates)?,
        log_multiplier: of("rope.scaling.yarn_log_multiplier", 0.0)?,
    };
    for (key, turns) in [(fast, yarn.beta_fast), (slow, yarn.beta_slow)] {
        if !(turns.is_finite() && turns > 0.0) {
            return Err(keys.refuse(key, turns, "a number above 0"));
        }
    }
    Ok(yarn)
}
