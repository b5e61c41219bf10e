//! Marks for patterns that neither a schema nor the notation can express: a mark is compiled in their place, and its
//! lexeme is then replaced by the pattern.

use super::digits::PATTERNS_MAX;
use crate::grammar::GrammarError;
use llguidance::derivre::{ExprRef, RegexAst, RegexBuilder};
use llguidance::earley::lexerspec::LexerSpec;
use std::collections::HashMap;

/// What represents the pattern with this number in the schema: numbers from 2^60 on, where only every
/// 256th integer is a double; nothing else in a schema is compiled from such numbers.
pub(super) fn mark(number: usize) -> u64 {
    (1 << 60) + 256 * number as u64
}

/// Patterns whose marks a compiled grammar contains.
#[derive(Debug, Default)]
pub(in crate::grammar) struct Marked {
    /// By number ([`mark`]): digits in documents.
    pub(in crate::grammar) digits: Vec<RegexAst>,
    /// By number ([`text_mark`]): texts outside of documents.
    pub(in crate::grammar) texts: Vec<RegexAst>,
}

/// The patterns of several schemas in one grammar.
#[derive(Default)]
pub(in crate::grammar) struct Shared {
    builder: RegexBuilder,
    digits: HashMap<ExprRef, usize>,
    texts: HashMap<ExprRef, usize>,
    marked: Marked,
    /// The guidance of the first schema. Patterns require the same white space in all schemas.
    guidance: Option<serde_json::Value>,
}

impl Shared {
    /// A schema as [`super::rewritten`] returns it, except that its marks differ from the marks of all other schemas.
    ///
    /// # Errors
    /// See [`super::rewritten`].
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

    /// What represents a text of `pattern` in the notation.
    ///
    /// # Errors
    /// There are too many patterns.
    pub(in crate::grammar) fn text(&mut self, pattern: RegexAst) -> Result<String, GrammarError> {
        let expr = self.builder.mk(&pattern);
        let expr = expr.map_err(|error| GrammarError::Compile(error.to_string()))?;
        let all = &mut self.marked.texts;
        let number = *self.texts.entry(expr).or_insert(all.len());
        if number == all.len() {
            all.push(pattern);
        }
        if all.len() > PATTERNS_MAX {
            let what = format!("strings of more than {PATTERNS_MAX} kinds are not supported");
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

    /// Replaces the marks by their patterns.
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
        // Outside of documents, white space is not skipped.
        let no_skip = lexer.setup_lexeme_class(RegexAst::Or(Vec::new()));
        no_skip.map_err(|error| error.to_string())?;
        for (number, pattern) in self.texts.into_iter().enumerate() {
            exchange(lexer, &text_mark(number), pattern)?;
        }
        Ok(())
    }
}

/// Replaces the lexeme `mark` by a pattern.
fn exchange(lexer: &mut LexerSpec, mark: &str, pattern: RegexAst) -> Result<(), String> {
    let is_mark = |lexeme| lexer.has_forced_bytes(lexeme, mark.as_bytes());
    // Unreachable marks were not compiled.
    let Some(at) = lexer.lexemes.iter().position(is_mark) else {
        return Ok(());
    };
    // Lexemes are identified by index, and a new one gets the first free index.
    let mut rest = lexer.lexemes.split_off(at);
    let added = lexer.add_greedy_lexeme(String::new(), pattern, false, None, usize::MAX);
    added.map_err(|error| error.to_string())?;
    if lexer.lexemes.len() != at + 1 {
        return Err("a number means what another lexeme does".to_owned());
    }
    lexer.lexemes.extend(rest.drain(1..));
    Ok(())
}

/// What represents the text with this number in the notation: it differs from all tool names and tags.
fn text_mark(number: usize) -> String {
    format!("\u{1}text {number}\u{1}")
}
