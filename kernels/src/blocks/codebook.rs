//! Types whose columns are entries of a codebook, four or eight at a time.
//!
//! All have super-blocks of 256 columns and are read only: one value function per type, for the
//! slow path that multiplies dequantised blocks.

use super::codebooks as book;
use super::{f16_at, u16_at};
use crate::half::f16_to_f32;

/// Values of the codes of IQ2 entries. No entry has code 3.
const IQ2_VALUES: [f32; 4] = [8.0, 25.0, 43.0, 0.0];
/// Values of the codes of IQ3_XXS entries.
const IQ3_XXS_VALUES: [f32; 8] = [4.0, 12.0, 20.0, 28.0, 36.0, 44.0, 52.0, 62.0];
/// Values of the codes of IQ3_S entries.
const IQ3_S_VALUES: [f32; 8] = [1.0, 3.0, 5.0, 7.0, 9.0, 11.0, 13.0, 15.0];
/// Values of the codes of IQ1 entries. No entry has code 3.
const IQ1_VALUES: [f32; 4] = [-1.0, 0.0, 1.0, 0.0];
/// What IQ1 types add to or take off all values of an entry.
const IQ1_DELTA: f32 = 0.125;

/// IQ2_XXS: `d` f16; per 32 columns four bytes that index entries, then a u32 of four times
/// seven sign bits and, on top, a 4-bit scale.
/// Value = d · (sc + 0.5) / 4 · entry · sign.
#[inline]
pub(super) fn iq2_xxs(block: &[u8], out: &mut [f32]) {
    let d = f16_at(block, 0);
    for (part, out) in block[2..].as_chunks::<8>().0.iter().zip(parts::<32>(out)) {
        let (indices, word) = (&part[..4], word_at(part, 4));
        let scale = d * (0.5 + nibble(word >> 28)) * 0.25;
        for (i, out) in parts::<8>(out).enumerate() {
            let entry = book::IQ2_XXS[usize::from(indices[i])];
            eight(entry, &IQ2_VALUES, even_signs(word >> (7 * i)), scale, out);
        }
    }
}

/// IQ2_XS: `d` f16; a u16 per 8 columns, nine bits that index an entry and seven sign bits; a
/// byte per 32 columns with a 4-bit scale for each 16.
/// Value = d · (sc + 0.5) / 4 · entry · sign.
#[inline]
pub(super) fn iq2_xs(block: &[u8], out: &mut [f32]) {
    let d = f16_at(block, 0);
    let (words, scales) = block[2..].split_at(64);
    for (i, out) in parts::<8>(out).enumerate() {
        let scale = d * (0.5 + scale_of_16(scales, i)) * 0.25;
        let word = u16_at(words, 2 * i);
        let entry = book::IQ2_XS[usize::from(word & 511)];
        eight(entry, &IQ2_VALUES, even_signs(word >> 9), scale, out);
    }
}

/// IQ2_S: `d` f16; 32 bytes with the low eight bits of the index of each entry, 32 with its
/// eight signs, 8 with two upper bits of each index; a byte of scales per 32 columns as in
/// IQ2_XS. Value = d · (sc + 0.5) / 4 · entry · sign.
#[inline]
pub(super) fn iq2_s(block: &[u8], out: &mut [f32]) {
    let d = f16_at(block, 0);
    let (low, rest) = block[2..].split_at(32);
    let (signs, rest) = rest.split_at(32);
    let (high, scales) = rest.split_at(8);
    for (i, out) in parts::<8>(out).enumerate() {
        let scale = d * (0.5 + scale_of_16(scales, i)) * 0.25;
        let upper = high[i / 4] >> (2 * (i % 4)) & 3;
        let entry = book::IQ2_S[usize::from(low[i]) | usize::from(upper) << 8];
        eight(entry, &IQ2_VALUES, signs[i], scale, out);
    }
}

/// IQ3_XXS: `d` f16; 64 bytes that index entries of four columns; per 32 columns a u32 of signs
/// and scale as in IQ2_XXS. Value = d · (sc + 0.5) / 2 · entry · sign.
#[inline]
pub(super) fn iq3_xxs(block: &[u8], out: &mut [f32]) {
    let d = f16_at(block, 0);
    let (indices, words) = block[2..].split_at(64);
    for (s, out) in parts::<32>(out).enumerate() {
        let word = word_at(words, 4 * s);
        let scale = d * (0.5 + nibble(word >> 28)) * 0.5;
        for (i, out) in parts::<8>(out).enumerate() {
            let at = 8 * s + 2 * i;
            let entries = [0, 1].map(|j| book::IQ3_XXS[usize::from(indices[at + j])]);
            let signs = even_signs(word >> (7 * i));
            twice_four(entries, &IQ3_XXS_VALUES, signs, scale, out);
        }
    }
}

/// IQ3_S: `d` f16; 64 bytes with the low eight bits of the index of each entry of four columns,
/// 8 with a ninth bit of each, 32 with a sign bit per column; a nibble per 32 columns with a
/// 4-bit scale. Value = d · (1 + 2 sc) · entry · sign.
#[inline]
pub(super) fn iq3_s(block: &[u8], out: &mut [f32]) {
    let d = f16_at(block, 0);
    let (low, rest) = block[2..].split_at(64);
    let (high, rest) = rest.split_at(8);
    let (signs, scales) = rest.split_at(32);
    for (i, out) in parts::<8>(out).enumerate() {
        let sc = scales[i / 8] >> (i / 4 % 2 * 4) & 0xf;
        let scale = d * f32::from(1 + 2 * sc);
        let entries = [2 * i, 2 * i + 1].map(|e| {
            let upper = high[e / 8] >> (e % 8) & 1;
            book::IQ3_S[usize::from(low[e]) | usize::from(upper) << 8]
        });
        twice_four(entries, &IQ3_S_VALUES, signs[i], scale, out);
    }
}

/// IQ1_S: `d` f16; 32 bytes with the low eight bits of the index of each entry; a u16 per 32
/// columns with four times three upper bits, a 3-bit scale and the sign of the delta.
/// Value = d · (2 sc + 1) · (entry ± delta).
#[inline]
pub(super) fn iq1_s(block: &[u8], out: &mut [f32]) {
    let d = f16_at(block, 0);
    let (low, words) = block[2..].split_at(32);
    for (i, out) in parts::<8>(out).enumerate() {
        let word = u16_at(words, i / 4 * 2);
        let scale = d * f32::from(2 * (word >> 12 & 7) + 1);
        let upper = word >> (3 * (i % 4)) & 7;
        let entry = book::IQ1[usize::from(low[i]) | usize::from(upper) << 8];
        shifted_eight(entry, word >> 15 != 0, scale, out);
    }
}

/// IQ1_M: 32 bytes with the low eight bits of the index of each entry; a nibble per entry with
/// three upper bits and the sign of its delta; four u16 with four 3-bit scales each, one per 16
/// columns, and in their upper nibbles the f16 `d`, lowest first.
/// Value = d · (2 sc + 1) · (entry ± delta).
#[inline]
pub(super) fn iq1_m(block: &[u8], out: &mut [f32]) {
    let (low, rest) = block.split_at(32);
    let (high, scales) = rest.split_at(16);
    let words: [u16; 4] = core::array::from_fn(|i| u16_at(scales, 2 * i));
    let d = (0..4).fold(0, |d, i| d | (words[i] >> 12) << (4 * i));
    let d = f16_to_f32(d);
    for (i, out) in parts::<8>(out).enumerate() {
        let scale = d * f32::from(2 * (words[i / 8] >> (i / 2 % 4 * 3) & 7) + 1);
        let upper = high[i / 2] >> (i % 2 * 4) & 0xf;
        let entry = book::IQ1[usize::from(low[i]) | usize::from(upper & 7) << 8];
        shifted_eight(entry, upper & 8 != 0, scale, out);
    }
}

/// `out` in parts of `N` columns.
#[inline(always)]
fn parts<const N: usize>(out: &mut [f32]) -> core::slice::IterMut<'_, [f32; N]> {
    out.as_chunks_mut().0.iter_mut()
}

/// A little-endian u32 at `at`.
#[inline(always)]
fn word_at(bytes: &[u8], at: usize) -> u32 {
    u32::from(u16_at(bytes, at)) | u32::from(u16_at(bytes, at + 2)) << 16
}

/// The low four bits as a number.
#[inline(always)]
fn nibble(x: u32) -> f32 {
    f32::from((x & 0xf).to_le_bytes()[0])
}

/// The scale of entry `i` of eight columns where 16 columns share a nibble.
#[inline(always)]
fn scale_of_16(scales: &[u8], i: usize) -> f32 {
    f32::from(scales[i / 4] >> (i / 2 % 2 * 4) & 0xf)
}

/// Eight signs from seven: the number of minus signs is even. (ggml keeps them as a table.)
#[inline(always)]
fn even_signs(x: impl Into<u32>) -> u8 {
    let seven = x.into().to_le_bytes()[0] & 0x7f;
    seven | (seven.count_ones().to_le_bytes()[0] & 1) << 7
}

/// `x`, or −x where bit `j` of `signs` is set.
#[inline(always)]
fn signed(x: f32, signs: u8, j: usize) -> f32 {
    f32::from_bits(x.to_bits() ^ u32::from(signs >> j & 1) << 31)
}

/// scale · entry · sign of the eight 2-bit codes of an entry.
#[inline(always)]
fn eight(entry: u16, values: &[f32; 4], signs: u8, scale: f32, out: &mut [f32; 8]) {
    for (j, out) in out.iter_mut().enumerate() {
        let value = values[usize::from(entry >> (2 * j) & 3)];
        *out = signed(scale * value, signs, j);
    }
}

/// scale · entry · sign of the four codes, a nibble each, of two entries.
#[inline(always)]
fn twice_four(entries: [u16; 2], values: &[f32; 8], signs: u8, scale: f32, out: &mut [f32; 8]) {
    for (j, out) in out.iter_mut().enumerate() {
        let value = values[usize::from(entries[j / 4] >> (j % 4 * 4) & 7)];
        *out = signed(scale * value, signs, j);
    }
}

/// scale · (entry ± delta) of the eight 2-bit codes of an entry.
#[inline(always)]
fn shifted_eight(entry: u16, down: bool, scale: f32, out: &mut [f32; 8]) {
    let delta = if down { -IQ1_DELTA } else { IQ1_DELTA };
    for (j, out) in out.iter_mut().enumerate() {
        *out = scale * (IQ1_VALUES[usize::from(entry >> (2 * j) & 3)] + delta);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Codebooks are sorted, and have no code without a value.
    #[test]
    fn codebooks_are_sets_of_valid_codes() {
        for (table, bits, n_codes) in [
            (&book::IQ2_XXS[..], 2, 3),
            (&book::IQ2_XS, 2, 3),
            (&book::IQ2_S, 2, 3),
            (&book::IQ1, 2, 3),
            (&book::IQ3_XXS, 4, 8),
            (&book::IQ3_S, 4, 8),
        ] {
            assert!(table.is_sorted_by(|a, b| a < b));
            for entry in table {
                for shift in (0..16).step_by(bits) {
                    assert!(entry >> shift & ((1 << bits) - 1) < n_codes, "{entry:#x}");
                }
            }
        }
    }

    #[test]
    fn eight_signs_have_an_even_number_of_minus() {
        for seven in 0..128u32 {
            let signs = even_signs(seven | 0x80);
            assert_eq!(u32::from(signs & 0x7f), seven);
            assert!(signs.count_ones().is_multiple_of(2));
        }
    }
}
