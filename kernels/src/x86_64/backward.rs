//! Backward kernels in AVX2 and AVX-512 instructions: the texts of [`crate::backward`] and of [`crate::vector::backward`].

use super::avx2::attention::Avx2;
use super::avx512::attention::Avx512;
use super::avx512::bf16_serves;
use super::fma3::Fma3;
use crate::backward::BackwardKernels;
use crate::vector::backward::{PairStep, Pairs, add};

/// The functions of an instruction set with `$features`, of vectors `$vector`, tiles of `$r` rows × `$c` vectors.
macro_rules! kernels {
    ($name:ident, $features:literal, $vector:ty, $r:literal, $c:literal) => {
        mod $name {
            use super::*;
            use crate::backward::elementwise as text;
            use crate::backward::{GatedActivation, PairProduct, Product};
            use crate::vector::backward::Emulated;

            /// # Safety
            /// - As [`crate::backward::BackwardKernels::add_product`]; the CPU has the features.
            #[target_feature(enable = $features)]
            pub(super) unsafe fn product(p: &Product<'_>) {
                // SAFETY: by the caller.
                unsafe { add::<$vector, _, $r, $c>(p) }
            }

            /// # Safety
            /// - As [`product`].
            #[target_feature(enable = $features)]
            pub(super) unsafe fn pair_product(p: &PairProduct<'_>) {
                // SAFETY: by the caller.
                unsafe { add::<$vector, _, $r, $c>(&Pairs::<Emulated>::new(p)) }
            }

            texts! { $features
                rms_norm(x: &[f32], weight: &[f32], eps: f32, dy: &[f32], dx: &mut [f32]);
                layer_norm(x: &[f32], weight: &[f32], eps: f32, dy: &[f32], dx: &mut [f32]);
                gate(
                    kind: GatedActivation, gate: &[f32], up: &[f32], dy: &[f32], d_gate: &mut [f32], d_up: &mut [f32]
                );
                softmax(p: &[f32], mean: f32, scale: f32, d: &mut [f32]);
                soft_cap(y: &[f32], cap: f32, d: &mut [f32]);
                cross_entropy(logits: &mut [f32], label: usize) -> f64;
                dot(a: &[f32], b: &[f32]) -> f32;
            }
        }
    };
}

/// Texts, compiled with features.
macro_rules! texts {
    ($features:literal $($name:ident($($x:ident: $ty:ty),* $(,)?) $(-> $out:ty)?;)*) => {$(
        /// # Safety
        /// - The CPU has the features.
        #[target_feature(enable = $features)]
        pub(super) unsafe fn $name($($x: $ty),*) $(-> $out)? {
            text::$name::<Fma3>($($x),*)
        }
    )*};
}

kernels!(avx2, "avx2,fma,f16c", Avx2, 4, 3);
kernels!(
    avx512,
    "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c",
    Avx512,
    8,
    3
);

/// The functions of a module, and how it multiplies pairs.
macro_rules! table {
    ($name:ident, $pairs:expr) => {
        BackwardKernels {
            product: $name::product,
            pair_product: $pairs,
            rms_norm: $name::rms_norm,
            layer_norm: $name::layer_norm,
            gate: $name::gate,
            softmax: $name::softmax,
            soft_cap: $name::soft_cap,
            cross_entropy: $name::cross_entropy,
            dot: $name::dot,
        }
    };
}

pub(crate) static AVX2: BackwardKernels = table!(avx2, avx2::pair_product);
/// Without `vdpbf16ps`.
pub(crate) static AVX512: BackwardKernels = table!(avx512, avx512::pair_product);
static AVX512_BF16: BackwardKernels = table!(avx512, native_pair_product);

/// Those of AVX-512, with `vdpbf16ps` where the CPU has it.
pub(crate) fn avx512_kernels() -> &'static BackwardKernels {
    if bf16_serves() { &AVX512_BF16 } else { &AVX512 }
}

/// Pairs by `vdpbf16ps`.
struct Native;

impl PairStep<Avx512> for Native {
    #[inline(always)]
    fn step(
        a: core::arch::x86_64::__m512i,
        b: core::arch::x86_64::__m512i,
        t: core::arch::x86_64::__m512,
    ) -> core::arch::x86_64::__m512 {
        // SAFETY: only `native_pair_product` names this type, which is taken where `bf16_serves`.
        unsafe { super::avx512::attention::bf16_step(a, b, t) }
    }
}

/// # Safety
/// - As [`BackwardKernels::add_pair_product`]; the CPU has the features.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c,avx512bf16")]
unsafe fn native_pair_product(p: &crate::backward::PairProduct<'_>) {
    // SAFETY: by the caller.
    unsafe { add::<Avx512, _, 8, 3>(&Pairs::<Native>::new(p)) }
}
