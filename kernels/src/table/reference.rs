//! The reference loops as tables: compiled plainly (`scalar`), and with AVX2, FMA and F16C
//! enabled (`avx2`).

use super::{AttentionBlock, AttentionState, KernelTable, Matmul, Quantize, Rope};
use crate::contract::Portable;
use crate::cpu::CpuFeatures;
#[cfg(target_arch = "x86_64")]
use crate::x86_64::fma3::Fma3;
use crate::{panel, scalar};

/// The instances of `$kernel` for every weight type, in the order of [`crate::WeightType::ALL`].
macro_rules! for_every_format {
    ($module:ident::$kernel:ident) => {
        for_every_format!(@ $module::$kernel;
            F32, F16, Bf16, Q8_0, Q4_0, Q4K, Q6K, Q5K, Q5_0, Q4_1, Q5_1, Iq4Nl, Q3K, Q2K,
            Iq4Xs, Mxfp4, Iq1S, Iq1M, Iq2Xxs, Iq2Xs, Iq2S, Iq3Xxs, Iq3S, Tq1_0, Tq2_0, Nvfp4)
    };
    (@ $module:ident::$kernel:ident; $($format:ident),*) => {
        [$($module::$kernel::<panel::$format>),*]
    };
}

/// Compiles the reference loops into a table, with `$feature`s enabled and `$fma`.
macro_rules! reference_table {
    ($table:ident, $module:ident, $name:literal, $requires:expr, $fma:ty $(, $feature:literal)?) => {
        #[doc = concat!("The reference loops as the table `", $name, "`.")]
        pub(super) static $table: KernelTable = KernelTable {
            name: $name,
            requires: $requires,
            matmul: for_every_format!($module::matmul),
            matmul_tail: for_every_format!($module::matmul_tail),
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
            pub(super) unsafe fn matmul_tail<K: scalar::matmul::GroupKernel>(args: &Matmul<'_>) {
                // SAFETY: the contract of `KernelTable::matmul` is the reference's.
                unsafe { scalar::matmul::tail::<$fma, K>(args) }
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
