//! Parts of replies.

use crate::engine::Timings;
use core::time::Duration;
use serde_json::{Value, json};
use std::time::SystemTime;

/// What every chunk and reply of a request begins with.
#[derive(Clone, Debug)]
pub(crate) struct Head {
    pub(crate) id: String,
    pub(crate) created: u64,
    pub(crate) model: String,
    pub(crate) fingerprint: String,
}

/// Tokens of a request.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Usage {
    pub(crate) n_prompt: usize,
    pub(crate) n_cached: usize,
    pub(crate) n_predicted: usize,
}

impl Usage {
    pub(crate) fn to_value(self) -> Value {
        json!({
            "prompt_tokens": self.n_prompt,
            "completion_tokens": self.n_predicted,
            "total_tokens": self.n_prompt + self.n_predicted,
            "prompt_tokens_details": {"cached_tokens": self.n_cached},
        })
    }
}

/// llama-server's `timings`, and how long the request waited.
pub(crate) fn timings(timings: &Timings) -> Value {
    let prompt_ms = millis(timings.prompt);
    let predicted_ms = millis(timings.predict);
    // The first token comes with the prompt: the time of writing is that of the others.
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

/// Seconds since 1970.
pub(crate) fn unix_time() -> u64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    since.map_or(0, |time| time.as_secs())
}

pub(crate) fn millis(time: Duration) -> f64 {
    (time.as_secs_f64() * 1e6).round() / 1e3
}

fn ratio(a: f64, b: f64) -> f64 {
    if b > 0.0 { a / b } else { 0.0 }
}
