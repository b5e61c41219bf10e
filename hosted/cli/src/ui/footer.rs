//! The lines after the text, in llama.cpp's format.

use crate::ui::format::Bytes;
use crate::ui::output::note;
use core::time::Duration;
use sluice::core::engine::Neurons;
use sluice::generate::{GeneratorTimings, Span};
use sluice::host::process::peak_memory_bytes;

/// Prints the share of the neurons that were left unread, where any could be.
pub(crate) fn print_neurons(neurons: Neurons) {
    if neurons.n > 0 {
        let percent = 100.0 * neurons.n_skipped as f64 / neurons.n as f64;
        note(format_args!(
            "    neurons skipped = {percent:>10.1} % of {}",
            neurons.n
        ));
    }
}

/// How the model was run.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Setup {
    pub(crate) n_workers: usize,
    pub(crate) n_pinned: usize,
    pub(crate) isa: &'static str,
}

/// Prints the footer on stderr.
pub(crate) fn print(timings: &GeneratorTimings, setup: &Setup) {
    let ms = |time: Duration| 1e3 * time.as_secs_f64();
    note(format_args!(
        "\n          load time = {:>10.2} ms",
        ms(timings.load)
    ));
    note(format_args!(
        "{}",
        line(&timings.sampling, "      sampling time", "runs")
    ));
    note(format_args!(
        "{}",
        line(&timings.prompt, "   prompt eval time", "tokens")
    ));
    note(format_args!(
        "{}",
        line(&timings.eval, "          eval time", "runs")
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

fn line(span: &Span, name: &str, unit: &str) -> String {
    let ms = span.ms();
    let total = format!("{name} = {ms:>10.2} ms / {:>5} {unit:<6}", span.count);
    if span.count == 0 {
        return total.trim_end().to_owned();
    }
    #[expect(clippy::cast_precision_loss, reason = "shown with few digits")]
    let each = ms / span.count as f64;
    let per_second = span.per_second();
    format!("{total} ({each:>8.2} ms per token, {per_second:>9.2} tokens per second)")
}
