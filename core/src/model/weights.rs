//! A loaded model: panels, norms and embedding rows in the caller's memory.

use super::config::ModelConfig;
use super::ends::Ends;
use super::rope::Rope;
use super::site::{Site, Vector};
use super::weight::Weight;
use crate::kernels::bytes::{Pod, cast};
use crate::kernels::panel::{PanelLayout, WeightType};
use core::fmt;

/// The layout of a tensor as plain numbers; of nothing, zeros.
#[derive(Clone, Copy, Debug)]
#[repr(transparent)]
pub(super) struct LayoutRef([usize; 5]);

impl LayoutRef {
    pub(super) const EMPTY: Self = Self([0; _]);

    const fn new(layout: &PanelLayout) -> Self {
        Self(layout.to_numbers())
    }

    const fn n_rows(&self) -> usize {
        self.0[1]
    }

    /// The layout.
    pub(super) const fn get(&self) -> PanelLayout {
        assert!(self.n_rows() > 0, "the model has this matrix");
        // SAFETY: numbers of a layout: `new` alone writes others than zeros, and no code makes
        // this of bytes.
        unsafe { PanelLayout::from_numbers(&self.0) }
    }
}

/// Where a weight matrix lies in weight memory: some rows of a tensor, mostly all. Tables of
/// these lie in the caller's bytes, so this and what holds it are plain numbers.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct MatrixRef {
    /// Layout of the whole tensor.
    pub(super) layout: LayoutRef,
    pub(super) offset: usize,
    /// Offset of an f32 bias of the tensor's rows, or [`ABSENT`].
    bias: usize,
    /// Offset of the f32 that the tensor's products are multiplied by, or [`ABSENT`]; experts' lie side by side.
    factor: usize,
    /// The matrix's rows in the tensor.
    first_row: usize,
    n_rows: usize,
    /// Bytes from this matrix to that of the next expert; 0 where it is the only one. Biases of experts lie
    /// side by side.
    stride: usize,
}

/// Where there is no such vector.
const ABSENT: usize = usize::MAX;

impl MatrixRef {
    /// A matrix of nothing, to fill tables with.
    pub(super) const EMPTY: Self = Self {
        layout: LayoutRef::EMPTY,
        offset: 0,
        bias: ABSENT,
        factor: ABSENT,
        first_row: 0,
        n_rows: 0,
        stride: 0,
    };

    /// All rows of a tensor.
    pub(super) fn new(layout: &PanelLayout, offset: usize, bias: Option<VectorRef>) -> Self {
        Self {
            layout: LayoutRef::new(layout),
            offset,
            bias: bias.map_or(ABSENT, |bias| bias.offset),
            factor: ABSENT,
            first_row: 0,
            n_rows: layout.n_rows(),
            stride: 0,
        }
    }

    /// With a factor of its products, or one for each of several matrices.
    pub(super) fn with_factor(self, factor: Option<VectorRef>) -> Self {
        Self {
            factor: factor.map_or(ABSENT, |factor| factor.offset),
            ..self
        }
    }

    /// The first of several matrices that lie `stride` bytes apart.
    pub(super) const fn with_stride(self, stride: usize) -> Self {
        Self { stride, ..self }
    }

    /// The matrix of expert `expert`, where this is that of the first.
    pub(super) const fn of_expert(&self, expert: usize) -> Self {
        let bias = match self.bias {
            ABSENT => ABSENT,
            bias => bias + 4 * self.layout.n_rows() * expert,
        };
        let factor = match self.factor {
            ABSENT => ABSENT,
            factor => factor + 4 * expert,
        };
        Self {
            offset: self.offset + expert * self.stride,
            bias,
            factor,
            ..*self
        }
    }

    /// Whether the model has this matrix.
    pub(super) const fn is_there(&self) -> bool {
        self.layout.n_rows() > 0
    }

    /// Some of its rows.
    pub(super) const fn rows(&self, first_row: usize, n_rows: usize) -> Self {
        Self {
            first_row: self.first_row + first_row,
            n_rows,
            ..*self
        }
    }

    /// Layout of the whole tensor.
    pub(super) const fn layout(&self) -> PanelLayout {
        self.layout.get()
    }

    /// The matrix, which lies in `memory`.
    pub(super) fn weight<'w>(&self, memory: &'w [u8]) -> Weight<'w> {
        let layout = self.layout();
        Weight {
            layout,
            panels: &memory[self.offset..][..layout.bytes()],
            first_row: self.first_row,
            n_rows: self.n_rows,
            bias: self.bias().map(|bias| floats(memory, &bias)),
            factor: self.factor(memory),
        }
    }

    /// What its products are multiplied by.
    fn factor(&self, memory: &[u8]) -> Option<f32> {
        match self.factor {
            ABSENT => None,
            offset => Some(floats(memory, &VectorRef { offset, len: 1 })[0]),
        }
    }

    fn bias(&self) -> Option<VectorRef> {
        (self.bias != ABSENT).then(|| VectorRef {
            offset: self.bias + 4 * self.first_row,
            len: self.n_rows,
        })
    }
}

/// Where a vector of f32 lies in weight memory; of length 0 where there is none.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct VectorRef {
    pub(crate) offset: usize,
    pub(crate) len: usize,
}

impl VectorRef {
    pub(super) const EMPTY: Self = Self { offset: 0, len: 0 };

    /// Where a bias of known length lies, or [`ABSENT`].
    pub(super) const fn as_bias(self) -> usize {
        if self.len > 0 { self.offset } else { ABSENT }
    }
}

fn floats<'w>(memory: &'w [u8], vector: &VectorRef) -> &'w [f32] {
    cast(&memory[vector.offset..][..4 * vector.len])
}

/// Where rows as in GGUF lie in weight memory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RowsRef {
    pub(crate) ty: WeightType,
    pub(crate) offset: usize,
    pub(crate) n_rows: usize,
    pub(crate) row_bytes: usize,
}

/// The weights of a norm.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NormWeights<'w> {
    /// (n_embd)
    pub(crate) weight: &'w [f32],
    /// (n_embd) in a layer norm, or an empty slice; none in an RMSNorm.
    pub(crate) bias: Option<&'w [f32]>,
}

/// One layer: what its family's table found.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct Layer {
    pub(super) vectors: [VectorRef; Vector::COUNT],
    /// Offsets of the biases of vectors that are layer norms, as long as those, or [`ABSENT`].
    pub(super) biases: [usize; Vector::COUNT],
    pub(super) matrices: [MatrixRef; Site::IN_LAYER.len()],
}

const _: () = {
    let words = 3 * Vector::COUNT + 11 * Site::IN_LAYER.len();
    assert!(size_of::<Layer>() == words * size_of::<usize>());
};
// SAFETY: repr(C) of `usize` alone, without padding by the assertion above.
unsafe impl Pod for Layer {}

impl Layer {
    /// A layer without tensors: what tables hold before they are filled.
    pub(super) const EMPTY: Self = Self {
        vectors: [VectorRef::EMPTY; Vector::COUNT],
        biases: [ABSENT; Vector::COUNT],
        matrices: [MatrixRef::EMPTY; Site::IN_LAYER.len()],
    };
}

/// A model in memory. Immutable; every worker reads it.
#[derive(Clone)]
pub struct Model<'w> {
    pub(super) config: ModelConfig,
    pub(super) layers: &'w [Layer],
    pub(super) ends: Ends,
    /// Rotary frequencies: for each rotation those of contexts up to the original one, then those beyond it,
    /// both (n_rot / 2).
    pub(super) frequencies: &'w [f64],
    /// Whether there are frequencies for contexts beyond the original one.
    pub(super) has_long: bool,
    /// Whether they are in use.
    pub(super) is_long: bool,
    pub(super) memory: &'w [u8],
    /// Where the output layer lies, and where the embedding does: in `memory`, or in that of the trunk of a head.
    pub(super) output_memory: &'w [u8],
    pub(super) embedding_memory: &'w [u8],
    pub(super) weight_bytes: usize,
    pub(super) fingerprint: u64,
    pub(super) has_experts: bool,
}

/// Tells the fingerprint of a model that rotates by its long factors from the other's.
const LONG_MARK: u64 = 0x6c6f_6e67_726f_7065;

impl fmt::Debug for Model<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Model")
            .field("config", &self.config)
            .finish_non_exhaustive()
    }
}

impl<'w> Model<'w> {
    /// Shape and constants.
    pub const fn config(&self) -> &ModelConfig {
        &self.config
    }

    /// The model as it is used with a context of `n_ctx` tokens: beyond the original context,
    /// longrope models rotate by their long factors, as in llama.cpp. That makes it another
    /// model to a saved KV cache.
    #[must_use]
    pub fn for_context(self, n_ctx: usize) -> Self {
        let is_long = self.has_long && n_ctx > self.config.rope_scaling.n_ctx_orig;
        let flip = is_long != self.is_long;
        Self {
            is_long,
            fingerprint: self.fingerprint ^ if flip { LONG_MARK } else { 0 },
            ..self
        }
    }

    /// The rotary embedding number `index` of [`ModelConfig::ropes`].
    pub fn rope(&self, index: usize) -> Rope<'w> {
        let ropes = &self.config.ropes;
        let before: usize = ropes[..index].iter().map(|rope| rope.n_rot).sum();
        let half = ropes[index].n_rot / 2;
        let start = before + if self.is_long { half } else { 0 };
        let frequencies = &self.frequencies[start..start + half];
        Rope::new(&ropes[index], &self.config.rope_scaling, frequencies)
    }

    /// Whether the experts of its layers are in its memory, if it has some.
    pub const fn has_experts(&self) -> bool {
        self.has_experts
    }

    /// Identifies the model: a hash of its GGUF header and of a sample of every tensor. A saved
    /// KV cache is restored only into the model it came from.
    pub const fn fingerprint(&self) -> u64 {
        self.fingerprint
    }

    /// Bytes of all weights, the embedding included; without those that a head shares with its trunk.
    pub const fn weight_bytes(&self) -> usize {
        self.weight_bytes
    }

    /// The memory that the weights lie in, to be locked, bound or measured.
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

    /// A vector of a layer, if it has it.
    pub(crate) fn vector(&self, layer: &Layer, vector: Vector) -> Option<&'w [f32]> {
        let vector = &layer.vectors[vector as usize];
        (vector.len > 0).then(|| self.floats(vector))
    }

    /// A norm over the residual stream with its bias, if the layer has it.
    pub(crate) fn stream_norm(&self, layer: &Layer, norm: Vector) -> Option<NormWeights<'w>> {
        let bias = match layer.biases[norm as usize] {
            ABSENT => VectorRef::EMPTY,
            offset => VectorRef {
                offset,
                ..layer.vectors[norm as usize]
            },
        };
        Some(NormWeights {
            weight: self.vector(layer, norm)?,
            bias: self.norm_bias(&bias),
        })
    }

    /// The bias of a norm: in a layer norm it may have no elements.
    pub(super) fn norm_bias(&self, bias: &VectorRef) -> Option<&'w [f32]> {
        self.config.has_layer_norms.then(|| self.floats(bias))
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
        Weight {
            layout: matrix.layout(),
            panels,
            first_row: matrix.first_row,
            n_rows: matrix.n_rows,
            bias: matrix.bias().map(|bias| self.floats(&bias)),
            factor: matrix.factor(self.memory),
        }
    }

    /// The bytes of a matrix of expert `expert`, which are in memory; none where experts have no such matrix.
    pub(crate) fn expert_bytes(&self, layer: usize, site: Site, expert: usize) -> &'w [u8] {
        let matrix = self.layers[layer].matrices[site as usize].of_expert(expert);
        if !matrix.is_there() {
            return &[];
        }
        &self.memory[matrix.offset..][..matrix.layout().bytes()]
    }

    /// A head's matrix, of those that stand one after the other.
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
