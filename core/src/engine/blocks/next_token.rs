//! The input of a head that predicts a token further: `eh_proj · [ norm(embedding) ; norm(hidden state) ]`.
//!
//! ```text
//! angles                                                rows
//! embedding, both norms side by side, quantised         rows      | l
//! projection, into the stream                           strips    |
//! ```

use crate::engine::epilogue::Epilogue;
use crate::engine::limits::EngineLimits;
use crate::engine::pass::{Needs, RowsRoom, activations_of};
use crate::engine::runner::Runner;
use crate::engine::scratch::{PerWorker, Room};
use crate::kernels::activation::ActivationLayout;
use crate::memory::MemoryError;
use crate::model::{ModelConfig, Site};
use crate::team::Stop;
use crate::trace::Phase;

/// Memory of a head's input.
#[derive(Debug)]
pub(in crate::engine) struct NextTokenRoom<'m> {
    /// A worker's own embedding of a token, (n_embd).
    own: PerWorker<'m, f32>,
    /// Both norms' results side by side, (n_batch, 2 * n_embd).
    rows: RowsRoom<'m>,
    pub(super) needs: Needs,
}

impl<'m> NextTokenRoom<'m> {
    pub(super) fn new(
        config: &ModelConfig,
        limits: &EngineLimits,
        room: &mut impl Room<'m>,
    ) -> Result<Self, MemoryError> {
        let n_embd = config.next_token.map_or(0, |_| config.n_embd);
        let kinds = activations_of(config, limits).stream;
        let layout = ActivationLayout::new((2 * n_embd).max(1), kinds);
        let row_bytes = if n_embd == 0 { 0 } else { layout.row_bytes() };
        Ok(Self {
            own: room.of_workers(limits.n_workers, n_embd)?,
            rows: RowsRoom {
                memory: room.buffer(limits.n_batch, row_bytes)?,
                layout,
            },
            needs: Needs {
                row_bytes,
                norm_row: 2 * n_embd,
                ..Needs::default()
            },
        })
    }
}

/// Residual stream of every entry from its token and the row of `hidden` (entries, n_embd) that belongs to it;
/// rotary angles.
pub(in crate::engine) fn begin<'p>(
    runner: &mut Runner<'p, '_>,
    room: &'p NextTokenRoom<'p>,
    hidden: &[f32],
) -> Result<(), Stop> {
    let (pass, n, n_embd) = (runner.pass, runner.n_rows, runner.pass.config().n_embd);
    let Some((proj, [of_token, of_hidden])) = pass.model.next_token() else {
        unreachable!("only heads are given hidden states: checked before the step");
    };
    runner.share(Phase::Embedding, 0, n, |_, i| {
        // SAFETY: entry i is this worker's alone in this phase.
        unsafe { pass.make_angles(i) };
        0
    });
    let input = runner.rows(Phase::Embedding, 0, &room.rows, n, |runner, i, row| {
        let rank = runner.member.rank();
        // SAFETY: this rank's own row, whose last use is over.
        let own = unsafe { room.own.of(rank).write(0..n_embd) };
        pass.embed(rank, i, own);
        // SAFETY: as above.
        let both = unsafe { pass.common.norms.of(rank).write(0..2 * n_embd) };
        let (first, second) = both.split_at_mut(n_embd);
        pass.norm(own, of_token, first);
        pass.norm(&hidden[i * n_embd..(i + 1) * n_embd], of_hidden, second);
        pass.quantize(both, &room.rows.layout, row);
    })?;
    // The matrix belongs to no layer, so neither adapters nor observers know it.
    let rows = Epilogue::Store(runner.stream.rows());
    let linear = runner.linear(0, Site::LayerInputProj, input, n, proj, rows);
    runner.share_ranges(Phase::Embedding, 0, linear.n_strips(), |rank, strips| {
        linear.run(pass, rank, strips)
    });
    runner.barrier(0)
}
