//! JSON schemas, draft 2020-12, rewritten into a form that is easy to compile.
//!
//! A schema states what a document must not be, in many parts that apply together: siblings of
//! `$ref`, all of `allOf`, one of `anyOf`. A grammar states what a document is, part by part. So each
//! place of a document is turned into the alternatives that remain when everything that applies to it
//! is combined ([`shape`]); the places below it stay lists of schemas until they are visited, so that
//! recursion ends ([`place`]). Only then are objects closed, names without a possible value dropped,
//! and schemas that no document satisfies refused with the reason.
//!
//! The result has `allOf` only for strings and numbers, no siblings, and only pointers to `$defs`.
//!
//! It is narrower than the draft, so that documents end: an object whose properties are named (by
//! `properties` or `required`) cannot have others unless `additionalProperties` allows them; keys are in
//! the order of the schema; numbers are written without a needless fraction; the common `format`s
//! are enforced if nothing else restricts a string. What cannot be enforced is refused by name.
//!
//! The compiler reads numbers as doubles. Where doubles are not exact, integers become patterns
//! of digits ([`digits`]), and documents cannot have fractions.

mod digits;
mod emit;
mod exact;
mod keywords;
mod marks;
mod numeric;
mod place;
mod raw;
mod read;
mod reference;
mod shape;
mod text;

use super::GrammarError;
use llguidance::derivre::RegexAst;
pub(super) use marks::{Marked, Shared};
pub(super) use raw::before_mark;
use read::Reader;
use serde_json::Value;

/// The schema in `source`, rewritten and ready to be compiled, and the patterns for its marks ([`Marked`]).
///
/// # Errors
/// It is not JSON or not a schema, it uses an unsupported feature, or no document satisfies it. The
/// error has the JSON pointer of the place.
pub(super) fn rewritten(source: &str) -> Result<(Value, Vec<RegexAst>), GrammarError> {
    let schema: Value = serde_json::from_str(source)
        .map_err(|error| GrammarError::Schema(format!("not valid JSON: {error}")))?;
    if !matches!(schema, Value::Object(_) | Value::Bool(_)) {
        let what = format!("a schema is an object, true or false, not {schema}");
        return Err(GrammarError::Schema(super::shorten(&what)));
    }
    let rewrite = || {
        let mut reader = Reader::new(&schema)?;
        let places = place::all(&mut reader)?;
        let schema = emit::emit(&mut reader, &places)?;
        Ok::<_, String>((schema, places.patterns.into_all()))
    };
    rewrite().map_err(|what| GrammarError::Schema(super::shorten(&what)))
}

/// Maximum number of parts created while rewriting a schema.
const PARTS_MAX: usize = 1_000_000;
