//! Types with a scale per 32 columns: a tile product per block, scaled and added in vectors.
//!
//! A step multiplies a block of 32 tokens × two panels, stores the sums of the block before, and
//! scales and adds what has been stored; the last quarter of it one step later.

use super::tiles::{ROWS, Shape, Tiles};
use super::{NEAR, PANELS, Square, TOKENS, chunks, write};
use crate::args::Matmul;
use crate::contract::GROUP;
use crate::panel::{LINE_BYTES, PANEL_ROWS};
use crate::x86_64::avx512;
use crate::x86_64::rows::{Ahead, Int8Rows};
use crate::x86_64::unpack::{Block, UnpackedBlocks};
use core::arch::x86_64::*;
use core::ops::Range;

/// Rows in panels × all tokens, written to `out`; true.
///
/// # Safety
/// - The contract of [`crate::KernelTable::matmul`], whose checks have passed; the CPU has the
///   Ice Lake set and what `T` needs. `args.store` is `Set`.
pub(crate) unsafe fn matmul<B: Block, T: Tiles>(args: &Matmul<'_>) -> bool {
    let (chunks, rest) = chunks(args, NEAR * TOKENS);
    for chunk in chunks {
        // SAFETY: by the caller.
        unsafe { strips::<B, T>(&chunk) };
    }
    // SAFETY: by the caller.
    unsafe { avx512::block_matmul::<B>(&rest) }
}

/// # Safety
/// - As [`matmul`], for a chunk of tokens.
#[inline(never)] // Its room on the stack is not needed for few tokens.
unsafe fn strips<B: Block, T: Tiles>(args: &Matmul<'_>) {
    let (n_cols, panel_bytes) = (args.layout.n_cols(), args.layout.panel_bytes());
    let mut unpacked = [UnpackedBlocks::EMPTY; PANELS];
    // SAFETY: by the caller.
    let mut strip = unsafe { Strip::<T>::new(args) };
    let x = Int8Rows::new(args, args.tokens.start, true);
    // SAFETY: rows have whole groups of scales and sums, for 32 tokens at least.
    unsafe {
        match B::MIN {
            true => strip.scales[0].gather::<true>(&x, 0..TOKENS),
            false => strip.scales[0].gather::<false>(&x, 0..TOKENS),
        }
    }
    for row in (args.rows.start..args.rows.end).step_by(PANELS * PANEL_ROWS) {
        let n_panels = (args.rows.end - row).div_ceil(PANEL_ROWS).min(PANELS);
        strip.near.fill(Square::<f32>::ZERO);
        for g in 0..n_cols.div_ceil(GROUP) {
            for (p, unpacked) in unpacked[..n_panels].iter_mut().enumerate() {
                let panel = args.panels[(row / PANEL_ROWS + p) * panel_bytes..].as_ptr();
                // SAFETY: by the caller.
                unsafe {
                    avx512::unpack_blocks::<B>(panel, n_cols, g, unpacked);
                    make_signed(unpacked, B::OFFSET);
                }
            }
            let ahead = Ahead::new(args, row, g, |g| B::offsets(n_cols, 8 * g).0);
            // A panel without a neighbour is multiplied twice, and written once.
            let panels = [&unpacked[0], &unpacked[n_panels - 1]];
            // SAFETY: by the caller.
            unsafe {
                match B::MIN {
                    true => strip.group::<true>(args, g, panels, &ahead),
                    false => strip.group::<false>(args, g, panels, &ahead),
                }
            }
        }
        // SAFETY: by the caller.
        unsafe {
            match B::MIN {
                true => strip.finish::<true>(),
                false => strip.finish::<false>(),
            }
            write(args, row, &strip.near[..strip.n_squares]);
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
struct Strip<T> {
    tiles: T,
    /// Outputs, as far as columns have been multiplied.
    near: [Square<f32>; NEAR],
    /// Squares that there are tokens for.
    n_squares: usize,
    /// Sums of the step before; the last quarter of the one before that until it is overwritten.
    sums: Square<i32>,
    /// Scales of tokens, of three squares: the one before, this one, and the next.
    scales: [TokenScales; 3],
    /// Scales and minima of panels, of the last three steps.
    numbers: [[Numbers; PANELS]; 3],
    /// What the two steps before were, the later one first.
    before: [Option<Before>; 2],
    n_steps: usize,
    /// Squares so far.
    n_squared: usize,
}

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

    /// Those of some tokens. Each has its own lines of memory: they are fetched a few at a time,
    /// long before they are needed.
    ///
    /// # Safety
    /// - A group is readable at `x` for the tokens.
    #[target_feature(enable = "avx2")]
    #[inline]
    unsafe fn gather<const MIN: bool>(&mut self, x: &Int8Rows, tokens: Range<usize>) {
        for t in tokens {
            let x = x.tokens(t);
            // SAFETY: eight scales and 16 sums, by the caller.
            unsafe {
                _mm256_storeu_ps(self.d[t].as_mut_ptr(), _mm256_loadu_ps(x.d.cast()));
                if MIN {
                    let sums = _mm256_loadu_si256(x.sums.cast());
                    let sums = _mm256_madd_epi16(sums, _mm256_set1_epi16(1));
                    _mm256_storeu_ps(self.sums[t].as_mut_ptr(), _mm256_cvtepi32_ps(sums));
                }
            }
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

/// What is to become of a step's sums.
#[derive(Clone, Copy)]
struct Before {
    square: usize,
    b: usize,
    /// Which scales of tokens, and which numbers.
    scales: usize,
    numbers: usize,
}

impl<T: Tiles> Strip<T> {
    /// # Safety
    /// - What `T` needs.
    #[expect(
        clippy::large_stack_arrays,
        reason = "a kernel has no other memory; stack depths are tested"
    )]
    unsafe fn new(args: &Matmul<'_>) -> Self {
        let n_tokens = args.tokens.end - args.tokens.start;
        let shape = Shape {
            a_row_bytes: 32,
            b_rows: 8,
        };
        let none = Numbers {
            d: [0.0; _],
            m: [0.0; _],
        };
        Self {
            // SAFETY: by the caller.
            tiles: unsafe { T::configure(shape) },
            near: [Square::<f32>::ZERO; NEAR],
            n_squares: n_tokens / TOKENS,
            sums: Square::<i32>::ZERO,
            scales: [TokenScales::EMPTY; 3],
            numbers: [[none; PANELS]; 3],
            before: [None; 2],
            n_steps: 0,
            n_squared: 0,
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
        let n_blocks = ((n_cols - g * GROUP) / 32).min(8);
        let of_group = |g| Int8Rows::new(args, args.tokens.start, true).skip(g * GROUP, 8 * g);
        let x = of_group(g);
        for square in 0..self.n_squares {
            let next = match square + 1 < self.n_squares {
                true => x.tokens((square + 1) * TOKENS),
                false => of_group((g + 1) % n_cols.div_ceil(GROUP)),
            };
            let x = [0, ROWS].map(|half| x.tokens(square * TOKENS + half));
            let scales = self.n_squared % 3;
            for b in 0..n_blocks {
                ahead.part(square * n_blocks + b, self.n_squares * n_blocks);
                let numbers = self.n_steps % 3;
                for (numbers, w) in self.numbers[numbers].iter_mut().zip(panels) {
                    numbers.d = w.d[b];
                    if MIN {
                        numbers.m = w.m[b];
                    }
                }
                let operands = Operands {
                    x: [0, 1].map(|half| x[half].q.wrapping_add(32 * b)),
                    stride: x[0].stride,
                    w: [0, 1].map(|p| panels[p].lines[8 * b..].as_ptr()),
                };
                let now = Before {
                    square,
                    b,
                    scales,
                    numbers,
                };
                let some = TOKENS * b / n_blocks..TOKENS * (b + 1) / n_blocks;
                // SAFETY: by the caller; rows have whole groups of scales and sums.
                unsafe {
                    self.step::<MIN>(&operands, now);
                    self.scales[(self.n_squared + 1) % 3].gather::<MIN>(&next, some);
                }
            }
            self.n_squared += 1;
        }
    }

    /// Multiplies a block, stores the sums of the block before, and adds what is stored.
    ///
    /// # Safety
    /// - The block lies in the rows and in the lines.
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni,avx512vbmi")]
    #[inline]
    unsafe fn step<const MIN: bool>(&mut self, operands: &Operands, now: Before) {
        // SAFETY: by the caller.
        unsafe {
            if let [Some(last), Some(older)] = self.before {
                let (last, older) = (self.sums_of(last), self.sums_of(older));
                let to = &raw mut self.sums;
                operands.step::<T, MIN>(&mut self.tiles, to.cast(), &last, &older);
                self.before = [Some(now), self.before[0]];
            } else {
                self.settle::<MIN>();
                operands.multiply(&mut self.tiles);
                self.before[0] = Some(now);
            }
        }
        self.n_steps += 1;
    }

    /// A step that multiplies nothing.
    ///
    /// # Safety
    /// - The CPU has what `T` needs, and AVX-512F.
    unsafe fn settle<const MIN: bool>(&mut self) {
        let [last, older] = self.before;
        // SAFETY: by the caller; sums have 64 rows of 64 bytes.
        unsafe {
            if let Some(older) = older {
                let older = self.sums_of(older);
                (LAST_QUARTER..QUADS).for_each(|quad| older.add::<MIN>(quad));
            }
            let to: *mut i32 = (&raw mut self.sums).cast();
            self.tiles.store::<0>(to, LINE_BYTES);
            self.tiles.store::<1>(to.add(QUARTER), LINE_BYTES);
            self.tiles.store::<2>(to.add(2 * QUARTER), LINE_BYTES);
            self.tiles.store::<3>(to.add(3 * QUARTER), LINE_BYTES);
            if let Some(last) = last {
                let last = self.sums_of(last);
                (0..LAST_QUARTER).for_each(|quad| last.add::<MIN>(quad));
            }
        }
        self.before = [None, last];
    }

    /// Adds all that is not yet added.
    ///
    /// # Safety
    /// - As [`Self::settle`].
    unsafe fn finish<const MIN: bool>(&mut self) {
        for _ in 0..2 {
            // SAFETY: by the caller.
            unsafe { self.settle::<MIN>() };
        }
    }

    fn sums_of(&mut self, step: Before) -> BlockSums {
        let scales = &self.scales[step.scales];
        let numbers = &self.numbers[step.numbers];
        BlockSums {
            sums: (&raw const self.sums.0).cast(),
            d: &raw const scales.d[0][step.b],
            s: &raw const scales.sums[0][step.b],
            d_w: [0, 1].map(|p| numbers[p].d.as_ptr()),
            m_w: [0, 1].map(|p| numbers[p].m.as_ptr()),
            out: (&raw mut self.near[step.square].0).cast(),
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
    /// - The block lies in the rows and in the lines; [`BlockSums::add`]; `to` has 64 rows of 64
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
    /// - The block lies in the rows and in the lines.
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
struct BlockSums {
    sums: *const [i32; PANEL_ROWS],
    /// The scale of the block in the first token; the next token's is eight on.
    d: *const f32,
    /// Sums of codes, likewise.
    s: *const f32,
    d_w: [*const f32; PANELS],
    m_w: [*const f32; PANELS],
    out: *mut [f32; PANEL_ROWS],
}

impl BlockSums {
    /// Scales part `quad` and adds it to the outputs.
    ///
    /// # Safety
    /// - All is of a strip that lives. The CPU has AVX-512F.
    #[target_feature(enable = "avx512f")]
    #[inline]
    unsafe fn add<const MIN: bool>(&self, quad: usize) {
        let (p, token) = (quad / (QUADS / PANELS), quad % (QUADS / PANELS) * 4);
        // SAFETY: whole, aligned vectors, by the caller.
        unsafe {
            let d_w = _mm512_load_ps(self.d_w[p]);
            for t in token..token + 4 {
                let out = self.out.add(p * TOKENS + t).cast();
                let sum = _mm512_load_si512(self.sums.add(p * TOKENS + t).cast());
                let d = _mm512_set1_ps(*self.d.add(8 * t));
                let scale = _mm512_mul_ps(d_w, d);
                let mut acc = _mm512_fmadd_ps(scale, _mm512_cvtepi32_ps(sum), _mm512_load_ps(out));
                if MIN {
                    let m = _mm512_mul_ps(_mm512_load_ps(self.m_w[p]), d);
                    let s = _mm512_set1_ps(*self.s.add(8 * t));
                    acc = _mm512_fmadd_ps(m, s, acc);
                }
                _mm512_store_ps(out, acc);
            }
        }
    }
}
