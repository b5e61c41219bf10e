//! Operations on single rows.

use crate::KernelTable;
use crate::contract;
use crate::kv::{KvLayout, KvType};
use crate::table::{RopeArgs, RopePairing};
use crate::tests::{Aligned, Noise, bits, scalar, tables};
extern crate std;
use std::vec;
use std::vec::Vec;

/// Every tail of up to three vectors of 16, and some whole rows.
fn lengths() -> impl Iterator<Item = usize> {
    let all = (0..=3 * 16).chain([64, 172, 255, 256, 257, 768, 1000]);
    // Miri is slow.
    all.step_by(if cfg!(miri) { 9 } else { 1 })
}

/// Norm, SwiGLU and both rotations of a row.
pub(super) fn run(table: &KernelTable, x: &[f32], w: &[f32]) -> [Vec<u32>; 3] {
    let n = x.len();
    let (mut norm, mut silu, mut head) = (vec![0.0; n], vec![0.0; n], x.to_vec());
    table.rms_norm(x, w, 1e-5, &mut norm);
    table.silu_mul(x, w, &mut silu);
    let (cos, sin) = (&w[..n / 2], &x[..n / 2]);
    for pairing in [RopePairing::Interleaved, RopePairing::Halves] {
        table.rope(&mut RopeArgs {
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
fn geglu_and_soft_cap_equal_the_reference_and_are_near_f64() {
    let mut noise = Noise(7);
    for n in lengths() {
        for (x, w) in [
            (noise.values(n), noise.values(n)),
            (noise.wide_values(n), noise.any_values(n)),
        ] {
            let run = |table: &KernelTable| {
                let (mut gelu, mut capped) = (vec![0.0; n], x.clone());
                table.gelu_mul(&x, &w, &mut gelu);
                table.soft_cap(&mut capped, 30.0);
                let mut by_erf = vec![0.0; n];
                table.gelu_erf_mul(&x, &w, &mut by_erf);
                (gelu, capped, by_erf)
            };
            let (gelu, capped, by_erf) = run(scalar());
            for table in tables() {
                let (g, c, e) = run(table);
                // The bits of a NaN are outside the contract.
                let same = |a: &[f32], b: &[f32]| {
                    let mut pairs = a.iter().zip(b);
                    pairs.all(|(a, b)| a.to_bits() == b.to_bits() || a.is_nan() && b.is_nan())
                };
                assert!(same(&g, &gelu), "{} n = {n}", table.name());
                assert!(same(&c, &capped), "{} n = {n}", table.name());
                assert!(same(&e, &by_erf), "{} n = {n}", table.name());
            }
            for i in 0..n {
                let exact = 30.0 * libm::tanh(f64::from(x[i]) / 30.0);
                assert!((f64::from(capped[i]) - exact).abs() <= 4e-7 * exact.abs() + 1e-30);
            }
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

/// Keys and values have the same bytes from every table, whatever number they are made of.
#[test]
fn keys_and_values_are_stored_as_the_reference_stores_them() {
    let mut noise = Noise(63);
    for ty in KvType::ALL {
        for head_dim in [1, 7, 64, 80, 128, 200] {
            let layout = KvLayout::uniform(ty, head_dim);
            // Any bits: numbers of every size, infinities and NaNs among them.
            let x: Vec<f32> = (0..head_dim).map(|_| f32::from_bits(noise.u32())).collect();
            // From below the smallest half to above the largest: 2^-27 to 2^18.
            let mut number = || {
                let exponent = 100 + noise.u32() % 45;
                f32::from_bits(noise.u32() & 0x807f_ffff | exponent << 23)
            };
            let y: Vec<f32> = (0..head_dim).map(|_| number()).collect();
            let store = |table: &KernelTable| {
                let mut block = Aligned::new(layout.block_bytes());
                let at = block.bytes_mut().as_mut_ptr();
                for (slot, x) in [(0, &x), (37, &y)] {
                    // SAFETY: the block is exclusively borrowed.
                    unsafe { table.store_key(&layout, at, slot, x) };
                    // SAFETY: as above.
                    unsafe { table.store_value(&layout, at, slot, x) };
                }
                block
            };
            let expected = store(scalar());
            for table in tables() {
                let case = (table.name(), ty, head_dim);
                assert!(store(table).bytes() == expected.bytes(), "{case:?}");
            }
        }
    }
}

/// Layer norm and softmax of a row, and a weighted sum; a layer norm without bias, and the sigmoid.
fn normalized(table: &KernelTable, x: &[f32], w: &[f32], b: &[f32]) -> [Vec<f32>; 5] {
    let (mut norm, mut softmax, mut sum) = (vec![0.0; x.len()], x.to_vec(), b.to_vec());
    let (mut plain, mut sigmoid) = (norm.clone(), x.to_vec());
    table.layer_norm(x, w, b, 1e-5, &mut norm);
    table.softmax(&mut softmax);
    table.add_scaled(w[0], x, &mut sum);
    table.layer_norm(x, w, &[], 1e-5, &mut plain);
    table.sigmoid(&mut sigmoid);
    [norm, softmax, sum, plain, sigmoid]
}

#[test]
fn layer_norm_and_softmax_are_the_references_and_near_f64() {
    let mut noise = Noise(7);
    for n in lengths().skip(1) {
        let (x, w, b) = (noise.values(n), noise.values(n), noise.values(n));
        let reference = normalized(scalar(), &x, &w, &b);
        for table in tables() {
            let found = normalized(table, &x, &w, &b);
            for (found, reference) in found.iter().zip(&reference) {
                assert_eq!(bits(found), bits(reference), "{} n = {n}", table.name());
            }
        }
        let wide: Vec<f64> = x.iter().map(|&x| f64::from(x)).collect();
        let mean = wide.iter().sum::<f64>() / n as f64;
        let variance = wide.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / n as f64;
        let max = wide.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let sum = wide.iter().map(|x| libm::exp(x - max)).sum::<f64>();
        for i in 0..n {
            let scaled = (wide[i] - mean) / (variance + 1e-5).sqrt();
            let exact = scaled * f64::from(w[i]) + f64::from(b[i]);
            let bound = 4e-6 * (1.0 + scaled.abs());
            assert!((f64::from(reference[0][i]) - exact).abs() <= bound, "{n}");
            // The difference from the maximum is rounded before its exponential.
            let below = max - wide[i];
            let bound = (1e-6 + 1.2e-7 * below) * libm::exp(-below) / sum;
            let error = f64::from(reference[1][i]) - libm::exp(-below) / sum;
            assert!(error.abs() <= bound + 1e-30, "{n}: {error}");
            let fused = contract::fma(w[0], x[i], b[i]);
            assert_eq!(reference[2][i].to_bits(), fused.to_bits());
            let exact = scaled * f64::from(w[i]);
            let bound = 4e-6 * (1.0 + scaled.abs());
            assert!((f64::from(reference[3][i]) - exact).abs() <= bound, "{n}");
            let exact = 1.0 / (1.0 + libm::exp(-wide[i]));
            let error = f64::from(reference[4][i]) / exact - 1.0;
            assert!(error.abs() <= 1e-6, "sigmoid {}: {error}", x[i]);
        }
    }
}

#[test]
fn softmax_of_what_is_no_number_says_so() {
    for table in tables() {
        let mut x = [1.0, f32::NAN, 2.0];
        table.softmax(&mut x);
        assert!(x.iter().all(|x| x.is_nan()), "{}", table.name());
        let mut x = [f32::NEG_INFINITY; 20];
        table.softmax(&mut x);
        assert!(x.iter().all(|x| x.is_nan()), "{}", table.name());
        let mut x = [0.0, f32::NEG_INFINITY];
        table.softmax(&mut x);
        assert_eq!(bits(&x), bits(&[1.0, 0.0]));
    }
}
