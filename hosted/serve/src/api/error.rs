//! Errors of requests.

use crate::engine::JobError;
use core::fmt;
use core::time::Duration;

/// Why a request was refused or failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ApiError {
    /// The kind of error, on which clients can act.
    pub kind: ErrorKind,
    /// The path of the invalid field, such as `messages[0].content`.
    pub field: Option<String>,
    /// The reason, without the field's name.
    pub what: String,
    /// When to try again, if that makes sense.
    pub retry: Option<Duration>,
    /// The error with the server's files: for the process that runs the server, never for its clients.
    pub detail: Option<String>,
}

/// Why a model or an adapter is not in memory.
#[derive(Clone, Debug)]
pub(crate) struct NotLoaded {
    /// What clients read: it neither names files of the server nor says whether they exist.
    pub(crate) shown: &'static str,
    /// What the log says.
    pub(crate) whole: String,
}

/// Kinds of errors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ErrorKind {
    /// The request, or one of its fields, is invalid.
    Invalid,
    /// A prompt of `n_tokens` tokens does not fit into a context of `n_ctx`.
    TooLong {
        /// The tokens of the prompt.
        n_tokens: usize,
        /// The tokens of the context.
        n_ctx: usize,
    },
    /// The key is missing or wrong.
    Unauthorized,
    /// The key, or what sent the request, may not do this.
    Forbidden,
    /// The route, the model or the adapter does not exist.
    NotFound,
    /// The route does not support this method.
    Method,
    /// The body is too large.
    TooLarge,
    /// The headers are too large.
    HeadTooLarge,
    /// The body did not arrive in time.
    Slow,
    /// The stream cannot be taken up again: the model or the server's settings are different.
    Conflict,
    /// Too many requests are waiting.
    Busy,
    /// Not implemented, or not enabled.
    Unsupported,
    /// Not possible now.
    Unavailable,
    /// The deadline passed before the first token.
    Late,
    /// Something failed in the server.
    Internal,
}

/// A field or a prefix of a path: its name in the plain values, and its name in the client's API.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FieldName {
    /// Its name in the plain values.
    pub ours: &'static str,
    /// Its name in the client's API.
    pub theirs: &'static str,
}

impl FieldName {
    /// A name, and what a client calls it.
    #[must_use]
    pub const fn new(ours: &'static str, theirs: &'static str) -> Self {
        Self { ours, theirs }
    }
}

impl ApiError {
    pub(crate) fn new(kind: ErrorKind, what: impl Into<String>) -> Self {
        Self {
            kind,
            field: None,
            what: what.into(),
            retry: None,
            detail: None,
        }
    }

    /// The error as the process that runs the server may read it.
    #[must_use]
    pub fn in_full(&self) -> String {
        self.detail.clone().unwrap_or_else(|| self.to_string())
    }

    /// An error of a field, given its path and the reason.
    pub fn field(field: impl Into<String>, what: impl Into<String>) -> Self {
        Self {
            field: Some(field.into()),
            ..Self::new(ErrorKind::Invalid, what)
        }
    }

    /// An error of the request as a whole.
    pub fn invalid(what: impl Into<String>) -> Self {
        Self::new(ErrorKind::Invalid, what)
    }

    pub(crate) fn unauthorized() -> Self {
        Self::new(ErrorKind::Unauthorized, "Invalid API Key")
    }

    pub(crate) fn forbidden(what: impl Into<String>) -> Self {
        Self::new(ErrorKind::Forbidden, what)
    }

    pub(crate) fn no_route(path: &str) -> Self {
        let shown: String = path.chars().take(200).collect();
        Self::new(ErrorKind::NotFound, format!("no such route: {shown}"))
    }

    pub(crate) fn no_model(name: &str, names: &[&str]) -> Self {
        Self::absent("model", "model", name, names)
    }

    pub(crate) fn no_adapter(name: &str, names: &[&str]) -> Self {
        Self::absent("adapter", "name", name, names)
    }

    /// The error for a `kind` that no name in `names` is.
    fn absent(kind: &str, field: &str, name: &str, names: &[&str]) -> Self {
        let shown: String = name.chars().take(200).collect();
        let names = match names {
            [] => "none".to_owned(),
            names => names.join(", "),
        };
        let what = format!("the {kind} {shown:?} does not exist; available: {names}");
        Self {
            field: Some(field.into()),
            ..Self::new(ErrorKind::NotFound, what)
        }
    }

    pub(crate) fn method() -> Self {
        Self::new(
            ErrorKind::Method,
            "this method is not allowed for the route",
        )
    }

    /// The error for a body of more than `limit` bytes.
    pub(crate) fn too_large(limit: usize) -> Self {
        let what = format!("the body exceeds {limit} bytes");
        Self::new(ErrorKind::TooLarge, what)
    }

    pub(crate) fn head_too_large(limit: usize) -> Self {
        let what = format!("the headers exceed {limit} bytes");
        Self::new(ErrorKind::HeadTooLarge, what)
    }

    /// The error for a prompt of `n_bytes`, of which a token has up to `len`, that a context of `n_ctx` cannot hold.
    pub(crate) fn too_long(n_bytes: usize, len: usize, n_ctx: usize) -> Self {
        let n_tokens = n_bytes.div_ceil(len.max(1));
        let what = format!(
            "the request exceeds the available context size: the prompt has {n_bytes} bytes, which are at least \
             {n_tokens} tokens, the context {n_ctx}"
        );
        Self::new(ErrorKind::TooLong { n_tokens, n_ctx }, what)
    }

    pub(crate) fn slow() -> Self {
        Self::new(
            ErrorKind::Slow,
            "the body did not arrive within the time limit",
        )
    }

    pub(crate) fn conflict(field: &str, what: impl Into<String>) -> Self {
        Self {
            field: Some(field.into()),
            ..Self::new(ErrorKind::Conflict, what)
        }
    }

    pub(crate) fn unsupported(what: impl Into<String>) -> Self {
        Self::new(ErrorKind::Unsupported, what)
    }

    pub(crate) fn unavailable(what: impl Into<String>) -> Self {
        Self::new(ErrorKind::Unavailable, what)
    }

    pub(crate) fn busy(what: impl Into<String>, retry: Duration) -> Self {
        Self {
            retry: Some(retry),
            ..Self::new(ErrorKind::Busy, what)
        }
    }

    pub(crate) fn late() -> Self {
        Self::new(
            ErrorKind::Late,
            "the deadline passed before the first token",
        )
    }

    pub(crate) fn internal(what: impl Into<String>) -> Self {
        Self::new(ErrorKind::Internal, what)
    }

    /// Turns the error into a server error, for a field that the client did not send.
    pub(crate) fn of_server(self) -> Self {
        match self.kind {
            ErrorKind::Invalid => Self::internal(self.to_string()),
            _ => self,
        }
    }

    /// Replaces the field's name by the name that the client used.
    #[must_use]
    pub fn renamed(mut self, names: &[FieldName]) -> Self {
        if let Some(field) = &mut self.field {
            let found = names.iter().find_map(|name| {
                let rest = field.strip_prefix(name.ours)?;
                let ends = rest.is_empty() || rest.starts_with(['.', '[']);
                ends.then(|| format!("{}{rest}", name.theirs))
            });
            if let Some(renamed) = found {
                *field = renamed;
            }
        }
        self
    }
}

impl fmt::Display for ApiError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.field {
            Some(field) if self.kind == ErrorKind::Invalid => write!(f, "{field}: {}", self.what),
            _ => f.write_str(&self.what),
        }
    }
}

impl core::error::Error for ApiError {}

impl NotLoaded {
    /// A failure that names no file.
    pub(crate) fn plain(shown: &'static str) -> Self {
        Self {
            shown,
            whole: shown.to_owned(),
        }
    }

    pub(crate) fn stopping() -> Self {
        Self::plain("the server is shutting down")
    }
}

impl From<JobError> for ApiError {
    fn from(error: JobError) -> Self {
        let message = error.to_string();
        match error {
            JobError::Busy { retry, .. } => Self::busy(message, retry),
            JobError::TooLong { n_tokens, n_ctx } => {
                Self::new(ErrorKind::TooLong { n_tokens, n_ctx }, message)
            }
            JobError::Gone => Self::unavailable(message),
            JobError::Foreign { .. } => Self::forbidden(message),
            JobError::Slot(_) => Self::field("slot", message),
            JobError::Failed(_) => Self::internal(message),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_have_the_names_of_a_client() {
        let names = ["input[0]", "input"].map(|ours| FieldName::new(ours, "content"));
        for (ours, theirs) in [
            ("input[0]", "content"),
            ("input[1]", "content[1]"),
            ("input[0][2]", "content[2]"),
            ("inputs", "inputs"),
        ] {
            let renamed = ApiError::field(ours, "is invalid").renamed(&names);
            assert_eq!(renamed.to_string(), format!("{theirs}: is invalid"));
        }
    }
}
