//! Ollama's replies and streams.

use super::super::logprobs;
use super::super::reply::finish;
use super::super::seam::TextWriter;
use super::timestamp;
use crate::api::{AnswerEvent, AnswerPiece, End, Start, Total};
use core::time::Duration;
use serde_json::{Map, Value, json};
use sluice::model::ModelSource;
use sluice_text::assistant::Delta;
use std::time::{Instant, SystemTime};

/// The route, whose replies have their texts in different places.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Chat,
    Generate,
}

/// How an answer is written.
pub(super) struct Options {
    pub(super) kind: Kind,
    /// The name that the request gave.
    pub(super) name: String,
    pub(super) is_stream: bool,
}

/// Writes lines and replies.
pub(super) struct Writer {
    options: Options,
    model: ModelSource,
    arrived: Instant,
    load_time: Duration,
    /// The call whose arguments are being written: its id, name and arguments.
    call: Option<(String, String, String)>,
    n_calls: usize,
    /// What was written, if it is not streamed, or not yet.
    part: Part,
    reason: &'static str,
}

/// A part of an answer.
#[derive(Debug, Default)]
struct Part {
    content: String,
    thinking: String,
    calls: Vec<Value>,
    logprobs: Vec<Value>,
}

impl Writer {
    pub(super) fn new(start: &Start, options: Options) -> Self {
        let name = match options.name.is_empty() {
            true => start.name.clone(),
            false => options.name,
        };
        Self {
            options: Options { name, ..options },
            model: start.model.clone(),
            arrived: start.arrived,
            load_time: start.load_time,
            call: None,
            n_calls: 0,
            part: Part::default(),
            reason: "stop",
        }
    }

    fn piece(&mut self, piece: AnswerPiece) {
        if let Some(report) = &piece.report {
            let entry = logprobs::chat(&self.model, report);
            self.part.logprobs.push(entry);
        }
        match self.options.kind {
            Kind::Generate if piece.deltas.is_empty() => self.part.content.push_str(&piece.text),
            _ => self.deltas(piece.deltas),
        }
    }

    fn deltas(&mut self, deltas: Vec<Delta>) {
        for delta in deltas {
            match delta {
                Delta::Content(text) => {
                    self.end_call();
                    self.part.content.push_str(&text);
                }
                Delta::Reasoning(text) => self.part.thinking.push_str(&text),
                Delta::CallBegin { id, name, .. } => {
                    self.end_call();
                    self.call = Some((id, name, String::new()));
                }
                Delta::CallArguments { text, .. } => {
                    if let Some((.., arguments)) = &mut self.call {
                        arguments.push_str(&text);
                    }
                }
            }
        }
    }

    /// Ends a call, which is sent whole. One that was cut off cannot be executed and is left out.
    fn end_call(&mut self) {
        let Some((id, name, text)) = self.call.take() else {
            return;
        };
        let text = if text.is_empty() { "{}" } else { &text };
        if let Ok(arguments @ Value::Object(_)) = serde_json::from_str(text) {
            let index = self.n_calls;
            self.n_calls += 1;
            let function = json!({"index": index, "name": name, "arguments": arguments});
            self.part
                .calls
                .push(json!({"id": id, "function": function}));
        }
    }

    /// The line of what was written, if that is to be sent now.
    fn lines(&mut self) -> Vec<Value> {
        let part = &self.part;
        let is_visible =
            !(part.content.is_empty() && part.thinking.is_empty() && part.calls.is_empty());
        if !self.options.is_stream || !is_visible {
            return Vec::new();
        }
        vec![self.object(false).into()]
    }

    /// A line, or the reply, with the part that was written.
    fn object(&mut self, is_done: bool) -> Map<String, Value> {
        let part = core::mem::take(&mut self.part);
        let mut object = head(&self.options.name);
        let mut text = Map::new();
        let content = match self.options.kind {
            Kind::Chat => {
                text.insert("role".into(), "assistant".into());
                "content"
            }
            Kind::Generate => "response",
        };
        text.insert(content.into(), part.content.into());
        if !part.thinking.is_empty() {
            text.insert("thinking".into(), part.thinking.into());
        }
        if !part.calls.is_empty() {
            text.insert("tool_calls".into(), part.calls.into());
        }
        match self.options.kind {
            Kind::Chat => drop(object.insert("message".into(), text.into())),
            Kind::Generate => object.extend(text),
        }
        object.insert("done".into(), is_done.into());
        if !part.logprobs.is_empty() {
            object.insert("logprobs".into(), part.logprobs.into());
        }
        object
    }

    /// The last line, or the reply.
    fn end(&mut self, total: &Total) -> Value {
        let mut object = self.object(true);
        object.insert("done_reason".into(), self.reason.into());
        let (usage, timings) = (&total.usage, &total.timings);
        for (name, value) in [
            ("total_duration", nanos(self.arrived.elapsed())),
            ("load_duration", nanos(self.load_time)),
            ("prompt_eval_count", usage.n_prompt.into()),
            ("prompt_eval_duration", nanos(timings.prompt)),
            ("eval_count", usage.n_predicted.into()),
            ("eval_duration", nanos(timings.predict)),
        ] {
            object.insert(name.into(), value);
        }
        object.into()
    }
}

impl TextWriter for Writer {
    fn write(&mut self, event: AnswerEvent) -> Vec<Value> {
        match event {
            AnswerEvent::Scores { .. } | AnswerEvent::Progress { .. } => {}
            AnswerEvent::Piece { piece, .. } => self.piece(piece),
            // The token that ends the text is not part of it.
            AnswerEvent::EndToken { piece, .. } => self.piece(AnswerPiece {
                report: None,
                ..piece
            }),
            AnswerEvent::End { end, .. } => {
                let End { reason, deltas, .. } = end;
                self.reason = finish(&reason);
                self.deltas(deltas);
                self.end_call();
            }
        }
        self.lines()
    }

    fn last(&mut self, total: &Total) -> Vec<Value> {
        vec![self.end(total)]
    }

    fn whole(&mut self, total: &Total) -> Value {
        self.end(total)
    }
}

/// The reply to a request that loads a model, or unloads it.
pub(super) fn loaded(kind: Kind, name: &str, loads: bool) -> Value {
    let mut object = head(name);
    match kind {
        Kind::Chat => {
            let message = json!({"role": "assistant", "content": ""});
            object.insert("message".into(), message);
        }
        Kind::Generate => drop(object.insert("response".into(), "".into())),
    }
    object.insert("done".into(), true.into());
    let reason = if loads { "load" } else { "unload" };
    object.insert("done_reason".into(), reason.into());
    object.into()
}

/// What every line begins with.
fn head(name: &str) -> Map<String, Value> {
    let mut object = Map::new();
    object.insert("model".into(), name.into());
    object.insert("created_at".into(), timestamp(SystemTime::now()).into());
    object
}

/// A time in nanoseconds.
pub(super) fn nanos(time: Duration) -> Value {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX).into()
}
