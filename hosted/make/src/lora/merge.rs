//! Adapters added to a model's weights: W + scale · B · A, and what else they change, in a new GGUF file.
//!
//! Adapted tensors are read as f32 in pieces, changed and quantised again to their own type or a requested one; all
//! others, and the metadata, are copied unchanged. Memory use is a few MiB per thread, plus the adapters.
//!
//! If the token embedding is tied to the output matrix, an adapter may be for only one of them. The new file then has a
//! separate output matrix.

use super::LoraError;
use super::added::{Added, By, EMBEDDING, OUTPUT, by_tensor};
use super::start::product_at_start;
use crate::convert::{can_encode, encode};
use crate::pieces::{Outcome, share};
use sluice::adapter::AdapterLoadError;
use sluice::file::{GgufHeader, GgufWriter, ModelFile, OutputFile, SPLIT_KEYS};
use sluice_core::gguf::source::TensorSource;
use sluice_core::gguf::{Gguf, TensorInfo, optional};
use sluice_core::kernels::blocks::dequantize_row;
use sluice_core::kernels::quantize::Quantizer;
use sluice_core::kernels::{GgmlType, WeightType};
use sluice_core::team::StopFlag;
use sluice_hf::adapter::MergeAdapter;
use std::sync::Mutex;

/// The changes to each tensor of a model.
#[derive(Debug)]
pub struct MergePlan<'m> {
    header: GgufHeader,
    tensors: Vec<Merged<'m>>,
    /// Remarks about the new file, a sentence each.
    notes: Vec<String>,
    source: &'m ModelFile,
}

/// A tensor of the new file.
#[derive(Debug)]
struct Merged<'m> {
    info: TensorInfo<'m>,
    target: GgmlType,
    added: Vec<Added<'m>>,
}

/// Numbers in a piece: a few MiB of input and output, and a few ms of work.
const PIECE_LEN: u64 = 1 << 18;

impl<'m> MergePlan<'m> {
    /// Finds the tensor rows of all pairs. Each adapter has a factor. Adapted tensors become `ty`, or keep their type.
    ///
    /// # Errors
    /// [`LoraError`]: an adapter that does not fit this model, or a type that cannot be written.
    pub fn new(
        source: &'m ModelFile,
        gguf: &Gguf<'m>,
        adapters: &'m [(MergeAdapter, f32)],
        ty: Option<GgmlType>,
    ) -> Result<Self, LoraError> {
        let mut added = by_tensor(gguf, adapters)?;
        let mut header = GgufHeader::with_layout_of(gguf);
        for key in SPLIT_KEYS {
            header.remove(key);
        }
        let mut plan = Self {
            header,
            tensors: Vec::new(),
            notes: Vec::new(),
            source,
        };
        for info in gguf.tensors() {
            let own = added.remove(info.name).unwrap_or_default();
            plan.add(info, info.name, own, ty)?;
        }
        plan.check_scales(gguf)?;
        plan.untie(gguf, added.remove(OUTPUT), ty)?;
        Ok(plan)
    }

    fn add(
        &mut self,
        info: TensorInfo<'m>,
        name: &str,
        added: Vec<Added<'m>>,
        ty: Option<GgmlType>,
    ) -> Result<(), LoraError> {
        // Norms and biases keep their type.
        let target = match ty.filter(|_| !added.is_empty() && is_matrix(&info)) {
            Some(ty) => ty,
            None => info.ty,
        };
        if !added.is_empty() {
            let is_read = WeightType::from_ggml(info.ty).is_some();
            let cannot = !is_read || !can_encode(target);
            if cannot || target.row_bytes(info.dims[0]).is_none() {
                return Err(LoraError::CannotEncode {
                    tensor: name.into(),
                    ty: if is_read { target } else { info.ty },
                    row_len: info.dims[0],
                });
            }
        }
        let dims = &info.dims[..info.n_dims.max(1)];
        self.header.add_tensor(name, dims, target);
        self.tensors.push(Merged {
            info,
            target,
            added,
        });
        Ok(())
    }

    /// A matrix that the file multiplies by a scale cannot absorb a product.
    fn check_scales(&self, gguf: &Gguf<'_>) -> Result<(), LoraError> {
        // In gemma4 the scale is a part of the model, applied after the adapter.
        if gguf.str("general.architecture") == Ok("gemma4") {
            return Ok(());
        }
        let adapted = self
            .tensors
            .iter()
            .filter(|tensor| !tensor.added.is_empty());
        for Merged { info, .. } in adapted {
            let scale = info
                .name
                .strip_suffix(".weight")
                .map(|name| format!("{name}.scale"));
            if let Some(scale) = scale.filter(|scale| gguf.tensor(scale).is_some()) {
                let what = format!("is multiplied by {scale}, so nothing can be added to it");
                let error = AdapterLoadError::tensor(self.source.name(), info.name, what);
                return Err(error.into());
            }
        }
        Ok(())
    }

    /// Adds a separate output matrix if it was tied to the embedding and only one of the two is adapted.
    fn untie(
        &mut self,
        gguf: &Gguf<'m>,
        of_output: Option<Vec<Added<'m>>>,
        ty: Option<GgmlType>,
    ) -> Result<(), LoraError> {
        let embedding = self
            .tensors
            .iter()
            .find(|tensor| tensor.info.name == EMBEDDING);
        let of_both = embedding.map_or(&[][..], |tensor| &tensor.added);
        let is_adapted = of_both.iter().any(|added| !added.is_tied);
        let architecture = gguf.str("general.architecture").unwrap_or_default();
        let is_causal = optional(gguf.bool(&format!("{architecture}.attention.causal")));
        let is_encoder = is_causal == Ok(Some(false));
        let is_asked = of_output.is_some() || is_adapted && !is_encoder;
        let (None, Some(embedding), true) = (gguf.tensor(OUTPUT), gguf.tensor(EMBEDDING), is_asked)
        else {
            return Ok(());
        };
        let mut added: Vec<_> = of_both
            .iter()
            .filter(|added| added.is_tied)
            .cloned()
            .collect();
        added.extend(of_output.unwrap_or_default());
        self.notes.push(format!(
            "the token embedding is also the model's output matrix, but only one of them is adapted: the new file \
             has both {OUTPUT} and {EMBEDDING}"
        ));
        self.add(embedding, OUTPUT, added, ty)
    }

    /// Finds what training began with in the weights, on `n_threads` threads.
    fn find_starts(&mut self, n_threads: usize, stop: &StopFlag) -> Result<Outcome, LoraError> {
        let mut places = Vec::new();
        for (tensor, merged) in self.tensors.iter().enumerate() {
            let own = merged.added.iter().enumerate();
            let own = own.filter(|(_, added)| matches!(added.by, By::TakeOut { .. }));
            places.extend(own.map(|(change, _)| StartPlace { tensor, change }));
        }
        let found = Mutex::new(Vec::new());
        let act = |place: StartPlace, (): &mut ()| {
            let merged = &self.tensors[place.tensor];
            let added = &merged.added[place.change];
            let product = product_at_start(self.source, &merged.info, added, stop)?;
            let mut found = found.lock().expect("no holder panics");
            found.extend(product.map(|product| (place, product)));
            Ok::<_, LoraError>(0)
        };
        let ended = share(&places, n_threads, stop, &mut |_| {}, act)?;
        for (place, by) in found.into_inner().expect("no holder panics") {
            self.tensors[place.tensor].added[place.change].by = by;
        }
        Ok(ended)
    }

    /// Remarks about the new file, a sentence each.
    #[must_use]
    pub fn notes(&self) -> &[String] {
        &self.notes
    }

    /// The header of the file to write.
    #[must_use]
    pub const fn header(&self) -> &GgufHeader {
        &self.header
    }

    /// Number of adapted tensors.
    #[must_use]
    pub fn n_adapted(&self) -> usize {
        let tensors = self.tensors.iter();
        tensors.filter(|tensor| !tensor.added.is_empty()).count()
    }

    /// Writes the file with `n_threads` threads. `progress` is called on this thread with the bytes of data written so
    /// far.
    ///
    /// # Errors
    /// [`LoraError`]; no file remains.
    ///
    /// # Panics
    /// Only if `progress` panics.
    pub fn write(
        mut self,
        output: OutputFile,
        n_threads: usize,
        stop: &StopFlag,
        progress: &mut dyn FnMut(u64),
    ) -> Result<Outcome, LoraError> {
        if self.find_starts(n_threads, stop)? == Outcome::Stopped {
            return Ok(Outcome::Stopped);
        }
        let writer = self.header.clone().start(output)?;
        let pieces = self.pieces();
        let quantizer = Quantizer::detect();
        let act = |piece: Piece, room: &mut Room| room.merge(&self, piece, &writer, quantizer);
        let ended = share(&pieces, n_threads, stop, progress, act)?;
        if ended == Outcome::Complete {
            writer.finish()?;
        }
        Ok(ended)
    }

    /// Pieces of whole rows, each from a single matrix.
    fn pieces(&self) -> Vec<Piece> {
        let mut pieces = Vec::new();
        for (tensor, merged) in self.tensors.iter().enumerate() {
            let [row_len, rows, ..] = merged.info.dims;
            if merged.info.n_elements() == 0 {
                continue;
            }
            let step = (PIECE_LEN / row_len).max(1);
            for part in 0..merged.info.n_rows() / rows {
                let mut row = 0;
                while row < rows {
                    let n_rows = step.min(rows - row);
                    pieces.push(Piece {
                        tensor,
                        part,
                        row,
                        n_rows,
                    });
                    row += n_rows;
                }
            }
        }
        pieces
    }
}

/// A change that takes out what training began with: the indices of the tensor and of the change.
#[derive(Clone, Copy, Debug)]
struct StartPlace {
    tensor: usize,
    change: usize,
}

/// Whether a tensor is a weight that may have any type.
fn is_matrix(info: &TensorInfo<'_>) -> bool {
    info.n_dims > 1 && info.name.ends_with(".weight")
}

/// Some rows of a matrix.
#[derive(Clone, Copy, Debug)]
struct Piece {
    tensor: usize,
    part: u64,
    row: u64,
    n_rows: u64,
}

/// A thread's buffers.
#[derive(Default)]
struct Room {
    bytes: Vec<u8>,
    numbers: Vec<f32>,
    product: Vec<f32>,
    encoded: Vec<u8>,
}

impl Room {
    /// Merges and writes a piece. Returns its bytes.
    fn merge(
        &mut self,
        plan: &MergePlan<'_>,
        piece: Piece,
        writer: &GgufWriter,
        quantizer: Quantizer,
    ) -> Result<u64, LoraError> {
        let merged = &plan.tensors[piece.tensor];
        let (info, target) = (&merged.info, merged.target);
        let [row_len, n_rows, ..] = info.dims;
        let first = piece.part * n_rows + piece.row;
        self.bytes
            .resize(usize_of(piece.n_rows * info.row_bytes()), 0);
        let read = plan
            .source
            .read(info.offset + first * info.row_bytes(), &mut self.bytes);
        read.map_err(|error| AdapterLoadError::data(plan.source.name(), info.name, error))?;
        let rows = usize_of(piece.row)..usize_of(piece.row + piece.n_rows);
        let own = merged.added.iter();
        let own = own.filter(|added| added.part == piece.part && added.meets(&rows));
        let mut own = own.peekable();
        // Pieces without an adapted row are copied byte for byte.
        if own.peek().is_none() && target == info.ty {
            writer.write(piece.tensor, first * info.row_bytes(), &self.bytes)?;
            return Ok(self.bytes.len() as u64);
        }
        self.numbers.resize(usize_of(piece.n_rows * row_len), 0.0);
        dequantize_row(info.ty, &self.bytes, &mut self.numbers);
        let row_len = usize_of(row_len);
        for added in own {
            added.apply(&mut self.numbers, rows.start, row_len, &mut self.product)?;
        }
        self.encoded.clear();
        encode(quantizer, target, &self.numbers, row_len, &mut self.encoded).map_err(|error| {
            LoraError::Numbers {
                tensor: writer.tensors()[piece.tensor].name.clone(),
                error,
            }
        })?;
        let row_bytes = self.encoded.len() as u64 / piece.n_rows;
        if target == info.ty {
            self.keep_rows(merged, piece, usize_of(row_bytes));
        }
        writer.write(piece.tensor, first * row_bytes, &self.encoded)?;
        Ok(self.encoded.len() as u64)
    }

    /// Restores rows without an adapter if the type stays the same: encoding them again may change them.
    fn keep_rows(&mut self, merged: &Merged<'_>, piece: Piece, row_bytes: usize) {
        let rows = (usize_of(piece.row)..).zip(self.encoded.chunks_exact_mut(row_bytes));
        for ((row, encoded), before) in rows.zip(self.bytes.chunks_exact(row_bytes)) {
            let mut own = merged.added.iter();
            if !own.any(|added| added.part == piece.part && added.meets(&(row..row + 1))) {
                encoded.copy_from_slice(before);
            }
        }
    }
}

/// Converts a tensor's size, which the file's length bounds.
fn usize_of(n: u64) -> usize {
    usize::try_from(n).expect("the tensor is in a file, and in memory soon")
}
