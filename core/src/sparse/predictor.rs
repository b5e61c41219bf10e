//! Scores of neurons from two small matrices: `Q · (P · x)`.
#![allow(unsafe_code, reason = "products of the kernels write through pointers")]

use super::SparsityError;
use super::dot::{ROWS, dot, dots};
use super::error::{check_finite, check_len};
use crate::kernels::activation::{ActivationKinds, ActivationLayout};
use crate::kernels::quantize::quantize_rows;
use crate::kernels::table::{Activations, Matmul, Prefetch, Quantize, Store};
use crate::kernels::{GgmlType, KernelTable, PanelLayout};
use crate::memory::{Arena, MemoryError, MemoryPlan};

/// A predictor in f32: `p` (rank, input) and `q` (hidden, rank), row by row.
#[derive(Clone, Copy, Debug)]
pub struct PredictorWeights<'a> {
    p: &'a [f32],
    q: &'a [f32],
    input: usize,
    rank: usize,
}

impl<'a> PredictorWeights<'a> {
    /// From matrices.
    ///
    /// # Errors
    /// A dimension of 0, a rank above the others, a slice that is not whole rows.
    pub fn new(
        input: usize,
        rank: usize,
        p: &'a [f32],
        q: &'a [f32],
    ) -> Result<Self, SparsityError> {
        let setting = |name, value: usize, expected| SparsityError::Setting {
            name,
            value: value as f64,
            expected,
        };
        if input == 0 {
            return Err(setting("input_dim", 0, "at least 1"));
        }
        if rank == 0 || rank > input || q.len() < rank.saturating_mul(rank) {
            return Err(setting(
                "rank",
                rank,
                "1 to the smaller of input_dim and hidden_dim",
            ));
        }
        check_len("p", p.len(), rank.saturating_mul(input))?;
        check_len("q", q.len(), q.len() / rank * rank)?;
        Ok(Self { p, q, input, rank })
    }

    /// Elements of the input.
    #[must_use]
    pub const fn input_dim(&self) -> usize {
        self.input
    }

    /// Rows of P.
    #[must_use]
    pub const fn rank(&self) -> usize {
        self.rank
    }

    /// Neurons.
    #[must_use]
    pub const fn hidden_dim(&self) -> usize {
        self.q.len() / self.rank
    }

    /// Writes a score for each neuron. `z` (rank) is working memory.
    ///
    /// # Errors
    /// Lengths that do not fit; an input that is not finite.
    pub fn scores(
        &self,
        x: &[f32],
        z: &mut [f32],
        scores: &mut [f32],
    ) -> Result<(), SparsityError> {
        check_len("input", x.len(), self.input)?;
        check_len("z", z.len(), self.rank)?;
        check_len("scores", scores.len(), self.hidden_dim())?;
        check_finite("input", x)?;
        multiply(self.p, x, z);
        multiply(self.q, z, scores);
        Ok(())
    }
}

/// `out = matrix · x`
fn multiply(matrix: &[f32], x: &[f32], out: &mut [f32]) {
    let n = x.len();
    let (fours, rest) = out.as_chunks_mut::<ROWS>();
    let (whole, last) = matrix.split_at(fours.len() * ROWS * n);
    for (rows, out) in whole.chunks_exact(ROWS * n).zip(fours) {
        *out = dots([0, 1, 2, 3].map(|i| &rows[i * n..][..n]), x);
    }
    for (row, out) in last.chunks_exact(n).zip(rest) {
        *out = dot(row, x);
    }
}

/// A predictor in 8 bits, multiplied by the engine's kernels: a quarter of the bytes. Its scores differ from those of
/// the matrices by their rounding; they are the same on every kernel table.
#[derive(Clone, Copy, Debug)]
pub struct Int8Predictor<'a> {
    layouts: [PanelLayout; 2],
    panels: [&'a [u8]; 2],
}

/// Alignment is that of [`Arena`]s.
impl<'a> Int8Predictor<'a> {
    /// Bytes of the matrices.
    ///
    /// # Errors
    /// An input or a rank that is not a multiple of 32; no rows; sizes beyond memory.
    pub fn bytes(input: usize, rank: usize, hidden: usize) -> Result<usize, SparsityError> {
        let too_large = |_| SparsityError::Setting {
            name: "predictor bytes",
            value: f64::INFINITY,
            expected: "a size in memory",
        };
        let mut plan = MemoryPlan::new();
        for layout in layouts(input, rank, hidden)? {
            plan.slice::<u8>(layout.bytes()).map_err(too_large)?;
        }
        Ok(plan.bytes())
    }

    /// Bytes of the working memory of [`Int8Predictor::scores`].
    #[must_use]
    pub const fn scratch_bytes(&self) -> usize {
        let [p, q] = self.rows();
        p.row_bytes() + q.row_bytes()
    }

    /// Quantises matrices into an arena. `row` is working memory of `2 · max(input, rank)` bytes.
    ///
    /// # Errors
    /// As [`Int8Predictor::bytes`]; an arena or a row that is too small; a weight that is not finite.
    pub fn pack(
        weights: &PredictorWeights<'_>,
        arena: &mut Arena<'a>,
        row: &mut [u8],
    ) -> Result<Self, SparsityError> {
        let layouts = layouts(weights.input, weights.rank, weights.hidden_dim())?;
        let mut panels: [&[u8]; 2] = [&[]; 2];
        let matrices = [("p", weights.p), ("q", weights.q)];
        for ((layout, (name, matrix)), panels) in layouts.iter().zip(matrices).zip(&mut panels) {
            check_finite(name, matrix)?;
            let small = |error: MemoryError| SparsityError::Length {
                what: "arena",
                expected: layout.bytes(),
                found: match error {
                    MemoryError::TooSmall { missing_bytes } => {
                        layout.bytes().saturating_sub(missing_bytes)
                    }
                    _ => 0,
                },
            };
            let bytes = arena.bytes(layout.bytes()).map_err(small)?;
            bytes.fill(0);
            let (n_row, found) = (layout.gguf_row_bytes(), row.len());
            let row = row.get_mut(..n_row).ok_or(SparsityError::Length {
                what: "row",
                expected: n_row,
                found,
            })?;
            for (i, values) in matrix.chunks_exact(layout.n_cols()).enumerate() {
                let too_large = |_| SparsityError::Setting {
                    name,
                    value: i as f64,
                    expected: "rows of numbers within ±65504: this is the row that has others",
                };
                quantize_rows(GgmlType::Q8_0, values, values.len(), None, row)
                    .map_err(too_large)?;
                let band = layout.byte_range(layout.band(i));
                layout.pack_row(i, row, &mut bytes[band]);
            }
            *panels = bytes;
        }
        Ok(Self { layouts, panels })
    }

    /// Elements of the input.
    #[must_use]
    pub const fn input_dim(&self) -> usize {
        self.layouts[0].n_cols()
    }

    /// Rows of P.
    #[must_use]
    pub const fn rank(&self) -> usize {
        self.layouts[0].n_rows()
    }

    /// Neurons.
    #[must_use]
    pub const fn hidden_dim(&self) -> usize {
        self.layouts[1].n_rows()
    }

    /// Writes a score for each neuron. `z` (rank) and `scratch` ([`Int8Predictor::scratch_bytes`], aligned to 64) are
    /// working memory.
    ///
    /// # Errors
    /// Lengths that do not fit, working memory that is not aligned, an input that is not finite.
    pub fn scores(
        &self,
        table: &KernelTable,
        x: &[f32],
        z: &mut [f32],
        scratch: &mut [u8],
        scores: &mut [f32],
    ) -> Result<(), SparsityError> {
        check_len("input", x.len(), self.input_dim())?;
        check_len("z", z.len(), self.rank())?;
        check_len("scores", scores.len(), self.hidden_dim())?;
        check_finite("input", x)?;
        let mut arena = Arena::new(scratch).map_err(|_| SparsityError::Setting {
            name: "scratch address",
            value: 0.0,
            expected: "memory aligned to 64 bytes",
        })?;
        let mut take = |bytes| {
            arena.bytes(bytes).map_err(|_| SparsityError::Length {
                what: "scratch",
                expected: self.scratch_bytes(),
                found: 0,
            })
        };
        let [p_row, q_row] = self.rows();
        let (p_bytes, q_bytes) = (take(p_row.row_bytes())?, take(q_row.row_bytes())?);
        product(
            table,
            self.layouts[0],
            self.panels[0],
            &p_row,
            x,
            p_bytes,
            z,
        );
        // A sum of finite products may overflow; its scores are not numbers, and select their neurons.
        product(
            table,
            self.layouts[1],
            self.panels[1],
            &q_row,
            z,
            q_bytes,
            scores,
        );
        Ok(())
    }

    const fn rows(&self) -> [ActivationLayout; 2] {
        let kinds = ActivationKinds::INT8_32;
        [
            ActivationLayout::new(self.layouts[0].n_cols(), kinds),
            ActivationLayout::new(self.layouts[1].n_cols(), kinds),
        ]
    }
}

/// The layouts of P and Q.
fn layouts(input: usize, rank: usize, hidden: usize) -> Result<[PanelLayout; 2], SparsityError> {
    let block = GgmlType::Q8_0.block_len();
    for (what, width) in [("input", input), ("rank", rank)] {
        if !width.is_multiple_of(block) || width == 0 {
            return Err(SparsityError::Width { what, width, block });
        }
    }
    let layout = |rows, cols| {
        PanelLayout::new(GgmlType::Q8_0, rows, cols).map_err(|_| SparsityError::Setting {
            name: "hidden_dim",
            value: hidden as f64,
            expected: "at least 1, and a size in memory",
        })
    };
    Ok([layout(rank, input)?, layout(hidden, rank)?])
}

/// `out = matrix · x`, `row` being memory for `x` in codes.
fn product(
    table: &KernelTable,
    layout: PanelLayout,
    panels: &[u8],
    row_layout: &ActivationLayout,
    x: &[f32],
    row: &mut [u8],
    out: &mut [f32],
) {
    debug_assert_eq!(out.len(), layout.n_rows());
    debug_assert_eq!(row.len(), row_layout.row_bytes());
    let args = Quantize {
        x,
        first_col: 0,
        layout: row_layout,
        row: row.as_mut_ptr(),
    };
    // SAFETY: `row` is a slice of the layout's bytes from an arena, borrowed here alone, and apart from `x`.
    unsafe { table.quantize(&args) };
    let args = Matmul {
        layout,
        panels,
        rows: (0..layout.n_rows()).into(),
        activations: Activations {
            layout: *row_layout,
            bytes: row,
        },
        tokens: (0..1).into(),
        out: out.as_mut_ptr(),
        out_stride: out.len(),
        store: Store::Set,
        prefetch: Prefetch::Near,
        beside: &[],
    };
    // SAFETY: `out` is a slice of one element for each row, borrowed here alone.
    unsafe { table.matmul(&args) };
}

#[cfg(test)]
mod tests;
