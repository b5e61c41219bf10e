//! Grammars put together from rules, marks and JSON schemas.
//!
//! A mark such as `<tool_call>` is one control token in some vocabularies and text in others, and
//! every schema must be rewritten before it is compiled. So such a grammar stays a list of
//! [`Part`]s until the vocabulary is known.

use super::{GrammarError, Vocabulary, json_schema};
use core::fmt::Write as _;
use llguidance::api::TopLevelGrammar;
use llguidance::derivre::RegexAst;

/// A part of a grammar. All parts, one behind the other, are rules, of which `start` is the first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Part {
    /// Notation of llguidance, which resembles Lark's.
    Lark(String),
    /// Exactly this: the control token of that name, or else the text.
    Mark(String),
    /// Any text up to the first mark of this name, and the mark.
    Until(String),
    /// A JSON value of this schema.
    Json(String),
    /// Nothing, but a schema that is refused elsewhere is refused here too.
    Check(String),
}

impl Part {
    /// What of it is written by a user.
    pub(super) fn len_bytes(&self) -> usize {
        let (Self::Lark(text)
        | Self::Mark(text)
        | Self::Until(text)
        | Self::Json(text)
        | Self::Check(text)) = self;
        text.len()
    }
}

/// The grammar, ready to be compiled, and what [`json_schema::put_in`] takes.
pub(super) fn joined(
    parts: &[Part],
    vocabulary: &Vocabulary,
) -> Result<(TopLevelGrammar, Vec<RegexAst>), GrammarError> {
    let mut text = String::new();
    let mut patterns = json_schema::Shared::default();
    // Of marks that are texts, the rules for what precedes them.
    let mut rules: Vec<&str> = Vec::new();
    for part in parts {
        match part {
            Part::Lark(lark) => text.push_str(lark),
            Part::Mark(mark) => match vocabulary.special(mark) {
                Some(id) => write_to(&mut text, format_args!(" <[{id}]> ")),
                None => write_to(&mut text, format_args!(" {} ", quoted(mark))),
            },
            Part::Until(mark) => {
                let is_framed = mark.starts_with("<|");
                let before = if is_framed { NO_MARK } else { ANY_TEXT };
                if let Some(id) = vocabulary.special(mark) {
                    write_to(&mut text, format_args!(" /{before}/ <[{id}]> "));
                } else if is_framed {
                    let mark = mark.replace('|', "\\|");
                    write_to(&mut text, format_args!(" /{NO_MARK}{mark}/ "));
                } else {
                    let known = rules.iter().position(|rule| rule == mark);
                    let number = known.unwrap_or(rules.len());
                    if number == rules.len() {
                        rules.push(mark);
                    }
                    write_to(&mut text, format_args!(" until_{number} "));
                }
            }
            Part::Json(schema) => {
                let schema = patterns.rewritten(schema)?;
                write_to(&mut text, format_args!(" %json {schema} "));
            }
            Part::Check(schema) => {
                json_schema::rewritten(schema)?;
            }
        }
    }
    for (number, mark) in rules.iter().enumerate() {
        let mark = quoted(mark);
        let rule = format_args!("\nuntil_{number}[suffix={mark}]: /{ANY_TEXT}/");
        write_to(&mut text, rule);
    }
    text.push('\n');
    Ok((TopLevelGrammar::from_lark(text), patterns.into_all()))
}

/// A text in the notation.
pub(crate) fn quoted(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

fn write_to(text: &mut String, arguments: core::fmt::Arguments<'_>) {
    // Writing into a text does not fail.
    let _ = text.write_fmt(arguments);
}

const ANY_TEXT: &str = "(?s:.*)";
/// Text without `<|`. Vocabularies have some such marks as text, which is not for what is free.
const NO_MARK: &str = "([^<]|<+[^<|])*";
