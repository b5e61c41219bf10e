//! A chunk of outputs times a group of columns: exact dots of each sub-block, then scales, minima and the activations'
//! scales, with the operations of the dense product in its order.
#![allow(
    clippy::multiple_unsafe_ops_per_block,
    reason = "a kernel's safety argument is one: pointers stay inside operands that were checked"
)]

use super::active::{Active, Four};
use super::{NeuronLine, Skip};
use crate::activation::{BLOCK_COLS, SUM_COLS};
use crate::neuron::ChunkCodes;
use crate::panel::PANEL_ROWS;
use crate::panel::form::CHUNK;
use crate::prefetch::prefetch_to_l2;
use crate::vector::rows::Int8Rows;
use crate::vector::unpack::SubBlockBytes;

/// Panels of a chunk.
pub(crate) const PANELS: usize = CHUNK / PANEL_ROWS;

/// Codes of up to 32 columns, a byte each.
#[repr(C, align(64))]
pub(crate) struct Wide(pub(super) [[u8; CHUNK]; BLOCK_COLS]);

/// A chunk of outputs, a group of columns and one token.
pub(crate) struct Chunk<'a> {
    pub(super) codes: ChunkCodes,
    /// The codes of the group's first column.
    pub(super) first: *const u8,
    pub(super) active: &'a Active,
    pub(super) n_subs: usize,
    /// The heads of its panels; instead of those that there are not, any.
    pub(super) heads: [*const u8; PANELS],
    /// Scales, and perhaps minima, of sub-blocks, in types with exact sums over 256 columns.
    pub(super) numbers: &'a [[SubBlockBytes; 2]; PANELS],
    pub(super) x: Int8Rows,
    /// The sums of [`CHUNK`] outputs.
    pub(super) out: *mut f32,
}

/// Adds the products of a chunk to its outputs.
pub(crate) type ChunkFn = unsafe fn(&Skip, &Chunk<'_>, &mut Ahead<'_>, &mut Wide);

/// Columns that are read next: their codes are prefetched one column at a time.
pub(crate) struct Ahead<'a> {
    pub(super) columns: core::slice::Iter<'a, u8>,
    pub(super) first: *const u8,
    pub(super) stride: usize,
    pub(super) bytes: usize,
    /// Heads that are read later, and the bytes of them to prefetch with each sub-block.
    pub(super) heads: (*const u8, usize),
}

impl Ahead<'_> {
    #[inline(always)]
    fn prefetch_heads(&self, s: usize) {
        let (at, bytes) = self.heads;
        prefetch_to_l2(at.wrapping_add(bytes * s), bytes);
    }

    #[inline(always)]
    pub(super) fn prefetch_column(&mut self) -> bool {
        let Some(column) = self.columns.next() else {
            return false;
        };
        let at = self.first.wrapping_add(usize::from(*column) * self.stride);
        prefetch_to_l2(at, self.bytes);
        true
    }
}

impl Chunk<'_> {
    /// The codes of a column.
    #[inline(always)]
    fn column(&self, column: u8) -> *const u8 {
        (self.first).wrapping_add(usize::from(column) * self.codes.stride)
    }

    const fn is_whole(&self) -> bool {
        self.codes.n_outputs == CHUNK
    }

    #[inline(always)]
    fn out<L: NeuronLine>(&self) -> *mut [f32; PANEL_ROWS] {
        self.out.cast()
    }
}

/// The sum of a token's codes in sub-block `s`.
///
/// # Safety
/// - A group is readable at `x`.
#[inline(always)]
pub(super) unsafe fn sum(x: &Int8Rows, sub_cols: usize, s: usize) -> i32 {
    let sums: *const i16 = x.sums.cast();
    // SAFETY: a group has 16 sums.
    unsafe {
        match sub_cols {
            SUM_COLS => sums.add(s).read().into(),
            _ => i32::from(sums.add(2 * s).read()) + i32::from(sums.add(2 * s + 1).read()),
        }
    }
}

/// [`ChunkFn`] of types with a scale per 32 columns.
///
/// # Safety
/// - As there; the CPU has the features of `L`.
#[inline(always)]
pub(crate) unsafe fn blocks<L: NeuronLine>(
    skip: &Skip,
    chunk: &Chunk<'_>,
    ahead: &mut Ahead<'_>,
    wide: &mut Wide,
) {
    // SAFETY: by the caller; a head has a number of each row for each block.
    unsafe {
        let out = chunk.out::<L>();
        let mut acc = [L::float(0.0); PANELS];
        for (p, acc) in acc.iter_mut().enumerate() {
            *acc = L::floats(&*out.add(p));
        }
        for s in 0..chunk.n_subs {
            ahead.prefetch_heads(s);
            let d = chunk.x.d.cast::<f32>().add(s).read();
            let fours = chunk.active.of(s);
            if fours.is_empty() && d == 0.0 {
                continue;
            }
            let sum = sum(&chunk.x, BLOCK_COLS, s);
            let dots = dots::<L>(skip, chunk, fours, -skip.offset * sum, ahead, wide);
            let d = L::float(d);
            let at = s * skip.block_bytes;
            for ((acc, dots), head) in acc.iter_mut().zip(dots).zip(chunk.heads) {
                let scale = match skip.block_bytes {
                    PANEL_ROWS => L::exponents(head.add(at)),
                    _ => L::halves(head.add(at)),
                };
                *acc = L::fma::<false>(L::product(scale, d), dots.to_floats(), *acc);
            }
            if skip.has_min {
                let sum = L::ints(sum).to_floats();
                for (acc, head) in acc.iter_mut().zip(chunk.heads) {
                    let min = L::halves(head.add(at + 2 * PANEL_ROWS));
                    *acc = L::fma::<false>(L::product(min, d), sum, *acc);
                }
            }
        }
        for (p, acc) in acc.into_iter().enumerate() {
            L::store_floats(acc, &mut *out.add(p));
        }
    }
}

/// [`ChunkFn`] of types with exact sums over 256 columns.
///
/// # Safety
/// - As there; the CPU has the features of `L`.
#[inline(always)]
pub(crate) unsafe fn super_blocks<L: NeuronLine>(
    skip: &Skip,
    chunk: &Chunk<'_>,
    ahead: &mut Ahead<'_>,
    wide: &mut Wide,
) {
    let mut totals = [L::ints(0); PANELS];
    // SAFETY: by the caller; a head has a number of each row at `d` and `dmin`.
    unsafe {
        for s in 0..chunk.n_subs {
            ahead.prefetch_heads(s);
            let fours = chunk.active.of(s);
            if fours.is_empty() {
                continue;
            }
            let start = -skip.offset * sum(&chunk.x, skip.sub_cols, s);
            let dots = dots::<L>(skip, chunk, fours, start, ahead, wide);
            for ((total, dots), [scales, _]) in totals.iter_mut().zip(dots).zip(chunk.numbers) {
                *total = total.add_product(dots, scales.widen(s));
            }
        }
        let d_x = L::float((*chunk.x.numbers()).d);
        let (d, dmin) = skip.d;
        let out = chunk.out::<L>();
        for (p, total) in totals.into_iter().enumerate() {
            let head = chunk.heads[p];
            let mut t = L::fma::<false>(L::halves(head.add(d)), total.to_floats(), L::float(0.0));
            if skip.has_min {
                let [_, mins] = &chunk.numbers[p];
                let mut min = L::ints(0);
                for s in 0..chunk.n_subs {
                    let sum = sum(&chunk.x, skip.sub_cols, s);
                    min = min.add_product(L::ints(sum), mins.widen(s));
                }
                t = L::fma::<true>(L::halves(head.add(dmin)), min.to_floats(), t);
            }
            let acc = L::fma::<false>(d_x, t, L::floats(&*out.add(p)));
            L::store_floats(acc, &mut *out.add(p));
        }
    }
}

/// The dots of some columns of a sub-block with a chunk, from `start` on.
///
/// # Safety
/// - The columns' codes are readable; the CPU has the features of `L`.
#[inline(always)]
unsafe fn dots<L: NeuronLine>(
    skip: &Skip,
    chunk: &Chunk<'_>,
    fours: &[Four],
    start: i32,
    ahead: &mut Ahead<'_>,
    wide: &mut Wide,
) -> [L; PANELS] {
    let mut acc = [L::ints(start); PANELS];
    let is_nibbles = chunk.is_whole() && skip.planes == [4];
    // SAFETY: by the caller.
    unsafe {
        if is_nibbles {
            for four in fours {
                ahead.prefetch_column();
                let at = four.columns.map(|column| chunk.column(column));
                let both = L::interleave([
                    L::load(at[0]),
                    L::load(at[1]),
                    L::load(at[2]),
                    L::load(at[3]),
                ]);
                let (low, q) = (L::splat(0xf), L::ints(four.q()));
                for i in 0..4 {
                    let (mut a, mut b) = (both[i].and(low), both[i].shift(-4).and(low));
                    if let Some(table) = skip.table {
                        (a, b) = (a.lookup(table), b.lookup(table));
                    }
                    acc[i] = acc[i].dot(a, q);
                    acc[4 + i] = acc[4 + i].dot(b, q);
                }
            }
            return acc;
        }
        let is_wide = !(chunk.is_whole() && skip.planes == [8]);
        if is_wide {
            (skip.widen)(skip, chunk, fours, wide);
        }
        for (four, wide) in fours.iter().zip(wide.0.as_chunks::<4>().0) {
            ahead.prefetch_column();
            let mut at = [
                wide[0].as_ptr(),
                wide[1].as_ptr(),
                wide[2].as_ptr(),
                wide[3].as_ptr(),
            ];
            if !is_wide {
                at = four.columns.map(|column| chunk.column(column));
            }
            for half in 0..2 {
                let at = at.map(|at| at.wrapping_add(CHUNK / 2 * half));
                let mut lines = L::interleave([
                    L::load(at[0]),
                    L::load(at[1]),
                    L::load(at[2]),
                    L::load(at[3]),
                ]);
                for i in 0..4 {
                    if let Some(table) = skip.table {
                        lines[i] = lines[i].lookup(table);
                    }
                    acc[4 * half + i] = acc[4 * half + i].dot(lines[i], L::ints(four.q()));
                }
            }
        }
    }
    acc
}

/// Writes the codes of columns as bytes, in the order of whole chunks.
pub(crate) type WidenFn = unsafe fn(&Skip, &Chunk<'_>, &[Four], &mut Wide);

/// [`WidenFn`].
///
/// # Safety
/// - The columns' codes are readable; the CPU has the features of `L`.
#[inline(always)]
pub(crate) unsafe fn widen<L: NeuronLine>(
    skip: &Skip,
    chunk: &Chunk<'_>,
    fours: &[Four],
    wide: &mut Wide,
) {
    let columns = fours.iter().flat_map(|four| four.columns);
    for (column, wide) in columns.zip(&mut wide.0) {
        let at = chunk.column(column);
        // SAFETY: by the caller.
        unsafe {
            match chunk.is_whole() {
                true => widen_whole::<L>(skip.planes, at, wide.as_mut_ptr()),
                false => {
                    let codes = core::slice::from_raw_parts(at, chunk.codes.bytes());
                    chunk.codes.widen(codes, wide);
                }
            }
        }
    }
}

/// Writes the codes of a column's whole chunk as bytes.
///
/// # Safety
/// - The chunk is readable at `at`, and as many bytes as outputs are writable at `out`; the CPU has the features of `L`.
#[inline(always)]
pub(crate) unsafe fn widen_whole<L: NeuronLine>(planes: &[usize], at: *const u8, out: *mut u8) {
    let mut halves = [L::splat(0); 2];
    let (mut at, mut first) = (at, 0);
    for &bits in planes {
        // SAFETY: by the caller.
        let plane = unsafe {
            match bits {
                8 => [L::load(at), L::load(at.add(CHUNK / 2))],
                4 => {
                    let (both, low) = (L::load(at), L::splat(0xf));
                    [both.and(low), both.shift(-4).and(low)]
                }
                2 => {
                    let (all, [low, high]) = (L::twice(at), L::halves_of(3));
                    [
                        all.and(low).or(all.shift(-2).and(high)),
                        all.shift(-4).and(low).or(all.shift(-6).and(high)),
                    ]
                }
                _ => {
                    let words: *const u64 = at.cast();
                    [
                        L::bits(words.read_unaligned()),
                        L::bits(words.add(1).read_unaligned()),
                    ]
                }
            }
        };
        for (half, plane) in halves.iter_mut().zip(plane) {
            *half = half.or(plane.shift(first));
        }
        at = at.wrapping_add(CHUNK * bits / 8);
        first += i32::from(bits.to_le_bytes()[0]);
    }
    // SAFETY: by the caller.
    unsafe {
        halves[0].store(out);
        halves[1].store(out.add(CHUNK / 2));
    }
}
