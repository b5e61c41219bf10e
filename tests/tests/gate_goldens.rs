//! The gate's scaling against residue-protocol 4.2.4's, and its features against f64.
//!
//! `fixtures/gate/*.f32` were written by `tools/gate_goldens.py`; see its header.

#![expect(clippy::print_stdout, reason = "figures for a run with --nocapture")]
#![expect(clippy::cast_possible_truncation, reason = "bins of a histogram")]

use sluice_core::gate::{Feature, Gate, GateConfig, Measure, Policy};
use sluice_core::kernels::{CpuFeatures, FrameKernels};
use sluice_tests::gate::{ecg, speech, uniform};

/// What both sides may differ by.
const TOLERANCE: f64 = 1e-5;

/// Every frame evaluated, as the predecessor's single-frame call does.
fn single(kernels: &'static FrameKernels) -> Gate {
    let config = GateConfig {
        wall: 0.0,
        policy: Policy {
            measure: Measure::Scaling,
            threshold: 0.0,
            ..Policy::default()
        },
        ..GateConfig::default()
    };
    Gate::new(config, kernels).expect("the settings are right")
}

fn golden(bytes: &[u8]) -> Vec<f32> {
    let (numbers, rest) = bytes.as_chunks::<4>();
    assert!(rest.is_empty());
    numbers.iter().map(|b| f32::from_le_bytes(*b)).collect()
}

/// Frame `i` of the random stream, as the script makes it.
fn frame(i: usize) -> Vec<f32> {
    const LENGTHS: [usize; 7] = [1024, 8, 64, 333, 1000, 2048, 17];
    let n = LENGTHS[i % LENGTHS.len()];
    let u = uniform((i as u64) << 20, n);
    let map = |f: &dyn Fn(f32) -> f32| u.iter().map(|&u| f(u)).collect();
    match i % 11 {
        0 => u,
        1 => map(&|u| u * 0.01),
        2 => map(&|u| u * 1e-4 + 0.5),
        3 => vec![u[0]; n],
        4 => map(&|u| if u >= 0.0 { 0.5 } else { -0.5 }),
        5 => (0..n).map(|j| j as f32 / 1024.0).collect(),
        6 => {
            let mut x = vec![0.0; n];
            x[i % n] = u[0];
            x
        }
        7 => map(&|u| if u.abs() > 0.9 { u } else { 0.0 }),
        8 => map(&|u| u * 3e-8),
        9 => map(&|u| u * u.abs()),
        _ => {
            let level = |j| if j / 16 % 2 == 0 { 0.25 } else { -0.75 };
            (0..n).map(level).collect()
        }
    }
}

/// Runs the frames on every table; returns the largest difference from the golden scalings.
fn compare<'a>(name: &str, expected: &[f32], frames: impl Iterator<Item = &'a [f32]> + Clone) {
    let mut bits = None;
    for kernels in FrameKernels::available(CpuFeatures::detect()) {
        let mut gate = single(kernels);
        let decisions: Vec<_> = frames.clone().map(|frame| gate.process(frame)).collect();
        assert_eq!(decisions.len(), expected.len());
        let mut worst = 0f64;
        for (i, (found, expected)) in decisions.iter().zip(expected).enumerate() {
            let difference = (f64::from(found.scaling) - f64::from(*expected)).abs();
            assert!(difference <= TOLERANCE, "{name} {i}: {found:?} {expected}");
            worst = worst.max(difference);
        }
        println!("{name} on {}: at most {worst:.2e} apart", kernels.name());
        let found: Vec<_> = decisions.iter().map(|d| d.scaling.to_bits()).collect();
        assert_eq!(
            *bits.get_or_insert_with(|| found.clone()),
            found,
            "{name} {}",
            kernels.name()
        );
    }
}

#[test]
fn scalings_of_random_frames_are_those_of_residue() {
    let expected = golden(include_bytes!("../fixtures/gate/random.f32"));
    let frames: Vec<_> = (0..expected.len()).map(frame).collect();
    compare("random", &expected, frames.iter().map(|frame| &**frame));
}

#[test]
fn scalings_of_recordings_are_those_of_residue() {
    if let Some(samples) = speech() {
        let expected = golden(include_bytes!("../fixtures/gate/jfk.f32"));
        compare("jfk", &expected, samples.chunks_exact(128));
    }
    if let Some(samples) = ecg() {
        let expected = golden(include_bytes!("../fixtures/gate/ecg.f32"));
        compare("ecg", &expected, samples.chunks_exact(512));
    }
}

/// f0 to f6 but f2, straight from the definition, all in f64 except the bins.
fn features(x: &[f32]) -> [f64; 7] {
    let n = x.len() as f64;
    let wide: Vec<f64> = x.iter().map(|&x| f64::from(x)).collect();
    let crosses = |a: f64, b: f64| (a >= 0.0 && b < 0.0) || (a < 0.0 && b >= 0.0);
    let crossings = wide.windows(2).filter(|w| crosses(w[0], w[1])).count() as f64;
    let f0 = if x.len() < 2 {
        0.0
    } else {
        crossings / (n - 1.0)
    };
    let l1 = wide.iter().map(|x| x.abs()).sum::<f64>() / n;
    let min = x.iter().copied().fold(f32::INFINITY, f32::min);
    let max = x.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let mut f3 = 0.0;
    if x.len() >= 2 && f64::from(max - min) >= 1e-8 {
        let mut counts = [0f64; 256];
        let inverse = 1.0 / (max - min);
        for x in x {
            let u = (x - min) * inverse;
            counts[((u * 255.0) as usize).min(255)] += 1.0;
        }
        for count in counts.into_iter().filter(|&count| count > 0.0) {
            f3 -= count / n * (count / n).log2();
        }
    }
    let mean = wide.iter().sum::<f64>() / n;
    let variance = wide.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / n;
    let lag1: f64 = wide.windows(2).map(|w| (w[0] - mean) * (w[1] - mean)).sum();
    let c = if variance > 1e-8 {
        (lag1 / (variance * (n - 1.0))).abs()
    } else {
        0.0
    };
    let zf = x.iter().filter(|x| x.abs() < 1e-8).count() as f64 / n;
    let few = x.len() < 3;
    let f4 = 0.4 * variance.sqrt() + 0.3 * (1.0 - zf) + 0.3 * c;
    let f5 = if variance > 1e-8 {
        0.7 * c + 0.3 * f0
    } else {
        0.0
    };
    [
        f0,
        (1.0 - l1).max(0.0),
        0.0,
        f3,
        if few { 0.0 } else { f4.clamp(0.0, 1.0) },
        if few { 0.0 } else { f5.clamp(0.0, 1.0) },
        if l1 < f64::from(0.1f32) { 1.0 } else { zf },
    ]
}

#[test]
fn features_are_those_of_the_definition_in_f64() {
    let mut frames: Vec<_> = (0..6000).map(frame).collect();
    for (len, samples) in [(128, speech()), (512, ecg())] {
        let samples = samples.unwrap_or_default();
        frames.extend(samples.chunks_exact(len).map(<[f32]>::to_vec));
    }
    // A constant offset large against the signal, and the shortest frames.
    for offset in [1.0, -100.0, 1e4] {
        frames.extend((0..50).map(|i| uniform(i, 1024).iter().map(|u| offset + u * 0.1).collect()));
    }
    frames.extend((1..6).map(|n| uniform(7, n)));
    let mut worst = [0f64; 7];
    for frame in &frames {
        let expected = features(frame);
        for kernels in FrameKernels::available(CpuFeatures::detect()) {
            let found = single(kernels).process(frame).features.expect("evaluated");
            for feature in Feature::ALL {
                if feature == Feature::TemporalCoherence {
                    continue;
                }
                let i = feature as usize;
                let difference = (f64::from(found[feature]) - expected[i]).abs();
                assert!(
                    difference <= TOLERANCE,
                    "{feature:?}: {found:?} {expected:?}"
                );
                worst[i] = worst[i].max(difference);
            }
        }
    }
    println!("{} frames, largest differences {worst:?}", frames.len());
}
