//! Tables of the reference loops: compiled plainly (`scalar`), or with the features of an instruction set
//! enabled (`reference_table`). Where a table has its own kernel it takes the place of the loop; what it has
//! none for, such as an operation that was just added, is the loop.

use super::{AttentionArgs, AttentionState, KernelTable, Recurrence};
use crate::contract::Portable;
use crate::cpu::CpuFeatures;
use crate::scalar::matmul;
use crate::{panel, scalar};

/// The `panel_product`s of all weight types, in the order of [`crate::WeightType::ALL`]: `$blocks`'
/// for types with a scale per 32 columns, `$super_blocks`' for those with exact sums over 256,
/// `$floats`' for all others. LANE5 has the panels of Q5_0.
macro_rules! for_every_format {
    ($floats:ident, $blocks:ident, $super_blocks:ident) => {
        for_every_format!(@
            $floats: panel::F32, panel::F16, panel::Bf16;
            $blocks: panel::Q8_0, panel::Q4_0;
            $super_blocks: panel::Q4K, panel::Q6K, panel::Q5K;
            $blocks: panel::Q5_0, panel::Q4_1, panel::Q5_1, panel::Iq4Nl;
            $super_blocks: panel::Q3K, panel::Q2K, panel::Iq4Xs;
            $blocks: panel::Mxfp4;
            $floats: matmul::Raw, matmul::Raw, matmul::Raw, matmul::Raw, matmul::Raw, matmul::Raw,
            matmul::Raw, matmul::Raw, matmul::Raw, matmul::Raw;
            $blocks: panel::Lane<3>, panel::Q5_0, panel::Lane<7>)
    };
    (@ $($module:ident: $($format:ty),*);*) => {
        [$($($module::panel_product::<$format>),*),*]
    };
}

/// Compiles the reference loops into a table, with `$feature`s enabled and `$fma`.
macro_rules! reference_table {
    (
        $table:ident, $module:ident, $name:literal, $requires:expr, $fma:ty,
        $matmul:expr, $products:expr, $skip:expr, $transpose:expr, $attention:path, $quantizer:ty, $recurrence:path,
        $lora_down:path, $lora_up:path $(, $feature:literal)?
    ) => {
        #[doc = concat!("The reference loops as the table `", $name, "`.")]
        pub(super) const $table: KernelTable = KernelTable {
            name: $name,
            requires: $requires,
            matmul: $matmul,
            panel_product: $products,
            skip: $skip,
            transpose: $transpose,
            attention: $attention,
            attention_merge: $module::attention_merge,
            quantize: $module::quantize,
            rms_norm: $module::rms_norm,
            layer_norm: $module::layer_norm,
            softmax: $module::softmax,
            rope: $module::rope,
            silu_mul: $module::silu_mul,
            sigmoid: $module::sigmoid,
            add_scaled: $module::add_scaled,
            halves: $module::halves,
            gelu_mul: $module::gelu_mul,
            gelu_erf_mul: $module::gelu_erf_mul,
            soft_cap: $module::soft_cap,
            recurrence: $recurrence,
            conv_silu: $module::conv_silu,
            l2_norm: $module::l2_norm,
            sigmoid_mul: $module::sigmoid_mul,
            decays: $module::decays,
            lora_down: $lora_down,
            lora_up: $lora_up,
        };

        mod $module {
            use super::*;
            use crate::contract::LANES;
            use crate::scalar::matmul::{GroupKernel, Lanes, PanelProduct};
            use crate::table::{AttentionState, ConvSilu, Quantize, RopeArgs};
            use crate::{kv, scalar};

            #[allow(dead_code, reason = "the table `avx512` takes those of `avx2`")]
            $(#[target_feature(enable = $feature)])?
            pub(super) fn panel_product<K: GroupKernel>(
                product: &PanelProduct<'_>,
                acc: &mut [Lanes],
            ) {
                K::panel::<$fma>(product, acc);
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
                unsafe { scalar::elementwise::quantize::<$quantizer>(args) }
            }

            $(#[target_feature(enable = $feature)])?
            pub(super) fn rms_norm(x: &[f32], weight: &[f32], eps: f32, out: &mut [f32]) {
                scalar::elementwise::rms_norm::<$fma>(x, weight, eps, out);
            }

            $(#[target_feature(enable = $feature)])?
            pub(super) fn layer_norm(
                x: &[f32],
                weight: &[f32],
                bias: &[f32],
                eps: f32,
                out: &mut [f32],
            ) {
                scalar::normalize::layer_norm::<$fma>(x, weight, bias, eps, out);
            }

            $(#[target_feature(enable = $feature)])?
            pub(super) fn softmax(x: &mut [f32]) {
                scalar::normalize::softmax::<$fma>(x);
            }

            $(#[target_feature(enable = $feature)])?
            pub(super) fn rope(args: &mut RopeArgs<'_>) {
                scalar::elementwise::rope::<$fma>(args);
            }

            $(#[target_feature(enable = $feature)])?
            pub(super) fn silu_mul(
                gate: &[[f32; LANES]],
                up: &[[f32; LANES]],
                out: &mut [[f32; LANES]],
            ) {
                scalar::elementwise::silu_mul::<$fma>(gate, up, out);
            }

            $(#[target_feature(enable = $feature)])?
            pub(super) fn sigmoid(x: &mut [[f32; LANES]]) {
                scalar::elementwise::sigmoid::<$fma>(x);
            }

            $(#[target_feature(enable = $feature)])?
            pub(super) fn add_scaled(scale: f32, x: &[f32], out: &mut [f32]) {
                scalar::elementwise::add_scaled::<$fma>(scale, x, out);
            }

            $(#[target_feature(enable = $feature)])?
            pub(super) fn halves(x: &[f32], out: &mut [u8]) {
                kv::put_halves(x, out);
            }

            $(#[target_feature(enable = $feature)])?
            pub(super) fn gelu_mul(
                gate: &[[f32; LANES]],
                up: &[[f32; LANES]],
                out: &mut [[f32; LANES]],
            ) {
                scalar::elementwise::gelu_mul::<$fma>(gate, up, out);
            }

            $(#[target_feature(enable = $feature)])?
            pub(super) fn gelu_erf_mul(
                gate: &[[f32; LANES]],
                up: &[[f32; LANES]],
                out: &mut [[f32; LANES]],
            ) {
                scalar::elementwise::gelu_erf_mul::<$fma>(gate, up, out);
            }

            $(#[target_feature(enable = $feature)])?
            pub(super) fn soft_cap(x: &mut [[f32; LANES]], cap: f32) {
                scalar::elementwise::soft_cap::<$fma>(x, cap);
            }

            $(#[target_feature(enable = $feature)])?
            pub(super) fn conv_silu(args: &mut ConvSilu<'_>) {
                scalar::recurrent::conv_silu::<$fma>(args);
            }

            $(#[target_feature(enable = $feature)])?
            pub(super) fn l2_norm(x: &mut [f32], eps: f32, scale: f32) {
                scalar::recurrent::l2_norm::<$fma>(x, eps, scale);
            }

            $(#[target_feature(enable = $feature)])?
            pub(super) fn sigmoid_mul(gate: &[[f32; LANES]], x: &mut [[f32; LANES]]) {
                scalar::recurrent::sigmoid_mul::<$fma>(gate, x);
            }

            $(#[target_feature(enable = $feature)])?
            pub(super) fn decays(x: &mut [f32], bias: &[f32], a: &[f32], decay: &mut [f32]) {
                scalar::recurrent::decays::<$fma>(x, bias, a, decay);
            }
        }
    };
}

reference_table!(
    SCALAR,
    scalar_table,
    "scalar",
    CpuFeatures::empty(),
    Portable,
    [None; _],
    for_every_format!(scalar_table, scalar_table, scalar_table),
    |_| None,
    None,
    scalar_attention,
    scalar::elementwise::Loops,
    scalar_recurrence,
    scalar_lora::down,
    scalar_lora::up
);

/// The texts of [`crate::vector`] with plain arrays as vectors.
#[cfg(test)]
pub(super) static PLAIN: KernelTable = KernelTable {
    name: "plain-vectors",
    panel_product: {
        use crate::vector::plain::{block, super_block};
        for_every_format!(scalar_table, block, super_block)
    },
    attention: crate::vector::plain::attend,
    recurrence: crate::vector::plain::recurrence,
    lora_down: crate::vector::plain::lora_down,
    lora_up: crate::vector::plain::lora_up,
    ..SCALAR
};

fn scalar_attention(args: &AttentionArgs<'_>, state: &mut AttentionState<'_>) {
    scalar::attention::attention::<Portable>(args, state);
}

fn scalar_recurrence(args: &mut Recurrence<'_, '_>) {
    scalar::recurrent::recurrence::<Portable>(args);
}

mod scalar_lora {
    use crate::contract::Portable;
    use crate::lora::{LoraDown, LoraUp};
    use crate::scalar::lora;

    /// # Safety
    /// - As [`crate::KernelTable::lora_down`].
    pub(super) unsafe fn down(args: &LoraDown<'_>) {
        // SAFETY: by the caller.
        unsafe { lora::down::<Portable>(args) }
    }

    /// # Safety
    /// - As [`crate::KernelTable::lora_up`].
    pub(super) unsafe fn up(args: &LoraUp<'_>) {
        // SAFETY: by the caller.
        unsafe { lora::up::<Portable>(args) }
    }
}

#[cfg(all(target_arch = "x86_64", target_feature = "sse2"))]
pub(super) use {for_every_format, reference_table};
