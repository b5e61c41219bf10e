//! Kinds of layers. A model is a list of layers, each of one of a few kinds.

use super::shape::{Attention, DeltaNet, Experts, Ffn, Mamba2, ShortConv};

/// How a layer uses earlier tokens.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub enum Mixer {
    /// Attention.
    Attention(Attention),
    /// A short convolution.
    ShortConv(ShortConv),
    /// A gated delta net.
    DeltaNet(DeltaNet),
    /// Mamba 2.
    Mamba2(Mamba2),
    /// No mixer: the layer is a channel alone.
    None,
}

/// How a layer transforms each token by itself.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub enum Channel {
    /// A feed-forward network.
    Ffn(Ffn),
    /// A mixture of experts.
    Experts(Experts),
    /// No channel: the layer is a mixer alone.
    None,
}

/// A kind of layer.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LayerKind {
    /// How it uses earlier tokens.
    pub mixer: Mixer,
    /// How it transforms each token.
    pub channel: Channel,
    /// Whether the outputs of mixer and channel each have a norm before they are added.
    pub has_post_norms: bool,
    /// Whether mixer and channel run in parallel, both on the mixer's input and norm, rather than in sequence.
    pub is_parallel: bool,
    /// Width of the per-layer embedding that is added after the channel; 0 for none (Gemma 3n, Gemma 4).
    pub n_embd_layer: usize,
    /// Whether the stream is multiplied by a number after the layer.
    pub has_output_scale: bool,
    /// Whether the mixer's input is added once more after the channel's norm, and the sum has
    /// a second norm (JinaBERT).
    pub has_second_norm: bool,
}

impl LayerKind {
    /// The shape of its attention, if it has one.
    pub const fn attention(&self) -> Option<&Attention> {
        match &self.mixer {
            Mixer::Attention(shape) => Some(shape),
            _ => None,
        }
    }

    /// The shape of its convolution, if it has one.
    pub const fn convolution(&self) -> Option<&ShortConv> {
        match &self.mixer {
            Mixer::ShortConv(shape) => Some(shape),
            _ => None,
        }
    }

    /// The shape of its experts, if it has any.
    pub const fn experts(&self) -> Option<&Experts> {
        match &self.channel {
            Channel::Experts(shape) => Some(shape),
            Channel::Ffn(_) | Channel::None => None,
        }
    }

    /// Neurons of its feed-forward network, or of one of its experts; 0 without either.
    pub const fn n_ff(&self) -> usize {
        match &self.channel {
            Channel::Ffn(shape) => shape.n_ff,
            Channel::Experts(shape) => shape.n_ff,
            Channel::None => 0,
        }
    }

    /// Elements of the rows that its feed-forward network, or one of its experts, reads and writes.
    pub const fn channel_width(&self, n_embd: usize) -> usize {
        match &self.channel {
            Channel::Experts(shape) => shape.width(n_embd),
            Channel::Ffn(_) | Channel::None => n_embd,
        }
    }

    /// Floats of a sequence's recurrent state in a layer; 0 without one.
    pub const fn state_len(&self, n_embd: usize) -> usize {
        match &self.mixer {
            Mixer::Attention(_) | Mixer::None => 0,
            Mixer::ShortConv(shape) => shape.state_len(n_embd),
            Mixer::DeltaNet(shape) => shape.state_len(),
            Mixer::Mamba2(shape) => shape.state_len(),
        }
    }
}
