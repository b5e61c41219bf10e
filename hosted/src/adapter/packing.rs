//! Pairs of matrices, checked against a model and packed one by one.
//!
//! Only the current pair is held as f32; its memory is reused for the next one.

use super::error::AdapterLoadError;
use super::factors::{AdapterFile, Factors};
use super::files::read_pairs;
use super::loaded::{LoadedAdapter, PairsIn, Precision};
use super::ordered::in_order;
use super::places::{Place, TOKEN_EMBD, is_idle, places};
use super::sink::{AdapterOrigin, PairOrder, PairSink};
use crate::host::memory::{AlignedMemory, OutOfMemory};
use crate::neurons::NeuronOrder;
use core::ops::Range;
use sluice_core::engine::{AdapterEmbedding, AdapterPair};
use sluice_core::kernels::lora::{LoraMatrix, LoraType};
use sluice_core::memory::ALIGN;
use sluice_core::model::{ModelConfig, Site};
use std::path::Path;

impl LoadedAdapter {
    /// Reads a GGUF file or an INFQ directory and packs it for a model, one pair of matrices at a time. Also returns
    /// warnings about settings that have no effect, a sentence each. Use [`Packing::ordered`] for a file that has
    /// another order of neurons than its model.
    ///
    /// # Errors
    /// [`AdapterLoadError`]: it cannot be read, or does not fit the model.
    pub fn open(
        config: &ModelConfig,
        path: &Path,
        precision: Precision,
    ) -> Result<(Self, Vec<String>), AdapterLoadError> {
        let mut packing = Packing::new(config, &path.display().to_string(), precision);
        let warnings = read_pairs(path, &mut packing)?;
        Ok((packing.finish()?, warnings))
    }

    /// Checks `file` against a model and packs it. Takes milliseconds, and none of the engine's time. Use
    /// [`Packing::ordered`] for a file that has another order of neurons than its model.
    ///
    /// # Errors
    /// [`AdapterLoadError`], which names the tensor.
    pub fn load(
        config: &ModelConfig,
        file: &AdapterFile,
        precision: Precision,
    ) -> Result<Self, AdapterLoadError> {
        let mut packing = Packing::new(config, &file.path, precision);
        packing.check_family(&file.architecture)?;
        for factors in &file.factors {
            packing.add(factors)?;
        }
        packing.finish()
    }
}

/// An adapter whose pairs are added one after the other, in any order.
#[derive(Debug)]
pub struct Packing<'c> {
    config: &'c ModelConfig,
    order: Option<NeuronOrder>,
    path: String,
    precision: Precision,
    memory: Chunks,
    pairs: Vec<PackedPair>,
    embedding: Option<PackedPair>,
}

/// A pair in memory.
#[derive(Debug)]
struct PackedPair {
    tensor: String,
    part: Option<u32>,
    /// The matrix; of the embedding, the output layer's, whose shape is the same turned.
    place: Place,
    rank: usize,
    scale: f32,
    a: Packed,
    b: Packed,
}

/// A matrix in memory.
#[derive(Clone, Debug)]
struct Packed {
    ty: LoraType,
    chunk: usize,
    bytes: Range<usize>,
}

impl<'c> Packing<'c> {
    /// For the adapter at `path`.
    #[must_use]
    pub fn new(config: &'c ModelConfig, path: &str, precision: Precision) -> Self {
        Self {
            config,
            order: None,
            path: path.into(),
            precision,
            memory: Chunks::default(),
            pairs: Vec::new(),
            embedding: None,
        }
    }

    /// For a file whose neurons are in `order`; adapters are made for the model's own.
    #[must_use]
    pub fn ordered(self, order: Option<NeuronOrder>) -> Self {
        Self { order, ..self }
    }

    /// An adapter for models of no stated architecture fits any.
    fn check_family(&self, architecture: &str) -> Result<(), AdapterLoadError> {
        let expected = self.config.architecture.name();
        if !architecture.is_empty() && architecture != expected {
            return Err(AdapterLoadError::Family {
                path: self.path.clone(),
                expected: expected.into(),
                found: architecture.into(),
            });
        }
        Ok(())
    }

    /// Packs a pair. What the model never reads is left out.
    ///
    /// # Errors
    /// [`AdapterLoadError`], which names the tensor.
    pub fn add(&mut self, factors: &Factors) -> Result<(), AdapterLoadError> {
        self.check(factors)?;
        if factors.tensor == TOKEN_EMBD {
            return self.add_embedding(factors);
        }
        if is_idle(self.config, &factors.tensor) {
            return Ok(());
        }
        let places = places(self.config, &factors.tensor, factors.part);
        if places.is_empty() {
            return Err(self.no_matrix(factors));
        }
        let n_rows: usize = places.iter().map(|place| place.n_rows).sum();
        let n_cols = places[0].n_cols;
        let found = [factors.n_rows(), factors.n_cols()];
        self.check_shape(factors, [n_rows, n_cols], found)?;
        let factors = &*in_order(self.order.as_ref(), factors, &places);
        let rank = factors.rank;
        // All of them read the same A.
        let a = self.pack(&factors.a, [rank, n_cols], factors)?;
        for place in places {
            let rows = &factors.b[place.first_row * rank..][..place.n_rows * rank];
            let b = self.pack(rows, [place.n_rows, rank], factors)?;
            let pair = PackedPair::new(factors, place, a.clone(), b);
            self.pairs.push(pair);
        }
        Ok(())
    }

    /// The adapter of all pairs.
    ///
    /// # Errors
    /// [`AdapterLoadError`]: there are no pairs, two are for one matrix, or the engine does not accept them.
    pub fn finish(mut self) -> Result<LoadedAdapter, AdapterLoadError> {
        if self.pairs.is_empty() && self.embedding.is_none() {
            return Err(AdapterLoadError::Empty { path: self.path });
        }
        // In the engine's order.
        let key = |pair: &PackedPair| (pair.place.layer, pair.place.site, pair.part);
        self.pairs.sort_by_key(key);
        let mut neighbours = self.pairs.windows(2);
        if let Some(pair) = neighbours.find(|pair| key(&pair[0]) == key(&pair[1])) {
            return Err(AdapterLoadError::Twice {
                path: self.path,
                tensor: told(&pair[1].tensor, pair[1].part),
            });
        }
        let (pairs, embedding, memory) = (self.pairs, self.embedding, self.memory);
        LoadedAdapter::new(
            self.config,
            self.path,
            memory.all,
            memory.n_bytes,
            |memory| view(memory, &pairs, embedding.as_ref()),
        )
    }

    fn add_embedding(&mut self, factors: &Factors) -> Result<(), AdapterLoadError> {
        let ModelConfig {
            n_vocab, n_embd, ..
        } = *self.config;
        if factors.part.is_some() {
            return Err(self.no_matrix(factors));
        }
        if self.embedding.is_some() {
            return Err(AdapterLoadError::Twice {
                path: self.path.clone(),
                tensor: factors.tensor.clone(),
            });
        }
        let found = [factors.n_cols(), factors.n_rows()];
        self.check_shape(factors, [n_vocab, n_embd], found)?;
        let place = Place {
            layer: 0,
            site: Site::Output,
            first_row: 0,
            n_rows: n_embd,
            n_cols: n_vocab,
        };
        let a = self.pack(&factors.a, [factors.rank, n_vocab], factors)?;
        let b = self.pack(&factors.b, [n_embd, factors.rank], factors)?;
        self.embedding = Some(PackedPair::new(factors, place, a, b));
        Ok(())
    }

    /// Whether the matrices are matrices of one rank.
    fn check(&self, factors: &Factors) -> Result<(), AdapterLoadError> {
        let rank = factors.rank;
        let is_whole = |values: &[f32]| !values.is_empty() && values.len().is_multiple_of(rank);
        if rank > 0 && is_whole(&factors.a) && is_whole(&factors.b) && factors.scale.is_finite() {
            return Ok(());
        }
        Err(AdapterLoadError::Rank {
            path: self.path.clone(),
            tensor: told(&factors.tensor, factors.part),
        })
    }

    fn check_shape(
        &self,
        factors: &Factors,
        expected: [usize; 2],
        found: [usize; 2],
    ) -> Result<(), AdapterLoadError> {
        if expected == found {
            return Ok(());
        }
        Err(AdapterLoadError::Shape {
            path: self.path.clone(),
            tensor: told(&factors.tensor, factors.part),
            expected: expected.map(|n| n as u64),
            found: found.map(|n| n as u64),
        })
    }

    fn no_matrix(&self, factors: &Factors) -> AdapterLoadError {
        AdapterLoadError::NoMatrix {
            path: self.path.clone(),
            tensor: told(&factors.tensor, factors.part),
        }
    }

    /// Packs a matrix, (rows, columns).
    fn pack(
        &mut self,
        values: &[f32],
        shape: [usize; 2],
        factors: &Factors,
    ) -> Result<Packed, AdapterLoadError> {
        let ty = self.precision.of(values);
        let number = |path: &String| AdapterLoadError::Number {
            path: path.clone(),
            tensor: told(&factors.tensor, factors.part),
            ty: ty.name(),
        };
        let n = LoraMatrix::bytes_of(ty, shape[0], shape[1]).ok_or_else(|| number(&self.path))?;
        let room = self.memory.reserve(n);
        let (chunk, bytes) = room.map_err(|error| AdapterLoadError::Memory {
            path: self.path.clone(),
            error,
        })?;
        let memory = &mut self.memory.all[chunk][bytes.clone()];
        LoraMatrix::pack(ty, shape, values, memory).ok_or_else(|| number(&self.path))?;
        Ok(Packed { ty, chunk, bytes })
    }
}

impl PairSink for Packing<'_> {
    fn begin(&mut self, origin: AdapterOrigin) -> Result<(), AdapterLoadError> {
        self.check_family(&origin.architecture)
    }

    fn take(&mut self, _: PairOrder, factors: &Factors) -> Result<(), AdapterLoadError> {
        self.add(factors)
    }
}

impl PackedPair {
    fn new(factors: &Factors, place: Place, a: Packed, b: Packed) -> Self {
        Self {
            tensor: factors.tensor.clone(),
            part: factors.part,
            place,
            rank: factors.rank,
            scale: factors.scale,
            a,
            b,
        }
    }

    /// A and B in `memory`.
    fn matrices<'m>(&self, memory: &'m [AlignedMemory]) -> [LoraMatrix<'m>; 2] {
        let matrix = |packed: &Packed, shape| {
            let bytes = &memory[packed.chunk][packed.bytes.clone()];
            LoraMatrix::new(packed.ty, shape, bytes).expect("as it was packed")
        };
        [
            matrix(&self.a, [self.rank, self.place.n_cols]),
            matrix(&self.b, [self.place.n_rows, self.rank]),
        ]
    }
}

/// The pair in the form that the engine takes.
fn view<'m>(
    memory: &'m [AlignedMemory],
    pairs: &[PackedPair],
    embedding: Option<&PackedPair>,
) -> PairsIn<'m> {
    let pairs = pairs.iter().map(|pair| {
        let [a, b] = pair.matrices(memory);
        AdapterPair {
            layer: pair.place.layer,
            site: pair.place.site,
            part: pair.part,
            a,
            b,
            scale: pair.scale,
        }
    });
    let embedding = embedding.map(|pair| {
        let [a, b] = pair.matrices(memory);
        let scale = pair.scale;
        AdapterEmbedding { a, b, scale }
    });
    (pairs.collect(), embedding)
}

/// Memory that is taken in pieces. Pages of a piece that are not used cost nothing.
#[derive(Debug, Default)]
struct Chunks {
    all: Vec<AlignedMemory>,
    /// Bytes of the last that are used.
    n_used: usize,
    /// Bytes that were asked for.
    n_bytes: usize,
}

impl Chunks {
    /// `n` bytes: in which piece, and where.
    fn reserve(&mut self, n: usize) -> Result<(usize, Range<usize>), OutOfMemory> {
        let start = self.n_used.next_multiple_of(ALIGN);
        let left = self
            .all
            .last()
            .map_or(0, |last| last.len().saturating_sub(start));
        let start = match n <= left {
            true => start,
            false => {
                // As large again as all before: a small adapter must not hold a huge page.
                let len = n.max(self.n_bytes).max(CHUNK_BYTES);
                self.all.push(AlignedMemory::zeroed(len)?);
                0
            }
        };
        self.n_used = start + n;
        self.n_bytes += n;
        Ok((self.all.len() - 1, start..self.n_used))
    }
}

const CHUNK_BYTES: usize = 256 << 10;

/// A tensor, with its part if it has several.
fn told(tensor: &str, part: Option<u32>) -> String {
    match part {
        Some(part) => format!("{tensor} (part {part})"),
        None => tensor.into(),
    }
}
