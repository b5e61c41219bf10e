//! Training of LoRA adapters on the model that is served.
//!
//! [`config`] reads the settings of a run, [`data`] its rows, which [`labels`] turns into tokens and the positions that
//! are learned. [`order`] is the order of rows: a function of the seed and the epoch. [`plan`] describes a run before it
//! begins.
#![forbid(unsafe_code)]

pub mod checkpoint;
pub mod config;
pub mod data;
pub mod init;
pub mod labels;
pub mod logs;
pub mod optimizer;
pub mod order;
pub mod plan;
mod row;
mod run;
pub mod schedule;
mod sft;
#[cfg(test)]
mod test_vocabulary;

pub use run::{PreparedRun, TrainError};
pub use sft::train;
