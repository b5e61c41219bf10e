//! Experts of a mixture, or cold neurons of a dense model, that stay on disk: where they are, which of them are in memory, how the others are read, and
//! traces of all that for `sluice-experts`, the laboratory.
//!
//! An [`ExpertStore`] is the [`ExpertSource`](sluice_core::engine::ExpertSource) of a model that was loaded without its
//! experts ([`LoadOptions::experts`](crate::model::LoadOptions)). Results always equal the resident model's.

mod cold;
pub mod device;
mod error;
mod options;
mod places;
pub mod policy;
mod profile;
mod store;
pub mod trace;

pub(crate) use cold::{ColdNeurons, Home};
pub use device::ExpertIo;
pub use error::ExpertError;
pub use options::ExpertOptions;
pub(crate) use places::head_with_experts;
pub(crate) use store::HeadExperts;
pub use store::{ExpertStats, ExpertStore, READ_TIMES};
