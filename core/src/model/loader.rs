//! Loading: every tensor gets its place in the caller's memory, and any number of threads
//! convert them to panels, a chunk at a time.

use super::arch::{
    self, Keys, OUTPUT, OUTPUT_NORM, POSITION_EMBD, ROPE_FACTORS_LONG, ROPE_FACTORS_SHORT,
    ROPE_FREQS, TOKEN_EMBD, TOKEN_TYPES, Tensor,
};
use super::config::{ModelConfig, RopeScalingKind, WindowPattern};
use super::error::{ModelError, Name};
use super::rope;
use super::weights::{Embedding, Ends, Fingerprint, Layer, MatrixRef, Model, RowsRef, VectorRef};
use crate::gguf::source::{SourceError, TensorSource};
use crate::gguf::{Gguf, TensorInfo};
use crate::kernels::GgmlType;
use crate::kernels::bytes::{Pod, cast_mut};
use crate::kernels::panel::{PANEL_ROWS, PanelLayout};
use crate::memory::{ALIGN, Arena, MemoryError, MemoryPlan, Shared};
use crate::slc::{Layout, Slc};
use core::sync::atomic::{AtomicUsize, Ordering};

/// How much memory the weights of a model take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ModelPlan {
    /// Bytes of weights: panels, norms, embedding.
    pub weight_bytes: usize,
    /// Bytes of tables beside the weights.
    pub table_bytes: usize,
    /// Bytes of scratch memory that each loading thread needs where the source is not
    /// addressable ([`TensorSource::slice`] gives `None`).
    pub staging_bytes: usize,
    n_jobs: usize,
}

/// Largest product of layers and tensors in the file. Tensors are looked up by walking the
/// directory, so this bounds the time that a hostile file costs to about a second; the largest
/// models have a tenth of it.
const LAYERS_TIMES_TENSORS_MAX: u64 = 1 << 20;

impl ModelPlan {
    /// Sizes for the model `config` in `gguf`. Arithmetic on the header; checks that every
    /// tensor is there with the right shape and a type that has kernels.
    ///
    /// # Errors
    /// The first tensor that is missing or does not fit, by name.
    pub fn new(gguf: &Gguf<'_>, config: &ModelConfig) -> Result<Self, ModelError> {
        check_size(gguf, config)?;
        let mut placer = Placer::new(gguf);
        let (mut n_jobs, mut staging_bytes) = (0, 0);
        let mut count = |_, tensor: &TensorInfo<'_>, _| {
            n_jobs += 1;
            staging_bytes = staging_bytes.max(chunk_bytes(tensor));
        };
        for i in 0..config.n_layer {
            placer.layer(config, i, &mut count)?;
        }
        placer.ends(config, &mut count)?;
        let mut tables = MemoryPlan::new();
        tables.slice::<Layer>(config.n_layer)?;
        tables.slice::<Job>(n_jobs)?;
        tables.slice::<f64>(rope::N_SETS * (config.n_rot / 2))?;
        Ok(Self {
            weight_bytes: placer.plan.bytes(),
            table_bytes: tables.bytes(),
            staging_bytes,
            n_jobs,
        })
    }

    /// Tells `used` the index in the file of every tensor that the model uses.
    ///
    /// # Errors
    /// As [`Self::new`].
    pub fn used_tensors(
        gguf: &Gguf<'_>,
        config: &ModelConfig,
        mut used: impl FnMut(usize),
    ) -> Result<(), ModelError> {
        check_size(gguf, config)?;
        let mut placer = Placer::new(gguf);
        let mut placed = |index, _: &TensorInfo<'_>, _| used(index);
        for i in 0..config.n_layer {
            placer.layer(config, i, &mut placed)?;
        }
        placer.ends(config, &mut placed)?;
        let is_factor = |name| [ROPE_FREQS, ROPE_FACTORS_SHORT, ROPE_FACTORS_LONG].contains(&name);
        let factors = gguf.tensors().enumerate();
        let factors = factors.filter(|(_, tensor)| is_factor(tensor.name));
        factors.for_each(|(index, _)| used(index));
        Ok(())
    }

    /// Tables alone: the weights lie in place.
    pub(super) const fn of_tables(table_bytes: usize) -> Self {
        Self {
            weight_bytes: 0,
            table_bytes,
            staging_bytes: 0,
            n_jobs: 0,
        }
    }
}

/// Whether the model is one whose tensors are found in reasonable time.
pub(super) fn check_size(gguf: &Gguf<'_>, config: &ModelConfig) -> Result<(), ModelError> {
    config.check()?;
    let (n_layer, n_tensors) = (config.n_layer, gguf.tensor_count());
    if n_tensors.saturating_mul(n_layer as u64) > LAYERS_TIMES_TENSORS_MAX {
        return Err(ModelError::TooManyTensors { n_layer, n_tensors });
    }
    Ok(())
}

/// Bytes of the file that one call of the conversion reads at most.
fn chunk_bytes(tensor: &TensorInfo<'_>) -> usize {
    let job = Job::new(0, tensor, Target::Vector(VectorRef { offset: 0, len: 0 }));
    job.chunk_rows().min(job.n_rows) * job.row_bytes
}

/// What a tensor becomes.
#[derive(Clone, Copy, Debug)]
pub(super) enum Target {
    Panels(MatrixRef),
    /// The matrix of the expert of that number.
    Expert(MatrixRef, usize),
    Vector(VectorRef),
    Rows(RowsRef),
}

impl Target {
    /// Offset in weight memory, and length.
    pub(super) fn range(&self) -> (usize, usize) {
        match self {
            Self::Panels(matrix) | Self::Expert(matrix, _) => {
                (matrix.offset, matrix.layout().bytes())
            }
            Self::Vector(vector) => (vector.offset, 4 * vector.len),
            Self::Rows(rows) => (rows.offset, rows.n_rows * rows.row_bytes),
        }
    }
}

/// Gives every tensor its offset, always in the same order.
pub(super) struct Placer<'g, 'a> {
    gguf: &'g Gguf<'a>,
    plan: MemoryPlan,
    /// Where the tensors lie already, if they do.
    in_place: Option<&'g Slc<'a>>,
    /// Whether to look for biases at all: most files have none.
    has_bias: bool,
}

/// Told of every tensor: its index in the file, what it is, what it becomes.
pub(super) type Placed<'c, 'a> = &'c mut dyn FnMut(usize, &TensorInfo<'a>, Target);

impl<'g, 'a> Placer<'g, 'a> {
    fn new(gguf: &'g Gguf<'a>) -> Self {
        Self {
            gguf,
            plan: MemoryPlan::new(),
            in_place: None,
            has_bias: gguf.tensors().any(|tensor| tensor.name.ends_with(".bias")),
        }
    }

    /// For tensors that stay where `slc` has them; offsets count from its first payload.
    pub(super) fn in_place(slc: &'g Slc<'a>) -> Self {
        Self {
            in_place: Some(slc),
            ..Self::new(slc.gguf())
        }
    }

    /// Where `bytes` of a tensor and its index lie or shall lie, in `layout`.
    fn place(
        &mut self,
        (index, tensor): (usize, &TensorInfo<'_>),
        name: Name,
        layout: Layout,
        bytes: usize,
    ) -> Result<usize, ModelError> {
        let Some(slc) = self.in_place else {
            let offset = self.plan.bytes();
            self.plan.slice::<u8>(bytes)?;
            return Ok(offset);
        };
        let header = slc.tensor_header(index, tensor);
        let header = header.ok_or(ModelError::MissingTensor { name })?;
        if header.layout != layout || header.len_bytes != bytes as u64 {
            return Err(ModelError::NotInPlace {
                name,
                expected: layout.name(),
                found: header.layout.name(),
            });
        }
        let offset = usize::try_from(header.offset - slc.header().payload_offset());
        offset.map_err(|_| MemoryError::TooLarge.into())
    }

    /// A tensor and its index in the file.
    fn find(&self, name: &Name) -> Result<(usize, TensorInfo<'a>), ModelError> {
        self.gguf
            .tensors()
            .enumerate()
            .find(|(_, tensor)| tensor.name == name.as_str())
            .ok_or(ModelError::MissingTensor { name: *name })
    }

    fn vector(
        &mut self,
        name: Name,
        len: usize,
        placed: Placed<'_, 'a>,
    ) -> Result<VectorRef, ModelError> {
        let (index, tensor) = self.find(&name)?;
        check_shape(&tensor, name, [1, len])?;
        if tensor.ty != GgmlType::F32 {
            return Err(ModelError::TensorType {
                name,
                expected: GgmlType::F32,
                found: tensor.ty,
            });
        }
        let offset = self.place((index, &tensor), name, Layout::Raw, 4 * len)?;
        let vector = VectorRef { offset, len };
        placed(index, &tensor, Target::Vector(vector));
        Ok(vector)
    }

    /// A layer norm (`name` without `.weight`).
    fn layer_norm(
        &mut self,
        stem: &Name,
        len: usize,
        placed: Placed<'_, 'a>,
    ) -> Result<[VectorRef; 2], ModelError> {
        let name = |part: &str| Name::format(format_args!("{}.{part}", stem.as_str()));
        let weight = self.vector(name("weight"), len, placed)?;
        Ok([weight, self.vector(name("bias"), len, placed)?])
    }

    /// The matrices of all experts (`name` without `.weight`); the first of them.
    fn experts(
        &mut self,
        stem: &Name,
        n_expert: usize,
        [n_rows, n_cols]: [usize; 2],
        placed: Placed<'_, 'a>,
    ) -> Result<MatrixRef, ModelError> {
        let name = Name::format(format_args!("{}.weight", stem.as_str()));
        let (index, tensor) = self.find(&name)?;
        let [found_cols, found_rows, found_experts, outer] = tensor.dims;
        let found = [found_experts.saturating_mul(outer), found_rows, found_cols];
        let expected = [n_expert as u64, n_rows as u64, n_cols as u64];
        if found != expected {
            return Err(ModelError::ExpertShape {
                name,
                expected,
                found,
            });
        }
        let layout = PanelLayout::new(tensor.ty, n_rows, n_cols)
            .map_err(|error| ModelError::Panel { name, error })?;
        let align = match self.in_place {
            Some(_) => usize::try_from(crate::slc::ALIGN).map_err(|_| MemoryError::TooLarge)?,
            None => ALIGN,
        };
        let stride = layout.bytes().next_multiple_of(align);
        let bytes = stride.checked_mul(n_expert);
        let bytes = bytes.ok_or(MemoryError::TooLarge)?;
        let offset = self.place((index, &tensor), name, Layout::Experts, bytes)?;
        let first = MatrixRef::new(&layout, offset, None).with_stride(stride);
        for expert in 0..n_expert {
            placed(
                index,
                &tensor,
                Target::Expert(first.of_expert(expert), expert),
            );
        }
        Ok(first)
    }

    /// A tensor that is looked up row by row.
    fn rows(
        &mut self,
        name: Name,
        shape: [usize; 2],
        placed: Placed<'_, 'a>,
    ) -> Result<RowsRef, ModelError> {
        let (index, tensor) = self.find(&name)?;
        check_shape(&tensor, name, shape)?;
        let layout = PanelLayout::new(tensor.ty, shape[0], shape[1])
            .map_err(|error| ModelError::Panel { name, error })?;
        let row_bytes = layout.gguf_row_bytes();
        let rows = RowsRef {
            ty: layout.ty(),
            offset: self.place((index, &tensor), name, Layout::Raw, shape[0] * row_bytes)?,
            n_rows: shape[0],
            row_bytes,
        };
        placed(index, &tensor, Target::Rows(rows));
        Ok(rows)
    }

    /// A matrix with its optional bias (`name` without `.weight`).
    fn matrix(
        &mut self,
        stem: &Name,
        shape: [usize; 2],
        placed: Placed<'_, 'a>,
    ) -> Result<MatrixRef, ModelError> {
        let name = Name::format(format_args!("{}.weight", stem.as_str()));
        let (index, tensor) = self.find(&name)?;
        check_shape(&tensor, name, shape)?;
        let layout = PanelLayout::new(tensor.ty, shape[0], shape[1])
            .map_err(|error| ModelError::Panel { name, error })?;
        let offset = self.place((index, &tensor), name, Layout::Panels, layout.bytes())?;
        let bias_name = Name::format(format_args!("{}.bias", stem.as_str()));
        let bias = if self.has_bias && self.gguf.tensor(bias_name.as_str()).is_some() {
            Some(self.vector(bias_name, shape[0], placed)?)
        } else {
            None
        };
        let matrix = MatrixRef::new(&layout, offset, bias);
        placed(index, &tensor, Target::Panels(matrix));
        Ok(matrix)
    }

    pub(super) fn layer(
        &mut self,
        c: &ModelConfig,
        i: usize,
        placed: Placed<'_, 'a>,
    ) -> Result<Layer, ModelError> {
        let mut layer = Layer::EMPTY;
        for tensor in c.architecture.family().layer {
            match *tensor {
                Tensor::Norm(part, norm) => {
                    let name = Name::format(format_args!("blk.{i}.{part}.weight"));
                    layer.norms[norm as usize] = self.vector(name, norm.len(c), placed)?;
                }
                Tensor::Matrix(part, parts) => {
                    for (part, parts) in c.fused.instead(parts).unwrap_or(&[(part, parts)]) {
                        let stem = Name::format(format_args!("blk.{i}.{part}"));
                        self.parts(&stem, c, parts, &mut layer, placed)?;
                    }
                }
                Tensor::Experts(part, matrix) => {
                    let stem = Name::format(format_args!("blk.{i}.{part}"));
                    let first = self.experts(&stem, c.n_expert, matrix.shape(c), placed)?;
                    layer.matrices[matrix as usize] = first;
                }
                Tensor::LayerNorm(part, norm) => {
                    let stem = Name::format(format_args!("blk.{i}.{part}"));
                    let vectors = self.layer_norm(&stem, norm.len(c), placed)?;
                    [layer.norms[norm as usize], layer.norm_biases[norm as usize]] = vectors;
                }
                Tensor::OutputNormBefore(first, part, norm) => {
                    let stem = match i {
                        0 => Name::from(first),
                        _ => Name::format(format_args!("blk.{}.{part}", i - 1)),
                    };
                    let vectors = self.layer_norm(&stem, norm.len(c), placed)?;
                    [layer.norms[norm as usize], layer.norm_biases[norm as usize]] = vectors;
                }
            }
        }
        let is_local = match c.window_pattern {
            WindowPattern::Period(0) => true,
            WindowPattern::Period(n) => i % n < n - 1,
            WindowPattern::Listed => {
                arch::is_listed(&Keys::new(self.gguf, c.architecture.name()), i)
            }
        };
        layer.is_local = usize::from(is_local);
        Ok(layer)
    }

    /// A tensor whose rows are those of `parts`, one after the other.
    fn parts(
        &mut self,
        stem: &Name,
        c: &ModelConfig,
        parts: &[arch::Matrix],
        layer: &mut Layer,
        placed: Placed<'_, 'a>,
    ) -> Result<(), ModelError> {
        let n_cols = parts.first().map_or(0, |part| part.shape(c)[1]);
        let n_rows = parts.iter().map(|part| part.shape(c)[0]).sum();
        let whole = self.matrix(stem, [n_rows, n_cols], placed)?;
        let mut first_row = 0usize;
        for part in parts {
            if !first_row.is_multiple_of(PANEL_ROWS) {
                // A panel of rows that belong to two matrices.
                let name = Name::format(format_args!("{}.weight", stem.as_str()));
                return Err(ModelError::PartNotAligned { name, first_row });
            }
            let [n_rows, _] = part.shape(c);
            layer.matrices[*part as usize] = whole.rows(first_row, n_rows);
            first_row += n_rows;
        }
        Ok(())
    }

    /// What is outside of layers: output norm, output layer, embeddings.
    pub(super) fn ends(
        &mut self,
        c: &ModelConfig,
        placed: Placed<'_, 'a>,
    ) -> Result<Ends, ModelError> {
        let family = c.architecture.family();
        let [output_norm, output_norm_bias] = match family.output_norm_of_layer() {
            Some(part) => {
                let stem = Name::format(format_args!("blk.{}.{part}", c.n_layer - 1));
                self.layer_norm(&stem, c.n_embd, placed)?
            }
            None => {
                let weight = self.vector(OUTPUT_NORM.into(), c.n_embd, placed)?;
                [weight, VectorRef::EMPTY]
            }
        };
        let shape = [c.n_vocab, c.n_embd];
        let (output, embedding) = if c.tied_output {
            let output = self.matrix(&"token_embd".into(), shape, placed)?;
            (output, Embedding::Tied)
        } else {
            debug_assert_eq!(OUTPUT, "output.weight");
            let output = self.matrix(&"output".into(), shape, placed)?;
            (
                output,
                Embedding::Rows(self.rows(TOKEN_EMBD.into(), shape, placed)?),
            )
        };
        let (mut positions, mut types) = (None, None);
        if family.has_learned_positions() {
            let shape = [c.n_ctx_train, c.n_embd];
            positions = Some(self.rows(POSITION_EMBD.into(), shape, placed)?);
            let types_name = Name::format(format_args!("{TOKEN_TYPES}.weight"));
            if let Some(tensor) = self.gguf.tensor(types_name.as_str()) {
                let n_types = usize::try_from(tensor.dims[1]).unwrap_or(usize::MAX);
                types = Some(self.matrix(&TOKEN_TYPES.into(), [n_types, c.n_embd], placed)?);
            }
        }
        Ok(Ends {
            output_norm,
            output_norm_bias,
            output,
            embedding,
            positions,
            types,
        })
    }
}

/// Rows and columns as expected, other dimensions 1.
fn check_shape(tensor: &TensorInfo<'_>, name: Name, shape: [usize; 2]) -> Result<(), ModelError> {
    let expected = [shape[0] as u64, shape[1] as u64];
    let found = [tensor.n_rows(), tensor.dims[0]];
    if tensor.dims[2..] != [1, 1] {
        let found = tensor.n_dims;
        return Err(ModelError::TensorDimensions { name, found });
    }
    if found == expected {
        return Ok(());
    }
    Err(ModelError::TensorShape {
        name,
        expected,
        found,
    })
}

/// A tensor to convert. Plain numbers: the table of jobs lies in the caller's bytes.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
struct Job {
    /// Where the tensor starts in the file.
    offset: u64,
    /// What the tensor becomes: 0 panels, 1 a vector, 2 rows.
    kind: usize,
    n_rows: usize,
    row_bytes: usize,
    /// Number of this job's first chunk among all chunks.
    first_chunk: usize,
    /// Index of the tensor in the file, for messages.
    tensor: usize,
    /// Offset in weight memory, of length `len`.
    target: usize,
    len: usize,
    /// For panels: type and shape.
    matrix: MatrixRef,
}

// An even number of words: on 32-bit machines an odd one would be padded.
const _: () = assert!(size_of::<Job>() == 8 + (7 + 11) * size_of::<usize>());
// SAFETY: repr(C) of u64 and `usize` alone, without padding by the assertion above.
unsafe impl Pod for Job {}

/// How far loading is, to be read from another thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LoadProgress {
    /// Bytes of the file converted so far.
    pub done_bytes: u64,
    /// Bytes to convert in all.
    pub total_bytes: u64,
}

/// Places tensors in memory and converts them, in parallel.
#[derive(Debug)]
pub struct Loader<'w, 'a> {
    gguf: Gguf<'a>,
    config: ModelConfig,
    layers: &'w [Layer],
    ends: Ends,
    frequencies: &'w mut [f64],
    memory: Shared<'w, u8>,
    jobs: &'w [Job],
    n_chunks: usize,
    next_chunk: AtomicUsize,
    chunks_done: AtomicUsize,
    /// What is converted lies in memory, so a `usize` counts it.
    done_bytes: AtomicUsize,
    total_bytes: u64,
}

impl<'w, 'a> Loader<'w, 'a> {
    /// Places all tensors. `weights` and `tables` are as large as [`ModelPlan`] says and
    /// aligned to [`crate::memory::ALIGN`]; `weights` must be zeroed (padding stays so).
    ///
    /// # Errors
    /// As [`ModelPlan::new`], and memory that is misaligned or too small.
    pub fn new(
        gguf: &Gguf<'a>,
        config: &ModelConfig,
        weights: &'w mut [u8],
        tables: &'w mut [u8],
    ) -> Result<Self, ModelError> {
        let plan = ModelPlan::new(gguf, config)?;
        let weights = Arena::new(weights)?.bytes(plan.weight_bytes)?;
        let mut arena = Arena::new(tables)?;
        let layers = arena.slice(config.n_layer, Layer::EMPTY)?;
        let jobs = arena.slice(plan.n_jobs, Job::EMPTY)?;
        let frequencies = arena.slice(rope::N_SETS * (config.n_rot / 2), 0f64)?;
        let (mut n, mut n_chunks, mut total_bytes) = (0, 0, 0);
        let mut add = |index, tensor: &TensorInfo<'a>, target| {
            jobs[n] = Job {
                first_chunk: n_chunks,
                ..Job::new(index, tensor, target)
            };
            n_chunks += jobs[n].n_rows.div_ceil(jobs[n].chunk_rows());
            total_bytes += (jobs[n].n_rows * jobs[n].row_bytes) as u64;
            n += 1;
        };
        let mut placer = Placer::new(gguf);
        for (i, layer) in layers.iter_mut().enumerate() {
            *layer = placer.layer(config, i, &mut add)?;
        }
        let ends = placer.ends(config, &mut add)?;
        Ok(Self {
            gguf: *gguf,
            config: *config,
            layers,
            ends,
            frequencies,
            memory: Shared::new(weights),
            jobs,
            n_chunks,
            next_chunk: AtomicUsize::new(0),
            chunks_done: AtomicUsize::new(0),
            done_bytes: AtomicUsize::new(0),
            total_bytes,
        })
    }

    /// How far loading is.
    pub fn progress(&self) -> LoadProgress {
        LoadProgress {
            done_bytes: self.done_bytes.load(Ordering::Relaxed) as u64,
            total_bytes: self.total_bytes,
        }
    }

    /// Converts chunks until none is left or `go_on` says no; any number of threads at once.
    /// `staging` is used where the source is not addressable ([`ModelPlan::staging_bytes`]).
    ///
    /// # Errors
    /// A tensor that could not be read, or holds a norm or bias that is not finite.
    pub fn work(
        &self,
        source: &dyn TensorSource,
        staging: &mut [u8],
        mut go_on: impl FnMut() -> bool,
    ) -> Result<(), ModelError> {
        while go_on() {
            let chunk = self.next_chunk.fetch_add(1, Ordering::Relaxed);
            if chunk >= self.n_chunks {
                break;
            }
            let job = self.jobs.partition_point(|job| job.first_chunk <= chunk) - 1;
            let job = &self.jobs[job];
            let bytes = self.convert(job, chunk - job.first_chunk, source, staging)?;
            self.done_bytes.fetch_add(bytes, Ordering::Relaxed);
            self.chunks_done.fetch_add(1, Ordering::Release);
        }
        Ok(())
    }

    fn name(&self, job: &Job) -> Name {
        let tensor = self.gguf.tensors().nth(job.tensor);
        tensor.map_or("?", |tensor| tensor.name).into()
    }

    /// Converts one chunk of a tensor; returns the bytes of the file it covered.
    fn convert(
        &self,
        job: &Job,
        chunk: usize,
        source: &dyn TensorSource,
        staging: &mut [u8],
    ) -> Result<usize, ModelError> {
        let first = chunk * job.chunk_rows();
        let n_rows = job.chunk_rows().min(job.n_rows - first);
        let (at, len) = (
            job.offset + (first * job.row_bytes) as u64,
            n_rows * job.row_bytes,
        );
        // Another length than asked for would reach into other chunks.
        let rows = match source.slice(at, len).filter(|rows| rows.len() == len) {
            Some(rows) => rows,
            None => {
                let missing = len.saturating_sub(staging.len());
                let small = MemoryError::TooSmall {
                    missing_bytes: missing,
                };
                let staging = staging.get_mut(..len).ok_or(small)?;
                source
                    .read(at, staging)
                    .map_err(|error| ModelError::Source {
                        name: self.name(job),
                        error,
                    })?;
                staging
            }
        };
        if job.kind == Job::PANELS {
            self.pack(job, first, rows);
        } else {
            let start = job.target + first * job.row_bytes;
            // SAFETY: chunks are claimed by one thread each and do not overlap.
            let out = unsafe { self.memory.write(start..start + len) };
            out.copy_from_slice(rows);
            if job.kind == Job::VECTOR && cast_mut::<f32>(out).iter().any(|x| !x.is_finite()) {
                return Err(ModelError::WeightNotFinite {
                    name: self.name(job),
                });
            }
        }
        source.release(at, len);
        Ok(len)
    }

    fn pack(&self, job: &Job, first_row: usize, rows: &[u8]) {
        let layout = job.matrix.layout();
        let mut row_index = first_row;
        for rows in rows.chunks(PANEL_ROWS * job.row_bytes) {
            let bytes = layout.byte_range(layout.band(row_index));
            // SAFETY: chunks are whole bands, claimed by one thread each.
            let band = unsafe {
                self.memory
                    .write(job.target + bytes.start..job.target + bytes.end)
            };
            for row in rows.chunks_exact(job.row_bytes) {
                layout.pack_row(row_index, row, band);
                row_index += 1;
            }
        }
    }

    /// The model, once every chunk is converted.
    ///
    /// # Errors
    /// [`ModelError::NotLoaded`] if [`Self::work`] has not converted everything; an optional
    /// tensor that does not fit.
    pub fn finish(self, source: &dyn TensorSource) -> Result<Model<'w>, ModelError> {
        if self.chunks_done.load(Ordering::Acquire) != self.n_chunks {
            return Err(ModelError::NotLoaded);
        }
        let read = |_, tensor: &TensorInfo<'_>, at: u64, bytes: &mut [u8]| {
            source.read(tensor.offset + at, bytes)
        };
        let has_long = fill_frequencies(&self.gguf, &self.config, read, self.frequencies)?;
        // SAFETY: `self` is consumed: no thread works on the memory any more.
        let memory = unsafe { self.memory.read(0..self.memory.len()) };
        let mut fingerprint = Fingerprint::new(&self.gguf);
        for job in self.jobs {
            fingerprint.add(&memory[job.target..][..job.len]);
        }
        Ok(Model {
            config: self.config,
            layers: self.layers,
            ends: self.ends,
            frequencies: self.frequencies,
            has_long,
            is_long: false,
            memory,
            weight_bytes: memory.len(),
            fingerprint: fingerprint.finish(),
        })
    }
}

/// Computes the rotary frequencies, with the divisors that the file may have; says whether there
/// are some for contexts beyond the original one. `read` fills bytes from an offset of the tensor
/// with an index. `out` holds [`rope::N_SETS`] sets.
pub(super) fn fill_frequencies(
    gguf: &Gguf<'_>,
    config: &ModelConfig,
    read: impl Fn(usize, &TensorInfo<'_>, u64, &mut [u8]) -> Result<(), SourceError>,
    out: &mut [f64],
) -> Result<bool, ModelError> {
    let half = config.n_rot / 2;
    let mut room = [1f32; ROPE_FACTORS_MAX];
    let mut load = |name: &str| {
        let mut tensors = gguf.tensors().enumerate();
        let Some((index, tensor)) = tensors.find(|(_, tensor)| tensor.name == name) else {
            return Ok(None);
        };
        let name = Name::from(name);
        let factors = factors_of(&tensor, name, half, &mut room)?;
        for (at, factor) in (0..).step_by(4).zip(factors.iter_mut()) {
            let mut bytes = [0; 4];
            read(index, &tensor, at, &mut bytes)
                .map_err(|error| ModelError::Source { name, error })?;
            *factor = f32::from_le_bytes(bytes);
            if !(factor.is_normal() && *factor > 0.0) {
                return Err(ModelError::WeightNotFinite { name });
            }
        }
        Ok(Some(room))
    };
    let missing = |name: &str| ModelError::MissingTensor { name: name.into() };
    let short = load(ROPE_FACTORS_SHORT)?;
    let long = load(ROPE_FACTORS_LONG)?;
    let is_needed = config.rope_scaling.kind == RopeScalingKind::LongRope;
    if short.is_none() && (is_needed || long.is_some()) {
        return Err(missing(ROPE_FACTORS_SHORT));
    }
    if long.is_none() && short.is_some() {
        return Err(missing(ROPE_FACTORS_LONG));
    }
    let any = match short {
        Some(short) => Some(short),
        None => load(ROPE_FREQS)?,
    };
    let base = (config.rope_freq_base, config.rope_scaling.factor);
    let local = config.rope_local.map_or(base, |local| {
        let factor = if local.is_scaled { base.1 } else { 1.0 };
        (local.freq_base, factor)
    });
    let sets = [
        (rope::BASE, base, &any),
        (rope::LONG, base, &long),
        (rope::LOCAL, local, &any),
    ];
    for (set, base, factors) in sets {
        let out = &mut out[set * half..(set + 1) * half];
        rope::frequencies(config, base, factors.as_ref().map(|all| &all[..half]), out);
    }
    Ok(long.is_some())
}

/// Room for a tensor of rotary divisors, whose shape and type are checked.
fn factors_of<'r>(
    tensor: &TensorInfo<'_>,
    name: Name,
    len: usize,
    room: &'r mut [f32; ROPE_FACTORS_MAX],
) -> Result<&'r mut [f32], ModelError> {
    check_shape(tensor, name, [1, len])?;
    if tensor.ty != GgmlType::F32 {
        return Err(ModelError::TensorType {
            name,
            expected: GgmlType::F32,
            found: tensor.ty,
        });
    }
    room.get_mut(..len).ok_or(ModelError::NotImplemented {
        what: "more than 256 rotary factors",
        name,
    })
}

/// Rotary factors kept on the stack while frequencies are computed.
const ROPE_FACTORS_MAX: usize = 256;

impl Job {
    const PANELS: usize = 0;
    const VECTOR: usize = 1;
    const ROWS: usize = 2;

    /// A job of nothing, to fill tables with.
    const EMPTY: Self = Self {
        offset: 0,
        n_rows: 0,
        row_bytes: 0,
        first_chunk: 0,
        tensor: 0,
        kind: Self::VECTOR,
        target: 0,
        len: 0,
        matrix: MatrixRef::EMPTY,
    };

    /// The tensor of index `index` in the file.
    fn new(index: usize, tensor: &TensorInfo<'_>, target: Target) -> Self {
        let kind = match target {
            Target::Panels(_) | Target::Expert(..) => Self::PANELS,
            Target::Vector(_) => Self::VECTOR,
            Target::Rows(_) => Self::ROWS,
        };
        let (start, len) = target.range();
        let row_bytes = usize::try_from(tensor.row_bytes()).unwrap_or(usize::MAX);
        let (n_rows, expert) = match target {
            Target::Expert(matrix, expert) => (matrix.layout().n_rows(), expert),
            _ => (usize::try_from(tensor.n_rows()).unwrap_or(usize::MAX), 0),
        };
        Self {
            // The tensor's length bounds the product.
            offset: tensor.offset + (expert * n_rows * row_bytes) as u64,
            n_rows,
            row_bytes,
            tensor: index,
            kind,
            target: start,
            len,
            matrix: match target {
                Target::Panels(matrix) | Target::Expert(matrix, _) => matrix,
                Target::Vector(_) | Target::Rows(_) => MatrixRef::EMPTY,
            },
            ..Self::EMPTY
        }
    }

    /// Rows of a chunk: whole bands, about 512 KiB.
    const fn chunk_rows(&self) -> usize {
        let panels = (512 << 10) / (self.row_bytes * PANEL_ROWS);
        if panels == 0 {
            PANEL_ROWS
        } else {
            panels * PANEL_ROWS
        }
    }
}
