//! Against transformers' `get_scheduler`, recorded by `tests/tools/optimizer_goldens.py`.
#![expect(
    clippy::float_cmp,
    clippy::print_stdout,
    reason = "exact rates; what was measured"
)]

use super::LearningRates;
use crate::config::{DecayShape, Schedule};
use serde_json::Value;

const GOLDEN: &str = include_str!("../../../../tests/fixtures/train/schedules.json");

fn schedule(case: &Value) -> Schedule {
    let kwargs = &case["kwargs"];
    let number = |key: &str, default| kwargs[key].as_f64().unwrap_or(default);
    let shape = |key: &str, default| match kwargs[key].as_str() {
        Some("linear") => DecayShape::Linear,
        Some("cosine") => DecayShape::Cosine,
        Some(_) => DecayShape::InverseSquareRoot,
        None => default,
    };
    let floor = number("min_lr", 0.0) / case["learning_rate"].as_f64().unwrap();
    match case["name"].as_str().unwrap() {
        "constant" => Schedule::Constant,
        "constant_with_warmup" => Schedule::ConstantWithWarmup,
        "linear" => Schedule::Linear,
        "cosine" | "cosine_with_min_lr" => Schedule::Cosine {
            num_cycles: number("num_cycles", 0.5),
            min_lr_rate: number("min_lr_rate", floor),
        },
        "warmup_stable_decay" => Schedule::WarmupStableDecay {
            num_stable_steps: kwargs["num_stable_steps"].as_u64(),
            num_decay_steps: kwargs["num_decay_steps"].as_u64().unwrap(),
            warmup: shape("warmup_type", DecayShape::Linear),
            decay: shape("decay_type", DecayShape::Cosine),
            min_lr_ratio: number("min_lr_ratio", 0.0),
            num_cycles: number("num_cycles", 0.5),
        },
        other => panic!("{other}"),
    }
}

#[test]
fn rates_are_those_of_transformers() {
    let cases: Value = serde_json::from_str(GOLDEN).unwrap();
    let (mut n, mut most) = (0, 0.0_f64);
    for case in cases.as_array().unwrap() {
        let rates = LearningRates {
            schedule: schedule(case),
            highest: case["learning_rate"].as_f64().unwrap(),
            n_warmup: case["warmup"].as_u64().unwrap(),
            n_total: case["total"].as_u64().unwrap(),
        };
        for (step, expected) in (0..).zip(case["rates"].as_array().unwrap()) {
            let (found, expected) = (rates.at(step), expected.as_f64().unwrap());
            let off = (found - expected).abs() / rates.highest;
            most = most.max(off);
            assert!(off < 1e-12, "{case}\nstep {step}: {found}, not {expected}");
            n += 1;
        }
    }
    println!("{n} rates, largest difference {most:.1e} of the highest");
    assert_eq!(n, 13 * 44);
}

#[test]
fn the_first_update_of_a_warm_up_has_rate_0() {
    let rates = LearningRates {
        schedule: Schedule::Linear,
        highest: 1.0,
        n_warmup: 4,
        n_total: 10,
    };
    assert_eq!(
        [0, 2, 4, 10, 11].map(|step| rates.at(step)),
        [0.0, 0.5, 1.0, 0.0, 0.0]
    );
}
