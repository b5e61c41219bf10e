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
    content: String,
    logprobs: Vec<Value>,
    finish: Option<&'static str>,
}

impl ChatShape {
    pub(crate) fn new(head: Head, model: &Model, asked: &Asked, answers: Vec<Answer>) -> Self {
        let choice = |answer| Choice {
            answer,
            is_begun: false,
            content: String::new(),
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
            let Delta::Content(text) = delta;
            if !self.is_stream {
                self.choices[at].content.push_str(&text);
                continue;
            }
            let delta = json!({"content": text});
            chunks.push(self.delta(at, delta, None).into());
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
        let finish = end.reason.finish();
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
            let content = core::mem::take(&mut choice.content);
            let logprobs = core::mem::take(&mut choice.logprobs);
            let logprobs = self.has_logprobs.then(|| json!({"content": logprobs}));
            choices.push(json!({
                "index": index,
                "message": {"role": "assistant", "content": content},
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
