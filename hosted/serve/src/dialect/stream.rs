//! An answer as a stream of chunks.

use super::error::error_value;
use super::numbered::Numbered;
use super::seam::{Dialect, TextWriter};
use crate::answer::TextAnswer;
use crate::api::AnswerEvent;
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
    /// The ids of its chunks, if it can be taken up again.
    pub(super) ids: Option<Numbered>,
}

impl Chunks {
    /// Writes chunks about the text `at`, or none of them.
    fn write(&mut self, text: &mut String, at: Option<usize>, chunks: &[Value]) {
        let frame = self.dialect.framing().frame;
        for chunk in chunks {
            match &mut self.ids {
                Some(ids) => ids.write(text, at, chunk, frame),
                None => frame(text, chunk),
            }
        }
    }

    /// Writes an event.
    fn event(&mut self, text: &mut String, event: AnswerEvent) {
        let at = event.at();
        let opened = self.writer.open(&event);
        self.write(text, Some(at), &opened);
        let is_progress = matches!(event, AnswerEvent::Progress { .. });
        let chunks = self.writer.write(event);
        if is_progress {
            self.unnumbered(text, &chunks);
        } else {
            self.write(text, Some(at), &chunks);
        }
    }

    /// Writes chunks that are not part of the text.
    fn unnumbered(&self, text: &mut String, chunks: &[Value]) {
        let frame = self.dialect.framing().frame;
        chunks.iter().for_each(|chunk| frame(text, chunk));
    }
}

impl Source for Chunks {
    fn poll_next(&mut self, context: &mut Context<'_>, text: &mut String) -> Poll<Step> {
        let framing = self.dialect.framing();
        if !core::mem::replace(&mut self.is_begun, true) {
            let chunks = self.writer.begin();
            self.write(text, None, &chunks);
            if !text.is_empty() {
                return Poll::Ready(Step::More);
            }
        }
        match ready!(self.answer.poll_next(context)) {
            Some(Ok(event)) => {
                self.event(text, event);
                return Poll::Ready(Step::More);
            }
            Some(Err(error)) => {
                let failed = self.writer.failed(&error);
                let error = || vec![error_value(self.dialect, error, &self.request)];
                self.unnumbered(text, &failed.unwrap_or_else(error));
            }
            None => {
                let chunks = self.writer.last(self.answer.total());
                self.write(text, None, &chunks);
            }
        }
        text.push_str(framing.end);
        Poll::Ready(Step::End)
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
