//! `sluice perplexity`: how well a model foresees a text.

use super::Ending;
use super::output::TextOutput;
use super::text::{Reading, ReadingArgs};
use anyhow::bail;
use core::fmt::Write as _;
use sluice::evaluate::{EvaluateError, log_softmax};

/// Sums over the tokens that count: the second half of each chunk, as in llama.cpp.
#[derive(Clone, Copy, Debug, Default)]
struct Surprise {
    count: u32,
    sum: f64,
    squares: f64,
}

impl Surprise {
    fn add(&mut self, nats: f64) {
        self.count += 1;
        self.sum += nats;
        self.squares += nats * nats;
    }

    /// The perplexity and its standard error.
    fn perplexity(&self) -> (f64, f64) {
        let n = f64::from(self.count);
        let mean = self.sum / n;
        let variance = (self.squares / n - mean * mean).max(0.0);
        (mean.exp(), mean.exp() * (variance / (n - 1.0)).sqrt())
    }
}

pub(super) fn perplexity(args: &ReadingArgs) -> anyhow::Result<Ending> {
    let ending = args.with(foresee)?;
    Ok(ending.unwrap_or(Ending::Interrupted))
}

fn foresee(reading: Reading<'_>) -> anyhow::Result<Ending> {
    let Reading {
        model,
        chunks,
        len,
        mut evaluator,
    } = reading;
    if len < 4 {
        bail!("a context of {len} tokens has no second half to foresee (-c)");
    }
    let mut output = TextOutput::new();
    let (mut surprise, mut logs, mut written) = (Surprise::default(), Vec::new(), Ok(()));
    let each = |chunk: usize, position: usize, logits: &[f32]| {
        let Some(&next) = chunks[chunk].get(position + 1) else {
            return;
        };
        log_softmax(logits, &mut logs);
        surprise.add(-logs[next as usize]);
        if position + 2 == len && written.is_ok() {
            let (perplexity, _) = surprise.perplexity();
            written = output.write(&format!("[{}]{perplexity:.4},", chunk + 1));
        }
    };
    match evaluator.read(model, chunks, len / 2, None, each) {
        Err(EvaluateError::Stopped) => {
            output.end_line()?;
            return Ok(Ending::Interrupted);
        }
        result => result?,
    }
    written?;
    output.end_line()?;
    let (perplexity, error) = surprise.perplexity();
    let mut last = String::new();
    writeln!(last, "Final estimate: PPL = {perplexity:.4} +/- {error:.5}")?;
    output.write(&last)?;
    Ok(Ending::Done)
}
