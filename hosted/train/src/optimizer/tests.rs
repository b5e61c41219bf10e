//! Against torch's AdamW, recorded by `tests/tools/optimizer_goldens.py`.
#![expect(
    clippy::float_cmp,
    clippy::print_stdout,
    reason = "values that were not changed; what was measured"
)]

use super::{AdamW, AdamWOptions, BadGradient, TrainedTensor};
use crate::config::Schedule;
use crate::schedule::LearningRates;
use core::num::NonZeroU64;
use serde_json::Value;

const GOLDEN: &str = include_str!("../../../../tests/fixtures/train/optimizer.json");

/// As `noise` of the script: from -1 to 1, exact in f32.
fn noise(step: u32, index: u32) -> f32 {
    let x = index
        .wrapping_mul(2_654_435_761)
        .wrapping_add(step.wrapping_mul(2_246_822_519))
        .wrapping_add(374_761_393);
    let x = (x ^ (x >> 15)).wrapping_mul(2_246_822_519);
    ((x >> 16) as f32 - 32768.0) / 32768.0
}

fn gradient(step: u32, index: u32) -> f32 {
    (noise(step, index) + ((index % 7) as f32 - 3.0) / 8.0) * 64.0
}

fn labels(step: u32) -> NonZeroU64 {
    NonZeroU64::new(90 + u64::from(step) % 13).unwrap()
}

fn tensors(lens: &[usize]) -> Vec<TrainedTensor> {
    let mut start = 0;
    let tensor = |(i, len): (usize, &usize)| {
        let range = start..start + len;
        start = range.end;
        TrainedTensor {
            name: format!("tensor {i}"),
            shape: [1, *len],
            range,
            is_b: i % 2 == 1,
        }
    };
    lens.iter().enumerate().map(tensor).collect()
}

fn numbers(value: &Value) -> Vec<f64> {
    let all = value.as_array().unwrap().iter();
    all.map(|number| number.as_f64().unwrap()).collect()
}

fn options(case: &Value) -> AdamWOptions {
    let number = |key: &str| case[key].as_f64().unwrap();
    AdamWOptions {
        betas: numbers(&case["betas"]).try_into().unwrap(),
        epsilon: number("eps"),
        weight_decay: number("weight_decay"),
        max_grad_norm: case["max_norm"].as_f64(),
        b_ratio: number("b_ratio"),
    }
}

/// The largest difference over the largest value, and the difference's norm over the values'.
fn distances(found: impl Iterator<Item = f64>, expected: &[f64]) -> [f64; 2] {
    let (mut most, mut largest, mut off, mut all) = (0.0_f64, 0.0_f64, 0.0, 0.0);
    for (found, expected) in found.zip(expected) {
        let delta = found - expected;
        most = most.max(delta.abs());
        largest = largest.max(expected.abs());
        off += delta * delta;
        all += expected * expected;
    }
    [most / largest, (off / all).sqrt()]
}

#[test]
fn a_thousand_steps_are_those_of_torch() {
    let golden: Value = serde_json::from_str(GOLDEN).unwrap();
    let len_of = |len: &Value| usize::try_from(len.as_u64().unwrap()).unwrap();
    let lens: Vec<usize> = golden["tensors"]
        .as_array()
        .unwrap()
        .iter()
        .map(len_of)
        .collect();
    let n = u32::try_from(lens.iter().sum::<usize>()).unwrap();
    let n_steps = u32::try_from(golden["steps"].as_u64().unwrap()).unwrap();
    for case in golden["cases"].as_array().unwrap() {
        let name = &case["case"];
        let rates = LearningRates {
            schedule: match case["name"].as_str().unwrap() {
                "constant" => Schedule::Constant,
                "linear" => Schedule::Linear,
                _ => Schedule::Cosine {
                    num_cycles: 0.5,
                    min_lr_rate: 0.0,
                },
            },
            highest: case["lr"].as_f64().unwrap(),
            n_warmup: case["warmup"].as_u64().unwrap(),
            n_total: u64::from(n_steps),
        };
        let mut adamw = AdamW::new(options(case), tensors(&lens));
        let mut values: Vec<f32> = (0..n).map(|i| noise(0, i) / 8.0).collect();
        for step in 1..=n_steps {
            let mut gradients: Vec<f32> = (0..n).map(|i| gradient(step, i)).collect();
            let rate = rates.at(u64::from(step) - 1);
            let norm = adamw.apply(&mut values, &mut gradients, labels(step), rate);
            let norm = norm.unwrap();
            assert!(gradients.iter().all(|gradient| *gradient == 0.0));
            let Some(expected) = case["values"].get(step.to_string()) else {
                continue;
            };
            let of_torch = case["norms"][step.to_string()].as_f64().unwrap();
            assert!((norm / of_torch - 1.0).abs() < 1e-7, "{norm}, {of_torch}");
            let expected = numbers(expected);
            let [most, norm] = distances(values.iter().copied().map(f64::from), &expected);
            println!("{name}, step {step}: largest difference {most:.2e}, norm {norm:.2e}");
            // Values are rounded to f32 once a step.
            let bound = if step <= 10 { 3e-7 } else { 2.5e-6 };
            assert!(
                most < bound && norm < 1e-6,
                "{name}, step {step}: {most}, {norm}"
            );
        }
        let [_, of_torch] = distances(
            numbers(&case["f32"]).into_iter(),
            &numbers(&case["values"][n_steps.to_string()]),
        );
        let expected = numbers(&case["values"][n_steps.to_string()]);
        let [_, own] = distances(values.iter().copied().map(f64::from), &expected);
        assert!(own < of_torch, "{name}: {own}, torch in f32 {of_torch}");
    }
}

const OPTIONS: AdamWOptions = AdamWOptions {
    betas: [0.9, 0.999],
    epsilon: 1e-8,
    weight_decay: 0.01,
    max_grad_norm: Some(1.0),
    b_ratio: 4.0,
};

#[test]
fn a_restored_optimizer_goes_on_with_the_same_bits() {
    let (lens, n) = ([6, 5], 11_u32);
    let mut adamw = AdamW::new(OPTIONS, tensors(&lens));
    let mut values: Vec<f32> = (0..n).map(|i| noise(0, i)).collect();
    let step = |adamw: &mut AdamW, values: &mut [f32], step| {
        let mut gradients: Vec<f32> = (0..n).map(|i| gradient(step, i)).collect();
        adamw.apply(values, &mut gradients, labels(step), 1e-2)
    };
    for t in 1..=7 {
        step(&mut adamw, &mut values, t).unwrap();
    }
    let mut again = AdamW::new(OPTIONS, tensors(&lens));
    again
        .restore(adamw.step(), adamw.moments().clone())
        .unwrap();
    let mut same = values.clone();
    for t in 8..=20 {
        let norms = [
            step(&mut adamw, &mut values, t).unwrap(),
            step(&mut again, &mut same, t).unwrap(),
        ];
        assert_eq!(norms[0].to_bits(), norms[1].to_bits());
    }
    let bits = |values: &[f32]| values.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
    assert_eq!(bits(&values), bits(&same));
    assert_eq!(again.step(), 20);
    let short = again
        .restore(1, [vec![0.0; 11], vec![0.0; 10]])
        .unwrap_err();
    assert_eq!((short.found, short.expected), (10, 11));
    assert_eq!(again.step(), 20, "unchanged");
}

#[test]
fn a_gradient_that_is_not_finite_is_named_and_changes_nothing() {
    for bad in [f32::NAN, f32::INFINITY] {
        let mut adamw = AdamW::new(OPTIONS, tensors(&[2, 3]));
        let mut values = [1.0_f32; 5];
        let mut gradients = [1.0, 1.0, 1.0, bad, 1.0];
        let n = NonZeroU64::MIN;
        let error = adamw.apply(&mut values, &mut gradients, n, 0.1);
        let tensor = "tensor 1".to_owned();
        assert_eq!(error, Err(BadGradient { tensor }));
        assert!(values.iter().all(|value| *value == 1.0));
        assert_eq!(adamw.step(), 0);
    }
}

#[test]
fn the_largest_gradients_have_a_norm() {
    let mut adamw = AdamW::new(OPTIONS, tensors(&[4]));
    let mut values = [0.0_f32; 4];
    let norm = adamw.apply(&mut values, &mut [f32::MAX; 4], NonZeroU64::MIN, 0.1);
    assert!((norm.unwrap() / f64::from(f32::MAX) - 2.0).abs() < 1e-12);
    assert!(values.iter().all(|value| value.is_finite()));
}
