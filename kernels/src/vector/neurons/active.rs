//! Which columns of a group have codes that are not 0.

use crate::contract::GROUP;

/// Four columns of a sub-block and their codes; if there are fewer, the rest have code 0.
#[derive(Clone, Copy)]
pub(crate) struct Four {
    pub(super) columns: [u8; 4],
    pub(super) q: [i8; 4],
}

impl Four {
    /// The codes as one number.
    #[inline(always)]
    pub(super) fn q(&self) -> i32 {
        i32::from_le_bytes(self.q.map(i8::cast_unsigned))
    }
}

/// A set of columns of a group.
#[derive(Clone, Copy)]
pub(super) struct Columns([u64; GROUP / 64]);

impl Columns {
    pub(super) const NONE: Self = Self([0; _]);

    pub(super) fn add(&mut self, other: &Self) {
        for (all, other) in self.0.iter_mut().zip(other.0) {
            *all |= other;
        }
    }

    /// Writes its columns, ascending, and returns their number.
    #[inline(never)]
    pub(super) fn list(&self, out: &mut [u8; GROUP]) -> usize {
        let mut n = 0;
        for (first, mut bits) in (0..GROUP).step_by(64).zip(self.0) {
            while bits != 0 {
                out[n] = (first + bits.trailing_zeros() as usize).to_le_bytes()[0];
                bits &= bits - 1;
                n += 1;
            }
        }
        n
    }
}

/// The columns of a group whose codes are not 0, by sub-block.
pub(super) struct Active {
    fours: [Four; GROUP / 4],
    /// Where the fours of each sub-block end.
    ends: [u8; 16],
    pub(super) columns: Columns,
}

impl Active {
    pub(super) const EMPTY: Self = Self {
        fours: [Four {
            columns: [0; 4],
            q: [0; 4],
        }; GROUP / 4],
        ends: [0; _],
        columns: Columns::NONE,
    };

    /// Finds the columns of a group of `n_cols` columns, in sub-blocks of `sub_cols`.
    #[inline(never)]
    pub(super) fn find(&mut self, q: &[i8; GROUP], n_cols: usize, sub_cols: usize) {
        self.columns = Columns::NONE;
        for (i, eight) in q[..n_cols].as_chunks::<8>().0.iter().enumerate() {
            let word = u64::from_le_bytes(eight.map(i8::cast_unsigned));
            // The highest bit of each byte that is not 0, then these bits side by side.
            const LOW: u64 = u64::MAX / 255 * 0x7f;
            let bits = (((word & LOW) + LOW) | word) & !LOW;
            let bits = (bits >> 7).wrapping_mul(0x0102_0408_1020_4080) >> 56;
            self.columns.0[i / 8] |= bits << (8 * (i % 8));
        }
        let mut n = 0;
        for (s, first) in (0..n_cols).step_by(sub_cols).enumerate() {
            let mask = u64::MAX >> (64 - sub_cols);
            let mut bits = self.columns.0[first / 64] >> (first % 64) & mask;
            if bits == mask {
                // All of them: the same fours, without a look at each.
                let codes = q[first..first + sub_cols].as_chunks::<4>().0;
                for (i, codes) in codes.iter().enumerate() {
                    let column = (first + 4 * i).to_le_bytes()[0];
                    self.fours[n] = Four {
                        columns: [column, column + 1, column + 2, column + 3],
                        q: *codes,
                    };
                    n += 1;
                }
                bits = 0;
            }
            while bits != 0 {
                let mut four = Four {
                    columns: [0; 4],
                    q: [0; 4],
                };
                let mut column = 0;
                for i in 0..4 {
                    // Past the last one, the same column again with code 0.
                    if bits != 0 {
                        column = first + bits.trailing_zeros() as usize;
                        bits &= bits - 1;
                        four.q[i] = q[column];
                    }
                    four.columns[i] = column.to_le_bytes()[0];
                }
                self.fours[n] = four;
                n += 1;
            }
            self.ends[s] = n.to_le_bytes()[0];
        }
    }

    /// The fours of sub-block `s`.
    #[inline(always)]
    pub(super) fn of(&self, s: usize) -> &[Four] {
        let start = s.checked_sub(1).map_or(0, |s| self.ends[s].into());
        &self.fours[start..self.ends[s].into()]
    }
}
