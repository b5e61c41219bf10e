//! Panels hold exactly what GGUF rows hold, and block values equal ggml's.

use super::*;
use crate::half::f32_to_f16;
use crate::test_support::{Noise, bits};
extern crate std;
use std::vec;
use std::vec::Vec;

#[test]
fn packing_is_exactly_invertible_at_every_shape() {
    let mut noise = Noise(7);
    for ty in WeightType::ALL {
        let block_len = ty.ggml().block_len();
        let widths = if block_len == 1 {
            [1, 2, 5, 172, 300]
        } else {
            [1, 2, 7, 8, 9]
        };
        for (n_rows, width) in [1, 15, 16, 17, 40].into_iter().zip(widths) {
            let layout = PanelLayout::new(ty.ggml(), n_rows, width * block_len).unwrap();
            let rows: Vec<_> = (0..n_rows)
                .map(|_| noise.bytes(layout.gguf_row_bytes()))
                .collect();
            let mut panels = vec![0u8; layout.bytes()];
            for (r, row) in rows.iter().enumerate() {
                let panel = &mut panels[r / 16 * layout.panel_bytes()..][..layout.panel_bytes()];
                layout.pack_row(r % 16, row, panel);
            }
            let mut back = vec![0u8; layout.gguf_row_bytes()];
            let (mut from_panel, mut from_row) =
                (vec![0f32; layout.n_cols()], vec![0f32; layout.n_cols()]);
            for (r, row) in rows.iter().enumerate() {
                let panel = &panels[r / 16 * layout.panel_bytes()..][..layout.panel_bytes()];
                layout.unpack_row(r % 16, panel, &mut back);
                assert_eq!(
                    &back,
                    row,
                    "{ty:?} row {r} of {n_rows}, {} columns",
                    layout.n_cols()
                );
                layout.dequantize_row(r, &panels, &mut from_panel);
                dequantize_gguf_row(ty, row, &mut from_row);
                assert_eq!(bits(&from_panel), bits(&from_row));
            }
        }
    }
}

#[test]
fn panels_are_at_most_one_percent_larger() {
    for ty in WeightType::ALL {
        for n_cols in [256, 512, 768, 2048, 5632, 14_336] {
            let layout = PanelLayout::new(ty.ggml(), 16, n_cols).unwrap();
            let gguf = 16 * layout.gguf_row_bytes();
            assert!(layout.bytes() * 100 <= gguf * 101, "{ty:?} {n_cols}");
            assert!(layout.panel_bytes().is_multiple_of(32));
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
    assert!(PanelLayout::new(GgmlType::IQ1_S, 4, 256).is_err());
}
