//! Norms. The kind of a norm belongs to its weights: a layer may have both kinds.

use crate::kernels::KernelTable;

/// A norm with its weights, for one piece (a row, a head) or several consecutive pieces.
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

    /// The norm of piece `piece`, of length `len`: either all pieces share one, or each has its own.
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
