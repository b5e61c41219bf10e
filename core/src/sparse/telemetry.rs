//! Counts by lane, and the last changes of lane.

use super::lane::N_LANES;
use super::{PrecisionLane, SparsityError};
use core::cmp::Ordering;
use core::time::Duration;

/// Changes that are kept.
const HISTORY: usize = 100;

/// Counts of one lane.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct LaneStats {
    /// Operations.
    pub operations: u64,
    /// Their time, in nanoseconds.
    pub total_time_ns: u64,
    /// The longest operation, in nanoseconds.
    pub peak_time_ns: u64,
    /// Bytes processed.
    pub bytes_processed: u64,
    /// Mean size of the active set.
    pub avg_active_set_size: f32,
    /// Errors.
    pub errors: u64,
    /// Changes from this lane to a higher one.
    pub escalations: u64,
    /// Changes from a higher lane to this one.
    pub demotions: u64,
}

impl LaneStats {
    /// Mean time of an operation, in nanoseconds; 0 before the first.
    #[must_use]
    pub const fn avg_time_ns(&self) -> u64 {
        match self.operations {
            0 => 0,
            n => self.total_time_ns / n,
        }
    }

    /// Bytes per second; 0 where no time has been recorded.
    #[must_use]
    pub fn throughput_bps(&self) -> f64 {
        match self.total_time_ns {
            0 => 0.0,
            ns => self.bytes_processed as f64 * 1e9 / ns as f64,
        }
    }

    fn record(&mut self, time_ns: u64, bytes: u64, active_set_size: usize) {
        self.operations += 1;
        self.total_time_ns = self.total_time_ns.saturating_add(time_ns);
        self.peak_time_ns = self.peak_time_ns.max(time_ns);
        self.bytes_processed = self.bytes_processed.saturating_add(bytes);
        let mean = &mut self.avg_active_set_size;
        *mean += (active_set_size as f32 - *mean) / self.operations as f32;
    }
}

/// Why a lane changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TransitionReason {
    /// Novelty was above its threshold.
    Novelty,
    /// Drift went on.
    DriftPersistence,
    /// The stream is stable again.
    StabilityReturned,
    /// Nothing moves.
    VelocityStalled,
    /// Little is active.
    ActiveSetShrunk,
    /// The host chose.
    Manual,
    /// The first lane.
    Init,
}

/// A change of lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LaneTransition {
    /// The lane before.
    pub from: PrecisionLane,
    /// The lane after.
    pub to: PrecisionLane,
    /// Why.
    pub reason: TransitionReason,
    /// Operations, over all lanes, before the change: core has no clock.
    pub at_operation: u64,
}

/// Counts of all lanes.
#[derive(Clone, Debug)]
pub struct LaneTelemetry {
    stats: [LaneStats; N_LANES],
    /// The lane in use.
    pub current_lane: PrecisionLane,
    /// Changes of lane.
    pub transitions: u64,
    history: [Option<LaneTransition>; HISTORY],
}

impl LaneTelemetry {
    /// Nothing counted yet.
    #[must_use]
    pub const fn new(initial_lane: PrecisionLane) -> Self {
        const NONE: LaneStats = LaneStats {
            operations: 0,
            total_time_ns: 0,
            peak_time_ns: 0,
            bytes_processed: 0,
            avg_active_set_size: 0.0,
            errors: 0,
            escalations: 0,
            demotions: 0,
        };
        Self {
            stats: [NONE; N_LANES],
            current_lane: initial_lane,
            transitions: 0,
            history: [None; HISTORY],
        }
    }

    /// Counts an operation of the lane in use.
    pub fn record_operation(&mut self, time: Duration, bytes: u64, active_set_size: usize) {
        let time_ns = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        self.stats[self.current_lane.index()].record(time_ns, bytes, active_set_size);
    }

    /// Counts an error of the lane in use.
    pub const fn record_error(&mut self) {
        self.stats[self.current_lane as usize].errors += 1;
    }

    /// Records a change of lane, and makes `to` the lane in use. From a lane to itself nothing changes: it is not counted.
    pub fn record_transition(
        &mut self,
        from: PrecisionLane,
        to: PrecisionLane,
        reason: TransitionReason,
    ) {
        self.current_lane = to;
        match to.cmp(&from) {
            Ordering::Greater => self.stats[from.index()].escalations += 1,
            Ordering::Less => self.stats[to.index()].demotions += 1,
            Ordering::Equal => return,
        }
        let place = self.place();
        self.history[place] = Some(LaneTransition {
            from,
            to,
            reason,
            at_operation: self.total_operations(),
        });
        self.transitions += 1;
    }

    /// Counts of a lane.
    #[must_use]
    pub const fn lane_stats(&self, lane: PrecisionLane) -> &LaneStats {
        &self.stats[lane as usize]
    }

    /// Operations of all lanes.
    #[must_use]
    pub fn total_operations(&self) -> u64 {
        self.stats.iter().map(|stats| stats.operations).sum()
    }

    /// Errors of all lanes.
    #[must_use]
    pub fn total_errors(&self) -> u64 {
        self.stats.iter().map(|stats| stats.errors).sum()
    }

    /// Percent of the operations of each lane, in the order of [`PrecisionLane::ALL`].
    ///
    /// # Errors
    /// No operations yet.
    #[expect(clippy::cast_possible_truncation, reason = "to the nearest f32")]
    pub fn lane_distribution(&self) -> Result<[f32; N_LANES], SparsityError> {
        match self.total_operations() {
            0 => Err(SparsityError::EmptyHistory {
                what: "lane distribution",
            }),
            total => Ok(self
                .stats
                .map(|stats| (stats.operations as f64 * 100.0 / total as f64) as f32)),
        }
    }

    /// Where the next change is written.
    #[expect(clippy::cast_possible_truncation, reason = "below 100")]
    const fn place(&self) -> usize {
        (self.transitions % HISTORY as u64) as usize
    }

    /// The last 100 changes, oldest first.
    pub fn transition_history(&self) -> impl Iterator<Item = &LaneTransition> {
        let (last, first) = self.history.split_at(self.place());
        first.iter().chain(last).flatten()
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

    use super::*;

    #[test]
    fn shares_and_averages() {
        let mut telemetry = LaneTelemetry::new(PrecisionLane::Bit3);
        assert_eq!(
            telemetry.lane_distribution(),
            Err(SparsityError::EmptyHistory {
                what: "lane distribution"
            })
        );
        for (lane, n, ns) in [
            (PrecisionLane::Bit3, 30, 100),
            (PrecisionLane::Bit5, 50, 200),
            (PrecisionLane::Bit7, 20, 500),
        ] {
            telemetry.current_lane = lane;
            for i in 0..n {
                telemetry.record_operation(Duration::from_nanos(ns + i % 2 * 2), 64, i as usize);
            }
        }
        assert_eq!(telemetry.lane_distribution(), Ok([30.0, 50.0, 20.0, 0.0]));
        let stats = telemetry.lane_stats(PrecisionLane::Bit5);
        assert_eq!((stats.avg_time_ns(), stats.peak_time_ns), (201, 202));
        assert!((stats.avg_active_set_size - 24.5).abs() < 1e-4);
        assert!((stats.throughput_bps() - 64e9 / 201.0).abs() < 1.0);
    }

    #[test]
    fn the_history_is_in_order_after_it_wraps() {
        let mut telemetry = LaneTelemetry::new(PrecisionLane::Bit5);
        for i in 0..250 {
            telemetry.record_operation(Duration::ZERO, 1, 1);
            let lanes = [PrecisionLane::Bit5, PrecisionLane::Bit7];
            let (from, to) = (lanes[i % 2], lanes[(i + 1) % 2]);
            telemetry.record_transition(from, to, TransitionReason::Novelty);
        }
        let mut expected = 151..=250;
        assert!(
            telemetry
                .transition_history()
                .map(|change| change.at_operation)
                .eq(expected.by_ref())
        );
        assert_eq!(telemetry.transitions, 250);
        assert_eq!(telemetry.lane_stats(PrecisionLane::Bit5).escalations, 125);
        assert_eq!(telemetry.lane_stats(PrecisionLane::Bit5).demotions, 125);
        let lane = PrecisionLane::Bit5;
        telemetry.record_transition(lane, lane, TransitionReason::Init);
        assert_eq!(telemetry.transitions, 250, "from a lane to itself");
        assert_eq!(telemetry.lane_stats(lane).demotions, 125);
        assert_eq!(telemetry.transition_history().count(), HISTORY);
    }
}
