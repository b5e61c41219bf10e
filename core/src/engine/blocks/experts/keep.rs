//! The neurons of experts that are kept in modes that change results: rows of pairs are rows like others.

use super::{Block, Gates};
use crate::engine::epilogue::Epilogue;
use crate::engine::keep::{Keeping, Network};
use crate::engine::linear::Linear;
use crate::engine::rows::{Buckets, Rows};
use crate::engine::runner::Runner;
use crate::kernels::panel::WeightType;
use crate::model::{Site, Weight};
use crate::team::Stop;
use core::ops::Range;

impl<'p> Block<'p> {
    /// How the neurons of an expert are chosen.
    pub(super) fn keeping(&self, expert: u32) -> Option<Keeping<'p>> {
        let first = expert as usize * self.shape.n_ff;
        self.keeping_of(Site::FfnDown, first, self.shape.n_ff)
    }

    /// How the neurons of the expert that works on every token are chosen.
    pub(super) fn keeping_of_shared(&self) -> Option<Keeping<'p>> {
        let n_ff = self.shape.shared?.n_ff;
        let first = self.shape.n_expert * self.shape.n_ff;
        self.keeping_of(Site::FfnDownShexp, first, n_ff)
    }

    fn keeping_of(&self, down: Site, first: usize, n_ff: usize) -> Option<Keeping<'p>> {
        let network = Network {
            layer: self.at.index,
            activation: self.shape.activation,
            first,
            n_ff,
        };
        let ty: WeightType = self.at.weights.layout(down).ty();
        Keeping::new(self.pass, network, ty)
    }

    /// Makes of gate and up the gate alone, or up alone with gates that are known.
    pub(super) fn divide<'e>(
        &'e self,
        linear: &mut Linear<'e>,
        places: Range<usize>,
        gates: Gates,
        up: Weight<'e>,
    ) {
        let room = &self.room.gates;
        let of_pairs = Rows {
            memory: room
                .memory
                .part(places.start * room.stride..room.memory.len()),
            stride: room.stride,
        };
        match (gates, &mut linear.epilogue) {
            (Gates::First, epilogue) => *epilogue = Epilogue::Store(of_pairs),
            (Gates::Known, Epilogue::Gated(gated)) => {
                (linear.site, linear.weight) = (Site::FfnUp, up);
                linear.adapted = linear.adapted.map(|adapted| adapted.skip(1));
                (gated.up, gated.gates) = (None, Some(of_pairs));
                // SAFETY: written before the last barrier; no worker writes until the next layer.
                let cuts = unsafe { self.room.cuts.read(places) };
                gated.keeping = gated.keeping.map(|keeping| keeping.with_cuts(cuts));
            }
            _ => {}
        }
    }

    /// Finds the cuts of all pairs by their gates; ends with a barrier.
    pub(super) fn cut(
        &self,
        runner: &mut Runner<'p, '_>,
        buckets: &Buckets<'p>,
    ) -> Result<(), Stop> {
        let (pass, gates, n_ff) = (self.pass, &self.room.gates, self.shape.n_ff);
        // Without norms, it is the same for all experts.
        let Some(keeping) = self.keeping(0) else {
            return Ok(());
        };
        runner.share_rows(self.at.index, buckets.len(), &|places| {
            for place in places {
                let start = place * gates.stride;
                // SAFETY: written before the last barrier, and only read in this phase.
                let gates = unsafe { gates.memory.read(start..start + n_ff) };
                // SAFETY: a row is one worker's.
                let cuts = unsafe { self.room.cuts.write(place..place + 1) };
                cuts[0] = keeping.cut_of_gates(pass, gates);
            }
        });
        runner.barrier(self.at.index)
    }

    /// Leaves out neurons where whole rows are compared; then it ends with a barrier.
    pub(super) fn leave_out(
        &self,
        runner: &mut Runner<'p, '_>,
        buckets: &Buckets<'p>,
    ) -> Result<(), Stop> {
        let (pass, index, n) = (self.pass, self.at.index, runner.n_rows);
        let ranks = self
            .keeping(0)
            .is_some_and(|keeping| keeping.ranks_values());
        if !ranks {
            return Ok(());
        }
        runner.share_rows(index, buckets.len(), &|places| {
            for &expert in buckets.active() {
                let own = buckets.range(expert);
                let rows = own.start.max(places.start)..own.end.min(places.end);
                if let Some(keeping) = self.keeping(expert).filter(|_| !rows.is_empty()) {
                    // SAFETY: written before the last barrier; a row is one worker's.
                    unsafe {
                        keeping.leave_out_sought(pass, &self.neurons, &self.room.neurons, rows);
                    }
                }
            }
        });
        if let Some(keeping) = self.keeping_of_shared() {
            let layout = self.shared_neurons();
            runner.share_rows(index, n, &|rows| {
                // SAFETY: as above.
                unsafe { keeping.leave_out_sought(pass, &layout, &self.room.shared, rows) };
            });
        }
        runner.barrier(index)
    }
}
