//! Where experts are stored: in files, and in a slot of memory.
#![forbid(unsafe_code)]

use super::cold::{ColdNeurons, Run};
use super::device::DIRECT_ALIGN;
use super::error::ExpertError;
use crate::file::ModelFile;
use core::ops::Range;
use sluice_core::gguf::Gguf;
use sluice_core::kernels::panel::PanelLayout;
use sluice_core::model::{ExpertMatrices, Experts, ModelConfig, ModelError, ModelPlan, Site};
use sluice_core::slc::Slc;
use std::path::PathBuf;

/// Locations of all experts of a model. An expert's id is its layer times `n_in_layer_max`, plus its number there.
#[derive(Debug)]
pub(super) struct Places {
    /// By layer of the model, followed by its head if that has experts; `None` where a layer has none.
    pub(super) layers: Vec<Option<LayerPlaces>>,
    /// Of all layers.
    pub(super) n_experts: usize,
    /// Maximum number of experts in a layer; at least 1.
    pub(super) n_in_layer_max: u32,
    /// Maximum number of experts that a token uses in a layer.
    pub(super) n_used_max: usize,
    /// Bytes that an expert takes in memory: the same for all.
    pub(super) slot_bytes: usize,
    /// Bytes of all experts in memory.
    pub(super) total_bytes: u64,
    /// Files, in the order that pieces name them by.
    pub(super) paths: Vec<PathBuf>,
    /// Where in them the parts of the model's file are; `None` for parts without experts.
    of_part: Vec<Option<usize>>,
    /// Maximum bytes of a piece that is turned into panels; 0 if none is.
    pub(super) rows_bytes_max: usize,
}

/// A model's file, as far as it was read.
#[derive(Clone, Copy, Debug)]
pub(super) struct Found<'f> {
    pub(super) file: &'f ModelFile,
    pub(super) gguf: &'f Gguf<'f>,
    /// The headers of a `.slc` file.
    pub(super) slc: Option<&'f Slc<'f>>,
    pub(super) config: &'f ModelConfig,
    /// The head that predicts a token further, if it has experts.
    pub(super) head: Option<&'f ModelConfig>,
}

impl Found<'_> {
    /// The experts of a layer; a head's layer number follows the model's last.
    fn experts(&self, layer: usize) -> Option<&Experts> {
        match self.head {
            Some(head) if layer >= self.config.n_layer() => head.kind(0).experts(),
            _ => self.config.kind(layer).experts(),
        }
    }
}

/// The head that predicts a token further, after the model `config` of a file, if both have experts and the head's need
/// no larger slots. A head that cannot be run counts as absent: the loader reports it.
pub(crate) fn head_with_experts(
    gguf: &Gguf<'_>,
    slc: Option<&Slc<'_>>,
    config: &ModelConfig,
) -> Option<ModelConfig> {
    let head = ModelConfig::next_token_head(gguf).ok()??;
    let is_trunk = config.next_token.is_none();
    let fits = || Some(slot_bytes(gguf, slc, &head)? <= slot_bytes(gguf, slc, config)?);
    (is_trunk && config.has_experts() && head.has_experts() && fits()?).then_some(head)
}

/// The matrices of experts of a model, as they are in memory: in panels, or as its `.slc` file has them.
pub(crate) fn each_expert_matrix(
    gguf: &Gguf<'_>,
    slc: Option<&Slc<'_>>,
    config: &ModelConfig,
    told: impl FnMut(ExpertMatrices),
) -> Result<(), ModelError> {
    match slc {
        Some(slc) => ModelPlan::experts_in_place(slc, config, told),
        None => ModelPlan::experts(gguf, config, told),
    }
}

/// Bytes of the largest expert of a model in memory.
fn slot_bytes(gguf: &Gguf<'_>, slc: Option<&Slc<'_>>, config: &ModelConfig) -> Option<usize> {
    let mut of_layers = vec![0; config.n_layer()];
    let add = |matrices: ExpertMatrices| {
        of_layers[matrices.layer] += matrices.layout.bytes().next_multiple_of(DIRECT_ALIGN);
    };
    each_expert_matrix(gguf, slc, config, add).ok()?;
    of_layers.into_iter().max()
}

/// Experts of a layer.
#[derive(Debug)]
pub(super) struct LayerPlaces {
    pub(super) first_id: u32,
    /// Gate and up; down.
    pub(super) parts: [PartPlaces; 2],
    /// Ranges of gate, up and down in the slot.
    pub(super) matrices: [Range<usize>; 3],
    /// The neurons of a dense network before the first cluster; `None` for experts.
    pub(super) n_hot: Option<usize>,
}

/// What one product reads of an expert.
#[derive(Debug, Default)]
pub(super) struct PartPlaces {
    /// One or two reads.
    pub(super) pieces: Vec<Piece>,
}

/// Contiguous bytes of each expert.
#[derive(Debug)]
pub(super) struct Piece {
    /// Where the bytes begin.
    begin: Begin,
    /// Number of bytes; of clusters of neurons, which differ, 0.
    len: usize,
    /// Offset in the slot.
    pub(super) slot_offset: usize,
    /// Of rows as in GGUF, which become panels.
    pub(super) rows: Option<PanelLayout>,
    /// The part that has checksums in the file: its bytes in the piece, and the hash for each expert.
    pub(super) sums: Vec<(Range<usize>, Vec<u64>)>,
}

/// Where experts' pieces begin.
#[derive(Debug)]
enum Begin {
    /// In one file: expert 0's offset, and the distance from expert to expert.
    Evenly {
        file: usize,
        offset: u64,
        stride: u64,
    },
    /// Each somewhere: file and offset.
    Each(Vec<(usize, u64)>),
    /// Pages of clusters of neurons in one file.
    Pages { file: usize, run: Run },
}

impl Piece {
    /// The file that an expert's piece is in, and where it begins there.
    pub(super) fn place_of(&self, expert: u32) -> (usize, u64) {
        match &self.begin {
            &Begin::Evenly {
                file,
                offset,
                stride,
            } => (file, offset + stride * u64::from(expert)),
            Begin::Each(places) => places[expert as usize],
            &Begin::Pages { file, run } => (file, run.pages(expert).start),
        }
    }

    /// Number of bytes of an expert.
    pub(super) fn len_of(&self, expert: u32) -> usize {
        match &self.begin {
            Begin::Pages { run, .. } => {
                let pages = run.pages(expert);
                usize::try_from(pages.end - pages.start).unwrap_or(0)
            }
            _ => self.len,
        }
    }

    /// The pages of a cluster of neurons; empty for experts.
    pub(super) fn pages_of(&self, cluster: u32) -> Range<u64> {
        match &self.begin {
            Begin::Pages { run, .. } => run.pages(cluster),
            _ => 0..0,
        }
    }

    /// Whether `next` follows directly, in the file as in the slot.
    fn is_before(&self, next: &Self) -> bool {
        let gap = (next.slot_offset - self.slot_offset) as u64;
        let begins_there = match (&self.begin, &next.begin) {
            (
                &Begin::Evenly {
                    file,
                    offset,
                    stride,
                },
                &Begin::Evenly {
                    file: next_file,
                    offset: next_offset,
                    stride: next_stride,
                },
            ) => (file, offset + gap, stride) == (next_file, next_offset, next_stride),
            _ => false,
        };
        begins_there && self.rows.is_none() && next.rows.is_none()
    }

    /// Appends the piece that follows directly, in the file as in the slot.
    fn extend(&mut self, next: Self) {
        let at = next.slot_offset - self.slot_offset;
        let sums = next.sums.into_iter();
        self.sums
            .extend(sums.map(|(range, sums)| (range.start + at..range.end + at, sums)));
        self.len = at + next.len;
    }
}

impl Places {
    /// Finds the experts of a file.
    pub(super) fn find(opened: &Found<'_>) -> Result<Self, ExpertError> {
        let unusable = |error| ExpertError::Model {
            name: opened.file.name().to_owned(),
            error: Box::new(error),
        };
        let config = opened.config;
        let n_layer = config.n_layer() + usize::from(opened.head.is_some());
        let shapes = || (0..n_layer).filter_map(|layer| opened.experts(layer));
        let most = shapes().map(|shape| shape.n_expert).max().unwrap_or(1);
        let mut places = Self {
            layers: (0..n_layer).map(|_| None).collect(),
            n_experts: 0,
            n_in_layer_max: u32::try_from(most).unwrap_or(u32::MAX),
            n_used_max: shapes().map(|shape| shape.n_expert_used).max().unwrap_or(1),
            slot_bytes: 0,
            total_bytes: 0,
            paths: Vec::new(),
            of_part: vec![None; opened.file.n_parts()],
            rows_bytes_max: 0,
        };
        let mut found = Vec::new();
        let slc = opened.slc;
        let told = |matrices| found.push(matrices);
        each_expert_matrix(opened.gguf, slc, config, told).map_err(unusable)?;
        if let Some(head) = opened.head {
            let layer = config.n_layer();
            let told = |matrices| found.push(ExpertMatrices { layer, ..matrices });
            each_expert_matrix(opened.gguf, slc, head, told).map_err(unusable)?;
        }
        // Gate, up, down: the order of a slot.
        found.sort_by_key(|matrices| (matrices.layer, matrices.site as usize));
        for of_layer in found.chunk_by(|a, b| a.layer == b.layer) {
            places.add(opened, of_layer)?;
        }
        match places.n_experts {
            0 => Err(ExpertError::NoExperts {
                name: opened.file.name().to_owned(),
            }),
            _ => Ok(places),
        }
    }

    /// The clusters of cold neurons of a file.
    pub(super) fn of_neurons(file: &ModelFile, cold: &ColdNeurons) -> Result<Self, ExpertError> {
        let (cluster_bytes, total_bytes, n_most) = cold.sizes();
        let mut places = Self {
            layers: Vec::new(),
            n_experts: 0,
            n_in_layer_max: u32::try_from(n_most).unwrap_or(u32::MAX),
            n_used_max: n_most,
            slot_bytes: usize::try_from(cluster_bytes).unwrap_or(usize::MAX),
            total_bytes,
            paths: Vec::new(),
            of_part: vec![None; file.n_parts()],
            rows_bytes_max: 0,
        };
        for (layer, found) in cold.layers.iter().enumerate() {
            let first_id = u32::try_from(layer * n_most).unwrap_or(u32::MAX);
            let mut parts: [PartPlaces; 2] = Default::default();
            for (part, runs) in parts
                .iter_mut()
                .zip(found.iter().flat_map(|found| &found.runs))
            {
                for &run in runs {
                    part.pieces.push(places.pages(file, run)?);
                }
            }
            places.n_experts += found.as_ref().map_or(0, |found| found.n_clusters);
            places.layers.push(found.as_ref().map(|found| LayerPlaces {
                first_id,
                parts,
                matrices: [const { 0..0 }; 3],
                n_hot: Some(found.first),
            }));
        }
        Ok(places)
    }

    /// The pages of clusters in a run.
    fn pages(&mut self, file: &ModelFile, run: Run) -> Result<Piece, ExpertError> {
        let located = file.locate(run.start, run.end - run.start);
        let located = located.filter(|(_, offset)| *offset == run.start);
        let index = located.and_then(|(part, _)| self.file(file, part));
        let index = index.ok_or_else(|| ExpertError::NoFile {
            name: file.name().to_owned(),
        })?;
        Ok(Piece {
            begin: Begin::Pages { file: index, run },
            len: 0,
            slot_offset: 0,
            rows: None,
            sums: Vec::new(),
        })
    }

    /// Maximum number of pieces of a part.
    pub(super) fn n_pieces_max(&self) -> usize {
        let parts = self.layers.iter().flatten().flat_map(|layer| &layer.parts);
        parts.map(|part| part.pieces.len()).max().unwrap_or(0)
    }

    fn add(&mut self, opened: &Found<'_>, matrices: &[ExpertMatrices]) -> Result<(), ExpertError> {
        let layer = matrices[0].layer;
        let shape = opened.experts(layer);
        let n_experts = shape.map_or(0, |shape| shape.n_expert);
        let first_id = u32::try_from(layer * self.n_in_layer_max as usize).unwrap_or(u32::MAX);
        let mut places = LayerPlaces {
            first_id,
            parts: Default::default(),
            matrices: [const { 0..0 }; 3],
            n_hot: None,
        };
        let mut at = 0;
        for matrix in matrices {
            let len = matrix.layout.bytes();
            let range = at..at + len;
            match matrix.site {
                Site::FfnGate => places.matrices[0] = range.clone(),
                Site::FfnUp => places.matrices[1] = range.clone(),
                _ => places.matrices[2] = range.clone(),
            }
            let part = usize::from(matrix.site == Site::FfnDown);
            let piece = self.piece(opened, matrix, at)?;
            let pieces = &mut places.parts[part].pieces;
            match pieces.last_mut().filter(|last| last.is_before(&piece)) {
                Some(last) => last.extend(piece),
                None => pieces.push(piece),
            }
            at = range.end.next_multiple_of(DIRECT_ALIGN);
        }
        if places.matrices[1].is_empty() {
            // Gate and up are one.
            places.matrices[1] = places.matrices[0].clone();
        }
        self.slot_bytes = self.slot_bytes.max(at);
        self.total_bytes += at as u64 * n_experts as u64;
        self.n_experts += n_experts;
        self.layers[layer] = Some(places);
        Ok(())
    }

    fn piece(
        &mut self,
        opened: &Found<'_>,
        matrix: &ExpertMatrices,
        slot_offset: usize,
    ) -> Result<Piece, ExpertError> {
        let tensor = opened.gguf.tensors().nth(matrix.tensor);
        let slc = opened.slc;
        let header = |tensor| slc.and_then(|slc| slc.tensor_header(matrix.tensor, tensor));
        let (offset, stride, len, rows) =
            match tensor.as_ref().map(|tensor| (tensor, header(tensor))) {
                Some((_, Some(header))) => {
                    let len = matrix.layout.bytes().next_multiple_of(DIRECT_ALIGN);
                    (header.offset, header.matrix_stride_bytes(), len, None)
                }
                Some((tensor, None)) => {
                    let len = matrix.layout.n_rows() * matrix.layout.gguf_row_bytes();
                    self.rows_bytes_max = self.rows_bytes_max.max(len);
                    (tensor.offset, len as u64, len, Some(matrix.layout))
                }
                None => (0, 0, 0, None),
            };
        let sums = slc.and_then(|slc| slc.matrix_checksums(matrix.tensor));
        let experts = opened.experts(matrix.layer);
        let n = experts.map_or(0, |shape| shape.n_expert) as u64;
        let begin = self.begin(opened.file, n, offset, stride, len as u64);
        let begin = begin.ok_or_else(|| ExpertError::NoFile {
            name: opened.file.name().to_owned(),
        })?;
        Ok(Piece {
            begin,
            len,
            slot_offset,
            rows,
            sums: sums
                .map(|sums| (0..len, sums.collect()))
                .into_iter()
                .collect(),
        })
    }

    /// Finds the pieces of `n` experts, which are `len` bytes each, the first of them at `offset` of the model's file.
    fn begin(
        &mut self,
        file: &ModelFile,
        n: u64,
        offset: u64,
        stride: u64,
        len: u64,
    ) -> Option<Begin> {
        if let Some((part, offset)) = file.locate(offset, stride * n.saturating_sub(1) + len) {
            let file = self.file(file, part)?;
            return Some(Begin::Evenly {
                file,
                offset,
                stride,
            });
        }
        let places = (0..n).map(|expert| {
            let (part, offset) = file.locate(offset + stride * expert, len)?;
            Some((self.file(file, part)?, offset))
        });
        places.collect::<Option<_>>().map(Begin::Each)
    }

    /// The name of a part of the model's file in pieces.
    fn file(&mut self, file: &ModelFile, part: usize) -> Option<usize> {
        if self.of_part[part].is_none() {
            self.of_part[part] = Some(self.paths.len());
            self.paths.push(file.part_path(part)?.to_owned());
        }
        self.of_part[part]
    }

    /// The layer of an id, and the expert's number in it.
    pub(super) const fn of_id(&self, id: u32) -> (usize, u32) {
        (
            (id / self.n_in_layer_max) as usize,
            id % self.n_in_layer_max,
        )
    }

    /// Ids are below this.
    pub(super) fn n_ids(&self) -> usize {
        self.layers.len() * self.n_in_layer_max as usize
    }
}
