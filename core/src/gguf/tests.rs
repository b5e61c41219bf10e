//! Tests of the view against files built by hand, and against the Python `gguf` package.

extern crate std;

mod files;
mod writer;

use std::format;
use std::string::{String, ToString};
use std::vec::Vec;

use super::source::{SliceSource, SourceError, TensorSource};
use super::*;
use crate::kernels::GgmlType;
use writer::{Writer, array, string};

fn parse(file: &[u8]) -> Result<Gguf<'_>, GgufError> {
    Gguf::parse(file, file.len() as u64)
}

fn message(writer: &Writer) -> String {
    parse(&writer.file())
        .expect_err("the file is wrong")
        .to_string()
}

/// Reads everything the view offers; what was counted must be there, and found again.
fn read_all(gguf: &Gguf<'_>) {
    let mut count = 0;
    for (key, value) in gguf.metadata() {
        read_value(value);
        let found = gguf.get(key).expect("keys that are listed are found");
        assert_eq!(format!("{found:?}"), format!("{value:?}"), "{key}");
        let _ = (
            gguf.u32(key),
            gguf.f32(key),
            gguf.bool(key),
            gguf.str(key),
            gguf.array(key),
        );
        count += 1;
    }
    assert_eq!(count, gguf.metadata_count());
    let mut count = 0;
    for tensor in gguf.tensors() {
        assert_eq!(gguf.tensor(tensor.name), Some(tensor));
        assert_eq!(tensor.n_rows() * tensor.row_bytes(), tensor.len_bytes);
        assert_eq!(tensor.n_rows() * tensor.dims[0], tensor.n_elements());
        assert!(tensor.offset >= gguf.data_offset());
        count += 1;
    }
    assert_eq!(count, gguf.tensor_count());
}

fn read_value(value: Value<'_>) {
    let Value::Array(array) = value else { return };
    assert_eq!(array.iter().len() as u64, array.len());
    let mut count = 0;
    for element in array {
        assert_eq!(element.value_type(), array.element_type());
        read_value(element);
        count += 1;
    }
    assert_eq!(count, array.len());
    assert_eq!(
        array.strings().map(Iterator::count),
        array.strings().map(|strings| strings.len())
    );
    assert_eq!(
        array.f32s().map(Iterator::count),
        array.f32s().map(|floats| floats.len())
    );
    assert!(array.get(array.len()).is_none());
}

/// A file that contains every kind of entry, about 900 bytes long.
fn varied(version: u32) -> Writer {
    Writer::new(version)
        .str("general.architecture", b"llama")
        .alignment(16)
        .entry("a.bool", 7, &[1])
        .strings("a.strings", &[b"", b"\xff\xfe", b"plain"])
        .entry("a.floats", 9, &array(6, 2, &[0, 0, 128, 63, 0, 0, 0, 192]))
        .entry("a.bools", 9, &array(7, 3, &[1, 0, 1]))
        .entry(
            "a.nested",
            9,
            &array(9, 2, &[array(0, 2, &[1, 2]), array(8, 0, &[])].concat()),
        )
        .entry("a.f64", 12, &0.1_f64.to_le_bytes())
        .tensor("token_embd.weight", &[64, 3], GgmlType::Q4_0)
        .tensor("blk.0.attn_q.weight", &[4, 2, 3], GgmlType::F16)
        .tensor("output_norm.weight", &[5], GgmlType::F32)
}

#[test]
fn every_scalar_type_is_read_in_both_versions() {
    for version in [2, 3] {
        let file = Writer::new(version)
            .entry("u8", 0, &[0xfe])
            .entry("i8", 1, &[0xfe])
            .entry("u16", 2, &[0xfe, 0xff])
            .entry("i16", 3, &[0xfe, 0xff])
            .entry("u32", 4, &[0xfe, 0xff, 0xff, 0xff])
            .entry("i32", 5, &[0xfe, 0xff, 0xff, 0xff])
            .entry("f32", 6, &[0, 0, 0xc0, 0x3f])
            .entry("bool", 7, &[1])
            .str("string", b"\x00\xff")
            .entry("u64", 10, &[0xfe, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff])
            .entry("i64", 11, &[0xfe, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff])
            .entry("f64", 12, &[0, 0, 0, 0, 0, 0, 0xf8, 0xbf])
            .file();
        let gguf = parse(&file).expect("a valid file");
        assert_eq!(gguf.version(), version);
        let values: Vec<_> = gguf
            .metadata()
            .map(|(key, value)| format!("{key} {value:?}"))
            .collect();
        assert_eq!(
            values.join(", "),
            "u8 U8(254), i8 I8(-2), u16 U16(65534), i16 I16(-2), u32 U32(4294967294), \
             i32 I32(-2), f32 F32(1.5), bool Bool(true), string String([0, 255]), \
             u64 U64(18446744073709551614), i64 I64(-2), f64 F64(-1.5)"
        );
        read_all(&gguf);
        for (id, value_type) in ValueType::ALL.into_iter().enumerate() {
            assert_eq!(value_type as usize, id);
        }
    }
}

#[test]
fn arrays_of_every_element_type_are_read() {
    for value_type in ValueType::ALL {
        let element = match value_type {
            ValueType::String => string(b"ab"),
            ValueType::Array => array(0, 1, &[7]),
            ValueType::Bool => Vec::from([1]),
            _ => (1..=value_type.len_bytes_min())
                .map(|byte| byte.to_le_bytes()[0])
                .collect(),
        };
        for len in [0_usize, 1, 2, 5] {
            let value = array(value_type as u32, len as u64, &element.repeat(len));
            // A second entry shows that the array's end was found.
            let file = Writer::new(3).entry("x", 9, &value).u32("y", 7).file();
            let gguf = parse(&file).expect("a valid file");
            let array = gguf.array("x").expect("an array");
            assert_eq!(array.element_type(), value_type);
            assert_eq!(array.len(), len as u64);
            assert_eq!(array.is_empty(), len == 0);
            assert_eq!(array.data_bytes(), element.repeat(len));
            let scalar = Writer::new(3)
                .entry("x", value_type as u32, &element)
                .file();
            let expected = parse(&scalar)
                .expect("a valid file")
                .get("x")
                .expect("it is there");
            for (i, value) in array.iter().enumerate() {
                assert_eq!(format!("{value:?}"), format!("{expected:?}"));
                let direct = array.get(i as u64).expect("inside");
                assert_eq!(format!("{direct:?}"), format!("{expected:?}"));
            }
            assert_eq!(gguf.u32("y"), Ok(7));
            read_all(&gguf);
        }
    }
}

#[test]
fn typed_iterators_give_the_numbers_of_their_type_only() {
    let file = varied(3).entry("ints", 9, &array(5, 2, &[255; 8])).file();
    let gguf = parse(&file).expect("a valid file");
    let floats = gguf.array("a.floats").expect("an array");
    assert_eq!(floats.f32s().expect("f32").collect::<Vec<_>>(), [1.0, -2.0]);
    assert!(floats.i32s().is_none());
    assert!(floats.u32s().is_none());
    assert!(floats.u8s().is_none());
    assert!(floats.strings().is_none());
    let ints = gguf.array("ints").expect("an array");
    assert_eq!(ints.i32s().expect("i32").collect::<Vec<_>>(), [-1, -1]);
    let strings: Vec<_> = gguf.strings("a.strings").expect("strings").collect();
    assert_eq!(strings, [&b""[..], b"\xff\xfe", b"plain"]);
    let nested = gguf
        .array("a.nested")
        .expect("an array")
        .get(0)
        .expect("two elements");
    assert_eq!(
        nested.as_array().expect("an array").u8s(),
        Some(&[1, 2][..])
    );
}

#[test]
fn getters_convert_what_fits_and_name_what_does_not() {
    let file = Writer::new(3)
        .entry("byte", 0, &[200])
        .entry("minus", 11, &(-5_i64).to_le_bytes())
        .entry("large", 10, &(1_u64 << 40).to_le_bytes())
        .entry("half", 12, &0.5_f64.to_le_bytes())
        .entry("yes", 7, &[1])
        .str("text", b"a\xffb")
        .entry("list", 9, &array(6, 0, &[]))
        .file();
    let gguf = parse(&file).expect("a valid file");
    assert_eq!(gguf.u32("byte"), Ok(200));
    assert_eq!(gguf.i32("minus"), Ok(-5));
    assert_eq!(gguf.u64("large"), Ok(1 << 40));
    assert_eq!(gguf.f32("half").map(f32::to_bits), Ok(0.5_f32.to_bits()));
    assert_eq!(gguf.bool("yes"), Ok(true));
    assert_eq!(gguf.bytes("text"), Ok(&b"a\xffb"[..]));
    assert_eq!(optional(gguf.u32("none")), Ok(None));
    assert_eq!(optional(gguf.u32("byte")), Ok(Some(200)));
    assert!(optional(gguf.u32("text")).is_err());

    let says = |error: GgufError, text: &str| assert_eq!(error.to_string(), text);
    let wrong = "wrong type or range";
    says(
        gguf.u32("none").expect_err(wrong),
        "metadata key \"none\" is missing",
    );
    says(
        gguf.u32("minus").expect_err(wrong),
        "metadata entry 1 (\"minus\") at byte 41: -5 does not fit in u32",
    );
    says(
        gguf.u32("large").expect_err(wrong),
        "metadata entry 2 (\"large\") at byte 66: 1099511627776 does not fit in u32",
    );
    says(
        gguf.f32("byte").expect_err(wrong),
        "metadata entry 0 (\"byte\") at byte 24: the value is of type u8, expected a \
         floating-point number",
    );
    says(
        gguf.strings("list").expect_err(wrong),
        "metadata entry 6 (\"list\") at byte 158: the value is of type array of f32, expected an \
         array of strings",
    );
    says(
        gguf.str("text").expect_err(wrong),
        "metadata entry 5 (\"text\") at byte 131: not UTF-8 at byte 1 of the text",
    );
}

#[test]
fn entries_beyond_the_index_are_found() {
    let mut writer = Writer::new(3);
    for i in 0..300_u32 {
        writer = match i % 3 {
            0 => writer.u32(&format!("key.{i}"), i),
            1 => writer.strings(&format!("key.{i}"), &[b"x", b"yy"]),
            _ => writer.str(&format!("key.{i}"), b"text"),
        };
    }
    for count in [126, 127, 128, 129, 130, 300] {
        // Entries beyond the stated count are after the header, as data would be.
        writer.metadata_count = count;
        let file = writer.file();
        let gguf = parse(&file).expect("a valid file");
        read_all(&gguf);
        for i in 0..count {
            let value = gguf.get(&format!("key.{i}")).expect("it is there");
            assert_eq!(
                value.as_u32(),
                (i % 3 == 0).then_some(u32::try_from(i).expect("small"))
            );
        }
        assert!(gguf.get(&format!("key.{count}")).is_none());
        assert_eq!(gguf.metadata().len() as u64, count);
    }
}

#[test]
fn tensors_are_described() {
    let file = varied(3).file();
    let gguf = parse(&file).expect("a valid file");
    assert_eq!(gguf.alignment(), 16);
    assert_eq!(gguf.header_bytes(), varied(3).header());
    assert_eq!(
        gguf.data_offset(),
        (varied(3).header().len() as u64).next_multiple_of(16)
    );
    let q = gguf.tensor("blk.0.attn_q.weight").expect("it is there");
    assert_eq!((q.n_dims, q.dims, q.ty), (3, [4, 2, 3, 1], GgmlType::F16));
    // Two blocks of 18 bytes in each of 3 rows, up to the next multiple of 16.
    assert_eq!((q.offset, q.len_bytes), (gguf.data_offset() + 112, 48));
    assert_eq!((q.n_elements(), q.n_rows(), q.row_bytes()), (24, 6, 8));
    assert!(gguf.tensor("blk.0.attn_k.weight").is_none());
    assert_eq!(gguf.tensors().len(), 3);
}

#[test]
fn a_scalar_and_any_order_of_data_are_accepted() {
    let file = Writer::new(3)
        .tensor_raw("c", &[8], 0, 128)
        .tensor_raw("a", &[], 0, 32)
        .tensor_raw("b", &[16], 0, 64)
        .data_len(160)
        .file();
    let gguf = parse(&file).expect("a valid file");
    let a = gguf.tensor("a").expect("it is there");
    assert_eq!((a.n_dims, a.dims, a.len_bytes), (0, [1; 4], 4));
    read_all(&gguf);
}

#[test]
fn an_empty_file_has_nothing() {
    let file = Writer::new(2).file();
    let gguf = parse(&file).expect("a valid file");
    assert_eq!((gguf.metadata_count(), gguf.tensor_count()), (0, 0));
    assert_eq!((gguf.data_offset(), gguf.alignment()), (32, 32));
    assert!(gguf.get("x").is_none());
    read_all(&gguf);
}

#[test]
fn what_is_no_gguf_or_another_version_is_named() {
    let says = |bytes: &[u8], text: &str| {
        assert_eq!(parse(bytes).expect_err("not ours").to_string(), text);
    };
    says(
        b"",
        "header at byte 0: the file ends at byte 0, but what it announces needs 4 bytes",
    );
    says(
        b"ggml\x01\0\0\0",
        "header at byte 0: not a GGUF file: it starts with \"ggml\"",
    );
    says(
        b"\x1b[2J",
        "header at byte 0: not a GGUF file: it starts with \"\\x1b[2J\"",
    );
    says(
        b"GGUF\x01\0\0\0",
        "header at byte 4: GGUF version 1 is not supported (2 and 3 are)",
    );
    says(
        b"GGUF\x04\0\0\0",
        "header at byte 4: GGUF version 4 is not supported (2 and 3 are)",
    );
    says(
        b"GGUF\0\0\0\x03",
        "header at byte 4: big-endian GGUF (version 3) is not supported; convert to little endian",
    );
}

#[test]
fn wrong_metadata_is_named() {
    let new = || Writer::new(3).u32("k", 1);
    let says = |writer: Writer, text: &str| assert_eq!(message(&writer), text);
    says(
        new().entry("bad", 13, &[0; 8]),
        "metadata entry 1 (\"bad\") at byte 52: unknown value type 13",
    );
    says(
        new().entry("bad", 7, &[2]),
        "metadata entry 1 (\"bad\") at byte 56: a bool is 2, not 0 or 1",
    );
    says(
        new().entry("bad", 9, &array(7, 3, &[0, 1, 9])),
        "metadata entry 1 (\"bad\") at byte 70: a bool is 9, not 0 or 1",
    );
    says(
        new().u32("", 3),
        "metadata entry 1 at byte 41: the name is empty",
    );
    says(
        new().entry_bytes(b"bad\xff", 4, &[0; 4]),
        "metadata entry 1 (\"bad\\xff\") at byte 52: not UTF-8 at byte 3 of the text",
    );
    says(
        new().u32("\u{1b}]bad", 1).u32("k", 3),
        "metadata entry 2 (\"k\") at byte 62: the key was used before, by metadata entry 0",
    );
    says(
        new().alignment(24),
        "metadata entry 1 (\"general.alignment\") at byte 41: alignment 24 is not a power of two",
    );
    says(
        new().entry("general.alignment", 10, &32_u64.to_le_bytes()),
        "metadata entry 1 (\"general.alignment\") at byte 41: the value is of type u64, expected \
         a u32",
    );
    says(
        new().u32(&"x".repeat(65_536), 1),
        "metadata entry 1 at byte 41: key length 65536 is above the limit of 65535",
    );
    assert!(parse(&new().u32(&"x".repeat(65_535), 1).file()).is_ok());
}

#[test]
fn nesting_is_bounded() {
    let nested = |depth| (1..depth).fold(array(0, 1, &[7]), |inner, _| array(9, 1, &inner));
    let file = Writer::new(3).entry("x", 9, &nested(4)).u32("y", 1).file();
    read_all(&parse(&file).expect("four levels are fine"));
    assert_eq!(
        message(&Writer::new(3).entry("x", 9, &nested(5))),
        "metadata entry 0 (\"x\") at byte 85: array nesting 5 is above the limit of 4"
    );
    // A thousand levels must not cost a thousand stack frames.
    assert!(message(&Writer::new(3).entry("x", 9, &nested(1000))).contains("nesting 5"));
}

#[test]
fn tensors_without_elements_have_no_data() {
    // Between the data of others, and after the file's end.
    let writer = Writer::new(3)
        .tensor("first", &[16], GgmlType::F32)
        .tensor_raw("none", &[0, 3], 2, 32)
        .tensor_raw("beyond", &[4, 0, 1 << 62], 0, 1 << 40)
        .tensor_raw("last", &[4], 0, 64);
    let file = writer.data_len(128).file();
    let gguf = parse(&file).expect("nothing overlaps");
    for (name, n_elements, n_rows) in [("none", 0, 3), ("beyond", 0, 0), ("last", 4, 1)] {
        let tensor = gguf.tensor(name).expect("it is there");
        assert_eq!(tensor.n_elements(), n_elements, "{name}");
        assert_eq!(tensor.n_rows(), n_rows, "{name}");
        assert_eq!(tensor.row_bytes(), 4 * n_elements, "{name}");
        assert_eq!(tensor.len_bytes, 4 * n_elements, "{name}");
    }
    // The number of rows does not fit, though there are no elements.
    let writer = Writer::new(3).tensor_raw("t", &[0, 1 << 40, 1 << 40], 0, 0);
    assert!(message(&writer).contains("the size does not fit"));
    // Tensors with data overlap, whatever is between them.
    let writer = Writer::new(3)
        .tensor_raw("a", &[16], 0, 0)
        .tensor_raw("b", &[4], 0, 32)
        .tensor_raw("none", &[0], 0, 32)
        .data_len(128);
    assert_eq!(
        message(&writer),
        "tensor 1 (\"b\") at byte 57: the data overlaps tensor 0"
    );
}

#[test]
fn wrong_tensors_are_named() {
    let new = || Writer::new(3).tensor("first", &[8], GgmlType::F32);
    let says = |writer: Writer, text: &str| {
        assert_eq!(message(&writer.data_len(1024)), text);
    };
    says(
        new().tensor_raw("t", &[100, 2], 2, 32),
        "tensor 1 (\"t\") at byte 74: row length 100 is not a multiple of 32 (Q4_0)",
    );
    says(
        new().tensor_raw("t", &[32], 4, 32),
        "tensor 1 (\"t\") at byte 82: unknown tensor type 4",
    );
    says(
        new().tensor_raw("t", &[1; 5], 0, 32),
        "tensor 1 (\"t\") at byte 70: number of dimensions 5 is above the limit of 4",
    );
    says(
        new().tensor_raw("t", &[1 << 40, 1 << 30], 0, 32),
        "tensor 1 (\"t\") at byte 74: the size does not fit in 64 bits",
    );
    says(
        // Elements overflow, bytes (at half a byte each) do not.
        new().tensor_raw("t", &[1 << 32, 1 << 32], 2, 32),
        "tensor 1 (\"t\") at byte 74: the size does not fit in 64 bits",
    );
    says(
        new().tensor_raw("t", &[4], 0, 33),
        "tensor 1 (\"t\") at byte 86: data offset 33 is not a multiple of the alignment 32",
    );
    says(
        new().tensor_raw("t", &[4], 0, u64::MAX - 31),
        "tensor 1 (\"t\") at byte 86: the size does not fit in 64 bits",
    );
    says(
        new().tensor_raw("t", &[4], 0, 1024),
        "tensor 1 (\"t\") at byte 86: 16 bytes of data at byte 1120 do not fit in a file of 1120",
    );
    says(
        new().tensor_raw("t", &[4], 0, 0),
        "tensor 1 (\"t\") at byte 61: the data overlaps tensor 0",
    );
    says(
        new().tensor_raw("first", &[4], 0, 32),
        "tensor 1 (\"first\") at byte 61: the name was used before, by tensor 0",
    );
    says(
        new().tensor_raw("", &[4], 0, 32),
        "tensor 1 at byte 61: the name is empty",
    );
    says(
        new().tensor_raw(&"n".repeat(128), &[4], 0, 32),
        "tensor 1 at byte 61: tensor name length 128 is above the limit of 127",
    );
    let long = new().tensor_raw(&"n".repeat(127), &[4], 99, 32);
    let name = "n".repeat(48);
    says(
        long,
        &format!("tensor 1 (\"{name}…\") at byte 208: unknown tensor type 99"),
    );
}

#[test]
fn names_are_escaped_and_cut_between_characters() {
    let says = |key: &str, text: &str| {
        assert_eq!(message(&Writer::new(3).entry(key, 99, &[0; 8])), text);
    };
    says(
        "a\u{1b}[2J\"",
        "metadata entry 0 (\"a\\u{1b}[2J\\\"\") at byte 38: unknown value type 99",
    );
    let long = ["x".repeat(47), "é".to_string()].concat();
    let kept = "x".repeat(47);
    says(
        &long,
        &format!("metadata entry 0 (\"{kept}…\") at byte 81: unknown value type 99"),
    );
}

/// Counts and lengths that a small file cannot hold are refused at once.
#[test]
fn hostile_counts_are_refused() {
    let says = |file: &[u8], text: &str| {
        assert_eq!(parse(file).expect_err("hostile").to_string(), text);
    };
    let counts = |tensors, entries| {
        let mut writer = varied(3);
        writer.tensor_count = tensors;
        writer.metadata_count = entries;
        writer.file()
    };
    says(
        &counts(u64::MAX, 0),
        "header at byte 8: tensor count 18446744073709551615 is above the limit of 65536",
    );
    says(
        &counts(3, 4097),
        "header at byte 16: metadata count 4097 is above the limit of 4096",
    );
    let len = counts(3, 4096).len();
    says(
        &counts(3, 4096),
        &format!(
            "header at byte 24: the file ends at byte {len}, but what it announces needs 57368 bytes"
        ),
    );
    let error = parse(&counts(65_536, 8)).map(|_| ()).expect_err("hostile");
    assert!(
        matches!(error.kind(), GgufErrorKind::Truncated { .. }),
        "{error}"
    );
    for (id, len, needed) in [
        (8, 1 << 30, 49 + (8_u64 << 30)),
        (9, 1 << 20, 49 + (12 << 20)),
    ] {
        let file = Writer::new(3)
            .entry("x", 9, &array(id, len, &[0; 64]))
            .file();
        let len = file.len();
        says(
            &file,
            &format!(
                "metadata entry 0 (\"x\") at byte 49: the file ends at byte {len}, but what it \
                 announces needs {needed} bytes"
            ),
        );
    }
    says(
        &Writer::new(3)
            .entry("x", 9, &array(0, u64::MAX, &[0; 64]))
            .file(),
        "metadata entry 0 (\"x\") at byte 41: array length 18446744073709551615 is above the \
         limit of 1073741824",
    );
    says(
        &Writer::new(3).entry("x", 8, &u64::MAX.to_le_bytes()).file(),
        "metadata entry 0 (\"x\") at byte 37: string length 18446744073709551615 is above the \
         limit of 1073741824",
    );
    // A file length that cannot be checked costs nothing either.
    let file = counts(3, 8);
    read_all(&Gguf::parse(&file, u64::MAX).expect("the header is fine"));
}

#[test]
fn every_truncation_says_that_the_file_or_the_slice_ends() {
    for version in [2, 3] {
        let file = varied(version).file();
        let header_len = varied(version).header().len();
        for len in 0..file.len() {
            let error = parse(&file[..len]).map(|_| ()).expect_err("truncated");
            match error.kind() {
                GgufErrorKind::Truncated { needed, file_len } => {
                    assert_eq!(file_len, len as u64);
                    assert!(needed > file_len);
                    assert!(needed <= header_len as u64);
                }
                GgufErrorKind::DataOutsideFile { .. } => assert!(len >= header_len),
                _ => panic!("{len}: {error}"),
            }
        }
        for len in 0..header_len {
            let error = Gguf::parse(&file[..len], file.len() as u64).map(|_| ());
            let error = error.expect_err("a prefix");
            let GgufErrorKind::NeedMore { at_least } = error.kind() else {
                panic!("{len}: {error}")
            };
            assert!(at_least > len as u64);
            assert!(at_least <= header_len as u64);
        }
        for len in header_len..=file.len() {
            read_all(&Gguf::parse(&file[..len], file.len() as u64).expect("the whole header"));
        }
    }
}

/// Reading exactly the bytes requested reaches the header's end.
#[test]
fn asking_for_more_converges() {
    let file = varied(3).file();
    let mut len = 0;
    let mut rounds = 0;
    let gguf = loop {
        match Gguf::parse(&file[..len], file.len() as u64) {
            Ok(gguf) => break gguf,
            Err(error) => match error.kind() {
                GgufErrorKind::NeedMore { at_least } => {
                    len = usize::try_from(at_least).expect("small");
                }
                _ => panic!("{error}"),
            },
        }
        rounds += 1;
    };
    assert_eq!(gguf.header_bytes().len(), len);
    assert!(rounds < 100, "{rounds}");
}

#[test]
fn every_change_of_one_byte_gives_an_error_or_a_readable_view() {
    let file = varied(3).file();
    let header_len = varied(3).header().len();
    let (mut good, mut bad) = (0, 0);
    for at in 0..header_len {
        for flip in 1..=255 {
            let mut changed = file.clone();
            changed[at] ^= flip;
            match parse(&changed) {
                Ok(gguf) => {
                    read_all(&gguf);
                    good += 1;
                }
                Err(error) => {
                    // A shorter name or list makes it read on into the data.
                    assert!(error.at_byte() <= changed.len() as u64, "{error}");
                    assert!(!error.to_string().is_empty());
                    bad += 1;
                }
            }
        }
    }
    // Most bytes are lengths, types and counts; letters of names and values may change.
    assert!(bad > good / 2, "{bad} {good}");
    assert!(good > 0);
}

/// Several bytes at once, to get past the first check; the seed is fixed.
#[test]
fn random_changes_never_panic() {
    let file = varied(3).file();
    let header_len = varied(3).header().len();
    let mut random = Random(7);
    for _ in 0..200_000 {
        let mut changed = file.clone();
        for _ in 0..=random.below(6) {
            // From the counts on; small values are more often plausible lengths and types.
            let at = 8 + random.below(header_len - 8);
            let value = u8::try_from(random.below(256)).expect("a byte");
            changed[at] = if random.below(2) == 0 {
                value % 16
            } else {
                value
            };
        }
        if let Ok(gguf) = parse(&changed) {
            read_all(&gguf);
        }
    }
}

/// The maximum number of tensors, in the order that costs most, with and without a duplicate.
#[test]
fn the_largest_directory_is_checked_exactly() {
    let count = u32::try_from(TENSOR_COUNT_MAX).expect("small");
    let build = |duplicate: Option<(u32, u32)>| {
        let mut writer = Writer::new(3);
        for i in (0..count).rev() {
            let named = duplicate
                .filter(|pair| pair.0 == i)
                .map_or(i, |pair| pair.1);
            writer = writer.tensor_raw(&format!("{named:08}"), &[8], 0, u64::from(i) * 32);
        }
        writer.data_len(u64::from(count) * 32).file()
    };
    let file = build(None);
    let gguf = parse(&file).expect("all names and ranges differ");
    assert_eq!(gguf.tensors().count() as u64, TENSOR_COUNT_MAX);
    for (i, named) in [
        (0, count - 1),
        (count - 1, 0),
        (1023, 1024),
        (2047, 2046),
        (5, 60_000),
    ] {
        let error = parse(&build(Some((i, named))))
            .map(|_| ())
            .expect_err("a duplicate");
        let (first, second) = (count - 1 - i.max(named), count - 1 - i.min(named));
        assert_eq!(error.kind(), GgufErrorKind::DuplicateTensor { first });
        assert_eq!(error.place(), GgufPlace::Tensor { index: second });
    }
}

/// Neighbours found in chunks are the first equal pair of a full sort, and the number of
/// comparisons is bounded for orders that selection could find hard.
#[test]
fn chunked_order_agrees_with_a_full_sort() {
    use core::cell::Cell;
    let mut random = Random(3);
    for round in 0..60 {
        let n = [
            0, 1, 2, 1023, 1024, 1025, 2047, 2048, 2049, 3071, 5000, 9999,
        ][round % 12];
        let spread = [n * n, n, usize::MAX][round % 3].max(1);
        let mut keys: Vec<usize> = (0..n).map(|_| random.below(spread)).collect();
        match round % 4 {
            0 => keys.sort_unstable(),
            1 => keys.sort_unstable_by(|a, b| b.cmp(a)),
            2 => (0..n).for_each(|i| keys[i] = if i % 2 == 0 { i } else { usize::MAX - i }),
            _ => (),
        }
        let mut sorted: Vec<_> = keys
            .iter()
            .copied()
            .enumerate()
            .map(|(i, key)| (key, i))
            .collect();
        sorted.sort_unstable();
        let position = |pair: usize| u32::try_from(pair).expect("small");
        let expected = sorted
            .windows(2)
            .find(|pair| pair[0].0 == pair[1].0)
            .map(|pair| (position(pair[0].1), position(pair[1].1)));
        let looks = Cell::new(0_usize);
        let key = |at: u32| {
            looks.set(looks.get() + 1);
            keys[at as usize]
        };
        let found = order::find_neighbours(|| 0..position(n), key, |a, b| key(a) == key(b));
        assert_eq!(found, expected, "round {round}, {n} entries");
        // At most 16 looks per entry and pass, and 2 * log2 for the sort at the pass's end.
        let passes = n / 1023 + 1;
        assert!(
            looks.get() <= passes * n * 16 + n * 40,
            "{n}: {}",
            looks.get()
        );
    }
}

#[test]
fn a_slice_is_a_source() {
    let bytes: Vec<u8> = (0..100).collect();
    let source = SliceSource(&bytes);
    assert_eq!(source.len_bytes(), 100);
    assert_eq!(source.slice(90, 10), Some(&bytes[90..]));
    assert_eq!(source.slice(100, 0), Some(&[][..]));
    for (offset, len) in [(90, 11), (101, 0), (u64::MAX, 1), (1, usize::MAX)] {
        assert_eq!(source.slice(offset, len), None);
    }
    let mut into = [0; 4];
    assert_eq!(source.read(7, &mut into), Ok(()));
    assert_eq!(into, [7, 8, 9, 10]);
    let error = source
        .read(97, &mut into)
        .expect_err("four bytes at 97 of 100");
    assert_eq!(
        error,
        SourceError::OutOfRange {
            offset: 97,
            len_bytes: 4,
            source_len_bytes: 100
        }
    );
    assert_eq!(
        error.to_string(),
        "4 bytes at byte 97 are not inside a file of 100"
    );
    let seam: &dyn TensorSource = &source;
    seam.release(0, 100);
}

/// Marsaglia's xorshift64: the same sequence on every machine.
struct Random(u64);

impl Random {
    fn below(&mut self, n: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        let n = n as u64;
        usize::try_from(self.0 % n).expect("below n, a usize")
    }
}
