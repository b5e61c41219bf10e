//! Types with exact sums over 256 columns: codes times integer scales are 16-bit numbers, and
//! their low bytes (unsigned) and high bytes (signed) two planes of full tiles. So a group needs
//! no step between its sub-blocks: `S = 256 · high + low`, exact because S is below 2^31.
//!
//! A step multiplies two panels with up to 16 tokens, stores the sums of the step before, and scales
//! and adds those of the step before that: stored tiles take a while to reach the cache.

use super::planes::{Numbers, Planes, whole};
use super::tiles::{ROWS, Shape, Tiles};
use super::{PANELS, split, wide};
use crate::activation::GroupNumbers;
use crate::args::Matmul;
use crate::contract::GROUP;
use crate::panel::{LINE_BYTES, PANEL_ROWS};
use crate::prefetch::prefetch_line;
use crate::vector::rows::{Int8Rows, Out};
use crate::vector::stream::Ahead;
use crate::vector::unpack::SuperBlock;
use crate::x86_64::avx512::{self, scaled};
use core::arch::x86_64::*;

/// The fewest tokens whose products pay for planes.
const TOKENS_MIN: usize = 32;
/// From this number of tokens on, types without minima are faster as [`wide`] multiplies them.
const TOKENS_WIDE: usize = 256;

/// Rows in panels × all tokens, written to `out`.
///
/// # Safety
/// - The contract of [`crate::KernelTable::matmul`], whose checks have passed; the CPU has the
///   Ice Lake set and what `T` needs. `args.store` is `Set` or `Continue`.
pub(crate) unsafe fn matmul<B: SuperBlock, T: Tiles>(args: &Matmul<'_>) {
    // SAFETY: by the caller; `PAIRS` are those of the type, and `split` calls `wide` with whole tiles.
    unsafe {
        match (args.tokens.end - args.tokens.start, B::MIN, B::SUB_COLS) {
            (..TOKENS_MIN, ..) => avx512::super_block_matmul::<B>(args),
            (TOKENS_WIDE.., false, _) => {
                split(args, usize::MAX, wide::matmul::<B, T>, matmul::<B, T>)
            }
            (_, false, _) => strips::<B, T, 0>(args),
            (_, true, 32) => strips::<B, T, 4>(args),
            (_, true, _) => strips::<B, T, 8>(args),
        }
    }
}

/// `PAIRS`: pairs of minima in a group.
///
/// # Safety
/// - As [`matmul`]; there is a token.
#[inline(never)] // Its room on the stack is not needed for few tokens.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni,avx512vbmi")]
unsafe fn strips<B: SuperBlock, T: Tiles, const PAIRS: usize>(args: &Matmul<'_>) {
    let n_cols = args.layout.n_cols();
    let mut room = Room::EMPTY;
    // SAFETY: by the caller.
    let mut strip = unsafe { Strip::<T, PAIRS>::new(args, &mut room) };
    for row in (args.rows.start..args.rows.end).step_by(PANELS * PANEL_ROWS) {
        let n_panels = (args.rows.end - row).div_ceil(PANEL_ROWS).min(PANELS);
        args.prefetch_beside(row, n_panels, 0, 1);
        for g in 0..n_cols / GROUP {
            Ahead::<PANELS>::new(args, row, g, |g| B::start(n_cols, g)).part(0, 1);
            // SAFETY: by the caller.
            unsafe {
                strip.fill::<B>(row, n_panels, g);
                strip.group(row, g);
            }
        }
    }
    // SAFETY: by the caller.
    unsafe { strip.finish() };
}

/// [`Numbers`] of two panels in registers.
struct Scales {
    min_pairs: [[__m512i; 8]; PANELS],
    d: [__m512; PANELS],
    dmin: [__m512; PANELS],
}

impl Scales {
    #[target_feature(enable = "avx512f")]
    #[inline]
    fn load<const PAIRS: usize>(numbers: &[Numbers; PANELS]) -> Self {
        let mut out = Self {
            min_pairs: [[_mm512_setzero_si512(); 8]; PANELS],
            d: [_mm512_setzero_ps(); PANELS],
            dmin: [_mm512_setzero_ps(); PANELS],
        };
        for (p, numbers) in numbers.iter().enumerate() {
            // SAFETY: whole, aligned vectors.
            unsafe {
                out.d[p] = _mm512_load_ps(numbers.d.as_ptr());
                out.dmin[p] = _mm512_load_ps(numbers.dmin.as_ptr());
                for (pair, from) in out.min_pairs[p][..PAIRS].iter_mut().zip(&numbers.min_pairs) {
                    *pair = _mm512_load_si512(from.as_ptr().cast());
                }
            }
        }
        out
    }
}

/// Sums of 16 tokens: of the low and the high plane of a panel, then of its neighbour's.
#[repr(C, align(64))]
struct Sums([[[i32; PANEL_ROWS]; ROWS]; 2 * PANELS]);

impl Sums {
    const ZERO: Self = Self([[[0; _]; _]; _]);
}

/// What a strip writes.
struct Room {
    planes: [Planes; PANELS],
    /// Sums of the last two steps.
    sums: [Sums; 2],
    /// Numbers of the last three groups: a step adds sums of two steps before.
    numbers: [[Numbers; PANELS]; 3],
}

impl Room {
    const EMPTY: Self = Self {
        planes: [Planes::EMPTY; _],
        sums: [Sums::ZERO; _],
        numbers: [[Numbers::EMPTY; _]; _],
    };
}

/// Two panels × all tokens on their way through the registers.
struct Strip<'a, T, const PAIRS: usize> {
    tiles: T,
    args: &'a Matmul<'a>,
    room: &'a mut Room,
    /// The rows of all tokens.
    x: Int8Rows,
    n_tokens: usize,
    /// Tokens in a tile. Tiles have the same number, so that the last may begin within the one before it.
    n_in_tile: usize,
    /// Which of the [`Room::numbers`] are those of the last group.
    numbers: usize,
    /// What becomes of the sums of the last two steps, the later one first.
    before: [Option<Job>; 2],
}

/// What becomes of the sums of a step.
#[derive(Clone, Copy)]
struct Job {
    /// Which of the [`Room::sums`] they are.
    sums: usize,
    /// Which of the [`Room::numbers`] scale them.
    numbers: usize,
    /// The numbers of the first token.
    x: *const GroupNumbers,
    /// Bytes from a token to the next.
    stride: usize,
    out: [Out; PANELS],
    /// Tokens that no other tile adds.
    first: usize,
    end: usize,
    is_first_group: bool,
}

impl<'a, T: Tiles, const PAIRS: usize> Strip<'a, T, PAIRS> {
    /// # Safety
    /// - As [`strips`].
    unsafe fn new(args: &'a Matmul<'a>, room: &'a mut Room) -> Self {
        let n_tokens = args.tokens.end - args.tokens.start;
        let n_in_tile = n_tokens.div_ceil(n_tokens.div_ceil(ROWS));
        let x = Int8Rows::new(args, args.tokens.start, false);
        let shape = Shape {
            a_rows: u8::try_from(n_in_tile).expect("at most 16"),
            a_row_bytes: 64,
            b_rows: 16,
        };
        // SAFETY: by the caller; a group of the first tokens is readable.
        let tiles = unsafe {
            let mut tiles = T::configure(shape);
            tiles.load::<4>(x.q, x.stride);
            tiles
        };
        Self {
            tiles,
            args,
            room,
            x,
            n_tokens,
            n_in_tile,
            numbers: 0,
            before: [None; 2],
        }
    }

    /// Unpacks group `g` of the panels from row `row` on. A panel without a neighbour is multiplied
    /// with what is left of another, and written alone.
    ///
    /// # Safety
    /// - As [`strips`].
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni,avx512vbmi")]
    #[inline]
    unsafe fn fill<B: SuperBlock>(&mut self, row: usize, n_panels: usize, g: usize) {
        let (n_cols, panel_bytes) = (self.args.layout.n_cols(), self.args.layout.panel_bytes());
        self.numbers = if self.numbers == 2 {
            0
        } else {
            self.numbers + 1
        };
        for p in 0..n_panels {
            let panel = &self.args.panels[(row / PANEL_ROWS + p) * panel_bytes..][..panel_bytes];
            let to = &mut self.room.numbers[self.numbers][p];
            // SAFETY: by the caller.
            unsafe { self.room.planes[p].fill::<B>(panel, n_cols, g, to) };
        }
    }

    /// Multiplies group `g` of two panels with all tokens.
    ///
    /// # Safety
    /// - As [`strips`]; the group was [filled](Self::fill).
    #[inline(never)] // One for all types with the same minima.
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni,avx512vbmi")]
    unsafe fn group(&mut self, row: usize, g: usize) {
        let n_groups = self.args.layout.n_cols() / GROUP;
        let outs = [0, PANEL_ROWS].map(|r| Out::new(self.args, row + r));
        let x = self.x.skip_groups(g);
        let next_group = self.x.skip_groups(if g + 1 < n_groups { g + 1 } else { 0 });
        let last_token = self.n_tokens - self.n_in_tile;
        for first in (0..self.n_tokens).step_by(self.n_in_tile) {
            let token = first.min(last_token);
            let next = match token < last_token {
                true => x.tokens((first + self.n_in_tile).min(last_token)),
                false => next_group,
            };
            let x = x.tokens(token);
            let now = Job {
                sums: self.before[0].map_or(0, |last| 1 - last.sums),
                numbers: self.numbers,
                x: x.numbers(),
                stride: x.stride,
                out: outs.map(|out| out.tokens(token)),
                first: first - token,
                end: self.n_in_tile,
                is_first_group: g == 0 && self.args.store.starts(),
            };
            let operands = Operands {
                x: x.q,
                next: next.q,
                stride: x.stride,
            };
            let (tiles, room) = (&mut self.tiles, &mut *self.room);
            // SAFETY: by the caller; after the last tile the first is read once more.
            unsafe {
                match &self.before {
                    [Some(last), Some(older)] => {
                        step::<T, PAIRS, true>(tiles, room, &operands, last.sums, older);
                    }
                    _ => step::<T, PAIRS, false>(tiles, room, &operands, 1 - now.sums, &now),
                }
            }
            now.prefetch();
            self.before = [Some(now), self.before[0]];
        }
    }

    /// Stores and adds what is not yet added.
    ///
    /// # Safety
    /// - As [`strips`].
    #[inline(never)]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni,avx512vbmi")]
    unsafe fn finish(&mut self) {
        let [last, older] = core::mem::take(&mut self.before);
        if let Some(last) = &last {
            let [a, b, c, d] = &mut self.room.sums[last.sums].0;
            // SAFETY: 16 rows of 64 bytes each.
            unsafe {
                self.tiles.store::<0>(a.as_mut_ptr().cast(), LINE_BYTES);
                self.tiles.store::<1>(b.as_mut_ptr().cast(), LINE_BYTES);
                self.tiles.store::<2>(c.as_mut_ptr().cast(), LINE_BYTES);
                self.tiles.store::<3>(d.as_mut_ptr().cast(), LINE_BYTES);
            }
        }
        for job in [older, last].into_iter().flatten() {
            let scales = Scales::load::<PAIRS>(&self.room.numbers[job.numbers]);
            for t in 0..ROWS {
                // SAFETY: by the caller.
                unsafe { job.add::<PAIRS, true>(&self.room.sums[job.sums], &scales, t) };
            }
        }
    }
}

/// Codes of a tile's tokens.
struct Operands {
    /// The first columns of a group.
    x: *const u8,
    /// The first columns of what is multiplied next.
    next: *const u8,
    /// Bytes from a token to the next.
    stride: usize,
}

/// Multiplies a group of two panels and a tile of tokens, stores the sums of the step before in
/// [`Room::sums`] number `to`, and, with `ADD`, adds the others, those of `job`: a few vectors between
/// any two instructions of tiles, or the two kinds do not run side by side.
///
/// # Safety
/// - As [`strips`]; a group of a tile's tokens is readable at `x`, and 64 columns at `next`.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni,avx512vbmi")]
#[inline]
unsafe fn step<T: Tiles, const PAIRS: usize, const ADD: bool>(
    tiles: &mut T,
    room: &mut Room,
    operands: &Operands,
    to: usize,
    job: &Job,
) {
    let Operands { x, next, stride } = *operands;
    let Room {
        planes: [first, second],
        sums: [one, other],
        numbers,
    } = room;
    let (to, sums) = match to {
        0 => (one, &*other),
        _ => (other, &*one),
    };
    let [a, b, c, d] = to.0.each_mut().map(|rows| rows.as_mut_ptr().cast());
    let scales = Scales::load::<PAIRS>(&numbers[job.numbers]);
    // A macro, because functions of this size are not inlined, and scales would stay in memory.
    macro_rules! quarter {
        ($k:literal, $now:literal, $then:literal, $at:expr) => {
            if $k == 0 {
                tiles.store::<0>(a, LINE_BYTES);
                tiles.zero::<0>();
            }
            tiles.load::<6>(first.low[16 * $k..].as_ptr().cast(), LINE_BYTES);
            job.add::<PAIRS, ADD>(sums, &scales, 4 * $k);
            tiles.add_unsigned::<0, $now, 6>();
            if $k == 0 {
                tiles.store::<1>(b, LINE_BYTES);
                tiles.zero::<1>();
            }
            tiles.load::<7>(first.high[16 * $k..].as_ptr().cast(), LINE_BYTES);
            job.add::<PAIRS, ADD>(sums, &scales, 4 * $k + 1);
            tiles.add_signed::<1, $now, 7>();
            tiles.load::<$then>($at, stride);
            if $k == 0 {
                tiles.store::<2>(c, LINE_BYTES);
                tiles.zero::<2>();
            }
            tiles.load::<6>(second.low[16 * $k..].as_ptr().cast(), LINE_BYTES);
            job.add::<PAIRS, ADD>(sums, &scales, 4 * $k + 2);
            tiles.add_unsigned::<2, $now, 6>();
            if $k == 0 {
                tiles.store::<3>(d, LINE_BYTES);
                tiles.zero::<3>();
            }
            tiles.load::<7>(second.high[16 * $k..].as_ptr().cast(), LINE_BYTES);
            job.add::<PAIRS, ADD>(sums, &scales, 4 * $k + 3);
            tiles.add_signed::<3, $now, 7>();
        };
    }
    // SAFETY: by the caller; 16 lines of planes, 16 rows of sums, of 64 bytes.
    unsafe {
        quarter!(0, 4, 5, x.add(64));
        quarter!(1, 5, 4, x.add(128));
        quarter!(2, 4, 5, x.add(192));
        quarter!(3, 5, 4, next);
    }
}

impl Job {
    /// Prefetches the numbers of its tokens, which are needed two steps later.
    #[inline(always)]
    fn prefetch(&self) {
        for t in 0..self.end {
            prefetch_line(self.x.wrapping_byte_add(t * self.stride).cast());
        }
    }

    /// Scales the sums of token `t` and adds them to its outputs.
    ///
    /// # Safety
    /// - The outputs are writable and nothing else accesses them; the tokens' numbers are readable.
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni,avx512vbmi")]
    #[inline]
    unsafe fn add<const PAIRS: usize, const ADD: bool>(
        &self,
        sums: &Sums,
        scales: &Scales,
        t: usize,
    ) {
        /// 1.5 · 2^23: its bits plus a sum below 2^22 are those of 1.5 · 2^23 + sum. While tiles
        /// multiply, one of the two 512-bit units adds, but does not convert.
        const MAGIC: f32 = 12_582_912.0;
        if !ADD || t < self.first || t >= self.end {
            return;
        }
        let magic = _mm512_set1_ps(MAGIC);
        // SAFETY: by the caller; rows of sums are whole, aligned vectors.
        unsafe {
            let x = self.x.wrapping_byte_add(t * self.stride);
            let d_x = _mm512_set1_ps((*x).d);
            let of_x: *const i32 = match PAIRS {
                8 => (&raw const (*x).sums).cast(),
                _ => (&raw const (*x).sums_of_32).cast(),
            };
            // Sums of minima are at most 16 · 15 · 2032, or 8 · 63 · 4064: below 2^21.
            let mut min_sums = [_mm512_setzero_si512(); PANELS];
            for pair in 0..PAIRS {
                let of_x = _mm512_set1_epi32(of_x.add(pair).read());
                for (sum, mins) in min_sums.iter_mut().zip(&scales.min_pairs) {
                    *sum = _mm512_dpwssd_epi32(*sum, mins[pair], of_x);
                }
            }
            for (p, min_sum) in min_sums.into_iter().enumerate() {
                let low = _mm512_load_si512(sums.0[2 * p][t].as_ptr().cast());
                let high = _mm512_load_si512(sums.0[2 * p + 1][t].as_ptr().cast());
                let mut total = scaled(whole(low, high), scales.d[p]);
                if PAIRS > 0 {
                    let min_sum = _mm512_add_epi32(min_sum, _mm512_castps_si512(magic));
                    let min_sum = _mm512_sub_ps(_mm512_castsi512_ps(min_sum), magic);
                    total = _mm512_fnmadd_ps(scales.dmin[p], min_sum, total);
                }
                let acc = self.out[p].running(t, self.is_first_group);
                self.out[p].store(t, _mm512_fmadd_ps(d_x, total, acc));
            }
        }
    }
}
