//! Scales: of a group of activations gathered by AVX2, of IQ4_XS unpacked by SSE2.
#![allow(
    clippy::multiple_unsafe_ops_per_block,
    reason = "a kernel's safety argument is one: pointers stay inside operands that were checked"
)]

use crate::blocks::SixBits;
use crate::panel::PANEL_ROWS;
use crate::vector::rows::{BlockScales, Int8Rows, SuperBlockScales};
use core::arch::x86_64::*;

impl<const T: usize> BlockScales<T> {
    /// # Safety
    /// - A group is readable at each of `x`.
    #[target_feature(enable = "avx2")]
    #[inline]
    pub(crate) unsafe fn gather(&mut self, x: &[Int8Rows; T], offset: i16, min: bool) {
        for (t, x) in x.iter().enumerate() {
            // SAFETY: eight scales and 16 sums, by the caller.
            unsafe {
                _mm256_storeu_ps(self.d[t].as_mut_ptr(), _mm256_loadu_ps(x.d.cast()));
                // What is not needed is not touched: a line of memory for each token.
                if offset != 0 {
                    let sums = _mm256_loadu_si256(x.sums.cast());
                    let correction = _mm256_madd_epi16(sums, _mm256_set1_epi16(-offset));
                    _mm256_storeu_si256(self.correction[t].as_mut_ptr().cast(), correction);
                }
                if min {
                    let sums = _mm256_loadu_si256(x.sums.cast());
                    let sums = _mm256_madd_epi16(sums, _mm256_set1_epi16(1));
                    _mm256_storeu_ps(self.sums[t].as_mut_ptr(), _mm256_cvtepi32_ps(sums));
                }
            }
        }
    }
}

impl<const T: usize> SuperBlockScales<T> {
    /// `PAIRS`: pairs of minima in a group, 4, 8, or none.
    ///
    /// # Safety
    /// - A group is readable at `x` for `T` tokens.
    #[target_feature(enable = "avx2")]
    #[inline]
    pub(crate) unsafe fn gather<const PAIRS: usize>(&mut self, x: &Int8Rows) {
        for t in 0..T {
            let x = x.tokens(t);
            // SAFETY: a group's numbers, by the caller; rows are aligned, which the table has
            // checked.
            unsafe {
                let numbers = x.numbers();
                let pairs = self.pairs[t].as_mut_ptr();
                self.d[t] = (*numbers).d;
                if PAIRS == 4 {
                    let sums = _mm_load_si128((&raw const (*numbers).sums_of_32).cast());
                    _mm_storeu_si128(pairs.cast(), sums);
                }
                if PAIRS == 8 {
                    let sums = _mm256_load_si256((&raw const (*numbers).sums).cast());
                    _mm256_storeu_si256(pairs.cast(), sums);
                }
            }
        }
    }
}

/// [`Line::six_bits`](crate::vector::unpack::Line::six_bits).
#[inline(always)]
pub(super) fn six_bits(packed: &[[u8; PANEL_ROWS]], at: SixBits) -> [u8; PANEL_ROWS] {
    let (low, high) = (&packed[at.low], &packed[at.high]);
    let mut out = [0; PANEL_ROWS];
    // SAFETY: 16 bytes; every x86-64 CPU has SSE2.
    unsafe {
        let high = _mm_slli_epi16::<4>(bits(high, at.high_shift, 3));
        let both = _mm_or_si128(bits(low, at.low_shift, 0xf), high);
        let less_32 = _mm_sub_epi8(both, _mm_set1_epi8(32));
        _mm_storeu_si128(out.as_mut_ptr().cast(), less_32);
    }
    out
}

/// Some bits of each of 16 bytes.
#[inline(always)]
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_possible_wrap,
    reason = "below 8"
)]
fn bits(bytes: &[u8; PANEL_ROWS], shift: usize, mask: i8) -> __m128i {
    // SAFETY: 16 bytes; every x86-64 CPU has SSE2.
    unsafe {
        let bytes = _mm_loadu_si128(bytes.as_ptr().cast());
        let shift = _mm_cvtsi32_si128(shift as i32);
        _mm_and_si128(_mm_srl_epi16(bytes, shift), _mm_set1_epi8(mask))
    }
}
