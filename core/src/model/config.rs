//! What a model is: the numbers that every size follows from.

use super::arch::{self, Architecture, Family, Fused, Keys, Matrix, OUTPUT, TOKEN_EMBD};
use super::error::{ModelError, Name};
use crate::gguf::{Gguf, optional};
use crate::kernels::WeightType;
use crate::kernels::activation::ActivationKinds;
use crate::kernels::contract::sqrt;
use crate::kernels::table::RopePairing;

/// How rotary frequencies and their effect are scaled for longer contexts.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RopeScaling {
    /// The method.
    pub kind: RopeScalingKind,
    /// Above 0; 2 means positions count half. 1 where there is no scaling.
    pub factor: f32,
    /// Context length before scaling, in tokens: what YaRN's bounds follow from, and where
    /// longrope changes from its short factors to its long ones.
    pub n_ctx_orig: usize,
    /// Factor on the rotated part of queries and keys beside YaRN's own; 1 for none.
    pub attn_factor: f32,
}

/// Methods of [`RopeScaling`], as `rope.scaling.type` names them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum RopeScalingKind {
    /// As trained.
    None,
    /// All frequencies divided by the factor.
    Linear,
    /// Low frequencies divided, high ones kept, a ramp between (Peng et al. 2023).
    Yarn,
    /// Divisors of each frequency in the file, for contexts up to the original one and beyond.
    LongRope,
}

/// Rotary frequencies of layers with a window, where they differ from the others'.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LocalRope {
    /// Base of the frequencies.
    pub freq_base: f32,
    /// Whether [`RopeScaling::factor`] applies.
    pub is_scaled: bool,
}

/// Which layers have a sliding window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum WindowPattern {
    /// All but the last of every so many; 0 for all.
    Period(usize),
    /// Those that the file lists, layer by layer.
    Listed,
}

/// What norms of queries and keys span.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QkNorm {
    /// There are none.
    None,
    /// Each head for itself.
    Head,
    /// All heads of a token.
    Row,
}

/// What the gate of a feed-forward network goes through.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Activation {
    /// `x · sigmoid(x)` (SwiGLU).
    Silu,
    /// GELU in its tanh approximation (GeGLU).
    Gelu,
}

/// Shape and constants of a model, spelled as GGUF and llama.cpp spell them.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ModelConfig {
    /// The family.
    pub architecture: Architecture,
    /// How the file holds matrices that stand side by side.
    pub fused: Fused,
    /// Decoder layers.
    pub n_layer: usize,
    /// Width of the hidden state.
    pub n_embd: usize,
    /// Query heads.
    pub n_head: usize,
    /// Key and value heads; divides `n_head`.
    pub n_head_kv: usize,
    /// Dimensions of a query and a key.
    pub head_dim_k: usize,
    /// Dimensions of a value.
    pub head_dim_v: usize,
    /// Width of the feed-forward network.
    pub n_ff: usize,
    /// Tokens in the vocabulary.
    pub n_vocab: usize,
    /// Context length in training, in tokens.
    pub n_ctx_train: usize,
    /// Dimensions of a head that are rotated; even, at most `head_dim_k`.
    pub n_rot: usize,
    /// Base of the rotary frequencies.
    pub rope_freq_base: f32,
    /// Scaling of the rotary frequencies.
    pub rope_scaling: RopeScaling,
    /// Rotary frequencies of layers with a window, if others.
    pub rope_local: Option<LocalRope>,
    /// Which dimensions rotate together.
    pub rope_pairing: RopePairing,
    /// Added to the mean square in norms.
    pub rms_eps: f32,
    /// What norms of queries and keys span.
    pub qk_norm: QkNorm,
    /// Whether what attention and feed-forward network add goes through a norm of its own.
    pub post_norms: bool,
    /// Factor on attention scores.
    pub attention_scale: f32,
    /// What attention scores are capped to; 0 for no cap.
    pub attention_soft_cap: f32,
    /// What logits are capped to; 0 for no cap.
    pub logit_soft_cap: f32,
    /// Factor on token embeddings.
    pub embedding_scale: f32,
    /// Keys that a query of a layer with a window sees, its own included; 0 where no layer has
    /// a window.
    pub sliding_window: usize,
    /// Which layers have one.
    pub window_pattern: WindowPattern,
    /// What the gate of the feed-forward network goes through.
    pub activation: Activation,
    /// Experts of a layer; 0 where there are none. `n_ff` is the width of one.
    pub n_expert: usize,
    /// Experts that work on a token.
    pub n_expert_used: usize,
    /// Whether the weights of a token's experts are scaled to a sum of 1.
    pub expert_weights_norm: bool,
    /// Whether the feed-forward network has a gate (SwiGLU, GeGLU), rather than an activation alone.
    pub is_gated: bool,
    /// Whether a token sees only those before it. Where it sees all, the engine takes whole
    /// texts, and gives hidden states alone.
    pub is_causal: bool,
    /// Whether a norm's result takes the place of the residual stream.
    pub norms_replace_stream: bool,
    /// Whether the output layer is the embedding.
    pub tied_output: bool,
    /// The kinds of activations that the weight types of its layers multiply.
    pub activations: LayerActivations,
    /// The same of the output layer.
    pub output_activations: ActivationKinds,
}

/// The kinds of activations that the matrices of layers multiply, by what they read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LayerActivations {
    /// The residual stream after a norm: projections of queries, keys and values, gate and up
    /// projections, routers.
    pub stream: ActivationKinds,
    /// The same in the order of experts: their gate and up projections. Part of the stream's.
    pub experts: ActivationKinds,
    /// The attention output: its projection.
    pub attention: ActivationKinds,
    /// The neurons of the feed-forward network: down projections.
    pub ffn: ActivationKinds,
}

impl LayerActivations {
    /// The same kinds for all.
    pub const fn all(kinds: ActivationKinds) -> Self {
        Self {
            stream: kinds,
            experts: kinds,
            attention: kinds,
            ffn: kinds,
        }
    }

    /// Those and `kinds`.
    #[must_use]
    pub fn with(self, kinds: ActivationKinds) -> Self {
        Self {
            stream: self.stream | kinds,
            experts: self.experts | kinds,
            attention: self.attention | kinds,
            ffn: self.ffn | kinds,
        }
    }

    /// What the weights of the layers in `gguf` multiply.
    fn read(family: &Family, gguf: &Gguf<'_>) -> Self {
        let mut all = Self::all(ActivationKinds::empty());
        for tensor in gguf.tensors() {
            let Some(ty) = WeightType::from_ggml(tensor.ty) else {
                continue;
            };
            let Some(name) = (tensor.name.strip_prefix("blk."))
                .and_then(|name| name.strip_suffix(".weight"))
                .and_then(|name| Some(name.split_once('.')?.1))
            else {
                continue;
            };
            let kinds = ActivationKinds::for_weights(ty);
            match family.matrix(name) {
                Some((Matrix::AttnOutput, _)) => all.attention |= kinds,
                Some((Matrix::FfnDown, _)) => all.ffn |= kinds,
                Some((_, of_experts)) => {
                    all.stream |= kinds;
                    if of_experts {
                        all.experts |= kinds;
                    }
                }
                // Fused of those that read the stream, or unused. Files write a matrix of one row
                // in one dimension, as they write norms, but tables name every one that is not fused.
                None if tensor.n_dims >= 2 => all.stream |= kinds,
                None => {}
            }
        }
        all
    }
}

/// Largest dimension accepted, so that products of two stay far from overflow.
const DIM_MAX: usize = 1 << 24;
/// Most layers accepted.
const LAYERS_MAX: usize = 4096;
/// Most experts accepted.
const EXPERTS_MAX: usize = 1024;

impl ModelConfig {
    /// Reads the description of the model in `gguf`.
    ///
    /// # Errors
    /// An architecture that is not supported, a missing or mistyped key, or a number outside
    /// its range, each named.
    pub fn from_gguf(gguf: &Gguf<'_>) -> Result<Self, ModelError> {
        let name = gguf.str("general.architecture")?;
        if gguf.tensor_count() == 0 {
            return Err(ModelError::NoTensors);
        }
        let mut families = arch::FAMILIES.iter().filter(|family| family.name == name);
        let Some(family) = families.next() else {
            return Err(ModelError::UnknownArchitecture { name: name.into() });
        };
        let keys = Keys::new(gguf, family.name);
        let n_expert = keys.size_or("expert_count", 0)?;
        let family = match n_expert {
            0 => family,
            // One name may stand for layers with experts and without.
            _ if family.has_experts() => family,
            _ => families.next().ok_or(ModelError::NotImplemented {
                what: "mixture of experts in this architecture",
                name: keys.name("expert_count"),
            })?,
        };
        let mut config = Self::read(family, &keys)?;
        (family.adjust)(&keys, &mut config)?;
        config.check()?;
        Ok(config)
    }

    /// What all families have.
    fn read(family: &Family, keys: &Keys<'_, '_>) -> Result<Self, ModelError> {
        let n_embd = keys.size("embedding_length")?;
        let n_head = keys.size("attention.head_count")?;
        let head_dim = n_embd.checked_div(n_head).unwrap_or(0);
        let head_dim_k = keys.size_or("attention.key_length", head_dim)?;
        let token_embd = keys.gguf().tensor(TOKEN_EMBD);
        let token_embd = token_embd.ok_or(ModelError::MissingTensor {
            name: TOKEN_EMBD.into(),
        })?;
        let tied_output = keys.gguf().tensor(OUTPUT).is_none();
        let output = if tied_output { TOKEN_EMBD } else { OUTPUT };
        let n_ctx_train = keys.size("context_length")?;
        let eps = match family.has_layer_norms() {
            true => "attention.layer_norm_epsilon",
            false => "attention.layer_norm_rms_epsilon",
        };
        #[expect(clippy::cast_precision_loss, reason = "heads are at most 2^24 long")]
        let attention_scale = 1.0 / sqrt(head_dim_k as f32);
        let n_ff = keys.size("feed_forward_length")?;
        Ok(Self {
            architecture: family.architecture,
            fused: Fused::of(family, keys, n_ff),
            n_layer: keys.size("block_count")?,
            n_embd,
            n_head,
            n_head_kv: keys.size_or("attention.head_count_kv", n_head)?,
            head_dim_k,
            head_dim_v: keys.size_or("attention.value_length", head_dim)?,
            n_ff,
            n_vocab: usize::try_from(token_embd.dims[1]).unwrap_or(usize::MAX),
            n_ctx_train,
            n_rot: keys.size_or("rope.dimension_count", head_dim_k)?,
            rope_freq_base: keys.f32_or("rope.freq_base", 10_000.0)?,
            rope_scaling: RopeScaling::read(keys, n_ctx_train)?,
            rope_local: None,
            rope_pairing: family.rope_pairing,
            rms_eps: keys.f32(eps)?,
            qk_norm: family.qk_norm,
            post_norms: family.has(arch::Norm::AttnPost),
            attention_scale,
            attention_soft_cap: 0.0,
            logit_soft_cap: 0.0,
            embedding_scale: 1.0,
            sliding_window: 0,
            window_pattern: WindowPattern::Period(1),
            activation: family.activation,
            n_expert: 0,
            n_expert_used: 0,
            expert_weights_norm: false,
            is_gated: family.is_gated(),
            is_causal: true,
            norms_replace_stream: false,
            tied_output,
            activations: LayerActivations::read(family, keys.gguf()),
            output_activations: (keys.gguf().tensor(output))
                .and_then(|tensor| WeightType::from_ggml(tensor.ty))
                .map_or(ActivationKinds::empty(), ActivationKinds::for_weights),
        })
    }

    /// Rotations that layers use: 1, or 2 where layers with a window have their own.
    pub const fn n_ropes(&self) -> usize {
        1 + self.rope_local.is_some() as usize
    }

    /// Query heads that share a KV head.
    pub const fn n_gqa(&self) -> usize {
        self.n_head / self.n_head_kv
    }

    /// Columns of the attention output.
    pub const fn n_embd_attention(&self) -> usize {
        self.n_head * self.head_dim_v
    }

    /// Whether every number is in its range. Repeated by whoever relies on it, because the
    /// fields are public.
    pub(super) fn check(&self) -> Result<(), ModelError> {
        let arch = self.architecture.name();
        let fail = |key: &str, value: usize, expected| ModelError::Setting {
            key: Name::format(format_args!("{arch}.{key}")),
            #[expect(clippy::cast_precision_loss, reason = "for a message")]
            value: value as f64,
            expected,
        };
        let dims = [
            ("embedding_length", self.n_embd),
            ("feed_forward_length", self.n_ff),
            ("vocab_size", self.n_vocab),
            ("attention.key_length", self.head_dim_k),
            ("attention.value_length", self.head_dim_v),
            ("attention.head_count", self.n_head),
            ("attention.head_count_kv", self.n_head_kv),
        ];
        for (key, value) in dims {
            if value == 0 || value > DIM_MAX {
                return Err(fail(key, value, "1 to 2^24"));
            }
        }
        if self.n_layer == 0 || self.n_layer > LAYERS_MAX {
            return Err(fail("block_count", self.n_layer, "1 to 4096"));
        }
        if !self.n_head.is_multiple_of(self.n_head_kv) {
            return Err(fail(
                "attention.head_count_kv",
                self.n_head_kv,
                "a divisor of head_count",
            ));
        }
        if self
            .n_head
            .saturating_mul(self.head_dim_k.max(self.head_dim_v))
            > DIM_MAX
        {
            return Err(fail(
                "attention.head_count",
                self.n_head,
                "heads of at most 2^24 in all",
            ));
        }
        if !self.n_rot.is_multiple_of(2) || self.n_rot > self.head_dim_k {
            return Err(fail(
                "rope.dimension_count",
                self.n_rot,
                "even, at most the head's length",
            ));
        }
        if self.n_expert > EXPERTS_MAX {
            return Err(fail("expert_count", self.n_expert, "1 to 1024"));
        }
        let n_used = self.n_expert_used;
        if n_used > self.n_expert || (n_used == 0) != (self.n_expert == 0) {
            return Err(fail("expert_used_count", n_used, "1 to expert_count"));
        }
        self.check_numbers(arch)
    }

    /// Whether every number that is no count is in its range.
    fn check_numbers(&self, arch: &str) -> Result<(), ModelError> {
        let scaling = &self.rope_scaling;
        let local_base = self.rope_local.map_or(1.0, |local| local.freq_base);
        let base = |x: f32| x.is_normal() && x >= 1.0;
        let positive = |x: f32| x.is_normal() && x > 0.0;
        let cap = |x: f32| x == 0.0 || positive(x);
        let checks = [
            (
                "rope.freq_base",
                self.rope_freq_base,
                base(self.rope_freq_base),
                "at least 1",
            ),
            (
                "rope.freq_base_swa",
                local_base,
                base(local_base),
                "at least 1",
            ),
            (
                "rope.scaling.factor",
                scaling.factor,
                positive(scaling.factor),
                "above 0",
            ),
            (
                "rope.scaling.attn_factor",
                scaling.attn_factor,
                positive(scaling.attn_factor),
                "above 0",
            ),
            (
                "attention.layer_norm_rms_epsilon",
                self.rms_eps,
                self.rms_eps > 0.0 && self.rms_eps < 1.0,
                "between 0 and 1",
            ),
            (
                "attn_logit_softcapping",
                self.attention_soft_cap,
                cap(self.attention_soft_cap),
                "0 or above",
            ),
            (
                "final_logit_softcapping",
                self.logit_soft_cap,
                cap(self.logit_soft_cap),
                "0 or above",
            ),
            // These two follow from lengths.
            (
                "attention.key_length",
                self.attention_scale,
                positive(self.attention_scale),
                "a scale above 0",
            ),
            (
                "embedding_length",
                self.embedding_scale,
                positive(self.embedding_scale),
                "a scale above 0",
            ),
        ];
        match checks.into_iter().find(|(_, _, is_sound, _)| !is_sound) {
            None => Ok(()),
            Some((key, value, _, expected)) => Err(ModelError::Setting {
                key: Name::format(format_args!("{arch}.{key}")),
                value: value.into(),
                expected,
            }),
        }
    }
}

impl RopeScaling {
    /// As trained.
    pub const NONE: Self = Self {
        kind: RopeScalingKind::None,
        factor: 1.0,
        n_ctx_orig: 0,
        attn_factor: 1.0,
    };

    fn read(keys: &Keys<'_, '_>, n_ctx_train: usize) -> Result<Self, ModelError> {
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
        Ok(Self {
            kind,
            factor: factor.unwrap_or(1.0),
            n_ctx_orig: keys.size_or("rope.scaling.original_context_length", n_ctx_train)?,
            attn_factor: keys.f32_or("rope.scaling.attn_factor", 1.0)?,
        })
    }
}
