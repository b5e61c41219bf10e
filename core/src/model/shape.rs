//! Shapes of the parts of a layer: plain numbers and options, one struct for each part.

use super::activation::Activation;
use crate::kernels::contract::double;
use crate::kernels::recurrent::{STATE_LANES, state_floats};

/// Maximum query heads per KV head where scores fall with the distance.
pub(crate) const SLOPES_MAX: usize = 64;

/// What the norms of queries and keys span.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QkNorm {
    /// No norms.
    None,
    /// Each head separately, all of them with the same weights.
    Head,
    /// Each head separately, with weights of its own.
    EachHead,
    /// All heads of a token together.
    Row,
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
    /// The rotation of queries and keys, in [`super::ModelConfig::ropes`]; `None` for no rotation.
    pub rope: Option<usize>,
    /// Keys that a query sees, its own included; `None` for all. In an encoder, the keys up to half that number of
    /// positions away, on both sides.
    pub window: Option<usize>,
    /// What the norms of queries and keys span.
    pub qk_norm: QkNorm,
    /// Whether these norms come after the rotation rather than before it.
    pub norms_rotated: bool,
    /// Whether each value head is divided by its root mean square.
    pub norms_values: bool,
    /// Whether values are the keys before their norm and rotation, without a projection of their own.
    pub values_from_keys: bool,
    /// Factor on scores.
    pub scale: f32,
    /// Growth of the queries with their position, for contexts beyond the original one.
    pub temperature: Option<QueryTemperature>,
    /// The cap on scores; 0 for no cap.
    pub soft_cap: f32,
    /// Whether each head has a score of its own that enters the softmax without a value
    /// (attention sink).
    pub has_sink: bool,
    /// Sets the slopes of distances (ALiBi), which fall to `2^-max_alibi_bias` over the heads; 0
    /// for none.
    pub max_alibi_bias: f32,
    /// The layer whose keys and values are read; `None` for the layer's own.
    pub keys_of: Option<usize>,
    /// Whether each query head has a gate: the rows of `attn_q` are the query and then the gate of
    /// a head, and the head's output is multiplied by the sigmoid of its gate.
    pub has_gate: bool,
    /// How keys and values of all heads are kept as one row (multi-head latent attention); `None` if they are not. With
    /// it there is one KV head: its key is the latent row and the rotated part, its value the latent row.
    pub latent: Option<Latent>,
}

/// Multi-head latent attention (DeepSeek-V2), with the projections of keys and values absorbed into queries and outputs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Latent {
    /// Width of the row that queries are projected from; 0 if they are projected from the stream.
    pub q_rank: usize,
    /// Width of the latent row.
    pub kv_rank: usize,
    /// Dimensions of a query head that are not rotated.
    pub head_dim_nope: usize,
    /// Dimensions of a query head that are rotated.
    pub head_dim_rope: usize,
    /// Dimensions of a head's output.
    pub head_dim_v: usize,
}

/// Maximum query heads of a KV head in one unit of work.
const GROUP_MAX: usize = 8;

impl Attention {
    /// Groups that the query heads of a KV head are split into, as units of work, if one KV head serves them all.
    pub(crate) fn n_groups(&self) -> usize {
        let n_gqa = self.n_gqa();
        let fits = |n: &usize| n_gqa.is_multiple_of(*n) && n_gqa / n <= GROUP_MAX;
        match self.latent {
            Some(_) => (1..=n_gqa).find(fits).unwrap_or(1),
            None => 1,
        }
    }

    /// Query heads of a unit of work.
    pub(crate) fn n_group(&self) -> usize {
        self.n_gqa() / self.n_groups()
    }

    /// Units of work for the heads of a tile.
    pub(crate) fn n_units(&self) -> usize {
        self.n_head_kv * self.n_groups()
    }

    /// Columns that the output projection reads.
    pub const fn n_mixed(&self) -> usize {
        match &self.latent {
            Some(latent) => self.n_head * latent.head_dim_v,
            None => self.n_out(),
        }
    }

    /// Query heads that share a KV head.
    pub const fn n_gqa(&self) -> usize {
        self.n_head / self.n_head_kv
    }

    /// What is subtracted from a head's score for each position between query and key (ALiBi, Press et al. 2021):
    /// powers of 2 that fall evenly over the largest power of two of heads, and values in between for the others.
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

    /// Rows of `attn_q`: the queries, and their gates.
    pub const fn n_query_rows(&self) -> usize {
        if self.has_gate {
            2 * self.n_query()
        } else {
            self.n_query()
        }
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

/// Factor on the query at position `p`: `1 + scale · ln(1 + floor(p / length))` (Llama 4, Ministral 3).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct QueryTemperature {
    /// `attention.temperature_scale`
    pub scale: f32,
    /// Positions over which the factor stays the same; above 0.
    pub length: usize,
}

impl QueryTemperature {
    /// The factor at a position.
    pub(crate) fn factor(&self, position: usize) -> f32 {
        let steps = position / self.length;
        #[expect(clippy::cast_precision_loss, reason = "positions are below 2^32")]
        let growth = f64::from(self.scale) * double::ln((steps + 1) as f64);
        #[expect(clippy::cast_possible_truncation, reason = "rounded to f32")]
        let factor = (1.0 + growth) as f32;
        factor
    }
}

/// A gated short convolution over the stream's channels (LFM2): `C · conv(B · X)`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ShortConv {
    /// Taps of the convolution: a token and those before it.
    pub n_taps: usize,
}

impl ShortConv {
    /// Floats of a sequence's state in a layer: the inputs of the last `n_taps - 1` tokens, oldest first.
    pub const fn state_len(&self, n_embd: usize) -> usize {
        self.n_taps.saturating_sub(1) * n_embd
    }
}

/// A feed-forward network.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Ffn {
    /// Neurons.
    pub n_ff: usize,
    /// Whether a gate multiplies the neurons' input (SwiGLU, GeGLU), rather than an activation alone.
    pub is_gated: bool,
    /// The activation of the gate.
    pub activation: Activation,
}

/// A mixture of experts.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Experts {
    /// Neurons of an expert.
    pub n_ff: usize,
    /// The number of experts.
    pub n_expert: usize,
    /// Experts that work on a token.
    pub n_expert_used: usize,
    /// How they are chosen and weighted.
    pub router: Router,
    /// Whether a gate multiplies the neurons' input.
    pub is_gated: bool,
    /// The activation of the gates.
    pub activation: Activation,
    /// The shared expert, which works on every token.
    pub shared: Option<SharedExpert>,
    /// Whether router, experts and the shared expert have norms of their own: before each of them, and after all but
    /// the router (Gemma 4).
    pub has_norms: bool,
    /// Elements of the rows that only the experts read and write, between two matrices that all of them share
    /// (Nemotron 3 Super); 0 if they use the stream's width.
    pub n_latent: usize,
    /// Whether the router reads the layer's input, without a norm (SmallThinker), rather than what the experts read.
    /// Then the experts are known before the layer's mixer runs.
    pub routes_input: bool,
}

impl Experts {
    /// Elements of the rows that experts read and write, in a stream of `n_embd`.
    pub const fn width(&self, n_embd: usize) -> usize {
        if self.n_latent > 0 {
            self.n_latent
        } else {
            n_embd
        }
    }
}

/// How a token's experts follow from the router's logits.
///
/// 1. Scores of all experts.
/// 2. For the choice alone, a bias is added if the file has one (`exp_probs_b.bias`), and experts outside of the best
///    groups are left out. A group's score is the sum of its two best.
/// 3. The best are chosen, ties to the lower number.
/// 4. Weights are their scores without the bias, normalised and scaled.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Router {
    /// The function that turns logits into scores.
    pub score: RouterScore,
    /// Whether the weights of the chosen experts are divided by their sum.
    pub is_normalized: bool,
    /// Factor on the weights.
    pub scale: f32,
    /// Whether the choice is by scores with a bias.
    pub has_bias: bool,
    /// Groups of consecutive experts; 1 for none.
    pub n_group: usize,
    /// Groups that a token's experts are chosen from.
    pub n_group_used: usize,
}

impl Router {
    /// The plain softmax over all experts.
    pub const SOFTMAX: Self = Self {
        score: RouterScore::Softmax,
        is_normalized: false,
        scale: 1.0,
        has_bias: false,
        n_group: 1,
        n_group_used: 1,
    };
}

/// The function that turns the router's logits into scores.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RouterScore {
    /// The softmax over all experts.
    Softmax,
    /// The sigmoid of each logit.
    Sigmoid,
    /// The logits themselves; the weights are the softmax over the chosen experts' logits.
    SoftmaxOfChosen,
}

/// The shared expert: a feed-forward network of the experts' kind that works on every token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SharedExpert {
    /// Neurons.
    pub n_ff: usize,
    /// Whether its output is multiplied by the sigmoid of one more projection of the token.
    pub has_gate: bool,
}

/// A gated delta net (Qwen3-Next, Qwen3.5): a state of (keys, values) for each head, which every token decays
/// and corrects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeltaNet {
    /// Heads of queries and of keys.
    pub n_head_k: usize,
    /// Heads of values, each with a state; a multiple of `n_head_k`.
    pub n_head_v: usize,
    /// Elements of a query and a key.
    pub head_dim_k: usize,
    /// Elements of a value.
    pub head_dim_v: usize,
    /// Taps of the convolution that queries, keys and values go through.
    pub n_taps: usize,
    /// How heads of keys are assigned to heads of values.
    pub keys: DeltaKeys,
    /// Whether `ssm_in` stores everything of a head of keys contiguously: its query and key, and values and gates
    /// of its heads of values. Only if consecutive heads of values share keys.
    pub is_joint: bool,
}

/// How heads of keys are assigned to heads of values, and how a file stores what belongs to a head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeltaKeys {
    /// Head `h` uses keys `h % n_head_k`; `ssm_beta` and `ssm_alpha` are separate (Qwen3.5).
    Alternate,
    /// Consecutive heads share one, `h / (n_head_v / n_head_k)`; `ssm_ba` has for each head of keys the rates of its
    /// heads of values, then their steps (Qwen3-Next).
    Neighbours,
}

impl DeltaNet {
    /// Columns of the queries, and of the keys.
    pub const fn n_key(&self) -> usize {
        self.n_head_k * self.head_dim_k
    }

    /// Columns of the values.
    pub const fn n_value(&self) -> usize {
        self.n_head_v * self.head_dim_v
    }

    /// Channels of the convolution: queries, keys, values.
    pub const fn n_channel(&self) -> usize {
        2 * self.n_key() + self.n_value()
    }

    /// The head of keys for head `head` of values.
    pub const fn key_head(&self, head: usize) -> usize {
        match self.keys {
            DeltaKeys::Alternate => head % self.n_head_k,
            DeltaKeys::Neighbours => head / (self.n_head_v / self.n_head_k),
        }
    }

    /// Columns of the stream's projection for the convolution, including the gates if they are joint.
    pub const fn n_in(&self) -> usize {
        if self.is_joint {
            self.n_channel() + self.n_value()
        } else {
            self.n_channel()
        }
    }

    /// Columns of a head of keys in a joint projection.
    const fn n_joint(&self) -> usize {
        self.n_in() / self.n_head_k
    }

    /// The column of channel `channel` in the projection.
    pub const fn column(&self, channel: usize) -> usize {
        if !self.is_joint {
            return channel;
        }
        let (of_keys, dim) = (2 * self.n_key(), self.head_dim_k);
        if channel < of_keys {
            let head = channel / dim;
            let first = head % self.n_head_k * self.n_joint() + head / self.n_head_k * dim;
            return first + channel % dim;
        }
        self.joint_value(channel - of_keys)
    }

    /// The column of head `head`'s first gate in a joint projection.
    pub const fn gate_column(&self, head: usize) -> usize {
        let of_values = self.n_value() / self.n_head_k;
        self.joint_value(head * self.head_dim_v) + of_values
    }

    const fn joint_value(&self, value: usize) -> usize {
        let of_values = self.n_value() / self.n_head_k;
        value / of_values * self.n_joint() + 2 * self.head_dim_k + value % of_values
    }

    /// Floats of a sequence's state in a layer: the convolution's inputs of the last `n_taps - 1` tokens,
    /// oldest first, then the heads' states.
    pub const fn state_len(&self) -> usize {
        let head = state_floats(self.head_dim_k, self.head_dim_v);
        conv_state_len(self.n_taps, self.n_channel()) + self.n_head_v * head
    }
}

/// Mamba 2: a state of (state size, head size) for each head, which every token decays and adds to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mamba2 {
    /// Heads.
    pub n_head: usize,
    /// Elements of a head.
    pub head_dim: usize,
    /// Elements of a head's B and C.
    pub n_state: usize,
    /// Groups of heads that share B and C; divides `n_head`.
    pub n_group: usize,
    /// Taps of the convolution.
    pub n_taps: usize,
    /// Whether the output of each group has a norm.
    pub has_norm: bool,
}

impl Mamba2 {
    /// Columns of all heads.
    pub const fn n_inner(&self) -> usize {
        self.n_head * self.head_dim
    }

    /// Channels of the convolution: heads, B, C.
    pub const fn n_channel(&self) -> usize {
        self.n_inner() + 2 * self.n_group * self.n_state
    }

    /// Rows of `ssm_in`: gates, channels, steps.
    pub const fn n_in(&self) -> usize {
        self.n_inner() + self.n_channel() + self.n_head
    }

    /// Floats of a sequence's state in a layer, as [`DeltaNet::state_len`].
    pub const fn state_len(&self) -> usize {
        let head = state_floats(self.n_state, self.head_dim);
        conv_state_len(self.n_taps, self.n_channel()) + self.n_head * head
    }
}

/// Floats of a convolution's state, in whole lines.
pub(crate) const fn conv_state_len(n_taps: usize, n_channel: usize) -> usize {
    (n_taps.saturating_sub(1) * n_channel).next_multiple_of(STATE_LANES)
}
