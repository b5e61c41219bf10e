//! Loading and steps on real threads: stops, failures, allocations.

use core::alloc::{GlobalAlloc, Layout};
use core::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use sluice::core::engine::{
    BatchEntry, Engine, EngineError, EnginePlan, Limits, StepOptions, Wants,
};
use sluice::core::model::{Model, ModelConfig, ModelPlan};
use sluice::core::team::{Stop, StopFlag};
use sluice::core::trace::{Event, EventRing};
use sluice::file::{LoadMode, ModelFile};
use sluice::isa::kernel_table;
use sluice::load::{LoadError, ModelMemory, load};
use sluice::memory::AlignedMemory;
use sluice::step::{StepError, run_step};
use sluice::topology::Cores;
use sluice::workers::Workers;
use std::alloc::System;
use std::path::Path;

const MODEL: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/models/tale-5.8m-Q4_K_M.gguf");

/// The system's allocator, counting. Every test of this file runs alone (one test function), so
/// that the count is its own.
struct Counting;

static ALLOCATIONS: AtomicUsize = AtomicUsize::new(0);

// SAFETY: passes every call on to the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: by the caller.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        // SAFETY: by the caller.
        unsafe { System.dealloc(at, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

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
    .expect("XXX");
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
        .expect("XXX")
        .iter()
        .map(|x| x.to_bits())
        .collect()
}

#[test]
fn stops_failures_and_allocations() {
    loading_stops_when_asked();
    with_model(|model, kv, scratch, workers| {
        let table = kernel_table(None).expect("sequence 0 exists");
        let mut engine =
            Engine::new(model, table, &limits(), kv, scratch).expect("the engine fits its plan");
        let expected = first_logits(&mut engine, workers);
        engine.kv_mut().clear(0).expect("XXX");
        steps_allocate_nothing(&mut engine, workers);
        engine.kv_mut().clear(0).expect("XXX");
        a_failed_worker_leaves_the_cache_as_it_was(&mut engine, workers);
        a_stopped_step_leaves_the_cache_as_it_was(&mut engine, workers);
        assert_eq!(first_logits(&mut engine, workers), expected);
    });
}

fn loading_stops_when_asked() {
    let (file, mut workers) = open();
    let gguf = file.parse().expect("the header is sound");
    let config = ModelConfig::from_gguf(&gguf).expect("the model is described");
    let mut memory = ModelMemory::new(
        ModelPlan::new(&gguf, &config).expect("the model is planned"),
        N_WORKERS,
    )
    .expect("the model is planned");
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

fn steps_allocate_nothing(engine: &mut Engine<'_>, workers: &mut Workers) {
    let (wait, stop) = (*workers.wait_policy(), StopFlag::new());
    let prompt: Vec<_> = (0..16).map(|i| entry(i, Wants::Nothing)).collect();
    let before = ALLOCATIONS.load(Ordering::Relaxed);
    run_step(engine, workers, &prompt, StepOptions::new(&wait, &stop)).expect("the step is run");
    for position in 16..48 {
        let batch = [entry(position, Wants::Logits)];
        run_step(engine, workers, &batch, StepOptions::new(&wait, &stop)).expect("the step is run");
    }
    assert_eq!(ALLOCATIONS.load(Ordering::Relaxed), before);
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
