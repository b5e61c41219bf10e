//! Rows of data sets: files, forms, duplicates, and what is left of them to learn.

pub(crate) mod chat;
mod error;
mod examples;
pub(crate) mod form;
mod paths;
mod prepare;
mod reader;
mod report;
mod rows;
mod sharegpt;
#[cfg(test)]
mod tests;

pub use error::{DataError, RowPlace};
pub use examples::Example;
pub use form::Form;
pub use prepare::{Dataset, prepare};
pub(crate) use report::reasons;
pub use report::{DataReport, Drop, FileReport, SetReport};
