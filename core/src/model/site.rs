//! The one vocabulary of a model's matrices and vectors.
//!
//! Loading, the forward pass, adapters, observers, quantisation and importance matrices all name a
//! matrix by its [`Site`].

use super::kind::{Channel, LayerKind, Mixer};
use super::shape::{Attention, DeltaKeys, DeltaNet, Experts, Ffn, Latent, QkNorm, SharedExpert};

/// A matrix of a model, by its GGUF name. Shapes are (rows, columns); every row is one output.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(usize)]
#[non_exhaustive]
pub enum Site {
    /// (n_head * head_dim_k, n_embd); twice the rows if heads have gates.
    AttnQ,
    /// (n_head_kv * head_dim_k, n_embd)
    AttnK,
    /// (n_head_kv * head_dim_v, n_embd)
    AttnV,
    /// (n_embd, n_head * head_dim_v)
    AttnOutput,
    /// (n_ff, n_embd)
    FfnGate,
    /// (n_ff, n_embd)
    FfnUp,
    /// (n_embd, n_ff)
    FfnDown,
    /// The router, (n_expert, n_embd). In a layer with experts, the three above belong to one expert, and n_embd stands
    /// for [`Experts::width`].
    FfnGateInp,
    /// The first third of `shortconv.in_proj`, (n_embd, n_embd): the gate of the convolution's input.
    ShortConvB,
    /// The second third, (n_embd, n_embd): the gate of the convolution's output.
    ShortConvC,
    /// The last third, (n_embd, n_embd): the convolution's input.
    ShortConvX,
    /// (n_embd, n_embd)
    ShortConvOut,
    /// The input of a delta net's convolution, (n_channel, n_embd): queries, keys, values.
    SsmQkv,
    /// The gate of a delta net's output, (n_head_v * head_dim_v, n_embd).
    SsmGate,
    /// Rates of a delta net's heads before the sigmoid, (n_head_v, n_embd).
    SsmBeta,
    /// Steps of a delta net's heads before the softplus, (n_head_v, n_embd).
    SsmAlpha,
    /// Rates and steps, (2 * n_head_v, n_embd), if a file has them as one matrix.
    SsmBa,
    /// The whole input of Mamba 2, (n_in, n_embd): gates, channels of the convolution, steps. In a delta net,
    /// [`Self::SsmQkv`] and [`Self::SsmGate`] by heads of keys, if a file has them as one matrix.
    SsmIn,
    /// (n_embd, n_head_v * head_dim_v), or with all of the columns of Mamba 2's heads.
    SsmOut,
    /// The gate of the shared expert, (1, n_embd).
    FfnGateInpShexp,
    /// The shared expert's, (n_ff, n_embd).
    FfnGateShexp,
    /// (n_ff, n_embd)
    FfnUpShexp,
    /// (n_embd, n_ff)
    FfnDownShexp,
    /// Latent attention: the row that queries are projected from, (q_rank, n_embd).
    AttnQA,
    /// Queries from that row, (n_head * (head_dim_nope + head_dim_rope), q_rank).
    AttnQB,
    /// The latent row and the rotated part of a key, (kv_rank + head_dim_rope, n_embd).
    AttnKvA,
    /// Of each head: the projection of a query to latent rows, (kv_rank, head_dim_nope).
    AttnKB,
    /// Of each head: the projection of latent rows to its output, (head_dim_v, kv_rank).
    AttnVB,
    /// The gate of the per-layer embedding, (n_embd_layer, n_embd).
    LayerInputGate,
    /// (n_embd, n_embd_layer)
    LayerInputProj,
    /// The projection of the stream to the experts' own space, if they have one, (n_latent, n_embd).
    FfnLatentDown,
    /// The projection from that space back to the stream, (n_embd, n_latent).
    FfnLatentUp,
    /// The output layer, (n_vocab, n_embd): outside of layers.
    Output,
}

/// The input of a matrix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Input {
    /// The residual stream after a norm.
    Stream,
    /// The mixer's result: attention's output, the convolution's, rows within latent attention. Or the experts'
    /// result in their own space.
    Mixed,
    /// The neurons of a feed-forward network.
    Neurons,
}

impl Site {
    /// All sites of a layer: all but the output layer.
    pub const IN_LAYER: [Self; 32] = [
        Self::AttnQ,
        Self::AttnK,
        Self::AttnV,
        Self::AttnOutput,
        Self::FfnGate,
        Self::FfnUp,
        Self::FfnDown,
        Self::FfnGateInp,
        Self::ShortConvB,
        Self::ShortConvC,
        Self::ShortConvX,
        Self::ShortConvOut,
        Self::SsmQkv,
        Self::SsmGate,
        Self::SsmBeta,
        Self::SsmAlpha,
        Self::SsmBa,
        Self::SsmIn,
        Self::SsmOut,
        Self::FfnGateInpShexp,
        Self::FfnGateShexp,
        Self::FfnUpShexp,
        Self::FfnDownShexp,
        Self::AttnQA,
        Self::AttnQB,
        Self::AttnKvA,
        Self::AttnKB,
        Self::AttnVB,
        Self::LayerInputGate,
        Self::LayerInputProj,
        Self::FfnLatentDown,
        Self::FfnLatentUp,
    ];

    /// Rows and columns in a layer of that kind, of one expert for experts' matrices; `None`
    /// if the kind has no such matrix, and for the output layer.
    pub const fn shape(self, kind: &LayerKind, n_embd: usize) -> Option<[usize; 2]> {
        match self {
            Self::AttnQ
            | Self::AttnK
            | Self::AttnV
            | Self::AttnOutput
            | Self::AttnQA
            | Self::AttnQB
            | Self::AttnKvA
            | Self::AttnKB
            | Self::AttnVB => match &kind.mixer {
                Mixer::Attention(shape) => self.shape_in_attention(shape, n_embd),
                _ => None,
            },
            Self::ShortConvB | Self::ShortConvC | Self::ShortConvX | Self::ShortConvOut => {
                match &kind.mixer {
                    Mixer::ShortConv(_) => Some([n_embd, n_embd]),
                    _ => None,
                }
            }
            Self::FfnUp | Self::FfnDown | Self::FfnGate | Self::FfnGateInp
                if matches!(&kind.channel, Channel::None) =>
            {
                None
            }
            Self::FfnUp => Some([kind.n_ff(), kind.channel_width(n_embd)]),
            Self::FfnDown => Some([kind.channel_width(n_embd), kind.n_ff()]),
            Self::FfnGate => match &kind.channel {
                Channel::Ffn(Ffn { is_gated: true, .. })
                | Channel::Experts(Experts { is_gated: true, .. }) => {
                    Some([kind.n_ff(), kind.channel_width(n_embd)])
                }
                _ => None,
            },
            Self::FfnGateInp => match &kind.channel {
                Channel::Experts(shape) => Some([shape.n_expert, n_embd]),
                _ => None,
            },
            Self::SsmQkv
            | Self::SsmGate
            | Self::SsmBeta
            | Self::SsmAlpha
            | Self::SsmBa
            | Self::SsmIn
            | Self::SsmOut => match &kind.mixer {
                Mixer::DeltaNet(shape) => self.shape_in_delta_net(shape, n_embd),
                Mixer::Mamba2(shape) => match self {
                    Self::SsmIn => Some([shape.n_in(), n_embd]),
                    Self::SsmOut => Some([n_embd, shape.n_inner()]),
                    _ => None,
                },
                _ => None,
            },
            Self::FfnGateInpShexp | Self::FfnGateShexp | Self::FfnUpShexp | Self::FfnDownShexp => {
                match kind.experts() {
                    Some(experts) => self.shape_in_shared(experts, n_embd),
                    None => None,
                }
            }
            Self::FfnLatentDown | Self::FfnLatentUp => match kind.experts() {
                Some(shape) if shape.n_latent > 0 && matches!(self, Self::FfnLatentDown) => {
                    Some([shape.n_latent, n_embd])
                }
                Some(shape) if shape.n_latent > 0 => Some([n_embd, shape.n_latent]),
                _ => None,
            },
            Self::LayerInputGate if kind.n_embd_layer > 0 => Some([kind.n_embd_layer, n_embd]),
            Self::LayerInputProj if kind.n_embd_layer > 0 => Some([n_embd, kind.n_embd_layer]),
            Self::LayerInputGate | Self::LayerInputProj | Self::Output => None,
        }
    }

    const fn shape_in_shared(self, experts: &Experts, n_embd: usize) -> Option<[usize; 2]> {
        let Some(SharedExpert { n_ff, has_gate }) = experts.shared else {
            return None;
        };
        match self {
            Self::FfnGateInpShexp if has_gate => Some([1, n_embd]),
            Self::FfnGateShexp if experts.is_gated => Some([n_ff, n_embd]),
            Self::FfnUpShexp => Some([n_ff, n_embd]),
            Self::FfnDownShexp => Some([n_embd, n_ff]),
            _ => None,
        }
    }

    const fn shape_in_delta_net(self, shape: &DeltaNet, n_embd: usize) -> Option<[usize; 2]> {
        match (self, shape.keys) {
            (Self::SsmIn, _) if shape.is_joint => Some([shape.n_in(), n_embd]),
            (Self::SsmQkv, _) if !shape.is_joint => Some([shape.n_channel(), n_embd]),
            (Self::SsmGate, _) if !shape.is_joint => Some([shape.n_value(), n_embd]),
            (Self::SsmBeta | Self::SsmAlpha, DeltaKeys::Alternate) => {
                Some([shape.n_head_v, n_embd])
            }
            (Self::SsmBa, DeltaKeys::Neighbours) => Some([2 * shape.n_head_v, n_embd]),
            (Self::SsmOut, _) => Some([n_embd, shape.n_value()]),
            _ => None,
        }
    }

    const fn shape_in_attention(self, shape: &Attention, n_embd: usize) -> Option<[usize; 2]> {
        if let Some(latent) = &shape.latent {
            return self.shape_in_latent(shape, latent, n_embd);
        }
        match self {
            Self::AttnQ => Some([shape.n_query_rows(), n_embd]),
            // A layer that reads another's keys and values has none of its own.
            Self::AttnK if shape.keys_of.is_none() => Some([shape.n_key(), n_embd]),
            Self::AttnV if shape.keys_of.is_none() && !shape.values_from_keys => {
                Some([shape.n_value(), n_embd])
            }
            Self::AttnOutput => Some([n_embd, shape.n_out()]),
            _ => None,
        }
    }

    const fn shape_in_latent(
        self,
        shape: &Attention,
        latent: &Latent,
        n_embd: usize,
    ) -> Option<[usize; 2]> {
        let n_query = shape.n_head * (latent.head_dim_nope + latent.head_dim_rope);
        match self {
            Self::AttnQ if latent.q_rank == 0 => Some([n_query, n_embd]),
            Self::AttnQA if latent.q_rank > 0 => Some([latent.q_rank, n_embd]),
            Self::AttnQB if latent.q_rank > 0 => Some([n_query, latent.q_rank]),
            Self::AttnKvA => Some([latent.kv_rank + latent.head_dim_rope, n_embd]),
            Self::AttnKB => Some([latent.kv_rank, latent.head_dim_nope]),
            Self::AttnVB => Some([latent.head_dim_v, latent.kv_rank]),
            Self::AttnOutput => Some([n_embd, shape.n_mixed()]),
            _ => None,
        }
    }

    /// Its input.
    pub const fn input(self) -> Input {
        match self {
            Self::AttnOutput
            | Self::ShortConvOut
            | Self::AttnQB
            | Self::AttnKB
            | Self::AttnVB
            | Self::SsmOut
            | Self::FfnLatentUp => Input::Mixed,
            Self::FfnDown | Self::FfnDownShexp | Self::LayerInputProj => Input::Neurons,
            _ => Input::Stream,
        }
    }

    /// Whether later tokens depend on its outputs (keys, values, recurrent states), so that it runs for
    /// every token, not only for those that continue to the next layer.
    pub const fn is_for_state(self) -> bool {
        matches!(
            self,
            Self::AttnK
                | Self::AttnV
                | Self::ShortConvB
                | Self::ShortConvX
                | Self::SsmQkv
                | Self::SsmBeta
                | Self::SsmAlpha
                | Self::SsmBa
                | Self::SsmIn
                | Self::AttnKvA
        )
    }

    /// The number of such matrices in a layer of that kind, if experts or heads have one each.
    pub const fn n_parts(self, kind: &LayerKind) -> Option<usize> {
        match (self, &kind.mixer) {
            (Self::AttnKB | Self::AttnVB, Mixer::Attention(shape)) => Some(shape.n_head),
            _ if self.is_of_experts() => match kind.experts() {
                Some(experts) => Some(experts.n_expert),
                None => None,
            },
            _ => None,
        }
    }

    /// Whether each expert has one, in a layer with experts.
    pub const fn is_of_experts(self) -> bool {
        matches!(self, Self::FfnGate | Self::FfnUp | Self::FfnDown)
    }
}

/// The vectors that a layer may have: norms, and other f32 vectors that are added or multiplied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub(crate) enum Vector {
    /// The norm before the mixer, (n_embd).
    MixerNorm,
    /// The norm of queries: (head_dim_k), (n_head, head_dim_k) or (n_head * head_dim_k).
    QueryNorm,
    /// The norm of keys: (head_dim_k), (n_head_kv, head_dim_k) or (n_head_kv * head_dim_k).
    KeyNorm,
    /// The norm of the mixer's output, (n_embd).
    MixerPostNorm,
    /// The norm before the channel, (n_embd).
    ChannelNorm,
    /// The norm of the channel's output, (n_embd).
    ChannelPostNorm,
    /// Scores of attention's sinks, (n_head).
    Sinks,
    /// Taps of the short convolution, (n_embd, n_taps): the taps of a channel are contiguous, oldest first.
    ConvTaps,
    /// Taps of a convolution before a recurrence, (n_channel, n_taps), in the same order.
    SsmConv,
    /// The bias of the convolution's sums, (n_channel); only in Mamba 2.
    SsmConvBias,
    /// Added to the heads' steps, (n_head).
    SsmDt,
    /// The factor of the steps in the logarithm of the decay, below 0: (n_head).
    SsmA,
    /// Fraction of a head's input that bypasses its state, (n_head).
    SsmD,
    /// The norm of the heads' outputs: (head_dim_v) of a delta net, (n_group, n_inner / n_group) of Mamba 2.
    SsmNorm,
    /// The bias on the scores of experts for their choice, (n_expert).
    ChoiceBias,
    /// The norm of the row that queries are projected from, (q_rank).
    QueryANorm,
    /// The norm of the latent row, (kv_rank).
    LatentNorm,
    /// The norm before the router, if it has one: its logits are also divided by sqrt(n_embd), (n_embd).
    RouterNorm,
    /// The norm before the experts, if they have one, (n_embd).
    ExpertsNorm,
    /// The norm after the experts, (n_embd).
    ExpertsPostNorm,
    /// The norm after the shared expert, (n_embd).
    SharedPostNorm,
    /// Factors on the outputs of experts, (n_expert).
    ExpertScales,
    /// The norm of the per-layer embedding's contribution, (n_embd).
    LayerInputPostNorm,
    /// The factor on the stream after the layer, (1).
    OutputScale,
    /// The norm after the channel's, on the sum of its output and the stream before the mixer, (n_embd).
    SecondNorm,
}

const fn has_norms(kind: &LayerKind) -> bool {
    match kind.experts() {
        Some(shape) => shape.has_norms,
        None => false,
    }
}

impl Vector {
    pub(super) const COUNT: usize = Self::SecondNorm as usize + 1;

    /// Rows and columns in a layer of that kind, one row except for taps; zeros if the kind has none.
    pub(super) const fn shape(self, kind: &LayerKind, n_embd: usize) -> [usize; 2] {
        let len = match (self, &kind.mixer) {
            (Self::MixerNorm, Mixer::None) => 0,
            (Self::ChannelNorm, _)
                if kind.is_parallel || matches!(&kind.channel, Channel::None) =>
            {
                0
            }
            (Self::MixerNorm | Self::ChannelNorm, _) => n_embd,
            (Self::MixerPostNorm | Self::ChannelPostNorm, _) if kind.has_post_norms => n_embd,
            (Self::QueryNorm, Mixer::Attention(shape)) => match shape.qk_norm {
                QkNorm::Row => shape.n_query(),
                QkNorm::Head => shape.head_dim_k,
                QkNorm::EachHead => return [shape.n_head, shape.head_dim_k],
                QkNorm::None => 0,
            },
            (Self::KeyNorm, Mixer::Attention(shape)) => match shape.qk_norm {
                // A layer that reads another's keys has none to normalise.
                _ if shape.keys_of.is_some() => 0,
                QkNorm::Row => shape.n_key(),
                QkNorm::Head => shape.head_dim_k,
                QkNorm::EachHead => return [shape.n_head_kv, shape.head_dim_k],
                QkNorm::None => 0,
            },
            (Self::QueryANorm, Mixer::Attention(shape)) => match &shape.latent {
                Some(latent) => latent.q_rank,
                None => 0,
            },
            (Self::LatentNorm, Mixer::Attention(shape)) => match &shape.latent {
                Some(latent) => latent.kv_rank,
                None => 0,
            },
            (Self::Sinks, Mixer::Attention(shape)) if shape.has_sink => shape.n_head,
            (Self::ConvTaps, Mixer::ShortConv(shape)) => return [n_embd, shape.n_taps],
            (Self::SsmConv, Mixer::DeltaNet(shape)) => return [shape.n_channel(), shape.n_taps],
            (Self::SsmConv, Mixer::Mamba2(shape)) => return [shape.n_channel(), shape.n_taps],
            (Self::SsmConvBias, Mixer::Mamba2(shape)) => shape.n_channel(),
            (Self::SsmDt | Self::SsmA, Mixer::DeltaNet(shape)) => shape.n_head_v,
            (Self::SsmDt, Mixer::Mamba2(shape)) => shape.n_head,
            (Self::SsmA | Self::SsmD, Mixer::Mamba2(shape)) => return [shape.n_head, 1],
            (Self::SsmNorm, Mixer::DeltaNet(shape)) => shape.head_dim_v,
            (Self::SsmNorm, Mixer::Mamba2(shape)) if shape.has_norm => {
                return [shape.n_group, shape.n_inner() / shape.n_group];
            }
            (
                Self::RouterNorm | Self::ExpertsNorm | Self::ExpertsPostNorm | Self::SharedPostNorm,
                _,
            ) if has_norms(kind) => n_embd,
            (Self::ExpertScales, _) if has_norms(kind) => match kind.experts() {
                Some(shape) => shape.n_expert,
                None => 0,
            },
            (Self::LayerInputPostNorm, _) if kind.n_embd_layer > 0 => n_embd,
            (Self::SecondNorm, _) if kind.has_second_norm => n_embd,
            (Self::OutputScale, _) if kind.has_output_scale => 1,
            (Self::ChoiceBias, _) => match kind.experts() {
                Some(shape) if shape.router.has_bias => shape.n_expert,
                _ => 0,
            },
            _ => 0,
        };
        if len == 0 { [0, 0] } else { [1, len] }
    }
}
