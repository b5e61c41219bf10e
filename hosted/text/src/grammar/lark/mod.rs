//! Grammars in Lark's notation, as clients give them for the inputs of tools.
//!
//! Where a model writes the input as a string of JSON, each literal and each regular expression is replaced by one of
//! the escaped characters. Every character has one escaped form. The compiler's lexer looks only one byte ahead, but a
//! terminal may have to end before the backslash of the next one; so rules that are not recursive become parts of one
//! large terminal. What cannot be replaced is refused by its name.

mod reader;
mod source;
mod terminals;

use core::fmt::Write as _;
use reader::Reader;
use source::{Definition, Symbol};

/// How the text of a grammar is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Writing<'m> {
    /// Inside a string of JSON.
    Json,
    /// As it is, up to a mark that it cannot contain.
    UpTo(&'m str),
}

/// A grammar of `source` for texts that are written in this way, to be nested in another grammar.
///
/// # Errors
/// What is not supported, and in which line.
pub(super) fn nested(source: &str, writing: Writing<'_>) -> Result<String, String> {
    let grammar = Reader::new(super::plain(source), writing).read()?;
    let mut out = Out {
        definitions: &grammar.definitions,
        flat: Vec::new(),
        has_ignored: !grammar.ignored.is_empty(),
        text: String::from("%lark {\n"),
    };
    if !grammar.definitions.iter().any(|all| all.name == "start") {
        return Err("the rule \"start\" is missing".to_owned());
    }
    if writing == Writing::Json {
        out.flatten(&grammar.ignored)?;
    }
    out.write(&grammar.ignored);
    for terminal in grammar.added {
        out.text.push_str(&terminal);
    }
    out.text.push_str("} ");
    Ok(out.text)
}

/// Checks a grammar without a vocabulary, so that an error does not wait for a model.
///
/// # Errors
/// What is wrong or not supported, and in which line.
pub fn check_lark(source: &str) -> Result<(), String> {
    nested(source, Writing::Json)?;
    // Any mark will do.
    nested(source, Writing::UpTo("</"))?;
    Ok(())
}

/// The grammar that is being written.
struct Out<'g> {
    definitions: &'g [Definition],
    /// The rules that become terminals.
    flat: Vec<&'g str>,
    has_ignored: bool,
    text: String,
}

impl<'g> Out<'g> {
    /// Finds the rules that are not recursive. In others, no terminal may end where an escaped character could follow.
    fn flatten(&mut self, ignored: &[Vec<Symbol>]) -> Result<(), String> {
        loop {
            let n_before = self.flat.len();
            for rule in self.definitions.iter().filter(|all| !all.is_terminal) {
                let is_flat = |name: &str| {
                    let definition = self.definition(name);
                    definition.is_none_or(|all| all.is_terminal || self.flat.contains(&name))
                };
                let name: &'g str = &rule.name;
                if !self.flat.contains(&name) && rule.names().all(is_flat) {
                    self.flat.push(name);
                }
            }
            if self.flat.len() == n_before {
                break;
            }
        }
        let left = self.definitions.iter();
        let left = left.filter(|all| !all.is_terminal && !self.flat.contains(&&*all.name));
        for Definition {
            name, line, body, ..
        } in left
        {
            let open = body.iter().find(|symbol| self.is_open_symbol(symbol));
            let ignored = || {
                let mut all = ignored.iter().flatten();
                all.find(|symbol| self.is_escaped(symbol, 0))
            };
            if let Some(symbol) = open.or_else(ignored) {
                return Err(format!(
                    "line {line}: the rule {name} is recursive, and {symbol} in the grammar may be a text with characters that \
                     JSON escapes: that is not supported, because this model writes calls in JSON"
                ));
            }
        }
        Ok(())
    }

    fn is_open_symbol(&self, symbol: &Symbol) -> bool {
        match symbol {
            Symbol::Terminal { is_open, .. } => *is_open,
            Symbol::Name(name) => self.is_part(name) && self.is_open(name),
            Symbol::Other(_) => false,
        }
    }

    fn definition(&self, name: &str) -> Option<&'g Definition> {
        self.definitions.iter().find(|all| all.name == name)
    }

    /// Whether a name stands for a terminal, or a rule that becomes one.
    fn is_part(&self, name: &str) -> bool {
        self.flat.contains(&name) || self.definition(name).is_some_and(|all| all.is_terminal)
    }

    /// Whether a terminal's text may go on with an escaped character where it could also end.
    fn is_open(&self, name: &str) -> bool {
        let Some(definition) = self.definition(name) else {
            return false;
        };
        match &*definition.body {
            [Symbol::Terminal { is_open, .. }] => *is_open,
            // Only the end of a literal ends such a text.
            [.., Symbol::Terminal { is_literal, .. }]
                if *is_literal && !definition.has_choice() =>
            {
                false
            }
            body => body.iter().any(|symbol| self.is_escaped(symbol, 0)),
        }
    }

    /// Whether a text has characters that JSON escapes.
    fn is_escaped(&self, symbol: &Symbol, depth: usize) -> bool {
        match symbol {
            Symbol::Terminal { is_escaped, .. } => *is_escaped,
            Symbol::Name(name) => {
                let definition = self.definition(name).filter(|_| depth < DEPTH_MAX);
                let mut body = definition.iter().flat_map(|all| &all.body);
                body.any(|symbol| self.is_escaped(symbol, depth + 1))
            }
            Symbol::Other(_) => false,
        }
    }

    fn write(&mut self, ignored: &[Vec<Symbol>]) {
        if self.flat.contains(&"start") {
            self.text.push_str("start: ");
            self.name("start");
            self.text.push('\n');
        }
        for definition in self.definitions {
            self.name(&definition.name);
            self.text.push_str(": ");
            let is_flat = self.flat.contains(&&*definition.name);
            self.body(&definition.body, is_flat);
            self.text.push('\n');
        }
        for (number, body) in ignored.iter().enumerate() {
            // Writing to a string cannot fail.
            let _ = write!(self.text, "{IGNORED}{number}: ");
            self.body(body, false);
            let _ = write!(self.text, "\n%ignore {IGNORED}{number}\n");
        }
        if self.has_ignored {
            let names = (0..ignored.len()).map(|number| format!("{IGNORED}{number}"));
            let names = names.collect::<Vec<_>>().join(" | ");
            let _ = writeln!(self.text, "{IGNORED}: {names}");
        }
    }

    fn body(&mut self, body: &[Symbol], is_flat: bool) {
        for symbol in body {
            let is_terminal = match symbol {
                Symbol::Terminal { .. } => true,
                Symbol::Name(name) => self.definition(name).is_none_or(|all| all.is_terminal),
                Symbol::Other(_) => false,
            };
            let surrounds = is_flat && is_terminal && self.has_ignored;
            self.text.push_str(if surrounds { "(" } else { "" });
            match symbol {
                Symbol::Terminal { text, .. } | Symbol::Other(text) => self.text.push_str(text),
                Symbol::Name(name) => self.name(name),
            }
            self.text.push(' ');
            if surrounds {
                // The compiler ignores nothing at the beginning. Writing to a string cannot fail.
                let _ = write!(self.text, "{IGNORED}*) ");
            }
        }
    }

    fn name(&mut self, name: &str) {
        match self.flat.contains(&name) {
            // Rules with names that differ in these characters alone are numbered.
            true => {
                // Writing to a string cannot fail.
                let number = self.flat.iter().position(|flat| *flat == name);
                let _ = write!(self.text, "{FLAT}{}", number.unwrap_or_default());
            }
            false => self.text.push_str(name),
        }
    }
}

/// What the names of added terminals begin with.
const ADDED: &str = "ADDED_";
const FLAT: &str = "ADDED_RULE_";
const IGNORED: &str = "ADDED_IGNORED";
/// Terminals in terminals; the compiler has a smaller limit.
const DEPTH_MAX: usize = 100;
