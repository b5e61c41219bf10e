//! Anthropic's replies and streams.

use super::super::seam::TextWriter;
use super::thinking::signature;
use crate::api::{AnswerEvent, End, Reason, Start, Total};
use core::mem::take;
use serde_json::{Map, Value, json};
use sluice_text::assistant::Delta;

/// Writes one message.
pub(super) struct Writer {
    id: String,
    model: String,
    n_prompt: usize,
    /// The stop texts of the request; the model may have others.
    stops: Vec<String>,
    is_begun: bool,
    blocks: Blocks,
    reason: Option<Reason>,
}

impl Writer {
    pub(super) fn new(start: &Start, stops: Vec<String>, hides_thoughts: bool) -> Self {
        Self {
            id: format!("msg_{}", start.stream),
            model: start.name.clone(),
            n_prompt: start.prompts.first().map_or(0, |prompt| prompt.n_tokens),
            stops,
            is_begun: false,
            blocks: Blocks {
                fingerprint: start.fingerprint.clone(),
                hides_thoughts,
                ..Blocks::default()
            },
            reason: None,
        }
    }

    /// The message with everything but its end.
    fn message(&self, content: Vec<Value>, usage: Value) -> Value {
        json!({
            "id": self.id,
            "type": "message",
            "role": "assistant",
            "model": self.model,
            "content": content,
            "stop_reason": null,
            "stop_sequence": null,
            "usage": usage,
        })
    }

    fn deltas(&mut self, deltas: Vec<Delta>, chunks: &mut Vec<Value>) {
        for delta in deltas {
            self.blocks.push(delta, chunks);
        }
    }

    /// How the message ended: its `stop_reason` and its `stop_sequence`.
    fn end(&self) -> (&'static str, Option<&str>) {
        match &self.reason {
            Some(Reason::Stop(text)) if self.stops.contains(text) => ("stop_sequence", Some(text)),
            // A call that was cut off cannot be executed.
            Some(Reason::EndOfText | Reason::Stop(_)) | None => match self.blocks.n_calls {
                0 => ("end_turn", None),
                _ => ("tool_use", None),
            },
            Some(Reason::Length | Reason::ContextFull | Reason::Late) => ("max_tokens", None),
        }
    }
}

impl TextWriter for Writer {
    /// The beginning of the stream.
    fn open(&mut self, event: &AnswerEvent) -> Vec<Value> {
        if core::mem::replace(&mut self.is_begun, true) {
            return Vec::new();
        }
        // Tokens of the prompt that were not read again.
        let n_cached = match event {
            AnswerEvent::Scores { .. } => 0,
            AnswerEvent::Progress { progress, .. } => progress.cached,
            AnswerEvent::Piece { piece, .. } | AnswerEvent::EndToken { piece, .. } => {
                piece.timings.map_or(0, |timings| timings.cached)
            }
            AnswerEvent::End { end, .. } => end.timings.cached,
        };
        let usage = usage(self.n_prompt, n_cached, 0);
        let message = self.message(Vec::new(), usage);
        vec![
            json!({"type": "message_start", "message": message}),
            json!({"type": "ping"}),
        ]
    }

    fn write(&mut self, event: AnswerEvent) -> Vec<Value> {
        let mut chunks = Vec::new();
        match event {
            AnswerEvent::Scores { .. } | AnswerEvent::Progress { .. } => {}
            AnswerEvent::Piece { piece, .. } | AnswerEvent::EndToken { piece, .. } => {
                self.deltas(piece.deltas, &mut chunks);
            }
            AnswerEvent::End { end, .. } => {
                let End { reason, deltas, .. } = end;
                self.deltas(deltas, &mut chunks);
                self.blocks.close(&mut chunks);
                self.reason = Some(reason);
            }
        }
        chunks
    }

    fn last(&mut self, total: &Total) -> Vec<Value> {
        let (reason, stop) = self.end();
        let end = json!({
            "type": "message_delta",
            "delta": {"stop_reason": reason, "stop_sequence": stop},
            "usage": usage_of(total),
        });
        vec![end, json!({"type": "message_stop"})]
    }

    fn whole(&mut self, total: &Total) -> Value {
        let content = take(&mut self.blocks.whole);
        let mut message = self.message(content, usage_of(total));
        let (reason, stop) = self.end();
        message["stop_reason"] = reason.into();
        message["stop_sequence"] = stop.into();
        message
    }
}

fn usage_of(total: &Total) -> Value {
    let usage = &total.usage;
    self::usage(usage.n_prompt, usage.n_cached, usage.n_predicted)
}

/// Anthropic counts the tokens that were read and those that were found separately.
fn usage(n_prompt: usize, n_cached: usize, n_predicted: usize) -> Value {
    json!({
        "input_tokens": n_prompt.saturating_sub(n_cached),
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": n_cached,
        "output_tokens": n_predicted,
    })
}

/// The content blocks of a message: one is open at a time.
#[derive(Default)]
struct Blocks {
    /// The model's.
    fingerprint: String,
    hides_thoughts: bool,
    open: Option<Open>,
    n_calls: usize,
    /// Those that are complete.
    whole: Vec<Value>,
}

/// The block to which text is added.
struct Open {
    block: Map<String, Value>,
    kind: Kind,
    text: String,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Text,
    Thinking,
    /// The call with this number.
    Call(usize),
}

impl Blocks {
    fn push(&mut self, delta: Delta, chunks: &mut Vec<Value>) {
        let (kind, text) = match delta {
            Delta::Content(text) => (Kind::Text, text),
            Delta::Reasoning(text) => (Kind::Thinking, text),
            Delta::CallArguments { index, text } => (Kind::Call(index), text),
            Delta::CallBegin { index, id, name } => {
                self.n_calls += 1;
                let block = json!({"type": "tool_use", "id": id, "name": name, "input": {}});
                self.begin(Kind::Call(index), block, chunks);
                return;
            }
        };
        if self.open.as_ref().is_none_or(|open| open.kind != kind) {
            let block = match kind {
                Kind::Text => json!({"type": "text", "text": ""}),
                Kind::Thinking => json!({"type": "thinking", "thinking": "", "signature": ""}),
                // Calls begin by name.
                Kind::Call(_) => return,
            };
            self.begin(kind, block, chunks);
        }
        if let Some(open) = &mut self.open {
            open.text.push_str(&text);
            if kind != Kind::Thinking || !self.hides_thoughts {
                chunks.push(self.delta(kind.delta(text)));
            }
        }
    }

    /// Closes the open block and begins another one.
    fn begin(&mut self, kind: Kind, block: Value, chunks: &mut Vec<Value>) {
        self.close(chunks);
        let index = self.whole.len();
        chunks.push(json!({"type": "content_block_start", "index": index, "content_block": block}));
        let Value::Object(block) = block else { return };
        self.open = Some(Open {
            block,
            kind,
            text: String::new(),
        });
    }

    /// Closes the open block.
    fn close(&mut self, chunks: &mut Vec<Value>) {
        let Some(Open {
            mut block,
            kind,
            text,
        }) = self.open.take()
        else {
            return;
        };
        match kind {
            Kind::Text => drop(block.insert("text".into(), text.into())),
            Kind::Thinking => {
                let signature = signature(&self.fingerprint, &text);
                chunks.push(self.delta(json!({"type": "signature_delta", "signature": signature})));
                let shown = if self.hides_thoughts {
                    String::new()
                } else {
                    text
                };
                block.insert("thinking".into(), shown.into());
                block.insert("signature".into(), signature.into());
            }
            Kind::Call(_) => {
                let text = if text.is_empty() { "{}" } else { &text };
                let input: Value = serde_json::from_str(text).unwrap_or_default();
                block.insert("input".into(), input);
            }
        }
        chunks.push(json!({"type": "content_block_stop", "index": self.whole.len()}));
        // A call that was cut off has no input and cannot be executed.
        if block.get("input") != Some(&Value::Null) {
            self.whole.push(block.into());
        }
    }

    /// A delta of the open block.
    fn delta(&self, delta: Value) -> Value {
        json!({"type": "content_block_delta", "index": self.whole.len(), "delta": delta})
    }
}

impl Kind {
    fn delta(self, text: String) -> Value {
        match self {
            Self::Text => json!({"type": "text_delta", "text": text}),
            Self::Thinking => json!({"type": "thinking_delta", "thinking": text}),
            Self::Call(_) => json!({"type": "input_json_delta", "partial_json": text}),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call(index: usize, id: &str, arguments: &str) -> [Delta; 2] {
        [
            Delta::CallBegin {
                index,
                id: id.into(),
                name: "tide".into(),
            },
            Delta::CallArguments {
                index,
                text: arguments.into(),
            },
        ]
    }

    fn all(deltas: impl IntoIterator<Item = Delta>) -> (Vec<Value>, Blocks) {
        all_in(Blocks::default(), deltas)
    }

    fn all_in(mut blocks: Blocks, deltas: impl IntoIterator<Item = Delta>) -> (Vec<Value>, Blocks) {
        blocks.fingerprint = "m".to_owned();
        let mut chunks = Vec::new();
        for delta in deltas {
            blocks.push(delta, &mut chunks);
        }
        blocks.close(&mut chunks);
        (chunks, blocks)
    }

    #[test]
    fn every_delta_is_of_a_block_that_is_open() {
        let texts = [
            Delta::Reasoning("hm".into()),
            Delta::Content("I ".into()),
            Delta::Content("look.".into()),
        ];
        let calls = call(0, "c1", "{}")
            .into_iter()
            .chain(call(1, "c2", "{\"a\": 1}"));
        let (chunks, blocks) = all(texts.into_iter().chain(calls));
        let mut open = None;
        let mut n_blocks = 0;
        for chunk in &chunks {
            match chunk["type"].as_str().unwrap() {
                "content_block_start" => {
                    assert_eq!((open, &chunk["index"]), (None, &json!(n_blocks)));
                    open = Some(n_blocks);
                    n_blocks += 1;
                }
                "content_block_delta" => assert_eq!(chunk["index"], json!(open.unwrap())),
                "content_block_stop" => assert_eq!(chunk["index"], json!(open.take().unwrap())),
                other => panic!("{other}"),
            }
        }
        assert_eq!((open, n_blocks), (None, 4));
        let signature = signature("m", "hm");
        let expected = json!([
            {"type": "thinking", "thinking": "hm", "signature": signature},
            {"type": "text", "text": "I look."},
            {"type": "tool_use", "id": "c1", "name": "tide", "input": {}},
            {"type": "tool_use", "id": "c2", "name": "tide", "input": {"a": 1}},
        ]);
        assert_eq!(Value::from(blocks.whole), expected);
        let signed = chunks
            .iter()
            .filter(|chunk| chunk["delta"]["type"] == "signature_delta");
        assert_eq!(signed.count(), 1);
    }

    #[test]
    fn a_thought_that_is_not_shown_is_signed() {
        let blocks = Blocks {
            hides_thoughts: true,
            ..Blocks::default()
        };
        let (chunks, blocks) = all_in(blocks, [Delta::Reasoning("hm".into())]);
        let deltas = chunks.iter().filter(|chunk| chunk["delta"].is_object());
        let deltas: Vec<_> = deltas.map(|chunk| &chunk["delta"]).collect();
        let signature = signature("m", "hm");
        assert_eq!(
            deltas,
            [&json!({"type": "signature_delta", "signature": signature})]
        );
        assert_eq!(blocks.whole[0]["thinking"], "");
    }

    #[test]
    fn a_call_that_was_cut_off_is_not_in_the_message() {
        let calls = call(0, "c1", "")
            .into_iter()
            .chain(call(1, "c2", "{\"a\": "));
        let (_, blocks) = all(calls);
        let expected = json!([{"type": "tool_use", "id": "c1", "name": "tide", "input": {}}]);
        assert_eq!(Value::from(blocks.whole), expected);
    }

    #[test]
    fn a_reason_tells_the_request_s_stops_from_the_model_s() {
        let of = |reason: Reason, n_calls: usize| {
            let blocks = Blocks {
                n_calls,
                ..Blocks::default()
            };
            let writer = Writer {
                id: String::new(),
                model: String::new(),
                n_prompt: 0,
                stops: vec!["END".into()],
                is_begun: true,
                blocks,
                reason: Some(reason),
            };
            let (reason, stop) = writer.end();
            (reason, stop.map(str::to_owned))
        };
        let stop = Some("END".to_owned());
        assert_eq!(of(Reason::Stop("END".into()), 0), ("stop_sequence", stop));
        assert_eq!(of(Reason::Stop("<|end|>".into()), 0), ("end_turn", None));
        assert_eq!(of(Reason::EndOfText, 1), ("tool_use", None));
        assert_eq!(of(Reason::Length, 1), ("max_tokens", None));
    }
}
