//! Replies of llama-server's own `/completion` and `/infill`.

use super::{End, Piece, Progress, Reason, Shape, Total};
use crate::api::reply::{Head, timings};
use crate::api::{logprobs, request::Asked, sampling};
use crate::engine::Score;
use serde_json::{Map, Value, json};
use sluice::Model;

/// Writes chunks and replies.
pub(crate) struct NativeShape {
    head: Head,
    model: Model,
    settings: Map<String, Value>,
    is_stream: bool,
    returns_tokens: bool,
    /// How many likely tokens go with each of the prompt, if those are told.
    scores: Option<usize>,
    /// A list of results was asked for, even if it has one.
    is_list: bool,
    choices: Vec<Choice>,
}

#[derive(Default)]
struct Choice {
    prompt: String,
    n_prompt: usize,
    content: String,
    tokens: Vec<u32>,
    probabilities: Vec<Value>,
    /// Those of the prompt, until they are told.
    scores: Option<Vec<Value>>,
    n_predicted: usize,
    /// The token that ended it, and how likely it was.
    end_token: Option<(u32, Option<Value>)>,
    end: Option<End>,
}

impl NativeShape {
    /// `prompts` has the prompt of each choice and its tokens' number.
    pub(crate) fn new(
        head: Head,
        model: &Model,
        asked: &Asked,
        (prompts, is_list): (Vec<(String, usize)>, bool),
        (returns_tokens, scores): (bool, Option<usize>),
    ) -> Self {
        let mut settings = sampling::shown_settings(&asked.settings);
        let n_predict = asked
            .n_predict
            .map_or(-1, |n| i64::try_from(n).unwrap_or(i64::MAX));
        for (name, value) in [
            ("n_predict", json!(n_predict)),
            ("max_tokens", json!(n_predict)),
            ("n", json!(asked.n)),
            ("stream", json!(asked.stream)),
            ("stop", json!(asked.stops.texts)),
            ("timings_per_token", json!(asked.timings_per_token)),
        ] {
            settings.insert(name.into(), value);
        }
        let choice = |(prompt, n_prompt)| Choice {
            prompt,
            n_prompt,
            ..Choice::default()
        };
        Self {
            head,
            model: model.clone(),
            settings,
            is_stream: asked.stream,
            returns_tokens,
            scores,
            is_list: is_list || asked.n > 1,
            choices: prompts.into_iter().map(choice).collect(),
        }
    }

    fn partial(&mut self, at: usize, content: &str, tokens: &[u32]) -> Map<String, Value> {
        let choice = &mut self.choices[at];
        let mut map = Map::new();
        map.insert("index".into(), at.into());
        map.insert("content".into(), content.into());
        map.insert("tokens".into(), tokens.into());
        map.insert("stop".into(), false.into());
        map.insert(
            "id_slot".into(),
            choice
                .end
                .as_ref()
                .map_or(-1, |end| i64::from(end.slot))
                .into(),
        );
        map.insert("tokens_predicted".into(), choice.n_predicted.into());
        map.insert("tokens_evaluated".into(), choice.n_prompt.into());
        if let Some(scores) = choice.scores.take() {
            map.insert("prompt_probabilities".into(), scores.into());
        }
        map
    }

    /// What the last chunk has, and the reply where it comes whole.
    fn complete(&mut self, at: usize) -> Value {
        let content = core::mem::take(&mut self.choices[at].content);
        let tokens = core::mem::take(&mut self.choices[at].tokens);
        let has_new_line = content.contains('\n');
        let (content, tokens) = if self.is_stream {
            (String::new(), Vec::new())
        } else {
            (content, tokens)
        };
        let mut map = self.partial(at, &content, &tokens);
        let choice = &mut self.choices[at];
        map.insert("stop".into(), true.into());
        map.insert("model".into(), self.head.model.clone().into());
        map.insert(
            "system_fingerprint".into(),
            self.head.fingerprint.clone().into(),
        );
        map.insert("generation_settings".into(), self.settings.clone().into());
        map.insert("prompt".into(), core::mem::take(&mut choice.prompt).into());
        map.insert("has_new_line".into(), has_new_line.into());
        if let Some(end) = &choice.end {
            let stopping = match &end.reason {
                Reason::Stop(text) => text.as_str(),
                _ => "",
            };
            map.insert(
                "truncated".into(),
                (end.reason == Reason::ContextFull).into(),
            );
            map.insert("stop_type".into(), end.reason.stop_type().into());
            map.insert("stopping_word".into(), stopping.into());
            map.insert("tokens_cached".into(), end.timings.cached.into());
            map.insert("timings".into(), timings(&end.timings));
        }
        let probabilities = core::mem::take(&mut choice.probabilities);
        if !probabilities.is_empty() {
            map.insert("completion_probabilities".into(), probabilities.into());
        }
        if let Some((token, entry)) = choice.end_token.take() {
            map.insert("end_token".into(), token.into());
            if let Some(entry) = entry {
                map.insert("end_token_probability".into(), entry);
            }
        }
        map.into()
    }
}

impl Shape for NativeShape {
    fn scores(&self) -> Option<usize> {
        self.scores
    }

    fn scored(&mut self, at: usize, _tokens: &[u32], scores: &[Score]) {
        let model = &self.model;
        let scores = scores.iter().map(|score| {
            let mut entry = logprobs::native(model, &score.report);
            entry["rank"] = score.rank.into();
            entry
        });
        self.choices[at].scores = Some(core::iter::once(Value::Null).chain(scores).collect());
    }

    fn piece(&mut self, at: usize, piece: &Piece<'_>) -> Vec<Value> {
        let entry = piece
            .report
            .map(|report| logprobs::native(&self.model, report));
        let choice = &mut self.choices[at];
        choice.n_predicted += 1;
        choice.content.push_str(piece.text);
        choice.probabilities.extend(entry);
        if self.returns_tokens {
            choice.tokens.push(piece.token);
        }
        if !self.is_stream || (piece.text.is_empty() && !self.returns_tokens) {
            return Vec::new();
        }
        let tokens = core::mem::take(&mut choice.tokens);
        let probabilities = core::mem::take(&mut choice.probabilities);
        let mut chunk = self.partial(at, piece.text, &tokens);
        if !probabilities.is_empty() {
            chunk.insert("completion_probabilities".into(), probabilities.into());
        }
        if let Some(taken) = &piece.timings {
            chunk.insert("timings".into(), timings(taken));
        }
        vec![chunk.into()]
    }

    fn progress(&mut self, at: usize, progress: &Progress) -> Vec<Value> {
        let mut chunk = self.partial(at, "", &[]);
        chunk.insert("prompt_progress".into(), progress.to_value());
        vec![chunk.into()]
    }

    fn end_token(&mut self, at: usize, end: &Piece<'_>) -> Vec<Value> {
        if self.returns_tokens {
            let entry = end
                .report
                .map(|report| logprobs::native(&self.model, report));
            self.choices[at].end_token = Some((end.token, entry));
        }
        self.choices[at].content.push_str(end.text);
        if !self.is_stream || end.text.is_empty() {
            return Vec::new();
        }
        vec![self.partial(at, end.text, &[]).into()]
    }

    fn ended(&mut self, at: usize, end: &End) -> Vec<Value> {
        self.choices[at].end = Some(end.clone());
        self.choices[at].n_prompt = end.n_prompt;
        if !self.is_stream {
            return Vec::new();
        }
        vec![self.complete(at)]
    }

    fn last(&mut self, _total: &Total) -> Vec<Value> {
        Vec::new()
    }

    fn whole(&mut self, _total: &Total) -> Value {
        let mut all: Vec<_> = (0..self.choices.len())
            .map(|at| self.complete(at))
            .collect();
        match all.len() {
            1 if !self.is_list => all.remove(0),
            _ => all.into(),
        }
    }

    fn says_done(&self) -> bool {
        false
    }
}
