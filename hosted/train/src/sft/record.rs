//! The place of a run, its log, and when something is due.

use super::Step;
use crate::checkpoint::{BestResult, Cursor, RunFolder, RunIdentity, TrainerState};
use crate::config::{Amount, SftConfig, When};
use crate::logs::{LogLine, LogWindow, Metric, Pace, ProgressLine, RunLog};
use crate::run::TrainError;
use core::time::Duration;
use sluice::host::process::peak_memory_bytes;
use sluice_core::engine::backward::Loss;
use std::path::PathBuf;
use std::time::Instant;

/// What is written while a run goes on.
pub(super) struct Record<'r> {
    config: &'r SftConfig,
    pub(super) folder: &'r RunFolder,
    pub(super) identity: &'r RunIdentity,
    pub(super) state: TrainerState,
    log: RunLog,
    /// Steps of the run, and of an epoch.
    steps: [u64; 2],
    pace: Pace,
    start: Instant,
    /// Steps, and their losses, since this process began.
    done: LogWindow,
}

/// An evaluation.
pub(super) struct Evaluation {
    pub(super) sums: Loss,
    pub(super) n_rows: usize,
    pub(super) time: Duration,
}

/// A place in a run: steps taken, steps in all, steps of an epoch.
pub(super) type Place = [u64; 3];

/// Whether something is due after these steps.
pub(super) fn is_due(when: When, [done, total, per_epoch]: Place) -> bool {
    match when {
        When::Never => false,
        When::Steps(amount) => {
            let every = match amount {
                Amount::Count(n) => n,
                share => share.of_all(total),
            };
            done.is_multiple_of(every.max(1))
        }
        When::PerEpoch(n) => {
            // The last of an epoch's n parts ends with it.
            let index = (done - 1) % per_epoch + 1;
            let part = |index: u64| index * n / per_epoch;
            part(index) > part(index - 1)
        }
    }
}

#[expect(clippy::cast_precision_loss, reason = "exact below 2^53")]
const fn exact(n: u64) -> f64 {
    n as f64
}

const fn count(n: usize) -> u64 {
    n as u64
}

impl<'r> Record<'r> {
    pub(super) fn begin(
        config: &'r SftConfig,
        folder: &'r RunFolder,
        identity: &'r RunIdentity,
        mut state: TrainerState,
        steps: [u64; 2],
    ) -> Result<Self, TrainError> {
        let history = core::mem::take(&mut state.log_history);
        let tensorboard = config.logs.tensorboard.as_deref();
        let log = RunLog::begin(folder.path(), tensorboard, history, state.global_step)?;
        Ok(Self {
            config,
            folder,
            identity,
            state,
            log,
            steps,
            pace: Pace::default(),
            start: Instant::now(),
            done: LogWindow::default(),
        })
    }

    pub(super) const fn place(&self) -> Place {
        [self.state.global_step, self.steps[0], self.steps[1]]
    }

    /// Counts a step, and logs it where that is due.
    pub(super) fn step(&mut self, step: &Step, time: Duration) -> Result<(), TrainError> {
        let state = &mut self.state;
        state.global_step += 1;
        let done = state.global_step;
        state.cursor = Cursor {
            epoch: done / self.steps[1],
            index: done % self.steps[1] * count(self.config.optimizer.rows_per_step()),
        };
        state.epoch = exact(done) / exact(self.steps[1]);
        state.n_tokens += count(step.n_tokens);
        let [labels, correct] = [step.sums.n_labelled, step.sums.n_correct].map(count);
        state.window.add(step.sums.sum, labels, correct);
        self.done.add(step.sums.sum, labels, correct);
        self.pace.add(time, count(step.n_tokens), labels);
        let every = self.config.logs.steps.of_all(self.steps[0]).max(1);
        let is_first = done == 1 && self.config.logs.first_step;
        if done.is_multiple_of(every) || is_first || done == self.steps[0] {
            self.log_step(step)?;
        }
        Ok(())
    }

    fn log_step(&mut self, step: &Step) -> Result<(), TrainError> {
        let window = core::mem::take(&mut self.state.window);
        let pace = core::mem::take(&mut self.pace);
        let loss = window.mean_loss().unwrap_or(f64::NAN);
        let (done, total) = (self.state.global_step, self.steps[0]);
        let line = ProgressLine {
            steps: [done, total],
            epoch: self.state.epoch,
            loss,
            grad_norm: step.norm,
            learning_rate: step.rate,
            pace,
            memory_bytes: peak_memory_bytes(),
            eta: pace.time_for(total - done),
        };
        eprintln!("{line}");
        let accuracy = window.accuracy().unwrap_or(f64::NAN);
        self.add(vec![
            (Metric::Loss, loss),
            (Metric::GradNorm, step.norm),
            (Metric::LearningRate, step.rate),
            (Metric::NumTokens, exact(self.state.n_tokens)),
            (Metric::MeanTokenAccuracy, accuracy),
        ])
    }

    fn add(&mut self, values: Vec<(Metric, f64)>) -> Result<(), TrainError> {
        Ok(self.log.add(&LogLine {
            step: self.state.global_step,
            epoch: self.state.epoch,
            values,
        })?)
    }

    /// Logs an evaluation; whether it is the best so far.
    pub(super) fn evaluation(&mut self, evaluation: &Evaluation) -> Result<bool, TrainError> {
        let n = exact(count(evaluation.sums.n_labelled));
        let loss = evaluation.sums.sum / n;
        let accuracy = exact(count(evaluation.sums.n_correct)) / n;
        let seconds = evaluation.time.as_secs_f64();
        eprintln!(
            "step {}/{} eval_loss {loss:.4} accuracy {accuracy:.3}",
            self.state.global_step, self.steps[0]
        );
        self.add(vec![
            (Metric::EvalLoss, loss),
            (Metric::EvalMeanTokenAccuracy, accuracy),
            (Metric::EvalRuntime, seconds),
            (
                Metric::EvalSamplesPerSecond,
                exact(count(evaluation.n_rows)) / seconds,
            ),
        ])?;
        let settings = &self.config.eval;
        let is_loss = settings.metric == "eval_loss";
        let metric = if is_loss { loss } else { accuracy };
        let better = |best: &BestResult| {
            let gain = if is_loss {
                best.metric - metric
            } else {
                metric - best.metric
            };
            gain > settings.threshold
        };
        let is_best = self.state.best.as_ref().is_none_or(better);
        if is_best {
            self.state.n_worse = 0;
            self.state.best = Some(BestResult {
                metric,
                step: self.state.global_step,
                // It is saved next, where the run is to end with it.
                checkpoint: settings
                    .load_best
                    .then(|| format!("checkpoint-{}", self.state.global_step)),
            });
        } else {
            self.state.n_worse += 1;
        }
        Ok(is_best)
    }

    /// The checkpoint of the best evaluation, where the run is to end with it.
    pub(super) fn best_checkpoint(&self) -> Option<PathBuf> {
        let best = self
            .state
            .best
            .as_ref()
            .filter(|_| self.config.eval.load_best)?;
        Some(self.folder.path().join(best.checkpoint.as_ref()?))
    }

    /// Whether evaluations have not become better for as long as the settings allow.
    pub(super) fn has_stopped_early(&self) -> bool {
        let patience = self.config.eval.patience;
        let is_over = patience.is_some_and(|patience| self.state.n_worse >= patience.max(1));
        if is_over {
            eprintln!(
                "stopped early: no better evaluation in {} of them",
                self.state.n_worse
            );
        }
        is_over
    }

    /// The state for a checkpoint.
    pub(super) fn checkpoint_state(&self) -> TrainerState {
        TrainerState {
            log_history: self.log.history().to_vec(),
            ..self.state.clone()
        }
    }

    /// Draws the curves, after a checkpoint.
    pub(super) fn draw(&self) -> Result<(), TrainError> {
        Ok(self.log.draw()?)
    }

    /// The last line.
    pub(super) fn end(&mut self) -> Result<(), TrainError> {
        let seconds = self.start.elapsed().as_secs_f64();
        let steps = exact(self.done.n_steps);
        let rows = exact(count(self.config.optimizer.rows_per_step()));
        let loss = self.done.mean_loss().unwrap_or(f64::NAN);
        self.add(vec![
            (Metric::TrainRuntime, seconds),
            (Metric::TrainSamplesPerSecond, steps * rows / seconds),
            (Metric::TrainStepsPerSecond, steps / seconds),
            (Metric::TrainLoss, loss),
        ])?;
        self.draw()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_due_is_due_at_the_ends_of_parts() {
        let due = |when| -> Vec<u64> {
            (1..=20)
                .filter(|done| is_due(when, [*done, 20, 10]))
                .collect()
        };
        assert!(due(When::Never).is_empty());
        assert_eq!(due(When::Steps(Amount::Count(7))), [7, 14]);
        assert_eq!(due(When::Steps(Amount::Share(0.25))), [5, 10, 15, 20]);
        assert_eq!(due(When::PerEpoch(1)), [10, 20]);
        assert_eq!(due(When::PerEpoch(3)), [4, 7, 10, 14, 17, 20]);
    }
}
