//! Files of PowerInfer (arXiv 2312.12456), whose networks have zeros: `llama` with ReLU, and `bamboo` with dReLU. Down
//! projections are stored by neuron, as `ffn_down_t`, and each layer may have a predictor of its active neurons.
//!
//! Source: SJTU-IPADS/PowerInfer, `convert.py` and `llama.cpp`. Its files begin with `PWRI`.

use super::{Family, layers};
use crate::gguf::{Gguf, optional};
use crate::kernels::table::RopePairing;
use crate::kernels::{GgmlType, WeightType};
use crate::model::activation::Activation;

/// Bamboo: llama with ReLU of gates and ups.
pub(super) static BAMBOO: Family = Family {
    name: "bamboo",
    layer: layers::DENSE,
    rope_pairing: RopePairing::Interleaved,
    activation: Activation::Drelu,
    ..Family::PLAIN
};

/// A down projection whose rows are neurons.
pub(super) const DOWN_BY_NEURON: &str = "ffn_down_t";
/// What `PowerInfer` adds to a model's file.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PowerInfer {
    /// The score above which the predictor counts a neuron as active, if the file has one.
    pub threshold: Option<f32>,
    /// Layers that have a predictor: `relu(fc1 · x)`, then `fc2`, a score for each neuron. Its x is the residual stream
    /// after attention, without a norm.
    pub n_predictors: usize,
    /// Columns of the widest `fc2`.
    pub rank: usize,
    /// Whether down projections are stored by neuron.
    pub is_down_by_neuron: bool,
}

impl PowerInfer {
    /// The key of the score above which a predicted neuron counts as active.
    pub const THRESHOLD: &str = "powerinfer.sparse_threshold";

    /// What `gguf` has of `PowerInfer`; `None` if it is not one of its files.
    pub fn of(gguf: &Gguf<'_>) -> Option<Self> {
        let threshold = optional(gguf.f32(Self::THRESHOLD)).ok().flatten();
        let is_down_by_neuron = is_down_by_neuron(gguf);
        let predictors = gguf
            .tensors()
            .filter(|tensor| part(tensor.name) == Some("fc2"));
        let (n_predictors, rank) = predictors.fold((0, 0), |(n, rank), tensor| {
            let columns = usize::try_from(tensor.dims[0]).unwrap_or(usize::MAX);
            (n + 1, columns.max(rank))
        });
        let is_one = threshold.is_some() || is_down_by_neuron || n_predictors > 0;
        is_one.then_some(Self {
            threshold,
            n_predictors,
            rank,
            is_down_by_neuron,
        })
    }

    /// Whether a tensor belongs to the predictor of active neurons, `blk.N.fc1.weight` or `blk.N.fc2.weight`.
    pub fn is_of_predictor(name: &str) -> bool {
        matches!(part(name), Some("fc1" | "fc2"))
    }
}

/// Whether it is one of its files, of a family that it shares with others.
pub(super) fn is_one(gguf: &Gguf<'_>) -> bool {
    let has = |name| gguf.tensor(name).is_some();
    gguf.get(PowerInfer::THRESHOLD).is_some() || is_down_by_neuron(gguf) || has("blk.0.fc1.weight")
}

/// `part` of `blk.N.part.weight`.
fn part(name: &str) -> Option<&str> {
    let (_, part) = name.strip_prefix("blk.")?.split_once('.')?;
    part.strip_suffix(".weight")
}

/// Whether down projections are stored by neuron.
pub(super) fn is_down_by_neuron(gguf: &Gguf<'_>) -> bool {
    gguf.tensor("blk.0.ffn_down_t.weight").is_some()
}

/// The type of a matrix that is stored as `ty` by columns. A block of one scale holds a column's values, which become
/// values of as many rows, so that only types without blocks remain; the others are decoded, without rounding. Types
/// without kernels stay, to be refused.
pub(in crate::model) const fn turned_type(ty: GgmlType) -> GgmlType {
    match ty {
        GgmlType::F16 | GgmlType::BF16 => ty,
        _ if WeightType::from_ggml(ty).is_none() => ty,
        _ => GgmlType::F32,
    }
}
