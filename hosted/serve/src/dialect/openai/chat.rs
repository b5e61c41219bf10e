//! `POST /v1/chat/completions`.

use super::super::fields::{Fields, set};
use super::super::generation::{StreamUsage, generation, model, refuse_native};
use super::super::logprobs;
use super::super::reply::{Head, finish, progress, timings, usage, usage_so_far};
use super::super::seam::{Exchange, TextWriter, WriteText};
use super::messages;
use crate::api::{
    AnswerEvent, AnswerPiece, ApiError, ChatRequest, Defaults, End, PromptProgress, TOP_MAX, Total,
};
use serde_json::{Map, Value, json};
use sluice::model::ModelSource;
use sluice_text::assistant::Delta;

type Result<T> = core::result::Result<T, ApiError>;

/// Parses a request.
pub(super) fn parse(body: &Value, defaults: &Defaults) -> Result<Exchange<ChatRequest, WriteText>> {
    let fields = Fields::of_body(body)?;
    let mut request = ChatRequest::new(defaults);
    request.model = model(fields)?;
    let mut names = Vec::new();
    request.generation = generation(fields, defaults, &mut names)?;
    let n_probs = &mut request.generation.sampling.n_probs;
    *n_probs = likely(fields)?.or(*n_probs);
    messages::read(fields, &mut request)?;
    if let Some(format) = fields.word("reasoning_format", &["none", "auto", "deepseek"])? {
        request.splits_reasoning = format != "none";
    }
    let parallel = fields.bool("parallel_tool_calls")?;
    set(&mut request.parallel_calls, parallel);
    if let Some(budget) = budget(fields)? {
        request.reasoning_budget = Some(budget);
    }
    refuse_native(fields)?;
    let usage = StreamUsage::read(fields)?;
    let generation = &request.generation;
    let is_stream = generation.streams;
    let has_logprobs = generation.sampling.n_probs.is_some();
    Ok(Exchange {
        too_long: None,
        request,
        names,
        writer: Box::new(move |start| {
            let mut choices = Vec::new();
            choices.resize_with(start.n, Choice::default);
            Box::new(Writer {
                head: Head::new("chatcmpl-", start),
                seed: start.sampling.config.seed,
                model: start.model.clone(),
                n_prompt: start.prompts.first().map_or(0, |prompt| prompt.n_tokens),
                is_stream,
                usage,
                has_logprobs,
                choices,
            })
        }),
    })
}

/// The number of likely tokens that are reported; `None` for no report.
fn likely(fields: Fields<'_>) -> Result<Option<usize>> {
    let top = fields.count("top_logprobs", 0..=TOP_MAX)?;
    match fields.bool("logprobs")? {
        Some(true) => Ok(Some(top.unwrap_or(0))),
        _ if top.is_some_and(|n| n > 0) => {
            Err(ApiError::field("top_logprobs", "requires logprobs: true"))
        }
        _ => Ok(None),
    }
}

/// The reasoning budget of a request; -1 selects the server's default.
fn budget(fields: Fields<'_>) -> Result<Option<usize>> {
    let names = [
        "reasoning_budget",
        "reasoning_budget_tokens",
        "thinking_budget_tokens",
    ];
    let Some(name) = fields.first(&names) else {
        return Ok(None);
    };
    let asked = fields.int(name, -1..=1 << 30)?;
    Ok(asked.and_then(|n| usize::try_from(n).ok()))
}

/// Writes chunks and replies.
struct Writer {
    head: Head,
    model: ModelSource,
    seed: u64,
    n_prompt: usize,
    is_stream: bool,
    usage: StreamUsage,
    has_logprobs: bool,
    choices: Vec<Choice>,
}

#[derive(Default)]
struct Choice {
    /// Whether the chunk with the role has been written.
    is_begun: bool,
    n_predicted: usize,
    message: Message,
    logprobs: Vec<Value>,
    finish: Option<&'static str>,
}

impl Writer {
    fn chunk(&self, choices: Value) -> Map<String, Value> {
        let mut chunk = self.head.object("chat.completion.chunk");
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
        let mut chunk = self.chunk(json!([choice]));
        if self.usage.in_chunks {
            let n_predicted = self.choices[at].n_predicted;
            chunk.insert("usage".into(), usage_so_far(self.n_prompt, n_predicted));
        }
        chunk
    }

    /// Writes chunks for what is new in the answer.
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

    fn piece(&mut self, at: usize, piece: AnswerPiece) -> Vec<Value> {
        let mut chunks = Vec::new();
        let report = piece.report.as_ref();
        let entry = report.map(|report| logprobs::chat(&self.model, report));
        self.choices[at].logprobs.extend(entry);
        self.deltas(at, piece.deltas, &mut chunks);
        if let (Some(taken), Some(Value::Object(last))) = (&piece.timings, chunks.last_mut()) {
            last.insert("timings".into(), timings(taken));
        }
        chunks
    }

    fn progress(&mut self, at: usize, read: &PromptProgress) -> Vec<Value> {
        let mut chunk = self.delta(at, json!({}), None);
        chunk.insert("prompt_progress".into(), progress(read));
        vec![chunk.into()]
    }

    fn end(&mut self, at: usize, end: End) -> Vec<Value> {
        let mut chunks = Vec::new();
        self.deltas(at, end.deltas, &mut chunks);
        // A call that was cut off cannot be executed.
        let finish = match finish(&end.reason) {
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
}

impl TextWriter for Writer {
    /// The chunk with the role, once.
    fn open(&mut self, event: &AnswerEvent) -> Vec<Value> {
        let at = event.at();
        if core::mem::replace(&mut self.choices[at].is_begun, true) {
            return Vec::new();
        }
        let role = json!({"role": "assistant", "content": ""});
        vec![self.delta(at, role, None).into()]
    }

    fn write(&mut self, event: AnswerEvent) -> Vec<Value> {
        match event {
            AnswerEvent::Scores { .. } => Vec::new(),
            AnswerEvent::Progress { at, progress } => self.progress(at, &progress),
            AnswerEvent::Piece { at, piece } => {
                self.choices[at].n_predicted += 1;
                self.piece(at, piece)
            }
            AnswerEvent::EndToken { piece, .. } if piece.text.is_empty() => Vec::new(),
            AnswerEvent::EndToken { at, piece } => self.piece(
                at,
                AnswerPiece {
                    report: None,
                    ..piece
                },
            ),
            AnswerEvent::End { at, end } => self.end(at, end),
        }
    }

    fn last(&mut self, total: &Total) -> Vec<Value> {
        if !self.usage.at_end {
            return Vec::new();
        }
        let mut chunk = self.chunk(json!([]));
        chunk.insert("usage".into(), usage(&total.usage));
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
        let mut reply = self.head.object("chat.completion");
        reply.insert("choices".into(), choices.into());
        reply.insert("usage".into(), usage(&total.usage));
        reply.insert("seed".into(), self.seed.into());
        reply.insert("timings".into(), timings(&total.timings));
        reply.into()
    }
}

/// The message of an answer that is not streamed.
#[derive(Debug, Default)]
struct Message {
    content: String,
    reasoning: String,
    /// The id, name and arguments of each call.
    calls: Vec<(String, String, String)>,
    /// The number of calls, also when streaming.
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
        // With calls, an empty content is sent as null.
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

    #[test]
    fn likely_tokens_are_asked_for_in_two_fields() {
        let of = |body: Value| likely(Fields::of_body(&body).unwrap());
        assert_eq!(
            of(json!({"logprobs": true, "top_logprobs": 3})),
            Ok(Some(3))
        );
        assert_eq!(of(json!({})), Ok(None));
        let error = of(json!({"top_logprobs": 3})).unwrap_err();
        assert_eq!(error.field.as_deref(), Some("top_logprobs"));
    }
}
