//! Loading and steps on real threads: stops and failures.

use core::sync::atomic::{AtomicU64, Ordering};
use sluice::core::engine::{BatchEntry, EngineError, Wants};
use sluice::core::team::{Deadline, Stop, StopFlag};
use sluice::core::trace::{EventRing, TraceEvent};
use sluice::file::LoadMode;
use sluice::host::topology::Cores;
use sluice::model::{LoadError, LoadOptions, ModelSource};
use sluice::session::{StepError, StepHooks};
use sluice::{Limits, Session, Team};
use std::sync::Arc;

const MODEL: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/models/tale-5.8m-Q4_K_M.gguf");

const N_WORKERS: usize = 3;

fn open() -> (ModelSource, Team) {
    let opened = ModelSource::open(MODEL, LoadMode::Read).expect("the model is in the crate");
    let team = Team::new(N_WORKERS, &Cores::detect()).expect("threads start");
    (opened, team)
}

fn session() -> Session {
    let (opened, team) = open();
    let mut seen = 0;
    let mut progress = |progress: sluice::core::model::LoadProgress| seen = progress.total_bytes;
    let options = LoadOptions {
        progress: Some(&mut progress),
        ..LoadOptions::default()
    };
    let model = opened
        .load_with(&team, options)
        .expect("nothing stops loading");
    let tensors = opened.gguf().tensors();
    assert_eq!(seen, tensors.map(|tensor| tensor.len_bytes).sum::<u64>());
    let limits = Limits {
        n_ctx: 128,
        n_batch: 16,
        ..Limits::default()
    };
    model.session_on(&team, limits).expect("there is memory")
}

fn entry(position: u32, wants: Wants) -> BatchEntry {
    BatchEntry::new(100 + position, 0, position, wants)
}

/// Logits after one token, by a step that nothing disturbs.
fn first_logits(session: &mut Session) -> Vec<u32> {
    let batch = [entry(0, Wants::Logits)];
    let logits = session.run(&batch, &StepHooks::default(), |outputs, _| {
        let logits = outputs.logits(0).expect("the entry wants logits");
        logits.iter().map(|x| x.to_bits()).collect()
    });
    logits.expect("the step is run")
}

#[test]
fn stops_and_failures_leave_everything_usable() {
    loading_stops_when_asked();
    let mut session = session();
    let expected = first_logits(&mut session);
    session
        .with_state(|state| state.clear(0))
        .expect("sequence 0 exists");
    a_failed_worker_leaves_the_cache_as_it_was(&mut session);
    a_stopped_step_leaves_the_cache_as_it_was(&mut session);
    a_late_step_leaves_the_cache_as_it_was(&mut session);
    assert_eq!(first_logits(&mut session), expected);
}

fn loading_stops_when_asked() {
    let (opened, team) = open();
    let stop = StopFlag::new();
    stop.stop();
    let options = LoadOptions {
        stop: Some(&stop),
        ..LoadOptions::default()
    };
    let loaded = opened.load_with(&team, options);
    assert!(matches!(loaded, Err(LoadError::Stopped)), "{loaded:?}");
}

fn a_failed_worker_leaves_the_cache_as_it_was(session: &mut Session) {
    // The clock of the event ring is called by every worker: one of them fails in mid-step.
    let calls = AtomicU64::new(0);
    let clock = || {
        let call = calls.fetch_add(1, Ordering::Relaxed);
        assert!(call != 40, "the clock broke");
        call
    };
    let mut events = vec![TraceEvent::EMPTY; 3 * 256];
    let ring = EventRing::new(&mut events, N_WORKERS, &clock);
    let hooks = StepHooks {
        trace: Some(&ring),
        ..StepHooks::default()
    };
    let error = session
        .run(&[entry(0, Wants::Logits)], &hooks, |_, _| ())
        .expect_err("a worker fails");
    let StepError::Panicked(panicked) = error else {
        panic!("{error}");
    };
    assert_eq!(panicked.message, "the clock broke");
    assert_eq!(session.state().len(0), 0);
}

fn a_stopped_step_leaves_the_cache_as_it_was(session: &mut Session) {
    let stop = Arc::new(StopFlag::new());
    session.set_stop(Arc::clone(&stop));
    stop.stop();
    let error = session
        .run(&[entry(0, Wants::Logits)], &StepHooks::default(), |_, _| ())
        .expect_err("stop was requested");
    assert!(error.is_cancelled(), "{error}");
    assert_eq!(session.state().len(0), 0);
    stop.clear();
}

fn a_late_step_leaves_the_cache_as_it_was(session: &mut Session) {
    let clock = || 7;
    let hooks = StepHooks {
        deadline: Some(Deadline {
            clock: &clock,
            ticks: 7,
        }),
        ..StepHooks::default()
    };
    let error = session
        .run(&[entry(0, Wants::Logits)], &hooks, |_, _| ())
        .expect_err("it is late");
    let late = StepError::Engine(EngineError::Stopped(Stop::DeadlinePassed));
    assert_eq!(error.to_string(), late.to_string());
    assert_eq!(session.state().len(0), 0);
}
