//! Panels of the 4- and 5-bit types with blocks of 32 columns, all alike: per 256 columns
//!
//! ```text
//! heads   8 blocks × [each number of the block × 16 rows]     d, or d and m, or an exponent
//! lines   8 blocks × [4 nibble lines, 1 high line]            the latter in 5-bit types
//! ```
//!
//! Bit s of byte 4r+j of a high line is the fifth bit of column 4s+j of its block, so that one
//! line serves eight steps. The last group of a row may hold fewer than eight blocks; heads are
//! padded to 32 bytes, which shows in MXFP4 where their number is odd (16 bytes: above 1% with up
//! to five blocks, where a matrix has no panels). Apart from that a panel has exactly GGUF's
//! size. Data starts at multiples of 32 bytes.

use super::{LINE_BYTES, PANEL_ROWS, PanelFormat, WeightType, code, set_codes};
use crate::blocks::{iq4_nl, mxfp4, q4_0, q4_1, q5_0, q5_1};
use crate::contract::GROUP;
use core::marker::PhantomData;

/// Panels of the type `B`.
pub(crate) struct Small<B>(PhantomData<B>);

/// A type whose blocks of 32 columns are one or two numbers and small codes.
pub(crate) trait SmallBlock {
    const TYPE: WeightType;
    /// Numbers at the start of a block: `d`, and `m` in types that have one.
    const N_NUMBERS: usize;
    /// Bytes of each: 2 for f16, 1 for an E8M0 exponent.
    const NUMBER_BYTES: usize;
    /// Whether codes have a fifth bit.
    const HIGH: bool;
    /// What codes stand for.
    const CODES: Codes;

    fn codes(block: &[u8]) -> [u8; 32];
    fn set_codes(codes: &[u8; 32], block: &mut [u8]);
}

/// What unsigned codes stand for.
#[derive(Clone, Copy)]
pub(crate) enum Codes {
    /// The code less an offset.
    Offset(i32),
    /// An entry of a table.
    Table(&'static [i8; 16]),
}

macro_rules! small_blocks {
    ($(
        $name:ident, $block:ident, $module:ident, $ty:ident:
        $n_numbers:literal x $number_bytes:literal, $high:literal, $codes:expr;
    )*) => {$(
        pub(crate) type $name = Small<$block>;
        pub(crate) struct $block;

        impl SmallBlock for $block {
            const TYPE: WeightType = WeightType::$ty;
            const N_NUMBERS: usize = $n_numbers;
            const NUMBER_BYTES: usize = $number_bytes;
            const HIGH: bool = $high;
            const CODES: Codes = $codes;

            fn codes(block: &[u8]) -> [u8; 32] {
                $module::codes(block)
            }

            fn set_codes(codes: &[u8; 32], block: &mut [u8]) {
                $module::set_codes(codes, block);
            }
        }

        const _: () = assert!(
            PANEL_ROWS * WeightType::$ty.ggml().block_bytes()
                == Small::<$block>::HEAD + Small::<$block>::LINES
        );
    )*};
}

small_blocks! {
    Q4_0, BlockQ4_0, q4_0, Q4_0: 1 x 2, false, Codes::Offset(8);
    Q4_1, BlockQ4_1, q4_1, Q4_1: 2 x 2, false, Codes::Offset(0);
    Q5_0, BlockQ5_0, q5_0, Q5_0: 1 x 2, true, Codes::Offset(16);
    Q5_1, BlockQ5_1, q5_1, Q5_1: 2 x 2, true, Codes::Offset(0);
    Iq4Nl, BlockIq4Nl, iq4_nl, IQ4_NL: 1 x 2, false, Codes::Table(&iq4_nl::VALUES);
    Mxfp4, BlockMxfp4, mxfp4, MXFP4: 1 x 1, false, Codes::Table(&mxfp4::VALUES);
}

/// Where the high line of a block is in its lines.
pub(crate) const HIGH: usize = 4 * LINE_BYTES;

impl<B: SmallBlock> Small<B> {
    /// Bytes of the numbers of a block of 16 rows.
    pub(crate) const HEAD: usize = B::N_NUMBERS * B::NUMBER_BYTES * PANEL_ROWS;
    /// Bytes of the lines of a block.
    pub(crate) const LINES: usize = (4 + B::HIGH as usize) * LINE_BYTES;

    /// Offsets of the numbers and of the lines of block `index`.
    pub(crate) fn at(n_cols: usize, index: usize) -> (usize, usize) {
        let (group, block) = (index / 8, index % 8);
        let start = group * 8 * (Self::HEAD + Self::LINES);
        let blocks_in_group = ((n_cols - group * GROUP) / 32).min(8);
        let heads = (blocks_in_group * Self::HEAD).next_multiple_of(32);
        (
            start + block * Self::HEAD,
            start + heads + block * Self::LINES,
        )
    }
}

impl<B: SmallBlock> PanelFormat for Small<B> {
    const TYPE: WeightType = B::TYPE;

    fn panel_bytes(n_cols: usize) -> usize {
        (n_cols / 32 * (Self::HEAD + Self::LINES)).next_multiple_of(32)
    }

    fn pack_block(panel: &mut [u8], n_cols: usize, row: usize, index: usize, block: &[u8]) {
        let (head, lines) = Self::at(n_cols, index);
        for i in 0..B::N_NUMBERS {
            let at = head + (i * PANEL_ROWS + row) * B::NUMBER_BYTES;
            let number = &block[i * B::NUMBER_BYTES..][..B::NUMBER_BYTES];
            panel[at..][..B::NUMBER_BYTES].copy_from_slice(number);
        }
        let lines = &mut panel[lines..][..Self::LINES];
        let codes = B::codes(block);
        set_codes::<4>(lines, row, &codes, 0);
        if B::HIGH {
            set_codes::<1>(&mut lines[HIGH..], row, &codes, 4);
        }
    }

    fn unpack_block(panel: &[u8], n_cols: usize, row: usize, index: usize, block: &mut [u8]) {
        let (head, lines) = Self::at(n_cols, index);
        let numbers = block.chunks_mut(B::NUMBER_BYTES).take(B::N_NUMBERS);
        for (i, number) in numbers.enumerate() {
            let at = head + (i * PANEL_ROWS + row) * B::NUMBER_BYTES;
            number.copy_from_slice(&panel[at..][..B::NUMBER_BYTES]);
        }
        let lines = &panel[lines..][..Self::LINES];
        let codes = core::array::from_fn(|col| {
            let low = code::<4>(lines, row, col);
            if B::HIGH {
                low | code::<1>(&lines[HIGH..], row, col) << 4
            } else {
                low
            }
        });
        B::set_codes(&codes, block);
    }
}
