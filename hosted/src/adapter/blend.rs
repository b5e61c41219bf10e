//! The adapters that a text is computed with.

use super::loaded::LoadedAdapter;
use crate::identity::Identity;
use crate::owned::{Borrower, Owned};
use core::convert::Infallible;
use core::fmt;
use sha2::{Digest as _, Sha256};
use sluice_core::engine::{self, BlendPart};
use sluice_core::kernels::activation::ActivationKinds;
use std::sync::Arc;

/// Adapters whose products are added, each times a factor: `y += Σ scale · B · (A · x)`, which is the exact blend of
/// the products. A clone is the same blend; texts with the same one share products.
#[derive(Clone)]
pub struct AdapterBlend(Arc<Shared>);

struct Shared {
    parts: Owned<Parts, Vec<(LoadedAdapter, f32)>>,
    /// The adapters and factors again, to build other blends from.
    list: Vec<(LoadedAdapter, f32)>,
    identity: Identity,
}

impl AdapterBlend {
    /// A blend of adapters of one model, in the order in which they are added.
    #[must_use]
    pub fn new(parts: Vec<(LoadedAdapter, f32)>) -> Self {
        let mut hash = Sha256::new();
        for (adapter, scale) in &parts {
            hash.update(adapter.identity().0);
            hash.update(scale.to_bits().to_le_bytes());
        }
        let list = parts.clone();
        let made = Owned::new(parts, |parts| {
            let parts = parts.iter().map(|(adapter, scale)| BlendPart {
                adapter: adapter.packed(),
                scale: *scale,
            });
            Ok::<_, Infallible>(parts.collect::<Vec<_>>())
        });
        let Ok(parts) = made;
        Self(Arc::new(Shared {
            parts,
            list,
            identity: Identity(hash.finalize().into()),
        }))
    }

    /// The sum of blends, each times a factor. A single blend times 1 is returned as it is.
    #[must_use]
    pub fn sum(blends: &[(Self, f32)]) -> Self {
        if let [(one, scale)] = blends
            && scale.to_bits() == 1f32.to_bits()
        {
            return one.clone();
        }
        let parts = blends.iter().flat_map(|(blend, factor)| {
            let own = blend.0.list.iter();
            own.map(move |(adapter, scale)| (adapter.clone(), scale * factor))
        });
        Self::new(parts.collect())
    }

    /// The blend in the form that core takes.
    #[must_use]
    pub fn parts(&self) -> engine::Blend<'_> {
        engine::Blend {
            parts: self.0.parts.get(),
        }
    }

    /// The rank that [`Limits::adapter_rank`](crate::Limits) must have room for.
    #[must_use]
    pub fn rank(&self) -> usize {
        self.parts().rank()
    }

    /// The kinds that [`Limits::adapter_kinds`](crate::Limits) must have.
    #[must_use]
    pub fn kinds(&self) -> ActivationKinds {
        self.parts().kinds()
    }

    /// A SHA-256 over adapters and factors: equal for blends that compute the same.
    #[must_use]
    pub fn identity(&self) -> Identity {
        self.0.identity
    }
}

impl From<LoadedAdapter> for AdapterBlend {
    fn from(adapter: LoadedAdapter) -> Self {
        Self::new(vec![(adapter, 1.0)])
    }
}

impl PartialEq for AdapterBlend {
    fn eq(&self, other: &Self) -> bool {
        self.identity() == other.identity()
    }
}

impl fmt::Debug for AdapterBlend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AdapterBlend")
            .field("n_parts", &self.parts().parts.len())
            .field("rank", &self.rank())
            .finish_non_exhaustive()
    }
}

struct Parts;

impl Borrower for Parts {
    type Of<'a> = Vec<BlendPart<'a>>;

    fn shorten<'s, 'a: 's>(value: &'s Self::Of<'a>) -> &'s Self::Of<'s> {
        value
    }
}
