//! The object that a response is, and what it repeats of its request.

use crate::answer::{unique, unix_time};
use crate::api::{ApiError, ErrorKind, Start, Total};
use serde_json::{Map, Value, json};

/// What a reply repeats of its request, and what the request asked to be shown.
#[derive(Clone, Debug, Default)]
pub(super) struct Echo {
    /// Fields of the response.
    pub(super) fields: Map<String, Value>,
    /// The names of tools whose input is a text.
    pub(super) custom: Vec<String>,
    pub(super) shown: Shown,
}

/// What a request asked to be shown.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Shown {
    /// Log-probabilities of tokens.
    pub(super) logprobs: bool,
    /// Reasoning as a summary, as clients show it, instead of as it is.
    pub(super) summary: bool,
    /// Reasoning in `encrypted_content`, for clients that send it back.
    pub(super) sealed: bool,
}

/// How a response stands.
#[derive(Clone, Debug)]
pub(super) enum Status {
    InProgress,
    Completed,
    /// It reached the maximum number of tokens.
    Incomplete,
    Failed(ApiError),
}

/// A response without its output.
pub(super) struct Frame {
    id: String,
    created: u64,
    model: String,
    fingerprint: String,
    fields: Map<String, Value>,
}

impl Frame {
    /// A response to a request that is refused; `model` is the name that it gave.
    pub(super) fn refused(model: String, fields: Map<String, Value>) -> Self {
        Self {
            id: unique("resp_"),
            created: unix_time(),
            model,
            fingerprint: String::new(),
            fields,
        }
    }

    pub(super) fn new(start: &Start, mut fields: Map<String, Value>) -> Self {
        let config = &start.sampling.config;
        fields.insert("temperature".into(), json!(config.temperature));
        fields.insert("top_p".into(), json!(config.top_p));
        Self {
            id: format!("resp_{}", start.stream),
            created: start.stream.created,
            model: start.name.clone(),
            fingerprint: start.fingerprint.clone(),
            fields,
        }
    }

    /// The response.
    pub(super) fn object(&self, status: &Status, output: &[Value], usage: Value) -> Value {
        let (word, reason, error) = match status {
            Status::InProgress => ("in_progress", None, None),
            Status::Completed => ("completed", None, None),
            Status::Incomplete => ("incomplete", Some("max_output_tokens"), None),
            Status::Failed(error) => ("failed", None, Some(error_of(error))),
        };
        let mut object = Map::new();
        for (name, value) in [
            ("id", self.id.clone().into()),
            ("object", "response".into()),
            ("created_at", self.created.into()),
            ("status", word.into()),
            ("error", error.into()),
            (
                "incomplete_details",
                reason.map(|reason| json!({"reason": reason})).into(),
            ),
            ("model", self.model.clone().into()),
            ("system_fingerprint", self.fingerprint.clone().into()),
            ("output", output.to_vec().into()),
            ("usage", usage),
        ] {
            object.insert(name.into(), value);
        }
        object.extend(self.fields.clone());
        object.into()
    }
}

/// The `error` of a response that failed. Clients shorten their conversations by its code.
fn error_of(error: &ApiError) -> Value {
    let code = match error.kind {
        ErrorKind::TooLong { .. } => "context_length_exceeded",
        ErrorKind::Busy => "rate_limit_exceeded",
        ErrorKind::Invalid => "invalid_prompt",
        _ => "server_error",
    };
    json!({"code": code, "message": error.to_string()})
}

/// The `usage` of a response; `n_reasoning` of its tokens were reasoning.
pub(super) fn usage(total: &Total, n_reasoning: usize) -> Value {
    let usage = &total.usage;
    json!({
        "input_tokens": usage.n_prompt,
        "input_tokens_details": {"cached_tokens": usage.n_cached, "cache_write_tokens": 0},
        "output_tokens": usage.n_predicted,
        "output_tokens_details": {"reasoning_tokens": n_reasoning},
        "total_tokens": usage.n_prompt + usage.n_predicted,
    })
}
