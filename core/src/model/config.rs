//! What a model is: the numbers that every size follows from.

use super::arch;
use super::error::{ModelError, Name};
use crate::gguf::Gguf;
use crate::kernels::WeightType;
use crate::kernels::activation::ActivationKinds;
use crate::kernels::table::RopePairing;

/// Architectures that this build runs, by `general.architecture`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Architecture {
    /// `llama`: RMSNorm, rotary embedding of adjacent pairs, grouped-query attention, SwiGLU.
    Llama,
}

/// How rotary frequencies are scaled for longer contexts.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub enum RopeScaling {
    /// As trained.
    None,
    /// All divided by a factor.
    Linear {
        /// Above 0; 2 means positions count half.
        factor: f32,
    },
}

/// Shape and constants of a model, spelled as GGUF and llama.cpp spell them.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ModelConfig {
    /// The family.
    pub architecture: Architecture,
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
    /// Which dimensions rotate together.
    pub rope_pairing: RopePairing,
    /// Added to the mean square in norms.
    pub rms_eps: f32,
    /// Whether the output layer is the embedding.
    pub tied_output: bool,
    /// The kinds of activations that its weight types multiply.
    pub activations: ActivationKinds,
}

/// Largest dimension accepted, so that products of two stay far from overflow.
const DIM_MAX: usize = 1 << 24;
/// Most layers accepted.
const LAYERS_MAX: usize = 4096;

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
        let config = match name {
            "llama" => arch::llama::describe(gguf)?,
            _ => return Err(ModelError::UnknownArchitecture { name: name.into() }),
        };
        config.check()?;
        Ok(config)
    }

    /// What the weights in `gguf` multiply.
    pub(super) fn activations(gguf: &Gguf<'_>) -> ActivationKinds {
        let matrices = gguf.tensors().filter(|tensor| tensor.n_dims >= 2);
        let types = matrices.filter_map(|tensor| WeightType::from_ggml(tensor.ty));
        types
            .map(ActivationKinds::for_weights)
            .fold(ActivationKinds::empty(), |all, k| all | k)
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
        let arch = match self.architecture {
            Architecture::Llama => "llama",
        };
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
        let float = |key: &str, value: f32, expected| ModelError::Setting {
            key: Name::format(format_args!("{arch}.{key}")),
            value: value.into(),
            expected,
        };
        if !(self.rope_freq_base.is_normal() && self.rope_freq_base >= 1.0) {
            return Err(float("rope.freq_base", self.rope_freq_base, "at least 1"));
        }
        if !(self.rms_eps > 0.0 && self.rms_eps < 1.0) {
            return Err(float(
                "attention.layer_norm_rms_epsilon",
                self.rms_eps,
                "between 0 and 1",
            ));
        }
        Ok(())
    }
}
