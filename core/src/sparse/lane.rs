//! Precision lanes, and which of them a machine is meant for.

use crate::kernels::GgmlType;

/// Number of lanes.
pub const N_LANES: usize = 4;

/// A precision in which values of a stream are kept.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum PrecisionLane {
    /// 3 bits, -4 to 3: signals and boundaries.
    Bit3,
    /// 5 bits, -16 to 15: streamed embeddings.
    Bit5,
    /// 7 bits, -64 to 63: what is written to memory.
    #[default]
    Bit7,
    /// f32.
    Float32,
}

impl PrecisionLane {
    /// All lanes, lowest first.
    pub const ALL: [Self; N_LANES] = [Self::Bit3, Self::Bit5, Self::Bit7, Self::Float32];

    /// Bits of a code: 3, 5, 7 or 32.
    #[must_use]
    pub const fn bits(self) -> u8 {
        match self {
            Self::Bit3 => 3,
            Self::Bit5 => 5,
            Self::Bit7 => 7,
            Self::Float32 => 32,
        }
    }

    /// The lowest and the highest code.
    #[must_use]
    pub const fn value_range(self) -> (i32, i32) {
        let half = 1 << (self.bits() - 1);
        match self {
            Self::Float32 => (i32::MIN, i32::MAX),
            _ => (-half, half - 1),
        }
    }

    /// Bytes of an element in the predecessor's containers: 0.5, 1, 1 or 4.
    #[must_use]
    pub const fn bytes_per_element(self) -> f32 {
        match self {
            Self::Bit3 => 0.5,
            Self::Bit5 | Self::Bit7 => 1.0,
            Self::Float32 => 4.0,
        }
    }

    /// The default scale: 1/4, 1/16, 1/64 or 1.
    #[must_use]
    pub const fn default_scale(self) -> f32 {
        match self {
            Self::Bit3 => 0.25,
            Self::Bit5 => 0.0625,
            Self::Bit7 => 0.015625,
            Self::Float32 => 1.0,
        }
    }

    /// Whether values of the lane may be written to memory: 7 bits and f32.
    #[must_use]
    pub const fn allows_memory_writes(self) -> bool {
        matches!(self, Self::Bit7 | Self::Float32)
    }

    /// Whether the lane is updated by events: 5 and 7 bits.
    #[must_use]
    pub const fn is_event_driven(self) -> bool {
        matches!(self, Self::Bit5 | Self::Bit7)
    }

    /// The type in which rows of the lane are stored: 3.5, 5.5, 7.5 or 32 bits an element.
    #[must_use]
    pub const fn tensor_type(self) -> GgmlType {
        match self {
            Self::Bit3 => GgmlType::LANE3,
            Self::Bit5 => GgmlType::LANE5,
            Self::Bit7 => GgmlType::LANE7,
            Self::Float32 => GgmlType::F32,
        }
    }

    /// The next lane of more bits.
    #[must_use]
    pub const fn higher(self) -> Option<Self> {
        match self {
            Self::Bit3 => Some(Self::Bit5),
            Self::Bit5 => Some(Self::Bit7),
            Self::Bit7 => Some(Self::Float32),
            Self::Float32 => None,
        }
    }

    /// The next lane of fewer bits.
    #[must_use]
    pub const fn lower(self) -> Option<Self> {
        match self {
            Self::Bit3 => None,
            Self::Bit5 => Some(Self::Bit3),
            Self::Bit7 => Some(Self::Bit5),
            Self::Float32 => Some(Self::Bit7),
        }
    }

    /// Its place in [`PrecisionLane::ALL`].
    #[must_use]
    pub const fn index(self) -> usize {
        self as usize
    }
}

/// Settings of lanes and of the policy that chooses among them.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LaneConfig {
    /// The lane that a stream begins in. Bits above it are charged to the budget.
    pub default_lane: PrecisionLane,
    /// Time of a tick of the 3-bit lane, in microseconds. Without effect: core has no clock.
    pub bit3_tick_budget_us: u64,
    /// Updates of the 5-bit lane before the policy is asked. Without effect: it is asked at every update.
    pub bit5_max_updates: usize,
    /// Stable steps before a lane is lowered.
    pub min_stability_steps: usize,
    /// Novelty above it raises the lane.
    pub novelty_threshold: f32,
    /// Steps of drift that raise the lane.
    pub drift_persistence_threshold: usize,
    /// Confidence needed to raise the lane.
    pub confidence_threshold: f32,
    /// The lane is raised only while the cost is below it.
    pub escalation_budget: f32,
    /// Whether the policy changes lanes at all.
    pub auto_lane_selection: bool,
}

impl Default for LaneConfig {
    fn default() -> Self {
        Self {
            default_lane: PrecisionLane::Bit5,
            bit3_tick_budget_us: 100,
            bit5_max_updates: 10,
            min_stability_steps: 5,
            novelty_threshold: 0.3,
            drift_persistence_threshold: 3,
            confidence_threshold: 0.7,
            escalation_budget: 1.0,
            auto_lane_selection: true,
        }
    }
}

/// The four settings that the predecessor's README names, with its values.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct GraduationConfig {
    /// [`LaneConfig::novelty_threshold`]
    pub novelty_threshold: f32,
    /// [`LaneConfig::drift_persistence_threshold`]
    pub drift_persistence_threshold: usize,
    /// [`LaneConfig::confidence_threshold`]
    pub confidence_threshold: f32,
    /// [`LaneConfig::escalation_budget`]
    pub escalation_budget: f32,
}

impl Default for GraduationConfig {
    fn default() -> Self {
        Self {
            novelty_threshold: 0.3,
            drift_persistence_threshold: 5,
            confidence_threshold: 0.8,
            escalation_budget: 0.2,
        }
    }
}

impl From<GraduationConfig> for LaneConfig {
    fn from(config: GraduationConfig) -> Self {
        Self {
            novelty_threshold: config.novelty_threshold,
            drift_persistence_threshold: config.drift_persistence_threshold,
            confidence_threshold: config.confidence_threshold,
            escalation_budget: config.escalation_budget,
            ..Self::default()
        }
    }
}

/// The machines that the predecessor names, and their lanes. Products are the tables' own on each of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum HardwareTarget {
    /// A microcontroller: 3 bits.
    Esp32,
    /// An appliance: 3, 5 and 7 bits.
    V0Appliance,
    /// A desktop or server: all lanes.
    Desktop,
    /// An FPGA: 7 bits.
    Fpga,
}

impl HardwareTarget {
    /// The lanes, lowest first.
    #[must_use]
    pub const fn supported_lanes(self) -> &'static [PrecisionLane] {
        let lanes = const { &PrecisionLane::ALL };
        match self {
            Self::Esp32 => lanes.split_at(1).0,
            Self::V0Appliance => lanes.split_at(3).0,
            Self::Desktop => lanes,
            Self::Fpga => &[PrecisionLane::Bit7],
        }
    }

    /// The lane that streams begin in.
    #[must_use]
    pub const fn default_lane(self) -> PrecisionLane {
        match self {
            Self::Esp32 => PrecisionLane::Bit3,
            Self::V0Appliance => PrecisionLane::Bit5,
            Self::Desktop | Self::Fpga => PrecisionLane::Bit7,
        }
    }
}
