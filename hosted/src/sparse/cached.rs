//! A network whose neurons are read as they are needed, and kept as a cache says.

use super::cache::{CacheConfig, CacheStats, NeuronCache};
use super::error::SparseResult;
use super::ffn::SparseFfn;
use sluice_core::kernels::{CpuFeatures, KernelTable};
use sluice_core::sparse::{
    ActivationType, FfnDims, FfnWeights, Selected, SparsityError, check_finite, check_len,
};
use std::fs::File;
use std::io::{self, Write as _};
use std::os::unix::fs::FileExt as _;
use std::path::Path;

/// Where bundles (w1, b1, w2) of neurons are.
pub trait NeuronSource: Send + Sync {
    /// Reads the bundle of a neuron: inputs, one bias, outputs.
    ///
    /// # Errors
    /// It cannot be read.
    fn read(&self, neuron: usize, bundle: &mut [f32]) -> io::Result<()>;
}

/// A file of bundles, one after the other, little-endian.
#[derive(Debug)]
pub struct BundleFile {
    file: File,
}

impl BundleFile {
    /// Writes the neurons of a network.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn create(path: &Path, ffn: &SparseFfn) -> SparseResult<Self> {
        let mut out = io::BufWriter::new(File::create(path)?);
        for neuron in 0..ffn.hidden_dim() {
            for x in ffn.bundle(neuron) {
                out.write_all(&x.to_le_bytes())?;
            }
        }
        out.flush()?;
        Self::open(path)
    }

    /// Opens a file.
    ///
    /// # Errors
    /// It cannot be opened.
    pub fn open(path: &Path) -> SparseResult<Self> {
        Ok(Self {
            file: File::open(path)?,
        })
    }
}

impl NeuronSource for BundleFile {
    fn read(&self, neuron: usize, bundle: &mut [f32]) -> io::Result<()> {
        let mut bytes = vec![0; 4 * bundle.len()];
        let at = bytes.len() as u64 * neuron as u64;
        self.file.read_exact_at(&mut bytes, at)?;
        for (x, bytes) in bundle.iter_mut().zip(bytes.as_chunks::<4>().0) {
            *x = f32::from_le_bytes(*bytes);
        }
        Ok(())
    }
}

/// A [`SparseFfn`] of which hot neurons stay in memory, and cold ones as a [`NeuronCache`] keeps them. Outputs equal
/// the network's in memory, bit for bit.
pub struct CachedFfn {
    dims: FfnDims,
    source: Box<dyn NeuronSource>,
    cache: NeuronCache,
    bundles: Vec<Option<Box<[f32]>>>,
    b2: Vec<f32>,
    activation: ActivationType,
    table: &'static KernelTable,
    bytes_read: u64,
}

impl core::fmt::Debug for CachedFfn {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("CachedFfn")
            .field("dims", &self.dims)
            .field("stats", &self.cache.stats())
            .finish_non_exhaustive()
    }
}

impl CachedFfn {
    /// A network of bundles from `source`; nothing is in memory yet.
    ///
    /// # Errors
    /// A size of 0, or beyond memory; settings of the cache; a bias that is not as long as the output, or not finite.
    pub fn new(
        dims: FfnDims,
        source: Box<dyn NeuronSource>,
        b2: Vec<f32>,
        activation: ActivationType,
        config: CacheConfig,
    ) -> SparseResult<Self> {
        dims.check()?;
        check_len("b2", b2.len(), dims.output)?;
        check_finite("b2", &b2)?;
        let cache = NeuronCache::new(dims.hidden, config)?;
        let mut bundles = Vec::new();
        bundles
            .try_reserve_exact(dims.hidden)
            .map_err(|_| SparsityError::Setting {
                name: "hidden_dim",
                value: dims.hidden as f64,
                expected: "a size in memory",
            })?;
        bundles.resize(dims.hidden, None);
        Ok(Self {
            dims,
            source,
            cache,
            bundles,
            b2,
            activation,
            table: KernelTable::best(CpuFeatures::detect()),
            bytes_read: 0,
        })
    }

    /// The output of selected neurons, ascending, each once. Those that are not in memory are read.
    ///
    /// # Errors
    /// An input or a list that does not fit; a neuron that cannot be read. The cache has not changed then.
    pub fn forward_sparse(&mut self, input: &[f32], active: &[usize]) -> SparseResult<Vec<f32>> {
        check_len("input", input.len(), self.dims.input)?;
        check_finite("input", input)?;
        self.dims.check_active(active)?;
        let read = self.read_missing(active)?;
        // The network of the active neurons alone: in the same order.
        let (mut weights, mut b1) = (Vec::new(), Vec::new());
        let mut new = read.iter();
        for neuron in active {
            let bundle = self.bundles[*neuron].as_ref().or_else(|| new.next());
            let bundle = bundle.ok_or(SparsityError::Length {
                what: "list of read neurons",
                expected: active.len(),
                found: read.len(),
            })?;
            let (w1, rest) = bundle.split_at(self.dims.input);
            weights.extend_from_slice(w1);
            b1.push(rest[0]);
            weights.extend_from_slice(&rest[1..]);
        }
        let dims = FfnDims {
            hidden: active.len(),
            ..self.dims
        };
        let mut out = vec![0.0; self.dims.output];
        FfnWeights::from_bundles(dims, &weights, false, &b1, &self.b2, self.activation)?.forward(
            self.table,
            input,
            Selected::All,
            &mut out,
        )?;
        let change = self.cache.record_activations(active)?;
        for (neuron, bundle) in change.missed.into_iter().zip(read) {
            self.bytes_read += 4 * bundle.len() as u64;
            self.bundles[neuron] = Some(bundle);
        }
        for neuron in change.evicted {
            self.bundles[neuron] = None;
        }
        Ok(out)
    }

    /// The bundles of the neurons of a list that are not in memory, in its order.
    fn read_missing(&self, active: &[usize]) -> SparseResult<Vec<Box<[f32]>>> {
        let missing = active.iter().filter(|i| !self.cache.is_resident(**i));
        let bundles = missing.map(|neuron| {
            let n_bundle = self.dims.input + 1 + self.dims.output;
            let mut bundle = vec![0.0; n_bundle].into_boxed_slice();
            self.source.read(*neuron, &mut bundle)?;
            Ok(bundle)
        });
        bundles.collect()
    }

    /// Bytes read so far.
    #[must_use]
    pub const fn bytes_read(&self) -> u64 {
        self.bytes_read
    }

    /// Neurons in memory.
    #[must_use]
    pub fn n_resident(&self) -> usize {
        self.bundles.iter().flatten().count()
    }

    /// Counts of the cache.
    #[must_use]
    pub fn stats(&self) -> CacheStats {
        self.cache.stats()
    }
}
