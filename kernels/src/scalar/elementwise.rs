//! Operations on single rows: norm, quantisation, rotary embedding, SwiGLU, GeGLU, soft cap.

use crate::activation::{ActivationKinds, BLOCK_COLS, GroupNumbers, Int8Group, SUM_COLS};
use crate::args::{Quantize, RopeArgs, RopePairing};
use crate::contract::{
    self, Arith, GROUP, LANES, gelu, gelu_erf, low_byte, shifted, silu, sqrt, tree_sum,
};
use crate::half::f32_to_bf16;
use core::mem::MaybeUninit;

/// `out[i] = x[i] · (1 / sqrt(mean(x²) + eps)) · weight[i]`.
#[inline(always)]
pub(crate) fn rms_norm<F: Arith>(x: &[f32], weight: &[f32], eps: f32, out: &mut [f32]) {
    let mut lanes = [0f32; LANES];
    let (chunks, tail) = x.as_chunks::<LANES>();
    for chunk in chunks {
        for (lane, x) in lanes.iter_mut().zip(chunk) {
            *lane = F::fma(*x, *x, *lane);
        }
    }
    for (lane, x) in lanes.iter_mut().zip(tail) {
        *lane = F::fma(*x, *x, *lane);
    }
    #[expect(clippy::cast_precision_loss, reason = "rows are far shorter than 2^24")]
    let mean = tree_sum(&lanes) / x.len() as f32;
    let scale = 1.0 / sqrt(mean + eps);
    for ((out, x), weight) in out.iter_mut().zip(x).zip(weight) {
        *out = x * scale * weight;
    }
}

/// Below this largest magnitude a group is taken as zero: 127 / it would not be finite.
pub(crate) const AMAX_MIN: f32 = 1e-30;

/// How a table quantises a group.
pub(crate) trait GroupQuantizer {
    /// Quantises a group with one scale per `N` columns, 32 or all.
    ///
    /// # Safety
    /// - `out` points to a group's codes, scales and sums, and nothing else accesses them meanwhile.
    unsafe fn quantize_group<const N: usize>(x: &[f32; GROUP], out: Int8Group);
}

/// Writes `args.x` into an activation row, in every kind that its layout holds.
///
/// int8: `d = amax / 127`, `q = round(x · (127 / amax))`. A group whose largest magnitude is
/// not finite gets `d = NaN` and zero codes, so that it shows in the result.
///
/// # Safety
/// - `args.row` is writable for the columns given, and nothing else accesses them meanwhile.
#[inline(always)]
pub(crate) unsafe fn quantize<Q: GroupQuantizer>(args: &Quantize<'_>) {
    for (g, x) in args.x.chunks(GROUP).enumerate() {
        let (layout, first_col) = (args.layout, args.first_col + g * GROUP);
        let parts = layout.parts(args.row, first_col / GROUP);
        let kinds = layout.kinds();
        if kinds.contains(ActivationKinds::F32) {
            // SAFETY: the f32 part has room for the columns given; by the caller.
            unsafe { core::ptr::copy_nonoverlapping(x.as_ptr(), parts.f32, x.len()) };
        }
        if kinds.contains(ActivationKinds::BF16) {
            let end = first_col + x.len();
            let padded = x.len() + usize::from(end == layout.n_cols() && end % 2 == 1);
            // SAFETY: the bf16 part has room for the columns and an odd row's partner.
            let out = unsafe { core::slice::from_raw_parts_mut(parts.bf16, padded) };
            let (out, partner) = out.split_at_mut(x.len());
            for (out, x) in out.iter_mut().zip(x) {
                *out = f32_to_bf16(*x);
            }
            partner.fill(0);
        }
        // A whole group, whatever the row's length: loops of a fixed length vectorise.
        let mut padded = MaybeUninit::uninit();
        let group = x.as_array().unwrap_or_else(|| pad(x, &mut padded));
        if kinds.contains(ActivationKinds::INT8_256) {
            // SAFETY: int8 parts consist of whole groups; by the caller.
            unsafe { Q::quantize_group::<GROUP>(group, parts.int8_256) };
        }
        if kinds.contains(ActivationKinds::INT8_32) {
            // SAFETY: as above.
            unsafe { Q::quantize_group::<BLOCK_COLS>(group, parts.int8_32) };
        }
    }
}

/// `x` with zeros up to a whole group. Out of line: inlined, the room is cleared for whole groups, too,
/// which took longer than to quantise them.
#[cold]
#[inline(never)]
fn pad<'a>(x: &[f32], room: &'a mut MaybeUninit<[f32; GROUP]>) -> &'a [f32; GROUP] {
    let padded = room.write([0.0; GROUP]);
    padded[..x.len()].copy_from_slice(x);
    padded
}

/// By the loops of the definition.
pub(crate) struct Loops;

impl GroupQuantizer for Loops {
    #[inline(always)]
    unsafe fn quantize_group<const N: usize>(x: &[f32; GROUP], out: Int8Group) {
        // SAFETY: a group has 256 codes …
        let q = unsafe { &mut *out.q.cast::<[i8; GROUP]>() };
        // SAFETY: … 16 sums …
        let sums = unsafe { &mut *out.sums.cast::<[i16; GROUP / SUM_COLS]>() };
        // SAFETY: … and a scale per N columns.
        let d = unsafe { core::slice::from_raw_parts_mut(out.d, GROUP / N) };
        let mut shifted_codes = [0f32; GROUP];
        let columns = (x.as_chunks().0.iter()).zip(shifted_codes.as_chunks_mut::<N>().0);
        for (d, (x, codes)) in d.iter_mut().zip(columns) {
            let inverse;
            (*d, inverse) = scale::<N>(x);
            for (code, x) in codes.iter_mut().zip(x) {
                *code = shifted(x * inverse);
            }
        }
        // All in one loop: of those that share a scale, each would become a byte by itself.
        for (q, code) in q.iter_mut().zip(&shifted_codes) {
            *q = low_byte(*code);
        }
        for (d, q) in d.iter().zip(q.as_chunks_mut::<N>().0) {
            if d.is_nan() {
                q.fill(0);
            }
        }
        for (sum, q) in sums.iter_mut().zip(q.as_chunks::<SUM_COLS>().0) {
            *sum = q.iter().map(|&q| i16::from(q)).sum();
        }
        if N == GROUP {
            // SAFETY: the group has one scale; by the caller.
            unsafe { more_sums(q, &mut *out.numbers()) };
        }
    }
}

/// The numbers of a group that follow from its codes and their sums over 16 columns.
#[inline(always)]
fn more_sums(q: &[i8; GROUP], numbers: &mut GroupNumbers) {
    let mut magnitudes = [0u16; GROUP / SUM_COLS];
    for (sum, q) in magnitudes.iter_mut().zip(q.as_chunks::<SUM_COLS>().0) {
        *sum = q.iter().map(|&q| u16::from(q.unsigned_abs())).sum();
    }
    numbers.most_of_16 = magnitudes.iter().copied().fold(0, u16::max);
    numbers.most_of_32 = 0;
    let halves = (numbers.sums.as_chunks().0.iter()).zip(magnitudes.as_chunks().0);
    for (sum, ([a, b], [c, d])) in numbers.sums_of_32.iter_mut().zip(halves) {
        *sum = a + b;
        // With P and N the summed magnitudes of positive and of negative codes, P + N is the sum of all magnitudes and
        // P − N the plain sum, so max(P, N) = (P + N + |P − N|) / 2.
        let most = (c + d + sum.unsigned_abs()) / 2;
        numbers.most_of_32 = numbers.most_of_32.max(most);
    }
}

/// The scale of columns, and what they are multiplied by to become codes.
#[inline(always)]
fn scale<const N: usize>(x: &[f32; N]) -> (f32, f32) {
    // Magnitudes compare as integers, so that NaN is the largest whatever the order.
    let magnitudes = x.iter().map(|x| x.to_bits() & 0x7fff_ffff);
    match f32::from_bits(magnitudes.fold(0, u32::max)) {
        amax if !amax.is_finite() => (f32::NAN, 0.0),
        amax if amax < AMAX_MIN => (0.0, 0.0),
        amax => (amax / 127.0, 127.0 / amax),
    }
}

/// Rotates the first `2 · cos.len()` dimensions of a head in place.
#[inline(always)]
pub(crate) fn rope<F: Arith>(args: &mut RopeArgs<'_>) {
    let half = args.cos.len();
    let angles = args.cos.iter().zip(args.sin);
    let turn = |x: &mut f32, y: &mut f32, cos: f32, sin: f32| {
        let (a, b) = (*x, *y);
        *x = F::fma(a, cos, -(b * sin));
        *y = F::fma(a, sin, b * cos);
    };
    // Loops without bounds to check: they vectorise.
    match args.pairing {
        RopePairing::Interleaved => {
            for ([x, y], (cos, sin)) in args.head.as_chunks_mut().0.iter_mut().zip(angles) {
                turn(x, y, *cos, *sin);
            }
        }
        RopePairing::Halves => {
            let (first, second) = args.head[..2 * half].split_at_mut(half);
            for ((x, y), (cos, sin)) in first.iter_mut().zip(second).zip(angles) {
                turn(x, y, *cos, *sin);
            }
        }
    }
}

/// `out = f(gate) · up`, whole vectors of any table: the loop has no rest.
macro_rules! activated {
    ($name:ident, $f:ident) => {
        #[doc = concat!("`out = ", stringify!($f), "(gate) · up`, all of one length.")]
        #[inline(always)]
        pub(crate) fn $name<F: Arith>(
            gate: &[[f32; LANES]],
            up: &[[f32; LANES]],
            out: &mut [[f32; LANES]],
        ) {
            let (gate, up) = (gate.as_flattened(), up.as_flattened());
            for ((out, gate), up) in out.as_flattened_mut().iter_mut().zip(gate).zip(up) {
                *out = $f::<F>(*gate) * up;
            }
        }
    };
}

activated!(silu_mul, silu);
activated!(gelu_mul, gelu);
activated!(gelu_erf_mul, gelu_erf);

/// `x = sigmoid(x)`.
#[inline(always)]
pub(crate) fn sigmoid<F: Arith>(x: &mut [[f32; LANES]]) {
    for x in x.as_flattened_mut() {
        *x = contract::sigmoid::<F>(*x);
    }
}

/// `out = fma(scale, x, out)`.
#[inline(always)]
pub(crate) fn add_scaled<F: Arith>(scale: f32, x: &[f32], out: &mut [f32]) {
    for (out, x) in out.iter_mut().zip(x) {
        *out = F::fma(scale, *x, *out);
    }
}

/// `x = cap · tanh(x / cap)`.
#[inline(always)]
pub(crate) fn soft_cap<F: Arith>(x: &mut [[f32; LANES]], cap: f32) {
    let inverse = 1.0 / cap;
    for x in x.as_flattened_mut() {
        *x = contract::soft_cap::<F>(*x, cap, inverse);
    }
}
