//! llama-server's metrics, under its names. Because llama-server has one model, they have no labels; these are sums.

use super::Metrics;
use super::page::{PER_POSITION, PER_POSITION_HELP, SPECULATION, rows};
use core::fmt::{self, Write as _};
use sluice::speculate::{Figures, POSITIONS_MAX};

/// Writes all of them.
pub(super) fn write(text: &mut String, models: &[(String, &Metrics)]) -> fmt::Result {
    let all = Sums::of(models);
    for (name, help, value) in rows! {
        "prompt_tokens_total" "Number of prompt tokens processed." all.prompt;
        "prompt_tokens_cached_total" "Number of prompt tokens found in the cache." all.cached;
        "prompt_seconds_total" "Prompt processing time, in seconds." all.prompt_time;
        "tokens_predicted_total" "Number of tokens generated." all.predicted;
        "tokens_predicted_seconds_total" "Generation time, in seconds." all.predicted_time;
        "n_decode_total" "Steps." all.steps;
        "n_tokens_max" "Length of the longest sequence, in tokens." all.longest;
    } {
        line(text, name, "counter", help, value)?;
    }
    let sum = |of: fn(&Figures) -> u64| models.iter().map(|(_, m)| of(&m.drafts())).sum::<u64>();
    for (name, help, of) in SPECULATION {
        line(
            text,
            &format!("{name}_total"),
            "counter",
            help,
            sum(of) as f64,
        )?;
    }
    for (name, help, value) in rows! {
        "prompt_tokens_seconds" "Prompt throughput, in tokens per second." ratio(all.prompt, all.prompt_time);
        "predicted_tokens_seconds" "Generation throughput, in tokens per second." ratio(all.predicted, all.predicted_time);
        "requests_processing" "Number of requests running." all.running;
        "requests_deferred" "Number of requests queued." all.waiting;
        "n_busy_slots_per_decode" "Mean number of sequences per step." ratio(all.busy, all.steps);
    } {
        line(text, name, "gauge", help, value)?;
    }
    let name = format!("llamacpp:{PER_POSITION}_total");
    writeln!(
        text,
        "# HELP {name} {PER_POSITION_HELP}\n# TYPE {name} counter"
    )?;
    for position in 0..POSITIONS_MAX {
        let all = models.iter().map(|(_, m)| m.drafts().accepted_at[position]);
        let n = all.sum::<u64>();
        writeln!(text, "{name}{{position=\"{position}\"}} {n}")?;
    }
    Ok(())
}

/// Sums over all models.
struct Sums {
    prompt: f64,
    cached: f64,
    prompt_time: f64,
    predicted: f64,
    predicted_time: f64,
    steps: f64,
    busy: f64,
    longest: f64,
    running: f64,
    waiting: f64,
}

impl Sums {
    fn of(models: &[(String, &Metrics)]) -> Self {
        let sum = |of: fn(&Metrics) -> f64| models.iter().map(|(_, m)| of(m)).sum::<f64>();
        let longest = models.iter().map(|(_, m)| m.n_tokens_max.value()).max();
        Self {
            prompt: sum(|m| {
                let known = m.prompt_tokens_cached.value();
                m.prompt_tokens.value().saturating_sub(known) as f64
            }),
            cached: sum(|m| m.prompt_tokens_cached.value() as f64),
            prompt_time: sum(|m| m.prefill_time.value()),
            predicted: sum(|m| m.generation_tokens.value() as f64),
            predicted_time: sum(|m| m.decode_time.value()),
            steps: sum(|m| m.steps.value() as f64),
            busy: sum(|m| m.busy.value() as f64),
            longest: longest.unwrap_or(0) as f64,
            running: sum(|m| m.running.value()),
            waiting: sum(|m| m.waiting.value() + m.loading.value()),
        }
    }
}

fn line(text: &mut String, name: &str, kind: &str, help: &str, value: f64) -> fmt::Result {
    let name = format!("llamacpp:{name}");
    writeln!(
        text,
        "# HELP {name} {help}\n# TYPE {name} {kind}\n{name} {value}"
    )
}

fn ratio(a: f64, b: f64) -> f64 {
    if b > 0.0 { a / b } else { 0.0 }
}
