//! Predictors: what they are fitted to, in f32 and in 8 bits.

use super::numbers;
use crate::sparse::pi::SphericalVectors as _;
use crate::sparse::*;

const N: usize = 96;
const HIDDEN: usize = 400;
const KEPT: usize = 40;

/// A mean and a few directions around it, as real vectors have.
fn sample(seed: u64, scale: f32) -> Vec<f32> {
    let mut x = numbers(N, 77);
    for (i, c) in numbers(12, 2 * seed).into_iter().enumerate() {
        let basis = numbers(N, 100 + i as u64);
        x.iter_mut().zip(basis).for_each(|(x, b)| *x += b * c * 0.3);
    }
    x.iter().map(|x| x * scale).collect()
}

fn samples(n: u64, scale: f32) -> Vec<Vec<f32>> {
    (0..n).map(|i| sample(1000 + i, scale)).collect()
}

/// The share of the largest contributions that are among twice as many predicted neurons.
fn recall(ffn: &SparseFfn, predictor: &dyn NeuronPredictor, scale: f32) -> f64 {
    let mut found = 0;
    for seed in 0..20 {
        let x = sample(90_000 + seed, scale);
        let values = ffn.contributions(&x).unwrap();
        let mut order: Vec<usize> = (0..HIDDEN).collect();
        order.sort_by(|a, b| values[*b].abs().total_cmp(&values[*a].abs()));
        let predicted = predictor.predict(&x).unwrap();
        let is_found = |i: &&usize| predicted.binary_search(i).is_ok();
        found += order[..KEPT / 2].iter().filter(is_found).count();
    }
    found as f64 / (20 * KEPT / 2) as f64
}

fn predictor(rank: usize) -> LowRankPredictor {
    LowRankPredictor::new(N, HIDDEN, rank, SparsityConfig::with_top_k(KEPT)).unwrap()
}

#[test]
fn neurons_with_large_negative_values_are_found() {
    for activation in [ActivationType::Identity, ActivationType::Silu] {
        let ffn = SparseFfn::new(N, HIDDEN, N, activation).unwrap();
        // Small enough that SiLU is nearly half of its input.
        let mut engine = SparseInferenceEngine::from_parts(Box::new(predictor(24)), ffn.clone());
        engine.calibrate(&samples(200, 0.3)).unwrap();
        let found = recall(&ffn, engine.predictor(), 0.3);
        assert!(found >= 0.9, "{activation:?}: {found}");
        let x = sample(5, 0.3);
        assert!(ffn.contributions(&x).unwrap().iter().all(|c| *c >= 0.0));
    }
}

#[test]
fn predictors_of_8_bits_find_the_same_at_every_scale() {
    for scale in [1e-12, 1.0, 1e12] {
        let ffn = SparseFfn::new(N, HIDDEN, N, ActivationType::Relu).unwrap();
        let (xs, mut predictor) = (samples(200, scale), predictor(32));
        let ys: Vec<_> = xs.iter().map(|x| ffn.contributions(x).unwrap()).collect();
        predictor.calibrate(&xs, &ys).unwrap();
        let whole = recall(&ffn, &predictor, scale);
        predictor.quantize().unwrap();
        let after = recall(&ffn, &predictor, scale);
        predictor.calibrate(&xs, &ys).unwrap();
        let again = recall(&ffn, &predictor, scale);
        assert!(whole > 0.95 && after > 0.95, "{scale}: {whole} {after}");
        assert_eq!(after, again, "calibrated in 8 bits");
    }
    // Matrices of the caller, whose rows are of any length.
    let p: Vec<f32> = numbers(32 * N, 8)
        .iter()
        .enumerate()
        .map(|(i, x)| x * [1e-9, 1e9][i / N % 2])
        .collect();
    let q: Vec<f32> = numbers(HIDDEN * 32, 9)
        .iter()
        .enumerate()
        .map(|(i, x)| x * [1e-3, 1e-21][i % 2])
        .collect();
    let p = DenseMatrix::new(32, N, p).unwrap();
    let q = DenseMatrix::new(HIDDEN, 32, q).unwrap();
    let config = SparsityConfig::with_top_k(KEPT);
    let mut predictor = LowRankPredictor::from_matrices(p, q, config).unwrap();
    let x = numbers(N, 10);
    let whole = predictor.scores(&x).unwrap();
    predictor.quantize().unwrap();
    let largest = whole.iter().fold(0f32, |most, x| most.max(x.abs()));
    for (a, b) in predictor.scores(&x).unwrap().iter().zip(&whole) {
        assert!((a - b).abs() < 0.03 * largest, "{a} {b}");
    }
}

#[test]
fn a_calibration_that_fails_changes_nothing() {
    let (xs, mut predictor) = (samples(40, 1.0), predictor(32));
    let ys: Vec<_> = (0..40).map(|i| numbers(HIDDEN, i)).collect();
    predictor.quantize().unwrap();
    predictor.calibrate(&xs, &ys).unwrap();
    let before = predictor.scores(&xs[0]).unwrap();
    let scaled = |rows: &[Vec<f32>], scale: f32| -> Vec<Vec<f32>> {
        let row = |row: &Vec<f32>| row.iter().map(|x| x * scale).collect();
        rows.iter().map(row).collect()
    };
    for (xs, ys, text) in [
        (
            scaled(&xs, 1e-12),
            scaled(&ys, 3e38),
            "inference: matrix[0] is",
        ),
        (
            scaled(&xs, 0.0),
            ys.clone(),
            "predictor: calibration: sample 0: sample: all numbers are 0: expected others",
        ),
        (
            xs.clone(),
            scaled(&ys, 0.0),
            "predictor: calibration: sample 0: activation: all numbers are 0: expected others",
        ),
    ] {
        let error = predictor.calibrate(&xs, &ys).unwrap_err().to_string();
        assert!(error.starts_with(text), "{error}");
    }
    assert_eq!(predictor.scores(&xs[0]).unwrap(), before);
    // One sample is all that is known: its values.
    predictor.calibrate(&xs[..1], &ys[..1]).unwrap();
    for (a, b) in predictor.scores(&xs[0]).unwrap().iter().zip(&ys[0]) {
        assert!((a - b).abs() < 1e-5, "{a} {b}");
    }
}

#[test]
fn sizes_beyond_memory_are_refused_by_name() {
    let huge = usize::MAX / 64;
    let config = SparsityConfig::with_top_k(1);
    for (error, text) in [
        (
            SparseFfn::new(huge, 2, 2, ActivationType::Relu).unwrap_err(),
            "inference: input_dim is 288230376151711740: expected a size in memory",
        ),
        (
            SparseFfn::new(2, huge, 2, ActivationType::Relu).unwrap_err(),
            "inference: hidden_dim is 288230376151711740: expected a size in memory",
        ),
        (
            SparseFfn::new(2, huge / 64, 2, ActivationType::Relu).unwrap_err(),
            "inference: hidden_dim is 4503599627370495: expected a size in memory",
        ),
        (
            LowRankPredictor::new(huge, 2, 2, config).unwrap_err(),
            "inference: input_dim is 288230376151711740: expected a size in memory",
        ),
        (
            SparseInferenceEngine::new_dense(2, huge).unwrap_err(),
            "inference: hidden_dim is 288230376151711740: expected a size in memory",
        ),
        (
            DensePredictor::new(huge).predict(&[]).unwrap_err(),
            "inference: neuron_count is 288230376151711740: expected a size in memory",
        ),
        (
            HypersphericalProjection::new(huge, PrecisionLane::Bit5)
                .to_cartesian(&[1.0], 1.0)
                .unwrap_err(),
            "inference: angles has 1 elements: expected 288230376151711742",
        ),
    ] {
        assert_eq!(error.to_string(), text);
    }
}

#[test]
fn vectors_of_no_elements_have_no_angles() {
    let none = HypersphericalProjection::new(0, PrecisionLane::Bit5);
    assert!(none.to_spherical(&[]).unwrap().is_empty());
    assert!(none.to_cartesian(&[], 1.0).unwrap().is_empty());
}

/// The fit needs matrices of the square of the input's width.
#[test]
fn a_fit_beyond_memory_is_named() {
    let n = 1 << 22;
    let config = SparsityConfig::with_top_k(1);
    let p = DenseMatrix::new(1, n, vec![0.5; n]).unwrap();
    let q = DenseMatrix::new(2, 1, vec![0.5; 2]).unwrap();
    let mut predictor = LowRankPredictor::from_matrices(p, q, config).unwrap();
    let error = predictor.calibrate(&[vec![0.5; n]], &[vec![0.5; 2]]);
    assert_eq!(
        error.unwrap_err().to_string(),
        "inference: input_dim is 4194304: expected a size for which a matrix of f64 by input_dim fits in memory"
    );
}
