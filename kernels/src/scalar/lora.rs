//! Products of adapters, in lanes of 16 outputs: of floats in sums of every fourth column, of int8 in exact integers.

use crate::contract::{Arith, GROUP, LANES};
use crate::lora::{
    LoraDown, LoraMatrix, LoraType, LoraUp, OFFSET, PART, SCALES_BYTES, factor_numbers,
};
use crate::panel::LINE_BYTES;
use core::ops::Range;

/// Sums over columns, of every fourth.
type Sums = [[f32; LANES]; 4];

/// `out = A · x` of some columns.
///
/// # Safety
/// - The operands are as [`crate::KernelTable::lora_down`] checks them; its caller vouches for `out`.
#[inline(always)]
pub(crate) unsafe fn down<F: Arith>(args: &LoraDown<'_>) {
    for panel in args.panels.start..args.panels.end {
        for token in args.tokens.start..args.tokens.end {
            let mut all = [0f32; LANES];
            let mut start = args.columns.start;
            while start < args.columns.end {
                let end = (start + PART).min(args.columns.end);
                let sum = part::<F>(args, panel, token, start..end);
                match start == args.columns.start {
                    true => all = sum,
                    false => all.iter_mut().zip(sum).for_each(|(x, sum)| *x += sum),
                }
                start = end;
            }
            let at = (token - args.tokens.start) * args.out_stride;
            let at = at + (panel - args.panels.start) * LANES;
            let out = args.out.wrapping_add(at).cast::<[f32; LANES]>();
            // SAFETY: a panel's outputs of a token, by the caller.
            unsafe { out.write(all) };
        }
    }
}

/// A part of the columns.
#[inline(always)]
fn part<F: Arith>(
    args: &LoraDown<'_>,
    panel: usize,
    token: usize,
    columns: Range<usize>,
) -> [f32; LANES] {
    let (matrix, acts) = (&args.matrix, &args.activations);
    if matrix.ty() != LoraType::Int8 {
        let x = &acts.f32_row(token)[columns.clone()];
        return product::<F>(matrix, panel, columns, x);
    }
    let row = &acts.bytes[token * acts.layout.row_bytes()..];
    let mut out = [0f32; LANES];
    for start in columns.clone().step_by(GROUP) {
        let n = GROUP.min(columns.end - start);
        let (numbers, codes) = acts.layout.int8_256(row, start / GROUP);
        let sum: i32 = numbers.sums_of_32.iter().map(|&sum| i32::from(sum)).sum();
        let mut dots = [0i32; LANES];
        for (line, codes) in codes.as_chunks::<4>().0[..n.div_ceil(4)].iter().enumerate() {
            F::dot4_lanes(line_of(matrix, panel, start / 4 + line), *codes, &mut dots);
        }
        let dots = dots.map(|dot| (dot - OFFSET * sum) as f32);
        F::fma_lanes(numbers.d, &dots, &mut out);
    }
    out.iter_mut()
        .zip(scales(matrix, panel))
        .for_each(|(x, d)| *x *= d);
    out
}

/// `out += B · t`.
///
/// # Safety
/// - As [`down`], of [`crate::KernelTable::lora_up`].
#[inline(always)]
pub(crate) unsafe fn up<F: Arith>(args: &LoraUp<'_>) {
    let rank = args.matrix.n_cols();
    for first in (args.rows.start..args.rows.end).step_by(LANES) {
        let panel = first / LANES;
        let n = (args.rows.end - first).min(LANES);
        for token in 0..args.n_tokens {
            let t = &args.t[token * args.t_stride..][..rank.next_multiple_of(LANES)];
            let at = token * args.out_stride + first - args.rows.start;
            // SAFETY: outputs of a token, by the caller.
            let out = unsafe { core::slice::from_raw_parts_mut(args.out.wrapping_add(at), n) };
            if args.matrix.ty() == LoraType::Int8 {
                add_int8::<F>(&args.matrix, panel, t, out);
                continue;
            }
            let sum = product::<F>(&args.matrix, panel, 0..rank, &t[..rank]);
            out.iter_mut().zip(sum).for_each(|(y, sum)| *y += sum);
        }
    }
}

/// Adds the products of rounded factors.
#[inline(always)]
fn add_int8<F: Arith>(matrix: &LoraMatrix<'_>, panel: usize, t: &[f32], out: &mut [f32]) {
    let (d_t, sum) = factor_numbers(t);
    let mut dots = [0i32; LANES];
    for (line, codes) in t[..matrix.n_cols().div_ceil(4)].iter().enumerate() {
        let codes = codes.to_bits().to_le_bytes().map(u8::cast_signed);
        F::dot4_lanes(line_of(matrix, panel, line), codes, &mut dots);
    }
    let d = scales(matrix, panel);
    for (lane, y) in out.iter_mut().enumerate() {
        *y = F::fma(d[lane] * d_t, (dots[lane] - OFFSET * sum) as f32, *y);
    }
}

/// Four columns of a panel of int8.
#[inline(always)]
fn line_of<'m>(matrix: &LoraMatrix<'m>, panel: usize, line: usize) -> &'m [u8; LINE_BYTES] {
    let bytes = matrix.panels(panel..panel + 1);
    let line = bytes[line * LINE_BYTES..].first_chunk();
    line.expect("lines are whole")
}

/// Products of some columns of a panel of floats.
#[inline(always)]
fn product<F: Arith>(
    matrix: &LoraMatrix<'_>,
    panel: usize,
    columns: Range<usize>,
    x: &[f32],
) -> [f32; LANES] {
    let mut sums: Sums = [[0.0; _]; _];
    let bytes = matrix.panels(panel..panel + 1);
    for (i, (k, x)) in columns.zip(x).enumerate() {
        F::fma_lanes(*x, &column::<F>(matrix.ty(), bytes, k), &mut sums[i % 4]);
    }
    core::array::from_fn(|l| (sums[0][l] + sums[2][l]) + (sums[1][l] + sums[3][l]))
}

/// A column of floats.
#[inline(always)]
fn column<F: Arith>(ty: LoraType, panel: &[u8], k: usize) -> [f32; LANES] {
    let n = LANES * ty.element_bytes();
    let at = &panel[k * n..][..n];
    match ty {
        LoraType::Bf16 => bf16(at),
        LoraType::F16 => F::halves(at.first_chunk().expect("16 halves")),
        LoraType::F32 => {
            let at = at.as_chunks::<4>().0;
            core::array::from_fn(|l| f32::from_le_bytes(at[l]))
        }
        LoraType::Int8 => unreachable!("has lines"),
    }
}

#[inline(always)]
fn bf16(at: &[u8]) -> [f32; LANES] {
    let at = at.as_chunks::<2>().0;
    core::array::from_fn(|l| f32::from_bits(u32::from(u16::from_le_bytes(at[l])) << 16))
}

/// The scales of the rows of a panel of int8.
#[inline(always)]
fn scales(matrix: &LoraMatrix<'_>, panel: usize) -> [f32; LANES] {
    let bytes = matrix.panels(panel..panel + 1);
    bf16(&bytes[bytes.len() - SCALES_BYTES..])
}
