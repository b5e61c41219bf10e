//! The view of files compared with another reader's results.
//!
//! `tests/fixtures/headers.tsv` was written with `GGUFReader` of the Python package `gguf` 0.19.0 (from
//! llama.cpp). One line per file: its path in the checkout, entries, tensors, tokens, architecture, data
//! offset and file length; then the last tensor's name, dimensions, type, offset and length, if there
//! is one.

use std::{format, fs, path::Path, string::String};

use super::{Gguf, read_all, std};

#[test]
fn files_read_as_the_python_package_reads_them() {
    let checkout = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/.."));
    let table = checkout.join("tests/fixtures/headers.tsv");
    let table = fs::read_to_string(table).expect("a table");
    let mut read = 0;
    for line in table.lines() {
        let name = line.split('\t').next().expect("a path");
        let file = fs::read(checkout.join(name)).unwrap_or_else(|e| panic!("{name}: {e}"));
        let gguf = Gguf::parse(&file, file.len() as u64).unwrap_or_else(|e| panic!("{name}: {e}"));
        read_all(&gguf);
        assert_eq!(line, described(name, &gguf, file.len()));
        // The header alone is enough.
        let again = Gguf::parse(gguf.header_bytes(), file.len() as u64).expect("the same header");
        assert_eq!(again.header_bytes(), gguf.header_bytes());
        read += 1;
    }
    assert!(read > 40, "{read}");
}

fn described(name: &str, gguf: &Gguf<'_>, len: usize) -> String {
    let tokens = gguf.strings("tokenizer.ggml.tokens");
    let architecture = gguf.str("general.architecture");
    let file = format!(
        "{name}\t{}\t{}\t{}\t{}\t{}\t{len}",
        gguf.metadata_count(),
        gguf.tensor_count(),
        tokens.map_or(0, Iterator::count),
        architecture.expect("every model states it"),
        gguf.data_offset(),
    );
    let last = gguf.tensors().last().map_or(String::new(), |last| {
        let dims = &last.dims[..last.n_dims];
        let (ty, offset, bytes) = (last.ty, last.offset, last.len_bytes);
        format!("{} {dims:?} {ty} {offset} {bytes}", last.name)
    });
    format!("{file}\t{last}")
}
