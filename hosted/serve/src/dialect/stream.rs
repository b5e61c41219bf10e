//! An answer as a stream of chunks.

use super::error::error_value;
use super::seam::{Dialect, TextWriter};
use crate::answer::TextAnswer;
use crate::http::{Source, Step};
use core::task::{Context, Poll, ready};
use serde_json::Value;
use std::sync::Arc;

/// Formats events as chunks when polled.
pub(super) struct Chunks {
    pub(super) answer: TextAnswer,
    pub(super) writer: Box<dyn TextWriter>,
    /// Whether the first chunks have been written.
    pub(super) is_begun: bool,
    pub(super) dialect: &'static dyn Dialect,
    /// The id of the request.
    pub(super) request: Arc<str>,
}

impl Source for Chunks {
    fn poll_next(&mut self, context: &mut Context<'_>, text: &mut String) -> Poll<Step> {
        let framing = self.dialect.framing();
        if !core::mem::replace(&mut self.is_begun, true) {
            let chunks = self.writer.begin();
            chunks.iter().for_each(|chunk| (framing.frame)(text, chunk));
            if !text.is_empty() {
                return Poll::Ready(Step::More);
            }
        }
        let (chunks, step) = match ready!(self.answer.poll_next(context)) {
            Some(Ok(event)) => (self.writer.write(event), Step::More),
            Some(Err(error)) => {
                let failed = self.writer.failed(&error);
                let error = || vec![error_value(self.dialect, error, &self.request)];
                (failed.unwrap_or_else(error), Step::End)
            }
            None => (self.writer.last(self.answer.total()), Step::End),
        };
        chunks.iter().for_each(|chunk| (framing.frame)(text, chunk));
        if step == Step::End {
            text.push_str(framing.end);
        }
        Poll::Ready(step)
    }
}

/// A chunk as a line of JSON.
pub(super) fn line(text: &mut String, chunk: &Value) {
    use core::fmt::Write as _;
    // Writing to a string cannot fail.
    let _written = writeln!(text, "{chunk}");
}

/// A chunk as a server-sent event that is named by its type.
pub(super) fn named_event(text: &mut String, chunk: &Value) {
    use core::fmt::Write as _;
    let name = chunk["type"].as_str().unwrap_or("message");
    // Writing to a string cannot fail.
    let _written = write!(text, "event: {name}\ndata: {chunk}\n\n");
}

/// A chunk as a server-sent event: JSON has no line breaks.
pub(super) fn server_sent(text: &mut String, chunk: &Value) {
    use core::fmt::Write as _;
    // Writing to a string cannot fail.
    let _written = write!(text, "data: {chunk}\n\n");
}
