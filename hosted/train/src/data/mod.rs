//! Rows of data sets: files, forms, duplicates, and what is left of them to learn.

pub(crate) mod chat;
mod error;
pub(crate) mod form;
mod paths;
mod prepare;
mod report;
mod rows;
mod sharegpt;
#[cfg(test)]
mod tests;

pub use error::{DataError, RowPlace};
pub use form::Form;
pub(crate) use prepare::reasons;
pub use prepare::{Dataset, Example, prepare};
pub use report::{DataReport, Drop, FileReport, SetReport};
