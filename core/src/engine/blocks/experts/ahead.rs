//! A guess at the experts of the next layer, for sources that read them ahead.

use super::super::channel_norm;
use super::ExpertsRoom;
use super::routing::{Choice, rank};
use crate::engine::pass::activations;
use crate::engine::rows::SMALL_BATCH;
use crate::engine::runner::Runner;
use crate::engine::sites::ExpertSource;
use crate::kernels::table::{Matmul, Store};
use crate::model::{Experts, Site, Vector};

/// Announces to the source which experts the first layer from `first` on that has experts may need, by its own norm and
/// router on the current stream. One worker guesses, for a few tokens. No result depends on it.
pub(in crate::engine) fn look_ahead(runner: &Runner<'_, '_>, room: &ExpertsRoom<'_>, first: usize) {
    let (n, member, pass) = (runner.n_rows, &runner.member, runner.pass);
    let config = pass.config();
    let source: &dyn ExpertSource = pass.options.experts.unwrap_or(pass.model);
    if n > SMALL_BATCH || member.rank() + 1 != member.size() {
        return;
    }
    let mut layers = first..config.n_layer();
    let next = layers.find_map(|layer| Some((layer, config.kind(layer).experts()?)));
    if let (Some(n_more), Some((layer, shape))) = (source.looks_ahead(), next) {
        let guess = Guess {
            room,
            source,
            layer,
            shape,
            n_more,
        };
        (0..n).for_each(|row| guess.make(runner, row));
    }
}

/// A guess at the experts that a layer needs.
struct Guess<'g, 'm> {
    room: &'g ExpertsRoom<'m>,
    source: &'g dyn ExpertSource,
    layer: usize,
    shape: &'g Experts,
    n_more: usize,
}

impl Guess<'_, '_> {
    /// The guess of one row.
    fn make(&self, runner: &Runner<'_, '_>, row: usize) {
        let (pass, shape, layer) = (runner.pass, self.shape, self.layer);
        let (model, kind) = (pass.model, pass.config().kind(layer));
        let weights = &model.layers()[layer];
        let norm = match shape.has_norms {
            true => Some(Vector::RouterNorm),
            false if shape.routes_input => None,
            false => Some(channel_norm(kind)),
        };
        let norm = norm.and_then(|norm| model.norm(weights, norm));
        let normed = runner.norm(runner.stream_row(row), norm);
        let (rows, chosen) = &self.room.ahead;
        pass.quantize(normed, &rows.layout, rows.memory.pointer(0));
        let router = model.matrix(weights, Site::FfnGateInp);
        let memory = self.room.routers.of(runner.member.rank());
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
            beside: &[],
        };
        // SAFETY: this worker's own memory, for a row of scores.
        unsafe { pass.table.matmul(&args) };
        // SAFETY: as above.
        let scores = unsafe { memory.write(0..n_expert) };
        // SAFETY: as above, after the scores.
        let room = unsafe { memory.write(n_expert..2 * n_expert) };
        if let Some(bias) = router.bias {
            scores.iter_mut().zip(bias).for_each(|(x, bias)| *x += bias);
        }
        let n_named = n_expert.min(shape.n_expert_used + self.n_more);
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
