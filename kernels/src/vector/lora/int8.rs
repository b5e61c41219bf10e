//! Int8: exact dot products of four columns at a time.
#![allow(
    clippy::multiple_unsafe_ops_per_block,
    reason = "a kernel's safety argument is one: pointers stay inside operands that were checked"
)]

use super::super::attention::Vector;
use super::{Bf16, Kind, change, elements};
use crate::contract::{GROUP, LANES};
use crate::lora::{LoraDown, LoraUp, OFFSET, PART, factor_numbers};
use crate::panel::LINE_BYTES;

/// The correction to add to dots of codes with their offset; `sum` is the sum of the other operand's codes.
#[inline(always)]
const fn less(sum: i32) -> u32 {
    (-OFFSET * sum).cast_unsigned()
}

/// Codes of a byte, with a scale for each row.
pub(super) struct Int8;

impl Kind for Int8 {
    const JOINS_PANELS: bool = true;

    #[inline(always)]
    unsafe fn tokens_down<V: Vector, const N: usize, const T: usize>(
        args: &LoraDown<'_>,
        panel: *const u8,
        token: usize,
        out: *mut f32,
    ) -> usize {
        let (layout, bytes) = (&args.activations.layout, args.activations.bytes);
        let rows: [&[u8]; T] = core::array::from_fn(|t| {
            &bytes[(token + t) * layout.row_bytes()..][..layout.row_bytes()]
        });
        let scales = panel.wrapping_add(args.matrix.n_cols().div_ceil(4) * LINE_BYTES);
        // SAFETY: the scales of a panel follow its lines.
        let d_w = unsafe { elements::<V, Bf16, N>(scales) };
        let mut all = [[V::splat(0.0); N]; T];
        let mut start = args.columns.start;
        while start < args.columns.end {
            let end = (start + PART).min(args.columns.end);
            let mut sums = [[V::splat(0.0); N]; T];
            for first in (start..end).step_by(GROUP) {
                let n = GROUP.min(end - first).div_ceil(4);
                let groups = rows.map(|row| layout.int8_256(row, first / GROUP));
                let q = groups.map(|(_, codes)| codes.as_ptr().cast::<u32>());
                let at = panel.wrapping_add(first / 4 * LINE_BYTES);
                // SAFETY: lines of the panel, and codes of whole groups.
                let dots = unsafe { product::<V, N, T>(at, q, n) };
                for ((sums, dots), (numbers, _)) in sums.iter_mut().zip(dots).zip(groups) {
                    let sum: i32 = numbers.sums_of_32.iter().map(|&sum| i32::from(sum)).sum();
                    let (d, less) = (V::splat(numbers.d), less(sum));
                    for (sum, dot) in sums.iter_mut().zip(dots) {
                        let dot = V::to_float(V::add_int(dot, V::splat_int(less)));
                        *sum = V::fma(d, dot, *sum);
                    }
                }
            }
            for (all, sums) in all.iter_mut().zip(sums) {
                for ((all, sum), d) in all.iter_mut().zip(sums).zip(d_w) {
                    let sum = V::mul(sum, d);
                    *all = match start == args.columns.start {
                        true => sum,
                        false => V::add(*all, sum),
                    };
                }
            }
            start = end;
        }
        for (t, sums) in all.iter().enumerate() {
            for (v, sum) in sums.iter().enumerate() {
                // SAFETY: the outputs of a panel and a token, by the caller.
                unsafe { V::store(*sum, out.wrapping_add(t * args.out_stride + v * V::WIDTH)) };
            }
        }
        T
    }

    #[inline(always)]
    unsafe fn tokens_up<V: Vector, const N: usize, const T: usize, const P: usize>(
        args: &LoraUp<'_>,
        panels: *const u8,
        token: usize,
        out: *mut f32,
        n: usize,
    ) {
        let (rank, panel_bytes) = (args.matrix.n_cols(), args.matrix.panel_bytes());
        let t: [&[f32]; T] = core::array::from_fn(|t| {
            &args.t[(token + t) * args.t_stride..][..rank.next_multiple_of(LANES)]
        });
        let n_lines = rank.div_ceil(4);
        let numbers = t.map(factor_numbers);
        let q = t.map(|t| t.as_ptr().cast::<u32>());
        // A chain for each panel and token: they fill each other's gaps.
        let mut dots = [numbers.map(|(_, sum)| [V::splat_int(less(sum)); N]); P];
        for line in 0..n_lines {
            for (p, dots) in dots.iter_mut().enumerate() {
                let panel = panels.wrapping_add(p * panel_bytes);
                // SAFETY: lines of the panel, and as many words of codes.
                unsafe { add_line::<V, N, T>(panel, q, line, dots) };
            }
        }
        for (p, dots) in dots.into_iter().enumerate() {
            let scales = panels.wrapping_add(p * panel_bytes + n_lines * LINE_BYTES);
            // SAFETY: the scales of a panel follow its lines.
            let d_w = unsafe { elements::<V, Bf16, N>(scales) };
            for (i, (dots, (d_t, _))) in dots.into_iter().zip(numbers).enumerate() {
                let add = |v: usize, y| {
                    let d = V::mul(d_w[v], V::splat(d_t));
                    V::fma(d, V::to_float(dots[v]), y)
                };
                let out = out.wrapping_add((token + i) * args.out_stride + p * LANES);
                // SAFETY: outputs of a token, as many as there are, by the caller.
                unsafe { change::<V, N>(out, n - p * LANES, add) };
            }
        }
    }
}

/// Dot products of `n` lines of a panel with `T` rows of codes, four in a word.
///
/// # Safety
/// - The CPU has what `V` needs; `n` lines and `n` words of each row are readable.
#[inline(always)]
unsafe fn product<V: Vector, const N: usize, const T: usize>(
    panel: *const u8,
    q: [*const u32; T],
    n: usize,
) -> [[V::I; N]; T] {
    let mut sums = [[[V::splat_int(0); N]; T]; 4];
    let whole = n / 4 * 4;
    let mut line = 0;
    while line < whole {
        for (j, sums) in sums.iter_mut().enumerate() {
            // SAFETY: line + j is below n.
            unsafe { add_line::<V, N, T>(panel, q, line + j, sums) };
        }
        line += 4;
    }
    for (j, sums) in sums.iter_mut().enumerate().take(n - whole) {
        // SAFETY: as above.
        unsafe { add_line::<V, N, T>(panel, q, whole + j, sums) };
    }
    let mut out = sums[0];
    for (t, out) in out.iter_mut().enumerate() {
        for (v, out) in out.iter_mut().enumerate() {
            let others = V::add_int(sums[2][t][v], sums[3][t][v]);
            *out = V::add_int(V::add_int(*out, sums[1][t][v]), others);
        }
    }
    out
}

/// # Safety
/// - As [`product`]; there is a line `line`.
#[inline(always)]
unsafe fn add_line<V: Vector, const N: usize, const T: usize>(
    panel: *const u8,
    q: [*const u32; T],
    line: usize,
    sums: &mut [[V::I; N]; T],
) {
    let at = panel.wrapping_add(line * LINE_BYTES);
    let mut codes = [V::splat_int(0); N];
    for (v, codes) in codes.iter_mut().enumerate() {
        // SAFETY: by the caller.
        *codes = unsafe { V::load_int(at.wrapping_add(4 * v * V::WIDTH)) };
    }
    for (q, sums) in q.into_iter().zip(sums) {
        // SAFETY: by the caller.
        let q = V::splat_int(unsafe { q.wrapping_add(line).read_unaligned() });
        for (sum, codes) in sums.iter_mut().zip(codes) {
            *sum = V::dot4(codes, q, *sum);
        }
    }
}
