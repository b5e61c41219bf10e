//! The output of a response: items, one after the other, and the events that tell how each grows.

use super::input::InputReader;
use super::reasoning::sealed;
use super::response::Shown;
use serde_json::{Value, json};
use sluice_text::assistant::Delta;

/// The items so far.
pub(super) struct Output {
    /// The identity of the stream.
    stream: String,
    /// The names of tools whose input is a text.
    custom: Vec<String>,
    shown: Shown,
    done: Vec<Value>,
    open: Option<Open>,
    /// Log-probabilities of tokens whose text is not written yet.
    logprobs: Vec<Value>,
}

/// The item that grows.
struct Open {
    id: String,
    kind: Item,
    text: String,
    logprobs: Vec<Value>,
}

/// What an item is.
pub(super) enum Item {
    Message,
    Reasoning,
    Function {
        number: usize,
        call: String,
        name: String,
    },
    Custom {
        number: usize,
        call: String,
        name: String,
        input: InputReader,
    },
}

impl Output {
    /// `stream`: what the ids of the items are made of.
    pub(super) const fn new(stream: String, custom: Vec<String>, shown: Shown) -> Self {
        Self {
            stream,
            custom,
            shown,
            done: Vec::new(),
            open: None,
            logprobs: Vec::new(),
        }
    }

    /// The items that are complete.
    pub(super) fn done(&self) -> &[Value] {
        &self.done
    }

    pub(super) fn is_thinking(&self) -> bool {
        matches!(&self.open, Some(open) if matches!(open.kind, Item::Reasoning))
    }

    /// Notes the log-probability of the next token.
    pub(super) fn report(&mut self, entry: Option<Value>) {
        self.logprobs.extend(entry.filter(|_| self.shown.logprobs));
    }

    pub(super) fn push(&mut self, deltas: Vec<Delta>, events: &mut Vec<Value>) {
        for delta in deltas {
            self.delta(delta, events);
        }
    }

    fn delta(&mut self, delta: Delta, events: &mut Vec<Value>) {
        match delta {
            Delta::Content(text) => {
                if !matches!(&self.open, Some(open) if matches!(open.kind, Item::Message)) {
                    self.begin(Item::Message, events);
                }
                self.grow(text, events);
            }
            Delta::Reasoning(text) => {
                if !self.is_thinking() {
                    self.begin(Item::Reasoning, events);
                }
                self.grow(text, events);
            }
            Delta::CallBegin { index, id, name } => {
                let (number, call) = (index, id);
                let kind = match self.custom.contains(&name) {
                    true => Item::Custom {
                        number,
                        call,
                        name,
                        input: InputReader::default(),
                    },
                    false => Item::Function { number, call, name },
                };
                self.begin(kind, events);
            }
            Delta::CallArguments { index, text } => {
                let Some(open) = &mut self.open else { return };
                let text = match &mut open.kind {
                    Item::Function { number, .. } if *number == index => text,
                    Item::Custom { number, input, .. } if *number == index => input.push(&text),
                    _ => return,
                };
                if !text.is_empty() {
                    self.grow(text, events);
                }
            }
        }
    }

    /// Closes the item that is open and begins another one.
    fn begin(&mut self, kind: Item, events: &mut Vec<Value>) {
        self.close(false, events);
        // Marks around a call or a thought have log-probabilities, but no text.
        if !matches!(kind, Item::Message) {
            self.logprobs.clear();
        }
        let open = Open {
            id: format!("{}{}{:02x}", kind.prefix(), self.stream, self.done.len()),
            kind,
            text: String::new(),
            logprobs: Vec::new(),
        };
        let at = self.done.len();
        let item = open.value("in_progress", self.shown, true);
        events
            .push(json!({"type": "response.output_item.added", "output_index": at, "item": item}));
        let id = &open.id;
        match open.kind {
            Item::Message => {
                let part =
                    json!({"type": "output_text", "text": "", "annotations": [], "logprobs": []});
                events.push(
                    json!({"type": "response.content_part.added", "item_id": id, "output_index": at,
                    "content_index": 0, "part": part}),
                );
            }
            Item::Reasoning if self.shown.summary => {
                let part = json!({"type": "summary_text", "text": ""});
                events.push(
                    json!({"type": "response.reasoning_summary_part.added", "item_id": id,
                    "output_index": at, "summary_index": 0, "part": part}),
                );
            }
            _ => {}
        }
        self.open = Some(open);
    }

    /// Adds text to the item that is open.
    fn grow(&mut self, text: String, events: &mut Vec<Value>) {
        let at = self.done.len();
        let Some(open) = &mut self.open else { return };
        open.text.push_str(&text);
        let mut event = json!({"type": open.kind.delta(self.shown), "item_id": open.id, "output_index": at,
            "delta": text});
        match open.kind {
            Item::Message => {
                let logprobs = core::mem::take(&mut self.logprobs);
                event["content_index"] = 0.into();
                event["logprobs"] = logprobs.iter().map(without_bytes).collect();
                open.logprobs.extend(logprobs);
            }
            Item::Reasoning if self.shown.summary => event["summary_index"] = 0.into(),
            Item::Reasoning => event["content_index"] = 0.into(),
            _ => {}
        }
        events.push(event);
    }

    /// Closes the item that is open; `is_cut` if the answer was cut off in it.
    pub(super) fn close(&mut self, is_cut: bool, events: &mut Vec<Value>) {
        let Some(open) = self.open.take() else { return };
        let at = self.done.len();
        let status = if is_cut { "incomplete" } else { "completed" };
        let item = open.value(status, self.shown, false);
        let place = |kind: &str| json!({"type": kind, "item_id": open.id, "output_index": at});
        let text = || Value::from(open.text.clone());
        match &open.kind {
            Item::Message => {
                let mut done = place("response.output_text.done");
                done["content_index"] = 0.into();
                done["text"] = text();
                done["logprobs"] = open.logprobs.iter().map(without_bytes).collect();
                events.push(done);
                let mut part = place("response.content_part.done");
                part["content_index"] = 0.into();
                part["part"] = item["content"][0].clone();
                events.push(part);
            }
            Item::Reasoning if self.shown.summary => {
                let mut done = place("response.reasoning_summary_text.done");
                done["summary_index"] = 0.into();
                done["text"] = text();
                events.push(done);
                let mut part = place("response.reasoning_summary_part.done");
                part["summary_index"] = 0.into();
                part["part"] = item["summary"][0].clone();
                events.push(part);
            }
            Item::Reasoning => {
                let mut done = place("response.reasoning_text.done");
                done["content_index"] = 0.into();
                done["text"] = text();
                events.push(done);
            }
            Item::Function { .. } => {
                let mut done = place("response.function_call_arguments.done");
                done["arguments"] = text();
                events.push(done);
            }
            Item::Custom { .. } => {
                let mut done = place("response.custom_tool_call_input.done");
                done["input"] = text();
                events.push(done);
            }
        }
        events.push(json!({"type": "response.output_item.done", "output_index": at, "item": item}));
        self.done.push(item);
    }
}

impl Open {
    /// The item; `is_new` before it has any content.
    fn value(&self, status: &str, shown: Shown, is_new: bool) -> Value {
        let text = &self.text;
        match &self.kind {
            Item::Message => {
                let part = json!({"type": "output_text", "text": text, "annotations": [], "logprobs": self.logprobs});
                let content = if is_new { json!([]) } else { json!([part]) };
                json!({"id": self.id, "type": "message", "role": "assistant", "status": status, "content": content})
            }
            Item::Reasoning => {
                let part = |kind: &str| json!([{"type": kind, "text": text}]);
                let mut item =
                    json!({"id": self.id, "type": "reasoning", "status": status, "summary": []});
                match (is_new, shown.summary) {
                    (true, _) => {}
                    (false, true) => item["summary"] = part("summary_text"),
                    (false, false) => item["content"] = part("reasoning_text"),
                }
                if shown.sealed {
                    item["encrypted_content"] = sealed(text).into();
                }
                item
            }
            Item::Function { call, name, .. } => {
                json!({"id": self.id, "type": "function_call", "status": status,
                "call_id": call, "name": name, "arguments": text})
            }
            Item::Custom { call, name, .. } => json!({"id": self.id, "type": "custom_tool_call",
                "call_id": call, "name": name, "input": text}),
        }
    }
}

impl Item {
    const fn prefix(&self) -> &'static str {
        match self {
            Self::Message => "msg_",
            Self::Reasoning => "rs_",
            Self::Function { .. } => "fc_",
            Self::Custom { .. } => "ctc_",
        }
    }

    const fn delta(&self, shown: Shown) -> &'static str {
        match self {
            Self::Message => "response.output_text.delta",
            Self::Reasoning if shown.summary => "response.reasoning_summary_text.delta",
            Self::Reasoning => "response.reasoning_text.delta",
            Self::Function { .. } => "response.function_call_arguments.delta",
            Self::Custom { .. } => "response.custom_tool_call_input.delta",
        }
    }
}

/// A token's log-probability as events have it.
fn without_bytes(entry: &Value) -> Value {
    let plain = |entry: &Value| json!({"token": entry["token"], "logprob": entry["logprob"]});
    let mut plain_entry = plain(entry);
    let top = entry["top_logprobs"].as_array();
    plain_entry["top_logprobs"] = top.into_iter().flatten().map(plain).collect();
    plain_entry
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(shown: Shown, deltas: impl IntoIterator<Item = Delta>) -> (Vec<Value>, Output) {
        let mut output = Output::new("s".into(), vec!["run".into()], shown);
        let mut events = Vec::new();
        output.push(deltas.into_iter().collect(), &mut events);
        output.close(false, &mut events);
        (events, output)
    }

    fn deltas() -> Vec<Delta> {
        let begin = |index: usize, name: &str| Delta::CallBegin {
            index,
            id: format!("c{index}"),
            name: name.into(),
        };
        let arguments = |index: usize, text: &str| Delta::CallArguments {
            index,
            text: text.into(),
        };
        vec![
            Delta::Reasoning("hm".into()),
            Delta::Content("I ".into()),
            Delta::Content("look.".into()),
            begin(0, "tide"),
            arguments(0, "{\"a\":"),
            arguments(0, " 1}"),
            begin(1, "run"),
            arguments(1, "{\"input\": \"l"),
            arguments(1, "s\\n\"}"),
        ]
    }

    #[test]
    fn every_item_is_added_grows_and_is_done() {
        let (events, output) = all(Shown::default(), deltas());
        let mut open = None;
        let mut texts = Vec::new();
        for event in &events {
            let kind = event["type"].as_str().unwrap();
            let at = event["output_index"].as_u64().unwrap();
            match kind {
                "response.output_item.added" => {
                    assert_eq!(open, None);
                    open = Some((at, event["item"]["id"].clone()));
                    texts.push(String::new());
                }
                "response.output_item.done" => {
                    assert_eq!(open.take(), Some((at, event["item"]["id"].clone())));
                    assert_eq!(event["item"], output.done()[texts.len() - 1]);
                }
                _ => {
                    assert_eq!(open, Some((at, event["item_id"].clone())));
                    if let Some(delta) = event["delta"].as_str() {
                        texts.last_mut().unwrap().push_str(delta);
                    }
                }
            }
        }
        assert_eq!(texts, ["hm", "I look.", "{\"a\": 1}", "ls\n"]);
        let kinds: Vec<_> = output
            .done()
            .iter()
            .map(|item| item["type"].as_str().unwrap())
            .collect();
        assert_eq!(
            kinds,
            ["reasoning", "message", "function_call", "custom_tool_call"]
        );
        assert_eq!(output.done()[3]["input"], "ls\n");
        assert_eq!(output.done()[0]["content"][0]["text"], "hm");
    }

    #[test]
    fn reasoning_is_shown_as_it_is_asked_for() {
        let shown = Shown {
            summary: true,
            sealed: true,
            ..Shown::default()
        };
        let (events, output) = all(shown, [Delta::Reasoning("hm".into())]);
        let item = &output.done()[0];
        assert_eq!(item["summary"][0]["text"], "hm");
        assert_eq!(item["encrypted_content"], sealed("hm"));
        let kinds: Vec<_> = events
            .iter()
            .map(|event| event["type"].as_str().unwrap())
            .collect();
        let expected = [
            "response.output_item.added",
            "response.reasoning_summary_part.added",
            "response.reasoning_summary_text.delta",
            "response.reasoning_summary_text.done",
            "response.reasoning_summary_part.done",
            "response.output_item.done",
        ];
        assert_eq!(kinds, expected);
    }
}
