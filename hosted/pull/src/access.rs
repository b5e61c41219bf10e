//! How a program reaches the hub.

use crate::cache::Cache;
use crate::error::PullError;
use crate::hub::Hub;
use crate::repo::PullRequest;
use crate::{PulledFiles, Watch, pull};
use std::path::PathBuf;

/// How the hub is reached; what is left out is taken from the environment.
#[derive(Clone, Debug, Default)]
pub struct HubAccess {
    /// The access token; `None` for `HF_TOKEN`, else the one that `hf auth login` has stored.
    pub token: Option<String>,
    /// Whether only cached downloads are used, as with `HF_HUB_OFFLINE=1`.
    pub offline: bool,
    /// The address of the hub; `None` for `HF_ENDPOINT`, else Hugging Face's.
    pub endpoint: Option<String>,
    /// The folder of the cache; `None` for the one of [`Cache::from_env`].
    pub cache: Option<PathBuf>,
}

impl HubAccess {
    /// Downloads the files that `request` names into the cache.
    ///
    /// # Errors
    /// As [`pull`], and as [`Hub::from_env`].
    pub fn fetch(
        &self,
        request: &PullRequest,
        watch: &mut dyn Watch,
    ) -> Result<PulledFiles, PullError> {
        let cache = self.cache()?;
        let token = self.token.as_deref();
        let hub = match (self.is_offline(), &self.endpoint) {
            (true, _) => None,
            (false, Some(endpoint)) => Some(Hub::new(endpoint, token)?),
            (false, None) => Some(Hub::from_env(token)?),
        };
        pull(request, hub.as_ref(), &cache, watch)
    }

    /// The cache that downloads go into.
    ///
    /// # Errors
    /// As [`Cache::from_env`].
    pub fn cache(&self) -> Result<Cache, PullError> {
        match &self.cache {
            Some(root) => Ok(Cache::at(root)),
            None => Cache::from_env(),
        }
    }

    fn is_offline(&self) -> bool {
        let set = std::env::var("HF_HUB_OFFLINE").unwrap_or_default();
        let words = ["1", "on", "yes", "true"];
        self.offline || words.iter().any(|word| set.eq_ignore_ascii_case(word))
    }
}
