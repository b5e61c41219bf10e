//! Names of files, and their hashes.

use super::error::CheckpointError;
use sha2::{Digest as _, Sha256};
use sluice_core::state::Identity;
use std::fs::File;
use std::io::Read as _;
use std::path::Path;

pub(super) const ADAPTER: &str = "adapter_model.safetensors";
pub(super) const ADAPTER_CONFIG: &str = "adapter_config.json";
pub(super) const OPTIMIZER: &str = "optimizer.safetensors";
pub(super) const STATE: &str = "trainer_state.json";
pub(super) const LOCK: &str = ".sluice-train.lock";

/// The files whose hashes are in the state.
pub(super) const HASHED: [&str; 3] = [ADAPTER_CONFIG, ADAPTER, OPTIMIZER];

/// Bytes that are read, or written, at once.
pub(super) const CHUNK: usize = 1 << 20;

/// The SHA-256 of a file.
pub(super) fn sha256(path: &Path) -> Result<Identity, CheckpointError> {
    let read = || {
        let (mut file, mut hash) = (File::open(path)?, Sha256::new());
        let mut buffer = vec![0; CHUNK];
        loop {
            match file.read(&mut buffer)? {
                0 => return Ok(Identity(hash.finalize().into())),
                n => hash.update(&buffer[..n]),
            }
        }
    };
    read().map_err(|error| CheckpointError::Read {
        path: path.to_path_buf(),
        error,
    })
}
