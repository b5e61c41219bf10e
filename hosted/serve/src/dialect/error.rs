//! JSON replies, and errors in a dialect.

use super::seam::{Dialect, ErrorOf};
use crate::api::ApiError;
use crate::http::{Response, reply};
use hyper::header::{self, HeaderValue};
use serde_json::Value;

/// The reply to the request `request` that failed, in a dialect.
pub(crate) fn error_reply(dialect: &dyn Dialect, error: ApiError, request: &str) -> Response {
    let retry = error.retry;
    let status = dialect.status(error.kind);
    let mut response = json_reply(&error_value(dialect, error, request));
    *response.status_mut() = status;
    if let Some(retry) = retry {
        // Rounded up to whole seconds, so that it is never 0.
        let seconds = retry.as_secs() + u64::from(retry.subsec_nanos() > 0);
        let seconds = HeaderValue::from(seconds.max(1));
        response.headers_mut().insert(header::RETRY_AFTER, seconds);
    }
    response
}

/// The body of an error.
pub(super) fn error_value(dialect: &dyn Dialect, error: ApiError, request: &str) -> Value {
    let status = dialect.status(error.kind).as_u16();
    let error = error.renamed(dialect.names());
    dialect.error(&error, ErrorOf { status, request })
}

/// A JSON reply.
pub(super) fn json_reply(value: &Value) -> Response {
    reply("application/json; charset=utf-8", value.to_string())
}

#[cfg(test)]
mod tests {
    use super::super::ALL;
    use super::*;
    use core::time::Duration;

    #[test]
    fn an_error_names_the_field_as_the_client_does() {
        let error = ApiError::field("stop_tokens[2]", "9 is not a token id of this model");
        let value = error_value(ALL[0], error, "req-1");
        assert_eq!(value["error"]["param"], "stop_token_ids[2]");
        let message = "stop_token_ids[2]: 9 is not a token id of this model";
        assert_eq!(value["error"]["message"], message);
        assert_eq!(value["error"]["type"], "invalid_request_error");
        assert_eq!(value["error"]["code"], 400);
    }

    #[test]
    fn busy_says_when_to_ask_again() {
        let error = ApiError::busy("3 requests are queued", Duration::from_millis(1200));
        let response = error_reply(ALL[0], error, "req-1");
        assert_eq!(response.status(), 429);
        assert_eq!(response.headers()["retry-after"], "2");
    }
}
