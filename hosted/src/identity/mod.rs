//! Which weights a model has.
//!
//! A model's identity is the SHA-256 of its whole GGUF file, experts included. A model in parts, with experts in other
//! files or packed as `.slc` has the identity of the GGUF file that it reads as, which is what `sha256sum` and Hugging
//! Face show for it.
//!
//! Loading never waits for that hash. What was hashed once on this machine is remembered in the user's cache folder
//! ([`HashRecords`]), by the file's device, inode, size and times. Another file is known by these alone
//! ([`ModelIdentity::place`]) until [`identify`] or [`Model::identify_when_idle`](crate::Model::identify_when_idle)
//! has read it.
//!
//! A model that runs differently from what its file says, such as with another activation, has identities of its own: the
//! SHA-256 of the file's and of the difference.
#![forbid(unsafe_code)]

mod hash;

pub use hash::{HashError, identify, sha256};
pub use sluice_core::state::Identity;

use crate::file::{HashRecords, ModelFile};
use sha2::{Digest as _, Sha256};
use std::sync::{Arc, OnceLock};
use std::time::SystemTime;

/// What stands for a loaded model's weights. A clone is the same.
#[derive(Clone, Debug)]
pub struct ModelIdentity {
    pub(crate) known: Arc<Known>,
    /// How it differs from what its file says.
    variant: Option<Arc<str>>,
}

/// What is known of the file by now.
#[derive(Debug)]
pub(crate) struct Known {
    place: Identity,
    /// Whether the weights come from a file.
    pub(crate) is_of_file: bool,
    at_load: Option<Identity>,
    hash: OnceLock<Identity>,
    /// Where hashes are remembered.
    pub(crate) records: Option<HashRecords>,
}

impl ModelIdentity {
    /// Of a file that was just opened: its hash, if it was hashed before.
    pub(crate) fn of_file(file: &ModelFile, records: Option<HashRecords>) -> Self {
        if let Some(bytes) = file.static_bytes() {
            let hash = Identity(Sha256::digest(bytes).into());
            return Self::new(hash, Some(hash));
        }
        let Some(stamp) = file.stamp().filter(|_| file.is_as_opened()) else {
            return Self::unlike_any();
        };
        let records = records.or_else(HashRecords::of_user);
        let at_load = records.as_ref().and_then(|records| records.find(stamp));
        Self::of(Known {
            place: stamp.identity(),
            is_of_file: true,
            at_load,
            hash: at_load.map(OnceLock::from).unwrap_or_default(),
            records,
        })
    }

    fn of(known: Known) -> Self {
        Self {
            known: Arc::new(known),
            variant: None,
        }
    }

    /// Of the same file, of which the model differs by `variant`.
    pub(crate) fn with_variant(self, variant: Option<Arc<str>>) -> Self {
        Self { variant, ..self }
    }

    /// What stands for the model, from what stands for its file.
    pub(crate) fn of_variant(&self, file: Identity) -> Identity {
        let Some(variant) = &self.variant else {
            return file;
        };
        let mut hash = Sha256::new();
        hash.update(b"sluice: variant");
        hash.update(file.0);
        hash.update(variant.as_bytes());
        Identity(hash.finalize().into())
    }

    /// Of weights that come from elsewhere than the model's file: no other model has this identity.
    pub(crate) fn unlike_any() -> Self {
        static COUNT: core::sync::atomic::AtomicU64 = core::sync::atomic::AtomicU64::new(0);
        let count = COUNT.fetch_add(1, core::sync::atomic::Ordering::Relaxed);
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        let mut hash = Sha256::new();
        hash.update(b"sluice: no file");
        hash.update(std::process::id().to_le_bytes());
        hash.update(now.map_or(0, |time| time.as_nanos()).to_le_bytes());
        hash.update(count.to_le_bytes());
        Self::new(Identity(hash.finalize().into()), None)
    }

    /// Of weights that are not a file's.
    fn new(place: Identity, hash: Option<Identity>) -> Self {
        Self::of(Known {
            place,
            is_of_file: false,
            at_load: hash,
            hash: hash.map(OnceLock::from).unwrap_or_default(),
            records: None,
        })
    }

    /// The SHA-256 of the GGUF file, if it is known by now.
    #[must_use]
    pub fn hash(&self) -> Option<Identity> {
        let hash = self.known.hash.get().copied();
        hash.map(|hash| self.of_variant(hash))
    }

    /// The SHA-256 of the GGUF file, if it was known when the model was loaded.
    #[must_use]
    pub fn hash_at_load(&self) -> Option<Identity> {
        self.known.at_load.map(|hash| self.of_variant(hash))
    }

    /// The hash if it was known when the model was loaded, else the place: one value for as long as the model is loaded.
    #[must_use]
    pub fn at_load(&self) -> Identity {
        self.hash_at_load().unwrap_or_else(|| self.place())
    }

    /// What stands for the file on this machine, as long as nothing changes it.
    #[must_use]
    pub fn place(&self) -> Identity {
        self.of_variant(self.known.place)
    }

    /// The hash where it is known by now, else the place: what saved states are marked with.
    #[must_use]
    pub fn current(&self) -> Identity {
        self.hash().unwrap_or_else(|| self.place())
    }

    /// All that saved states of this model may be marked with.
    pub fn all(&self) -> impl Iterator<Item = Identity> {
        self.hash().into_iter().chain([self.place()])
    }
}

impl Known {
    /// Remembers the file's hash.
    pub(crate) fn found(&self, hash: Identity) {
        // A second thread that hashed the same file found the same.
        let _known = self.hash.set(hash);
    }
}

/// What a state was computed with: a model's identity, whether it rotates by its long factors, and the adapters.
pub(crate) fn of_state(model: Identity, is_long: bool, adapter: Option<Identity>) -> Identity {
    if !is_long && adapter.is_none() {
        return model;
    }
    let mut hash = Sha256::new();
    hash.update(b"sluice: state");
    hash.update(model.0);
    hash.update([u8::from(is_long)]);
    hash.update(adapter.map_or([0; 32], |adapter| adapter.0));
    Identity(hash.finalize().into())
}
