//! A guess at the experts of the next layer, for sources that read them ahead.

use super::super::channel_norm;
use super::Block;
use super::routing::{Choice, rank};
use crate::engine::pass::activations;
use crate::engine::rows::SMALL_BATCH;
use crate::engine::runner::Runner;
use crate::kernels::table::{Matmul, Store};
use crate::model::{Experts, Site, Vector};

impl Block<'_> {
    /// Tells the source which experts the next layer that has some may need: what its own norm and router make of the
    /// stream as it is before this layer's channel. One worker guesses, for a few tokens. No result depends on it.
    pub(super) fn look_ahead(&self, runner: &Runner<'_, '_>) {
        let (n, member) = (runner.n_rows, &runner.member);
        if n > SMALL_BATCH || member.rank() + 1 != member.size() {
            return;
        }
        let Some(n_more) = self.source.looks_ahead() else {
            return;
        };
        let config = self.pass.config();
        let next = (self.at.index + 1..config.n_layer())
            .find_map(|layer| Some((layer, config.kind(layer).experts()?)));
        if let Some((layer, shape)) = next {
            for row in 0..n {
                self.guess(runner, row, (layer, shape), n_more);
            }
        }
    }

    /// The guess of one row.
    fn guess(
        &self,
        runner: &Runner<'_, '_>,
        row: usize,
        (layer, shape): (usize, &Experts),
        n_more: usize,
    ) {
        let (pass, rank_here) = (self.pass, runner.member.rank());
        let (model, kind) = (pass.model, pass.config().kind(layer));
        let weights = &model.layers()[layer];
        let norm = match shape.has_norms {
            true => Vector::RouterNorm,
            false => channel_norm(kind),
        };
        let normed = runner.norm(runner.stream_row(row), model.stream_norm(weights, norm));
        let (rows, chosen) = &self.room.ahead;
        pass.quantize(normed, &rows.layout, rows.memory.pointer(0));
        let router = model.matrix(weights, Site::FfnGateInp);
        let memory = self.room.routers.of(rank_here);
        let n_expert = shape.n_expert;
        let args = Matmul {
            layout: router.layout,
            panels: router.panels,
            rows: (0..n_expert).into(),
            // SAFETY: one worker's, which has just written the row.
            activations: unsafe { activations(&rows.memory, &rows.layout, 1) },
            tokens: (0..1).into(),
            out: memory.pointer(0),
            out_stride: n_expert,
            store: Store::Set,
            prefetch: pass.options.prefetch,
        };
        // SAFETY: this worker's own memory, for a row of scores.
        unsafe { pass.table.matmul(&args) };
        // SAFETY: as above.
        let scores = unsafe { memory.write(0..n_expert) };
        // SAFETY: as above, and behind it.
        let room = unsafe { memory.write(n_expert..2 * n_expert) };
        if let Some(bias) = router.bias {
            scores.iter_mut().zip(bias).for_each(|(x, bias)| *x += bias);
        }
        let n_named = n_expert.min(shape.n_expert_used + n_more);
        // SAFETY: one worker's, whose last use is over.
        let chosen = unsafe { chosen.write(0..n_named) };
        let bias = model.vector(weights, Vector::ChoiceBias);
        rank(
            pass.table,
            &shape.router,
            scores,
            Choice { bias, room },
            chosen,
        );
        self.source.expect(layer, chosen);
    }
}
