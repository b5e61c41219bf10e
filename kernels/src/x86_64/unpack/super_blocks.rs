//! Types with exact sums over 256 columns.

use super::{Line, add_bit, nibbles};
use crate::blocks::{iq4_xs, q3_k as q3_k_blocks};
use crate::contract::GROUP;
use crate::panel;
use crate::panel::{LINE_BYTES, PANEL_ROWS};
use crate::panel::{iq4_xs as iq4_xs_panel, q2_k, q3_k, q4_k, q5_k, q6_k};
use crate::scalar::matmul::{IQ4_TABLE, IntegerFormat, PerSubBlock};

/// A type whose lines of columns are vectors.
pub(crate) trait SuperBlock: IntegerFormat {
    /// The largest code.
    const MAX: u8;

    /// Byte lines of columns `32 * run..32 * run + 32` of the super-block at `p`.
    ///
    /// # Safety
    /// - A super-block is readable at `p`; the CPU has the features of `L`.
    unsafe fn lines<L: Line>(p: *const u8, run: usize) -> [L; 8];

    /// [`IntegerFormat::scales`], where the compiler makes no vectors of it.
    ///
    /// # Safety
    /// - The CPU has the features of `L`.
    #[inline(always)]
    unsafe fn scale_lines<L: Line>(
        super_block: &[u8],
        scales: &mut PerSubBlock,
        mins: &mut PerSubBlock,
    ) {
        Self::scales(super_block, scales, mins);
    }
}

impl SuperBlock for panel::Q4K {
    const MAX: u8 = 15;

    #[inline(always)]
    unsafe fn lines<L: Line>(p: *const u8, run: usize) -> [L; 8] {
        // SAFETY: by the caller.
        unsafe { nibbles(p.add(q4_k::LINES + 256 * run)) }
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

    #[inline(always)]
    unsafe fn scale_lines<L: Line>(packed: &[u8], scales: &mut PerSubBlock, _: &mut PerSubBlock) {
        for (s, scales) in scales.iter_mut().enumerate() {
            // SAFETY: by the caller.
            unsafe { offset_scales::<L>(packed, q3_k_blocks::scale_at(s), scales) };
        }
    }
}

/// The 6-bit scales, less 32, of a sub-block of Q3_K or IQ4_XS: their lower four bits and their
/// upper two are each in a byte of 16 rows, shifted.
///
/// # Safety
/// - The CPU has the features of `L`.
#[inline(always)]
unsafe fn offset_scales<L: Line>(
    packed: &[u8],
    ((low, low_shift), (high, high_shift)): ((usize, usize), (usize, usize)),
    scales: &mut [i32; PANEL_ROWS],
) {
    let bytes = packed.as_chunks::<PANEL_ROWS>().0;
    let (low, high) = (bytes[low].as_ptr(), bytes[high].as_ptr());
    // SAFETY: 16 bytes each; the scales have 64.
    unsafe {
        let low = L::widen(low).shift(-shift(low_shift)).and(L::splat(0xf));
        let high = L::widen(high).shift(-shift(high_shift)).and(L::splat(3));
        let scale = low.or(high.shift(4)).plus(-32);
        scale.store(scales.as_mut_ptr().cast());
    }
}

/// A number of bits.
#[inline(always)]
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_possible_wrap,
    reason = "below 8"
)]
const fn shift(n: usize) -> i32 {
    n as i32
}

impl SuperBlock for panel::Q2K {
    const MAX: u8 = 3;

    #[inline(always)]
    unsafe fn lines<L: Line>(p: *const u8, run: usize) -> [L; 8] {
        // SAFETY: by the caller.
        unsafe { two_lines(p.add(q2_k::LINES + 128 * run)) }
    }

    #[inline(always)]
    unsafe fn scale_lines<L: Line>(
        super_block: &[u8],
        scales: &mut PerSubBlock,
        mins: &mut PerSubBlock,
    ) {
        let packed = super_block[q2_k::SCALES..].as_chunks::<PANEL_ROWS>().0;
        for ((scales, mins), packed) in scales.iter_mut().zip(mins).zip(packed) {
            // SAFETY: 16 bytes; scales and minima have 64.
            unsafe {
                let both = L::widen(packed.as_ptr());
                both.and(L::splat(0xf)).store(scales.as_mut_ptr().cast());
                both.shift(-4).store(mins.as_mut_ptr().cast());
            }
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
    unsafe fn scale_lines<L: Line>(
        super_block: &[u8],
        scales: &mut PerSubBlock,
        _: &mut PerSubBlock,
    ) {
        let packed = &super_block[iq4_xs_panel::SCALES..];
        for (s, scales) in scales[..8].iter_mut().enumerate() {
            // SAFETY: by the caller.
            unsafe { offset_scales::<L>(packed, iq4_xs::scale_at(s), scales) };
        }
    }
}

/// What a product that unpacks groups asks of a type. All else of it is compiled once for all types.
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
}

/// A super-block of one panel, unpacked.
#[repr(C, align(64))]
pub(crate) struct UnpackedSuperBlock {
    /// Unsigned codes.
    pub(crate) lines: [[u8; LINE_BYTES]; GROUP / 4],
    pub(crate) scales: PerSubBlock,
    /// Minima of two sub-blocks as a pair of i16, in types that have any.
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

/// Numbers of sub-blocks, within 16 bits, two and two. By vectors of rows: a compiler left to
/// itself gathers and scatters.
///
/// # Safety
/// - The CPU has the features of `L`.
#[inline(always)]
pub(crate) unsafe fn pairs<L: Line>(numbers: &[[i32; PANEL_ROWS]]) -> [[i32; PANEL_ROWS]; 8] {
    let mut out = [[0; PANEL_ROWS]; 8];
    for (out, [even, odd]) in out.iter_mut().zip(numbers.as_chunks::<2>().0) {
        // SAFETY: 16 numbers each.
        unsafe {
            let (even, odd) = (L::load(even.as_ptr().cast()), L::load(odd.as_ptr().cast()));
            even.pair(odd).store(out.as_mut_ptr().cast());
        }
    }
    out
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

/// Unpacks super-block `g` of a panel.
///
/// # Safety
/// - `panel` is a whole panel of `n_cols` columns; the CPU has the features of `L`.
#[inline(always)]
pub(crate) unsafe fn unpack_super_block<B: SuperBlock, L: Line>(
    panel: &[u8],
    n_cols: usize,
    g: usize,
    out: &mut UnpackedSuperBlock,
) {
    let super_block = &panel[B::start(n_cols, g)..][..B::BYTES];
    let mut mins: PerSubBlock = [[0; _]; _];
    // SAFETY: by the caller.
    unsafe { B::scale_lines::<L>(super_block, &mut out.scales, &mut mins) };
    if B::MIN {
        // SAFETY: by the caller.
        out.min_pairs = unsafe { pairs::<L>(&mins[..GROUP / B::SUB_COLS]) };
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
