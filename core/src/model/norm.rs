//! Norms. Of which kind one is belongs to its weights: a layer may have both kinds.

use super::refs::{VectorRef, floats};
use crate::kernels::KernelTable;

/// A norm with its weights, of one piece (a row, a head) or of several pieces one after the other.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Norm<'w> {
    /// `x / rms(x) · weight` (RMSNorm)
    Rms(&'w [f32]),
    /// `(x - mean(x)) / deviation(x) · weight + bias` (layer norm)
    Layer {
        weight: &'w [f32],
        /// As long as the weight, or empty.
        bias: &'w [f32],
    },
}

impl<'w> Norm<'w> {
    /// Elements of its weights.
    pub(crate) const fn len(&self) -> usize {
        match self {
            Self::Rms(weight) | Self::Layer { weight, .. } => weight.len(),
        }
    }

    /// The norm of piece `piece` of those that are `len` long: all have the same one, or each has its own.
    pub(crate) fn of_piece(self, piece: usize, len: usize) -> Self {
        if self.len() == len {
            return self;
        }
        let range = piece * len..(piece + 1) * len;
        match self {
            Self::Rms(weight) => Self::Rms(&weight[range]),
            Self::Layer { weight, bias } => Self::Layer {
                weight: &weight[range.clone()],
                bias: if bias.is_empty() { bias } else { &bias[range] },
            },
        }
    }

    /// Writes the norm of `x` to `out`; `eps` is added to the mean square.
    pub(crate) fn apply(&self, table: &KernelTable, x: &[f32], eps: f32, out: &mut [f32]) {
        match self {
            Self::Rms(weight) => table.rms_norm(x, weight, eps, out),
            Self::Layer { weight, bias } => table.layer_norm(x, weight, bias, eps, out),
        }
    }
}

/// The kind of a norm, and where its bias lies. A plain number, since tables of these lie in the caller's bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(transparent)]
pub(super) struct NormKind(usize);

impl NormKind {
    /// An RMSNorm, or a vector that is not a norm.
    pub(super) const RMS: Self = Self(usize::MAX);
    const LAYER_WITHOUT_BIAS: Self = Self(usize::MAX - 1);

    /// A layer norm.
    pub(super) fn layer(bias: Option<VectorRef>) -> Self {
        bias.map_or(Self::LAYER_WITHOUT_BIAS, |bias| Self(bias.offset))
    }
}

/// Where the weights of a norm lie; of length 0 where there is none.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NormRef {
    pub(super) weight: VectorRef,
    pub(super) kind: NormKind,
}

impl NormRef {
    pub(super) const EMPTY: Self = Self {
        weight: VectorRef::EMPTY,
        kind: NormKind::RMS,
    };

    /// The norm, whose weights lie in `memory`; `None` where there is none.
    pub(super) fn get<'w>(&self, memory: &'w [u8]) -> Option<Norm<'w>> {
        let weight = match self.weight.len {
            0 => return None,
            _ => floats(memory, &self.weight),
        };
        let bias = match self.kind {
            NormKind::RMS => return Some(Norm::Rms(weight)),
            NormKind::LAYER_WITHOUT_BIAS => &[],
            NormKind(offset) => floats(
                memory,
                &VectorRef {
                    offset,
                    ..self.weight
                },
            ),
        };
        Some(Norm::Layer { weight, bias })
    }
}
