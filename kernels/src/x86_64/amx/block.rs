//! Types with a scale per 32 columns: a tile product per block, scaled and added in vectors.
//!
//! A step multiplies a block of 32 tokens × two panels, stores the sums of the block before, and
//! scales and adds what has been stored; the last quarter of it one step later.

use super::tiles::{ROWS, Shape, Tiles};
use super::{NEAR, PANELS, Square, TOKENS, read, split, write};
use crate::activation::blocks_in_group;
use crate::args::Matmul;
use crate::contract::GROUP;
use crate::panel::{LINE_BYTES, PANEL_ROWS};
use crate::vector::rows::Int8Rows;
use crate::vector::stream::Ahead;
use crate::vector::unpack::{Block, BlockKind, UnpackedBlocks};
use crate::x86_64::avx512;
use core::arch::x86_64::*;
use core::marker::PhantomData;

/// Rows in panels × all tokens, written to `out`.
///
/// # Safety
/// - The contract of [`crate::KernelTable::matmul`], whose checks have passed; the CPU has the
///   Ice Lake set and what `T` needs. `args.store` is `Set` or `Continue`.
pub(crate) unsafe fn matmul<B: Block, T: Tiles>(args: &Matmul<'_>) {
    // SAFETY: by the caller; `strips` takes up to `NEAR * TOKENS` tokens.
    unsafe {
        split(
            args,
            NEAR * TOKENS,
            strips::<B, T>,
            avx512::block_matmul::<B>,
        )
    }
}

/// # Safety
/// - As [`matmul`]; the number of tokens is a multiple of [`TOKENS`], at most [`NEAR`] times it.
unsafe fn strips<B: Block, T: Tiles>(args: &Matmul<'_>) {
    // SAFETY: by the caller.
    unsafe { strips_of::<T>(args, &avx512::block_kind::<B>()) }
}

/// # Safety
/// - As [`strips`].
#[inline(never)] // Its room on the stack is not needed for few tokens; one function serves all types.
unsafe fn strips_of<T: Tiles>(args: &Matmul<'_>, kind: &BlockKind) {
    let (n_cols, panel_bytes) = (args.layout.n_cols(), args.layout.panel_bytes());
    let mut unpacked = [UnpackedBlocks::EMPTY; PANELS];
    let mut room = Room::EMPTY;
    let x = Int8Rows::new(args, args.tokens.start, true);
    for first in (0..TOKENS).step_by(FETCHED) {
        // SAFETY: rows have whole groups of scales and sums, for 32 tokens at least.
        unsafe {
            match kind.min {
                true => room.scales[0].gather::<true>(&x, first),
                false => room.scales[0].gather::<false>(&x, first),
            }
        }
    }
    // SAFETY: by the caller.
    let mut strip = unsafe { Strip::<T>::new(&mut room, args.tokens.end - args.tokens.start) };
    for row in (args.rows.start..args.rows.end).step_by(PANELS * PANEL_ROWS) {
        let n_panels = (args.rows.end - row).div_ceil(PANEL_ROWS).min(PANELS);
        args.prefetch_beside(row, n_panels, 0, 1);
        // SAFETY: the strip is done with the outputs of other rows; no reference into the room lives.
        unsafe {
            let near = &mut (*strip.room).near;
            near.fill(Square::<f32>::ZERO);
            if !args.store.starts() {
                read(args, row, &mut near[..strip.n_squares]);
            }
        }
        for g in 0..n_cols.div_ceil(GROUP) {
            for (p, unpacked) in unpacked[..n_panels].iter_mut().enumerate() {
                let panel = args.panels[(row / PANEL_ROWS + p) * panel_bytes..].as_ptr();
                // SAFETY: by the caller.
                unsafe {
                    (kind.unpack)(panel, n_cols, g, unpacked);
                    make_signed(unpacked, kind.offset);
                }
            }
            let ahead = Ahead::new(args, row, g, |g| (kind.offsets)(n_cols, 8 * g).0);
            // A panel without a neighbour is multiplied twice, and written once.
            let panels = [&unpacked[0], &unpacked[n_panels - 1]];
            // SAFETY: by the caller.
            unsafe {
                match kind.min {
                    true => strip.group::<true>(args, g, panels, &ahead),
                    false => strip.group::<false>(args, g, panels, &ahead),
                }
            }
        }
        // SAFETY: by the caller.
        unsafe {
            match kind.min {
                true => strip.finish::<true>(),
                false => strip.finish::<false>(),
            }
            write(args, row, &(&(*strip.room).near)[..strip.n_squares]);
        }
    }
}

/// Takes the offset off all codes.
#[target_feature(enable = "avx512f,avx512bw")]
fn make_signed(unpacked: &mut UnpackedBlocks, offset: i16) {
    let offset = _mm512_set1_epi8(offset.to_le_bytes()[0].cast_signed());
    for line in &mut unpacked.lines {
        let p = line.as_mut_ptr().cast();
        // SAFETY: a line has 64 bytes and is aligned.
        unsafe { _mm512_store_si512(p, _mm512_sub_epi8(_mm512_load_si512(p), offset)) };
    }
}

/// Products of two panels and a chunk of tokens on their way through the registers.
struct Strip<'r, T> {
    tiles: T,
    /// By pointer: [`BlockSums`] point into it while other parts are written.
    room: *mut Room,
    _room: PhantomData<&'r mut Room>,
    /// Squares that there are tokens for.
    n_squares: usize,
    /// Index in [`Room::scales`] of the next square's scales.
    next_scales: usize,
    /// Index in [`Room::numbers`] of the last step's numbers.
    last_numbers: usize,
    /// What is to become of the sums of the two steps before, the later one first.
    before: [Option<BlockSums>; 2],
}

/// What a strip writes.
struct Room {
    /// Outputs, as far as columns have been multiplied.
    near: [Square<f32>; NEAR],
    /// Sums of the step before; the last quarter of the one before that until it is overwritten.
    sums: Square<i32>,
    /// Scales of tokens, of three squares: the one before, this one, and the next.
    scales: [TokenScales; 3],
    /// Scales and minima of panels, of the last three steps.
    numbers: [[Numbers; PANELS]; 3],
}

impl Room {
    const EMPTY: Self = Self {
        near: [Square::<f32>::ZERO; _],
        sums: Square::<i32>::ZERO,
        scales: [TokenScales::EMPTY; _],
        numbers: [[Numbers::EMPTY; _]; _],
    };
}

/// Which of three comes after `i`.
const fn after(i: usize) -> usize {
    if i == 2 { 0 } else { i + 1 }
}

/// Tokens whose scales are fetched at a time.
const FETCHED: usize = 4;

/// Scales of a block and sums of its codes, of 32 tokens.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
struct TokenScales {
    d: [[f32; 8]; TOKENS],
    sums: [[f32; 8]; TOKENS],
}

impl TokenScales {
    const EMPTY: Self = Self {
        d: [[0.0; _]; _],
        sums: [[0.0; _]; _],
    };

    /// Gathers the scales of [`FETCHED`] tokens from `first` on. Each token has its own lines of memory: they are
    /// fetched a few at a time, long before they are needed.
    ///
    /// # Safety
    /// - A group is readable at `x` for `first` + [`FETCHED`] tokens, at most [`TOKENS`].
    #[target_feature(enable = "avx2")]
    #[inline]
    unsafe fn gather<const MIN: bool>(&mut self, x: &Int8Rows, first: usize) {
        let mut x = x.tokens(first);
        let (d, _) = self.d[first..].as_chunks_mut::<FETCHED>();
        let (sums, _) = self.sums[first..].as_chunks_mut::<FETCHED>();
        for (d, sums) in d[0].iter_mut().zip(&mut sums[0]) {
            // SAFETY: eight scales and 16 sums, by the caller.
            unsafe {
                _mm256_storeu_ps(d.as_mut_ptr(), _mm256_loadu_ps(x.d.cast()));
                if MIN {
                    let of_halves = _mm256_loadu_si256(x.sums.cast());
                    let of_blocks = _mm256_madd_epi16(of_halves, _mm256_set1_epi16(1));
                    _mm256_storeu_ps(sums.as_mut_ptr(), _mm256_cvtepi32_ps(of_blocks));
                }
            }
            x = x.tokens(1);
        }
    }
}

/// Scales and minima of a block of a panel.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
struct Numbers {
    d: [f32; PANEL_ROWS],
    m: [f32; PANEL_ROWS],
}

impl Numbers {
    const EMPTY: Self = Self {
        d: [0.0; _],
        m: [0.0; _],
    };
}

impl<'r, T: Tiles> Strip<'r, T> {
    /// # Safety
    /// - What `T` needs.
    unsafe fn new(room: &'r mut Room, n_tokens: usize) -> Self {
        let shape = Shape {
            a_rows: 16,
            a_row_bytes: 32,
            b_rows: 8,
        };
        Self {
            // SAFETY: by the caller.
            tiles: unsafe { T::configure(shape) },
            room,
            _room: PhantomData,
            n_squares: n_tokens / TOKENS,
            next_scales: 0,
            last_numbers: 0,
            before: [None; 2],
        }
    }

    /// Multiplies a group of two panels with all tokens.
    ///
    /// # Safety
    /// - As [`strips`].
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni,avx512vbmi")]
    unsafe fn group<const MIN: bool>(
        &mut self,
        args: &Matmul<'_>,
        g: usize,
        panels: [&UnpackedBlocks; PANELS],
        ahead: &Ahead<PANELS>,
    ) {
        let n_cols = args.layout.n_cols();
        let n_blocks = blocks_in_group(n_cols, g);
        let next_group = if (g + 1) * GROUP < n_cols { g + 1 } else { 0 };
        let of_group = |g| Int8Rows::new(args, args.tokens.start, true).skip_blocks(8 * g);
        let (x, x_next) = (of_group(g), of_group(next_group));
        let n_fetched = (TOKENS / FETCHED).div_ceil(n_blocks) * FETCHED;
        let n_lines = ahead.n_lines();
        let n_next = n_lines.div_ceil(self.n_squares * n_blocks);
        let mut prefetched = 0;
        for square in 0..self.n_squares {
            let next = match square + 1 < self.n_squares {
                true => x.tokens((square + 1) * TOKENS),
                false => x_next,
            };
            let x = [0, ROWS].map(|half| x.tokens(square * TOKENS + half));
            let scales = self.next_scales;
            self.next_scales = after(scales);
            for b in 0..n_blocks {
                if prefetched < n_lines {
                    ahead.lines(prefetched, n_next);
                    prefetched += n_next;
                }
                let operands = Operands {
                    x: [0, 1].map(|half| x[half].q.wrapping_add(32 * b)),
                    stride: x[0].stride,
                    w: [0, 1].map(|p| panels[p].lines[8 * b..].as_ptr()),
                };
                self.last_numbers = after(self.last_numbers);
                // SAFETY: by the caller; rows have whole groups of scales and sums. The room is
                // this strip's alone; each reference into it ends before the next use by pointer.
                unsafe {
                    let room = self.room;
                    let numbers = &mut (*room).numbers[self.last_numbers];
                    for (numbers, w) in numbers.iter_mut().zip(panels) {
                        numbers.d = w.d[b];
                        if MIN {
                            numbers.m = w.m[b];
                        }
                    }
                    let now = BlockSums {
                        sums: (&raw const (*room).sums.0).cast(),
                        // Not by a reference: other tokens' and the sums are reached from it.
                        scales: &raw const (*room).scales[scales].d[0][b],
                        numbers: &raw const (*room).numbers[self.last_numbers],
                        out: (&raw mut (*room).near[square].0).cast(),
                    };
                    self.step::<MIN>(&operands, now);
                    let fetched = &mut (*room).scales[self.next_scales];
                    for first in (n_fetched * b..(n_fetched * (b + 1)).min(TOKENS)).step_by(FETCHED)
                    {
                        fetched.gather::<MIN>(&next, first);
                    }
                }
            }
        }
    }

    /// Multiplies a block, stores the sums of the block before, and adds what is stored.
    ///
    /// # Safety
    /// - The block is in the rows and in the lines; `now` is of this strip's room.
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni,avx512vbmi")]
    #[inline]
    unsafe fn step<const MIN: bool>(&mut self, operands: &Operands, now: BlockSums) {
        // SAFETY: by the caller.
        unsafe {
            if let [Some(last), Some(older)] = &self.before {
                let to = (&raw mut (*self.room).sums).cast();
                operands.step::<T, MIN>(&mut self.tiles, to, last, older);
            } else {
                self.settle::<MIN>();
                operands.multiply(&mut self.tiles);
            }
        }
        self.before = [Some(now), self.before[0]];
    }

    /// A step that multiplies nothing.
    ///
    /// # Safety
    /// - The CPU has what `T` needs, and AVX-512F.
    #[inline(never)] // Called four times a strip; inlined it would bloat the loop of every step.
    unsafe fn settle<const MIN: bool>(&mut self) {
        let [last, older] = &self.before;
        // SAFETY: by the caller; sums have 64 rows of 64 bytes.
        unsafe {
            if let Some(older) = older {
                (LAST_QUARTER..QUADS).for_each(|quad| older.add::<MIN>(quad));
            }
            let to: *mut i32 = (&raw mut (*self.room).sums).cast();
            self.tiles.store::<0>(to, LINE_BYTES);
            self.tiles.store::<1>(to.add(QUARTER), LINE_BYTES);
            self.tiles.store::<2>(to.add(2 * QUARTER), LINE_BYTES);
            self.tiles.store::<3>(to.add(3 * QUARTER), LINE_BYTES);
            if let Some(last) = last {
                (0..LAST_QUARTER).for_each(|quad| last.add::<MIN>(quad));
            }
        }
    }

    /// Adds all that is not yet added.
    ///
    /// # Safety
    /// - As [`Self::settle`].
    unsafe fn finish<const MIN: bool>(&mut self) {
        for _ in 0..2 {
            // SAFETY: by the caller.
            unsafe { self.settle::<MIN>() };
            self.before = [None, self.before[0]];
        }
    }
}

/// A block of 32 tokens and two panels.
struct Operands {
    /// Codes of 16 tokens, and of 16 more.
    x: [*const u8; 2],
    /// Bytes from a token to the next.
    stride: usize,
    /// Lines of the panels.
    w: [*const [u8; LINE_BYTES]; PANELS],
}

impl Operands {
    /// Multiplies, stores the sums of the step before in `to`, and adds: the last quarter of the
    /// `older` sums before it is overwritten, and the others of the `last` when they are stored.
    ///
    /// # Safety
    /// - The block is in the rows and in the lines; [`BlockSums::add`]; `to` has 64 rows of 64
    ///   bytes.
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni,avx512vbmi")]
    #[inline]
    unsafe fn step<T: Tiles, const MIN: bool>(
        &self,
        tiles: &mut T,
        to: *mut i32,
        last: &BlockSums,
        older: &BlockSums,
    ) {
        // SAFETY: by the caller.
        unsafe {
            tiles.load::<6>(self.w[0].cast(), LINE_BYTES);
            tiles.store::<0>(to, LINE_BYTES);
            tiles.zero::<0>();
            older.add::<MIN>(12);
            tiles.load::<4>(self.x[0], self.stride);
            older.add::<MIN>(13);
            tiles.store::<1>(to.add(QUARTER), LINE_BYTES);
            tiles.zero::<1>();
            older.add::<MIN>(14);
            tiles.load::<5>(self.x[1], self.stride);
            older.add::<MIN>(15);
            tiles.store::<2>(to.add(2 * QUARTER), LINE_BYTES);
            tiles.zero::<2>();
            last.add::<MIN>(0);
            tiles.load::<7>(self.w[1].cast(), LINE_BYTES);
            last.add::<MIN>(1);
            last.add::<MIN>(2);
            tiles.store::<3>(to.add(3 * QUARTER), LINE_BYTES);
            tiles.zero::<3>();
            last.add::<MIN>(3);
            tiles.add_signed::<0, 4, 6>();
            last.add::<MIN>(4);
            last.add::<MIN>(5);
            tiles.add_signed::<1, 5, 6>();
            last.add::<MIN>(6);
            last.add::<MIN>(7);
            tiles.add_signed::<2, 4, 7>();
            last.add::<MIN>(8);
            last.add::<MIN>(9);
            tiles.add_signed::<3, 5, 7>();
            last.add::<MIN>(10);
            last.add::<MIN>(11);
        }
    }

    /// Multiplies.
    ///
    /// # Safety
    /// - The block is in the rows and in the lines.
    unsafe fn multiply<T: Tiles>(&self, tiles: &mut T) {
        // SAFETY: by the caller.
        unsafe {
            tiles.load::<6>(self.w[0].cast(), LINE_BYTES);
            tiles.load::<4>(self.x[0], self.stride);
            tiles.load::<5>(self.x[1], self.stride);
            tiles.load::<7>(self.w[1].cast(), LINE_BYTES);
        }
        tiles.zero::<0>();
        tiles.zero::<1>();
        tiles.zero::<2>();
        tiles.zero::<3>();
        tiles.add_signed::<0, 4, 6>();
        tiles.add_signed::<1, 5, 6>();
        tiles.add_signed::<2, 4, 7>();
        tiles.add_signed::<3, 5, 7>();
    }
}

/// Parts in which sums are added: a panel's of four tokens.
const QUADS: usize = PANELS * TOKENS / 4;
/// Sums of a tile register.
const QUARTER: usize = ROWS * PANEL_ROWS;
/// The first part whose sums are the last quarter.
const LAST_QUARTER: usize = QUADS * 3 / 4;

/// Sums of a block and what they become. Pointers, so that each is a register: an address of two
/// registers takes a vector instruction apart.
#[derive(Clone, Copy)]
struct BlockSums {
    sums: *const [i32; PANEL_ROWS],
    /// The scale of the block in the first token, of [`TokenScales`]; the next token's is eight on.
    scales: *const f32,
    numbers: *const [Numbers; PANELS],
    out: *mut [f32; PANEL_ROWS],
}

impl BlockSums {
    /// Scales part `quad` and adds it to the outputs.
    ///
    /// While tiles multiply, one of the two 512-bit units neither converts, multiplies nor fuses,
    /// but it adds. So every second sum becomes a float by additions: the bits of 1.5 · 2^23 plus
    /// the sum, added as integers, are the bits of the float 1.5 · 2^23 + sum.
    ///
    /// # Safety
    /// - The pointers are into the room of a strip that lives, and no reference into it does;
    ///   `quad` is below [`QUADS`]. The CPU has AVX-512F.
    #[target_feature(enable = "avx512f")]
    #[inline]
    unsafe fn add<const MIN: bool>(&self, quad: usize) {
        /// From the scale of a block in a token to the sum of its codes.
        const TO_SUM: usize = 8 * TOKENS;
        /// 1.5 · 2^23: between 2^23 and 2^24 floats are one apart, and sums are at most 32 · 2^14.
        const MAGIC: f32 = 12_582_912.0;
        let (p, token) = (quad / (QUADS / PANELS), quad % (QUADS / PANELS) * 4);
        let magic = _mm512_set1_ps(MAGIC);
        // SAFETY: whole, aligned vectors, by the caller.
        unsafe {
            let numbers = &(*self.numbers)[p];
            let d_w = _mm512_load_ps(numbers.d.as_ptr());
            for t in token..token + 4 {
                let out = self.out.add(p * TOKENS + t).cast();
                let sum = _mm512_load_si512(self.sums.add(p * TOKENS + t).cast());
                let sum = match t % 2 {
                    0 => _mm512_cvtepi32_ps(sum),
                    _ => {
                        let sum = _mm512_add_epi32(sum, _mm512_castps_si512(magic));
                        _mm512_sub_ps(_mm512_castsi512_ps(sum), magic)
                    }
                };
                let d = _mm512_set1_ps(*self.scales.add(8 * t));
                let mut acc = _mm512_fmadd_ps(_mm512_mul_ps(d_w, d), sum, _mm512_load_ps(out));
                if MIN {
                    let m = _mm512_mul_ps(_mm512_load_ps(numbers.m.as_ptr()), d);
                    let s = _mm512_set1_ps(*self.scales.add(TO_SUM + 8 * t));
                    acc = _mm512_fmadd_ps(m, s, acc);
                }
                _mm512_store_ps(out, acc);
            }
        }
    }
}
