//! `GET /` and `GET /api/version`.

use super::super::error::json_reply;
use crate::api::ApiError;
use crate::http::{Response, reply};
use serde_json::json;

/// The text by which clients find a server. Browsers get the page instead, if there is one.
pub(super) async fn root() -> Result<Response, ApiError> {
    Ok(reply("text/plain; charset=utf-8", "Ollama is running"))
}

/// The version of Ollama whose API is spoken: clients compare it with the one that they need.
pub(super) async fn version() -> Result<Response, ApiError> {
    Ok(json_reply(&json!({
        "version": VERSION,
        "sluice_version": env!("CARGO_PKG_VERSION"),
    })))
}

const VERSION: &str = "0.33.0";
