//! Attention in vectors of 16 lanes: AVX-512 F, BW, DQ, VL and VNNI.
#![allow(
    clippy::multiple_unsafe_ops_per_block,
    reason = "a kernel's safety argument is one: pointers stay inside operands that were checked"
)]

use super::float::{Pairs, bf16_serves};
use crate::attention::{Attention, AttentionState};
use crate::kv::KvType;
use crate::x86_64::attention::{
    self, Bf16, Bf16First, Bf16Second, Elements, F16, F32, Fp8, Scores, ScoresFn, Values, ValuesFn,
    Vector,
};
use crate::x86_64::avx2::attention::sum_of_eight;
use core::arch::asm;
use core::arch::x86_64::*;

/// Continues the online softmax of every query with the keys that it sees.
///
/// # Safety
/// - The CPU has the features.
/// - The operands are as [`crate::KernelTable::attention`] checks them.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c")]
pub(crate) unsafe fn attend(args: &Attention<'_>, state: &mut AttentionState<'_>) {
    // SAFETY: by the caller.
    unsafe { attention::attention::<Avx512>(args, state) }
}

/// Scores of `E`; `PAIRS`: two dimensions a step.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c")]
unsafe fn scores<E: Elements<Avx512>, const PAIRS: bool, const Q: usize, const L: usize>(
    args: &Scores,
) {
    let n_steps = if PAIRS {
        args.head_dim.div_ceil(2)
    } else {
        args.head_dim
    };
    // SAFETY: by the caller.
    unsafe { attention::scores::<Avx512, E, Q, L>(args, n_steps) }
}

#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c")]
unsafe fn int8_scores<const NIBBLES: bool, const Q: usize, const L: usize>(args: &Scores) {
    // SAFETY: by the caller.
    unsafe { attention::int8_scores::<Avx512, NIBBLES, Q, L>(args) }
}

#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c")]
unsafe fn values<E: Elements<Avx512>, const Q: usize>(args: &Values) {
    // SAFETY: by the caller.
    unsafe { attention::values::<Avx512, E, Q>(args) }
}

#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c")]
unsafe fn int8_values<const NIBBLES: bool, const Q: usize>(args: &Values) {
    // SAFETY: by the caller.
    unsafe { attention::int8_values::<Avx512, NIBBLES, Q>(args) }
}

/// `vpdpwssd`. Not by the intrinsic: where one step follows another, the compiler takes them apart
/// into products and additions, to shorten a chain that nothing waits for.
#[target_feature(enable = "avx512f,avx512vnni")]
#[inline]
fn dot2(a: __m512i, b: __m512i, mut c: __m512i) -> __m512i {
    // SAFETY: the instruction is enabled here; registers alone.
    unsafe {
        asm!("vpdpwssd {c}, {a}, {b}", c = inout(zmm_reg) c, a = in(zmm_reg) a,
            b = in(zmm_reg) b, options(pure, nomem, nostack, preserves_flags));
    }
    c
}

/// In assembly, because compilers load what two products share into a register first: then 16
/// products with 8 numbers take 18.8 cycles instead of 16.0 (Zen 4).
///
/// # Safety
/// - A float is readable at `at`.
#[target_feature(enable = "avx512f")]
#[inline]
unsafe fn fma_at(a: __m512, at: *const f32, mut c: __m512) -> __m512 {
    // SAFETY: the instruction is enabled here; it reads a float, by the caller.
    unsafe {
        asm!("vfmadd231ps {c}, {a}, dword ptr [{at}]{{1to16}}", c = inout(zmm_reg) c,
            a = in(zmm_reg) a, at = in(reg) at, options(pure, readonly, nostack));
    }
    c
}

/// Pairs of bf16, by `vdpbf16ps`.
struct NativeBf16;

impl Elements<Avx512> for NativeBf16 {
    const BYTES: usize = 4;
    type Line = __m512i;

    #[inline(always)]
    fn zero() -> __m512i {
        Avx512::splat_int(0)
    }

    #[inline(always)]
    unsafe fn line(from: *const u8) -> __m512i {
        // SAFETY: by the caller.
        unsafe { Avx512::load_int(from) }
    }

    #[inline(always)]
    unsafe fn line_part(from: *const u8, n: usize) -> __m512i {
        // SAFETY: by the caller.
        unsafe { Avx512::load_int_part(from, n) }
    }

    #[inline(always)]
    unsafe fn step<const N: usize>(lines: [__m512i; N], word: *const u32, sums: &mut [__m512; N]) {
        // SAFETY: by the caller.
        let word = Avx512::splat_int(unsafe { word.read() });
        for (sum, line) in sums.iter_mut().zip(lines) {
            // SAFETY: instances run only where `bf16_serves` says so.
            *sum = unsafe { bf16_step(line, word, *sum) };
        }
    }
}

#[target_feature(enable = "avx512f,avx512bf16")]
#[inline]
fn bf16_step(a: __m512i, b: __m512i, c: __m512) -> __m512 {
    let (a, b) = (Pairs { ints: a }, Pairs { ints: b });
    // SAFETY: both kinds of vectors are plain bits.
    unsafe { _mm512_dpbf16_ps(c, a.pairs, b.pairs) }
}

#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c,avx512bf16")]
unsafe fn bf16_scores<const Q: usize, const L: usize>(args: &Scores) {
    // SAFETY: by the caller.
    unsafe { attention::scores::<Avx512, NativeBf16, Q, L>(args, args.head_dim.div_ceil(2)) }
}

#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c,avx512bf16")]
unsafe fn bf16_values<const Q: usize>(args: &Values) {
    // SAFETY: by the caller.
    unsafe { attention::values::<Avx512, NativeBf16, Q>(args) }
}

/// The functions of every type for chunks of one size.
struct Functions<const Q: usize, const L: usize>;

impl<const Q: usize, const L: usize> Functions<Q, L> {
    fn scores(ty: KvType) -> ScoresFn {
        match ty {
            KvType::F32 if Q > 4 => unreachable!("`serves` says so"),
            KvType::F32 => scores::<F32, false, Q, L>,
            KvType::F16 => scores::<F16, false, Q, L>,
            KvType::BF16 if bf16_serves() => bf16_scores::<Q, L>,
            KvType::BF16 => scores::<Bf16, true, Q, L>,
            KvType::FP8 => scores::<Fp8, false, Q, L>,
            KvType::Q8_0 => int8_scores::<false, Q, L>,
            KvType::Q4_0 => int8_scores::<true, Q, L>,
        }
    }

    fn values(ty: KvType) -> ValuesFn {
        match ty {
            KvType::F32 if Q > 4 => unreachable!("`serves` says so"),
            KvType::F32 => values::<F32, Q>,
            KvType::F16 => values::<F16, Q>,
            KvType::BF16 if bf16_serves() => bf16_values::<Q>,
            KvType::BF16 => values::<Bf16, Q>,
            KvType::FP8 => values::<Fp8, Q>,
            KvType::Q8_0 => int8_values::<false, Q>,
            KvType::Q4_0 => int8_values::<true, Q>,
        }
    }
}

#[derive(Clone, Copy)]
struct Avx512;

impl Vector for Avx512 {
    type F = __m512;
    type I = __m512i;
    type M = __mmask16;
    const WIDTH: usize = 16;
    const SIZES: &'static [(usize, usize)] = &[(12, 9), (8, 5), (4, 2), (1, 1)];

    /// Eight queries, the heads that share keys in many models, with the usual type alone: for all
    /// types they are 27 KB. Twelve of f32, 0.92 of the time of four, are not worth 3 KB.
    fn serves(size: usize, ty: KvType) -> bool {
        match Self::SIZES[size].0 {
            12 => ty != KvType::F32,
            8 => ty == KvType::F16,
            _ => true,
        }
    }

    fn scores_of(size: usize, ty: KvType) -> ScoresFn {
        match size {
            0 => Functions::<12, 2>::scores(ty),
            1 => scores::<F16, false, 8, 2>,
            2 => Functions::<4, 4>::scores(ty),
            _ => Functions::<1, 4>::scores(ty),
        }
    }

    fn values_of(size: usize, ty: KvType) -> ValuesFn {
        match size {
            0 => Functions::<12, 2>::values(ty),
            1 => values::<F16, 8>,
            2 => Functions::<4, 4>::values(ty),
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
    fn splat(x: f32) -> __m512 {
        // SAFETY: instances run only where the features were detected.
        unsafe { _mm512_set1_ps(x) }
    }

    #[inline(always)]
    fn splat_int(x: u32) -> __m512i {
        // SAFETY: instances run only where the features were detected.
        unsafe { _mm512_set1_epi32(x.cast_signed()) }
    }

    #[inline(always)]
    unsafe fn load(from: *const f32) -> __m512 {
        // SAFETY: by the caller; the features were detected before an instance was taken.
        unsafe { _mm512_loadu_ps(from) }
    }

    #[inline(always)]
    unsafe fn store(x: __m512, to: *mut f32) {
        // SAFETY: by the caller; the features were detected before an instance was taken.
        unsafe { _mm512_storeu_ps(to, x) }
    }

    #[inline(always)]
    unsafe fn load_part(from: *const f32, n: usize) -> __m512 {
        // SAFETY: by the caller; the features were detected before an instance was taken.
        unsafe { _mm512_maskz_loadu_ps(lanes(n), from) }
    }

    #[inline(always)]
    unsafe fn store_part(x: __m512, to: *mut f32, n: usize) {
        // SAFETY: by the caller; the features were detected before an instance was taken.
        unsafe { _mm512_mask_storeu_ps(to, lanes(n), x) }
    }

    #[inline(always)]
    unsafe fn load_int(from: *const u8) -> __m512i {
        // SAFETY: by the caller; the features were detected before an instance was taken.
        unsafe { _mm512_loadu_si512(from.cast()) }
    }

    #[inline(always)]
    unsafe fn load_int_part(from: *const u8, n: usize) -> __m512i {
        // SAFETY: by the caller; the features were detected before an instance was taken.
        unsafe { _mm512_maskz_loadu_epi32(lanes(n), from.cast()) }
    }

    #[inline(always)]
    unsafe fn store_int(x: __m512i, to: *mut u32) {
        // SAFETY: by the caller; the features were detected before an instance was taken.
        unsafe { _mm512_storeu_si512(to.cast(), x) }
    }

    #[inline(always)]
    unsafe fn halves(from: *const u8) -> __m512 {
        // SAFETY: by the caller; the features were detected before an instance was taken.
        unsafe { _mm512_cvtph_ps(_mm256_loadu_si256(from.cast())) }
    }

    #[inline(always)]
    unsafe fn halves_part(from: *const u8, n: usize) -> __m512 {
        // SAFETY: by the caller; the features were detected before an instance was taken.
        unsafe { _mm512_cvtph_ps(_mm256_maskz_loadu_epi16(lanes(n), from.cast())) }
    }

    #[inline(always)]
    unsafe fn e4m3(from: *const u8) -> __m512 {
        // SAFETY: by the caller; the features were detected before an instance was taken.
        unsafe { from_e4m3(_mm_loadu_si128(from.cast())) }
    }

    #[inline(always)]
    unsafe fn e4m3_part(from: *const u8, n: usize) -> __m512 {
        // SAFETY: by the caller; the features were detected before an instance was taken.
        unsafe { from_e4m3(_mm_maskz_loadu_epi8(lanes(n), from.cast())) }
    }

    #[inline(always)]
    fn fma(a: __m512, b: __m512, c: __m512) -> __m512 {
        // SAFETY: instances run only where the features were detected.
        unsafe { _mm512_fmadd_ps(a, b, c) }
    }

    #[inline(always)]
    unsafe fn fma_at<const N: usize>(a: [__m512; N], at: *const f32, c: &mut [__m512; N]) {
        // What four products share is worth a load of its own: 16 products with memory, 16 loads,
        // leave none for the keys (Zen 5, two loads and two products in a cycle). Four queries of f16
        // in the cache, values in fours as well: 78 to 91 GB/s on two cores.
        if N < 4 {
            for (c, a) in c.iter_mut().zip(a) {
                // SAFETY: by the caller; instances run only where the features were detected.
                *c = unsafe { fma_at(a, at, *c) };
            }
            return;
        }
        // SAFETY: by the caller.
        let b = Self::splat(unsafe { at.read() });
        for (c, a) in c.iter_mut().zip(a) {
            *c = Self::fma(a, b, *c);
        }
    }

    #[inline(always)]
    fn mul(a: __m512, b: __m512) -> __m512 {
        // SAFETY: instances run only where the features were detected.
        unsafe { _mm512_mul_ps(a, b) }
    }

    #[inline(always)]
    fn add(a: __m512, b: __m512) -> __m512 {
        // SAFETY: instances run only where the features were detected.
        unsafe { _mm512_add_ps(a, b) }
    }

    #[inline(always)]
    fn sub(a: __m512, b: __m512) -> __m512 {
        // SAFETY: instances run only where the features were detected.
        unsafe { _mm512_sub_ps(a, b) }
    }

    #[inline(always)]
    fn div(a: __m512, b: __m512) -> __m512 {
        // SAFETY: instances run only where the features were detected.
        unsafe { _mm512_div_ps(a, b) }
    }

    #[inline(always)]
    fn max(a: __m512, b: __m512) -> __m512 {
        // SAFETY: instances run only where the features were detected.
        unsafe { _mm512_max_ps(a, b) }
    }

    #[inline(always)]
    fn min(a: __m512, b: __m512) -> __m512 {
        // SAFETY: instances run only where the features were detected.
        unsafe { _mm512_min_ps(a, b) }
    }

    #[inline(always)]
    fn abs(x: __m512) -> __m512 {
        // SAFETY: instances run only where the features were detected.
        unsafe { _mm512_abs_ps(x) }
    }

    #[inline(always)]
    fn copysign(x: __m512, sign: __m512) -> __m512 {
        // SAFETY: instances run only where the features were detected.
        unsafe {
            let minus = _mm512_set1_ps(-0.0);
            _mm512_or_ps(_mm512_andnot_ps(minus, x), _mm512_and_ps(minus, sign))
        }
    }

    #[inline(always)]
    fn lt(a: __m512, b: __m512) -> __mmask16 {
        // SAFETY: instances run only where the features were detected.
        unsafe { _mm512_cmp_ps_mask::<_CMP_LT_OQ>(a, b) }
    }

    #[inline(always)]
    fn ne(a: __m512, b: __m512) -> __mmask16 {
        // SAFETY: instances run only where the features were detected.
        unsafe { _mm512_cmp_ps_mask::<_CMP_NEQ_UQ>(a, b) }
    }

    #[inline(always)]
    fn select(mask: __mmask16, yes: __m512, no: __m512) -> __m512 {
        // SAFETY: instances run only where the features were detected.
        unsafe { _mm512_mask_blend_ps(mask, no, yes) }
    }

    #[inline(always)]
    fn any(mask: __mmask16) -> bool {
        mask != 0
    }

    #[inline(always)]
    fn range(start: isize, end: isize) -> __mmask16 {
        lanes(end.max(0).cast_unsigned()) & !lanes(start.max(0).cast_unsigned())
    }

    #[inline(always)]
    fn largest(x: __m512) -> f32 {
        // SAFETY: instances run only where the features were detected.
        unsafe { _mm512_reduce_max_ps(x) }
    }

    #[inline(always)]
    fn tree_sum([lanes, _]: [__m512; 2]) -> f32 {
        // SAFETY: instances run only where the features were detected.
        unsafe {
            let high = _mm512_extractf32x8_ps::<1>(lanes);
            sum_of_eight(_mm256_add_ps(_mm512_castps512_ps256(lanes), high))
        }
    }

    #[inline(always)]
    fn as_exponent(x: __m512) -> __m512 {
        // SAFETY: instances run only where the features were detected.
        unsafe { _mm512_castsi512_ps(_mm512_slli_epi32::<23>(_mm512_castps_si512(x))) }
    }

    #[inline(always)]
    fn round_bf16(x: __m512) -> __m512 {
        // SAFETY: instances run only where the features were detected.
        unsafe {
            let bits = _mm512_castps_si512(x);
            let odd = _mm512_and_si512(_mm512_srli_epi32::<16>(bits), _mm512_set1_epi32(1));
            let up = _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff));
            let high = _mm512_set1_epi32(0xffff_0000_u32.cast_signed());
            let rounded = _mm512_and_si512(_mm512_add_epi32(bits, up), high);
            let number = _mm512_cmp_ps_mask::<_CMP_ORD_Q>(x, x);
            _mm512_mask_blend_ps(
                number,
                _mm512_set1_ps(f32::NAN),
                _mm512_castsi512_ps(rounded),
            )
        }
    }

    #[inline(always)]
    fn flush(x: __m512) -> __m512 {
        // SAFETY: instances run only where the features were detected.
        unsafe {
            let exponent = _mm512_set1_epi32(0x7f80_0000);
            let normal = _mm512_test_epi32_mask(_mm512_castps_si512(x), exponent);
            _mm512_mask_and_ps(x, !normal, x, _mm512_set1_ps(-0.0))
        }
    }

    #[inline(always)]
    fn bf16_step(a: __m512i, b: __m512i, c: __m512) -> __m512 {
        // SAFETY: instances run only where the features were detected.
        unsafe {
            let high = _mm512_set1_epi32(0xffff_0000_u32.cast_signed());
            let first = |x| Self::flush(_mm512_castsi512_ps(_mm512_slli_epi32::<16>(x)));
            let second = |x| Self::flush(_mm512_castsi512_ps(_mm512_and_si512(x, high)));
            let c = Self::flush(_mm512_fmadd_ps(second(a), second(b), c));
            Self::flush(_mm512_fmadd_ps(first(a), first(b), c))
        }
    }

    #[inline(always)]
    fn and(a: __m512i, b: __m512i) -> __m512i {
        // SAFETY: instances run only where the features were detected.
        unsafe { _mm512_and_si512(a, b) }
    }

    #[inline(always)]
    fn shift_right<const N: i32>(x: __m512i) -> __m512i {
        // SAFETY: instances run only where the features were detected.
        unsafe { _mm512_srl_epi16(x, _mm_cvtsi32_si128(N)) }
    }

    #[inline(always)]
    fn sub16(a: __m512i, b: __m512i) -> __m512i {
        // SAFETY: instances run only where the features were detected.
        unsafe { _mm512_sub_epi16(a, b) }
    }

    #[inline(always)]
    fn dot4(codes: __m512i, q: __m512i, c: __m512i) -> __m512i {
        // SAFETY: instances run only where the features were detected.
        unsafe { _mm512_dpbusd_epi32(c, codes, q) }
    }

    #[inline(always)]
    fn dot2(a: __m512i, b: __m512i, c: __m512i) -> __m512i {
        // SAFETY: instances run only where the features were detected.
        unsafe { dot2(a, b, c) }
    }

    #[inline(always)]
    fn add_int(a: __m512i, b: __m512i) -> __m512i {
        // SAFETY: instances run only where the features were detected.
        unsafe { _mm512_add_epi32(a, b) }
    }

    #[inline(always)]
    fn to_float(x: __m512i) -> __m512 {
        // SAFETY: instances run only where the features were detected.
        unsafe { _mm512_cvtepi32_ps(x) }
    }

    #[inline(always)]
    fn round(x: __m512) -> __m512i {
        // SAFETY: instances run only where the features were detected.
        unsafe { _mm512_cvtps_epi32(x) }
    }

    #[inline(always)]
    fn pair_weights(x: __m512i) -> __m512i {
        // SAFETY: instances run only where the features were detected.
        unsafe {
            let low = _mm512_and_si512(x, _mm512_set1_epi32(0xffff));
            let later = _mm512_shuffle_epi32::<0b11_10_11_10>(x);
            _mm512_or_si512(low, _mm512_slli_epi32::<16>(later))
        }
    }
}

/// The first `n` of 16 lanes.
#[inline(always)]
const fn lanes(n: usize) -> __mmask16 {
    if n >= 16 { 0xffff } else { (1 << n) - 1 }
}

/// [`crate::half::e4m3_to_f32`] of 16 bytes: halves with the same digits, times 256.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c")]
#[inline]
fn from_e4m3(bytes: __m128i) -> __m512 {
    let x = _mm256_cvtepu8_epi16(bytes);
    let digits = _mm256_and_si256(x, _mm256_set1_epi16(0x7f));
    let nan = _mm256_cmpeq_epi16(digits, _mm256_set1_epi16(0x7f));
    let sign = _mm256_slli_epi16::<8>(_mm256_xor_si256(x, digits));
    let half = _mm256_or_si256(sign, _mm256_slli_epi16::<7>(digits));
    let half = _mm256_or_si256(half, _mm256_and_si256(nan, _mm256_set1_epi16(0x7e00)));
    _mm512_mul_ps(_mm512_cvtph_ps(half), _mm512_set1_ps(256.0))
}
