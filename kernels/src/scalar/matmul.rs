//! Matrix product: activation rows × panels, every weight type.
//!
//! A group of 256 columns of one panel is unpacked to plain lines once and then multiplied with
//! a tile of tokens. Float types have no lines: a column of 16 weights is the vector.
//!
//! Rows in panels are read in place; the rows after the last panel (`tail`) are packed into a panel on the way, group
//! by group, so that both go through the same code.
//!
//! Each family of types has a module of its own: a scale per 32 columns (`block`), exact sums
//! over 256 columns (`super_block`), floats (`float`), and what is dequantised first (`raw`).

mod block;
mod float;
mod raw;
mod super_block;
mod tail;

pub(crate) use raw::Raw;
pub(crate) use super_block::{IQ4_TABLE, IntegerFormat};
pub(crate) use tail::tail;

use crate::WeightType;
use crate::activation::ActivationLayout;
use crate::args::{Activations, Matmul, Store};
use crate::contract::{Arith, GROUP};
use crate::panel::{LINE_BYTES, PANEL_ROWS};

/// Sums of 16 rows.
pub(crate) type Lanes = [f32; PANEL_ROWS];
/// A group's codes as byte lines.
type Lines = [[u8; LINE_BYTES]; GROUP / 4];

/// Tokens that share the unpacking of a panel.
pub(crate) const TILE: usize = 16;

/// A panel, or some groups of one, and the activation rows that it multiplies.
pub(crate) struct PanelProduct<'a> {
    /// The type of the weights.
    pub(crate) ty: WeightType,
    /// The panel's bytes.
    pub(crate) panel: &'a [u8],
    /// Number of columns of the panel.
    pub(crate) n_cols: usize,
    /// Layout of the activations.
    pub(crate) layout: &'a ActivationLayout,
    /// One activation row for each token, at most [`TILE`].
    pub(crate) rows: &'a [&'a [u8]],
}

/// Adds the products of a panel to `acc`, token by token: [`GroupKernel::panel`] of one type, compiled for one table,
/// or a handwritten kernel. The panel has to be whole, and the rows as long as its columns. What is common to all types
/// ([`matmul`], [`tail`]) is compiled once.
pub(crate) type PanelFn = unsafe fn(&PanelProduct<'_>, acc: &mut [Lanes]);

/// `out[token][row] = Σ weight · activation`, or that added to `out`, for rows in panels.
///
/// # Safety
/// - The CPU has what `kernel` needs.
/// - `args.out` is writable for `args.tokens × args.rows` with `args.out_stride`, and nothing
///   else accesses those elements meanwhile.
pub(crate) unsafe fn matmul(args: &Matmul<'_>, kernel: PanelFn) {
    let acts = &args.activations;
    for row in (args.rows.start..args.rows.end).step_by(PANEL_ROWS) {
        let panel = &args.panels[row / PANEL_ROWS * args.layout.panel_bytes()..]
            [..args.layout.panel_bytes()];
        let n_rows = (args.rows.end - row).min(PANEL_ROWS);
        for token in (args.tokens.start..args.tokens.end).step_by(TILE) {
            let n_tokens = (args.tokens.end - token).min(TILE);
            let rows: [&[u8]; TILE] = rows_from(acts, token, n_tokens);
            let product = PanelProduct {
                ty: args.layout.ty(),
                panel,
                n_cols: args.layout.n_cols(),
                layout: &acts.layout,
                rows: &rows[..n_tokens],
            };
            let mut acc = [[0f32; PANEL_ROWS]; TILE];
            if !args.store.starts() {
                // SAFETY: by the caller's contract.
                unsafe { resume(args, row, n_rows, token, &mut acc[..n_tokens]) };
            }
            // SAFETY: the CPU has what the kernel needs, by the caller.
            unsafe { kernel(&product, &mut acc[..n_tokens]) };
            // SAFETY: rows and tokens lie within args; by the caller's contract.
            unsafe { store(args, row, n_rows, token, &acc[..n_tokens]) };
        }
    }
}

/// Activation rows `token..token + n_tokens`; the remaining slots are empty.
fn rows_from<'a>(acts: &Activations<'a>, token: usize, n_tokens: usize) -> [&'a [u8]; TILE] {
    let row_bytes = acts.layout.row_bytes();
    core::array::from_fn(|t| match t < n_tokens {
        true => &acts.bytes[(token + t) * row_bytes..],
        false => &[],
    })
}

/// Reads the sums of the columns before.
///
/// # Safety
/// - As [`store`]; they are numbers.
unsafe fn resume(args: &Matmul<'_>, row: usize, n_rows: usize, token: usize, acc: &mut [Lanes]) {
    for (t, acc) in acc.iter_mut().enumerate() {
        let at = (token + t - args.tokens.start) * args.out_stride + row - args.rows.start;
        for (row, sum) in acc[..n_rows].iter_mut().enumerate() {
            // SAFETY: the caller vouches for this element of `out`.
            *sum = unsafe { args.out.wrapping_add(at + row).read() };
        }
    }
}

/// Writes or adds the sums of `n_rows` rows from `row` on, for as many tokens as `acc` has.
///
/// # Safety
/// - As [`matmul`], for those rows and tokens from `token` on.
unsafe fn store(args: &Matmul<'_>, row: usize, n_rows: usize, token: usize, acc: &[Lanes]) {
    for (t, acc) in acc.iter().enumerate() {
        let at = (token + t - args.tokens.start) * args.out_stride + row - args.rows.start;
        let out = args.out.wrapping_add(at);
        for (row, sum) in acc[..n_rows].iter().enumerate() {
            let out = out.wrapping_add(row);
            let before = match args.store {
                Store::Set | Store::Continue => None,
                // SAFETY: the caller vouches for this element of `out`.
                Store::Add => Some(unsafe { out.read() }),
            };
            let sum = before.map_or(*sum, |before| before + *sum);
            // SAFETY: as above.
            unsafe { out.write(sum) };
        }
    }
}

/// How one weight type multiplies a panel with some activation rows.
pub(crate) trait GroupKernel {
    /// Adds the products to `acc`, group by group: a panel of the next group's columns continues where this one ends.
    fn panel<F: Arith>(product: &PanelProduct<'_>, acc: &mut [Lanes]);
}

/// `acc = fma(1, t, acc)`: float activations have no scale.
#[inline(always)]
fn add_groups(acc: &mut [Lanes], sum: &[Lanes]) {
    for (acc, sum) in acc.iter_mut().zip(sum) {
        for (acc, sum) in acc.iter_mut().zip(sum) {
            *acc += *sum;
        }
    }
}

/// The f16 numbers of 16 rows at `at`.
#[inline(always)]
fn halves<F: Arith>(bytes: &[u8], at: usize) -> Lanes {
    F::halves(bytes[at..].first_chunk().expect("16 halves"))
}

/// The exact dot products of `N` lines of codes with as many columns of a token, four a line.
#[inline(always)]
fn dots<F: Arith, const N: usize>(
    lines: &[[u8; LINE_BYTES]; N],
    q: &[[i8; 4]; N],
) -> [i32; PANEL_ROWS] {
    let mut sum = [0; PANEL_ROWS];
    for (line, q) in lines.iter().zip(q) {
        F::dot4_lanes(line, *q, &mut sum);
    }
    sum
}

/// The table's entry for each code, 0..16.
#[inline(always)]
fn lookup(table: &[u8; 16], codes: &[u8; LINE_BYTES]) -> [u8; LINE_BYTES] {
    codes.map(|code| table[usize::from(code & 0xf)])
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
