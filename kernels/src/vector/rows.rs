//! Int8 rows of activations and rows of outputs, as the products of integer types walk them.

use crate::activation::{ActivationLayout, BLOCK_COLS, GroupNumbers, SUM_COLS};
use crate::args::Matmul;
use crate::contract::GROUP;
use crate::panel::{LINE_BYTES, PANEL_ROWS};
use crate::prefetch::prefetch_line;
use crate::scalar::matmul::Lanes;

/// Int8 rows of activations, by pointer.
#[derive(Clone, Copy)]
pub(crate) struct Int8Rows {
    pub(crate) q: *const u8,
    pub(crate) d: *const u8,
    pub(crate) sums: *const u8,
    /// Bytes from a row to the next.
    pub(crate) stride: usize,
}

impl Int8Rows {
    /// The rows from token `token` on; `per_32`: those with a scale per 32 columns.
    pub(crate) fn new(args: &Matmul<'_>, token: usize, per_32: bool) -> Self {
        let layout = &args.activations.layout;
        let stride = layout.row_bytes();
        let row = args.activations.bytes[token * stride..].as_ptr();
        let (q, d, sums) = layout.int8_offsets(per_32);
        Self {
            q: row.wrapping_add(q),
            d: row.wrapping_add(d),
            sums: row.wrapping_add(sums),
            stride,
        }
    }

    /// One row, of groups of whole codes, scales and sums.
    pub(crate) fn of_row(layout: &ActivationLayout, row: &[u8], per_32: bool) -> Self {
        let (q, d, sums) = layout.int8_offsets(per_32);
        Self {
            q: row[q..].as_ptr(),
            d: row[d..].as_ptr(),
            sums: row[sums..].as_ptr(),
            stride: 0,
        }
    }

    /// `n` blocks of 32 columns on, in rows with a scale for each.
    #[inline(always)]
    pub(crate) fn skip_blocks(self, n: usize) -> Self {
        Self {
            q: self.q.wrapping_add(BLOCK_COLS * n),
            d: self.d.wrapping_add(4 * n),
            sums: self.sums.wrapping_add(2 * BLOCK_COLS / SUM_COLS * n),
            ..self
        }
    }

    /// `n` groups on, in rows with a scale for each.
    #[inline(always)]
    pub(crate) fn skip_groups(self, n: usize) -> Self {
        Self {
            q: self.q.wrapping_add(GROUP * n),
            d: self.d.wrapping_add(size_of::<GroupNumbers>() * n),
            sums: self.sums.wrapping_add(size_of::<GroupNumbers>() * n),
            ..self
        }
    }

    /// The group's [`GroupNumbers`], in rows with one scale per group.
    #[inline(always)]
    pub(crate) fn numbers(self) -> *const GroupNumbers {
        self.d.cast()
    }

    /// Prefetches a group of the next `n` tokens: rows are so far apart that the CPU's own prefetchers
    /// do not see which is next.
    #[inline(always)]
    pub(crate) fn prefetch(self, n: usize) {
        for t in 0..n {
            let x = self.tokens(t);
            for at in (0..GROUP).step_by(LINE_BYTES) {
                prefetch_line(x.q.wrapping_add(at));
            }
            prefetch_line(x.d);
            prefetch_line(x.sums);
        }
    }

    /// The same columns, `n` tokens later.
    #[inline(always)]
    pub(crate) fn tokens(self, n: usize) -> Self {
        Self {
            q: self.q.wrapping_add(n * self.stride),
            d: self.d.wrapping_add(n * self.stride),
            sums: self.sums.wrapping_add(n * self.stride),
            ..self
        }
    }
}

/// Where the outputs of up to 16 rows and some tokens go.
#[derive(Clone, Copy)]
pub(crate) struct Out {
    pub(crate) at: *mut f32,
    pub(crate) stride: usize,
    /// Rows that there are.
    pub(crate) mask: u16,
}

impl Out {
    /// Outputs of panel rows from `row` on (none past the end of `args.rows`), first token.
    pub(crate) fn new(args: &Matmul<'_>, row: usize) -> Self {
        let n_rows = args.rows.end.saturating_sub(row).min(PANEL_ROWS);
        Self {
            at: args.out.wrapping_add(row - args.rows.start),
            stride: args.out_stride,
            mask: u16::try_from((1u32 << n_rows) - 1).expect("16 rows"),
        }
    }

    /// Sums of one token and the rows of a panel.
    pub(crate) const fn of_sums(sums: &mut Lanes) -> Self {
        Self {
            at: sums.as_mut_ptr(),
            stride: PANEL_ROWS,
            mask: u16::MAX,
        }
    }

    #[inline(always)]
    pub(crate) fn tokens(self, n: usize) -> Self {
        Self {
            at: self.at.wrapping_add(n * self.stride),
            ..self
        }
    }
}

/// Scales and sums of a group of some tokens, close together.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
pub(crate) struct BlockScales<const T: usize> {
    pub(crate) d: [[f32; 8]; T],
    /// Sums of the codes of each block.
    pub(crate) sums: [[f32; 8]; T],
    /// What the offset of the weights adds to the dots of a block: it is taken off at the start.
    pub(crate) correction: [[i32; 8]; T],
}

impl<const T: usize> BlockScales<T> {
    pub(crate) const EMPTY: Self = Self {
        d: [[0.0; _]; _],
        sums: [[0.0; _]; _],
        correction: [[0; _]; _],
    };
}

/// Scales and sums of a group of some tokens, close together.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
pub(crate) struct SuperBlockScales<const T: usize> {
    /// Pairs of i16: sums of 32 columns, at most 4064, or of 16, as minima have them.
    pub(crate) pairs: [[i32; 8]; T],
    pub(crate) d: [f32; T],
}

impl<const T: usize> SuperBlockScales<T> {
    pub(crate) const EMPTY: Self = Self {
        pairs: [[0; _]; _],
        d: [0.0; _],
    };
}
