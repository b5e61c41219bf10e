//! Scores against f64, in both forms.
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

/// Memory aligned to 64 bytes.
#[derive(Clone)]
#[repr(C, align(64))]
struct Line([u8; 64]);

fn lines(bytes: usize) -> Vec<Line> {
    vec![Line([0; 64]); bytes.div_ceil(64)]
}

fn bytes_of(lines: &mut [Line]) -> &mut [u8] {
    let n = size_of_val(lines);
    // SAFETY: lines are bytes without padding, borrowed by the result.
    unsafe { core::slice::from_raw_parts_mut(lines.as_mut_ptr().cast(), n) }
}

fn exact(p: &[f32], q: &[f32], x: &[f32], rank: usize) -> Vec<f64> {
    let dot =
        |row: &[f32], x: &[f64]| -> f64 { row.iter().zip(x).map(|(w, x)| f64::from(*w) * x).sum() };
    let x: Vec<f64> = x.iter().map(|x| f64::from(*x)).collect();
    let z: Vec<f64> = p.chunks(x.len()).map(|row| dot(row, &x)).collect();
    q.chunks(rank).map(|row| dot(row, &z)).collect()
}

#[test]
fn scores_are_q_of_p_of_x() {
    for (input, rank, hidden) in [(64, 32, 100), (5, 3, 4), (33, 7, 50)] {
        let (p, q) = (numbers(rank * input, 1), numbers(hidden * rank, 2));
        let weights = PredictorWeights::new(input, rank, &p, &q).unwrap();
        assert_eq!(weights.hidden_dim(), hidden);
        let x = numbers(input, 3);
        let (mut z, mut scores) = (vec![0.0; rank], vec![0.0; hidden]);
        weights.scores(best(), &x, &mut z, &mut scores).unwrap();
        for (a, b) in scores.iter().zip(exact(&p, &q, &x, rank)) {
            assert!((f64::from(*a) - b).abs() < 1e-4, "{a} {b}");
        }
    }
}

#[test]
fn eight_bits_are_close_and_the_same_on_all_tables() {
    let (input, rank, hidden) = (96, 32, 200);
    let (p, q) = (numbers(rank * input, 1), numbers(hidden * rank, 2));
    let weights = PredictorWeights::new(input, rank, &p, &q).unwrap();
    let mut memory = lines(Int8Predictor::bytes(input, rank, hidden).unwrap());
    let packed = Int8Predictor::pack(&weights, bytes_of(&mut memory), &mut [0; 192]).unwrap();
    let (x, mut results) = (numbers(input, 3), Vec::new());
    for table in KernelTable::available(CpuFeatures::detect()) {
        let (mut z, mut scores) = (vec![0.0; rank], vec![0.0; hidden]);
        let mut scratch = lines(packed.scratch_bytes());
        let scratch = bytes_of(&mut scratch);
        packed
            .scores(table, &x, &mut z, scratch, &mut scores)
            .unwrap();
        results.push(scores);
    }
    assert!(results.windows(2).all(|pair| pair[0] == pair[1]));
    let exact = exact(&p, &q, &x, rank);
    let size = exact.iter().map(|x| x * x).sum::<f64>().sqrt();
    let error: f64 = exact
        .iter()
        .zip(&results[0])
        .map(|(a, b)| (a - f64::from(*b)).powi(2))
        .sum();
    assert!(error.sqrt() < 0.02 * size, "{} of {size}", error.sqrt());
}

#[test]
fn bad_input_is_named() {
    let text = |error: SparsityError| std::format!("{error}");
    assert_eq!(
        text(PredictorWeights::new(4, 5, &[0.0; 20], &[0.0; 25]).unwrap_err()),
        "rank is 5: expected 1 to the smaller of input_dim and hidden_dim"
    );
    assert_eq!(
        text(PredictorWeights::new(4, 2, &[0.0; 7], &[0.0; 8]).unwrap_err()),
        "p has 7 elements: expected 8"
    );
    assert_eq!(
        text(Int8Predictor::bytes(100, 32, 8).unwrap_err()),
        "input has 100 elements: expected a multiple of 32"
    );
    let mut memory = lines(Int8Predictor::bytes(32, 32, 32).unwrap() + 64);
    let n = Int8Predictor::bytes(32, 32, 32).unwrap();
    let error = Int8Predictor::new(32, 32, 32, &bytes_of(&mut memory)[5..][..n]);
    assert_eq!(
        text(error.unwrap_err()),
        "address of memory modulo 64 is 5: expected 0"
    );
    let packed = Int8Predictor::new(32, 32, 32, &bytes_of(&mut memory)[..n]).unwrap();
    let mut scratch = lines(packed.scratch_bytes() + 64);
    let scratch = &mut bytes_of(&mut scratch)[9..];
    let error = packed.scores(best(), &[0.0; 32], &mut [0.0; 32], scratch, &mut [0.0; 32]);
    assert_eq!(
        text(error.unwrap_err()),
        "address of scratch modulo 64 is 9: expected 0"
    );
    let (p, q) = (
        [0.0; 1024],
        core::array::from_fn::<f32, 1024, _>(|i| i as f32 * 100.0),
    );
    let large = PredictorWeights::new(32, 32, &p, &q).unwrap();
    let error = Int8Predictor::pack(&large, &mut bytes_of(&mut memory)[..n], &mut [0; 64]);
    assert_eq!(
        text(error.unwrap_err()),
        "q[656] is 65600: expected at most 65504 in size"
    );
    let huge = Int8Predictor::bytes(32, 32, usize::MAX / 8).unwrap_err();
    assert!(text(huge).starts_with("hidden_dim is 2305843009213694000: expected"));
    let (p, q) = ([0.5; 8], [0.5; 8]);
    let weights = PredictorWeights::new(4, 2, &p, &q).unwrap();
    let error = weights.scores(
        best(),
        &[0.0, f32::NAN, 0.0, 0.0],
        &mut [0.0; 2],
        &mut [0.0; 4],
    );
    assert_eq!(
        text(error.unwrap_err()),
        "input[1] is NaN: expected a finite number"
    );
}
