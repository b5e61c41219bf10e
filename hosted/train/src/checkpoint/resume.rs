//! Finding the checkpoint to continue, and reading it.

use super::error::CheckpointError;
use super::files::{HASHED, OPTIMIZER, STATE, sha256};
use super::folder::{RunFolder, step_of};
use super::identity::RunIdentity;
use super::moments;
use super::state::{StateFile, TrainerState};
use crate::optimizer::AdamW;
use std::fs;
use std::path::{Path, PathBuf};

/// A checkpoint that is continued.
#[derive(Debug)]
pub struct Resumed {
    /// Its folder, which has the adapter.
    pub path: PathBuf,
    /// The place in the run.
    pub state: TrainerState,
    /// Later checkpoints that are damaged, and how: the run goes on from before them.
    pub damaged: Vec<CheckpointError>,
}

impl RunFolder {
    /// Finds the checkpoint `which` (`auto`: the last one that is whole; else a path), and sets the optimizer to its
    /// state; the adapter is the caller's to read. `None` if `auto` finds no checkpoint.
    ///
    /// # Errors
    /// [`CheckpointError::Different`] if it is of another run; the named checkpoint, or all of them, are damaged.
    pub fn resume(
        &self,
        which: &str,
        identity: &RunIdentity,
        optimizer: &mut AdamW,
    ) -> Result<Option<Resumed>, CheckpointError> {
        if which != "auto" {
            let path = PathBuf::from(which);
            let state = read(&path, identity, optimizer)?;
            let damaged = Vec::new();
            return Ok(Some(Resumed {
                path,
                state,
                damaged,
            }));
        }
        let mut damaged = Vec::new();
        for (_, path) in self.checkpoints()?.into_iter().rev() {
            match read(&path, identity, optimizer) {
                Ok(state) => {
                    return Ok(Some(Resumed {
                        path,
                        state,
                        damaged,
                    }));
                }
                Err(error) if error.is_of_checkpoint() => damaged.push(error),
                Err(error) => return Err(error),
            }
        }
        match damaged.into_iter().next() {
            Some(error) => Err(error),
            None => Ok(None),
        }
    }
}

/// Reads a checkpoint, checks that it is whole and of this run, and sets the optimizer to its state.
fn read(
    path: &Path,
    identity: &RunIdentity,
    optimizer: &mut AdamW,
) -> Result<TrainerState, CheckpointError> {
    let state_path = path.join(STATE);
    let text = fs::read_to_string(&state_path).map_err(|error| CheckpointError::Read {
        path: state_path.clone(),
        error,
    })?;
    let damaged = |path: &Path, what: String| CheckpointError::Damaged {
        path: path.to_path_buf(),
        what,
    };
    let file = StateFile::of(&text).map_err(|what| damaged(&state_path, what))?;
    for (name, expected) in HASHED.iter().zip(file.hashes) {
        let path = path.join(name);
        let found = sha256(&path)?;
        if found != expected {
            let what = format!("its SHA-256 is {found}, and {expected} was written");
            return Err(damaged(&path, what));
        }
    }
    // Before the tensors are compared, whose shapes follow from the settings.
    identity.check(&file.identity, path)?;
    let path_of_moments = path.join(OPTIMIZER);
    let (step, moments) = moments::read(&path_of_moments, optimizer.tensors())?;
    let named = path.file_name().and_then(|name| step_of(name.to_str()?));
    let expected = file.state.global_step;
    let steps = [Some(step), named];
    if let Some(found) = steps.into_iter().flatten().find(|found| *found != expected) {
        let what = format!("is of step {expected}, and the checkpoint of step {found}");
        return Err(damaged(&state_path, what));
    }
    let restored = optimizer.restore(step, moments);
    restored.map_err(|error| damaged(&path_of_moments, error.to_string()))?;
    Ok(file.state)
}
