//! Runs a step and delivers its results: tokens, progress, failures.

use super::entry::Entry;
use super::job::{JobError, Why};
use super::plan::{Plan, Planner};
use super::pool::Pool;
use super::running::Running;
use crate::Log;
use crate::metrics::StepFigures;
use sluice::experts::ExpertStore;
use sluice::sequence::EndReason;
use sluice::session::{GenerateError, TokenEvent};
use std::time::Instant;

/// Computes the step of a plan and delivers its results.
pub(super) fn step(
    plan: &Plan,
    running: &mut Running,
    pool: &mut Pool,
    planner: &mut Planner,
    entry: &Entry,
    log: &Log,
) {
    let start = Instant::now();
    let rows = plan.rows();
    let shares: Vec<usize> = rows.iter().map(|row| row.n_tokens).collect();
    let mut sequences = running.sequences(rows.iter().map(|row| row.run));
    let queues = sequences.iter().map(|sequence| sequence.queue().len());
    let n_writing = queues.filter(|len| *len == 1).count();
    let (events, entered) = match pool.step(&mut sequences, &shares) {
        Ok(stepped) => stepped,
        Err(error) => {
            log(&format!("a step failed: {error}"));
            return fail(plan, running, &error);
        }
    };
    for row in rows {
        if let Some(run) = running.get_mut(row.run) {
            run.send_progress();
        }
    }
    deliver(plan, events, running, pool, entry);
    let time = start.elapsed();
    let n_read = planner.note(&entered, n_writing, time);
    entry.metrics().step(StepFigures {
        n_prompt_tokens: n_read,
        n_decode_tokens: n_writing + entered.n_accepted,
        n_busy: rows.len(),
        neurons: entered.neurons,
        time,
    });
    if let Some(speculation) = pool.session().speculation() {
        entry.metrics().drafted(speculation.figures());
    }
    for row in rows {
        if let Some(run) = running.get_mut(row.run) {
            pool.keep(run.text_mut());
        }
    }
    // The step succeeded, but writing the trace of its experts may have failed.
    let experts = pool.session().model().experts();
    if let Some(error) = experts.and_then(ExpertStore::take_error) {
        log(&format!("warning: {error}"));
    }
}

/// Sends the sampled tokens.
fn deliver(
    plan: &Plan,
    events: Vec<TokenEvent>,
    running: &mut Running,
    pool: &Pool,
    entry: &Entry,
) {
    let tokenizer = pool.session().model().tokenizer();
    for event in events {
        let row = plan.rows()[event.sequence];
        if let Some(run) = running.get_mut(row.run) {
            let sequence = run.text().sequence();
            let is_end = event.ended == Some(EndReason::EndOfText);
            let is_hidden = is_end && sequence.is_hidden_end(event.token, tokenizer);
            run.deliver(event, is_hidden, entry);
        }
    }
    for row in plan.rows() {
        if let Some(run) = running.get_mut(row.run) {
            run.check();
        }
    }
}

/// Handles the failure of a whole step: its texts end.
fn fail(plan: &Plan, running: &mut Running, error: &GenerateError) {
    let step = match error {
        GenerateError::Step(step) => Some(step),
        _ => None,
    };
    let error = JobError::of_step(step, error);
    for row in plan.rows() {
        if let Some(run) = running.get_mut(row.run) {
            run.end(Why::Failed(error.clone()));
        }
    }
}
