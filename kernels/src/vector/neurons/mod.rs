//! Products that read only the columns whose activation codes are not 0, of matrices in
//! [`Form::Neurons`](crate::neuron::Form).
//!
//! A chunk of 128 outputs at a time: the exact dots of each sub-block, four columns interleaved into lines of panels; then
//! the scales of all sub-blocks, in the order and with the operations of the dense product. A code of 0 adds nothing to
//! an exact sum, so both have the same bits.
#![allow(
    clippy::multiple_unsafe_ops_per_block,
    reason = "a kernel's safety argument is one: pointers stay inside operands that were checked"
)]

mod active;
pub(crate) mod finish;
mod kernels;

pub(crate) use active::Four;
pub(crate) use kernels::skip_kernels;

use super::rows::Int8Rows;
use super::unpack::Line;
use crate::activation::BLOCK_COLS;
use crate::args::{Matmul, Store};
use crate::contract::GROUP;
use crate::neuron::Chunks;
use crate::panel::PANEL_ROWS;
use crate::panel::form::{CHUNK, group_cols};
use crate::prefetch::{prefetch_line_to_l2, prefetch_to_l2};
use active::Active;
use finish::{FinishFn, SubBlocks, sum};

/// What these products need of vectors that hold a line.
pub(crate) trait NeuronLine: Line {
    /// Interleaves the bytes of four vectors within each 16 bytes: of `c[0][p], c[1][p], c[2][p], c[3][p]` for
    /// position `p = 16 k + 4 q + l`, vector `q` has in 32-bit lane `4 k + l`.
    fn interleave(columns: [Self; 4]) -> [Self; 4];

    /// Adds the dots of unsigned bytes with the four signed bytes of `q`, in every 32-bit lane.
    fn dot(self, codes: Self, q: i32) -> Self;

    /// The same integer in every lane.
    fn ints(n: i32) -> Self;

    /// `self + a · b` in integers of 32 bits.
    fn add_product(self, a: Self, b: Self) -> Self;

    /// Integers as f32.
    fn to_floats(self) -> Self::Floats;

    /// The same number in every lane.
    fn float(x: f32) -> Self::Floats;

    /// `a · b`.
    fn product(a: Self::Floats, b: Self::Floats) -> Self::Floats;

    /// `a · b + c`, or `c - a · b`, rounded once.
    fn fma<const NEGATIVE: bool>(a: Self::Floats, b: Self::Floats, c: Self::Floats)
    -> Self::Floats;
}

/// Tokens whose columns are found together: they share what is read.
const TOKENS: usize = 8;

/// Dots of a sub-block with a chunk of outputs, by panel.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
pub(crate) struct Dots([[i32; PANEL_ROWS]; CHUNK / PANEL_ROWS]);

impl Dots {
    const EMPTY: Self = Self([[0; _]; _]);
}

/// The columns of a chunk, in which its codes lie.
#[derive(Clone, Copy)]
pub(crate) struct Columns {
    /// The first one's codes.
    at: *const u8,
    /// Bytes from one to the next.
    stride: usize,
    /// How far ahead to prefetch, in bytes; 0 for not at all.
    ahead: usize,
    /// Whether codes are nibbles, rather than bytes.
    are_nibbles: bool,
    table: Option<&'static [u8; 16]>,
}

/// Adds the dots of some columns to a chunk.
pub(crate) type DotsFn = unsafe fn(&Columns, &[Four], i32, &mut Dots);

/// What the products of one type need.
pub(crate) struct Skip {
    pub(crate) dots: DotsFn,
    /// Whether whole chunks are multiplied as they are: their codes are nibbles or bytes.
    pub(crate) is_plain: bool,
    pub(crate) are_nibbles: bool,
    pub(crate) finish: FinishFn,
    pub(crate) per_32: bool,
    pub(crate) subs: SubBlocks,
    pub(crate) offset: i32,
    pub(crate) table: Option<&'static [u8; 16]>,
}

/// # Safety
/// - The contract of [`crate::KernelTable::matmul_skipping`], whose checks have passed; the CPU has what `skip`'s functions
///   need.
pub(crate) unsafe fn products(args: &Matmul<'_>, skip: &Skip) {
    let n_tokens = args.tokens.end - args.tokens.start;
    for first in (0..n_tokens).step_by(TOKENS) {
        let tokens = args.tokens.start + first..args.tokens.start + n_tokens.min(first + TOKENS);
        let part = Matmul {
            out: args.out.wrapping_add(first * args.out_stride),
            tokens: tokens.into(),
            ..*args
        };
        // SAFETY: by the caller.
        unsafe { few_tokens(&part, skip) };
    }
}

/// # Safety
/// - As [`products`], for at most [`TOKENS`] tokens.
#[inline(never)]
unsafe fn few_tokens(args: &Matmul<'_>, skip: &Skip) {
    let n_tokens = args.tokens.end - args.tokens.start;
    let n_rows = args.rows.end - args.rows.start;
    if args.store == Store::Set {
        for t in 0..n_tokens {
            let out = args.out.wrapping_add(t * args.out_stride);
            // SAFETY: the outputs are writable, by the caller.
            unsafe { core::slice::from_raw_parts_mut(out, n_rows).fill(0.0) };
        }
    }
    let chunks = Chunks::new(&args.layout);
    let mut active = [const { [const { Active::EMPTY }; TOKENS] }; 2];
    let mut dots = [Dots::EMPTY; 16];
    let n_groups = args.layout.n_cols().div_ceil(GROUP);
    let x = Int8Rows::new(args, args.tokens.start, skip.per_32);
    for g in 0..=n_groups {
        let [now, next] = &mut active;
        if g < n_groups {
            for (t, next) in next[..n_tokens].iter_mut().enumerate() {
                let x = group_of(&x, skip.per_32, g).tokens(t);
                // SAFETY: rows have whole groups of codes.
                let q = unsafe { &*x.q.cast::<[i8; GROUP]>() };
                next.find(q, group_cols(&args.layout, g), skip.subs.cols);
                chunks.prefetch_group(args, g, next);
            }
        }
        if g > 0 {
            // SAFETY: by the caller.
            unsafe { group(args, skip, &chunks, g - 1, &now[..n_tokens], &mut dots) };
        }
        active.swap(0, 1);
    }
}

/// The rows from group `g` on.
fn group_of(x: &Int8Rows, per_32: bool, g: usize) -> Int8Rows {
    match per_32 {
        true => x.skip_blocks(GROUP / BLOCK_COLS * g),
        false => x.skip_groups(g),
    }
}

impl Chunks {
    /// Prefetches the first lines of a group's columns.
    #[inline(never)]
    fn prefetch_group(&self, args: &Matmul<'_>, g: usize, active: &Active) {
        let (at, stride) = self.columns(args.rows.start, g * GROUP);
        let base = args.panels.as_ptr().wrapping_add(at);
        for four in &active.fours[..active.n] {
            for column in four.columns {
                let at = base.wrapping_add(usize::from(column) * stride);
                prefetch_line_to_l2(at);
                prefetch_line_to_l2(at.wrapping_add(self.bytes(CHUNK)));
            }
        }
    }
}

/// The products of a group.
///
/// # Safety
/// - As [`few_tokens`].
unsafe fn group(
    args: &Matmul<'_>,
    skip: &Skip,
    chunks: &Chunks,
    g: usize,
    active: &[Active],
    dots: &mut [Dots; 16],
) {
    let x = group_of(
        &Int8Rows::new(args, args.tokens.start, skip.per_32),
        skip.per_32,
        g,
    );
    let n_subs = group_cols(&args.layout, g) / skip.subs.cols;
    let subs = SubBlocks {
        n: n_subs,
        ..skip.subs
    };
    for first in (args.rows.start..args.rows.end).step_by(CHUNK) {
        let n_outputs = (args.layout.n_rows() - first).min(CHUNK);
        let (at, stride) = chunks.columns(first, g * GROUP);
        let ahead = 2 * chunks.bytes(CHUNK);
        let columns = Columns {
            at: args.panels[at..].as_ptr(),
            stride,
            ahead: if first + 2 * CHUNK < args.rows.end {
                ahead
            } else {
                0
            },
            are_nibbles: skip.are_nibbles,
            table: skip.table,
        };
        for (t, active) in active.iter().enumerate() {
            let x = x.tokens(t);
            for (s, dots) in dots[..n_subs].iter_mut().enumerate() {
                // SAFETY: rows have whole groups of sums.
                let start = -skip.offset * unsafe { sum(&x, skip.subs.cols, s) };
                let fours = active.of(s);
                // SAFETY: the chunk's columns are in the matrix; the CPU has the features.
                unsafe {
                    match skip.is_plain && n_outputs == CHUNK {
                        true => (skip.dots)(&columns, fours, start, dots),
                        false => widened(chunks, &columns, n_outputs, fours, start, skip, dots),
                    }
                }
            }
            for p in 0..n_outputs / PANEL_ROWS {
                let row = first + p * PANEL_ROWS;
                let out = args
                    .out
                    .wrapping_add(t * args.out_stride + row - args.rows.start);
                let head = &args.panels[chunks.head(&args.layout, row / PANEL_ROWS, g)..];
                // SAFETY: the outputs are writable; the CPU has the features.
                unsafe { (skip.finish)(&subs, head, &raw const dots[0].0[p], &x, out) };
            }
        }
    }
}

/// Dots of a chunk whose columns are first widened to bytes: the last one, if it has fewer outputs, and the chunks of types
/// with more than one plane.
///
/// # Safety
/// - As [`group`].
#[inline(never)]
unsafe fn widened(
    chunks: &Chunks,
    columns: &Columns,
    n_outputs: usize,
    fours: &[Four],
    start: i32,
    skip: &Skip,
    dots: &mut Dots,
) {
    let mut wide = [[0u8; CHUNK]; BLOCK_COLS];
    let mut renamed = [Four::NONE; BLOCK_COLS / 4];
    for (four, (wide, renamed)) in
        (fours.iter()).zip(wide.as_chunks_mut::<4>().0.iter_mut().zip(&mut renamed))
    {
        for (wide, column) in wide.iter_mut().zip(four.columns) {
            let at = columns
                .at
                .wrapping_add(usize::from(column) * columns.stride);
            // SAFETY: the chunk of this column is in the matrix.
            let chunk = unsafe { core::slice::from_raw_parts(at, chunks.bytes(n_outputs)) };
            chunks.widen(n_outputs, chunk, wide);
        }
        renamed.q = four.q;
    }
    for (first, renamed) in (0..).step_by(4).zip(&mut renamed) {
        renamed.columns = [first, first + 1, first + 2, first + 3];
    }
    let columns = Columns {
        at: wide.as_ptr().cast(),
        stride: CHUNK,
        ahead: 0,
        are_nibbles: false,
        table: columns.table,
    };
    // SAFETY: columns of bytes; the CPU has the features.
    unsafe { (skip.dots)(&columns, &renamed[..fours.len()], start, dots) };
}

/// The dots of some columns with a whole chunk, from `start` on.
///
/// # Safety
/// - The columns' chunks are readable; the CPU has the features of `L`.
#[inline(always)]
pub(crate) unsafe fn dots<L: NeuronLine>(
    columns: &Columns,
    fours: &[Four],
    start: i32,
    out: &mut Dots,
) {
    let mut acc = [L::ints(start); 8];
    let low = L::splat(0xf);
    let bytes = if columns.are_nibbles {
        CHUNK / 2
    } else {
        CHUNK
    };
    for four in fours {
        let mut at = [columns.at; 4];
        for (at, column) in at.iter_mut().zip(four.columns) {
            *at = columns
                .at
                .wrapping_add(usize::from(column) * columns.stride);
            if columns.ahead > 0 {
                prefetch_to_l2(at.wrapping_add(columns.ahead), bytes);
            }
        }
        let q = i32::from_le_bytes(four.q.map(i8::cast_unsigned));
        // SAFETY: by the caller.
        unsafe {
            let (mut a, mut b);
            if columns.are_nibbles {
                let both = L::interleave([
                    L::load(at[0]),
                    L::load(at[1]),
                    L::load(at[2]),
                    L::load(at[3]),
                ]);
                (a, b) = (both, both);
                for (a, b) in a.iter_mut().zip(&mut b) {
                    (*a, *b) = (a.and(low), b.shift(-4).and(low));
                }
            } else {
                let mut codes = [[low; 4]; 2];
                for (j, at) in at.into_iter().enumerate() {
                    [codes[0][j], codes[1][j]] = [L::load(at), L::load(at.add(CHUNK / 2))];
                }
                (a, b) = (L::interleave(codes[0]), L::interleave(codes[1]));
            }
            if let Some(table) = columns.table {
                for line in a.iter_mut().chain(&mut b) {
                    *line = line.lookup(table);
                }
            }
            for (acc, line) in acc.iter_mut().zip(a.into_iter().chain(b)) {
                *acc = acc.dot(line, q);
            }
        }
    }
    for (acc, out) in acc.into_iter().zip(&mut out.0) {
        // SAFETY: 16 integers; by the caller.
        unsafe { acc.store(out.as_mut_ptr().cast()) };
    }
}
