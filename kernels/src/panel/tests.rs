//! Panels hold exactly what GGUF rows hold, and block values equal ggml's.

use super::*;
use crate::half::f32_to_f16;
use crate::tests::{Noise, bits};
extern crate std;
use std::vec;
use std::vec::Vec;

/// Row lengths below, at and past a group of 256 columns and a pair of columns.
fn widths(ty: WeightType) -> Vec<usize> {
    let block_len = ty.ggml().block_len();
    if block_len == 1 {
        return vec![1, 2, 3, 16, 99, 101, 171, 172, 255, 256, 257, 300];
    }
    (1..=10)
        .chain([17, 24, 25])
        .map(|n| n * block_len)
        .collect()
}

#[test]
fn packing_is_exactly_invertible_at_every_shape() {
    let mut noise = Noise(7);
    for ty in WeightType::ALL {
        let widths = widths(ty);
        for n_rows in 1..=50 {
            for i in [n_rows, n_rows * 5 + 2] {
                let n_cols = widths[i % widths.len()];
                let layout = PanelLayout::new(ty.ggml(), n_rows, n_cols).unwrap();
                check_packing(&layout, &mut noise);
            }
        }
    }
}

/// Packs rows of random bytes into memory full of other bytes, and takes them out again.
fn check_packing(layout: &PanelLayout, noise: &mut Noise) {
    let (ty, n_rows) = (layout.ty(), layout.n_rows());
    let rows: Vec<_> = (0..n_rows)
        .map(|_| noise.bytes(layout.gguf_row_bytes()))
        .collect();
    // SAFETY: the layout's numbers.
    let same = unsafe { PanelLayout::from_numbers(&layout.to_numbers()) };
    assert_eq!(same, *layout);
    let mut panels = noise.bytes(layout.bytes());
    for (r, row) in rows.iter().enumerate() {
        layout.pack_row(r, row, &mut panels[layout.byte_range(layout.band(r))]);
    }
    let mut back = vec![0u8; layout.gguf_row_bytes()];
    let (mut from_panel, mut from_row) = (vec![0f32; layout.n_cols()], vec![0f32; layout.n_cols()]);
    for (r, row) in rows.iter().enumerate() {
        let case = std::format!("{ty:?} row {r} of {n_rows}, {} columns", layout.n_cols());
        layout.unpack_row(r, &panels[layout.byte_range(layout.band(r))], &mut back);
        assert_eq!(&back, row, "{case}");
        layout.dequantize_row(r, &panels, &mut from_panel);
        blocks::dequantize_row(ty.ggml(), row, &mut from_row);
        assert_eq!(bits(&from_panel), bits(&from_row), "{case}");
    }
    let tail = &panels[layout.n_panels() * layout.panel_bytes()..];
    assert_eq!(tail, rows[layout.tail_start()..].concat());
}

#[test]
fn a_matrix_is_at_most_one_percent_larger() {
    for ty in WeightType::ALL {
        let block_len = ty.ggml().block_len();
        for n_cols in (block_len..=6144).step_by(block_len) {
            for n_rows in 1..=50 {
                let layout = PanelLayout::new(ty.ggml(), n_rows, n_cols).unwrap();
                let gguf = n_rows * layout.gguf_row_bytes();
                let case = (ty, n_rows, n_cols);
                assert!(layout.bytes() * 100 <= gguf * 101, "{case:?}");
                assert!(layout.panel_bytes().is_multiple_of(32));
                // All panels that there can be, but for those that are too large.
                let narrow = match ty {
                    WeightType::BF16 => n_cols % 2 == 1 && n_cols < 100,
                    WeightType::MXFP4 => n_cols % 64 == 32 && n_cols < 192,
                    _ => false,
                };
                let n_panels = if narrow { 0 } else { n_rows / PANEL_ROWS };
                assert_eq!(layout.n_panels(), n_panels, "{case:?}");
            }
        }
    }
}

#[test]
fn bands_are_all_of_a_matrix_in_order() {
    for (n_rows, n_cols) in [(1, 33), (16, 33), (50, 33), (15, 128), (50, 128), (64, 128)] {
        let layout = PanelLayout::new(GgmlType::BF16, n_rows, n_cols).unwrap();
        let (mut rows, mut bytes) = (0, 0);
        for band in layout.bands() {
            assert_eq!(band.start, rows);
            assert!((rows..band.end).all(|row| layout.band(row) == band));
            let range = layout.byte_range(band.clone());
            assert_eq!(range.start, bytes);
            (rows, bytes) = (band.end, range.end);
        }
        assert_eq!((rows, bytes), (n_rows, layout.bytes()));
        assert_eq!(layout.byte_range(0..n_rows), 0..bytes);
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

/// Bit by bit, as the format is described.
#[test]
fn lanes_are_strings_of_bits() {
    let mut noise = Noise(17);
    for (ty, bits) in [
        (GgmlType::LANE3, 3),
        (GgmlType::LANE5, 5),
        (GgmlType::LANE7, 7),
    ] {
        let mut block = noise.bytes(2 + 4 * bits);
        assert_eq!(block.len(), ty.block_bytes());
        block[..2].copy_from_slice(&f32_to_f16(-0.25).to_le_bytes());
        let mut values = [0f32; 32];
        blocks::dequantize_block(ty, &block, &mut values);
        for (j, value) in values.into_iter().enumerate() {
            let bit = |at: usize| i32::from(block[2 + at / 8] >> (at % 8) & 1);
            let code: i32 = (0..bits).map(|i| bit(bits * j + i) << i).sum();
            let expected = -0.25 * (code - (1 << (bits - 1))) as f32;
            assert_eq!(value.to_bits(), expected.to_bits(), "{ty} {j}");
        }
    }
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
