//! Metrics in Prometheus' text format.

use super::histogram::Counter;
use super::page::{PER_POSITION, PER_POSITION_HELP, Page, Row, SPECULATION, escaped, rows};
use super::{END_REASONS, HISTOGRAMS, Metrics, QUEUE_REASONS, REJECT_REASONS};
use super::{experts, llama_cpp};
use core::fmt::{self, Write as _};
use std::sync::{Arc, PoisonError};

/// The content type of the output of [`format()`].
pub const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// The metrics of all models. `isa` is the instruction set in use; `max_adapters` the maximum number of adapters per
/// step (0 for no limit), if there are adapters.
#[must_use]
pub fn format(models: &[Arc<Metrics>], isa: &str, max_adapters: Option<usize>) -> String {
    let mut page = Page::new(models);
    // Writing to a string cannot fail.
    let _written = write(&mut page, isa, max_adapters);
    page.text
}

fn write(page: &mut Page<'_>, isa: &str, max_adapters: Option<usize>) -> fmt::Result {
    gauges(page, max_adapters)?;
    counters(page)?;
    histograms(page)?;
    experts::write(page)?;
    process(page, isa)?;
    llama_cpp::write(&mut page.text, &page.models)
}

fn gauges(page: &mut Page<'_>, max_adapters: Option<usize>) -> fmt::Result {
    page.each(
        "num_requests_running",
        "gauge",
        "Number of requests running.",
        |m| m.running.value(),
    )?;
    page.each(
        "num_requests_waiting",
        "gauge",
        "Number of requests queued.",
        |m| m.waiting.value() + m.loading.value(),
    )?;
    let name = "num_requests_waiting_by_reason";
    page.head(
        name,
        "gauge",
        "Number of requests queued, by what they wait for: capacity or the loading of their model.",
    )?;
    for (labels, m) in &page.models {
        for (reason, gauge) in [("capacity", &m.waiting), ("deferred", &m.loading)] {
            let value = gauge.value();
            writeln!(
                page.text,
                "sluice:{name}{{{labels},reason=\"{reason}\"}} {value:?}"
            )?;
        }
    }
    let help = "Fraction of the KV cache in use, 0 to 1.";
    page.each("kv_cache_usage_perc", "gauge", help, |m| m.kv_usage.value())?;
    adapters(page, max_adapters)
}

/// Adapters with running or waiting texts. As in vLLM, the value is the current time.
fn adapters(page: &mut Page<'_>, max_adapters: Option<usize>) -> fmt::Result {
    let Some(max) = max_adapters else {
        return Ok(());
    };
    let name = "lora_requests_info";
    page.head(
        name,
        "gauge",
        "Adapters of running and waiting requests; the value is a timestamp.",
    )?;
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    let now = since.map_or(0.0, |time| time.as_secs_f64());
    for (labels, m) in &page.models {
        let names = m.adapters.lock().unwrap_or_else(PoisonError::into_inner);
        let [running, waiting] = [&names[0], &names[1]].map(|names| escaped(&names.join(",")));
        writeln!(
            page.text,
            "sluice:{name}{{{labels},max_lora=\"{max}\",running_lora_adapters=\"{running}\",\
             waiting_lora_adapters=\"{waiting}\"}} {now:.3}"
        )?;
    }
    Ok(())
}

fn counters(page: &mut Page<'_>) -> fmt::Result {
    type Count = Row<fn(&Metrics) -> &Counter>;
    type Counts = fn(&Metrics) -> &[Counter];
    let tokens: [Count; 3] = rows! {
        "prompt_tokens" "Number of prompt tokens." |m| &m.prompt_tokens;
        "prompt_tokens_cached" "Number of prompt tokens found in the prefix cache." |m| &m.prompt_tokens_cached;
        "generation_tokens" "Number of tokens generated." |m| &m.generation_tokens;
    };
    let reasons: [Row<(&str, &[&str], Counts)>; 3] = rows! {
        "request_success" "Number of finished requests, by finish reason." ("finished_reason", &END_REASONS, |m| &m.finished);
        "admission_rejections" "Number of rejected requests, by reason." ("reason", &REJECT_REASONS, |m| &m.rejected);
        "requests_queued" "Number of requests that had to wait, by reason." ("reason", &QUEUE_REASONS, |m| &m.queued);
    };
    let others: [Count; 4] = rows! {
        "num_preemptions" "Number of preemptions, which drop the state of a sequence." |m| &m.preemptions;
        "prefix_cache_queries" "Number of tokens looked up in the prefix cache." |m| &m.prefix_queries;
        "prefix_cache_hits" "Number of tokens found in the prefix cache." |m| &m.prefix_hits;
        "decode_turn_tokens" "Number of tokens generated in turns without prompt processing." |m| &m.decode_turn_tokens;
    };
    for (name, help, of) in tokens {
        page.count(name, help, of)?;
    }
    for (name, help, (label, known, of)) in reasons {
        let name = format!("{name}_total");
        page.head(&name, "counter", help)?;
        for (labels, m) in &page.models {
            for (reason, count) in known.iter().zip(of(m)) {
                let value = count.value();
                writeln!(
                    page.text,
                    "sluice:{name}{{{labels},{label}=\"{reason}\"}} {value}"
                )?;
            }
        }
    }
    for (name, help, of) in others {
        page.count(name, help, of)?;
    }
    let help = "Duration of turns without prompt processing, in seconds.";
    page.each("decode_turn_seconds_total", "counter", help, |m| {
        m.decode_turn_time.value()
    })?;
    neurons(page)?;
    for (name, help, of) in SPECULATION {
        page.head(&format!("{name}_total"), "counter", help)?;
        for (labels, m) in &page.models {
            let value = of(&m.drafts());
            writeln!(page.text, "sluice:{name}_total{{{labels}}} {value}")?;
        }
    }
    page.head(
        &format!("{PER_POSITION}_total"),
        "counter",
        PER_POSITION_HELP,
    )?;
    for (labels, m) in &page.models {
        for (position, n) in m.drafts().accepted_at.iter().enumerate() {
            let labels = format!("{labels},position=\"{position}\"");
            writeln!(page.text, "sluice:{PER_POSITION}_total{{{labels}}} {n}")?;
        }
    }
    Ok(())
}

/// Neurons of steps that may leave some unread, and bytes of their weights, by whether they were.
fn neurons(page: &mut Page<'_>) -> fmt::Result {
    let name = "ffn_neurons_total";
    page.head(
        name,
        "counter",
        "Number of neurons of steps that may leave neurons unread or out.",
    )?;
    for (labels, m) in &page.models {
        for (state, count) in [
            ("computed", &m.neurons_computed),
            ("skipped", &m.neurons_skipped),
        ] {
            let n = count.value();
            writeln!(page.text, "sluice:{name}{{{labels},state=\"{state}\"}} {n}")?;
        }
    }
    let name = "ffn_bytes_total";
    page.head(
        name,
        "counter",
        "Bytes of matrices by neuron in steps that may leave some unread.",
    )?;
    for (labels, m) in &page.models {
        for (state, count) in [
            ("read", &m.neuron_bytes_read),
            ("skipped", &m.neuron_bytes_skipped),
        ] {
            let n = count.value();
            writeln!(page.text, "sluice:{name}{{{labels},state=\"{state}\"}} {n}")?;
        }
    }
    Ok(())
}

fn histograms(page: &mut Page<'_>) -> fmt::Result {
    for (name, help, of) in HISTOGRAMS {
        page.head(name, "histogram", help)?;
        for (labels, m) in &page.models {
            of(m).write(&mut page.text, &format!("sluice:{name}"), labels)?;
        }
    }
    Ok(())
}

fn process(page: &mut Page<'_>, isa: &str) -> fmt::Result {
    page.head("isa_info", "gauge", "The instruction set in use.")?;
    writeln!(page.text, "sluice:isa_info{{isa=\"{}\"}} 1", escaped(isa))?;
    if let Some(bytes) = resident_bytes() {
        let name = "process_resident_memory_bytes";
        writeln!(
            page.text,
            "# HELP {name} Resident memory of the process, in bytes.\n# TYPE {name} gauge"
        )?;
        writeln!(page.text, "{name} {bytes}")?;
    }
    Ok(())
}

/// The resident memory of the process.
fn resident_bytes() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kib << 10)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::{EndFigures, StepFigures};
    use core::time::Duration;
    use sluice::core::engine::Neurons;

    fn busy() -> Arc<Metrics> {
        let metrics = Metrics::new("a \"b\"");
        metrics.gauges(2, 3, 0.5);
        metrics.started(Duration::from_millis(10), 100, 40);
        metrics.first_token(Duration::from_millis(30));
        metrics.token(Duration::from_millis(3));
        metrics.step(StepFigures {
            neurons: Neurons {
                n: 10,
                n_skipped: 7,
                bytes: 100,
                bytes_skipped: 60,
            },
            n_prompt_tokens: 0,
            n_decode_tokens: 2,
            n_busy: 2,
            time: Duration::from_millis(500),
        });
        metrics.finished(EndFigures {
            reason: "stop",
            e2e: Duration::from_millis(50),
            inference: Duration::from_millis(40),
            prefill: Duration::from_millis(30),
            decode: Duration::from_millis(3),
            n_prompt: 100,
            n_predicted: 2,
        });
        metrics.rejected("queue_full");
        metrics.prefix(100, 40);
        Arc::new(metrics)
    }

    #[test]
    fn lines_are_as_monitors_expect_them() {
        let text = format(&[busy()], "avx2", Some(0));
        let labels = "model_name=\"a \\\"b\\\"\",engine=\"0\"";
        for line in [
            format!("sluice:num_requests_running{{{labels}}} 2.0"),
            format!("sluice:prompt_tokens_total{{{labels}}} 100"),
            format!("sluice:request_success_total{{{labels},finished_reason=\"stop\"}} 1"),
            format!("sluice:admission_rejections_total{{{labels},reason=\"queue_full\"}} 1"),
            format!("sluice:time_to_first_token_seconds_bucket{{{labels},le=\"0.04\"}} 1"),
            format!("sluice:decode_turn_tokens_total{{{labels}}} 2"),
            format!("sluice:decode_turn_seconds_total{{{labels}}} 0.5"),
            "llamacpp:prompt_tokens_total 60".to_owned(),
            "llamacpp:prompt_tokens_cached_total 40".to_owned(),
            "# TYPE llamacpp:n_busy_slots_per_decode gauge".to_owned(),
            "llamacpp:n_tokens_max 102".to_owned(),
            "llamacpp:n_busy_slots_per_decode 2".to_owned(),
            "sluice:isa_info{isa=\"avx2\"} 1".to_owned(),
        ] {
            assert!(text.lines().any(|found| found == line), "{line}\n{text}");
        }
        let llama = text
            .lines()
            .filter(|line| line.starts_with("# TYPE llamacpp:"));
        assert_eq!(llama.count(), 16);
    }

    #[test]
    fn every_family_is_in_one_piece() {
        let text = format(&[busy(), Arc::new(Metrics::new("c"))], "avx2", Some(0));
        let mut names: Vec<&str> = Vec::new();
        for line in text.lines().filter_map(|line| line.strip_prefix("# TYPE ")) {
            let name = line.split(' ').next().expect("a name");
            assert!(!names.contains(&name), "{name} twice");
            names.push(name);
        }
    }
}
