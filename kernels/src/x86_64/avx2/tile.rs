//! The tile of types with a scale per 32 columns, in assembly: the products of four tokens and a panel
//! over a group.
//!
//! Sums of 16 bits of four tokens take eight of the sixteen registers, a line and its products five.
//! Compilers keep lines there instead and spill the sums.

use super::TILE_TOKENS;
use crate::activation::BLOCK_COLS;
use crate::contract::GROUP;
use crate::panel::{LINE_BYTES, PANEL_ROWS};
use crate::vector::rows::BlockScales;
use crate::vector::unpack::UnpackedBlocks;
use core::arch::asm;
use core::arch::x86_64::*;
use core::mem::{MaybeUninit, offset_of};

/// Where a tile's operands are.
#[derive(Clone, Copy)]
pub(super) struct BlockTile {
    /// Codes of the first token's group.
    pub(super) x: *const u8,
    /// Bytes from a token's row to the next one's.
    pub(super) stride: usize,
    pub(super) scales: *const BlockScales<TILE_TOKENS>,
    /// [`Halves`] for codes of 8 bits.
    pub(super) lines: *const Lines,
    /// Scales of the panel, and minima where [`UnpackedBlocks`] has them.
    pub(super) numbers: *const [[f32; PANEL_ROWS]; 8],
    /// Running sums of the first token.
    pub(super) out: *mut f32,
    /// Bytes from a token's running sums to the next one's.
    pub(super) out_stride: usize,
    /// Blocks of the group: 1 to 8.
    pub(super) n_blocks: usize,
    /// Whether blocks have minima.
    pub(super) has_min: bool,
}

/// Lines of a group.
pub(super) type Lines = [[u8; LINE_BYTES]; GROUP / 4];

/// Codes of 8 bits as two of 4 bits, whose products fit into sums of 16 bits.
#[repr(C, align(64))]
pub(super) struct Halves {
    lower: Lines,
    upper: Lines,
}

impl Halves {
    pub(super) const EMPTY: Self = Self {
        lower: [[0; _]; _],
        upper: [[0; _]; _],
    };

    #[target_feature(enable = "avx2")]
    pub(super) fn split(&mut self, lines: &Lines) {
        let (lower, upper) = (self.lower.iter_mut(), self.upper.iter_mut());
        for (line, (lower, upper)) in lines.iter().zip(lower.zip(upper)) {
            for (code, (lower, upper)) in line.iter().zip(lower.iter_mut().zip(upper)) {
                (*lower, *upper) = (code & 0xf, code >> 4);
            }
        }
    }
}

/// Dots of some lines, stored while the registers add the dots of others.
#[repr(C, align(32))]
struct Dots([[i32; PANEL_ROWS]; TILE_TOKENS]);

/// Starts the sums of 16 bits with a line and adds others, which are at `$w`. Changes registers 8 to 12.
macro_rules! words {
    ($w:literal, $first:literal $($next:literal)*) => {
        concat!(line!(set $w $first), $(line!(add $w $next),)*)
    };
}

/// What a line, in registers 8 and 9, does to them: for each token where its columns are, and for
/// either half of the line registers of the product and of the sum.
macro_rules! line {
    ($add:ident $w:literal $i:literal) => {
        concat!(
            "vmovdqa ymm8, ymmword ptr [", $w, " + 64*", $i, "]\n",
            "vmovdqa ymm9, ymmword ptr [", $w, " + 64*", $i, " + 32]\n",
            $add!($i "{x}" 8 11 0, 9 12 1), $add!($i "{x} + {stride}" 8 11 2, 9 12 3),
            $add!($i "{x} + 2*{stride}" 8 11 4, 9 12 5), $add!($i "{x3}" 8 11 6, 9 12 7),
        )
    };
}

macro_rules! set {
    ($i:literal $x:literal $($w:literal $room:literal $sum:literal),*) => {
        concat!(
            "vpbroadcastd ymm10, dword ptr [", $x, " + 4*", $i, "]\n",
            $("vpmaddubsw ymm", $sum, ", ymm", $w, ", ymm10\n",)*
        )
    };
}

macro_rules! add {
    ($i:literal $x:literal $($w:literal $room:literal $sum:literal),*) => {
        concat!(
            "vpbroadcastd ymm10, dword ptr [", $x, " + 4*", $i, "]\n",
            $("vpmaddubsw ymm", $room, ", ymm", $w, ", ymm10\n",)*
            $("vpaddw ymm", $sum, ", ymm", $sum, ", ymm", $room, "\n",)*
        )
    };
}

/// Adds pairs of words, times what register `$by` holds.
macro_rules! widen {
    ($by:literal) => {
        widen!($by, 0 1 2 3 4 5 6 7)
    };
    ($by:literal, $($k:literal)*) => {
        concat!($("vpmaddwd ymm", $k, ", ymm", $k, ", ymm", $by, "\n",)*)
    };
}

macro_rules! keep {
    () => {
        keep!(0 1 2 3 4 5 6 7)
    };
    ($($k:literal)*) => {
        concat!($("vmovdqa ymmword ptr [{dots} + 32*", $k, "], ymm", $k, "\n",)*)
    };
}

macro_rules! add_kept {
    () => {
        add_kept!(0 1 2 3 4 5 6 7)
    };
    ($($k:literal)*) => {
        concat!($("vpaddd ymm", $k, ", ymm", $k, ", ymmword ptr [{dots} + 32*", $k, "]\n",)*)
    };
}

/// `fma(d_w · d, f32(dot), sum)` of each token: where its numbers are, its sums, and its two registers.
macro_rules! add_scaled {
    ($($at:literal $out:literal $low:literal $high:literal),*) => {
        concat!(
            $("vpbroadcastd ymm8, dword ptr [{scales} + {correction} + ", $at, "]\n",
              "vbroadcastss ymm9, dword ptr [{scales} + {d} + ", $at, "]\n",
              "vpaddd ymm", $low, ", ymm", $low, ", ymm8\n",
              "vpaddd ymm", $high, ", ymm", $high, ", ymm8\n",
              "vmulps ymm10, ymm9, ymmword ptr [{numbers}]\n",
              "vmulps ymm11, ymm9, ymmword ptr [{numbers} + 32]\n",
              "vcvtdq2ps ymm", $low, ", ymm", $low, "\n",
              "vcvtdq2ps ymm", $high, ", ymm", $high, "\n",
              "vfmadd213ps ymm", $low, ", ymm10, ymmword ptr [", $out, "]\n",
              "vfmadd213ps ymm", $high, ", ymm11, ymmword ptr [", $out, " + 32]\n",)*
        )
    };
}

/// `fma(m_w · d, sum of codes, sum)` of each token.
macro_rules! add_minima {
    ($($at:literal $low:literal $high:literal),*) => {
        concat!(
            $("vbroadcastss ymm8, dword ptr [{scales} + {sums} + ", $at, "]\n",
              "vbroadcastss ymm9, dword ptr [{scales} + {d} + ", $at, "]\n",
              "vmulps ymm10, ymm9, ymmword ptr [{numbers} + {minima}]\n",
              "vmulps ymm11, ymm9, ymmword ptr [{numbers} + {minima} + 32]\n",
              "vfmadd231ps ymm", $low, ", ymm10, ymm8\n",
              "vfmadd231ps ymm", $high, ", ymm11, ymm8\n",)*
        )
    };
}

macro_rules! store {
    ($($out:literal $low:literal $high:literal),*) => {
        concat!(
            $("vmovups ymmword ptr [", $out, "], ymm", $low, "\n",
              "vmovups ymmword ptr [", $out, " + 32], ymm", $high, "\n",)*
        )
    };
}

/// A tile whose dots `$dots` computes in registers 0 to 7.
macro_rules! tile {
    ($name:ident, $($dots:expr),*) => {
        /// # Safety
        /// - As [`BlockTile::add`].
        #[target_feature(enable = "avx2,fma,f16c")]
        #[inline(never)] // Its registers are all of them.
        unsafe fn $name(tile: &BlockTile) {
            let mut dots = MaybeUninit::<Dots>::uninit();
            // SAFETY: loads and stores are within the operands, by the caller: the blocks of each
            // row and of the panel, their numbers, and sums; dots are read where they were written.
            // The stack is not used.
            unsafe {
                asm!(
                    "lea {x3}, [{stride} + 2*{stride}]",
                    "lea {out3}, [{out_stride} + 2*{out_stride}]",
                    "add {x3}, {x}",
                    "add {out3}, {out}",
                    "2: /* Few tiles need {dots} and {upper}. */",
                    $($dots,)*
                    add_scaled!(
                        0 "{out}" 0 1, 32 "{out} + {out_stride}" 2 3,
                        64 "{out} + 2*{out_stride}" 4 5, 96 "{out3}" 6 7
                    ),
                    "test {has_min:e}, {has_min:e}",
                    "jz 3f",
                    add_minima!(0 0 1, 32 2 3, 64 4 5, 96 6 7),
                    "3:",
                    store!(
                        "{out}" 0 1, "{out} + {out_stride}" 2 3,
                        "{out} + 2*{out_stride}" 4 5, "{out3}" 6 7
                    ),
                    "add {w}, 64*8",
                    "add {x}, 4*8",
                    "add {x3}, 4*8",
                    "add {scales}, 4",
                    "add {numbers}, 64",
                    "dec {n}",
                    "jnz 2b",
                    x = inout(reg) tile.x => _,
                    stride = in(reg) tile.stride,
                    // Three tokens on.
                    x3 = out(reg) _,
                    w = inout(reg) tile.lines => _,
                    numbers = inout(reg) tile.numbers => _,
                    scales = inout(reg) tile.scales => _,
                    n = inout(reg) tile.n_blocks => _,
                    out = in(reg) tile.out,
                    out_stride = in(reg) tile.out_stride,
                    out3 = out(reg) _,
                    dots = in(reg) dots.as_mut_ptr(),
                    has_min = in(reg) u32::from(tile.has_min),
                    upper = const offset_of!(Halves, upper),
                    minima = const offset_of!(UnpackedBlocks, m) - offset_of!(UnpackedBlocks, d),
                    d = const offset_of!(BlockScales<TILE_TOKENS>, d),
                    sums = const offset_of!(BlockScales<TILE_TOKENS>, sums),
                    correction = const offset_of!(BlockScales<TILE_TOKENS>, correction),
                    out("ymm0") _, out("ymm1") _, out("ymm2") _, out("ymm3") _,
                    out("ymm4") _, out("ymm5") _, out("ymm6") _, out("ymm7") _,
                    out("ymm8") _, out("ymm9") _, out("ymm10") _, out("ymm11") _,
                    out("ymm12") _,
                    in("ymm13") _mm256_set1_epi16(1),
                    in("ymm14") _mm256_set1_epi16(16),
                    options(nostack),
                );
            }
        }
    };
}

tile!(four_bits, words!("{w}", 0 1 2 3 4 5 6 7), widen!(13));
tile!(
    five_bits,
    words!("{w}", 0 1 2 3),
    widen!(13),
    keep!(),
    words!("{w}", 4 5 6 7),
    widen!(13),
    add_kept!()
);
tile!(
    eight_bits,
    words!("{w}", 0 1 2 3 4 5 6 7),
    widen!(13),
    keep!(),
    words!("{w} + {upper}", 0 1 2 3 4 5 6 7),
    widen!(14),
    add_kept!()
);

impl BlockTile {
    /// The tile of block `b` alone.
    pub(super) fn block(&self, b: usize) -> Self {
        Self {
            x: self.x.wrapping_add(BLOCK_COLS * b),
            scales: self.scales.wrapping_byte_add(4 * b),
            lines: self
                .lines
                .wrapping_byte_add(BLOCK_COLS / 4 * LINE_BYTES * b),
            numbers: self.numbers.wrapping_byte_add(4 * PANEL_ROWS * b),
            n_blocks: 1,
            ..*self
        }
    }

    /// Adds the products, of codes up to `max`, to the running sums.
    ///
    /// # Safety
    /// - There are 1 to 8 blocks; four tokens' codes for that number of blocks are readable, and their gathered scales.
    /// - Lines and numbers are readable, and belong to a panel.
    /// - The running sums of four tokens and 16 rows are writable, and nothing else accesses them.
    #[target_feature(enable = "avx2,fma,f16c")]
    #[inline]
    pub(super) unsafe fn add(&self, max: u8) {
        // SAFETY: by the caller.
        unsafe {
            match max {
                15 => four_bits(self),
                31 => five_bits(self),
                _ => eight_bits(self),
            }
        }
    }
}
