//! Routes that other servers have and this one has not, or not yet.

use crate::api::error::ApiError;
use axum::extract::Request;

/// Those that are posted to.
pub(super) const POSTED: [&str; 7] = [
    "/responses",
    "/v1/responses",
    "/v1/messages",
    "/v1/messages/count_tokens",
    "/v1/audio/transcriptions",
    "/models/load",
    "/models/unload",
];

pub(super) async fn answer(request: Request) -> ApiError {
    let path = request.uri().path();
    let why = match path {
        _ if path.contains("responses") => "use /v1/chat/completions",
        _ if path.contains("messages") => "use /v1/chat/completions",
        _ if path.contains("audio") => "this server takes text",
        "/props" => "properties are set on the command line",
        _ => "models are loaded when they are asked for",
    };
    ApiError::unsupported(format!("{path}: {why}"))
}
