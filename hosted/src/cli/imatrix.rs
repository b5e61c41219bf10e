//! `sluice imatrix`: how much each column of each weight matters.

use super::args::EngineArgs;
use super::output::note;
use super::progress::{LoadBar, WorkBar};
use super::text::Chunks;
use super::{Ending, UsageError};
use anyhow::Context as _;
use clap::{Args, value_parser};
use sluice::core::model::{ModelConfig, ModelPlan};
use sluice::evaluate::{EvaluateError, Evaluator};
use sluice::file::{ModelFile, OutputFile};
use sluice::load::{LoadError, ModelMemory, load};
use sluice::quantize::{Collector, ImportanceMatrix};
use sluice::topology::Cores;
use sluice::workers::Workers;
use sluice::{interrupt, isa};
use std::path::PathBuf;

#[derive(Debug, Args)]
pub(super) struct ImatrixArgs {
    /// GGUF file of the model, best in F16, BF16 or F32
    #[arg(short, long, value_name = "FILE")]
    model: PathBuf,
    /// Text for the model to read (UTF-8)
    #[arg(short, long, value_name = "FILE")]
    file: PathBuf,
    /// Importance matrix to write
    #[arg(short, long, value_name = "FILE", default_value = "imatrix.gguf")]
    output: PathBuf,
    /// Importance matrices to add to; may be given more than once
    #[arg(long, value_name = "FILE")]
    in_file: Vec<PathBuf>,
    /// Chunks of the text to read; -1 all
    #[arg(long, value_name = "N", default_value_t = -1, allow_negative_numbers = true,
        value_parser = value_parser!(i64).range(-1..=1 << 24))]
    chunks: i64,
    /// Collect for the output layer too
    #[arg(long)]
    process_output: bool,
    /// Print how the importance of each weight is spread, the most uneven first
    #[arg(long)]
    show_statistics: bool,
    /// Replace the output file, if there is one
    #[arg(long)]
    overwrite: bool,
    #[command(flatten)]
    engine: EngineArgs,
}

pub(super) fn imatrix(args: &ImatrixArgs) -> anyhow::Result<Ending> {
    let stop = interrupt::install().context("cannot handle Ctrl-C")?;
    let table =
        isa::kernel_table(args.engine.isa()).map_err(|error| UsageError(error.to_string()))?;
    let mut matrix = ImportanceMatrix::default();
    for path in &args.in_file {
        matrix.merge(ImportanceMatrix::open(path)?)?;
    }
    let output = OutputFile::create(&args.output, args.overwrite)?;
    let file = ModelFile::open(&args.model, args.engine.load_mode())?;
    let gguf = file.parse()?;
    let of_file = || file.name().to_owned();
    let config = ModelConfig::from_gguf(&gguf).with_context(of_file)?;
    let len = match args.engine.ctx_size {
        0 => 512.min(config.n_ctx_train.max(1)),
        len => len as usize,
    };
    let max = usize::try_from(args.chunks).unwrap_or(usize::MAX);
    let chunks = Chunks::read(&gguf, &args.file, len, max)?;
    let chunks = chunks.slices();

    let cores = Cores::detect();
    let n_workers = args.engine.n_workers(cores.default_workers());
    let mut workers = Workers::new(n_workers, &cores).context("cannot start threads")?;
    let plan = ModelPlan::new(&gguf, &config).with_context(of_file)?;
    let mut memory = ModelMemory::new(plan, n_workers)?;
    let mut bar = LoadBar::new();
    let progress = |progress| bar.update(progress);
    let loaded = load(
        &file,
        &gguf,
        &config,
        &mut memory,
        &mut workers,
        stop,
        progress,
    );
    drop(bar);
    let model = match loaded {
        Err(LoadError::Stopped) => return Ok(Ending::Interrupted),
        result => result?,
    };
    let collector = Collector::new(config.n_layer, args.process_output);
    let mut bar = WorkBar::new("reading", chunks.len() as u64);
    let mut evaluator = Evaluator {
        table,
        workers: &mut workers,
        stop,
    };
    // Logits only of each chunk's last token: to see that there are chunks being done.
    let each = |chunk: usize, _: usize, _: &[f32]| bar.update(chunk as u64 + 1);
    match evaluator.read(model, &chunks, len - 1, Some(&collector), each) {
        Err(EvaluateError::Stopped) => return Ok(Ending::Interrupted),
        result => result?,
    }
    drop(bar);
    collector.add_to(&mut matrix);
    matrix.datasets.push(args.file.display().to_string());
    matrix.chunk_count += u32::try_from(chunks.len()).context("too many chunks")?;
    matrix.chunk_size = u32::try_from(len).context("chunks are too long")?;
    if args.show_statistics {
        super::output::TextOutput::new().write(&statistics(&matrix))?;
    }
    matrix.write(output)?;
    note(format_args!(
        "{}: {} weights from {} chunks of {len} tokens",
        args.output.display(),
        matrix.weights.len(),
        matrix.chunk_count
    ));
    Ok(Ending::Done)
}

/// For each weight: mean and largest importance of its columns, and how many percent of the columns have
/// 90% of it.
fn statistics(matrix: &ImportanceMatrix) -> String {
    let mut rows = Vec::new();
    for (name, weight) in &matrix.weights {
        let n_columns = weight.sums.len() / weight.counts.len();
        let matrices = 0..weight.counts.len();
        let mut all: Vec<f32> = matrices
            .flat_map(|i| weight.columns(i, n_columns))
            .collect();
        all.sort_by(|a, b| b.total_cmp(a));
        let total: f64 = all.iter().map(|&x| f64::from(x)).sum();
        let mut sum = 0.0;
        let most = all.iter().take_while(|&&x| {
            let below = sum < 0.9 * total;
            sum += f64::from(x);
            below
        });
        #[expect(clippy::cast_precision_loss, reason = "two digits are shown")]
        let (n, share) = (
            all.len() as f64,
            100.0 * most.count() as f64 / all.len() as f64,
        );
        rows.push((share, name, total / n, all.first().copied().unwrap_or(0.0)));
    }
    rows.sort_by(|a, b| a.0.total_cmp(&b.0));
    let lines = rows.iter().map(|(share, name, mean, max)| {
        format!("{name:<32} {mean:>12.5} {max:>12.5} {share:>9.1}%\n")
    });
    let head = format!(
        "{:<32} {:>12} {:>12} {:>10}\n",
        "weight", "mean", "max", "90% is in"
    );
    core::iter::once(head).chain(lines).collect()
}
