//! The codebooks of the IQ types by halves, for searching.
//!
//! The cost of an entry is the cost of its first half of columns plus the cost of its second. Entries with the same
//! second half are adjacent, so the minimum over a codebook is the minimum over all second halves of their cost plus
//! the lowest cost among the first halves paired with them.

use crate::blocks::codebooks;

/// Maximum number of halves in a codebook: four columns of three codes.
const HALVES_MAX: usize = 81;

/// Which combinations of values a type has. A half's number has its columns' codes as digits in
/// base `CODES`, the first column lowest.
pub(super) trait Book {
    /// Columns of an entry.
    const COLUMNS: usize;
    /// What the codes of a column stand for.
    const VALUES: &[f32];
    /// How many numbers of halves there are.
    const HALVES: usize = if Self::COLUMNS == 4 {
        8 * 8
    } else {
        3 * 3 * 3 * 3
    };
    /// First halves, in the order of the entries. Those that go with a second half fill whole
    /// fours, in which the last is repeated.
    const FIRST: &[[u8; 4]];
    /// `FIRST[FOURS[h]]` is the first with second half `h`.
    const FOURS: &Starts;
    /// Entry `ENTRIES[h]` is the first with second half `h`.
    const ENTRIES: &Starts;

    /// The code of column `c` of a half.
    #[inline(always)]
    fn code(half: usize, c: usize) -> usize {
        let n_codes = Self::VALUES.len();
        (0..c).fold(half, |rest, _| rest / n_codes) % n_codes
    }
}

/// Where each second half starts, and the end.
type Starts = [u16; HALVES_MAX + 1];

/// What a [`Book`] refers to.
struct Halves<const FOURS: usize> {
    first: [[u8; 4]; FOURS],
    fours: Starts,
    entries: Starts,
}

impl<const FOURS: usize> Halves<FOURS> {
    /// From entries in ascending order with `bits` bits for each code.
    const fn new(entries: &[u16], bits: u32, n_codes: usize) -> Self {
        let (entry_starts, fours) = starts(entries, bits, n_codes);
        let mut first = [[0; 4]; FOURS];
        let mut h = 0;
        while h < HALVES_MAX {
            let (mut i, end) = (entry_starts[h] as usize, entry_starts[h + 1] as usize);
            let mut to = 4 * fours[h] as usize;
            while to < 4 * fours[h + 1] as usize {
                let [half, _] = entries[i].to_le_bytes();
                first[to / 4][to % 4] = number(half, bits, n_codes).to_le_bytes()[0];
                to += 1;
                if i + 1 < end {
                    i += 1;
                }
            }
            h += 1;
        }
        Self {
            first,
            fours,
            entries: entry_starts,
        }
    }
}

/// [`Book::ENTRIES`] and [`Book::FOURS`].
const fn starts(entries: &[u16], bits: u32, n_codes: usize) -> (Starts, Starts) {
    let (mut each, mut fours): (Starts, Starts) = ([0; HALVES_MAX + 1], [0; HALVES_MAX + 1]);
    let mut i = 0;
    while i < entries.len() {
        let [_, second] = entries[i].to_le_bytes();
        each[number(second, bits, n_codes) + 1] += 1;
        i += 1;
    }
    let mut h = 0;
    while h < HALVES_MAX {
        fours[h + 1] = fours[h] + each[h + 1].div_ceil(4);
        each[h + 1] += each[h];
        h += 1;
    }
    (each, fours)
}

/// The number of a half.
const fn number(half: u8, bits: u32, n_codes: usize) -> usize {
    let (mut rest, mut place, mut number) = (half, 1, 0);
    while rest > 0 {
        number += place * (rest & ((1 << bits) - 1)) as usize;
        rest >>= bits;
        place *= n_codes;
    }
    number
}

macro_rules! books {
    ($($(#[$doc:meta])* $name:ident: $table:ident, $bits:literal, $values:expr;)*) => {
        $(
            $(#[$doc])*
            pub(super) struct $name;

            const _: () = {
                const TABLE: &[u16] = &codebooks::$table;
                const N_CODES: usize = $values.len();
                const FOURS: usize = starts(TABLE, $bits, N_CODES).1[HALVES_MAX] as usize;
                static HALVES: Halves<FOURS> = Halves::new(TABLE, $bits, N_CODES);

                impl Book for $name {
                    const COLUMNS: usize = 16 / $bits;
                    const VALUES: &[f32] = &$values;
                    const FIRST: &[[u8; 4]] = &HALVES.first;
                    const FOURS: &Starts = &HALVES.fours;
                    const ENTRIES: &Starts = &HALVES.entries;
                }
            };
        )*
    };
}

books! {
    /// 512 entries of four columns.
    Iq3S: IQ3_S, 4, [1.0, 3.0, 5.0, 7.0, 9.0, 11.0, 13.0, 15.0];
    /// 256 entries of four columns.
    Iq3Xxs: IQ3_XXS, 4, [4.0, 12.0, 20.0, 28.0, 36.0, 44.0, 52.0, 62.0];
    /// 1024 entries of eight columns.
    Iq2S: IQ2_S, 2, [8.0, 25.0, 43.0];
    /// 512 entries of eight columns.
    Iq2Xs: IQ2_XS, 2, [8.0, 25.0, 43.0];
    /// 256 entries of eight columns.
    Iq2Xxs: IQ2_XXS, 2, [8.0, 25.0, 43.0];
}
