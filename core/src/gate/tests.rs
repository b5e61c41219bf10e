//! Features and scaling against worked values and f64, policies by hand, streams against batches.

#![expect(
    clippy::float_cmp,
    clippy::cast_possible_truncation,
    reason = "exact values, and small whole numbers as samples"
)]

use super::*;
use crate::kernels::CpuFeatures;
use crate::ring::Ring;
use core::mem::MaybeUninit;
extern crate std;
use std::vec;
use std::vec::Vec;

/// Evaluates every frame, as the predecessor's single-frame call does.
fn single(kernels: &'static FrameKernels) -> Gate {
    let policy = Policy {
        measure: Measure::Scaling,
        threshold: 0.0,
        ..Policy::default()
    };
    let config = GateConfig {
        wall: 0.0,
        policy,
        ..GateConfig::default()
    };
    Gate::new(config, kernels).expect("the settings are right")
}

fn kernels() -> impl Iterator<Item = &'static FrameKernels> {
    FrameKernels::available(CpuFeatures::detect())
}

/// The worked values of the reference, evaluated in f64 with default parameters.
#[test]
fn worked_values() {
    let alternating: Vec<f32> = (0..8)
        .map(|i| if i % 2 == 0 { 1.0 } else { -1.0 })
        .collect();
    let ramp: Vec<f32> = (0..1024).map(|i| i as f32 / 1024.0).collect();
    let mut spike = vec![0.0; 1024];
    spike[500] = 1.0;
    let cases: [(&[f32], [f32; 7], f32); 5] = [
        (&[0.0; 1024], [0., 1., 1., 0., 0., 0., 1.], 5.529_547),
        (&alternating, [1., 0., 1., 1., 1., 1., 0.], 5.523_034),
        (&[0.5; 16], [0., 0.5, 1., 0., 0.3, 0., 0.], 5.826_693),
        (
            &ramp,
            [
                0., 0.500_488, 1., 7.997_237, 0.714_591, 0.698_631, 0.000_977,
            ],
            5.001_782,
        ),
        (
            &spike,
            [0., 0.999_023, 1., 0.011_174, 0.013_081, 0.000_686, 1.],
            5.526_723,
        ),
    ];
    for kernels in kernels() {
        for (frame, features, scaling) in cases {
            let found = single(kernels).process(frame);
            let found_features = found.features.expect("evaluated").0;
            for (found, expected) in found_features.iter().zip(features) {
                assert!(
                    (found - expected).abs() < 1e-6,
                    "{found_features:?} {features:?}"
                );
            }
            assert!(
                (found.scaling - scaling).abs() < 1e-6,
                "{found:?} {scaling}"
            );
        }
        let mut gate = single(kernels);
        gate.process(&[0.0; 1024]);
        let second = gate.process(&[0.0; 1024]);
        assert!((second.scaling - 5.894_132).abs() < 1e-6, "{second:?}");
        gate.reset();
        assert!((gate.process(&[0.0; 1024]).scaling - 5.529_547).abs() < 1e-6);
    }
}

#[test]
fn what_is_not_finite_is_signal_under_every_policy() {
    for measure in Measure::all() {
        for hole in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            for at in [0, 1, 500, 1023] {
                let policy = Policy {
                    measure,
                    threshold: 1e30,
                    ..Policy::default()
                };
                let config = GateConfig {
                    policy,
                    ..GateConfig::default()
                };
                for kernels in kernels() {
                    let mut gate = Gate::new(config, kernels).unwrap();
                    let mut frame = [0.0f32; 1024];
                    assert_eq!(gate.process(&frame).verdict, Verdict::Silent);
                    frame[at] = hole;
                    let decision = gate.process(&frame);
                    assert_eq!(decision.verdict, Verdict::Active, "{measure:?} {hole} {at}");
                    assert!(decision.scaling.is_finite());
                    let features = decision.features.expect("evaluated");
                    assert_eq!(features[Feature::DensityComplement], 0.0);
                    assert_eq!(
                        (features[Feature::Complexity], features[Feature::Structure]),
                        (1.0, 1.0)
                    );
                }
            }
        }
    }
}

#[test]
fn the_default_wall_is_inclusive_and_denormals_are_silent() {
    let table = FrameKernels::best(CpuFeatures::detect());
    let mut gate = Gate::new(GateConfig::default(), table).unwrap();
    for (sample, verdict) in [
        (1e-5, Verdict::Active),
        (-1e-5, Verdict::Active),
        (9.999e-6, Verdict::Silent),
        (f32::MIN_POSITIVE / 2.0, Verdict::Silent),
        (-0.0, Verdict::Silent),
    ] {
        assert_eq!(
            gate.process(&[0.0, sample, 0.0]).verdict,
            verdict,
            "{sample}"
        );
    }
    let held = gate.process(&[0.25; 64]).scaling;
    let silent = gate.process(&[0.0; 64]);
    assert_eq!(silent.scaling.to_bits(), held.to_bits());
    assert_eq!(silent.features, None);
    let before = gate.clone().process(&[0.5; 64]);
    assert_eq!(gate.process(&[]).verdict, Verdict::Silent);
    assert_eq!(gate.process(&[0.5; 64]), before);
}

/// The verdicts for frames of constant samples.
fn verdicts(policy: Policy, levels: &[f32]) -> Vec<Verdict> {
    let config = GateConfig {
        policy,
        ..GateConfig::default()
    };
    let mut gate = Gate::new(config, FrameKernels::best(CpuFeatures::detect())).unwrap();
    levels
        .iter()
        .map(|&x| gate.process(&[x; 100]).verdict)
        .collect()
}

#[test]
fn hysteresis_and_hang_over() {
    use Verdict::{Active, HangOver, Silent};
    let policy = Policy {
        threshold: 0.4,
        hysteresis: 0.5,
        hang_over_frames: 2,
        ..Policy::default()
    };
    let found = verdicts(policy, &[0.3, 0.4, 0.3, 0.2, 0.19, 0.3, 0.0, 0.0, 0.4, 0.1]);
    let expected = [
        Silent, Active, Active, Active, HangOver, HangOver, Silent, Silent, Active, HangOver,
    ];
    assert_eq!(found, expected);
}

#[test]
fn passing_below_a_threshold() {
    use Verdict::{Active, Silent};
    // Sparsity is 1 in quiet frames, 0 in loud ones.
    let policy = Policy {
        measure: Measure::Feature(Feature::Sparsity),
        sense: Sense::AtMost,
        threshold: 0.5,
        ..Policy::default()
    };
    assert_eq!(
        verdicts(policy, &[0.05, 0.5, 0.01, 0.0]),
        [Silent, Active, Silent, Silent]
    );
}

#[test]
fn the_threshold_follows_the_noise() {
    let policy = Policy {
        threshold: 0.01,
        noise_floor: Some(NoiseFloor {
            ratio: 3.0,
            fall: 0.5,
            rise: 0.05,
        }),
        ..Policy::default()
    };
    let mut levels = vec![0.02; 300];
    // A frame is judged by the floor before it. After k frames of 0.1 that is 0.1 - 0.08 · 0.95^k,
    // and 0.1 is at least three times as much while 0.95^k ≥ 5/6, which is k ≤ 3.55: four pass. By
    // then the floor is 0.035; twenty frames of 0.02 halve its distance to 0.02 each, which
    // leaves 1.5e-8 of it, so that the next loud frames are again four, until they are the noise.
    levels.extend([0.1; 4]);
    levels.extend([0.02; 20]);
    levels.extend([0.1; 300]);
    let found = verdicts(policy, &levels);
    let passes =
        |range: core::ops::Range<usize>| found[range].iter().filter(|v| v.passes()).count();
    assert!(found[0].passes(), "the floor is not set yet");
    assert_eq!(passes(1..300), 0, "noise of any constant level is silence");
    assert_eq!(passes(300..304), 4, "what stands out passes");
    assert_eq!(passes(304..324), 0);
    assert_eq!(passes(324..344), 4, "and no more than that");
    assert_eq!(passes(500..624), 0, "a louder noise becomes the floor");
}

#[test]
fn offsets_do_not_count_for_spreads() {
    for measure in [Measure::PeakToPeak, Measure::Std] {
        let policy = Policy {
            measure,
            threshold: 0.1,
            ..Policy::default()
        };
        assert_eq!(verdicts(policy, &[5.0, -7.0]), [Verdict::Silent; 2]);
        let config = GateConfig {
            policy,
            ..GateConfig::default()
        };
        let mut gate = Gate::new(config, FrameKernels::best(CpuFeatures::detect())).unwrap();
        let square: Vec<f32> = (0..64)
            .map(|i| 5.0 + if i % 2 == 0 { 0.25 } else { -0.25 })
            .collect();
        let decision = gate.process(&square);
        let expected = if measure == Measure::Std { 0.25 } else { 0.5 };
        assert_eq!(
            (decision.verdict, decision.value),
            (Verdict::Active, Some(expected))
        );
    }
}

/// Differences of finite samples may overflow.
#[test]
fn frames_too_loud_for_sums_are_loud() {
    for measure in [Measure::PeakToPeak, Measure::Std] {
        let config = GateConfig {
            policy: Policy {
                measure,
                threshold: 1e30,
                ..Policy::default()
            },
            ..GateConfig::default()
        };
        for kernels in FrameKernels::available(CpuFeatures::detect()) {
            let mut gate = Gate::new(config, kernels).unwrap();
            let decision = gate.process(&[3e38, -3e38, 3e38, -3e38, 3e38]);
            assert_eq!(decision.verdict, Verdict::Active, "{measure:?}");
            assert_eq!(decision.value, Some(f32::INFINITY), "{measure:?}");
            assert!((0.0..=10.0).contains(&decision.scaling));
        }
    }
}

#[test]
fn settings_that_make_no_sense_are_named() {
    let with = |change: fn(&mut GateConfig)| {
        let mut config = GateConfig::default();
        change(&mut config);
        Gate::new(config, FrameKernels::best(CpuFeatures::detect())).err()
    };
    assert_eq!(with(|_| {}), None);
    assert_eq!(with(|c| c.num_bins = 0), Some(GateError::NoBins));
    assert_eq!(with(|c| c.num_bins = 70_000), None);
    assert_eq!(with(|c| c.ema_alpha = 1.5), Some(GateError::EmaAlpha));
    assert_eq!(with(|c| c.ema_alpha = f32::NAN), Some(GateError::EmaAlpha));
    assert_eq!(
        with(|c| c.l1_threshold = f32::NAN),
        Some(GateError::L1Threshold)
    );
    assert_eq!(with(|c| c.wall = -1.0), Some(GateError::Wall));
    assert_eq!(
        with(|c| c.policy.threshold = f32::NAN),
        Some(GateError::Threshold)
    );
    assert_eq!(
        with(|c| c.policy.hysteresis = 0.0),
        Some(GateError::Hysteresis)
    );
    let floor = |c: &mut GateConfig| c.policy.noise_floor = Some(NoiseFloor::default());
    assert_eq!(with(floor), None);
    let below = |c: &mut GateConfig| {
        c.policy.noise_floor = Some(NoiseFloor::default());
        c.policy.sense = Sense::AtMost;
    };
    assert_eq!(with(below), Some(GateError::NoiseFloorAtMost));
    let mut ring_slots = [MaybeUninit::uninit(); 10];
    let mut ring = Ring::new(&mut ring_slots);
    let mut meter = Meter::new();
    let mut split = |frame_len| {
        let halves = intake::split(&mut ring, &mut meter, frame_len, Overflow::Return);
        halves.err()
    };
    assert_eq!(split(0), Some(GateError::FrameLen));
    assert_eq!(split(3), Some(GateError::RingLen));
    assert_eq!(split(5), None);
}

/// Numbers 0, 1, 2, …: every frame shows its position in the stream.
fn counting(range: core::ops::Range<usize>) -> Vec<f32> {
    range.map(|i| i as f32).collect()
}

#[test]
fn frames_stay_in_place_whatever_is_pushed_or_dropped() {
    const FRAME: usize = 5;
    for overflow in [Overflow::Return, Overflow::DropNewest] {
        let mut slots = [MaybeUninit::uninit(); 4 * FRAME];
        let mut ring = Ring::new(&mut slots);
        let mut meter = Meter::new();
        let (mut producer, mut consumer) =
            intake::split(&mut ring, &mut meter, FRAME, overflow).unwrap();
        let meter = producer_meter(&producer);
        let (mut sent, mut seen, mut seed) = (0, Vec::new(), 1u64);
        while sent < 40_000 {
            seed = seed
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(99);
            let n = (seed >> 33) as usize % 23;
            sent += producer.push(&counting(sent..sent + n));
            let n_max = (seed >> 50) as usize % 4;
            consumer.process(n_max, |frame| {
                assert_eq!(
                    frame,
                    counting(frame[0] as usize..frame[0] as usize + FRAME)
                );
                seen.push(frame[0] as usize / FRAME);
                FrameOutcome {
                    passed: (frame[0] as usize).is_multiple_of(3),
                    go_on: !(frame[0] as usize).is_multiple_of(7),
                }
            });
            let dropped = consumer.drop_oldest(usize::from(seed.is_multiple_of(11)));
            let now = meter.read(producer.gauge(), FRAME);
            assert!(now.adds_up(), "{now:?}");
            assert_eq!(now.pushed as usize, sent.div_ceil(FRAME));
            assert_eq!(now.processed as usize, seen.len());
            assert_eq!(
                now.queued_samples % FRAME,
                if producer.is_dropping() {
                    0
                } else {
                    sent % FRAME
                }
            );
            assert!(dropped <= 1);
        }
        while consumer.process(1, |frame| {
            seen.push(frame[0] as usize / FRAME);
            FrameOutcome {
                passed: true,
                go_on: true,
            }
        }) > 0
        {}
        let end = meter.read(producer.gauge(), FRAME);
        assert!(end.adds_up());
        assert!(end.queued_samples < FRAME);
        assert!(seen.is_sorted(), "in order");
        assert!(end.dropped > 0 && end.skipped > 0);
        assert_eq!(
            seen.len() as u64 + end.dropped + end.queued,
            sent.div_ceil(FRAME) as u64
        );
        let since = end.since(&end);
        assert!(since.adds_up());
        assert_eq!((since.processed, since.pushed), (0, since.queued));
    }
}

fn producer_meter<'r>(producer: &FrameProducer<'r>) -> &'r Meter {
    producer.meter()
}

/// Frames with and without a wall, in turn, share one state.
#[test]
fn a_wall_can_be_set_between_frames() {
    for kernels in kernels() {
        let (mut gate, mut expected) = (single(kernels), single(kernels));
        for i in 0..40u8 {
            let loud = [0.5, -0.25, 0.125, f32::from(i)];
            let quiet = loud.map(|x| x * 1e-8);
            gate.set_wall(1e-5).expect("in range");
            let silent = gate.process(&quiet);
            assert_eq!(silent.features, None);
            gate.set_wall(0.0).expect("in range");
            assert_eq!(gate.process(&loud), expected.process(&loud));
            assert_eq!(gate.process(&quiet), expected.process(&quiet));
        }
        for wall in [f32::NAN, -1.0] {
            assert_eq!(gate.set_wall(wall), Err(GateError::Wall));
        }
        assert_eq!(gate.config().wall, 0.0);
    }
}
