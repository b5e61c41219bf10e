//! Flag values from a list of names. Errors suggest the nearest one.

use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use core::error::Error;
use core::str::FromStr;
use sluice::core::kernels::KernelTable;

/// Parses one of `names`.
pub(crate) fn one_of<T>(
    names: impl IntoIterator<Item = &'static str>,
) -> impl TypedValueParser<Value = T>
where
    T: FromStr<Err: Into<Box<dyn Error + Send + Sync>>> + Clone + Send + Sync + 'static,
{
    PossibleValuesParser::new(names).try_map(|name| name.parse())
}

/// Parses the name of kernels. An empty one, from an environment variable, stands for the default.
pub(crate) fn kernels() -> PossibleValuesParser {
    let names = KernelTable::names().map(PossibleValue::new);
    PossibleValuesParser::new(names.chain([PossibleValue::new("").hide(true)]))
}

/// The name that `word` was probably meant to be.
pub(crate) fn nearest<'n>(word: &str, names: impl Iterator<Item = &'n str>) -> Option<&'n str> {
    let word = word.to_lowercase();
    let distance = |name: &str| strsim::osa_distance(&word, &name.to_lowercase());
    let nearest = names.min_by_key(|name| distance(name));
    nearest.filter(|name| distance(name) <= (word.len() / 3).max(1))
}

/// A suggestion for `word`, to be appended to an error; empty if no name is close.
pub(crate) fn suggestion(word: &str, names: impl Iterator<Item = &'static str>) -> String {
    let near = nearest(word, names);
    near.map_or_else(String::new, |name| format!("; did you mean {name}?"))
}
