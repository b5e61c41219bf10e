//! Rows of data sets: files, forms, duplicates, and what is left of them to learn.

mod chat;
mod columns;
mod error;
mod examples;
mod form;
mod paths;
mod prepare;
mod reader;
mod report;
mod rows;
mod sharegpt;
mod template;
#[cfg(test)]
mod tests;

pub use error::{DataError, RowPlace};
pub use examples::Example;
pub use form::RowForm;
pub use prepare::{Dataset, prepare};
pub(crate) use report::reasons;
pub use report::{DataReport, Drop, FileReport, SetReport};
