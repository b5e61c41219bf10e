//! Types with exact sums over 256 columns: codes times integer scales are 16-bit numbers, and
//! their low bytes (unsigned) and high bytes (signed) two planes of full tiles. So a group needs
//! no step between its sub-blocks: `S = 256 · high + low`, exact because S is below 2^31.

use super::tiles::{ROWS, Shape, Tiles};
use super::{PANELS, TOKENS, split};
use crate::args::Matmul;
use crate::contract::GROUP;
use crate::panel::{LINE_BYTES, PANEL_ROWS};
use crate::vector::rows::{Int8Rows, Out, SuperBlockScales};
use crate::vector::stream::Ahead;
use crate::vector::unpack::{SuperBlock, UnpackedSuperBlock};
use crate::x86_64::avx512::{self, scaled, scaled_less_min};
use core::arch::x86_64::*;

/// A group of one panel as two planes of bytes.
#[repr(C, align(64))]
struct Planes {
    low: [[u8; LINE_BYTES]; GROUP / 4],
    high: [[u8; LINE_BYTES]; GROUP / 4],
    /// Minima of two sub-blocks as a pair of i16.
    min_pairs: [[i32; PANEL_ROWS]; 8],
    d: [f32; PANEL_ROWS],
    dmin: [f32; PANEL_ROWS],
}

impl Planes {
    const EMPTY: Self = Self {
        low: [[0; _]; _],
        high: [[0; _]; _],
        min_pairs: [[0; _]; _],
        d: [0.0; _],
        dmin: [0.0; _],
    };

    /// Multiplies codes and scales.
    #[target_feature(enable = "avx512f,avx512bw")]
    fn fill(&mut self, w: &UnpackedSuperBlock, sub_cols: usize, offset: i16) {
        let offset = _mm512_set1_epi16(offset);
        let low_bytes = _mm512_set1_epi16(0xff);
        for (i, line) in w.lines.iter().enumerate() {
            // SAFETY: lines and scales are whole, aligned vectors.
            unsafe {
                let scale = _mm512_load_si512(w.scales[4 * i / sub_cols].as_ptr().cast());
                let codes = _mm512_load_si512(line.as_ptr().cast());
                let even = _mm512_sub_epi16(_mm512_and_si512(codes, low_bytes), offset);
                let odd = _mm512_sub_epi16(_mm512_srli_epi16::<8>(codes), offset);
                let even = _mm512_mullo_epi16(even, scale);
                let odd = _mm512_mullo_epi16(odd, scale);
                // (even & low_bytes) | odd << 8, and even >> 8 | (odd & !low_bytes).
                let upper = _mm512_slli_epi16::<8>(odd);
                let low = _mm512_ternarylogic_epi32::<0xea>(even, low_bytes, upper);
                let lower = _mm512_srli_epi16::<8>(even);
                let high = _mm512_ternarylogic_epi32::<0xba>(odd, low_bytes, lower);
                _mm512_store_si512(self.low[i].as_mut_ptr().cast(), low);
                _mm512_store_si512(self.high[i].as_mut_ptr().cast(), high);
            }
        }
        (self.min_pairs, self.d, self.dmin) = (w.min_pairs, w.d, w.dmin);
    }
}

/// Rows in panels × all tokens, written to `out`.
///
/// # Safety
/// - The contract of [`crate::KernelTable::matmul`], whose checks have passed; the CPU has the
///   Ice Lake set and what `T` needs. `args.store` is `Set`.
pub(crate) unsafe fn matmul<B: SuperBlock, T: Tiles>(args: &Matmul<'_>) {
    // SAFETY: by the caller; `strips` takes any number of whole tiles.
    unsafe {
        split(
            args,
            usize::MAX,
            strips::<B, T>,
            avx512::super_block_matmul::<B>,
        )
    }
}

/// # Safety
/// - As [`matmul`]; the number of tokens is a multiple of 32.
#[expect(
    clippy::large_stack_arrays,
    reason = "a kernel has no other memory; stack depths are tested"
)]
#[inline(never)] // Its room on the stack is not needed for few tokens.
unsafe fn strips<B: SuperBlock, T: Tiles>(args: &Matmul<'_>) {
    let (n_cols, panel_bytes) = (args.layout.n_cols(), args.layout.panel_bytes());
    let mut unpacked = UnpackedSuperBlock::EMPTY;
    let mut planes = [Planes::EMPTY; PANELS];
    for row in (args.rows.start..args.rows.end).step_by(PANELS * PANEL_ROWS) {
        let n_panels = (args.rows.end - row).div_ceil(PANEL_ROWS).min(PANELS);
        args.prefetch_beside(row, n_panels, 0, 1);
        for g in 0..n_cols / GROUP {
            for (p, planes) in planes[..n_panels].iter_mut().enumerate() {
                let panel = &args.panels[(row / PANEL_ROWS + p) * panel_bytes..];
                // SAFETY: by the caller.
                unsafe {
                    avx512::unpack_super_block::<B, true>(panel, n_cols, g, &mut unpacked);
                    planes.fill(&unpacked, B::SUB_COLS, B::OFFSET);
                }
            }
            let planes = &planes[..n_panels];
            Ahead::<PANELS>::new(args, row, g, |g| B::start(n_cols, g)).part(0, 1);
            // SAFETY: by the caller.
            unsafe {
                match (B::MIN, B::SUB_COLS) {
                    (false, _) => group::<T, 0>(args, row, g, planes),
                    (true, 32) => group::<T, 4>(args, row, g, planes),
                    (true, _) => group::<T, 8>(args, row, g, planes),
                }
            }
        }
    }
}

/// Adds the products of a group of some panels to the outputs of all tokens. `PAIRS`: pairs of
/// minima in a group.
///
/// # Safety
/// - As [`strips`], for the rows of `panels` from `row` on.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni,avx512vbmi")]
unsafe fn group<T: Tiles, const PAIRS: usize>(
    args: &Matmul<'_>,
    row: usize,
    g: usize,
    panels: &[Planes],
) {
    let shape = Shape {
        a_row_bytes: 64,
        b_rows: 16,
    };
    // SAFETY: by the caller.
    let mut tiles = unsafe { T::configure(shape) };
    let x = Int8Rows::new(args, args.tokens.start, false).skip_groups(g);
    let mut sums = Sums::ZERO;
    let mut scales = [[SuperBlockScales::<ROWS>::EMPTY; 2]; 2];
    let mut before: Option<Job<'_>> = None;
    let n_tokens = args.tokens.end - args.tokens.start;
    for (i, token) in (0..n_tokens).step_by(TOKENS).enumerate() {
        let x = [0, ROWS].map(|half| x.tokens(token + half));
        for (x, scales) in x.iter().zip(&mut scales[i % 2]) {
            // SAFETY: the tokens have whole groups of scales and sums.
            unsafe { scales.gather::<PAIRS>(x) };
        }
        for (p, w) in panels.iter().enumerate() {
            let now = Job {
                x: x.map(|x| x.q),
                stride: x[0].stride,
                w,
                scales: i % 2,
                out: Out::new(args, row + p * PANEL_ROWS).tokens(token),
                is_first: g == 0,
            };
            // SAFETY: by the caller.
            unsafe {
                match &before {
                    Some(before) => {
                        let scales = &scales[before.scales];
                        now.step::<T, PAIRS>(&mut tiles, &mut sums, before, scales);
                    }
                    None => now.multiply(&mut tiles),
                }
            }
            before = Some(now);
        }
    }
    if let Some(before) = before {
        // SAFETY: by the caller.
        unsafe {
            sums.store(&tiles);
            let scales = &scales[before.scales];
            (0..TOKENS).for_each(|t| before.add::<PAIRS>(&sums, scales, t));
        }
    }
}

/// Sums of both planes, of 32 tokens and a panel.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
struct Sums {
    low: [[i32; PANEL_ROWS]; TOKENS],
    high: [[i32; PANEL_ROWS]; TOKENS],
}

impl Sums {
    const ZERO: Self = Self {
        low: [[0; _]; _],
        high: [[0; _]; _],
    };

    /// # Safety
    /// - The registers are configured.
    unsafe fn store<T: Tiles>(&mut self, tiles: &T) {
        // SAFETY: by the caller; 16 rows of 64 bytes each.
        unsafe {
            tiles.store::<0>(self.low.as_mut_ptr().cast(), LINE_BYTES);
            tiles.store::<1>(self.high.as_mut_ptr().cast(), LINE_BYTES);
            tiles.store::<2>(self.low[ROWS..].as_mut_ptr().cast(), LINE_BYTES);
            tiles.store::<3>(self.high[ROWS..].as_mut_ptr().cast(), LINE_BYTES);
        }
    }
}

/// 32 tokens × one panel.
struct Job<'w> {
    /// Codes of 16 tokens, and of 16 more.
    x: [*const u8; 2],
    /// Bytes from a token to the next.
    stride: usize,
    w: &'w Planes,
    /// Which of the gathered scales are these tokens'.
    scales: usize,
    out: Out,
    is_first: bool,
}

impl Job<'_> {
    /// Multiplies, and stores and adds the sums of the job `before`, row by row between tile
    /// instructions: neither waits for the other.
    ///
    /// # Safety
    /// - As [`group`].
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni,avx512vbmi")]
    #[inline]
    unsafe fn step<T: Tiles, const PAIRS: usize>(
        &self,
        tiles: &mut T,
        sums: &mut Sums,
        before: &Job<'_>,
        scales: &[SuperBlockScales<ROWS>; 2],
    ) {
        // SAFETY: by the caller.
        unsafe {
            self.load_low(tiles, 0);
            tiles.store::<0>(sums.low.as_mut_ptr().cast(), LINE_BYTES);
            tiles.zero::<0>();
            self.load_first(tiles, 0);
            tiles.store::<1>(sums.high.as_mut_ptr().cast(), LINE_BYTES);
            tiles.zero::<1>();
            self.load_second(tiles, 0);
            tiles.store::<2>(sums.low[ROWS..].as_mut_ptr().cast(), LINE_BYTES);
            tiles.zero::<2>();
            self.load_high(tiles, 0);
            tiles.store::<3>(sums.high[ROWS..].as_mut_ptr().cast(), LINE_BYTES);
            tiles.zero::<3>();
            for k in 1..GROUP / 64 {
                let t = 8 * (k - 1);
                tiles.add_unsigned::<0, 4, 6>();
                before.add::<PAIRS>(sums, scales, t);
                tiles.add_unsigned::<2, 5, 6>();
                before.add::<PAIRS>(sums, scales, t + 1);
                self.load_low(tiles, k);
                before.add::<PAIRS>(sums, scales, t + 2);
                tiles.add_signed::<1, 4, 7>();
                before.add::<PAIRS>(sums, scales, t + 3);
                self.load_first(tiles, k);
                before.add::<PAIRS>(sums, scales, t + 4);
                tiles.add_signed::<3, 5, 7>();
                before.add::<PAIRS>(sums, scales, t + 5);
                self.load_second(tiles, k);
                before.add::<PAIRS>(sums, scales, t + 6);
                self.load_high(tiles, k);
                before.add::<PAIRS>(sums, scales, t + 7);
            }
            tiles.add_unsigned::<0, 4, 6>();
            before.add::<PAIRS>(sums, scales, 24);
            before.add::<PAIRS>(sums, scales, 25);
            tiles.add_unsigned::<2, 5, 6>();
            before.add::<PAIRS>(sums, scales, 26);
            before.add::<PAIRS>(sums, scales, 27);
            tiles.add_signed::<1, 4, 7>();
            before.add::<PAIRS>(sums, scales, 28);
            before.add::<PAIRS>(sums, scales, 29);
            tiles.add_signed::<3, 5, 7>();
            before.add::<PAIRS>(sums, scales, 30);
            before.add::<PAIRS>(sums, scales, 31);
        }
    }

    /// Multiplies.
    ///
    /// # Safety
    /// - As [`group`].
    unsafe fn multiply<T: Tiles>(&self, tiles: &mut T) {
        tiles.zero::<0>();
        tiles.zero::<1>();
        tiles.zero::<2>();
        tiles.zero::<3>();
        for k in 0..GROUP / 64 {
            // SAFETY: by the caller.
            unsafe {
                self.load_low(tiles, k);
                self.load_first(tiles, k);
                self.load_second(tiles, k);
                self.load_high(tiles, k);
            }
            tiles.add_unsigned::<0, 4, 6>();
            tiles.add_unsigned::<2, 5, 6>();
            tiles.add_signed::<1, 4, 7>();
            tiles.add_signed::<3, 5, 7>();
        }
    }

    /// The low plane of 64 columns.
    #[inline(always)]
    unsafe fn load_low<T: Tiles>(&self, tiles: &mut T, k: usize) {
        // SAFETY: 16 lines.
        unsafe { tiles.load::<6>(self.w.low[16 * k..].as_ptr().cast(), LINE_BYTES) };
    }

    #[inline(always)]
    unsafe fn load_high<T: Tiles>(&self, tiles: &mut T, k: usize) {
        // SAFETY: 16 lines.
        unsafe { tiles.load::<7>(self.w.high[16 * k..].as_ptr().cast(), LINE_BYTES) };
    }

    /// 64 columns of the first 16 tokens.
    #[inline(always)]
    unsafe fn load_first<T: Tiles>(&self, tiles: &mut T, k: usize) {
        // SAFETY: a group of 16 tokens is readable, by the caller.
        unsafe { tiles.load::<4>(self.x[0].add(64 * k), self.stride) };
    }

    #[inline(always)]
    unsafe fn load_second<T: Tiles>(&self, tiles: &mut T, k: usize) {
        // SAFETY: as for the first.
        unsafe { tiles.load::<5>(self.x[1].add(64 * k), self.stride) };
    }

    /// Scales the sums of token `t` and adds them to its outputs.
    ///
    /// # Safety
    /// - As [`group`].
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni,avx512vbmi")]
    #[inline]
    unsafe fn add<const PAIRS: usize>(
        &self,
        sums: &Sums,
        scales: &[SuperBlockScales<ROWS>; 2],
        t: usize,
    ) {
        let scales = &scales[t / ROWS];
        // SAFETY: whole, aligned vectors; outputs by the caller, where the mask has them.
        unsafe {
            let d = _mm512_load_ps(self.w.d.as_ptr());
            let high = _mm512_load_si512(sums.high[t].as_ptr().cast());
            let low = _mm512_load_si512(sums.low[t].as_ptr().cast());
            let sum = _mm512_add_epi32(_mm512_slli_epi32::<8>(high), low);
            let total = if PAIRS > 0 {
                let dmin = _mm512_load_ps(self.w.dmin.as_ptr());
                let pairs = &scales.pairs[t % ROWS];
                let min_sum = min_sum::<PAIRS>(pairs, &self.w.min_pairs);
                scaled_less_min(sum, min_sum, d, dmin)
            } else {
                scaled(sum, d)
            };
            let acc = self.out.running(t, self.is_first);
            let d_a = _mm512_set1_ps(scales.d[t % ROWS]);
            self.out.store(t, _mm512_fmadd_ps(d_a, total, acc));
        }
    }
}

/// `Σ min · Σ a` over a group of a panel.
#[target_feature(enable = "avx512f,avx512vnni")]
#[inline]
fn min_sum<const PAIRS: usize>(pairs: &[i32; 8], min_pairs: &[[i32; PANEL_ROWS]; 8]) -> __m512i {
    let mut sum = _mm512_setzero_si512();
    for (pair, mins) in pairs.iter().zip(min_pairs).take(PAIRS) {
        // SAFETY: minima are whole, aligned vectors.
        let mins = unsafe { _mm512_load_si512(mins.as_ptr().cast()) };
        sum = _mm512_dpwssd_epi32(sum, mins, _mm512_set1_epi32(*pair));
    }
    sum
}
