//! Runs a model through core alone, on threads of the test's own: what an embedder does.

use core::sync::atomic::AtomicU32;
use sluice::Team;
use sluice_core::engine::{
    BatchEntry, Engine, EngineError, EngineLimits, EnginePlan, Neurons, Outputs, StepOptions, Wants,
};
use sluice_core::gguf::Gguf;
use sluice_core::gguf::source::SliceSource;
use sluice_core::hash::Hash64;
use sluice_core::kernels::KernelTable;
use sluice_core::model::{Loader, ModelConfig, ModelError, ModelPlan, ModelWeights};
use sluice_core::team::{StopFlag, WaitPolicy};
use std::sync::Once;

/// Zeroed memory aligned to a cache line.
#[derive(Clone, Debug)]
pub struct Aligned {
    lines: Vec<Line>,
    len: usize,
}

#[derive(Clone, Copy, Debug)]
#[repr(C, align(64))]
struct Line([u8; 64]);

impl Aligned {
    /// `len` zero bytes.
    #[must_use]
    pub fn new(len: usize) -> Self {
        Self {
            lines: vec![Line([0; 64]); len.div_ceil(64)],
            len,
        }
    }

    /// The bytes.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: a `Line` is 64 plain bytes, and there are at least `len` of them.
        unsafe { core::slice::from_raw_parts_mut(self.lines.as_mut_ptr().cast(), self.len) }
    }
}

/// Yields the time slice: teams in tests are often larger than the machine.
#[derive(Clone, Copy, Debug)]
pub struct YieldWait;

impl WaitPolicy for YieldWait {
    fn spins(&self) -> u32 {
        50
    }

    fn park(&self, _: &AtomicU32, _: u32) {
        std::thread::yield_now();
    }

    fn wake(&self, _: &AtomicU32) {}
}

/// The kernels under test: `SLUICE_ISA`, else the best of this CPU.
///
/// # Panics
/// If `SLUICE_ISA` names a table that this CPU does not run.
#[must_use]
pub fn table() -> &'static KernelTable {
    let cpu = sluice::host::isa::features();
    match std::env::var("SLUICE_ISA") {
        Ok(name) => KernelTable::by_name(&name, cpu)
            .unwrap_or_else(|| panic!("SLUICE_ISA={name} does not run here")),
        Err(_) => KernelTable::best(cpu),
    }
}

/// The tables under test: the one that `SLUICE_ISA` names, or all that run here. Those that do not
/// are named once, loudly.
///
/// # Panics
/// As [`table`].
#[must_use]
pub fn tables() -> Vec<&'static KernelTable> {
    static NAMED: Once = Once::new();
    if std::env::var_os("SLUICE_ISA").is_some() {
        return vec![table()];
    }
    let tables: Vec<_> = KernelTable::available(sluice::host::isa::features()).collect();
    NAMED.call_once(|| {
        let absent = |name: &&str| tables.iter().all(|table| table.name() != *name);
        for name in KernelTable::names().filter(absent) {
            crate::skipped(&format!(
                "the kernel table {name} does not run on this machine"
            ));
        }
    });
    tables
}

/// A model's weights in memory of its own.
#[derive(Debug)]
pub struct Weights {
    weights: Aligned,
    tables: Aligned,
}

impl Weights {
    /// Memory for the model in `file`.
    ///
    /// # Errors
    /// Whatever is wrong with the file.
    pub fn plan(file: &[u8]) -> Result<Self, ModelError> {
        let gguf = Gguf::parse_with_lanes(file, file.len() as u64)?;
        let plan = ModelPlan::new(&gguf, &ModelConfig::from_gguf(&gguf)?)?;
        Ok(Self::of_plan(&plan))
    }

    /// Memory for the head of that model which predicts a token further, if it has one.
    ///
    /// # Errors
    /// Whatever is wrong with the file.
    pub fn plan_head(file: &[u8]) -> Result<Option<Self>, ModelError> {
        let gguf = Gguf::parse_with_lanes(file, file.len() as u64)?;
        let config = ModelConfig::next_token_head(&gguf)?;
        let plan = config
            .map(|config| ModelPlan::new(&gguf, &config))
            .transpose()?;
        Ok(plan.as_ref().map(Self::of_plan))
    }

    fn of_plan(plan: &ModelPlan) -> Self {
        Self {
            weights: Aligned::new(plan.weight_bytes),
            tables: Aligned::new(plan.table_bytes),
        }
    }

    /// Loads the model on `n_threads` threads.
    ///
    /// # Errors
    /// Whatever is wrong with the file.
    ///
    /// # Panics
    /// If a loading thread panics.
    pub fn load(&mut self, file: &[u8], n_threads: usize) -> Result<ModelWeights<'_>, ModelError> {
        let gguf = Gguf::parse_with_lanes(file, file.len() as u64)?;
        let config = ModelConfig::from_gguf(&gguf)?;
        let loader = self.loaded(file, &gguf, &config, n_threads)?;
        loader.finish(&SliceSource(file))
    }

    /// Loads the head that follows `trunk`, the model of the same file, which has to have one.
    ///
    /// # Errors
    /// Whatever is wrong with the file.
    ///
    /// # Panics
    /// If the file has no head, or a loading thread panics.
    pub fn load_head<'w>(
        &'w mut self,
        file: &[u8],
        trunk: &ModelWeights<'w>,
    ) -> Result<ModelWeights<'w>, ModelError> {
        let gguf = Gguf::parse_with_lanes(file, file.len() as u64)?;
        let config = ModelConfig::next_token_head(&gguf)?.expect("the file has a head");
        let loader = self.loaded(file, &gguf, &config, 2)?;
        loader.finish_head(&SliceSource(file), trunk)
    }

    fn loaded<'a>(
        &mut self,
        file: &[u8],
        gguf: &Gguf<'a>,
        config: &ModelConfig,
        n_threads: usize,
    ) -> Result<Loader<'_, 'a>, ModelError> {
        let (weights, tables) = (self.weights.bytes_mut(), self.tables.bytes_mut());
        let loader = Loader::new(gguf, config, weights, tables)?;
        // Matrices that a file stores by columns are turned in it.
        let staging_bytes = match config.fused.down_by_neuron {
            true => ModelPlan::new(gguf, config)?.staging_bytes,
            false => 0,
        };
        std::thread::scope(|scope| {
            let work = || {
                let mut staging = vec![0; staging_bytes];
                loader.work(&SliceSource(file), &mut staging, || true)
            };
            let threads: Vec<_> = (0..n_threads).map(|_| scope.spawn(work)).collect();
            threads
                .into_iter()
                .try_for_each(|thread| thread.join().expect("loader panicked"))
        })?;
        Ok(loader)
    }
}

/// KV and scratch memory of an engine.
#[derive(Debug)]
pub struct Room {
    kv: Aligned,
    scratch: Aligned,
}

impl Room {
    /// Allocates the room that the plan requires.
    ///
    /// # Errors
    /// EngineLimits out of range.
    pub fn plan(config: &ModelConfig, limits: &EngineLimits) -> Result<Self, EngineError> {
        let plan = EnginePlan::new(config, limits)?;
        Ok(Self {
            kv: Aligned::new(plan.kv_bytes),
            scratch: Aligned::new(plan.scratch_bytes),
        })
    }

    /// An engine in this room.
    ///
    /// # Errors
    /// EngineLimits out of range.
    pub fn engine<'m>(
        &'m mut self,
        model: ModelWeights<'m>,
        table: &'static KernelTable,
        limits: &EngineLimits,
    ) -> Result<Engine<'m>, EngineError> {
        Engine::new(
            model,
            table,
            limits,
            self.kv.bytes_mut(),
            self.scratch.bytes_mut(),
        )
    }
}

/// Runs one step on threads of its own and returns the logits of each entry that wanted them.
///
/// # Errors
/// Any error of the step.
///
/// # Panics
/// If a worker panics.
pub fn step(engine: &mut Engine<'_>, batch: &[BatchEntry]) -> Result<Vec<Vec<f32>>, EngineError> {
    let stop = StopFlag::new();
    let step = engine.step(batch, StepOptions::new(&YieldWait, &stop))?;
    std::thread::scope(|scope| {
        for rank in 1..step.n_workers() {
            let worker = step.join(rank).expect("each rank joins once");
            scope.spawn(|| worker.run());
        }
        // How it ended is what `finish` reports.
        let _ended = step.join(0).expect("rank 0 joins once").run();
    });
    let outputs = step.finish()?;
    Ok((0..batch.len())
        .filter_map(|i| Some(outputs.logits(i)?.to_vec()))
        .collect())
}

/// Entries for `ids` at the end of `sequence`, all of which want logits.
///
/// # Panics
/// If a position does not fit in 32 bits.
#[must_use]
pub fn entries(ids: &[u32], sequence: u32, first_position: usize) -> Vec<BatchEntry> {
    let position = |i: usize| u32::try_from(first_position + i).expect("short sequences");
    ids.iter()
        .enumerate()
        .map(|(i, &id)| BatchEntry::new(id, sequence, position(i), Wants::Logits))
        .collect()
}

/// Logits of every token of one sequence, in steps of `chunk` tokens.
///
/// # Errors
/// Whatever the steps say.
pub fn logits(
    engine: &mut Engine<'_>,
    ids: &[u32],
    chunk: usize,
) -> Result<Vec<Vec<f32>>, EngineError> {
    let stop = StopFlag::new();
    let options = StepOptions::new(&YieldWait, &stop);
    Ok(in_steps(engine, ids, chunk, options)?.0)
}

/// As [`logits`] with options, and the neurons of all steps. Entries have the first adapter of the options, if any.
///
/// # Errors
/// Whatever the steps say.
///
/// # Panics
/// If a worker panics.
pub fn in_steps(
    engine: &mut Engine<'_>,
    ids: &[u32],
    chunk: usize,
    options: StepOptions<'_>,
) -> Result<(Vec<Vec<f32>>, Neurons), EngineError> {
    engine.fit(0, ids.len())?;
    let (mut rows, mut neurons) = (Vec::new(), Neurons::default());
    for (i, ids) in ids.chunks(chunk).enumerate() {
        let mut batch = entries(ids, 0, i * chunk);
        let adapter = (!options.adapters.is_empty()).then_some(0);
        batch.iter_mut().for_each(|entry| entry.adapter = adapter);
        let step = engine.step(&batch, options)?;
        std::thread::scope(|scope| {
            for rank in 0..step.n_workers() {
                let worker = step.join(rank).expect("each rank joins once");
                scope.spawn(|| worker.run());
            }
        });
        let outputs = step.finish()?;
        let of_step = outputs.report().neurons;
        neurons.n += of_step.n;
        neurons.n_skipped += of_step.n_skipped;
        rows.extend((0..ids.len()).filter_map(|i| Some(outputs.logits(i)?.to_vec())));
    }
    Ok((rows, neurons))
}

/// A hash over the bits of logits.
#[must_use]
pub fn hash(rows: &[Vec<f32>]) -> u64 {
    let mut hash = Hash64::new();
    rows.iter().for_each(|row| hash.write_f32(row));
    hash.finish()
}

/// One step of an engine on the threads of `team`.
///
/// # Errors
/// As the step's.
///
/// # Panics
/// If a thread does.
pub fn step_on<'s>(
    team: &Team,
    engine: &'s mut Engine<'_>,
    batch: &'s [BatchEntry],
    options: StepOptions<'s>,
) -> Result<Outputs<'s>, EngineError> {
    let step = engine.step(batch, options)?;
    let ran = team.run(|rank| {
        let worker = step.join(rank).expect("each rank joins once");
        // `finish` returns the reason, which is the same for all ranks.
        let _stopped = worker.run();
    });
    ran.expect("no thread panics");
    step.finish()
}
