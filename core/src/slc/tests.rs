mod neurons;

use super::*;
use crate::kernels::GgmlType;
use crate::kernels::neuron::Form;
extern crate std;
use std::format;
use std::string::ToString as _;
use std::vec;
use std::vec::Vec;

/// A GGUF header of two tensors: F32 (4) and Q4_0 (64, 20), the second one padded to 32 bytes.
fn gguf_header() -> Vec<u8> {
    let mut out = Vec::from(*b"GGUF\x03\0\0\0");
    out.extend(2u64.to_le_bytes());
    out.extend(0u64.to_le_bytes());
    let tensors: [(&str, &[u64], u32, u64); 2] = [
        ("output_norm.weight", &[4], 0, 0),
        ("blk.0.attn_q.weight", &[64, 20], 2, 32),
    ];
    for (name, dims, ty, offset) in tensors {
        out.extend((name.len() as u64).to_le_bytes());
        out.extend(name.as_bytes());
        out.extend(u32::try_from(dims.len()).unwrap().to_le_bytes());
        dims.iter().for_each(|dim| out.extend(dim.to_le_bytes()));
        out.extend(ty.to_le_bytes());
        out.extend(offset.to_le_bytes());
    }
    out
}

/// A whole file with zeros for weights and a gap of 5 bytes after the tensors.
struct Parts {
    header: FileHeader,
    gguf: Vec<u8>,
    table: Vec<TensorHeader>,
    gaps: Vec<Gap>,
}

impl Parts {
    fn new() -> Self {
        let gguf = gguf_header();
        let data_offset = (gguf.len() as u64).next_multiple_of(32);
        let gguf_len = data_offset + 32 + 20 * 36 + 5;
        let mut header = FileHeader {
            file_len: 0,
            gguf_len,
            gguf_header_len: gguf.len() as u64,
            n_tensors: 2,
            n_gaps: 1,
            gguf_sha256: [7; 32],
            n_matrices: 0,
        };
        let parsed = Gguf::parse(&gguf, gguf_len).unwrap();
        let mut end = header.payload_offset();
        let table: Vec<_> = parsed
            .tensors()
            .map(|tensor| {
                let layout = Layout::of(&tensor, false);
                let header = TensorHeader::new(&tensor, layout, end).unwrap();
                end = header.end();
                header
            })
            .collect();
        let gap = Gap {
            gguf_offset: gguf_len - 5,
            len_bytes: 5,
            offset: end,
            checksum: 9,
        };
        header.file_len = end + 5;
        let gaps = vec![gap];
        Self {
            header,
            gguf,
            table,
            gaps,
        }
    }

    fn bytes(&self) -> Vec<u8> {
        let mut out = Vec::from(self.header.to_bytes());
        out.extend(&self.gguf);
        out.resize(to_usize(self.header.table_offset()), 0);
        self.table
            .iter()
            .for_each(|header| out.extend(header.to_bytes()));
        self.gaps.iter().for_each(|gap| out.extend(gap.to_bytes()));
        out.resize(to_usize(self.header.payload_offset()), 0);
        seal(&mut out);
        out.resize(to_usize(self.header.file_len), 0);
        out
    }
}

fn error_of(bytes: &[u8]) -> SlcError {
    Slc::parse(bytes, bytes.len() as u64).expect_err("it is damaged")
}

/// Changes a byte and makes the checksum right again.
fn resealed(bytes: &[u8], at: usize, value: u8) -> Vec<u8> {
    let mut bytes = Vec::from(bytes);
    bytes[at] = value;
    let head = to_usize(Parts::new().header.payload_offset());
    seal(&mut bytes[..head]);
    bytes
}

#[test]
fn a_header_by_hand() {
    let header = TensorHeader {
        layout: Layout::Panels,
        form: Form::Panels,
        ty: GgmlType::Q4_K,
        n_dims: 2,
        dims: [256, 4090, 1, 1],
        offset: 0x20_0000,
        // 255 panels of one super-block and 10 rows: 255 × 2304 + 10 × 144.
        len_bytes: 0x8_fca0,
        record_pages: 0,
        checksum: 0x1122_3344_5566_7788,
    };
    #[rustfmt::skip]
    let expected: [u8; 64] = [
        1, 1, 2, 2,                 // version, panels, two dimensions, panel revision
        12, 0, 0, 0,                // Q4_K
        0, 1, 0, 0,                 // 256 columns
        0xfa, 0x0f, 0, 0,           // 4090 rows
        1, 0, 0, 0, 1, 0, 0, 0,     // no third and fourth dimension
        0, 0, 0x20, 0, 0, 0, 0, 0,  // offset
        0xa0, 0xfc, 8, 0, 0, 0, 0, 0, // length
        0, 0, 0, 0, 0, 0, 0, 0,     // no scales kept apart
        16, 0, 64, 0,               // tile of 16 rows, 64 columns
        0, 0, 0, 0,
        0x88, 0x77, 0x66, 0x55, 0x44, 0x33, 0x22, 0x11,
    ];
    assert_eq!(header.to_bytes(), expected);
    let tensor = TensorInfo {
        name: "blk.0.ffn_up.weight",
        n_dims: 2,
        dims: [256, 4090, 1, 1],
        ty: GgmlType::Q4_K,
        offset: 0,
        len_bytes: 4090 * 144,
    };
    assert_eq!(TensorHeader::from_bytes(&expected, &tensor), Ok(header));
    let layout = header.matrix_layout();
    assert_eq!(layout.map(|layout| layout.bytes()), Some(0x8_fca0));
    let placed = TensorHeader::new(&tensor, Layout::of(&tensor, true), 0x1f_f001).unwrap();
    assert_eq!(
        TensorHeader {
            checksum: header.checksum,
            ..placed
        },
        header
    );
}

#[test]
fn a_header_of_records_by_hand() {
    // 17 rows of 8 blocks of 34 bytes: a panel and a row, 4,624 bytes in two pages.
    let tensor = TensorInfo {
        name: "blk.0.ffn_up_exps.weight",
        n_dims: 3,
        dims: [256, 17, 6, 1],
        ty: GgmlType::Q8_0,
        offset: 0,
        len_bytes: 6 * 4624,
    };
    let header = TensorHeader {
        offset: 0x5000,
        record_pages: 7,
        ..TensorHeader::new(&tensor, Layout::of(&tensor, true), 0).unwrap()
    };
    let mut bytes = header.to_bytes();
    assert_eq!((bytes[1], &bytes[24..26]), (4, &[0, 0x50][..]));
    assert_eq!(bytes[32..40], 0xc000u64.to_le_bytes());
    assert_eq!(bytes[52..56], [7, 0, 0, 0]);
    assert_eq!(TensorHeader::from_bytes(&bytes, &tensor), Ok(header));
    assert_eq!(header.matrix_offset(5), 0x5000 + 5 * 0x7000);
    assert_eq!(header.matrix_bytes(), 0x2000);
    assert_eq!(header.end(), header.matrix_offset(5) + 0x2000);
    bytes[52] = 1;
    let error = TensorHeader::from_bytes(&bytes, &tensor).unwrap_err();
    let message = "records of 4096 bytes are too short for matrices of 8192";
    assert_eq!(error.to_string(), message);
}

#[test]
fn layouts_follow_from_name_type_and_shape() {
    let tensor = |name, dims: [u64; 4], n_dims, ty| TensorInfo {
        name,
        n_dims,
        dims,
        ty,
        offset: 0,
        len_bytes: 0,
    };
    use GgmlType::{F16, F32, Q8_0, Q8_K};
    let cases = [
        ("blk.0.attn_norm.weight", [64, 1, 1, 1], 1, F32, Layout::Raw),
        (
            "blk.0.attn_q_norm.weight",
            [64, 4, 1, 1],
            2,
            F32,
            Layout::Raw,
        ),
        ("blk.0.attn_q.bias", [64, 1, 1, 1], 1, F32, Layout::Raw),
        ("token_embd.weight", [64, 100, 1, 1], 2, F16, Layout::Raw),
        ("position_embd.weight", [64, 100, 1, 1], 2, F16, Layout::Raw),
        ("output.weight", [64, 100, 1, 1], 2, F16, Layout::Panels),
        (
            "blk.0.ffn_up.weight",
            [64, 100, 1, 1],
            2,
            Q8_0,
            Layout::Panels,
        ),
        (
            "blk.0.ffn_up.weight",
            [256, 100, 1, 1],
            2,
            Q8_K,
            Layout::Raw,
        ),
        (
            "blk.0.ffn_up.weight",
            [1 << 25, 1, 1, 1],
            2,
            Q8_0,
            Layout::Raw,
        ),
        (
            "blk.0.ffn_up_exps.weight",
            [64, 100, 8, 1],
            3,
            Q8_0,
            Layout::ExpertRecords,
        ),
        ("conv.weight", [3, 3, 8, 1], 3, F16, Layout::Raw),
        (
            "blk.0.shortconv.conv.weight",
            [3, 64, 1, 1],
            2,
            F32,
            Layout::Raw,
        ),
    ];
    for (name, dims, n_dims, ty, layout) in cases {
        assert_eq!(
            Layout::of(&tensor(name, dims, n_dims, ty), true),
            layout,
            "{name} {ty}"
        );
    }
}

#[test]
fn experts_and_large_payloads_are_aligned() {
    let tensor = |name, dims: [u64; 4], n_dims, ty| TensorInfo {
        name,
        n_dims,
        dims,
        ty,
        offset: 0,
        len_bytes: 0,
    };
    use GgmlType::{F16, Q8_0};
    let tied = tensor("token_embd.weight", [64, 100, 1, 1], 2, F16);
    assert_eq!(Layout::of(&tied, false), Layout::Panels);
    // 100 rows of 2 blocks of 34 bytes: 6,800, padded to 8,192.
    let experts = tensor("blk.0.ffn_up_exps.weight", [64, 100, 8, 1], 3, Q8_0);
    for layout in [Layout::Stack, Layout::ExpertRecords] {
        let header = TensorHeader::new(&experts, layout, 1).unwrap();
        assert_eq!(
            (header.len_bytes, header.matrix_stride_bytes()),
            (8 * 8192, 8192)
        );
        assert_eq!(header.n_matrices(), 8);
        assert_eq!(header.matrix_offset(3), 4096 + 3 * 8192);
        assert_eq!(header.end(), 4096 + 8 * 8192);
    }
    let heads = tensor("blk.0.attn_k_b.weight", [64, 100, 8, 1], 3, Q8_0);
    assert_eq!(Layout::of(&heads, true), Layout::Stack);
    let none = tensor("blk.0.ffn_up_exps.weight", [64, 100, 0, 1], 3, Q8_0);
    assert_eq!(Layout::of(&none, true), Layout::Raw);
    // Large payloads are placed where a huge page may start.
    let large = tensor("output.weight", [4096, 8192, 1, 1], 2, F16);
    let header = TensorHeader::new(&large, Layout::Panels, 4096).unwrap();
    assert_eq!((header.offset, header.len_bytes), (2 << 20, 64 << 20));
}

#[test]
fn what_was_written_is_read() {
    let parts = Parts::new();
    let bytes = parts.bytes();
    let slc = Slc::parse(&bytes, bytes.len() as u64).unwrap();
    assert_eq!(*slc.header(), parts.header);
    let headers: Vec<_> = slc.tensors().map(|(_, header)| header).collect();
    assert_eq!(headers, parts.table);
    assert!(
        headers
            .iter()
            .all(|header| header.offset.is_multiple_of(ALIGN))
    );
    assert_eq!(slc.gaps().collect::<Vec<_>>(), parts.gaps);
    let (tensor, header) = slc.tensors().nth(1).unwrap();
    assert_eq!(slc.tensor_header(1, &tensor), Some(header));
    assert!(slc.tensor_header(2, &tensor).is_none());
    // The head alone is enough; if it is shorter, the error gives the required length.
    let head = parts.header.payload_offset();
    Slc::parse(&bytes[..to_usize(head)], bytes.len() as u64).unwrap();
    let error = Slc::parse(&bytes[..to_usize(head) - 1], bytes.len() as u64).unwrap_err();
    assert_eq!(error, SlcError::NeedMore { at_least: head });
}

#[test]
fn every_truncation_is_an_error() {
    let bytes = Parts::new().bytes();
    for len in 0..bytes.len() {
        let error = error_of(&bytes[..len]);
        let SlcError::Truncated { needed, file_len } = error else {
            panic!("{len}: {error}");
        };
        assert!(needed > file_len, "{error}");
    }
    let longer = [&bytes[..], &[0]].concat();
    assert!(matches!(error_of(&longer), SlcError::TrailingBytes { .. }));
}

#[test]
fn every_flipped_bit_before_the_payloads_is_an_error() {
    let parts = Parts::new();
    let mut bytes = parts.bytes();
    for bit in 0..8 * to_usize(parts.header.payload_offset()) {
        bytes[bit / 8] ^= 1 << (bit % 8);
        let error = error_of(&bytes);
        assert!(
            !matches!(error, SlcError::NeedMore { .. }),
            "{bit}: {error}"
        );
        bytes[bit / 8] ^= 1 << (bit % 8);
    }
}

#[test]
fn a_file_with_a_right_checksum_is_checked_all_the_same() {
    let parts = Parts::new();
    let bytes = parts.bytes();
    let table = to_usize(parts.header.table_offset());
    let gaps = to_usize(parts.header.gaps_offset());
    let cases = [
        (4, 2, "version 2"),
        (17, 0, "GGUF header inside"),
        (18, 9, "bytes of the GGUF file are in no part"),
        (24, 0, "GGUF header inside"),
        (31, 1, "GGUF header length is"),
        (34, 2, "tensor count is"),
        (36, 4, "gap count is 4, more than 3"),
        (80, 1, "reserved"),
        (FILE_HEADER_BYTES, b'g', "GGUF header inside"),
        (table, 2, "tensor 0: version 2"),
        (table + 1, 2, "tensor 0: its name, type or shape"),
        (table + 65, 2, "tensor 1: its name, type or shape"),
        (table + 65, 5, "tensor 1: its name, type or shape"),
        (table + 1, 9, "tensor 0: layout 9 is unknown"),
        (table + 1, 3, "tensor 0: panels of revision 0"),
        (table + 65, 0, "tensor 1: panels of revision 2"),
        (table + 2, 2, "tensor 0: type or shape"),
        (table + 4, 1, "tensor 0: type or shape"),
        (table + 8, 5, "tensor 0: type or shape"),
        (table + 67, 1, "tensor 1: panels of revision 1"),
        (table + 24, 1, "tensor 0: the payload's offset"),
        (table + 31, 1, "tensor 0: the payload ends"),
        (table + 25, 0, "tensor 0: the payload starts"),
        (table + 96, 1, "tensor 1: the payload has"),
        (table + 40, 1, "tensor 0: scales"),
        (table + 49, 1, "tensor 0: reserved"),
        (table + 55, 1, "tensor 0: reserved"),
        (gaps + 7, 1, "gap 0: it ends"),
        (gaps + 8, 0, "gap 0: it has no bytes"),
        (gaps + 8, 6, "gap 0: it ends"),
        (gaps + 15, 0xff, "gap 0: it ends"),
        (gaps + 16, 1, "gap 0: the payload starts"),
    ];
    let mut wrong = Vec::new();
    for (at, value, expected) in cases {
        let damaged = resealed(&bytes, at, value);
        let message = match Slc::parse(&damaged, damaged.len() as u64) {
            Err(error) => error.to_string(),
            Ok(_) => "accepted".to_string(),
        };
        if !message.contains(expected) {
            wrong.push(format!("byte {at} = {value}: {message}, not {expected}"));
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn resealed_damage_never_panics() {
    let parts = Parts::new();
    let bytes = parts.bytes();
    for at in 0..to_usize(parts.header.gaps_offset()) + GAP_BYTES {
        for value in [0, 1, 2, 3, 0x7f, 0x80, 0xff] {
            let damaged = resealed(&bytes, at, value);
            if let Ok(slc) = Slc::parse(&damaged, damaged.len() as u64) {
                assert!(
                    slc.tensors()
                        .all(|(_, header)| header.end() <= bytes.len() as u64)
                );
                assert!(!format!("{slc:?}").is_empty());
            }
        }
    }
}
