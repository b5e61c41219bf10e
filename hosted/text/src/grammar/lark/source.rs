//! A grammar as it was read.

use core::fmt;

/// A rule or a terminal.
#[derive(Debug)]
pub(super) struct Definition {
    pub(super) name: String,
    pub(super) is_terminal: bool,
    pub(super) body: Vec<Symbol>,
    pub(super) line: usize,
}

/// A part of a definition.
#[derive(Debug)]
pub(super) enum Symbol {
    /// A literal or a regular expression, as it is written now.
    Terminal {
        text: String,
        /// How the client wrote it.
        shown: String,
        /// Whether it has characters that JSON escapes.
        is_escaped: bool,
        /// Whether it may go on with such a character where it could also end.
        is_open: bool,
        /// Whether it is a single text.
        is_literal: bool,
    },
    Name(String),
    /// Operators and brackets.
    Other(String),
}

/// What was read.
#[derive(Debug, Default)]
pub(super) struct Source {
    pub(super) definitions: Vec<Definition>,
    pub(super) ignored: Vec<Vec<Symbol>>,
    /// Definitions of terminals that do not contain the mark.
    pub(super) added: Vec<String>,
}

impl Definition {
    /// Whether it has alternatives.
    pub(super) fn has_choice(&self) -> bool {
        let mut body = self.body.iter();
        body.any(|symbol| matches!(symbol, Symbol::Other(text) if text == "|"))
    }

    /// The names in it.
    pub(super) fn names(&self) -> impl Iterator<Item = &str> {
        self.body.iter().filter_map(|symbol| match symbol {
            Symbol::Name(name) => Some(&**name),
            Symbol::Terminal { .. } | Symbol::Other(_) => None,
        })
    }
}

impl fmt::Display for Symbol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Terminal { shown, .. } => f.write_str(shown),
            Self::Name(name) | Self::Other(name) => f.write_str(name),
        }
    }
}
