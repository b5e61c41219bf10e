//! Patterns that cannot be said in a schema, or in the notation: a mark stands there, and in the compiled grammar the
//! mark's lexeme is exchanged for the pattern.

use super::digits::PATTERNS_MAX;
use crate::grammar::GrammarError;
use llguidance::derivre::{ExprRef, RegexAst, RegexBuilder};
use llguidance::earley::lexerspec::LexerSpec;
use std::collections::HashMap;

/// What stands in the schema for the pattern of that number: from 2^60 on, where every 256th
/// number is a double, and beyond what any other part of a schema is compiled from.
pub(super) fn mark(number: usize) -> u64 {
    (1 << 60) + 256 * number as u64
}

/// Patterns that a compiled grammar has marks of.
#[derive(Debug, Default)]
pub(in crate::grammar) struct Marked {
    /// By number ([`mark`]): of digits in documents.
    pub(in crate::grammar) digits: Vec<RegexAst>,
    /// By number ([`text_mark`]): of texts that stand outside of documents.
    pub(in crate::grammar) texts: Vec<RegexAst>,
}

/// The patterns of several schemas that one grammar has.
#[derive(Default)]
pub(in crate::grammar) struct Shared {
    builder: RegexBuilder,
    digits: HashMap<ExprRef, usize>,
    texts: HashMap<ExprRef, usize>,
    marked: Marked,
    /// Of the first schema. Patterns must be where the same white space is allowed.
    guidance: Option<serde_json::Value>,
}

impl Shared {
    /// A schema as [`super::rewritten`] has it, but that its marks are none of another schema's.
    ///
    /// # Errors
    /// Those of [`super::rewritten`].
    pub(in crate::grammar) fn rewritten(
        &mut self,
        source: &str,
    ) -> Result<serde_json::Value, GrammarError> {
        let (mut schema, patterns) = super::rewritten(source)?;
        if let Some(own) = schema.get_mut("x-guidance") {
            *own = self.guidance.get_or_insert_with(|| own.clone()).clone();
        }
        for (number, pattern) in patterns.into_iter().enumerate() {
            let expr = self.builder.mk(&pattern);
            let expr = expr.map_err(|error| GrammarError::Compile(error.to_string()))?;
            let all = &mut self.marked.digits;
            let shared = *self.digits.entry(expr).or_insert(all.len());
            if shared == all.len() {
                all.push(pattern);
            }
            if let Some(place) = schema.pointer_mut(&format!("/$defs/d{number}/const")) {
                *place = mark(shared).into();
            }
        }
        Ok(schema)
    }

    /// What stands in the notation for a text of `pattern`.
    ///
    /// # Errors
    /// There are too many.
    pub(in crate::grammar) fn text(&mut self, pattern: RegexAst) -> Result<String, GrammarError> {
        let expr = self.builder.mk(&pattern);
        let expr = expr.map_err(|error| GrammarError::Compile(error.to_string()))?;
        let all = &mut self.marked.texts;
        let number = *self.texts.entry(expr).or_insert(all.len());
        if number == all.len() {
            all.push(pattern);
        }
        if all.len() > PATTERNS_MAX {
            let what = format!("texts of more than {PATTERNS_MAX} kinds are not supported");
            return Err(GrammarError::Compile(what));
        }
        Ok(text_mark(number))
    }

    pub(in crate::grammar) fn into_marked(self) -> Marked {
        self.marked
    }
}

impl Marked {
    pub(in crate::grammar) const fn is_empty(&self) -> bool {
        self.digits.is_empty() && self.texts.is_empty()
    }

    /// Exchanges the marks for the patterns that they stand for.
    ///
    /// # Errors
    /// A pattern is too large.
    pub(in crate::grammar) fn put_in(self, lexer: &mut LexerSpec) -> Result<(), String> {
        for (number, pattern) in self.digits.into_iter().enumerate() {
            exchange(lexer, &mark(number).to_string(), pattern)?;
        }
        if self.texts.is_empty() {
            return Ok(());
        }
        // Outside of documents no white space is passed over.
        let no_skip = lexer.setup_lexeme_class(RegexAst::Or(Vec::new()));
        no_skip.map_err(|error| error.to_string())?;
        for (number, pattern) in self.texts.into_iter().enumerate() {
            exchange(lexer, &text_mark(number), pattern)?;
        }
        Ok(())
    }
}

/// Puts a pattern where the lexeme `mark` is.
fn exchange(lexer: &mut LexerSpec, mark: &str, pattern: RegexAst) -> Result<(), String> {
    let is_mark = |lexeme| lexer.has_forced_bytes(lexeme, mark.as_bytes());
    // What cannot be reached was not compiled.
    let Some(at) = lexer.lexemes.iter().position(is_mark) else {
        return Ok(());
    };
    // A lexeme is known by its place, and a new one gets the first that is free.
    let mut rest = lexer.lexemes.split_off(at);
    let added = lexer.add_greedy_lexeme(String::new(), pattern, false, None, usize::MAX);
    added.map_err(|error| error.to_string())?;
    if lexer.lexemes.len() != at + 1 {
        return Err("a number means what another lexeme does".to_owned());
    }
    lexer.lexemes.extend(rest.drain(1..));
    Ok(())
}

/// What stands in the notation for the text of that number: no tool's name, no tag.
fn text_mark(number: usize) -> String {
    format!("\u{1}text {number}\u{1}")
}
