//! Python's operations on values where minijinja's differ.
//!
//! jinja2's filters, tests and methods are thin: they call `str`, `sorted`, `int`, `str.split`.
//! They are implemented here with the same signatures ([`arguments`]) and errors: a template may rely on any
//! of this. `Markup` strings stay `Markup`, and escape strings that are joined with them.
//!
//! Source: jinja2 3.1.6 `filters.py`, `tests.py`; the library reference of Python 3.12.

pub(crate) mod arguments;
pub(crate) mod filters;
mod format;
mod generators;
pub(crate) mod globals;
pub(crate) mod is_tests;
mod lists;
pub(crate) mod methods;
mod numbers;
pub(crate) mod operators;
mod texts;
