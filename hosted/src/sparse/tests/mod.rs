//! The predecessor's quick start and tests, and what its own code does not do.
#![allow(
    clippy::float_cmp,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "exact values are expected; numbers are small"
)]

mod caches;
mod predictors;
mod streams;

use super::pi::{
    AngularVectors as _, ChaosVectors as _, ContextVectors as _, SchedulerVectors as _,
};
use super::*;
use sluice_core::sparse::pi::PI_DIGITS;

/// A number generator for samples.
fn numbers(n: usize, seed: u64) -> Vec<f32> {
    let mut chaos = PiChaos::hashed(seed);
    (0..n).map(|_| chaos.next_float() * 2.0 - 1.0).collect()
}

/// As the predecessor's README has it.
#[test]
fn the_quick_start() -> SparseResult<()> {
    let engine = SparseInferenceEngine::new_sparse(512, 2048, 0.1)?;
    let input = vec![0.1f32; 512];
    let output = engine.infer(&input)?;
    assert_eq!(output.len(), 512);

    let pi_ctx = PiContext::new(PrecisionLane::Bit5);
    let calibrated = pi_ctx.calibrate(1.0);
    assert!((calibrated - 0.938_37).abs() < 1e-4, "{calibrated}");

    let honesty = pi_ctx.check_honesty(&output, &output);
    assert!(honesty.is_honest && !honesty.should_escalate);

    let calibration = PiCalibration::for_lane(PrecisionLane::Bit5);
    assert_eq!(calibration.normalize(1.0), calibrated);
    let angular = AngularEmbedding::new(PrecisionLane::Bit7);
    assert_eq!(angular.project(&output)?.len(), 512);
    assert!(angular.angular_distance(&output, &input)? > 0.0);
    assert_eq!(pi_ctx.to_angular(&input)?.len(), 512);
    let chaos = PiChaos::new();
    assert_eq!(chaos.jitter(3), chaos.jitter(3));
    assert_eq!(chaos.schedule_order(5, 1).len(), 5);
    assert_eq!(PiScheduler::new(7).get_order().len(), 7);

    let mut policy = GraduationPolicy::new(
        PrecisionLane::Bit5,
        GraduationConfig {
            novelty_threshold: 0.3,
            drift_persistence_threshold: 5,
            confidence_threshold: 0.8,
            escalation_budget: 0.2,
        },
    );
    policy.update_metrics(GraduationMetrics {
        novelty: 0.4,
        drift_steps: 3,
        confidence: 0.9,
        cost_usage: 0.1,
        ..Default::default()
    });
    // Stability is 0 there.
    assert_eq!(policy.decide(), GraduationDecision::Stay);

    let weights = QuantizedWeights::quantize_int8(&output)?;
    assert_eq!(weights.dequantize_row(0)?.len(), 512);
    assert_eq!(
        QuantizedWeights::quantize_int4(&output, 32)?.memory_size(),
        256 + 2 * 64
    );
    assert_eq!(PI_DIGITS[..4], [3, 1, 4, 1]);
    Ok(())
}

#[test]
fn engines_count_what_they_compute_and_give_the_same_in_every_run() {
    let engine = SparseInferenceEngine::new_sparse(64, 200, 0.1).unwrap();
    let error = engine.sparsity_statistics().unwrap_err();
    assert_eq!(
        error.to_string(),
        "inference: sparsity statistics: nothing has been recorded yet"
    );
    let x = numbers(64, 1);
    let first = engine.infer(&x).unwrap();
    let again = SparseInferenceEngine::new_sparse(64, 200, 0.1).unwrap();
    assert_eq!(again.infer(&x).unwrap(), first, "seeds are fixed");
    let stats = engine.sparsity_statistics().unwrap();
    assert_eq!((stats.min_active, stats.max_active), (20, 20));
    assert!((stats.average_active_ratio - 0.1).abs() < 1e-9);
    // Theirs refuses layers below its rank of 128.
    SparseInferenceEngine::new_sparse(8, 16, 0.5).unwrap();
    let dense = SparseInferenceEngine::new_dense(64, 200).unwrap();
    let all: Vec<usize> = (0..200).collect();
    assert_eq!(
        dense.infer(&x).unwrap(),
        dense.ffn().forward_sparse(&x, &all).unwrap()
    );
    assert_eq!(dense.ffn().validate_sparse(&x, &all).unwrap(), 0.0);
    for (error, text) in [
        (
            engine.infer(&x[..63]).unwrap_err(),
            "predictor: input has 63 elements: expected 64",
        ),
        (
            dense.infer(&x[..63]).unwrap_err(),
            "inference: input has 63 elements: expected 64",
        ),
        (
            SparseInferenceEngine::new_sparse(64, 200, 1.5).unwrap_err(),
            "inference: sparsity_ratio is 1.5: expected a number from 0 to 1",
        ),
        (
            SparseInferenceEngine::new_sparse(0, 200, 0.5).unwrap_err(),
            "inference: input_dim is 0: expected at least 1",
        ),
    ] {
        assert_eq!(error.to_string(), text);
    }
    let mut broken = x;
    broken[9] = f32::NAN;
    assert_eq!(
        engine.infer(&broken).unwrap_err().to_string(),
        "predictor: input[9] is NaN: expected a finite number"
    );
}

/// Vectors of few directions, as real ones are; theirs stays random.
#[test]
fn calibration_finds_the_neurons_that_contribute() {
    let (n, hidden, rank) = (96, 400, 24);
    let basis: Vec<_> = (0..12).map(|i| numbers(n, 100 + i)).collect();
    let sample = |seed: u64| -> Vec<f32> {
        let mut x = numbers(n, seed + 1)
            .iter()
            .map(|x| x * 0.05)
            .collect::<Vec<_>>();
        for (row, c) in basis.iter().zip(numbers(12, seed)) {
            x.iter_mut().zip(row).for_each(|(x, b)| *x += b * c);
        }
        x
    };
    let kept = 40;
    let recall = |engine: &SparseInferenceEngine| -> f64 {
        let mut found = 0;
        for seed in 0..20 {
            let x = sample(90_000 + 2 * seed);
            let values = engine.ffn().contributions(&x).unwrap();
            let mut order: Vec<usize> = (0..hidden).collect();
            order.sort_by(|a, b| values[*b].abs().total_cmp(&values[*a].abs()));
            let predicted = engine.predictor().predict(&x).unwrap();
            // At twice k.
            let best = &order[..kept / 2];
            found += best
                .iter()
                .filter(|i| predicted.binary_search(i).is_ok())
                .count();
        }
        found as f64 / (20 * kept / 2) as f64
    };
    let ffn = SparseFfn::new(n, hidden, n, ActivationType::Relu).unwrap();
    let config = SparsityConfig::with_top_k(kept);
    let random = LowRankPredictor::new(n, hidden, rank, config).unwrap();
    let mut engine = SparseInferenceEngine::from_parts(Box::new(random), ffn);
    let before = recall(&engine);
    let samples: Vec<_> = (0..200).map(|i| sample(1000 + 2 * i)).collect();
    engine.calibrate(&samples).unwrap();
    let after = recall(&engine);
    assert!(before < 0.3, "random: {before}");
    assert!(after >= 0.9, "calibrated: {after}");
    assert!(engine.predictor().stats().is_calibrated);
    assert_eq!(engine.predictor().stats().avg_active_neurons, kept as f32);
    for (samples, text) in [
        (
            vec![],
            "predictor: calibration: sample 0: samples is empty: expected at least 1 element",
        ),
        (
            vec![vec![0.0; n], vec![f32::NAN; n]],
            "predictor: calibration: sample 1: sample[0] is NaN: expected a finite number",
        ),
        (
            vec![vec![0.5; n], vec![0.5; n], vec![0.5; n - 1]],
            "predictor: calibration: sample 2: input has 95 elements: expected 96",
        ),
    ] {
        assert_eq!(engine.calibrate(&samples).unwrap_err().to_string(), text);
    }
}

#[test]
fn a_target_is_met_with_and_without_a_threshold_for_each_vector() {
    let (n, hidden) = (64, 500);
    let ffn = SparseFfn::new(n, hidden, n, ActivationType::Silu).unwrap();
    let samples: Vec<_> = (0..400).map(|i| numbers(n, 50 + i)).collect();
    for adaptive in [true, false] {
        let config = SparsityConfig {
            adaptive_threshold: adaptive,
            ..SparsityConfig::with_target_sparsity(0.9)
        };
        let predictor = LowRankPredictor::new(n, hidden, 32, config).unwrap();
        let mut engine = SparseInferenceEngine::from_parts(Box::new(predictor), ffn.clone());
        if !adaptive {
            let error = engine.infer(&samples[0]).unwrap_err().to_string();
            assert!(
                error.contains("calibrate, or set adaptive_threshold"),
                "{error}"
            );
        }
        engine.calibrate(&samples).unwrap();
        for i in 0..200 {
            engine.infer(&numbers(n, 5000 + i)).unwrap();
        }
        let ratio = engine.sparsity_statistics().unwrap().average_active_ratio;
        assert!((ratio - 0.1).abs() < 0.02, "{adaptive}: {ratio}");
    }
}

#[test]
fn weights_of_4_and_8_bits() {
    let data: Vec<f32> = (0..256).map(|i| i as f32 / 256.0).collect();
    for (bits, most) in [(8, 0.001), (4, 0.01)] {
        let weights = QuantizedWeights::from_f32(&data, 16, 16, bits, 32).unwrap();
        let back = weights.to_f32();
        assert!(data.iter().zip(&back).all(|(a, b)| (a - b).abs() < most));
        assert_eq!(weights.shape(), (16, 16));
        assert_eq!(weights.dequantize_row(3).unwrap(), back[48..64]);
    }
    // 3 values, -1 to 1: scale 2/15, offset -1; the codes 0, 8, 15.
    let weights = QuantizedWeights::from_f32(&[-1.0, 0.05, 1.0], 1, 3, 4, 3).unwrap();
    let scale = 2.0 / 15.0;
    assert_eq!(
        weights.to_f32(),
        [-1.0, 8.0 * scale - 1.0, 15.0 * scale - 1.0]
    );
    for (error, text) in [
        (
            QuantizedWeights::from_f32(&data, 16, 16, 5, 32).unwrap_err(),
            "quantization: bits is 5: expected 4 or 8",
        ),
        (
            QuantizedWeights::from_f32(&data, 16, 15, 8, 32).unwrap_err(),
            "quantization: data has 256 elements: expected 240",
        ),
        (
            QuantizedWeights::quantize_int8(&[0.0, f32::NAN]).unwrap_err(),
            "quantization: data[1] is NaN: expected a finite number",
        ),
        (
            QuantizedWeights::quantize_int8(&[-3e38, 3e38]).unwrap_err(),
            "quantization: range of a group of data is inf: expected numbers at most 3.4e38 apart",
        ),
        (
            weights.dequantize_row(1).unwrap_err(),
            "quantization: row is 1: expected a row of the matrix, counted from 0",
        ),
    ] {
        assert_eq!(error.to_string(), text);
    }
}

/// Refused before memory is asked for.
#[test]
fn more_values_than_bytes_are_named() {
    let mut three = Quantizer3Bit::new(32).unwrap();
    let bytes = three.quantize(&[1.0; 64]).unwrap();
    for n in [62, 65, usize::MAX] {
        let error = three.dequantize(&bytes, n).unwrap_err().to_string();
        assert!(
            error.starts_with("quantization: bytes has 32 elements"),
            "{error}"
        );
    }
}

/// The predecessor's own tests of its quantisers.
#[test]
fn quantisers_of_lanes() {
    let values: Vec<f32> = (0..64).map(|i| (i as f32 - 32.0) * 0.1).collect();
    let near = |back: &[f32], most: f32| {
        let apart = values.iter().zip(back).map(|(a, b)| (a - b).abs());
        assert!(apart.fold(0.0, f32::max) < most);
    };
    let mut three = Quantizer3Bit::new(32).unwrap();
    let bytes = three.quantize(&values).unwrap();
    assert_eq!(bytes.len(), 32);
    near(&three.dequantize(&bytes, 64).unwrap(), 1.0);
    let mut five = Quantizer5Bit::new(32).unwrap();
    let codes = five.quantize(&values).unwrap();
    near(&five.dequantize(&codes).unwrap(), 0.2);
    let mut seven = Quantizer7Bit::new(32).unwrap();
    let codes = seven.quantize(&values).unwrap();
    near(&seven.dequantize(&codes).unwrap(), 0.1);
    let delta = seven.apply_lora_delta(&[10, 20, 30, 40], &[1, 2, 3, 4], 0.5);
    assert_eq!(delta.unwrap(), [11, 21, 32, 42]);
    let mut channel = Quantizer5Bit::new(4).unwrap().with_per_channel();
    channel.quantize(&values).unwrap();
    assert_eq!(channel.scales.len(), 1, "theirs has one for each value");
    // Theirs reads blocks of an odd size with the scales of others.
    let mut odd = Quantizer3Bit::new(3).unwrap();
    let bytes = odd.quantize(&[3.0, -1.0, 2.0, 30.0, -10.0, 20.0]).unwrap();
    assert_eq!(
        odd.dequantize(&bytes, 6).unwrap(),
        [3.0, -1.0, 2.0, 30.0, -10.0, 20.0]
    );
}
