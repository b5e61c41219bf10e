//! Which texts share what is cached.

use sha2::{Digest as _, Sha256};
use std::sync::Arc;

/// Texts use what others left in caches only if these were of the same domain.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CacheDomain {
    /// The clients that share caches; empty if all do.
    pub group: Arc<str>,
    /// What divides a client's own texts further; empty for nothing.
    pub salt: Arc<str>,
}

impl CacheDomain {
    /// Adds it to a hash; no two domains add the same bytes.
    pub(super) fn write(&self, hash: &mut Sha256) {
        hash.update((self.group.len() as u64).to_le_bytes());
        hash.update(self.group.as_bytes());
        hash.update(self.salt.as_bytes());
    }

    /// A number for what drafting learns from texts. A client cannot find a salt that leads to another's.
    pub(super) fn number(&self) -> u64 {
        let mut hash = Sha256::new();
        self.write(&mut hash);
        let hash: [u8; 32] = hash.finalize().into();
        hash.first_chunk()
            .map_or(0, |first| u64::from_le_bytes(*first))
    }
}
