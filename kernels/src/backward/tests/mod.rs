//! Each gradient against finite differences of an f64 twin, f32 against the twin, and every table against `scalar`.
#![allow(
    clippy::cast_possible_truncation,
    clippy::cast_precision_loss,
    clippy::too_many_lines,
    clippy::type_complexity,
    reason = "numbers are small; a test has the twin next to its check"
)]

extern crate std;

mod products;

use super::*;
use crate::tests::{Noise, bits};
use std::vec;
use std::vec::Vec;

fn tables() -> impl Iterator<Item = &'static KernelTable> {
    KernelTable::available(CpuFeatures::detect())
}

fn numbers(noise: &mut Noise, n: usize) -> Vec<f32> {
    (0..n).map(|_| noise.value()).collect()
}

fn wide(x: &[f32]) -> Vec<f64> {
    x.iter().map(|x| f64::from(*x)).collect()
}

/// Central differences of `loss` at `x`.
fn differences(x: &[f64], loss: impl Fn(&[f64]) -> f64) -> Vec<f64> {
    let at = |i: usize, h: f64| {
        let mut x = x.to_vec();
        x[i] += h;
        loss(&x)
    };
    // Of fourth order: the error is h^4.
    let slope = |i| {
        let h = 1e-3;
        (8.0 * (at(i, h) - at(i, -h)) - (at(i, 2.0 * h) - at(i, -2.0 * h))) / (12.0 * h)
    };
    (0..x.len()).map(slope).collect()
}

/// The largest difference over the largest magnitude.
fn error(found: &[f64], expected: &[f64]) -> f64 {
    let largest = expected.iter().fold(1e-30, |m: f64, x| m.max(x.abs()));
    let pairs = found.iter().zip(expected);
    pairs.fold(0.0, |m: f64, (a, b)| m.max((a - b).abs())) / largest
}

/// The twin against finite differences, and f32 against the twin.
fn check(name: &str, found: &[f32], twin: &[f64], differences: &[f64]) {
    let (of_twin, of_f32) = (error(twin, differences), error(&wide(found), twin));
    assert!(of_twin < 1e-7, "{name}: twin {of_twin:e}");
    assert!(of_f32 < 1e-5, "{name}: f32 {of_f32:e}");
}

fn mean(x: impl ExactSizeIterator<Item = f64>) -> f64 {
    let n = x.len() as f64;
    x.sum::<f64>() / n
}

fn weighted(y: &[f64], dy: &[f32]) -> f64 {
    y.iter().zip(dy).map(|(y, dy)| y * f64::from(*dy)).sum()
}

#[test]
fn norms_have_their_gradients() {
    let mut noise = Noise(1);
    for n in [1, 5, 16, 37, 256, 288] {
        let (x, dy) = (numbers(&mut noise, n), numbers(&mut noise, n));
        let weight = numbers(&mut noise, n);
        let (w, x64) = (wide(&weight), wide(&x));
        let eps = 1e-2;
        let u: Vec<f64> = w
            .iter()
            .zip(&dy)
            .map(|(w, dy)| w * f64::from(*dy))
            .collect();

        let rms = |x: &[f64]| {
            let r = 1.0 / (mean(x.iter().map(|x| x * x)) + f64::from(eps)).sqrt();
            let y: Vec<f64> = x.iter().zip(&w).map(|(x, w)| x * r * w).collect();
            weighted(&y, &dy)
        };
        let r = 1.0 / (mean(x64.iter().map(|x| x * x)) + f64::from(eps)).sqrt();
        let along = mean(x64.iter().zip(&u).map(|(x, u)| x * u));
        let of = |(x, u): (&f64, &f64)| r * u - x * r.powi(3) * along;
        let twin: Vec<f64> = x64.iter().zip(&u).map(of).collect();
        let mut found = vec![0.0; n];
        SCALAR.rms_norm(&x, &weight, eps, &dy, &mut found);
        check("RMSNorm", &found, &twin, &differences(&x64, rms));
        let before = numbers(&mut noise, n);
        let mut expected = before.clone();
        SCALAR.rms_norm(&x, &weight, eps, &dy, &mut expected);
        for table in tables() {
            let mut found = before.clone();
            table.backward().rms_norm(&x, &weight, eps, &dy, &mut found);
            assert_eq!(bits(&found), bits(&expected), "{} {n}", table.name());
        }

        let center = |x: &[f64]| {
            let mean_x = mean(x.iter().copied());
            let square = mean(x.iter().map(|x| (x - mean_x).powi(2)));
            let r = 1.0 / (square + f64::from(eps)).sqrt();
            let hat: Vec<f64> = x.iter().map(|x| (x - mean_x) * r).collect();
            (hat, r)
        };
        let layer = |x: &[f64]| {
            let hat = center(x).0;
            let y: Vec<f64> = hat.iter().zip(&w).map(|(x, w)| x * w).collect();
            weighted(&y, &dy)
        };
        let (hat, r) = center(&x64);
        let mean_u = mean(u.iter().copied());
        let along = mean(hat.iter().zip(&u).map(|(x, u)| x * u));
        let of = |(x, u): (&f64, &f64)| r * (u - mean_u - x * along);
        let twin: Vec<f64> = hat.iter().zip(&u).map(of).collect();
        let mut expected = vec![0.0; n];
        SCALAR.layer_norm(&x, &weight, eps, &dy, &mut expected);
        if n > 1 {
            check("LayerNorm", &expected, &twin, &differences(&x64, layer));
        }
        for table in tables() {
            let mut found = vec![0.0; n];
            table
                .backward()
                .layer_norm(&x, &weight, eps, &dy, &mut found);
            assert_eq!(bits(&found), bits(&expected), "{} {n}", table.name());
        }
    }
}

/// erf by its series and its continued fraction, to 1e-15.
fn erf(x: f64) -> f64 {
    if x.abs() > 3.0 {
        let mut fraction = 0.0;
        for k in (1..200).rev() {
            fraction = f64::from(k) / 2.0 / (x.abs() + fraction);
        }
        let tail = (-x * x).exp() / core::f64::consts::PI.sqrt() / (x.abs() + fraction);
        return (1.0 - tail).copysign(x);
    }
    let (mut sum, mut term) = (x, x);
    for k in 1..100 {
        term *= -x * x / f64::from(k);
        sum += term / f64::from(2 * k + 1);
    }
    sum * 2.0 / core::f64::consts::PI.sqrt()
}

#[test]
fn gates_have_their_gradients() {
    let mut noise = Noise(2);
    let n = 300;
    let mut gate: Vec<f32> = numbers(&mut noise, n).iter().map(|x| x * 3.0).collect();
    gate[0] = 0.0;
    let (up, dy) = (numbers(&mut noise, n), numbers(&mut noise, n));
    let root = (2.0 / core::f64::consts::PI).sqrt();
    let normal = |x: f64| 0.5 * (1.0 + erf(x / core::f64::consts::SQRT_2));
    let silu = |x: f64| x / (1.0 + (-x).exp());
    let gelu = move |x: f64| 0.5 * x * (1.0 + (root * (x + 0.044_715 * x.powi(3))).tanh());
    let kinds: [(GatedActivation, &dyn Fn(f64) -> f64, &dyn Fn(f64) -> f64); 3] = [
        (GatedActivation::Silu, &silu, &|x| {
            let s = 1.0 / (1.0 + (-x).exp());
            s * (1.0 + x * (1.0 - s))
        }),
        (GatedActivation::Gelu, &gelu, &move |x| {
            let t = (root * (x + 0.044_715 * x.powi(3))).tanh();
            0.5 * (1.0 + t) + 0.5 * x * (1.0 - t * t) * root * (1.0 + 0.134_145 * x * x)
        }),
        (
            GatedActivation::GeluErf,
            &move |x| x * normal(x),
            &move |x| normal(x) + x * (-0.5 * x * x).exp() / (2.0 * core::f64::consts::PI).sqrt(),
        ),
    ];
    for (kind, value, slope) in kinds {
        let mut d = [vec![0.0; n], vec![0.0; n]];
        let [d_gate, d_up] = &mut d;
        SCALAR.gate(kind, [&gate, &up, &dy], [d_gate, d_up]);
        let loss = |x: &[f64]| {
            let (gate, up) = x.split_at(n);
            let y: Vec<f64> = gate.iter().zip(up).map(|(g, u)| value(*g) * u).collect();
            weighted(&y, &dy)
        };
        let x = [wide(&gate), wide(&up)].concat();
        let of_gate = (0..n).map(|i| f64::from(dy[i]) * x[n + i] * slope(x[i]));
        let of_up = (0..n).map(|i| f64::from(dy[i]) * value(x[i]));
        let twin: Vec<f64> = of_gate.chain(of_up).collect();
        let name = std::format!("{kind:?}");
        check(&name, &d.concat(), &twin, &differences(&x, loss));
        for table in tables() {
            let mut found = [vec![0.0; n], vec![0.0; n]];
            let [d_gate, d_up] = &mut found;
            table
                .backward()
                .gate(kind, [&gate, &up, &dy], [d_gate, d_up]);
            assert_eq!(bits(&found.concat()), bits(&d.concat()), "{}", table.name());
        }
    }
}

#[test]
fn gates_far_from_zero_have_the_slopes_of_their_asymptotes() {
    for x in [20.0, 60.0, 88.0, 1e4, 1e30] {
        for kind in [
            GatedActivation::Silu,
            GatedActivation::Gelu,
            GatedActivation::GeluErf,
        ] {
            let mut d = [[9.0f32; 2], [9.0; 2]];
            let [d_gate, d_up] = &mut d;
            SCALAR.gate(kind, [&[x, -x], &[1.0; 2], &[1.0; 2]], [d_gate, d_up]);
            assert!((d[0][0] - 1.0).abs() < 1e-6, "{kind:?} {x} {d:?}");
            assert!(d[0][1].abs() < 1e-6, "{kind:?} -{x} {d:?}");
        }
    }
}

#[test]
fn softmax_and_soft_cap_have_their_gradients() {
    let mut noise = Noise(3);
    for n in [1, 2, 16, 33, 200] {
        let (scores, dp) = (numbers(&mut noise, n), numbers(&mut noise, n));
        let scale = 0.3f32;
        let weights = |x: &[f64]| {
            let scaled: Vec<f64> = x.iter().map(|x| (x * f64::from(scale)).exp()).collect();
            let sum: f64 = scaled.iter().sum();
            scaled.iter().map(|x| x / sum).collect::<Vec<f64>>()
        };
        let x = wide(&scores);
        let p64 = weights(&x);
        let mean64 = weighted(&p64, &dp);
        let of = |(p, d): (&f64, &f32)| p * (f64::from(*d) - mean64) * f64::from(scale);
        let twin: Vec<f64> = p64.iter().zip(&dp).map(of).collect();
        let mut p: Vec<f32> = scores.iter().map(|x| x * scale).collect();
        KernelTable::available(CpuFeatures::empty())
            .next()
            .unwrap()
            .softmax(&mut p);
        let mut expected = dp.clone();
        SCALAR.softmax(&p, SCALAR.dot(&p, &dp), scale, &mut expected);
        if n > 1 {
            let loss = |x: &[f64]| weighted(&weights(x), &dp);
            check("softmax", &expected, &twin, &differences(&x, loss));
        }

        let cap = 2.0f32;
        let capped = |x: f64| f64::from(cap) * (x / f64::from(cap)).tanh();
        let y: Vec<f32> = x.iter().map(|x| capped(*x) as f32).collect();
        let mut of_cap = dp.clone();
        SCALAR.soft_cap(&y, cap, &mut of_cap);
        let loss = |x: &[f64]| {
            let y: Vec<f64> = x.iter().map(|x| capped(*x)).collect();
            weighted(&y, &dp)
        };
        let slope = |x: f64| 1.0 - (x / f64::from(cap)).tanh().powi(2);
        let twin: Vec<f64> = x
            .iter()
            .zip(&dp)
            .map(|(x, d)| f64::from(*d) * slope(*x))
            .collect();
        check("soft cap", &of_cap, &twin, &differences(&x, loss));
        for table in tables() {
            let kernels = table.backward();
            let mut found = dp.clone();
            kernels.softmax(&p, kernels.dot(&p, &dp), scale, &mut found);
            assert_eq!(bits(&found), bits(&expected), "{} {n}", table.name());
            let mut found = dp.clone();
            kernels.soft_cap(&y, cap, &mut found);
            assert_eq!(bits(&found), bits(&of_cap), "{} {n}", table.name());
        }
    }
}

#[test]
fn cross_entropy_has_its_value_and_gradient() {
    let mut noise = Noise(4);
    for n in [1, 2, 17, 300, 1024] {
        let logits: Vec<f32> = numbers(&mut noise, n).iter().map(|x| 4.0 * x).collect();
        let label = n / 3;
        let loss = |x: &[f64]| x.iter().map(|x| x.exp()).sum::<f64>().ln() - x[label];
        let x = wide(&logits);
        let sum: f64 = x.iter().map(|x| x.exp()).sum();
        let mut twin: Vec<f64> = x.iter().map(|x| x.exp() / sum).collect();
        twin[label] -= 1.0;
        let mut expected = logits.clone();
        let value = SCALAR.cross_entropy(&mut expected, label);
        assert!((value - loss(&x)).abs() < 1e-6 * (1.0 + value), "{value}");
        if n > 1 {
            check("cross-entropy", &expected, &twin, &differences(&x, loss));
        }
        for table in tables() {
            let mut found = logits.clone();
            let its = table.backward().cross_entropy(&mut found, label);
            assert_eq!(its.to_bits(), value.to_bits(), "{} {n}", table.name());
            assert_eq!(bits(&found), bits(&expected), "{} {n}", table.name());
        }
    }
    for bad in [f32::NAN, f32::INFINITY] {
        assert!(SCALAR.cross_entropy(&mut [0.0, bad, 1.0], 0).is_nan());
    }
}
