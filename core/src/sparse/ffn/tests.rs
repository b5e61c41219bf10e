//! Selected neurons against a sum in f64, and all of them against the dense result.
#![allow(
    clippy::float_cmp,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "exact values are expected; numbers are small"
)]

extern crate std;

use super::super::tests::{best, numbers};
use super::*;
use crate::kernels::CpuFeatures;
use std::vec;
use std::vec::Vec;

fn act(activation: ActivationType, x: f64) -> f64 {
    match activation {
        ActivationType::Relu => x.max(0.0),
        ActivationType::Gelu => {
            let inner = (2.0 / core::f64::consts::PI).sqrt() * (x + 0.044715 * x * x * x);
            0.5 * x * (1.0 + inner.tanh())
        }
        ActivationType::Silu | ActivationType::Swish => x / (1.0 + (-x).exp()),
        ActivationType::Identity => x,
    }
}

const ALL: [ActivationType; 5] = [
    ActivationType::Relu,
    ActivationType::Gelu,
    ActivationType::Silu,
    ActivationType::Swish,
    ActivationType::Identity,
];

#[test]
fn selected_neurons_are_their_sum() {
    for (dims, activation) in [(64, 100, 48), (7, 33, 5), (1, 1, 1), (50, 64, 16)]
        .into_iter()
        .zip(ALL)
    {
        let (input, hidden, output) = dims;
        let dims = FfnDims {
            input,
            hidden,
            output,
        };
        let (w1, w2_t) = (numbers(hidden * input, 1), numbers(hidden * output, 2));
        let (b1, b2) = (numbers(hidden, 3), numbers(output, 4));
        let x = numbers(input, 5);
        let ffn = FfnWeights::new(dims, &w1, &w2_t, &b1, &b2, activation).unwrap();
        let scattered: Vec<usize> = (0..hidden).filter(|i| i % 3 != 1).collect();
        let mut results = Vec::new();
        for table in KernelTable::available(CpuFeatures::detect()) {
            let mut out = vec![0.0; output];
            ffn.forward(table, &x, Selected::Neurons(&scattered), &mut out)
                .unwrap();
            for (o, out) in out.iter().enumerate() {
                let mut sum = f64::from(b2[o]);
                for &i in &scattered {
                    let row = &w1[i * input..][..input];
                    let h: f64 = row
                        .iter()
                        .zip(&x)
                        .map(|(w, x)| f64::from(*w) * f64::from(*x))
                        .sum();
                    sum += act(activation, h + f64::from(b1[i])) * f64::from(w2_t[i * output + o]);
                }
                assert!((f64::from(*out) - sum).abs() < 1e-4, "{dims:?} {out} {sum}");
            }
            results.push(out);
        }
        assert!(
            results.windows(2).all(|pair| pair[0] == pair[1]),
            "one result on all tables"
        );
    }
}

#[test]
fn all_neurons_are_the_dense_result_and_bundles_change_nothing() {
    let dims = FfnDims {
        input: 40,
        hidden: 77,
        output: 24,
    };
    let (w1, w2_t) = (numbers(77 * 40, 1), numbers(77 * 24, 2));
    let (b1, b2, x) = (numbers(77, 3), numbers(24, 4), numbers(40, 5));
    let table = best();
    let ffn = FfnWeights::new(dims, &w1, &w2_t, &b1, &b2, ActivationType::Silu).unwrap();
    let bundles: Vec<f32> = (0..77)
        .flat_map(|i| [&w1[i * 40..][..40], &w2_t[i * 24..][..24]].concat())
        .collect();
    let bundled =
        FfnWeights::from_bundles(dims, &bundles, false, &b1, &b2, ActivationType::Silu).unwrap();
    let all: Vec<usize> = (0..77).collect();
    let mut outs = vec![vec![0.0; 24]; 3];
    ffn.forward(table, &x, Selected::All, &mut outs[0]).unwrap();
    ffn.forward(table, &x, Selected::Neurons(&all), &mut outs[1])
        .unwrap();
    bundled
        .forward(table, &x, Selected::All, &mut outs[2])
        .unwrap();
    assert_eq!(outs[0], outs[1]);
    assert_eq!(outs[0], outs[2]);
}

#[test]
fn gates_multiply() {
    let dims = FfnDims {
        input: 16,
        hidden: 20,
        output: 8,
    };
    let stride = FfnWeights::bundle_len(dims, true);
    let bundles = numbers(20 * stride, 6);
    let (b1, b2, x) = (vec![0.0; 20], vec![0.0; 8], numbers(16, 7));
    let ffn =
        FfnWeights::from_bundles(dims, &bundles, true, &b1, &b2, ActivationType::Silu).unwrap();
    let (mut out, active) = (vec![0.0; 8], [2, 3, 17]);
    let table = best();
    ffn.forward(table, &x, Selected::Neurons(&active), &mut out)
        .unwrap();
    for o in 0..8 {
        let sum: f64 = active
            .iter()
            .map(|i| {
                let bundle = &bundles[i * stride..][..stride];
                let dot = |row: &[f32]| -> f64 {
                    row.iter()
                        .zip(&x)
                        .map(|(w, x)| f64::from(*w) * f64::from(*x))
                        .sum()
                };
                let value = act(ActivationType::Silu, dot(&bundle[..16])) * dot(&bundle[16..32]);
                value * f64::from(bundle[32 + o])
            })
            .sum();
        assert!((f64::from(out[o]) - sum).abs() < 1e-5);
    }
}

/// Theirs: silu(-20) = 3.7, gelu(-6) = 1.8.
#[test]
fn activations_are_accurate_from_minus_50_to_50() {
    for table in KernelTable::available(CpuFeatures::detect()) {
        for activation in ALL {
            for i in -5000..=5000 {
                let x = i as f32 / 100.0;
                let mut value = [x];
                activation.apply_slice(table, &mut value);
                let exact = act(activation, f64::from(x));
                let bound = 1e-6 * f64::from(x.abs().max(1.0));
                assert!(
                    (f64::from(value[0]) - exact).abs() < bound,
                    "{} {activation:?}({x}) is {}, not {exact}",
                    table.name(),
                    value[0]
                );
            }
        }
    }
}

#[test]
fn bad_input_is_named() {
    let dims = FfnDims {
        input: 2,
        hidden: 3,
        output: 2,
    };
    let (w1, w2_t, b1, b2) = ([0.5; 6], [0.5; 6], [0.0; 3], [0.0; 2]);
    let ffn = FfnWeights::new(dims, &w1, &w2_t, &b1, &b2, ActivationType::Relu).unwrap();
    let table = best();
    let run = |x: &[f32], active: &[usize]| {
        let mut out = [0.0; 2];
        let error = ffn.forward(table, x, Selected::Neurons(active), &mut out);
        std::format!("{}", error.unwrap_err())
    };
    assert_eq!(run(&[1.0], &[0]), "input has 1 elements: expected 2");
    assert_eq!(
        run(&[1.0, f32::NAN], &[0]),
        "input[1] is NaN: expected a finite number"
    );
    assert_eq!(
        run(&[1.0, 1.0], &[0, 3]),
        "active[1] is neuron 3: there are 3"
    );
    assert_eq!(
        run(&[1.0, 1.0], &[1, 1]),
        "active[1] is neuron 1: expected ascending neurons, each once"
    );
    assert_eq!(
        run(&[1.0, 1.0], &[]),
        "no active neurons: lower the threshold, or set top_k"
    );
    let small = FfnWeights::new(dims, &w1[..5], &w2_t, &b1, &b2, ActivationType::Relu);
    assert_eq!(
        std::format!("{}", small.unwrap_err()),
        "w1 has 5 elements: expected 6"
    );
    let none = FfnDims { hidden: 0, ..dims };
    let none = FfnWeights::new(none, &[], &[], &[], &b2, ActivationType::Relu);
    assert_eq!(
        std::format!("{}", none.unwrap_err()),
        "hidden_dim is 0: expected at least 1"
    );
}
