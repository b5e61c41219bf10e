//! Networks of which some neurons are computed: modes of models, and the names of ruvector-sparse-inference.
//!
//! [`SparseMode`], [`SparseFile`] and [`SparsePlan`] are how a model leaves neurons out (`--sparse`).
#![forbid(unsafe_code)]

pub use crate::sparse_modes::{
    NormsError, PREDICTOR_ARCHITECTURE, PREDICTOR_MODEL, SparseError, SparseFile, SparseFileError,
    SparseMode, SparseModeError, SparsePlan, SparseRule, compares_gates, default_signal,
    neuron_norms, predictor_beside, shares_between, signal_name, signal_of,
};
