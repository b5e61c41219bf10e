//! Attention in vectors of eight lanes: AVX2, FMA, F16C.
#![allow(
    clippy::multiple_unsafe_ops_per_block,
    reason = "a kernel's safety argument is one: pointers stay inside operands that were checked"
)]

use crate::attention::{Attention, AttentionState};
use crate::kv::KvType;
use crate::x86_64::attention::{
    self, Bf16, Bf16First, Bf16Second, Elements, F16, F32, Fp8, Scores, ScoresFn, Values, ValuesFn,
    Vector,
};
use core::arch::x86_64::*;

/// Continues the online softmax of every query with the keys that it sees.
///
/// # Safety
/// - The CPU has the features.
/// - The operands are as [`crate::KernelTable::attention`] checks them.
#[target_feature(enable = "avx2,fma,f16c")]
pub(crate) unsafe fn attend(args: &Attention<'_>, state: &mut AttentionState<'_>) {
    // SAFETY: by the caller.
    unsafe { attention::attention::<Avx2>(args, state) }
}

/// Scores of `E`; `PAIRS`: two dimensions a step.
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn scores<E: Elements<Avx2>, const PAIRS: bool, const Q: usize, const L: usize>(
    args: &Scores,
) {
    let n_steps = if PAIRS {
        args.head_dim.div_ceil(2)
    } else {
        args.head_dim
    };
    // SAFETY: by the caller.
    unsafe { attention::scores::<Avx2, E, Q, L>(args, n_steps) }
}

#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn int8_scores<const NIBBLES: bool, const Q: usize, const L: usize>(args: &Scores) {
    // SAFETY: by the caller.
    unsafe { attention::int8_scores::<Avx2, NIBBLES, Q, L>(args) }
}

#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn values<E: Elements<Avx2>, const Q: usize>(args: &Values) {
    // SAFETY: by the caller.
    unsafe { attention::values::<Avx2, E, Q>(args) }
}

#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn int8_values<const NIBBLES: bool, const Q: usize>(args: &Values) {
    // SAFETY: by the caller.
    unsafe { attention::int8_values::<Avx2, NIBBLES, Q>(args) }
}

/// The functions of every type for chunks of one size.
struct Functions<const Q: usize, const L: usize>;

impl<const Q: usize, const L: usize> Functions<Q, L> {
    fn scores(ty: KvType) -> ScoresFn {
        match ty {
            KvType::F32 => scores::<F32, false, Q, L>,
            KvType::F16 => scores::<F16, false, Q, L>,
            KvType::BF16 => scores::<Bf16, true, Q, L>,
            KvType::FP8 => scores::<Fp8, false, Q, L>,
            KvType::Q8_0 => int8_scores::<false, Q, L>,
            KvType::Q4_0 => int8_scores::<true, Q, L>,
        }
    }

    fn values(ty: KvType) -> ValuesFn {
        match ty {
            KvType::F32 => values::<F32, Q>,
            KvType::F16 => values::<F16, Q>,
            KvType::BF16 => values::<Bf16, Q>,
            KvType::FP8 => values::<Fp8, Q>,
            KvType::Q8_0 => int8_values::<false, Q>,
            KvType::Q4_0 => int8_values::<true, Q>,
        }
    }
}

#[derive(Clone, Copy)]
struct Avx2;

impl Vector for Avx2 {
    type F = __m256;
    type I = __m256i;
    type M = __m256;
    const WIDTH: usize = 8;
    const SIZES: &'static [(usize, usize)] = &[(4, 2), (1, 1)];

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

    #[inline(always)]
    fn splat(x: f32) -> __m256 {
        // SAFETY: instances run only where the features were detected.
        unsafe { _mm256_set1_ps(x) }
    }

    #[inline(always)]
    fn splat_int(x: u32) -> __m256i {
        // SAFETY: instances run only where the features were detected.
        unsafe { _mm256_set1_epi32(x.cast_signed()) }
    }

    #[inline(always)]
    unsafe fn load(from: *const f32) -> __m256 {
        // SAFETY: by the caller; the features were detected before an instance was taken.
        unsafe { _mm256_loadu_ps(from) }
    }

    #[inline(always)]
    unsafe fn store(x: __m256, to: *mut f32) {
        // SAFETY: by the caller; the features were detected before an instance was taken.
        unsafe { _mm256_storeu_ps(to, x) }
    }

    #[inline(always)]
    unsafe fn load_part(from: *const f32, n: usize) -> __m256 {
        // SAFETY: by the caller; the features were detected before an instance was taken.
        unsafe { _mm256_maskload_ps(from, lanes(n)) }
    }

    #[inline(always)]
    unsafe fn store_part(x: __m256, to: *mut f32, n: usize) {
        // SAFETY: by the caller; the features were detected before an instance was taken.
        unsafe { _mm256_maskstore_ps(to, lanes(n), x) }
    }

    #[inline(always)]
    unsafe fn load_int(from: *const u8) -> __m256i {
        // SAFETY: by the caller; the features were detected before an instance was taken.
        unsafe { _mm256_loadu_si256(from.cast()) }
    }

    #[inline(always)]
    unsafe fn load_int_part(from: *const u8, n: usize) -> __m256i {
        // SAFETY: by the caller; the features were detected before an instance was taken.
        unsafe { _mm256_maskload_epi32(from.cast(), lanes(n)) }
    }

    #[inline(always)]
    unsafe fn store_int(x: __m256i, to: *mut u32) {
        // SAFETY: by the caller; the features were detected before an instance was taken.
        unsafe { _mm256_storeu_si256(to.cast(), x) }
    }

    #[inline(always)]
    unsafe fn halves(from: *const u8) -> __m256 {
        // SAFETY: by the caller; the features were detected before an instance was taken.
        unsafe { _mm256_cvtph_ps(_mm_loadu_si128(from.cast())) }
    }

    #[inline(always)]
    unsafe fn halves_part(from: *const u8, n: usize) -> __m256 {
        // SAFETY: by the caller; the features were detected before an instance was taken.
        unsafe { Self::halves(part::<16>(from, 2 * n).as_ptr()) }
    }

    #[inline(always)]
    unsafe fn e4m3(from: *const u8) -> __m256 {
        // SAFETY: by the caller; the features were detected before an instance was taken.
        unsafe { from_e4m3(_mm_loadl_epi64(from.cast())) }
    }

    #[inline(always)]
    unsafe fn e4m3_part(from: *const u8, n: usize) -> __m256 {
        // SAFETY: by the caller; the features were detected before an instance was taken.
        unsafe { Self::e4m3(part::<8>(from, n).as_ptr()) }
    }

    #[inline(always)]
    fn fma(a: __m256, b: __m256, c: __m256) -> __m256 {
        // SAFETY: instances run only where the features were detected.
        unsafe { _mm256_fmadd_ps(a, b, c) }
    }

    #[inline(always)]
    fn mul(a: __m256, b: __m256) -> __m256 {
        // SAFETY: instances run only where the features were detected.
        unsafe { _mm256_mul_ps(a, b) }
    }

    #[inline(always)]
    fn add(a: __m256, b: __m256) -> __m256 {
        // SAFETY: instances run only where the features were detected.
        unsafe { _mm256_add_ps(a, b) }
    }

    #[inline(always)]
    fn sub(a: __m256, b: __m256) -> __m256 {
        // SAFETY: instances run only where the features were detected.
        unsafe { _mm256_sub_ps(a, b) }
    }

    #[inline(always)]
    fn div(a: __m256, b: __m256) -> __m256 {
        // SAFETY: instances run only where the features were detected.
        unsafe { _mm256_div_ps(a, b) }
    }

    #[inline(always)]
    fn max(a: __m256, b: __m256) -> __m256 {
        // SAFETY: instances run only where the features were detected.
        unsafe { _mm256_max_ps(a, b) }
    }

    #[inline(always)]
    fn min(a: __m256, b: __m256) -> __m256 {
        // SAFETY: instances run only where the features were detected.
        unsafe { _mm256_min_ps(a, b) }
    }

    #[inline(always)]
    fn abs(x: __m256) -> __m256 {
        // SAFETY: instances run only where the features were detected.
        unsafe { _mm256_andnot_ps(_mm256_set1_ps(-0.0), x) }
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
    fn lt(a: __m256, b: __m256) -> __m256 {
        // SAFETY: instances run only where the features were detected.
        unsafe { _mm256_cmp_ps::<_CMP_LT_OQ>(a, b) }
    }

    #[inline(always)]
    fn ne(a: __m256, b: __m256) -> __m256 {
        // SAFETY: instances run only where the features were detected.
        unsafe { _mm256_cmp_ps::<_CMP_NEQ_UQ>(a, b) }
    }

    #[inline(always)]
    fn select(mask: __m256, yes: __m256, no: __m256) -> __m256 {
        // SAFETY: instances run only where the features were detected.
        unsafe { _mm256_blendv_ps(no, yes, mask) }
    }

    #[inline(always)]
    fn any(mask: __m256) -> bool {
        // SAFETY: instances run only where the features were detected.
        unsafe { _mm256_movemask_ps(mask) != 0 }
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
    fn tree_sum([low, high]: [__m256; 2]) -> f32 {
        // SAFETY: instances run only where the features were detected.
        unsafe { sum_of_eight(_mm256_add_ps(low, high)) }
    }

    #[inline(always)]
    fn as_exponent(x: __m256) -> __m256 {
        // SAFETY: instances run only where the features were detected.
        unsafe { _mm256_castsi256_ps(_mm256_slli_epi32::<23>(_mm256_castps_si256(x))) }
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
    fn and(a: __m256i, b: __m256i) -> __m256i {
        // SAFETY: instances run only where the features were detected.
        unsafe { _mm256_and_si256(a, b) }
    }

    #[inline(always)]
    fn shift_right<const N: i32>(x: __m256i) -> __m256i {
        // SAFETY: instances run only where the features were detected.
        unsafe { _mm256_srli_epi16::<N>(x) }
    }

    #[inline(always)]
    fn sub16(a: __m256i, b: __m256i) -> __m256i {
        // SAFETY: instances run only where the features were detected.
        unsafe { _mm256_sub_epi16(a, b) }
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
    fn dot2(a: __m256i, b: __m256i, c: __m256i) -> __m256i {
        // SAFETY: instances run only where the features were detected.
        unsafe { _mm256_add_epi32(c, _mm256_madd_epi16(a, b)) }
    }

    #[inline(always)]
    fn add_int(a: __m256i, b: __m256i) -> __m256i {
        // SAFETY: instances run only where the features were detected.
        unsafe { _mm256_add_epi32(a, b) }
    }

    #[inline(always)]
    fn to_float(x: __m256i) -> __m256 {
        // SAFETY: instances run only where the features were detected.
        unsafe { _mm256_cvtepi32_ps(x) }
    }

    #[inline(always)]
    fn round(x: __m256) -> __m256i {
        // SAFETY: instances run only where the features were detected.
        unsafe { _mm256_cvtps_epi32(x) }
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
