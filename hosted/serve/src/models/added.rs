//! Models that are added while the server runs.

use super::options::{Listed, NamedModel};
use super::{Entry, Models};
use crate::api::ApiError;
use std::path::Path;

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

    /// Offers the model at `path`, which is loaded on first use. Nothing changes if there is one in this file, or called
    /// `name`.
    ///
    /// # Errors
    /// There are too many.
    pub(crate) fn add(&self, name: &str, path: &Path) -> Result<(), ApiError> {
        let table = self.lock();
        let mut all = self.listed.iter();
        if all.any(|listed| listed.name == name || listed.path == path) {
            return Ok(());
        }
        // The entry first: what is listed can be used.
        self.entries.add(Entry::new(name, None)).ok_or_else(full)?;
        let model = NamedModel {
            alias: Some(name.to_owned()),
            path: path.to_owned(),
        };
        let listed = Listed::of(&model, false);
        self.listed.add(listed).ok_or_else(full)?;
        drop(table);
        (self.log)(&format!("model {name:?} is offered: {}", path.display()));
        Ok(())
    }
}

fn full() -> ApiError {
    ApiError::unavailable(
        "no more models can be added: start the server again to list those that were downloaded",
    )
}
