//! Every table against the scalar one in every bit, and the scalar one against plain f64.

#![expect(
    clippy::float_cmp,
    clippy::cast_possible_truncation,
    reason = "exact values, and places drawn at random"
)]

use super::{BINS_MAX, Bins, Counts, FrameKernels, FrameStats, NEAR_ZERO, SCALAR};
use crate::CpuFeatures;
use crate::tests::Noise;
extern crate std;
use std::vec;
use std::vec::Vec;

fn all() -> Vec<&'static FrameKernels> {
    FrameKernels::available(CpuFeatures::detect()).collect()
}

/// The bits of everything in `stats`.
fn bits(stats: &FrameStats) -> [u64; 13] {
    let f = |x: f32| u64::from(x.to_bits());
    [
        stats.len as u64,
        f(stats.max_abs),
        f(stats.min),
        f(stats.max),
        f(stats.first),
        f(stats.last_d),
        stats.n_crossings as u64,
        stats.n_near_zero as u64,
        stats.n_non_finite as u64,
        stats.sum_abs.to_bits(),
        stats.sum_d.to_bits(),
        stats.sum_d2.to_bits(),
        stats.sum_lag1.to_bits(),
    ]
}

fn check(x: &[f32], what: &str) {
    let expected = SCALAR.stats(x);
    let bins = Bins::over(&expected, 1 + x.len() % BINS_MAX);
    let mut counts: Counts = [0; BINS_MAX];
    SCALAR.histogram(x, &bins, &mut counts);
    assert_eq!(counts.iter().sum::<u32>() as usize, x.len());
    for kernels in all() {
        let (name, n) = (kernels.name(), x.len());
        let found = kernels.stats(x);
        assert_eq!(
            bits(&found),
            bits(&expected),
            "{name} {what} n = {n}\n{found:?}\n{expected:?}"
        );
        let max_abs = kernels.max_abs(x).to_bits();
        assert_eq!(max_abs, expected.max_abs.to_bits(), "{name} {what} n = {n}");
        let mut found: Counts = [7; BINS_MAX];
        kernels.histogram(x, &bins, &mut found);
        assert_eq!(found, counts, "{name} {what} n = {n}");
        let mut together: Counts = [9; BINS_MAX];
        let stats = kernels.stats_and_histogram(x, None, bins.n_bins, &mut together, &x[n / 2..]);
        let peaks = [&x[n / 2..], &[]].map(|next| kernels.peaks_before(x, next));
        assert_eq!(
            peaks,
            [SCALAR.peaks_before(x, &[]); 2],
            "{name} {what} n = {n}"
        );
        assert_eq!(
            peaks[0].max_abs().to_bits(),
            max_abs,
            "{name} {what} n = {n}"
        );
        let mut known: Counts = [11; BINS_MAX];
        let again = kernels.stats_and_histogram(x, Some(peaks[0]), bins.n_bins, &mut known, &[]);
        assert_eq!(
            (bits(&again), known),
            (bits(&expected), counts),
            "{name} {what} n = {n}"
        );
        let before = [&x[n / 2..], &[]].map(|next| kernels.max_abs_before(x, next).to_bits());
        assert_eq!(before, [max_abs; 2], "{name} {what} n = {n}");
        assert_eq!(bits(&stats), bits(&expected), "{name} {what} n = {n}");
        assert_eq!(together, counts, "{name} {what} n = {n}");
        let entropies = [kernels, &SCALAR].map(|kernels| kernels.entropy(&counts, n).to_bits());
        assert_eq!(entropies[0], entropies[1], "{name} {what} n = {n}");
    }
}

/// Frames of `n` samples of many kinds.
fn frames(n: usize, noise: &mut Noise) -> Vec<(&'static str, Vec<f32>)> {
    let ramp = (0..n).map(|i| i as f32 / 1024.0).collect();
    let offset = noise.values(n).iter().map(|x| 1e4 + 1e-2 * x).collect();
    let quiet = noise.values(n).iter().map(|x| 3e-8 * x).collect();
    let denormal = noise.values(n).iter().map(|x| 1e-41 * x).collect();
    // A range below the normal numbers whose inverse is one; and one whose inverse is below them.
    let tiny = noise.values(n).iter().map(|x| 4e-39 * x).collect();
    let large = noise.values(n).iter().map(|x| 1.2e38 * x).collect();
    // Sums of magnitudes overflow, in a range that is counted.
    let far = noise.values(n).iter().map(|x| 3e38 + 1e35 * x).collect();
    // The last difference overflows, and is the last in its lane.
    let mut apart = vec![0.0; n];
    if let [first, .., last] = &mut apart[..] {
        (*first, *last) = (-2e38, 2e38);
    }
    let huge = noise.values(n).iter().map(|x| 3e38 * x.signum()).collect();
    let mut hole = noise.values(n);
    if n > 0 {
        hole[noise.u64() as usize % n] = [f32::NAN, f32::INFINITY, f32::NEG_INFINITY][n % 3];
    }
    vec![
        ("noise", noise.values(n)),
        ("wide", noise.wide_values(n)),
        ("any", noise.any_values(n)),
        ("ramp", ramp),
        ("offset", offset),
        ("quiet", quiet),
        ("denormal", denormal),
        ("huge", huge),
        ("tiny", tiny),
        ("large", large),
        ("far", far),
        ("apart", apart),
        ("hole", hole),
        ("zeros", vec![0.0; n]),
        ("minus zeros", vec![-0.0; n]),
        ("constant", vec![-0.5; n]),
        (
            "zeros of both signs",
            (0..n)
                .map(|i| if i % 3 == 0 { -0.0 } else { 0.0 })
                .collect(),
        ),
    ]
}

#[test]
fn all_tables_are_one_function_of_any_length() {
    let mut noise = Noise(71);
    for n in (0..=2 * 64 + 16).chain([
        191, 192, 255, 256, 257, 272, 511, 513, 1000, 1024, 4100, 70_000,
    ]) {
        for (what, x) in frames(n, &mut noise) {
            check(&x, what);
        }
    }
}

#[test]
fn all_tables_are_one_function_at_any_alignment() {
    let mut noise = Noise(72);
    let x = noise.values(400);
    for at in 0..32 {
        for n in 0..=80 {
            check(&x[at..at + n], "noise");
        }
        check(&x[at..at + 300], "noise");
    }
}

#[test]
fn statistics_are_those_of_plain_f64() {
    let mut noise = Noise(73);
    for n in [1, 2, 3, 17, 1024, 5000] {
        for (what, x) in frames(n, &mut noise) {
            if ["any", "hole", "huge", "large", "far", "apart"].contains(&what) {
                continue;
            }
            let stats = SCALAR.stats(&x);
            let f = |x: f32| f64::from(x);
            let near = |found: f64, exact: f64, size: f64| {
                assert!(
                    (found - exact).abs() <= 1e-6 * size,
                    "{what} {n}: {found} {exact}"
                );
            };
            let d: Vec<f64> = x.iter().map(|&x_i| f(x_i) - f(x[0])).collect();
            let size: f64 = d.iter().map(|d| d * d).sum();
            near(
                stats.sum_abs,
                x.iter().map(|&x| f(x).abs()).sum(),
                stats.sum_abs,
            );
            near(stats.sum_d, d.iter().sum(), d.iter().map(|d| d.abs()).sum());
            near(stats.sum_d2, size, size);
            near(
                stats.sum_lag1,
                d.windows(2).map(|d| d[0] * d[1]).sum(),
                size,
            );
            let zeros = x.iter().filter(|x| x.abs() < NEAR_ZERO).count();
            assert_eq!((stats.n_near_zero, stats.n_non_finite), (zeros, 0));
            let max = x.iter().map(|x| x.abs()).fold(0.0, f32::max);
            assert_eq!(stats.max_abs.to_bits(), max.to_bits());
        }
    }
}

#[test]
fn entropy_is_that_of_its_definition() {
    let mut noise = Noise(75);
    for most in [1, 2, 31, 32, 33, 2047, 2048, 5000, 1 << 20] {
        let mut counts: Counts = [0; BINS_MAX];
        for count in &mut counts[..1 + most % BINS_MAX] {
            *count = (noise.u64() % (most as u64 + 1)) as u32;
        }
        counts[0] = most as u32;
        let n = f64::from(counts.iter().sum::<u32>());
        let of = |&c: &u32| {
            if c == 0 {
                0.0
            } else {
                f64::from(c) / n * (n / f64::from(c)).log2()
            }
        };
        let exact: f64 = counts.iter().map(of).sum();
        for kernels in all() {
            let found = kernels.entropy(&counts, n as usize);
            let name = kernels.name();
            // The rounding of 256 products, and the last bits of f64.
            let bound = 256.0 / n * f64::powi(0.5, 21) + 1e-13;
            assert!(
                (found - exact).abs() <= bound,
                "{name} {most}: {found} {exact}"
            );
        }
    }
}

/// A hole in a frame leaves the rest of its statistics usable.
#[test]
fn samples_that_are_not_finite_are_counted_and_left_out() {
    let x = [1.0, f32::NAN, -3.0, f32::NEG_INFINITY, 2.0, f32::INFINITY];
    for kernels in all() {
        let stats = kernels.stats(&x);
        assert!(stats.max_abs.is_nan());
        assert_eq!((stats.min, stats.max, stats.n_non_finite), (-3.0, 2.0, 3));
        // -3 | -inf are both negative, -inf | 2 and nothing else crosses.
        assert_eq!(stats.n_crossings, 1);
        assert_eq!(
            (stats.sum_abs, stats.sum_d, stats.sum_d2),
            (6.0, -3.0, 17.0)
        );
        assert_eq!(kernels.max_abs(&x[2..]), f32::INFINITY);
        let bins = Bins {
            min: -3.0,
            inverse_range: 0.2,
            n_bins: 6,
        };
        let mut counts = [0; BINS_MAX];
        kernels.histogram(&x, &bins, &mut counts);
        assert_eq!(counts[..6], [1, 0, 0, 0, 1, 4]);
    }
}

/// Worked by hand: which neighbours cross.
#[test]
fn crossings() {
    let cases: [(&[f32], usize); 6] = [
        (&[], 0),
        (&[1.0, -1.0, 1.0, -1.0], 3),
        (&[0.0, -0.0, 0.0], 0),
        (&[-0.0, -1.0, 0.0], 2),
        (&[-1.0, f32::NAN, 1.0], 0),
        (&[-1.0, f32::INFINITY, f32::NEG_INFINITY], 2),
    ];
    for (x, expected) in cases {
        for kernels in all() {
            assert_eq!(
                kernels.stats(x).n_crossings,
                expected,
                "{} {x:?}",
                kernels.name()
            );
        }
    }
}
