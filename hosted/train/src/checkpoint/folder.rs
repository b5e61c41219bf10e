//! The output folder of a run: locked, with checkpoints that are whole.

use super::error::CheckpointError;
use super::files::{ADAPTER_CONFIG, HASHED, LOCK, OPTIMIZER, STATE, sha256};
use super::identity::RunIdentity;
use super::moments;
use super::state::{StateFile, TrainerState};
use crate::optimizer::AdamW;
use rustix::fs::{self as sys, RenameFlags};
use sluice::adapter::AdapterFile;
use sluice::file::OutputFile;
use sluice_make::lora::{PeftOptions, write_peft};
use std::fs::{self, File, TryLockError};
use std::io;
use std::path::{Path, PathBuf};

/// The output folder of a run. Another run cannot use it until this value is dropped.
#[derive(Debug)]
pub struct RunFolder {
    path: PathBuf,
    _lock: File,
}

/// What a checkpoint consists of.
#[derive(Clone, Copy, Debug)]
pub struct Checkpoint<'c> {
    /// The adapter.
    pub adapter: &'c AdapterFile,
    /// How it is written.
    pub peft: PeftOptions<'c>,
    /// The optimizer.
    pub optimizer: &'c AdamW,
    /// The place in the run.
    pub state: &'c TrainerState,
    /// What its continuation must have in common with it.
    pub identity: &'c RunIdentity,
}

impl RunFolder {
    /// Makes the folder if it does not exist, locks it, and removes what killed runs left unfinished. The lock is released
    /// with the process, however it ends.
    ///
    /// # Errors
    /// [`CheckpointError::Folder`], [`CheckpointError::Locked`].
    pub fn open(path: &Path) -> Result<Self, CheckpointError> {
        let of = |error| CheckpointError::Folder {
            path: path.to_path_buf(),
            error,
        };
        fs::create_dir_all(path).map_err(of)?;
        let mut options = File::options();
        let options = options.create(true).truncate(false).write(true);
        let lock = options.open(path.join(LOCK)).map_err(of)?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                let path = path.to_path_buf();
                return Err(CheckpointError::Locked { path });
            }
            // Some network file systems have no locks.
            Err(TryLockError::Error(error)) if error.kind() == io::ErrorKind::Unsupported => {}
            Err(TryLockError::Error(error)) => return Err(of(error)),
        }
        let folder = Self {
            path: path.to_path_buf(),
            _lock: lock,
        };
        for name in folder.names().map_err(of)? {
            // A folder in the making is itself made under a temporary name: it begins with two dots.
            if name.starts_with('.') && name.trim_start_matches('.').starts_with(PREFIX) {
                fs::remove_dir_all(path.join(name)).map_err(of)?;
            }
        }
        Ok(folder)
    }

    /// The folder.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Refuses a folder that an earlier run has used, or removes that run's checkpoints from it if `overwrite` is set.
    ///
    /// # Errors
    /// [`CheckpointError::Used`]; a checkpoint cannot be removed.
    pub fn begin(&self, overwrite: bool) -> Result<(), CheckpointError> {
        let checkpoints = self.checkpoints()?;
        if overwrite {
            return checkpoints.iter().try_for_each(|(_, path)| remove(path));
        }
        let last = checkpoints.into_iter().next_back().map(|(_, path)| path);
        let adapter = Some(self.path.join(ADAPTER_CONFIG)).filter(|path| path.exists());
        match last.or(adapter) {
            Some(path) => Err(CheckpointError::Used { path }),
            None => Ok(()),
        }
    }

    /// The checkpoints with their numbers of steps, ascending. They may be damaged.
    ///
    /// # Errors
    /// [`CheckpointError::Folder`].
    pub fn checkpoints(&self) -> Result<Vec<(u64, PathBuf)>, CheckpointError> {
        let names = self.names().map_err(|error| CheckpointError::Folder {
            path: self.path.clone(),
            error,
        })?;
        let of = |name: String| Some((step_of(&name)?, self.path.join(name)));
        let mut all: Vec<_> = names.into_iter().filter_map(of).collect();
        all.sort_unstable();
        Ok(all)
    }

    /// Writes `checkpoint-N`, where N is the number of steps taken; one that is already there is replaced. Returns its
    /// folder.
    ///
    /// # Errors
    /// [`CheckpointError`]: the disk is full, for example. All other checkpoints are then as before.
    pub fn save(&self, checkpoint: &Checkpoint<'_>) -> Result<PathBuf, CheckpointError> {
        let name = format!("{PREFIX}{}", checkpoint.state.global_step);
        let (partial, path) = (
            self.path.join(format!(".{name}.partial")),
            self.path.join(name),
        );
        let written = write(&partial, checkpoint).and_then(|()| self.place(&partial, &path));
        if written.is_err() {
            let _removed = fs::remove_dir_all(&partial);
        }
        written.map(|()| path)
    }

    /// Removes all checkpoints but the last `limit` and the one called `best`. Returns the removed ones.
    ///
    /// # Errors
    /// A checkpoint cannot be removed.
    pub fn prune(&self, limit: usize, best: Option<&str>) -> Result<Vec<PathBuf>, CheckpointError> {
        let mut removed = self.checkpoints()?;
        removed.truncate(removed.len().saturating_sub(limit));
        let is_best =
            |path: &Path| best.is_some_and(|best| path.file_name() == Some(best.as_ref()));
        let removed = removed.into_iter().map(|(_, path)| path);
        let removed: Vec<_> = removed.filter(|path| !is_best(path)).collect();
        removed.iter().try_for_each(|path| remove(path))?;
        Ok(removed)
    }

    fn names(&self) -> io::Result<Vec<String>> {
        let mut names = Vec::new();
        for entry in fs::read_dir(&self.path)? {
            let entry = entry?;
            if let (true, Ok(name)) = (entry.path().is_dir(), entry.file_name().into_string()) {
                names.push(name);
            }
        }
        Ok(names)
    }

    /// Gives a complete folder its name.
    fn place(&self, partial: &Path, path: &Path) -> Result<(), CheckpointError> {
        let place = || {
            if path.exists() {
                let both = (sys::CWD, RenameFlags::EXCHANGE);
                let exchanged = sys::renameat_with(both.0, partial, both.0, path, both.1);
                // A file system without such a rename: for a moment there is neither.
                if exchanged.is_err() {
                    fs::remove_dir_all(path)?;
                    fs::rename(partial, path)?;
                } else {
                    fs::remove_dir_all(partial)?;
                }
            } else {
                fs::rename(partial, path)?;
            }
            sync(&self.path);
            Ok(())
        };
        place().map_err(|error| CheckpointError::Write {
            path: path.to_path_buf(),
            error,
        })
    }
}

/// Writes the files of a checkpoint into the new folder `partial`.
fn write(partial: &Path, checkpoint: &Checkpoint<'_>) -> Result<(), CheckpointError> {
    if partial.exists() {
        remove(partial)?;
    }
    write_peft(checkpoint.adapter, checkpoint.peft, partial)?;
    moments::write(&partial.join(OPTIMIZER), checkpoint.optimizer)?;
    let [config, adapter, optimizer] = HASHED.map(|name| sha256(&partial.join(name)));
    let file = StateFile {
        state: checkpoint.state.clone(),
        identity: checkpoint.identity.clone(),
        hashes: [config?, adapter?, optimizer?],
    };
    let output = OutputFile::create(&partial.join(STATE), false)?;
    output.write_at(0, file.text().as_bytes())?;
    output.finish()?;
    sync(partial);
    Ok(())
}

/// Removes a checkpoint, whose name goes first: a half-removed one is never taken for a whole one.
fn remove(path: &Path) -> Result<(), CheckpointError> {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let hidden = path.with_file_name(format!(".{}.removed", name.trim_start_matches('.')));
    let removed = fs::rename(path, &hidden).and_then(|()| fs::remove_dir_all(&hidden));
    removed.map_err(|error| CheckpointError::Write {
        path: path.to_path_buf(),
        error,
    })
}

/// Makes the names in a folder durable. Some file systems have no folders to sync.
fn sync(folder: &Path) {
    let _synced = File::open(folder).and_then(|folder| folder.sync_all());
}

/// The number of steps in a checkpoint's name.
pub(super) fn step_of(name: &str) -> Option<u64> {
    let digits = name.strip_prefix(PREFIX)?;
    let step: u64 = digits.parse().ok()?;
    (step.to_string() == digits).then_some(step)
}

const PREFIX: &str = "checkpoint-";
