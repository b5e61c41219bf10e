//! When a stream is worth more bits: the predecessor's state machine, with its cost charged.

use super::error::check_finite;
use super::{LaneConfig, PrecisionLane, SparsityError};

/// What was seen in one step; shares are 0 to 1.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct ObservationMetrics {
    /// How much the value differs from those before it.
    pub novelty: f32,
    /// How far the stream has moved.
    pub drift: f32,
    /// Trust in the observation.
    pub confidence: f32,
    /// How little the stream varies.
    pub stability: f32,
    /// Rate of change.
    pub velocity: f32,
    /// Doubt about what it means.
    pub uncertainty: f32,
    /// Number of active neurons, or of whatever else is at work.
    pub active_set_size: usize,
    /// Whether something has to be done about it.
    pub action_needed: bool,
}

/// Running averages of observations, and what is counted.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct GraduationMetrics {
    /// Average of [`ObservationMetrics::novelty`].
    pub novelty: f32,
    /// Average of [`ObservationMetrics::drift`].
    pub drift: f32,
    /// Steps in a row with a drift above 0.1.
    pub drift_steps: usize,
    /// Average of [`ObservationMetrics::confidence`].
    pub confidence: f32,
    /// Average of [`ObservationMetrics::stability`].
    pub stability: f32,
    /// Steps in a row with a stability above 0.8.
    pub stable_steps: usize,
    /// Average of [`ObservationMetrics::velocity`].
    pub velocity: f32,
    /// The last [`ObservationMetrics::active_set_size`].
    pub active_set_size: usize,
    /// Average of [`ObservationMetrics::uncertainty`].
    pub uncertainty: f32,
    /// Average share of the bits above the default lane that were spent: 0 in that lane, 1 in f32.
    pub cost_usage: f32,
    /// The last [`ObservationMetrics::action_needed`].
    pub action_needed: bool,
}

impl GraduationMetrics {
    /// All zero.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds an observation to the averages, of which it makes `ema_alpha`.
    pub fn update(&mut self, seen: &ObservationMetrics, ema_alpha: f32) {
        let mean = |old: &mut f32, new: f32| *old = ema_alpha * new + (1.0 - ema_alpha) * *old;
        mean(&mut self.novelty, seen.novelty);
        mean(&mut self.drift, seen.drift);
        mean(&mut self.confidence, seen.confidence);
        mean(&mut self.stability, seen.stability);
        mean(&mut self.velocity, seen.velocity);
        mean(&mut self.uncertainty, seen.uncertainty);
        self.active_set_size = seen.active_set_size;
        self.action_needed = seen.action_needed;
        let in_a_row = |steps: &mut usize, more: bool| {
            *steps = if more { steps.saturating_add(1) } else { 0 };
        };
        in_a_row(&mut self.drift_steps, seen.drift > 0.1);
        in_a_row(&mut self.stable_steps, seen.stability > 0.8);
    }
}

/// What to do with the lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GraduationDecision {
    /// Keep it.
    Stay,
    /// Take this one, of more bits.
    Escalate(PrecisionLane),
    /// Take this one, of fewer bits.
    Demote(PrecisionLane),
}

/// Chooses a lane from observations.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct GraduationPolicy {
    /// The lane in use.
    pub current_lane: PrecisionLane,
    /// Thresholds.
    pub config: LaneConfig,
    /// Averages so far.
    pub metrics: GraduationMetrics,
    /// Share of a new observation in the averages.
    pub ema_alpha: f32,
}

impl GraduationPolicy {
    /// Begins in a lane. Takes a [`LaneConfig`] or a [`super::GraduationConfig`].
    pub fn new(initial_lane: PrecisionLane, config: impl Into<LaneConfig>) -> Self {
        Self {
            current_lane: initial_lane,
            config: config.into(),
            metrics: GraduationMetrics::new(),
            ema_alpha: 0.3,
        }
    }

    /// Adds an observation, charges the lane in use, and decides; the lane changes only in
    /// [`GraduationPolicy::apply_decision`].
    ///
    /// # Errors
    /// A number that is not finite, by the name of its field; nothing has changed then.
    pub fn try_evaluate(
        &mut self,
        seen: &ObservationMetrics,
    ) -> Result<GraduationDecision, SparsityError> {
        for (name, value) in [
            ("observation.novelty", seen.novelty),
            ("observation.drift", seen.drift),
            ("observation.confidence", seen.confidence),
            ("observation.stability", seen.stability),
            ("observation.velocity", seen.velocity),
            ("observation.uncertainty", seen.uncertainty),
        ] {
            check_finite(name, &[value])?;
        }
        self.metrics.update(seen, self.ema_alpha);
        let cost = self.cost_of(self.current_lane);
        let mean = &mut self.metrics.cost_usage;
        *mean = self.ema_alpha * cost + (1.0 - self.ema_alpha) * *mean;
        Ok(self.decide())
    }

    /// [`GraduationPolicy::try_evaluate`], which stays where an observation is not finite.
    pub fn evaluate(&mut self, seen: &ObservationMetrics) -> GraduationDecision {
        self.try_evaluate(seen).unwrap_or(GraduationDecision::Stay)
    }

    /// Replaces the averages by the caller's own.
    pub fn update_metrics(&mut self, metrics: GraduationMetrics) {
        self.metrics = metrics;
    }

    /// What the averages ask for.
    #[must_use]
    pub fn decide(&self) -> GraduationDecision {
        if !self.config.auto_lane_selection {
            return GraduationDecision::Stay;
        }
        match (self.current_lane.higher(), self.current_lane.lower()) {
            (Some(lane), _) if self.should_escalate() => GraduationDecision::Escalate(lane),
            (_, Some(lane)) if self.should_demote() => GraduationDecision::Demote(lane),
            _ => GraduationDecision::Stay,
        }
    }

    /// Changes the lane, and begins to count steps again. Averages and cost stay.
    pub fn apply_decision(&mut self, decision: GraduationDecision) {
        if let GraduationDecision::Escalate(lane) | GraduationDecision::Demote(lane) = decision {
            self.current_lane = lane;
            self.metrics.stable_steps = 0;
            self.metrics.drift_steps = 0;
        }
    }

    /// The share of the bits between the default lane and f32 that a lane takes.
    fn cost_of(&self, lane: PrecisionLane) -> f32 {
        let default = self.config.default_lane.bits();
        let extra = lane.bits().saturating_sub(default);
        f32::from(extra) / f32::from((PrecisionLane::Float32.bits() - default).max(1))
    }

    fn should_escalate(&self) -> bool {
        let (seen, config) = (&self.metrics, &self.config);
        let is_new = seen.novelty > config.novelty_threshold;
        let drifts = seen.drift_steps >= config.drift_persistence_threshold;
        (is_new || drifts)
            && seen.confidence >= config.confidence_threshold
            && seen.stability >= 0.5
            && seen.cost_usage < config.escalation_budget
    }

    fn should_demote(&self) -> bool {
        let seen = &self.metrics;
        let is_idle = seen.uncertainty > 0.7 && !seen.action_needed;
        seen.stable_steps >= self.config.min_stability_steps
            && (seen.velocity.abs() < 0.01 || seen.active_set_size < 10 || is_idle)
    }
}

#[cfg(test)]
mod tests {
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
}
