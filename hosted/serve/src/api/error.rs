//! Errors as OpenAI's clients expect them.

use crate::engine::JobError;
use axum::body::Body;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use core::time::Duration;
use serde_json::{Value, json};

/// Why a request was refused, or failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ApiError {
    status: StatusCode,
    kind: &'static str,
    message: String,
    param: Option<String>,
    retry: Option<Duration>,
}

impl ApiError {
    fn new(status: StatusCode, kind: &'static str, message: impl Into<String>) -> Self {
        Self {
            status,
            kind,
            message: message.into(),
            param: None,
            retry: None,
        }
    }

    /// A field is wrong: which, and what is wrong with it.
    pub(crate) fn field(field: impl Into<String>, what: impl AsRef<str>) -> Self {
        let field = field.into();
        let message = format!("{field}: {}", what.as_ref());
        let mut error = Self::new(StatusCode::BAD_REQUEST, "invalid_request_error", message);
        error.param = Some(field);
        error
    }

    /// The request is wrong as a whole.
    pub(crate) fn invalid(message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "invalid_request_error", message)
    }

    /// No key, or a wrong one.
    pub(crate) fn unauthorized() -> Self {
        let message = "Invalid API Key";
        Self::new(StatusCode::UNAUTHORIZED, "authentication_error", message)
    }

    /// There is no such route.
    pub(crate) fn no_route(path: &str) -> Self {
        let shown: String = path.chars().take(200).collect();
        let message = format!("there is no route {shown}");
        Self::new(StatusCode::NOT_FOUND, "not_found_error", message)
    }

    /// There is no such model.
    pub(crate) fn no_model(name: &str, names: &[&str]) -> Self {
        let shown: String = name.chars().take(200).collect();
        let message = format!(
            "the model {shown:?} does not exist; there are: {}",
            names.join(", ")
        );
        let mut error = Self::new(StatusCode::NOT_FOUND, "not_found_error", message);
        error.param = Some("model".into());
        error
    }

    /// The route has no such method.
    pub(crate) fn method() -> Self {
        let message = "the route does not have this method";
        let status = StatusCode::METHOD_NOT_ALLOWED;
        Self::new(status, "invalid_request_error", message)
    }

    /// The body is larger than `limit` bytes.
    pub(crate) fn too_large(limit: usize) -> Self {
        let message = format!("the body has more than {limit} bytes");
        let status = StatusCode::PAYLOAD_TOO_LARGE;
        Self::new(status, "invalid_request_error", message)
    }

    /// The body did not come in time.
    pub(crate) fn slow() -> Self {
        let message = "the body of the request did not come in time";
        let status = StatusCode::REQUEST_TIMEOUT;
        Self::new(status, "invalid_request_error", message)
    }

    /// It is not there, or not switched on.
    pub(crate) fn unsupported(message: impl Into<String>) -> Self {
        Self::new(StatusCode::NOT_IMPLEMENTED, "not_supported_error", message)
    }

    /// Not now.
    pub(crate) fn unavailable(message: impl Into<String>) -> Self {
        Self::new(
            StatusCode::SERVICE_UNAVAILABLE,
            "unavailable_error",
            message,
        )
    }

    /// Too many wait.
    pub(crate) fn busy(message: impl Into<String>, retry: Duration) -> Self {
        let mut error = Self::new(StatusCode::TOO_MANY_REQUESTS, "rate_limit_error", message);
        error.retry = Some(retry);
        error
    }

    /// The deadline came before anything was written.
    pub(crate) fn late() -> Self {
        let message = "the deadline came before the first token";
        Self::new(StatusCode::GATEWAY_TIMEOUT, "timeout_error", message)
    }

    /// Something failed here.
    pub(crate) fn internal(message: impl Into<String>) -> Self {
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, "server_error", message)
    }

    /// A wrong field that the client did not send: the server's fault.
    pub(crate) fn of_server(self) -> Self {
        match self.status {
            StatusCode::BAD_REQUEST => Self::internal(self.message),
            _ => self,
        }
    }

    /// What is wrong.
    pub(crate) fn message(&self) -> &str {
        &self.message
    }

    #[cfg(test)]
    pub(crate) const fn status(&self) -> StatusCode {
        self.status
    }

    /// `{"error": {..}}`, as a body or within a stream.
    pub(crate) fn to_value(&self) -> Value {
        json!({"error": {
            "message": self.message,
            "type": self.kind,
            "param": self.param,
            "code": self.status.as_u16(),
        }})
    }
}

impl From<JobError> for ApiError {
    fn from(error: JobError) -> Self {
        let message = error.to_string();
        match error {
            JobError::Busy { retry, .. } => Self::busy(message, retry),
            JobError::TooLong { .. } => {
                let status = StatusCode::BAD_REQUEST;
                Self::new(status, "exceed_context_size_error", message)
            }
            JobError::Gone => Self::unavailable(message),
            JobError::Slot(_) => Self::field("id_slot", message),
            JobError::Failed(_) => Self::internal(message),
        }
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let mut response = Response::new(Body::from(self.to_value().to_string()));
        *response.status_mut() = self.status;
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_TYPE, JSON);
        if let Some(retry) = self.retry {
            // Whole seconds, and never at once.
            let seconds = retry.as_secs() + u64::from(retry.subsec_nanos() > 0);
            headers.insert(header::RETRY_AFTER, HeaderValue::from(seconds.max(1)));
        }
        response
    }
}

/// A reply of JSON.
pub(crate) fn json_reply(value: &Value) -> Response {
    let mut response = Response::new(Body::from(value.to_string()));
    response.headers_mut().insert(header::CONTENT_TYPE, JSON);
    response
}

const JSON: HeaderValue = HeaderValue::from_static("application/json; charset=utf-8");

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wrong_field_is_named() {
        let error = ApiError::field("top_p", "3 is not between 0 and 1").to_value();
        assert_eq!(error["error"]["param"], "top_p");
        assert_eq!(error["error"]["message"], "top_p: 3 is not between 0 and 1");
        assert_eq!(error["error"]["type"], "invalid_request_error");
        assert_eq!(error["error"]["code"], 400);
    }

    #[test]
    fn busy_says_when_to_ask_again() {
        let error: ApiError = JobError::Busy {
            n_waiting: 3,
            retry: Duration::from_millis(1200),
        }
        .into();
        let response = error.into_response();
        assert_eq!(response.status(), 429);
        assert_eq!(response.headers()["retry-after"], "2");
    }
}
