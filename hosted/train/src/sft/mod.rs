//! Supervised fine-tuning: rows to gradients, gradients to steps, steps to checkpoints and logs.
//!
//! What a step computes is a function of the configuration, the rows and the model: neither threads nor instruction sets,
//! neither the division of its rows into passes nor interruptions change a bit of the adapter.

mod batches;
mod output;
mod record;
mod setup;
mod targets;

use crate::checkpoint::{RunFolder, RunIdentity, TrainerState};
use crate::config::{SftConfig, When};
use crate::data::{Dataset, Example};
use crate::init::initialize;
use crate::optimizer::{AdamW, AdamWOptions};
use crate::run::{PreparedRun, TrainError};
use crate::schedule::LearningRates;
use batches::{Row, passes};
use core::num::NonZeroU64;
use record::{Evaluation, Record, is_due};
use setup::PassLimits;
use sluice::Model;
use sluice::file::LoadMode;
use sluice::identity::Identity;
use sluice::model::ModelSource;
use sluice::training::{TrainedAdapter, Training, TrainingError};
use sluice_core::engine::backward::{BackwardPlan, Loss};
use sluice_core::team::StopFlag;
use std::path::PathBuf;
use std::time::Instant;
use targets::{Target, targets};

/// A run at work.
struct Loop<'c> {
    config: &'c SftConfig,
    model: Model,
    /// The SHA-256 of the model's file, and of another activation where that is set.
    model_hash: Identity,
    training: Training,
    targets: Vec<Target>,
    factors: TrainedAdapter,
    optimizer: AdamW,
    rates: LearningRates,
    rows: Vec<Row<'c>>,
    eval: Vec<Row<'c>>,
    pass: PassLimits,
}

/// What a step was.
#[derive(Clone, Copy, Debug)]
struct Step {
    sums: Loss,
    n_tokens: usize,
    /// The norm of the gradient before it is clipped.
    norm: f64,
    rate: f64,
}

/// Trains an adapter, and returns its folder. `stop` ends the run after the step in progress, with a checkpoint.
///
/// # Errors
/// [`TrainError`].
pub fn train(config: &SftConfig, stop: &StopFlag) -> Result<PathBuf, TrainError> {
    setup::check(config)?;
    let source = ModelSource::open(&config.model.path, LoadMode::Map)?;
    // Before rows are read: they may be many.
    BackwardPlan::check(source.config()).map_err(TrainingError::from)?;
    let prepared = PreparedRun::new(config)?;
    eprintln!("{}", prepared.plan);
    let dataset = &prepared.dataset;
    let order = dataset.order(config);
    let total = config.optimizer.total_steps(order.len());
    let per_epoch = config.optimizer.steps_per_epoch(order.len());
    let folder = RunFolder::open(&config.model.output_dir)?;
    let mut run = Loop::new(config, &source, dataset, total)?;
    let identity = RunIdentity::new(config, dataset, run.model_hash);
    let state = run.resume(&folder, &identity, total)?;
    let mut record = Record::begin(config, &folder, &identity, state, [total, per_epoch])?;
    let evaluates = !run.eval.is_empty() && config.eval.when != When::Never;
    if evaluates && config.eval.on_start && record.state.global_step == 0 {
        run.evaluate(&mut record)?;
    }
    let per_step = config.optimizer.rows_per_step();
    let (mut epoch, mut visits) = (u64::MAX, Vec::new());
    while record.state.global_step < total && !record.has_stopped_early() {
        let step = record.state.global_step;
        if step / per_epoch != epoch {
            epoch = step / per_epoch;
            visits = order.epoch(epoch);
        }
        let first = usize::try_from(step % per_epoch).unwrap_or(usize::MAX) * per_step;
        let visits = &visits[first..(first + per_step).min(visits.len())];
        let rows: Vec<usize> = visits.iter().map(|visit| visit.row as usize).collect();
        let start = Instant::now();
        let done = run.step(step, &rows)?;
        record.step(&done, start.elapsed())?;
        let last = record.state.global_step == total;
        if evaluates && (is_due(config.eval.when, record.place()) || last) {
            run.evaluate(&mut record)?;
        }
        let stops = stop.is_set() && !last;
        if is_due(config.checkpoints.when, record.place()) || stops {
            let checkpoint = run.save(&mut record)?;
            if stops {
                return Err(TrainError::Interrupted { checkpoint });
            }
        }
    }
    run.finish(&mut record)
}

impl<'c> Loop<'c> {
    fn new(
        config: &'c SftConfig,
        source: &ModelSource,
        dataset: &'c Dataset,
        total: u64,
    ) -> Result<Self, TrainError> {
        let team = setup::team(config)?;
        let targets = targets(&config.lora, source.config())?;
        let rows = |examples: &'c [Example]| -> Vec<Row<'c>> {
            let row = |example: &'c Example| Row::new(&example.tokens, &example.labels);
            examples.iter().map(row).collect()
        };
        let (rows, eval) = (rows(&dataset.train), rows(&dataset.eval));
        let longest = rows.iter().chain(&eval).map(Row::len).max().unwrap_or(1);
        let pass = PassLimits::new(config, longest);
        let ranks = targets.iter().map(|target| target.matrix.rank);
        let rank = ranks.max().unwrap_or(1);
        // Before the weights are read: a model that cannot be trained, or has too little memory, is refused at once.
        let limits = setup::limits(config, source.config(), &team, rank, pass)?;
        let model_hash = source.calibrated_fingerprint()?;
        let model = source.load(&team)?;
        if model.is_by_neuron() {
            return Err(TrainError::ByNeuron(config.model.path.clone()));
        }
        let training = Training::new(&model, &team, rank, limits)?;
        let matrices: Vec<_> = targets.iter().map(|target| target.matrix).collect();
        let mut factors = TrainedAdapter::new(&model, &matrices)?;
        let tensors = setup::tensors(&factors, &targets);
        let (init, seed) = (config.lora.init, config.optimizer.seed);
        initialize(init, seed, &tensors, &mut factors.values);
        let mut run = Self {
            config,
            model,
            model_hash,
            training,
            targets,
            factors,
            optimizer: AdamW::new(AdamWOptions::of(config), tensors),
            rates: LearningRates::of(&config.optimizer, total),
            rows,
            eval,
            pass,
        };
        if let Some(path) = &config.model.start_from {
            output::read(&mut run, path)?;
        }
        run.factors.publish()?;
        Ok(run)
    }

    /// Goes on from a checkpoint if the settings name one; the place in the run.
    fn resume(
        &mut self,
        folder: &RunFolder,
        identity: &RunIdentity,
        total: u64,
    ) -> Result<TrainerState, TrainError> {
        let checkpoints = &self.config.checkpoints;
        let fresh = TrainerState {
            max_steps: total,
            ..TrainerState::default()
        };
        let Some(which) = &checkpoints.resume else {
            folder.begin(checkpoints.overwrite)?;
            return Ok(fresh);
        };
        let Some(resumed) = folder.resume(which, identity, &mut self.optimizer)? else {
            folder.begin(checkpoints.overwrite)?;
            return Ok(fresh);
        };
        for damaged in &resumed.damaged {
            eprintln!("{damaged}");
        }
        output::read(self, &resumed.path)?;
        self.factors.publish()?;
        eprintln!("continues {}", resumed.path.display());
        Ok(resumed.state)
    }

    /// One step over these rows.
    fn step(&mut self, step: u64, rows: &[usize]) -> Result<Step, TrainError> {
        let lengths: Vec<_> = rows.iter().map(|row| self.rows[*row].len()).collect();
        let mut sums = Loss::default();
        for range in passes(&lengths, self.pass.rows, self.pass.tokens) {
            let texts = rows[range].iter().map(|row| self.rows[*row].text());
            let texts: Vec<_> = texts.collect();
            self.training
                .accumulate(&texts, &mut self.factors, &mut sums)?;
        }
        let n_labels = u64::try_from(sums.n_labelled)
            .ok()
            .and_then(NonZeroU64::new);
        let (Some(n_labels), true) = (n_labels, sums.sum.is_finite()) else {
            return Err(TrainError::NotFinite { step: step + 1 });
        };
        let rate = self.rates.at(step);
        let TrainedAdapter {
            values, gradients, ..
        } = &mut self.factors;
        let norm = self.optimizer.apply(values, gradients, n_labels, rate)?;
        self.factors.publish()?;
        Ok(Step {
            sums,
            n_tokens: lengths.iter().sum(),
            norm,
            rate,
        })
    }

    /// The loss of the rows for evaluation.
    fn evaluate(&mut self, record: &mut Record<'_>) -> Result<(), TrainError> {
        let start = Instant::now();
        let lengths: Vec<_> = self.eval.iter().map(Row::len).collect();
        let mut sums = Loss::default();
        for range in passes(&lengths, self.pass.rows, self.pass.tokens) {
            let texts: Vec<_> = self.eval[range].iter().map(Row::text).collect();
            self.training.evaluate(&texts, &self.factors, &mut sums)?;
        }
        let is_best = record.evaluation(&Evaluation {
            sums,
            n_rows: lengths.len(),
            time: start.elapsed(),
        })?;
        if is_best && self.config.eval.load_best {
            self.save(record)?;
        }
        Ok(())
    }

    fn save(&self, record: &mut Record<'_>) -> Result<PathBuf, TrainError> {
        output::with_checkpoint(self, record)
    }

    /// Writes the adapter, the best one if the settings ask for it.
    fn finish(&mut self, record: &mut Record<'_>) -> Result<PathBuf, TrainError> {
        if let Some(best) = record.best_checkpoint() {
            output::read(self, &best)?;
        }
        output::write(self)?;
        record.end()?;
        Ok(self.config.model.output_dir.clone())
    }
}
