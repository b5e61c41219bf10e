//! Precision lanes of 3, 5 and 7 bits: LANE3, LANE5 and LANE7, types of `.slc` files.
//!
//! A block is `d` f16, then 32 codes of `BITS` bits without padding: code j is at bit `BITS · j` of a little-endian string of
//! bits. Value = d · (code − 2^(BITS − 1)), from −4 d to 3 d, −16 d to 15 d and −64 d to 63 d; `d` may be negative.

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

/// The 32 codes of a block, each below 2^`BITS`.
///
/// # Panics
/// If the block is too short.
#[inline]
pub fn codes<const BITS: usize>(block: &[u8]) -> [u8; COLS] {
    let mut codes = [0; COLS];
    let strings = block[QS..].chunks_exact(BITS);
    for (codes, string) in codes.as_chunks_mut::<8>().0.iter_mut().zip(strings) {
        let mut bytes = [0; 8];
        bytes[..BITS].copy_from_slice(string);
        let bits = u64::from_le_bytes(bytes);
        for (j, code) in codes.iter_mut().enumerate() {
            *code = (bits >> (BITS * j)).to_le_bytes()[0] & 0xff >> (8 - BITS);
        }
    }
    codes
}

/// Writes the 32 codes into a block; the inverse of [`codes`].
///
/// # Panics
/// If the block is too short.
#[inline]
pub fn set_codes<const BITS: usize>(codes: &[u8; COLS], block: &mut [u8]) {
    let strings = block[QS..].chunks_exact_mut(BITS);
    for (codes, string) in codes.as_chunks::<8>().0.iter().zip(strings) {
        let bits = (codes.iter().rev()).fold(0, |bits, code| bits << BITS | u64::from(*code));
        string.copy_from_slice(&bits.to_le_bytes()[..BITS]);
    }
}

#[inline]
pub(super) fn values<const BITS: usize>(block: &[u8], out: &mut [f32]) {
    let d = super::f16_at(block, 0);
    for (x, code) in out.iter_mut().zip(codes::<BITS>(block)) {
        *x = d * (f32::from(code) - f32::from(offset(BITS)));
    }
}
