//! JSON schemas, draft 2020-12, rewritten until what is left is easy to compile.
//!
//! A schema says what a document must not be, by many parts that are read together: siblings of
//! `$ref`, all of `allOf`, one of `anyOf`. A grammar says what it is, part by part. So every place
//! of a document is turned into the alternatives that are left when everything said of it is put
//! together ([`shape`]); what is below it stays a list of schemas until it is looked at, which
//! is how recursion ends ([`place`]). Only then objects are closed, names that nothing can follow
//! are dropped, and a schema that no document satisfies is refused with its reason.
//!
//! What comes out has no `allOf` but for strings and numbers, no siblings, and pointers to
//! `$defs` alone.
//!
//! Narrower than the draft, so that documents end: an object whose properties are named (by
//! `properties` or `required`) has no others unless `additionalProperties` says so; keys come in
//! the order of the schema; numbers are written without a needless fraction; the common `format`s
//! hold where nothing else is said of a text. What cannot be held to is refused by name.
//!
//! The compiler reads numbers as doubles. Where that is not exact, whole numbers become patterns
//! of their digits ([`digits`]), and documents have no fractions there.

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

/// The schema in `source` rewritten, ready to be compiled, and the patterns whose marks it has ([`Marked`]).
///
/// # Errors
/// It is no JSON or no schema, it uses what is not supported, or no document satisfies it: the
/// place is named by its JSON pointer.
pub(super) fn rewritten(source: &str) -> Result<(Value, Vec<RegexAst>), GrammarError> {
    let schema: Value = serde_json::from_str(source)
        .map_err(|error| GrammarError::Schema(format!("it is not JSON: {error}")))?;
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

/// Of parts that are made while a schema is rewritten.
const PARTS_MAX: usize = 1_000_000;
