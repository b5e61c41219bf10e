//! Rules written in Lark.
//!
//! Every part that is not a single item gets a name of its own, so that nothing nests in the
//! text, however deep the grammar does.

use super::{Expr, Rules};
use core::fmt::Write as _;

pub(super) fn emit(rules: &Rules, regular: &[bool]) -> String {
    let mut emitter = Emitter {
        regular,
        n_names: 0,
        lark: String::new(),
    };
    let root = emitter.rule_name(rules.root);
    emitter.define("start", &root);
    for (number, rule) in rules.rules.iter().enumerate() {
        let body = if regular[number] {
            emitter.lexeme(&rule.body)
        } else {
            emitter.rule(&rule.body)
        };
        let name = emitter.rule_name(number);
        emitter.define(&name, &body);
    }
    emitter.lark
}

struct Emitter<'r> {
    regular: &'r [bool],
    n_names: usize,
    lark: String,
}

impl Emitter<'_> {
    fn define(&mut self, name: &str, body: &str) {
        let _infallible = writeln!(self.lark, "{name}: {body}");
    }

    /// Lexemes have upper case names, rules lower case ones.
    fn rule_name(&self, number: usize) -> String {
        let letter = if self.regular[number] { 'R' } else { 'r' };
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

    /// The same as one item.
    fn lexeme_atom(&mut self, expr: &Expr) -> String {
        let body = self.lexeme(expr);
        match expr {
            Expr::Class { .. } | Expr::Text(_) | Expr::Rule(_) => body,
            _ => self.named('T', &body),
        }
    }

    /// What is not regular, as the body of a rule.
    fn rule(&mut self, expr: &Expr) -> String {
        match expr {
            Expr::Seq(parts) => {
                // Neighbours that are regular are one lexeme.
                let rules = self.regular;
                let runs = parts.chunk_by(|a, b| is_regular(rules, a) == is_regular(rules, b));
                let mut items = Vec::new();
                for run in runs {
                    if is_regular(self.regular, &run[0]) {
                        items.push(self.lexeme_atom(&one(run, Expr::Seq)));
                    } else {
                        items.extend(run.iter().map(|part| self.rule_atom(part)));
                    }
                }
                items.join(" ")
            }
            Expr::Alt(parts) => {
                let (regular, others): (Vec<&Expr>, Vec<&Expr>) = parts
                    .iter()
                    .partition(|part| is_regular(self.regular, part));
                let regular: Vec<Expr> = regular.into_iter().cloned().collect();
                let mut items = Vec::new();
                if !regular.is_empty() {
                    items.push(self.lexeme_atom(&one(&regular, Expr::Alt)));
                }
                items.extend(others.into_iter().map(|part| self.rule_atom(part)));
                items.join(" | ")
            }
            Expr::Repeat(inner, least, most) => {
                let atom = self.rule_atom(inner);
                repeated(&atom, *least, *most)
            }
            Expr::Rule(_) | Expr::Class { .. } | Expr::Text(_) => self.lexeme(expr),
        }
    }

    fn rule_atom(&mut self, expr: &Expr) -> String {
        if is_regular(self.regular, expr) {
            return self.lexeme_atom(expr);
        }
        let body = self.rule(expr);
        match expr {
            Expr::Rule(_) => body,
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

/// Whether `expr` names no rule but regular ones.
fn is_regular(rules: &[bool], expr: &Expr) -> bool {
    match expr {
        Expr::Class { .. } | Expr::Text(_) => true,
        Expr::Rule(number) => rules[*number],
        Expr::Seq(parts) | Expr::Alt(parts) => parts.iter().all(|part| is_regular(rules, part)),
        Expr::Repeat(inner, ..) => is_regular(rules, inner),
    }
}

fn one(parts: &[Expr], join: impl Fn(Vec<Expr>) -> Expr) -> Expr {
    match parts {
        [part] => part.clone(),
        parts => join(parts.to_vec()),
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

/// A text as a JSON string, which Lark's strings here are.
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

/// A class as a regular expression; without ranges, any character.
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
