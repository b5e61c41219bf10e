//! Whose a request is: the engine divides its places fairly among shares.

use core::num::NonZeroU32;
use std::sync::Arc;

/// Whose a request is: a key's, and among requests with the same key, a peer's. By default one share for all requests
/// of the own process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Share {
    key: Arc<str>,
    peer: Arc<str>,
    weight: NonZeroU32,
}

impl Default for Share {
    fn default() -> Self {
        Self::of_peer("")
    }
}

impl Share {
    /// The share of a peer without a key: an address, or a user of this machine.
    #[must_use]
    pub fn of_peer(peer: impl Into<Arc<str>>) -> Self {
        Self {
            key: "".into(),
            peer: peer.into(),
            weight: NonZeroU32::MIN,
        }
    }

    /// The same peer with the key called `name`, which gets `weight` times as much as a key of weight 1.
    #[must_use]
    pub fn with_key(self, name: impl Into<Arc<str>>, weight: NonZeroU32) -> Self {
        Self {
            key: name.into(),
            weight,
            ..self
        }
    }
}
