//! What a trace says about caches and predictions, after the run.
//!
//! [`Steps`] is a trace in memory. [`replay`] runs it through caches: the optimum, which knows the future, and each
//! [`Policy`](super::policy::Policy), by the same [`Worth`](super::policy::Worth) that the live cache asks.
//! [`predictions`] has arms predict each step before they see it. [`Figures`] describes the trace itself.
//! All of it is deterministic.
#![forbid(unsafe_code)]

mod cache;
mod figures;
mod optimum;
pub mod predict;
mod steps;

pub use cache::{CacheReport, CacheSetup, Hits, Pool, Rate, TooFewSlots, replay};
pub use figures::{Figures, LayerFigures, WorkingSet};
pub use predict::{ArmReport, Recall, predictions};
pub use steps::{StepRef, Steps};
