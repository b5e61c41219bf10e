//! What kernels take: tiles, rows, blocks and running states.
//!
//! Plain structs with public fields. [`crate::KernelTable`] checks them once per call; what it
//! cannot check is in the safety section of the call.

use crate::activation::{ActivationKinds, ActivationLayout};
use crate::panel::{LINE_BYTES, PANEL_ROWS, PanelLayout};
use crate::prefetch::prefetch_to_l2;
use core::ops::Range;

/// What to do with a product.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Store {
    /// Overwrite `out`.
    Set,
    /// Add to `out` (a residual connection). No table has hand-written kernels for it:
    /// panels are multiplied one by one.
    Add,
    /// Continue the sums in `out`, which are of the columns before. The matrix is one group of columns.
    Continue,
}

impl Store {
    /// Whether the sums of the first group of columns start from 0.
    #[inline(always)]
    pub(crate) const fn starts(self) -> bool {
        !matches!(self, Self::Continue)
    }
}

/// How far ahead products of few tokens prefetch weights.
///
/// Which is faster depends on how quickly memory answers, which changes on shared machines. No bit of a
/// product depends on it. It makes a difference with AVX2 and AVX-512, most for one token.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Prefetch {
    /// Best where memory answers quickly: into the nearest cache.
    #[default]
    Near,
    /// Best where memory answers slowly: into a farther cache, which waits for more lines.
    Far,
}

/// Activation rows in memory: `n_rows × layout.row_bytes()`.
#[derive(Clone, Copy, Debug)]
pub struct Activations<'a> {
    /// Layout of a row.
    pub layout: ActivationLayout,
    /// The rows one after the other, aligned to [`crate::activation::ACTIVATION_ALIGN`].
    pub bytes: &'a [u8],
}

impl<'a> Activations<'a> {
    /// Row `row` in f32 (n_cols).
    ///
    /// # Panics
    /// If rows are not kept in f32, or the row is out of range.
    pub fn f32_row(&self, row: usize) -> &'a [f32] {
        assert!(self.layout.kinds().contains(ActivationKinds::F32));
        self.layout
            .f32(&self.bytes[row * self.layout.row_bytes()..])
    }
}

/// A tile of a matrix product: some rows of a weight matrix × some activation rows.
#[derive(Clone, Copy, Debug)]
pub struct Matmul<'a> {
    /// Shape and type of the whole matrix.
    pub layout: PanelLayout,
    /// All of it: its panels, then its tail.
    pub panels: &'a [u8],
    /// Weight rows (outputs) to compute; starts at a multiple of 16.
    pub rows: TileRange,
    /// Activation rows.
    pub activations: Activations<'a>,
    /// Which of them to multiply.
    pub tokens: TileRange,
    /// Element (token t, row r) goes to `out[(t - tokens.start) * out_stride + r - rows.start]`.
    pub out: *mut f32,
    /// Distance between the outputs of two tokens, in elements.
    pub out_stride: usize,
    /// Whether outputs are written or added.
    pub store: Store,
    /// How weights are prefetched for few tokens.
    pub prefetch: Prefetch,
    /// Other memory to prefetch along with the weights.
    pub beside: &'a [Beside],
}

/// Memory that is read after a product, such as an adapter's matrix. It is prefetched in small pieces between the
/// panels of weights, because a CPU waits for only a few lines at once.
#[derive(Clone, Copy, Debug)]
pub struct Beside {
    /// Where it begins. It may point anywhere.
    pub start: *const u8,
    /// Bytes for each 16 rows of the product.
    pub panel_bytes: usize,
}

/// Approximate number of bytes to prefetch at once alongside single panels: a page, which memory answers faster than
/// lines.
const STRETCH_BYTES: usize = 4096;

impl Beside {
    /// Prefetches the part for `n` panels from number `first` of the product on.
    #[inline(always)]
    fn prefetch(&self, first: usize, n: usize) {
        let bytes = n * self.panel_bytes;
        let start = self.start.wrapping_add(first * self.panel_bytes);
        // The number of lines that it touches, which may be more than its length in lines.
        let before = start.addr() % LINE_BYTES;
        prefetch_to_l2(start.wrapping_sub(before), before + bytes);
    }

    /// Panels of a stretch.
    const fn stretch(&self) -> usize {
        (STRETCH_BYTES / (self.panel_bytes + 1)).next_power_of_two()
    }
}

impl Matmul<'_> {
    /// Prefetches part `part` of `n_parts` of the additional memory for the `n` panels from row `row` on.
    #[inline(always)]
    pub(crate) fn prefetch_beside(&self, row: usize, n: usize, part: usize, n_parts: usize) {
        if !self.beside.is_empty() {
            self.prefetch_part_beside(row, n, part, n_parts);
        }
    }

    /// Not in each of the many kernels.
    #[inline(never)]
    fn prefetch_part_beside(&self, row: usize, n: usize, part: usize, n_parts: usize) {
        let first = (row - self.rows.start) / PANEL_ROWS;
        let len = self.beside.len();
        for i in part * len / n_parts..(part + 1) * len / n_parts {
            let beside = &self.beside[i];
            if n > 1 {
                beside.prefetch(first, n);
                continue;
            }
            // For single panels, prefetch in stretches, each entry of the list at a different panel.
            let n_panels = (self.rows.end - self.rows.start).div_ceil(PANEL_ROWS);
            let stretch = beside.stretch();
            let turn = i * stretch.min(n_panels) / len;
            if first % stretch == turn {
                beside.prefetch(first - turn, stretch);
            }
        }
    }
}

#[cfg(all(target_arch = "x86_64", target_feature = "sse2"))]
impl Matmul<'_> {
    /// The same product, for some of its tokens.
    pub(crate) fn part(&self, tokens: Range<usize>) -> Self {
        let first = tokens.start - self.tokens.start;
        Self {
            out: self.out.wrapping_add(first * self.out_stride),
            tokens: tokens.into(),
            ..*self
        }
    }
}

/// A half-open range of indices that is `Copy`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TileRange {
    /// First index.
    pub start: usize,
    /// One past the last index.
    pub end: usize,
}

impl From<Range<usize>> for TileRange {
    fn from(range: Range<usize>) -> Self {
        Self {
            start: range.start,
            end: range.end,
        }
    }
}

/// A row, or whole groups of one, to quantise.
#[derive(Clone, Copy, Debug)]
pub struct Quantize<'a> {
    /// Values of the columns from `first_col` on.
    pub x: &'a [f32],
    /// First column; a multiple of [`crate::contract::GROUP`].
    pub first_col: usize,
    /// Layout of the row.
    pub layout: &'a ActivationLayout,
    /// The row, aligned to [`crate::activation::ACTIVATION_ALIGN`].
    pub row: *mut u8,
}

/// Which dimensions a rotary embedding rotates together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RopePairing {
    /// (2i, 2i + 1): llama.cpp's "norm", GGUF files of the `llama` architecture.
    Interleaved,
    /// (i, i + n_rot / 2): llama.cpp's "neox", most other architectures.
    Halves,
}

/// A rotation of one head.
#[derive(Debug)]
pub struct RopeArgs<'a> {
    /// The head, rotated in place; its first `2 · cos.len()` dimensions.
    pub head: &'a mut [f32],
    /// Cosines, n_rot / 2.
    pub cos: &'a [f32],
    /// Sines, n_rot / 2.
    pub sin: &'a [f32],
    /// Which dimensions belong together.
    pub pairing: RopePairing,
}
