//! Numbers the chunks of a stream, so that it can be taken up again.

use crate::answer::Context;
use crate::api::{ApiError, EventId, LAST_EVENT_ID, Start};
use core::fmt::Write as _;
use serde_json::Value;
use std::sync::Arc;

/// The ids of a stream's chunks. They depend on the tokens alone, not on when each comes: events of different texts are
/// counted separately, and chunks about a prompt that is being read have none.
pub(super) struct Numbered {
    /// The ids without their numbers.
    prefix: String,
    /// The chunks so far; with several texts, of the stream itself and of each text.
    counts: Vec<u32>,
    /// The chunks that the client has.
    known: Vec<u32>,
}

impl Numbered {
    /// The ids of a stream, if it can be taken up again.
    ///
    /// # Errors
    /// The client's last event is of a stream with another number of texts.
    pub(super) fn new(context: &Context, start: &Start) -> Result<Option<Self>, ApiError> {
        let Some(stream) = &context.stream else {
            return Ok(None);
        };
        let n_texts = start.n * start.prompts.len();
        let n_counts = if n_texts > 1 { 1 + n_texts } else { 1 };
        let known = match &stream.after {
            Some(after) if after.numbers.len() != n_counts => {
                let what = format!("has {} numbers instead of {n_counts}", after.numbers.len());
                return Err(ApiError::field(LAST_EVENT_ID, what));
            }
            Some(after) => after.numbers.clone(),
            None => vec![0; n_counts],
        };
        let id = EventId {
            fingerprint: EventId::fingerprint(&start.fingerprint),
            seed: start.sampling.config.seed,
            stream: start.stream,
            body: context.body,
            settings: start.settings,
            numbers: Vec::new(),
        };
        Ok(Some(Self {
            prefix: id.prefix(),
            counts: vec![0; n_counts],
            known,
        }))
    }

    /// Writes a chunk with its id, about the text `at` or none of them, unless the client has it.
    pub(super) fn write(
        &mut self,
        text: &mut String,
        at: Option<usize>,
        chunk: &Value,
        frame: fn(&mut String, &Value),
    ) {
        let counter = match (at, self.counts.len()) {
            (Some(at), 2..) => at + 1,
            _ => 0,
        };
        let Some(count) = self.counts.get_mut(counter) else {
            return;
        };
        *count += 1;
        if *count <= self.known[counter] {
            return;
        }
        // Writing to a string cannot fail.
        let _ = write!(text, "id: {}", self.prefix);
        for (i, count) in self.counts.iter().zip(&self.known).enumerate() {
            let separator = if i == 0 { "" } else { "," };
            // A client that has less of one text may have more of another.
            let _ = write!(text, "{separator}{}", count.0.max(count.1));
        }
        text.push('\n');
        frame(text, chunk);
    }
}

/// The last event that a client has, if it takes up a stream.
///
/// # Errors
/// The header is not an id of this server's.
pub(super) fn last_event(request: &crate::http::Request) -> Result<Option<Arc<EventId>>, ApiError> {
    // Clients that have seen no event may send an empty one.
    let value = request.headers().get(LAST_EVENT_ID);
    let Some(value) = value.filter(|value| !value.is_empty()) else {
        return Ok(None);
    };
    let id = value.to_str().ok().and_then(|id| id.parse().ok());
    let what = "is not the id of an event of this server's streams";
    let id = id.ok_or_else(|| ApiError::field(LAST_EVENT_ID, what))?;
    Ok(Some(Arc::new(id)))
}

/// Checks that the request is the one whose stream had this event.
pub(super) fn check_body(
    context: &Context,
    after: &EventId,
    streams: bool,
    has_ids: bool,
) -> Result<(), ApiError> {
    let what = if !context.app.streams().is_on() {
        "this server's streams cannot be taken up again (--resume-seconds 0)"
    } else if !has_ids {
        "the streams of this route have no event ids"
    } else if !streams {
        "only streams can be taken up again; this request has no stream: true"
    } else if context.body != after.body {
        "the event is of another request's stream: send the same body, byte for byte"
    } else {
        return Ok(());
    };
    Err(ApiError::field(LAST_EVENT_ID, what))
}
