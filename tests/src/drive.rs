//! Engines for built models, and steps that report how every rank ended.

use crate::build::{File, Shape};
use crate::run::{self, Aligned, Weights, YieldWait};
use core::time::Duration;
use sluice_core::engine::{
    BatchEntry, Engine, EngineError, EngineLimits, EnginePlan, StepOptions, Wants,
};
use sluice_core::team::{Stop, StopFlag};
use std::sync::mpsc;

/// A model file and memory for its weights.
#[derive(Debug)]
pub struct Bench {
    file: Vec<u8>,
    weights: Weights,
}

impl Bench {
    /// For a shape with random weights.
    #[must_use]
    pub fn new(shape: &Shape) -> Self {
        Self::of(&shape.file())
    }

    /// For a file.
    ///
    /// # Panics
    /// If it is not a model.
    #[must_use]
    pub fn of(file: &File) -> Self {
        Self::of_bytes(&file.bytes())
    }

    /// For a file's bytes.
    ///
    /// # Panics
    /// If they are not a model.
    #[must_use]
    pub fn of_bytes(file: &[u8]) -> Self {
        let weights = Weights::plan(file).expect("a sound model");
        Self {
            file: file.to_vec(),
            weights,
        }
    }

    /// An engine in memory full of `garbage`, while `act` runs.
    ///
    /// # Panics
    /// If the limits are out of range.
    pub fn with_garbage<R>(
        &mut self,
        limits: &EngineLimits,
        garbage: u8,
        act: impl FnOnce(&mut Engine<'_>) -> R,
    ) -> R {
        let model = self.weights.load(&self.file, 1).expect("a sound model");
        let plan = EnginePlan::new(model.config(), limits).expect("sound limits");
        let (mut kv, mut scratch) = (
            Aligned::new(plan.kv_bytes),
            Aligned::new(plan.scratch_bytes),
        );
        let (kv, scratch) = (kv.bytes_mut(), scratch.bytes_mut());
        kv.fill(garbage);
        scratch.fill(garbage);
        let engine = Engine::new(model, run::table(), limits, kv, scratch);
        act(&mut engine.expect("sound limits"))
    }

    /// An engine while `act` runs. Its memory is full of what reads as NaN.
    pub fn with<R>(&mut self, limits: &EngineLimits, act: impl FnOnce(&mut Engine<'_>) -> R) -> R {
        self.with_garbage(limits, 0xff, act)
    }
}

/// What a step gave for each entry.
#[derive(Clone, Debug, PartialEq)]
pub struct Rows {
    /// Logits of entries that wanted them.
    pub logits: Vec<Option<Vec<f32>>>,
    /// Hidden states of entries that wanted them.
    pub hidden: Vec<Option<Vec<f32>>>,
}

/// How a step ended.
#[derive(Debug)]
pub struct EndReason {
    /// What each rank returned, by rank; `None` for one that panicked.
    pub ranks: Vec<Option<Result<(), Stop>>>,
    /// What `finish` returned.
    pub result: Result<Rows, EngineError>,
}

/// Runs a step with a thread for every rank.
///
/// # Errors
/// If the step is refused. How it ended otherwise is in [`EndReason`].
///
/// # Panics
/// If a rank is taken.
pub fn drive(
    engine: &mut Engine<'_>,
    batch: &[BatchEntry],
    options: StepOptions<'_>,
) -> Result<EndReason, EngineError> {
    let step = engine.step(batch, options)?;
    let ranks = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..step.n_workers())
            .map(|rank| {
                let worker = step.join(rank).expect("each rank joins once");
                scope.spawn(|| worker.run())
            })
            .collect();
        let ends = threads.into_iter().map(|thread| thread.join().ok());
        ends.collect()
    });
    let result = step.finish().map(|outputs| Rows {
        logits: rows(batch.len(), |i| outputs.logits(i)),
        hidden: rows(batch.len(), |i| outputs.hidden(i)),
    });
    Ok(EndReason { ranks, result })
}

fn rows<'a>(n: usize, row: impl Fn(usize) -> Option<&'a [f32]>) -> Vec<Option<Vec<f32>>> {
    (0..n).map(|i| row(i).map(<[f32]>::to_vec)).collect()
}

/// The logits of a step that nothing stops, for entries that all want them.
///
/// # Panics
/// If the step fails.
pub fn step_with<'s>(
    engine: &mut Engine<'_>,
    batch: &[BatchEntry],
    change: impl FnOnce(&mut StepOptions<'s>),
) -> Rows {
    static GO: StopFlag = StopFlag::new();
    let mut options = StepOptions::new(&YieldWait, &GO);
    change(&mut options);
    let ended = drive(engine, batch, options).expect("a sound batch");
    ended.result.expect("nothing stops the step")
}

/// Entries for `ids` at the end of a sequence; only the last wants logits.
#[must_use]
pub fn prompt(engine: &Engine<'_>, ids: &[u32], sequence: u32) -> Vec<BatchEntry> {
    let mut entries = run::entries(ids, sequence, engine.state().len(sequence));
    let last = entries.len().saturating_sub(1);
    for entry in &mut entries[..last] {
        entry.wants = Wants::Nothing;
    }
    entries
}

/// Bits of floats, to be compared: NaNs are equal to themselves, zeros differ by sign.
#[must_use]
pub fn bits(row: &[f32]) -> Vec<u32> {
    row.iter().map(|x| x.to_bits()).collect()
}

/// Runs `act` on a thread of its own and fails if it does not end within a minute: a hang is a
/// failure, not a test that never ends.
///
/// # Panics
/// If `act` panics or hangs.
pub fn within_a_minute(act: impl FnOnce() + Send + 'static) {
    let (done, wait) = mpsc::channel();
    let thread = std::thread::spawn(move || {
        act();
        // After a minute the receiver no longer exists.
        let _ = done.send(());
    });
    match wait.recv_timeout(Duration::from_secs(60)) {
        Err(mpsc::RecvTimeoutError::Timeout) => panic!("hangs"),
        // Sent, or dropped by a panic, which `join` passes on.
        _ => thread.join().expect("the test's own thread panicked"),
    }
}
