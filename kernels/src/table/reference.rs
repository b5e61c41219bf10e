//! The reference loops as tables: compiled plainly (`scalar`), and with AVX2, FMA and F16C
//! enabled (`avx2`).

use super::{AttentionBlock, AttentionState, KernelTable, Matmul, Quantize, Rope};
use crate::contract::{Arith, Portable};
use crate::cpu::CpuFeatures;
use crate::{panel, scalar};

/// Compiles the reference loops into a table, with `$feature`s enabled and `$fma`.
macro_rules! reference_table {
    ($table:ident, $module:ident, $name:literal, $requires:expr, $fma:ty $(, $feature:literal)?) => {
        #[doc = concat!("The reference loops as the table `", $name, "`.")]
        pub(super) static $table: KernelTable = KernelTable {
            name: $name,
            requires: $requires,
            matmul: [
                $module::matmul::<panel::F32>,
                $module::matmul::<panel::F16>,
                $module::matmul::<panel::Bf16>,
                $module::matmul::<panel::Q8_0>,
                $module::matmul::<panel::Q4_0>,
                $module::matmul::<panel::Q4K>,
                $module::matmul::<panel::Q6K>,
            ],
            attention_block: [
                $module::attention_block::<scalar::attention::F32>,
                $module::attention_block::<scalar::attention::F16>,
                $module::attention_block::<scalar::attention::Bf16>,
            ],
            attention_merge: $module::attention_merge,
            quantize: $module::quantize,
            rms_norm: $module::rms_norm,
            rope: $module::rope,
            silu_mul: $module::silu_mul,
        };

        mod $module {
            use super::*;

            $(#[target_feature(enable = $feature)])?
            pub(super) unsafe fn matmul<K: scalar::matmul::GroupKernel>(args: &Matmul<'_>) {
                // SAFETY: the contract of `KernelTable::matmul` is the reference's.
                unsafe { scalar::matmul::matmul::<$fma, K>(args) }
            }

            $(#[target_feature(enable = $feature)])?
            pub(super) fn attention_block<E: scalar::attention::Elements>(
                args: &AttentionBlock<'_>,
                state: &mut AttentionState<'_>,
            ) {
                scalar::attention::block::<$fma, E>(args, state);
            }

            $(#[target_feature(enable = $feature)])?
            pub(super) fn attention_merge(
                from: &AttentionState<'_>,
                into: &mut AttentionState<'_>,
            ) {
                scalar::attention::merge::<$fma>(from, into);
            }

            $(#[target_feature(enable = $feature)])?
            pub(super) unsafe fn quantize(args: &Quantize<'_>) {
                // SAFETY: the contract of `KernelTable::quantize` is the reference's.
                unsafe { scalar::elementwise::quantize(args) }
            }

            $(#[target_feature(enable = $feature)])?
            pub(super) fn rms_norm(x: &[f32], weight: &[f32], eps: f32, out: &mut [f32]) {
                scalar::elementwise::rms_norm::<$fma>(x, weight, eps, out);
            }

            $(#[target_feature(enable = $feature)])?
            pub(super) fn rope(args: &mut Rope<'_>) {
                scalar::elementwise::rope::<$fma>(args);
            }

            $(#[target_feature(enable = $feature)])?
            pub(super) fn silu_mul(gate: &[f32], up: &[f32], out: &mut [f32]) {
                scalar::elementwise::silu_mul::<$fma>(gate, up, out);
            }
        }
    };
}

reference_table!(
    SCALAR,
    scalar_table,
    "scalar",
    CpuFeatures::empty(),
    Portable
);

#[cfg(target_arch = "x86_64")]
reference_table!(
    AVX2,
    avx2_table,
    "avx2",
    CpuFeatures::AVX2
        .union(CpuFeatures::FMA)
        .union(CpuFeatures::F16C),
    Fma3,
    "avx2,fma,f16c"
);

/// FMA3 and F16C instructions. Only for code compiled with `fma` and `f16c` enabled.
#[cfg(target_arch = "x86_64")]
#[derive(Clone, Copy, Debug)]
struct Fma3;

#[cfg(target_arch = "x86_64")]
impl Arith for Fma3 {
    #[inline(always)]
    fn fma(a: f32, b: f32, c: f32) -> f32 {
        use core::arch::x86_64::{_mm_cvtss_f32, _mm_fmadd_ss, _mm_set_ss};
        // SAFETY: SSE is part of x86-64.
        let scalar = |x| unsafe { _mm_set_ss(x) };
        // SAFETY: this type is private and named only by the AVX2 table, whose functions run
        // only where FMA was detected.
        let sum = unsafe { _mm_fmadd_ss(scalar(a), scalar(b), scalar(c)) };
        // SAFETY: SSE is part of x86-64.
        unsafe { _mm_cvtss_f32(sum) }
    }

    #[inline(always)]
    fn halves(bytes: &[u8; 32]) -> [f32; 16] {
        use core::arch::x86_64::{_mm_loadu_si128, _mm256_cvtph_ps, _mm256_storeu_ps};
        let mut out = [0f32; 16];
        for (out, half) in out
            .as_chunks_mut::<8>()
            .0
            .iter_mut()
            .zip(bytes.as_chunks::<16>().0)
        {
            // SAFETY: `half` has the 16 bytes that are loaded.
            let half = unsafe { _mm_loadu_si128(half.as_ptr().cast()) };
            // SAFETY: as in `fma`, F16C was detected where this type is used.
            let floats = unsafe { _mm256_cvtph_ps(half) };
            // SAFETY: `out` has room for the 8 floats; AVX is implied by F16C.
            unsafe { _mm256_storeu_ps(out.as_mut_ptr(), floats) };
        }
        out
    }
}

#[cfg(all(test, target_arch = "x86_64"))]
mod tests {
    use super::*;

    #[target_feature(enable = "avx2,fma,f16c")]
    fn halves(bytes: &[u8; 32]) -> [f32; 16] {
        Fma3::halves(bytes)
    }

    #[test]
    fn the_instruction_converts_halves_as_the_definition_does() {
        if !CpuFeatures::detect().contains(AVX2.requires) {
            return;
        }
        for first in (0..=u16::MAX).step_by(16) {
            let mut bytes = [0; 32];
            for (half, bytes) in (first..=first + 15).zip(bytes.as_chunks_mut::<2>().0) {
                *bytes = half.to_le_bytes();
            }
            // SAFETY: the features were detected above.
            let floats = unsafe { halves(&bytes) };
            let expected = Portable::halves(&bytes);
            assert_eq!(
                floats.map(f32::to_bits),
                expected.map(f32::to_bits),
                "{first:#x}"
            );
        }
    }
}
