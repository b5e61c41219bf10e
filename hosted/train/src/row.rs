//! Rows of known forms: what is read, and what is labelled.

use serde_json::{Map, Value};
use sluice_text::chat_template::Message;

/// A row whose form is known.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Row {
    Text(String),
    Completion { prompt: String, completion: String },
    Chat(ChatRow),
    Tokens { ids: Vec<u32>, learned: Vec<bool> },
}

/// A conversation.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct ChatRow {
    pub(crate) turns: Vec<Turn>,
    pub(crate) tools: Option<Vec<Value>>,
    /// Variables of the template.
    pub(crate) kwargs: Map<String, Value>,
    /// Turns before this one are a prompt.
    pub(crate) completion_from: usize,
}

/// A message, and whether it is learned if it is the assistant's.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Turn {
    pub(crate) message: Message,
    pub(crate) train: bool,
}

impl Turn {
    pub(crate) fn new(role: &str, content: &str) -> Self {
        Self {
            message: Message::new(role, content),
            train: true,
        }
    }
}
