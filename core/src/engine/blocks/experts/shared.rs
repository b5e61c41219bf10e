//! The expert that works on every token, in addition to the chosen experts.

use super::Block;
use crate::engine::epilogue::{Epilogue, Gated};
use crate::engine::linear::Linear;
use crate::engine::pass::activations;
use crate::engine::rows::Rows;
use crate::engine::runner::Runner;
use crate::engine::stream::Target;
use crate::kernels::table::Activations;
use crate::model::Site;
use crate::team::Stop;
use crate::trace::Phase;
use heapless::Vec;

impl<'p> Block<'p> {
    /// Its gate and up, and the factor on its output, if it exists; without a barrier at the end.
    pub(super) fn shared_gate_up(
        &self,
        runner: &mut Runner<'p, '_>,
        input: Activations<'p>,
    ) -> Result<(), Stop> {
        let mut linears = self.shared_linears(runner, input);
        runner.linears_open(Phase::FfnGateUp, self.at.index, &mut linears)
    }

    /// The linear layers of [`Self::shared_gate_up`], with room for one more; empty in a layer without that expert.
    pub(super) fn shared_linears(
        &self,
        runner: &Runner<'p, '_>,
        input: Activations<'p>,
    ) -> Vec<Linear<'p>, 3, u8> {
        let Some(shared) = self.shape.shared else {
            return Vec::new();
        };
        let (model, n, index) = (self.pass.model, runner.n_rows, self.at.index);
        let matrix = |site| model.matrix(self.at.weights, site);
        let up = matrix(Site::FfnUpShexp);
        let (site, weight, up) = match self.shape.is_gated {
            true => (Site::FfnGateShexp, matrix(Site::FfnGateShexp), Some(up)),
            false => (Site::FfnUpShexp, up, None),
        };
        let gated = Gated {
            activation: self.shape.activation,
            up,
            by: None,
            rows: self.room.shared,
            layout: self.shared_neurons(),
            selection: None,
            keeping: self.keeping_of_shared(),
            gates: None,
        };
        let gate_up = runner.linear(index, site, input, n, weight, Epilogue::Gated(gated));
        if !shared.has_gate {
            return Vec::from_array([gate_up]);
        }
        let site = Site::FfnGateInpShexp;
        let scales = Rows {
            memory: self.room.shared_scales,
            stride: 1,
        };
        let epilogue = Epilogue::Sigmoid(scales);
        let scale = runner.linear(index, site, input, n, matrix(site), epilogue);
        Vec::from_array([scale, gate_up])
    }

    /// Its down, added to the stream or to its pending rows.
    pub(super) fn shared_down(
        &self,
        runner: &mut Runner<'p, '_>,
        target: Target<'p>,
    ) -> Result<(), Stop> {
        let Some(shared) = self.shape.shared else {
            return Ok(());
        };
        let (n, index) = (runner.n_rows, self.at.index);
        // SAFETY: the rows were written before the last barrier.
        let input = unsafe { activations(&self.room.shared, &self.shared_neurons(), n) };
        let epilogue = match target {
            Target::Add(rows, scale) if shared.has_gate => {
                // SAFETY: written before the last barrier.
                let scales = unsafe { self.room.shared_scales.read(0..n) };
                Epilogue::AddRows(rows, scale, scales)
            }
            target => target.into(),
        };
        let weight = self.pass.model.matrix(self.at.weights, Site::FfnDownShexp);
        let down = runner.linear(index, Site::FfnDownShexp, input, n, weight, epilogue);
        runner.linears(Phase::FfnDown, index, &mut [down])
    }
}
