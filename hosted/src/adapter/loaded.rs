//! Adapters in memory: checked against a model and packed for the engine.

use super::error::AdapterError;
use super::factors::{AdapterFile, Factors};
use super::places::{Place, TOKEN_EMBD, is_idle, places};
use crate::host::memory::AlignedMemory;
use crate::owned::{Borrower, Owned};
use core::fmt;
use core::ops::Range;
use sluice_core::engine::{self, AdapterEmbedding, AdapterPair};
use sluice_core::hash::Hash64;
use sluice_core::kernels::lora::{LoraMatrix, LoraType};
use sluice_core::memory::ALIGN;
use sluice_core::model::{ModelConfig, Site};
use std::sync::Arc;

/// How the numbers of an adapter are packed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Precision {
    /// Each matrix in the smallest of bf16, f16 and f32 that holds its numbers exactly.
    #[default]
    Exact,
    /// All in this type.
    Type(LoraType),
}

impl Precision {
    /// The type that `values` are packed in.
    fn of(self, values: &[f32]) -> LoraType {
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
pub struct Adapter(Arc<Loaded>);

struct Loaded {
    path: String,
    packed: Owned<Packed, Owned<Pairs, AlignedMemory>>,
    n_bytes: usize,
    hash: u64,
}

impl Adapter {
    /// Checks `file` against a model and packs it. Takes milliseconds, and none of the engine's time.
    ///
    /// # Errors
    /// [`AdapterError`], which names the tensor.
    pub fn load(
        config: &ModelConfig,
        file: &AdapterFile,
        precision: Precision,
    ) -> Result<Self, AdapterError> {
        let plan = Plan::new(config, file, precision)?;
        let path = || file.path.clone();
        let memory = AlignedMemory::zeroed(plan.n_bytes).map_err(|error| AdapterError::Memory {
            path: path(),
            error,
        })?;
        let pairs = Owned::<Pairs, _>::new(memory, |memory| plan.pack(memory))?;
        let packed = Owned::new(pairs, |pairs| {
            let both = pairs.get();
            let adapter = engine::Adapter::new(config, &both.0, both.1);
            adapter.map_err(|error| AdapterError::Engine {
                path: path(),
                error,
            })
        })?;
        let hash = hash(packed.get());
        Ok(Self(Arc::new(Loaded {
            path: path(),
            packed,
            n_bytes: plan.n_bytes,
            hash,
        })))
    }

    /// As core runs it.
    #[must_use]
    pub fn packed(&self) -> &engine::Adapter<'_> {
        self.0.packed.get()
    }

    /// The file or folder, as it was given.
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

    /// A hash over its numbers and their places: equal for equal adapters.
    #[must_use]
    pub fn fingerprint(&self) -> u64 {
        self.0.hash
    }
}

impl fmt::Debug for Adapter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Adapter")
            .field("path", &self.path())
            .field("rank", &self.rank())
            .finish_non_exhaustive()
    }
}

fn hash(adapter: &engine::Adapter<'_>) -> u64 {
    let mut hash = Hash64::new();
    let mut matrices = |scale: f32, [a, b]: [LoraMatrix<'_>; 2]| {
        for matrix in [a, b] {
            let shape = [matrix.ty() as usize, matrix.n_rows(), matrix.n_cols()];
            for n in shape {
                hash.write(&(n as u64).to_le_bytes());
            }
            hash.write(matrix.bytes());
        }
        hash.write_f32(&[scale]);
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
            hash.write(&n.to_le_bytes());
        }
    }
    hash.finish()
}

/// Where the matrices of an adapter will lie.
struct Plan<'f> {
    path: &'f str,
    pairs: Vec<PlannedPair<'f>>,
    embedding: Option<PlannedPair<'f>>,
    n_bytes: usize,
}

struct PlannedPair<'f> {
    factors: &'f Factors,
    /// The matrix; of the embedding, the output layer's, whose shape is the same turned.
    place: Place,
    /// Types and places in memory of A and B.
    a: (LoraType, Range<usize>),
    b: (LoraType, Range<usize>),
}

impl<'f> Plan<'f> {
    fn new(
        config: &ModelConfig,
        file: &'f AdapterFile,
        precision: Precision,
    ) -> Result<Self, AdapterError> {
        let path = || file.path.clone();
        let architecture = config.architecture.name();
        if !file.architecture.is_empty() && file.architecture != architecture {
            return Err(AdapterError::Family {
                path: path(),
                expected: architecture.into(),
                found: file.architecture.clone(),
            });
        }
        let mut plan = Self {
            path: &file.path,
            pairs: Vec::new(),
            embedding: None,
            n_bytes: 0,
        };
        for factors in &file.factors {
            plan.check(factors)?;
            if factors.tensor == TOKEN_EMBD {
                plan.add_embedding(factors, [config.n_vocab, config.n_embd], precision)?;
                continue;
            }
            if is_idle(config, &factors.tensor) {
                continue;
            }
            let places = places(config, &factors.tensor, factors.part);
            if places.is_empty() {
                return Err(AdapterError::NoMatrix {
                    path: path(),
                    tensor: told(factors),
                });
            }
            plan.add(factors, &places, precision)?;
        }
        plan.sort()?;
        match plan.pairs.is_empty() && plan.embedding.is_none() {
            true => Err(AdapterError::Empty { path: path() }),
            false => Ok(plan),
        }
    }

    /// Whether the matrices are matrices of one rank.
    fn check(&self, factors: &Factors) -> Result<(), AdapterError> {
        let rank = factors.rank;
        let is_whole = |values: &[f32]| !values.is_empty() && values.len().is_multiple_of(rank);
        if rank > 0 && is_whole(&factors.a) && is_whole(&factors.b) && factors.scale.is_finite() {
            return Ok(());
        }
        Err(AdapterError::Rank {
            path: self.path.into(),
            tensor: told(factors),
        })
    }

    /// Pairs for the matrices that are a tensor's rows, one after the other.
    fn add(
        &mut self,
        factors: &'f Factors,
        places: &[Place],
        precision: Precision,
    ) -> Result<(), AdapterError> {
        let n_rows: usize = places.iter().map(|place| place.n_rows).sum();
        let expected = [n_rows, places[0].n_cols];
        self.check_shape(factors, expected, [factors.n_rows(), factors.n_cols()])?;
        // All of them read the same A.
        let a = self.reserve(
            precision.of(&factors.a),
            [factors.rank, expected[1]],
            factors,
        )?;
        for &place in places {
            let rows = place.first_row * factors.rank..;
            let rows = &factors.b[rows][..place.n_rows * factors.rank];
            let b = self.reserve(precision.of(rows), [place.n_rows, factors.rank], factors)?;
            self.pairs.push(PlannedPair {
                factors,
                place,
                a: a.clone(),
                b,
            });
        }
        Ok(())
    }

    fn add_embedding(
        &mut self,
        factors: &'f Factors,
        [n_vocab, n_embd]: [usize; 2],
        precision: Precision,
    ) -> Result<(), AdapterError> {
        let path = self.path;
        if factors.part.is_some() {
            return Err(AdapterError::NoMatrix {
                path: path.into(),
                tensor: told(factors),
            });
        }
        if self.embedding.is_some() {
            return Err(AdapterError::Twice {
                path: path.into(),
                tensor: told(factors),
            });
        }
        let found = [factors.n_cols(), factors.n_rows()];
        self.check_shape(factors, [n_vocab, n_embd], found)?;
        let rank = factors.rank;
        let place = Place {
            layer: 0,
            site: Site::Output,
            first_row: 0,
            n_rows: n_embd,
            n_cols: n_vocab,
        };
        let a = self.reserve(precision.of(&factors.a), [rank, n_vocab], factors)?;
        let b = self.reserve(precision.of(&factors.b), [n_embd, rank], factors)?;
        self.embedding = Some(PlannedPair {
            factors,
            place,
            a,
            b,
        });
        Ok(())
    }

    fn check_shape(
        &self,
        factors: &Factors,
        expected: [usize; 2],
        found: [usize; 2],
    ) -> Result<(), AdapterError> {
        if expected == found {
            return Ok(());
        }
        Err(AdapterError::Shape {
            path: self.path.into(),
            tensor: told(factors),
            expected,
            found,
        })
    }

    /// Room for a matrix.
    fn reserve(
        &mut self,
        ty: LoraType,
        [n_rows, n_cols]: [usize; 2],
        factors: &Factors,
    ) -> Result<(LoraType, Range<usize>), AdapterError> {
        let start = self.n_bytes;
        let n = LoraMatrix::bytes_of(ty, n_rows, n_cols);
        let end = n.and_then(|n| start.checked_add(n));
        let end = end.filter(|end| *end < usize::MAX - ALIGN);
        let end = end.ok_or_else(|| self.number(factors, ty))?;
        self.n_bytes = end.next_multiple_of(ALIGN);
        Ok((ty, start..end))
    }

    fn number(&self, factors: &Factors, ty: LoraType) -> AdapterError {
        AdapterError::Number {
            path: self.path.into(),
            tensor: told(factors),
            ty: ty.name(),
        }
    }

    /// In the engine's order.
    fn sort(&mut self) -> Result<(), AdapterError> {
        let key = |pair: &PlannedPair<'_>| (pair.place.layer, pair.place.site, pair.factors.part);
        self.pairs.sort_by_key(key);
        let twice = self
            .pairs
            .windows(2)
            .find(|pair| key(&pair[0]) == key(&pair[1]));
        match twice {
            Some(pair) => Err(AdapterError::Twice {
                path: self.path.into(),
                tensor: told(pair[1].factors),
            }),
            None => Ok(()),
        }
    }

    /// Packs all matrices into memory of `n_bytes`.
    fn pack<'m>(
        &self,
        memory: &'m mut AlignedMemory,
    ) -> Result<(Vec<AdapterPair<'m>>, Option<AdapterEmbedding<'m>>), AdapterError> {
        for pair in self.pairs.iter().chain(&self.embedding) {
            let (factors, place) = (pair.factors, pair.place);
            let rank = factors.rank;
            let first = place.first_row * rank;
            let b = &factors.b[first..][..place.n_rows * rank];
            let matrices = [
                (&pair.a, [rank, place.n_cols], &factors.a[..]),
                (&pair.b, [place.n_rows, rank], b),
            ];
            for ((ty, range), shape, values) in matrices {
                LoraMatrix::pack(*ty, shape, values, &mut memory[range.clone()])
                    .ok_or_else(|| self.number(factors, *ty))?;
            }
        }
        let memory: &'m AlignedMemory = memory;
        let matrix = |(ty, range): &(LoraType, Range<usize>), shape| {
            LoraMatrix::new(*ty, shape, &memory[range.clone()]).expect("as it was packed")
        };
        let both = |pair: &PlannedPair<'_>| {
            let (place, rank) = (pair.place, pair.factors.rank);
            let a = matrix(&pair.a, [rank, place.n_cols]);
            (a, matrix(&pair.b, [place.n_rows, rank]))
        };
        let pairs = self.pairs.iter().map(|pair| {
            let (a, b) = both(pair);
            AdapterPair {
                layer: pair.place.layer,
                site: pair.place.site,
                part: pair.factors.part,
                a,
                b,
                scale: pair.factors.scale,
            }
        });
        let embedding = self.embedding.as_ref().map(|pair| {
            let (a, b) = both(pair);
            let scale = pair.factors.scale;
            AdapterEmbedding { a, b, scale }
        });
        Ok((pairs.collect(), embedding))
    }
}

/// A tensor, with its part if it has several.
fn told(factors: &Factors) -> String {
    match factors.part {
        Some(part) => format!("{} (part {part})", factors.tensor),
        None => factors.tensor.clone(),
    }
}

/// The pairs of an adapter, over its memory.
struct Pairs;

impl Borrower for Pairs {
    type Of<'a> = (Vec<AdapterPair<'a>>, Option<AdapterEmbedding<'a>>);

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
