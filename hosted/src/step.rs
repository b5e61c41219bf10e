//! Running the engine's steps on a team of threads.
#![forbid(unsafe_code)]

use crate::host::workers::{WorkerPanicked, Workers};
use sluice_core::engine::{BatchEntry, Engine, EngineError, Outputs, StepOptions};
use std::time::Instant;

/// Why a step gave no outputs. The KV cache is as before it.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StepError {
    /// It was refused, or stopped.
    #[error(transparent)]
    Engine(EngineError),
    /// A worker panicked; the others have left the step.
    #[error(transparent)]
    Panicked(WorkerPanicked),
}

/// Runs one step with every worker and waits for it. Allocates nothing. How products of few tokens
/// ask for weights is chosen here, whatever [`StepOptions::prefetch`] says: by what was faster
/// before, or as [`Workers::set_prefetch`] has it.
///
/// # Errors
/// [`StepError`].
///
/// # Panics
/// If the engine was made for another number of workers than there are.
pub fn run_step<'s>(
    engine: &'s mut Engine<'_>,
    workers: &mut Workers,
    batch: &'s [BatchEntry],
    mut options: StepOptions<'s>,
) -> Result<Outputs<'s>, StepError> {
    options.prefetch = workers.pace.next(batch.len());
    let start = Instant::now();
    let step = engine.step(batch, options).map_err(StepError::Engine)?;
    assert_eq!(step.n_workers(), workers.count());
    let outcome = workers.run(|rank| {
        if let Some(worker) = step.join(rank) {
            // Why it stopped is what `finish` says, for all ranks the same.
            let _stopped = worker.run();
        }
    });
    outcome.map_err(StepError::Panicked)?;
    let outputs = step.finish().map_err(StepError::Engine)?;
    workers.pace.note(batch.len(), start.elapsed());
    Ok(outputs)
}
