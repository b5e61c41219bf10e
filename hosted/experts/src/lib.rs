//! A laboratory of expert caches: analyses traces after the run.
//!
//! A [`TraceReader`] reads a trace line by line, [`Steps`] keeps a whole one in memory. [`replay`] runs it through
//! caches: the optimum, which knows the future, and each [`EvictionPolicy`](sluice::experts::policy::EvictionPolicy), by the same
//! [`Worth`](sluice::experts::policy::Worth) that the live cache uses. [`Recall`] measures the predictions that the
//! trace recorded, [`TraceFigures`] describes the trace itself. All of it is deterministic.
#![forbid(unsafe_code)]

mod cache;
mod figures;
mod optimum;
mod recall;
mod replay;
mod slots;
mod steps;
mod trace;

pub use cache::{CacheSetup, Hits, Pool, Rate};
pub use figures::{LayerFigures, TraceFigures, WorkingSet};
pub use recall::{CUTS, Recall, cuts, recalls};
pub use replay::{CacheReport, PolicyHits, TooFewSlots, replay};
pub use steps::{StepRef, Steps};
pub use trace::{LineError, TraceReadError, TraceReader, TraceStep};
