//! Values of quantised rows one by one: how large they are, and leaving some of them out.

use crate::activation::{ActivationKinds, ActivationLayout, BLOCK_COLS, SUM_COLS};
use crate::contract::GROUP;
use crate::neuron::Chunks;
use crate::panel::PanelLayout;
use crate::table::Activations;

impl ActivationLayout {
    /// The magnitudes of the values of group `g` of a row as weights of `kind`, one kind, multiply them; `out` is
    /// unchanged past the row's end. NaN for values that share a scale with one that is not finite.
    ///
    /// # Safety
    /// - `row` is a row of this layout whose group `g` is written, and that nothing writes meanwhile.
    ///
    /// # Panics
    /// If rows are not kept in that kind.
    pub unsafe fn magnitudes(
        &self,
        row: *const u8,
        kind: ActivationKinds,
        g: usize,
        out: &mut [f32; GROUP],
    ) {
        assert!(self.kinds().contains(kind));
        let (parts, n) = (self.parts(row.cast_mut(), g), self.group(g).n_cols());
        let (codes, block) = match kind {
            ActivationKinds::INT8_32 => (parts.int8_32, BLOCK_COLS),
            _ => (parts.int8_256, GROUP),
        };
        for (i, out) in out[..n].iter_mut().enumerate() {
            *out = match kind {
                // SAFETY: column `i` is in the group; by the caller.
                ActivationKinds::F32 => unsafe { parts.f32.wrapping_add(i).read() }.abs(),
                ActivationKinds::BF16 => {
                    // SAFETY: as above.
                    let bits = unsafe { parts.bf16.wrapping_add(i).read() };
                    f32::from_bits(u32::from(bits) << 16).abs()
                }
                _ => {
                    // SAFETY: as above.
                    let code = unsafe { codes.q.wrapping_add(i).read() };
                    // SAFETY: as above, with its scale.
                    let d = unsafe { codes.d.wrapping_add(i / block).read() };
                    f32::from(code.unsigned_abs()) * d
                }
            };
        }
    }

    /// Sets the values of group `g` of a row that `keeps` leaves out to 0 in all kinds. Scales stay as they are.
    ///
    /// # Safety
    /// - `row` is a row of this layout whose group `g` is written, and that no other worker accesses meanwhile.
    pub unsafe fn leave_out(&self, row: *mut u8, g: usize, keeps: &[bool; GROUP]) {
        let (parts, n) = (self.parts(row, g), self.group(g).n_cols());
        let kinds = self.kinds();
        for i in (0..n).filter(|&i| !keeps[i]) {
            if kinds.contains(ActivationKinds::F32) {
                // SAFETY: column `i` is in the group; by the caller.
                unsafe { parts.f32.wrapping_add(i).write(0.0) };
            }
            if kinds.contains(ActivationKinds::BF16) {
                // SAFETY: as above.
                unsafe { parts.bf16.wrapping_add(i).write(0) };
            }
            for (kind, part) in [
                (ActivationKinds::INT8_256, parts.int8_256),
                (ActivationKinds::INT8_32, parts.int8_32),
            ] {
                if !kinds.contains(kind) {
                    continue;
                }
                // SAFETY: as above.
                let code = i16::from(unsafe { part.q.wrapping_add(i).replace(0) });
                // SAFETY: as above, with the sum that it is in.
                unsafe { *part.sums.wrapping_add(i / SUM_COLS) -= code };
                if kind == ActivationKinds::INT8_256 {
                    // SAFETY: the group has one scale. The largest magnitudes stay: they are bounds.
                    unsafe { (*part.numbers()).sums_of_32[i / BLOCK_COLS] -= code };
                }
            }
        }
    }
}

impl Activations<'_> {
    /// The number of columns whose int8 codes are 0 in all rows, of rows that are kept in one int8 kind.
    pub fn zero_columns(&self) -> usize {
        let layout = &self.layout;
        let per_32 = layout.kinds().contains(ActivationKinds::INT8_32);
        let (start, _, _) = layout.int8_offsets(per_32);
        let mut n_zero = 0;
        for first in (0..layout.n_cols()).step_by(GROUP) {
            let mut any = [0u8; GROUP];
            let n = GROUP.min(layout.n_cols() - first);
            for row in self.bytes.chunks_exact(layout.row_bytes()) {
                let codes = &row[start + first..][..n];
                any.iter_mut()
                    .zip(codes)
                    .for_each(|(any, code)| *any |= code);
            }
            n_zero += any[..n].iter().filter(|any| **any == 0).count();
        }
        n_zero
    }
}

impl PanelLayout {
    /// Bytes of the codes of a column for `n_outputs` outputs, of a matrix in [`Form::Neurons`](crate::panel::Form).
    pub fn code_bytes(&self, n_outputs: usize) -> usize {
        Chunks::new(self).bytes(n_outputs)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::table::{KernelTable, Quantize};
    extern crate std;
    use std::vec;
    use std::vec::Vec;

    #[derive(Clone, Copy)]
    #[repr(align(64))]
    struct Line {
        _bytes: [u8; 64],
    }

    /// A quantised row, from the scalar table.
    fn row(layout: &ActivationLayout, x: &[f32]) -> Vec<Line> {
        let table = KernelTable::by_name("scalar", crate::cpu::CpuFeatures::empty());
        let mut lines = vec![Line { _bytes: [0; 64] }; layout.row_bytes() / 64];
        let args = Quantize {
            x,
            first_col: 0,
            layout,
            row: lines.as_mut_ptr().cast(),
        };
        // SAFETY: the row is the test's own.
        unsafe { table.expect("is always there").quantize(&args) };
        lines
    }

    #[test]
    fn values_left_out_are_zero_and_the_others_as_they_were() {
        let layout = ActivationLayout::new(288, ActivationKinds::all());
        let x: Vec<f32> = (0..288u16)
            .map(|i| (f32::from(i) * 0.7 - 90.0) * 0.01)
            .collect();
        let mut keeps = [true; GROUP];
        keeps.iter_mut().step_by(3).for_each(|keeps| *keeps = false);
        for kind in ActivationKinds::all().iter() {
            let mut bytes = row(&layout, &x);
            let at = bytes.as_mut_ptr().cast::<u8>();
            for g in 0..2 {
                let (mut before, mut after) = ([7.0; GROUP], [7.0; GROUP]);
                // SAFETY: the test's own row.
                unsafe { layout.magnitudes(at, kind, g, &mut before) };
                // SAFETY: as above.
                unsafe { layout.leave_out(at, g, &keeps) };
                // SAFETY: as above.
                unsafe { layout.magnitudes(at, kind, g, &mut after) };
                let n = (288 - g * GROUP).min(GROUP);
                for i in 0..GROUP {
                    let expected = if keeps[i] || i >= n { before[i] } else { 0.0 };
                    assert_eq!(after[i].to_bits(), expected.to_bits(), "{kind:?} {g} {i}");
                    let is_near = (before[i] - x[(g * GROUP + i).min(287)].abs()).abs() < 0.01;
                    assert!(i >= n || is_near, "{kind:?} {g} {i}");
                }
            }
        }
    }

    #[test]
    fn sums_are_those_of_the_codes_that_are_left() {
        let layout =
            ActivationLayout::new(256, ActivationKinds::INT8_256 | ActivationKinds::INT8_32);
        let x: Vec<f32> = (0..256u16).map(|i| f32::from(i % 31) - 9.5).collect();
        let keeps: [bool; GROUP] = core::array::from_fn(|i| i % 5 != 2);
        let mut bytes = row(&layout, &x);
        // SAFETY: the test's own row.
        unsafe { layout.leave_out(bytes.as_mut_ptr().cast(), 0, &keeps) };
        let len = 64 * bytes.len();
        // SAFETY: lines are plain bytes.
        let bytes = unsafe { core::slice::from_raw_parts(bytes.as_ptr().cast::<u8>(), len) };
        let (numbers, codes) = layout.int8_256(bytes, 0);
        let of = |codes: &[i8]| codes.iter().map(|&q| i16::from(q)).sum::<i16>();
        let (_, codes_32, sums_32) = layout.int8_32(bytes, 0);
        for (i, sum) in sums_32.iter().enumerate() {
            let range = i * SUM_COLS..(i + 1) * SUM_COLS;
            assert_eq!(numbers.sums[i], of(&codes[range.clone()]));
            assert_eq!(*sum, of(&codes_32[range]));
        }
        for (i, sum) in numbers.sums_of_32.iter().enumerate() {
            assert_eq!(*sum, of(&codes[32 * i..32 * (i + 1)]));
        }
    }
}
