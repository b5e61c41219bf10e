//! Who may download models, and how many.

use core::fmt;
use sluice_pull::HubAccess;

/// Who may download models, and how many.
#[derive(Clone)]
pub struct PullOptions {
    /// Whether every client may; otherwise only keys of the file with `pull = true`. False by default.
    pub allowed: bool,
    /// Maximum number of bytes that clients download while the server runs; 64 GiB by default.
    pub max_bytes: u64,
    /// How the hub is reached.
    pub access: HubAccess,
}

impl Default for PullOptions {
    fn default() -> Self {
        Self {
            allowed: false,
            max_bytes: 64 << 30,
            access: HubAccess::default(),
        }
    }
}

impl fmt::Debug for PullOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The token of the hub is secret.
        f.debug_struct("PullOptions")
            .field("allowed", &self.allowed)
            .field("max_bytes", &self.max_bytes)
            .field("offline", &self.access.offline)
            .finish_non_exhaustive()
    }
}
