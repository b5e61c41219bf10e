//! A loaded model: panels, norms and embedding rows in the caller's memory.

use super::config::ModelConfig;
use super::norm::Norm;
use super::refs::{Ends, MatrixRef, NormKind, NormRef, VectorRef, floats};
use super::rope::{LongRope, Rope};
use super::site::{Site, Vector};
use super::weight::Weight;
use crate::kernels::bytes::Pod;
use crate::kernels::panel::PanelLayout;
use core::fmt;

/// One layer: the tensors that its family's table found.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct Layer {
    pub(super) vectors: [VectorRef; Vector::COUNT],
    /// The kinds of the vectors that are norms.
    pub(super) norms: [NormKind; Vector::COUNT],
    pub(super) matrices: [MatrixRef; Site::IN_LAYER.len()],
}

const _: () = {
    let words = 3 * Vector::COUNT + 11 * Site::IN_LAYER.len();
    assert!(size_of::<Layer>() == words * size_of::<usize>());
};
// SAFETY: repr(C) of `usize` alone, without padding by the assertion above.
unsafe impl Pod for Layer {}

impl Layer {
    /// The layout of its matrix at a site, or of each expert's.
    pub(crate) const fn layout(&self, site: Site) -> PanelLayout {
        self.matrices[site as usize].layout()
    }

    /// Whether it has a matrix at a site.
    pub(crate) const fn has(&self, site: Site) -> bool {
        self.matrices[site as usize].is_there()
    }

    /// A layer without tensors: the initial content of tables.
    pub(super) const EMPTY: Self = Self {
        vectors: [VectorRef::EMPTY; Vector::COUNT],
        norms: [NormKind::RMS; Vector::COUNT],
        matrices: [MatrixRef::EMPTY; Site::IN_LAYER.len()],
    };
}

/// A model in memory. Immutable; every worker reads it.
#[derive(Clone)]
pub struct ModelWeights<'w> {
    pub(super) config: ModelConfig,
    pub(super) layers: &'w [Layer],
    pub(super) ends: Ends,
    /// Rotary frequencies: for each rotation, the ones for texts up to the original context, then the ones beyond it,
    /// both (n_rot / 2).
    pub(super) frequencies: &'w [f64],
    /// Whether there are frequencies for texts beyond the original context.
    pub(super) has_long: bool,
    pub(super) longrope: LongRope,
    pub(super) memory: &'w [u8],
    /// Where the output layer and the embedding are stored: in `memory`, or in the memory of a head's trunk.
    pub(super) output_memory: &'w [u8],
    pub(super) embedding_memory: &'w [u8],
    /// Where tables that are looked up row by row are stored: in `memory`, in the file, or in a head's trunk's memory.
    pub(super) rows_memory: &'w [u8],
    pub(super) weight_bytes: usize,
    pub(super) has_experts: bool,
}

impl fmt::Debug for ModelWeights<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ModelWeights")
            .field("config", &self.config)
            .finish_non_exhaustive()
    }
}

impl<'w> ModelWeights<'w> {
    /// Shape and constants.
    pub const fn config(&self) -> &ModelConfig {
        &self.config
    }

    /// The model with this choice of divisors, where it has two sets of them.
    #[must_use]
    pub fn with_longrope(self, longrope: LongRope) -> Self {
        Self { longrope, ..self }
    }

    /// Whether it has a second set of rotary divisors, for long texts.
    pub const fn has_long(&self) -> bool {
        self.has_long
    }

    /// Whether a text of `n_tokens` is computed with the long divisors.
    pub const fn is_long_at(&self, n_tokens: usize) -> bool {
        let is_long = match self.longrope {
            LongRope::ByLength => n_tokens > self.config.rope_scaling.n_ctx_orig,
            LongRope::Short => false,
            LongRope::Long => true,
        };
        self.has_long && is_long
    }

    /// The maximum number of tokens of a text that is computed with the same divisors as one of `n_tokens`.
    pub const fn alike_up_to(&self, n_tokens: usize) -> usize {
        let n_ctx_orig = self.config.rope_scaling.n_ctx_orig;
        let changes = self.has_long && matches!(self.longrope, LongRope::ByLength);
        match changes && n_tokens <= n_ctx_orig {
            true => n_ctx_orig,
            false => usize::MAX,
        }
    }

    /// The rotary embedding at `index` of [`ModelConfig::ropes`], with the long divisors or without.
    pub fn rope(&self, index: usize, is_long: bool) -> Rope<'w> {
        let ropes = &self.config.ropes;
        let before: usize = ropes[..index].iter().map(|rope| rope.n_rot).sum();
        let half = ropes[index].n_rot / 2;
        let start = before + if is_long { half } else { 0 };
        let frequencies = &self.frequencies[start..start + half];
        Rope::new(&ropes[index], &self.config.rope_scaling, frequencies)
    }

    /// Whether the experts of its layers are in its memory, if it has any.
    pub const fn has_experts(&self) -> bool {
        self.has_experts
    }

    /// Bytes of all weights, including the embedding; without those that a head shares with its trunk.
    pub const fn weight_bytes(&self) -> usize {
        self.weight_bytes
    }

    /// The memory that holds the weights, to be locked, bound or measured.
    pub const fn weight_memory(&self) -> &'w [u8] {
        self.memory
    }

    pub(crate) const fn layers(&self) -> &'w [Layer] {
        self.layers
    }

    /// A matrix of a layer.
    pub(crate) fn matrix(&self, layer: &Layer, site: Site) -> Weight<'w> {
        self.weight(&layer.matrices[site as usize])
    }

    /// The matrix of a dense layer at a site that it has.
    ///
    /// # Panics
    /// If it has none.
    pub fn site(&self, layer: usize, site: Site) -> Weight<'w> {
        self.matrix(&self.layers[layer], site)
    }

    /// The matrix of an expert at a site of experts.
    ///
    /// # Panics
    /// If the layer has none, or experts are not in memory.
    pub fn expert(&self, layer: usize, site: Site, expert: u32) -> Weight<'w> {
        let panels = self.expert_bytes(layer, site, expert as usize);
        self.expert_matrix(&self.layers[layer], site, expert, panels)
    }

    /// A vector of a layer that is not a norm, if it has it.
    pub(crate) fn vector(&self, layer: &Layer, vector: Vector) -> Option<&'w [f32]> {
        debug_assert!(layer.norms[vector as usize] == NormKind::RMS);
        let vector = &layer.vectors[vector as usize];
        (vector.len > 0).then(|| self.floats(vector))
    }

    /// A norm of a layer, if it has it.
    pub(crate) fn norm(&self, layer: &Layer, norm: Vector) -> Option<Norm<'w>> {
        let (weight, kind) = (layer.vectors[norm as usize], layer.norms[norm as usize]);
        NormRef { weight, kind }.get(self.memory)
    }

    /// A matrix of an expert in memory at `panels`.
    pub(crate) fn expert_matrix<'p>(
        &self,
        layer: &Layer,
        site: Site,
        expert: u32,
        panels: &'p [u8],
    ) -> Weight<'p>
    where
        'w: 'p,
    {
        let matrix = layer.matrices[site as usize].of_expert(expert as usize);
        matrix.weight_at(panels, self.memory)
    }

    /// The bytes of a matrix of expert `expert`, which are in memory; empty if experts have no such matrix.
    pub(crate) fn expert_bytes(&self, layer: usize, site: Site, expert: usize) -> &'w [u8] {
        let matrix = self.layers[layer].matrices[site as usize].of_expert(expert);
        if !matrix.is_there() {
            return &[];
        }
        &self.memory[matrix.offset..][..matrix.layout().bytes()]
    }

    /// A head's matrix, from a stack of one per head.
    pub(crate) fn head_matrix(&self, layer: &Layer, site: Site, head: usize) -> Weight<'w> {
        self.weight(&layer.matrices[site as usize].of_expert(head))
    }

    pub(super) fn weight(&self, matrix: &MatrixRef) -> Weight<'w> {
        matrix.weight(self.memory)
    }

    pub(super) fn floats(&self, vector: &VectorRef) -> &'w [f32] {
        floats(self.memory, vector)
    }
}
