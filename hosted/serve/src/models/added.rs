//! Models that are added, replaced and withdrawn while the server runs.

use super::names::offered;
use super::options::{Listed, NamedModel};
use super::{Entry, Models};
use crate::api::ApiError;
use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError};

impl Models {
    /// Refuses to begin a download for which the list has no room.
    ///
    /// # Errors
    /// It is full.
    pub(crate) fn check_room(&self) -> Result<(), ApiError> {
        match self.listed.is_full() {
            true => Err(full()),
            false => Ok(()),
        }
    }

    /// Offers the model at `path`, which a client has downloaded and which is loaded on first use. Nothing changes if there
    /// is one in this file. Another revision of a file that the cache offers under this name is loaded the next time;
    /// requests that use the former one keep it. Does not wait.
    ///
    /// # Errors
    /// There are too many.
    pub(crate) fn offer(self: &Arc<Self>, name: &str, path: &Path) -> Result<(), ApiError> {
        let table = self.lock();
        let same = |listed: &Listed| listed.path == path || is_same_file(&listed.path, path);
        if offered(&self.listed).any(|(_, listed)| same(listed)) {
            return Ok(());
        }
        let model = NamedModel {
            alias: Some(name.to_owned()),
            path: path.to_owned(),
        };
        let new = Listed {
            is_added: true,
            ..Listed::of(&model, false)
        };
        let before = offered(&self.listed).find(|(_, listed)| listed.name == name);
        let is_newer = match before {
            Some((_, listed)) if !listed.is_cached() => return Ok(()),
            before => before.is_some(),
        };
        self.list(new)?;
        drop(table);
        let what = if is_newer {
            "has a new file"
        } else {
            "is offered"
        };
        (self.log)(&format!("model {name:?} {what}: {}", path.display()));
        if is_newer {
            self.unload_unused(Some(name))?;
        }
        Ok(())
    }

    /// Whether a client's download may replace the file of the model with number `index`.
    pub(crate) fn is_cached(&self, index: usize) -> bool {
        self.listed.get(index).is_some_and(Listed::is_cached)
    }

    /// The repository and the path of the model with number `index`, if the cache offers it.
    pub(crate) fn cached_file(&self, index: usize) -> Option<(String, PathBuf)> {
        let listed = self.listed.get(index).filter(|listed| listed.is_cached())?;
        Some((listed.hub.as_ref()?.repo.clone(), listed.path.clone()))
    }

    /// Lists a model, in place of one with its name that was listed before. The table must be locked.
    ///
    /// # Errors
    /// There are too many.
    pub(super) fn list(&self, listed: Listed) -> Result<usize, ApiError> {
        let before = self.listed.iter().position(|old| old.name == listed.name);
        if let Some(index) = before {
            let opened = &self.entries[index].opened;
            *opened.lock().unwrap_or_else(PoisonError::into_inner) = None;
            self.listed.replace(index, listed);
            return Ok(index);
        }
        // The entry first: what is listed can be used.
        self.entries
            .add(Entry::new(&listed.name, None))
            .ok_or_else(full)?;
        self.listed.add(listed).ok_or_else(full)
    }

    /// Takes the model with number `index` out of the list, and unloads it. Does not wait.
    pub(crate) fn withdraw(self: &Arc<Self>, index: usize) {
        let table = self.lock();
        let listed = self.listed[index].withdrawn();
        let name = listed.name.clone();
        self.listed.replace(index, listed);
        drop(table);
        (self.log)(&format!("model {name:?} is not offered any more"));
        // It may not be in memory.
        let _unloads = self.begin_unloading(index);
    }
}

/// Whether two links of a cache lead to the same file.
fn is_same_file(a: &Path, b: &Path) -> bool {
    let (a, b) = (a.canonicalize(), b.canonicalize());
    a.is_ok_and(|a| b.is_ok_and(|b| a == b))
}

fn full() -> ApiError {
    ApiError::unavailable(
        "no more models can be added: start the server again to list the new ones",
    )
}
