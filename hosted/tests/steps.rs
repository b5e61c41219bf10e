//! Loading and steps on real threads: stops and failures.

use core::sync::atomic::{AtomicU64, Ordering};
use sluice::core::engine::{
    BatchEntry, Engine, EngineError, EnginePlan, Limits, StepOptions, Wants,
};
use sluice::core::model::{Model, ModelConfig, ModelPlan};
use sluice::core::team::{Stop, StopFlag};
use sluice::core::trace::{Event, EventRing};
use sluice::file::{LoadMode, ModelFile};
use sluice::host::isa::kernel_table;
use sluice::host::memory::AlignedMemory;
use sluice::host::topology::Cores;
use sluice::host::workers::Workers;
use sluice::load::{LoadError, ModelMemory, load};
use sluice::step::{StepError, run_step};
use std::path::Path;

const MODEL: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/models/tale-5.8m-Q4_K_M.gguf");

const N_WORKERS: usize = 3;

fn limits() -> Limits {
    Limits {
        n_batch: 16,
        ..Limits::single(128, N_WORKERS)
    }
}

fn open() -> (ModelFile, Workers) {
    let file =
        ModelFile::open(Path::new(MODEL), LoadMode::Read).expect("the model is in the crate");
    (
        file,
        Workers::new(N_WORKERS, &Cores::detect()).expect("threads start"),
    )
}

/// Calls `test` with the model of this crate, an engine's memory, and workers.
fn with_model(test: impl FnOnce(Model<'_>, &mut [u8], &mut [u8], &mut Workers)) {
    let (file, mut workers) = open();
    let gguf = file.parse().expect("the header is sound");
    let config = ModelConfig::from_gguf(&gguf).expect("the model is described");
    let plan = ModelPlan::new(&gguf, &config).expect("the model is planned");
    let mut memory = ModelMemory::new(plan, N_WORKERS).expect("there is memory");
    let stop = StopFlag::new();
    let mut seen = 0;
    let progress = |progress: sluice::core::model::LoadProgress| seen = progress.total_bytes;
    let model = load(
        &file,
        &gguf,
        &config,
        &mut memory,
        &mut workers,
        &stop,
        progress,
    )
    .expect("nothing stops loading");
    assert_eq!(
        seen,
        gguf.tensors().map(|tensor| tensor.len_bytes).sum::<u64>()
    );
    let plan = EnginePlan::new(&config, &limits()).expect("the engine is planned");
    let mut kv = AlignedMemory::zeroed(plan.kv_bytes).expect("there is memory");
    let mut scratch = AlignedMemory::zeroed(plan.scratch_bytes).expect("there is memory");
    test(model, &mut kv, &mut scratch, &mut workers);
}

fn entry(position: u32, wants: Wants) -> BatchEntry {
    BatchEntry::new(100 + position, 0, position, wants)
}

/// Logits after one token, by a step that nothing disturbs.
fn first_logits(engine: &mut Engine<'_>, workers: &mut Workers) -> Vec<u32> {
    let (wait, stop) = (*workers.wait_policy(), StopFlag::new());
    let batch = [entry(0, Wants::Logits)];
    let outputs =
        run_step(engine, workers, &batch, StepOptions::new(&wait, &stop)).expect("the step is run");
    outputs
        .logits(0)
        .expect("the entry wants logits")
        .iter()
        .map(|x| x.to_bits())
        .collect()
}

#[test]
fn stops_and_failures_leave_everything_usable() {
    loading_stops_when_asked();
    with_model(|model, kv, scratch, workers| {
        let table = kernel_table(None).expect("some table runs here");
        let mut engine =
            Engine::new(model, table, &limits(), kv, scratch).expect("the engine fits its plan");
        let expected = first_logits(&mut engine, workers);
        engine.kv_mut().clear(0).expect("sequence 0 exists");
        a_failed_worker_leaves_the_cache_as_it_was(&mut engine, workers);
        a_stopped_step_leaves_the_cache_as_it_was(&mut engine, workers);
        assert_eq!(first_logits(&mut engine, workers), expected);
    });
}

fn loading_stops_when_asked() {
    let (file, mut workers) = open();
    let gguf = file.parse().expect("the header is sound");
    let config = ModelConfig::from_gguf(&gguf).expect("the model is described");
    let plan = ModelPlan::new(&gguf, &config).expect("the model is planned");
    let mut memory = ModelMemory::new(plan, N_WORKERS).expect("there is memory");
    let stop = StopFlag::new();
    stop.stop();
    let loaded = load(
        &file,
        &gguf,
        &config,
        &mut memory,
        &mut workers,
        &stop,
        |_| {},
    );
    assert!(matches!(loaded, Err(LoadError::Stopped)), "{loaded:?}");
}

fn a_failed_worker_leaves_the_cache_as_it_was(engine: &mut Engine<'_>, workers: &mut Workers) {
    let (wait, stop) = (*workers.wait_policy(), StopFlag::new());
    // The clock of the event ring is called by every worker: one of them fails in mid-step.
    let calls = AtomicU64::new(0);
    let clock = || {
        let call = calls.fetch_add(1, Ordering::Relaxed);
        assert!(call != 40, "the clock broke");
        call
    };
    let mut events = vec![Event::EMPTY; 3 * 256];
    let ring = EventRing::new(&mut events, N_WORKERS, &clock);
    let mut options = StepOptions::new(&wait, &stop);
    options.trace = Some(&ring);
    let batch = [entry(0, Wants::Logits)];
    let error = run_step(engine, workers, &batch, options).expect_err("a worker fails");
    let StepError::Panicked(panicked) = error else {
        panic!("{error}");
    };
    assert_eq!(panicked.message, "the clock broke");
    assert_eq!(engine.kv().len(0), 0);
}

fn a_stopped_step_leaves_the_cache_as_it_was(engine: &mut Engine<'_>, workers: &mut Workers) {
    let (wait, stop) = (*workers.wait_policy(), StopFlag::new());
    stop.stop();
    let batch = [entry(0, Wants::Logits)];
    let error = run_step(engine, workers, &batch, StepOptions::new(&wait, &stop))
        .expect_err("it is told to stop");
    assert!(matches!(
        error,
        StepError::Engine(EngineError::Stopped(Stop::Cancelled))
    ));
    assert_eq!(engine.kv().len(0), 0);
}
