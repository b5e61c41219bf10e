//! The contract's arithmetic in AVX2, FMA3 and F16C instructions: one lane, and 16 lanes as two
//! vectors of eight.
//!
//! The reference loops over this are the table `avx2`. Single-lane operations vectorise by
//! themselves; the 16-lane ones are written out because the compiler leaves their operands in
//! memory.

use crate::contract::{Arith, LANES};
use core::arch::x86_64::*;

/// FMA3 and F16C arithmetic. Only for code compiled with `avx2`, `fma` and `f16c` enabled.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Fma3;

impl Arith for Fma3 {
    #[inline(always)]
    fn fma(a: f32, b: f32, c: f32) -> f32 {
        // SAFETY: only the `avx2` table names this type, and its functions run only where the
        // features were detected.
        unsafe { fma(a, b, c) }
    }

    #[inline(always)]
    fn fma_lanes(a: f32, b: &[f32; LANES], c: &mut [f32; LANES]) {
        // SAFETY: as in `fma`.
        unsafe { fma_lanes(a, b, c) }
    }

    #[inline(always)]
    fn halves(bytes: &[u8; 2 * LANES]) -> [f32; LANES] {
        // SAFETY: as in `fma`.
        unsafe { halves(bytes) }
    }

    #[inline(always)]
    fn bf16_pairs(bytes: &[u8; 4 * LANES]) -> [[f32; LANES]; 2] {
        // SAFETY: as in `fma`.
        unsafe { bf16_pairs(bytes) }
    }

    #[inline(always)]
    fn bf16_step_lanes(a: [f32; 2], b: &[[f32; LANES]; 2], c: &mut [f32; LANES]) {
        // SAFETY: as in `fma`.
        unsafe { bf16_step_lanes(a, b, c) }
    }

    #[inline(always)]
    fn outlined<R>(f: impl FnOnce() -> R) -> R {
        // SAFETY: as in `fma`.
        unsafe { outlined(f) }
    }

    #[inline(always)]
    fn dot4_lanes(codes: &[u8; 4 * LANES], q: [i8; 4], sum: &mut [i32; LANES]) {
        // SAFETY: as in `fma`.
        unsafe { dot4_lanes(codes, q, sum) }
    }
}

#[target_feature(enable = "avx2,fma,f16c")]
#[inline(never)]
fn outlined<R>(f: impl FnOnce() -> R) -> R {
    f()
}

#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
fn fma(a: f32, b: f32, c: f32) -> f32 {
    _mm_cvtss_f32(_mm_fmadd_ss(_mm_set_ss(a), _mm_set_ss(b), _mm_set_ss(c)))
}

#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
fn fma_lanes(a: f32, b: &[f32; LANES], c: &mut [f32; LANES]) {
    let a = _mm256_set1_ps(a);
    let (b, _) = b.as_chunks::<8>();
    let (c, _) = c.as_chunks_mut::<8>();
    for (b, c) in b.iter().zip(c) {
        store(_mm256_fmadd_ps(a, load(b), load(c)), c);
    }
}

#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
fn halves(bytes: &[u8; 2 * LANES]) -> [f32; LANES] {
    let mut out = [0f32; LANES];
    let (chunks, _) = bytes.as_chunks::<16>();
    for (out, chunk) in out.as_chunks_mut::<8>().0.iter_mut().zip(chunks) {
        // SAFETY: `chunk` has the 16 bytes that are loaded.
        let halves = unsafe { _mm_loadu_si128(chunk.as_ptr().cast()) };
        store(_mm256_cvtph_ps(halves), out);
    }
    out
}

#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
fn bf16_pairs(bytes: &[u8; 4 * LANES]) -> [[f32; LANES]; 2] {
    let mut pairs = [[0f32; LANES]; 2];
    let [firsts, seconds] = &mut pairs;
    let firsts = firsts.as_chunks_mut::<8>().0.iter_mut();
    let seconds = seconds.as_chunks_mut::<8>().0.iter_mut();
    let (words, _) = bytes.as_chunks::<32>();
    for ((words, first), second) in words.iter().zip(firsts).zip(seconds) {
        let words = load_bytes(words);
        let high = _mm256_set1_epi32(0xffff_0000u32.cast_signed());
        store(
            flush(_mm256_castsi256_ps(_mm256_slli_epi32(words, 16))),
            first,
        );
        store(
            flush(_mm256_castsi256_ps(_mm256_and_si256(words, high))),
            second,
        );
    }
    pairs
}

#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
fn bf16_step_lanes(a: [f32; 2], b: &[[f32; LANES]; 2], c: &mut [f32; LANES]) {
    let a = a.map(|a| _mm256_set1_ps(a));
    let (b0, _) = b[0].as_chunks::<8>();
    let (b1, _) = b[1].as_chunks::<8>();
    let (c, _) = c.as_chunks_mut::<8>();
    for ((b0, b1), c) in b0.iter().zip(b1).zip(c) {
        let inner = flush(_mm256_fmadd_ps(a[1], load(b1), load(c)));
        store(flush(_mm256_fmadd_ps(a[0], load(b0), inner)), c);
    }
}

/// [`crate::contract::flush`] of eight numbers.
#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
pub(crate) fn flush(x: __m256) -> __m256 {
    let bits = _mm256_castps_si256(x);
    let exponent = _mm256_and_si256(bits, _mm256_set1_epi32(0x7f80_0000));
    let denormal = _mm256_cmpeq_epi32(exponent, _mm256_setzero_si256());
    let zero = _mm256_and_ps(x, _mm256_set1_ps(-0.0));
    _mm256_blendv_ps(x, zero, _mm256_castsi256_ps(denormal))
}

#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
fn dot4_lanes(codes: &[u8; 4 * LANES], q: [i8; 4], sum: &mut [i32; LANES]) {
    // Codes and q as pairs of i16 in the lanes, even and odd columns apart: exact products.
    let q = _mm256_set1_epi32(i32::from_le_bytes(q.map(i8::cast_unsigned)));
    let q_even = _mm256_srai_epi16(_mm256_slli_epi16(q, 8), 8);
    let q_odd = _mm256_srai_epi16(q, 8);
    let (codes, _) = codes.as_chunks::<32>();
    let (sums, _) = sum.as_chunks_mut::<8>();
    for (codes, sum) in codes.iter().zip(sums) {
        let codes = load_bytes(codes);
        let even = _mm256_and_si256(codes, _mm256_set1_epi16(0xff));
        let odd = _mm256_srli_epi16(codes, 8);
        let products = _mm256_add_epi32(
            _mm256_madd_epi16(even, q_even),
            _mm256_madd_epi16(odd, q_odd),
        );
        store_ints(_mm256_add_epi32(load_ints(sum), products), sum);
    }
}

#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
fn load(from: &[f32; 8]) -> __m256 {
    // SAFETY: an unaligned load of the 32 bytes of `from`.
    unsafe { _mm256_loadu_ps(from.as_ptr()) }
}

#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
fn store(x: __m256, to: &mut [f32; 8]) {
    // SAFETY: an unaligned store to the 32 bytes of `to`.
    unsafe { _mm256_storeu_ps(to.as_mut_ptr(), x) }
}

#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
fn load_bytes(from: &[u8; 32]) -> __m256i {
    // SAFETY: as in `load`.
    unsafe { _mm256_loadu_si256(from.as_ptr().cast()) }
}

#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
fn load_ints(from: &[i32; 8]) -> __m256i {
    // SAFETY: as in `load`.
    unsafe { _mm256_loadu_si256(from.as_ptr().cast()) }
}

#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
fn store_ints(x: __m256i, to: &mut [i32; 8]) {
    // SAFETY: as in `store`.
    unsafe { _mm256_storeu_si256(to.as_mut_ptr().cast(), x) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::CpuFeatures;
    use crate::contract::Portable;
    use crate::tests::{Noise, bits};

    fn detected() -> bool {
        let needed = CpuFeatures::AVX2 | CpuFeatures::FMA | CpuFeatures::F16C;
        CpuFeatures::detect().contains(needed)
    }

    #[test]
    fn halves_are_converted_as_the_definition_does() {
        if !detected() {
            return;
        }
        for first in (0..=u16::MAX).step_by(LANES) {
            let mut bytes = [0; 2 * LANES];
            for (half, bytes) in (first..=first + 15).zip(bytes.as_chunks_mut::<2>().0) {
                *bytes = half.to_le_bytes();
            }
            // SAFETY: the features were detected above.
            let floats = unsafe { halves(&bytes) };
            assert_eq!(bits(&floats), bits(&Portable::halves(&bytes)), "{first:#x}");
        }
    }

    #[test]
    fn bf16_pairs_are_converted_and_flushed_as_the_definition_does() {
        if !detected() {
            return;
        }
        for first in (0..=u16::MAX).step_by(2 * LANES) {
            let mut bytes = [0; 4 * LANES];
            for (half, bytes) in (first..=first + 31).zip(bytes.as_chunks_mut::<2>().0) {
                *bytes = half.to_le_bytes();
            }
            // SAFETY: the features were detected above.
            let pairs = unsafe { bf16_pairs(&bytes) };
            let expected = Portable::bf16_pairs(&bytes);
            assert_eq!(
                pairs.map(|x| x.map(f32::to_bits)),
                expected.map(|x| x.map(f32::to_bits))
            );
        }
    }

    #[test]
    fn lanes_step_as_the_definition_does() {
        if !detected() {
            return;
        }
        let mut noise = Noise(51);
        for round in 0..30_000 {
            // Any bits, so mostly far apart; and bits around the denormal border.
            let mask = if round % 2 == 0 {
                u32::MAX
            } else {
                0x81ff_ffff
            };
            let mut number = || f32::from_bits(noise.u32() & mask);
            let a = [number(), number()];
            let b: [[f32; LANES]; 2] = [[0; LANES]; 2].map(|x| x.map(|_: u8| number()));
            let c = [0; LANES].map(|_: u8| number());
            let (mut found, mut expected) = (c, c);
            // SAFETY: the features were detected above.
            unsafe { bf16_step_lanes(a, &b, &mut found) };
            Portable::bf16_step_lanes(a, &b, &mut expected);
            check(&found, &expected);
            let (mut found, mut expected) = (c, c);
            // SAFETY: as above.
            unsafe { fma_lanes(a[0], &b[0], &mut found) };
            Portable::fma_lanes(a[0], &b[0], &mut expected);
            check(&found, &expected);
        }
    }

    /// Equal bits; NaN as NaN.
    fn check(found: &[f32; LANES], expected: &[f32; LANES]) {
        for (a, b) in found.iter().zip(expected) {
            assert!(
                a.to_bits() == b.to_bits() || (a.is_nan() && b.is_nan()),
                "{a:e}, not {b:e}"
            );
        }
    }

    #[test]
    fn dots_are_exact_up_to_their_limits() {
        if !detected() {
            return;
        }
        let mut noise = Noise(52);
        for round in 0..1000 {
            let mut codes: [u8; 4 * LANES] = core::array::from_fn(|_| noise.u64().to_le_bytes()[0]);
            let mut q: [i8; 4] =
                core::array::from_fn(|_| noise.u64().to_le_bytes()[0].cast_signed());
            if round == 0 {
                codes = [255; 4 * LANES];
                q = [-128; 4];
            }
            let (mut found, mut expected) = ([7; LANES], [7; LANES]);
            // SAFETY: the features were detected above.
            unsafe { dot4_lanes(&codes, q, &mut found) };
            Portable::dot4_lanes(&codes, q, &mut expected);
            assert_eq!(found, expected);
        }
    }
}
