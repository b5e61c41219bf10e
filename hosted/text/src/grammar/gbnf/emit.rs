//! Writes rules in Lark.
//!
//! Each part that is not a single item gets its own name, so that the text has no nesting, however
//! deep the grammar is.

use super::{Expr, Rules};
use core::fmt::Write as _;

pub(super) fn emit(rules: &Rules, regular: &[bool]) -> String {
    let mut emitter = Emitter {
        is_regular: regular.iter().all(|&is| is),
        n_names: 0,
        lark: String::new(),
    };
    let root = emitter.rule_name(rules.root);
    emitter.define("start", &root);
    for (number, rule) in rules.rules.iter().enumerate() {
        let body = if emitter.is_regular {
            emitter.lexeme(&rule.body)
        } else {
            emitter.rule(&rule.body)
        };
        let name = emitter.rule_name(number);
        emitter.define(&name, &body);
    }
    emitter.lark
}

struct Emitter {
    /// Whether the whole grammar is one lexeme; otherwise each character is one.
    is_regular: bool,
    n_names: usize,
    lark: String,
}

impl Emitter {
    fn define(&mut self, name: &str, body: &str) {
        let _infallible = writeln!(self.lark, "{name}: {body}");
    }

    /// Lexemes have upper case names, rules lower case ones.
    fn rule_name(&self, number: usize) -> String {
        let letter = if self.is_regular { 'R' } else { 'r' };
        format!("{letter}{number}")
    }

    fn named(&mut self, letter: char, body: &str) -> String {
        let name = format!("{letter}{}", self.n_names);
        self.n_names += 1;
        self.define(&name, body);
        name
    }

    /// A regular expression as the body of a lexeme.
    fn lexeme(&mut self, expr: &Expr) -> String {
        match expr {
            Expr::Class { ranges, negated } => class(ranges, *negated),
            Expr::Text(text) => quoted(text),
            Expr::Rule(number) => self.rule_name(*number),
            Expr::Seq(parts) => self.joined(parts, " ", Self::lexeme_atom),
            Expr::Alt(parts) => self.joined(parts, " | ", Self::lexeme_atom),
            Expr::Repeat(inner, least, most) => {
                let atom = self.lexeme_atom(inner);
                repeated(&atom, *least, *most)
            }
        }
    }

    /// A regular expression as one item.
    fn lexeme_atom(&mut self, expr: &Expr) -> String {
        let body = self.lexeme(expr);
        match expr {
            Expr::Class { .. } | Expr::Text(_) | Expr::Rule(_) => body,
            _ => self.named('T', &body),
        }
    }

    /// A nested expression as the body of a rule. A lexeme matches as much as it can, which may be too much
    /// for what follows it, so each character is a lexeme and the parser tries all possibilities.
    fn rule(&mut self, expr: &Expr) -> String {
        match expr {
            Expr::Class { ranges, negated } => class(ranges, *negated),
            Expr::Text(text) if text.is_empty() => quoted(""),
            Expr::Text(text) => {
                let characters = text.chars().map(|c| quoted(c.encode_utf8(&mut [0; 4])));
                characters.collect::<Vec<_>>().join(" ")
            }
            Expr::Rule(number) => self.rule_name(*number),
            Expr::Seq(parts) => self.joined(parts, " ", Self::rule_atom),
            Expr::Alt(parts) => self.joined(parts, " | ", Self::rule_atom),
            Expr::Repeat(inner, least, most) => {
                let atom = self.rule_atom(inner);
                repeated(&atom, *least, *most)
            }
        }
    }

    /// A nested expression as one item of a rule.
    fn rule_atom(&mut self, expr: &Expr) -> String {
        let body = self.rule(expr);
        match expr {
            Expr::Class { .. } | Expr::Rule(_) => body,
            _ => self.named('t', &body),
        }
    }

    fn joined(
        &mut self,
        parts: &[Expr],
        separator: &str,
        atom: impl Fn(&mut Self, &Expr) -> String,
    ) -> String {
        if parts.is_empty() {
            return quoted("");
        }
        let atoms: Vec<String> = parts.iter().map(|part| atom(self, part)).collect();
        atoms.join(separator)
    }
}

fn repeated(atom: &str, least: u32, most: Option<u32>) -> String {
    match (least, most) {
        (_, Some(0)) => quoted(""),
        (0, None) => format!("{atom}*"),
        (1, None) => format!("{atom}+"),
        (0, Some(1)) => format!("{atom}?"),
        (least, None) => format!("{atom}{{{least},}}"),
        (least, Some(most)) => format!("{atom}{{{least},{most}}}"),
    }
}

/// A text as a JSON string, the form of strings in Lark here.
fn quoted(text: &str) -> String {
    let mut quoted = String::from("\"");
    for c in text.chars() {
        match c {
            '"' => quoted.push_str("\\\""),
            '\\' => quoted.push_str("\\\\"),
            c if c < ' ' || c == '\u{7f}' => {
                let _infallible = write!(quoted, "\\u{:04x}", u32::from(c));
            }
            c => quoted.push(c),
        }
    }
    quoted.push('"');
    quoted
}

/// A character class as a regular expression; without ranges, any character.
fn class(ranges: &[(char, char)], negated: bool) -> String {
    if ranges.is_empty() && negated {
        return "/(?s:.)/".into();
    }
    let mut class = String::from(if negated { "/[^" } else { "/[" });
    for &(first, last) in ranges {
        let _infallible = write!(
            class,
            r"\x{{{:x}}}-\x{{{:x}}}",
            u32::from(first),
            u32::from(last)
        );
    }
    class.push_str("]/");
    class
}
