//! The feed-forward network: gate and up, an activation, down.

use super::LayerAt;
use crate::engine::epilogue::{Epilogue, Gated, Selection};
use crate::engine::limits::EngineLimits;
use crate::engine::pass::{Needs, activations, activations_of};
use crate::engine::rows::Order;
use crate::engine::runner::Runner;
use crate::engine::scratch::Room;
use crate::kernels::activation::ActivationLayout;
use crate::kernels::table::Activations;
use crate::memory::{MemoryError, Shared};
use crate::model::{Channel, Ffn, LayerKind, ModelConfig, Site, Vector};
use crate::team::Stop;
use crate::trace::Phase;

/// Memory of feed-forward networks.
#[derive(Debug)]
pub(super) struct FfnRoom<'m> {
    /// Quantised rows of neurons.
    rows: Shared<'m, u8>,
    pub(super) needs: Needs,
}

impl<'m> FfnRoom<'m> {
    pub(super) fn new(
        config: &ModelConfig,
        limits: &EngineLimits,
        room: &mut impl Room<'m>,
    ) -> Result<Self, MemoryError> {
        let kinds = activations_of(config, limits).neurons;
        let row_bytes = |kind: &LayerKind| match &kind.channel {
            Channel::Ffn(shape) => ActivationLayout::new(shape.n_ff, kinds).row_bytes(),
            Channel::Experts(_) | Channel::None => 0,
        };
        let row_bytes = config.kinds.iter().map(row_bytes).max().unwrap_or(0);
        Ok(Self {
            rows: room.buffer(limits.n_batch, row_bytes)?,
            needs: Needs {
                row_bytes,
                ..Needs::default()
            },
        })
    }
}

pub(super) fn run<'p>(
    runner: &mut Runner<'p, '_>,
    room: &'p FfnRoom<'p>,
    at: LayerAt<'p>,
    shape: &Ffn,
) -> Result<(), Stop> {
    let (model, n) = (runner.pass.model, runner.n_rows);
    let norm = model.norm(at.weights, super::channel_norm(at.kind));
    let input = runner.normed(Phase::FfnNorm, at.index, norm, Order::Batch)?;
    let layout = ActivationLayout::new(shape.n_ff, runner.pass.activations().neurons);
    let up = model.matrix(at.weights, Site::FfnUp);
    let mut gated = Gated {
        activation: shape.activation,
        up: None,
        by: None,
        rows: room.rows,
        layout,
        selection: select(runner, at, shape, &input)?,
    };
    let (site, weight) = if shape.is_gated {
        gated.up = Some(up);
        (Site::FfnGate, model.matrix(at.weights, Site::FfnGate))
    } else {
        (Site::FfnUp, up)
    };
    let gate_up = runner.linear(at.index, site, input, n, weight, Epilogue::Gated(gated));
    runner.linears(Phase::FfnGateUp, at.index, &mut [gate_up])?;
    // SAFETY: the rows were written before the last barrier.
    let input = unsafe { activations(&room.rows, &layout, n) };
    let add = runner
        .stream
        .add(model.norm(at.weights, Vector::ChannelPostNorm));
    let down = model.matrix(at.weights, Site::FfnDown);
    let down = runner.linear(at.index, Site::FfnDown, input, n, down, add.into());
    runner.linears(Phase::FfnDown, at.index, &mut [down])
}

/// Selects the neurons of each row, if there is a selector; then it ends with a barrier.
fn select<'p>(
    runner: &mut Runner<'p, '_>,
    at: LayerAt<'p>,
    shape: &Ffn,
    input: &Activations<'p>,
) -> Result<Option<Selection<'p>>, Stop> {
    let (pass, n, order) = (runner.pass, runner.n_rows, runner.order);
    let Some(selector) = pass.options.selector else {
        return Ok(None);
    };
    let (bits, unit) = (pass.common.selected, pass.asked.unit);
    let words = bits.len() / pass.limits.n_batch;
    let n_words = shape.n_ff.div_ceil(unit.n_neurons()).div_ceil(64);
    runner.share(Phase::FfnNorm, at.index, n, |_, row| {
        // SAFETY: a row is one worker's.
        let bits = unsafe { bits.write(row * words..row * words + n_words) };
        bits.fill(0);
        let entry = pass.common.entry(order, row);
        let x = pass.limits.observes.then(|| input.f32_row(row));
        if !selector.select(at.index, entry, x, bits) {
            bits.fill(u64::MAX);
        }
        0
    });
    runner.barrier(at.index)?;
    Ok(Some(Selection {
        // SAFETY: written before the barrier; no worker writes until the next layer.
        bits: unsafe { bits.read(0..n * words) },
        words,
        unit,
    }))
}
