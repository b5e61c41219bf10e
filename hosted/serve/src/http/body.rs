//! Request bodies, bounded in length, in time, and in how many are in memory at once.

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

/// The memory budget for bodies.
#[derive(Debug)]
pub(crate) struct Bodies {
    /// Memory budget in KiB.
    room: Arc<Semaphore>,
    /// Maximum length of a body in bytes.
    limit: usize,
    stall: Duration,
}

/// A parsed body.
#[derive(Debug)]
pub(crate) struct Posted<T> {
    pub(crate) value: T,
    /// The memory budget for the body, held while its contents are in use.
    pub(crate) room: OwnedSemaphorePermit,
}

impl Bodies {
    /// A budget for bodies of up to `limit` bytes, which time out after `stall` without progress.
    pub(crate) fn new(limit: usize, stall: Duration) -> Self {
        let room = kib(limit.saturating_mul(AT_ONCE));
        Self {
            room: Arc::new(Semaphore::new(room)),
            limit,
            stall,
        }
    }

    /// Reads a JSON body and converts it with `read`.
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
        // A body without a declared length may be as long as the limit.
        let wanted = kib(length.unwrap_or(limit)).max(1);
        let wanted = u32::try_from(wanted).map_err(|_| ApiError::too_large(limit))?;
        let room = self.room.clone().acquire_many_owned(wanted);
        let Ok(Ok(room)) = timeout(self.stall, room).await else {
            let what = "too many request bodies are being read";
            return Err(ApiError::busy(what, self.stall));
        };
        let bytes = self.bytes(request.into_body()).await?;
        let parse = move || {
            let parsed = serde_json::from_slice(&bytes);
            let invalid = |error| ApiError::invalid(format!("the body is not valid JSON: {error}"));
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
                let frame = frame.map_err(|_| ApiError::invalid("the body is incomplete"))?;
                if let Some(data) = frame.data_ref() {
                    if bytes.len() + data.len() > self.limit {
                        return Err(ApiError::too_large(self.limit));
                    }
                    bytes.extend_from_slice(data);
                }
            }
        };
        // A body that trickles in is too slow as well.
        timeout(self.stall * STALLS, all)
            .await
            .unwrap_or_else(|_| Err(ApiError::slow()))
    }
}

fn kib(bytes: usize) -> usize {
    bytes.div_ceil(1024).min(Semaphore::MAX_PERMITS)
}

/// Number of bodies of maximum length that may be in memory at once.
const AT_ONCE: usize = 8;
/// Bodies up to this size are parsed on the thread that read them.
const SMALL_KIB: u32 = 64;
/// Maximum time for a whole body, as a multiple of the stall timeout.
const STALLS: u32 = 10;
