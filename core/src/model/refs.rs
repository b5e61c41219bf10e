//! References to weights: offsets in weight memory, as plain numbers.

use super::norm::Norm;
use super::weight::Weight;
use crate::kernels::bytes::cast;
use crate::kernels::panel::{PanelLayout, WeightType};

/// The layout of a tensor as plain numbers; zeros for an absent one.
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
        // SAFETY: numbers of a layout: only `new` writes others than zeros, and no code makes
        // this from bytes.
        unsafe { PanelLayout::from_numbers(&self.0) }
    }
}

/// A reference to a weight matrix in weight memory: some or all rows of a tensor. Tables of
/// these are stored in the caller's bytes, so this and the structs that contain it are plain numbers.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct MatrixRef {
    /// Layout of the whole tensor.
    pub(super) layout: LayoutRef,
    pub(super) offset: usize,
    /// Offset of an f32 bias of the tensor's rows, or [`ABSENT`].
    bias: usize,
    /// Offset of the f32 that the tensor's products are multiplied by, or [`ABSENT`]; contiguous for experts.
    factor: usize,
    /// The matrix's rows in the tensor.
    first_row: usize,
    n_rows: usize,
    /// Bytes from this matrix to the next expert's; 0 if it is the only one. Biases of experts are
    /// contiguous.
    stride: usize,
}

/// The offset of an absent vector.
const ABSENT: usize = usize::MAX;

impl MatrixRef {
    /// An empty matrix, to fill tables with.
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

    /// Sets the factor of its products, or one for each of several matrices.
    pub(super) fn with_factor(self, factor: Option<VectorRef>) -> Self {
        Self {
            factor: factor.map_or(ABSENT, |factor| factor.offset),
            ..self
        }
    }

    /// The first of several matrices, `stride` bytes apart.
    pub(super) const fn with_stride(self, stride: usize) -> Self {
        Self { stride, ..self }
    }

    /// The matrix of expert `expert`; `self` is the first expert's.
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

    /// The matrix, which is stored in `memory`.
    pub(super) fn weight<'w>(&self, memory: &'w [u8]) -> Weight<'w> {
        self.weight_at(&memory[self.offset..][..self.layout().bytes()], memory)
    }

    /// The matrix, with its panels stored elsewhere.
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

    /// The factor of its products.
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

/// A reference to an f32 vector in weight memory; length 0 if absent.
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

/// The kind of a norm, and the offset of its bias. A plain number: tables of these are stored in the caller's bytes.
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

/// A reference to the weights of a norm; length 0 if absent.
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

    /// The norm, whose weights are stored in `memory`; `None` if absent.
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

/// A reference to rows in GGUF's format in weight memory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RowsRef {
    pub(crate) ty: WeightType,
    pub(crate) offset: usize,
    pub(crate) n_rows: usize,
    pub(crate) row_bytes: usize,
}

/// The parts of a model outside of its layers, except tables.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ends {
    pub(super) output_norm: NormRef,
    /// Empty if the embeddings begin the residual stream as they are.
    pub(super) embedding_norm: NormRef,
    pub(super) output: MatrixRef,
    pub(super) embedding: Embedding,
    /// Embeddings of positions, if they are learned: (n_ctx_train, n_embd).
    pub(super) positions: Option<RowsRef>,
    /// Embeddings of token types, (n, n_embd); all tokens have the first.
    pub(super) types: Option<MatrixRef>,
    pub(super) layer_input: Option<LayerInput>,
    pub(super) next_token: Option<NextTokenInput>,
}

/// The inputs of the residual stream of a head that predicts one more token.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NextTokenInput {
    /// (n_embd, 2 * n_embd): columns of the embedding, then of the hidden state.
    pub(super) proj: MatrixRef,
    /// (n_embd)
    pub(super) embedding_norm: NormRef,
    /// (n_embd)
    pub(super) hidden_norm: NormRef,
}

/// The per-layer embeddings.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LayerInput {
    /// (n_vocab, n_layer * n_embd_layer), looked up.
    pub(super) rows: RowsRef,
    /// The projection of the model's embedding, (n_layer * n_embd_layer, n_embd).
    pub(super) proj: MatrixRef,
    /// The norm of each layer's part of the projection, (n_embd_layer).
    pub(super) norm: NormRef,
}

/// How token embeddings are read.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Embedding {
    /// Panels, for example of an output layer that serves as both.
    Panels(MatrixRef),
    /// GGUF rows of their own.
    Rows(RowsRef),
}
