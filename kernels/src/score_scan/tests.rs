//! All instances against the definition, for every length up to a few vectors.
#![allow(
    clippy::float_cmp,
    clippy::cast_possible_truncation,
    reason = "exact values are expected; numbers are small"
)]

extern crate std;

use super::*;
use std::vec;
use std::vec::Vec;

/// Scores with ties, both zeros, infinities and, if `with_nan`, such that are not numbers.
fn scores(n: usize, seed: usize, with_nan: bool) -> Vec<f32> {
    let at = |i: usize| match (i * 7919 + seed * 104_729) % 41 {
        0 => f32::INFINITY,
        1 => f32::NEG_INFINITY,
        2 => 0.0,
        3 => -0.0,
        4 if with_nan => f32::NAN,
        5 if with_nan => -f32::NAN,
        x => x as f32 * 0.25 - 5.0,
    };
    (0..n).map(at).collect()
}

#[test]
fn every_table_finds_what_the_definition_finds() {
    for (n, with_nan) in (0..70)
        .chain([2048, 2055])
        .flat_map(|n| [(n, false), (n, true)])
    {
        let scores = scores(n, n, with_nan);
        let range = SCALAR.range(&scores);
        assert_eq!(range.n_nan, scores.iter().filter(|x| x.is_nan()).count());
        for table in KernelTable::available(CpuFeatures::detect()) {
            let (scan, name) = (table.score_scan(), table.name());
            assert_eq!(scan.range(&scores), range, "{name} {n}");
            for threshold in [
                0.0,
                -0.0,
                1.25,
                -5.0,
                f32::INFINITY,
                f32::NEG_INFINITY,
                f32::NAN,
            ] {
                let expected: Vec<usize> = (0..n)
                    .filter(|&i| scores[i] > threshold || scores[i].is_nan())
                    .collect();
                let mut list = vec![0; n];
                let found = scan.list_above(&scores, threshold, &mut list);
                assert_eq!(list[..found], expected, "{name} {n} {threshold}");
                let count = scan.count_above(&scores, threshold);
                assert_eq!(count + range.n_nan, found, "{name} {n} {threshold}");
            }
        }
    }
}

#[test]
fn no_scores_have_an_empty_range() {
    assert_eq!(SCALAR.range(&[]), ScoreRange::EMPTY);
    let nan = SCALAR.range(&[f32::NAN; 3]);
    assert_eq!((nan.lowest, nan.n_nan), (f32::INFINITY, 3));
}
