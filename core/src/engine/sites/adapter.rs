//! Adapters as data: pairs of small matrices that add to the outputs of linear layers (LoRA).

use crate::model::{Site, Weight};

/// The matrices of an adapter for one matrix of the model: `y += B · (A · x)` (Hu et al. 2021).
///
/// Both are F32 in panels ([`crate::kernels::panel::PanelLayout`]); the factor α / r is part of B. Added before
/// bias and activation.
#[derive(Clone, Copy, Debug)]
pub struct AdapterPair<'a> {
    /// The layer; 0 for the output layer.
    pub layer: usize,
    /// The matrix in it.
    pub site: Site,
    /// The expert, where the matrix is one of experts.
    pub expert: Option<u32>,
    /// (rank, columns of the model's matrix), without a bias.
    pub a: Weight<'a>,
    /// (rows of the model's matrix, rank), without a bias.
    pub b: Weight<'a>,
}

impl AdapterPair<'_> {
    /// What pairs are sorted by.
    const fn key(&self) -> (usize, Site, Option<u32>) {
        (self.layer, self.site, self.expert)
    }
}

/// An adapter, in the caller's memory. Entries name it by its index in [`super::StepOptions::adapters`].
#[derive(Clone, Copy, Debug)]
pub struct Adapter<'a> {
    pairs: &'a [AdapterPair<'a>],
}

impl<'a> Adapter<'a> {
    /// An adapter of these pairs, sorted by layer, site and expert; `None` if they are not, or one stands
    /// twice.
    pub fn new(pairs: &'a [AdapterPair<'a>]) -> Option<Self> {
        let is_sorted = pairs.is_sorted_by(|a, b| a.key() < b.key());
        is_sorted.then_some(Self { pairs })
    }

    /// Its pairs.
    pub const fn pairs(&self) -> &'a [AdapterPair<'a>] {
        self.pairs
    }

    /// The pair for a matrix, if there is one.
    pub(in crate::engine) fn find(
        &self,
        layer: usize,
        site: Site,
        expert: Option<u32>,
    ) -> Option<&'a AdapterPair<'a>> {
        let key = (layer, site, expert);
        let at = self.pairs.binary_search_by(|pair| pair.key().cmp(&key));
        Some(&self.pairs[at.ok()?])
    }

    /// Whether it adapts a router, which no engine does.
    pub(in crate::engine) fn adapts_routers(&self) -> bool {
        self.pairs.iter().any(|pair| pair.site == Site::FfnGateInp)
    }

    /// The largest rank.
    pub(in crate::engine) fn rank_max(&self) -> usize {
        let ranks = self.pairs.iter().map(|pair| pair.a.n_rows);
        ranks.max().unwrap_or(0)
    }
}
