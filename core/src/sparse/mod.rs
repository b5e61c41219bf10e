//! Sparse two-layer networks, precision lanes and the π module of ruvector-sparse-inference 2.3.0, without allocation.
//!
//! | what | items |
//! |---|---|
//! | which neurons are computed | [`SparsityConfig`], [`PredictorWeights`], [`project_into`] |
//! | the network | [`FfnWeights`], [`ActivationType`] |
//! | lanes of 3, 5 and 7 bits | [`PrecisionLane`], [`LaneConfig`], [`LaneQuantizer`], [`LaneTelemetry`] |
//! | when a stream changes its lane | [`GraduationPolicy`] |
//! | calibration, drift, angles, jitter | [`pi`] |
//!
//! `sluice::sparse` has the same with vectors, by the signatures of that crate. These networks are f32 and stand alone;
//! models run by [`crate::engine`], whose sparse modes `docs/sparsity.md` describes. Names and formulas follow the
//! predecessor; what differs is described with each item.
#![deny(unsafe_code)]

mod config;
mod error;
mod ffn;
mod lane;
pub mod pi;
mod policy;
mod predictor;
mod projection;
pub mod quantizer;
mod select;
mod telemetry;
#[cfg(test)]
mod tests;

pub use config::{ActivationType, SparsityConfig};
pub use error::{SparsityError, check_finite, check_len, check_within};
pub use ffn::{FfnDims, FfnWeights, Selected};
pub use lane::{GraduationConfig, HardwareTarget, LaneConfig, N_LANES, PrecisionLane};
pub use policy::{GraduationDecision, GraduationMetrics, GraduationPolicy, ObservationMetrics};
pub use predictor::{Int8Predictor, PredictorWeights};
pub use projection::project_into;
pub use quantizer::LaneQuantizer;
pub use select::{n_kept, threshold_for};
pub use telemetry::{LaneStats, LaneTelemetry, LaneTransition, TransitionReason};
