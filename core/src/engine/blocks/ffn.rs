//! The feed-forward network: gate and up, an activation, down.

use super::LayerAt;
use super::cold::{Cold, ColdRoom};
use super::predict::{self, PredictRoom};
use crate::engine::epilogue::{Epilogue, Gated, Selection};
use crate::engine::keep::{Keeping, Network};
use crate::engine::limits::EngineLimits;
use crate::engine::linear::{Columns, Linear, ROWS_MAX};
use crate::engine::pass::{Needs, activations, activations_of};
use crate::engine::rows::{Order, Rows};
use crate::engine::runner::Runner;
use crate::engine::scratch::Room;
use crate::kernels::activation::ActivationLayout;
use crate::kernels::table::Activations;
use crate::memory::{MemoryError, Shared};
use crate::model::{Channel, Ffn, LayerKind, ModelConfig, Site, Vector, Weight};
use crate::team::Stop;
use crate::trace::Phase;

/// Memory of feed-forward networks.
#[derive(Debug)]
pub(super) struct FfnRoom<'m> {
    /// Quantised rows of neurons.
    rows: Shared<'m, u8>,
    /// Gates before up is computed, and the cuts of their rows, where steps may compare gates.
    gates: Rows<'m>,
    cuts: Shared<'m, u64>,
    pub(super) needs: Needs,
    predict: PredictRoom<'m>,
    cold: ColdRoom<'m>,
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
        let n_ff = |kind: &LayerKind| match &kind.channel {
            Channel::Ffn(shape) if limits.ranks_gates || limits.cold_neurons => shape.n_ff,
            _ => 0,
        };
        let stride = config.kinds.iter().map(n_ff).max().unwrap_or(0);
        let n_gates = match limits.ranks_gates {
            true => limits.n_batch,
            false => limits.n_batch.min(ROWS_MAX),
        };
        let predict = PredictRoom::new(limits, room)?;
        let cold = ColdRoom::new(config, limits, room)?;
        Ok(Self {
            rows: room.buffer(limits.n_batch, row_bytes)?,
            gates: Rows {
                memory: room.buffer(n_gates, stride)?,
                stride,
            },
            cuts: room.buffer(limits.n_batch, stride.min(limits.ranks_gates.into()))?,
            needs: Needs {
                row_bytes,
                ..predict.needs(limits)
            },
            predict,
            cold,
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
    let mut selection = predict_from_stream(runner, room, at)?;
    let input = runner.normed(Phase::FfnNorm, at.index, norm, Order::Batch)?;
    if selection.is_none() {
        selection = select(runner, room, at, shape, &input)?;
    }
    let layout = ActivationLayout::new(shape.n_ff, runner.pass.activations().neurons);
    let up = model.matrix(at.weights, Site::FfnUp);
    let down = model.matrix(at.weights, Site::FfnDown);
    let network = Network {
        layer: at.index,
        activation: shape.activation,
        first: 0,
        n_ff: shape.n_ff,
    };
    let mut gated = Gated {
        activation: shape.activation,
        up: None,
        by: None,
        rows: room.rows,
        layout,
        selection,
        keeping: Keeping::new(runner.pass, network, down.layout.ty()),
        gates: None,
    };
    let mut cold = Cold::of(runner, &room.cold, at.index, shape, &up);
    let knows_gates = gates_first(runner, room, at, &input, &mut gated, cold.as_mut())?;
    let (site, weight) = if knows_gates || !shape.is_gated {
        (Site::FfnUp, up)
    } else {
        gated.up = Some(up);
        (Site::FfnGate, model.matrix(at.weights, Site::FfnGate))
    };
    let gate_up = runner.linear(at.index, site, input, n, weight, Epilogue::Gated(gated));
    let columns = match &cold {
        Some(cold) => gate_up_cold(runner, room, cold, gate_up, &gated, down)?,
        None => {
            runner.linears(Phase::FfnGateUp, at.index, &mut [gate_up])?;
            None
        }
    };
    if let Some(keeping) = gated.keeping.filter(Keeping::ranks_values) {
        let pass = runner.pass;
        runner.share_rows(at.index, n, &|rows| {
            // SAFETY: written before the last barrier; a row is one worker's.
            unsafe { keeping.leave_out_sought(pass, &layout, &room.rows, rows) };
        });
        runner.barrier(at.index)?;
    }
    // SAFETY: the rows were written before the last barrier.
    let input = unsafe { activations(&room.rows, &layout, n) };
    let held = cold.as_ref().map(|cold| cold.down(runner.member));
    if let Some(None) = held {
        return runner.barrier(at.index);
    }
    let add = runner
        .stream
        .add(model.norm(at.weights, Vector::ChannelPostNorm));
    let mut down = runner.linear(at.index, Site::FfnDown, input, n, down, add.into());
    down.columns = columns;
    runner.linears(Phase::FfnDown, at.index, &mut [down])
}

/// Gate and up of a network whose neurons are not all in memory, and down of hot neurons while others are read: the columns
/// that are left. Ends with a barrier.
fn gate_up_cold<'p>(
    runner: &mut Runner<'p, '_>,
    room: &'p FfnRoom<'p>,
    cold: &Cold<'p>,
    mut gate_up: Linear<'p>,
    gated: &Gated<'p>,
    down: Weight<'p>,
) -> Result<Option<Columns<'p>>, Stop> {
    cold.hot_gate_up(runner, &mut gate_up)?;
    let columns = cold.hot_columns(runner, gated, &down);
    if let Some(columns) = columns {
        let (layer, n) = (gate_up.layer, runner.n_rows);
        runner.barrier(layer)?;
        // SAFETY: the first columns' groups were written before the barrier, and nothing writes others before the next one.
        let input = unsafe { activations(&room.rows, &gated.layout, n) };
        let store = Epilogue::Store(columns.sums);
        let mut sums = runner.linear(layer, Site::FfnDown, input, n, down, store);
        sums.columns = Some(columns);
        runner.multiply(Phase::FfnDown, layer, &[sums]);
        runner.barrier(layer)?;
    }
    cold.cold_gate_up(runner, &gate_up)?;
    Ok(columns.map(|columns| Columns {
        is_first: false,
        ..columns
    }))
}

/// Computes all gates first, where rows are compared by them, or they tell which neurons have to be read; `false` if not.
/// Ends with a barrier.
fn gates_first<'p>(
    runner: &mut Runner<'p, '_>,
    room: &'p FfnRoom<'p>,
    at: LayerAt<'p>,
    input: &Activations<'p>,
    gated: &mut Gated<'p>,
    cold: Option<&mut Cold<'p>>,
) -> Result<bool, Stop> {
    let (pass, n) = (runner.pass, runner.n_rows);
    let ranked = gated.keeping.filter(Keeping::ranks_gates);
    let cold = cold.and_then(|cold| cold.unless_known(runner, gated));
    if ranked.is_none() && cold.is_none() {
        return Ok(false);
    }
    let (gates, n_ff) = (room.gates, gated.layout.n_cols());
    let weight = pass.model.matrix(at.weights, Site::FfnGate);
    let store = Epilogue::Store(gates);
    let gate = runner.linear(at.index, Site::FfnGate, *input, n, weight, store);
    runner.linears(Phase::FfnGateUp, at.index, &mut [gate])?;
    if let Some(keeping) = ranked {
        runner.share_rows(at.index, n, &|rows| {
            for row in rows {
                let start = row * gates.stride;
                // SAFETY: written before the last barrier, and only read in this phase.
                let gates = unsafe { gates.memory.read(start..start + n_ff) };
                // SAFETY: a row is one worker's.
                let cuts = unsafe { room.cuts.write(row..row + 1) };
                cuts[0] = keeping.cut_of_gates(pass, gates);
            }
        });
        runner.barrier(at.index)?;
        // SAFETY: written before the barrier; no worker writes until the next layer.
        gated.keeping = Some(keeping.with_cuts(unsafe { room.cuts.read(0..n) }));
    }
    gated.gates = Some(gates);
    if let Some(cold) = cold {
        cold.need_active(runner, gated, gates);
    }
    Ok(true)
}

/// Selects the neurons of each row by a predictor that reads the stream before the norm, if there is one.
fn predict_from_stream<'p>(
    runner: &mut Runner<'p, '_>,
    room: &'p FfnRoom<'p>,
    at: LayerAt<'p>,
) -> Result<Option<Selection<'p>>, Stop> {
    let options = runner.pass.options;
    let (None, Some(predictor)) = (options.selector, options.sparse.predictor()) else {
        return Ok(None);
    };
    let Some(layer) = predictor
        .layer(at.index)
        .filter(|_| predictor.is_of_stream())
    else {
        return Ok(None);
    };
    let input = predict::stream_rows(runner, at)?;
    predict::select(runner, &room.predict, at, &layer, input).map(Some)
}

/// Selects the neurons of each row, if there is a selector or a predictor; then it ends with a barrier.
fn select<'p>(
    runner: &mut Runner<'p, '_>,
    room: &'p FfnRoom<'p>,
    at: LayerAt<'p>,
    shape: &Ffn,
    input: &Activations<'p>,
) -> Result<Option<Selection<'p>>, Stop> {
    let (pass, n, order) = (runner.pass, runner.n_rows, runner.order);
    let Some(selector) = pass.options.selector else {
        let predictor = pass
            .options
            .sparse
            .predictor()
            .filter(|it| !it.is_of_stream());
        let Some(layer) = predictor.and_then(|it| it.layer(at.index)) else {
            return Ok(None);
        };
        return predict::select(runner, &room.predict, at, &layer, *input).map(Some);
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
