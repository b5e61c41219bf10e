//! Panels hold exactly what GGUF rows hold, and block values equal ggml's.

use super::*;
use crate::half::f32_to_f16;
use crate::test_support::{Noise, bits};
extern crate std;
use std::vec;
use std::vec::Vec;

/// Any number of rows and any whole number of blocks: below, at and past a panel, a group of 256
/// columns, a pair of columns.
fn shapes(ty: WeightType, noise: &mut Noise) -> Vec<PanelLayout> {
    let block_len = ty.ggml().block_len();
    let widths: Vec<usize> = if block_len == 1 {
        vec![1, 2, 3, 16, 171, 172, 255, 256, 257, 300]
    } else {
        (1..=10).chain([17, 24, 25]).collect()
    };
    let heights = [1, 2, 15, 16, 17, 31, 32, 33, 40, 48];
    let layout = |n_rows, width| PanelLayout::new(ty.ggml(), n_rows, width * block_len).unwrap();
    let mut shapes = Vec::new();
    for (i, &width) in widths.iter().enumerate() {
        shapes.push(layout(heights[i % heights.len()], width));
        shapes.push(layout(1 + (noise.u32() % 50) as usize, width));
    }
    shapes
}

#[test]
fn packing_is_exactly_invertible_at_every_shape() {
    let mut noise = Noise(7);
    for ty in WeightType::ALL {
        for layout in shapes(ty, &mut noise) {
            check_packing(&layout, &mut noise);
        }
    }
}

/// Packs rows of random bytes into memory full of other bytes, and takes them out again.
fn check_packing(layout: &PanelLayout, noise: &mut Noise) {
    let (ty, n_rows) = (layout.ty(), layout.n_rows());
    let rows: Vec<_> = (0..n_rows)
        .map(|_| noise.bytes(layout.gguf_row_bytes()))
        .collect();
    let mut panels = noise.bytes(layout.bytes());
    for (r, row) in rows.iter().enumerate() {
        let panel = &mut panels[r / 16 * layout.panel_bytes()..][..layout.panel_bytes()];
        layout.pack_row(r % 16, row, panel);
    }
    let mut back = vec![0u8; layout.gguf_row_bytes()];
    let (mut from_panel, mut from_row) = (vec![0f32; layout.n_cols()], vec![0f32; layout.n_cols()]);
    for (r, row) in rows.iter().enumerate() {
        let case = std::format!("{ty:?} row {r} of {n_rows}, {} columns", layout.n_cols());
        let panel = &panels[r / 16 * layout.panel_bytes()..][..layout.panel_bytes()];
        layout.unpack_row(r % 16, panel, &mut back);
        assert_eq!(&back, row, "{case}");
        layout.dequantize_row(r, &panels, &mut from_panel);
        blocks::dequantize_row(ty.ggml(), row, &mut from_row);
        assert_eq!(bits(&from_panel), bits(&from_row), "{case}");
    }
}

#[test]
fn panels_are_at_most_one_percent_larger() {
    for ty in WeightType::ALL {
        let block_len = ty.ggml().block_len();
        for n_cols in (block_len..=6144).step_by(block_len) {
            let layout = PanelLayout::new(ty.ggml(), 48, n_cols).unwrap();
            let gguf = 48 * layout.gguf_row_bytes();
            // The exceptions are narrow: half a line for an odd column or block.
            let narrow = match ty {
                WeightType::BF16 => n_cols < 100,
                WeightType::MXFP4 => n_cols < 192,
                _ => false,
            };
            if narrow {
                assert!(layout.bytes() <= gguf + 3 * 32, "{ty:?} {n_cols}");
            } else {
                assert!(layout.bytes() * 100 <= gguf * 101, "{ty:?} {n_cols}");
            }
            assert!(layout.panel_bytes().is_multiple_of(32));
        }
    }
}

#[test]
fn a_row_is_its_blocks_one_after_the_other() {
    let mut noise = Noise(13);
    for ty in WeightType::ALL.map(WeightType::ggml) {
        for n_blocks in [0, 1, 2, 7] {
            let row = noise.bytes(n_blocks * ty.block_bytes());
            let mut by_row = vec![0f32; n_blocks * ty.block_len()];
            let mut by_block = by_row.clone();
            blocks::dequantize_row(ty, &row, &mut by_row);
            let blocks = row.chunks_exact(ty.block_bytes());
            for (block, out) in blocks.zip(by_block.chunks_exact_mut(ty.block_len())) {
                blocks::dequantize_block(ty, block, out);
            }
            assert_eq!(bits(&by_row), bits(&by_block), "{ty}");
        }
    }
}

#[test]
fn block_values_follow_the_format() {
    let mut q8 = [0u8; 34];
    q8[..2].copy_from_slice(&f32_to_f16(0.5).to_le_bytes());
    q8[2] = (-3i8).cast_unsigned();
    let mut out = [0f32; 32];
    blocks::dequantize_block(GgmlType::Q8_0, &q8, &mut out);
    assert_eq!(out[..2], [-1.5, 0.0]);
}

#[test]
fn mxfp4_scales_are_powers_of_two() {
    for e in 0..=255u8 {
        let exact = 2f64.powi(i32::from(e) - 128);
        assert_eq!(
            f64::from(blocks::mxfp4::scale(e)).to_bits(),
            exact.to_bits(),
            "{e}"
        );
    }
}

#[test]
fn nvfp4_scales_are_half_of_e4m3() {
    for byte in 0..=255u8 {
        let (exponent, mantissa) = (i32::from(byte >> 3 & 15), f64::from(byte & 7));
        let exact = match (byte, exponent) {
            (0x7f, _) => 0.0,
            (_, 0) => mantissa / 8.0 * 2f64.powi(-7),
            _ => (1.0 + mantissa / 8.0) * 2f64.powi(exponent - 8),
        };
        let found = f64::from(blocks::nvfp4::scale(byte));
        assert_eq!(found.to_bits(), exact.to_bits(), "{byte}");
    }
}

#[test]
fn shapes_that_have_no_panels_are_named() {
    let error = PanelLayout::new(GgmlType::Q4_K, 4, 300).unwrap_err();
    assert_eq!(
        std::format!("{error}"),
        "row length 300 is not a multiple of 256 (Q4_K)"
    );
    assert_eq!(
        PanelLayout::new(GgmlType::F32, 0, 3),
        Err(PanelError::Empty)
    );
    assert_eq!(
        PanelLayout::new(GgmlType::F32, usize::MAX, 3),
        Err(PanelError::TooLarge)
    );
    assert_eq!(
        PanelLayout::new(GgmlType::Q8_K, 4, 256),
        Err(PanelError::TypeNotSupported(GgmlType::Q8_K))
    );
}
