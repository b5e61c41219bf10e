//! Request bodies, bounded in length, in time, and in the memory of all of them together.

use super::reply::{Body, Request};
use super::room::{BodyRoom, FIRST_BYTES, Room};
use super::weight::{FieldWeight, GROWTH, parse, weigh};
use crate::api::ApiError;
use crate::work::{Lane, Work};
use core::time::Duration;
use http_body_util::BodyExt as _;
use hyper::header;
use serde_json::Value;
use sha2::{Digest as _, Sha256};
use std::sync::Arc;
use tokio::time::{Instant, timeout_at};

/// The limits of bodies.
#[derive(Debug)]
pub(crate) struct Bodies {
    room: Room,
    /// Maximum length of a body in bytes.
    limit: usize,
    stall: Duration,
}

/// A parsed body.
#[derive(Debug)]
pub(crate) struct Posted<T> {
    pub(crate) value: T,
    /// Hash of its bytes.
    pub(crate) hash: u32,
    /// Where to prepare the request.
    pub(crate) lane: Lane,
    /// Its memory, to be held while its contents are in use.
    pub(crate) room: BodyRoom,
}

/// What a reader of a body made of it, and the names of the fields that it asked for.
pub(crate) type Asked<T> = (Result<T, ApiError>, Vec<String>);

impl Bodies {
    /// Bodies of up to `limit` bytes, which take up to `memory` bytes together, and time out after `stall` without
    /// progress.
    pub(crate) fn new(limit: usize, memory: usize, stall: Duration) -> Self {
        let room = Room::new(memory);
        Self {
            limit: limit.min(room.max()),
            room,
            stall,
        }
    }

    /// Reads a JSON body and converts it with `read`, which may be called several times: heavy fields that it never asks
    /// for are skipped.
    pub(crate) async fn json<T: Send + 'static>(
        &self,
        request: Request,
        work: &Work,
        read: impl Fn(&Value) -> Asked<T> + Send + Sync + 'static,
    ) -> Result<Posted<T>, ApiError> {
        let limit = self.limit;
        let length = request.headers().get(header::CONTENT_LENGTH);
        let length = length.and_then(|value| value.to_str().ok()?.parse::<usize>().ok());
        if length.is_some_and(|length| length > limit) {
            return Err(ApiError::too_large(limit));
        }
        let ends = || ApiError::unavailable("the server is shutting down");
        let mut room = self.room.begin().await.ok_or_else(ends)?;
        let text = Arc::new(self.bytes(request.into_body(), &mut room).await?);
        let read = Arc::new(read);
        let weighed = Arc::clone(&text);
        let weigh = move || Ok((weigh(&weighed).map_err(invalid)?, hash(&weighed)));
        let ((fields, hash), mut room) = convert(work, room, text.len(), weigh).await?;
        let lane = lane(&text, &fields);
        let mut kept: Vec<_> = fields
            .iter()
            .filter(|field| field.n_bytes <= FIRST_BYTES || field.name.is_empty())
            .map(|field| field.name.clone())
            .collect();
        loop {
            let all = fields.iter().filter(|field| kept.contains(&field.name));
            let n_bytes = self.check(text.len(), all)?;
            room.grow(n_bytes).await?;
            let (text, read, keeps) = (Arc::clone(&text), Arc::clone(&read), kept.clone());
            let convert_it = move || {
                let value = parse(&text, &|name| keeps.iter().any(|kept| kept == name));
                Ok(read(&value.map_err(invalid)?))
            };
            let (converted, held) = convert(work, room, n_bytes, convert_it).await?;
            let (value, asked) = converted;
            room = held;
            let n_before = kept.len();
            let more = fields.iter().map(|field| &field.name);
            let more = more.filter(|&name| !kept.contains(name) && asked.contains(name));
            let more: Vec<_> = more.cloned().collect();
            kept.extend(more);
            if kept.len() == n_before {
                let value = value?;
                return Ok(Posted {
                    value,
                    hash,
                    lane,
                    room,
                });
            }
        }
    }

    /// What a body of `len` bytes takes with these fields.
    fn check<'f>(
        &self,
        len: usize,
        fields: impl Iterator<Item = &'f FieldWeight>,
    ) -> Result<usize, ApiError> {
        let max = (len.saturating_mul(GROWTH))
            .max(ALWAYS)
            .min(self.room.max());
        let mut n_bytes = len;
        for field in fields {
            n_bytes += field.n_bytes;
            let refused = |what| match field.name.is_empty() {
                true => ApiError::invalid(format!("the body {what}")),
                false => ApiError::field(&field.name, what),
            };
            if field.n_fields > FIELDS_MAX {
                let n = field.n_fields;
                return Err(refused(format!(
                    "has {n} fields in objects; up to {FIELDS_MAX} are allowed"
                )));
            }
            if n_bytes > max {
                return Err(refused(format!(
                    "takes too much memory: {n_bytes} bytes for a body of {len}, of which {max} are allowed"
                )));
            }
        }
        Ok(n_bytes)
    }

    /// The bytes of a body, which must not trickle in.
    async fn bytes(&self, mut body: Body, room: &mut BodyRoom) -> Result<Vec<u8>, ApiError> {
        let mut bytes = Vec::new();
        let (mut due, mut n_due) = (Instant::now() + self.stall, 0);
        loop {
            let frame = timeout_at(due, body.frame()).await;
            let Some(frame) = frame.map_err(|_| ApiError::slow())? else {
                return Ok(bytes);
            };
            let frame = frame.map_err(|_| ApiError::invalid("the body is incomplete"))?;
            let Some(data) = frame.data_ref() else {
                continue;
            };
            if bytes.len() + data.len() > self.limit {
                return Err(ApiError::too_large(self.limit));
            }
            let now = Instant::now();
            room.grow(bytes.len() + data.len()).await?;
            bytes.extend_from_slice(data);
            // Waiting for room is not the client's fault.
            due += now.elapsed();
            if bytes.len() >= n_due {
                n_due = bytes.len() + rate(self.stall);
                due = Instant::now() + self.stall;
            }
        }
    }
}

/// A hash that is the same after a restart, by which a request is known to be another one's repetition.
fn hash(bytes: &[u8]) -> u32 {
    let digest = Sha256::digest(bytes);
    digest[..4]
        .iter()
        .fold(0, |hash, &byte| hash << 8 | u32::from(byte))
}

/// Converts a body where its size belongs. The conversion holds its memory: it goes on when the client has left.
async fn convert<T: Send + 'static>(
    work: &Work,
    room: BodyRoom,
    n_bytes: usize,
    with: impl FnOnce() -> Result<T, ApiError> + Send + 'static,
) -> Result<(T, BodyRoom), ApiError> {
    let with = move || Ok((with()?, room));
    match n_bytes <= SMALL_BYTES {
        true => with(),
        false => work.run(Lane::Heavy, with).await?,
    }
}

/// Texts are prepared quickly; grammars, schemas and tools are not.
fn lane(text: &[u8], fields: &[FieldWeight]) -> Lane {
    let is_slow = |field: &FieldWeight| {
        field.n_bytes > SLOW_BYTES && !TEXTS.contains(&&*field.name) && !field.name.is_empty()
    };
    match text.len() > LIGHT_BYTES || fields.iter().any(is_slow) {
        true => Lane::Heavy,
        false => Lane::Light,
    }
}

fn invalid(error: serde_json::Error) -> ApiError {
    ApiError::invalid(format!("the body is not valid JSON: {error}"))
}

/// The bytes that have to arrive within `time`.
fn rate(time: Duration) -> usize {
    let n_bytes = time.as_millis() * RATE / 1000;
    usize::try_from(n_bytes).unwrap_or(usize::MAX)
}

/// The least rate of a body in bytes per second.
const RATE: u128 = 4096;
/// What any body may take: tools and schemas are small, but many times their text.
const ALWAYS: usize = 16 << 20;
/// Maximum number of fields of all objects in a field.
const FIELDS_MAX: usize = 1 << 16;
/// Bodies that take no more are parsed on the thread that read them.
const SMALL_BYTES: usize = 1 << 20;
/// Bodies up to this length are prepared with the light ones.
const LIGHT_BYTES: usize = 1 << 20;
/// What a field that is not a text may take to be prepared with the light ones.
const SLOW_BYTES: usize = 128 << 10;
/// Fields whose preparation takes little more than reading them.
const TEXTS: [&str; 12] = [
    "messages",
    "prompt",
    "input",
    "content",
    "documents",
    "query",
    "texts",
    "tokens",
    "suffix",
    "input_prefix",
    "input_suffix",
    "input_extra",
];

#[cfg(test)]
mod tests {
    use super::super::reply::boxed;
    use super::*;
    use http_body_util::Full;
    use sluice::Team;
    use sluice::host::topology::Cores;
    use std::sync::{Mutex, mpsc};

    #[tokio::test]
    async fn the_memory_of_a_body_is_held_by_work_whose_client_has_left() {
        let team = Team::new(1, &Cores::detect()).unwrap();
        let work = Arc::new(Work::new(2, &team));
        let bodies = Bodies::new(8 << 20, 64 << 20, Duration::from_secs(10));
        let bodies = Arc::new(bodies);
        let text = format!("\"{}\"", "x".repeat(2 * SMALL_BYTES));
        let request = hyper::Request::new(boxed(Full::from(text)));
        let (enters, entered) = mpsc::channel();
        let (leaves, left) = mpsc::channel::<()>();
        let left = Mutex::new(left);
        let (of_task, whole) = (Arc::clone(&bodies), bodies.room.free());
        let reading = tokio::spawn(async move {
            let read = move |_: &Value| {
                enters.send(()).unwrap();
                left.lock().unwrap().recv().unwrap();
                (Ok(()), Vec::new())
            };
            of_task.json(request, &work, read).await.map(drop)
        });
        let entered = tokio::task::spawn_blocking(move || entered.recv().unwrap());
        entered.await.unwrap();
        reading.abort();
        assert!(reading.await.unwrap_err().is_cancelled());
        assert!(bodies.room.free() + 2 * SMALL_BYTES / 1024 <= whole);
        leaves.send(()).unwrap();
        while bodies.room.free() < whole {
            tokio::task::yield_now().await;
        }
    }
}
