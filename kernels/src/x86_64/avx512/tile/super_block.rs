//! The tile of types with exact sums over 256 columns.
//!
//! Dots of two sub-blocks are multiplied with their scales at once, as pairs of words, where they
//! fit into 16 bits: that halves those multiplications.

use super::{PANELS, TOKENS, dots, start, zero};
use crate::tuning::Tuning;
use crate::vector::unpack::UnpackedSuperBlock;
use core::arch::asm;
use core::mem::offset_of;

/// What the dots of each sub-block of a token start with.
pub(crate) type Corrections = [[i32; 16]; TOKENS];

/// Where a tile's operands are.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct SuperBlockTile {
    /// Codes of the first token's group.
    pub(crate) x: *const u8,
    /// Scale of the first token's group.
    pub(crate) d: *const u8,
    /// Sums of the first token's group, each over as many columns as share a minimum.
    pub(crate) sums: *const u8,
    /// Bytes from a token's row to the next one's.
    pub(crate) stride: usize,
    pub(crate) corrections: *const Corrections,
    pub(crate) w: *const [UnpackedSuperBlock; PANELS],
    pub(crate) out: *mut f32,
    /// Bytes from a token's outputs to the next one's.
    pub(crate) out_stride: usize,
    /// Lines of a sub-block: 4 or 8.
    pub(crate) n_lines: usize,
    /// Pairs of sub-blocks: 8 or 4.
    pub(crate) n_pairs: usize,
    /// Pairs of minima: as many, or none.
    pub(crate) n_min_pairs: usize,
    /// How two dots and their scales are multiplied: [`WIDE`], or, if every dot is within 16 bits,
    /// [`SHIFTED`] or [`ALIGNED`].
    pub(crate) scaling: u32,
    /// Outputs of each panel that hold sums: none before the first group.
    pub(crate) read: [u16; PANELS],
    /// Outputs of each panel.
    pub(crate) write: [u16; PANELS],
}

/// One by one, for dots of any size.
const WIDE: u32 = 0;
/// As a pair of words, made by a shift and a masked move.
const SHIFTED: u32 = 1;
/// As a pair of words, made by one masked shuffle.
const ALIGNED: u32 = 2;

/// The [`SuperBlockTile::scaling`] that is fastest on this CPU; `fits`: every dot is within 16 bits.
pub(crate) fn scaling(fits: bool) -> u32 {
    match fits {
        false => WIDE,
        true if Tuning::detect().pairs_by_shifts => SHIFTED,
        true => ALIGNED,
    }
}

/// Adds two dots times their scales, a pair of words in each lane.
macro_rules! add_pairs {
    ($($sum:literal $even:literal $odd:literal $scales:literal),*) => {
        concat!(
            $("vpslld zmm", $odd, ", zmm", $odd, ", 16\n",
              "vmovdqu16 zmm", $odd, "{{k1}}, zmm", $even, "\n",
              "vpdpwssd zmm", $sum, ", zmm", $odd, ", zmm", $scales, "\n",)*
        )
    };
}

/// [`add_pairs`] by one masked shuffle.
macro_rules! add_aligned_pairs {
    ($($sum:literal $even:literal $odd:literal $scales:literal),*) => {
        concat!(
            $("vpalignr zmm", $even, "{{k2}}, zmm", $odd, ", zmm", $odd, ", 14\n",
              "vpdpwssd zmm", $sum, ", zmm", $even, ", zmm", $scales, "\n",)*
        )
    };
}

/// [`add_pairs`] for dots of any size.
macro_rules! add_wide {
    ($($sum:literal $even:literal $odd:literal $scale:literal $odd_scale:literal),*) => {
        concat!(
            $("vpmulld zmm", $even, ", zmm", $even, ", zmm", $scale, "\n",
              "vpmulld zmm", $odd, ", zmm", $odd, ", zmm", $odd_scale, "\n",
              "vpaddd zmm", $sum, ", zmm", $sum, ", zmm", $even, "\n",
              "vpaddd zmm", $sum, ", zmm", $sum, ", zmm", $odd, "\n",)*
        )
    };
}

/// Adds two sums of activations times their minima.
macro_rules! add_minima {
    ($($sums:literal $first:literal $second:literal),*) => {
        concat!(
            $("vpdpwssd zmm", $first, ", zmm24, dword ptr [", $sums, "]{{1to16}}\n",
              "vpdpwssd zmm", $second, ", zmm25, dword ptr [", $sums, "]{{1to16}}\n",)*
        )
    };
}

/// `fma(d, f32(sum), 0)`.
macro_rules! scale {
    ($($sum:literal $d:literal),*) => {
        concat!(
            $("vcvtdq2ps zmm", $sum, ", zmm", $sum, "\n",
              "vfmadd213ps zmm", $sum, ", zmm", $d, ", zmm28\n",)*
        )
    };
}

/// `fma(-dmin, f32(min_sum), total)`.
macro_rules! less_minima {
    ($($total:literal $min_sum:literal $dmin:literal),*) => {
        concat!(
            $("vcvtdq2ps zmm", $min_sum, ", zmm", $min_sum, "\n",
              "vfnmadd231ps zmm", $total, ", zmm", $dmin, ", zmm", $min_sum, "\n",)*
        )
    };
}

/// `fma(d_x, total, out)` of each token.
macro_rules! add_totals {
    ($($d:literal $first:literal $second:literal),*) => {
        concat!(
            $("vbroadcastss zmm29, dword ptr [", $d, "]\n",
              "vmovups zmm30{{k4}}{{z}}, zmmword ptr [{w}]\n",
              "vmovups zmm31{{k5}}{{z}}, zmmword ptr [{w} + 64]\n",
              "vfmadd231ps zmm30, zmm29, zmm", $first, "\n",
              "vfmadd231ps zmm31, zmm29, zmm", $second, "\n",
              "vmovups zmmword ptr [{w}]{{k2}}, zmm30\n",
              "vmovups zmmword ptr [{w} + 64]{{k3}}, zmm31\n",
              "add {w}, {n}\n",)*
        )
    };
}

// A panel's lines are found where the panel is.
const _: () = assert!(offset_of!(UnpackedSuperBlock, lines) == 0);

impl SuperBlockTile {
    /// Adds the products to the outputs.
    ///
    /// # Safety
    /// - Groups, scales and sums of four tokens are readable, and the corrections of each.
    /// - Panels are readable, and those with outputs unpacked with pairs of scales. Counts are
    ///   those that their comments name.
    /// - The outputs of `read` and `write` are readable and writable respectively, and nothing else accesses them.
    /// - Dots are within 16 bits, unless `scaling` is [`WIDE`].
    #[target_feature(enable = "avx512f,avx512bw,avx512vnni")]
    #[inline(never)] // Its registers are all of them.
    #[expect(clippy::too_many_lines, reason = "one block of assembly")]
    pub(crate) unsafe fn add(&self) {
        // SAFETY: loads and stores are within the operands, by the caller: of each row a group, of
        // both panels all lines, pairs of scales and minima, `d` and `dmin`. Masked outputs are
        // not accessed. The stack is not used.
        unsafe {
            asm!(
                "mov {x}, qword ptr [{tile} + {x_at}]",
                "mov {stride}, qword ptr [{tile} + {stride_at}]",
                "mov {corrections}, qword ptr [{tile} + {corrections_at}]",
                "mov {w}, qword ptr [{tile} + {w_at}]",
                "mov {pairs}, qword ptr [{tile} + {n_pairs}]",
                "lea {x3}, [{stride} + 2*{stride}]",
                "add {x3}, {x}",
                "lea {scales}, [{w} + {scales_at}]",
                // Even words, and bytes of odd ones.
                "mov {n:e}, 0x55555555",
                "kmovd k1, {n:e}",
                "mov {n}, 0xcccccccccccccccc",
                "kmovq k2, {n}",
                zero!(16 17 18 19 20 21 22 23),
                "2:",
                start!("{corrections}", 0 0 1, 64 2 3, 128 4 5, 192 6 7),
                start!("{corrections} + 4", 0 8 9, 64 10 11, 128 12 13, 192 14 15),
                "add {corrections}, 8",
                // The second sub-block is `n_lines` lines after the first.
                "mov {n}, qword ptr [{tile} + {n_lines}]",
                "lea {odd_x}, [{x} + 4*{n}]",
                "lea {odd_x3}, [{x3} + 4*{n}]",
                "mov {odd_w}, {n}",
                "shl {odd_w}, 6",
                "add {odd_w}, {w}",
                "3:",
                dots!("{w}", "{x}" 0 1, "{x} + {stride}" 2 3, "{x} + 2*{stride}" 4 5, "{x3}" 6 7),
                dots!(
                    "{odd_w}", "{odd_x}" 8 9, "{odd_x} + {stride}" 10 11,
                    "{odd_x} + 2*{stride}" 12 13, "{odd_x3}" 14 15
                ),
                "add {w}, 64",
                "add {x}, 4",
                "add {x3}, 4",
                "add {odd_w}, 64",
                "add {odd_x}, 4",
                "add {odd_x3}, 4",
                "dec {n}",
                "jnz 3b",
                "mov {w}, {odd_w}",
                "mov {x}, {odd_x}",
                "mov {x3}, {odd_x3}",
                "vmovdqa64 zmm24, zmmword ptr [{scales}]",
                "vmovdqa64 zmm25, zmmword ptr [{scales} + {panel}]",
                "add {scales}, 64",
                "cmp dword ptr [{tile} + {scaling}], {shifted}",
                "jb 4f",
                "ja 8f",
                add_pairs!(
                    16 0 8 24, 17 1 9 25, 18 2 10 24, 19 3 11 25,
                    20 4 12 24, 21 5 13 25, 22 6 14 24, 23 7 15 25
                ),
                "dec {pairs}",
                "jnz 2b",
                "jmp 5f",
                "8:",
                add_aligned_pairs!(
                    16 0 8 24, 17 1 9 25, 18 2 10 24, 19 3 11 25,
                    20 4 12 24, 21 5 13 25, 22 6 14 24, 23 7 15 25
                ),
                "dec {pairs}",
                "jnz 2b",
                "jmp 5f",
                "4:",
                "vpslld zmm26, zmm24, 16",
                "vpslld zmm27, zmm25, 16",
                "vpsrad zmm26, zmm26, 16",
                "vpsrad zmm27, zmm27, 16",
                "vpsrad zmm24, zmm24, 16",
                "vpsrad zmm25, zmm25, 16",
                add_wide!(
                    16 0 8 26 24, 17 1 9 27 25, 18 2 10 26 24, 19 3 11 27 25,
                    20 4 12 26 24, 21 5 13 27 25, 22 6 14 26 24, 23 7 15 27 25
                ),
                "dec {pairs}",
                "jnz 2b",
                "5:",
                "mov {w}, qword ptr [{tile} + {w_at}]",
                "vmovaps zmm24, zmmword ptr [{w} + {d}]",
                "vmovaps zmm25, zmmword ptr [{w} + {d} + {panel}]",
                zero!(28),
                scale!(16 24, 17 25, 18 24, 19 25, 20 24, 21 25, 22 24, 23 25),
                "mov {n}, qword ptr [{tile} + {n_min_pairs}]",
                "test {n}, {n}",
                "jz 7f",
                zero!(0 1 2 3 4 5 6 7),
                "mov {x}, qword ptr [{tile} + {sums_at}]",
                "lea {x3}, [{stride} + 2*{stride}]",
                "add {x3}, {x}",
                "lea {scales}, [{w} + {min_pairs}]",
                "6:",
                "vmovdqa64 zmm24, zmmword ptr [{scales}]",
                "vmovdqa64 zmm25, zmmword ptr [{scales} + {panel}]",
                add_minima!("{x}" 0 1, "{x} + {stride}" 2 3, "{x} + 2*{stride}" 4 5, "{x3}" 6 7),
                "add {scales}, 64",
                "add {x}, 4",
                "add {x3}, 4",
                "dec {n}",
                "jnz 6b",
                "vmovaps zmm24, zmmword ptr [{w} + {dmin}]",
                "vmovaps zmm25, zmmword ptr [{w} + {dmin} + {panel}]",
                less_minima!(
                    16 0 24, 17 1 25, 18 2 24, 19 3 25, 20 4 24, 21 5 25, 22 6 24, 23 7 25
                ),
                "7:",
                "kmovw k2, word ptr [{tile} + {write}]",
                "kmovw k3, word ptr [{tile} + {write} + 2]",
                "kmovw k4, word ptr [{tile} + {read}]",
                "kmovw k5, word ptr [{tile} + {read} + 2]",
                "mov {x}, qword ptr [{tile} + {d_at}]",
                "lea {x3}, [{stride} + 2*{stride}]",
                "add {x3}, {x}",
                "mov {w}, qword ptr [{tile} + {out}]",
                "mov {n}, qword ptr [{tile} + {out_stride}]",
                add_totals!(
                    "{x}" 16 17, "{x} + {stride}" 18 19, "{x} + 2*{stride}" 20 21, "{x3}" 22 23
                ),
                tile = in(reg) self,
                x = out(reg) _,
                // Three tokens on.
                x3 = out(reg) _,
                odd_x = out(reg) _,
                odd_x3 = out(reg) _,
                odd_w = out(reg) _,
                stride = out(reg) _,
                corrections = out(reg) _,
                w = out(reg) _,
                scales = out(reg) _,
                pairs = out(reg) _,
                n = out(reg) _,
                panel = const size_of::<UnpackedSuperBlock>(),
                scales_at = const offset_of!(UnpackedSuperBlock, scales),
                min_pairs = const offset_of!(UnpackedSuperBlock, min_pairs),
                d = const offset_of!(UnpackedSuperBlock, d),
                dmin = const offset_of!(UnpackedSuperBlock, dmin),
                x_at = const offset_of!(Self, x),
                d_at = const offset_of!(Self, d),
                sums_at = const offset_of!(Self, sums),
                stride_at = const offset_of!(Self, stride),
                corrections_at = const offset_of!(Self, corrections),
                w_at = const offset_of!(Self, w),
                out = const offset_of!(Self, out),
                out_stride = const offset_of!(Self, out_stride),
                n_lines = const offset_of!(Self, n_lines),
                n_pairs = const offset_of!(Self, n_pairs),
                n_min_pairs = const offset_of!(Self, n_min_pairs),
                scaling = const offset_of!(Self, scaling),
                shifted = const SHIFTED,
                read = const offset_of!(Self, read),
                write = const offset_of!(Self, write),
                out("zmm0") _, out("zmm1") _, out("zmm2") _, out("zmm3") _,
                out("zmm4") _, out("zmm5") _, out("zmm6") _, out("zmm7") _,
                out("zmm8") _, out("zmm9") _, out("zmm10") _, out("zmm11") _,
                out("zmm12") _, out("zmm13") _, out("zmm14") _, out("zmm15") _,
                out("zmm16") _, out("zmm17") _, out("zmm18") _, out("zmm19") _,
                out("zmm20") _, out("zmm21") _, out("zmm22") _, out("zmm23") _,
                out("zmm24") _, out("zmm25") _, out("zmm26") _, out("zmm27") _,
                out("zmm28") _, out("zmm29") _, out("zmm30") _, out("zmm31") _,
                out("k1") _, out("k2") _, out("k3") _, out("k4") _, out("k5") _,
                options(nostack),
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::CpuFeatures;
    use crate::contract::GROUP;
    use crate::panel::PANEL_ROWS;
    use crate::tests::skipped;

    /// Numbers below `n`.
    fn noise(state: &mut u32, n: u8) -> u8 {
        *state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        u8::try_from((*state >> 16) % u32::from(n)).expect("below a byte")
    }

    fn panel(state: &mut u32) -> UnpackedSuperBlock {
        let mut panel = UnpackedSuperBlock::EMPTY;
        let lines = panel.lines.as_flattened_mut();
        lines.iter_mut().for_each(|code| *code = noise(state, 16));
        let numbers =
            (panel.scales.as_flattened_mut().iter_mut()).chain(panel.min_pairs.as_flattened_mut());
        for pair in numbers {
            // Negative scales, too.
            let [low, high] = [noise(state, 127), noise(state, 127)].map(|s| i32::from(s) - 63);
            *pair = low & 0xffff | high << 16;
        }
        for row in 0..PANEL_ROWS {
            panel.d[row] = f32::from(noise(state, 100)) / 64.0;
            panel.dmin[row] = f32::from(noise(state, 100)) / 64.0;
        }
        panel
    }

    /// Each CPU takes one way; what it computes must not depend on which.
    #[test]
    fn ways_of_scaling_agree() {
        if !CpuFeatures::detect().contains(CpuFeatures::AVX512_ICE_LAKE) {
            skipped("this CPU has no AVX-512");
            return;
        }
        let mut state = 1;
        let w = [panel(&mut state), panel(&mut state)];
        // Rows of codes followed by other data; dots of 32 stay below 2^15.
        let mut rows = [[0i8; 2 * GROUP]; TOKENS];
        for row in &mut rows {
            for code in &mut row[..GROUP] {
                *code = i8::try_from(noise(&mut state, 127)).expect("small") - 63;
            }
            row[GROUP..GROUP + 4].copy_from_slice(&0.5f32.to_le_bytes().map(u8::cast_signed));
            let sums = row[GROUP + 64..GROUP + 96].iter_mut();
            sums.for_each(|byte| *byte = noise(&mut state, 8).cast_signed());
        }
        let no_codes = rows.map(|row| core::array::from_fn(|i| if i < GROUP { 0 } else { row[i] }));
        let mut edges = [[i32::from(i16::MIN); 16]; TOKENS];
        (edges.as_flattened_mut().iter_mut().step_by(3)).for_each(|dot| *dot = i16::MAX.into());
        let counts = [(8, 4, 4), (8, 4, 0), (4, 8, 8), (4, 8, 0)];
        let operands = [
            (&rows, [[-77; 16]; TOKENS], [!0; PANELS]),
            // Dots are what they start with, and some outputs are not there.
            (&no_codes, edges, [!0, 0x7ff]),
        ];
        for ((n_lines, n_pairs, n_min_pairs), (rows, corrections, outputs)) in counts
            .into_iter()
            .flat_map(|counts| operands.map(|operands| (counts, operands)))
        {
            let outs = [WIDE, SHIFTED, ALIGNED].map(|scaling| {
                let mut out = [[1f32; PANELS * PANEL_ROWS]; TOKENS];
                let row = rows.as_flattened().as_ptr().cast::<u8>();
                let tile = SuperBlockTile {
                    x: row,
                    d: row.wrapping_add(GROUP),
                    sums: row.wrapping_add(GROUP + 64),
                    stride: size_of_val(&rows[0]),
                    corrections: &raw const corrections,
                    w: &raw const w,
                    out: out.as_flattened_mut().as_mut_ptr(),
                    out_stride: size_of_val(&out[0]),
                    n_lines,
                    n_pairs,
                    n_min_pairs,
                    scaling,
                    read: outputs,
                    write: outputs,
                };
                // SAFETY: the operands are whole, dots fit, and the CPU has the features.
                unsafe { tile.add() };
                out.map(|row| row.map(f32::to_bits))
            });
            let one = 1f32.to_bits();
            for (place, bits) in outs[WIDE as usize].as_flattened().iter().enumerate() {
                let row = place % (PANELS * PANEL_ROWS);
                let is_there = outputs[row / PANEL_ROWS] >> (row % PANEL_ROWS) & 1 == 1;
                assert_eq!(*bits != one, is_there, "output {place}");
            }
            for scaling in [SHIFTED, ALIGNED] {
                let out = outs[scaling as usize];
                assert_eq!(out, outs[WIDE as usize], "{n_lines} lines, way {scaling}");
            }
        }
    }
}
