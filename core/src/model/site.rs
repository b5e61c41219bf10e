//! The one vocabulary of a model's matrices and vectors.
//!
//! Loading, the forward pass, adapters, observers, quantisation and importance matrices all name a
//! matrix by its [`Site`].

use super::kind::{Channel, LayerKind, Mixer};
use super::shape::{Attention, DeltaKeys, DeltaNet, QkNorm};

/// A matrix of a model, by its GGUF name. Shapes are (rows, columns); every row is one output.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(usize)]
#[non_exhaustive]
pub enum Site {
    /// (n_head * head_dim_k, n_embd); where heads have gates, twice as many rows.
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
    /// The router, (n_expert, n_embd). Where there is one, the three above are of one expert.
    FfnGateInp,
    /// The first third of `shortconv.in_proj`, (n_embd, n_embd): what gates the convolution's input.
    ShortConvB,
    /// The second third, (n_embd, n_embd): what gates the convolution's output.
    ShortConvC,
    /// The last third, (n_embd, n_embd): the convolution's input.
    ShortConvX,
    /// (n_embd, n_embd)
    ShortConvOut,
    /// What a delta net's convolution reads, (n_channel, n_embd): queries, keys, values.
    SsmQkv,
    /// What gates a delta net's output, (n_head_v * head_dim_v, n_embd).
    SsmGate,
    /// Rates of a delta net's heads before the sigmoid, (n_head_v, n_embd).
    SsmBeta,
    /// Their steps before the softplus, (n_head_v, n_embd).
    SsmAlpha,
    /// Both, (2 * n_head_v, n_embd), where a file has them as one.
    SsmBa,
    /// All that Mamba 2 reads, (n_in, n_embd): gates, channels of the convolution, steps.
    SsmIn,
    /// (n_embd, n_head_v * head_dim_v), or of as many columns as Mamba 2 has in its heads.
    SsmOut,
    /// The output layer, (n_vocab, n_embd): outside of layers.
    Output,
}

/// What a matrix reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Input {
    /// The residual stream after a norm.
    Stream,
    /// What the mixer made of it: attention's output, the convolution's.
    Mixed,
    /// The neurons of a feed-forward network.
    Neurons,
}

impl Site {
    /// All of a layer's: all but the output layer.
    pub const IN_LAYER: [Self; 19] = [
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
    ];

    /// Rows and columns in a layer of that kind, of one expert where those are experts' matrices; `None`
    /// where the kind has no such matrix, and for the output layer.
    pub const fn shape(self, kind: &LayerKind, n_embd: usize) -> Option<[usize; 2]> {
        match self {
            Self::AttnQ | Self::AttnK | Self::AttnV | Self::AttnOutput => match &kind.mixer {
                Mixer::Attention(shape) => self.shape_in_attention(shape, n_embd),
                _ => None,
            },
            Self::ShortConvB | Self::ShortConvC | Self::ShortConvX | Self::ShortConvOut => {
                match &kind.mixer {
                    Mixer::ShortConv(_) => Some([n_embd, n_embd]),
                    _ => None,
                }
            }
            Self::FfnUp => Some([kind.n_ff(), n_embd]),
            Self::FfnDown => Some([n_embd, kind.n_ff()]),
            Self::FfnGate => match &kind.channel {
                Channel::Ffn(shape) if !shape.is_gated => None,
                Channel::Ffn(_) | Channel::Experts(_) => Some([kind.n_ff(), n_embd]),
            },
            Self::FfnGateInp => match &kind.channel {
                Channel::Experts(shape) => Some([shape.n_expert, n_embd]),
                Channel::Ffn(_) => None,
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
            Self::Output => None,
        }
    }

    const fn shape_in_delta_net(self, shape: &DeltaNet, n_embd: usize) -> Option<[usize; 2]> {
        match (self, shape.keys) {
            (Self::SsmQkv, _) => Some([shape.n_channel(), n_embd]),
            (Self::SsmGate, _) => Some([shape.n_value(), n_embd]),
            (Self::SsmBeta | Self::SsmAlpha, DeltaKeys::Alternate) => {
                Some([shape.n_head_v, n_embd])
            }
            (Self::SsmBa, DeltaKeys::Neighbours) => Some([2 * shape.n_head_v, n_embd]),
            (Self::SsmOut, _) => Some([n_embd, shape.n_value()]),
            _ => None,
        }
    }

    const fn shape_in_attention(self, shape: &Attention, n_embd: usize) -> Option<[usize; 2]> {
        match self {
            Self::AttnQ => Some([shape.n_query_rows(), n_embd]),
            // A layer that reads another's keys and values has none of its own.
            Self::AttnK if shape.keys_of.is_none() => Some([shape.n_key(), n_embd]),
            Self::AttnV if shape.keys_of.is_none() => Some([shape.n_value(), n_embd]),
            Self::AttnOutput => Some([n_embd, shape.n_out()]),
            _ => None,
        }
    }

    /// What it reads.
    pub const fn input(self) -> Input {
        match self {
            Self::AttnOutput | Self::ShortConvOut | Self::SsmOut => Input::Mixed,
            Self::FfnDown => Input::Neurons,
            _ => Input::Stream,
        }
    }

    /// Whether later tokens depend on its outputs (keys, values, recurrent states), so that it runs for
    /// every token, not for those alone that go on.
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
        )
    }

    /// Whether each expert has one, in a layer with experts.
    pub const fn is_of_experts(self) -> bool {
        matches!(self, Self::FfnGate | Self::FfnUp | Self::FfnDown)
    }
}

/// The vectors that a layer may have: norms, and what else is added or multiplied in f32.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub(crate) enum Vector {
    /// The norm before the mixer, (n_embd).
    MixerNorm,
    /// The norm of queries: (head_dim_k) or (n_head * head_dim_k).
    QueryNorm,
    /// The norm of keys: (head_dim_k) or (n_head_kv * head_dim_k).
    KeyNorm,
    /// The norm of what the mixer adds, (n_embd).
    MixerPostNorm,
    /// The norm before the channel, (n_embd).
    ChannelNorm,
    /// The norm of what the channel adds, (n_embd).
    ChannelPostNorm,
    /// Scores of attention's sinks, (n_head).
    Sinks,
    /// Taps of the short convolution, (n_embd, n_taps): those of a channel side by side, oldest first.
    ConvTaps,
    /// Taps of a convolution before a recurrence, (n_channel, n_taps), as above.
    SsmConv,
    /// What its sums start with, (n_channel); Mamba 2's alone.
    SsmConvBias,
    /// Added to the heads' steps, (n_head).
    SsmDt,
    /// What steps are multiplied by for the logarithm of the decay, below 0: (n_head).
    SsmA,
    /// How much of a head's input goes around its state, (n_head).
    SsmD,
    /// The norm of the heads' outputs: (head_dim_v) of a delta net, (n_group, n_inner / n_group) of Mamba 2.
    SsmNorm,
}

impl Vector {
    pub(super) const COUNT: usize = Self::SsmNorm as usize + 1;

    /// Rows and columns in a layer of that kind, one row but for taps; zeros where the kind has none.
    pub(super) const fn shape(self, kind: &LayerKind, n_embd: usize) -> [usize; 2] {
        let len = match (self, &kind.mixer) {
            (Self::MixerNorm | Self::ChannelNorm, _) => n_embd,
            (Self::MixerPostNorm | Self::ChannelPostNorm, _) if kind.has_post_norms => n_embd,
            (Self::QueryNorm, Mixer::Attention(shape)) => match shape.qk_norm {
                QkNorm::Row => shape.n_query(),
                QkNorm::Head => shape.head_dim_k,
                QkNorm::None => 0,
            },
            (Self::KeyNorm, Mixer::Attention(shape)) => match shape.qk_norm {
                // A layer that reads another's keys has none to norm.
                _ if shape.keys_of.is_some() => 0,
                QkNorm::Row => shape.n_key(),
                QkNorm::Head => shape.head_dim_k,
                QkNorm::None => 0,
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
            _ => 0,
        };
        if len == 0 { [0, 0] } else { [1, len] }
    }
}
