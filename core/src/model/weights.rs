//! A loaded model: panels, norms and embedding rows in the caller's memory.

use super::config::ModelConfig;
use super::rope::Rope;
use crate::gguf::Gguf;
use crate::hash::Hash64;
use crate::kernels::bytes::{Pod, cast};
use crate::kernels::panel::{PanelLayout, WeightType, dequantize_gguf_row};
use core::fmt;

/// Where a weight matrix lies in weight memory. Tables of these lie in the caller's bytes, so
/// this and what holds it are plain numbers.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct MatrixRef {
    /// Index into [`WeightType::ALL`].
    ty: usize,
    n_rows: usize,
    n_cols: usize,
    pub(super) offset: usize,
    /// Offset of an f32 bias of `n_rows`, or [`NO_BIAS`].
    bias: usize,
}

/// Where there is no bias.
const NO_BIAS: usize = usize::MAX;

impl MatrixRef {
    /// A matrix of nothing, to fill tables with.
    pub(super) const EMPTY: Self = Self {
        ty: 0,
        n_rows: 0,
        n_cols: 0,
        offset: 0,
        bias: NO_BIAS,
    };

    pub(super) fn new(layout: &PanelLayout, offset: usize, bias: Option<VectorRef>) -> Self {
        Self {
            ty: layout.ty() as usize,
            n_rows: layout.n_rows(),
            n_cols: layout.n_cols(),
            offset,
            bias: bias.map_or(NO_BIAS, |bias| bias.offset),
        }
    }

    pub(super) fn layout(&self) -> PanelLayout {
        PanelLayout::new(WeightType::ALL[self.ty].ggml(), self.n_rows, self.n_cols)
            .expect("made from a layout")
    }

    fn bias(&self) -> Option<VectorRef> {
        (self.bias != NO_BIAS).then_some(VectorRef {
            offset: self.bias,
            len: self.n_rows,
        })
    }
}

/// Where a vector of f32 lies in weight memory.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct VectorRef {
    pub(crate) offset: usize,
    pub(crate) len: usize,
}

/// Where rows as in GGUF lie in weight memory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RowsRef {
    pub(crate) ty: WeightType,
    pub(crate) offset: usize,
    pub(crate) n_rows: usize,
    pub(crate) row_bytes: usize,
}

/// How token embeddings are read.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Embedding {
    /// The output layer's panels serve both.
    Tied,
    /// GGUF rows of their own.
    Rows(RowsRef),
}

/// One decoder layer. Shapes are (rows, columns); every row is one output.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Layer {
    pub(crate) attn_norm: VectorRef,   // (n_embd)
    pub(crate) attn_q: MatrixRef,      // (n_head * head_dim_k, n_embd)
    pub(crate) attn_k: MatrixRef,      // (n_head_kv * head_dim_k, n_embd)
    pub(crate) attn_v: MatrixRef,      // (n_head_kv * head_dim_v, n_embd)
    pub(crate) attn_output: MatrixRef, // (n_embd, n_head * head_dim_v)
    pub(crate) ffn_norm: VectorRef,    // (n_embd)
    pub(crate) ffn_gate: MatrixRef,    // (n_ff, n_embd)
    pub(crate) ffn_up: MatrixRef,      // (n_ff, n_embd)
    pub(crate) ffn_down: MatrixRef,    // (n_embd, n_ff)
}

const _: () = assert!(size_of::<Layer>() == (2 * 2 + 7 * 5) * size_of::<usize>());
// SAFETY: repr(C) of `usize` alone, without padding by the assertion above.
unsafe impl Pod for Layer {}

impl Layer {
    /// A layer of nothing, to fill tables with.
    pub(super) const EMPTY: Self = {
        let vector = VectorRef { offset: 0, len: 0 };
        let matrix = MatrixRef::EMPTY;
        Self {
            attn_norm: vector,
            attn_q: matrix,
            attn_k: matrix,
            attn_v: matrix,
            attn_output: matrix,
            ffn_norm: vector,
            ffn_gate: matrix,
            ffn_up: matrix,
            ffn_down: matrix,
        }
    };
}

/// A weight matrix, ready for kernels.
#[derive(Clone, Copy, Debug)]
pub struct Weight<'w> {
    /// Shape and type.
    pub layout: PanelLayout,
    /// The panels, and the rows behind them.
    pub panels: &'w [u8],
    /// Added to the outputs, (n_rows).
    pub bias: Option<&'w [f32]>,
}

/// A model in memory. Immutable; every worker reads it.
#[derive(Clone, Copy)]
pub struct Model<'w> {
    pub(super) config: ModelConfig,
    pub(super) layers: &'w [Layer],
    pub(super) output: MatrixRef,
    pub(super) output_norm: VectorRef,
    pub(super) embedding: Embedding,
    pub(super) rope: Rope<'w>,
    pub(super) memory: &'w [u8],
    pub(super) weight_bytes: usize,
    pub(super) fingerprint: u64,
}

/// What identifies a model, made of its header and all weights in the order of placing.
#[derive(Debug)]
pub(super) struct Fingerprint(Hash64);

impl Fingerprint {
    pub(super) fn new(gguf: &Gguf<'_>) -> Self {
        let mut hash = Hash64::new();
        hash.write(gguf.header_bytes());
        Self(hash)
    }

    /// Adds a sample of a tensor: its first and last bytes.
    pub(super) fn add(&mut self, tensor: &[u8]) {
        let sample = tensor.len().min(256);
        self.0.write(&tensor[..sample]);
        self.0.write(&tensor[tensor.len() - sample..]);
    }

    pub(super) const fn finish(&self) -> u64 {
        self.0.finish()
    }
}

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

    /// The rotary embedding.
    pub const fn rope(&self) -> Rope<'w> {
        self.rope
    }

    /// Identifies the model: a hash of its GGUF header and of a sample of every tensor. A saved
    /// KV cache is restored only into the model it came from.
    pub const fn fingerprint(&self) -> u64 {
        self.fingerprint
    }

    /// Bytes of all weights, the embedding included.
    pub const fn weight_bytes(&self) -> usize {
        self.weight_bytes
    }

    pub(crate) const fn layers(&self) -> &'w [Layer] {
        self.layers
    }

    pub(crate) fn weight(&self, matrix: &MatrixRef) -> Weight<'w> {
        let layout = matrix.layout();
        Weight {
            layout,
            panels: &self.memory[matrix.offset..][..layout.bytes()],
            bias: matrix.bias().map(|bias| self.vector(&bias)),
        }
    }

    pub(crate) fn vector(&self, vector: &VectorRef) -> &'w [f32] {
        cast(&self.memory[vector.offset..][..4 * vector.len])
    }

    pub(crate) fn output(&self) -> Weight<'w> {
        self.weight(&self.output)
    }

    pub(crate) fn output_norm(&self) -> &'w [f32] {
        self.vector(&self.output_norm)
    }

    /// The embedding of `token` (n_embd).
    ///
    /// # Panics
    /// If the token is not in the vocabulary.
    pub fn embed(&self, token: u32, out: &mut [f32]) {
        let token = token as usize;
        match &self.embedding {
            Embedding::Tied => {
                let output = self.output();
                output.layout.dequantize_row(token, output.panels, out);
            }
            Embedding::Rows(rows) => {
                assert!(token < rows.n_rows);
                let row = &self.memory[rows.offset + token * rows.row_bytes..][..rows.row_bytes];
                dequantize_gguf_row(rows.ty, row, out);
            }
        }
    }
}
