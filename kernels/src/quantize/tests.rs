//! Against ggml: `goldens/quant` of the shared data holds 64 × 256 weights (`src.f32`, rows of
//! TinyStories-656K) as libggml 0.25.3's `ggml_quantize_chunk` quantised them without importance
//! (`TYPE.q`).

use super::*;
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

fn source() -> Option<Vec<f32>> {
    let bytes = golden("src.f32")?;
    let words = bytes.as_chunks::<4>().0.iter();
    Some(words.map(|word| f32::from_le_bytes(*word)).collect())
}

fn quantized(ty: GgmlType, x: &[f32], n: usize, importance: Option<&[f32]>) -> Vec<u8> {
    let mut out = vec![0; x.len() / ty.block_len() * ty.block_bytes()];
    quantize_rows(ty, x, n, importance, &mut out).expect("finite numbers in whole rows");
    out
}

#[test]
fn plain_rounding_equals_ggml_byte_for_byte() {
    let Some(x) = source() else { return };
    use GgmlType as T;
    for ty in [
        T::F16,
        T::BF16,
        T::Q8_0,
        T::Q4_0,
        T::Q4_1,
        T::Q5_0,
        T::Q5_1,
        T::TQ1_0,
        T::TQ2_0,
        T::MXFP4,
        T::NVFP4,
    ] {
        let expected = golden(&format!("{ty}.q")).expect("beside the source");
        assert_eq!(x.len(), ROWS * COLS);
        let found = quantized(ty, &x, COLS, None);
        let different = found.iter().zip(&expected).filter(|(a, b)| a != b).count();
        assert_eq!((different, found.len()), (0, expected.len()), "{ty}");
    }
}
