//! Bodies of requests: bounded in length, in time, and in how many are in memory at once.

use super::reply::{Body, Request};
use crate::api::ApiError;
use crate::work::Work;
use core::time::Duration;
use http_body_util::BodyExt as _;
use hyper::header;
use serde_json::Value;
use std::sync::Arc;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;

/// The room for bodies.
#[derive(Debug)]
pub(crate) struct Bodies {
    /// KiB that may be in memory at once.
    room: Arc<Semaphore>,
    /// Bytes of one.
    limit: usize,
    stall: Duration,
}

/// What a body says.
#[derive(Debug)]
pub(crate) struct Posted<T> {
    pub(crate) value: T,
    /// The room for the body: kept while what was read of it is used.
    pub(crate) room: OwnedSemaphorePermit,
}

impl Bodies {
    /// Room for bodies of up to `limit` bytes, of which nothing may come for up to `stall`.
    pub(crate) fn new(limit: usize, stall: Duration) -> Self {
        let room = kib(limit.saturating_mul(AT_ONCE));
        Self {
            room: Arc::new(Semaphore::new(room)),
            limit,
            stall,
        }
    }

    /// Reads a body that has to be JSON, of which `read` makes a value.
    pub(crate) async fn json<T: Send + 'static>(
        &self,
        request: Request,
        work: &Work,
        read: impl FnOnce(Value) -> Result<T, ApiError> + Send + 'static,
    ) -> Result<Posted<T>, ApiError> {
        let limit = self.limit;
        let length = request.headers().get(header::CONTENT_LENGTH);
        let length = length.and_then(|value| value.to_str().ok()?.parse::<usize>().ok());
        if length.is_some_and(|length| length > limit) {
            return Err(ApiError::too_large(limit));
        }
        // A body that does not say how long it is may be as long as any.
        let wanted = kib(length.unwrap_or(limit)).max(1);
        let wanted = u32::try_from(wanted).map_err(|_| ApiError::too_large(limit))?;
        let room = self.room.clone().acquire_many_owned(wanted);
        let Ok(Ok(room)) = timeout(self.stall, room).await else {
            let what = "too many requests are being read";
            return Err(ApiError::busy(what, self.stall));
        };
        let bytes = self.bytes(request.into_body()).await?;
        let parse = move || {
            let parsed = serde_json::from_slice(&bytes);
            let invalid = |error| ApiError::invalid(format!("the body is not JSON: {error}"));
            read(parsed.map_err(invalid)?)
        };
        let is_small = wanted <= SMALL_KIB;
        let value = if is_small {
            parse()?
        } else {
            work.run(parse).await??
        };
        Ok(Posted { value, room })
    }

    async fn bytes(&self, mut body: Body) -> Result<Vec<u8>, ApiError> {
        let mut bytes = Vec::new();
        let all = async {
            loop {
                let frame = timeout(self.stall, body.frame())
                    .await
                    .map_err(|_| ApiError::slow())?;
                let Some(frame) = frame else {
                    return Ok(bytes);
                };
                let frame = frame.map_err(|_| ApiError::invalid("the body broke off"))?;
                if let Some(data) = frame.data_ref() {
                    if bytes.len() + data.len() > self.limit {
                        return Err(ApiError::too_large(self.limit));
                    }
                    bytes.extend_from_slice(data);
                }
            }
        };
        // Some bytes now and then are too slow as well.
        timeout(self.stall * STALLS, all)
            .await
            .unwrap_or_else(|_| Err(ApiError::slow()))
    }
}

fn kib(bytes: usize) -> usize {
    bytes.div_ceil(1024).min(Semaphore::MAX_PERMITS)
}

/// Bodies of full length that may be in memory at once.
const AT_ONCE: usize = 8;
/// What is parsed at once, on the thread that read it.
const SMALL_KIB: u32 = 64;
/// Times of a stall that a whole body may take.
const STALLS: u32 = 10;
