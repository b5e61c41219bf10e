//! The list of models is read again.

use super::names::offered;
use super::options::{Listed, ModelLists, ModelsOptions, listed};
use super::{ModelChange, Models};
use crate::api::{ApiError, ErrorKind};
use std::sync::Arc;

impl Models {
    /// Reads again which models there are: presets, the cache, the folder. New ones are listed, those that have changed
    /// are unloaded and listed as they are now, those that are gone are unloaded. What the command line names stays.
    ///
    /// # Errors
    /// The lists cannot be read, then nothing changes; or there are too many models.
    pub(crate) async fn reload(self: &Arc<Self>) -> Result<(), ApiError> {
        let _one = self.reloading.lock().await;
        let models = Arc::clone(self);
        let read = tokio::task::spawn_blocking(move || models.read_again()).await;
        let read = read.unwrap_or_else(|_| Err("reading them failed".to_owned()));
        let read = read.map_err(|why| ApiError {
            detail: Some(format!("the models cannot be listed again: {why}")),
            ..ApiError::new(ErrorKind::Unavailable, UNREAD)
        })?;
        let (changed, listed) = self.relist(read);
        for index in changed {
            // Most are not in memory.
            let _unloads = self.begin_unloading(index);
        }
        tokio::spawn(Arc::clone(self).watch_idle());
        self.tell(ModelChange::Listed);
        listed
    }

    fn read_again(&self) -> Result<Vec<Listed>, String> {
        let lists = match &self.lists {
            Some(read) => read()?,
            None => ModelLists {
                presets: self.options.presets.clone(),
                offered: self.options.offered.clone(),
            },
        };
        let options = ModelsOptions {
            presets: lists.presets,
            offered: lists.offered,
            ..self.options.clone()
        };
        listed(&options, &self.log).map_err(|error| error.to_string())
    }

    /// Lists what was read. Returns the numbers of models that have changed or are gone, and whether all are listed.
    fn relist(&self, mut read: Vec<Listed>) -> (Vec<usize>, Result<(), ApiError>) {
        let _table = self.lock();
        let mut changed = Vec::new();
        for (index, old) in offered(&self.listed) {
            let new = read.iter().position(|new| new.name == old.name);
            let new = match new.map(|at| read.remove(at)) {
                _ if old.is_named() => continue,
                Some(new) if new.is_same(old) => continue,
                None if old.is_added && old.path.exists() => continue,
                Some(new) => new,
                None => old.withdrawn(),
            };
            changed.push((index, new));
        }
        let numbers = changed.iter().map(|(index, _)| *index).collect();
        let all = changed.into_iter().map(|(_, new)| new).chain(read);
        // What is loaded at the start was.
        let all = all.map(|new| Listed {
            eager: false,
            ..new
        });
        let results: Vec<_> = all.map(|new| self.list(new)).collect();
        (
            numbers,
            results.into_iter().try_for_each(|listed| listed.map(drop)),
        )
    }
}

const UNREAD: &str = "the models cannot be listed again; the server's log says why";
