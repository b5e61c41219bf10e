//! Neurons of feed-forward networks that are left unread, or out: modes by name, calibration files, and modes fitted to a
//! model.
#![forbid(unsafe_code)]

mod file;
mod mode;
mod plan;
mod predictor;

pub use file::{SparseFile, SparseFileError};
pub use mode::{SparseMode, SparseModeError, SparseRule, signal_name, signal_of};
pub use plan::{NormsError, SparseError, SparsePlan, default_signal, neuron_norms};
pub(crate) use plan::{SparseSetup, Subject};
pub use predictor::{PREDICTOR_ARCHITECTURE, PREDICTOR_MODEL, predictor_beside};
