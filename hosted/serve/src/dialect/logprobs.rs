//! Log-probabilities in the format of each route.

use crate::api::token_bytes;
use serde_json::{Map, Value, json};
use sluice::model::ModelSource;
use sluice::sequence::TokenReport;
use sluice_core::sampler::TokenLogProbability;

fn token_text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// An entry of a chat's `logprobs.content`.
pub(super) fn chat(model: &ModelSource, report: &TokenReport) -> Value {
    let mut entry = entry_of(model, &report.chosen);
    let top = report
        .top
        .iter()
        .map(|token| Value::Object(entry_of(model, token)));
    let top = top.collect::<Vec<_>>();
    entry.insert("top_logprobs".into(), top.into());
    Value::Object(entry)
}

/// An entry that also has token IDs, for llama-server's own routes; with probabilities in place of their logarithms if
/// these are `post_sampling`.
pub(super) fn native(model: &ModelSource, report: &TokenReport, post_sampling: bool) -> Value {
    let with_id = |token: &TokenLogProbability| {
        let mut entry = entry_of(model, token);
        entry.insert("id".into(), token.id.into());
        if post_sampling {
            entry.remove("logprob");
            entry.insert("prob".into(), token.log_probability.exp().into());
        }
        entry
    };
    let top: Vec<_> = report
        .top
        .iter()
        .map(|token| Value::Object(with_id(token)))
        .collect();
    let mut entry = with_id(&report.chosen);
    let name = match post_sampling {
        true => "top_probs",
        false => "top_logprobs",
    };
    entry.insert(name.into(), top.into());
    Value::Object(entry)
}

fn entry_of(model: &ModelSource, token: &TokenLogProbability) -> Map<String, Value> {
    let bytes = token_bytes(model, token.id);
    let mut entry = Map::new();
    entry.insert("token".into(), token_text(&bytes).into());
    entry.insert("logprob".into(), number(token.log_probability));
    entry.insert("bytes".into(), bytes.into());
    entry
}

/// The lists of a completion's `logprobs`.
#[derive(Clone, Debug, Default)]
pub(super) struct Lists {
    tokens: Vec<Value>,
    token_logprobs: Vec<Value>,
    top_logprobs: Vec<Value>,
    text_offset: Vec<Value>,
    /// Number of characters of the text so far.
    offset: usize,
}

impl Lists {
    pub(super) fn push(&mut self, model: &ModelSource, report: &TokenReport) {
        let text = token_text(&token_bytes(model, report.chosen.id));
        let mut top = Map::new();
        for token in report.top.iter().chain([&report.chosen]) {
            let name = token_text(&token_bytes(model, token.id));
            // Tokens with the same text share an entry: the most likely one is kept.
            top.entry(name)
                .or_insert_with(|| number(token.log_probability));
        }
        self.text_offset.push(self.offset.into());
        self.offset += text.chars().count();
        self.tokens.push(text.into());
        self.token_logprobs
            .push(number(report.chosen.log_probability));
        self.top_logprobs.push(top.into());
    }

    /// Adds a prompt token, with its score if there is one. The first token has none.
    pub(super) fn push_prompt(
        &mut self,
        model: &ModelSource,
        token: u32,
        report: Option<&TokenReport>,
    ) {
        let offset = self.offset;
        if let Some(report) = report {
            self.push(model, report);
        } else {
            let text = token_text(&token_bytes(model, token));
            self.text_offset.push(offset.into());
            self.offset += text.chars().count();
            self.tokens.push(text.into());
            self.token_logprobs.push(Value::Null);
            self.top_logprobs.push(Value::Null);
        }
        // Control tokens are not part of the text.
        if model.tokenizer().is_control(token) {
            self.offset = offset;
        }
    }

    /// Takes the entries since the last call.
    pub(super) fn take(&mut self) -> Value {
        json!({
            "tokens": core::mem::take(&mut self.tokens),
            "token_logprobs": core::mem::take(&mut self.token_logprobs),
            "top_logprobs": core::mem::take(&mut self.top_logprobs),
            "text_offset": core::mem::take(&mut self.text_offset),
        })
    }
}

/// JSON cannot represent infinity; impossible tokens get the value that OpenAI uses.
fn number(log_probability: f32) -> Value {
    json!(log_probability.max(-9999.0))
}
