//! Patterns of strings and names.

use crate::grammar::pattern::{check_repetitions, why_not};
use llguidance::derivre::{Regex, RegexAst, RegexBuilder};
use llguidance::regex_to_lark;

/// A pattern for strings that match all of `patterns` and are not in `without`.
///
/// # Errors
/// The pattern that is not supported, and why.
pub(super) fn regex(patterns: &[&str], without: &[&str]) -> Result<Regex, String> {
    let mut builder = RegexBuilder::new();
    let mut parts = Vec::new();
    for pattern in patterns {
        check_repetitions(pattern)?;
        let search = RegexAst::SearchRegex(regex_to_lark(pattern, "dw"));
        let part = builder.mk(&search);
        let part = part.map_err(|error| why_not(pattern, &error))?;
        parts.push(RegexAst::ExprRef(part));
    }
    let names = without
        .iter()
        .map(|name| RegexAst::Literal((*name).to_owned()));
    let names: Vec<RegexAst> = names.collect();
    if !names.is_empty() {
        parts.push(RegexAst::Not(Box::new(RegexAst::Or(names))));
    }
    let too_large = |_| format!("the pattern {:?} is too large", patterns.first());
    let whole = builder.mk(&RegexAst::And(parts)).map_err(too_large)?;
    builder.into_regex_limited(whole, FUEL).map_err(too_large)
}

/// Whether no string of `least` to `most` characters matches all of `patterns`.
pub(super) fn is_empty(patterns: &[String], least: u64, most: Option<u64>) -> Result<bool, String> {
    if most.is_some_and(|most| most < least) {
        return Ok(true);
    }
    if patterns.is_empty() {
        return Ok(false);
    }
    let most = most.map_or_else(String::new, |most| most.min(LENGTH_MAX).to_string());
    let length = format!("^(?s:.{{{},{most}}})$", least.min(LENGTH_MAX));
    let mut all: Vec<&str> = patterns.iter().map(String::as_str).collect();
    regex(&all, &[])?;
    all.push(&length);
    Ok(regex(&all, &[]).is_ok_and(|mut regex| regex.always_empty()))
}

/// All strings that match `regex`, if they are few and short.
pub(super) fn all_texts(regex: &mut Regex) -> Option<Vec<String>> {
    let mut found = Vec::new();
    let mut open = vec![(regex.initial_state(), Vec::new())];
    let mut steps = 0;
    while let Some((state, bytes)) = open.pop() {
        if regex.is_accepting(state) {
            found.push(String::from_utf8(bytes.clone()).ok()?);
        }
        if found.len() > TEXTS_MAX || bytes.len() > TEXT_BYTES_MAX {
            return None;
        }
        for byte in (0..=u8::MAX).rev() {
            steps += 1;
            if steps > STEPS_MAX {
                return None;
            }
            let next = regex.transition(state, byte);
            if !next.is_dead() {
                let mut longer = bytes.clone();
                longer.push(byte);
                open.push((next, longer));
            }
        }
    }
    Some(found)
}

const FUEL: u64 = 100_000;
const LENGTH_MAX: u64 = 2_000;
const TEXTS_MAX: usize = 64;
const TEXT_BYTES_MAX: usize = 64;
const STEPS_MAX: usize = 100_000;
