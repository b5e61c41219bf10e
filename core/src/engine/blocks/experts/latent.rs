//! Experts in a latent space: one matrix leads there, and another back to the stream.

use super::Block;
use crate::engine::epilogue::Epilogue;
use crate::engine::limits::EngineLimits;
use crate::engine::pass::{RowsRoom, activations_of};
use crate::engine::rows::Rows;
use crate::engine::runner::Runner;
use crate::engine::scratch::Room;
use crate::kernels::activation::ActivationLayout;
use crate::kernels::table::Activations;
use crate::memory::MemoryError;
use crate::model::{ModelConfig, Site};
use crate::team::Stop;
use crate::trace::Phase;

/// Rows of the latent space; empty in models without one.
#[derive(Clone, Copy, Debug)]
pub(super) struct LatentRoom<'m> {
    /// The stream in that space, (n_batch, n_latent).
    entered: Rows<'m>,
    /// The sums of the experts' outputs, of the same shape.
    pub(super) sums: Rows<'m>,
    /// `entered`, quantised for experts.
    for_experts: RowsRoom<'m>,
    /// `sums`, quantised for the way back.
    for_stream: RowsRoom<'m>,
}

impl<'m> LatentRoom<'m> {
    pub(super) fn new(
        config: &ModelConfig,
        limits: &EngineLimits,
        room: &mut impl Room<'m>,
    ) -> Result<Self, MemoryError> {
        let n_latent = config.experts().map(|shape| shape.n_latent).max();
        let (n_latent, kinds) = (n_latent.unwrap_or(0), activations_of(config, limits));
        let mut floats = || {
            Ok(Rows {
                memory: room.buffer(limits.n_batch, n_latent)?,
                stride: n_latent,
            })
        };
        let (entered, sums) = (floats()?, floats()?);
        let mut rows = |kinds| {
            let layout = ActivationLayout::new(n_latent.max(1), kinds);
            let row_bytes = if n_latent > 0 { layout.row_bytes() } else { 0 };
            Ok(RowsRoom {
                memory: room.buffer(limits.n_batch, row_bytes)?,
                layout,
            })
        };
        Ok(Self {
            entered,
            sums,
            for_experts: rows(kinds.experts)?,
            for_stream: rows(kinds.mixed)?,
        })
    }

    /// Bytes of the longest row.
    pub(super) const fn row_bytes(&self) -> usize {
        let (experts, stream) = (
            self.for_experts.layout.row_bytes(),
            self.for_stream.layout.row_bytes(),
        );
        match self.sums.stride {
            0 => 0,
            _ if experts > stream => experts,
            _ => stream,
        }
    }
}

impl<'p> Block<'p> {
    /// Computes the rows that experts read. The expert for all tokens reads the same input as the matrix that leads to
    /// the latent space, so its gate and up are computed along with it.
    pub(super) fn enter_latent(
        &self,
        runner: &mut Runner<'p, '_>,
        input: Activations<'p>,
    ) -> Result<Activations<'p>, Stop> {
        let (index, n, site) = (self.at.index, runner.n_rows, Site::FfnLatentDown);
        let room = &self.room.latent;
        let matrix = self.pass.model.matrix(self.at.weights, site);
        let epilogue = Epilogue::Store(room.entered);
        let mut linears = self.shared_linears(runner, input);
        let enter = runner.linear(index, site, input, n, matrix, epilogue);
        assert!(linears.push(enter).is_ok(), "there is room for one more");
        runner.linears(Phase::FfnGateUp, index, &mut linears)?;
        self.quantized(runner, room.entered, &room.for_experts)
    }

    /// Adds the sums of the experts' outputs to the stream.
    pub(super) fn leave_latent(&self, runner: &mut Runner<'p, '_>) -> Result<(), Stop> {
        let (index, n, site) = (self.at.index, runner.n_rows, Site::FfnLatentUp);
        let room = &self.room.latent;
        let input = self.quantized(runner, room.sums, &room.for_stream)?;
        let matrix = self.pass.model.matrix(self.at.weights, site);
        // Weights of experts have the stream's factor in them.
        let epilogue = Epilogue::Add(runner.stream.rows(), 1.0);
        let leave = runner.linear(index, site, input, n, matrix, epilogue);
        runner.linears(Phase::FfnDown, index, &mut [leave])
    }

    fn quantized(
        &self,
        runner: &mut Runner<'p, '_>,
        rows: Rows<'p>,
        room: &RowsRoom<'p>,
    ) -> Result<Activations<'p>, Stop> {
        let (pass, n, width) = (self.pass, runner.n_rows, rows.stride);
        runner.rows(Phase::FfnNorm, self.at.index, room, n, |_, i, row| {
            // SAFETY: written before the last barrier, and only read in this phase.
            let x = unsafe { rows.memory.read(i * width..(i + 1) * width) };
            pass.quantize(x, &room.layout, row);
        })
    }
}
