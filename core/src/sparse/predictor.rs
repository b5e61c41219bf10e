//! Scores of neurons from two small matrices: `Q · (P · x)`.
#![allow(unsafe_code, reason = "products of the kernels write through pointers")]

use super::SparsityError;
use super::error::{check_finite, check_len, check_within, setting};
use crate::kernels::activation::{ActivationKinds, ActivationLayout};
use crate::kernels::quantize::{Quantizer, max_abs};
use crate::kernels::table::{Activations, Matmul, Prefetch, Quantize, Store};
use crate::kernels::{GgmlType, KernelTable, PanelLayout};
use crate::memory::{ALIGN, Arena, MemoryPlan};

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
        if input == 0 {
            return Err(setting("input_dim", 0.0, "at least 1"));
        }
        if rank == 0 || rank > input || q.len() < rank.saturating_mul(rank) {
            let expected = "1 to the smaller of input_dim and hidden_dim";
            return Err(setting("rank", rank as f64, expected));
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
        table: &KernelTable,
        x: &[f32],
        z: &mut [f32],
        scores: &mut [f32],
    ) -> Result<(), SparsityError> {
        check_len("input", x.len(), self.input)?;
        check_len("z", z.len(), self.rank)?;
        check_len("scores", scores.len(), self.hidden_dim())?;
        check_finite("input", x)?;
        multiply(table, self.p, x, z);
        multiply(table, self.q, z, scores);
        Ok(())
    }
}

/// Rows that are multiplied together.
pub(super) const ROWS: usize = 16;

/// `out = matrix · x`
pub(super) fn multiply(table: &KernelTable, matrix: &[f32], x: &[f32], out: &mut [f32]) {
    for (rows, out) in matrix.chunks(ROWS * x.len()).zip(out.chunks_mut(ROWS)) {
        let list = listed(rows, x.len());
        table.float_rows().dots(&list[..out.len()], x, out);
    }
}

/// Up to 16 rows.
pub(super) fn listed(rows: &[f32], n_cols: usize) -> [&[f32]; ROWS] {
    let mut list = [&[][..]; ROWS];
    for (row, place) in rows.chunks_exact(n_cols).zip(&mut list) {
        *place = row;
    }
    list
}

/// A predictor in 8 bits, multiplied by the engine's kernels: a quarter of the bytes. Its scores differ by
/// the rounding of the matrices; they are the same on every kernel table.
#[derive(Clone, Copy, Debug)]
pub struct Int8Predictor<'a> {
    layouts: [PanelLayout; 2],
    panels: [&'a [u8]; 2],
}

impl<'a> Int8Predictor<'a> {
    /// Bytes of the matrices.
    ///
    /// # Errors
    /// An input or a rank that is not a multiple of 32; no rows; sizes beyond memory.
    pub fn bytes(input: usize, rank: usize, hidden: usize) -> Result<usize, SparsityError> {
        let too_large = |_| setting("hidden_dim", hidden as f64, "a size in memory");
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

    /// Over memory that [`Int8Predictor::pack`] has filled.
    ///
    /// # Errors
    /// As [`Int8Predictor::bytes`]; memory of another length, or not aligned to 64 bytes.
    pub fn new(
        input: usize,
        rank: usize,
        hidden: usize,
        memory: &'a [u8],
    ) -> Result<Self, SparsityError> {
        check_len("memory", memory.len(), Self::bytes(input, rank, hidden)?)?;
        check_aligned("address of memory modulo 64", memory)?;
        let layouts = layouts(input, rank, hidden)?;
        let (p, q) = memory.split_at(layouts[0].bytes().next_multiple_of(ALIGN));
        Ok(Self {
            layouts,
            panels: [&p[..layouts[0].bytes()], &q[..layouts[1].bytes()]],
        })
    }

    /// Quantises matrices into `memory`, [`Int8Predictor::bytes`] aligned to 64. `row` is working memory of
    /// `2 · max(input, rank)` bytes.
    ///
    /// # Errors
    /// As [`Int8Predictor::new`]; a row that is too small; a weight that is not finite, or too large for 8 bits.
    pub fn pack(
        weights: &PredictorWeights<'_>,
        memory: &'a mut [u8],
        row: &mut [u8],
    ) -> Result<Self, SparsityError> {
        let (input, rank, hidden) = (weights.input, weights.rank, weights.hidden_dim());
        Int8Predictor::new(input, rank, hidden, &*memory)?;
        memory.fill(0);
        let layouts = layouts(input, rank, hidden)?;
        let (p, q) = memory.split_at_mut(layouts[0].bytes().next_multiple_of(ALIGN));
        pack_matrix("p", weights.p, &layouts[0], p, row)?;
        pack_matrix("q", weights.q, &layouts[1], q, row)?;
        Self::new(input, rank, hidden, memory)
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
        let found = scratch.len();
        check_aligned("address of scratch modulo 64", scratch)?;
        let too_small = |_| SparsityError::Length {
            what: "scratch",
            expected: self.scratch_bytes(),
            found,
        };
        let mut arena = Arena::new(scratch).map_err(too_small)?;
        let mut take = |bytes| arena.bytes(bytes).map_err(too_small);
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

/// Whether memory begins at a line.
fn check_aligned(name: &'static str, memory: &[u8]) -> Result<(), SparsityError> {
    match memory.as_ptr().addr() % ALIGN {
        0 => Ok(()),
        beyond => Err(setting(name, beyond as f64, "0")),
    }
}

/// Quantises the rows of a matrix into panels.
fn pack_matrix(
    name: &'static str,
    matrix: &[f32],
    layout: &PanelLayout,
    panels: &mut [u8],
    row: &mut [u8],
) -> Result<(), SparsityError> {
    check_within(name, matrix, max_abs(GgmlType::Q8_0))?;
    let (n_row, found) = (layout.gguf_row_bytes(), row.len());
    let row = row.get_mut(..n_row).ok_or(SparsityError::Length {
        what: "row",
        expected: n_row,
        found,
    })?;
    let (width, block) = (layout.n_cols(), GgmlType::Q8_0.block_len());
    let quantizer = Quantizer::detect();
    for (i, values) in matrix.chunks_exact(width).enumerate() {
        let what = name;
        quantizer
            .quantize_rows(GgmlType::Q8_0, values, width, None, row)
            .map_err(|_| SparsityError::Width { what, width, block })?;
        layout.pack_row(i, row, &mut panels[layout.byte_range(layout.band(i))]);
    }
    Ok(())
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
        let expected = "at least 1, and a size in memory";
        PanelLayout::new(GgmlType::Q8_0, rows, cols)
            .map_err(|_| setting("hidden_dim", hidden as f64, expected))
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
