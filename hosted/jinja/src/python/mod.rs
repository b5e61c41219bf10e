//! What Python does with values, where minijinja does something else.
//!
//! jinja2's filters, tests and methods are thin: they call `str`, `sorted`, `int`, `str.split`.
//! These are here with their signatures ([`arguments`]), errors included: a template may rely on any
//! of it. Texts that are `Markup` stay so, and escape what is put beside them.
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
