//! Which columns of a group have codes that are not 0.

use crate::contract::GROUP;

/// Four columns of a sub-block and their codes; if there are fewer, the rest have code 0.
#[derive(Clone, Copy)]
pub(crate) struct Four {
    pub(super) columns: [u8; 4],
    pub(super) q: [i8; 4],
}

impl Four {
    pub(super) const NONE: Self = Self {
        columns: [0; 4],
        q: [0; 4],
    };
}

/// The columns of a group whose codes are not 0, by sub-block.
pub(super) struct Active {
    pub(super) fours: [Four; GROUP / 4],
    /// Where the fours of each sub-block end.
    ends: [u8; 16],
    /// Fours of all sub-blocks.
    pub(super) n: usize,
}

impl Active {
    pub(super) const EMPTY: Self = Self {
        fours: [Four::NONE; GROUP / 4],
        ends: [0; _],
        n: 0,
    };

    /// Finds the columns of a group of `n_cols` columns, in sub-blocks of `sub_cols`.
    #[inline(never)]
    pub(super) fn find(&mut self, q: &[i8; GROUP], n_cols: usize, sub_cols: usize) {
        let mut n = 0;
        for (s, first) in (0..n_cols).step_by(sub_cols).enumerate() {
            let mut found = 0;
            let sub_block = &q[first..first + sub_cols];
            for (i, eight) in sub_block.as_chunks::<8>().0.iter().enumerate() {
                let word = u64::from_le_bytes(eight.map(i8::cast_unsigned));
                // The highest bit of each byte that is not 0.
                const LOW: u64 = u64::MAX / 255 * 0x7f;
                let mut bits = (((word & LOW) + LOW) | word) & !LOW;
                while bits != 0 {
                    let at = bits.trailing_zeros() as usize / 8;
                    bits &= bits - 1;
                    let column = (first + 8 * i + at).to_le_bytes()[0];
                    let four = &mut self.fours[n + found / 4];
                    if found.is_multiple_of(4) {
                        *four = Four {
                            columns: [column; 4],
                            q: [0; 4],
                        };
                    }
                    four.columns[found % 4] = column;
                    four.q[found % 4] = eight[at];
                    found += 1;
                }
            }
            n += found.div_ceil(4);
            self.ends[s] = n.to_le_bytes()[0];
        }
        self.n = n;
    }

    /// The fours of sub-block `s`.
    pub(super) fn of(&self, s: usize) -> &[Four] {
        let start = s.checked_sub(1).map_or(0, |s| self.ends[s].into());
        &self.fours[start..self.ends[s].into()]
    }
}
