//! The image's ELF file, loaded to the address it is linked to. Source: System V ABI, chapters 4 and 5.

use crate::firmware::{Error, File, at};

/// The image's position, and its entry point.
pub(crate) struct Placement {
    pub(crate) start: u64,
    pub(crate) end: u64,
    pub(crate) entry: u32,
    file: File,
}

const PT_LOAD: u64 = 1;
const HEADER_BYTES: u64 = 64;
const SEGMENT_BYTES: u64 = 56;

impl Placement {
    /// Reads the file's headers; every field that is used is checked here.
    pub(crate) fn of(file: File) -> Result<Self, Error> {
        let mut found = Self {
            start: u64::MAX,
            end: 0,
            entry: 0,
            file,
        };
        if file.len_bytes < HEADER_BYTES || number(file, 0, 5) != 0x02_464c_457f {
            return Err(Error::Image("not an ELF file for x86-64"));
        }
        let n_segments = number(file, 56, 2);
        let headers_end = number(file, 32, 8).checked_add(n_segments * SEGMENT_BYTES);
        if headers_end.is_none_or(|end| end > file.len_bytes) {
            return Err(Error::Image("its segments are truncated"));
        }
        for segment in found.segments() {
            let file_end = segment.offset.checked_add(segment.file_bytes);
            let end = segment.address.checked_add(segment.memory_bytes);
            let is_whole = file_end.is_some_and(|end| end <= file.len_bytes)
                && segment.file_bytes <= segment.memory_bytes;
            match end.filter(|&end| is_whole && end <= 1 << 32) {
                Some(end) => {
                    found.start = found.start.min(segment.address);
                    found.end = found.end.max(end);
                }
                None => return Err(Error::Image("it is truncated")),
            }
        }
        let entry = number(file, 24, 8);
        if entry < found.start || entry >= found.end {
            return Err(Error::Image("its entry point is outside of its segments"));
        }
        found.entry = u32::try_from(entry).map_err(|_| Error::Image("it is loaded above 4 GiB"))?;
        Ok(found)
    }

    fn segments(&self) -> impl Iterator<Item = Segment> + use<> {
        let file = self.file;
        let (first, count) = (number(file, 32, 8), number(file, 56, 2));
        (0..count).filter_map(move |i| {
            let header = first + i * SEGMENT_BYTES;
            (number(file, header, 4) == PT_LOAD).then(|| Segment {
                offset: number(file, header + 8, 8),
                address: number(file, header + 24, 8),
                file_bytes: number(file, header + 32, 8),
                memory_bytes: number(file, header + 40, 8),
            })
        })
    }

    /// Copies the segments to their addresses and zeroes the parts that the file leaves out.
    ///
    /// # Safety
    /// - Nothing else uses the memory from `start` to `end`.
    pub(crate) unsafe fn fill(&self) {
        for segment in self.segments() {
            let from = at(self.file.address + segment.offset);
            let to = at(segment.address);
            let (copied, all) = (bytes(segment.file_bytes), bytes(segment.memory_bytes));
            // SAFETY: inside the file and inside the image's memory, as `of` has checked.
            unsafe { to.copy_from(from, copied) };
            // SAFETY: as above.
            unsafe { to.wrapping_add(copied).write_bytes(0, all - copied) };
        }
    }
}

struct Segment {
    offset: u64,
    address: u64,
    file_bytes: u64,
    memory_bytes: u64,
}

/// The little-endian number of `len` bytes at `offset`, which is in the file.
fn number(file: File, offset: u64, len: u64) -> u64 {
    let mut number = 0;
    for i in (0..len).rev() {
        // SAFETY: the caller has compared the offset with the file's length.
        number = number << 8 | u64::from(unsafe { at(file.address + offset + i).read() });
    }
    number
}

#[expect(clippy::cast_possible_truncation, reason = "usize has 64 bits here")]
const fn bytes(len: u64) -> usize {
    len as usize
}
