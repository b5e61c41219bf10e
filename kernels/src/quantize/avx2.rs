//! [`Vector`] in AVX2 instructions.

use super::vector::{LANES, Vector};
use core::arch::x86_64::*;

/// Only for code compiled with `avx2` enabled.
#[derive(Clone, Copy)]
pub(super) struct Avx2(__m256);

/// One instruction per operation. The wrappers are inlined into code that has AVX2.
macro_rules! operation {
    ($name:ident($($arg:ident: $ty:ty),*) -> $out:ty, $body:expr) => {
        #[target_feature(enable = "avx2")]
        #[inline]
        fn $name($($arg: $ty),*) -> $out {
            $body
        }
    };
}

operation!(add(a: __m256, b: __m256) -> __m256, _mm256_add_ps(a, b));
operation!(sub(a: __m256, b: __m256) -> __m256, _mm256_sub_ps(a, b));
operation!(mul(a: __m256, b: __m256) -> __m256, _mm256_mul_ps(a, b));
operation!(div(a: __m256, b: __m256) -> __m256, _mm256_div_ps(a, b));
operation!(min(a: __m256, b: __m256) -> __m256, _mm256_min_ps(a, b));
operation!(max(a: __m256, b: __m256) -> __m256, _mm256_max_ps(a, b));
operation!(splat(x: f32) -> __m256, _mm256_set1_ps(x));

#[target_feature(enable = "avx2")]
#[inline]
fn load(x: &[f32; LANES]) -> __m256 {
    // SAFETY: an unaligned load of the 32 bytes of `x`.
    unsafe { _mm256_loadu_ps(x.as_ptr()) }
}

#[target_feature(enable = "avx2")]
#[inline]
fn store(x: __m256) -> [f32; LANES] {
    let mut out = [0f32; LANES];
    // SAFETY: an unaligned store to the 32 bytes of `out`.
    unsafe { _mm256_storeu_ps(out.as_mut_ptr(), x) };
    out
}

#[target_feature(enable = "avx2")]
#[inline]
fn if_less(a: __m256, b: __m256, then: __m256, otherwise: __m256) -> __m256 {
    _mm256_blendv_ps(otherwise, then, _mm256_cmp_ps::<_CMP_LT_OQ>(a, b))
}

#[target_feature(enable = "avx2")]
#[inline]
fn lookup(x: __m256, table: &[f32; 512]) -> __m256 {
    let index = _mm256_and_si256(_mm256_cvtps_epi32(x), _mm256_set1_epi32(511));
    // SAFETY: indices are 0..512, the table's length.
    unsafe { _mm256_i32gather_ps::<4>(table.as_ptr(), index) }
}

#[target_feature(enable = "avx2")]
#[inline]
fn transpose(rows: [&[f32; LANES]; LANES]) -> [__m256; LANES] {
    let r = rows.map(|row| load(row));
    // Pairs of rows, then quadruples, then halves.
    let low = |i: usize| _mm256_unpacklo_ps(r[i], r[i + 1]);
    let high = |i: usize| _mm256_unpackhi_ps(r[i], r[i + 1]);
    let pairs = [0, 2, 4, 6].map(|i| (low(i), high(i)));
    let quads = |i: usize| {
        let ((al, ah), (bl, bh)) = (pairs[i], pairs[i + 1]);
        [
            _mm256_shuffle_ps::<0x44>(al, bl),
            _mm256_shuffle_ps::<0xee>(al, bl),
            _mm256_shuffle_ps::<0x44>(ah, bh),
            _mm256_shuffle_ps::<0xee>(ah, bh),
        ]
    };
    let (a, b) = (quads(0), quads(2));
    let first = |i: usize| _mm256_permute2f128_ps::<0x20>(a[i], b[i]);
    let second = |i: usize| _mm256_permute2f128_ps::<0x31>(a[i], b[i]);
    [
        first(0),
        first(1),
        first(2),
        first(3),
        second(0),
        second(1),
        second(2),
        second(3),
    ]
}

impl Vector for Avx2 {
    #[inline(always)]
    fn load(x: &[f32; LANES]) -> Self {
        // SAFETY: only `run_avx2` names this type, and it runs only where AVX2 was detected.
        Self(unsafe { load(x) })
    }

    #[inline(always)]
    fn store(self) -> [f32; LANES] {
        // SAFETY: as in `load`.
        unsafe { store(self.0) }
    }

    #[inline(always)]
    fn splat(x: f32) -> Self {
        // SAFETY: as in `load`.
        Self(unsafe { splat(x) })
    }

    #[inline(always)]
    fn add(self, other: Self) -> Self {
        // SAFETY: as in `load`.
        Self(unsafe { add(self.0, other.0) })
    }

    #[inline(always)]
    fn sub(self, other: Self) -> Self {
        // SAFETY: as in `load`.
        Self(unsafe { sub(self.0, other.0) })
    }

    #[inline(always)]
    fn mul(self, other: Self) -> Self {
        // SAFETY: as in `load`.
        Self(unsafe { mul(self.0, other.0) })
    }

    #[inline(always)]
    fn div(self, other: Self) -> Self {
        // SAFETY: as in `load`.
        Self(unsafe { div(self.0, other.0) })
    }

    #[inline(always)]
    fn min(self, other: Self) -> Self {
        // SAFETY: as in `load`.
        Self(unsafe { min(self.0, other.0) })
    }

    #[inline(always)]
    fn max(self, other: Self) -> Self {
        // SAFETY: as in `load`.
        Self(unsafe { max(self.0, other.0) })
    }

    #[inline(always)]
    fn if_less(self, other: Self, then: Self, otherwise: Self) -> Self {
        // SAFETY: as in `load`.
        Self(unsafe { if_less(self.0, other.0, then.0, otherwise.0) })
    }

    #[inline(always)]
    fn lookup(self, table: &[f32; 512]) -> Self {
        // SAFETY: as in `load`.
        Self(unsafe { lookup(self.0, table) })
    }

    #[inline(always)]
    fn transpose(rows: [&[f32; LANES]; LANES]) -> [Self; LANES] {
        // SAFETY: as in `load`.
        unsafe { transpose(rows) }.map(Self)
    }
}
