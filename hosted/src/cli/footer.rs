//! The lines after the text, in llama.cpp's words.

use super::format::Bytes;
use super::output::note;
use core::time::Duration;
use sluice::process::peak_memory_bytes;

/// What took how long.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Timings {
    /// From the program's start to the model being ready.
    pub(super) load: Duration,
    /// Steps over the prompt, per token.
    pub(super) prompt: Span,
    /// Steps of one generated token each.
    pub(super) eval: Span,
    /// Draws.
    pub(super) sampling: Span,
    /// From the first token of the prompt going in to the first token coming out.
    pub(super) first_token: Option<Duration>,
    /// From the program's start to the end of the text.
    pub(super) total: Duration,
}

/// A number of things and the time they took together.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Span {
    count: usize,
    ns: u128,
}

impl Span {
    pub(super) const fn add(&mut self, count: usize, ns: u128) {
        self.count += count;
        self.ns += ns;
    }

    #[expect(clippy::cast_precision_loss, reason = "shown with few digits")]
    fn line(&self, name: &str, unit: &str) -> String {
        let (n, ms) = (self.count as f64, self.ns as f64 / 1e6);
        let total = format!("{name} = {ms:>10.2} ms / {:>5} {unit:<6}", self.count);
        if self.count == 0 {
            return total.trim_end().to_owned();
        }
        let per_second = 1e3 * n / ms.max(1e-6);
        format!(
            "{total} ({:>8.2} ms per token, {per_second:>9.2} tokens per second)",
            ms / n
        )
    }
}

/// How the model was run.
#[derive(Clone, Copy, Debug)]
pub(super) struct Setup {
    pub(super) n_workers: usize,
    pub(super) n_pinned: usize,
    pub(super) isa: &'static str,
}

/// Prints the footer to stderr.
pub(super) fn print(timings: &Timings, setup: &Setup) {
    let ms = |time: Duration| 1e3 * time.as_secs_f64();
    note(format_args!(
        "\n          load time = {:>10.2} ms",
        ms(timings.load)
    ));
    note(format_args!(
        "{}",
        timings.sampling.line("      sampling time", "runs")
    ));
    note(format_args!(
        "{}",
        timings.prompt.line("   prompt eval time", "tokens")
    ));
    note(format_args!(
        "{}",
        timings.eval.line("          eval time", "runs")
    ));
    note(format_args!(
        "         total time = {:>10.2} ms",
        ms(timings.total)
    ));
    if let Some(first_token) = timings.first_token {
        note(format_args!(
            "time to first token = {:>10.2} ms",
            ms(first_token)
        ));
    }
    if let Some(bytes) = peak_memory_bytes() {
        note(format_args!(
            "        peak memory = {:>10} (VmHWM)",
            Bytes(bytes)
        ));
    }
    note(format_args!(
        "            threads = {:>10} ({} pinned to cores of their own), isa = {}",
        setup.n_workers, setup.n_pinned, setup.isa
    ));
}
