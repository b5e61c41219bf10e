//! Predicted neurons: two small linear layers give a score for each neuron of a row, and those above a threshold are
//! computed.
//!
//! ```text
//! hidden = down · x                     strips   |
//! rows of hidden, quantised             rows     (shared out, with a barrier, for more than 8 tokens)
//! bits of up · hidden + bias            strips   |
//! ```

use super::LayerAt;
use crate::engine::epilogue::{Epilogue, Scores, Selection};
use crate::engine::limits::EngineLimits;
use crate::engine::pass::{Needs, RowsRoom};
use crate::engine::rows::{Order, Rows, SMALL_BATCH};
use crate::engine::runner::Runner;
use crate::engine::scratch::{PerWorker, Room};
use crate::kernels::activation::ActivationLayout;
use crate::kernels::table::Activations;
use crate::memory::{MemoryError, Shared};
use crate::model::{LayerPredictor, Site, Weight};
use crate::team::Stop;
use crate::trace::Phase;

/// Memory of predictors.
#[derive(Debug)]
pub(super) struct PredictRoom<'m> {
    /// Products of a predictor's first matrix, (n_batch, rank).
    hidden: Rows<'m>,
    /// The same, quantised.
    rows: Shared<'m, u8>,
    /// A worker's own rows, for [`SMALL_BATCH`] tokens.
    own: PerWorker<'m, u8>,
}

impl<'m> PredictRoom<'m> {
    pub(super) fn new(
        limits: &EngineLimits,
        room: &mut impl Room<'m>,
    ) -> Result<Self, MemoryError> {
        let (rank, n_batch) = (limits.predictor.rank, limits.n_batch);
        let row_bytes = match rank {
            0 => 0,
            _ => ActivationLayout::new(rank, limits.predictor.kinds).row_bytes(),
        };
        Ok(Self {
            hidden: Rows {
                memory: room.buffer(n_batch, rank)?,
                stride: rank,
            },
            rows: room.buffer(n_batch, row_bytes)?,
            own: room.of_workers(limits.n_workers, SMALL_BATCH * row_bytes)?,
        })
    }

    pub(super) fn needs(&self, limits: &EngineLimits) -> Needs {
        Needs {
            norm_row: limits.predictor.rank,
            ..Needs::default()
        }
    }
}

/// The residual stream as a network's norm will read it, without the norm.
pub(super) fn stream_rows<'p>(
    runner: &mut Runner<'p, '_>,
    at: LayerAt<'p>,
) -> Result<Activations<'p>, Stop> {
    let pass = runner.pass;
    let (normed, n) = (&pass.common.normed, runner.n_rows);
    runner.rows(Phase::FfnNorm, at.index, normed, n, |runner, i, row| {
        let x = runner.stream_row(pass.common.entry(Order::Batch, i));
        pass.quantize(x, &normed.layout, row);
    })
}

/// The neurons of each row whose scores for `input` are above the threshold, or not numbers; ends with a barrier.
pub(super) fn select<'p>(
    runner: &mut Runner<'p, '_>,
    room: &'p PredictRoom<'p>,
    at: LayerAt<'p>,
    predictor: &LayerPredictor<'p>,
    input: Activations<'p>,
) -> Result<Selection<'p>, Stop> {
    let (pass, n) = (runner.pass, runner.n_rows);
    let mut rows = input;
    if let Some(down) = predictor.down {
        multiply(runner, at, rows, down, Epilogue::Store(room.hidden));
        runner.barrier(at.index)?;
        rows = hidden_rows(runner, room, at, down.n_rows)?;
    }
    let words = pass.common.selected.len() / pass.limits.n_batch;
    let scores = Scores {
        bits: pass.common.selected,
        words,
        threshold: predictor.threshold,
    };
    multiply(runner, at, rows, predictor.up, Epilogue::Select(scores));
    runner.barrier(at.index)?;
    Ok(Selection {
        // SAFETY: written before the barrier; no worker writes until the next layer.
        bits: unsafe { pass.common.selected.read(0..n * words) },
        words,
        unit: pass.asked.unit,
    })
}

fn multiply<'p>(
    runner: &mut Runner<'p, '_>,
    at: LayerAt<'p>,
    input: Activations<'p>,
    weight: Weight<'p>,
    epilogue: Epilogue<'p>,
) {
    let n = runner.n_rows;
    // The site counts for adapters and observers alone, which do not take part.
    let linear = runner.linear(at.index, Site::FfnGate, input, n, weight, epilogue);
    runner.multiply(Phase::FfnNorm, at.index, &[linear]);
}

/// Products of the first matrix as rows that the second one reads.
fn hidden_rows<'p>(
    runner: &mut Runner<'p, '_>,
    room: &'p PredictRoom<'p>,
    at: LayerAt<'p>,
    rank: usize,
) -> Result<Activations<'p>, Stop> {
    let (pass, n) = (runner.pass, runner.n_rows);
    let has_relu = pass
        .options
        .sparse
        .predictor()
        .is_some_and(|it| it.is_of_stream());
    let rows = RowsRoom {
        memory: room.rows,
        layout: ActivationLayout::new(rank, pass.limits.predictor.kinds),
    };
    let own = &room.own;
    runner.rows_in(Phase::FfnNorm, at.index, &rows, own, n, |runner, i, row| {
        let start = i * room.hidden.stride;
        // SAFETY: written before the last barrier.
        let x = unsafe { room.hidden.memory.read(start..start + rank) };
        // SAFETY: this rank's own row, whose last use is over.
        let y = unsafe { pass.common.norms.of(runner.member.rank()).write(0..rank) };
        for (y, x) in y.iter_mut().zip(x) {
            // NaN stays what it is.
            *y = if has_relu && *x <= 0.0 { 0.0 } else { *x };
        }
        pass.quantize(y, &rows.layout, row);
    })
}
