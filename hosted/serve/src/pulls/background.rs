//! Downloads that no request waits for, and the removal of what was downloaded.

use super::shown::shown;
use super::{PullState, PullWatch, Pulls};
use crate::api::ApiError;
use sluice_pull::PullRequest;
use std::collections::HashMap;
use std::path::Path;
use std::sync::{Arc, MutexGuard, PoisonError};
use tokio::task::AbortHandle;

impl Pulls {
    /// The names of all downloads that run, with their states.
    pub(crate) fn running(&self) -> Vec<(String, PullState)> {
        let running = self.lock();
        let all = running.iter();
        let mut all: Vec<_> = all
            .map(|(name, pull)| (shown_name(name).to_owned(), pull.state.borrow().clone()))
            .collect();
        all.sort_by(|a, b| a.0.cmp(&b.0));
        all
    }

    /// Waits until the hub has named the files of a download, which then goes on by itself until it is cancelled.
    ///
    /// # Errors
    /// The hub has none.
    pub(crate) async fn go_on(
        self: &Arc<Self>,
        name: &str,
        mut watch: PullWatch,
    ) -> Result<(), ApiError> {
        let is_begun = |state: &PullState| !matches!(state, PullState::Asking);
        // The sender lives as long as the watch.
        let state = watch
            .states
            .wait_for(is_begun)
            .await
            .map(|state| state.clone());
        match state {
            Ok(PullState::Failed(error)) => return Err(error),
            Ok(PullState::Done) => return Ok(()),
            _ => {}
        }
        let mut background = self.background();
        if background.contains_key(name) {
            return Ok(());
        }
        let (pulls, key) = (Arc::clone(self), name.to_owned());
        let task = tokio::spawn(async move {
            let is_over =
                |state: &PullState| matches!(state, PullState::Done | PullState::Failed(_));
            drop(watch.states.wait_for(is_over).await);
            pulls.background().remove(&key);
        });
        background.insert(name.to_owned(), task.abort_handle());
        Ok(())
    }

    /// Ends a download that goes on by itself. Others may still wait for it. Returns whether there was one.
    pub(crate) fn cancel(&self, name: &str) -> bool {
        let task = self.background().remove(name);
        task.as_ref().map(AbortHandle::abort).is_some()
    }

    /// Removes the model at `path` from the cache, if a client has downloaded it.
    ///
    /// # Errors
    /// It is the operator's, it is being downloaded, or a file cannot be removed.
    pub(crate) async fn remove(&self, repo: &str, path: &Path) -> Result<(), ApiError> {
        let is_of_repo = |name: &str| {
            let of = PullRequest::parse(name).map(|request| request.repo);
            of.is_ok_and(|of| of.as_str().eq_ignore_ascii_case(repo))
        };
        if self.running().iter().any(|(name, _)| is_of_repo(name)) {
            let what =
                "its repository is being downloaded from: cancel that first by POST /models/unload";
            return Err(ApiError::conflict("model", what));
        }
        let cache = self.options.access.cache().map_err(|error| shown(&error))?;
        let path = path.to_owned();
        let removed = tokio::task::spawn_blocking(move || cache.remove_pulled(&path)).await;
        let removed = removed.map_err(|error| ApiError::internal(error.to_string()))?;
        match removed {
            Ok(true) => Ok(()),
            Ok(false) => Err(ApiError::forbidden(
                "it was not downloaded by a client: only the operator deletes its file",
            )),
            Err(error) => {
                (self.log)(&format!("a model cannot be removed: {error}"));
                let what = "the model's files cannot be removed; the server's log says why";
                Err(ApiError::unavailable(what))
            }
        }
    }

    fn background(&self) -> MutexGuard<'_, HashMap<String, AbortHandle>> {
        let locked = self.background.lock();
        locked.unwrap_or_else(PoisonError::into_inner)
    }
}

/// The name of a download as llama-server's clients write it: without the place of the hub.
pub(super) fn shown_name(name: &str) -> &str {
    name.strip_prefix("hf.co/").unwrap_or(name)
}
