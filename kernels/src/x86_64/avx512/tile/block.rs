//! The tile of types with a scale per 32 columns.

use super::{PANELS, TOKENS, dots, start};
use crate::vector::rows::BlockScales;
use crate::vector::unpack::UnpackedBlocks;
use core::arch::asm;
use core::mem::offset_of;

/// Where a tile's operands are.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct BlockTile {
    /// Codes of the first token's group.
    pub(crate) x: *const u8,
    /// Bytes from a token's row to the next one's.
    pub(crate) stride: usize,
    pub(crate) scales: *const BlockScales<TOKENS>,
    pub(crate) w: *const [UnpackedBlocks; PANELS],
    pub(crate) out: *mut f32,
    /// Bytes from a token's outputs to the next one's.
    pub(crate) out_stride: usize,
    /// Blocks of the group: 1 to 8.
    pub(crate) n_blocks: usize,
    /// Whether blocks have minima.
    pub(crate) has_min: u32,
    /// Outputs of each panel that hold sums: none before the first group.
    pub(crate) read: [u16; PANELS],
    /// Outputs of each panel.
    pub(crate) write: [u16; PANELS],
}

/// Adds the dots of a block, times its scales, and its minima. Moves on by a block.
macro_rules! add_block {
    ($a:literal $b:literal $c:literal $d:literal $e:literal $f:literal $g:literal $h:literal) => {
        concat!(
            "vmovaps zmm26, zmmword ptr [{of_w}]\n",
            "vmovaps zmm27, zmmword ptr [{of_w} + {panel}]\n",
            add_scaled!(
                "{scales} + {d}" 16 $a 17 $b, "{scales} + {d} + 32" 18 $c 19 $d,
                "{scales} + {d} + 64" 20 $e 21 $f, "{scales} + {d} + 96" 22 $g 23 $h
            ),
            "cmp dword ptr [{tile} + {has_min}], 0\n",
            "je 4f\n",
            "vmovaps zmm26, zmmword ptr [{of_w} + {minima}]\n",
            "vmovaps zmm27, zmmword ptr [{of_w} + {minima} + {panel}]\n",
            add_minima!(
                "{scales} + {d}" "{scales} + {sums}" 16 17,
                "{scales} + {d} + 32" "{scales} + {sums} + 32" 18 19,
                "{scales} + {d} + 64" "{scales} + {sums} + 64" 20 21,
                "{scales} + {d} + 96" "{scales} + {sums} + 96" 22 23
            ),
            "4:\n",
            "add {scales}, 4\n",
            "add {of_w}, 64\n",
        )
    };
}

/// `fma(d_w · d, f32(dot), sum)` of each token.
macro_rules! add_scaled {
    ($($d:literal $first_sum:literal $first:literal $second_sum:literal $second:literal),*) => {
        concat!(
            $("vmulps zmm28, zmm26, dword ptr [", $d, "]{{1to16}}\n",
              "vmulps zmm29, zmm27, dword ptr [", $d, "]{{1to16}}\n",
              "vcvtdq2ps zmm", $first, ", zmm", $first, "\n",
              "vcvtdq2ps zmm", $second, ", zmm", $second, "\n",
              "vfmadd231ps zmm", $first_sum, ", zmm28, zmm", $first, "\n",
              "vfmadd231ps zmm", $second_sum, ", zmm29, zmm", $second, "\n",)*
        )
    };
}

/// `fma(m_w · d, sum of codes, sum)` of each token.
macro_rules! add_minima {
    ($($d:literal $codes:literal $first_sum:literal $second_sum:literal),*) => {
        concat!(
            $("vmulps zmm28, zmm26, dword ptr [", $d, "]{{1to16}}\n",
              "vmulps zmm29, zmm27, dword ptr [", $d, "]{{1to16}}\n",
              "vfmadd231ps zmm", $first_sum, ", zmm28, dword ptr [", $codes, "]{{1to16}}\n",
              "vfmadd231ps zmm", $second_sum, ", zmm29, dword ptr [", $codes, "]{{1to16}}\n",)*
        )
    };
}

macro_rules! load_sums {
    ($($first:literal $second:literal),*) => {
        concat!(
            $("vmovups zmm", $first, "{{k4}}{{z}}, zmmword ptr [{out}]\n",
              "vmovups zmm", $second, "{{k5}}{{z}}, zmmword ptr [{out} + 64]\n",
              "add {out}, {n}\n",)*
        )
    };
}

macro_rules! store_sums {
    ($($first:literal $second:literal),*) => {
        concat!(
            $("vmovups zmmword ptr [{out}]{{k2}}, zmm", $first, "\n",
              "vmovups zmmword ptr [{out} + 64]{{k3}}, zmm", $second, "\n",
              "add {out}, {n}\n",)*
        )
    };
}

// A panel's lines are found where the panel is.
const _: () = assert!(offset_of!(UnpackedBlocks, lines) == 0);

impl BlockTile {
    /// Adds the products to the outputs.
    ///
    /// # Safety
    /// - There are 1 to 8 blocks; four tokens' codes for that number of blocks are readable, and their gathered scales.
    /// - Panels are readable, and those with outputs unpacked.
    /// - The outputs of `read` and `write` are readable and writable respectively, and nothing else accesses them.
    #[target_feature(enable = "avx512f,avx512bw,avx512vnni")]
    #[inline(never)] // Its registers are all of them.
    #[expect(clippy::too_many_lines, reason = "one block of assembly")]
    pub(crate) unsafe fn add(&self) {
        // SAFETY: loads and stores are within the operands, by the caller: of each row the blocks,
        // of both panels their lines, scales and minima, of the gathered scales as many for each
        // token. Masked outputs are not accessed. The stack is not used.
        unsafe {
            asm!(
                "mov {x}, qword ptr [{tile} + {x_at}]",
                "mov {stride}, qword ptr [{tile} + {stride_at}]",
                "mov {scales}, qword ptr [{tile} + {scales_at}]",
                "mov {w}, qword ptr [{tile} + {w_at}]",
                "mov {blocks}, qword ptr [{tile} + {n_blocks}]",
                "lea {x3}, [{stride} + 2*{stride}]",
                "add {x3}, {x}",
                "lea {of_w}, [{w} + {d_w}]",
                "kmovw k4, word ptr [{tile} + {read}]",
                "kmovw k5, word ptr [{tile} + {read} + 2]",
                "mov {out}, qword ptr [{tile} + {out_at}]",
                "mov {n}, qword ptr [{tile} + {out_stride}]",
                load_sums!(16 17, 18 19, 20 21, 22 23),
                "cmp {blocks}, 1",
                "je 5f",
                // Two blocks at once: dots of one wait for each other.
                "2:",
                start!("{scales} + {corrections}", 0 0 1, 32 2 3, 64 4 5, 96 6 7),
                start!("{scales} + {corrections} + 4", 0 8 9, 32 10 11, 64 12 13, 96 14 15),
                "mov {n}, 8",
                "3:",
                dots!("{w}", "{x}" 0 1, "{x} + {stride}" 2 3, "{x} + 2*{stride}" 4 5, "{x3}" 6 7),
                dots!(
                    "{w} + 512", "{x} + 32" 8 9, "{x} + {stride} + 32" 10 11,
                    "{x} + 2*{stride} + 32" 12 13, "{x3} + 32" 14 15
                ),
                "add {w}, 64",
                "add {x}, 4",
                "add {x3}, 4",
                "dec {n}",
                "jnz 3b",
                "add {w}, 512",
                "add {x}, 32",
                "add {x3}, 32",
                add_block!(0 1 2 3 4 5 6 7),
                add_block!(8 9 10 11 12 13 14 15),
                "sub {blocks}, 2",
                "cmp {blocks}, 1",
                "ja 2b",
                "jb 6f",
                "5:",
                start!("{scales} + {corrections}", 0 0 1, 32 2 3, 64 4 5, 96 6 7),
                "mov {n}, 8",
                "3:",
                dots!("{w}", "{x}" 0 1, "{x} + {stride}" 2 3, "{x} + 2*{stride}" 4 5, "{x3}" 6 7),
                "add {w}, 64",
                "add {x}, 4",
                "add {x3}, 4",
                "dec {n}",
                "jnz 3b",
                add_block!(0 1 2 3 4 5 6 7),
                "6:",
                "kmovw k2, word ptr [{tile} + {write}]",
                "kmovw k3, word ptr [{tile} + {write} + 2]",
                "mov {out}, qword ptr [{tile} + {out_at}]",
                "mov {n}, qword ptr [{tile} + {out_stride}]",
                store_sums!(16 17, 18 19, 20 21, 22 23),
                tile = in(reg) self,
                x = out(reg) _,
                // Three tokens on.
                x3 = out(reg) _,
                stride = out(reg) _,
                scales = out(reg) _,
                w = out(reg) _,
                of_w = out(reg) _,
                blocks = out(reg) _,
                n = out(reg) _,
                out = out(reg) _,
                panel = const size_of::<UnpackedBlocks>(),
                d_w = const offset_of!(UnpackedBlocks, d),
                minima = const offset_of!(UnpackedBlocks, m) - offset_of!(UnpackedBlocks, d),
                d = const offset_of!(BlockScales<TOKENS>, d),
                sums = const offset_of!(BlockScales<TOKENS>, sums),
                corrections = const offset_of!(BlockScales<TOKENS>, correction),
                x_at = const offset_of!(Self, x),
                stride_at = const offset_of!(Self, stride),
                scales_at = const offset_of!(Self, scales),
                w_at = const offset_of!(Self, w),
                out_at = const offset_of!(Self, out),
                out_stride = const offset_of!(Self, out_stride),
                n_blocks = const offset_of!(Self, n_blocks),
                has_min = const offset_of!(Self, has_min),
                read = const offset_of!(Self, read),
                write = const offset_of!(Self, write),
                out("zmm0") _, out("zmm1") _, out("zmm2") _, out("zmm3") _,
                out("zmm4") _, out("zmm5") _, out("zmm6") _, out("zmm7") _,
                out("zmm8") _, out("zmm9") _, out("zmm10") _, out("zmm11") _,
                out("zmm12") _, out("zmm13") _, out("zmm14") _, out("zmm15") _,
                out("zmm16") _, out("zmm17") _, out("zmm18") _, out("zmm19") _,
                out("zmm20") _, out("zmm21") _, out("zmm22") _, out("zmm23") _,
                out("zmm24") _, out("zmm25") _, out("zmm26") _, out("zmm27") _,
                out("zmm28") _, out("zmm29") _,
                out("k2") _, out("k3") _, out("k4") _, out("k5") _,
                options(nostack),
            );
        }
    }
}
