//! Replies of `/v1/chat/completions`.

use super::{End, Piece, Progress, Shape, Total};
use crate::api::reply::{Head, timings};
use crate::api::{logprobs, request::Asked};
use crate::chat::answer::{Answer, Delta};
use serde_json::{Map, Value, json};
use sluice::Model;

/// Writes chunks and replies of a chat.
pub(crate) struct ChatShape {
    head: Head,
    model: Model,
    seed: u64,
    is_stream: bool,
    include_usage: bool,
    has_logprobs: bool,
    choices: Vec<Choice>,
}

struct Choice {
    answer: Answer,
    /// The chunk with the role was written.
    is_begun: bool,
    message: Message,
    logprobs: Vec<Value>,
    finish: Option<&'static str>,
}

impl ChatShape {
    pub(crate) fn new(head: Head, model: &Model, asked: &Asked, answers: Vec<Answer>) -> Self {
        let choice = |answer| Choice {
            answer,
            is_begun: false,
            message: Message::default(),
            logprobs: Vec::new(),
            finish: None,
        };
        Self {
            head,
            model: model.clone(),
            seed: asked.settings.config.seed,
            is_stream: asked.stream,
            include_usage: asked.include_usage,
            has_logprobs: asked.settings.n_probs.is_some(),
            choices: answers.into_iter().map(choice).collect(),
        }
    }

    fn object(&self, object: &str) -> Map<String, Value> {
        let mut map = Map::new();
        map.insert("id".into(), self.head.id.clone().into());
        map.insert("object".into(), object.into());
        map.insert("created".into(), self.head.created.into());
        map.insert("model".into(), self.head.model.clone().into());
        map.insert(
            "system_fingerprint".into(),
            self.head.fingerprint.clone().into(),
        );
        map
    }

    fn chunk(&self, choices: Value) -> Map<String, Value> {
        let mut chunk = self.object("chat.completion.chunk");
        chunk.insert("choices".into(), choices);
        chunk
    }

    /// A chunk of one choice.
    fn delta(&mut self, at: usize, delta: Value, finish: Option<&str>) -> Map<String, Value> {
        let mut choice = Map::new();
        choice.insert("index".into(), at.into());
        choice.insert("delta".into(), delta);
        let entries = core::mem::take(&mut self.choices[at].logprobs);
        let has_logprobs = self.has_logprobs && !entries.is_empty();
        let logprobs = has_logprobs.then(|| json!({"content": entries}));
        choice.insert("logprobs".into(), logprobs.into());
        choice.insert("finish_reason".into(), finish.into());
        self.chunk(json!([choice]))
    }

    /// The chunk with the role, once.
    fn begin(&mut self, at: usize, chunks: &mut Vec<Value>) {
        if self.is_stream && !core::mem::replace(&mut self.choices[at].is_begun, true) {
            let role = json!({"role": "assistant", "content": ""});
            chunks.push(self.delta(at, role, None).into());
        }
    }

    /// Chunks of what the answer has come to.
    fn deltas(&mut self, at: usize, deltas: Vec<Delta>, chunks: &mut Vec<Value>) {
        for delta in deltas {
            if self.is_stream {
                self.choices[at].message.n_calls += usize::from(is_call(&delta));
                chunks.push(self.delta(at, streamed(delta), None).into());
            } else {
                self.choices[at].message.push(delta);
            }
        }
    }
}

impl Shape for ChatShape {
    fn piece(&mut self, at: usize, piece: &Piece<'_>) -> Vec<Value> {
        let mut chunks = Vec::new();
        self.begin(at, &mut chunks);
        let entry = piece
            .report
            .map(|report| logprobs::chat(&self.model, report));
        self.choices[at].logprobs.extend(entry);
        let deltas = self.choices[at].answer.push(piece.text);
        self.deltas(at, deltas, &mut chunks);
        if let (Some(taken), Some(Value::Object(last))) = (&piece.timings, chunks.last_mut()) {
            last.insert("timings".into(), timings(taken));
        }
        chunks
    }

    fn end_token(&mut self, at: usize, end: &Piece<'_>) -> Vec<Value> {
        if end.text.is_empty() {
            return Vec::new();
        }
        self.piece(
            at,
            &Piece {
                report: None,
                ..*end
            },
        )
    }

    fn progress(&mut self, at: usize, progress: &Progress) -> Vec<Value> {
        let mut chunks = Vec::new();
        self.begin(at, &mut chunks);
        let mut chunk = self.delta(at, json!({}), None);
        chunk.insert("prompt_progress".into(), progress.to_value());
        chunks.push(chunk.into());
        chunks
    }

    fn ended(&mut self, at: usize, end: &End) -> Vec<Value> {
        let mut chunks = Vec::new();
        self.begin(at, &mut chunks);
        let deltas = self.choices[at].answer.finish();
        self.deltas(at, deltas, &mut chunks);
        // A call that was cut off is none that can be made.
        let finish = match end.reason.finish() {
            "stop" if self.choices[at].message.n_calls > 0 => "tool_calls",
            finish => finish,
        };
        self.choices[at].finish = Some(finish);
        if !self.is_stream {
            return chunks;
        }
        let mut chunk = self.delta(at, json!({}), Some(finish));
        chunk.insert("seed".into(), self.seed.into());
        chunk.insert("timings".into(), timings(&end.timings));
        chunks.push(chunk.into());
        chunks
    }

    fn last(&mut self, total: &Total) -> Vec<Value> {
        if !self.include_usage {
            return Vec::new();
        }
        let mut chunk = self.chunk(json!([]));
        chunk.insert("usage".into(), total.usage.to_value());
        chunk.insert("timings".into(), timings(&total.timings));
        vec![chunk.into()]
    }

    fn whole(&mut self, total: &Total) -> Value {
        let mut choices = Vec::with_capacity(self.choices.len());
        for (index, choice) in self.choices.iter_mut().enumerate() {
            let message = core::mem::take(&mut choice.message).into_value();
            let logprobs = core::mem::take(&mut choice.logprobs);
            let logprobs = self.has_logprobs.then(|| json!({"content": logprobs}));
            choices.push(json!({
                "index": index,
                "message": message,
                "logprobs": logprobs,
                "finish_reason": choice.finish,
            }));
        }
        let mut reply = self.object("chat.completion");
        reply.insert("choices".into(), choices.into());
        reply.insert("usage".into(), total.usage.to_value());
        reply.insert("seed".into(), self.seed.into());
        reply.insert("timings".into(), timings(&total.timings));
        reply.into()
    }
}

/// The message of an answer that comes whole.
#[derive(Debug, Default)]
struct Message {
    content: String,
    reasoning: String,
    /// Id, name and arguments.
    calls: Vec<(String, String, String)>,
    /// Also where they are streamed.
    n_calls: usize,
}

impl Message {
    fn push(&mut self, delta: Delta) {
        match delta {
            Delta::Content(text) => self.content.push_str(&text),
            Delta::Reasoning(text) => self.reasoning.push_str(&text),
            Delta::CallBegin { id, name, .. } => {
                self.n_calls += 1;
                self.calls.push((id, name, String::new()));
            }
            Delta::CallArguments { index, text } => {
                if let Some((.., arguments)) = self.calls.get_mut(index) {
                    arguments.push_str(&text);
                }
            }
        }
    }

    fn into_value(self) -> Value {
        let mut message = Map::new();
        message.insert("role".into(), "assistant".into());
        // Beside calls an empty text is none.
        let is_none = self.content.is_empty() && !self.calls.is_empty();
        let content = (!is_none).then_some(self.content);
        message.insert("content".into(), content.into());
        if !self.reasoning.is_empty() {
            message.insert("reasoning_content".into(), self.reasoning.into());
        }
        if !self.calls.is_empty() {
            let calls = self.calls.into_iter().map(|(id, name, arguments)| {
                let function = json!({"name": name, "arguments": arguments});
                json!({"id": id, "type": "function", "function": function})
            });
            message.insert("tool_calls".into(), calls.collect::<Vec<_>>().into());
        }
        message.into()
    }
}

const fn is_call(delta: &Delta) -> bool {
    matches!(delta, Delta::CallBegin { .. })
}

/// The `delta` of a chunk.
fn streamed(delta: Delta) -> Value {
    match delta {
        Delta::Content(text) => json!({"content": text}),
        Delta::Reasoning(text) => json!({"reasoning_content": text}),
        Delta::CallBegin { index, id, name } => {
            let function = json!({"name": name, "arguments": ""});
            let call = json!({"index": index, "id": id, "type": "function", "function": function});
            json!({"tool_calls": [call]})
        }
        Delta::CallArguments { index, text } => {
            json!({"tool_calls": [{"index": index, "function": {"arguments": text}}]})
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call() -> Vec<Delta> {
        let begin = Delta::CallBegin {
            index: 0,
            id: "call_1".into(),
            name: "f".into(),
        };
        let arguments = ["{\"a\":", "1}"].map(|text| Delta::CallArguments {
            index: 0,
            text: text.into(),
        });
        let reasoning = Delta::Reasoning("hm".into());
        [reasoning, begin].into_iter().chain(arguments).collect()
    }

    #[test]
    fn a_message_has_what_the_answer_was() {
        let mut message = Message::default();
        call().into_iter().for_each(|delta| message.push(delta));
        let expected = json!({"role": "assistant", "content": null, "reasoning_content": "hm",
            "tool_calls": [{"id": "call_1", "type": "function",
                "function": {"name": "f", "arguments": "{\"a\":1}"}}]});
        assert_eq!(message.into_value(), expected);
        let mut message = Message::default();
        message.push(Delta::Content("hi".into()));
        let expected = json!({"role": "assistant", "content": "hi"});
        assert_eq!(message.into_value(), expected);
    }

    #[test]
    fn the_first_chunk_of_a_call_names_it() {
        let chunks: Vec<_> = call().into_iter().map(streamed).collect();
        assert_eq!(chunks[0], json!({"reasoning_content": "hm"}));
        assert_eq!(chunks[1]["tool_calls"][0]["function"]["name"], "f");
        assert_eq!(
            chunks[2],
            json!({"tool_calls": [{"index": 0, "function": {"arguments": "{\"a\":"}}]})
        );
    }
}
