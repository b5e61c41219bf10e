//! Where weights lie: offsets in weight memory, as plain numbers.

use super::norm::Norm;
use super::weight::Weight;
use crate::kernels::bytes::cast;
use crate::kernels::panel::{PanelLayout, WeightType};

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
        self.weight_at(&memory[self.offset..][..self.layout().bytes()], memory)
    }

    /// The same with its panels elsewhere.
    pub(super) fn weight_at<'w>(&self, panels: &'w [u8], memory: &'w [u8]) -> Weight<'w> {
        Weight {
            layout: self.layout(),
            panels,
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
}

pub(super) fn floats<'w>(memory: &'w [u8], vector: &VectorRef) -> &'w [f32] {
    cast(&memory[vector.offset..][..4 * vector.len])
}

/// The kind of a norm, and where its bias lies. A plain number, since tables of these lie in the caller's bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(transparent)]
pub(super) struct NormKind(usize);

impl NormKind {
    /// An RMSNorm, or a vector that is not a norm.
    pub(super) const RMS: Self = Self(usize::MAX);
    const LAYER_WITHOUT_BIAS: Self = Self(usize::MAX - 1);

    /// A layer norm.
    pub(super) fn layer(bias: Option<VectorRef>) -> Self {
        bias.map_or(Self::LAYER_WITHOUT_BIAS, |bias| Self(bias.offset))
    }
}

/// Where the weights of a norm lie; of length 0 where there is none.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NormRef {
    pub(super) weight: VectorRef,
    pub(super) kind: NormKind,
}

impl NormRef {
    pub(super) const EMPTY: Self = Self {
        weight: VectorRef::EMPTY,
        kind: NormKind::RMS,
    };

    /// The norm, whose weights lie in `memory`; `None` where there is none.
    pub(super) fn get<'w>(&self, memory: &'w [u8]) -> Option<Norm<'w>> {
        let weight = match self.weight.len {
            0 => return None,
            _ => floats(memory, &self.weight),
        };
        let bias = match self.kind {
            NormKind::RMS => return Some(Norm::Rms(weight)),
            NormKind::LAYER_WITHOUT_BIAS => &[],
            NormKind(offset) => floats(
                memory,
                &VectorRef {
                    offset,
                    ..self.weight
                },
            ),
        };
        Some(Norm::Layer { weight, bias })
    }
}

/// Where rows as in GGUF lie in weight memory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RowsRef {
    pub(crate) ty: WeightType,
    pub(crate) offset: usize,
    pub(crate) n_rows: usize,
    pub(crate) row_bytes: usize,
}

/// What is outside of layers, but for tables.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ends {
    pub(super) output_norm: NormRef,
    /// Empty where embeddings begin the residual stream as they are.
    pub(super) embedding_norm: NormRef,
    pub(super) output: MatrixRef,
    pub(super) embedding: Embedding,
    /// Embeddings of positions, where they are learned: (n_ctx_train, n_embd).
    pub(super) positions: Option<RowsRef>,
    /// Embeddings of token types, the first of which all tokens have: (n, n_embd).
    pub(super) types: Option<MatrixRef>,
    pub(super) layer_input: Option<LayerInput>,
    pub(super) next_token: Option<NextTokenInput>,
}

/// What makes the residual stream of a head that predicts a token further.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NextTokenInput {
    /// (n_embd, 2 * n_embd): columns of the embedding, then of the hidden state.
    pub(super) proj: MatrixRef,
    /// (n_embd)
    pub(super) embedding_norm: NormRef,
    /// (n_embd)
    pub(super) hidden_norm: NormRef,
}

/// The embedding that layers have of their own.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LayerInput {
    /// (n_vocab, n_layer * n_embd_layer), looked up.
    pub(super) rows: RowsRef,
    /// What is made of the model's embedding, (n_layer * n_embd_layer, n_embd).
    pub(super) proj: MatrixRef,
    /// The norm of each layer's part of that, (n_embd_layer).
    pub(super) norm: NormRef,
}

/// How token embeddings are read.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Embedding {
    /// Panels, such as those of an output layer that serves both.
    Panels(MatrixRef),
    /// GGUF rows of their own.
    Rows(RowsRef),
}
