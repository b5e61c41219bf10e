//! A model's own chat template: renders messages to the text format that the model was trained on.
//!
//! This is a library: it reads no files and runs no model. Templates are Jinja, rendered by [`sluice_jinja`] as Hugging
//! Face renders them, within its limits. Their variables are `messages`, `tools`, `documents`, `bos_token`,
//! `eos_token`, `add_generation_prompt`, and any others that the caller adds. Variables that the caller does not set
//! are undefined, except `tools` and `documents`, which are `none`.

#![forbid(unsafe_code)]

use serde::{Deserialize, Deserializer, Serialize};
use serde_json::Map;
use sluice_core::gguf::{Gguf, GgufError};
pub use sluice_jinja::{Rendered, strftime};
use sluice_jinja::{Template, TemplateError, Variables};
use std::borrow::Cow;
use std::time::SystemTime;

/// A template that has been checked to be well formed.
#[derive(Clone, Debug)]
pub struct ChatTemplate(Template);

/// One turn of a conversation, as in the OpenAI API.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Message {
    /// `system`, `user`, `assistant`, `tool`, or another role that the template knows.
    pub role: String,
    /// A string, or a list of parts such as `{"type": "text", "text": "..."}`. `None` is a
    /// message without the field, which templates can distinguish from null.
    #[serde(
        default,
        deserialize_with = "present",
        skip_serializing_if = "Option::is_none"
    )]
    pub content: Option<serde_json::Value>,
    /// All other fields: `name`, `tool_calls`, `tool_call_id`, `reasoning_content`, ...
    #[serde(flatten)]
    pub extra: Map<String, serde_json::Value>,
}

/// What a template is rendered with in addition to the messages.
#[derive(Clone, Debug, Default)]
pub struct RenderOptions {
    /// End with the start of the assistant's turn.
    pub add_generation_prompt: bool,
    /// The text of the token that begins a sequence. If a template prints it, tokenizing the prompt
    /// must not add another one.
    pub bos_token: Option<String>,
    /// The text of the token that ends a sequence.
    pub eos_token: Option<String>,
    /// Functions the model may call, as JSON schemas.
    pub tools: Option<Vec<serde_json::Value>>,
    /// Documents to answer from.
    pub documents: Option<Vec<serde_json::Value>>,
    /// More variables, such as `enable_thinking`. They take precedence over the ones above.
    pub extra: Map<String, serde_json::Value>,
    /// The time that `strftime_now` uses; `None` for the current time.
    pub now: Option<SystemTime>,
}

/// Why a prompt could not be rendered.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
#[expect(missing_docs, reason = "the fields are described with their variants")]
pub enum ChatTemplateError {
    /// The file has no template of this name.
    #[error("metadata key {key} is missing")]
    Missing { key: String },
    /// The file's metadata entry is not a string.
    #[error(transparent)]
    Gguf(#[from] GgufError),
    /// The template is not well formed, failed, or refused the messages.
    #[error(transparent)]
    Template(#[from] TemplateError),
}

impl Message {
    /// A message of plain text.
    #[must_use]
    pub fn new(role: &str, content: &str) -> Self {
        Self {
            role: role.to_owned(),
            content: Some(content.into()),
            extra: Map::new(),
        }
    }
}

impl ChatTemplate {
    /// Checks a template ([`Template::parse`]).
    ///
    /// # Errors
    /// It is too long or not valid Jinja; the error names the line.
    pub fn parse(source: &str) -> Result<Self, ChatTemplateError> {
        Ok(Self(Template::parse(source)?))
    }

    /// The template in a model's file: `tokenizer.chat_template`, or, with a name, the one at
    /// `tokenizer.chat_template.NAME` (`tool_use`, `rag`).
    ///
    /// # Errors
    /// The file has no such template, the entry is not a string, or [`Self::parse`] fails.
    pub fn from_gguf(gguf: &Gguf<'_>, name: Option<&str>) -> Result<Self, ChatTemplateError> {
        let key = match name {
            None => Cow::Borrowed(KEY),
            Some(name) => Cow::Owned(format!("{KEY}.{name}")),
        };
        match gguf.str(&key) {
            Ok(source) => Self::parse(source),
            Err(error) if error.is_missing() => {
                let key = key.into_owned();
                Err(ChatTemplateError::Missing { key })
            }
            Err(error) => Err(error.into()),
        }
    }

    /// Its source ([`Template::source`]).
    #[must_use]
    pub fn source(&self) -> &str {
        self.0.source()
    }

    /// Whether it marks what the model generates ([`Template::marks_generated`]).
    #[must_use]
    pub const fn marks_generated(&self) -> bool {
        self.0.marks_generated()
    }

    /// The prompt for `messages`, which go in unchanged ([`Template::render`]).
    ///
    /// # Errors
    /// The template refuses the messages, fails, or exceeds a limit; the error names the line.
    pub fn render(
        &self,
        messages: &[Message],
        options: &RenderOptions,
    ) -> Result<String, ChatTemplateError> {
        let now = options.now.unwrap_or_else(SystemTime::now);
        Ok(self.0.render(variables(messages, options), now)?)
    }

    /// As [`Self::render`], with what the template marks as generated ([`Template::render_generated`]).
    ///
    /// # Errors
    /// As [`Self::render`], or the template changes text after it has marked it.
    pub fn render_generated(
        &self,
        messages: &[Message],
        options: &RenderOptions,
    ) -> Result<Rendered, ChatTemplateError> {
        let now = options.now.unwrap_or_else(SystemTime::now);
        Ok(self.0.render_generated(variables(messages, options), now)?)
    }
}

fn variables(messages: &[Message], options: &RenderOptions) -> Variables {
    let mut variables = Variables::default();
    variables.set("messages", messages);
    variables.set("tools", &options.tools);
    variables.set("documents", &options.documents);
    variables.set("add_generation_prompt", &options.add_generation_prompt);
    let tokens = [
        ("bos_token", &options.bos_token),
        ("eos_token", &options.eos_token),
    ];
    for (name, token) in tokens {
        if let Some(token) = token {
            variables.set(name, token);
        }
    }
    for (name, value) in &options.extra {
        variables.set(name, value);
    }
    variables
}

/// A field that is present, even if it is null.
fn present<'de, D: Deserializer<'de>>(field: D) -> Result<Option<serde_json::Value>, D::Error> {
    serde_json::Value::deserialize(field).map(Some)
}

const KEY: &str = "tokenizer.chat_template";
