//! Products that read only columns whose codes are not 0.

use super::Ints;
use crate::neuron::Transpose;
use crate::panel::LINE_BYTES;
use crate::panel::PANEL_ROWS;
use crate::panel::{Iq4Xs, Q2K, Q3K, Q4K, Q5K, Q6K, WeightType};
use crate::vector::neurons::{NeuronLine, skip_kernels};
use core::arch::x86_64::*;

skip_kernels!(Ints, "avx2,fma,f16c");

/// A function of both halves. A closure would be called, and not be part of the loop.
macro_rules! halves {
    ($f:ident($($x:expr),*)) => {
        // SAFETY: only kernels of tables with AVX2 name this type.
        unsafe { [half!(0, $f($($x),*)), half!(1, $f($($x),*))] }
    };
}

macro_rules! half {
    ($i:literal, $f:ident($($x:expr),*)) => { $f($($x[$i]),*) };
}

impl NeuronLine for Ints {
    #[inline(always)]
    fn interleave(c: [Self; 4]) -> [Self; 4] {
        let low = [
            halves!(_mm256_unpacklo_epi8(c[0], c[1])),
            halves!(_mm256_unpacklo_epi8(c[2], c[3])),
        ];
        let high = [
            halves!(_mm256_unpackhi_epi8(c[0], c[1])),
            halves!(_mm256_unpackhi_epi8(c[2], c[3])),
        ];
        [
            halves!(_mm256_unpacklo_epi16(low[0], low[1])),
            halves!(_mm256_unpackhi_epi16(low[0], low[1])),
            halves!(_mm256_unpacklo_epi16(high[0], high[1])),
            halves!(_mm256_unpackhi_epi16(high[0], high[1])),
        ]
    }

    #[inline(always)]
    fn dot(self, codes: Self, q: Self) -> Self {
        // SAFETY: only kernels of tables with AVX2 name this type; so in all that follow.
        unsafe {
            // As pairs of i16, even and odd columns apart: exact products.
            let mut out = self;
            for (out, (codes, q)) in out.iter_mut().zip(codes.into_iter().zip(q)) {
                let even_q = _mm256_srai_epi16::<8>(_mm256_slli_epi16::<8>(q));
                let odd_q = _mm256_srai_epi16::<8>(q);
                let even = _mm256_and_si256(codes, _mm256_set1_epi16(0xff));
                let even = _mm256_madd_epi16(even, even_q);
                let odd = _mm256_madd_epi16(_mm256_srli_epi16::<8>(codes), odd_q);
                *out = _mm256_add_epi32(*out, _mm256_add_epi32(even, odd));
            }
            out
        }
    }

    #[inline(always)]
    fn by_words([a, b]: [Self; 2]) -> [Self; 2] {
        // SAFETY: as in `dot`.
        unsafe {
            let mut out = [a; 2];
            for (i, [low, high]) in [a, b].into_iter().enumerate() {
                let (low, high) = (_mm256_castsi256_ps(low), _mm256_castsi256_ps(high));
                let even = _mm256_castps_si256(_mm256_shuffle_ps::<0b10_00_10_00>(low, high));
                let odd = _mm256_castps_si256(_mm256_shuffle_ps::<0b11_01_11_01>(low, high));
                out[0][i] = _mm256_permute4x64_epi64::<0b11_01_10_00>(even);
                out[1][i] = _mm256_permute4x64_epi64::<0b11_01_10_00>(odd);
            }
            out
        }
    }

    #[inline(always)]
    fn by_quarters([a, b]: [Self; 2]) -> [Self; 2] {
        // SAFETY: as in `dot`.
        unsafe {
            [
                [
                    _mm256_permute2x128_si256::<0x20>(a[0], a[1]),
                    _mm256_permute2x128_si256::<0x20>(b[0], b[1]),
                ],
                [
                    _mm256_permute2x128_si256::<0x31>(a[0], a[1]),
                    _mm256_permute2x128_si256::<0x31>(b[0], b[1]),
                ],
            ]
        }
    }

    #[inline(always)]
    fn sums([a, b, c, d]: [Self; 4]) -> Self {
        let (ab, cd) = (
            halves!(_mm256_hadd_epi32(a, b)),
            halves!(_mm256_hadd_epi32(c, d)),
        );
        halves!(_mm256_hadd_epi32(ab, cd))
    }

    #[inline(always)]
    fn transpose_quarters([a, b, c, d]: [Self; 4]) -> [Self; 4] {
        let of = |i: usize| Self::by_quarters([[a[i], b[i]], [c[i], d[i]]]);
        let ([e, f], [g, h]) = (of(0), of(1));
        [e, f, g, h]
    }

    #[inline(always)]
    fn ints(n: i32) -> Self {
        // SAFETY: as in `dot`.
        [unsafe { _mm256_set1_epi32(n) }; 2]
    }

    #[inline(always)]
    fn plus(self, other: Self) -> Self {
        halves!(_mm256_add_epi32(self, other))
    }

    #[inline(always)]
    fn add_product(self, a: Self, b: Self) -> Self {
        let product = halves!(_mm256_mullo_epi32(a, b));
        halves!(_mm256_add_epi32(self, product))
    }

    #[inline(always)]
    fn add_words(self, a: Self, b: Self) -> Self {
        let dots = halves!(_mm256_madd_epi16(a, b));
        halves!(_mm256_add_epi32(self, dots))
    }

    #[inline(always)]
    fn to_floats(self) -> [__m256; 2] {
        halves!(_mm256_cvtepi32_ps(self))
    }

    #[inline(always)]
    fn float(x: f32) -> [__m256; 2] {
        // SAFETY: as in `dot`.
        [unsafe { _mm256_set1_ps(x) }; 2]
    }

    #[inline(always)]
    fn product(a: [__m256; 2], b: [__m256; 2]) -> [__m256; 2] {
        halves!(_mm256_mul_ps(a, b))
    }

    #[inline(always)]
    fn fma<const NEGATIVE: bool>(a: [__m256; 2], b: [__m256; 2], c: [__m256; 2]) -> [__m256; 2] {
        match NEGATIVE {
            true => halves!(_mm256_fnmadd_ps(a, b, c)),
            false => halves!(_mm256_fmadd_ps(a, b, c)),
        }
    }

    #[inline(always)]
    unsafe fn twice(p: *const u8) -> Self {
        // SAFETY: by the caller.
        [unsafe { _mm256_loadu_si256(p.cast()) }; 2]
    }

    #[inline(always)]
    fn halves_of(byte: u8) -> [Self; 2] {
        // SAFETY: as in `dot`.
        let (all, none) = unsafe { (_mm256_set1_epi8(byte.cast_signed()), _mm256_setzero_si256()) };
        [[all, none], [none, all]]
    }

    #[inline(always)]
    fn bits(word: u64) -> Self {
        // SAFETY: as in `dot`.
        unsafe {
            // Byte i of each half gets byte i / 8 of its 32 bits, of which bit i % 8 counts.
            let order = _mm256_setr_epi64x(
                0,
                0x0101_0101_0101_0101,
                0x0202_0202_0202_0202,
                0x0303_0303_0303_0303,
            );
            let bit = _mm256_set1_epi64x(0x8040_2010_0804_0201_u64.cast_signed());
            let mut out = [_mm256_setzero_si256(); 2];
            for (out, word) in out.iter_mut().zip([word, word >> 32]) {
                let word = _mm256_set1_epi64x(word.cast_signed());
                let byte = _mm256_and_si256(_mm256_shuffle_epi8(word, order), bit);
                let is_set = _mm256_cmpeq_epi8(byte, bit);
                *out = _mm256_and_si256(is_set, _mm256_set1_epi8(1));
            }
            out
        }
    }
}

pub(crate) const TRANSPOSE: Transpose = Transpose { rows, words, bytes };

/// [`Transpose::words`].
///
/// # Safety
/// - As many bytes are writable as the lines have; the CPU has AVX2.
#[target_feature(enable = "avx2")]
unsafe fn words(lines: &[[u8; LINE_BYTES]], out: *mut u8) {
    for (i, line) in lines.iter().enumerate() {
        // SAFETY: by the caller.
        unsafe {
            let line: *const __m256i = line.as_ptr().cast();
            let (a, b) = (_mm256_loadu_si256(line), _mm256_loadu_si256(line.add(1)));
            let mask = _mm256_set1_epi32(0xffff);
            let low = _mm256_packus_epi32(_mm256_and_si256(a, mask), _mm256_and_si256(b, mask));
            let high = _mm256_packus_epi32(_mm256_srli_epi32::<16>(a), _mm256_srli_epi32::<16>(b));
            let out: *mut __m256i = out.add(LINE_BYTES * i).cast();
            _mm256_storeu_si256(out, _mm256_permute4x64_epi64::<0b11_01_10_00>(low));
            _mm256_storeu_si256(out.add(1), _mm256_permute4x64_epi64::<0b11_01_10_00>(high));
        }
    }
}

/// [`Transpose::bytes`].
///
/// # Safety
/// - As [`words`].
#[target_feature(enable = "avx2")]
unsafe fn bytes(lines: &[[u8; LINE_BYTES]], out: *mut u8) {
    for (i, line) in lines.iter().enumerate() {
        // SAFETY: by the caller.
        unsafe {
            let order = _mm_setr_epi8(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
            let mut parts = [_mm_setzero_si128(); 4];
            for (k, part) in parts.iter_mut().enumerate() {
                let of = _mm_loadu_si128(line.as_ptr().cast::<__m128i>().add(k));
                *part = _mm_shuffle_epi8(of, order);
            }
            let out: *mut __m128i = out.add(LINE_BYTES * i).cast();
            for (k, part) in transposed(parts).into_iter().enumerate() {
                _mm_storeu_si128(out.add(k), part);
            }
        }
    }
}

/// Four rows of four words, by column.
#[target_feature(enable = "avx2")]
#[inline]
fn transposed([a, b, c, d]: [__m128i; 4]) -> [__m128i; 4] {
    let (ab, cd) = (_mm_unpacklo_epi32(a, b), _mm_unpacklo_epi32(c, d));
    let (ab_high, cd_high) = (_mm_unpackhi_epi32(a, b), _mm_unpackhi_epi32(c, d));
    [
        _mm_unpacklo_epi64(ab, cd),
        _mm_unpackhi_epi64(ab, cd),
        _mm_unpacklo_epi64(ab_high, cd_high),
        _mm_unpackhi_epi64(ab_high, cd_high),
    ]
}

/// [`Transpose::rows`].
///
/// # Safety
/// - `16 n` bytes are readable of each row, and `4 n` lines writable; the CPU has AVX2.
#[target_feature(enable = "avx2")]
unsafe fn rows(of: &[*const u8; PANEL_ROWS], n: usize, lines: *mut [u8; LINE_BYTES]) {
    for i in 0..n {
        for (k, rows) in of.as_chunks::<4>().0.iter().enumerate() {
            // SAFETY: by the caller.
            unsafe {
                let mut parts = [_mm_setzero_si128(); 4];
                for (part, row) in parts.iter_mut().zip(rows) {
                    *part = _mm_loadu_si128(row.add(16 * i).cast());
                }
                for (j, part) in transposed(parts).into_iter().enumerate() {
                    let line: *mut __m128i = lines.add(4 * i + j).cast();
                    _mm_storeu_si128(line.add(k), part);
                }
            }
        }
    }
}
