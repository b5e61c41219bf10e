//! Precision lanes of 3, 5 and 7 bits: LANE3, LANE5 and LANE7, types of `.slc` files.
//!
//! A block is `d` f16, then 32 codes of b bits without padding: code j is at bit `b · j` of a little-endian string of
//! bits. Value = d · (code − 2^(b − 1)), from −4 d to 3 d, −16 d to 15 d and −64 d to 63 d; `d` may be negative.

/// Columns of a block.
pub const COLS: usize = 32;
/// Where the codes start.
pub const QS: usize = 2;

/// Bytes of a block of codes of `bits` bits.
pub const fn block_bytes(bits: usize) -> usize {
    QS + COLS * bits / 8
}

/// What to subtract from a code.
pub const fn offset(bits: usize) -> u8 {
    1 << (bits - 1)
}

/// The 32 codes of a block, each below 2^`bits`.
///
/// # Panics
/// If the block is too short, or there are no bits or more than 8.
#[inline(never)]
pub fn codes(bits: usize, block: &[u8]) -> [u8; COLS] {
    let mut codes = [0; COLS];
    let mut bytes = block[QS..].iter();
    let (mut word, mut n_bits) = (0u32, 0);
    for code in &mut codes {
        if n_bits < bits {
            word |= u32::from(*bytes.next().expect("a whole block")) << n_bits;
            n_bits += 8;
        }
        *code = word.to_le_bytes()[0] & 0xff >> (8 - bits);
        word >>= bits;
        n_bits -= bits;
    }
    codes
}

/// Writes the 32 codes into a block; the inverse of [`codes`].
///
/// # Panics
/// As [`codes`].
#[inline(never)]
pub fn set_codes(bits: usize, codes: &[u8; COLS], block: &mut [u8]) {
    let mut bytes = block[QS..].iter_mut();
    let (mut word, mut n_bits) = (0u32, 0);
    for code in codes {
        word |= u32::from(*code) << n_bits;
        n_bits += bits;
        if n_bits >= 8 {
            *bytes.next().expect("a whole block") = word.to_le_bytes()[0];
            word >>= 8;
            n_bits -= 8;
        }
    }
}

#[inline(never)]
pub(super) fn values(bits: usize, block: &[u8], out: &mut [f32]) {
    let d = super::f16_at(block, 0);
    for (x, code) in out.iter_mut().zip(codes(bits, block)) {
        *x = d * (f32::from(code) - f32::from(offset(bits)));
    }
}
