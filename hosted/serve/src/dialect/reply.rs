//! Building blocks of replies.

use crate::api::{PromptProgress, Reason, Start, Usage};
use crate::engine::Timings;
use core::time::Duration;
use serde_json::{Map, Value, json};

/// The fields that every chunk and reply of a request starts with.
#[derive(Clone, Debug)]
pub(super) struct Head {
    id: String,
    created: u64,
    model: String,
    fingerprint: String,
}

impl Head {
    /// A head whose id starts with `prefix`.
    pub(super) fn new(prefix: &str, start: &Start) -> Self {
        Self {
            id: format!("{prefix}{}", start.stream),
            created: start.stream.created,
            model: start.name.clone(),
            fingerprint: start.fingerprint.clone(),
        }
    }

    /// The fields that OpenAI's chunks and replies start with.
    pub(super) fn object(&self, object: &str) -> Map<String, Value> {
        let mut map = Map::new();
        map.insert("id".into(), self.id.clone().into());
        map.insert("object".into(), object.into());
        map.insert("created".into(), self.created.into());
        map.insert("model".into(), self.model.clone().into());
        map.insert("system_fingerprint".into(), self.fingerprint.clone().into());
        map
    }
}

/// OpenAI's `usage`.
pub(super) fn usage(usage: &Usage) -> Value {
    json!({
        "prompt_tokens": usage.n_prompt,
        "completion_tokens": usage.n_predicted,
        "total_tokens": usage.n_prompt + usage.n_predicted,
        "prompt_tokens_details": {"cached_tokens": usage.n_cached},
    })
}

/// OpenAI's `usage` of one choice so far.
pub(super) fn usage_so_far(n_prompt: usize, n_predicted: usize) -> Value {
    json!({
        "prompt_tokens": n_prompt,
        "completion_tokens": n_predicted,
        "total_tokens": n_prompt + n_predicted,
    })
}

/// llama-server's `prompt_progress`.
pub(super) fn progress(progress: &PromptProgress) -> Value {
    json!({
        "total": progress.total,
        "cache": progress.cached,
        "processed": progress.processed,
        "time_ms": millis(progress.time),
    })
}

/// OpenAI's `finish_reason`.
pub(super) const fn finish(reason: &Reason) -> &'static str {
    match reason {
        Reason::EndOfText | Reason::Stop(_) => "stop",
        Reason::Length | Reason::ContextFull | Reason::Late => "length",
    }
}

/// llama-server's `timings`, and how long the request waited.
pub(super) fn timings(timings: &Timings) -> Value {
    let prompt_ms = millis(timings.prompt);
    let predicted_ms = millis(timings.predict);
    // The first token comes from the prompt's step: the decode time covers the other tokens.
    let n_timed = timings.n_predicted.saturating_sub(1);
    let mut shown = json!({
        "cache_n": timings.cached,
        "prompt_n": timings.n_prompt,
        "prompt_ms": prompt_ms,
        "prompt_per_token_ms": ratio(prompt_ms, timings.n_prompt as f64),
        "prompt_per_second": ratio(timings.n_prompt as f64 * 1e3, prompt_ms),
        "predicted_n": timings.n_predicted,
        "predicted_ms": predicted_ms,
        "predicted_per_token_ms": ratio(predicted_ms, n_timed as f64),
        "predicted_per_second": ratio(n_timed as f64 * 1e3, predicted_ms),
        "queued_ms": millis(timings.queued),
        "preempted_n": timings.n_preempted,
    });
    if timings.n_drafted > 0 {
        shown["draft_n"] = timings.n_drafted.into();
        shown["draft_n_accepted"] = timings.n_accepted.into();
    }
    shown
}

pub(super) fn millis(time: Duration) -> f64 {
    (time.as_secs_f64() * 1e6).round() / 1e3
}

fn ratio(a: f64, b: f64) -> f64 {
    if b > 0.0 { a / b } else { 0.0 }
}
