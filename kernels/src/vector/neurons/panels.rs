//! Columns become panels, for products with many tokens.
#![allow(
    clippy::multiple_unsafe_ops_per_block,
    reason = "a kernel's safety argument is one: pointers stay inside operands that were checked"
)]

use super::NeuronLine;
use super::dots::wide;
use crate::neuron::{HALF, HalfChunk};
use crate::panel::LINE_BYTES;

/// [`LinesFn`](crate::neuron::LinesFn).
///
/// # Safety
/// - The columns' codes are readable, and the lines of a group writable at each of `panels`; the CPU has the features of `L`.
#[inline(always)]
pub(crate) unsafe fn lines<L: NeuronLine>(chunk: &HalfChunk, mut panels: [*mut u8; HALF]) {
    let planes = chunk.format.planes;
    let run_cols = chunk.format.run_cols;
    for run in (0..chunk.n_cols).step_by(run_cols) {
        let mut bytes = [[L::splat(0); 8]; HALF];
        for i in 0..run_cols / 4 {
            let at = |j: usize| (chunk.first).wrapping_add((run + 4 * i + j) * chunk.stride);
            // SAFETY: by the caller.
            let codes = unsafe {
                [
                    wide::<L>(planes, at(0))[chunk.half],
                    wide::<L>(planes, at(1))[chunk.half],
                    wide::<L>(planes, at(2))[chunk.half],
                    wide::<L>(planes, at(3))[chunk.half],
                ]
            };
            let codes = L::interleave(codes);
            for (bytes, codes) in bytes.iter_mut().zip(codes) {
                bytes[i] = codes;
            }
        }
        for (panel, bytes) in panels.iter_mut().zip(&bytes) {
            let mut first = 0;
            for &bits in planes {
                for of_line in bytes[..run_cols / 4].chunks_exact(8 / bits) {
                    let mut line = L::splat(0);
                    for (at, codes) in (0..).step_by(bits).zip(of_line) {
                        let part = codes.shift(-first).and(L::splat(0xff >> (8 - bits)));
                        line = line.or(part.shift(at));
                    }
                    // SAFETY: by the caller.
                    unsafe { line.store(*panel) };
                    *panel = panel.wrapping_add(LINE_BYTES);
                }
                first += i32::from(bits.to_le_bytes()[0]);
            }
        }
    }
}
