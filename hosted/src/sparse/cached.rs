//! A network whose neurons are read as they are needed, and kept as a cache says.

use super::cache::{CacheConfig, CacheStats, NeuronCache};
use super::error::SparseResult;
use super::ffn::SparseFfn;
use sluice_core::kernels::{CpuFeatures, KernelTable};
use sluice_core::sparse::{ActivationType, FfnDims, FfnWeights, Selected};
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
    /// Settings of the cache; a bias that is not as long as the output.
    pub fn new(
        dims: FfnDims,
        source: Box<dyn NeuronSource>,
        b2: Vec<f32>,
        activation: ActivationType,
        config: CacheConfig,
    ) -> SparseResult<Self> {
        FfnWeights::from_bundles(
            FfnDims { hidden: 1, ..dims },
            &vec![0.0; dims.input + dims.output],
            false,
            &[0.0],
            &b2,
            activation,
        )?;
        Ok(Self {
            dims,
            source,
            cache: NeuronCache::new(dims.hidden, config)?,
            bundles: vec![None; dims.hidden],
            b2,
            activation,
            table: KernelTable::best(CpuFeatures::detect()),
            bytes_read: 0,
        })
    }

    /// The output of selected neurons. Those that are not in memory are read.
    ///
    /// # Errors
    /// An input or a list that does not fit; a neuron that cannot be read.
    pub fn forward_sparse(&mut self, input: &[f32], active: &[usize]) -> SparseResult<Vec<f32>> {
        let change = self.cache.record_activations(active)?;
        let n_bundle = self.dims.input + 1 + self.dims.output;
        for &neuron in active {
            if self.bundles[neuron].is_none() {
                let mut bundle = vec![0.0; n_bundle].into_boxed_slice();
                self.source.read(neuron, &mut bundle)?;
                self.bytes_read += 4 * n_bundle as u64;
                self.bundles[neuron] = Some(bundle);
            }
        }
        // The network of the active neurons alone: in the same order.
        let (mut weights, mut b1) = (Vec::new(), Vec::new());
        for bundle in active.iter().filter_map(|i| self.bundles[*i].as_deref()) {
            let (w1, rest) = bundle.split_at(self.dims.input);
            weights.extend_from_slice(w1);
            b1.push(rest[0]);
            weights.extend_from_slice(&rest[1..]);
        }
        for neuron in change.evicted {
            self.bundles[neuron] = None;
        }
        let dims = FfnDims {
            hidden: active.len(),
            ..self.dims
        };
        let mut out = vec![0.0; self.dims.output];
        if active.is_empty() {
            return Err(sluice_core::sparse::SparsityError::NoneSelected.into());
        }
        FfnWeights::from_bundles(dims, &weights, false, &b1, &self.b2, self.activation)?.forward(
            self.table,
            input,
            Selected::All,
            &mut out,
        )?;
        Ok(out)
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
