//! A model's own chat template: messages to the text that the model was trained on.
//!
//! This is the part for programs; it reads no file and starts no model. A template is Jinja, rendered
//! by minijinja as Hugging Face renders it with Python's jinja2:
//!
//! - `trim_blocks` and `lstrip_blocks`; methods of Python's strings, lists and dicts; `break` and
//!   `continue`; undefined names print nothing.
//! - `raise_exception(message)`, `strftime_now(format)` (in UTC), and `tojson` as Python's
//!   `json.dumps(ensure_ascii=False)` writes.
//! - `messages`, `tools`, `documents`, `bos_token`, `eos_token`, `add_generation_prompt`, and whatever
//!   else a caller adds. What a caller does not give is undefined, but for `tools` and `documents`,
//!   which are none.
//! - `{% generation %}` and `{% endgeneration %}`, which mark text for training, are accepted and
//!   mean nothing.
//!
//! # Hostile templates
//!
//! A template comes with a file from anywhere. It can print a wrong prompt; it can neither hang nor
//! take memory without bound, open files, nor include other templates. Limits, all of them stated
//! below: its length, the length of one tag, instructions, recursion, what one value weighs, how much all
//! values together touch, the output. Nothing here is a clock, so what is refused once is
//! refused always. A panic of minijinja's is caught and becomes an error.
//!
//! Operators, filters, tests and methods are Python's (`python`), scopes are jinja2's (`nodes`). What
//! is not is refused by name: the filters `random`, `urlize` and `wordwrap`, `autoescape`, `varargs`
//! and `kwargs` of macros, a plus sign before a value, characters by name, a generator as a text.
//! What differs: integers have 128 bits, one character taken out of Markup is plain, a macro tells
//! its arguments as a list, a generator made of another takes that one's items at once, and the
//! `if` of a loop is asked for all items before the first turn.
//!
//! Source: `src/transformers/utils/chat_template_utils.py` of huggingface/transformers for what is
//! defined; the tests compare with jinja2 itself.

#![forbid(unsafe_code)]

mod clock;
mod guard;
mod json;
mod marks;
mod nodes;
mod python;
mod rebuild;
mod slice;
mod source;

use core::panic::AssertUnwindSafe;
use guard::Guard;
use minijinja::machinery::{self, CodeGenerator};
use minijinja::value::Serde;
use minijinja::{AutoEscape, Environment, Error, ErrorKind, Value};
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::Map;
use sluice_core::gguf::{Gguf, GgufError};
use std::borrow::Cow;
use std::sync::Arc;
use std::time::SystemTime;

/// A template that is known to be well formed.
#[derive(Clone, Debug)]
pub struct ChatTemplate {
    /// Without the tags that mark generated text.
    source: String,
}

/// One turn of a conversation, as in the OpenAI API.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Message {
    /// `system`, `user`, `assistant`, `tool`, or what else the template knows.
    pub role: String,
    /// A string, or a list of parts such as `{"type": "text", "text": "..."}`. `None` is a
    /// message without the field, which is not the same to a template as a null.
    #[serde(
        default,
        deserialize_with = "present",
        skip_serializing_if = "Option::is_none"
    )]
    pub content: Option<serde_json::Value>,
    /// Every other field: `name`, `tool_calls`, `tool_call_id`, `reasoning_content`, ...
    #[serde(flatten)]
    pub extra: Map<String, serde_json::Value>,
}

/// What a template is told besides the messages.
#[derive(Clone, Debug, Default)]
pub struct RenderOptions {
    /// End with the start of the assistant's turn.
    pub add_generation_prompt: bool,
    /// The text of the token that begins a sequence. A template that prints it makes a prompt
    /// to which tokenizing must not add another.
    pub bos_token: Option<String>,
    /// The text of the token that ends a sequence.
    pub eos_token: Option<String>,
    /// Functions the model may call, as JSON schemas.
    pub tools: Option<Vec<serde_json::Value>>,
    /// Texts to answer from.
    pub documents: Option<Vec<serde_json::Value>>,
    /// More variables, such as `enable_thinking`. They take precedence over those above.
    pub extra: Map<String, serde_json::Value>,
    /// The time that `strftime_now` tells; the clock's where it is `None`.
    pub now: Option<SystemTime>,
}

/// Why there is no prompt.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
#[expect(missing_docs, reason = "the fields are described with their variants")]
pub enum ChatTemplateError {
    /// The file has no template of this name.
    #[error("metadata key {key} is missing")]
    Missing { key: String },
    /// The file's metadata entry is no text.
    #[error(transparent)]
    Gguf(#[from] GgufError),
    /// More than [`TEMPLATE_BYTES_MAX`].
    #[error("the template has {len} bytes, and may have {}", TEMPLATE_BYTES_MAX)]
    TooLong { len: usize },
    /// It prints nothing at all.
    #[error("the template is empty")]
    Empty,
    /// It is not Jinja, or goes beyond a limit; lines count from 1, 0 is unknown.
    #[error("template line {line}: {reason}")]
    Syntax { line: usize, reason: String },
    /// It failed on these messages, or went beyond a limit.
    #[error("template line {line}: {reason}")]
    Render { line: usize, reason: String },
    /// The template itself refuses these messages.
    #[error("template line {line} refuses the messages: {message}")]
    Raised { line: usize, message: String },
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
    /// Checks a template. A byte order mark is no part of it, and its lines may end as
    /// Windows writes them.
    ///
    /// # Errors
    /// It is too long or not Jinja; the line is named.
    pub fn parse(source: &str) -> Result<Self, ChatTemplateError> {
        if source.len() > TEMPLATE_BYTES_MAX {
            let len = source.len();
            return Err(ChatTemplateError::TooLong { len });
        }
        let source = source.strip_prefix('\u{feff}').unwrap_or(source);
        if source.trim().is_empty() {
            return Err(ChatTemplateError::Empty);
        }
        let source = source::without_generation_tags(&source::with_newlines(source));
        let template = Self { source };
        source::check_tags(&template.source)?;
        let compiled = contained(|| template.compile().map(drop).map_err(syntax_error));
        let unknown = |reason| ChatTemplateError::Syntax { line: 0, reason };
        compiled.unwrap_or_else(|reason| Err(unknown(reason)))?;
        Ok(template)
    }

    /// The template in a model's file: `tokenizer.chat_template`, or with a name the one at
    /// `tokenizer.chat_template.NAME` (`tool_use`, `rag`).
    ///
    /// # Errors
    /// There is none, it is no text, or as [`Self::parse`].
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

    /// The prompt for `messages`, at most [`OUTPUT_BYTES_MAX`] long. The template is compiled
    /// each time, which takes some ten microseconds per kilobyte of template.
    ///
    /// # Errors
    /// The template refuses the messages, fails, or goes beyond a limit; the line is named.
    pub fn render(
        &self,
        messages: &[Message],
        options: &RenderOptions,
    ) -> Result<String, ChatTemplateError> {
        let rendered = contained(|| self.render_within(messages, options));
        let unknown = |reason| ChatTemplateError::Render { line: 0, reason };
        rendered.unwrap_or_else(|reason| Err(unknown(reason)))
    }

    fn render_within(
        &self,
        messages: &[Message],
        options: &RenderOptions,
    ) -> Result<String, ChatTemplateError> {
        let environment = environment(options.now);
        let (instructions, blocks) = self.compile().map_err(syntax_error)?;
        let context = context(messages, options);
        let mut out = String::new();
        let mut output = machinery::make_string_output(&mut out);
        let escape = AutoEscape::None;
        machinery::eval(
            &environment,
            &instructions,
            context,
            &blocks,
            &mut output,
            escape,
        )
        .map_err(|error| render_error(&error))?;
        Ok(out)
    }

    fn compile(&self) -> Result<Compiled<'_>, Error> {
        let parsed = machinery::parse(&self.source, NAME, source::syntax()?)?;
        let mut generator = CodeGenerator::new(NAME, &self.source);
        generator.compile_stmt(&rebuild::statement(&parsed));
        Ok(generator.finish())
    }
}

type Compiled<'s> = (
    machinery::Instructions<'s>,
    std::collections::BTreeMap<&'s str, machinery::Instructions<'s>>,
);

/// What `work` returns, or a sentence if minijinja panicked, as fuzzing has seen it do. Nothing of
/// it outlives the panic.
fn contained<T>(work: impl FnOnce() -> T) -> Result<T, String> {
    let result = std::panic::catch_unwind(AssertUnwindSafe(work));
    result.map_err(|_| "the template broke its interpreter".to_owned())
}

fn environment(now: Option<SystemTime>) -> Environment<'static> {
    let mut environment = Environment::new();
    environment.set_fuel(Some(INSTRUCTIONS_MAX));
    environment.set_recursion_limit(RECURSION_MAX);
    environment.set_debug(false);
    environment.add_function(
        "raise_exception",
        |message: String| -> Result<Value, Error> { Err(Error::new(RAISED, message)) },
    );
    environment.add_function("strftime_now", move |format: &str| {
        clock::strftime(format, now.unwrap_or_else(SystemTime::now))
    });
    Arc::new(Guard::default()).install(&mut environment);
    environment
}

/// The variables.
fn context(messages: &[Message], options: &RenderOptions) -> Value {
    let mut variables: Vec<(&str, Value)> = vec![
        ("messages", Value::from(Serde(messages))),
        ("tools", Value::from(Serde(&options.tools))),
        ("documents", Value::from(Serde(&options.documents))),
        (
            "add_generation_prompt",
            options.add_generation_prompt.into(),
        ),
    ];
    let tokens = [
        ("bos_token", &options.bos_token),
        ("eos_token", &options.eos_token),
    ];
    for (name, token) in tokens {
        variables.extend(token.as_ref().map(|token| (name, Value::from(&**token))));
    }
    let extra = options.extra.iter();
    variables.extend(extra.map(|(name, value)| (&**name, Value::from(Serde(value)))));
    variables.push(("self", marks::template()));
    Value::from_pairs(variables)
}

fn syntax_error(error: Error) -> ChatTemplateError {
    let line = error.line().unwrap_or(0);
    let reason = match reason(&error) {
        sign if sign == "unexpected `+`" => "a plus sign before a value is not supported".into(),
        reason => reason,
    };
    ChatTemplateError::Syntax { line, reason }
}

fn render_error(error: &Error) -> ChatTemplateError {
    let line = error.line().unwrap_or(0);
    if error.kind() == RAISED {
        let message = error.detail().unwrap_or_default().to_owned();
        return ChatTemplateError::Raised { line, message };
    }
    let reason = match error.kind() {
        ErrorKind::OutOfFuel => "the template takes too long".to_owned(),
        ErrorKind::TooManyArguments => {
            format!(
                "{}; varargs and kwargs of macros are not supported",
                reason(error)
            )
        }
        _ => reason(error),
    };
    ChatTemplateError::Render { line, reason }
}

/// What went wrong, without the line, and not much longer than a line itself.
fn reason(error: &Error) -> String {
    let text = match error.detail() {
        Some(detail) => detail.to_owned(),
        None => error.kind().to_string(),
    };
    text.chars().take(REASON_CHARS_MAX).collect()
}

/// A field that is there, even if it is null.
fn present<'de, D: Deserializer<'de>>(field: D) -> Result<Option<serde_json::Value>, D::Error> {
    serde_json::Value::deserialize(field).map(Some)
}

/// Of a template in bytes; the longest known ones have some 25,000.
pub const TEMPLATE_BYTES_MAX: usize = 256 << 10;
/// Of everything that is printed, also into variables, in bytes.
pub const OUTPUT_BYTES_MAX: usize = 16 << 20;
/// What one value may weigh: its text, and 32 bytes for each element of a list or map.
pub const VALUE_BYTES_MAX: usize = 8 << 20;
/// What all operations of a rendering may walk over or make, in bytes; so many it may also
/// hold, if it is made for it.
pub const TOUCHED_BYTES_MAX: usize = 1 << 30;
/// Instructions of minijinja's machine; a long conversation takes some 100,000.
pub const INSTRUCTIONS_MAX: u64 = 10_000_000;
/// Of macros (4 each) and recursive loops.
const RECURSION_MAX: usize = 200;
const REASON_CHARS_MAX: usize = 400;
/// How a template's own refusal is told from other errors: minijinja never makes this kind
/// where nothing is serialised.
const RAISED: ErrorKind = ErrorKind::BadSerialization;
const KEY: &str = "tokenizer.chat_template";
const NAME: &str = "chat_template";
