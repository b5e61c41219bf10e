//! What a family says about its tensors and itself, where it differs from Llama.

use super::super::ConvertError;
use super::super::config::Config;
use super::super::rope::Rope;
use super::wanted::Wanted;
use super::{Family, Shape, decoder, parameters};
use sluice::file::GgufHeader;
use std::path::Path;

/// Where a family differs from Llama. Each has a value for itself, made from [`Traits::LLAMA`].
pub(in crate::convert) struct Traits {
    /// The tensors before those of layers.
    pub(super) first: fn(&Model<'_>) -> Vec<Wanted>,
    /// Adds the tensors of a layer.
    pub(super) layer: fn(&Model<'_>, layer: u32, all: &mut Vec<Wanted>),
    /// Writes what the family says about itself.
    pub(super) write: fn(&mut GgufHeader, &Parts<'_>, &mut Vec<String>) -> Result<(), ConvertError>,
    /// The norm behind all layers, as both sides name it.
    pub(super) last_norm: [&'static str; 2],
    /// 1 is added to what norms multiply by.
    pub(super) norms_add_one: bool,
    /// The width of feed-forward networks.
    pub(super) n_ff: fn(&Config) -> Result<u32, ConvertError>,
    /// Which of so many layers convolve instead of attending, and the taps of a convolution.
    pub(super) convolutions: fn(&Config, u32) -> Result<Convolutions, ConvertError>,
    /// Columns of a head where none are given, of `n_embd` and `n_head`; `None` where that is not written.
    pub(super) head_dim: fn(u32, u32) -> Option<u32>,
    /// Whether the embedding is the output matrix where nothing is said.
    pub(super) is_tied: bool,
    /// All experts of a layer are in one tensor.
    pub(super) stacks_experts: bool,
    /// The base of rotary embeddings where none is given.
    pub(in crate::convert) rope_base: f64,
}

/// Which layers convolve, and the taps of a convolution.
pub(super) type Convolutions = (Vec<bool>, u32);

/// A model whose tensors are listed.
pub(super) struct Model<'a> {
    pub(super) family: &'a Family,
    pub(super) shape: &'a Shape,
    /// Whether the folder has a tensor of that name.
    pub(super) has: &'a dyn Fn(&str) -> bool,
}

/// A model that is described.
pub(in crate::convert) struct Parts<'a> {
    /// Where an encoder's pooling is described.
    pub(in crate::convert) folder: &'a Path,
    pub(in crate::convert) family: &'a Family,
    pub(in crate::convert) config: &'a Config,
    pub(in crate::convert) shape: &'a Shape,
    pub(in crate::convert) rope: &'a Rope,
}

impl Parts<'_> {
    /// Writes what the family says about itself.
    pub(in crate::convert) fn write(
        &self,
        header: &mut GgufHeader,
        warnings: &mut Vec<String>,
    ) -> Result<(), ConvertError> {
        (self.family.traits().write)(header, self, warnings)
    }
}

impl Traits {
    /// Of Llama and most families.
    pub(super) const LLAMA: Self = Self {
        first: decoder::first,
        layer: decoder::layer,
        write: parameters::write,
        last_norm: ["output_norm.weight", "model.norm.weight"],
        norms_add_one: false,
        n_ff: |config| config.count(&["intermediate_size"]),
        convolutions: |_, _| Ok((Vec::new(), 0)),
        head_dim: |n_embd, n_head| Some(n_embd / n_head),
        is_tied: false,
        stacks_experts: false,
        rope_base: 10_000.0,
    };
}
