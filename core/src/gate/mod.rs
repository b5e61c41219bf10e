//! The gate: decides which frames of a stream are worth waking a model for.
//!
//! A stream of f32 samples is cut into frames. Every frame is scanned for its maximum magnitude;
//! one below the wall is silent and not examined further. The others are measured according to the
//! [`Policy`], and frames that pass get seven features and a scaling factor.
//!
//! ```text
//! samples ─FrameProducer─▶ ring ─FrameConsumer─▶ Gate::process ─▶ Decision
//!                │                     │
//!                └──────── Meter ──────┘   pushed = processed + queued + dropped
//! ```
//!
//! [`Gate`] works only on slices; [`intake`] puts a ring in front of it for streams between two
//! threads or cores. Results are bit-identical on every kernel table: features come from
//! [`crate::kernels::FrameStats`], the rest is plain f64.
//!
//! Formulas and edge cases follow the predecessor's single-frame call (residue-protocol
//! 4.2.4), except that NaN and infinity always count as signal.

pub mod features;
pub mod intake;
pub mod policy;
mod scaling;
pub mod telemetry;

use crate::kernels::frame::{BINS_MAX, Bins, Counts, Peaks, frames_ahead, scans_by_frames};
use crate::kernels::{FpEnv, FrameKernels, FrameStats};
use features::{FeatureConfig, Moments};
use policy::PolicyState;
use scaling::Scaler;

pub use features::{Feature, Features};
pub use intake::{FrameConsumer, FrameOutcome, FrameProducer, Overflow};
pub use policy::{GateError, Measure, NoiseFloor, Policy, Sense, Verdict};
pub use telemetry::{Meter, Telemetry};

/// Default number of samples in a frame.
pub const FRAME_LEN: usize = 1024;

/// Maximum prefetched samples, half of a second-level cache; or one longer frame.
const AHEAD_MAX: usize = 1 << 17;

/// The settings of a gate: how it decides, and what it computes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct GateConfig {
    /// Frames with a maximum magnitude below this are silent at the cost of the scan, for every
    /// policy.
    pub wall: f32,
    /// Which of the other frames pass.
    pub policy: Policy,
    /// Whether frames that pass get features and a scaling even if the policy needs neither.
    pub score: bool,
    /// Bins of the histogram; more than 256 count as 256.
    pub num_bins: usize,
    /// Mean magnitude below which a frame is sparse.
    pub l1_threshold: f32,
    /// Weight of the newest scaling in the temporal coherence.
    pub ema_alpha: f32,
}

impl Default for GateConfig {
    fn default() -> Self {
        Self {
            wall: 1e-5,
            policy: Policy::default(),
            score: true,
            num_bins: 256,
            l1_threshold: 0.1,
            ema_alpha: 0.2,
        }
    }
}

fn check_wall(wall: f32) -> Result<(), GateError> {
    match wall >= 0.0 {
        true => Ok(()),
        false => Err(GateError::Wall),
    }
}

/// A gate's decision about a frame.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Decision {
    /// Whether the frame passes, and why.
    pub verdict: Verdict,
    /// The maximum magnitude; NaN if there is a NaN.
    pub max_abs: f32,
    /// The policy's measure; `None` below the wall, where only `max_abs` is known.
    pub value: Option<f32>,
    /// The threshold in force.
    pub level: f32,
    /// The frame's scaling, 0 to 10; of the last evaluated frame if this one was not evaluated.
    pub scaling: f32,
    /// The features, if the frame was evaluated.
    pub features: Option<Features>,
}

/// A histogram in whole cache lines, which is faster to clear than one across their borders.
#[derive(Clone, Debug)]
#[repr(align(64))]
struct AlignedCounts(Counts);

/// A stream's gate.
#[derive(Clone, Debug)]
pub struct Gate {
    kernels: &'static FrameKernels,
    config: GateConfig,
    features: FeatureConfig,
    scaler: Scaler,
    state: PolicyState,
    /// The last histogram, reused for the next one.
    counts: AlignedCounts,
    /// Samples after the last frame that were prefetched.
    asked: usize,
    /// Whether whole frames are prefetched on this CPU.
    scans_by_frames: bool,
    /// Whether the last frame got features in one pass, which prefetches the next frames.
    is_scored: bool,
}

impl Gate {
    /// A gate at the start of a stream.
    ///
    /// # Errors
    /// A setting out of range.
    pub fn new(config: GateConfig, kernels: &'static FrameKernels) -> Result<Self, GateError> {
        if config.num_bins == 0 {
            return Err(GateError::NoBins);
        }
        if !(0.0..=1.0).contains(&config.ema_alpha) {
            return Err(GateError::EmaAlpha);
        }
        if config.l1_threshold.is_nan() {
            return Err(GateError::L1Threshold);
        }
        check_wall(config.wall)?;
        config.policy.check()?;
        Ok(Self {
            kernels,
            config,
            features: FeatureConfig {
                num_bins: config.num_bins.min(256),
                l1_threshold: config.l1_threshold,
            },
            scaler: Scaler::new(config.ema_alpha),
            state: PolicyState::default(),
            counts: AlignedCounts([0; BINS_MAX]),
            asked: 0,
            scans_by_frames: scans_by_frames(),
            is_scored: false,
        })
    }

    /// Decides about the next frame of the stream, of any length. A frame without samples is
    /// silent and changes nothing.
    pub fn process(&mut self, frame: &[f32]) -> Decision {
        self.process_in(&FpEnv::enter(), frame)
    }

    /// [`Self::process`] in an environment that the caller has entered, once for many frames.
    #[inline]
    pub fn process_in(&mut self, _: &FpEnv, frame: &[f32]) -> Decision {
        self.decide(frame)
    }

    /// [`Self::process`] of every whole frame of `samples`, with its index; samples after the last
    /// whole frame are ignored. Returns the number of frames.
    ///
    /// # Panics
    /// If `frame_len` is 0.
    pub fn process_all(
        &mut self,
        samples: &[f32],
        frame_len: usize,
        mut each: impl FnMut(usize, &[f32], Decision),
    ) -> usize {
        assert!(frame_len > 0, "frames of no samples");
        let _env = FpEnv::enter();
        self.asked = 0;
        let (mut rest, mut n_frames) = (samples, 0);
        while let Some((frame, behind)) = rest.split_at_checked(frame_len) {
            each(n_frames, frame, self.decide_before(frame, behind));
            self.asked = self.asked.saturating_sub(frame_len);
            (rest, n_frames) = (behind, n_frames + 1);
        }
        self.asked = 0;
        n_frames
    }

    /// Returns to the start of a stream.
    pub const fn reset(&mut self) {
        self.scaler = Scaler::new(self.config.ema_alpha);
        self.state = PolicyState {
            is_open: false,
            hang_over: 0,
            floor: None,
        };
        self.asked = 0;
        self.is_scored = false;
    }

    /// Sets [`GateConfig::wall`] from the next frame on.
    ///
    /// # Errors
    /// [`GateError::Wall`]; nothing changes.
    pub fn set_wall(&mut self, wall: f32) -> Result<(), GateError> {
        check_wall(wall)?;
        self.config.wall = wall;
        Ok(())
    }

    /// How it decides.
    pub const fn config(&self) -> &GateConfig {
        &self.config
    }

    #[inline]
    fn decide(&mut self, frame: &[f32]) -> Decision {
        self.decide_before(frame, &[])
    }

    /// Decides, and meanwhile prefetches the following frames `behind`, so that memory is never idle. A scan
    /// takes as long as memory takes for one frame; it prefetches the frame after the next, or
    /// nearer lines if [`asks_far`] is false. Features leave memory time for several frames,
    /// which the following scans need not prefetch.
    #[inline]
    fn decide_before(&mut self, frame: &[f32], behind: &[f32]) -> Decision {
        let policy = self.config.policy;
        // After a frame with features another one is likely, and its scan finds the extremes, too.
        let is_after_scored = core::mem::take(&mut self.is_scored);
        let soon = match self.scans_by_frames {
            true => self.ask(behind, ahead(frame, 2)),
            // The pass for features has prefetched this frame and those after it.
            false if is_after_scored => &[],
            false => behind,
        };
        let (max_abs, peaks) = if is_after_scored {
            let peaks = self.kernels.peaks_before(frame, soon);
            (peaks.max_abs(), Some(peaks))
        } else {
            (self.kernels.max_abs_before(frame, soon), None)
        };
        let level = self.state.level(&policy);
        let mut decision = Decision {
            verdict: Verdict::Silent,
            max_abs,
            value: None,
            level,
            scaling: self.scaler.held(),
            features: None,
        };
        if frame.is_empty() {
            return decision;
        }
        let is_measured = policy.measure == Measure::MaxAbs;
        if is_measured {
            decision.value = Some(max_abs);
        }
        if max_abs < self.config.wall {
            if is_measured {
                self.state.follow(&policy, max_abs);
            }
            decision.verdict = self.state.settle(&policy, false);
            return decision;
        }
        self.measure(frame, behind, peaks, &mut decision);
        decision
    }

    /// The samples among the next `n` that are to be prefetched now: by the scan up to a
    /// frame, by the pass for features all of them.
    #[inline]
    fn ask<'a>(&mut self, behind: &'a [f32], n: usize) -> &'a [f32] {
        let end = n.min(behind.len());
        let start = self.asked.min(end);
        self.asked = self.asked.max(end);
        &behind[start..end]
    }

    /// Decides about a frame at or above the wall.
    fn measure(
        &mut self,
        frame: &[f32],
        behind: &[f32],
        peaks: Option<Peaks>,
        decision: &mut Decision,
    ) {
        let policy = self.config.policy;
        // If the decision needs only statistics, the histogram is computed after it.
        let mut known = Known::Peaks(peaks);
        let value = match policy.measure {
            Measure::MaxAbs => decision.max_abs,
            Measure::PeakToPeak => {
                let stats = self.kernels.stats(frame);
                known = Known::Stats(stats);
                stats.max - stats.min
            }
            Measure::Std => {
                let stats = self.kernels.stats(frame);
                known = Known::Stats(stats);
                #[expect(clippy::cast_possible_truncation, reason = "rounds to the nearest f32")]
                let variance = Moments::new(&stats).variance as f32;
                crate::kernels::contract::sqrt(variance)
            }
            Measure::Feature(feature) => self.score(frame, behind, known, decision)[feature],
            Measure::Scaling => {
                self.score(frame, behind, known, decision);
                decision.scaling
            }
        };
        decision.value = Some(value);
        let is_active = !decision.max_abs.is_finite()
            || PolicyState::reaches(value, decision.level, policy.sense);
        self.state.follow(&policy, value);
        decision.verdict = self.state.settle(&policy, is_active);
        if self.config.score && decision.verdict.passes() && decision.features.is_none() {
            self.score(frame, behind, known, decision);
        }
    }

    /// Evaluates features and scaling, which later frames depend on.
    fn score(
        &mut self,
        frame: &[f32],
        behind: &[f32],
        known: Known,
        decision: &mut Decision,
    ) -> Features {
        let (kernels, num_bins) = (self.kernels, self.features.num_bins);
        let stats = match known {
            Known::Stats(stats) => {
                kernels.histogram(frame, &Bins::over(&stats, num_bins), &mut self.counts.0);
                stats
            }
            Known::Peaks(peaks) => {
                let later = self.ask(behind, ahead(frame, frames_ahead()));
                self.is_scored = true;
                kernels.stats_and_histogram(frame, peaks, num_bins, &mut self.counts.0, later)
            }
        };
        let coherence = self.scaler.coherence();
        let features = Features::new(&stats, &self.counts.0, kernels, &self.features, coherence);
        decision.scaling = self.scaler.scale(&features);
        decision.features = Some(features);
        features
    }
}

/// What is computed for a frame before its features.
#[derive(Clone, Copy, Debug)]
enum Known {
    Peaks(Option<Peaks>),
    Stats(FrameStats),
}

/// The samples of `n` frames of this length, up to what a cache holds.
fn ahead(frame: &[f32], n: usize) -> usize {
    (n * frame.len()).min(AHEAD_MAX).max(frame.len())
}

#[cfg(test)]
mod tests;
