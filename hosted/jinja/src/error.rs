//! Errors of parsing and rendering templates.

use crate::limits::TEMPLATE_BYTES_MAX;
use minijinja::{Error, ErrorKind};

/// Why a template could not be rendered. Lines count from 1; 0 means unknown.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
#[expect(missing_docs, reason = "the fields are described with their variants")]
pub enum TemplateError {
    /// It is longer than [`TEMPLATE_BYTES_MAX`].
    #[error("the template has {len} bytes, more than the maximum of {TEMPLATE_BYTES_MAX}")]
    TooLong { len: usize },
    /// It produces no output at all.
    #[error("the template is empty")]
    Empty,
    /// It is not valid Jinja, or exceeds a limit.
    #[error("template line {line}: {reason}")]
    Syntax { line: usize, reason: String },
    /// It failed with these variables, or exceeded a limit.
    #[error("template line {line}: {reason}")]
    Render { line: usize, reason: String },
    /// The template called `raise_exception`.
    #[error("template line {line} rejects the messages: {message}")]
    Raised { line: usize, message: String },
}

impl TemplateError {
    pub(crate) fn syntax(error: &Error) -> Self {
        let line = error.line().unwrap_or(0);
        let reason = match reason(error) {
            sign if sign == "unexpected `+`" => {
                "a plus sign before a value is not supported".into()
            }
            reason => reason,
        };
        Self::Syntax { line, reason }
    }

    pub(crate) fn render(error: &Error) -> Self {
        let line = error.line().unwrap_or(0);
        if error.kind() == RAISED {
            let message = error.detail().unwrap_or_default().to_owned();
            return Self::Raised { line, message };
        }
        let reason = match error.kind() {
            ErrorKind::OutOfFuel => "the template takes too long".to_owned(),
            ErrorKind::TooManyArguments => {
                let reason = reason(error);
                format!("{reason}; varargs and kwargs of macros are not supported")
            }
            _ => reason(error),
        };
        Self::Render { line, reason }
    }
}

/// A value or an argument that Python would not accept.
pub(crate) fn fail<T>(why: impl Into<String>) -> Result<T, Error> {
    Err(Error::new(ErrorKind::InvalidOperation, why.into()))
}

/// The error of `raise_exception`.
pub(crate) fn raised(message: String) -> Error {
    Error::new(RAISED, message)
}

/// The error message without the line number, shortened.
fn reason(error: &Error) -> String {
    let text = match error.detail() {
        Some(detail) => detail.to_owned(),
        None => error.kind().to_string(),
    };
    text.chars().take(REASON_CHARS_MAX).collect()
}

const REASON_CHARS_MAX: usize = 400;
/// The error kind for a template's own refusal, to distinguish it from other errors: minijinja only uses this kind
/// when serialising, which templates never do.
const RAISED: ErrorKind = ErrorKind::BadSerialization;
