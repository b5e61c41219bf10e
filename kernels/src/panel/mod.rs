//! Weight panels: 16 rows side by side, the one layout that every ISA reads. The panels of a matrix are followed by the
//! rows that do not fill a panel.
//!
//! A panel is 16 weight rows. Its unit is the line: 64 bytes = 16 rows × 4 bytes along the
//! columns, so that a vector lane is an output row. Codes are unsigned (signed types are stored
//! +128), because `vpdpbusd` takes weights as its unsigned operand; two halves of a line are
//! what AVX2 wants, and 16 unpacked lines are an AMX tile.
//!
//! ```text
//! nibble line s (columns 8s..8s+8)   byte 4r+j: low nibble = code[row r][8s+j], high = [8s+4+j]
//! byte line s   (columns 4s..4s+4)   byte 4r+j: code[row r][4s+j]
//! 2-bit line s  (columns 16s..16s+16) and 1-bit line s (columns 32s..32s+32) alike
//! ```
//!
//! The map from GGUF blocks is a bijection: [`PanelLayout::unpack_row`] gives back the bytes
//! that [`PanelLayout::pack_row`] took. Formats are described in their modules.
//!
//! A matrix is its panels one after the other, then its **tail**: the last `n_rows % 16` rows,
//! one after the other as GGUF has them. A product with the tail packs 256 columns of its rows at
//! a time. So a matrix of any shape is at most 1% larger than in GGUF. A panel alone would be
//! larger in narrow matrices of two types (MXFP4 of 1, 3 or 5 blocks, BF16 of an odd number of
//! columns below 100, by half a line each): all of their rows are tail.
//!
//! A **band** is 16 rows from a multiple of 16 on, or as many as the matrix has: a panel, or rows of the tail. Packing
//! and unpacking work band by band and need not tell them apart.

mod float;
pub(crate) mod iq4_xs;
pub(crate) mod q2_k;
pub(crate) mod q3_k;
pub(crate) mod q4_k;
pub(crate) mod q5_k;
pub(crate) mod q6_k;
mod q8_0;
mod raw;
pub(crate) mod small;

pub(crate) use float::{Bf16, F16, F32};
pub(crate) use iq4_xs::Iq4Xs;
pub(crate) use q2_k::Q2K;
pub(crate) use q3_k::Q3K;
pub(crate) use q4_k::Q4K;
pub(crate) use q5_k::Q5K;
pub(crate) use q6_k::Q6K;
pub(crate) use q8_0::Q8_0;
pub(crate) use raw::{Iq1M, Iq1S, Iq2S, Iq2Xs, Iq2Xxs, Iq3S, Iq3Xxs, Nvfp4, Tq1_0, Tq2_0};
pub(crate) use small::{Iq4Nl, Mxfp4, Q4_0, Q4_1, Q5_0, Q5_1};

use crate::GgmlType;
use crate::blocks;
use crate::contract::GROUP;
use core::fmt;
use core::ops::Range;

/// Rows in a panel.
pub const PANEL_ROWS: usize = 16;
/// Bytes in a line: 4 of each row.
pub const LINE_BYTES: usize = 64;
/// Alignment that panel memory must have, in bytes.
pub const PANEL_ALIGN: usize = 64;

const _: () = assert!(PANEL_ROWS * 4 == LINE_BYTES);

macro_rules! weight_types {
    ($n:literal types: $($name:ident)*) => {
        /// A weight type that has panels and kernels.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[expect(missing_docs, reason = "each variant is the type of that name in ggml")]
        #[expect(non_camel_case_types, reason = "ggml's own spelling")]
        pub enum WeightType { $($name,)* }

        impl WeightType {
            /// Every weight type, in the order of kernel tables.
            pub const ALL: [Self; $n] = [$(Self::$name,)*];

            /// The weight type of a GGUF tensor type, where there are panels for it.
            pub const fn from_ggml(ty: GgmlType) -> Option<Self> {
                Some(match ty {
                    $(GgmlType::$name => Self::$name,)*
                    _ => return None,
                })
            }

            /// The GGUF tensor type.
            pub const fn ggml(self) -> GgmlType {
                match self { $(Self::$name => GgmlType::$name,)* }
            }
        }
    };
}

weight_types! {
    26 types: F32 F16 BF16 Q8_0 Q4_0 Q4_K Q6_K Q5_K Q5_0 Q4_1 Q5_1 IQ4_NL Q3_K Q2_K IQ4_XS MXFP4
    IQ1_S IQ1_M IQ2_XXS IQ2_XS IQ2_S IQ3_XXS IQ3_S TQ1_0 TQ2_0 NVFP4
}

/// The layout of one type in a panel, block by block. `row` below is a lane, `0..16`.
pub(crate) trait PanelFormat {
    const TYPE: WeightType;

    /// Bytes of a panel of `n_cols` columns (a whole number of blocks).
    fn panel_bytes(n_cols: usize) -> usize;

    /// Writes GGUF block `index` of lane `row`.
    fn pack_block(panel: &mut [u8], n_cols: usize, row: usize, index: usize, block: &[u8]);

    /// Reads GGUF block `index` of lane `row` back.
    fn unpack_block(panel: &[u8], n_cols: usize, row: usize, index: usize, block: &mut [u8]);
}

/// Calls `$call` with `$format` standing for the format of `$ty`.
macro_rules! with_format {
    ($ty:expr, $format:ident => $call:expr) => {
        with_format!(@ $ty, $format => $call;
            F32 F32, F16 F16, BF16 Bf16, Q8_0 Q8_0, Q4_0 Q4_0, Q4_K Q4K, Q6_K Q6K, Q5_K Q5K,
            Q5_0 Q5_0, Q4_1 Q4_1, Q5_1 Q5_1, IQ4_NL Iq4Nl, Q3_K Q3K, Q2_K Q2K, IQ4_XS Iq4Xs,
            MXFP4 Mxfp4, IQ1_S Iq1S, IQ1_M Iq1M, IQ2_XXS Iq2Xxs, IQ2_XS Iq2Xs, IQ2_S Iq2S,
            IQ3_XXS Iq3Xxs, IQ3_S Iq3S, TQ1_0 Tq1_0, TQ2_0 Tq2_0, NVFP4 Nvfp4)
    };
    (@ $ty:expr, $format:ident => $call:expr; $($name:ident $panels:ty),*) => {
        match $ty {
            $(WeightType::$name => {
                type $format = $panels;
                $call
            })*
        }
    };
}

/// Why a tensor cannot be laid out in panels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum PanelError {
    /// There are no kernels for this type yet.
    TypeNotSupported(GgmlType),
    /// Rows or columns are zero.
    Empty,
    /// The row length is not a whole number of blocks.
    ColumnsNotMultipleOfBlock {
        /// The tensor's type.
        ty: GgmlType,
        /// The row length.
        n_cols: usize,
    },
    /// The size in bytes does not fit in a `usize`.
    TooLarge,
}

impl fmt::Display for PanelError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TypeNotSupported(ty) => write!(f, "there are no kernels for type {ty} yet"),
            Self::Empty => f.write_str("a tensor has no rows or no columns"),
            Self::ColumnsNotMultipleOfBlock { ty, n_cols } => {
                write!(
                    f,
                    "row length {n_cols} is not a multiple of {} ({ty})",
                    ty.block_len()
                )
            }
            Self::TooLarge => f.write_str("the tensor is larger than the address space"),
        }
    }
}

impl core::error::Error for PanelError {}

/// Shape and type of a matrix in panels and a tail; sizes are arithmetic on these.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PanelLayout {
    ty: WeightType,
    n_rows: usize,
    n_cols: usize,
    /// 0 where panels would be too large: then all rows are tail.
    panel_bytes: usize,
    gguf_row_bytes: usize,
}

impl PanelLayout {
    /// The layout of `n_rows` outputs × `n_cols` inputs.
    ///
    /// # Errors
    /// If the type has no kernels, the shape is empty, rows are not whole blocks, or the size
    /// overflows.
    pub fn new(ty: GgmlType, n_rows: usize, n_cols: usize) -> Result<Self, PanelError> {
        let weight_type = WeightType::from_ggml(ty).ok_or(PanelError::TypeNotSupported(ty))?;
        if n_rows == 0 || n_cols == 0 {
            return Err(PanelError::Empty);
        }
        if !n_cols.is_multiple_of(ty.block_len()) {
            return Err(PanelError::ColumnsNotMultipleOfBlock { ty, n_cols });
        }
        // 8 bytes a weight is more than any format takes, headers included.
        let rows = n_rows
            .checked_next_multiple_of(PANEL_ROWS)
            .ok_or(PanelError::TooLarge)?;
        let bound = rows.checked_mul(n_cols).and_then(|n| n.checked_mul(8));
        bound
            .filter(|&n| n < isize::MAX as usize / 2)
            .ok_or(PanelError::TooLarge)?;
        let panel_bytes = with_format!(weight_type, Format => Format::panel_bytes(n_cols));
        let gguf_row_bytes = n_cols / ty.block_len() * ty.block_bytes();
        let gguf_bytes = PANEL_ROWS * gguf_row_bytes;
        let too_large = (panel_bytes - gguf_bytes) * 100 > gguf_bytes;
        Ok(Self {
            ty: weight_type,
            n_rows,
            n_cols,
            panel_bytes: if too_large { 0 } else { panel_bytes },
            gguf_row_bytes,
        })
    }

    /// The layout as plain numbers, for tables in memory of the caller's.
    pub const fn to_numbers(&self) -> [usize; 5] {
        [
            self.ty as usize,
            self.n_rows,
            self.n_cols,
            self.panel_bytes,
            self.gguf_row_bytes,
        ]
    }

    /// The layout that numbers were made of, without the divisions of [`Self::new`].
    ///
    /// # Safety
    /// - `numbers` are what [`Self::to_numbers`] gave.
    ///
    /// # Panics
    /// If the first number does not denote a type.
    pub const unsafe fn from_numbers(numbers: &[usize; 5]) -> Self {
        let [ty, n_rows, n_cols, panel_bytes, gguf_row_bytes] = *numbers;
        Self {
            ty: WeightType::ALL[ty],
            n_rows,
            n_cols,
            panel_bytes,
            gguf_row_bytes,
        }
    }

    /// The type of the weights.
    pub const fn ty(&self) -> WeightType {
        self.ty
    }

    /// Rows (outputs) of the matrix.
    pub const fn n_rows(&self) -> usize {
        self.n_rows
    }

    /// Columns (inputs) of the matrix.
    pub const fn n_cols(&self) -> usize {
        self.n_cols
    }

    /// Panels in the matrix, all of 16 rows.
    pub const fn n_panels(&self) -> usize {
        if self.panel_bytes > 0 {
            self.n_rows / PANEL_ROWS
        } else {
            0
        }
    }

    /// Bytes of one panel, a multiple of 32; 0 where all rows are tail.
    pub const fn panel_bytes(&self) -> usize {
        self.panel_bytes
    }

    /// The first row that is in no panel, a multiple of 16; [`Self::n_rows`] where all are.
    pub const fn tail_start(&self) -> usize {
        self.n_panels() * PANEL_ROWS
    }

    /// Bytes of the matrix: panels and tail.
    pub const fn bytes(&self) -> usize {
        self.offset(self.n_rows)
    }

    /// Where `row` starts in the matrix: a panel's first, or one of the tail.
    const fn offset(&self, row: usize) -> usize {
        if row < self.tail_start() {
            row / PANEL_ROWS * self.panel_bytes
        } else {
            self.n_panels() * self.panel_bytes + (row - self.tail_start()) * self.gguf_row_bytes()
        }
    }

    /// GGUF row `row` of the whole matrix; it is one of the tail.
    fn tail_row<'p>(&self, row: usize, panels: &'p [u8]) -> &'p [u8] {
        assert!((self.tail_start()..self.n_rows).contains(&row));
        &panels[self.offset(row)..][..self.gguf_row_bytes()]
    }

    /// Packs the columns of group `g` of up to 16 `rows` of the tail into a panel of its own at
    /// the start of `panel`, missing rows as zeros.
    pub(crate) fn pack_tail<'p>(
        &self,
        panels: &[u8],
        rows: Range<usize>,
        g: usize,
        panel: &'p mut [u8],
    ) -> &'p [u8] {
        let ty = self.ty.ggml();
        let n_cols = (self.n_cols - g * GROUP).min(GROUP);
        let bytes_of = |n_cols: usize| n_cols / ty.block_len() * ty.block_bytes();
        // Of each type two functions, and not this loop.
        type PackLane = fn(&mut [u8], usize, usize, &[u8]);
        let (panel_bytes, pack_lane): (fn(usize) -> usize, PackLane) = with_format!(
            self.ty, Format => (Format::panel_bytes, pack_lane::<Format>)
        );
        let panel = &mut panel[..panel_bytes(n_cols)];
        panel.fill(0);
        for (lane, row) in rows.enumerate() {
            let blocks = &self.tail_row(row, panels)[bytes_of(g * GROUP)..];
            pack_lane(panel, n_cols, lane, &blocks[..bytes_of(n_cols)]);
        }
        panel
    }

    /// The bytes of `rows` in the matrix: a band, or several.
    ///
    /// # Panics
    /// If `rows` do not start and end at multiples of 16, the end of the matrix apart.
    pub fn byte_range(&self, rows: Range<usize>) -> Range<usize> {
        assert!(rows.start.is_multiple_of(PANEL_ROWS));
        assert!(rows.end.is_multiple_of(PANEL_ROWS) || rows.end == self.n_rows);
        assert!(rows.end <= self.n_rows);
        self.offset(rows.start)..self.offset(rows.end)
    }

    /// The rows of each band, in order.
    pub fn bands(&self) -> impl Iterator<Item = Range<usize>> + use<> {
        let layout = *self;
        let starts = (0..layout.n_rows).step_by(PANEL_ROWS);
        starts.map(move |start| layout.band(start))
    }

    /// The rows of the band that holds `row`.
    ///
    /// # Panics
    /// If `row` is out of range.
    pub fn band(&self, row: usize) -> Range<usize> {
        assert!(row < self.n_rows);
        let start = row - row % PANEL_ROWS;
        start..self.n_rows.min(start + PANEL_ROWS)
    }

    /// Bytes of one row in GGUF.
    pub const fn gguf_row_bytes(&self) -> usize {
        self.gguf_row_bytes
    }

    /// Writes GGUF row `row` of the matrix into its band.
    ///
    /// Bytes that belong to no row (padding of panels) are left alone: panels start from zeroed
    /// memory where the same matrix is to give the same bytes. Results do not depend on them.
    ///
    /// # Panics
    /// If a slice's size does not match the layout, or `row` is out of range.
    pub fn pack_row(&self, row: usize, gguf_row: &[u8], band: &mut [u8]) {
        let row_bytes = self.gguf_row_bytes();
        assert_eq!(gguf_row.len(), row_bytes);
        assert_eq!(band.len(), self.byte_range(self.band(row)).len());
        let lane = row % PANEL_ROWS;
        if row >= self.tail_start() {
            band[lane * row_bytes..][..row_bytes].copy_from_slice(gguf_row);
            return;
        }
        with_format!(self.ty, Format => pack_lane::<Format>(band, self.n_cols, lane, gguf_row));
    }

    /// Writes GGUF row `row` of the matrix out of its band; the exact inverse of
    /// [`Self::pack_row`].
    ///
    /// # Panics
    /// As [`Self::pack_row`].
    pub fn unpack_row(&self, row: usize, band: &[u8], gguf_row: &mut [u8]) {
        let row_bytes = self.gguf_row_bytes();
        assert_eq!(gguf_row.len(), row_bytes);
        assert_eq!(band.len(), self.byte_range(self.band(row)).len());
        let lane = row % PANEL_ROWS;
        if row >= self.tail_start() {
            gguf_row.copy_from_slice(&band[lane * row_bytes..][..row_bytes]);
            return;
        }
        with_format!(self.ty, Format => {
            let block_bytes = Format::TYPE.ggml().block_bytes();
            for (index, block) in gguf_row.chunks_exact_mut(block_bytes).enumerate() {
                Format::unpack_block(band, self.n_cols, lane, index, block);
            }
        });
    }

    /// The values of matrix row `row`, dequantised from the whole matrix (`out`: n_cols). This is
    /// how a tied output layer serves as the embedding.
    ///
    /// # Panics
    /// If `row` is out of range or a slice's size does not match the layout.
    pub fn dequantize_row(&self, row: usize, panels: &[u8], out: &mut [f32]) {
        assert!(row < self.n_rows);
        assert_eq!(out.len(), self.n_cols);
        let ty = self.ty.ggml();
        if row >= self.tail_start() {
            blocks::dequantize_row(ty, self.tail_row(row, panels), out);
            return;
        }
        let panel = &panels[self.offset(row)..][..self.panel_bytes];
        let mut buffer = [0u8; 256];
        let block = &mut buffer[..ty.block_bytes()];
        with_format!(self.ty, Format => {
            for (index, out) in out.chunks_exact_mut(ty.block_len()).enumerate() {
                Format::unpack_block(panel, self.n_cols, row % PANEL_ROWS, index, block);
                blocks::dequantize_block(ty, block, out);
            }
        });
    }
}

/// Writes whole blocks of one row into lane `row` of a panel of `n_cols` columns.
pub(crate) fn pack_lane<P: PanelFormat>(panel: &mut [u8], n_cols: usize, row: usize, gguf: &[u8]) {
    let blocks = gguf.chunks_exact(P::TYPE.ggml().block_bytes());
    for (index, block) in blocks.enumerate() {
        P::pack_block(panel, n_cols, row, index, block);
    }
}

/// [`blocks::dequantize_row`] for a weight type, which always has values.
///
/// # Panics
/// If `out` is not a whole number of blocks or `row` is not as long as `out` demands.
pub fn dequantize_gguf_row(ty: WeightType, row: &[u8], out: &mut [f32]) {
    blocks::dequantize_row(ty.ggml(), row, out);
}

/// Puts `BITS` bits (1, 2, 4 or 8) of each code, from bit `first` on, into lines that start at
/// `lines[0]`: byte 4r+j of a line holds columns j, 4+j, 8+j, … of row r, from the low bits up.
/// `codes` fill whole lines.
#[inline(always)]
fn set_codes<const BITS: usize>(lines: &mut [u8], row: usize, codes: &[u8], first: usize) {
    let mask = u32::from_le_bytes([0xff >> (8 - BITS); 4]);
    let (lines, _) = lines.as_chunks_mut::<LINE_BYTES>();
    for (line, codes) in lines.iter_mut().zip(codes.chunks_exact(32 / BITS)) {
        let (steps, _) = codes.as_chunks();
        let word = (0..8 / BITS).fold(0, |word, step| {
            word | (u32::from_le_bytes(steps[step]) >> first & mask) << (step * BITS)
        });
        line[4 * row..][..4].copy_from_slice(&word.to_le_bytes());
    }
}

/// Takes a code of `BITS` bits out of lines; the inverse of [`set_codes`].
fn code<const BITS: usize>(lines: &[u8], row: usize, col: usize) -> u8 {
    let steps = 8 / BITS;
    let at = lines[col / (4 * steps) * LINE_BYTES + 4 * row + col % 4];
    at >> (col / 4 % steps * BITS) & 0xff >> (8 - BITS)
}

#[cfg(test)]
mod goldens;
#[cfg(test)]
mod tests;
