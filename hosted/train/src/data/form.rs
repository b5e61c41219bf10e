//! Forms of rows: which columns they have, and what these become.

use super::columns::{maybe_text, text};
use super::rows::RawRow;
use super::{chat, sharegpt};
use crate::row::{ChatRow, Row, Turn};
use serde_json::{Map, Value};

/// A form of rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RowForm {
    /// A text.
    Text,
    /// A prompt and its completion, as texts or as lists of messages.
    PromptCompletion,
    /// A conversation.
    Messages,
    /// A prompt with a chosen and a rejected completion, of which the chosen is learned.
    Preference,
    /// A conversation of `{from, value}`.
    ShareGpt,
    /// An instruction, an input and an output.
    Alpaca,
    /// Token ids, and which of them are learned.
    Tokens,
}

impl RowForm {
    /// The form by its name in `dataset_type`; `None` for `auto`.
    pub(super) fn of_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|form| form.name() == name)
    }

    /// The name in `dataset_type`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Text => "text",
            Self::PromptCompletion => "prompt_completion",
            Self::Messages => "messages",
            Self::Preference => "preference",
            Self::ShareGpt => "sharegpt",
            Self::Alpaca => "alpaca",
            Self::Tokens => "tokens",
        }
    }

    /// The form that has these columns.
    pub(super) fn of_columns(
        columns: &Map<String, Value>,
        text_field: Option<&str>,
    ) -> Result<Self, String> {
        let has = |name: &str| columns.contains_key(name);
        if text_field.is_some() {
            return Ok(Self::Text);
        }
        let conversations = ["conversations", "conversation"].into_iter();
        let turns = conversations.filter_map(|name| columns.get(name)).next();
        Ok(match turns {
            Some(turns) => match chat::listed(turns).first() {
                Some(Value::Object(first)) if first.contains_key("role") => Self::Messages,
                _ => Self::ShareGpt,
            },
            None if has("messages") => Self::Messages,
            None if has("input_ids") => Self::Tokens,
            None if has("chosen") && has("rejected") => Self::Preference,
            None if has("prompt") && has("completion") => Self::PromptCompletion,
            None if has("instruction") && has("output") => Self::Alpaca,
            None if has("text") => Self::Text,
            None if has("prompt") => return Err(ONLY_PROMPT.to_owned()),
            None => {
                let names: Vec<_> = columns.keys().map(String::as_str).collect();
                let found = names.join(", ");
                return Err(format!("the columns {found} are of no known form: {KNOWN}"));
            }
        })
    }

    /// The columns that a row of this form uses.
    pub(super) fn columns(self, text_field: &str) -> Vec<&str> {
        match self {
            Self::Text => vec![text_field],
            Self::PromptCompletion => {
                vec!["prompt", "completion", "tools", "chat_template_kwargs"]
            }
            Self::Messages => vec![
                "messages",
                "conversations",
                "conversation",
                "tools",
                "chat_template_kwargs",
            ],
            Self::Preference => vec![
                "prompt",
                "chosen",
                "rejected",
                "tools",
                "chat_template_kwargs",
            ],
            Self::ShareGpt => vec!["conversations", "conversation", "system", "tools"],
            Self::Alpaca => vec!["instruction", "input", "output", "system", "history"],
            Self::Tokens => vec![
                "input_ids",
                "labels",
                "completion_mask",
                "assistant_masks",
                "attention_mask",
            ],
        }
    }

    /// The row.
    pub(super) fn parse(self, raw: &RawRow, text_field: &str) -> Result<Row, String> {
        let columns = &raw.columns;
        match self {
            Self::Text => Ok(Row::Text(text(columns, text_field)?)),
            Self::Messages => {
                let names = ["messages", "conversations", "conversation"];
                let found = names.into_iter().find(|name| columns.contains_key(*name));
                let turns = chat::turns(columns, found.unwrap_or("messages"))?;
                Ok(Row::Chat(chat::row(columns, turns, 0)?))
            }
            Self::PromptCompletion => chat::prompted(columns, "prompt", "completion"),
            Self::Preference => chat::preferred(columns),
            Self::ShareGpt => sharegpt::row(columns).map(Row::Chat),
            Self::Alpaca => alpaca(columns).map(Row::Chat),
            Self::Tokens => tokens(columns),
        }
    }

    const ALL: [Self; 7] = [
        Self::Text,
        Self::PromptCompletion,
        Self::Messages,
        Self::Preference,
        Self::ShareGpt,
        Self::Alpaca,
        Self::Tokens,
    ];
}

/// As LLaMA-Factory reads Alpaca's rows: the input is the second line of the user's message.
fn alpaca(columns: &Map<String, Value>) -> Result<ChatRow, String> {
    let mut turns = Vec::new();
    if let Some(system) = maybe_text(columns, "system")? {
        turns.push(Turn::new("system", &system));
    }
    for (n, pair) in columns
        .get("history")
        .map_or(Vec::new(), chat::listed)
        .iter()
        .enumerate()
    {
        let texts: Vec<_> = pair
            .as_array()
            .into_iter()
            .flatten()
            .map(Value::as_str)
            .collect();
        let [Some(question), Some(answer)] = texts[..] else {
            return Err(format!("history[{n}] is not a list of two texts"));
        };
        turns.push(Turn::new("user", question));
        turns.push(Turn::new("assistant", answer));
    }
    let mut asked = text(columns, "instruction")?;
    if let Some(input) = maybe_text(columns, "input")? {
        asked.push('\n');
        asked.push_str(&input);
    }
    turns.push(Turn::new("user", &asked));
    turns.push(Turn::new("assistant", &text(columns, "output")?));
    Ok(ChatRow {
        turns,
        ..ChatRow::default()
    })
}

/// Rows that are tokenized already, as TRL takes them.
fn tokens(columns: &Map<String, Value>) -> Result<Row, String> {
    let list = |name: &str| match columns.get(name) {
        None | Some(Value::Null) => Ok(None),
        Some(value) => {
            let items = chat::listed(value);
            let items: Option<Vec<i64>> = items.iter().map(Value::as_i64).collect();
            items
                .map(Some)
                .ok_or_else(|| format!("{name} is not a list of whole numbers"))
        }
    };
    let ids = list("input_ids")?.ok_or("the column input_ids is missing")?;
    let mut learned = vec![true; ids.len()];
    // A label of -100 marks a token that is not learned, and so does a mask of 0.
    let masks = [
        ("labels", -100),
        ("completion_mask", 0),
        ("assistant_masks", 0),
        ("attention_mask", 0),
    ];
    for (name, none) in masks {
        let Some(mask) = list(name)? else { continue };
        if mask.len() != ids.len() {
            let (n, len) = (mask.len(), ids.len());
            return Err(format!("{name} has {n} entries, and input_ids {len}"));
        }
        if name == "attention_mask" && mask.contains(&0) {
            return Err("attention_mask has zeros: rows are not padded".to_owned());
        }
        for (at, (&entry, learned)) in mask.iter().zip(&mut learned).enumerate() {
            *learned &= entry != none;
            if name == "labels" && entry != -100 && entry != ids[at] {
                return Err(format!(
                    "labels[{at}] is {entry}, and input_ids[{at}] {}",
                    ids[at]
                ));
            }
        }
    }
    let id = |(at, &id): (usize, &i64)| {
        u32::try_from(id).map_err(|_| format!("input_ids[{at}] is {id}, not a token"))
    };
    let ids = ids.iter().enumerate().map(id).collect::<Result<_, _>>()?;
    Ok(Row::Tokens { ids, learned })
}

const ONLY_PROMPT: &str = "rows have only a prompt: sft needs a completion, messages or text; for texts in the \
    column prompt, set dataset_text_field: prompt";
const KNOWN: &str = "text; prompt and completion; messages; prompt, chosen and rejected; conversations; instruction \
    and output; input_ids; or set dataset_text_field";
