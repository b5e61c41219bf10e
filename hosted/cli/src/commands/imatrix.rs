//! `sluice imatrix`: measures the importance of each column of each weight.

use crate::flags::reading::{Reading, ReadingArgs};
use crate::outcome::{Ending, UsageError};
use crate::ui::output::{TextOutput, note};
use crate::ui::progress::WorkBar;
use anyhow::{Context as _, bail};
use clap::{Args, ValueEnum};
use sluice::evaluate::EvaluateError;
use sluice::file::{OutputError, OutputFile};
use sluice::neurons::NeuronOrder;
use sluice_make::quantize::{Collector, ImportanceFormat, ImportanceMatrix};
use std::path::{Path, PathBuf};

#[derive(Debug, Args)]
pub(crate) struct ImatrixArgs {
    #[command(flatten)]
    reading: ReadingArgs,
    /// Set the importance matrix to write; by default imatrix.gguf
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Set the format of the output
    ///
    /// By default dat for a name that ends in .dat, else gguf.
    #[arg(long, value_name = "FORMAT")]
    output_format: Option<OutputFormat>,
    /// Add to this importance matrix; may be repeated
    ///
    /// Without -f, no model is loaded: the matrices are added up.
    #[arg(long, value_name = "FILE")]
    in_file: Vec<PathBuf>,
    /// Collect for the output layer as well
    #[arg(long)]
    process_output: bool,
    /// Print how the importance of each weight is spread, most uneven first
    ///
    /// With --in-file and without -f and -o, nothing is written.
    #[arg(long)]
    show_statistics: bool,
    /// Overwrite the output file if it exists
    #[arg(long)]
    overwrite: bool,
}

/// The names that llama-imatrix has for its formats.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum OutputFormat {
    Gguf,
    Dat,
}

impl ImatrixArgs {
    fn format(&self) -> ImportanceFormat {
        let is_dat = |path: &PathBuf| path.extension().is_some_and(|end| end == "dat");
        match self.output_format {
            Some(OutputFormat::Gguf) => ImportanceFormat::Gguf,
            Some(OutputFormat::Dat) => ImportanceFormat::Legacy,
            None if self.output.as_ref().is_some_and(is_dat) => ImportanceFormat::Legacy,
            None => ImportanceFormat::Gguf,
        }
    }

    /// Begins the output, which may replace another importance matrix.
    fn create(&self, path: &Path) -> Result<OutputFile, OutputError> {
        if self.overwrite && path.is_file() && ImportanceMatrix::open(path).is_err() {
            let path = path.to_path_buf();
            return Err(OutputError::Foreign { path });
        }
        OutputFile::create_model(path, self.overwrite, *b"GGUF")
    }
}

pub(super) fn imatrix(args: &ImatrixArgs) -> anyhow::Result<Ending> {
    let mut matrix = ImportanceMatrix::default();
    for path in &args.in_file {
        matrix.merge(ImportanceMatrix::open(path)?)?;
    }
    let reads = args.reading.file.is_some();
    if !reads && args.in_file.is_empty() {
        let why = "no text is given: use -f FILE, or --in-file FILE to add up matrices".to_owned();
        return Err(UsageError(why).into());
    }
    if !reads && (args.reading.names_model() || args.process_output) {
        let why = "without -f FILE nothing is read: omit the model and --process-output".to_owned();
        return Err(UsageError(why).into());
    }
    let path = args.output.as_deref().unwrap_or(Path::new("imatrix.gguf"));
    let writes = reads || args.output.is_some() || !args.show_statistics;
    let output = writes.then(|| args.create(path)).transpose()?;
    if reads {
        let Some(collector) = collect(args, &mut matrix)? else {
            note(format_args!(
                "interrupted; {} was not written",
                path.display()
            ));
            return Ok(Ending::Interrupted);
        };
        collector.add_to(&mut matrix);
        let dataset = args.reading.file()?.display().to_string();
        matrix.datasets.push(dataset);
    }
    let matrix = matrix.checked();
    let matrix = matrix.map_err(|why| {
        let whose = if reads {
            "the model's activations"
        } else {
            "the sums"
        };
        anyhow::anyhow!("{why}: {whose} are not finite; nothing was written")
    })?;
    if args.show_statistics {
        TextOutput::new().write(&statistics(&matrix))?;
    }
    let Some(output) = output else {
        return Ok(Ending::Done);
    };
    matrix.write(output, args.format())?;
    note(format_args!(
        "{}: {} weights from {} chunks of {} tokens",
        path.display(),
        matrix.weights.len(),
        matrix.chunk_count,
        matrix.chunk_size
    ));
    Ok(Ending::Done)
}

/// Collects importance while the model reads the text. `None` after Ctrl-C.
fn collect(args: &ImatrixArgs, matrix: &mut ImportanceMatrix) -> anyhow::Result<Option<Collector>> {
    let process_output = args.process_output;
    let Some(mut reading) = args.reading.begin(true)? else {
        return Ok(None);
    };
    record_order(args, &reading, matrix)?;
    let collector = Collector::new(reading.session.model().config(), process_output);
    let (chunks, len) = (reading.chunks.slices(), reading.chunks.len);
    let mut bar = WorkBar::new("reading", chunks.len() as u64);
    // The output layer sees only tokens whose logits are requested; the last token of a chunk marks its
    // end.
    let skipped = if process_output { 0 } else { len - 1 };
    let each = |chunk: usize, token: usize, _: &[f32]| {
        if token + 1 == len {
            bar.update(chunk as u64 + 1);
        }
    };
    let session = &mut reading.session;
    match session.read(&chunks, skipped, Some(&collector), each) {
        Err(EvaluateError::Stopped) => return Ok(None),
        result => result?,
    }
    matrix.chunk_count += u32::try_from(chunks.len()).context("too many chunks")?;
    matrix.chunk_size = u32::try_from(len).context("chunks are too long")?;
    Ok(Some(collector))
}

/// Records the order of the model's neurons, where it is not the model's own.
fn record_order(
    args: &ImatrixArgs,
    reading: &Reading,
    matrix: &mut ImportanceMatrix,
) -> anyhow::Result<()> {
    let model = reading.session.model();
    let order = NeuronOrder::of(model.gguf(), model.config());
    let order = order.with_context(|| model.name().to_owned())?;
    let order = order.map(|order| order.digest());
    if order.is_some() && args.format() == ImportanceFormat::Legacy {
        bail!(
            "{}: its neurons are ordered by activity, which a .dat file cannot record: write a .gguf file",
            model.name()
        );
    }
    if !args.in_file.is_empty() && matrix.neuron_order != order {
        bail!(
            "{}: its neurons have another order than the model of --in-file",
            model.name()
        );
    }
    matrix.neuron_order = order;
    Ok(())
}

/// For each weight: mean and largest importance of its columns, and the percentage of columns that hold
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
