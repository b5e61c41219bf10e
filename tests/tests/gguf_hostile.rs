//! Damaged GGUF files: every truncation and every changed byte of a real header.
//!
//! The view must answer each with an error or with something that can be read to the end, and
//! quickly. The small model's header gets everything, the larger files a sample. Changes are
//! those that hurt parsers: single bits, all bits, and length fields of every magnitude.

use core::time::Duration;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Instant;

use sluice_core::gguf::{Gguf, GgufError, GgufErrorKind, Value};
use sluice_tests::fixture;
use sluice_tests::hosted::TALE;

const SMALL: &str = "models/llama-F32.gguf";

/// In addition to the story model, one of each kind of header: vocabularies alone, mixture of experts, keys of other
/// types.
const LARGER: [&str; 4] = [
    "tokenizer/bpe.gguf",
    "tokenizer/bert.gguf",
    "models/gpt-oss-MXFP4_MOE.gguf",
    "models/gemma3-listed.gguf",
];

/// A damaged header of under a megabyte parses or fails in well under a millisecond; this
/// leaves room for a machine that is busy with something else.
const PARSE_TIME_MAX: Duration = Duration::from_secs(2);

#[test]
fn every_truncation_of_a_small_model_is_refused() {
    let file = read(fixture(SMALL));
    let header_len = header_len(&file);
    for len in 0..=header_len {
        check_truncation(&file, header_len, len);
    }
}

#[test]
fn every_changed_byte_of_a_small_model_is_survived() {
    let mut file = read(fixture(SMALL));
    let header_len = header_len(&file);
    let mut tally = Tally::default();
    for at in 0..header_len {
        for flip in [0x01, 0x80, 0xff] {
            tally.add(with_byte(&mut file, at, flip));
        }
    }
    // Some bytes are text and numbers that may have any value; others carry the structure.
    assert!(tally.read > header_len / 10, "{tally:?}");
    assert!(tally.refused > header_len / 10, "{tally:?}");
}

/// Eight bytes that claim a length, laid over every position.
#[test]
fn absurd_lengths_anywhere_in_a_small_model_are_survived() {
    let mut file = read(fixture(SMALL));
    let header_len = header_len(&file);
    let lengths = [
        0,
        1 << 16,
        1 << 30,
        1 << 32,
        1 << 62,
        1 << 63,
        u64::MAX - 7,
        u64::MAX,
    ];
    for at in 8..header_len - 8 {
        let field = at..at + 8;
        let before: [u8; 8] = file[field.clone()].try_into().expect("eight bytes");
        let length = lengths[at % lengths.len()];
        file[field.clone()].copy_from_slice(&length.to_le_bytes());
        let _ = read_through(&file);
        file[field].copy_from_slice(&before);
    }
}

#[test]
fn samples_of_larger_files_are_survived() {
    let paths = [PathBuf::from(TALE)].into_iter();
    for path in paths.chain(LARGER.map(fixture)) {
        let name = path.display();
        let mut file = read(&path);
        let header_len = header_len(&file);
        // A prime number of bytes apart, so that every position within a field is hit.
        let mut tally = Tally::default();
        for at in (0..header_len).step_by(211) {
            check_truncation(&file, header_len, at);
            tally.add(with_byte(&mut file, at, 1 << (at % 8)));
        }
        assert!(tally.read > 0, "{name}: {tally:?}");
        assert!(tally.refused > 0, "{name}: {tally:?}");
    }
}

#[derive(Debug, Default)]
struct Tally {
    read: usize,
    refused: usize,
}

impl Tally {
    fn add(&mut self, result: Result<(), GgufError>) {
        match result {
            Ok(()) => self.read += 1,
            Err(error) => {
                assert!(!error.to_string().is_empty());
                self.refused += 1;
            }
        }
    }
}

/// The file is cut off at `len`; and it is whole, but only `len` bytes of it can be read.
fn check_truncation(file: &[u8], header_len: usize, len: usize) {
    let cut = Gguf::parse(&file[..len], len as u64)
        .map(|_| ())
        .map_err(|error| error.kind());
    match cut {
        Ok(()) => assert_eq!(len, file.len()),
        Err(GgufErrorKind::Truncated { needed, file_len }) => {
            assert_eq!(file_len, len as u64);
            assert!(needed > file_len);
            assert!(needed <= header_len as u64);
        }
        Err(GgufErrorKind::DataOutsideFile { .. }) => assert_eq!(len, header_len),
        Err(kind) => panic!("cut at {len}: {kind}"),
    }
    let prefix = Gguf::parse(&file[..len], file.len() as u64);
    match prefix.map(|_| ()).map_err(|error| error.kind()) {
        Ok(()) => assert_eq!(len, header_len),
        Err(GgufErrorKind::NeedMore { at_least }) => {
            assert!(at_least > len as u64);
            assert!(at_least <= header_len as u64);
        }
        Err(kind) => panic!("prefix of {len}: {kind}"),
    }
}

/// Parses with `flip` applied to one byte, which is put back.
fn with_byte(file: &mut [u8], at: usize, flip: u8) -> Result<(), GgufError> {
    file[at] ^= flip;
    let result = read_through(file);
    file[at] ^= flip;
    result
}

fn read_through(file: &[u8]) -> Result<(), GgufError> {
    let start = Instant::now();
    let gguf = Gguf::parse(file, file.len() as u64);
    assert!(
        start.elapsed() < PARSE_TIME_MAX,
        "took {:?}",
        start.elapsed()
    );
    let gguf = gguf?;
    let entries = gguf.metadata().map(|(_, value)| read_value(value)).count();
    assert_eq!(entries as u64, gguf.metadata_count());
    let data_end = gguf
        .tensors()
        .map(|tensor| tensor.offset + tensor.len_bytes)
        .max();
    assert!(data_end.is_none_or(|end| end <= file.len() as u64));
    assert_eq!(gguf.tensors().count() as u64, gguf.tensor_count());
    Ok(())
}

fn read_value(value: Value<'_>) {
    if let Value::Array(array) = value {
        assert_eq!(array.iter().map(read_value).count() as u64, array.len());
    }
}

fn header_len(file: &[u8]) -> usize {
    let gguf = Gguf::parse(file, file.len() as u64);
    gguf.expect("the undamaged file is fine")
        .header_bytes()
        .len()
}

fn read(path: impl AsRef<Path>) -> Vec<u8> {
    let path = path.as_ref();
    fs::read(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}
