//! Loading: every tensor gets its place in the caller's memory, and any number of threads
//! convert them to panels, a chunk at a time.

use super::arch::{OUTPUT, OUTPUT_NORM, ROPE_FREQS, TOKEN_EMBD};
use super::config::ModelConfig;
use super::error::{ModelError, Name};
use super::rope::{self, Rope};
use super::weights::{Embedding, Layer, MatrixRef, Model, RowsRef, VectorRef};
use crate::gguf::source::TensorSource;
use crate::gguf::{Gguf, TensorInfo};
use crate::hash::Hash64;
use crate::kernels::GgmlType;
use crate::kernels::bytes::cast_mut;
use crate::kernels::panel::{PANEL_ROWS, PanelLayout};
use crate::memory::{Arena, MemoryPlan, Shared};
use core::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

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
}

impl ModelPlan {
    /// Sizes for the model `config` in `gguf`. Arithmetic on the header; checks that every
    /// tensor is there with the right shape and a type that has kernels.
    ///
    /// # Errors
    /// The first tensor that is missing or does not fit, by name.
    pub fn new(gguf: &Gguf<'_>, config: &ModelConfig) -> Result<Self, ModelError> {
        let mut placer = Placer {
            gguf,
            plan: MemoryPlan::new(),
        };
        let mut staging_bytes = 0;
        let mut n_tensors = 0;
        for i in 0..config.n_layer {
            placer.layer(config, i, &mut |tensor, _| {
                n_tensors += 1;
                staging_bytes = staging_bytes.max(chunk_bytes(tensor));
            })?;
        }
        placer.ends(config, &mut |tensor, _| {
            n_tensors += 1;
            staging_bytes = staging_bytes.max(chunk_bytes(tensor));
        })?;
        let mut tables = MemoryPlan::new();
        tables.slice::<Layer>(config.n_layer)?;
        tables.slice::<Job>(n_tensors)?;
        tables.slice::<f64>(config.n_rot / 2)?;
        Ok(Self {
            weight_bytes: placer.plan.bytes(),
            table_bytes: tables.bytes(),
            staging_bytes,
        })
    }
}

/// Bytes of the file that one call of the conversion reads: 16 rows of a matrix at least.
fn chunk_bytes(tensor: &TensorInfo<'_>) -> usize {
    chunk_rows(tensor) * usize::try_from(tensor.row_bytes()).unwrap_or(usize::MAX / 2)
}

/// Rows of a chunk: whole panels, about 512 KiB.
fn chunk_rows(tensor: &TensorInfo<'_>) -> usize {
    let panel_bytes = tensor.row_bytes().saturating_mul(PANEL_ROWS as u64).max(1);
    let panels = ((512 << 10) / panel_bytes).max(1);
    usize::try_from(panels).unwrap_or(1) * PANEL_ROWS
}

/// What a tensor becomes.
#[derive(Clone, Copy, Debug)]
enum Target {
    Panels(MatrixRef),
    Vector(VectorRef),
    Rows(RowsRef),
}

/// Gives every tensor its offset, always in the same order.
struct Placer<'g, 'a> {
    gguf: &'g Gguf<'a>,
    plan: MemoryPlan,
}

/// Told of every tensor and what it becomes.
type Placed<'c, 'a> = &'c mut dyn FnMut(&TensorInfo<'a>, Target);

impl<'a> Placer<'_, 'a> {
    fn find(&self, name: &Name) -> Result<TensorInfo<'a>, ModelError> {
        self.gguf
            .tensor(name.as_str())
            .ok_or(ModelError::MissingTensor { name: *name })
    }

    fn vector(
        &mut self,
        name: Name,
        len: usize,
        placed: Placed<'_, 'a>,
    ) -> Result<VectorRef, ModelError> {
        let tensor = self.find(&name)?;
        check_shape(&tensor, name, [1, len])?;
        if tensor.ty != GgmlType::F32 {
            return Err(ModelError::TensorType {
                name,
                expected: GgmlType::F32,
                found: tensor.ty,
            });
        }
        let vector = VectorRef {
            offset: self.plan.bytes(),
            len,
        };
        self.plan.slice::<f32>(len)?;
        placed(&tensor, Target::Vector(vector));
        Ok(vector)
    }

    /// A matrix with its optional bias (`name` without `.weight`).
    fn matrix(
        &mut self,
        stem: &Name,
        shape: [usize; 2],
        placed: Placed<'_, 'a>,
    ) -> Result<MatrixRef, ModelError> {
        let name = Name::format(format_args!("{}.weight", stem.as_str()));
        let tensor = self.find(&name)?;
        check_shape(&tensor, name, shape)?;
        let layout = PanelLayout::new(tensor.ty, shape[0], shape[1])
            .map_err(|error| ModelError::Panel { name, error })?;
        let offset = self.plan.bytes();
        self.plan.slice::<u8>(layout.bytes())?;
        let bias_name = Name::format(format_args!("{}.bias", stem.as_str()));
        let bias = match self.gguf.tensor(bias_name.as_str()) {
            Some(_) => Some(self.vector(bias_name, shape[0], placed)?),
            None => None,
        };
        let matrix = MatrixRef {
            layout,
            offset,
            bias,
        };
        placed(&tensor, Target::Panels(matrix));
        Ok(matrix)
    }

    fn layer(
        &mut self,
        c: &ModelConfig,
        i: usize,
        placed: Placed<'_, 'a>,
    ) -> Result<Layer, ModelError> {
        let stem = |part: &str| Name::format(format_args!("blk.{i}.{part}"));
        let norm = |part: &str| Name::format(format_args!("blk.{i}.{part}.weight"));
        let (q, kv) = (c.n_head * c.head_dim_k, c.n_head_kv);
        Ok(Layer {
            attn_norm: self.vector(norm("attn_norm"), c.n_embd, placed)?,
            attn_q: self.matrix(&stem("attn_q"), [q, c.n_embd], placed)?,
            attn_k: self.matrix(&stem("attn_k"), [kv * c.head_dim_k, c.n_embd], placed)?,
            attn_v: self.matrix(&stem("attn_v"), [kv * c.head_dim_v, c.n_embd], placed)?,
            attn_output: self.matrix(
                &stem("attn_output"),
                [c.n_embd, c.n_embd_attention()],
                placed,
            )?,
            ffn_norm: self.vector(norm("ffn_norm"), c.n_embd, placed)?,
            ffn_gate: self.matrix(&stem("ffn_gate"), [c.n_ff, c.n_embd], placed)?,
            ffn_up: self.matrix(&stem("ffn_up"), [c.n_ff, c.n_embd], placed)?,
            ffn_down: self.matrix(&stem("ffn_down"), [c.n_embd, c.n_ff], placed)?,
        })
    }

    /// What is outside of layers: output norm, output layer, embedding.
    fn ends(
        &mut self,
        c: &ModelConfig,
        placed: Placed<'_, 'a>,
    ) -> Result<(VectorRef, MatrixRef, Embedding), ModelError> {
        let output_norm = self.vector(OUTPUT_NORM.into(), c.n_embd, placed)?;
        if c.tied_output {
            let output = self.matrix(&"token_embd".into(), [c.n_vocab, c.n_embd], placed)?;
            return Ok((output_norm, output, Embedding::Tied));
        }
        debug_assert_eq!(OUTPUT, "output.weight");
        let output = self.matrix(&"output".into(), [c.n_vocab, c.n_embd], placed)?;
        let name = Name::from(TOKEN_EMBD);
        let tensor = self.find(&name)?;
        check_shape(&tensor, name, [c.n_vocab, c.n_embd])?;
        let layout = PanelLayout::new(tensor.ty, c.n_vocab, c.n_embd)
            .map_err(|error| ModelError::Panel { name, error })?;
        let rows = RowsRef {
            ty: layout.ty(),
            offset: self.plan.bytes(),
            n_rows: c.n_vocab,
            row_bytes: layout.gguf_row_bytes(),
        };
        self.plan.slice::<u8>(rows.n_rows * rows.row_bytes)?;
        placed(&tensor, Target::Rows(rows));
        Ok((output_norm, output, Embedding::Rows(rows)))
    }
}

/// Rows and columns as expected, other dimensions 1.
fn check_shape(tensor: &TensorInfo<'_>, name: Name, shape: [usize; 2]) -> Result<(), ModelError> {
    let expected = [shape[0] as u64, shape[1] as u64];
    let found = [tensor.n_rows(), tensor.dims[0]];
    if found == expected && tensor.dims[2..] == [1, 1] {
        return Ok(());
    }
    Err(ModelError::TensorShape {
        name,
        expected,
        found,
    })
}

/// A tensor to convert.
#[derive(Clone, Copy, Debug)]
struct Job {
    target: Target,
    offset: u64,
    n_rows: usize,
    row_bytes: usize,
    chunk_rows: usize,
    /// Number of this job's first chunk among all chunks.
    first_chunk: usize,
    /// Index of the tensor in the file, for messages.
    tensor: u32,
}

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
    output: MatrixRef,
    output_norm: VectorRef,
    embedding: Embedding,
    frequencies: &'w mut [f64],
    memory: Shared<'w, u8>,
    jobs: &'w [Job],
    n_chunks: usize,
    next_chunk: AtomicUsize,
    chunks_done: AtomicUsize,
    done_bytes: AtomicU64,
    total_bytes: u64,
}

impl<'w, 'a> Loader<'w, 'a> {
    /// Places all tensors. `weights` and `tables` are as large as [`ModelPlan`] says and
    /// aligned to [`crate::memory::ALIGN`]; `weights` must be zeroed (padding rows stay so).
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
        let mut placer = Placer {
            gguf,
            plan: MemoryPlan::new(),
        };
        let mut first_layer = None;
        let mut n_jobs = 0;
        // The shape of a layer, to fill the tables with before they are written.
        let mut probe = Placer {
            gguf,
            plan: MemoryPlan::new(),
        };
        for i in 0..config.n_layer {
            let layer = probe.layer(config, i, &mut |_, _| n_jobs += 1)?;
            first_layer.get_or_insert(layer);
        }
        let mut last_job = None;
        let (output_norm, output, embedding) = probe.ends(config, &mut |tensor, target| {
            n_jobs += 1;
            last_job = Some(Job::new(tensor, target));
        })?;
        let (Some(layer), Some(job)) = (first_layer, last_job) else {
            return Err(ModelError::NoTensors);
        };
        let mut arena = Arena::new(tables)?;
        let layers = arena.slice(config.n_layer, layer)?;
        let jobs = arena.slice(n_jobs, job)?;
        let frequencies = arena.slice(config.n_rot / 2, 0f64)?;
        let (mut n, mut n_chunks, mut total_bytes) = (0, 0, 0);
        let mut add = |tensor: &TensorInfo<'a>, target| {
            jobs[n] = Job {
                first_chunk: n_chunks,
                ..Job::new(tensor, target)
            };
            n_chunks += jobs[n].n_rows.div_ceil(jobs[n].chunk_rows);
            total_bytes += tensor.len_bytes;
            n += 1;
        };
        for (i, layer) in layers.iter_mut().enumerate() {
            *layer = placer.layer(config, i, &mut add)?;
        }
        placer.ends(config, &mut add)?;
        for (i, tensor) in gguf.tensors().enumerate() {
            for job in jobs.iter_mut().filter(|job| job.offset == tensor.offset) {
                job.tensor = u32::try_from(i).unwrap_or(u32::MAX);
            }
        }
        Ok(Self {
            gguf: *gguf,
            config: *config,
            layers,
            output,
            output_norm,
            embedding,
            frequencies,
            memory: Shared::new(weights),
            jobs,
            n_chunks,
            next_chunk: AtomicUsize::new(0),
            chunks_done: AtomicUsize::new(0),
            done_bytes: AtomicU64::new(0),
            total_bytes,
        })
    }

    /// How far loading is.
    pub fn progress(&self) -> LoadProgress {
        LoadProgress {
            done_bytes: self.done_bytes.load(Ordering::Relaxed),
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
            self.done_bytes.fetch_add(bytes as u64, Ordering::Relaxed);
            self.chunks_done.fetch_add(1, Ordering::Release);
        }
        Ok(())
    }

    fn name(&self, job: &Job) -> Name {
        let tensor = self.gguf.tensors().nth(job.tensor as usize);
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
        let first = chunk * job.chunk_rows;
        let n_rows = job.chunk_rows.min(job.n_rows - first);
        let (at, len) = (
            job.offset + (first * job.row_bytes) as u64,
            n_rows * job.row_bytes,
        );
        let rows = match source.slice(at, len) {
            Some(rows) => rows,
            None => {
                let missing = len.saturating_sub(staging.len());
                let small = crate::memory::MemoryError::TooSmall {
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
        match &job.target {
            Target::Panels(matrix) => self.pack(matrix, first, job.row_bytes, rows),
            Target::Vector(vector) => {
                // SAFETY: each chunk is claimed by one thread, and this is the vector's only one.
                let out = unsafe { self.memory.write(vector.offset..vector.offset + len) };
                out.copy_from_slice(rows);
                if cast_mut::<f32>(out).iter().any(|x| !x.is_finite()) {
                    return Err(ModelError::WeightNotFinite {
                        name: self.name(job),
                    });
                }
            }
            Target::Rows(target) => {
                let start = target.offset + first * target.row_bytes;
                // SAFETY: chunks are claimed by one thread each and do not overlap.
                unsafe { self.memory.write(start..start + len) }.copy_from_slice(rows);
            }
        }
        source.release(at, len);
        Ok(len)
    }

    fn pack(&self, matrix: &MatrixRef, first_row: usize, row_bytes: usize, rows: &[u8]) {
        let panel_bytes = matrix.layout.panel_bytes();
        for (i, rows) in rows.chunks(PANEL_ROWS * row_bytes).enumerate() {
            let start = matrix.offset + (first_row / PANEL_ROWS + i) * panel_bytes;
            // SAFETY: chunks are whole panels, claimed by one thread each.
            let panel = unsafe { self.memory.write(start..start + panel_bytes) };
            for (lane, row) in rows.chunks_exact(row_bytes).enumerate() {
                matrix.layout.pack_row(lane, row, panel);
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
        let factors = self.rope_factors(source)?;
        let factors = factors
            .as_ref()
            .map(|factors| &factors[..self.frequencies.len()]);
        rope::frequencies(&self.config, factors, self.frequencies);
        // SAFETY: `self` is consumed: no thread works on the memory any more.
        let memory = unsafe { self.memory.read(0..self.memory.len()) };
        let mut hash = Hash64::new();
        hash.write(self.gguf.header_bytes());
        for job in self.jobs {
            let (start, len) = job.target.range();
            hash.write(&memory[start..][..len.min(256)]);
            hash.write(&memory[start + len - len.min(256)..][..len.min(256)]);
        }
        Ok(Model {
            config: self.config,
            layers: self.layers,
            output: self.output,
            output_norm: self.output_norm,
            embedding: self.embedding,
            rope: Rope::new(self.frequencies, self.config.rope_pairing),
            memory,
            fingerprint: hash.finish(),
        })
    }

    /// Divisors of the rotary frequencies, where the file has them.
    fn rope_factors(
        &self,
        source: &dyn TensorSource,
    ) -> Result<Option<[f32; ROPE_FACTORS_MAX]>, ModelError> {
        let name = Name::from(ROPE_FREQS);
        let Some(tensor) = self.gguf.tensor(ROPE_FREQS) else {
            return Ok(None);
        };
        let len = self.config.n_rot / 2;
        check_shape(&tensor, name, [1, len])?;
        if tensor.ty != GgmlType::F32 {
            return Err(ModelError::TensorType {
                name,
                expected: GgmlType::F32,
                found: tensor.ty,
            });
        }
        if len > ROPE_FACTORS_MAX {
            return Err(ModelError::NotImplemented {
                what: "more than 256 rotary factors",
                name,
            });
        }
        let mut factors = [1f32; ROPE_FACTORS_MAX];
        for (i, factor) in factors[..len].iter_mut().enumerate() {
            let mut bytes = [0; 4];
            source
                .read(tensor.offset + 4 * i as u64, &mut bytes)
                .map_err(|error| ModelError::Source { name, error })?;
            *factor = f32::from_le_bytes(bytes);
            if !(factor.is_normal() && *factor > 0.0) {
                return Err(ModelError::WeightNotFinite { name });
            }
        }
        Ok(Some(factors))
    }
}

/// Rotary factors kept on the stack while frequencies are computed.
const ROPE_FACTORS_MAX: usize = 256;

impl Job {
    fn new(tensor: &TensorInfo<'_>, target: Target) -> Self {
        let row_bytes = usize::try_from(tensor.row_bytes()).unwrap_or(usize::MAX);
        let n_rows = usize::try_from(tensor.n_rows()).unwrap_or(usize::MAX);
        let chunk_rows = chunk_rows(tensor);
        Self {
            target,
            offset: tensor.offset,
            n_rows,
            row_bytes,
            chunk_rows,
            first_chunk: 0,
            tensor: 0,
        }
    }
}

impl Target {
    /// Offset and length in weight memory.
    const fn range(&self) -> (usize, usize) {
        match self {
            Self::Panels(matrix) => (matrix.offset, matrix.layout.bytes()),
            Self::Vector(vector) => (vector.offset, 4 * vector.len),
            Self::Rows(rows) => (rows.offset, rows.n_rows * rows.row_bytes),
        }
    }
}
