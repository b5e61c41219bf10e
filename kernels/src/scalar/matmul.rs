//! Matrix product: activation rows × panels, every weight type.
//!
//! A group of 256 columns of one panel is unpacked to plain lines once and then multiplied with
//! a tile of tokens. Float types have no lines: a column of 16 weights is the vector.

use crate::activation::{ActivationLayout, SUM_COLS};
use crate::contract::{Arith, GROUP, flush};
use crate::half::bf16_to_f32;
use crate::panel::{self, LINE_BYTES, PANEL_ROWS, PanelFormat, q4_k, q6_k};
use crate::table::{Matmul, Store};

/// Sums of 16 rows.
type Lanes = [f32; PANEL_ROWS];
/// A group's codes as byte lines.
type Lines = [[u8; LINE_BYTES]; GROUP / 4];

/// `out[token][row] = Σ weight · activation`, or that added to `out`.
///
/// # Safety
/// - `args.out` is writable for `args.tokens × args.rows` with `args.out_stride`, and nobody
///   else accesses those elements meanwhile.
#[inline(always)]
pub(crate) unsafe fn matmul<F: Arith, K: GroupKernel>(args: &Matmul<'_>) {
    const TILE: usize = 4;
    let mut row = args.rows.start;
    while row < args.rows.end {
        let panel = &args.panels[row / PANEL_ROWS * args.layout.panel_bytes()..]
            [..args.layout.panel_bytes()];
        let n_rows = (args.rows.end - row).min(PANEL_ROWS);
        let mut token = args.tokens.start;
        while token < args.tokens.end {
            if args.tokens.end - token >= TILE {
                // SAFETY: rows and tokens lie within args; by the caller's contract.
                unsafe { tile::<F, K, TILE>(args, panel, row, n_rows, token) };
                token += TILE;
            } else {
                // SAFETY: as above.
                unsafe { tile::<F, K, 1>(args, panel, row, n_rows, token) };
                token += 1;
            }
        }
        row += PANEL_ROWS;
    }
}

/// One panel × `T` tokens.
///
/// # Safety
/// - As [`matmul`], for rows `row..row + n_rows` and tokens `token..token + T`.
#[inline(always)]
unsafe fn tile<F: Arith, K: GroupKernel, const T: usize>(
    args: &Matmul<'_>,
    panel: &[u8],
    row: usize,
    n_rows: usize,
    token: usize,
) {
    let acts = args.activations;
    let bytes: [&[u8]; T] =
        core::array::from_fn(|t| &acts.bytes[(token + t) * acts.layout.row_bytes()..]);
    let mut acc = [[0f32; PANEL_ROWS]; T];
    K::panel::<F, T>(panel, args.layout.n_cols(), &acts.layout, &bytes, &mut acc);
    for (t, acc) in acc.iter().enumerate() {
        let at = (token + t - args.tokens.start) * args.out_stride + row - args.rows.start;
        let out = args.out.wrapping_add(at);
        for (row, sum) in acc[..n_rows].iter().enumerate() {
            let out = out.wrapping_add(row);
            let before = match args.store {
                Store::Set => None,
                // SAFETY: the caller vouches for this element of `out`.
                Store::Add => Some(unsafe { out.read() }),
            };
            let sum = before.map_or(*sum, |before| before + *sum);
            // SAFETY: as above.
            unsafe { out.write(sum) };
        }
    }
}

/// How one weight type multiplies a panel with `T` activation rows.
pub(crate) trait GroupKernel {
    /// Adds the products to `acc`, group by group.
    fn panel<F: Arith, const T: usize>(
        panel: &[u8],
        n_cols: usize,
        layout: &ActivationLayout,
        rows: &[&[u8]; T],
        acc: &mut [Lanes; T],
    );
}

/// A type with small unsigned codes that sums exactly over a group.
trait IntegerFormat: PanelFormat {
    /// Unpacks group `g` into byte lines; lines past the row's end are left alone.
    fn unpack(panel: &[u8], n_cols: usize, g: usize, lines: &mut Lines);

    /// The group's sum `t` in units of the activation scale (see [`crate::contract`]).
    fn group<F: Arith>(
        panel: &[u8],
        n_cols: usize,
        g: usize,
        lines: &Lines,
        q: &[i8; GROUP],
        sums: &[i16; GROUP / SUM_COLS],
    ) -> Lanes;
}

macro_rules! integer_kernels {
    ($($format:ty),*) => {$(
        impl GroupKernel for $format {
            #[inline(always)]
            fn panel<F: Arith, const T: usize>(
                panel: &[u8],
                n_cols: usize,
                layout: &ActivationLayout,
                rows: &[&[u8]; T],
                acc: &mut [Lanes; T],
            ) {
                let mut lines = [[0; LINE_BYTES]; GROUP / 4];
                for g in 0..n_cols.div_ceil(GROUP) {
                    <$format>::unpack(panel, n_cols, g, &mut lines);
                    for (row, acc) in rows.iter().zip(&mut *acc) {
                        let (d, q, sums) = layout.int8_256(row, g);
                        let t = <$format>::group::<F>(panel, n_cols, g, &lines, q, sums);
                        for (acc, t) in acc.iter_mut().zip(t) {
                            *acc = F::fma(d, t, *acc);
                        }
                    }
                }
            }
        }
    )*};
}

integer_kernels!(panel::Q4K, panel::Q6K);

/// A type with small unsigned codes and one scale per 32 columns.
trait BlockFormat: PanelFormat {
    /// How much the codes are too large.
    const OFFSET: i32;

    /// Unpacks group `g` into byte lines; lines past the row's end are left alone.
    fn unpack(panel: &[u8], n_cols: usize, g: usize, lines: &mut Lines);

    /// Where the scales of block `index` are.
    fn scales_at(n_cols: usize, index: usize) -> usize;
}

macro_rules! block_kernels {
    ($($format:ty),*) => {$(
        impl GroupKernel for $format {
            #[inline(always)]
            fn panel<F: Arith, const T: usize>(
                panel: &[u8],
                n_cols: usize,
                layout: &ActivationLayout,
                rows: &[&[u8]; T],
                acc: &mut [Lanes; T],
            ) {
                let mut lines = [[0; LINE_BYTES]; GROUP / 4];
                for g in 0..n_cols.div_ceil(GROUP) {
                    <$format>::unpack(panel, n_cols, g, &mut lines);
                    for b in 0..blocks_in_group(n_cols, g) {
                        let d_w = halves::<F>(panel, <$format>::scales_at(n_cols, 8 * g + b));
                        let lines = &lines[8 * b..8 * b + 8];
                        for (row, acc) in rows.iter().zip(&mut *acc) {
                            let (d, q, sums) = layout.int8_32(row, g);
                            let s = dot::<F>(lines, &q[32 * b..32 * b + 32]);
                            let q_sum = i32::from(sums[2 * b]) + i32::from(sums[2 * b + 1]);
                            let correction = <$format>::OFFSET * q_sum;
                            F::add_scaled_lanes(&d_w, d[b], &s, correction, acc);
                        }
                    }
                }
            }
        }
    )*};
}

block_kernels!(panel::Q8_0, panel::Q4_0);

/// Exact dot product of `lines` (4 columns each) with as many codes.
#[inline(always)]
fn dot<F: Arith>(lines: &[[u8; LINE_BYTES]], q: &[i8]) -> [i32; PANEL_ROWS] {
    let mut sum = [0i32; PANEL_ROWS];
    for (line, q) in lines.iter().zip(q.as_chunks::<4>().0) {
        F::dot4_lanes(line, *q, &mut sum);
    }
    sum
}

/// The f16 numbers of 16 rows at `at`.
#[inline(always)]
fn halves<F: Arith>(bytes: &[u8], at: usize) -> Lanes {
    F::halves(bytes[at..].first_chunk().expect("16 halves"))
}

/// `sum` as f32, to nearest even.
#[inline(always)]
#[expect(
    clippy::cast_precision_loss,
    reason = "the contract rounds to nearest here"
)]
const fn float(sum: i32) -> f32 {
    sum as f32
}

/// Splits a nibble line into its two byte lines.
#[inline(always)]
fn split_nibbles(line: &[u8], out: &mut [[u8; LINE_BYTES]]) {
    let line: &[u8; LINE_BYTES] = line.first_chunk().expect("whole lines");
    out[0] = line.map(|b| b & 0xf);
    out[1] = line.map(|b| b >> 4);
}

/// The blocks of 32 columns in group `g`.
#[inline(always)]
fn blocks_in_group(n_cols: usize, g: usize) -> usize {
    ((n_cols - g * GROUP) / 32).min(8)
}

impl BlockFormat for panel::Q8_0 {
    const OFFSET: i32 = 128;

    #[inline(always)]
    fn unpack(panel: &[u8], n_cols: usize, g: usize, lines: &mut Lines) {
        let (_, at) = Self::at(n_cols, 8 * g);
        let n_lines = 8 * blocks_in_group(n_cols, g);
        let (from, _) = panel[at..].as_chunks::<LINE_BYTES>();
        lines[..n_lines].copy_from_slice(&from[..n_lines]);
    }

    #[inline(always)]
    fn scales_at(n_cols: usize, index: usize) -> usize {
        Self::at(n_cols, index).0
    }
}

impl BlockFormat for panel::Q4_0 {
    const OFFSET: i32 = 8;

    #[inline(always)]
    fn unpack(panel: &[u8], n_cols: usize, g: usize, lines: &mut Lines) {
        let (_, at) = Self::at(n_cols, 8 * g);
        for s in 0..4 * blocks_in_group(n_cols, g) {
            split_nibbles(&panel[at + s * LINE_BYTES..], &mut lines[2 * s..2 * s + 2]);
        }
    }

    #[inline(always)]
    fn scales_at(n_cols: usize, index: usize) -> usize {
        Self::at(n_cols, index).0
    }
}

impl IntegerFormat for panel::Q4K {
    #[inline(always)]
    fn unpack(panel: &[u8], _: usize, g: usize, lines: &mut Lines) {
        let from = &panel[g * q4_k::SUPER_BLOCK + q4_k::LINES..];
        for s in 0..32 {
            split_nibbles(&from[s * LINE_BYTES..], &mut lines[2 * s..2 * s + 2]);
        }
    }

    #[inline(always)]
    fn group<F: Arith>(
        panel: &[u8],
        _: usize,
        g: usize,
        lines: &Lines,
        q: &[i8; GROUP],
        sums: &[i16; GROUP / SUM_COLS],
    ) -> Lanes {
        let from = panel[g * q4_k::SUPER_BLOCK..]
            .first_chunk()
            .expect("whole super-blocks");
        let (mut sum, mut min_sum) = ([0i32; PANEL_ROWS], [0i32; PANEL_ROWS]);
        for s in 0..8 {
            let dots = dot::<F>(&lines[8 * s..8 * s + 8], &q[32 * s..32 * s + 32]);
            let q_sum = i32::from(sums[2 * s]) + i32::from(sums[2 * s + 1]);
            for row in 0..PANEL_ROWS {
                let (scale, min) = Self::scale_min(from, s, row);
                sum[row] += i32::from(scale) * dots[row];
                min_sum[row] += i32::from(min) * q_sum;
            }
        }
        let (d, dmin) = (halves::<F>(from, 0), halves::<F>(from, q4_k::DMIN));
        core::array::from_fn(|row| {
            let t = F::fma(d[row], float(sum[row]), 0.0);
            F::fma(-dmin[row], float(min_sum[row]), t)
        })
    }
}

impl IntegerFormat for panel::Q6K {
    #[inline(always)]
    fn unpack(panel: &[u8], n_cols: usize, g: usize, lines: &mut Lines) {
        let from = &panel[Self::head_bytes(n_cols) + g * q6_k::SUPER_BLOCK + q6_k::LINES..];
        for s in 0..16 {
            let (sub, lines) = (&from[s * q6_k::SUB_BLOCK..], &mut lines[4 * s..4 * s + 4]);
            split_nibbles(sub, &mut lines[..2]);
            split_nibbles(&sub[LINE_BYTES..], &mut lines[2..]);
            let high: &[u8; LINE_BYTES] = sub[q6_k::HIGH..].first_chunk().expect("whole lines");
            for (step, line) in lines.iter_mut().enumerate() {
                for (code, high) in line.iter_mut().zip(high) {
                    *code |= (high >> (2 * step) & 3) << 4;
                }
            }
        }
    }

    #[inline(always)]
    fn group<F: Arith>(
        panel: &[u8],
        n_cols: usize,
        g: usize,
        lines: &Lines,
        q: &[i8; GROUP],
        sums: &[i16; GROUP / SUM_COLS],
    ) -> Lanes {
        let from = &panel[Self::head_bytes(n_cols) + g * q6_k::SUPER_BLOCK..];
        let mut sum = [0i32; PANEL_ROWS];
        for s in 0..16 {
            let dots = dot::<F>(&lines[4 * s..4 * s + 4], &q[16 * s..16 * s + 16]);
            let scales: &[u8; PANEL_ROWS] = from[16 * s..].first_chunk().expect("16 scales");
            for row in 0..PANEL_ROWS {
                let scale = i32::from(scales[row].cast_signed());
                sum[row] += scale * (dots[row] - 32 * i32::from(sums[s]));
            }
        }
        let d = halves::<F>(panel, g * 2 * PANEL_ROWS);
        core::array::from_fn(|row| F::fma(d[row], float(sum[row]), 0.0))
    }
}

/// A column of 16 weights.
trait FloatFormat: PanelFormat {
    fn column<F: Arith>(panel: &[u8], col: usize) -> Lanes;
}

impl FloatFormat for panel::F32 {
    #[inline(always)]
    fn column<F: Arith>(panel: &[u8], col: usize) -> Lanes {
        let bytes: &[u8; 64] = panel[col * 64..].first_chunk().expect("whole columns");
        core::array::from_fn(|row| {
            f32::from_le_bytes(*bytes[4 * row..].first_chunk().expect("16 floats"))
        })
    }
}

impl FloatFormat for panel::F16 {
    #[inline(always)]
    fn column<F: Arith>(panel: &[u8], col: usize) -> Lanes {
        halves::<F>(panel, col * 2 * PANEL_ROWS)
    }
}

macro_rules! float_kernels {
    ($($format:ty),*) => {$(
        impl GroupKernel for $format {
            #[inline(always)]
            fn panel<F: Arith, const T: usize>(
                panel: &[u8],
                n_cols: usize,
                layout: &ActivationLayout,
                rows: &[&[u8]; T],
                acc: &mut [Lanes; T],
            ) {
                let x: [&[f32]; T] = core::array::from_fn(|t| layout.f32(rows[t]));
                for start in (0..n_cols).step_by(GROUP) {
                    let mut sum = [[0f32; PANEL_ROWS]; T];
                    for col in start..n_cols.min(start + GROUP) {
                        let w = <$format>::column::<F>(panel, col);
                        for (sum, x) in sum.iter_mut().zip(&x) {
                            F::fma_lanes(x[col], &w, sum);
                        }
                    }
                    add_groups(acc, &sum);
                }
            }
        }
    )*};
}

float_kernels!(panel::F32, panel::F16);

/// `acc = fma(1, t, acc)`: float activations have no scale.
#[inline(always)]
fn add_groups<const T: usize>(acc: &mut [Lanes; T], sum: &[Lanes; T]) {
    for (acc, sum) in acc.iter_mut().zip(sum) {
        for (acc, sum) in acc.iter_mut().zip(sum) {
            *acc += *sum;
        }
    }
}

impl GroupKernel for panel::Bf16 {
    #[inline(always)]
    fn panel<F: Arith, const T: usize>(
        panel: &[u8],
        n_cols: usize,
        layout: &ActivationLayout,
        rows: &[&[u8]; T],
        acc: &mut [Lanes; T],
    ) {
        let x: [&[u16]; T] = core::array::from_fn(|t| layout.bf16(rows[t]));
        let (lines, _) = panel.as_chunks::<LINE_BYTES>();
        for (g, lines) in lines[..n_cols.div_ceil(2)].chunks(GROUP / 2).enumerate() {
            let mut sum = [[0f32; PANEL_ROWS]; T];
            for (i, line) in lines.iter().enumerate() {
                let col = g * GROUP + 2 * i;
                let w = F::bf16_pairs(line);
                for (sum, x) in sum.iter_mut().zip(&x) {
                    let x = [x[col], x[col + 1]].map(|x| flush(bf16_to_f32(x)));
                    F::bf16_step_lanes(x, &w, sum);
                }
            }
            add_groups(acc, &sum);
        }
    }
}
