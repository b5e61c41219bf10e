//! Cold neurons of a file by neuron: where their pages are, in the file and among the weights.
//!
//! Up's rows follow each other by neuron, and down's codes do so in each stripe of outputs. A cluster of 64 neurons has the
//! pages that hold nothing else; a page that it shares stays in memory, with the gate, the scales of down and the hot neurons.

use super::device::DIRECT_ALIGN;
use crate::neurons::{CLUSTER_NEURONS, NeuronOrder, NeuronOrderError};
use core::any::Any;
use core::fmt;
use core::ops::Range;
use core::ptr::NonNull;
use rustix::mm::{Advice, madvise};
use sluice_core::kernels::neuron::Form;
use sluice_core::model::{Channel, ModelConfig};
use sluice_core::slc::{Slc, TensorHeader};
use std::sync::Arc;

/// The cold neurons of a model's dense networks.
#[derive(Debug)]
pub(crate) struct ColdNeurons {
    /// By layer; `None` where all neurons stay in memory.
    pub(super) layers: Vec<Option<ColdLayer>>,
    /// Offset of the file's first payload.
    payload_offset: u64,
}

/// The cold neurons of a layer.
#[derive(Debug)]
pub(super) struct ColdLayer {
    /// The first of them.
    pub(super) first: usize,
    pub(super) n_clusters: usize,
    /// Of up, and of down.
    pub(super) runs: [Vec<Run>; 2],
}

/// Bytes of cold neurons that follow each other, in the file.
#[derive(Clone, Copy, Debug)]
pub(super) struct Run {
    pub(super) start: u64,
    pub(super) end: u64,
    cluster_bytes: u64,
}

impl Run {
    /// The pages that hold nothing but neurons of a cluster.
    pub(super) fn pages(&self, cluster: u32) -> Range<u64> {
        let align = DIRECT_ALIGN as u64;
        let start = self.start + self.cluster_bytes * u64::from(cluster);
        let end = (start + self.cluster_bytes).min(self.end) / align * align;
        let start = start.next_multiple_of(align);
        start..end.max(start)
    }
}

impl ColdLayer {
    /// Bytes of a cluster's pages.
    pub(super) fn bytes(&self, cluster: u32) -> u64 {
        let runs = self.runs.iter().flatten();
        runs.map(|run| run.pages(cluster))
            .map(|pages| pages.end - pages.start)
            .sum()
    }

    fn clusters(&self) -> Range<u32> {
        0..u32::try_from(self.n_clusters).unwrap_or(u32::MAX)
    }
}

impl ColdNeurons {
    /// Finds the cold neurons of dense networks; `None` if the file is not one by neuron, its neurons have no order, or none
    /// of them fills a page.
    ///
    /// # Errors
    /// [`NeuronOrderError`]: the keys of the order do not fit the model.
    pub(crate) fn find(
        slc: Option<&Slc<'_>>,
        config: &ModelConfig,
    ) -> Result<Option<Self>, NeuronOrderError> {
        let Some(slc) = slc else { return Ok(None) };
        let Some(order) = NeuronOrder::of(slc.gguf(), config)? else {
            return Ok(None);
        };
        let mut layers: Vec<_> = (0..config.n_layer()).map(|_| None).collect();
        for network in order.networks() {
            let layer = network.network.layer;
            if let Channel::Ffn(shape) = config.kind(layer).channel {
                let first = (network.n_hot as usize).next_multiple_of(CLUSTER_NEURONS);
                layers[layer] = cold_layer(slc, layer, first, shape.n_ff);
            }
        }
        let found = Self {
            layers,
            payload_offset: slc.header().payload_offset(),
        };
        let has_pages = found.pages().any(|pages| !pages.is_empty());
        Ok(has_pages.then_some(found))
    }

    /// Where the file's payloads begin.
    pub(crate) const fn payload_offset(&self) -> u64 {
        self.payload_offset
    }

    /// All pages that do not stay in memory, in any order; some are empty.
    pub(crate) fn pages(&self) -> impl Iterator<Item = Range<u64>> + '_ {
        self.layers.iter().flatten().flat_map(|layer| {
            let runs = layer.runs.iter().flatten();
            runs.flat_map(|run| layer.clusters().map(|cluster| run.pages(cluster)))
        })
    }

    /// Ranges of the file with pages that come and go.
    pub(crate) fn ranges(&self) -> impl Iterator<Item = Range<u64>> + '_ {
        let runs = self
            .layers
            .iter()
            .flatten()
            .flat_map(|layer| layer.runs.iter().flatten());
        runs.map(|run| run.start..run.end)
    }

    /// Bytes of the largest cluster, of all clusters, and the largest number of clusters in a layer.
    pub(super) fn sizes(&self) -> (u64, u64, usize) {
        let layers = self.layers.iter().flatten();
        layers.fold((1, 0, 1), |(most, all, n), layer| {
            let bytes = || layer.clusters().map(|cluster| layer.bytes(cluster));
            (
                bytes().max().unwrap_or(0).max(most),
                all + bytes().sum::<u64>(),
                n.max(layer.n_clusters),
            )
        })
    }
}

/// The neurons of a layer from `first` on; `None` past the last, or if its tensors are not by neuron.
fn cold_layer(slc: &Slc<'_>, layer: usize, first: usize, n_ff: usize) -> Option<ColdLayer> {
    let n_cold = n_ff.checked_sub(first).filter(|n| *n > 0)?;
    let n_clusters = n_cold.div_ceil(CLUSTER_NEURONS);
    let find = |part: &str, form| {
        let name = format!("blk.{layer}.{part}.weight");
        let mut tensors = slc.tensors();
        let (_, header) = tensors.find(|(tensor, _)| tensor.name == name)?;
        (header.form == form).then_some(header)
    };
    let up = find("ffn_up", Form::Rows)?;
    let down = find("ffn_down", Form::Neurons)?;
    let run = |header: &TensorHeader, bytes: Range<usize>| Run {
        start: header.offset + bytes.start as u64,
        end: header.offset + bytes.end as u64,
        cluster_bytes: (bytes.len() / n_cold * CLUSTER_NEURONS) as u64,
    };
    let row_bytes = up.matrix_layout()?.gguf_row_bytes();
    let codes = down.matrix_layout()?;
    let codes = codes.code_ranges(first..n_ff);
    let down: Vec<_> = codes.map(|bytes| run(&down, bytes)).collect();
    (down.len() <= RUNS_MAX).then(|| ColdLayer {
        first,
        n_clusters,
        runs: [vec![run(&up, first * row_bytes..n_ff * row_bytes)], down],
    })
}

/// Maximum number of stripes of outputs, each of which is a read: of a model 131,072 wide. Wider ones stay in memory.
const RUNS_MAX: usize = 64;

/// The memory of a model's weights, where cold neurons have their places.
pub(crate) struct Home {
    start: NonNull<u8>,
    /// Offset in the file of its first byte, and of the one after its last.
    range: Range<u64>,
    /// What keeps it allocated.
    _weights: Arc<dyn Any + Send + Sync>,
}

// SAFETY: an address in memory that the value keeps allocated; a slot's progress decides who may write to it and who may
// read it.
unsafe impl Send for Home {}
// SAFETY: as above.
unsafe impl Sync for Home {}

impl Home {
    /// The payloads of a `.slc` file, which begin at `offset` of it, in memory of their own that `weights` keeps.
    ///
    /// Reads write to it while references to all of it exist: Rust takes referenced bytes for unchanging, as with a
    /// file map. Nothing reads the pages of a cluster before it was lent, or after it was given back.
    pub(crate) fn new(payloads: &[u8], offset: u64, weights: Arc<dyn Any + Send + Sync>) -> Self {
        Self {
            start: NonNull::from(payloads).cast(),
            range: offset..offset + payloads.len() as u64,
            _weights: weights,
        }
    }

    /// The place of the file's byte at `offset`.
    ///
    /// # Panics
    /// If it is not a payload's.
    pub(super) fn at(&self, offset: u64) -> NonNull<u8> {
        assert!(self.range.contains(&offset));
        let at = usize::try_from(offset - self.range.start).unwrap_or(0);
        // SAFETY: inside the memory.
        unsafe { self.start.add(at) }
    }

    /// Gives pages back to the system. They read as zeros until they are read from the file again.
    pub(super) fn release(&self, pages: &Range<u64>) {
        if pages.is_empty() {
            return;
        }
        let len = usize::try_from(pages.end - pages.start).unwrap_or(0);
        // SAFETY: whole pages of an anonymous map that nothing reads until they have been read from the file again.
        let _hint = unsafe {
            madvise(
                self.at(pages.start).as_ptr().cast(),
                len,
                Advice::LinuxDontNeed,
            )
        };
    }
}

impl fmt::Debug for Home {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Home").field("range", &self.range).finish()
    }
}
