//! Models that clients download, and remove again.

use super::app::Context;
use crate::api::ApiError;
use crate::models::{ModelChange, Models};
use crate::pulls::{Listing, PullWatch};
use sluice_pull::PullRequest;
use std::path::Path;
use std::sync::Arc;

impl Context {
    /// Whether it may download models, and remove what clients have downloaded.
    pub(crate) fn may_pull(&self) -> bool {
        self.app.pulls().are_allowed() || self.key.may_pull()
    }

    /// # Errors
    /// It may not download models.
    pub(crate) fn check_pull(&self) -> Result<(), ApiError> {
        match self.may_pull() {
            true => Ok(()),
            false => Err(ApiError::forbidden(
                "models are neither downloaded nor removed: start the server with --allow-pull, or give the key \
                 `pull = true` in the file of --keys",
            )),
        }
    }

    /// Starts the download of `hf.co/ORG/REPO[:QUANT]`, or joins the one that runs.
    ///
    /// # Errors
    /// It may not, the name is not one of the hub, or there are too many models or downloads.
    pub(crate) fn pull(&self, name: &str) -> Result<PullWatch, ApiError> {
        self.check_pull()?;
        self.check_name(name)?;
        let parsed = PullRequest::parse(name);
        let parsed = parsed.map_err(|error| ApiError::field("model", error.to_string()))?;
        self.app.models().check_room()?;
        self.app.pulls().begin(name, parsed)
    }

    /// Removes the model called `name`, which a client has downloaded. Texts that use it may end.
    ///
    /// # Errors
    /// It may not, the model is not one of those, or its files cannot be removed.
    pub(crate) async fn remove_model(&self, name: &str) -> Result<(), ApiError> {
        self.check_pull()?;
        self.check_allowed(Some(name), &[])?;
        let models = self.app.models();
        let index = models.find(name);
        let index = index.map_err(|error| self.unknown(name, error))?;
        let Some((repo, path)) = models.cached_file(index) else {
            let what = "is not one that a client has downloaded: only those can be removed";
            return Err(ApiError::field("model", what));
        };
        self.app.pulls().remove(&repo, &path).await?;
        models.withdraw(index);
        models.tell(ModelChange::Removed(models.name_of(index).to_owned()));
        Ok(())
    }
}

impl Listing for Arc<Models> {
    fn offer(&self, name: &str, path: &Path) -> Result<(), ApiError> {
        Models::offer(self, name, path)
    }

    fn tell(&self, change: ModelChange) {
        Models::tell(self, change);
    }
}
