//! Matrix product: activation rows × panels, every weight type.
//!
//! A group of 256 columns of one panel is unpacked to plain lines once and then multiplied with
//! a tile of tokens. Float types have no lines: a column of 16 weights is the vector.
//!
//! Rows in panels are read in place; the rows behind the last panel (`tail`) are packed into a
//! panel on the way, group by group, so that both meet the same code.
//!
//! Each family of types has a module of its own: a scale per 32 columns (`block`), exact sums
//! over 256 columns (`super_block`), floats (`float`), and what is dequantised first (`raw`).

mod block;
mod float;
mod raw;
mod super_block;
mod tail;

pub(crate) use tail::tail;

use crate::activation::ActivationLayout;
use crate::contract::{Arith, GROUP};
use crate::panel::{LINE_BYTES, PANEL_ROWS, PanelFormat};
use crate::table::{Matmul, Store};

/// Sums of 16 rows.
type Lanes = [f32; PANEL_ROWS];
/// A group's codes as byte lines.
type Lines = [[u8; LINE_BYTES]; GROUP / 4];

/// `out[token][row] = Σ weight · activation`, or that added to `out`, for rows in panels.
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
    // SAFETY: by the caller's contract.
    unsafe { store(args, row, n_rows, token, &acc) };
}

/// Writes or adds the sums of `n_rows` rows from `row` on, for as many tokens as `acc` has.
///
/// # Safety
/// - As [`matmul`], for those rows and tokens from `token` on.
#[inline(always)]
unsafe fn store(args: &Matmul<'_>, row: usize, n_rows: usize, token: usize, acc: &[Lanes]) {
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
pub(crate) trait GroupKernel: PanelFormat {
    /// Adds the products to `acc`, group by group: a panel of the next group's columns goes on
    /// where this one ends.
    fn panel<F: Arith, const T: usize>(
        panel: &[u8],
        n_cols: usize,
        layout: &ActivationLayout,
        rows: &[&[u8]; T],
        acc: &mut [Lanes; T],
    );
}

/// `acc = fma(1, t, acc)`: float activations have no scale.
#[inline(always)]
fn add_groups<const T: usize>(acc: &mut [Lanes; T], sum: &[Lanes; T]) {
    for (acc, sum) in acc.iter_mut().zip(sum) {
        for (acc, sum) in acc.iter_mut().zip(sum) {
            *acc += *sum;
        }
    }
}

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

/// Splits a line of codes of `BITS` bits into its byte lines.
#[inline(always)]
fn split<const BITS: usize>(line: &[u8], out: &mut [[u8; LINE_BYTES]]) {
    let line: &[u8; LINE_BYTES] = line.first_chunk().expect("whole lines");
    for (step, out) in out[..8 / BITS].iter_mut().enumerate() {
        *out = line.map(|b| b >> (BITS * step) & 0xff >> (8 - BITS));
    }
}

/// Adds a line of `BITS` upper bits to the byte lines of its columns, `shift` bits up.
#[inline(always)]
fn add_high<const BITS: usize>(line: &[u8], shift: usize, out: &mut [[u8; LINE_BYTES]]) {
    let line: &[u8; LINE_BYTES] = line.first_chunk().expect("whole lines");
    for (step, out) in out[..8 / BITS].iter_mut().enumerate() {
        for (code, high) in out.iter_mut().zip(line) {
            *code |= (high >> (BITS * step) & 0xff >> (8 - BITS)) << shift;
        }
    }
}

/// Numbers -128..128 as unsigned bytes, 128 larger: what a lookup gives to [`dot`].
const fn unsigned(values: &[i8; 16]) -> [u8; 16] {
    let mut table = [0; 16];
    let mut i = 0;
    while i < 16 {
        table[i] = values[i].cast_unsigned() ^ 0x80;
        i += 1;
    }
    table
}
