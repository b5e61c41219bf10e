//! Types with exact sums over 256 columns.

use super::{Line, add_bit, nibbles};
use crate::activation::GroupNumbers;
use crate::blocks::iq4_xs;
use crate::contract::GROUP;
use crate::panel;
use crate::panel::{LINE_BYTES, PANEL_ROWS};
use crate::panel::{iq4_xs as iq4_xs_panel, q2_k, q3_k, q4_k, q5_k, q6_k};
use crate::scalar::matmul::{IQ4_TABLE, IntegerFormat};

/// A type whose lines of columns are vectors.
pub(crate) trait SuperBlock: IntegerFormat {
    /// The largest code.
    const MAX: u8;

    /// Byte lines of columns `32 * run..32 * run + 32` of the super-block at `p`.
    ///
    /// # Safety
    /// - A super-block is readable at `p`; the CPU has the features of `L`.
    unsafe fn lines<L: Line>(p: *const u8, run: usize) -> [L; 8];

    /// [`IntegerFormat::scales`], as bytes.
    ///
    /// # Safety
    /// - `super_block` is whole; the CPU has the features of `L`.
    unsafe fn scale_lines<L: Line>(super_block: &[u8], numbers: &mut Numbers);
}

/// A small signed number of each row for each sub-block; types with sub-blocks of 32 columns have
/// eight. Four sub-blocks are a line: to unpack them one by one, or to keep them in 32 bits, takes
/// more time than to widen them where they are used. Aligned, or every store is to two lines.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
pub(crate) struct SubBlockBytes([[u8; PANEL_ROWS]; 16]);

/// Scales, and minima in types that have any.
pub(crate) type Numbers = [SubBlockBytes; 2];

impl SubBlockBytes {
    pub(crate) const EMPTY: Self = Self([[0; _]; _]);

    /// The numbers of sub-block `s`.
    ///
    /// # Safety
    /// - The CPU has the features of `L`.
    #[inline(always)]
    pub(crate) unsafe fn widen<L: Line>(&self, s: usize) -> L {
        // SAFETY: 16 bytes.
        unsafe { L::widen(self.0[s].as_ptr()) }
    }

    /// [`Self::widen`] as pairs of equal words.
    ///
    /// # Safety
    /// - The CPU has the features of `L`.
    #[inline(always)]
    pub(crate) unsafe fn widen_twice<L: Line>(&self, s: usize) -> L {
        // SAFETY: 16 bytes.
        unsafe { L::widen_twice(self.0[s].as_ptr()) }
    }

    /// Writes the numbers of sub-blocks `4 * i..4 * i + 4`.
    #[inline(always)]
    fn set_line<L: Line>(&mut self, i: usize, line: L) {
        // SAFETY: 64 bytes; callers have the features of `L`.
        unsafe { line.store(self.0[4 * i..][..4].as_mut_ptr().cast()) };
    }
}

/// Line `i` of some bytes.
///
/// # Safety
/// - The CPU has the features of `L`.
#[inline(always)]
unsafe fn line<L: Line>(bytes: &[u8], i: usize) -> L {
    // SAFETY: 64 bytes.
    unsafe { L::load(bytes[LINE_BYTES * i..][..LINE_BYTES].as_ptr()) }
}

/// Scales and minima of Q4_K and Q5_K: a line has the lower four bits of both for four
/// sub-blocks, and the last line the upper two bits of both for eight.
///
/// # Safety
/// - `super_block` is whole; the CPU has the features of `L`.
#[inline(always)]
unsafe fn six_bits<L: Line>(super_block: &[u8], [scales, mins]: &mut Numbers) {
    let packed = &super_block[q4_k::LOW..q4_k::LINES];
    let (lower, upper) = (L::splat(0xf), L::splat(0x30));
    // SAFETY: by the caller.
    let high = unsafe { line::<L>(packed, 2) };
    for (i, to_scale, to_min) in [(0, 4, 0), (1, 2, -2)] {
        // SAFETY: by the caller.
        let low = unsafe { line::<L>(packed, i) };
        let scale = low.and(lower).or(high.shift(to_scale).and(upper));
        let min = low.shift(-4).and(lower).or(high.shift(to_min).and(upper));
        scales.set_line(i, scale);
        mins.set_line(i, min);
    }
}

impl SuperBlock for panel::Q4K {
    const MAX: u8 = 15;

    #[inline(always)]
    unsafe fn lines<L: Line>(p: *const u8, run: usize) -> [L; 8] {
        // SAFETY: by the caller.
        unsafe { nibbles(p.add(q4_k::LINES + 256 * run)) }
    }

    #[inline(always)]
    unsafe fn scale_lines<L: Line>(super_block: &[u8], numbers: &mut Numbers) {
        // SAFETY: by the caller.
        unsafe { six_bits::<L>(super_block, numbers) };
    }
}

impl SuperBlock for panel::Q5K {
    const MAX: u8 = 31;

    #[inline(always)]
    unsafe fn lines<L: Line>(p: *const u8, run: usize) -> [L; 8] {
        let p = p.wrapping_add(q4_k::LINES + q5_k::SUB_BLOCK * run);
        // SAFETY: by the caller.
        let (mut lines, high) = unsafe { (nibbles(p), L::load(p.add(q5_k::HIGH))) };
        add_bit(high, 4, &mut lines);
        lines
    }

    #[inline(always)]
    unsafe fn scale_lines<L: Line>(super_block: &[u8], numbers: &mut Numbers) {
        // SAFETY: by the caller.
        unsafe { six_bits::<L>(super_block, numbers) };
    }
}

impl SuperBlock for panel::Q6K {
    const MAX: u8 = 63;

    #[inline(always)]
    unsafe fn lines<L: Line>(p: *const u8, run: usize) -> [L; 8] {
        let upper = L::splat(0x30);
        let mut out = [upper; 8];
        for (half, out) in out.as_chunks_mut::<4>().0.iter_mut().enumerate() {
            let p = p.wrapping_add(q6_k::LINES + q6_k::SUB_BLOCK * (2 * run + half));
            // SAFETY: by the caller.
            let (low, high) = unsafe { (nibbles::<L, 4>(p), L::load(p.add(q6_k::HIGH))) };
            for ((out, low), shift) in out.iter_mut().zip(low).zip([4, 2, 0, -2]) {
                *out = low.or(high.shift(shift).and(upper));
            }
        }
        out
    }

    #[inline(always)]
    unsafe fn scale_lines<L: Line>(super_block: &[u8], [scales, _]: &mut Numbers) {
        for i in 0..4 {
            // SAFETY: by the caller.
            scales.set_line(i, unsafe { line::<L>(super_block, i) });
        }
    }
}

/// The eight byte lines of two lines of 2-bit codes at `p`.
///
/// # Safety
/// - Two lines are readable at `p`; the CPU has the features of `L`.
#[inline(always)]
unsafe fn two_lines<L: Line>(p: *const u8) -> [L; 8] {
    let mask = L::splat(3);
    let mut out = [mask; 8];
    for (i, out) in out.as_chunks_mut::<4>().0.iter_mut().enumerate() {
        // SAFETY: by the caller.
        let codes = unsafe { L::load(p.add(LINE_BYTES * i)) };
        for (out, shift) in out.iter_mut().zip([0, -2, -4, -6]) {
            *out = codes.shift(shift).and(mask);
        }
    }
    out
}

impl SuperBlock for panel::Q3K {
    const MAX: u8 = 7;

    #[inline(always)]
    unsafe fn lines<L: Line>(p: *const u8, run: usize) -> [L; 8] {
        let p = p.wrapping_add(q3_k::LINES + q3_k::RUN * run);
        // SAFETY: by the caller.
        let (mut lines, high) = unsafe { (two_lines(p), L::load(p.add(q3_k::HIGH))) };
        add_bit(high, 2, &mut lines);
        lines
    }

    /// As GGUF has them ([`crate::blocks::q3_k::scale_at`]), four sub-blocks at a time.
    #[inline(always)]
    unsafe fn scale_lines<L: Line>(super_block: &[u8], [scales, _]: &mut Numbers) {
        // SAFETY: by the caller.
        let high = unsafe { line::<L>(super_block, 2) };
        for (i, from, to_scale) in [(0, 0, 4), (1, 0, 2), (2, -4, 0), (3, -4, -2)] {
            // SAFETY: by the caller.
            let low = unsafe { line::<L>(super_block, i % 2) }.shift(from);
            let high = high.shift(to_scale).and(L::splat(0x30));
            scales.set_line(i, low.and(L::splat(0xf)).or(high).add(L::splat(LESS_32)));
        }
    }
}

/// What is added to a byte to take 32 off.
const LESS_32: u8 = 0u8.wrapping_sub(32);

impl SuperBlock for panel::Q2K {
    const MAX: u8 = 3;

    #[inline(always)]
    unsafe fn lines<L: Line>(p: *const u8, run: usize) -> [L; 8] {
        // SAFETY: by the caller.
        unsafe { two_lines(p.add(q2_k::LINES + 128 * run)) }
    }

    #[inline(always)]
    unsafe fn scale_lines<L: Line>(super_block: &[u8], [scales, mins]: &mut Numbers) {
        let lower = L::splat(0xf);
        for i in 0..4 {
            // SAFETY: by the caller.
            let both = unsafe { line::<L>(&super_block[q2_k::SCALES..], i) };
            scales.set_line(i, both.and(lower));
            mins.set_line(i, both.shift(-4).and(lower));
        }
    }
}

impl SuperBlock for panel::Iq4Xs {
    const MAX: u8 = 255;

    #[inline(always)]
    unsafe fn lines<L: Line>(p: *const u8, run: usize) -> [L; 8] {
        // SAFETY: by the caller.
        let mut lines = unsafe { nibbles::<L, 8>(p.add(iq4_xs_panel::LINES + 256 * run)) };
        for line in &mut lines {
            *line = line.lookup(&IQ4_TABLE);
        }
        lines
    }

    #[inline(always)]
    unsafe fn scale_lines<L: Line>(super_block: &[u8], [scales, _]: &mut Numbers) {
        let packed = super_block[iq4_xs_panel::SCALES..]
            .as_chunks::<PANEL_ROWS>()
            .0;
        for (s, scales) in scales.0[..8].iter_mut().enumerate() {
            *scales = L::six_bits(packed, iq4_xs::scale_at(s));
        }
    }
}

/// What a product that unpacks groups needs of a type. The rest of it is compiled once for all types.
pub(crate) struct SuperBlockKind {
    /// [`unpack_super_block`], compiled for a table.
    pub(crate) unpack: unsafe fn(&[u8], usize, usize, &mut UnpackedSuperBlock),
    /// [`IntegerFormat::start`].
    pub(crate) start: fn(usize, usize) -> usize,
    /// [`IntegerFormat::SUB_COLS`].
    pub(crate) sub_cols: usize,
    /// [`SuperBlock::MAX`].
    pub(crate) max: u8,
    /// [`IntegerFormat::OFFSET`], or what the table leaves of it.
    pub(crate) offset: i16,
    /// [`IntegerFormat::MIN`].
    pub(crate) min: bool,
    /// [`SuperBlockKind::most`].
    pub(crate) most: u16,
}

impl SuperBlockKind {
    /// The largest sum of a group of activations with which all dots with any super-block fit in 16 bits. Over 32
    /// columns the sum is of the codes of one sign, over 16 of the magnitudes.
    pub(crate) const fn most(max: u8, offset: i16, sub_cols: usize) -> u16 {
        let (max, offset) = (max as u16, offset.cast_unsigned());
        let above = max.saturating_sub(offset);
        let largest = if above > offset { above } else { offset };
        // Weights have both signs: positive codes and negative ones may count alike.
        let both = if sub_cols == 32 && offset > 0 { 2 } else { 1 };
        i16::MAX.cast_unsigned() / (largest * both)
    }

    /// Whether all dots of a group of activations with any super-block are within 16 bits.
    #[inline(always)]
    pub(crate) fn dots_fit(&self, x: &GroupNumbers) -> bool {
        let most = match self.sub_cols {
            32 => x.most_of_32,
            _ => x.most_of_16,
        };
        most <= self.most
    }
}

/// A super-block of one panel, unpacked.
#[repr(C, align(64))]
pub(crate) struct UnpackedSuperBlock {
    /// Unsigned codes.
    pub(crate) lines: [[u8; LINE_BYTES]; GROUP / 4],
    /// For `WORDS` ([`unpack_super_block`]) of each sub-block, a pair of equal i16; else of two, as
    /// a pair of i16. Of sub-blocks of 32 columns there are eight.
    pub(crate) scales: [[i32; PANEL_ROWS]; 16],
    /// Minima of two sub-blocks as a pair of i16, in types that have any; for `WORDS` scales in the
    /// others.
    pub(crate) min_pairs: [[i32; PANEL_ROWS]; 8],
    pub(crate) d: [f32; PANEL_ROWS],
    pub(crate) dmin: [f32; PANEL_ROWS],
}

impl UnpackedSuperBlock {
    pub(crate) const EMPTY: Self = Self {
        lines: [[0; _]; _],
        scales: [[0; _]; _],
        min_pairs: [[0; _]; _],
        d: [0.0; _],
        dmin: [0.0; _],
    };
}

/// The numbers of sub-blocks, two and two as a pair of i16. By vectors of rows: a compiler left to
/// itself gathers and scatters.
///
/// # Safety
/// - The CPU has the features of `L`.
#[inline(always)]
pub(crate) unsafe fn pairs<L: Line>(
    numbers: &SubBlockBytes,
    n_sub_blocks: usize,
) -> [[i32; PANEL_ROWS]; 8] {
    let mut out = [[0; PANEL_ROWS]; 8];
    // SAFETY: by the caller.
    unsafe { set_pairs::<L>(numbers, n_sub_blocks, &mut out) };
    out
}

/// # Safety
/// - As [`pairs`].
#[inline(always)]
unsafe fn set_pairs<L: Line>(
    numbers: &SubBlockBytes,
    n_sub_blocks: usize,
    out: &mut [[i32; PANEL_ROWS]],
) {
    for (i, out) in out[..n_sub_blocks / 2].iter_mut().enumerate() {
        // SAFETY: 16 numbers each.
        unsafe {
            let (even, odd) = (numbers.widen::<L>(2 * i), numbers.widen(2 * i + 1));
            even.pair(odd).store(out.as_mut_ptr().cast());
        }
    }
}

/// `d` and `dmin` of super-block `g`; `dmin` is anything where there are no minima.
///
/// # Safety
/// - `panel` is a whole panel of `n_cols` columns; the CPU has the features of `L`.
#[inline(always)]
pub(crate) unsafe fn numbers<B: SuperBlock, L: Line>(
    panel: &[u8],
    n_cols: usize,
    g: usize,
) -> [L::Floats; 2] {
    let (d, dmin) = B::d(n_cols, g);
    // SAFETY: by the caller.
    unsafe {
        [
            L::halves(panel.as_ptr().add(d)),
            L::halves(panel.as_ptr().add(dmin)),
        ]
    }
}

/// Unpacks super-block `g` of a panel. `WORDS`: each scale is a pair of equal words, and types
/// without minima have pairs of scales in their place. Else scales are pairs.
///
/// # Safety
/// - `panel` is a whole panel of `n_cols` columns; the CPU has the features of `L`.
#[inline(always)]
pub(crate) unsafe fn unpack_super_block<B: SuperBlock, L: Line, const WORDS: bool>(
    panel: &[u8],
    n_cols: usize,
    g: usize,
    out: &mut UnpackedSuperBlock,
) {
    let super_block = &panel[B::start(n_cols, g)..][..B::BYTES];
    let mut numbers_of_sub_blocks = [SubBlockBytes::EMPTY; 2];
    // SAFETY: by the caller.
    unsafe { B::scale_lines::<L>(super_block, &mut numbers_of_sub_blocks) };
    let [scales, mins] = &numbers_of_sub_blocks;
    let n_sub_blocks = GROUP / B::SUB_COLS;
    // SAFETY: by the caller; 16 numbers each.
    unsafe {
        if WORDS {
            for (s, out) in out.scales[..n_sub_blocks].iter_mut().enumerate() {
                scales.widen_twice::<L>(s).store(out.as_mut_ptr().cast());
            }
        } else {
            set_pairs::<L>(scales, n_sub_blocks, &mut out.scales);
        }
    }
    if B::MIN || WORDS {
        let of = if B::MIN { mins } else { scales };
        // SAFETY: by the caller.
        unsafe { set_pairs::<L>(of, n_sub_blocks, &mut out.min_pairs) };
    }
    let p = super_block.as_ptr();
    for run in 0..8 {
        for (i, line) in (0..).zip(
            // SAFETY: the super-block is whole.
            unsafe { B::lines::<L>(p, run) },
        ) {
            // SAFETY: a line of the buffer.
            unsafe { line.store(out.lines[8 * run + i].as_mut_ptr()) };
        }
    }
    // SAFETY: the panel is whole.
    let [d, dmin] = unsafe { numbers::<B, L>(panel, n_cols, g) };
    L::store_floats(d, &mut out.d);
    L::store_floats(dmin, &mut out.dmin);
}
