//! Neurons of feed-forward networks that are left unread, or out: modes by name, calibration files, and modes fitted to a
//! model.
#![forbid(unsafe_code)]

mod error;
mod file;
mod mode;
mod plan;
mod predictor;

pub use error::SparseError;
pub(crate) use error::Subject;
pub use file::{SparseFile, SparseFileError, shares_between};
pub use mode::{SparseMode, SparseModeError, SparseRule, signal_name, signal_of};
pub(crate) use plan::SparseSetup;
pub(crate) use plan::neuron_norms;
pub use plan::{NormsError, SparsePlan, compares_gates, default_signal};
pub use predictor::{PREDICTOR_ARCHITECTURE, PREDICTOR_MODEL, predictor_beside};
