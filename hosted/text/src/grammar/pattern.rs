//! Regular expressions that the compiler would read otherwise than the user meant.

use super::shorten;
use core::fmt::Display;
use llguidance::derivre::{RegexAst, RegexBuilder};
use llguidance::regex_to_lark;
use regex_syntax::ast::parse::Parser;
use regex_syntax::ast::{Ast, Visitor, visit};

/// Refuses what ECMA-262 and Python refuse, but the compiler does not: an assertion that is repeated (`^+`), and a
/// repetition that is repeated without a group (`a**`).
///
/// # Errors
/// The pattern, and what is wrong with it.
pub(super) fn check_repetitions(pattern: &str) -> Result<(), String> {
    // What is wrong otherwise is the compiler's to say.
    let parsed = Parser::new().parse(pattern);
    parsed.map_or(Ok(()), |ast| visit(&ast, Repetitions { pattern }))
}

/// Checks a regular expression without a vocabulary, so that an error does not wait for a model.
///
/// # Errors
/// Why it cannot be followed.
pub fn check_regex(pattern: &str) -> Result<(), String> {
    check_repetitions(pattern)?;
    let made = RegexBuilder::new().mk(&RegexAst::Regex(regex_to_lark(pattern, "")));
    made.map_or_else(|error| Err(why_not(pattern, &error)), |_| Ok(()))
}

/// Why the compiler does not take a pattern: the last line of its message.
pub(super) fn why_not(pattern: &str, error: &dyn Display) -> String {
    let text = error.to_string();
    let mut lines = text.lines().map(str::trim);
    let last = lines.rfind(|line| !line.is_empty()).unwrap_or_default();
    let why = last.trim_start_matches("error: ");
    let pattern = shorten(pattern);
    format!("the pattern {pattern:?} is not supported: {why}")
}

struct Repetitions<'p> {
    pattern: &'p str,
}

impl Visitor for Repetitions<'_> {
    type Output = ();
    type Err = String;

    fn finish(self) -> Result<(), String> {
        Ok(())
    }

    fn visit_pre(&mut self, ast: &Ast) -> Result<(), String> {
        let Ast::Repetition(found) = ast else {
            return Ok(());
        };
        let what = match *found.ast {
            Ast::Assertion(_) => "has nothing to repeat there",
            Ast::Repetition(_) => "repeats a repetition; put that into a group",
            _ => return Ok(()),
        };
        let at = found.op.span.start;
        let pattern = shorten(self.pattern);
        let operator = &self.pattern[at.offset..found.op.span.end.offset];
        let column = at.column;
        Err(format!(
            "the pattern {pattern:?} is not valid: {operator:?} at character {column} {what}"
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_ecma_and_python_refuse_is_refused_and_nothing_else() {
        for wrong in [
            "^+[a-z]$",
            "^{2}times$",
            "a$*",
            r"a|\b?b",
            "(x|^*)",
            "a**",
            "a{2}{3}",
            "é+*",
        ] {
            let what = check_repetitions(wrong).unwrap_err();
            assert!(
                what.contains(wrong.trim_matches('"').split('\\').next().unwrap()),
                "{what}"
            );
        }
        assert_eq!(
            check_repetitions("^{2}times$").unwrap_err(),
            "the pattern \"^{2}times$\" is not valid: \"{2}\" at character 2 has nothing to repeat there"
        );
        for right in [
            "^[a-z]+$", r"\^+", "[+*]+", "(^)*", "(a*)*", "a*?", "a{2}", "x{", "(", "a+|^b",
        ] {
            assert_eq!(check_repetitions(right), Ok(()), "{right}");
        }
    }
}
