//! Blocks against ggml: 16 × 256 weights that ggml quantised (the first rows of `TYPE.q`) and
//! dequantised again (`TYPE.f32`), from `tests/fixtures/quant`. Made with ggml 0.25.3's `ggml_quantize_chunk` and
//! `to_float` from rows of the story model.

use super::*;
use crate::tests::bits;
#[cfg(test)]
extern crate std;
use std::vec;
use std::vec::Vec;
use std::{format, fs};

const ROWS: usize = 16;
const COLS: usize = 256;

fn fixture(name: &str) -> Vec<u8> {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/fixtures/quant");
    let path = format!("{folder}/{name}");
    fs::read(&path).unwrap_or_else(|error| panic!("{path}: {error}"))
}

fn floats(bytes: &[u8]) -> Vec<f32> {
    let words = bytes.as_chunks::<4>().0.iter();
    words.map(|word| f32::from_le_bytes(*word)).collect()
}

/// Packs the rows, checks that they come back, and returns their values from the panels.
fn through_panels(layout: &PanelLayout, rows: &[u8]) -> Vec<f32> {
    let mut panels = vec![0u8; layout.bytes()];
    let mut back = vec![0u8; layout.gguf_row_bytes()];
    let mut values = vec![0f32; ROWS * COLS];
    for (r, row) in rows.chunks(layout.gguf_row_bytes()).enumerate() {
        layout.pack_row(r, row, &mut panels[layout.byte_range(layout.band(r))]);
    }
    for (r, row) in rows.chunks(layout.gguf_row_bytes()).enumerate() {
        layout.unpack_row(r, &panels[layout.byte_range(layout.band(r))], &mut back);
        assert_eq!(back, row, "{:?} row {r}", layout.ty());
        layout.dequantize_row(r, &panels, &mut values[r * COLS..][..COLS]);
    }
    values
}

#[test]
fn values_equal_ggml_bit_for_bit() {
    for ty in WeightType::ALL {
        let ggml = ty.ggml();
        if ty == WeightType::F32 || ggml.is_lane() {
            continue; // Its values are its bytes; ggml has no lanes.
        }
        let mut rows = fixture(&format!("{ggml}.q"));
        rows.truncate(ROWS * COLS / ggml.block_len() * ggml.block_bytes());
        let expected = floats(&fixture(&format!("{ggml}.f32")));
        let mut values = vec![0f32; ROWS * COLS];
        let blocks = rows.chunks_exact(ggml.block_bytes());
        for (block, out) in blocks.zip(values.chunks_exact_mut(ggml.block_len())) {
            blocks::dequantize_block(ggml, block, out);
        }
        assert_eq!(bits(&values), bits(&expected), "{ggml}");
        let layout = PanelLayout::new(ggml, ROWS, COLS).unwrap();
        assert_eq!(rows.len(), ROWS * layout.gguf_row_bytes());
        assert_eq!(
            bits(&through_panels(&layout, &rows)),
            bits(&expected),
            "{ggml}"
        );
    }
}
