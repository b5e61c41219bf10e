//! Adapters in memory, packed for the engine.

use super::error::AdapterLoadError;
use crate::host::memory::AlignedMemory;
use crate::identity::Identity;
use crate::owned::{Borrower, Owned};
use core::convert::Infallible;
use core::fmt;
use sha2::{Digest as _, Sha256};
use sluice_core::engine::{self, AdapterEmbedding, AdapterPair};
use sluice_core::kernels::activation::ActivationKinds;
use sluice_core::kernels::lora::{LoraMatrix, LoraType};
use sluice_core::model::ModelConfig;
use std::sync::Arc;

/// How the numbers of an adapter are packed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Precision {
    /// Each matrix in the smallest of bf16, f16 and f32 that holds its numbers exactly.
    #[default]
    Exact,
    /// All matrices in this type.
    Type(LoraType),
}

impl Precision {
    /// The kinds of rows that adapters of this precision multiply.
    #[must_use]
    pub const fn kinds(self) -> ActivationKinds {
        match self {
            Self::Type(ty) => ty.activations(),
            // Never int8.
            Self::Exact => ActivationKinds::F32,
        }
    }

    /// The type that `values` are packed in.
    pub(super) fn of(self, values: &[f32]) -> LoraType {
        match self {
            Self::Type(ty) => ty,
            Self::Exact if LoraType::Bf16.holds(values) => LoraType::Bf16,
            Self::Exact if LoraType::F16.holds(values) => LoraType::F16,
            Self::Exact => LoraType::F32,
        }
    }
}

/// An adapter in memory, for one model. A clone is the same adapter.
#[derive(Clone)]
pub struct LoadedAdapter(Arc<Loaded>);

struct Loaded {
    path: String,
    packed: Owned<Packed, Owned<Pairs, Vec<AlignedMemory>>>,
    n_bytes: usize,
    identity: Identity,
}

impl LoadedAdapter {
    /// An adapter over packed data; `view` finds its pairs in memory of `n_bytes`.
    pub(super) fn new(
        config: &ModelConfig,
        path: String,
        memory: Vec<AlignedMemory>,
        n_bytes: usize,
        view: impl for<'m> FnOnce(&'m [AlignedMemory]) -> PairsIn<'m>,
    ) -> Result<Self, AdapterLoadError> {
        let pairs = Owned::<Pairs, _>::new(memory, |memory| Ok::<_, Infallible>(view(memory)));
        let Ok(pairs) = pairs;
        let packed = Owned::new(pairs, |pairs| {
            let both = pairs.get();
            let adapter = engine::Adapter::new(config, &both.0, both.1);
            adapter.map_err(|error| AdapterLoadError::Engine {
                path: path.clone(),
                error,
            })
        })?;
        let identity = identity(packed.get());
        Ok(Self(Arc::new(Loaded {
            path,
            packed,
            n_bytes,
            identity,
        })))
    }

    /// The adapter in the form that core runs.
    #[must_use]
    pub fn packed(&self) -> &engine::Adapter<'_> {
        self.0.packed.get()
    }

    /// The file or folder, as given.
    #[must_use]
    pub fn path(&self) -> &str {
        &self.0.path
    }

    /// Bytes of its matrices.
    #[must_use]
    pub fn n_bytes(&self) -> usize {
        self.0.n_bytes
    }

    /// The largest rank.
    #[must_use]
    pub fn rank(&self) -> usize {
        self.packed().rank()
    }

    /// A SHA-256 over its numbers and their places: equal for equal adapters.
    #[must_use]
    pub fn identity(&self) -> Identity {
        self.0.identity
    }
}

impl fmt::Debug for LoadedAdapter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LoadedAdapter")
            .field("path", &self.path())
            .field("rank", &self.rank())
            .finish_non_exhaustive()
    }
}

fn identity(adapter: &engine::Adapter<'_>) -> Identity {
    let mut hash = Sha256::new();
    let mut matrices = |scale: f32, [a, b]: [LoraMatrix<'_>; 2]| {
        for matrix in [a, b] {
            let shape = [matrix.ty() as usize, matrix.n_rows(), matrix.n_cols()];
            for n in shape {
                hash.update((n as u64).to_le_bytes());
            }
            hash.update(matrix.bytes());
        }
        hash.update(scale.to_bits().to_le_bytes());
    };
    for pair in adapter.pairs() {
        matrices(pair.scale, [pair.a, pair.b]);
    }
    if let Some(pair) = adapter.embedding() {
        matrices(pair.scale, [pair.a, pair.b]);
    }
    for pair in adapter.pairs() {
        let part = pair.part.map_or(u64::MAX, u64::from);
        for n in [pair.layer as u64, pair.site as u64, part] {
            hash.update(n.to_le_bytes());
        }
    }
    Identity(hash.finalize().into())
}

/// The pairs of an adapter in its memory.
pub(super) type PairsIn<'m> = (Vec<AdapterPair<'m>>, Option<AdapterEmbedding<'m>>);

/// The pairs of an adapter, over its memory.
struct Pairs;

impl Borrower for Pairs {
    type Of<'a> = PairsIn<'a>;

    fn shorten<'s, 'a: 's>(value: &'s Self::Of<'a>) -> &'s Self::Of<'s> {
        value
    }
}

/// An adapter, over its pairs.
struct Packed;

impl Borrower for Packed {
    type Of<'a> = engine::Adapter<'a>;

    fn shorten<'s, 'a: 's>(value: &'s engine::Adapter<'a>) -> &'s engine::Adapter<'s> {
        value
    }
}
