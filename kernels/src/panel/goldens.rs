//! Blocks against ggml: 64 × 256 weights that ggml quantised (`TYPE.q`) and dequantised again
//! (`TYPE.f32`), from `goldens/quant` of the shared data. Made with libggml 0.25.3's
//! `ggml_quantize_chunk` and `to_float` from rows of TinyStories-656K.

use super::*;
use crate::test_support::bits;
#[cfg(test)]
extern crate std;
use std::path::Path;
use std::vec;
use std::vec::Vec;
use std::{eprintln, format, fs};

const ROWS: usize = 64;
const COLS: usize = 256;

/// The golden file `name`, or `None` where the shared data is absent.
fn golden(name: &str) -> Option<Vec<u8>> {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../shared/goldens/quant");
    if !Path::new(folder).exists() {
        eprintln!("SKIPPED: {folder} not found");
        return None;
    }
    let path = format!("{folder}/{name}");
    Some(fs::read(&path).unwrap_or_else(|error| panic!("{path}: {error}")))
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
        if ty == WeightType::F32 {
            continue; // Its values are its bytes.
        }
        let ggml = ty.ggml();
        let Some(rows) = golden(&format!("{ggml}.q")) else {
            return;
        };
        let expected = floats(&golden(&format!("{ggml}.f32")).expect("beside the first"));
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
