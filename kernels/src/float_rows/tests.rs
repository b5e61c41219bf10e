//! All instances against the definition and f64, for every length up to a few vectors.
#![allow(
    clippy::float_cmp,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "exact values are expected; numbers are small"
)]

extern crate std;

use super::*;
use std::vec::Vec;

fn numbers(n: usize, seed: usize) -> Vec<f32> {
    let at = |i: usize| (i * 7919 + seed * 104_729) % 20_011;
    (0..n).map(|i| at(i) as f32 / 10_000.0 - 1.0).collect()
}

#[test]
fn every_table_has_the_bits_of_the_definition() {
    for n in (0..70).chain([512, 515]) {
        for n_rows in [0, 1, 3, 4, 5, 16] {
            let matrix: Vec<_> = (0..n_rows).map(|i| numbers(n, i + 1)).collect();
            let rows: Vec<&[f32]> = matrix.iter().map(Vec::as_slice).collect();
            let (x, values) = (numbers(n, 77), numbers(n_rows, 78));
            let mut sums = std::vec![0.0; n_rows];
            let mut out = x.clone();
            SCALAR.dots(&rows, &x, &mut sums);
            SCALAR.add(&values, &rows, &mut out);
            for (sum, row) in sums.iter().zip(&rows) {
                let exact: f64 = row
                    .iter()
                    .zip(&x)
                    .map(|(w, x)| f64::from(*w) * f64::from(*x))
                    .sum();
                assert!((f64::from(*sum) - exact).abs() < 1e-4);
            }
            for table in KernelTable::available(CpuFeatures::detect()) {
                let (mut found, mut added) = (std::vec![9.0; n_rows], x.clone());
                table.float_rows().dots(&rows, &x, &mut found);
                table.float_rows().add(&values, &rows, &mut added);
                assert_eq!(found, sums, "{} {n} {n_rows}", table.name());
                assert_eq!(added, out, "{} {n} {n_rows}", table.name());
            }
        }
    }
}
