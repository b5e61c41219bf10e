//! Activation rows as linear layers read them: int8 with scales and sums, bf16, f32.
//!
//! An activation is quantised once per consumer group (Q, K and V read the same row), in every
//! kind that some consumer needs.

use crate::contract::GROUP;
use crate::prefetch::prefetch;
use crate::{WeightType, bytes};
use bitflags::bitflags;
use core::mem::offset_of;
use core::ops::Range;

bitflags! {
    /// The kinds in which a row is kept.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    pub struct ActivationKinds: u8 {
        /// As computed; for F32 and F16 weights and types that are dequantised first.
        const F32 = 1;
        /// Rounded to bfloat16; for BF16 weights.
        const BF16 = 2;
        /// Signed bytes within ±127 with one f32 scale per 256 columns, and sums per 16 and 32;
        /// for the K-quants, which sum exactly over 256 columns.
        const INT8_256 = 4;
        /// Signed bytes as in [`ActivationKinds::INT8_256`], but with one scale per 32 columns; for types that have one
        /// per 32 themselves.
        const INT8_32 = 8;
    }
}

impl ActivationKinds {
    /// What weights of type `ty` multiply.
    pub const fn for_weights(ty: WeightType) -> Self {
        match ty {
            WeightType::F32
            | WeightType::F16
            | WeightType::IQ1_S
            | WeightType::IQ1_M
            | WeightType::IQ2_XXS
            | WeightType::IQ2_XS
            | WeightType::IQ2_S
            | WeightType::IQ3_XXS
            | WeightType::IQ3_S
            | WeightType::TQ1_0
            | WeightType::TQ2_0
            | WeightType::NVFP4 => Self::F32,
            WeightType::BF16 => Self::BF16,
            WeightType::Q8_0
            | WeightType::Q4_0
            | WeightType::Q4_1
            | WeightType::Q5_0
            | WeightType::Q5_1
            | WeightType::IQ4_NL
            | WeightType::MXFP4
            | WeightType::LANE3
            | WeightType::LANE5
            | WeightType::LANE7 => Self::INT8_32,
            WeightType::Q2_K
            | WeightType::Q3_K
            | WeightType::Q4_K
            | WeightType::Q5_K
            | WeightType::Q6_K
            | WeightType::IQ4_XS => Self::INT8_256,
        }
    }
}

/// Columns per entry of the sums that correct for unsigned codes.
pub(crate) const SUM_COLS: usize = 16;
/// Columns per scale of [`ActivationKinds::INT8_32`].
pub(crate) const BLOCK_COLS: usize = 32;
/// Alignment of activation memory and of every part of a row, in bytes.
pub const ACTIVATION_ALIGN: usize = 64;

/// The blocks of 32 columns in group `g` of `n_cols` columns: 1 to 8.
#[inline(always)]
pub(crate) fn blocks_in_group(n_cols: usize, g: usize) -> usize {
    ((n_cols - g * GROUP) / BLOCK_COLS).min(GROUP / BLOCK_COLS)
}

/// Offsets of the parts of an activation row of `n_cols` columns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ActivationLayout {
    n_cols: usize,
    kinds: ActivationKinds,
    f32_at: usize,
    bf16_at: usize,
    int8_256: Int8Layout,
    int8_32: Int8Layout,
    row_bytes: usize,
}

/// The numbers stored with the codes of a group that has one scale: one line of memory.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(64))]
pub(crate) struct GroupNumbers {
    pub(crate) d: f32,
    /// The largest sum of magnitudes over 16 columns, at most 2032.
    pub(crate) most_of_16: u16,
    /// The largest sum over 32 columns of positive codes alone, or of negative ones' magnitudes: at
    /// most 4064.
    pub(crate) most_of_32: u16,
    unused: u64,
    /// Sums over 32 columns.
    pub(crate) sums_of_32: [i16; GROUP / BLOCK_COLS],
    /// Sums over 16 columns.
    pub(crate) sums: [i16; GROUP / SUM_COLS],
}

// SAFETY: numbers without padding: 4 + 2 + 2 + 8 + 16 + 32 bytes.
unsafe impl bytes::Pod for GroupNumbers {}

/// Offsets of an int8 part: whole groups of codes, scales and sums, so that kernels may read to the end of a group;
/// what is past the row's end is zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Int8Layout {
    q_at: usize,
    d_at: usize,
    sums_at: usize,
    /// Bytes from a group's scales to the next one's.
    d_step: usize,
    /// Bytes from a group's sums to the next one's.
    sums_step: usize,
}

/// Bytes of the sums of a group.
const SUMS_BYTES: usize = 2 * GROUP / SUM_COLS;

/// Bytes rounded up to whole lines.
const fn lines(bytes: usize) -> usize {
    bytes.next_multiple_of(ACTIVATION_ALIGN)
}

impl Int8Layout {
    /// The part with one scale per group that starts at `start`, and where it ends; nothing
    /// unless `present`. Scales and sums are [`GroupNumbers`].
    const fn per_group(start: usize, n_cols: usize, present: bool) -> (Self, usize) {
        let groups = if present { n_cols.div_ceil(GROUP) } else { 0 };
        let d_at = start + groups * GROUP;
        let part = Self {
            q_at: start,
            d_at,
            sums_at: d_at + offset_of!(GroupNumbers, sums),
            d_step: size_of::<GroupNumbers>(),
            sums_step: size_of::<GroupNumbers>(),
        };
        (part, d_at + groups * size_of::<GroupNumbers>())
    }

    /// [`Self::per_group`] for the part with a scale per 32 columns: all scales, then all sums.
    const fn per_block(start: usize, n_cols: usize, present: bool) -> (Self, usize) {
        let groups = if present { n_cols.div_ceil(GROUP) } else { 0 };
        let d_step = 4 * GROUP / BLOCK_COLS;
        let d_at = start + groups * GROUP;
        let sums_at = d_at + lines(groups * d_step);
        let part = Self {
            q_at: start,
            d_at,
            sums_at,
            d_step,
            sums_step: SUMS_BYTES,
        };
        (part, sums_at + lines(groups * SUMS_BYTES))
    }

    #[inline(always)]
    fn codes<'a>(&self, row: &'a [u8], g: usize) -> &'a [i8; GROUP] {
        let q = bytes::cast(&row[self.q_at + g * GROUP..][..GROUP]);
        q.first_chunk().expect("a group has 256 codes")
    }

    /// The part without its first `g` groups.
    const fn skip(self, g: usize) -> Self {
        Self {
            q_at: self.q_at + g * GROUP,
            d_at: self.d_at + g * self.d_step,
            sums_at: self.sums_at + g * self.sums_step,
            ..self
        }
    }

    /// Pointers to group `g`. Never written through where the part is absent.
    const fn pointers(&self, row: *mut u8, g: usize) -> Int8Group {
        Int8Group {
            q: row.wrapping_add(self.q_at + g * GROUP).cast(),
            d: row.wrapping_add(self.d_at + g * self.d_step).cast(),
            sums: row.wrapping_add(self.sums_at + g * self.sums_step).cast(),
        }
    }
}

impl ActivationLayout {
    /// The layout of rows of `n_cols` columns in the given kinds.
    ///
    /// # Panics
    /// If `n_cols` is above `isize::MAX / 16`, more than memory holds. The columns of a
    /// [`crate::PanelLayout`] never are.
    pub const fn new(n_cols: usize, kinds: ActivationKinds) -> Self {
        // A row takes at most 8.5 bytes a column and 15 lines: nothing below overflows.
        assert!(
            n_cols <= isize::MAX as usize / 16,
            "rows larger than memory"
        );
        let bf16_at = if kinds.contains(ActivationKinds::F32) {
            lines(4 * n_cols)
        } else {
            0
        };
        let bf16_bytes = if kinds.contains(ActivationKinds::BF16) {
            2 * n_cols + 2
        } else {
            0
        };
        let end = bf16_at + lines(bf16_bytes);
        let present = kinds.contains(ActivationKinds::INT8_256);
        let (int8_256, end) = Int8Layout::per_group(end, n_cols, present);
        let present = kinds.contains(ActivationKinds::INT8_32);
        let (int8_32, end) = Int8Layout::per_block(end, n_cols, present);
        Self {
            n_cols,
            kinds,
            f32_at: 0,
            bf16_at,
            int8_256,
            int8_32,
            // An odd number of lines, so that the same columns of many rows map to different sets of a cache.
            row_bytes: end | ACTIVATION_ALIGN,
        }
    }

    /// The layout of group `g` alone: as a row of up to 256 columns of its own, except for [`Self::row_bytes`].
    pub(crate) fn group(&self, g: usize) -> Self {
        Self {
            n_cols: (self.n_cols - g * GROUP).min(GROUP),
            f32_at: self.f32_at + 4 * g * GROUP,
            bf16_at: self.bf16_at + 2 * g * GROUP,
            int8_256: self.int8_256.skip(g),
            int8_32: self.int8_32.skip(g),
            ..*self
        }
    }

    /// Where the codes, scales and sums of a row's int8 part start: that with a scale per 32
    /// columns, or per 256.
    pub(crate) const fn int8_offsets(&self, per_32: bool) -> (usize, usize, usize) {
        let part = if per_32 {
            &self.int8_32
        } else {
            &self.int8_256
        };
        (part.q_at, part.d_at, part.sums_at)
    }

    /// Columns of a row.
    pub const fn n_cols(&self) -> usize {
        self.n_cols
    }

    /// The kinds a row holds.
    pub const fn kinds(&self) -> ActivationKinds {
        self.kinds
    }

    /// Bytes of a row, an odd multiple of [`ACTIVATION_ALIGN`].
    pub const fn row_bytes(&self) -> usize {
        self.row_bytes
    }

    /// The f32 part of a row (`n_cols`).
    #[inline(always)]
    pub(crate) fn f32<'a>(&self, row: &'a [u8]) -> &'a [f32] {
        bytes::cast(&row[self.f32_at..][..4 * self.n_cols])
    }

    /// The bf16 part (`n_cols`, padded with a zero to an even number).
    #[inline(always)]
    pub(crate) fn bf16<'a>(&self, row: &'a [u8]) -> &'a [u16] {
        bytes::cast(&row[self.bf16_at..][..2 * self.n_cols.next_multiple_of(2)])
    }

    /// Group `g` with one scale: 256 codes (zero past the row's end) and what belongs to them.
    #[inline(always)]
    pub(crate) fn int8_256<'a>(
        &self,
        row: &'a [u8],
        g: usize,
    ) -> (&'a GroupNumbers, &'a [i8; GROUP]) {
        let numbers = &row[self.int8_256.d_at..][g * size_of::<GroupNumbers>()..];
        let numbers = bytes::cast(&numbers[..size_of::<GroupNumbers>()]);
        (&numbers[0], self.int8_256.codes(row, g))
    }

    /// Group `g` with a scale per 32 columns: the eight, 256 codes and 16 sums of 16.
    #[inline(always)]
    pub(crate) fn int8_32<'a>(
        &self,
        row: &'a [u8],
        g: usize,
    ) -> (&'a [f32], &'a [i8; GROUP], &'a [i16; GROUP / SUM_COLS]) {
        let part = &self.int8_32;
        let d = bytes::cast::<f32>(&row[part.d_at + g * part.d_step..][..part.d_step]);
        let sums = bytes::cast(&row[part.sums_at + g * part.sums_step..][..SUMS_BYTES]);
        let sums = sums.first_chunk().expect("a group has 16 sums");
        (d, part.codes(row, g), sums)
    }

    /// Where the part of each kind is, in the order of [`ActivationKinds`]' bits; empty, if a row does not
    /// hold it. A kind's part is the same in all layouts of as many columns that do.
    pub const fn part_ranges(&self) -> [Range<usize>; 4] {
        let groups = if self.kinds.contains(ActivationKinds::INT8_32) {
            self.n_cols.div_ceil(GROUP)
        } else {
            0
        };
        [
            self.f32_at..self.bf16_at,
            self.bf16_at..self.int8_256.q_at,
            self.int8_256.q_at..self.int8_32.q_at,
            self.int8_32.q_at..self.int8_32.sums_at + lines(groups * SUMS_BYTES),
        ]
    }

    /// Prefetches the int8 parts of the groups of columns `cols` of the row at `row`.
    pub fn prefetch(&self, row: *const u8, cols: Range<usize>) {
        for g in cols.start / GROUP..cols.end.div_ceil(GROUP) {
            for (kind, part) in [
                (ActivationKinds::INT8_256, &self.int8_256),
                (ActivationKinds::INT8_32, &self.int8_32),
            ] {
                if self.kinds.contains(kind) {
                    let at = part.pointers(row.cast_mut(), g);
                    prefetch(at.q.cast(), GROUP);
                    prefetch(at.d.cast(), size_of::<f32>());
                    prefetch(at.sums.cast(), SUMS_BYTES);
                }
            }
        }
    }

    /// The writable parts of group `g` of a row. Those that `kinds` leaves out are never
    /// written through.
    pub(crate) const fn parts(&self, row: *mut u8, g: usize) -> ActivationParts {
        ActivationParts {
            f32: row.wrapping_add(self.f32_at + 4 * g * GROUP).cast(),
            bf16: row.wrapping_add(self.bf16_at + 2 * g * GROUP).cast(),
            int8_256: self.int8_256.pointers(row, g),
            int8_32: self.int8_32.pointers(row, g),
        }
    }
}

/// Pointers to the parts of a group of 256 columns.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ActivationParts {
    pub(crate) f32: *mut f32,
    pub(crate) bf16: *mut u16,
    pub(crate) int8_256: Int8Group,
    pub(crate) int8_32: Int8Group,
}

/// Pointers to an int8 group: 256 codes, one or eight scales, 16 sums.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Int8Group {
    pub(crate) q: *mut i8,
    pub(crate) d: *mut f32,
    pub(crate) sums: *mut i16,
}

impl Int8Group {
    /// The [`GroupNumbers`] of a group with one scale, which contain its scale and sums.
    pub(crate) const fn numbers(&self) -> *mut GroupNumbers {
        self.d.cast()
    }
}
