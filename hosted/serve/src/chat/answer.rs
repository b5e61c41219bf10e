//! An answer taken apart as it comes: content, reasoning, calls.

use super::messages::Conversation;
use crate::api::error::ApiError;
use crate::api::fields::Fields;
use crate::api::request::Defaults;
use serde_json::{Value, json};

/// A part of an answer, as `sluice_text`'s parser of answers tells it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(
    not(test),
    expect(
        dead_code,
        reason = "reasoning and calls are told by the parser of answers alone"
    )
)]
pub(crate) enum Delta {
    /// Of its text.
    Content(String),
    /// Of what the model thinks before it.
    Reasoning(String),
    /// A call begins.
    CallBegin {
        /// Its number within the answer.
        index: usize,
        /// What its result is to name.
        id: String,
        /// The function.
        name: String,
    },
    /// Its arguments go on.
    CallArguments {
        /// Of which call.
        index: usize,
        /// The next part of their JSON.
        text: String,
    },
}

/// How the answers of a request are read.
#[derive(Clone, Debug)]
pub(crate) struct Answers {}

/// Takes the answer of one choice apart.
#[derive(Debug, Default)]
pub(crate) struct Answer {}

impl Answers {
    /// Reads tools and what is said of reasoning. Both are refused by name where they would change the answer.
    pub(crate) fn read(
        fields: Fields<'_>,
        _defaults: &Defaults,
        conversation: &mut Conversation,
    ) -> Result<Self, ApiError> {
        let has_tools = conversation.options.tools.is_some();
        if fields.value("tool_choice").and_then(Value::as_str) == Some("none") {
            conversation.options.tools = None;
        } else if has_tools {
            let why = "calls of tools are not supported yet, but for tool_choice \"none\"";
            return Err(ApiError::field("tools", why));
        }
        let formats = ["none", "auto", "deepseek", "deepseek-legacy"];
        fields.word("reasoning_format", &formats)?;
        let none = [json!(-1)];
        for name in ["reasoning_budget", "reasoning_budget_tokens"] {
            fields.refuse(name, &none, "budgets of reasoning are not supported yet")?;
        }
        Ok(Self {})
    }

    /// For an answer to a prompt.
    pub(crate) fn answer(&self, _prompt: &str) -> Answer {
        Answer {}
    }
}

impl Answer {
    /// What is known with the next piece of text.
    pub(crate) fn push(&mut self, piece: &str) -> Vec<Delta> {
        let is_empty = piece.is_empty();
        (!is_empty)
            .then(|| Delta::Content(piece.to_owned()))
            .into_iter()
            .collect()
    }

    /// What is known when nothing more comes.
    pub(crate) fn finish(&mut self) -> Vec<Delta> {
        Vec::new()
    }
}
