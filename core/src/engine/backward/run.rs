//! What a rank computes a step with.

use super::TrainedPair;
use super::room::{BackwardLimits, Rooms};
use super::texts::Texts;
use crate::kernels::KernelTable;
use crate::kernels::backward::{BackwardKernels, PairProduct, Product};
use crate::memory::Shared;
use crate::model::{ModelWeights, Site};

/// A rank's view of a step.
pub(super) struct Run<'s> {
    pub(super) model: &'s ModelWeights<'s>,
    pub(super) table: &'static KernelTable,
    pub(super) kernels: &'static BackwardKernels,
    pub(super) limits: &'s BackwardLimits,
    pub(super) room: &'s Rooms<'s>,
    pub(super) texts: Texts<'s>,
    pub(super) pairs: &'s [TrainedPair<'s>],
    pub(super) gradients: Shared<'s, f32>,
    pub(super) rank: usize,
}

impl<'s> Run<'s> {
    pub(super) fn n_rows(&self) -> usize {
        self.texts.n_rows()
    }

    /// The position of a row in its text, and the text's length.
    pub(super) fn place(&self, row: usize) -> [usize; 2] {
        let text = self
            .texts
            .rows()
            .find(|rows| rows.contains(&row))
            .unwrap_or(0..0);
        [row - text.start, text.len()]
    }

    /// A row of the stream before a layer.
    pub(super) fn stream(&self, layer: usize, row: usize) -> &'s [f32] {
        // SAFETY: streams are only read in steps.
        unsafe { self.room.streams.row(layer * self.limits.n_tokens + row) }
    }

    /// This rank's own row.
    ///
    /// # Safety
    /// - Its last use is over.
    pub(super) unsafe fn own_row(&self) -> &'s mut [f32] {
        let own = self.room.rows.of(self.rank);
        // SAFETY: by the caller; no other rank has it.
        unsafe { own.write(0..own.len()) }
    }

    /// The pair for a matrix, if it has one.
    pub(super) fn pair(&self, layer: usize, site: Site) -> Option<&'s TrainedPair<'s>> {
        let pairs = self.pairs;
        let at = pairs.binary_search_by(|pair| (pair.layer, pair.site).cmp(&(layer, site)));
        at.ok().map(|at| &pairs[at])
    }

    /// # Safety
    /// - As [`BackwardKernels::add_product`].
    pub(super) unsafe fn product(&self, product: &Product<'_>) {
        // SAFETY: by the caller.
        unsafe { self.kernels.add_product(product) }
    }

    /// # Safety
    /// - As [`BackwardKernels::add_pair_product`].
    pub(super) unsafe fn pair_product(&self, product: &PairProduct<'_>) {
        // SAFETY: by the caller.
        unsafe { self.kernels.add_pair_product(product) }
    }
}
