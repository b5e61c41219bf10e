//! The maximum speed of this CPU: loops that read memory or multiply and add, and do nothing else.
//!
//! A benchmark runs these in the same minute, so that a result can be given as a fraction of the machine's limit. A
//! loop computes with the widest instructions of a kernel table; its results are not used. Peaks count two operations
//! for a multiply-add.

use crate::cpu::CpuFeatures;
use crate::table::KernelTable;

pub use crate::peak::{Peak, ReadLoop};

/// The loops that match a kernel table.
#[derive(Clone, Copy, Debug)]
pub struct Probe {
    #[cfg_attr(
        not(all(target_arch = "x86_64", target_feature = "sse2")),
        expect(dead_code, reason = "portable loops need none")
    )]
    features: CpuFeatures,
}

impl Probe {
    /// With the instructions that `table` may use: having one is the proof that they run here.
    pub fn of(table: &KernelTable) -> Self {
        let mut features = table.requires();
        // "BF16 where present": a table uses it without requiring it.
        if features.contains(CpuFeatures::AVX512_VNNI) {
            features |= CpuFeatures::detect() & CpuFeatures::AVX512_BF16;
        }
        Self { features }
    }

    /// Multiplies and adds for `rounds` rounds; returns the operations of a round, 2 for each
    /// multiply-add. A round is of the order of 100 ns. On tables with tiles it leaves the calling
    /// thread's tiles released.
    pub fn compute(self, peak: Peak, rounds: u32) -> u64 {
        #[cfg(all(target_arch = "x86_64", target_feature = "sse2"))]
        if let Some(loops) = crate::x86_64::probe::loops(self.features, peak) {
            // SAFETY: `loops` are of a part of `features`, which this CPU has (see `of`).
            unsafe { (loops.run)(rounds) };
            return loops.operations;
        }
        let _ = self;
        plain(peak, rounds)
    }

    /// Reads all of `bytes`, in whole lines of 64 bytes; returns what must be used for the reads
    /// not to be left out.
    pub fn read(self, how: ReadLoop, bytes: &[u8]) -> u64 {
        let lines = bytes.as_chunks::<64>().0;
        #[cfg(all(target_arch = "x86_64", target_feature = "sse2"))]
        if self.features.contains(CpuFeatures::AVX512) {
            // SAFETY: the CPU has AVX-512.
            return unsafe { crate::x86_64::probe::read_avx512(how, lines) };
        }
        #[cfg(all(target_arch = "x86_64", target_feature = "sse2"))]
        if self.features.contains(CpuFeatures::AVX2) {
            // SAFETY: the CPU has AVX2.
            return unsafe { crate::x86_64::probe::read_avx2(how, lines) };
        }
        let quarter = lines.len() / 4;
        match how {
            ReadLoop::Forward | ReadLoop::Prefetched => lines.iter().fold(0, mix),
            ReadLoop::FourStreams => (0..quarter).fold(0, |sum, i| {
                (0..4).fold(sum, |sum, part| mix(sum, &lines[part * quarter + i]))
            }),
        }
    }
}

/// A line's words, combined with `sum`.
fn mix(sum: u64, line: &[u8; 64]) -> u64 {
    let (words, _) = line.as_chunks::<8>();
    words
        .iter()
        .fold(sum, |sum, &word| sum | u64::from_ne_bytes(word))
}

/// Lanes and steps of [`plain`].
const LANES: usize = 64;
const STEPS: usize = 16;

/// Plain code, as the scalar kernels are: vectorised as far as the target's own baseline goes.
fn plain(peak: Peak, rounds: u32) -> u64 {
    use core::hint::black_box;
    if peak == Peak::Int8 {
        let (x, y) = (black_box([3i16; LANES]), black_box([5i16; LANES]));
        let mut sums = [0i32; LANES];
        for _ in 0..rounds {
            for _ in 0..STEPS {
                let (x, y) = (black_box(&x), black_box(&y));
                for lane in 0..LANES {
                    sums[lane] = sums[lane].wrapping_add(i32::from(x[lane]) * i32::from(y[lane]));
                }
            }
        }
        black_box(sums);
    } else {
        let (x, y) = (black_box([0.5f32; LANES]), black_box([0.25f32; LANES]));
        let mut sums = [0f32; LANES];
        for _ in 0..rounds {
            for _ in 0..STEPS {
                let (x, y) = (black_box(&x), black_box(&y));
                for lane in 0..LANES {
                    sums[lane] += x[lane] * y[lane];
                }
            }
        }
        black_box(sums);
    }
    (2 * LANES * STEPS) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loops_of_every_table_run_and_say_what_they_did() {
        for table in KernelTable::available(CpuFeatures::detect() - CpuFeatures::AMX_TILE) {
            let probe = Probe::of(table);
            for peak in Peak::ALL {
                assert!(
                    probe.compute(peak, 3) >= 2 * 16,
                    "{} {peak:?}",
                    table.name()
                );
            }
        }
    }

    #[test]
    fn every_line_is_read_once() {
        // A bit of its own in each line: what is left out is missing from the result.
        #[repr(align(64))]
        struct Room([u8; 64 * 64 + 64]);
        let mut room = Room([0; 64 * 64 + 64]);
        for line in 0..64 {
            room.0[64 * line + line % 8] = 1 << (line / 8);
        }
        for table in KernelTable::available(CpuFeatures::detect()) {
            for how in ReadLoop::ALL {
                let probe = Probe::of(table);
                let found = probe.read(how, &room.0[..64 * 64]);
                assert_eq!(found, u64::MAX, "{} {how:?}", table.name());
                let part = probe.read(how, &room.0[..64 * 60]);
                assert!(part < u64::MAX, "{} {how:?}", table.name());
                assert_eq!(probe.read(how, &[]), 0);
                assert_eq!(probe.read(how, &room.0[..63]), 0);
            }
        }
    }
}
