//! Times, and the results of drafts.

use super::Machine;
use sluice_core::sort::heap_sort_by_key;

/// Times in ticks.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Timings {
    /// From the loader's hand-over to the model being ready.
    pub(super) loaded: u64,
    /// From the loader's hand-over to the first token.
    pub(super) first_token: u64,
    pub(super) prompt: Span,
    pub(super) eval: Span,
    pub(super) sampling: Span,
}

/// A count, and the ticks taken together.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Span {
    pub(super) count: usize,
    pub(super) ticks: u64,
}

impl Span {
    /// Counts `count` more.
    pub(super) const fn add(&mut self, count: usize, ticks: u64) {
        self.count += count;
        self.ticks += ticks;
    }
}

/// The results of drafts.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Drafted {
    /// Draft tokens that were verified.
    pub(super) n_draft: usize,
    /// Draft tokens that were accepted.
    pub(super) n_accepted: usize,
    /// Steps that generate text, drafted or not.
    pub(super) n_passes: usize,
}

/// The lines after the text, in the words of `sluice run`.
pub(super) struct Footer<'f> {
    pub(super) machine: &'f dyn Machine,
    pub(super) timings: &'f Timings,
    pub(super) drafted: &'f Drafted,
    /// Ticks of tokens, in any order.
    pub(super) latencies: &'f mut [u64],
    pub(super) hash: u64,
}

impl Footer<'_> {
    pub(super) fn print(self) {
        heap_sort_by_key(self.latencies, |ticks| *ticks);
        // The smallest time that this many thousandths of the tokens stay within.
        let percentile = |thousandths: usize| {
            let rank = (self.latencies.len() * thousandths).div_ceil(1000);
            let ticks = self.latencies.get(rank.saturating_sub(1)).copied();
            microseconds(self.machine, ticks.unwrap_or(0))
        };
        let [p50, p99, p999] = [500, 990, 999].map(percentile);
        let machine = self.machine;
        machine.print(format_args!("\n"));
        line(machine, "load time", self.timings.loaded);
        span(machine, "sampling time", self.timings.sampling);
        span(machine, "prompt eval time", self.timings.prompt);
        span(machine, "eval time", self.timings.eval);
        line(machine, "time to first token", self.timings.first_token);
        machine.print(format_args!(
            "      token latency = p50 {p50} us, p99 {p99} us, p99.9 {p999} us\n"
        ));
        let drafted = self.drafted;
        let acceptance = (drafted.n_accepted * 100_000).checked_div(drafted.n_draft);
        if let Some(acceptance) = acceptance {
            let tokens = self.timings.eval.count * 100 / drafted.n_passes.max(1);
            machine.print(format_args!(
                "   draft acceptance = {:>4}.{:05} ({:>5} accepted / {:>5} generated), {}.{:02} tokens per pass\n",
                acceptance / 100_000,
                acceptance % 100_000,
                drafted.n_accepted,
                drafted.n_draft,
                tokens / 100,
                tokens % 100
            ));
        }
        machine.print(format_args!("        logits hash = {:#018x}\n", self.hash));
    }
}

fn line(machine: &dyn Machine, name: &str, ticks: u64) {
    let us = microseconds(machine, ticks);
    let (ms, fraction) = (us / 1000, us % 1000 / 10);
    machine.print(format_args!("{name:>19} = {ms:>7}.{fraction:02} ms\n"));
}

fn span(machine: &dyn Machine, name: &str, span: Span) {
    let us = microseconds(machine, span.ticks);
    let (ms, fraction) = (us / 1000, us % 1000 / 10);
    let rate = (span.count as u64).saturating_mul(100_000_000) / us.max(1);
    machine.print(format_args!(
        "{name:>19} = {ms:>7}.{fraction:02} ms / {:>5} ({:>6}.{:02} per second)\n",
        span.count,
        rate / 100,
        rate % 100
    ));
}

fn microseconds(machine: &dyn Machine, ticks: u64) -> u64 {
    let us = u128::from(ticks) * 1_000_000 / u128::from(machine.ticks_per_second().max(1));
    u64::try_from(us).unwrap_or(u64::MAX)
}
