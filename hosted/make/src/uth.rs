//! Expert blobs of another system, to import: UTH1 and UTH2 headers before one expert's weights.
//!
//! [`Blob::parse`] reads the header and locates each projection's weights; it checks every field
//! against the blob's length and never copies. All fields are little endian.
//!
//! # UTH1: 64 bytes, one type for the whole expert
//!
//! ```text
//!  0..4  magic "UTH1"        4..6  u16 version, 1      6  u8 type       7  u8 rank, 1 to 4
//!  8..24 u32 shape[4]        for an expert rank 3: [n_ff, n_embd, 3, 0]
//! 24..28 u32 scale offset    from the payload's start   28..32 u32 scale count
//! 32..44 u32 tile m, n, k    advisory                   44..48 u32 flags, bit 0: page-aligned
//! 48..64 zero
//! ```
//!
//! # UTH2: 128 bytes, three projections with their own types
//!
//! ```text
//!  0..4  magic "UTH2"        4..6  u16 version, 2       6..8  u16 projections, 3
//!  8..12 u32 n_embd         12..16 u32 n_ff            16..20 u32 flags        20..24 zero
//! 24+24i records, i = 0..2:  u8 type | u8 role, i (0 gate, 1 up, 2 down) | 2 zero bytes |
//!                            u64 offset from the payload's start | u64 length | u32 weights
//! 96..128 zero
//! ```
//!
//! The payload starts after the header or, with flag bit 0, at the next multiple of 4096. It is
//! gate (n_ff rows of n_embd), up (n_ff rows of n_embd), down (n_embd rows of n_ff). Of UTH1's
//! types, Int8 has three f32 scales (gate, up, down) before the codes.

use core::ops::Range;
use sluice_core::kernels::GgmlType;

/// Alignment of the payload if the header requests it, in bytes.
pub const ALIGN: u64 = 4096;
/// Bytes of a UTH1 header.
pub const UTH1_BYTES: usize = 64;
/// Bytes of a UTH2 header.
pub const UTH2_BYTES: usize = 128;
/// Largest dimension accepted.
pub const DIM_MAX: u32 = 1 << 24;

/// The storage type of weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[expect(non_camel_case_types, reason = "ggml's own spelling")]
#[expect(missing_docs, reason = "each variant is the type of that name")]
#[repr(u8)]
pub enum BlobType {
    F32 = 0,
    F16 = 1,
    /// Signed bytes, with one f32 scale per projection.
    Int8 = 2,
    Q4_K = 3,
    Q4_0 = 4,
    Q8_0 = 5,
    BF16 = 6,
    /// 4-bit codes of a projection, then its E8M0 scales: not ggml's blocks.
    MXFP4 = 7,
    Q5_K = 8,
    Q6_K = 9,
    /// Each projection has its own type, which UTH2 records.
    Mixed = 10,
}

impl BlobType {
    /// All types, in numerical order.
    pub const ALL: [Self; 11] = [
        Self::F32,
        Self::F16,
        Self::Int8,
        Self::Q4_K,
        Self::Q4_0,
        Self::Q8_0,
        Self::BF16,
        Self::MXFP4,
        Self::Q5_K,
        Self::Q6_K,
        Self::Mixed,
    ];

    /// The type with this number.
    pub fn from_id(id: u8) -> Option<Self> {
        Self::ALL.get(usize::from(id)).copied()
    }

    /// The type with this name in a manifest.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|dtype| dtype.name() == name)
    }

    /// The name in manifests.
    pub const fn name(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::F16 => "f16",
            Self::Int8 => "int8",
            Self::Q4_K => "q4k",
            Self::Q4_0 => "q4_0",
            Self::Q8_0 => "q8_0",
            Self::BF16 => "bf16",
            Self::MXFP4 => "mxfp4",
            Self::Q5_K => "q5k",
            Self::Q6_K => "q6k",
            Self::Mixed => "mixed",
        }
    }

    /// The ggml type with the same bytes; `None` for the two that ggml does not have.
    pub const fn ggml(self) -> Option<GgmlType> {
        Some(match self {
            Self::F32 => GgmlType::F32,
            Self::F16 => GgmlType::F16,
            Self::Q4_K => GgmlType::Q4_K,
            Self::Q4_0 => GgmlType::Q4_0,
            Self::Q8_0 => GgmlType::Q8_0,
            Self::BF16 => GgmlType::BF16,
            Self::Q5_K => GgmlType::Q5_K,
            Self::Q6_K => GgmlType::Q6_K,
            Self::Int8 | Self::MXFP4 | Self::Mixed => return None,
        })
    }

    /// Bytes of a matrix with its scales, except for Int8's; `None` if rows do not fit the type.
    pub fn matrix_bytes(self, n_rows: u64, n_cols: u64) -> Option<u64> {
        let row = match self {
            Self::Int8 => n_cols,
            Self::MXFP4 => n_cols.div_ceil(2).checked_add(n_cols.div_ceil(32))?,
            Self::Mixed => return None,
            _ => self.ggml()?.row_bytes(n_cols)?,
        };
        row.checked_mul(n_rows)
    }
}

/// One of an expert's three matrices.
#[derive(Clone, Debug, PartialEq)]
pub struct Projection {
    /// The storage type of its weights.
    pub dtype: BlobType,
    /// Number of outputs and inputs.
    pub shape: [u32; 2],
    /// Its byte range in the blob.
    pub range: Range<u64>,
    /// Int8: the factor of its codes.
    pub scale: Option<f32>,
}

/// An expert: its header's fields, checked.
#[derive(Clone, Debug, PartialEq)]
pub struct Blob {
    /// Header version: 1 or 2.
    pub version: u16,
    /// The type of the whole expert.
    pub dtype: BlobType,
    /// Width of the hidden state.
    pub n_embd: u32,
    /// Width of the expert.
    pub n_ff: u32,
    /// The flags, unchecked.
    pub flags: u32,
    /// Where the payload starts.
    pub payload_offset: u64,
    /// Tile hint m, n, k; zero in UTH2.
    pub tile: [u32; 3],
    /// Gate, up, down.
    pub projections: [Projection; 3],
}

/// Why a blob was refused. Lengths and offsets are in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
#[expect(missing_docs, reason = "the fields are described with their variants")]
pub enum UthError {
    /// The magic is neither `UTH1` nor `UTH2`.
    #[error("not an expert blob: it starts with \"{}\"", magic.escape_ascii())]
    NotUth { magic: [u8; 4] },
    /// The blob is shorter than its header states.
    #[error("the blob is truncated: it has {len_bytes} of {needed} bytes")]
    Truncated { needed: u64, len_bytes: u64 },
    /// The version does not match the magic.
    #[error("version {version} of a UTH{magic} header is not supported")]
    Version { magic: u8, version: u16 },
    /// The type number is unknown, or not allowed here.
    #[error("type {id} is unknown or not allowed here")]
    Dtype { id: u8 },
    /// A rank outside 1 to 4, or one that is not an expert's.
    #[error("rank {rank} is not an expert's (3)")]
    Rank { rank: u8 },
    /// The shape is not an expert's: [n_ff, n_embd, 3, 0], each above 0 and at most 2^24.
    #[error("shape {shape:?} is not an expert's ([n_ff, n_embd, 3, 0])")]
    Shape { shape: [u32; 4] },
    /// Scales that the type does not have, or missing scales for Int8.
    #[error("{count} scales at {offset} do not match the type")]
    Scales { offset: u32, count: u32 },
    /// The number of projections in UTH2 is not 3.
    #[error("{count} projections, expected 3")]
    Projections { count: u16 },
    /// A record's role does not match its index.
    #[error("record {index} has role {role}")]
    Role { index: u8, role: u8 },
    /// A projection's length or weight count does not match its type and shape.
    #[error("projection {index} has length {stated}, expected {expected}")]
    Length {
        index: u8,
        stated: u64,
        expected: u64,
    },
    /// The row length is not a whole number of the type's blocks.
    #[error("rows of projection {index} are not whole blocks of its type")]
    Rows { index: u8 },
    /// Two projections overlap.
    #[error("projection {index} overlaps another one")]
    Overlap { index: u8 },
    /// Bytes that must be zero are not.
    #[error("reserved bytes are not zero")]
    Reserved,
}

impl Blob {
    /// Whether `bytes` start with the magic of an expert blob.
    pub fn is_uth(bytes: &[u8]) -> bool {
        bytes.starts_with(b"UTH1") || bytes.starts_with(b"UTH2")
    }

    /// Reads and checks a header. `bytes` holds the start of the blob: at least the header and, for
    /// Int8, the payload's first 12 bytes. `len_bytes` is the length of the whole blob (zeros after
    /// the payload are allowed).
    ///
    /// # Errors
    /// [`UthError`], if the header or the length is not valid.
    pub fn parse(bytes: &[u8], len_bytes: u64) -> Result<Self, UthError> {
        let magic = *head::<4>(bytes, 0, len_bytes)?;
        match &magic {
            b"UTH1" => Self::parse_uth1(head(bytes, 0, len_bytes)?, bytes, len_bytes),
            b"UTH2" => Self::parse_uth2(head(bytes, 0, len_bytes)?, len_bytes),
            _ => Err(UthError::NotUth { magic }),
        }
    }

    fn parse_uth1(h: &[u8; UTH1_BYTES], bytes: &[u8], len_bytes: u64) -> Result<Self, UthError> {
        let version = u16_at(h, 4);
        if version != 1 {
            return Err(UthError::Version { magic: 1, version });
        }
        let known = BlobType::from_id(h[6]).filter(|&dtype| dtype != BlobType::Mixed);
        let dtype = known.ok_or(UthError::Dtype { id: h[6] })?;
        if h[7] != 3 {
            return Err(UthError::Rank { rank: h[7] });
        }
        let shape = [u32_at(h, 8), u32_at(h, 12), u32_at(h, 16), u32_at(h, 20)];
        let [n_ff, n_embd, ..] = shape;
        let possible = 1..=DIM_MAX;
        if shape[2..] != [3, 0] || !possible.contains(&n_ff) || !possible.contains(&n_embd) {
            return Err(UthError::Shape { shape });
        }
        let (offset, count) = (u32_at(h, 24), u32_at(h, 28));
        let is_int8 = dtype == BlobType::Int8;
        if count != if is_int8 { 3 } else { 0 } || (is_int8 && offset != 0) {
            return Err(UthError::Scales { offset, count });
        }
        if h[48..].iter().any(|&byte| byte != 0) {
            return Err(UthError::Reserved);
        }
        let flags = u32_at(h, 44);
        let payload_offset = payload_offset(UTH1_BYTES, flags);
        let mut at = payload_offset + if is_int8 { 12 } else { 0 };
        let mut projections = Self::shapes(n_embd, n_ff).map(|shape| Projection {
            dtype,
            shape,
            range: 0..0,
            scale: None,
        });
        for (index, projection) in (0u8..).zip(&mut projections) {
            let [n_rows, n_cols] = projection.shape;
            let len = dtype.matrix_bytes(n_rows.into(), n_cols.into());
            // Below 2^24 squared times 4, three times: no overflow.
            projection.range = at..at + len.ok_or(UthError::Rows { index })?;
            at = projection.range.end;
        }
        if at > len_bytes {
            let needed = at;
            return Err(UthError::Truncated { needed, len_bytes });
        }
        if is_int8 {
            // At most 4096.
            let start = usize::try_from(payload_offset).unwrap_or(usize::MAX / 2);
            let scales: &[u8; 12] = head(bytes, start, len_bytes)?;
            for (i, projection) in projections.iter_mut().enumerate() {
                projection.scale = Some(f32::from_bits(u32_at(scales, 4 * i)));
            }
        }
        Ok(Self {
            version,
            dtype,
            n_embd,
            n_ff,
            flags,
            payload_offset,
            tile: [u32_at(h, 32), u32_at(h, 36), u32_at(h, 40)],
            projections,
        })
    }

    fn parse_uth2(h: &[u8; UTH2_BYTES], len_bytes: u64) -> Result<Self, UthError> {
        let version = u16_at(h, 4);
        if version != 2 {
            return Err(UthError::Version { magic: 2, version });
        }
        let count = u16_at(h, 6);
        if count != 3 {
            return Err(UthError::Projections { count });
        }
        let (n_embd, n_ff, flags) = (u32_at(h, 8), u32_at(h, 12), u32_at(h, 16));
        let possible = 1..=DIM_MAX;
        if !possible.contains(&n_embd) || !possible.contains(&n_ff) {
            let shape = [n_ff, n_embd, 3, 0];
            return Err(UthError::Shape { shape });
        }
        if u32_at(h, 20) != 0 || h[96..].iter().any(|&byte| byte != 0) {
            return Err(UthError::Reserved);
        }
        let payload_offset = payload_offset(UTH2_BYTES, flags);
        let mut projections = Self::shapes(n_embd, n_ff).map(|shape| Projection {
            dtype: BlobType::Mixed,
            shape,
            range: 0..0,
            scale: None,
        });
        for (index, projection) in (0u8..).zip(&mut projections) {
            let record = &h[24 + 24 * usize::from(index)..][..24];
            projection.read(index, record, payload_offset, len_bytes)?;
        }
        for (index, other) in [(1, 0), (2, 0), (2, 1)] {
            let (a, b) = (&projections[index].range, &projections[other].range);
            if a.start < b.end && b.start < a.end {
                return Err(UthError::Overlap {
                    index: if index == 1 { 1 } else { 2 },
                });
            }
        }
        Ok(Self {
            version,
            dtype: BlobType::Mixed,
            n_embd,
            n_ff,
            flags,
            payload_offset,
            tile: [0; 3],
            projections,
        })
    }

    /// (rows, columns) of gate, up and down.
    pub const fn shapes(n_embd: u32, n_ff: u32) -> [[u32; 2]; 3] {
        [[n_ff, n_embd], [n_ff, n_embd], [n_embd, n_ff]]
    }

    /// Whether the payload is aligned to [`ALIGN`].
    pub const fn is_page_aligned(&self) -> bool {
        self.flags & 1 == 1
    }
}

impl Projection {
    /// Takes the type and position from a UTH2 record.
    fn read(
        &mut self,
        index: u8,
        record: &[u8],
        payload_offset: u64,
        len_bytes: u64,
    ) -> Result<(), UthError> {
        let id = record[0];
        // A record has no field for a scale per projection, so Int8 is not allowed here either.
        let known =
            BlobType::from_id(id).filter(|d| !matches!(d, BlobType::Mixed | BlobType::Int8));
        self.dtype = known.ok_or(UthError::Dtype { id })?;
        if record[1] != index {
            let role = record[1];
            return Err(UthError::Role { index, role });
        }
        if record[2..4] != [0, 0] {
            return Err(UthError::Reserved);
        }
        let (offset, stated) = (u64_at(record, 4), u64_at(record, 12));
        let [n_rows, n_cols] = self.shape.map(u64::from);
        let expected = self.dtype.matrix_bytes(n_rows, n_cols);
        let expected = expected.ok_or(UthError::Rows { index })?;
        if stated != expected {
            return Err(UthError::Length {
                index,
                stated,
                expected,
            });
        }
        let (stated, expected) = (u64::from(u32_at(record, 20)), n_rows * n_cols);
        if stated != expected {
            return Err(UthError::Length {
                index,
                stated,
                expected,
            });
        }
        let start = payload_offset.checked_add(offset);
        let end = start.and_then(|start| start.checked_add(u64_at(record, 12)));
        match (start, end) {
            (Some(start), Some(end)) if end <= len_bytes => self.range = start..end,
            _ => {
                let needed = end.unwrap_or(u64::MAX);
                return Err(UthError::Truncated { needed, len_bytes });
            }
        }
        Ok(())
    }
}

const fn payload_offset(header_bytes: usize, flags: u32) -> u64 {
    if flags & 1 == 1 {
        ALIGN
    } else {
        header_bytes as u64
    }
}

/// The `N` bytes at `at`, if the blob is long enough.
fn head<const N: usize>(bytes: &[u8], at: usize, len_bytes: u64) -> Result<&[u8; N], UthError> {
    let needed = (at + N) as u64;
    bytes
        .get(at..)
        .and_then(<[u8]>::first_chunk)
        .filter(|_| needed <= len_bytes)
        .ok_or(UthError::Truncated {
            needed,
            len_bytes: len_bytes.min(bytes.len() as u64),
        })
}

/// Bytes of a header at a fixed offset, which callers keep inside it.
fn array_at<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    *bytes[at..].first_chunk().expect("inside a fixed header")
}

fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes(array_at(bytes, at))
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(array_at(bytes, at))
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(array_at(bytes, at))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Q8_0, n_embd 2048, n_ff 768, page-aligned: written from the format's description.
    #[rustfmt::skip]
    const GOLDEN: [u8; 64] = [
        0x55, 0x54, 0x48, 0x31, 0x01, 0x00, 0x05, 0x03, 0x00, 0x03, 0x00, 0x00, 0x00, 0x08, 0x00, 0x00,
        0x03, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00,
        0x10, 0x00, 0x00, 0x00, 0x10, 0x00, 0x00, 0x00, 0x40, 0x00, 0x00, 0x00, 0x01, 0x00, 0x00, 0x00,
        0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,
    ];
    /// The published size of such an expert, including its header block.
    const GOLDEN_LEN: u64 = 5_017_600;

    fn uth2() -> Vec<u8> {
        let mut out = Vec::from(*b"UTH2\x02\0\x03\0");
        // n_embd 32, n_ff 64, not aligned: Q4_0 gate, Q8_0 up, F16 down.
        for n in [32u32, 64, 0, 0] {
            out.extend(n.to_le_bytes());
        }
        let mut offset = 0u64;
        for (role, id, len) in [(0u8, 4u8, 64 * 18u64), (1, 5, 64 * 34), (2, 1, 32 * 64 * 2)] {
            out.extend([id, role, 0, 0]);
            out.extend(offset.to_le_bytes());
            out.extend(len.to_le_bytes());
            out.extend(2048u32.to_le_bytes());
            offset += len;
        }
        out.resize(128, 0);
        out.resize(128 + usize::try_from(offset).unwrap(), 7);
        out
    }

    #[test]
    fn the_golden_header() {
        let blob = Blob::parse(&GOLDEN, GOLDEN_LEN).unwrap();
        assert_eq!(
            (blob.n_embd, blob.n_ff, blob.dtype),
            (2048, 768, BlobType::Q8_0)
        );
        assert_eq!((blob.tile, blob.is_page_aligned()), ([16, 16, 64], true));
        let size = 5_013_504 / 3;
        let expected = [0, 1, 2].map(|i| 4096 + i * size..4096 + (i + 1) * size);
        assert_eq!(blob.projections.clone().map(|p| p.range), expected);
        assert_eq!(blob.projections[2].shape, [2048, 768]);
        assert_eq!(
            Blob::parse(&GOLDEN, GOLDEN_LEN - 1),
            Err(UthError::Truncated {
                needed: GOLDEN_LEN,
                len_bytes: GOLDEN_LEN - 1
            })
        );
    }

    #[test]
    fn int8_has_a_scale_for_each_projection() {
        let mut bytes = Vec::from(GOLDEN);
        (bytes[6], bytes[28], bytes[44]) = (2, 3, 0);
        bytes.extend([1.5f32, 0.25, -2.0].iter().flat_map(|x| x.to_le_bytes()));
        let blob = Blob::parse(&bytes, 64 + 12 + 3 * 2048 * 768).unwrap();
        assert_eq!(
            blob.projections.clone().map(|p| p.scale),
            [Some(1.5), Some(0.25), Some(-2.0)]
        );
        assert_eq!(blob.projections[0].range, 76..76 + 2048 * 768);
        let error = Blob::parse(&bytes[..70], 64 + 12 + 3 * 2048 * 768).unwrap_err();
        assert!(matches!(error, UthError::Truncated { .. }));
    }

    #[test]
    fn mixed_projections() {
        let bytes = uth2();
        let blob = Blob::parse(&bytes, bytes.len() as u64).unwrap();
        let types = blob.projections.clone().map(|p| p.dtype);
        assert_eq!(types, [BlobType::Q4_0, BlobType::Q8_0, BlobType::F16]);
        assert_eq!(blob.projections[1].range, 128 + 1152..128 + 1152 + 2176);
    }

    #[test]
    fn what_is_wrong_is_named() {
        let cases: [(usize, u8, &str); 8] = [
            (0, b'X', "NotUth"),
            (4, 2, "Version"),
            (6, 10, "Dtype"),
            (7, 4, "Rank"),
            (16, 2, "Shape"),
            (28, 1, "Scales"),
            (8, 1, "Rows"),
            (50, 1, "Reserved"),
        ];
        for (at, value, expected) in cases {
            let mut bytes = GOLDEN;
            bytes[at] = value;
            let error = Blob::parse(&bytes, GOLDEN_LEN).unwrap_err();
            assert!(format!("{error:?}").contains(expected), "{at}: {error}");
        }
        let cases: [(usize, u8, &str); 10] = [
            (4, 1, "Version"),
            (6, 2, "Projections"),
            (8, 0, "Shape"),
            (20, 1, "Reserved"),
            (100, 1, "Reserved"),
            (24, 10, "Dtype"),
            (25, 1, "Role"),
            (36, 1, "Length"),
            (52, 1, "Overlap"),
            (59, 0xff, "Truncated"),
        ];
        for (at, value, expected) in cases {
            let mut bytes = uth2();
            bytes[at] = value;
            let error = Blob::parse(&bytes, bytes.len() as u64).unwrap_err();
            assert!(format!("{error:?}").contains(expected), "{at}: {error}");
        }
    }

    #[test]
    fn no_header_panics() {
        for base in [Vec::from(GOLDEN), uth2()] {
            for len in 0..base.len().min(200) {
                assert!(Blob::parse(&base[..len], len as u64).is_err());
            }
            for at in 0..base.len().min(128) {
                for value in [0, 1, 0x7f, 0x80, 0xff] {
                    let mut bytes = base.clone();
                    bytes[at] = value;
                    for len in [bytes.len() as u64, u64::MAX] {
                        if let Ok(blob) = Blob::parse(&bytes, len) {
                            assert!(blob.projections.iter().all(|p| p.range.end <= len));
                        }
                    }
                }
            }
        }
    }
}
