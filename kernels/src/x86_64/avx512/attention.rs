//! Attention in vectors of 16 lanes: AVX-512 F, BW, DQ, VL and VNNI.
#![allow(
    clippy::multiple_unsafe_ops_per_block,
    reason = "a kernel's safety argument is one: pointers stay inside operands that were checked"
)]

use super::float::{Pairs, bf16_serves};
use crate::kv::KvType;
use crate::tuning::AVX512_CHUNKS;
use crate::vector::attention::{
    self, Bf16, Bf16First, Bf16Second, Elements, F16, F32, Fp8, Scores, ScoresFn, Values, ValuesFn,
    Vector, attention_functions,
};
use crate::x86_64::avx2::attention::sum_of_eight;
use core::arch::asm;
use core::arch::x86_64::*;

attention_functions!(
    Avx512,
    "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c",
    bf16: NativeBf16, bf16_serves,
    "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c,avx512bf16"
);

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

/// In assembly, because compilers load what two products share into a register first, which takes longer.
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
    const DIMS: usize = 2;
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
pub(in crate::x86_64) fn bf16_step(a: __m512i, b: __m512i, c: __m512) -> __m512 {
    let (a, b) = (Pairs { ints: a }, Pairs { ints: b });
    // SAFETY: both kinds of vectors are plain bits.
    unsafe { _mm512_dpbf16_ps(c, a.pairs, b.pairs) }
}

#[derive(Clone, Copy)]
pub(in crate::x86_64) struct Avx512;

impl Vector for Avx512 {
    type F = __m512;
    type I = __m512i;
    type M = __mmask16;
    const WIDTH: usize = 16;
    const SIZES: &'static [(usize, usize)] = AVX512_CHUNKS;

    fn scores_of(size: usize, ty: KvType) -> ScoresFn {
        match size {
            0 => Functions::<12, 2>::scores(ty),
            1 => Functions::<8, 2>::scores(ty),
            2 => Functions::<4, 4>::scores(ty),
            _ => Functions::<1, 4>::scores(ty),
        }
    }

    fn values_of(size: usize, ty: KvType) -> ValuesFn {
        match size {
            0 => Functions::<12, 2>::values(ty),
            1 => Functions::<8, 2>::values(ty),
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

    instructions! {
        splat(x: f32) -> __m512 = _mm512_set1_ps(x);
        splat_int(x: u32) -> __m512i = _mm512_set1_epi32(x.cast_signed());
        fma(a: __m512, b: __m512, c: __m512) -> __m512 = _mm512_fmadd_ps(a, b, c);
        mul(a: __m512, b: __m512) -> __m512 = _mm512_mul_ps(a, b);
        add(a: __m512, b: __m512) -> __m512 = _mm512_add_ps(a, b);
        sub(a: __m512, b: __m512) -> __m512 = _mm512_sub_ps(a, b);
        div(a: __m512, b: __m512) -> __m512 = _mm512_div_ps(a, b);
        max(a: __m512, b: __m512) -> __m512 = _mm512_max_ps(a, b);
        min(a: __m512, b: __m512) -> __m512 = _mm512_min_ps(a, b);
        abs(x: __m512) -> __m512 = _mm512_abs_ps(x);
        lt(a: __m512, b: __m512) -> __mmask16 = _mm512_cmp_ps_mask::<_CMP_LT_OQ>(a, b);
        ne(a: __m512, b: __m512) -> __mmask16 = _mm512_cmp_ps_mask::<_CMP_NEQ_UQ>(a, b);
        select(mask: __mmask16, yes: __m512, no: __m512) -> __m512 =
            _mm512_mask_blend_ps(mask, no, yes);
        largest(x: __m512) -> f32 = _mm512_reduce_max_ps(x);
        as_exponent(x: __m512) -> __m512 =
            _mm512_castsi512_ps(_mm512_slli_epi32::<23>(_mm512_castps_si512(x)));
        and(a: __m512i, b: __m512i) -> __m512i = _mm512_and_si512(a, b);
        sub16(a: __m512i, b: __m512i) -> __m512i = _mm512_sub_epi16(a, b);
        dot4(codes: __m512i, q: __m512i, c: __m512i) -> __m512i = _mm512_dpbusd_epi32(c, codes, q);
        dot2(a: __m512i, b: __m512i, c: __m512i) -> __m512i = dot2(a, b, c);
        add_int(a: __m512i, b: __m512i) -> __m512i = _mm512_add_epi32(a, b);
        to_float(x: __m512i) -> __m512 = _mm512_cvtepi32_ps(x);
        round(x: __m512) -> __m512i = _mm512_cvtps_epi32(x);
    }

    instructions! {
        unsafe load(from: *const f32) -> __m512 = _mm512_loadu_ps(from);
        unsafe store(x: __m512, to: *mut f32) = _mm512_storeu_ps(to, x);
        unsafe load_part(from: *const f32, n: usize) -> __m512 =
            _mm512_maskz_loadu_ps(lanes(n), from);
        unsafe store_part(x: __m512, to: *mut f32, n: usize) =
            _mm512_mask_storeu_ps(to, lanes(n), x);
        unsafe load_int(from: *const u8) -> __m512i = _mm512_loadu_si512(from.cast());
        unsafe load_int_part(from: *const u8, n: usize) -> __m512i =
            _mm512_maskz_loadu_epi32(lanes(n), from.cast());
        unsafe store_int(x: __m512i, to: *mut u32) = _mm512_storeu_si512(to.cast(), x);
        unsafe halves(from: *const u8) -> __m512 = _mm512_cvtph_ps(_mm256_loadu_si256(from.cast()));
        unsafe halves_part(from: *const u8, n: usize) -> __m512 =
            _mm512_cvtph_ps(_mm256_maskz_loadu_epi16(lanes(n), from.cast()));
        unsafe bf16(from: *const u8) -> __m512 = _mm512_castsi512_ps(_mm512_slli_epi32::<16>(
            _mm512_cvtepu16_epi32(_mm256_loadu_si256(from.cast()))));
        unsafe e4m3(from: *const u8) -> __m512 = from_e4m3(_mm_loadu_si128(from.cast()));
        unsafe e4m3_part(from: *const u8, n: usize) -> __m512 =
            from_e4m3(_mm_maskz_loadu_epi8(lanes(n), from.cast()));
    }

    #[inline(always)]
    unsafe fn fma_at<const N: usize>(a: [__m512; N], at: *const f32, c: &mut [__m512; N]) {
        // What four products share is worth a load of its own: 16 products with memory are 16 loads, which
        // leave none for the keys where a cycle has two loads and two products.
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
    fn copysign(x: __m512, sign: __m512) -> __m512 {
        // SAFETY: instances run only where the features were detected.
        unsafe {
            let minus = _mm512_set1_ps(-0.0);
            _mm512_or_ps(_mm512_andnot_ps(minus, x), _mm512_and_ps(minus, sign))
        }
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
    fn tree_sum([lanes, _]: [__m512; 2]) -> f32 {
        // SAFETY: instances run only where the features were detected.
        unsafe {
            let high = _mm512_extractf32x8_ps::<1>(lanes);
            sum_of_eight(_mm256_add_ps(_mm512_castps512_ps256(lanes), high))
        }
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
    fn shift_right<const N: i32>(x: __m512i) -> __m512i {
        // SAFETY: instances run only where the features were detected.
        unsafe { _mm512_srl_epi16(x, _mm_cvtsi32_si128(N)) }
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
