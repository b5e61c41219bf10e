//! Loading: every tensor gets its place in the caller's memory, and any number of threads
//! convert them to panels, a chunk at a time.

mod turn;

use super::config::ModelConfig;
use super::error::{ModelError, Name};
use super::frequencies::{fill_frequencies, frequencies_len};
use super::job::Job;
use super::place::{Placer, Residency, Tables};
use super::plan::ModelPlan;
use super::refs::Ends;
use super::rope::LongRope;
use super::weights::{Layer, ModelWeights};
use crate::gguf::source::TensorSource;
use crate::gguf::{Gguf, TensorInfo};
use crate::kernels::bytes::cast_mut;
use crate::kernels::panel::PANEL_ROWS;
use crate::memory::{Arena, MemoryError, Shared};
use core::sync::atomic::{AtomicUsize, Ordering};

/// The progress of loading, readable from another thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LoadProgress {
    /// Bytes of the file converted so far.
    pub done_bytes: u64,
    /// Total bytes to convert.
    pub total_bytes: u64,
}

/// Places tensors in memory and converts them, in parallel.
#[derive(Debug)]
pub struct Loader<'w, 'a> {
    gguf: Gguf<'a>,
    config: ModelConfig,
    has_experts: bool,
    layers: &'w [Layer],
    ends: Ends,
    frequencies: &'w mut [f64],
    memory: Shared<'w, u8>,
    /// The GGUF file, if tables stay in it.
    file: Option<&'w [u8]>,
    jobs: &'w [Job],
    n_chunks: usize,
    next_chunk: AtomicUsize,
    chunks_done: AtomicUsize,
    /// Converted data is in memory, so its size fits a `usize`.
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
        Self::with_plan(gguf, config, &plan, weights, tables)
    }

    /// Places all tensors as a plan of this file says, which also decides what is put into memory.
    ///
    /// # Errors
    /// As [`Self::new`], and [`ModelError::OtherPlan`], also if tables are to stay in the file.
    pub fn with_plan(
        gguf: &Gguf<'a>,
        config: &ModelConfig,
        plan: &ModelPlan,
        weights: &'w mut [u8],
        tables: &'w mut [u8],
    ) -> Result<Self, ModelError> {
        Self::with_file(gguf, config, plan, None, weights, tables)
    }

    /// Places all tensors by a plan, with the bytes of the whole file, in which tables may stay ([`Tables::InFile`]).
    ///
    /// # Errors
    /// As [`Self::new`], and [`ModelError::OtherPlan`].
    pub fn with_file(
        gguf: &Gguf<'a>,
        config: &ModelConfig,
        plan: &ModelPlan,
        file: Option<&'w [u8]>,
        weights: &'w mut [u8],
        tables: &'w mut [u8],
    ) -> Result<Self, ModelError> {
        let file = file.filter(|_| plan.tables == Tables::InFile);
        let tensors_end = gguf
            .tensors()
            .map(|t| t.offset.saturating_add(t.len_bytes))
            .max();
        let has_all = |file: &[u8]| tensors_end.is_none_or(|end| end <= file.len() as u64);
        if plan.tables == Tables::InFile && !file.is_some_and(has_all) {
            return Err(ModelError::OtherPlan);
        }
        let weights = Arena::new(weights)?.bytes(plan.weight_bytes)?;
        let mut arena = Arena::new(tables)?;
        let layers = arena.slice(config.n_layer(), Layer::EMPTY)?;
        let jobs = arena.slice(plan.n_jobs, Job::EMPTY)?;
        let frequencies = arena.slice(frequencies_len(config), 0f64)?;
        let (mut n, mut n_chunks, mut total_bytes) = (0, 0, 0);
        let mut add = |index, tensor: &TensorInfo<'a>, target| {
            let job = Job {
                first_chunk: n_chunks,
                ..Job::new(index, tensor, target)
            };
            n_chunks += job.n_chunks();
            if job.n_chunks() > 0 {
                total_bytes += (job.n_rows * job.row_bytes) as u64;
            }
            if let Some(place) = jobs.get_mut(n) {
                *place = job;
            }
            n += 1;
        };
        let mut placer = Placer::new(gguf, config, plan.residency).with_tables(plan.tables);
        for (i, layer) in layers.iter_mut().enumerate() {
            *layer = placer.layer(config, i, &mut add)?;
        }
        let ends = placer.ends(config, &mut add)?;
        if (n, placer.bytes()) != (plan.n_jobs, plan.weight_bytes) {
            return Err(ModelError::OtherPlan);
        }
        Ok(Self {
            gguf: *gguf,
            config: config.clone(),
            has_experts: plan.residency == Residency::All,
            layers,
            ends,
            frequencies,
            memory: Shared::new(weights),
            file,
            jobs,
            n_chunks,
            next_chunk: AtomicUsize::new(0),
            chunks_done: AtomicUsize::new(0),
            done_bytes: AtomicUsize::new(0),
            total_bytes,
        })
    }

    /// The progress of loading.
    pub fn progress(&self) -> LoadProgress {
        LoadProgress {
            done_bytes: self.done_bytes.load(Ordering::Relaxed) as u64,
            total_bytes: self.total_bytes,
        }
    }

    /// Converts chunks until all are done or `go_on` returns false; any number of threads at once.
    /// `staging` is used if the source is not addressable ([`ModelPlan::staging_bytes`]).
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
        if let Some(ty) = job.stored_type() {
            return self.turn(job, ty, first..first + n_rows, source, staging);
        }
        let (at, len) = (
            job.offset + (first * job.row_bytes) as u64,
            n_rows * job.row_bytes,
        );
        // A length other than requested would overlap other chunks.
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
        if [Job::PANELS, Job::EXPERT].contains(&job.kind) {
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
        let layout = job.layout.get();
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
    /// tensor that does not fit; a head that predicts a token further ([`ModelError::NeedsTrunk`]).
    pub fn finish(self, source: &dyn TensorSource) -> Result<ModelWeights<'w>, ModelError> {
        match self.config.next_token {
            Some(_) => Err(ModelError::NeedsTrunk),
            None => self.finish_any(source),
        }
    }

    /// The head that predicts one more token ([`ModelConfig::next_token_head`]), once every chunk is converted.
    /// `trunk` is the model of the same file: the head reads its embedding and output layer in place, unless
    /// the file has separate ones for the head.
    ///
    /// # Errors
    /// As [`Self::finish`]; a model that is not a head, or another trunk ([`ModelError::OtherTrunk`]).
    pub fn finish_head(
        self,
        source: &dyn TensorSource,
        trunk: &ModelWeights<'w>,
    ) -> Result<ModelWeights<'w>, ModelError> {
        self.finish_any(source)?.behind(trunk)
    }

    fn finish_any(self, source: &dyn TensorSource) -> Result<ModelWeights<'w>, ModelError> {
        if self.chunks_done.load(Ordering::Acquire) != self.n_chunks {
            return Err(ModelError::NotLoaded);
        }
        let read = |_, tensor: &TensorInfo<'_>, at: u64, bytes: &mut [u8]| {
            source.read(tensor.offset + at, bytes)
        };
        let has_long = fill_frequencies(&self.gguf, &self.config, read, self.frequencies)?;
        // SAFETY: `self` is consumed: no thread works on the memory any more.
        let memory = unsafe { self.memory.read(0..self.memory.len()) };
        Ok(ModelWeights {
            config: self.config,
            layers: self.layers,
            ends: self.ends,
            frequencies: self.frequencies,
            has_long,
            longrope: LongRope::ByLength,
            memory,
            output_memory: memory,
            embedding_memory: memory,
            rows_memory: self.file.unwrap_or(memory),
            weight_bytes: memory.len(),
            has_experts: self.has_experts,
        })
    }
}
