//! The metrics of a model, updated by the engine and shown by `GET /metrics`.
//!
//! The names are vLLM's with our prefix, and llama.cpp's own. All methods take `&self` and a few nanoseconds.

mod experts;
mod histogram;
mod keys;
mod llama_cpp;
mod page;
mod text;

pub use keys::{KeyFigures, format_keys};
pub(crate) use page::{counter, gauge};
pub use text::{CONTENT_TYPE, format};

use core::time::Duration;
use experts::Experts;
use histogram::{Counter, Gauge, Histogram, Seconds};
use sluice::core::engine::Neurons;
use sluice::experts::ExpertStats;
use sluice::speculate::Figures;
use std::sync::{Arc, Mutex, PoisonError};

/// Declares [`Metrics`]: its fields, and its histograms with their borders, names and help texts.
macro_rules! metrics {
    ({ $($field:ident: $type:ty,)* } $($histogram:ident $of:ident $borders:ident $name:literal $help:literal;)*) => {
        /// The metrics of one model.
        #[derive(Debug)]
        pub struct Metrics {
            model: String,
            $($field: $type,)*
            $($histogram: Histogram,)*
        }

        impl Metrics {
            /// Metrics of the model called `model`.
            #[must_use]
            pub fn new(model: &str) -> Self {
                Self {
                    model: model.to_owned(),
                    $($field: Default::default(),)*
                    $($histogram: Histogram::$of(&$borders),)*
                }
            }
        }

        /// All histograms, in the order of the page.
        const HISTOGRAMS: &[(&str, &str, fn(&Metrics) -> &Histogram)] =
            &[$(($name, $help, |metrics| &metrics.$histogram)),*];
    };
}

metrics! {
    {
        // Names of adapters with running texts, and of those with waiting texts.
        adapters: Mutex<[Vec<Arc<str>>; 2]>,
        drafts: Mutex<Figures>,
        experts: Mutex<Experts>,
        running: Gauge, waiting: Gauge, loading: Gauge, kv_usage: Gauge,
        prompt_tokens: Counter, prompt_tokens_cached: Counter, generation_tokens: Counter,
        queued: [Counter; QUEUE_REASONS.len()],
        finished: [Counter; END_REASONS.len()],
        rejected: [Counter; REJECT_REASONS.len()],
        neurons_computed: Counter, neurons_skipped: Counter, neuron_bytes_read: Counter, neuron_bytes_skipped: Counter,
        preemptions: Counter, prefix_queries: Counter, prefix_hits: Counter,
        steps: Counter, decode_steps: Counter, busy: Counter, n_tokens_max: Counter,
        decode_turn_tokens: Counter, decode_turn_time: Seconds,
        prefill_time: Seconds, decode_time: Seconds,
    }
    first_token of_time FIRST_TOKEN "time_to_first_token_seconds" "Time from arrival to the first token.";
    inter_token of_time TOKEN "inter_token_latency_seconds" "Time between consecutive tokens.";
    per_token of_time TOKEN "request_time_per_output_token_seconds" "Mean time between consecutive tokens of a request.";
    e2e of_time REQUEST "e2e_request_latency_seconds" "Time from arrival to the end.";
    queue of_time REQUEST "request_queue_time_seconds" "Time from arrival to the start of prompt processing.";
    inference of_time REQUEST "request_inference_time_seconds" "Time from the start of prompt processing to the end.";
    prefill of_time REQUEST "request_prefill_time_seconds" "Time from the start of prompt processing to the first token.";
    decode of_time REQUEST "request_decode_time_seconds" "Time from the first token to the last.";
    step_tokens of_numbers STEP_TOKENS "iteration_tokens_total" "Tokens per step.";
    request_prompt of_numbers NUMBERS "request_prompt_tokens" "Prompt tokens per request.";
    request_generation of_numbers NUMBERS "request_generation_tokens" "Generated tokens per request.";
    request_max_tokens of_numbers NUMBERS "request_params_max_tokens" "Requested maximum of generated tokens.";
    request_n of_numbers N "request_params_n" "Requested number of choices.";
}

/// How a text ended, recorded for each choice of a request.
#[derive(Clone, Copy, Debug)]
pub struct EndFigures {
    /// `stop`, `length`, `abort` or `error`.
    pub reason: &'static str,
    /// From arrival to the end.
    pub e2e: Duration,
    /// From the beginning of reading to the end.
    pub inference: Duration,
    /// From the beginning of reading to the first token.
    pub prefill: Duration,
    /// From the first token to the last.
    pub decode: Duration,
    /// Tokens of the prompt, including cached ones.
    pub n_prompt: usize,
    /// Tokens written.
    pub n_predicted: usize,
}

/// One step of the engine.
#[derive(Clone, Copy, Debug)]
pub struct StepFigures {
    /// Number of prompt tokens read.
    pub n_prompt_tokens: usize,
    /// Number of tokens written.
    pub n_decode_tokens: usize,
    /// Number of texts in the step.
    pub n_busy: usize,
    /// Neurons that could be left unread, and that were.
    pub neurons: Neurons,
    /// The step's duration.
    pub time: Duration,
}

impl Metrics {
    /// Sets the adapters with running texts, and those with waiting texts.
    pub fn adapters(&self, running: Vec<Arc<str>>, waiting: Vec<Arc<str>>) {
        *self.adapters.lock().unwrap_or_else(PoisonError::into_inner) = [running, waiting];
    }

    /// Sets the draft token counts.
    pub fn drafted(&self, figures: &Figures) {
        *self.drafts.lock().unwrap_or_else(PoisonError::into_inner) = *figures;
    }

    /// Sets the statistics of experts on disk, counted by store `store`; later stores have higher numbers.
    pub fn experts(&self, store: u32, stats: &ExpertStats) {
        let mut experts = self.experts.lock().unwrap_or_else(PoisonError::into_inner);
        experts.count(store, stats);
    }

    /// The figures last passed to [`Self::drafted`].
    fn drafts(&self) -> Figures {
        *self.drafts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The model's name.
    #[must_use]
    pub fn model(&self) -> &str {
        &self.model
    }

    /// Records that a request waits because of `reason`: `capacity`, `memory`, `priority` or `fairness`.
    pub fn queued(&self, reason: &str) {
        self.queued[index(&QUEUE_REASONS, reason)].add(1);
    }

    /// Records that reading of a prompt of `n_prompt` tokens started after waiting for `queue`; `n_cached` were cached.
    pub fn started(&self, queue: Duration, n_prompt: usize, n_cached: usize) {
        self.queue.observe_time(queue);
        self.prompt_tokens.add(n_prompt as u64);
        self.prompt_tokens_cached.add(n_cached as u64);
    }

    /// Records the time from a request's arrival to a text's first token.
    pub fn first_token(&self, since_arrival: Duration) {
        self.first_token.observe_time(since_arrival);
        self.generation_tokens.add(1);
    }

    /// Records the time between two tokens of a text.
    pub fn token(&self, since_last: Duration) {
        self.inter_token.observe_time(since_last);
        self.generation_tokens.add(1);
    }

    /// Records the end of a text.
    pub fn finished(&self, end: EndFigures) {
        self.finished[index(&END_REASONS, end.reason)].add(1);
        self.e2e.observe_time(end.e2e);
        self.inference.observe_time(end.inference);
        self.prefill.observe_time(end.prefill);
        self.decode.observe_time(end.decode);
        self.prefill_time.add(end.prefill);
        self.decode_time.add(end.decode);
        self.request_prompt.observe_number(end.n_prompt);
        self.request_generation.observe_number(end.n_predicted);
        self.n_tokens_max
            .raise((end.n_prompt + end.n_predicted) as u64);
        if let Some(intervals) = u32::try_from(end.n_predicted).ok().filter(|&n| n > 1) {
            self.per_token.observe_time(end.decode / (intervals - 1));
        }
    }

    /// Records that a request was refused: `queue_full`, `too_long`, `deadline` or `unloaded`.
    pub fn rejected(&self, reason: &str) {
        self.rejected[index(&REJECT_REASONS, reason)].add(1);
    }

    /// Records that a text's state was dropped to make room.
    pub fn preempted(&self) {
        self.preemptions.add(1);
    }

    /// Number of steps that have ended.
    pub fn n_steps(&self) -> u64 {
        self.steps.value()
    }

    /// Records a step.
    pub fn step(&self, step: StepFigures) {
        self.steps.add(1);
        self.busy.add(step.n_busy as u64);
        let all = step.neurons;
        self.neurons_computed.add((all.n - all.n_skipped) as u64);
        self.neurons_skipped.add(all.n_skipped as u64);
        self.neuron_bytes_read
            .add((all.bytes - all.bytes_skipped) as u64);
        self.neuron_bytes_skipped.add(all.bytes_skipped as u64);
        self.step_tokens
            .observe_number(step.n_prompt_tokens + step.n_decode_tokens);
        if step.n_decode_tokens > 0 {
            self.decode_steps.add(1);
            if step.n_prompt_tokens == 0 {
                self.decode_turn_tokens.add(step.n_decode_tokens as u64);
                self.decode_turn_time.add(step.time);
            }
        }
    }

    /// Records a lookup in the prefix cache: the number of tokens looked up, and how many of them were found.
    pub fn prefix(&self, n_queried_tokens: usize, n_hit_tokens: usize) {
        self.prefix_queries.add(n_queried_tokens as u64);
        self.prefix_hits.add(n_hit_tokens as u64);
    }

    /// Sets the gauges: running texts, waiting requests, and the fraction of the KV cache in use (0 to 1).
    pub fn gauges(&self, running: usize, waiting: usize, kv_usage: f64) {
        self.running.set(running as f64);
        self.waiting.set(waiting as f64);
        self.kv_usage.set(kv_usage);
    }

    /// Sets the number of requests that wait until the model is loaded.
    pub fn loading(&self, n: usize) {
        self.loading.set(n as f64);
    }

    /// Records what a request asks for: the number of choices, and the maximum number of tokens of each.
    pub fn asked(&self, n_choices: usize, max_tokens: Option<usize>) {
        self.request_n.observe_number(n_choices);
        if let Some(n) = max_tokens {
            self.request_max_tokens.observe_number(n);
        }
    }
}

/// The index of `reason` among the known ones; the last one is for all others.
fn index(reasons: &[&str], reason: &str) -> usize {
    let last = reasons.len() - 1;
    reasons
        .iter()
        .position(|&known| known == reason)
        .unwrap_or(last)
}

const QUEUE_REASONS: [&str; 5] = ["capacity", "memory", "priority", "fairness", "other"];
const END_REASONS: [&str; 4] = ["stop", "length", "abort", "error"];
const REJECT_REASONS: [&str; 5] = ["queue_full", "too_long", "deadline", "unloaded", "other"];

// vLLM's buckets.
const FIRST_TOKEN: [f64; 22] = [
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0,
    20.0, 40.0, 80.0, 160.0, 640.0, 2560.0,
];
/// The first three are our own: small models write a token in less time than vLLM's first bucket covers.
const TOKEN: [f64; 22] = [
    0.001, 0.002, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5,
    5.0, 7.5, 10.0, 20.0, 40.0, 80.0,
];
const REQUEST: [f64; 21] = [
    0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0, 240.0,
    480.0, 960.0, 1920.0, 7680.0,
];
const STEP_TOKENS: [f64; 13] = [
    1.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0, 1024.0, 2048.0, 4096.0, 8192.0, 16384.0,
];
const NUMBERS: [f64; 18] = [
    1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1000.0, 2000.0, 5000.0, 10000.0, 20000.0,
    50000.0, 100_000.0, 200_000.0, 500_000.0,
];
const N: [f64; 5] = [1.0, 2.0, 5.0, 10.0, 20.0];
