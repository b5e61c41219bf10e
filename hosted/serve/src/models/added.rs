//! Models that are added while the server runs.

use super::options::Listed;
use super::{Entry, Models};
use crate::api::ApiError;
use std::path::Path;

impl Models {
    /// Offers the model at `path`, which is loaded on first use. Nothing changes if there is one called `name`.
    ///
    /// # Errors
    /// There are too many.
    pub(crate) fn add(&self, name: &str, path: &Path) -> Result<(), ApiError> {
        let _table = self.lock();
        let is_there = self.listed.iter().any(|listed| listed.name == name);
        if is_there {
            return Ok(());
        }
        let full = || {
            ApiError::unavailable(
                "no more models can be added: start the server again to list those that were downloaded",
            )
        };
        // The entry first: what is listed can be used.
        self.entries.add(Entry::new(name, None)).ok_or_else(full)?;
        let listed = Listed {
            name: name.to_owned(),
            others: Vec::new(),
            path: path.to_owned(),
            eager: false,
            preset: None,
        };
        self.listed.add(listed).ok_or_else(full)?;
        (self.log)(&format!("model {name:?} is offered: {}", path.display()));
        Ok(())
    }
}
