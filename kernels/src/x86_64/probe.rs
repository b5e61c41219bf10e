//! The loops of [`crate::probe`] in instructions that no compiler rearranges.

use crate::cpu::CpuFeatures;
use crate::peak::{Peak, ReadLoop};
use core::arch::asm;
use core::arch::x86_64::{
    __m256i, __m512i, _MM_HINT_T0, _mm_prefetch, _mm256_extract_epi64, _mm256_loadu_si256,
    _mm256_or_si256, _mm256_setzero_si256, _mm512_loadu_si512, _mm512_or_si512,
    _mm512_reduce_or_epi64, _mm512_setzero_si512,
};

/// A loop and what it does in a round.
pub(crate) struct Loop {
    pub(crate) run: unsafe fn(u32),
    pub(crate) operations: u64,
}

/// The fastest loop of `peak` with these features; `None` without AVX2.
pub(crate) fn loops(features: CpuFeatures, peak: Peak) -> Option<Loop> {
    let has = |needed| features.contains(needed);
    let tiles = CpuFeatures::AMX_TILE;
    let (run, operations): (unsafe fn(u32), u64) = match peak {
        Peak::Int8 if has(tiles | CpuFeatures::AMX_INT8) => (amx_int8, 4 * 16 * 16 * 64 * 2),
        Peak::Bf16 if has(tiles | CpuFeatures::AMX_BF16) => (amx_bf16, 4 * 16 * 16 * 32 * 2),
        Peak::Int8 if has(CpuFeatures::AVX512_VNNI) => (avx512_int8, 16 * 64 * 2),
        Peak::Bf16 if has(CpuFeatures::AVX512_BF16) => (avx512_bf16, 16 * 32 * 2),
        _ if has(CpuFeatures::AVX512) && peak != Peak::Int8 => (avx512_f32, 16 * 16 * 2),
        Peak::Int8 if has(CpuFeatures::AVX2 | CpuFeatures::AVX_VNNI) => (vnni_int8, 12 * 32 * 2),
        Peak::Int8 if has(CpuFeatures::AVX2) => (avx2_int8, 12 * 32 * 2),
        _ if has(CpuFeatures::AVX2 | CpuFeatures::FMA) => (avx2_f32, 12 * 8 * 2),
        _ => return None,
    };
    Some(Loop { run, operations })
}

/// A function that runs `$body`, one instruction for each register named, `rounds` times.
/// Registers keep what they hold: times do not depend on values, and sums of zeros stay zeros.
macro_rules! peak_loop {
    ($(#[$doc:meta])* $name:ident, $zero:literal, [$($instruction:literal),* $(,)?]) => {
        $(#[$doc])*
        ///
        /// # Safety
        /// The CPU has the instructions.
        unsafe fn $name(rounds: u32) {
            // SAFETY: the caller's CPU runs these; they touch only the registers named as lost.
            unsafe {
                asm!(
                    "test {n:e}, {n:e}",
                    "jz 3f",
                    $zero,
                    "2:",
                    $($instruction,)*
                    "dec {n:e}",
                    "jnz 2b",
                    "3:",
                    n = inout(reg) rounds => _,
                    out("xmm0") _, out("xmm1") _, out("xmm2") _, out("xmm3") _,
                    out("xmm4") _, out("xmm5") _, out("xmm6") _, out("xmm7") _,
                    out("xmm8") _, out("xmm9") _, out("xmm10") _, out("xmm11") _,
                    out("xmm12") _, out("xmm13") _, out("xmm14") _, out("xmm15") _,
                    options(nomem, nostack),
                );
            }
        }
    };
}

// Sixteen chains hide a latency of 4 cycles at 4 instructions per cycle. `vzeroall` first: sums of
// products of zeros stay zero, so that no loop ever meets a denormal, a NaN or an overflow.
peak_loop!(
    /// `vpdpbusd` on 512 bits.
    avx512_int8, "vzeroall", [
    "vpdpbusd zmm0, zmm0, zmm0", "vpdpbusd zmm1, zmm1, zmm1", "vpdpbusd zmm2, zmm2, zmm2",
    "vpdpbusd zmm3, zmm3, zmm3", "vpdpbusd zmm4, zmm4, zmm4", "vpdpbusd zmm5, zmm5, zmm5",
    "vpdpbusd zmm6, zmm6, zmm6", "vpdpbusd zmm7, zmm7, zmm7", "vpdpbusd zmm8, zmm8, zmm8",
    "vpdpbusd zmm9, zmm9, zmm9", "vpdpbusd zmm10, zmm10, zmm10", "vpdpbusd zmm11, zmm11, zmm11",
    "vpdpbusd zmm12, zmm12, zmm12", "vpdpbusd zmm13, zmm13, zmm13",
    "vpdpbusd zmm14, zmm14, zmm14", "vpdpbusd zmm15, zmm15, zmm15",
]);
peak_loop!(
    /// `vdpbf16ps` on 512 bits.
    avx512_bf16, "vzeroall", [
    "vdpbf16ps zmm0, zmm0, zmm0", "vdpbf16ps zmm1, zmm1, zmm1", "vdpbf16ps zmm2, zmm2, zmm2",
    "vdpbf16ps zmm3, zmm3, zmm3", "vdpbf16ps zmm4, zmm4, zmm4", "vdpbf16ps zmm5, zmm5, zmm5",
    "vdpbf16ps zmm6, zmm6, zmm6", "vdpbf16ps zmm7, zmm7, zmm7", "vdpbf16ps zmm8, zmm8, zmm8",
    "vdpbf16ps zmm9, zmm9, zmm9", "vdpbf16ps zmm10, zmm10, zmm10",
    "vdpbf16ps zmm11, zmm11, zmm11", "vdpbf16ps zmm12, zmm12, zmm12",
    "vdpbf16ps zmm13, zmm13, zmm13", "vdpbf16ps zmm14, zmm14, zmm14",
    "vdpbf16ps zmm15, zmm15, zmm15",
]);
peak_loop!(
    /// Fused multiply-add on 512 bits.
    avx512_f32, "vzeroall", [
    "vfmadd231ps zmm0, zmm0, zmm0", "vfmadd231ps zmm1, zmm1, zmm1", "vfmadd231ps zmm2, zmm2, zmm2",
    "vfmadd231ps zmm3, zmm3, zmm3", "vfmadd231ps zmm4, zmm4, zmm4", "vfmadd231ps zmm5, zmm5, zmm5",
    "vfmadd231ps zmm6, zmm6, zmm6", "vfmadd231ps zmm7, zmm7, zmm7", "vfmadd231ps zmm8, zmm8, zmm8",
    "vfmadd231ps zmm9, zmm9, zmm9", "vfmadd231ps zmm10, zmm10, zmm10",
    "vfmadd231ps zmm11, zmm11, zmm11", "vfmadd231ps zmm12, zmm12, zmm12",
    "vfmadd231ps zmm13, zmm13, zmm13", "vfmadd231ps zmm14, zmm14, zmm14",
    "vfmadd231ps zmm15, zmm15, zmm15",
]);
peak_loop!(
    /// `vpdpbusd` on 256 bits, in the encoding of CPUs without AVX-512.
    vnni_int8, "vzeroall", [
    "{{vex}} vpdpbusd ymm0, ymm0, ymm0", "{{vex}} vpdpbusd ymm1, ymm1, ymm1",
    "{{vex}} vpdpbusd ymm2, ymm2, ymm2", "{{vex}} vpdpbusd ymm3, ymm3, ymm3",
    "{{vex}} vpdpbusd ymm4, ymm4, ymm4", "{{vex}} vpdpbusd ymm5, ymm5, ymm5",
    "{{vex}} vpdpbusd ymm6, ymm6, ymm6", "{{vex}} vpdpbusd ymm7, ymm7, ymm7",
    "{{vex}} vpdpbusd ymm8, ymm8, ymm8", "{{vex}} vpdpbusd ymm9, ymm9, ymm9",
    "{{vex}} vpdpbusd ymm10, ymm10, ymm10", "{{vex}} vpdpbusd ymm11, ymm11, ymm11",
]);
peak_loop!(
    /// `vpmaddubsw` and an addition in 16 bits: the least that AVX2 does for 32 products. The
    /// widening to 32 bits comes once in many and is left out.
    avx2_int8, "vzeroall", [
    "vpmaddubsw ymm12, ymm15, ymm15", "vpaddw ymm0, ymm0, ymm12",
    "vpmaddubsw ymm13, ymm15, ymm15", "vpaddw ymm1, ymm1, ymm13",
    "vpmaddubsw ymm14, ymm15, ymm15", "vpaddw ymm2, ymm2, ymm14",
    "vpmaddubsw ymm12, ymm15, ymm15", "vpaddw ymm3, ymm3, ymm12",
    "vpmaddubsw ymm13, ymm15, ymm15", "vpaddw ymm4, ymm4, ymm13",
    "vpmaddubsw ymm14, ymm15, ymm15", "vpaddw ymm5, ymm5, ymm14",
    "vpmaddubsw ymm12, ymm15, ymm15", "vpaddw ymm6, ymm6, ymm12",
    "vpmaddubsw ymm13, ymm15, ymm15", "vpaddw ymm7, ymm7, ymm13",
    "vpmaddubsw ymm14, ymm15, ymm15", "vpaddw ymm8, ymm8, ymm14",
    "vpmaddubsw ymm12, ymm15, ymm15", "vpaddw ymm9, ymm9, ymm12",
    "vpmaddubsw ymm13, ymm15, ymm15", "vpaddw ymm10, ymm10, ymm13",
    "vpmaddubsw ymm14, ymm15, ymm15", "vpaddw ymm11, ymm11, ymm14",
]);
peak_loop!(
    /// Fused multiply-add on 256 bits.
    avx2_f32, "vzeroall", [
    "vfmadd231ps ymm0, ymm0, ymm0", "vfmadd231ps ymm1, ymm1, ymm1", "vfmadd231ps ymm2, ymm2, ymm2",
    "vfmadd231ps ymm3, ymm3, ymm3", "vfmadd231ps ymm4, ymm4, ymm4", "vfmadd231ps ymm5, ymm5, ymm5",
    "vfmadd231ps ymm6, ymm6, ymm6", "vfmadd231ps ymm7, ymm7, ymm7", "vfmadd231ps ymm8, ymm8, ymm8",
    "vfmadd231ps ymm9, ymm9, ymm9", "vfmadd231ps ymm10, ymm10, ymm10",
    "vfmadd231ps ymm11, ymm11, ymm11",
]);

/// `LDTILECFG`'s operand: 8 tiles of 16 rows of 64 bytes.
#[repr(C, align(64))]
struct TileConfig {
    palette: u8,
    start_row: u8,
    reserved: [u8; 14],
    row_bytes: [u16; 16],
    rows: [u8; 16],
}

static FULL_TILES: TileConfig = TileConfig {
    palette: 1,
    start_row: 0,
    reserved: [0; 14],
    row_bytes: [64, 64, 64, 64, 64, 64, 64, 64, 0, 0, 0, 0, 0, 0, 0, 0],
    rows: [16, 16, 16, 16, 16, 16, 16, 16, 0, 0, 0, 0, 0, 0, 0, 0],
};

macro_rules! tile_loop {
    ($(#[$doc:meta])* $name:ident, $instruction:literal) => {
        $(#[$doc])*
        ///
        /// # Safety
        /// The CPU has the instructions, and the process may use tiles.
        unsafe fn $name(rounds: u32) {
            // SAFETY: the caller's CPU runs these; the configuration is a constant and sound, and
            // the tiles are released again.
            unsafe {
                asm!(
                    "test {n:e}, {n:e}",
                    "jz 3f",
                    "ldtilecfg [{config}]",
                    "tilezero tmm0", "tilezero tmm1", "tilezero tmm2", "tilezero tmm3",
                    "tilezero tmm4", "tilezero tmm5", "tilezero tmm6", "tilezero tmm7",
                    "2:",
                    concat!($instruction, " tmm0, tmm4, tmm6"),
                    concat!($instruction, " tmm1, tmm4, tmm7"),
                    concat!($instruction, " tmm2, tmm5, tmm6"),
                    concat!($instruction, " tmm3, tmm5, tmm7"),
                    "dec {n:e}",
                    "jnz 2b",
                    "tilerelease",
                    "3:",
                    n = inout(reg) rounds => _,
                    config = in(reg) &raw const FULL_TILES,
                    out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
                    out("tmm4") _, out("tmm5") _, out("tmm6") _, out("tmm7") _,
                    options(nostack, readonly),
                );
            }
        }
    };
}

tile_loop!(
    /// Four accumulators of 16 × 16 over 64 columns of int8.
    amx_int8, "tdpbusd");
tile_loop!(
    /// Four accumulators of 16 × 16 over 32 columns of bfloat16.
    amx_bf16, "tdpbf16ps");

/// How far ahead of the load a prefetch is.
const AHEAD_LINES: usize = 32;

/// # Safety
/// The CPU has AVX-512.
#[target_feature(enable = "avx512f")]
pub(crate) unsafe fn read_avx512(how: ReadLoop, lines: &[[u8; 64]]) -> u64 {
    let zero = _mm512_setzero_si512();
    // SAFETY: a line is 64 readable bytes.
    let load = |line: &[u8; 64]| unsafe { _mm512_loadu_si512(line.as_ptr().cast::<__m512i>()) };
    let sums = visit(how, lines, [zero; 4], |sum, line| {
        _mm512_or_si512(sum, load(line))
    });
    let sum = _mm512_or_si512(
        _mm512_or_si512(sums[0], sums[1]),
        _mm512_or_si512(sums[2], sums[3]),
    );
    _mm512_reduce_or_epi64(sum).cast_unsigned()
}

/// # Safety
/// The CPU has AVX2.
#[target_feature(enable = "avx2")]
pub(crate) unsafe fn read_avx2(how: ReadLoop, lines: &[[u8; 64]]) -> u64 {
    let zero = _mm256_setzero_si256();
    let load = |line: &[u8; 64]| {
        let at = line.as_ptr().cast::<__m256i>();
        // SAFETY: a line is 64 readable bytes.
        let low = unsafe { _mm256_loadu_si256(at) };
        // SAFETY: as above, its second half.
        let high = unsafe { _mm256_loadu_si256(at.wrapping_add(1)) };
        _mm256_or_si256(low, high)
    };
    let sums = visit(how, lines, [zero; 4], |sum, line| {
        _mm256_or_si256(sum, load(line))
    });
    let sum = _mm256_or_si256(
        _mm256_or_si256(sums[0], sums[1]),
        _mm256_or_si256(sums[2], sums[3]),
    );
    let words = [
        _mm256_extract_epi64::<0>(sum),
        _mm256_extract_epi64::<1>(sum),
        _mm256_extract_epi64::<2>(sum),
        _mm256_extract_epi64::<3>(sum),
    ];
    words.iter().fold(0, |all, word| all | word).cast_unsigned()
}

/// Adds every line to one of four sums, in the order of `how`.
#[inline(always)]
fn visit<V: Copy>(
    how: ReadLoop,
    lines: &[[u8; 64]],
    mut sums: [V; 4],
    add: impl Fn(V, &[u8; 64]) -> V,
) -> [V; 4] {
    let (fours, rest) = lines.as_chunks::<4>();
    match how {
        ReadLoop::Forward => {
            for four in fours {
                for (sum, line) in sums.iter_mut().zip(four) {
                    *sum = add(*sum, line);
                }
            }
        }
        ReadLoop::Prefetched => {
            for four in fours {
                for (sum, line) in sums.iter_mut().zip(four) {
                    let ahead = line.as_ptr().wrapping_add(64 * AHEAD_LINES);
                    // SAFETY: a prefetch accesses nothing: any address will do.
                    unsafe { _mm_prefetch::<_MM_HINT_T0>(ahead.cast()) };
                    *sum = add(*sum, line);
                }
            }
        }
        ReadLoop::FourStreams => {
            let quarter = fours.len();
            for i in 0..quarter {
                for (part, sum) in sums.iter_mut().enumerate() {
                    *sum = add(*sum, &lines[part * quarter + i]);
                }
            }
        }
    }
    for line in rest {
        sums[0] = add(sums[0], line);
    }
    sums
}
