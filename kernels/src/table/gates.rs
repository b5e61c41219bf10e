//! Activations and gates of single rows.

use super::KernelTable;
use crate::contract::LANES;
use core::slice;

/// `out = f(gate) · up`, whole vectors.
pub(super) type GatedFn = unsafe fn(&[[f32; LANES]], &[[f32; LANES]], &mut [[f32; LANES]]);

impl KernelTable {
    /// SwiGLU: `out = silu(gate) · up`, each (n).
    ///
    /// # Panics
    /// If the lengths differ.
    pub fn silu_mul(&self, gate: &[f32], up: &[f32], out: &mut [f32]) {
        // SAFETY: holding the table proves the features.
        unsafe { gated(self.silu_mul, gate, up, out) }
    }

    /// GeGLU: `out = gelu(gate) · up`, each (n); the tanh approximation ([`crate::contract::gelu()`]).
    ///
    /// # Panics
    /// If the lengths differ.
    pub fn gelu_mul(&self, gate: &[f32], up: &[f32], out: &mut [f32]) {
        // SAFETY: holding the table proves the features.
        unsafe { gated(self.gelu_mul, gate, up, out) }
    }

    /// GeGLU by the error function: `out = gelu(gate) · up`, each (n); [`crate::contract::gelu_erf`].
    ///
    /// # Panics
    /// If the lengths differ.
    pub fn gelu_erf_mul(&self, gate: &[f32], up: &[f32], out: &mut [f32]) {
        // SAFETY: holding the table proves the features.
        unsafe { gated(self.gelu_erf_mul, gate, up, out) }
    }

    /// Soft cap in place: `x = cap · tanh(x / cap)`, `cap` above 0.
    pub fn soft_cap(&self, x: &mut [f32], cap: f32) {
        // SAFETY: holding the table proves the features; the operand is a slice.
        in_place(x, |x| unsafe { (self.soft_cap)(x, cap) });
    }

    /// `x = 1 / (1 + e^-x)` in place.
    pub fn sigmoid(&self, x: &mut [f32]) {
        // SAFETY: holding the table proves the features; the operand is a slice.
        in_place(x, |x| unsafe { (self.sigmoid)(x) });
    }

    /// A gate, in place: `x = x · sigmoid(gate)`, each (n).
    ///
    /// # Panics
    /// If the lengths differ.
    pub fn sigmoid_mul(&self, gate: &[f32], x: &mut [f32]) {
        assert_eq!(gate.len(), x.len());
        let (gates, gate) = gate.as_chunks();
        let last = [padded(gate)];
        let mut gates = [gates, &last].into_iter();
        in_place(x, |x| {
            // SAFETY: holding the table proves the features; all operands are slices.
            unsafe { (self.sigmoid_mul)(gates.next().unwrap_or_default(), x) }
        });
    }
}

/// `kernel` for rows of any one length; the columns after the last whole vector are computed in one of their own.
///
/// # Safety
/// - The CPU has the features of the kernel's table.
unsafe fn gated(kernel: GatedFn, gate: &[f32], up: &[f32], out: &mut [f32]) {
    assert_eq!(gate.len(), up.len());
    assert_eq!(gate.len(), out.len());
    let ((gates, gate), (ups, up)) = (gate.as_chunks(), up.as_chunks());
    let (outs, out) = out.as_chunks_mut();
    // SAFETY: by the caller; all operands are slices.
    unsafe { kernel(gates, ups, outs) };
    if out.is_empty() {
        return;
    }
    let mut last = [0.0; LANES];
    // SAFETY: as above.
    unsafe { kernel(&[padded(gate)], &[padded(up)], slice::from_mut(&mut last)) };
    out.copy_from_slice(&last[..out.len()]);
}

/// Calls `kernel` for the whole vectors of a row, then for the columns after them in a vector of their own, if there are
/// any.
fn in_place(x: &mut [f32], mut kernel: impl FnMut(&mut [[f32; LANES]])) {
    let (whole, rest) = x.as_chunks_mut();
    kernel(whole);
    if !rest.is_empty() {
        let mut last = padded(rest);
        kernel(slice::from_mut(&mut last));
        rest.copy_from_slice(&last[..rest.len()]);
    }
}

/// The last columns of a row, and zeros.
fn padded(rest: &[f32]) -> [f32; LANES] {
    let mut last = [0.0; LANES];
    last[..rest.len()].copy_from_slice(rest);
    last
}
