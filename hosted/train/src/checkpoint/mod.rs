//! Checkpoints: the adapter, the optimizer and the place in the run, from which it goes on with the same bits.
//!
//! ```text
//! OUTPUT/.sluice-train.lock            held by the run that writes here
//! OUTPUT/checkpoint-N/                 after N steps
//!   adapter_config.json                the adapter, a PEFT folder
//!   adapter_model.safetensors
//!   optimizer.safetensors              moments and steps
//!   trainer_state.json                 transformers' state, and ours in stateful_callbacks.sluice
//! ```
//!
//! A checkpoint is written under a temporary name, synced and renamed, so that it is whole or not there. Its state has the
//! SHA-256 of the other files.

mod error;
mod files;
mod folder;
mod identity;
mod moments;
mod resume;
mod state;

pub use error::CheckpointError;
pub use folder::{Checkpoint, RunFolder};
pub use identity::RunIdentity;
pub use resume::Resumed;
pub use state::{BestResult, Cursor, TrainerState};

#[cfg(test)]
mod test_run;
#[cfg(test)]
mod tests;
