//! Metrics in Prometheus' text format.

use super::histogram::{Counter, Histogram};
use super::{END_REASONS, Metrics, QUEUE_REASONS, REJECT_REASONS};
use super::{experts, llama_cpp};
use core::fmt::{self, Write as _};
use sluice::speculate::Figures;
use std::sync::{Arc, PoisonError};

/// What [`format()`] writes.
pub const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// The metrics of all models; `isa` is the instruction set that runs them, `max_adapters` how many adapters a step
/// takes (0 for no limit), if there are any.
#[must_use]
pub fn format(models: &[Arc<Metrics>], isa: &str, max_adapters: Option<usize>) -> String {
    let mut page = Page {
        text: String::new(),
        max_adapters,
        models: models
            .iter()
            .map(|metrics| (labels(metrics), &**metrics))
            .collect(),
    };
    // A string takes whatever is written to it.
    let _written = page.write(isa);
    page.text
}

pub(super) struct Page<'m> {
    pub(super) text: String,
    max_adapters: Option<usize>,
    pub(super) models: Vec<(String, &'m Metrics)>,
}

impl Page<'_> {
    fn write(&mut self, isa: &str) -> fmt::Result {
        self.gauges()?;
        self.counters()?;
        self.histograms()?;
        experts::write(self)?;
        self.process(isa)?;
        llama_cpp::write(&mut self.text, &self.models)
    }

    fn gauges(&mut self) -> fmt::Result {
        self.each("num_requests_running", "gauge", "Texts that run.", |m| {
            m.running.value()
        })?;
        self.each(
            "num_requests_waiting",
            "gauge",
            "Requests that wait.",
            |m| m.waiting.value() + m.loading.value(),
        )?;
        let name = "num_requests_waiting_by_reason";
        self.head(
            name,
            "gauge",
            "Requests that wait for room, and for their model to be loaded.",
        )?;
        for (labels, m) in &self.models {
            for (reason, gauge) in [("capacity", &m.waiting), ("deferred", &m.loading)] {
                let value = gauge.value();
                writeln!(
                    self.text,
                    "sluice:{name}{{{labels},reason=\"{reason}\"}} {value:?}"
                )?;
            }
        }
        let help = "Part of the KV cache in use, 0 to 1.";
        self.each("kv_cache_usage_perc", "gauge", help, |m| m.kv_usage.value())?;
        self.adapters()
    }

    /// Which adapters have texts that run or wait: the value is the time, as vLLM has it.
    fn adapters(&mut self) -> fmt::Result {
        let Some(max) = self.max_adapters else {
            return Ok(());
        };
        let name = "lora_requests_info";
        self.head(
            name,
            "gauge",
            "Adapters of requests that run and wait; the value is the time.",
        )?;
        let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        let now = since.map_or(0.0, |time| time.as_secs_f64());
        for (labels, m) in &self.models {
            let names = m.adapters.lock().unwrap_or_else(PoisonError::into_inner);
            let [running, waiting] = [&names[0], &names[1]].map(|names| escaped(&names.join(",")));
            writeln!(
                self.text,
                "sluice:{name}{{{labels},max_lora=\"{max}\",running_lora_adapters=\"{running}\",\
                 waiting_lora_adapters=\"{waiting}\"}} {now:.3}"
            )?;
        }
        Ok(())
    }

    fn counters(&mut self) -> fmt::Result {
        self.count("prompt_tokens", "Tokens of prompts.", |m| &m.prompt_tokens)?;
        let help = "Tokens of prompts that the prefix cache had.";
        self.count("prompt_tokens_cached", help, |m| &m.prompt_tokens_cached)?;
        self.count("generation_tokens", "Tokens written.", |m| {
            &m.generation_tokens
        })?;
        let help = "Texts that ended, by reason.";
        let ends = |m: &Metrics| m.finished.each_ref().map(Counter::value).to_vec();
        self.by(
            "request_success",
            "finished_reason",
            &END_REASONS,
            help,
            ends,
        )?;
        let help = "Requests that were refused, by reason.";
        let rejected = |m: &Metrics| m.rejected.each_ref().map(Counter::value).to_vec();
        self.by(
            "admission_rejections",
            "reason",
            &REJECT_REASONS,
            help,
            rejected,
        )?;
        let help = "Requests that had to wait, by reason.";
        let queued = |m: &Metrics| m.queued.each_ref().map(Counter::value).to_vec();
        self.by("requests_queued", "reason", &QUEUE_REASONS, help, queued)?;
        let help = "Times that a text's state was dropped to make room.";
        self.count("num_preemptions", help, |m| &m.preemptions)?;
        let help = "Tokens that the prefix cache was asked for.";
        self.count("prefix_cache_queries", help, |m| &m.prefix_queries)?;
        self.count("prefix_cache_hits", "Tokens that it had.", |m| {
            &m.prefix_hits
        })?;
        let help = "Tokens of turns in which all texts write and no prompt is read.";
        self.count("decode_turn_tokens", help, |m| &m.decode_turn_tokens)?;
        let help = "Seconds of those turns.";
        self.each("decode_turn_seconds_total", "counter", help, |m| {
            m.decode_turn_time.value()
        })?;
        for (name, help, of) in SPECULATION {
            self.head(&format!("{name}_total"), "counter", help)?;
            for (labels, m) in &self.models {
                let value = of(&m.drafts());
                writeln!(self.text, "sluice:{name}_total{{{labels}}} {value}")?;
            }
        }
        self.head(
            &format!("{PER_POSITION}_total"),
            "counter",
            PER_POSITION_HELP,
        )?;
        for (labels, m) in &self.models {
            for (position, n) in m.drafts().accepted_at.iter().enumerate() {
                let labels = format!("{labels},position=\"{position}\"");
                writeln!(self.text, "sluice:{PER_POSITION}_total{{{labels}}} {n}")?;
            }
        }
        Ok(())
    }

    fn histograms(&mut self) -> fmt::Result {
        type Of = fn(&Metrics) -> &Histogram;
        let all: [(&str, &str, Of); 13] = [
            (
                "time_to_first_token_seconds",
                "From arrival to the first token.",
                |m| &m.first_token,
            ),
            (
                "inter_token_latency_seconds",
                "From one token to the next.",
                |m| &m.inter_token,
            ),
            (
                "request_time_per_output_token_seconds",
                "Its mean over a text.",
                |m| &m.per_token,
            ),
            (
                "e2e_request_latency_seconds",
                "From arrival to the end.",
                |m| &m.e2e,
            ),
            (
                "request_queue_time_seconds",
                "From arrival to the beginning of reading.",
                |m| &m.queue,
            ),
            (
                "request_inference_time_seconds",
                "From there to the end.",
                |m| &m.inference,
            ),
            (
                "request_prefill_time_seconds",
                "From there to the first token.",
                |m| &m.prefill,
            ),
            (
                "request_decode_time_seconds",
                "From the first token to the last.",
                |m| &m.decode,
            ),
            ("iteration_tokens_total", "Tokens of a step.", |m| {
                &m.step_tokens
            }),
            ("request_prompt_tokens", "Tokens of a prompt.", |m| {
                &m.request_prompt
            }),
            ("request_generation_tokens", "Tokens of an answer.", |m| {
                &m.request_generation
            }),
            ("request_params_max_tokens", "Most tokens asked for.", |m| {
                &m.request_max_tokens
            }),
            ("request_params_n", "Choices asked for.", |m| &m.request_n),
        ];
        for (name, help, of) in all {
            self.head(name, "histogram", help)?;
            for (labels, m) in &self.models {
                of(m).write(&mut self.text, &format!("sluice:{name}"), labels)?;
            }
        }
        Ok(())
    }

    fn process(&mut self, isa: &str) -> fmt::Result {
        self.head("isa_info", "gauge", "The instruction set in use.")?;
        writeln!(self.text, "sluice:isa_info{{isa=\"{}\"}} 1", escaped(isa))?;
        if let Some(bytes) = resident_bytes() {
            let name = "process_resident_memory_bytes";
            writeln!(
                self.text,
                "# HELP {name} Memory of the process.\n# TYPE {name} gauge"
            )?;
            writeln!(self.text, "{name} {bytes}")?;
        }
        Ok(())
    }

    pub(super) fn head(&mut self, name: &str, kind: &str, help: &str) -> fmt::Result {
        writeln!(
            self.text,
            "# HELP sluice:{name} {help}\n# TYPE sluice:{name} {kind}"
        )
    }

    fn each(&mut self, name: &str, kind: &str, help: &str, of: fn(&Metrics) -> f64) -> fmt::Result {
        self.head(name, kind, help)?;
        for (labels, m) in &self.models {
            writeln!(self.text, "sluice:{name}{{{labels}}} {:?}", of(m))?;
        }
        Ok(())
    }

    fn count(&mut self, name: &str, help: &str, of: fn(&Metrics) -> &Counter) -> fmt::Result {
        let name = format!("{name}_total");
        self.head(&name, "counter", help)?;
        for (labels, m) in &self.models {
            writeln!(self.text, "sluice:{name}{{{labels}}} {}", of(m).value())?;
        }
        Ok(())
    }

    fn by(
        &mut self,
        name: &str,
        label: &str,
        reasons: &[&str],
        help: &str,
        of: fn(&Metrics) -> Vec<u64>,
    ) -> fmt::Result {
        let name = format!("{name}_total");
        self.head(&name, "counter", help)?;
        for (labels, m) in &self.models {
            for (reason, value) in reasons.iter().zip(of(m)) {
                writeln!(
                    self.text,
                    "sluice:{name}{{{labels},{label}=\"{reason}\"}} {value}"
                )?;
            }
        }
        Ok(())
    }
}

fn labels(metrics: &Metrics) -> String {
    format!("model_name=\"{}\",engine=\"0\"", escaped(&metrics.model))
}

fn escaped(value: &str) -> String {
    let value = value.replace('\\', "\\\\").replace('"', "\\\"");
    value.replace('\n', "\\n")
}

/// Memory of the process, as the kernel says.
fn resident_bytes() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kib << 10)
}

/// A number of draft tokens: its name, what it is, where it is kept.
type DraftCount = (&'static str, &'static str, fn(&Figures) -> u64);

pub(super) const SPECULATION: [DraftCount; 3] = [
    (
        "spec_decode_num_drafts",
        "Times that drafts of a text were verified.",
        |all| all.n_drafts,
    ),
    ("spec_decode_num_draft_tokens", "Draft tokens.", |all| {
        all.n_draft
    }),
    (
        "spec_decode_num_accepted_tokens",
        "Draft tokens that were right.",
        |all| all.n_accepted,
    ),
];
pub(super) const PER_POSITION: &str = "spec_decode_num_accepted_tokens_per_pos";
pub(super) const PER_POSITION_HELP: &str =
    "Draft tokens that were right, by their place behind the text.";

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::{Finished, Step};
    use core::time::Duration;

    fn busy() -> Arc<Metrics> {
        let metrics = Metrics::new("a \"b\"");
        metrics.gauges(2, 3, 0.5);
        metrics.started(Duration::from_millis(10), 100, 40);
        metrics.first_token(Duration::from_millis(30));
        metrics.token(Duration::from_millis(3));
        metrics.step(Step {
            n_prompt_tokens: 0,
            n_decode_tokens: 2,
            n_busy: 2,
            time: Duration::from_millis(500),
        });
        metrics.finished(Finished {
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
            "llamacpp:n_tokens_max 102".to_owned(),
            "llamacpp:n_busy_slots_per_decode 2".to_owned(),
            "sluice:isa_info{isa=\"avx2\"} 1".to_owned(),
        ] {
            assert!(text.lines().any(|found| found == line), "{line}\n{text}");
        }
        let llama = text
            .lines()
            .filter(|line| line.starts_with("# TYPE llamacpp:"));
        assert_eq!(llama.count(), 15);
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
