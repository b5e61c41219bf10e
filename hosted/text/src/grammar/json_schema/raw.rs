//! Strings that are written without JSON quoting before a mark.

use super::keywords::is_of;
use super::read::Reader;
use super::shape::{Shape, Text};
use super::{place, text};
use crate::grammar::GrammarError;
use llguidance::derivre::{Regex, RegexAst, RegexBuilder};
use llguidance::regex_to_lark;
use serde_json::Value;

/// A string of the schema in `source`, followed by `end`; the string does not contain `mark`. Restrictions on other
/// types do not apply, and neither do formats, which are only advisory.
///
/// # Errors
/// Those [`super::rewritten`] returns; or no string is possible.
pub(in crate::grammar) fn before_mark(
    source: &str,
    mark: &str,
    end: &str,
    [open, close]: [&str; 2],
) -> Result<RegexAst, GrammarError> {
    let schema: Value = serde_json::from_str(source)
        .map_err(|error| GrammarError::Schema(format!("not valid JSON: {error}")))?;
    let made = || {
        let mut reader = Reader::new(&schema)?;
        let places = place::all(&mut reader)?;
        let mut texts = Vec::new();
        for shape in &places.all[0].shapes {
            if let Shape::Text(text) = shape {
                texts.push(of(text)?);
            }
        }
        let any = || RegexAst::Regex(ANY_TEXT.to_owned());
        let literal = |text: &str| RegexAst::Literal(text.to_owned());
        let without = |mark: &str| {
            let with_mark = RegexAst::Concat(vec![any(), literal(mark), any()]);
            let texts = RegexAst::Or(texts.clone());
            RegexAst::And(vec![texts, RegexAst::Not(Box::new(with_mark))])
        };
        let wrapped_end = [close, end].concat();
        let wrapped = (!open.is_empty()).then(|| without(&wrapped_end));
        let plain = without(if wrapped.is_some() { "<" } else { mark });
        if is_empty(wrapped.as_ref().unwrap_or(&plain))? {
            let name = reader.name_of(&places.all[0].together);
            return Err(format!("no string without {mark} matches {name}"));
        }
        let plain = RegexAst::Concat(vec![plain, literal(end)]);
        Ok(match wrapped {
            Some(wrapped) => RegexAst::Or(vec![
                plain,
                RegexAst::Concat(vec![literal(open), wrapped, literal(&wrapped_end)]),
            ]),
            None => plain,
        })
    };
    made().map_err(|what: String| GrammarError::Schema(crate::grammar::shorten(&what)))
}

fn of(shape: &Text) -> Result<RegexAst, String> {
    if let Some(literals) = &shape.literals {
        let mut left = Vec::new();
        for literal in literals {
            if is_of(shape, literal)? {
                left.push(RegexAst::Literal(literal.clone()));
            }
        }
        return Ok(RegexAst::Or(left));
    }
    let count = |n: u64| u32::try_from(n).unwrap_or(u32::MAX);
    let any = RegexAst::Regex("(?s:.)".to_owned());
    let most = shape.most.map_or(u32::MAX, count);
    let mut all = vec![RegexAst::Repeat(Box::new(any), count(shape.least), most)];
    for pattern in &shape.patterns {
        // Reports the pattern by name if it is not supported.
        text::regex(&[pattern], &[])?;
        all.push(RegexAst::SearchRegex(regex_to_lark(pattern, "dw")));
    }
    Ok(RegexAst::And(all))
}

/// Whether no string matches, as far as a quick check can tell.
fn is_empty(texts: &RegexAst) -> Result<bool, String> {
    let mut builder = RegexBuilder::new();
    let whole = builder.mk(texts);
    let whole = whole.map_err(|error| format!("a string cannot be enforced: {error}"))?;
    let regex = builder.into_regex_limited(whole, FUEL);
    Ok(regex.is_ok_and(|mut regex: Regex| regex.always_empty()))
}

const ANY_TEXT: &str = "(?s:.*)";
const FUEL: u64 = 100_000;
