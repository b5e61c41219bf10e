//! Operations on single rows.

use crate::KernelTable;
use crate::table::{Rope, RopePairing};
use crate::test_support::{Noise, bits, scalar, tables};
extern crate std;
use std::vec;
use std::vec::Vec;

/// Every tail of up to three vectors of 16, and some whole rows.
fn lengths() -> impl Iterator<Item = usize> {
    (0..=3 * 16).chain([64, 172, 255, 256, 257, 768, 1000])
}

/// Norm, SwiGLU and both rotations of a row.
pub(super) fn run(table: &KernelTable, x: &[f32], w: &[f32]) -> [Vec<u32>; 3] {
    let n = x.len();
    let (mut norm, mut silu, mut head) = (vec![0.0; n], vec![0.0; n], x.to_vec());
    table.rms_norm(x, w, 1e-5, &mut norm);
    table.silu_mul(x, w, &mut silu);
    let (cos, sin) = (&w[..n / 2], &x[..n / 2]);
    for pairing in [RopePairing::Interleaved, RopePairing::Halves] {
        table.rope(&mut Rope {
            head: &mut head,
            cos,
            sin,
            pairing,
        });
    }
    [bits(&norm), bits(&silu), bits(&head)]
}

#[test]
fn elementwise_operations_equal_the_reference() {
    let mut noise = Noise(2);
    for n in lengths() {
        let (x, w) = (noise.values(n), noise.values(n));
        for table in tables() {
            let same = run(table, &x, &w) == run(scalar(), &x, &w);
            assert!(same, "{} n = {n}", table.name());
        }
    }
}

#[test]
fn norm_and_swiglu_are_near_f64() {
    let mut noise = Noise(6);
    for n in lengths() {
        let (x, w) = (noise.values(n), noise.values(n));
        let mean = x.iter().map(|&x| f64::from(x).powi(2)).sum::<f64>() / n as f64;
        let (mut norm, mut silu) = (vec![0.0; n], vec![0.0; n]);
        scalar().rms_norm(&x, &w, 1e-5, &mut norm);
        scalar().silu_mul(&x, &w, &mut silu);
        for i in 0..n {
            let (x, w) = (f64::from(x[i]), f64::from(w[i]));
            let exact = x * w / (mean + 1e-5).sqrt();
            assert!((f64::from(norm[i]) - exact).abs() <= 1e-6 * exact.abs() + 1e-12);
            let exact = x / (1.0 + libm::exp(-x)) * w;
            assert!((f64::from(silu[i]) - exact).abs() <= 1e-6 * exact.abs() + 1e-12);
        }
    }
}
