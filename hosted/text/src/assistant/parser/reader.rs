//! Parses the inside of calls, character by character.

use super::event::{Event, Step};
use super::literal::Literal;
use super::named::Named;
use super::objects::Objects;
use super::xml::Xml;
use crate::assistant::marks::{GEMMA4, NameMarks, QWEN_CODER, TagMarks};
use crate::assistant::tool::Tool;

/// Parses the text after the mark that begins calls.
#[derive(Clone, Debug)]
pub(super) enum Reader {
    /// Only white space so far; the next character decides.
    Undecided(Kind),
    /// JSON objects.
    Objects(Objects),
    /// A name and a JSON object.
    Named(Named),
    /// Tags.
    Xml(Xml),
    /// Gemma 4's notation.
    Literal(Literal),
}

/// The format of the calls after a mark.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// Objects or tags up to a closing mark.
    Block(&'static str),
    /// A list of objects up to a closing mark.
    List(&'static str),
    /// Objects without a mark, which may also be an ordinary answer in JSON.
    Bare,
    /// Objects after a mark.
    Open,
    /// A list of objects, or a name and an object.
    Mistral,
    /// A name, a separator and an object.
    Named(&'static NameMarks),
    /// Tags.
    Tags(&'static TagMarks),
    /// A list of objects whose only key is the name.
    Keyed(&'static str),
}

impl Reader {
    /// A reader for one gpt-oss message, whose header has the name.
    pub(super) fn of_message(name: String) -> Self {
        Self::Named(Named::of_message(name))
    }

    /// Parses a character and appends its events to `events`.
    pub(super) fn push(&mut self, c: char, tools: &[Tool], events: &mut Vec<Event>) -> Step {
        if let Self::Undecided(kind) = self {
            if c.is_whitespace() {
                return Step::More;
            }
            *self = match (*kind, c) {
                (Kind::Block(_), '<') => Self::Xml(Xml::new(&QWEN_CODER)),
                (Kind::Tags(tags), _) if *tags == GEMMA4 => Self::Literal(Literal::new()),
                (Kind::Tags(tags), _) => Self::Xml(Xml::new(tags)),
                (Kind::Block(close) | Kind::List(close), _) => {
                    Self::Objects(Objects::new(close, false))
                }
                (Kind::Bare, _) => Self::Objects(Objects::new("", true)),
                (Kind::Open, _) | (Kind::Mistral, '[') => Self::Objects(Objects::new("", false)),
                (Kind::Mistral, _) => Self::Named(Named::mistral()),
                (Kind::Named(marks), _) => Self::Named(Named::marked(marks)),
                (Kind::Keyed(close), _) => Self::Objects(Objects::keyed(close)),
            };
        }
        match self {
            Self::Undecided(_) => Step::Bad,
            Self::Objects(objects) => objects.push(c, events),
            Self::Named(named) => named.push(c, events),
            Self::Xml(xml) => xml.push(c, tools, events),
            Self::Literal(literal) => literal.push(c, events),
        }
    }

    /// The text read beyond the end of the calls, after [`Step::Over`].
    pub(super) fn unread(&self) -> &str {
        match self {
            Self::Undecided(_) => "",
            Self::Objects(objects) => objects.unread(),
            Self::Named(named) => named.unread(),
            Self::Xml(xml) => xml.unread(),
            Self::Literal(literal) => literal.unread(),
        }
    }

    /// Whether the text may end here: no call is open.
    pub(super) fn is_between(&self) -> bool {
        match self {
            Self::Undecided(_) => false,
            Self::Objects(objects) => objects.is_between(),
            Self::Named(named) => named.is_between(),
            Self::Xml(xml) => xml.is_between(),
            Self::Literal(literal) => literal.is_between(),
        }
    }
}
