//! Shapes of the parts of a layer: plain numbers and options, one struct for each part.

use crate::kernels::contract::double;

/// Most query heads to a KV head where scores fall with the distance.
pub(crate) const SLOPES_MAX: usize = 64;

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
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Activation {
    /// `x · sigmoid(x)` (SwiGLU).
    Silu,
    /// GELU in its tanh approximation (GeGLU).
    Gelu,
    /// `g · sigmoid(alpha · g) · (u + 1)` with `g = min(gate, limit)` and `u` within ± `limit`.
    SwigluClamped {
        /// Factor inside the sigmoid.
        alpha: f32,
        /// Largest gate, and largest magnitude of what it multiplies.
        limit: f32,
    },
}

/// Grouped-query attention over the keys and values of earlier tokens.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Attention {
    /// Query heads.
    pub n_head: usize,
    /// Key and value heads; divides `n_head`.
    pub n_head_kv: usize,
    /// Dimensions of a query and a key.
    pub head_dim_k: usize,
    /// Dimensions of a value.
    pub head_dim_v: usize,
    /// Which of [`super::ModelConfig::ropes`] turns queries and keys; `None` where none does.
    pub rope: Option<usize>,
    /// Keys that a query sees, its own included; `None` for all. In an encoder those up to half as many
    /// positions away, on both sides.
    pub window: Option<usize>,
    /// What norms of queries and keys span.
    pub qk_norm: QkNorm,
    /// Factor on scores.
    pub scale: f32,
    /// What scores are capped to; 0 for no cap.
    pub soft_cap: f32,
    /// Whether each head has a score of its own that takes part in the softmax, without a value
    /// (attention sink).
    pub has_sink: bool,
    /// What slopes of distances follow from (ALiBi): the most that a head takes off, as a power of two; 0
    /// for none.
    pub max_alibi_bias: f32,
    /// The layer whose keys and values are read; `None` for the layer's own.
    pub keys_of: Option<usize>,
}

impl Attention {
    /// Query heads that share a KV head.
    pub const fn n_gqa(&self) -> usize {
        self.n_head / self.n_head_kv
    }

    /// What a key takes off a head's score for each step that it is away (ALiBi, Press et al. 2021): powers
    /// of 2 that fall evenly over the largest power of two of heads, and in between for the others.
    pub fn slope(&self, head: usize) -> f32 {
        let whole = 1usize << self.n_head.max(1).ilog2();
        let (n, power) = match head < whole {
            true => (whole, head + 1),
            false => (2 * whole, 2 * (head - whole) + 1),
        };
        #[expect(clippy::cast_precision_loss, reason = "heads are few")]
        let power = -f64::from(self.max_alibi_bias) / n as f64 * power as f64;
        #[expect(clippy::cast_possible_truncation, reason = "rounds to the nearest f32")]
        let slope = double::exp((power * core::f64::consts::LN_2).clamp(-80.0, 80.0)) as f32;
        slope
    }

    /// Columns of the queries.
    pub const fn n_query(&self) -> usize {
        self.n_head * self.head_dim_k
    }

    /// Columns of the keys.
    pub const fn n_key(&self) -> usize {
        self.n_head_kv * self.head_dim_k
    }

    /// Columns of the values.
    pub const fn n_value(&self) -> usize {
        self.n_head_kv * self.head_dim_v
    }

    /// Columns of the attention output.
    pub const fn n_out(&self) -> usize {
        self.n_head * self.head_dim_v
    }
}

/// A gated short convolution over the stream's channels (LFM2): `C · conv(B · X)`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ShortConv {
    /// Taps of the convolution: a token and those before it.
    pub n_taps: usize,
}

impl ShortConv {
    /// Floats of a sequence's state in a layer: what the last `n_taps - 1` tokens brought, oldest first.
    pub const fn state_len(&self, n_embd: usize) -> usize {
        self.n_taps.saturating_sub(1) * n_embd
    }
}

/// A feed-forward network.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Ffn {
    /// Neurons.
    pub n_ff: usize,
    /// Whether a gate multiplies what enters the neurons (SwiGLU, GeGLU), rather than an activation alone.
    pub is_gated: bool,
    /// What the gate goes through.
    pub activation: Activation,
}

/// A mixture of experts.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Experts {
    /// Neurons of an expert.
    pub n_ff: usize,
    /// Experts.
    pub n_expert: usize,
    /// Experts that work on a token.
    pub n_expert_used: usize,
    /// How their weights follow from the router's logits.
    pub weights: RouterWeights,
    /// What the gates go through.
    pub activation: Activation,
}

/// How the weights of a token's experts follow from the router's logits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RouterWeights {
    /// The softmax over all experts.
    Softmax,
    /// The same, scaled to a sum of 1 over the chosen.
    SoftmaxNormalized,
    /// The softmax over the logits of the chosen.
    SoftmaxOfChosen,
}

/// What norms over the residual stream are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Norm {
    /// By the root of the mean square (RMSNorm).
    Rms,
    /// Of the difference from the mean by the root of the variance (layer norm), with a bias where
    /// the file has one.
    Layer,
}
