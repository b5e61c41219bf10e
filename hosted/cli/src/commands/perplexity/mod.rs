//! `sluice perplexity`: how well a model predicts a text, on its own ([`Surprise`]) and compared with
//! another model's probabilities of the same text ([`Divergence`], [`BaseFile`]), in
//! llama-perplexity's figures.
//!
//! The text is cut into chunks of equal length, each read with an empty context. Only tokens in the
//! second half of a chunk count, so that each has some context.

mod base;
mod divergence;
mod figures;

use crate::flags::reading::{Chunks, Reading, ReadingArgs};
use crate::outcome::{Ending, UsageError};
use crate::ui::output::TextOutput;
use anyhow::bail;
use base::{BaseFile, BaseShape, BaseWriter};
use clap::Args;
use core::fmt::Write as _;
use divergence::Divergence;
use figures::{Estimate, Surprise};
use serde_json::json;
use sluice::evaluate::{EvaluateError, log_softmax};
use sluice::model::ModelSource;
use std::path::PathBuf;

#[derive(Debug, Args)]
pub(crate) struct PerplexityArgs {
    #[command(flatten)]
    reading: ReadingArgs,
    /// Save log-probabilities to a file; with --kl-divergence, read them
    ///
    /// In llama.cpp's format.
    #[arg(long, visible_alias = "save-all-logits", value_name = "FILE")]
    kl_divergence_base: Option<PathBuf>,
    /// Compare probabilities with those of --kl-divergence-base
    #[arg(long, requires = "kl_divergence_base")]
    kl_divergence: bool,
    /// Print one JSON object at the end
    #[arg(long)]
    json: bool,
}

pub(super) fn perplexity(args: &PerplexityArgs) -> anyhow::Result<Ending> {
    let ending = match &args.kl_divergence_base {
        Some(path) if args.kl_divergence => {
            let base = BaseFile::open(path)?;
            let shape = base.shape();
            args.reading.say_unused(path, shape.n_ctx);
            let cut = |opened: &ModelSource, _, max: usize| {
                let n_vocab = opened.config().n_vocab;
                if shape.n_vocab != n_vocab {
                    bail!(
                        "{} has a vocabulary of {} tokens, but the model has {n_vocab}",
                        path.display(),
                        shape.n_vocab
                    );
                }
                let n = shape.n_chunk.min(max) * shape.n_ctx;
                let tokens = base.tokens()[..n].to_vec();
                Ok(Chunks::new(opened.tokenizer(), tokens, shape.n_ctx))
            };
            let mut rows = BaseFile::open(path)?;
            match args.reading.begin_with(false, cut)? {
                Some(reading) => compare(reading, &mut rows, args.json)?,
                None => Ending::Interrupted,
            }
        }
        _ => {
            args.reading.file()?;
            match args.reading.begin(false)? {
                Some(reading) => predict(reading, args)?,
                None => Ending::Interrupted,
            }
        }
    };
    Ok(ending)
}

fn predict(mut reading: Reading, args: &PerplexityArgs) -> anyhow::Result<Ending> {
    let (chunks, len, stop) = (reading.chunks.slices(), reading.chunks.len, reading.stop);
    check_len(len)?;
    let shape = BaseShape {
        n_ctx: len,
        n_vocab: reading.session.model().config().n_vocab,
        n_chunk: chunks.len(),
    };
    let mut base = match &args.kl_divergence_base {
        Some(path) => Some(BaseWriter::create(path, shape, &reading.chunks.texts)?),
        None => None,
    };
    let mut output = TextOutput::new();
    let (mut surprise, mut logs, mut written) = (Surprise::default(), Vec::new(), Ok(()));
    let each = |chunk: usize, position: usize, logits: &[f32]| {
        let Some(&next) = chunks[chunk].get(position + 1) else {
            return;
        };
        log_softmax(logits, &mut logs);
        surprise.add(-logs[next as usize]);
        if written.is_err() {
            return;
        }
        if let Some(base) = &mut base {
            let top = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
            let ln_sum_exp =
                f64::from(top) - logs.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            written = base.write(logits, ln_sum_exp).map_err(Into::into);
        }
        if position + 2 == len && written.is_ok() && !args.json {
            let perplexity = surprise.perplexity().value;
            written = output.write(&format!("[{}]{perplexity:.4},", chunk + 1));
        }
        if written.is_err() || output.is_closed() {
            stop.stop();
        }
    };
    let read = reading.session.read(&chunks, len / 2, None, each);
    written?;
    match read {
        Err(EvaluateError::Stopped) if output.is_closed() => return Ok(Ending::Done),
        Err(EvaluateError::Stopped) => {
            output.end_line()?;
            return Ok(Ending::Interrupted);
        }
        result => result?,
    }
    if !args.json {
        output.end_line()?;
    }
    check_finite("the perplexity", surprise.perplexity().value)?;
    if let Some(base) = base {
        base.finish()?;
    }
    output.write(&estimate(&surprise, shape, args.json))?;
    Ok(Ending::Done)
}

/// # Errors
/// The figure is not finite because the logits are not.
fn check_finite(name: &str, value: f64) -> anyhow::Result<()> {
    if value.is_finite() {
        return Ok(());
    }
    bail!("{name} is {value}: the model's logits are not finite, so its weights are damaged")
}

/// The last line.
fn estimate(surprise: &Surprise, shape: BaseShape, json: bool) -> String {
    let Estimate { value, error } = surprise.perplexity();
    if !json {
        return format!("Final estimate: PPL = {value:.4} +/- {error:.5}\n");
    }
    let object = json!({
        "n_chunk": shape.n_chunk,
        "n_ctx": shape.n_ctx,
        "n_tokens": surprise.count(),
        "perplexity": value,
        "perplexity_error": error,
    });
    format!("{object}\n")
}

fn check_len(len: usize) -> Result<(), UsageError> {
    if len < 4 {
        let message = format!("a context of {len} tokens has no second half to predict (-c)");
        return Err(UsageError(message));
    }
    Ok(())
}

fn compare(mut reading: Reading, base: &mut BaseFile, json: bool) -> anyhow::Result<Ending> {
    let (chunks, len, stop) = (reading.chunks.slices(), reading.chunks.len, reading.stop);
    let mut output = TextOutput::new();
    if !json {
        output.write(TABLE_HEAD)?;
    }
    let (mut divergence, mut logs, mut outcome) = (Divergence::default(), Vec::new(), Ok(()));
    let each = |chunk: usize, position: usize, logits: &[f32]| {
        let Some(&next) = chunks[chunk].get(position + 1) else {
            return;
        };
        if outcome.is_err() {
            return;
        }
        let row = position - len / 2;
        if row == 0
            && let Err(error) = base.read_chunk(chunk)
        {
            outcome = Err(error.into());
            stop.stop();
            return;
        }
        log_softmax(logits, &mut logs);
        divergence.add(&logs, &base.row(row), next);
        if position + 2 == len && !json {
            outcome = output.write(&table_row(chunk + 1, &divergence));
        }
        if outcome.is_err() || output.is_closed() {
            stop.stop();
        }
    };
    let read = reading.session.read(&chunks, len / 2, None, each);
    outcome?;
    match read {
        Err(EvaluateError::Stopped) if output.is_closed() => return Ok(Ending::Done),
        Err(EvaluateError::Stopped) => return Ok(Ending::Interrupted),
        result => result?,
    }
    check_finite("the perplexity", divergence.perplexity().value)?;
    check_finite("the divergence", divergence.kld().value)?;
    divergence.sort();
    if json {
        output.write(&format!("{}\n", object(&divergence, chunks.len(), len)))?;
    } else if divergence.count() >= 100 {
        let mut report = String::new();
        statistics(&mut report, &divergence)?;
        output.write(&report)?;
    }
    Ok(Ending::Done)
}

const TABLE_HEAD: &str = "\nchunk             PPL               ln(PPL(Q)/PPL(base))          \
                          KL Divergence              Δp RMS            Same top p\n";

fn table_row(chunk: usize, d: &Divergence) -> String {
    let (ppl, ratio, kld) = (d.perplexity(), d.ln_ratio(), d.kld());
    let (rms, top) = (percent(d.p_diff_rms()), percent(d.same_top()));
    format!(
        "{chunk:4}    {:9.4} ± {:9.4}    {:10.5} ± {:10.5}    {:10.5} ± {:10.5}    \
         {:6.3} ± {:6.3} %    {:6.3} ± {:6.3} %\n",
        ppl.value,
        ppl.error,
        ratio.value,
        ratio.error,
        kld.value,
        kld.error,
        rms.value,
        rms.error,
        top.value,
        top.error
    )
}

/// The lines that llama-perplexity prints at the end.
fn statistics(report: &mut String, d: &Divergence) -> core::fmt::Result {
    writeln!(report, "\n====== Perplexity statistics ======")?;
    let mut line = |name: &str, x: Estimate| {
        writeln!(report, "{name:<30}: {:10.6} ± {:10.6}", x.value, x.error)
    };
    line("Mean PPL(Q)", d.perplexity())?;
    line("Mean PPL(base)", d.perplexity_base())?;
    let correlation = 100.0 * d.correlation();
    writeln!(report, "Cor(ln(PPL(Q)), ln(PPL(base))): {correlation:6.2}%")?;
    let mut line = |name: &str, x: Estimate| {
        writeln!(report, "{name:<30}: {:10.6} ± {:10.6}", x.value, x.error)
    };
    line("Mean ln(PPL(Q)/PPL(base))", d.ln_ratio())?;
    line("Mean PPL(Q)/PPL(base)", d.ratio())?;
    line("Mean PPL(Q)-PPL(base)", d.difference())?;
    let kld = d.kld();
    writeln!(report, "\n====== KL divergence statistics ======")?;
    let (mean, error) = (kld.value, kld.error);
    writeln!(report, "Mean    KLD: {mean:10.6} ± {error:10.6}")?;
    for (name, share) in KLD_SHARES {
        writeln!(report, "{name:<7} KLD: {:10.6}", d.kld_at(share))?;
    }
    writeln!(report, "\n====== Token probability statistics ======")?;
    let mean = percent(d.p_diff());
    writeln!(
        report,
        "Mean    Δp: {:6.3} ± {:5.3} %",
        mean.value, mean.error
    )?;
    for (name, share) in P_DIFF_SHARES {
        writeln!(report, "{name:<7} Δp: {:6.3}%", 100.0 * d.p_diff_at(share))?;
    }
    let rms = percent(d.p_diff_rms());
    writeln!(
        report,
        "RMS Δp    : {:6.3} ± {:5.3} %",
        rms.value, rms.error
    )?;
    let top = percent(d.same_top());
    writeln!(
        report,
        "Same top p: {:6.3} ± {:5.3} %",
        top.value, top.error
    )
}

fn object(d: &Divergence, n_chunk: usize, n_ctx: usize) -> serde_json::Value {
    let estimate = |x: Estimate| json!({"value": x.value, "error": x.error});
    let kld: serde_json::Map<_, _> = KLD_SHARES
        .iter()
        .map(|&(name, share)| (name.trim().to_owned(), d.kld_at(share).into()))
        .collect();
    let p_diff: serde_json::Map<_, _> = P_DIFF_SHARES
        .iter()
        .map(|&(name, share)| (name.trim().to_owned(), d.p_diff_at(share).into()))
        .collect();
    json!({
        "n_chunk": n_chunk,
        "n_ctx": n_ctx,
        "n_tokens": d.count(),
        "perplexity": estimate(d.perplexity()),
        "perplexity_base": estimate(d.perplexity_base()),
        "correlation": d.correlation(),
        "ln_ratio": estimate(d.ln_ratio()),
        "ratio": estimate(d.ratio()),
        "difference": estimate(d.difference()),
        "kld": estimate(d.kld()),
        "kld_percentiles": kld,
        "p_diff": estimate(d.p_diff()),
        "p_diff_percentiles": p_diff,
        "p_diff_rms": estimate(d.p_diff_rms()),
        "same_top": estimate(d.same_top()),
    })
}

fn percent(x: Estimate) -> Estimate {
    Estimate {
        value: 100.0 * x.value,
        error: 100.0 * x.error,
    }
}

const KLD_SHARES: [(&str, f64); 11] = [
    ("Maximum", 1.0),
    ("99.9%", 0.999),
    ("99.0%", 0.99),
    ("95.0%", 0.95),
    ("90.0%", 0.9),
    ("Median", 0.5),
    ("10.0%", 0.1),
    (" 5.0%", 0.05),
    (" 1.0%", 0.01),
    (" 0.1%", 0.001),
    ("Minimum", 0.0),
];

const P_DIFF_SHARES: [(&str, f64); 13] = [
    ("Maximum", 1.0),
    ("99.9%", 0.999),
    ("99.0%", 0.99),
    ("95.0%", 0.95),
    ("90.0%", 0.9),
    ("75.0%", 0.75),
    ("Median", 0.5),
    ("25.0%", 0.25),
    ("10.0%", 0.1),
    (" 5.0%", 0.05),
    (" 1.0%", 0.01),
    (" 0.1%", 0.001),
    ("Minimum", 0.0),
];
