//! Which frames pass: a threshold on a measure, with hysteresis, hang-over and a noise floor.

use super::features::Feature;
use core::fmt;

/// The value compared with the threshold. All measures are at least 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Measure {
    /// The maximum magnitude. The cheapest: silent frames are only scanned.
    MaxAbs,
    /// Largest minus smallest sample: a constant offset does not matter.
    PeakToPeak,
    /// Standard deviation: the loudness, without a constant offset.
    Std,
    /// One of the seven features.
    Feature(Feature),
    /// The scaling factor.
    Scaling,
}

impl Measure {
    /// All measures.
    pub fn all() -> impl Iterator<Item = Self> {
        let features = Feature::ALL.into_iter().map(Self::Feature);
        [Self::MaxAbs, Self::PeakToPeak, Self::Std, Self::Scaling]
            .into_iter()
            .chain(features)
    }

    /// The name for flags and table headings.
    pub const fn name(self) -> &'static str {
        match self {
            Self::MaxAbs => "max_abs",
            Self::PeakToPeak => "peak_to_peak",
            Self::Std => "std",
            Self::Feature(feature) => feature.name(),
            Self::Scaling => "scaling",
        }
    }

    /// The measure called `name`.
    pub fn by_name(name: &str) -> Option<Self> {
        Self::all().find(|measure| measure.name() == name)
    }
}

/// The side of the threshold on which a frame passes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub enum Sense {
    /// At the threshold or above.
    #[default]
    AtLeast,
    /// At the threshold or below: for measures that are high in silence, such as sparsity.
    AtMost,
}

/// A threshold that follows the noise: it is at least `ratio` times the floor of the measure.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct NoiseFloor {
    /// Signal is this many times the floor, at least 1.
    pub ratio: f32,
    /// Fraction of the distance that the floor moves towards a lower value per frame, 0 to 1.
    pub fall: f32,
    /// Fraction towards a higher value per frame, 0 to 1: slow enough that a word does not
    /// lift the floor, fast enough that a fan that starts does not keep the gate open.
    pub rise: f32,
}

impl Default for NoiseFloor {
    fn default() -> Self {
        Self {
            ratio: 3.0,
            fall: 0.2,
            rise: 0.002,
        }
    }
}

/// Which frames pass.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Policy {
    /// The value to compare.
    pub measure: Measure,
    /// The side on which a frame passes.
    pub sense: Sense,
    /// The gate opens at this value.
    pub threshold: f32,
    /// An open gate stays open down to this fraction of the threshold (up to its inverse with
    /// [`Sense::AtMost`]); above 0, up to 1, which is off.
    pub hysteresis: f32,
    /// Frames that pass after the last active one.
    pub hang_over_frames: u32,
    /// Lifts the threshold with the noise. Only with [`Sense::AtLeast`].
    pub noise_floor: Option<NoiseFloor>,
}

impl Default for Policy {
    /// Every frame with a sample of at least 1e-5.
    fn default() -> Self {
        Self {
            measure: Measure::MaxAbs,
            sense: Sense::AtLeast,
            threshold: 1e-5,
            hysteresis: 1.0,
            hang_over_frames: 0,
            noise_floor: None,
        }
    }
}

/// An invalid setting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum GateError {
    /// A histogram without bins.
    NoBins,
    /// `ema_alpha` is outside 0 to 1.
    EmaAlpha,
    /// `l1_threshold` is NaN.
    L1Threshold,
    /// The wall is negative or NaN.
    Wall,
    /// The threshold is negative or NaN.
    Threshold,
    /// Hysteresis is not in (0, 1].
    Hysteresis,
    /// The noise floor's ratio is below 1, or its fall or rise outside 0 to 1.
    NoiseFloor,
    /// A noise floor below which frames would pass.
    NoiseFloorAtMost,
    /// Frames of length 0.
    FrameLen,
    /// The ring is not a whole number of frames, or is empty.
    RingLen,
}

impl fmt::Display for GateError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NoBins => "the number of bins is 0",
            Self::EmaAlpha => "ema_alpha is not between 0 and 1",
            Self::L1Threshold => "l1_threshold is not a number",
            Self::Wall => "the wall is negative or not a number",
            Self::Threshold => "the threshold is negative or not a number",
            Self::Hysteresis => "hysteresis is not above 0 and at most 1",
            Self::NoiseFloor => {
                "the noise floor wants a ratio of at least 1, fall and rise of 0 to 1"
            }
            Self::NoiseFloorAtMost => "a noise floor goes with passing at or above the threshold",
            Self::FrameLen => "the frame length is 0",
            Self::RingLen => "the ring does not hold a whole number of frames",
        })
    }
}

impl core::error::Error for GateError {}

impl Policy {
    pub(super) fn check(&self) -> Result<(), GateError> {
        let share = |x: f32| (0.0..=1.0).contains(&x);
        if self.threshold.is_nan() || self.threshold < 0.0 {
            return Err(GateError::Threshold);
        }
        if !share(self.hysteresis) || self.hysteresis <= 0.0 {
            return Err(GateError::Hysteresis);
        }
        let Some(floor) = self.noise_floor else {
            return Ok(());
        };
        if self.sense == Sense::AtMost {
            return Err(GateError::NoiseFloorAtMost);
        }
        if floor.ratio.is_nan() || floor.ratio < 1.0 || !share(floor.fall) || !share(floor.rise) {
            return Err(GateError::NoiseFloor);
        }
        Ok(())
    }
}

/// The state of a stream's policy.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct PolicyState {
    pub(super) is_open: bool,
    pub(super) hang_over: u32,
    pub(super) floor: Option<f32>,
}

/// Why a frame passes, or that it does not.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Verdict {
    /// On the passing side of the threshold, or with a sample that is not finite.
    Active,
    /// Passes because a recent frame was active.
    HangOver,
    /// Does not pass.
    Silent,
}

impl Verdict {
    /// Whether the frame passes.
    pub const fn passes(self) -> bool {
        !matches!(self, Self::Silent)
    }

    /// The name for tables.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Active => "active",
            Self::HangOver => "hang_over",
            Self::Silent => "silent",
        }
    }
}

impl PolicyState {
    /// The threshold in force.
    pub(super) fn level(&self, policy: &Policy) -> f32 {
        let floor = policy.noise_floor.zip(self.floor);
        let level = floor.map_or(policy.threshold, |(settings, floor)| {
            policy.threshold.max(settings.ratio * floor)
        });
        match (self.is_open, policy.sense) {
            (false, _) => level,
            (true, Sense::AtLeast) => level * policy.hysteresis,
            (true, Sense::AtMost) => level / policy.hysteresis,
        }
    }

    /// Whether `value` is on the passing side. NaN is.
    pub(super) fn reaches(value: f32, level: f32, sense: Sense) -> bool {
        let fails = match sense {
            Sense::AtLeast => value < level,
            Sense::AtMost => value > level,
        };
        !fails
    }

    /// Updates the state with a frame's outcome.
    pub(super) fn settle(&mut self, policy: &Policy, is_active: bool) -> Verdict {
        self.is_open = is_active;
        if is_active {
            self.hang_over = policy.hang_over_frames;
            return Verdict::Active;
        }
        if self.hang_over > 0 {
            self.hang_over -= 1;
            return Verdict::HangOver;
        }
        Verdict::Silent
    }

    /// Moves the floor towards a measured value.
    pub(super) fn follow(&mut self, policy: &Policy, value: f32) {
        let Some(settings) = policy.noise_floor.filter(|_| value.is_finite()) else {
            return;
        };
        let floor = self.floor.get_or_insert(value);
        let share = if value < *floor {
            settings.fall
        } else {
            settings.rise
        };
        *floor += share * (value - *floor);
    }
}
