//! When a stream is worth more bits: the predecessor's state machine, with its cost charged.

use super::error::{check_finite, setting};
use super::{LaneConfig, PrecisionLane, SparsityError, TransitionReason};

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
        let mean = |old: &mut f32, new: f32| *old = average(*old, new, ema_alpha);
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
    /// A number that is not finite, by the name of its field; a threshold that is not a number, a share of new
    /// observations outside 0 to 1. Nothing has changed then.
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
        self.check_settings()?;
        self.metrics.update(seen, self.ema_alpha);
        let cost = self.cost_of(self.current_lane);
        let spent = &mut self.metrics.cost_usage;
        *spent = average(*spent, cost, self.ema_alpha);
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
            (Some(lane), _) if self.escalates().is_some() => GraduationDecision::Escalate(lane),
            (_, Some(lane)) if self.demotes().is_some() => GraduationDecision::Demote(lane),
            _ => GraduationDecision::Stay,
        }
    }

    /// Which of the conditions of a decision is met, the first of several; `None` to stay. It is asked for before
    /// [`GraduationPolicy::apply_decision`], after which steps are counted again.
    #[must_use]
    pub fn reason(&self, decision: GraduationDecision) -> Option<TransitionReason> {
        match decision {
            GraduationDecision::Stay => None,
            GraduationDecision::Escalate(_) => self.escalates(),
            GraduationDecision::Demote(_) => self.demotes(),
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

    fn escalates(&self) -> Option<TransitionReason> {
        let (seen, config) = (&self.metrics, &self.config);
        let reason = if seen.novelty > config.novelty_threshold {
            TransitionReason::Novelty
        } else if seen.drift_steps >= config.drift_persistence_threshold {
            TransitionReason::DriftPersistence
        } else {
            return None;
        };
        let may = seen.confidence >= config.confidence_threshold
            && seen.stability >= 0.5
            && seen.cost_usage < config.escalation_budget;
        may.then_some(reason)
    }

    fn demotes(&self) -> Option<TransitionReason> {
        let seen = &self.metrics;
        if seen.stable_steps < self.config.min_stability_steps {
            None
        } else if seen.velocity.abs() < 0.01 {
            Some(TransitionReason::VelocityStalled)
        } else if seen.active_set_size < 10 {
            Some(TransitionReason::ActiveSetShrunk)
        } else if seen.uncertainty > 0.7 && !seen.action_needed {
            Some(TransitionReason::StabilityReturned)
        } else {
            None
        }
    }

    /// Comparisons with NaN would be false in silence.
    fn check_settings(&self) -> Result<(), SparsityError> {
        let config = &self.config;
        for (name, value) in [
            ("config.novelty_threshold", config.novelty_threshold),
            ("config.confidence_threshold", config.confidence_threshold),
            ("config.escalation_budget", config.escalation_budget),
        ] {
            if value.is_nan() {
                return Err(setting(name, f64::from(value), "a number"));
            }
        }
        match (0.0..=1.0).contains(&self.ema_alpha) {
            true => Ok(()),
            false => Err(setting(
                "ema_alpha",
                f64::from(self.ema_alpha),
                "a number from 0 to 1",
            )),
        }
    }
}

/// An average with a share `alpha` of something new.
fn average(old: f32, new: f32, alpha: f32) -> f32 {
    alpha * new + (1.0 - alpha) * old
}

#[cfg(test)]
mod tests;
