//! The codebooks of the IQ types by halves, for searching.
//!
//! The cost of an entry is that of its first half of columns plus that of its second. Entries
//! with the same second half lie side by side, so the least of a codebook is, over all second
//! halves, their cost plus the least among the first halves they go with.

#[expect(
    clippy::duplicate_mod,
    reason = "only read when this file is compiled, into another order"
)]
#[expect(dead_code, reason = "nothing is quantised to IQ1")]
#[path = "../blocks/codebooks.rs"]
mod codebooks;

/// Most halves that a codebook can have: four columns of three codes.
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
    /// First halves of all entries, in the order of the entries.
    const FIRST: &[u8];
    /// Entry `STARTS[h]` is the first with second half `h`.
    const STARTS: &[u16; HALVES_MAX + 1];

    /// The code of column `c` of a half.
    #[inline(always)]
    fn code(half: usize, c: usize) -> usize {
        let n_codes = Self::VALUES.len();
        (0..c).fold(half, |rest, _| rest / n_codes) % n_codes
    }
}

/// [`Book::FIRST`] and [`Book::STARTS`].
struct Halves<const N: usize> {
    first: [u8; N],
    starts: [u16; HALVES_MAX + 1],
}

impl<const N: usize> Halves<N> {
    /// From entries in ascending order with `bits` bits for each code.
    const fn new(entries: &[u16; N], bits: u32, n_codes: usize) -> Self {
        let mut out = Self {
            first: [0; N],
            starts: [0; HALVES_MAX + 1],
        };
        let mut i = 0;
        while i < N {
            let [first, second] = entries[i].to_le_bytes();
            out.first[i] = number(first, bits, n_codes).to_le_bytes()[0];
            out.starts[number(second, bits, n_codes) + 1] += 1;
            i += 1;
        }
        let mut h = 0;
        while h < HALVES_MAX {
            out.starts[h + 1] += out.starts[h];
            h += 1;
        }
        out
    }
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
    ($($(#[$doc:meta])* $name:ident: $table:ident, $n:literal, $bits:literal, $values:expr;)*) => {
        $(
            $(#[$doc])*
            pub(super) struct $name;

            const _: () = {
                static HALVES: Halves<$n> =
                    Halves::new(&codebooks::$table, $bits, $values.len());

                impl Book for $name {
                    const COLUMNS: usize = 16 / $bits;
                    const VALUES: &[f32] = &$values;
                    const FIRST: &[u8] = &HALVES.first;
                    const STARTS: &[u16; HALVES_MAX + 1] = &HALVES.starts;
                }
            };
        )*
    };
}

books! {
    /// 512 entries of four columns.
    Iq3S: IQ3_S, 512, 4, [1.0, 3.0, 5.0, 7.0, 9.0, 11.0, 13.0, 15.0];
    /// 256 entries of four columns.
    Iq3Xxs: IQ3_XXS, 256, 4, [4.0, 12.0, 20.0, 28.0, 36.0, 44.0, 52.0, 62.0];
    /// 1024 entries of eight columns.
    Iq2S: IQ2_S, 1024, 2, [8.0, 25.0, 43.0];
    /// 512 entries of eight columns.
    Iq2Xs: IQ2_XS, 512, 2, [8.0, 25.0, 43.0];
    /// 256 entries of eight columns.
    Iq2Xxs: IQ2_XXS, 256, 2, [8.0, 25.0, 43.0];
}
