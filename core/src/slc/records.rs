//! Records of experts: the matrices of one expert from several tensors, stored contiguously.

use super::ALIGN;
use super::error::TensorProblem;
use super::header::{TensorHeader, alignment};
use core::ops::Range;

/// Maximum matrices in a record.
pub const RECORD_MATRICES_MAX: usize = 4;

/// Puts the matrices that each expert has in `members`, tensors of one block, into a record, in the order of
/// `members`. The first record starts at the first byte at or after `from` that suits all of them. Returns the end
/// of the last one.
///
/// # Errors
/// Tensors with different numbers of experts, without records, or too many of them; records that are too large.
pub fn place_records(members: &mut [TensorHeader], from: u64) -> Result<u64, TensorProblem> {
    let n_experts = members.first().map_or(1, TensorHeader::n_matrices);
    let is_alike =
        |member: &TensorHeader| member.layout.has_records() && member.n_matrices() == n_experts;
    if members.len() > RECORD_MATRICES_MAX || !members.iter().all(is_alike) {
        return Err(TensorProblem::LayoutImpossible);
    }
    let place = || {
        let mut sizes = members.iter().map(TensorHeader::matrix_bytes);
        let record_bytes = sizes.try_fold(0u64, u64::checked_add)?;
        let pages = u32::try_from(record_bytes / ALIGN).ok()?;
        let all_bytes = record_bytes.checked_mul(n_experts)?;
        let offset = from.checked_next_multiple_of(alignment(all_bytes))?;
        Some((pages, offset, offset.checked_add(all_bytes)?))
    };
    let (record_pages, mut offset, end) = place().ok_or(TensorProblem::TooLarge)?;
    for member in members {
        (member.record_pages, member.offset) = (record_pages, offset);
        offset += member.matrix_bytes();
    }
    Ok(end)
}

/// Checks that payloads are aligned, disjoint and inside the file, in one pass over the table: each is after
/// all before it, or inside the records that the preceding tensor of experts began.
pub(super) struct Places {
    /// Where the payloads so far end.
    end: u64,
    file_len: u64,
    records: Option<Records>,
}

impl Places {
    /// Payloads may start at `from`.
    pub(super) const fn new(from: u64, file_len: u64) -> Self {
        Self {
            end: from,
            file_len,
            records: None,
        }
    }

    pub(super) const fn end(&self) -> u64 {
        self.end
    }

    /// The next tensor of the table.
    pub(super) fn take(&mut self, header: &TensorHeader) -> Result<(), TensorProblem> {
        let has_records = header.layout.has_records();
        let (offset, end) = (header.offset, header.end());
        let alignment = match has_records {
            // Only the first record may be aligned as large payloads are.
            true => ALIGN,
            false => alignment(header.len_bytes),
        };
        if !offset.is_multiple_of(alignment) {
            return Err(TensorProblem::Misaligned { offset, alignment });
        }
        let open = self.records.as_mut().filter(|_| has_records);
        if let Some(records) = open.filter(|records| records.would_hold(header)) {
            records.add(header)?;
        } else if offset < self.end {
            let previous_end = self.end;
            return Err(TensorProblem::Overlap {
                offset,
                previous_end,
            });
        } else if has_records {
            self.records = Some(Records::new(header, self.end));
        } else if let Some(records) = &mut self.records {
            records.end_max = records.end_max.min(offset);
        }
        if end > self.file_len {
            let file_len = self.file_len;
            return Err(TensorProblem::OutsideFile { end, file_len });
        }
        self.end = self.end.max(end);
        Ok(())
    }
}

/// The records of a block, as far as its tensors are known. Tensors may be in any order: the one that begins a
/// record is not always the first in the table.
struct Records {
    /// Bytes from one record to the next.
    stride: u64,
    n_experts: u64,
    /// The parts of the first record, of which `n` are known.
    parts: [Range<u64>; RECORD_MATRICES_MAX],
    n: usize,
    /// The end of the preceding payloads.
    start_min: u64,
    /// The start of the next payload after the records.
    end_max: u64,
}

impl Records {
    fn new(header: &TensorHeader, start_min: u64) -> Self {
        let mut parts = [const { 0..0 }; RECORD_MATRICES_MAX];
        parts[0] = first_matrix(header);
        Self {
            stride: header.matrix_stride_bytes(),
            n_experts: header.n_matrices(),
            parts,
            n: 1,
            start_min,
            end_max: u64::MAX,
        }
    }

    /// Whether a tensor is part of these records: the same number, of the same length, within the length of one.
    fn would_hold(&self, header: &TensorHeader) -> bool {
        let part = first_matrix(header);
        let parts = &self.parts[..self.n];
        let start = parts.iter().fold(part.start, |min, p| min.min(p.start));
        let end = parts.iter().fold(part.end, |max, p| max.max(p.end));
        self.n < RECORD_MATRICES_MAX
            && header.matrix_stride_bytes() == self.stride
            && header.n_matrices() == self.n_experts
            && end - start <= self.stride
    }

    /// Adds a tensor that fits. As the first matrices are disjoint and within the length of a record,
    /// all experts' matrices are disjoint.
    fn add(&mut self, header: &TensorHeader) -> Result<(), TensorProblem> {
        let part = first_matrix(header);
        let offset = part.start;
        if offset < self.start_min {
            return Err(TensorProblem::Overlap {
                offset,
                previous_end: self.start_min,
            });
        }
        let lies_on = |other: &&Range<u64>| part.start < other.end && other.start < part.end;
        let other = self.parts[..self.n].iter().find(lies_on);
        let behind = (header.end() > self.end_max).then_some(self.end_max);
        if let Some(other) = other.map(|other| other.start).or(behind) {
            return Err(TensorProblem::RecordOverlap { offset, other });
        }
        self.parts[self.n] = part;
        self.n += 1;
        Ok(())
    }
}

fn first_matrix(header: &TensorHeader) -> Range<u64> {
    header.offset..header.offset.saturating_add(header.matrix_bytes())
}

#[cfg(test)]
mod tests {
    use super::super::Layout;
    use super::*;
    use crate::gguf::TensorInfo;
    use crate::kernels::GgmlType;
    extern crate std;
    use std::vec::Vec;

    const N_EXPERTS: u64 = 5;

    /// Tensors of 5 experts, with matrices of the given numbers of pages.
    fn experts(pages: &[u64]) -> Vec<TensorHeader> {
        let header = |&pages: &u64| {
            let tensor = TensorInfo {
                name: "blk.0.ffn_up_exps.weight",
                n_dims: 3,
                dims: [1024, pages, N_EXPERTS, 1],
                ty: GgmlType::F32,
                offset: 0,
                len_bytes: N_EXPERTS * pages * ALIGN,
            };
            TensorHeader::new(&tensor, Layout::ExpertRecords, 0).unwrap()
        };
        pages.iter().map(header).collect()
    }

    /// A matrix of one page at `offset`.
    fn matrix(offset: u64) -> TensorHeader {
        TensorHeader {
            layout: Layout::Panels,
            dims: [1024, 1, 1, 1],
            len_bytes: ALIGN,
            record_pages: 0,
            offset,
            ..experts(&[1])[0]
        }
    }

    /// The end of payloads; they may start at byte 4096 of a file of 400 pages.
    fn check<'t>(table: impl IntoIterator<Item = &'t TensorHeader>) -> Result<u64, TensorProblem> {
        let mut places = Places::new(ALIGN, 400 * ALIGN);
        table
            .into_iter()
            .try_for_each(|header| places.take(header))?;
        Ok(places.end() / ALIGN)
    }

    #[test]
    fn matrices_of_an_expert_lie_side_by_side() {
        let mut block = experts(&[2, 3, 4]);
        assert_eq!(place_records(&mut block, 4097), Ok((2 + 5 * 9) * ALIGN));
        let offsets = |expert| block.iter().map(move |m| m.matrix_offset(expert) / ALIGN);
        assert!(offsets(0).eq([2, 4, 7]));
        assert!(offsets(4).eq([38, 40, 43]));
        assert!(block.iter().all(|m| m.matrix_stride_bytes() == 9 * ALIGN));
        assert_eq!(block[2].end(), 47 * ALIGN);
        // In any order in the table, also with other tensors between.
        let [gate, up, down] = &block[..] else {
            panic!("three")
        };
        for table in [
            [gate, up, down],
            [down, gate, up],
            [up, down, gate],
            [down, up, gate],
        ] {
            assert_eq!(check(table), Ok(47));
        }
        let behind = [matrix(47 * ALIGN), matrix(48 * ALIGN)];
        let table = [down, &behind[0], gate, &behind[1], up];
        assert_eq!(check(table), Ok(49));
        // The next block.
        let mut next = experts(&[2, 3, 4]);
        place_records(&mut next, 47 * ALIGN).unwrap();
        assert_eq!(check(block.iter().chain(next.iter().rev())), Ok(92));
    }

    #[test]
    fn large_records_start_where_a_huge_page_may() {
        let mut block = experts(&[2000, 2000]);
        place_records(&mut block, ALIGN).unwrap();
        assert_eq!(block[0].offset, 2 << 20);
        assert_eq!(block[1].offset, (2 << 20) + 2000 * ALIGN);
    }

    #[test]
    fn what_cannot_be_records() {
        let impossible = Err(TensorProblem::LayoutImpossible);
        let mut block = experts(&[1, 1]);
        block[1].dims[2] = 4;
        assert_eq!(place_records(&mut block, 0), impossible);
        assert_eq!(place_records(&mut experts(&[1; 5]), 0), impossible);
        assert_eq!(place_records(&mut [matrix(0)], 0), impossible);
        let mut block = experts(&[1, 1]);
        assert_eq!(
            place_records(&mut block, u64::MAX - ALIGN),
            Err(TensorProblem::TooLarge)
        );
        block[0].len_bytes = N_EXPERTS * (u64::from(u32::MAX) + 1) * ALIGN;
        assert_eq!(place_records(&mut block, 0), Err(TensorProblem::TooLarge));
        assert_eq!(place_records(&mut [], 5), Ok(ALIGN));
    }

    #[test]
    fn payloads_on_others_are_refused() {
        let mut block = experts(&[2, 3, 4]);
        place_records(&mut block, ALIGN).unwrap();
        let [gate, up, down] = block[..] else {
            panic!("three")
        };
        let at = |header: TensorHeader, page: u64| TensorHeader {
            offset: page * ALIGN,
            ..header
        };
        let on = |page, other| {
            Err(TensorProblem::RecordOverlap {
                offset: page * ALIGN,
                other: other * ALIGN,
            })
        };
        let before = |page, end| {
            Err(TensorProblem::Overlap {
                offset: page * ALIGN,
                previous_end: end * ALIGN,
            })
        };
        // Overlaps the previous part, or the next expert's.
        assert_eq!(check([&gate, &at(up, 2)]), on(2, 1));
        assert_eq!(check([&gate, &up, &at(down, 5)]), on(5, 3));
        assert_eq!(check([&gate, &up, &at(down, 7)]), before(7, 42));
        // Overlaps a tensor before the records, or after them.
        assert_eq!(check([&matrix(ALIGN), &down, &gate]), before(1, 2));
        assert_eq!(check([&gate, &matrix(39 * ALIGN), &down]), on(6, 39));
        // Between records, in free space.
        assert_eq!(check([&gate, &matrix(3 * ALIGN)]), before(3, 39));
        // Different record lengths, or numbers of experts.
        let wide = TensorHeader {
            record_pages: 10,
            ..up
        };
        assert_eq!(check([&gate, &wide]), before(3, 39));
        let mut few = experts(&[3])[0];
        (few.dims[2], few.len_bytes, few.record_pages) = (4, 12 * ALIGN, 9);
        assert_eq!(check([&gate, &at(few, 3)]), before(3, 39));
        // Misaligned, or outside the file.
        let odd = TensorHeader {
            offset: up.offset + 1,
            ..up
        };
        let (offset, alignment) = (odd.offset, ALIGN);
        let misaligned = Err(TensorProblem::Misaligned { offset, alignment });
        assert_eq!(check([&gate, &odd]), misaligned);
        for page in [398, u64::MAX >> 12] {
            let outside = check([&at(gate, page)]);
            assert!(matches!(outside, Err(TensorProblem::OutsideFile { .. })));
        }
        let far = TensorHeader {
            record_pages: u32::MAX,
            ..gate
        };
        assert!(matches!(
            check([&far]),
            Err(TensorProblem::OutsideFile { .. })
        ));
    }

    /// Random small tables: accepted ones are disjoint, matrix by matrix.
    #[test]
    fn accepted_tables_are_disjoint() {
        let mut state = 1u64;
        let mut below = |n: u64| {
            state = state.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
            (state >> 33) % n
        };
        let mut n_shared = 0;
        for _ in 0..300_000 {
            let table: Vec<_> = (0..4)
                .map(|_| {
                    let offset = (1 + below(12)) * ALIGN;
                    if below(4) == 0 {
                        return matrix(offset);
                    }
                    let mut header = experts(&[1])[0];
                    (header.dims[2], header.len_bytes) = (2, 2 * ALIGN);
                    header.record_pages = 2 + u32::try_from(below(3)).unwrap();
                    TensorHeader { offset, ..header }
                })
                .collect();
            let Ok(end) = check(&table) else { continue };
            let mut matrices: Vec<_> = table
                .iter()
                .flat_map(|t| (0..t.n_matrices()).map(|i| t.matrix_offset(i) / ALIGN))
                .collect();
            matrices.sort_unstable();
            assert!(matrices.windows(2).all(|pair| pair[0] < pair[1]));
            assert_eq!(matrices.last(), Some(&(end - 1)));
            n_shared += usize::from(table.iter().any(|t| t.offset < table[0].offset));
        }
        assert!(n_shared > 100, "{n_shared}");
    }
}
