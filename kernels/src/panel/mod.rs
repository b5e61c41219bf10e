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
pub(crate) mod lane;
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
pub(crate) use lane::Lane;
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
        #[expect(missing_docs, reason = "each variant is the [`GgmlType`] of that name")]
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
    29 types: F32 F16 BF16 Q8_0 Q4_0 Q4_K Q6_K Q5_K Q5_0 Q4_1 Q5_1 IQ4_NL Q3_K Q2_K IQ4_XS MXFP4
    IQ1_S IQ1_M IQ2_XXS IQ2_XS IQ2_S IQ3_XXS IQ3_S TQ1_0 TQ2_0 NVFP4
    LANE3 LANE5 LANE7
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
            IQ3_XXS Iq3Xxs, IQ3_S Iq3S, TQ1_0 Tq1_0, TQ2_0 Tq2_0, NVFP4 Nvfp4,
            LANE3 Lane<3>, LANE5 Lane<5>, LANE7 Lane<7>)
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

pub(crate) mod form;
pub(crate) mod group;
mod layout;

pub use form::Form;
pub use layout::{PanelError, PanelLayout};

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
