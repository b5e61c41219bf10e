//! Responses and their streams.

use super::super::logprobs;
use super::super::seam::TextWriter;
use super::output::Output;
use super::response::{Echo, Frame, Status, usage};
use crate::api::{AnswerEvent, AnswerPiece, ApiError, End, Reason, Start, Total};
use serde_json::{Value, json};
use sluice::model::ModelSource;
use sluice_text::assistant::Delta;

/// Writes one response.
pub(super) struct Writer {
    frame: Frame,
    model: ModelSource,
    output: Output,
    n_events: u64,
    n_reasoning: usize,
    status: Status,
}

impl Writer {
    pub(super) fn new(start: &Start, echo: Echo) -> Self {
        Self {
            frame: Frame::new(start, echo.fields),
            model: start.model.clone(),
            output: Output::new(start.stream.to_string(), echo.custom, echo.shown),
            n_events: 0,
            n_reasoning: 0,
            status: Status::InProgress,
        }
    }

    /// The stream of a request that is refused; `model` is the name that it gave.
    pub(super) fn refused(model: String, echo: Echo, error: &ApiError) -> Vec<Value> {
        let frame = Frame::refused(model, echo.fields);
        let event = |kind: &str, status: &Status| {
            let response = frame.object(status, &[], Value::Null);
            json!({"type": kind, "response": response})
        };
        let mut events = vec![
            event("response.created", &Status::InProgress),
            event("response.failed", &Status::Failed(error.clone())),
        ];
        number(&mut events, &mut 0);
        events
    }

    fn numbered(&mut self, mut events: Vec<Value>) -> Vec<Value> {
        number(&mut events, &mut self.n_events);
        events
    }

    /// An event with the response as it stands.
    fn whole_event(&self, kind: &str, usage: Value) -> Value {
        let response = self.frame.object(&self.status, self.output.done(), usage);
        json!({"type": kind, "response": response})
    }

    fn piece(&mut self, piece: AnswerPiece, events: &mut Vec<Value>) {
        let thinks = match piece.deltas.last() {
            Some(delta) => matches!(delta, Delta::Reasoning(_)),
            None => self.output.is_thinking(),
        };
        self.n_reasoning += usize::from(thinks);
        let report = piece.report.as_ref();
        let entry = report.map(|report| logprobs::chat(&self.model, report));
        self.output.report(entry);
        self.output.push(piece.deltas, events);
    }
}

/// Numbers events, from `next` on.
fn number(events: &mut [Value], next: &mut u64) {
    for event in events {
        event["sequence_number"] = (*next).into();
        *next += 1;
    }
}

impl TextWriter for Writer {
    fn begin(&mut self) -> Vec<Value> {
        let events = ["response.created", "response.in_progress"];
        let events = events.map(|kind| self.whole_event(kind, Value::Null));
        self.numbered(events.into())
    }

    fn write(&mut self, event: AnswerEvent) -> Vec<Value> {
        let mut events = Vec::new();
        match event {
            AnswerEvent::Scores { .. } | AnswerEvent::Progress { .. } => {}
            AnswerEvent::Piece { piece, .. } => self.piece(piece, &mut events),
            AnswerEvent::EndToken { piece, .. } => self.output.push(piece.deltas, &mut events),
            AnswerEvent::End { end, .. } => {
                let End { reason, deltas, .. } = end;
                self.status = match reason {
                    Reason::EndOfText | Reason::Stop(_) => Status::Completed,
                    Reason::Length | Reason::ContextFull | Reason::Late => Status::Incomplete,
                };
                self.output.push(deltas, &mut events);
                let is_cut = matches!(self.status, Status::Incomplete);
                self.output.close(is_cut, &mut events);
            }
        }
        self.numbered(events)
    }

    fn last(&mut self, total: &Total) -> Vec<Value> {
        let kind = match self.status {
            Status::Incomplete => "response.incomplete",
            _ => "response.completed",
        };
        let event = self.whole_event(kind, usage(total, self.n_reasoning));
        self.numbered(vec![event])
    }

    fn whole(&mut self, total: &Total) -> Value {
        let usage = usage(total, self.n_reasoning);
        self.frame.object(&self.status, self.output.done(), usage)
    }

    fn failed(&mut self, error: &ApiError) -> Option<Vec<Value>> {
        let mut events = Vec::new();
        self.output.close(true, &mut events);
        self.status = Status::Failed(error.clone());
        events.push(self.whole_event("response.failed", Value::Null));
        Some(self.numbered(events))
    }
}
