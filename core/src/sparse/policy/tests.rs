//! The golden trace, reasons, the budget, and bad input.
#![allow(
    clippy::float_cmp,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "exact values are expected; numbers are small"
)]

extern crate std;

use super::super::GraduationConfig;
use super::*;

const GOLDEN: ObservationMetrics = ObservationMetrics {
    novelty: 0.5,
    drift: 0.2,
    confidence: 0.9,
    stability: 0.7,
    velocity: 0.2,
    uncertainty: 0.0,
    active_set_size: 100,
    action_needed: false,
};
const CALM: ObservationMetrics = ObservationMetrics {
    novelty: 0.0,
    drift: 0.0,
    confidence: 0.9,
    stability: 0.9,
    velocity: 0.0,
    uncertainty: 0.0,
    active_set_size: 100,
    action_needed: false,
};

#[test]
fn the_golden_trace() {
    let mut policy = GraduationPolicy::new(PrecisionLane::Bit5, LaneConfig::default());
    for (step, [novelty, confidence, stability]) in [
        [0.1500, 0.2700, 0.2100],
        [0.2550, 0.4590, 0.3570],
        [0.3285, 0.5913, 0.4599],
        [0.3800, 0.6839, 0.5319],
        [0.4160, 0.7487, 0.5824],
    ]
    .into_iter()
    .enumerate()
    {
        let expected = match step {
            4 => GraduationDecision::Escalate(PrecisionLane::Bit7),
            _ => GraduationDecision::Stay,
        };
        assert_eq!(policy.evaluate(&GOLDEN), expected, "step {}", step + 1);
        let m = policy.metrics;
        for (a, b) in [
            (m.novelty, novelty),
            (m.confidence, confidence),
            (m.stability, stability),
        ] {
            assert!((a - b).abs() < 6e-5, "step {}: {a} {b}", step + 1);
        }
        assert_eq!(m.drift_steps, step + 1);
        assert_eq!(
            policy.current_lane,
            PrecisionLane::Bit5,
            "evaluate changes no lane"
        );
    }
    policy.apply_decision(GraduationDecision::Escalate(PrecisionLane::Bit7));
    assert_eq!(policy.current_lane, PrecisionLane::Bit7);
    assert_eq!(
        (policy.metrics.drift_steps, policy.metrics.stable_steps),
        (0, 0)
    );
    assert!(policy.metrics.novelty > 0.4, "averages are kept");
}

#[test]
fn a_calm_stream_goes_down_to_three_bits() {
    let mut policy = GraduationPolicy::new(PrecisionLane::Float32, LaneConfig::default());
    let mut lanes = std::vec::Vec::new();
    for _ in 0..20 {
        let decision = policy.evaluate(&CALM);
        policy.apply_decision(decision);
        lanes.push(policy.current_lane.bits());
    }
    // Five steps for each lane.
    for (i, bits) in lanes.iter().enumerate() {
        assert_eq!(*bits, [32, 7, 5, 3][((i + 1) / 5).min(3)], "{i}");
    }
}

#[test]
fn the_cost_is_charged_and_the_budget_binds() {
    // Theirs never charges: it would be in f32 for every step of such a stream.
    let mut in_float = [0; 2];
    for (budget, n) in [1.0, 0.2].into_iter().zip(&mut in_float) {
        let config = GraduationConfig {
            escalation_budget: budget,
            ..GraduationConfig::default()
        };
        let mut policy = GraduationPolicy::new(PrecisionLane::Bit5, config);
        for step in 0..400 {
            let seen = if step % 20 < 10 { &GOLDEN } else { &CALM };
            let decision = policy.evaluate(seen);
            if matches!(decision, GraduationDecision::Escalate(_)) {
                assert!(policy.metrics.cost_usage < budget);
            }
            policy.apply_decision(decision);
            *n += usize::from(policy.current_lane == PrecisionLane::Float32);
        }
    }
    assert!(in_float[1] * 10 < in_float[0] * 9, "{in_float:?}");
    let mut policy = GraduationPolicy::new(PrecisionLane::Float32, LaneConfig::default());
    policy.evaluate(&GOLDEN);
    assert_eq!(policy.metrics.cost_usage, 0.3);
}

#[test]
fn the_readme_names() {
    let mut policy = GraduationPolicy::new(PrecisionLane::Bit5, GraduationConfig::default());
    let metrics = GraduationMetrics {
        novelty: 0.4,
        drift_steps: 3,
        confidence: 0.9,
        stability: 0.6,
        cost_usage: 0.1,
        ..GraduationMetrics::default()
    };
    policy.update_metrics(metrics);
    assert_eq!(
        policy.decide(),
        GraduationDecision::Escalate(PrecisionLane::Bit7)
    );
    policy.update_metrics(GraduationMetrics {
        cost_usage: 0.2,
        ..metrics
    });
    assert_eq!(
        policy.decide(),
        GraduationDecision::Stay,
        "the budget is spent"
    );
    policy.update_metrics(metrics);
    policy.config.auto_lane_selection = false;
    assert_eq!(policy.decide(), GraduationDecision::Stay);
}

#[test]
fn decisions_have_the_reason_that_the_averages_gave() {
    use GraduationDecision::{Demote, Escalate, Stay};
    use TransitionReason::{
        ActiveSetShrunk, DriftPersistence, Novelty, StabilityReturned, VelocityStalled,
    };
    let up = GraduationMetrics {
        confidence: 0.9,
        stability: 0.6,
        ..GraduationMetrics::default()
    };
    let down = GraduationMetrics {
        stable_steps: 5,
        ..GraduationMetrics::default()
    };
    let mut policy = GraduationPolicy::new(PrecisionLane::Bit5, LaneConfig::default());
    let (raised, lowered) = (Escalate(PrecisionLane::Bit7), Demote(PrecisionLane::Bit3));
    let is_new = |novelty, drift_steps| GraduationMetrics {
        novelty,
        drift_steps,
        ..up
    };
    let is_calm = |velocity, active_set_size, uncertainty, action_needed| GraduationMetrics {
        velocity,
        active_set_size,
        uncertainty,
        action_needed,
        ..down
    };
    for (metrics, decision, reason) in [
        (is_new(0.4, 9), raised, Some(Novelty)),
        (is_new(0.0, 3), raised, Some(DriftPersistence)),
        (is_new(0.0, 2), Stay, None),
        (
            is_calm(-0.001, 100, 0.0, true),
            lowered,
            Some(VelocityStalled),
        ),
        (is_calm(0.2, 9, 0.0, true), lowered, Some(ActiveSetShrunk)),
        (
            is_calm(0.2, 100, 0.8, false),
            lowered,
            Some(StabilityReturned),
        ),
        (is_calm(0.2, 100, 0.8, true), Stay, None),
    ] {
        policy.update_metrics(metrics);
        assert_eq!(
            (policy.decide(), policy.reason(decision)),
            (decision, reason)
        );
    }
}

#[test]
fn settings_that_are_not_numbers_are_named() {
    let bad = LaneConfig {
        escalation_budget: f32::NAN,
        ..LaneConfig::default()
    };
    let mut policy = GraduationPolicy::new(PrecisionLane::Bit5, bad);
    assert_eq!(
        std::format!("{}", policy.try_evaluate(&GOLDEN).unwrap_err()),
        "config.escalation_budget is NaN: expected a number"
    );
    policy.config = LaneConfig::default();
    policy.ema_alpha = 1.5;
    assert_eq!(
        std::format!("{}", policy.try_evaluate(&GOLDEN).unwrap_err()),
        "ema_alpha is 1.5: expected a number from 0 to 1"
    );
    assert_eq!(policy.metrics, GraduationMetrics::default());
}

#[test]
fn an_observation_that_is_not_finite_is_named_and_changes_nothing() {
    let mut policy = GraduationPolicy::new(PrecisionLane::Bit5, LaneConfig::default());
    policy.evaluate(&GOLDEN);
    let before = policy;
    let bad = ObservationMetrics {
        velocity: f32::NAN,
        ..GOLDEN
    };
    let error = policy.try_evaluate(&bad).unwrap_err();
    assert_eq!(
        std::format!("{error}"),
        "observation.velocity[0] is NaN: expected a finite number"
    );
    assert_eq!(policy.evaluate(&bad), GraduationDecision::Stay);
    assert_eq!(policy, before);
}
