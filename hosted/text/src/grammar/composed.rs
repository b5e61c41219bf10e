//! Grammars composed of rules, marks and JSON schemas.
//!
//! A mark such as `<tool_call>` is one control token in some vocabularies and text in others, and
//! each schema must be rewritten before it is compiled. So such a grammar is kept as a list of
//! [`Part`]s until the vocabulary is known.

use super::json_schema::{self, Marked, Shared};
use super::lark::{self, Writing};
use super::{GrammarError, Vocabulary, pattern, shorten};
use core::fmt::Write as _;
use core::ops::Range;
use llguidance::api::TopLevelGrammar;

/// A part of a grammar. All parts, concatenated, are rules; `start` is the first rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Part {
    /// llguidance's notation, which resembles Lark's.
    Lark(String),
    /// Exactly this mark: the control token with this name, or else the text.
    Mark(String),
    /// Any text up to the first occurrence of this mark, and the mark. If it begins with `<|`, the text cannot contain
    /// any such mark.
    Until(String),
    /// Any text up to the first of these marks, which may begin with a control token, and the mark.
    Find {
        /// A text from the user, so it can be anything.
        mark: String,
        /// Whether the text may also end before it.
        may_end: bool,
    },
    /// The rest of a mark after its first bytes, including any control tokens.
    Rest {
        /// The whole mark.
        mark: String,
        /// The number of bytes before the rest.
        from: usize,
    },
    /// A text that this regular expression matches.
    Regex(String),
    /// A text of this grammar in Lark's notation, inside a string of JSON.
    LarkInJson(String),
    /// A text of this grammar in Lark's notation that does not contain a mark.
    LarkUpTo {
        /// The grammar.
        source: String,
        /// The mark.
        mark: String,
    },
    /// A JSON value of this schema.
    Json(String),
    /// A string of this schema, written without quotes, and the end that follows it.
    Text {
        /// The schema of a string.
        schema: String,
        /// A mark that the text cannot contain.
        mark: String,
        /// The text that follows, which includes the mark.
        end: String,
        /// Around a text with `<`; empty if the format has none.
        wrapper: [&'static str; 2],
    },
    /// Matches nothing, but refuses a schema that would be refused elsewhere.
    Check(String),
}

impl Part {
    /// The length of the parts that the user wrote.
    pub(super) fn len_bytes(&self) -> usize {
        let (Self::Lark(text)
        | Self::Mark(text)
        | Self::Until(text)
        | Self::Find { mark: text, .. }
        | Self::Rest { mark: text, .. }
        | Self::Regex(text)
        | Self::LarkInJson(text)
        | Self::LarkUpTo { source: text, .. }
        | Self::Json(text)
        | Self::Text { schema: text, .. }
        | Self::Check(text)) = self;
        text.len()
    }
}

/// The grammar, ready to be compiled, and the patterns for its marks.
pub(super) fn joined(
    parts: &[Part],
    vocabulary: &Vocabulary,
) -> Result<(TopLevelGrammar, Marked), GrammarError> {
    let mut text = String::new();
    let mut patterns = Shared::default();
    // For marks that are text: the rules for the text before them.
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
                    let number = number_of(mark, &mut rules);
                    write_to(&mut text, format_args!(" until_{number} "));
                }
            }
            Part::Find { mark, may_end } => {
                let pieces = pieces(mark, vocabulary);
                if pieces.iter().all(|(_, control)| control.is_none()) {
                    let number = number_of(mark, &mut rules);
                    write_to(&mut text, format_args!(" until_{number} "));
                } else {
                    check_begin(mark, &pieces, *may_end, vocabulary)?;
                    write_to(&mut text, format_args!(" /{ANY_TEXT}/ "));
                    write_rest(&mut text, mark, &pieces, 0)?;
                }
            }
            Part::Rest { mark, from } => {
                write_rest(&mut text, mark, &pieces(mark, vocabulary), *from)?;
            }
            Part::Regex(regex) => {
                pattern::check_repetitions(regex).map_err(GrammarError::Compile)?;
                let regex = llguidance::regex_to_lark(regex, "");
                write_to(&mut text, format_args!("/{regex}/ "));
            }
            Part::LarkInJson(source) => text.push_str(&nested(source, Writing::Json)?),
            Part::LarkUpTo { source, mark } => {
                text.push_str(&nested(source, Writing::UpTo(mark))?);
            }
            Part::Json(schema) => {
                let schema = patterns.rewritten(schema)?;
                write_to(&mut text, format_args!(" %json {schema} "));
            }
            Part::Text {
                schema,
                mark,
                end,
                wrapper,
            } => {
                let pattern = json_schema::before_mark(schema, mark, end, *wrapper)?;
                let text_mark = quoted(&patterns.text(pattern)?);
                write_to(&mut text, format_args!(" {text_mark} "));
            }
            Part::Check(schema) => {
                json_schema::rewritten(schema)?;
            }
        }
    }
    write_rules(&mut text, &rules);
    Ok((TopLevelGrammar::from_lark(text), patterns.into_marked()))
}

fn nested(source: &str, writing: Writing<'_>) -> Result<String, GrammarError> {
    lark::nested(source, writing).map_err(GrammarError::Compile)
}

/// The rules for the text before each mark.
fn write_rules(text: &mut String, marks: &[&str]) {
    for (number, mark) in marks.iter().enumerate() {
        let mark = quoted(mark);
        let rule = format_args!("\nuntil_{number}[suffix={mark}]: /{ANY_TEXT}/");
        write_to(text, rule);
    }
    text.push('\n');
}

/// The number of the rule for the text before a mark.
fn number_of<'m>(mark: &'m str, rules: &mut Vec<&'m str>) -> usize {
    let known = rules.iter().position(|rule| *rule == mark);
    known.unwrap_or_else(|| {
        rules.push(mark);
        rules.len() - 1
    })
}

/// The ranges of text and control tokens in a mark.
type Pieces = Vec<(Range<usize>, Option<u32>)>;

fn pieces(mark: &str, vocabulary: &Vocabulary) -> Pieces {
    if let Some(id) = vocabulary.special(mark) {
        return vec![(0..mark.len(), Some(id))];
    }
    let mut pieces = Pieces::new();
    let (mut begin, mut at) = (0, 0);
    while at < mark.len() {
        let Some((end, id)) = control_at(mark, at, vocabulary) else {
            at += 1;
            continue;
        };
        if begin < at {
            pieces.push((begin..at, None));
        }
        pieces.push((at..end, Some(id)));
        (begin, at) = (end, end);
    }
    if begin < at {
        pieces.push((begin..at, None));
    }
    pieces
}

/// The end of the longest control token that begins at `at`, and its number. Within a mark, such tokens are recognised
/// by their brackets.
fn control_at(mark: &str, at: usize, vocabulary: &Vocabulary) -> Option<(usize, u32)> {
    let bytes = mark.as_bytes();
    if !matches!(bytes[at], b'<' | b'[') {
        return None;
    }
    let ends = at + 1..=mark.len().min(at + CONTROL_BYTES_MAX);
    let mut ends = ends
        .rev()
        .filter(|&end| matches!(bytes[end - 1], b'>' | b']'));
    ends.find_map(|end| Some((end, vocabulary.special(&mark[at..end])?)))
}

/// Checks how a mark begins. Free text cannot contain control tokens, so one at the start of a mark ends it; a control
/// token later in the mark would be found too late.
fn check_begin(
    mark: &str,
    pieces: &Pieces,
    may_end: bool,
    vocabulary: &Vocabulary,
) -> Result<(), GrammarError> {
    let ends = vocabulary.factory().tok_env().tok_trie().eos_tokens();
    let why = match pieces.first() {
        Some((_, Some(id))) if may_end && ends.contains(id) => "begins with an end-of-text token",
        Some((_, Some(_))) => return Ok(()),
        _ => "has a control token after text",
    };
    let mark = shorten(&quoted(mark));
    Err(GrammarError::Compile(format!("{mark} {why}")))
}

fn write_rest(
    text: &mut String,
    mark: &str,
    pieces: &Pieces,
    from: usize,
) -> Result<(), GrammarError> {
    for (place, control) in pieces {
        match control {
            _ if place.end <= from => {}
            Some(id) if place.start >= from => write_to(text, format_args!(" <[{id}]> ")),
            Some(_) => {
                let trigger = shorten(&quoted(&mark[..from]));
                let control = quoted(&mark[place.clone()]);
                let why = format!("{trigger} ends within the control token {control}");
                return Err(GrammarError::Compile(why));
            }
            None => {
                let literal = quoted(&mark[place.start.max(from)..place.end]);
                write_to(text, format_args!(" {literal} "));
            }
        }
    }
    Ok(())
}

/// A text, quoted in the notation.
pub(crate) fn quoted(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

fn write_to(text: &mut String, arguments: core::fmt::Arguments<'_>) {
    // Writing to a string cannot fail.
    let _ = text.write_fmt(arguments);
}

pub(super) const ANY_TEXT: &str = "(?s:.*)";
/// Text without `<|`. Some vocabularies have such marks as text, which free text must not contain.
const NO_MARK: &str = "([^<]|<+[^<|])*";
/// Maximum length of a control token's name within a mark.
const CONTROL_BYTES_MAX: usize = 64;
