//! `sluice sparsify`: makes the calibration file of modes that leave neurons out.

#[cfg(feature = "predictors")]
mod predictor;

use crate::flags::reading::{Chunks, Reading, ReadingArgs};
use crate::outcome::{Ending, UsageError};
use crate::ui::output::{TextOutput, note};
use crate::ui::progress::WorkBar;
use anyhow::bail;
use clap::Args;
use core::fmt::Write as _;
use sluice::core::engine::NeuronSignal;
use sluice::evaluate::EvaluateError;
use sluice::file::OutputFile;
use sluice::model::ModelSource;
use sluice::sparse::{SparseFile, SparseMode, default_signal, signal_name, signal_of};
use sluice_make::sparsify::{
    CHUNKS_MIN, SparsifyError, SparsifyGoal, SparsifyPhase, sparsify as calibrate,
};
use std::path::PathBuf;

pub(super) const EXAMPLES: &str = "\
Examples:
  sluice sparsify -m model.gguf -f text.txt
  sluice sparsify -m model.gguf -f text.txt --density 0.5 --signal contribution
  sluice sparsify -m model.gguf -f text.txt --predictor ridge
  sluice run -m model.gguf --sparse threshold -p \"Once upon a time\"";

#[derive(Debug, Args)]
pub(crate) struct SparsifyArgs {
    #[command(flatten)]
    reading: ReadingArgs,
    /// Set the file to write; by default it is found by --sparse
    ///
    /// MODEL.sparse.json next to the model, or MODEL.sparse.gguf for a predictor.
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Set the divergence from the whole model that thresholds may cause, in nats per token [default: 0.01]
    #[arg(long, value_name = "NATS", conflicts_with = "density", value_parser = positive)]
    target_kl: Option<f64>,
    /// Set the share of neurons to keep; for a predictor, the share that counts as active
    #[arg(long, value_name = "SHARE", value_parser = share)]
    density: Option<f64>,
    /// Set what tells how much a neuron matters: gate, product or contribution
    ///
    /// gate is the activated gate, known before up is read. product is the value of the neuron, contribution that times the
    /// norm of its column of down. By default gate where the activation has zeros, else contribution.
    #[arg(long, value_name = "SIGNAL", value_parser = signal)]
    signal: Option<NeuronSignal>,
    /// Make a predictor of active neurons instead: svd, ridge or sign, with a rank if wanted (ridge:128)
    ///
    /// For --sparse predictor. svd fits the weights of gates, ridge what the text makes of them; ridge is refined by logistic
    /// regression where that chooses fewer neurons. sign takes the signs of the weights. Active neurons are those that are
    /// not 0; where the activation has no zeros, the --density share of each token that adds the most. The rank is by
    /// default a 32nd of the model's width. Layers that miss the recall are named and stay dense.
    #[arg(long, value_name = "KIND[:RANK]", conflicts_with_all = ["target_kl", "signal"])]
    predictor: Option<String>,
    /// Set the share of active neurons that a predictor has to choose in each layer [default: 0.95]
    #[arg(long, value_name = "SHARE", requires = "predictor", value_parser = share)]
    recall: Option<f64>,
    /// Overwrite the output file if it exists
    #[arg(long)]
    overwrite: bool,
}

pub(super) fn sparsify(args: &SparsifyArgs) -> anyhow::Result<Ending> {
    args.reading.file()?;
    if args
        .reading
        .sparse()
        .is_some_and(SparseMode::is_approximate)
    {
        let why = "calibration reads the whole model: omit --sparse";
        return Err(UsageError(why.to_owned()).into());
    }
    #[cfg(feature = "predictors")]
    let asked = match args.predictor.as_deref().map(predictor::parse) {
        Some(Err(why)) => return Err(UsageError(format!("--predictor: {why}")).into()),
        Some(Ok(asked)) => Some(asked),
        None => None,
    };
    #[cfg(not(feature = "predictors"))]
    if args.predictor.is_some() || args.recall.is_some() {
        let why = "--predictor: the Python package does not train predictors: use the program";
        return Err(UsageError(why.to_owned()).into());
    }
    let cut = |opened: &ModelSource, len, max: usize| {
        let path = args.reading.file()?;
        let chunks = Chunks::read(opened, path, len, max)?;
        if chunks.texts.len() / len < CHUNKS_MIN {
            let (path, n) = (path.display(), chunks.n_tokens);
            let needed = CHUNKS_MIN * len;
            bail!(
                "{path} has {n} tokens, calibration needs {needed}: {CHUNKS_MIN} chunks of {len} (-c, --chunks)"
            );
        }
        Ok(chunks)
    };
    let Some(mut reading) = args.reading.begin_with(true, cut)? else {
        return Ok(Ending::Interrupted);
    };
    #[cfg(feature = "predictors")]
    if let Some(asked) = asked {
        return predictor::make(args, asked, &mut reading);
    }
    make(args, &mut reading)
}

/// Makes the calibration file.
fn make(args: &SparsifyArgs, reading: &mut Reading) -> anyhow::Result<Ending> {
    let goal = match args.density {
        Some(density) => SparsifyGoal::Density(density),
        None => SparsifyGoal::Divergence(args.target_kl.unwrap_or(TARGET_KL)),
    };
    let model = reading.session.model().clone();
    let path = args.output.clone();
    let path = path.unwrap_or_else(|| SparseFile::next_to(model.name().as_ref()));
    // Before the work, so that it is not in vain.
    let output = OutputFile::create(&path, args.overwrite)?;
    let signal = args
        .signal
        .unwrap_or_else(|| default_signal(model.config()));
    let mut bars: Option<(SparsifyPhase, WorkBar)> = None;
    let progress = |phase, done: usize, total: usize| {
        let name = match phase {
            SparsifyPhase::Counting => "reading",
            SparsifyPhase::Alone => "layers",
            SparsifyPhase::Sharing => "sharing",
            SparsifyPhase::Measuring => "measuring",
        };
        if bars.as_ref().is_none_or(|(of, _)| *of != phase) {
            bars = Some((phase, WorkBar::new(name, total as u64)));
        }
        if let Some((_, bar)) = &mut bars {
            bar.update(done as u64);
        }
    };
    let chunks = reading.chunks.slices();
    let file = match calibrate(&mut reading.session, &chunks, signal, goal, progress) {
        Err(SparsifyError::Read(EvaluateError::Stopped)) => {
            let path = path.display();
            note(format_args!("interrupted; {path} was not written"));
            return Ok(Ending::Interrupted);
        }
        result => result?,
    };
    output.write_at(0, file.to_text().as_bytes())?;
    output.finish()?;
    TextOutput::new().write(&table(&file)?)?;
    let (signal, path) = (signal_name(file.signal), path.display());
    note(format_args!(
        "{path}: {:.1}% of neurons kept by {signal}, from {} chunks of {} tokens",
        100.0 * file.density,
        file.chunks.0,
        file.chunks.1
    ));
    Ok(Ending::Done)
}

/// A line for each layer, and the divergence.
fn table(file: &SparseFile) -> Result<String, core::fmt::Error> {
    let mut table = format!("{:>5} {:>12} {:>9}\n", "layer", "threshold", "kept");
    for (i, (threshold, density)) in file.thresholds.iter().zip(&file.densities).enumerate() {
        writeln!(table, "{i:>5} {threshold:>12.5} {:>8.1}%", 100.0 * density)?;
    }
    if let Some(kl) = file.kl {
        writeln!(table, "divergence {kl:.6} nats per token")?;
    }
    Ok(table)
}

fn positive(text: &str) -> Result<f64, String> {
    let x = text
        .parse()
        .ok()
        .filter(|x: &f64| *x > 0.0 && x.is_finite());
    x.ok_or_else(|| "expected a number above 0".to_owned())
}

fn share(text: &str) -> Result<f64, String> {
    let x = text.parse().ok().filter(|x: &f64| *x > 0.0 && *x <= 1.0);
    x.ok_or_else(|| "expected a share between 0 and 1".to_owned())
}

fn signal(text: &str) -> Result<NeuronSignal, String> {
    signal_of(text).ok_or_else(|| "expected gate, product or contribution".to_owned())
}

/// A divergence that hardly changes a text.
const TARGET_KL: f64 = 0.01;
