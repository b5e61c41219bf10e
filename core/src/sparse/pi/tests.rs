//! Formulas against f64, and what the predecessor's metrics do not see next to the ones that do.
#![allow(
    clippy::float_cmp,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "exact values are expected; numbers are small"
)]

extern crate std;

use super::super::PrecisionLane;
use super::*;
use std::vec;
use std::vec::Vec;

const LANES: [(PrecisionLane, f64, f64, f64); 3] = [
    (PrecisionLane::Bit3, 4.0, 3.0, 8.0),
    (PrecisionLane::Bit5, 16.0, 15.0, 32.0),
    (PrecisionLane::Bit7, 64.0, 63.0, 128.0),
];
const PI: f64 = core::f64::consts::PI;

#[test]
fn calibration_is_its_formula() {
    for (lane, half, highest, all) in LANES {
        let c = PiCalibration::for_lane(lane);
        let (scale, norm, ar) = (PI / half, highest / PI, (PI - 3.0) / all);
        let near = |a: f32, b: f64| {
            assert!(
                (f64::from(a) - b).abs() < 2e-6 * b.abs().max(1.0),
                "{a} {b}"
            )
        };
        near(c.scale, scale);
        near(c.phase_offset, PI / all);
        near(c.norm_factor, norm);
        near(c.anti_resonance, ar);
        for i in -20..=20 {
            let v = f64::from(i) * 0.11;
            let normal = (v * norm + ar) * scale;
            near(c.normalize(v as f32), normal);
            near(c.phase_encode(v as f32), (normal + PI / all).sin() * PI);
            near(c.angular_velocity(v as f32), v * scale * 2.0 * PI);
            assert!((c.denormalize(c.normalize(v as f32)) - v as f32).abs() < 1e-5);
            let code = (v * norm + 1.5 * ar).round().clamp(-highest - 1.0, highest);
            let max = highest as i8 + 1;
            assert_eq!(
                f64::from(c.pi_quantize(v as f32, max)),
                code,
                "{lane:?} {v}"
            );
            near(c.pi_dequantize(code as i8), (code - ar) / norm);
        }
        for v in [-0.3f32, 0.0, 0.2] {
            let decoded = c.phase_decode(c.phase_encode(v));
            let inside = (c.normalize(v) + c.phase_offset).abs() < core::f32::consts::FRAC_PI_2;
            assert!(
                !inside || (decoded - v).abs() < 1e-4,
                "{lane:?} {v} {decoded}"
            );
        }
    }
    let float = PiCalibration::for_lane(PrecisionLane::Float32);
    assert_eq!((float.normalize(0.7), float.denormalize(0.7)), (0.7, 0.7));
    assert!((PHI_APPROX - 0.934).abs() < 1e-3, "not the golden ratio");
    assert_eq!(
        (PI_SCALE_3BIT, PI_SCALE_7BIT),
        ((PI / 4.0) as f32, (PI / 64.0) as f32)
    );
}

#[test]
fn the_error_is_the_predecessors() {
    let (a, b) = ([0.1, -0.7, 1.3, 2.9], [0.15, -0.8, 1.25, 3.0]);
    let t = |x: f32| (PI * f64::from(x)).sin() + 0.5 * (PI * f64::from(x)).cos();
    let squares: f64 = a.iter().zip(&b).map(|(x, y)| (t(*x) - t(*y)).powi(2)).sum();
    let mut detector = DriftDetector::new(PrecisionLane::Bit5);
    let honesty = detector.check(&a, &b);
    assert!((f64::from(honesty.error) - (squares / 4.0).sqrt()).abs() < 1e-6);
    assert!((honesty.ratio - honesty.error / 0.05).abs() < 1e-6);
    assert_eq!(honesty.sample_count, 1);
    assert_eq!(detector.report().unwrap().sample_count, 1);
    // Each lane's own rounding is honest.
    for (lane, _, highest, _) in LANES {
        let x: Vec<f32> = (0..256)
            .map(|i| ((i * 37 % 256) as f32 - 128.0) / 128.0)
            .collect();
        let step = 1.0 / highest as f32;
        let y: Vec<f32> = x.iter().map(|x| (x / step).round() * step).collect();
        let honesty = PiContext::new(lane).check_honesty(&x, &y);
        assert!(
            honesty.is_honest && !honesty.should_escalate,
            "{lane:?} {honesty:?}"
        );
    }
}

/// T has the period 2.
#[test]
fn an_error_of_two_is_invisible_to_theirs_and_not_to_ours() {
    let original = [0.3, -0.2, 0.9, 0.5];
    let quantized = original.map(|x| x + 2.0);
    let honesty = PiContext::new(PrecisionLane::Bit5).check_honesty(&original, &quantized);
    // Theirs: honest if the ratio is below 2.
    assert!(honesty.ratio < 0.01, "theirs sees nothing: {honesty:?}");
    assert!((honesty.max_error - 2.0).abs() < 1e-5);
    assert!(
        (honesty.energy_error - 16.0 / 1.19).abs() < 1e-3,
        "{honesty:?}"
    );
    assert!(!honesty.is_honest && honesty.should_escalate);
    // A single element of many: the root mean square hides it, the maximum does not.
    let mut many = vec![0.5f32; 10_000];
    let original = many.clone();
    many[77] = 1.0;
    let honesty = PiContext::new(PrecisionLane::Bit5).check_honesty(&original, &many);
    assert!(honesty.ratio < 2.0 && honesty.max_error == 0.5 && honesty.should_escalate);
}

#[test]
fn vectors_that_cannot_be_compared_are_not_honest() {
    let mut detector = DriftDetector::new(PrecisionLane::Bit7);
    for (a, b, text) in [
        (
            &[1.0, f32::NAN][..],
            &[1.0, 1.0][..],
            "original[1] is NaN: expected a finite number",
        ),
        (
            &[1.0],
            &[f32::INFINITY],
            "quantized[0] is inf: expected a finite number",
        ),
        (&[1.0, 2.0], &[1.0], "quantized has 1 elements: expected 2"),
        (&[], &[], "original is empty: expected at least 1 element"),
    ] {
        let honesty = detector.check(a, b);
        assert!(!honesty.is_honest && honesty.should_escalate);
        assert_eq!(std::format!("{}", honesty.fault.unwrap()), text);
    }
    let error = detector.report().unwrap_err();
    assert_eq!(
        std::format!("{error}"),
        "drift report: nothing has been recorded yet"
    );
    assert!(detector.update(f32::NAN).is_err());
    assert!(!PiContext::default().should_escalate());
}

/// Errors that fall, and then a ring that has wrapped.
#[test]
fn the_trend_is_in_true_order() {
    let mut detector = DriftDetector::new(PrecisionLane::Bit5);
    for i in 0..96 {
        detector.update(1.0 - i as f32 * 0.01).unwrap();
    }
    let report = detector.report().unwrap();
    assert!((report.trend + 0.01).abs() < 1e-5, "{report:?}");
    assert!(!report.is_accelerating);
    // Theirs: the newest half comes first in memory, so that falling errors seem to rise.
    assert!(report.ring_trend > 0.005, "{report:?}");
    for i in 0..64 {
        detector.update(i as f32 * 0.01).unwrap();
    }
    let report = detector.report().unwrap();
    assert!((report.trend - 0.01).abs() < 1e-5 && report.is_accelerating);
    assert_eq!(
        (report.severity(), report.suggested_lane()),
        (3, Some(PrecisionLane::Bit7))
    );
    detector.reset();
    for error in [0.06, 0.06] {
        detector.update(error).unwrap();
    }
    let report = detector.report().unwrap();
    assert_eq!((report.severity(), report.suggested_lane()), (1, None));
    assert_eq!(report.trend, 0.0);
}

#[test]
fn checksums() {
    let detector = DriftDetector::new(PrecisionLane::Bit7);
    let signal = [1.0f32, 2.0, 3.0, 4.0, 5.0];
    let expected: f64 = (0..5)
        .map(|i| f64::from(signal[i]) * ((i as f64 + 1.0) * PI / 5.0).sin())
        .sum::<f64>()
        / 5.0;
    assert!((f64::from(detector.pi_checksum(&signal)) - expected).abs() < 1e-6);
    assert!(detector.verify_checksum(&signal, &signal.map(|x| x + 0.001)));
    assert!(!detector.verify_checksum(&signal, &signal.map(|x| x + 0.1)));
    // The last element has a weight of sin π: the checksum does not see it, the comparison does.
    let mut other = signal;
    other[4] = 50.0;
    assert!(detector.verify_checksum(&signal, &other));
    assert!(detector.compare(&signal, &other).should_escalate);
    assert_eq!(detector.pi_checksum(&[]), 0.0);
}

#[test]
fn angles_are_their_formulas() {
    let (a, b) = ([3.0f32, -4.0, 0.0, 12.0], [1.0f32, 2.0, -2.0, 4.0]);
    for (lane, k) in [
        (PrecisionLane::Bit3, PI / 4.0),
        (PrecisionLane::Bit5, PI / 16.0),
        (PrecisionLane::Bit7, PI / 64.0),
        (PrecisionLane::Float32, 1.0),
    ] {
        let angular = AngularEmbedding::new(lane);
        let (mut angles, mut back) = ([0.0; 4], [0.0; 4]);
        angular.project_into(&a, &mut angles).unwrap();
        let mut sum = 0.0;
        for i in 0..4 {
            let x = f64::from(a[i]) / 13.0 * PI * k;
            assert!((f64::from(angles[i]) - x).abs() < 1e-6);
            let d = (x - f64::from(b[i]) / 5.0 * PI * k).abs();
            sum += d.min(2.0 * PI - d).powi(2);
        }
        let distance = angular.angular_distance(&a, &b).unwrap();
        assert!((f64::from(distance) - sum.sqrt()).abs() < 1e-5);
        angular.unproject_into(&angles, 13.0, &mut back).unwrap();
        assert!(a.iter().zip(&back).all(|(x, y)| (x - y).abs() < 1e-4));
        let mut velocity = [0.0; 4];
        angular.update_velocity(&a, &b, &mut velocity).unwrap();
        let step = (f64::from(b[0]) / 5.0 - f64::from(a[0]) / 13.0) * PI * k;
        assert!((f64::from(velocity[0]) - 0.1 * step).abs() < 1e-6);
        angular.predict_next_into(&b, &[0.0; 4], &mut back).unwrap();
        assert!(b.iter().zip(&back).all(|(x, y)| (x - y).abs() < 1e-4));
        angular
            .predict_next_into(&b, &[1e30; 4], &mut back)
            .unwrap();
    }
    let angular = AngularEmbedding::new(PrecisionLane::Bit5);
    let error = angular
        .angular_distance(&a, &[1.0, f32::NAN, 0.0, 0.0])
        .unwrap_err();
    assert_eq!(
        std::format!("{error}"),
        "second vector[1] is NaN: expected a finite number"
    );
    assert!(angular.angular_distance(&[], &[]).is_err());
}

#[test]
fn phases() {
    let encoder = PhaseEncoder::new(0.5, 3);
    let expected: f64 = (1..=3)
        .map(|h| (0.3 * 0.5 * f64::from(h) * PI).sin() / f64::from(h))
        .sum();
    assert!((f64::from(encoder.encode(0.3)) - expected).abs() < 1e-6);
    let one = PhaseEncoder::new(0.5, 1);
    assert!((one.decode(one.encode(0.3)) - 0.3).abs() < 1e-6);
    let mut lut = [0.0; 16];
    let encoder = encoder.with_lut(&mut lut).unwrap();
    assert!((f64::from(encoder.encode_quantized(5)) - (PI / 3.0).sin()).abs() < 1e-6);
    assert_eq!(encoder.encode_quantized(16), 0.0);
    assert!(PhaseEncoder::new(1.0, 1).with_lut(&mut [0.0]).is_err());
}

#[test]
fn spheres_lead_back_to_the_vector() {
    let x = [0.3f32, -1.2, 2.0, -0.5, 0.7];
    let radius = x.iter().map(|x| x * x).sum::<f32>().sqrt();
    for n in 2..=5 {
        let projection = HypersphericalProjection::new(n, PrecisionLane::Bit5);
        let (mut angles, mut back) = (vec![0.0; n - 1], vec![0.0; n]);
        projection.to_spherical_into(&x[..n], &mut angles).unwrap();
        let r = x[..n].iter().map(|x| x * x).sum::<f32>().sqrt();
        projection.to_cartesian_into(&angles, r, &mut back).unwrap();
        assert!(
            back.iter().zip(&x).all(|(a, b)| (a - b).abs() < 1e-5),
            "{n} {back:?}"
        );
    }
    // Theirs, of three elements: atan2(x1, x0), acos(x1 / |x1, x2|), and back.
    let phi = [x[1].atan2(x[0]), (x[1] / x[1].hypot(x[2])).acos()];
    let theirs = radius * phi[0].sin().abs() * phi[0].cos();
    assert!((theirs - x[0]).abs() > 0.1);
    let projection = HypersphericalProjection::new(3, PrecisionLane::Bit5);
    let right = projection
        .geodesic_distance(&[1.0, 0.0, 0.0], &[0.0, 2.0, 0.0])
        .unwrap();
    assert!((f64::from(right) - PI / 2.0).abs() < 1e-6);
}

fn gcd(a: usize, b: usize) -> usize {
    if b == 0 { a } else { gcd(b, a % b) }
}

/// One hundred digits.
#[test]
fn digits_repeat_and_the_hash_does_not() {
    let rounds = |scheduler: &mut PiScheduler<'_>| -> Vec<Vec<usize>> {
        (0..40)
            .map(|_| {
                let mut order = vec![0; scheduler.num_items()];
                scheduler.order_into(&mut order).unwrap();
                scheduler.next_round();
                order
            })
            .collect()
    };
    let distinct = |orders: &[Vec<usize>]| {
        let mut sorted = orders.to_vec();
        sorted.sort();
        sorted.dedup();
        sorted.len()
    };
    for n in [100, 200, 20, 50, 30] {
        let theirs = distinct(&rounds(&mut PiScheduler::with_digits(n)));
        assert!(theirs <= 100 / gcd(n, 100), "{n}: {theirs}");
        let ours = rounds(&mut PiScheduler::new(n));
        assert_eq!(distinct(&ours), 40, "{n}");
        for order in &ours {
            let mut sorted = order.clone();
            sorted.sort_unstable();
            assert!(sorted.into_iter().eq(0..n), "a permutation");
        }
    }
}

#[test]
fn digits_are_the_predecessors() {
    let mut chaos = PiChaos::new();
    assert!((chaos.jitter(0) - (3.0 - 4.5) / 9.0 * 0.001).abs() < 1e-9);
    assert_eq!(chaos.jitter(5), chaos.jitter(105));
    assert_eq!([0; 5].map(|_| chaos.next_digit()), [3, 1, 4, 1, 5]);
    chaos.reset();
    assert_eq!(chaos.next_float(), 0.314);
    // 159 by 1000, of 10.
    assert_eq!(chaos.next_int(10), 1);
    assert_eq!(chaos.next_int(0), 0);
    let mut order = [0; 4];
    PiChaos::new().permutation_into(&mut order);
    // 0.314 · 4 = 1, 0.159 · 3 = 0, 0.265 · 2 = 0.
    assert_eq!(order, golden_order());
    let mut later = [0; 4];
    chaos.schedule_order_into(25, &mut later);
    assert_eq!(later, order, "25 rounds of 4 are 100 digits");
}

/// Swaps of Fisher and Yates from the top: (3, 1), (2, 0), (1, 0).
fn golden_order() -> [usize; 4] {
    let mut order = [0, 1, 2, 3];
    for (i, j) in [(3, 1), (2, 0), (1, 0)] {
        order.swap(i, j);
    }
    order
}

#[test]
fn jitter_and_weights() {
    let jitter = DeterministicJitter::new(0.01);
    let values: Vec<f32> = (0..1000).map(|i| jitter.apply(0.0, i)).collect();
    assert!(values.iter().all(|x| x.abs() <= 0.005));
    let distinct = |mut values: Vec<f32>| {
        values.sort_by(f32::total_cmp);
        values.dedup();
        values.len()
    };
    assert!(distinct(values) > 990);
    let digits = DeterministicJitter::with_digits(0.01);
    assert_eq!(
        distinct((0..1000).map(|i| digits.apply(0.0, i)).collect()),
        10
    );
    assert_eq!(jitter.break_tie(&[7, 9]), jitter.break_tie(&[9, 7]));
    assert!(jitter.break_tie(&[]).is_err());

    let weights = [0.1, 0.9, 0.5, 0.7, 0.3, 0.2];
    let scheduler = PiScheduler::new(6).with_weights(&weights).unwrap();
    let (mut order, mut halves) = ([0; 6], [0; 6]);
    scheduler.weighted_order_into(&mut order).unwrap();
    assert_eq!(order, [1, 3, 2, 4, 5, 0]);
    scheduler
        .lora_update_order_into(3, &mut halves, &mut order)
        .unwrap();
    assert_eq!(
        order,
        [1, 3, 4, 2, 5, 0],
        "two of the heavy half, one of the light"
    );
    let mut batch = [0; 4];
    assert_eq!(scheduler.sample_into(6, &mut order, &mut batch), Ok(4));
    let error = PiScheduler::new(2)
        .with_weights(&[1.0, f32::NAN])
        .unwrap_err();
    assert_eq!(
        std::format!("{error}"),
        "weights[1] is NaN: expected a finite number"
    );
}

/// Jitter of less than the difference, or of less than the weights' rounding, once decided among them.
#[test]
fn jitter_decides_among_equal_weights_alone() {
    let order_of = |scheduler: PiScheduler<'_>, weights: &[f32]| {
        let mut order = vec![0; weights.len()];
        let scheduler = scheduler.with_weights(weights).unwrap();
        scheduler.weighted_order_into(&mut order).unwrap();
        order
    };
    for make in [PiScheduler::new, PiScheduler::with_digits] {
        // One unit in the last place apart, the heavier one at each place.
        for heavy in 0..20 {
            let mut weights = [1.0f32; 20];
            weights[heavy] = 1.0 + f32::EPSILON;
            assert_eq!(order_of(make(20), &weights)[0], heavy);
        }
        let equal = order_of(make(20), &[1.0; 20]);
        assert_ne!(equal, Vec::from_iter(0..20), "by jitter");
        for weight in [0.0, -3.5, 1e9, f32::MAX] {
            assert_eq!(order_of(make(20), &[weight; 20]), equal, "{weight}");
        }
        let zeros: Vec<f32> = (0..20).map(|i| [0.0, -0.0][i % 2]).collect();
        assert_eq!(order_of(make(20), &zeros), equal, "one zero");
    }
}

#[test]
fn vectors_whose_squares_overflow_have_angles() {
    let angular = AngularEmbedding::new(PrecisionLane::Bit5);
    let mut angles = [0.0; 2];
    angular.project_into(&[3e30, -4e30], &mut angles).unwrap();
    let scale = core::f32::consts::PI * core::f32::consts::PI / 16.0;
    assert!((angles[0] - 0.6 * scale).abs() < 1e-5 && (angles[1] + 0.8 * scale).abs() < 1e-5);
    let sphere = HypersphericalProjection::new(2, PrecisionLane::Bit5);
    assert!(
        sphere
            .geodesic_distance(&[3e30, 4e30], &[6.0, 8.0])
            .unwrap()
            < 1e-3
    );
    let error = sphere.geodesic_distance(&[], &[]).unwrap_err();
    assert_eq!(
        std::format!("{error}"),
        "first vector is empty: expected at least 1 element"
    );
}
