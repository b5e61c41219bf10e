//! Both forms hold exactly what GGUF rows hold, and their products have the bits of panels.

use super::*;
use crate::contract::GROUP;
use crate::panel::form::CHUNK;
use crate::panel::group::GroupFormat;
use crate::table::{Matmul, Store};
use crate::tests::{Aligned, Matrix, Noise, bits, quantized, scalar, tables};
use crate::{KernelTable, WeightType};
extern crate std;
use std::vec;
use std::vec::Vec;

/// Types with integer codes.
fn types() -> impl Iterator<Item = WeightType> {
    let has_form = |ty: &WeightType| GroupFormat::of(*ty).is_some();
    WeightType::ALL.into_iter().filter(has_form)
}

/// Shapes with whole and partial stripes, chunks and groups.
fn shapes(ty: WeightType) -> Vec<(usize, usize)> {
    let block_len = ty.ggml().block_len();
    let cols = [1, 2, 4, 7, 8, 9, 17].map(|n| n * block_len);
    let rows = [32, 64, 96, 128, 160, 256, 288, 544, 2336];
    let all = rows.into_iter().flat_map(|r| cols.map(|c| (r, c)));
    all.enumerate()
        .filter(|(i, _)| i % 3 == block_len % 3)
        .map(|(_, shape)| shape)
        .collect()
}

/// A matrix of random bytes in `form`, and its GGUF rows.
fn matrix(layout: &PanelLayout, noise: &mut Noise) -> (Vec<u8>, Aligned) {
    let row_bytes = layout.gguf_row_bytes();
    let rows = noise.bytes(layout.n_rows() * row_bytes);
    let mut bytes = Aligned::new(layout.bytes());
    for (band, rows) in rows.chunks_exact(PANEL_ROWS * row_bytes).enumerate() {
        layout.pack_band(band * PANEL_ROWS, rows, bytes.bytes_mut());
    }
    (rows, bytes)
}

#[test]
fn forms_are_exactly_invertible_at_every_shape() {
    let mut noise = Noise(71);
    for ty in types() {
        for (n_rows, n_cols) in shapes(ty) {
            let panels = PanelLayout::new(ty.ggml(), n_rows, n_cols).unwrap();
            if panels.panel_bytes() == 0 {
                assert!(panels.with_form(Form::Rows).is_err());
                continue;
            }
            for form in [Form::Rows, Form::Neurons] {
                let layout = panels.with_form(form).unwrap();
                // SAFETY: the layout's numbers.
                let same = unsafe { PanelLayout::from_numbers(&layout.to_numbers()) };
                assert_eq!(same, layout);
                let case = std::format!("{ty:?} {n_rows} × {n_cols}, {form:?}");
                let gguf = n_rows * layout.gguf_row_bytes();
                let padding = n_rows * n_cols / 256 * 2 + 64 + n_rows * 2;
                assert!((gguf..=gguf + padding).contains(&layout.bytes()), "{case}");
                let (rows, bytes) = matrix(&layout, &mut noise);
                let mut back = vec![0; rows.len()];
                let band_bytes = PANEL_ROWS * layout.gguf_row_bytes();
                for (band, rows) in back.chunks_exact_mut(band_bytes).enumerate() {
                    layout.unpack_band(band * PANEL_ROWS, bytes.bytes(), rows);
                }
                assert!(back == rows, "{case}");
            }
        }
    }
}

#[test]
fn forms_are_refused_where_they_do_not_exist() {
    let layout = |ty: WeightType, rows, cols| PanelLayout::new(ty.ggml(), rows, cols).unwrap();
    for ty in WeightType::ALL {
        let has_form = types().any(|other| other == ty);
        let whole = layout(ty, 64, 512);
        assert_eq!(whole.with_form(Form::Rows).is_ok(), has_form, "{ty:?}");
        assert_eq!(whole.with_form(Form::Neurons).is_ok(), has_form, "{ty:?}");
        assert!(layout(ty, 60, 512).with_form(Form::Rows).is_err());
        assert!(layout(ty, 48, 512).with_form(Form::Neurons).is_err());
    }
}

/// The same matrix in another form.
fn in_form(matrix: &Matrix, form: Form) -> Matrix {
    let layout = matrix.layout.with_form(form).unwrap();
    let mut bytes = Aligned::new(layout.bytes());
    let mut rows = vec![0; PANEL_ROWS * layout.gguf_row_bytes()];
    for band in matrix.layout.bands() {
        for (r, row) in band
            .clone()
            .zip(rows.chunks_exact_mut(layout.gguf_row_bytes()))
        {
            let range = matrix.layout.byte_range(band.clone());
            matrix
                .layout
                .unpack_row(r, &matrix.panels.bytes()[range], row);
        }
        layout.pack_band(band.start, &rows, bytes.bytes_mut());
    }
    Matrix {
        layout,
        panels: bytes,
        values: matrix.values.clone(),
    }
}

/// Rows in which most columns are zero, of any size, and one of only zeros.
fn sparse_rows(n_tokens: usize, n_cols: usize, noise: &mut Noise) -> Vec<f32> {
    let mut rows = noise.wide_values(n_tokens * n_cols);
    for (t, row) in rows.chunks_exact_mut(n_cols).enumerate() {
        let share = [3, 30, 64, 0][t % 4];
        for x in row.iter_mut() {
            if noise.u64() % 64 >= share {
                *x = 0.0;
            }
        }
    }
    rows
}

#[test]
fn products_have_the_bits_of_panels() {
    let mut noise = Noise(72);
    for ty in types() {
        for (i, (n_rows, n_cols)) in shapes(ty).into_iter().enumerate() {
            let panels = Matrix::random(ty, n_rows, n_cols, &mut noise);
            if panels.layout.panel_bytes() == 0 {
                continue;
            }
            let n_tokens = [1, 2, 3, 5, 8, 17, 35, 64][i % 8];
            let x = sparse_rows(n_tokens, n_cols, &mut noise);
            let rows = quantized(scalar(), &panels.activation_layout(), &x);
            let expected = panels.multiply(scalar(), &rows, n_tokens, Store::Set);
            for form in [Form::Rows, Form::Neurons] {
                let matrix = in_form(&panels, form);
                for table in tables() {
                    let found = matrix.multiply(table, &rows, n_tokens, Store::Set);
                    let case = (ty, n_rows, n_cols, n_tokens, form, table.name());
                    assert!(bits(&found) == bits(&expected), "{case:?}");
                    if form == Form::Neurons {
                        let found = skipping(table, &matrix, &rows, n_tokens);
                        assert!(bits(&found) == bits(&expected), "skipping: {case:?}");
                    }
                }
            }
        }
    }
}

#[test]
fn listed_rows_are_those_of_the_matrix() {
    let mut noise = Noise(73);
    for ty in types() {
        let (n_rows, n_cols) = (160, 2 * ty.ggml().block_len().max(96));
        let panels = Matrix::random(ty, n_rows, n_cols, &mut noise);
        let matrix = in_form(&panels, Form::Rows);
        for n_tokens in [1, 4, 7] {
            let x = noise.values(n_tokens * n_cols);
            let rows = quantized(scalar(), &panels.activation_layout(), &x);
            let all = panels.multiply(scalar(), &rows, n_tokens, Store::Set);
            for n_listed in [0, 1, 15, 16, 17, 70, 160] {
                let listed: Vec<u32> = (0..n_listed).map(|_| noise.u32() % 160).collect();
                for table in tables() {
                    let mut out = vec![0.25f32; n_tokens * n_listed];
                    let args = Matmul {
                        out: out.as_mut_ptr(),
                        out_stride: n_listed,
                        ..matrix.product(&rows, n_tokens)
                    };
                    // SAFETY: `out` has tokens × listed rows and is exclusively borrowed.
                    unsafe { table.matmul_listed(&args, &listed) };
                    for (t, out) in out.chunks_exact(n_listed.max(1)).enumerate() {
                        let of = |&row: &u32| all[t * n_rows + row as usize];
                        let expected: Vec<_> = listed.iter().map(of).collect();
                        assert_eq!(bits(out), bits(&expected), "{ty:?} {}", table.name());
                    }
                }
            }
        }
    }
}

/// The product in two ranges of rows, as two workers would share it; one of them also in two ranges of columns.
fn skipping(table: &KernelTable, matrix: &Matrix, rows: &Aligned, n_tokens: usize) -> Vec<f32> {
    let n_rows = matrix.layout.n_rows();
    let mut out = vec![0.25f32; n_tokens * n_rows];
    let split = (n_rows / 2).next_multiple_of(CHUNK).min(n_rows);
    for range in [0..split, split..n_rows]
        .into_iter()
        .filter(|range| !range.is_empty())
    {
        let args = Matmul {
            out: out[range.start..].as_mut_ptr(),
            rows: range.into(),
            ..matrix.product(rows, n_tokens)
        };
        let n_groups = matrix.layout.n_cols().div_ceil(GROUP);
        if args.rows.start > 0 {
            // SAFETY: `out` has tokens × rows elements and is exclusively borrowed.
            unsafe { table.matmul_skipping(&args) };
            continue;
        }
        for groups in [0..n_groups / 2, n_groups / 2..n_groups] {
            // SAFETY: as above.
            unsafe { table.matmul_skipping_groups(&args, groups.into()) };
        }
    }
    out
}

#[test]
fn rows_that_are_not_finite_stay_so() {
    let mut noise = Noise(74);
    for ty in types() {
        let (n_rows, n_cols) = (160, 2 * ty.ggml().block_len().max(128));
        let panels = Matrix::random(ty, n_rows, n_cols, &mut noise);
        let matrix = in_form(&panels, Form::Neurons);
        for value in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, f32::MAX, 1e-42] {
            let mut x = sparse_rows(2, n_cols, &mut noise);
            x[7] = value;
            let rows = quantized(scalar(), &panels.activation_layout(), &x);
            let expected = panels.multiply(scalar(), &rows, 2, Store::Set);
            for table in tables() {
                let found = skipping(table, &matrix, &rows, 2);
                for (found, expected) in found.iter().zip(&expected) {
                    let same = found.to_bits() == expected.to_bits();
                    let both_nan = found.is_nan() && expected.is_nan();
                    assert!(same || both_nan, "{ty:?} {value} {}", table.name());
                }
            }
        }
    }
}
