//! The separate embedding of each layer (Gemma 3n, Gemma 4): `proj(gelu(gate · x) ⊙ input)`, added after the channel.
//!
//! ```text
//! begin     projection of the model's embedding           strips    |
//!           norm, and the token's own embedding added     rows      |
//! layer     gate, activation, times input; quantised      strips    | s
//!           projection, added at the next norm            strips    |
//! ```

use super::LayerAt;
use crate::engine::epilogue::{Epilogue, Gated};
use crate::engine::limits::EngineLimits;
use crate::engine::pass::{Needs, activations, activations_of};
use crate::engine::rows::{Order, Rows};
use crate::engine::runner::Runner;
use crate::engine::scratch::{PerWorker, Room};
use crate::kernels::activation::ActivationLayout;
use crate::kernels::contract::sqrt;
use crate::memory::{MemoryError, Shared};
use crate::model::{Activation, ModelConfig, Site, Vector};
use crate::team::Stop;
use crate::trace::Phase;

/// Memory of the layers' own embeddings.
#[derive(Debug)]
pub(in crate::engine) struct LayerInputRoom<'m> {
    /// (n_batch, n_layer * n_embd_layer)
    inputs: Shared<'m, f32>,
    /// A worker's own row of these inputs.
    own: PerWorker<'m, f32>,
    /// Quantised rows of the gated inputs.
    rows: Shared<'m, u8>,
    layout: ActivationLayout,
    pub(super) needs: Needs,
}

impl<'m> LayerInputRoom<'m> {
    pub(super) fn new(
        config: &ModelConfig,
        limits: &EngineLimits,
        room: &mut impl Room<'m>,
    ) -> Result<Self, MemoryError> {
        let n = config.n_embd_layer;
        let layout = ActivationLayout::new(n.max(1), activations_of(config, limits).neurons);
        let row_bytes = if n == 0 { 0 } else { layout.row_bytes() };
        let all = n * config.n_layer();
        Ok(Self {
            inputs: room.buffer(limits.n_batch, all)?,
            own: room.of_workers(limits.n_workers, all)?,
            rows: room.buffer(limits.n_batch, row_bytes)?,
            layout,
            needs: Needs {
                row_bytes,
                norm_row: n,
                ..Needs::default()
            },
        })
    }
}

/// Computes the inputs of all layers, once the stream has the embeddings; does nothing where layers have none.
pub(in crate::engine) fn begin<'p>(
    runner: &mut Runner<'p, '_>,
    room: &'p LayerInputRoom<'p>,
) -> Result<(), Stop> {
    let (pass, n) = (runner.pass, runner.n_rows);
    let Some((proj, norm)) = pass.model.layer_input() else {
        return Ok(());
    };
    let (config, stride) = (pass.config(), proj.n_rows);
    let input = runner.normed(Phase::Embedding, 0, None, Order::Batch)?;
    let rows = Rows {
        memory: room.inputs,
        stride,
    };
    // The matrix belongs to no layer, so neither adapters nor observers know it.
    let linear = runner.linear(
        0,
        Site::LayerInputProj,
        input,
        n,
        proj,
        Epilogue::Store(rows),
    );
    runner.share_ranges(Phase::Embedding, 0, linear.n_strips(), |rank, strips| {
        linear.run(pass, rank, strips)
    });
    runner.barrier(0)?;
    #[expect(clippy::cast_precision_loss, reason = "widths are below 2^24")]
    let root = |n: usize| sqrt(n as f32);
    let (of_model, of_layer) = (1.0 / root(config.n_embd), root(config.n_embd_layer));
    let half = 1.0 / root(2);
    runner.share(Phase::Embedding, 0, n, |rank, row| {
        // SAFETY: a row is one worker's.
        let inputs = unsafe { room.inputs.write(row * stride..(row + 1) * stride) };
        inputs.iter_mut().for_each(|x| *x *= of_model);
        pass.norm_in_place(rank, inputs, Some(norm));
        // SAFETY: this worker's own row, whose last use is over.
        let own = unsafe { room.own.of(rank).write(0..stride) };
        pass.model.embed_layers(pass.batch[row].token, own);
        for (x, own) in inputs.iter_mut().zip(own) {
            *x = (*x + *own * of_layer) * half;
        }
        0
    });
    runner.barrier(0)
}

pub(super) fn run<'p>(
    runner: &mut Runner<'p, '_>,
    room: &'p LayerInputRoom<'p>,
    at: LayerAt<'p>,
) -> Result<(), Stop> {
    let (pass, model, n) = (runner.pass, runner.pass.model, runner.n_rows);
    let input = runner.normed(Phase::FfnNorm, at.index, None, Order::Batch)?;
    let width = at.kind.n_embd_layer;
    let first = at.index * width;
    let gated = Gated {
        activation: Activation::Gelu,
        up: None,
        by: Some(Rows {
            memory: room.inputs.part(first..room.inputs.len()),
            stride: width * pass.config().n_layer(),
        }),
        rows: room.rows,
        layout: room.layout,
        selection: None,
        keeping: None,
        gates: None,
    };
    let weight = |site| model.matrix(at.weights, site);
    let site = Site::LayerInputGate;
    let gate = runner.linear(
        at.index,
        site,
        input,
        n,
        weight(site),
        Epilogue::Gated(gated),
    );
    runner.linears(Phase::FfnGateUp, at.index, &mut [gate])?;
    // SAFETY: the rows were written before the last barrier.
    let rows = unsafe { activations(&room.rows, &room.layout, n) };
    let post = model.norm(at.weights, Vector::LayerInputPostNorm);
    let add = runner.stream.add(post);
    let site = Site::LayerInputProj;
    let proj = runner.linear(at.index, site, rows, n, weight(site), add.into());
    runner.linears(Phase::FfnDown, at.index, &mut [proj])
}
