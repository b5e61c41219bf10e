//! Positional and keyword arguments.

use crate::error::fail;
use minijinja::value::Kwargs;
use minijinja::{Error, Value};

/// The arguments called `names`, positional or by keyword; `None` for those that are not given.
///
/// # Errors
/// An extra argument, an unknown keyword, a duplicate, or one of the first `n_needed` is missing.
pub(crate) fn bound<const N: usize>(
    what: &str,
    names: [&str; N],
    n_needed: usize,
    args: &[Value],
) -> Result<[Option<Value>; N], Error> {
    let mut bound = [const { None }; N];
    let (args, kwargs) = split(args)?;
    if args.len() > N {
        return fail(format!("{what} takes at most {N} arguments"));
    }
    for (place, arg) in bound.iter_mut().zip(args) {
        *place = Some(arg.clone());
    }
    for (name, value) in kwargs {
        match names.iter().position(|known| *known == name) {
            Some(at) if bound[at].is_none() => bound[at] = Some(value),
            Some(_) => return fail(format!("{what}: the argument {name} is given twice")),
            None => return fail(format!("{what} has no argument {name}")),
        }
    }
    match bound.iter().take(n_needed).position(Option::is_none) {
        Some(at) => fail(format!("{what}: the argument {} is missing", names[at])),
        None => Ok(bound),
    }
}

/// Keyword arguments.
pub(crate) type Named = Vec<(String, Value)>;

/// Separates positional and keyword arguments.
pub(crate) fn split(args: &[Value]) -> Result<(&[Value], Named), Error> {
    match args.split_last() {
        Some((last, rest)) if last.is_kwargs() => {
            let kwargs = Kwargs::try_from(last.clone())?;
            let mut named = Vec::new();
            for name in kwargs.args() {
                named.push((name.to_owned(), kwargs.peek(name)?));
            }
            Ok((rest, named))
        }
        _ => Ok((args, Vec::new())),
    }
}
