//! Kernels of backward passes: products in f32 and in pairs of bf16, and the gradients of norms, gates and softmax.
//!
//! An output is summed by one worker, in the order of its terms: groups of [`GROUP`](crate::contract::GROUP) terms from
//! zero, each added to what the output holds. Nothing depends on how outputs are shared out, and every instance gives the
//! same bits. These kernels are no part of [`KernelTable`]'s struct, so that programs that only infer do not link them.

pub(crate) mod elementwise;
mod product;
#[cfg(test)]
mod tests;
mod weights;

pub use elementwise::GatedActivation;
#[cfg_attr(
    not(all(target_arch = "x86_64", target_feature = "sse2")),
    allow(unused_imports, reason = "no vector table for this processor yet")
)]
pub(crate) use product::GROUP_PAIRS;
pub use product::{PairProduct, Product};
pub use weights::{pack_pairs, pairs_of, transpose};

use crate::KernelTable;
#[cfg(any(test, all(target_arch = "x86_64", target_feature = "sse2")))]
use crate::cpu::CpuFeatures;
#[cfg(all(target_arch = "x86_64", target_feature = "sse2"))]
use crate::x86_64::backward as x86;

type RmsNormFn = unsafe fn(&[f32], &[f32], f32, &[f32], &mut [f32]);
type GateFn = unsafe fn(GatedActivation, &[f32], &[f32], &[f32], &mut [f32], &mut [f32]);

/// The functions of one instruction set.
#[derive(Debug)]
pub struct BackwardKernels {
    pub(crate) product: unsafe fn(&Product<'_>),
    pub(crate) pair_product: unsafe fn(&PairProduct<'_>),
    pub(crate) rms_norm: RmsNormFn,
    pub(crate) layer_norm: RmsNormFn,
    pub(crate) gate: GateFn,
    pub(crate) softmax: unsafe fn(&[f32], f32, f32, &mut [f32]),
    pub(crate) soft_cap: unsafe fn(&[f32], f32, &mut [f32]),
    pub(crate) cross_entropy: unsafe fn(&mut [f32], usize) -> f64,
    pub(crate) dot: unsafe fn(&[f32], &[f32]) -> f32,
}

static SCALAR: BackwardKernels = BackwardKernels {
    product: product::scalar,
    pair_product: product::scalar_pairs,
    rms_norm: elementwise::rms_norm::<crate::contract::Portable>,
    layer_norm: elementwise::layer_norm::<crate::contract::Portable>,
    gate: elementwise::gate::<crate::contract::Portable>,
    softmax: elementwise::softmax::<crate::contract::Portable>,
    soft_cap: elementwise::soft_cap::<crate::contract::Portable>,
    cross_entropy: elementwise::cross_entropy::<crate::contract::Portable>,
    dot: elementwise::dot::<crate::contract::Portable>,
};

/// Those of AVX-512 without `vdpbf16ps`, which most CPUs have: no table has these there.
#[cfg(test)]
fn without_instruction() -> Option<&'static BackwardKernels> {
    #[cfg(all(target_arch = "x86_64", target_feature = "sse2"))]
    if CpuFeatures::detect().contains(CpuFeatures::AVX512) {
        return Some(&x86::AVX512);
    }
    None
}

impl KernelTable {
    /// The kernels of backward passes. No part of the table, so that programs without them do not link them.
    pub fn backward(&self) -> &'static BackwardKernels {
        #[cfg(all(target_arch = "x86_64", target_feature = "sse2"))]
        if self.requires().contains(CpuFeatures::AVX512) {
            return x86::avx512_kernels();
        } else if self.requires().contains(CpuFeatures::AVX2) {
            return &x86::AVX2;
        }
        &SCALAR
    }
}

impl BackwardKernels {
    /// Adds a product of f32 matrices to its outputs; see [`Product`].
    ///
    /// # Safety
    /// - Its outputs are readable and writable, and nothing else accesses them meanwhile.
    ///
    /// # Panics
    /// If an operand does not hold the elements that the shape asks for.
    pub unsafe fn add_product(&self, product: &Product<'_>) {
        product.check();
        // SAFETY: a table's features are there; operands were checked, and the caller vouches for the outputs.
        unsafe { (self.product)(product) }
    }

    /// Adds a product of bf16 matrices to its outputs; see [`PairProduct`].
    ///
    /// # Safety
    /// - As [`Self::add_product`].
    ///
    /// # Panics
    /// As [`Self::add_product`].
    pub unsafe fn add_pair_product(&self, product: &PairProduct<'_>) {
        product.check();
        // SAFETY: as in `add_product`.
        unsafe { (self.pair_product)(product) }
    }

    /// Adds the gradient of [`KernelTable::rms_norm`] at `x` to `dx`: `dx += r · u - x · (r³ / n) · Σ u · x` with
    /// `u = weight · dy` and `r = 1 / sqrt(mean(x²) + eps)`.
    ///
    /// # Panics
    /// If lengths differ.
    pub fn rms_norm(&self, x: &[f32], weight: &[f32], eps: f32, dy: &[f32], dx: &mut [f32]) {
        assert_lengths(x.len(), [weight.len(), dy.len(), dx.len()]);
        // SAFETY: a table's features are there; lengths were compared.
        unsafe { (self.rms_norm)(x, weight, eps, dy, dx) }
    }

    /// Adds the gradient of [`KernelTable::layer_norm`] at `x` to `dx`: `dx += r · (u - mean u - x̂ · mean(u · x̂))` with
    /// `u = weight · dy` and `x̂ = (x - mean x) · r`.
    ///
    /// # Panics
    /// If lengths differ.
    pub fn layer_norm(&self, x: &[f32], weight: &[f32], eps: f32, dy: &[f32], dx: &mut [f32]) {
        assert_lengths(x.len(), [weight.len(), dy.len(), dx.len()]);
        // SAFETY: as above.
        unsafe { (self.layer_norm)(x, weight, eps, dy, dx) }
    }

    /// Writes the gradients of `act(gate) · up` for gate and up.
    ///
    /// # Panics
    /// If lengths differ.
    pub fn gate(
        &self,
        kind: GatedActivation,
        [gate, up, dy]: [&[f32]; 3],
        [d_gate, d_up]: [&mut [f32]; 2],
    ) {
        assert_lengths(gate.len(), [up.len(), dy.len(), d_gate.len()]);
        assert_eq!(d_up.len(), gate.len());
        // SAFETY: as above.
        unsafe { (self.gate)(kind, gate, up, dy, d_gate, d_up) }
    }

    /// Turns the gradient of weights into the gradient of scores: `d = p · (d - mean) · scale`, where `p` are the weights (the
    /// softmax of the scores) and `mean` is `Σ p · d`.
    ///
    /// # Panics
    /// If lengths differ.
    pub fn softmax(&self, p: &[f32], mean: f32, scale: f32, d: &mut [f32]) {
        assert_eq!(p.len(), d.len());
        // SAFETY: as above.
        unsafe { (self.softmax)(p, mean, scale, d) }
    }

    /// Multiplies by the derivative of `cap · tanh(x / cap)`, of which `y` are the values: `d = d · (1 - (y / cap)²)`.
    ///
    /// # Panics
    /// If lengths differ.
    pub fn soft_cap(&self, y: &[f32], cap: f32, d: &mut [f32]) {
        assert_eq!(y.len(), d.len());
        // SAFETY: as above.
        unsafe { (self.soft_cap)(y, cap, d) }
    }

    /// The cross-entropy of logits with a label, in nats; the logits become its gradient, `softmax - onehot`.
    ///
    /// # Panics
    /// If the label is not below the number of logits.
    pub fn cross_entropy(&self, logits: &mut [f32], label: usize) -> f64 {
        assert!(label < logits.len());
        // SAFETY: as above.
        unsafe { (self.cross_entropy)(logits, label) }
    }

    /// `Σ a · b` in [`LANES`](crate::contract::LANES) virtual lanes.
    ///
    /// # Panics
    /// If lengths differ.
    pub fn dot(&self, a: &[f32], b: &[f32]) -> f32 {
        assert_eq!(a.len(), b.len());
        // SAFETY: as above.
        unsafe { (self.dot)(a, b) }
    }
}

fn assert_lengths(n: usize, others: [usize; 3]) {
    assert!(others.iter().all(|other| *other == n), "{n}, {others:?}");
}
