//! What Python does with values, where minijinja does something else.
//!
//! jinja2's filters, tests and methods are thin: they call `str`, `sorted`, `int`, `str.split`.
//! These are here with their signatures ([`arguments`]), errors included: a template may rely on any
//! of it. Texts that are `Markup` stay so, and escape what is put beside them.
//!
//! Source: jinja2 3.1.6 `filters.py`, `tests.py`; the library reference of Python 3.12.

pub(super) mod arguments;
pub(super) mod filters;
mod format;
mod generators;
pub(super) mod globals;
mod lists;
pub(super) mod methods;
mod numbers;
pub(super) mod once;
pub(super) mod operators;
pub(super) mod tests;
mod texts;
pub(super) mod values;
pub(super) mod view;

use minijinja::{Error, ErrorKind};

pub(super) fn fail<T>(why: impl Into<String>) -> Result<T, Error> {
    Err(Error::new(ErrorKind::InvalidOperation, why.into()))
}
