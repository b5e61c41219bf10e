//! Predictors without training: the signs of a gate's weights, times the mean magnitude of each block.

use super::rows::Rows;
use super::write::Encoded;
use sluice_core::kernels::GgmlType;
use sluice_core::kernels::half::f32_to_f16;

/// The signs of a matrix, (n_ff, n_embd), with the mean magnitude of each block as its scale: 2.6 bits a weight (Q2_K), or
/// 4.5 (Q4_0) where rows are not whole blocks of 256. `None` where they are not whole blocks of 32, either.
pub(super) fn signs(gate: &Rows) -> Option<Encoded> {
    let (ty, len, put): (_, _, Put) = match gate.n_cols {
        n if n.is_multiple_of(256) => (GgmlType::Q2_K, 256, q2_k),
        n if n.is_multiple_of(32) => (GgmlType::Q4_0, 32, q4_0),
        _ => return None,
    };
    let mut bytes = Vec::new();
    gate.values
        .chunks_exact(len)
        .for_each(|block| put(block, &mut bytes));
    Some(Encoded {
        ty,
        n_rows: gate.n_rows(),
        n_cols: gate.n_cols,
        bytes,
    })
}

/// Appends a block.
type Put = fn(&[f32], &mut Vec<u8>);

/// The mean magnitude of a block.
fn scale(block: &[f32]) -> [u8; 2] {
    let sum: f32 = block.iter().map(|x| x.abs()).sum();
    f32_to_f16(sum / block.len() as f32).to_le_bytes()
}

/// Codes 2 and 0, of which the minimum takes one scale: +d and -d.
fn q2_k(block: &[f32], out: &mut Vec<u8>) {
    out.extend([0x11; 16]);
    let mut codes = [0u8; 64];
    for (i, x) in block.iter().enumerate() {
        let (half, rest) = (i / 128, i % 128);
        codes[32 * half + rest % 32] |= u8::from(*x >= 0.0) << (2 * (rest / 32) + 1);
    }
    out.extend(codes);
    out.extend(scale(block));
    out.extend(scale(block));
}

/// Codes 9 and 7, from which 8 is taken.
fn q4_0(block: &[f32], out: &mut Vec<u8>) {
    out.extend(scale(block));
    let code = |x: f32| if x >= 0.0 { 9 } else { 7 };
    let (low, high) = block.split_at(16);
    out.extend(
        low.iter()
            .zip(high)
            .map(|(low, high)| code(*low) | code(*high) << 4),
    );
}
