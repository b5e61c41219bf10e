//! Norms of the columns of down matrices: how much a neuron of 1 adds to the stream.

use super::error::ModelError;
use super::kind::Channel;
use super::site::Site;
use super::weight::Weight;
use super::weights::ModelWeights;
use super::{LayerKind, ModelConfig};
use crate::kernels::contract::sqrt;
use crate::kernels::neuron::Form;
use crate::kernels::panel::{PANEL_ROWS, dequantize_gguf_row};
use crate::memory::{Arena, MemoryError, MemoryPlan};

impl ModelConfig {
    /// Neurons of the layer with the most, all experts counted.
    pub fn neurons_max(&self) -> usize {
        let of_kind = |kind: &LayerKind| match &kind.channel {
            Channel::Ffn(shape) => shape.n_ff,
            Channel::Experts(shape) => {
                shape.n_expert * shape.n_ff + shape.shared.map_or(0, |shared| shared.n_ff)
            }
            Channel::None => 0,
        };
        self.kinds.iter().map(of_kind).max().unwrap_or(0)
    }
}

impl ModelWeights<'_> {
    /// Bytes of scratch memory for [`Self::neuron_norms`], aligned to [`crate::memory::ALIGN`].
    ///
    /// # Errors
    /// More than the address space.
    pub fn neuron_norms_room(&self) -> Result<usize, MemoryError> {
        let (mut n_cols, mut row_bytes) = (0, 0);
        for weights in self.layers() {
            for site in [Site::FfnDown, Site::FfnDownShexp] {
                if weights.has(site) {
                    let layout = weights.layout(site);
                    n_cols = n_cols.max(layout.n_cols());
                    row_bytes = row_bytes.max(layout.gguf_row_bytes());
                }
            }
        }
        let mut plan = MemoryPlan::new();
        plan.slice::<f64>(n_cols)?;
        plan.slice::<f32>(n_cols)?;
        plan.slice::<u8>(PANEL_ROWS * row_bytes)?;
        Ok(plan.bytes())
    }

    /// The norms of the columns of a layer's down matrices, of its experts one after the other and then of the expert for
    /// all tokens, at the front of `out` ([`ModelConfig::neurons_max`]): the roots of the sums of squares of the
    /// dequantised weights, rounded up.
    ///
    /// # Errors
    /// `room` is misaligned or smaller than [`Self::neuron_norms_room`], or `out` smaller than needed; experts that are
    /// not in memory.
    pub fn neuron_norms(
        &self,
        layer: usize,
        room: &mut [u8],
        out: &mut [f32],
    ) -> Result<(), ModelError> {
        let (weights, kind) = (&self.layers()[layer], self.config().kind(layer));
        if out.len() < self.config().neurons_max() {
            let missing = self.config().neurons_max() - out.len();
            return Err(MemoryError::TooSmall {
                missing_bytes: missing * size_of::<f32>(),
            }
            .into());
        }
        match &kind.channel {
            Channel::None => Ok(()),
            Channel::Ffn(_) => column_norms(&self.matrix(weights, Site::FfnDown), room, out),
            Channel::Experts(_) if !self.has_experts() => Err(ModelError::NotLoaded),
            Channel::Experts(shape) => {
                let experts = out.chunks_exact_mut(shape.n_ff).take(shape.n_expert);
                for (expert, out) in (0u32..).zip(experts) {
                    let panels = self.expert_bytes(layer, Site::FfnDown, expert as usize);
                    let down = self.expert_matrix(weights, Site::FfnDown, expert, panels);
                    column_norms(&down, room, out)?;
                }
                let rest = &mut out[shape.n_expert * shape.n_ff..];
                match shape.shared {
                    Some(_) => column_norms(&self.matrix(weights, Site::FfnDownShexp), room, rest),
                    None => Ok(()),
                }
            }
        }
    }
}

/// The norms of a matrix's columns, at the front of `out`.
fn column_norms(weight: &Weight<'_>, room: &mut [u8], out: &mut [f32]) -> Result<(), ModelError> {
    let layout = &weight.layout;
    let (mut arena, row_bytes) = (Arena::new(room)?, layout.gguf_row_bytes());
    let sums = arena.slice(layout.n_cols(), 0f64)?;
    let row = arena.slice(layout.n_cols(), 0f32)?;
    let band = arena.bytes(PANEL_ROWS * row_bytes)?;
    for i in weight.first_row..weight.first_row + weight.n_rows {
        if layout.form() == Form::Panels {
            layout.dequantize_row(i, weight.panels, row);
        } else {
            let at = i % PANEL_ROWS;
            if at == 0 {
                layout.unpack_band(i, weight.panels, band);
            }
            dequantize_gguf_row(layout.ty(), &band[at * row_bytes..][..row_bytes], row);
        }
        for (sum, x) in sums.iter_mut().zip(&*row) {
            *sum += f64::from(*x) * f64::from(*x);
        }
    }
    let factor = f64::from(weight.factor.unwrap_or(1.0));
    for (out, sum) in out.iter_mut().zip(sums) {
        *out = root(*sum * factor * factor);
    }
    Ok(())
}

/// The smallest number that is not below the root of `sum`, or just above.
fn root(sum: f64) -> f32 {
    #[expect(clippy::cast_possible_truncation, reason = "rounded up below")]
    let mut root = match sum > 0.0 {
        true => sqrt((sum as f32).max(f32::MIN_POSITIVE)),
        false => return if sum.is_nan() { f32::NAN } else { 0.0 },
    };
    while f64::from(root) * f64::from(root) < sum {
        root = root.next_up();
    }
    root
}
