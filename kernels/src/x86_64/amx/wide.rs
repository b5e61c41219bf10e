//! Super-blocks without minima × many tokens: a step multiplies one panel with 32 tokens.
//!
//! Its lines stay in the first-level cache more often than those of two panels. Each row of sums is added
//! between two tile instructions.

use super::planes::{Numbers, Planes, whole};
use super::tiles::{ROWS, Shape, Tiles};
use super::{PANELS, TOKENS};
use crate::args::Matmul;
use crate::contract::GROUP;
use crate::panel::{LINE_BYTES, PANEL_ROWS};
use crate::vector::rows::{Int8Rows, Out};
use crate::vector::stream::Ahead;
use crate::vector::unpack::SuperBlock;
use crate::x86_64::avx512::scaled;
use core::arch::x86_64::*;

/// Rows in panels × all tokens, written to `out`.
///
/// # Safety
/// - The contract of [`crate::KernelTable::matmul`], whose checks have passed; the CPU has the
///   Ice Lake set and what `T` needs. `args.store` is `Set` or `Continue`.
/// - The number of tokens is a multiple of [`TOKENS`]; `B` has no minima.
#[expect(
    clippy::large_stack_arrays,
    reason = "a kernel has no other memory; stack depths are tested"
)]
#[inline(never)] // Its room on the stack is not needed for few tokens.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni,avx512vbmi")]
pub(super) unsafe fn matmul<B: SuperBlock, T: Tiles>(args: &Matmul<'_>) {
    let (n_cols, panel_bytes) = (args.layout.n_cols(), args.layout.panel_bytes());
    let mut panels = [Panel::EMPTY; PANELS];
    for row in (args.rows.start..args.rows.end).step_by(PANELS * PANEL_ROWS) {
        let n_panels = (args.rows.end - row).div_ceil(PANEL_ROWS).min(PANELS);
        args.prefetch_beside(row, n_panels, 0, 1);
        for g in 0..n_cols / GROUP {
            for (p, to) in panels[..n_panels].iter_mut().enumerate() {
                let panel = &args.panels[(row / PANEL_ROWS + p) * panel_bytes..][..panel_bytes];
                // SAFETY: by the caller.
                unsafe { to.planes.fill::<B>(panel, n_cols, g, &mut to.numbers) };
            }
            Ahead::<PANELS>::new(args, row, g, |g| B::start(n_cols, g)).part(0, 1);
            // SAFETY: by the caller.
            unsafe { group::<T>(args, row, g, &panels[..n_panels]) };
        }
    }
}

/// A group of one panel.
#[derive(Clone, Copy)]
struct Panel {
    planes: Planes,
    numbers: Numbers,
}

impl Panel {
    const EMPTY: Self = Self {
        planes: Planes::EMPTY,
        numbers: Numbers::EMPTY,
    };
}

/// Adds the products of a group of some panels to the outputs of all tokens.
///
/// # Safety
/// - As [`matmul`], for the rows of `panels` from `row` on.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni,avx512vbmi")]
unsafe fn group<T: Tiles>(args: &Matmul<'_>, row: usize, g: usize, panels: &[Panel]) {
    let shape = Shape {
        a_rows: 16,
        a_row_bytes: 64,
        b_rows: 16,
    };
    // SAFETY: by the caller.
    let mut tiles = unsafe { T::configure(shape) };
    let x = Int8Rows::new(args, args.tokens.start, false).skip_groups(g);
    let mut sums = Sums::ZERO;
    // Scales of the tokens of this step and of the one before.
    let mut scales = [[0.0; TOKENS]; 2];
    let mut before: Option<Job<'_>> = None;
    let n_tokens = args.tokens.end - args.tokens.start;
    for (i, token) in (0..n_tokens).step_by(TOKENS).enumerate() {
        let x = [0, ROWS].map(|half| x.tokens(token + half));
        for (t, scale) in scales[i % 2].iter_mut().enumerate() {
            // SAFETY: the tokens have whole groups of numbers.
            *scale = unsafe { (*x[0].tokens(t).numbers()).d };
        }
        for (p, w) in panels.iter().enumerate() {
            let now = Job {
                x: x.map(|x| x.q),
                stride: x[0].stride,
                w,
                scales: i % 2,
                out: Out::new(args, row + p * PANEL_ROWS).tokens(token),
                is_first: g == 0 && args.store.starts(),
            };
            // SAFETY: by the caller.
            unsafe {
                match &before {
                    Some(before) => {
                        let scales = &scales[before.scales];
                        now.step::<T>(&mut tiles, &mut sums, before, scales);
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
            (0..TOKENS).for_each(|t| before.add(&sums, scales, t));
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
    w: &'w Panel,
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
    unsafe fn step<T: Tiles>(
        &self,
        tiles: &mut T,
        sums: &mut Sums,
        before: &Job<'_>,
        scales: &[f32; TOKENS],
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
                before.add(sums, scales, t);
                tiles.add_unsigned::<2, 5, 6>();
                before.add(sums, scales, t + 1);
                self.load_low(tiles, k);
                before.add(sums, scales, t + 2);
                tiles.add_signed::<1, 4, 7>();
                before.add(sums, scales, t + 3);
                self.load_first(tiles, k);
                before.add(sums, scales, t + 4);
                tiles.add_signed::<3, 5, 7>();
                before.add(sums, scales, t + 5);
                self.load_second(tiles, k);
                before.add(sums, scales, t + 6);
                self.load_high(tiles, k);
                before.add(sums, scales, t + 7);
            }
            tiles.add_unsigned::<0, 4, 6>();
            before.add(sums, scales, 24);
            before.add(sums, scales, 25);
            tiles.add_unsigned::<2, 5, 6>();
            before.add(sums, scales, 26);
            before.add(sums, scales, 27);
            tiles.add_signed::<1, 4, 7>();
            before.add(sums, scales, 28);
            before.add(sums, scales, 29);
            tiles.add_signed::<3, 5, 7>();
            before.add(sums, scales, 30);
            before.add(sums, scales, 31);
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
        unsafe { tiles.load::<6>(self.w.planes.low[16 * k..].as_ptr().cast(), LINE_BYTES) };
    }

    #[inline(always)]
    unsafe fn load_high<T: Tiles>(&self, tiles: &mut T, k: usize) {
        // SAFETY: 16 lines.
        unsafe { tiles.load::<7>(self.w.planes.high[16 * k..].as_ptr().cast(), LINE_BYTES) };
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
    unsafe fn add(&self, sums: &Sums, scales: &[f32; TOKENS], t: usize) {
        // SAFETY: whole, aligned vectors; outputs by the caller, where the mask has them.
        unsafe {
            let d = _mm512_load_ps(self.w.numbers.d.as_ptr());
            let high = _mm512_load_si512(sums.high[t].as_ptr().cast());
            let low = _mm512_load_si512(sums.low[t].as_ptr().cast());
            let total = scaled(whole(low, high), d);
            let acc = self.out.running(t, self.is_first);
            let d_a = _mm512_set1_ps(scales[t]);
            self.out.store(t, _mm512_fmadd_ps(d_a, total, acc));
        }
    }
}
