//! Bodies of requests: bounded in length, in time, and in how many are in memory at once.

use super::app::{Context, kib};
use crate::api::error::ApiError;
use axum::body::Body;
use axum::extract::Request;
use axum::http::header;
use http_body_util::BodyExt as _;
use serde_json::Value;
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::timeout;

/// A request's JSON.
pub(crate) struct Posted {
    pub(crate) value: Value,
    /// Room for it, until it is dropped.
    _room: OwnedSemaphorePermit,
}

impl Posted {
    /// The model that it names.
    pub(crate) fn model(&self) -> Result<Option<&str>, ApiError> {
        match self.value.get("model") {
            None | Some(Value::Null) => Ok(None),
            Some(Value::String(name)) => Ok(Some(name)),
            Some(other) => Err(crate::api::fields::wrong("model", other, "a text")),
        }
    }
}

/// Reads a body that has to be JSON.
pub(crate) async fn json(context: &Context, request: Request) -> Result<Posted, ApiError> {
    let options = context.app.options();
    let limit = options.body_max;
    let length = request.headers().get(header::CONTENT_LENGTH);
    let length = length.and_then(|value| value.to_str().ok()?.parse::<usize>().ok());
    if length.is_some_and(|length| length > limit) {
        return Err(ApiError::too_large(limit));
    }
    // A body that does not say how long it is may be as long as any.
    let wanted = kib(length.unwrap_or(limit)).max(1);
    let wanted = u32::try_from(wanted).map_err(|_| ApiError::too_large(limit))?;
    let room = context.app.room.clone().acquire_many_owned(wanted);
    let room = timeout(options.stall_timeout, room).await;
    let Ok(Ok(room)) = room else {
        return Err(ApiError::busy(
            "too many requests are being read",
            options.stall_timeout,
        ));
    };
    let bytes = read(request.into_body(), limit, options.stall_timeout).await?;
    let parse = move || {
        let parsed = serde_json::from_slice(&bytes);
        parsed.map_err(|error| ApiError::invalid(format!("the body is not JSON: {error}")))
    };
    let is_small = wanted <= SMALL_KIB;
    let value = if is_small {
        parse()?
    } else {
        context.app.work().run(parse).await??
    };
    Ok(Posted { value, _room: room })
}

async fn read(
    mut body: Body,
    limit: usize,
    stall: core::time::Duration,
) -> Result<Vec<u8>, ApiError> {
    let mut bytes = Vec::new();
    let all = async {
        loop {
            let frame = timeout(stall, body.frame())
                .await
                .map_err(|_| ApiError::slow())?;
            let Some(frame) = frame else {
                return Ok(bytes);
            };
            let frame = frame.map_err(|_| ApiError::invalid("the body broke off"))?;
            if let Some(data) = frame.data_ref() {
                if bytes.len() + data.len() > limit {
                    return Err(ApiError::too_large(limit));
                }
                bytes.extend_from_slice(data);
            }
        }
    };
    // Some bytes now and then are too slow as well.
    timeout(stall * STALLS, all)
        .await
        .unwrap_or_else(|_| Err(ApiError::slow()))
}

/// What is parsed at once, on the thread that read it.
const SMALL_KIB: u32 = 64;
/// Times of a stall that a whole body may take.
const STALLS: u32 = 10;
