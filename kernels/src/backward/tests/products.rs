//! Products, and the order in which they read weights and gradients.

extern crate std;

use super::{numbers, tables};
use crate::backward::{
    BackwardKernels, PairProduct, Product, SCALAR, pack_pairs, pairs_of, transpose,
    without_instruction,
};
use crate::half::{bf16_to_f32, f32_to_bf16};
use crate::panel::WeightType;
use crate::tests::{Matrix, Noise, bits};
use std::vec;
use std::vec::Vec;

#[test]
fn products_add_their_terms_in_order() {
    let mut noise = Noise(5);
    for (m, n, steps) in [
        (1, 1, 1),
        (3, 17, 5),
        (8, 48, 256),
        (19, 100, 257),
        (9, 7, 600),
        (2, 3, 0),
    ] {
        let (a, b) = (
            numbers(&mut noise, m * steps + 9),
            numbers(&mut noise, (n + 2) * steps),
        );
        let before = numbers(&mut noise, m * (n + 1));
        for a_strides in [[steps, 1], [1, m]] {
            let run = |kernels: &BackwardKernels| {
                let mut out = before.clone();
                let product = Product {
                    a: &a,
                    a_strides,
                    b: &b,
                    b_stride: n + 2,
                    out: out.as_mut_ptr(),
                    out_stride: n + 1,
                    m,
                    n,
                    steps,
                };
                // SAFETY: `out` holds (m, n + 1).
                unsafe { kernels.add_product(&product) };
                out
            };
            let expected = run(&SCALAR);
            for i in 0..m {
                for j in 0..n {
                    let of = |k| {
                        f64::from(a[i * a_strides[0] + k * a_strides[1]])
                            * f64::from(b[k * (n + 2) + j])
                    };
                    let exact =
                        f64::from(before[i * (n + 1) + j]) + (0..steps).map(of).sum::<f64>();
                    assert!((f64::from(expected[i * (n + 1) + j]) - exact).abs() < 2e-3);
                }
                assert_eq!(
                    expected[i * (n + 1) + n].to_bits(),
                    before[i * (n + 1) + n].to_bits()
                );
            }
            for table in tables() {
                assert_eq!(
                    bits(&run(table.backward())),
                    bits(&expected),
                    "{} {m} {n} {steps}",
                    table.name()
                );
            }
        }
    }
}

#[test]
fn products_of_pairs_step_as_the_contract_does() {
    let mut noise = Noise(6);
    for (m, n, steps) in [(1, 1, 1), (8, 48, 128), (11, 70, 131), (3, 5, 300)] {
        let (a, b) = (
            numbers(&mut noise, m * steps * 2),
            numbers(&mut noise, n * steps * 2),
        );
        let mut a_pairs = vec![0; m * steps];
        for (row, out) in a.chunks(2 * steps).zip(a_pairs.chunks_mut(steps)) {
            pairs_of(row, out);
        }
        let mut b_pairs = vec![0; n * steps];
        pack_pairs(&b, 2 * steps, n, 2 * steps, &mut b_pairs);
        let run = |kernels: &BackwardKernels| {
            let mut out = vec![1.0; m * n];
            let product = PairProduct {
                a: &a_pairs,
                a_stride: steps,
                b: &b_pairs,
                b_stride: n,
                out: out.as_mut_ptr(),
                out_stride: n,
                m,
                n,
                steps,
            };
            // SAFETY: `out` holds (m, n).
            unsafe { kernels.add_pair_product(&product) };
            out
        };
        let expected = run(&SCALAR);
        let round = |x: f32| f64::from(bf16_to_f32(f32_to_bf16(x)));
        for i in 0..m {
            for j in 0..n {
                let of = |k| round(a[i * 2 * steps + k]) * round(b[j * 2 * steps + k]);
                let exact = 1.0 + (0..2 * steps).map(of).sum::<f64>();
                assert!((f64::from(expected[i * n + j]) - exact).abs() < 1e-4);
            }
        }
        if let Some(kernels) = without_instruction() {
            assert_eq!(bits(&run(kernels)), bits(&expected), "avx512 {m} {n}");
        }
        for table in tables() {
            assert_eq!(
                bits(&run(table.backward())),
                bits(&expected),
                "{} {m} {n}",
                table.name()
            );
        }
    }
}

#[test]
fn columns_are_those_of_rows() {
    let mut noise = Noise(7);
    for ty in WeightType::ALL {
        let matrix = Matrix::random(ty, 37, 512, &mut noise);
        let (layout, panels) = (&matrix.layout, matrix.panels.bytes());
        for (rows, cols) in [(0..37, 0..512), (3..20, 256..512), (30..37, 0..256)] {
            let mut found = vec![0.0; rows.len() * cols.len()];
            layout.dequantize_columns(rows.clone(), cols.clone(), panels, &mut found);
            for (i, row) in rows.clone().enumerate() {
                let expected = &matrix.values[row * 512..][cols.clone()];
                let column = |j: usize| f64::from(found[j * rows.len() + i]).to_bits();
                let found: Vec<u64> = (0..cols.len()).map(column).collect();
                let expected: Vec<u64> = expected.iter().map(|x| x.to_bits()).collect();
                assert_eq!(found, expected, "{ty:?} row {row}");
            }
        }
    }
}

#[test]
fn transposes_and_pairs_hold_every_element() {
    let mut noise = Noise(8);
    for (rows, n) in [(1, 1), (5, 33), (40, 17), (16, 16)] {
        let x = numbers(&mut noise, rows * (n + 3));
        let mut out = vec![0.0; rows * n];
        transpose(&x, n + 3, rows, n, &mut out);
        let mut pairs = vec![0; rows * n.div_ceil(2)];
        pack_pairs(&x, n + 3, rows, n, &mut pairs);
        for i in 0..rows {
            for j in 0..n {
                let value = x[i * (n + 3) + j];
                assert_eq!(out[j * rows + i].to_bits(), value.to_bits());
                let half = (pairs[j / 2 * rows + i] >> (16 * (j % 2))) as u16;
                assert_eq!(half, f32_to_bf16(value));
            }
            if n % 2 == 1 {
                assert_eq!(pairs[n / 2 * rows + i] >> 16, 0);
            }
        }
    }
}
