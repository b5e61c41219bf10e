//! Activation rows as linear layers read them: int8 with scales and sums, bf16, f32.
//!
//! An activation is quantised once per consumer group (Q, K and V read the same row), in every
//! kind that some consumer needs.

use crate::contract::GROUP;
use crate::{WeightType, bytes};
use bitflags::bitflags;

bitflags! {
    /// The kinds in which a row is kept.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    pub struct ActivationKinds: u8 {
        /// As computed; for F32 and F16 weights.
        const F32 = 1;
        /// Rounded to bfloat16; for BF16 weights.
        const BF16 = 2;
        /// Signed bytes within ±127 with one f32 scale per 256 columns, and sums per 16.
        const INT8 = 4;
    }
}

impl ActivationKinds {
    /// What weights of type `ty` multiply.
    pub const fn for_weights(ty: WeightType) -> Self {
        match ty {
            WeightType::F32 | WeightType::F16 => Self::F32,
            WeightType::BF16 => Self::BF16,
            WeightType::Q8_0 | WeightType::Q4_0 | WeightType::Q4_K | WeightType::Q6_K => Self::INT8,
        }
    }
}

/// Columns per entry of the sums that correct for unsigned codes.
pub(crate) const SUM_COLS: usize = 16;
/// Alignment of activation memory and of every part of a row, in bytes.
pub const ACTIVATION_ALIGN: usize = 64;

/// Where the parts of an activation row of `n_cols` columns lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ActivationLayout {
    n_cols: usize,
    kinds: ActivationKinds,
    bf16_at: usize,
    q_at: usize,
    d_at: usize,
    sums_at: usize,
    row_bytes: usize,
}

impl ActivationLayout {
    /// The layout of rows of `n_cols` columns in the given kinds.
    ///
    /// # Panics
    /// If `n_cols` is above `isize::MAX / 16`, more than memory holds. The columns of a
    /// [`crate::PanelLayout`] never are.
    pub const fn new(n_cols: usize, kinds: ActivationKinds) -> Self {
        const fn lines(bytes: usize) -> usize {
            bytes.next_multiple_of(ACTIVATION_ALIGN)
        }
        // A row takes at most 7.2 bytes a column and eight lines: nothing below overflows.
        assert!(
            n_cols <= isize::MAX as usize / 16,
            "rows larger than memory"
        );
        let int8 = kinds.contains(ActivationKinds::INT8);
        let groups = n_cols.div_ceil(GROUP);
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
        let q_at = bf16_at + lines(bf16_bytes);
        // Whole groups, so that kernels may read to the end of a group: the rest is zero.
        let d_at = q_at + if int8 { groups * GROUP } else { 0 };
        let sums_at = d_at + if int8 { lines(4 * groups) } else { 0 };
        let sums_bytes = if int8 {
            lines(groups * (GROUP / SUM_COLS) * 2)
        } else {
            0
        };
        Self {
            n_cols,
            kinds,
            bf16_at,
            q_at,
            d_at,
            sums_at,
            row_bytes: sums_at + sums_bytes,
        }
    }

    /// Columns of a row.
    pub const fn n_cols(&self) -> usize {
        self.n_cols
    }

    /// The kinds a row holds.
    pub const fn kinds(&self) -> ActivationKinds {
        self.kinds
    }

    /// Bytes of a row, a multiple of [`ACTIVATION_ALIGN`].
    pub const fn row_bytes(&self) -> usize {
        self.row_bytes
    }

    /// The f32 part of a row (`n_cols`).
    #[inline(always)]
    pub(crate) fn f32<'a>(&self, row: &'a [u8]) -> &'a [f32] {
        bytes::cast(&row[..4 * self.n_cols])
    }

    /// The bf16 part (`n_cols`, padded with a zero to an even number).
    #[inline(always)]
    pub(crate) fn bf16<'a>(&self, row: &'a [u8]) -> &'a [u16] {
        bytes::cast(&row[self.bf16_at..][..2 * self.n_cols.next_multiple_of(2)])
    }

    /// Group `g`: its scale, 256 codes (zero past the row's end) and 16 sums of 16.
    #[inline(always)]
    pub(crate) fn int8_group<'a>(
        &self,
        row: &'a [u8],
        g: usize,
    ) -> (f32, &'a [i8; GROUP], &'a [i16; GROUP / SUM_COLS]) {
        let d = bytes::cast::<f32>(&row[self.d_at + 4 * g..][..4])[0];
        let q = bytes::cast(&row[self.q_at + g * GROUP..][..GROUP]);
        let sums_bytes = 2 * GROUP / SUM_COLS;
        let sums = bytes::cast(&row[self.sums_at + g * sums_bytes..][..sums_bytes]);
        (
            d,
            q.first_chunk().expect("a group has 256 codes"),
            sums.first_chunk().expect("a group has 16 sums"),
        )
    }

    /// The writable parts of a row for columns that start at `first_col`, a group's first.
    pub(crate) fn parts(&self, row: *mut u8, first_col: usize) -> ActivationParts {
        debug_assert!(first_col.is_multiple_of(GROUP));
        let g = first_col / GROUP;
        // wrapping_add: the parts that `kinds` leaves out are never written through.
        ActivationParts {
            f32: row.wrapping_add(4 * first_col).cast(),
            bf16: row.wrapping_add(self.bf16_at + 2 * first_col).cast(),
            q: row.wrapping_add(self.q_at + first_col).cast(),
            d: row.wrapping_add(self.d_at + 4 * g).cast(),
            sums: row
                .wrapping_add(self.sums_at + g * (GROUP / SUM_COLS) * 2)
                .cast(),
        }
    }
}

/// Pointers to the parts of a row from some group on.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ActivationParts {
    pub(crate) f32: *mut f32,
    pub(crate) bf16: *mut u16,
    pub(crate) q: *mut i8,
    pub(crate) d: *mut f32,
    pub(crate) sums: *mut i16,
}

impl ActivationParts {
    /// The parts from `g` groups further on.
    pub(crate) const fn group(self, g: usize) -> Self {
        Self {
            f32: self.f32.wrapping_add(g * GROUP),
            bf16: self.bf16.wrapping_add(g * GROUP),
            q: self.q.wrapping_add(g * GROUP),
            d: self.d.wrapping_add(g),
            sums: self.sums.wrapping_add(g * (GROUP / SUM_COLS)),
        }
    }
}
