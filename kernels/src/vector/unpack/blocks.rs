//! Types with a scale per 32 columns.

use super::{Line, add_bit, nibbles};
use crate::activation::blocks_in_group;
use crate::contract::GROUP;
use crate::panel::small::{Codes, HIGH, Small, SmallBlock};
use crate::panel::{LINE_BYTES, Lane, PANEL_ROWS, PanelFormat, Q8_0};

/// A type with small codes and one scale, and perhaps one minimum, per 32 columns.
pub(crate) trait Block: PanelFormat {
    /// The largest code.
    const MAX: u8;
    /// What to subtract from a code to get its value.
    const OFFSET: i16;
    /// Whether values have a minimum in addition to the scale.
    const MIN: bool;
    /// Bytes of a block: its numbers and its lines.
    const BYTES: usize;
    /// Whether AVX-512 unpacks a group into memory for two to four tokens, by a function that such types share: images are
    /// small. For one token that took half as long again.
    const SHARED: bool = false;

    /// Offsets of the numbers and of the lines of block `index`.
    fn offsets(n_cols: usize, index: usize) -> (usize, usize);

    /// Byte lines of the block whose lines are at `p`.
    ///
    /// # Safety
    /// - Its lines are readable at `p`; the CPU has the features of `L`.
    unsafe fn lines<L: Line>(p: *const u8) -> [L; 8];

    /// Scales of the block whose numbers are at `p`.
    ///
    /// # Safety
    /// - The numbers are readable at `p`; the CPU has the features of `L`.
    unsafe fn scales<L: Line>(p: *const u8) -> L::Floats;
}

impl Block for Q8_0 {
    const MAX: u8 = 255;
    const OFFSET: i16 = 128;
    const MIN: bool = false;
    const BYTES: usize = 2 * PANEL_ROWS + 8 * LINE_BYTES;

    #[inline(always)]
    fn offsets(n_cols: usize, index: usize) -> (usize, usize) {
        Self::at(n_cols, index)
    }

    #[inline(always)]
    unsafe fn lines<L: Line>(p: *const u8) -> [L; 8] {
        let mut out = [L::splat(0); 8];
        for (i, out) in out.iter_mut().enumerate() {
            // SAFETY: by the caller.
            *out = unsafe { L::load(p.add(LINE_BYTES * i)) };
        }
        out
    }

    #[inline(always)]
    unsafe fn scales<L: Line>(p: *const u8) -> L::Floats {
        // SAFETY: by the caller.
        unsafe { L::halves(p) }
    }
}

impl<B: SmallBlock> Block for Small<B> {
    const MAX: u8 = match (B::CODES, B::HIGH) {
        (Codes::Table(_), _) => 255,
        (_, true) => 31,
        (_, false) => 15,
    };
    #[expect(clippy::cast_possible_truncation, reason = "offsets are 0, 8 and 16")]
    const OFFSET: i16 = match B::CODES {
        Codes::Offset(offset) => offset as i16,
        Codes::Table(_) => 128,
    };
    const MIN: bool = B::N_NUMBERS == 2;
    const BYTES: usize = Self::HEAD + Self::LINES;

    #[inline(always)]
    fn offsets(n_cols: usize, index: usize) -> (usize, usize) {
        Self::at(n_cols, index)
    }

    #[inline(always)]
    unsafe fn lines<L: Line>(p: *const u8) -> [L; 8] {
        // SAFETY: by the caller.
        let mut lines = unsafe { nibbles::<L, 8>(p) };
        if B::HIGH {
            // SAFETY: by the caller; the high line is the last.
            add_bit(unsafe { L::load(p.add(HIGH)) }, 4, &mut lines);
        }
        if let Some(table) = &Self::TABLE {
            for line in &mut lines {
                *line = line.lookup(table);
            }
        }
        lines
    }

    #[inline(always)]
    unsafe fn scales<L: Line>(p: *const u8) -> L::Floats {
        if B::NUMBER_BYTES == 2 {
            // SAFETY: by the caller.
            return unsafe { L::halves(p) };
        }
        // SAFETY: by the caller; one byte a row.
        unsafe { L::exponents(p) }
    }
}

/// For the lanes of 3 and 7 bits; the lane of 5 has the panels, and so the products, of Q5_0.
impl<const BITS: usize> Block for Lane<BITS> {
    // Signed bytes are what products of more than five bits take.
    const MAX: u8 = if BITS == 7 { 255 } else { 15 };
    const OFFSET: i16 = if BITS == 7 { 128 } else { 4 };
    const MIN: bool = false;
    const SHARED: bool = true;
    const BYTES: usize = 2 * PANEL_ROWS + Self::LINES;

    #[inline(always)]
    fn offsets(n_cols: usize, index: usize) -> (usize, usize) {
        Self::at(n_cols, index)
    }

    #[inline(always)]
    unsafe fn lines<L: Line>(p: *const u8) -> [L; 8] {
        // SAFETY: by the caller.
        let upper = unsafe { triples::<L>(p.add(Self::PAIRS), L::load(p.add(Self::LAST))) };
        let nibble = L::splat(0xf);
        if BITS == 3 {
            let [a, b, c, d] = upper;
            return [
                a.and(nibble),
                b.and(nibble),
                a.shift(-4).and(nibble),
                b.shift(-4).and(nibble),
                c.and(nibble),
                d.and(nibble),
                c.shift(-4).and(nibble),
                d.shift(-4).and(nibble),
            ];
        }
        // SAFETY: by the caller.
        let mut lines = unsafe { nibbles::<L, 8>(p) };
        let (mask, less) = (L::splat(0x70), L::splat(64));
        for (i, line) in lines.iter_mut().enumerate() {
            let of_two = upper[i / 4 * 2 + i % 2];
            let bits = match i % 4 / 2 {
                0 => of_two.shift(4),
                _ => of_two,
            };
            *line = line.or(bits.and(mask)).add(less);
        }
        lines
    }

    #[inline(always)]
    unsafe fn scales<L: Line>(p: *const u8) -> L::Floats {
        // SAFETY: by the caller.
        unsafe { L::halves(p) }
    }
}

/// The codes of 3 bits that two lines of 2 bits at `p` and the bits of `last` ([`last_at`]) make, of two byte lines each in the
/// nibbles of a line: 0 and 2, 1 and 3, 4 and 6, 5 and 7.
///
/// [`last_at`]: crate::panel::lane::last_at
///
/// # Safety
/// - Two lines are readable at `p`; the CPU has the features of `L`.
#[inline(always)]
unsafe fn triples<L: Line>(p: *const u8, last: L) -> [L; 4] {
    let (two, third) = (L::splat(0x33), L::splat(0x44));
    let mut out = [two; 4];
    for (i, (out, shifts)) in (out.as_chunks_mut::<2>().0.iter_mut())
        .zip([[0, -1], [1, 2]])
        .enumerate()
    {
        // SAFETY: by the caller.
        let codes = unsafe { L::load(p.add(LINE_BYTES * i)) };
        *out = [
            codes.and(two).or(last.shift(shifts[0]).and(third)),
            codes
                .shift(-2)
                .and(two)
                .or(last.shift(shifts[1]).and(third)),
        ];
    }
    out
}

/// What a product that unpacks groups needs of a type. The rest of it is compiled once for all types.
pub(crate) struct BlockKind {
    /// [`unpack_blocks`], compiled for a table.
    pub(crate) unpack: unsafe fn(*const u8, usize, usize, &mut UnpackedBlocks),
    /// [`Block::offsets`].
    pub(crate) offsets: fn(usize, usize) -> (usize, usize),
    /// [`Block::MAX`].
    pub(crate) max: u8,
    /// [`Block::OFFSET`].
    pub(crate) offset: i16,
    /// [`Block::MIN`].
    pub(crate) min: bool,
}

/// A group of 256 columns of one panel, unpacked; or of as many columns as the last has.
#[repr(C, align(64))]
pub(crate) struct UnpackedBlocks {
    /// Unsigned codes.
    pub(crate) lines: [[u8; LINE_BYTES]; GROUP / 4],
    pub(crate) d: [[f32; PANEL_ROWS]; 8],
    /// Minima, in types that have any.
    pub(crate) m: [[f32; PANEL_ROWS]; 8],
}

impl UnpackedBlocks {
    pub(crate) const EMPTY: Self = Self {
        lines: [[0; _]; _],
        d: [[0.0; _]; _],
        m: [[0.0; _]; _],
    };
}

/// Unpacks group `g` of a panel.
///
/// # Safety
/// - `panel` is a whole panel of `n_cols` columns; the CPU has the features of `L`.
#[inline(always)]
pub(crate) unsafe fn unpack_blocks<B: Block, L: Line>(
    panel: *const u8,
    n_cols: usize,
    g: usize,
    out: &mut UnpackedBlocks,
) {
    for b in 0..blocks_in_group(n_cols, g) {
        let (numbers, lines) = B::offsets(n_cols, 8 * g + b);
        // SAFETY: the block is in the panel, by the caller.
        unsafe {
            for (i, line) in B::lines::<L>(panel.add(lines)).into_iter().enumerate() {
                line.store(out.lines[8 * b + i].as_mut_ptr());
            }
            L::store_floats(B::scales::<L>(panel.add(numbers)), &mut out.d[b]);
            if B::MIN {
                L::store_floats(
                    L::halves(panel.add(numbers + 2 * PANEL_ROWS)),
                    &mut out.m[b],
                );
            }
        }
    }
}
