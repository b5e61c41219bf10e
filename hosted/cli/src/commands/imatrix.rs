//! `sluice imatrix`: measures the importance of each column of each weight.

use crate::flags::reading::ReadingArgs;
use crate::outcome::Ending;
use crate::ui::output::{TextOutput, note};
use crate::ui::progress::WorkBar;
use anyhow::Context as _;
use clap::Args;
use sluice::evaluate::EvaluateError;
use sluice::file::{OutputError, OutputFile};
use sluice_make::quantize::{Collector, ImportanceMatrix};
use std::path::PathBuf;

#[derive(Debug, Args)]
pub(crate) struct ImatrixArgs {
    #[command(flatten)]
    reading: ReadingArgs,
    /// Set the importance matrix to write
    #[arg(short, long, value_name = "FILE", default_value = "imatrix.gguf")]
    output: PathBuf,
    /// Add to this importance matrix; may be repeated
    #[arg(long, value_name = "FILE")]
    in_file: Vec<PathBuf>,
    /// Collect for the output layer as well
    #[arg(long)]
    process_output: bool,
    /// Print how the importance of each weight is spread, most uneven first
    #[arg(long)]
    show_statistics: bool,
    /// Overwrite the output file if it exists
    #[arg(long)]
    overwrite: bool,
}

pub(super) fn imatrix(args: &ImatrixArgs) -> anyhow::Result<Ending> {
    let mut matrix = ImportanceMatrix::default();
    for path in &args.in_file {
        matrix.merge(ImportanceMatrix::open(path)?)?;
    }
    let path = &args.output;
    if args.overwrite && path.is_file() && ImportanceMatrix::open(path).is_err() {
        let path = path.to_path_buf();
        return Err(OutputError::Foreign { path }.into());
    }
    let output = OutputFile::create_model(path, args.overwrite, *b"GGUF")?;
    let collected = collect(&args.reading, args.process_output, &mut matrix)?;
    let Some(collector) = collected else {
        note(format_args!(
            "interrupted; {} was not written",
            args.output.display()
        ));
        return Ok(Ending::Interrupted);
    };
    collector.add_to(&mut matrix);
    let matrix = matrix.checked();
    let mut matrix = matrix.map_err(|why| {
        anyhow::anyhow!("{why}: the model's activations are not finite; nothing was written")
    })?;
    matrix
        .datasets
        .push(args.reading.file()?.display().to_string());
    if args.show_statistics {
        TextOutput::new().write(&statistics(&matrix))?;
    }
    matrix.write(output)?;
    note(format_args!(
        "{}: {} weights from {} chunks of {} tokens",
        args.output.display(),
        matrix.weights.len(),
        matrix.chunk_count,
        matrix.chunk_size
    ));
    Ok(Ending::Done)
}

/// Collects importance while the model reads the text. `None` after Ctrl-C.
fn collect(
    reading: &ReadingArgs,
    process_output: bool,
    matrix: &mut ImportanceMatrix,
) -> anyhow::Result<Option<Collector>> {
    let Some(mut reading) = reading.begin(true)? else {
        return Ok(None);
    };
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
