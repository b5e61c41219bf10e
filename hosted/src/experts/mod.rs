//! Experts of a mixture: which of them to keep in memory, and what a run's trace says about that.

pub mod policy;
mod profile;
pub mod replay;
pub mod trace;
