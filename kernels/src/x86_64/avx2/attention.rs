//! Attention in vectors of eight lanes: AVX2, FMA, F16C.
#![allow(
    clippy::multiple_unsafe_ops_per_block,
    reason = "a kernel's safety argument is one: pointers stay inside operands that were checked"
)]

use crate::kv::KvType;
use crate::tuning::AVX2_CHUNKS;
use crate::vector::attention::{
    self, Bf16, Bf16First, Bf16Second, Elements, F16, F32, Fp8, Scores, ScoresFn, Values, ValuesFn,
    Vector, attention_functions,
};
use core::arch::x86_64::*;

attention_functions!(Avx2, "avx2,fma,f16c");

#[derive(Clone, Copy)]
pub(in crate::x86_64) struct Avx2;

impl Vector for Avx2 {
    type F = __m256;
    type I = __m256i;
    type M = __m256;
    const WIDTH: usize = 8;
    const SIZES: &'static [(usize, usize)] = AVX2_CHUNKS;

    fn scores_of(size: usize, ty: KvType) -> ScoresFn {
        match size {
            0 => Functions::<4, 2>::scores(ty),
            _ => Functions::<1, 4>::scores(ty),
        }
    }

    fn values_of(size: usize, ty: KvType) -> ValuesFn {
        match size {
            0 => Functions::<4, 2>::values(ty),
            _ => Functions::<1, 4>::values(ty),
        }
    }

    fn values_of_half_pair(second: bool) -> ValuesFn {
        if second {
            values::<Bf16Second, 1>
        } else {
            values::<Bf16First, 1>
        }
    }

    instructions! {
        splat(x: f32) -> __m256 = _mm256_set1_ps(x);
        splat_int(x: u32) -> __m256i = _mm256_set1_epi32(x.cast_signed());
        fma(a: __m256, b: __m256, c: __m256) -> __m256 = _mm256_fmadd_ps(a, b, c);
        mul(a: __m256, b: __m256) -> __m256 = _mm256_mul_ps(a, b);
        add(a: __m256, b: __m256) -> __m256 = _mm256_add_ps(a, b);
        sub(a: __m256, b: __m256) -> __m256 = _mm256_sub_ps(a, b);
        div(a: __m256, b: __m256) -> __m256 = _mm256_div_ps(a, b);
        max(a: __m256, b: __m256) -> __m256 = _mm256_max_ps(a, b);
        min(a: __m256, b: __m256) -> __m256 = _mm256_min_ps(a, b);
        abs(x: __m256) -> __m256 = _mm256_andnot_ps(_mm256_set1_ps(-0.0), x);
        lt(a: __m256, b: __m256) -> __m256 = _mm256_cmp_ps::<_CMP_LT_OQ>(a, b);
        ne(a: __m256, b: __m256) -> __m256 = _mm256_cmp_ps::<_CMP_NEQ_UQ>(a, b);
        select(mask: __m256, yes: __m256, no: __m256) -> __m256 = _mm256_blendv_ps(no, yes, mask);
        any(mask: __m256) -> bool = _mm256_movemask_ps(mask) != 0;
        as_exponent(x: __m256) -> __m256 =
            _mm256_castsi256_ps(_mm256_slli_epi32::<23>(_mm256_castps_si256(x)));
        and(a: __m256i, b: __m256i) -> __m256i = _mm256_and_si256(a, b);
        sub16(a: __m256i, b: __m256i) -> __m256i = _mm256_sub_epi16(a, b);
        dot2(a: __m256i, b: __m256i, c: __m256i) -> __m256i =
            _mm256_add_epi32(c, _mm256_madd_epi16(a, b));
        add_int(a: __m256i, b: __m256i) -> __m256i = _mm256_add_epi32(a, b);
        to_float(x: __m256i) -> __m256 = _mm256_cvtepi32_ps(x);
        round(x: __m256) -> __m256i = _mm256_cvtps_epi32(x);
    }

    instructions! {
        unsafe load(from: *const f32) -> __m256 = _mm256_loadu_ps(from);
        unsafe store(x: __m256, to: *mut f32) = _mm256_storeu_ps(to, x);
        unsafe load_part(from: *const f32, n: usize) -> __m256 = _mm256_maskload_ps(from, lanes(n));
        unsafe store_part(x: __m256, to: *mut f32, n: usize) = _mm256_maskstore_ps(to, lanes(n), x);
        unsafe load_int(from: *const u8) -> __m256i = _mm256_loadu_si256(from.cast());
        unsafe load_int_part(from: *const u8, n: usize) -> __m256i =
            _mm256_maskload_epi32(from.cast(), lanes(n));
        unsafe store_int(x: __m256i, to: *mut u32) = _mm256_storeu_si256(to.cast(), x);
        unsafe halves(from: *const u8) -> __m256 = _mm256_cvtph_ps(_mm_loadu_si128(from.cast()));
        unsafe halves_part(from: *const u8, n: usize) -> __m256 =
            Self::halves(part::<16>(from, 2 * n).as_ptr());
        unsafe bf16(from: *const u8) -> __m256 = _mm256_castsi256_ps(_mm256_slli_epi32::<16>(
            _mm256_cvtepu16_epi32(_mm_loadu_si128(from.cast()))));
        unsafe e4m3(from: *const u8) -> __m256 = from_e4m3(_mm_loadl_epi64(from.cast()));
        unsafe e4m3_part(from: *const u8, n: usize) -> __m256 =
            Self::e4m3(part::<8>(from, n).as_ptr());
    }

    #[inline(always)]
    fn tree_sum([low, high]: [__m256; 2]) -> f32 {
        // SAFETY: instances run only where the features were detected.
        unsafe { sum_of_eight(_mm256_add_ps(low, high)) }
    }

    #[inline(always)]
    fn copysign(x: __m256, sign: __m256) -> __m256 {
        // SAFETY: instances run only where the features were detected.
        unsafe {
            let minus = _mm256_set1_ps(-0.0);
            _mm256_or_ps(_mm256_andnot_ps(minus, x), _mm256_and_ps(minus, sign))
        }
    }

    #[inline(always)]
    fn range(start: isize, end: isize) -> __m256 {
        // SAFETY: instances run only where the features were detected.
        unsafe {
            let from = lanes(start.max(0).cast_unsigned());
            let to = lanes(end.max(0).cast_unsigned());
            _mm256_castsi256_ps(_mm256_andnot_si256(from, to))
        }
    }

    #[inline(always)]
    fn largest(x: __m256) -> f32 {
        // SAFETY: instances run only where the features were detected.
        unsafe {
            let four = _mm_max_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps::<1>(x));
            let two = _mm_max_ps(four, _mm_movehl_ps(four, four));
            _mm_cvtss_f32(_mm_max_ss(two, _mm_movehdup_ps(two)))
        }
    }

    #[inline(always)]
    fn round_bf16(x: __m256) -> __m256 {
        // SAFETY: instances run only where the features were detected.
        unsafe {
            let bits = _mm256_castps_si256(x);
            let odd = _mm256_and_si256(_mm256_srli_epi32::<16>(bits), _mm256_set1_epi32(1));
            let up = _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff));
            let high = _mm256_set1_epi32(0xffff_0000_u32.cast_signed());
            let rounded = _mm256_and_si256(_mm256_add_epi32(bits, up), high);
            let nan = _mm256_cmp_ps::<_CMP_UNORD_Q>(x, x);
            _mm256_blendv_ps(_mm256_castsi256_ps(rounded), _mm256_set1_ps(f32::NAN), nan)
        }
    }

    #[inline(always)]
    fn flush(x: __m256) -> __m256 {
        // SAFETY: instances run only where the features were detected.
        unsafe {
            let exponent = _mm256_set1_epi32(0x7f80_0000);
            let exponent = _mm256_and_si256(_mm256_castps_si256(x), exponent);
            let denormal = _mm256_cmpeq_epi32(exponent, _mm256_setzero_si256());
            let zero = _mm256_and_ps(x, _mm256_set1_ps(-0.0));
            _mm256_blendv_ps(x, zero, _mm256_castsi256_ps(denormal))
        }
    }

    #[inline(always)]
    fn bf16_step(a: __m256i, b: __m256i, c: __m256) -> __m256 {
        // SAFETY: instances run only where the features were detected.
        unsafe {
            let high = _mm256_set1_epi32(0xffff_0000_u32.cast_signed());
            let first = |x| Self::flush(_mm256_castsi256_ps(_mm256_slli_epi32::<16>(x)));
            let second = |x| Self::flush(_mm256_castsi256_ps(_mm256_and_si256(x, high)));
            let c = Self::flush(_mm256_fmadd_ps(second(a), second(b), c));
            Self::flush(_mm256_fmadd_ps(first(a), first(b), c))
        }
    }

    #[inline(always)]
    fn shift_right<const N: i32>(x: __m256i) -> __m256i {
        // SAFETY: instances run only where the features were detected.
        unsafe { _mm256_srli_epi16::<N>(x) }
    }

    #[inline(always)]
    fn dot4(codes: __m256i, q: __m256i, c: __m256i) -> __m256i {
        // SAFETY: instances run only where the features were detected.
        unsafe {
            let even = _mm256_and_si256(codes, _mm256_set1_epi16(0xff));
            let odd = _mm256_srli_epi16::<8>(codes);
            let q_even = _mm256_srai_epi16::<8>(_mm256_slli_epi16::<8>(q));
            let q_odd = _mm256_srai_epi16::<8>(q);
            let c = _mm256_add_epi32(c, _mm256_madd_epi16(even, q_even));
            _mm256_add_epi32(c, _mm256_madd_epi16(odd, q_odd))
        }
    }

    #[inline(always)]
    fn pair_weights(x: __m256i) -> __m256i {
        // SAFETY: instances run only where the features were detected.
        unsafe {
            let low = _mm256_and_si256(x, _mm256_set1_epi32(0xffff));
            let later = _mm256_shuffle_epi32::<0b11_10_11_10>(x);
            _mm256_or_si256(low, _mm256_slli_epi32::<16>(later))
        }
    }
}

/// Ones in the first `n` of eight lanes.
#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
fn lanes(n: usize) -> __m256i {
    let n = _mm256_set1_epi32(i32::try_from(n.min(8)).unwrap_or(8));
    _mm256_cmpgt_epi32(n, _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7))
}

/// The `n` bytes at `from`, then zeros.
///
/// # Safety
/// - There are as many, at most `N`.
#[inline(always)]
unsafe fn part<const N: usize>(from: *const u8, n: usize) -> [u8; N] {
    let mut bytes = [0; N];
    // SAFETY: by the caller.
    unsafe { core::ptr::copy_nonoverlapping(from, bytes.as_mut_ptr(), n) };
    bytes
}

/// [`crate::half::e4m3_to_f32`] of eight bytes: halves with the same digits, times 256.
#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
fn from_e4m3(bytes: __m128i) -> __m256 {
    let x = _mm_cvtepu8_epi16(bytes);
    let digits = _mm_and_si128(x, _mm_set1_epi16(0x7f));
    let nan = _mm_cmpeq_epi16(digits, _mm_set1_epi16(0x7f));
    let sign = _mm_slli_epi16::<8>(_mm_xor_si128(x, digits));
    let half = _mm_or_si128(sign, _mm_slli_epi16::<7>(digits));
    let half = _mm_or_si128(half, _mm_and_si128(nan, _mm_set1_epi16(0x7e00)));
    _mm256_mul_ps(_mm256_cvtph_ps(half), _mm256_set1_ps(256.0))
}

/// Lanes added in the order +4, +2, +1.
#[target_feature(enable = "avx2")]
#[inline]
pub(in super::super) fn sum_of_eight(x: __m256) -> f32 {
    let four = _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps::<1>(x));
    let two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)))
}
