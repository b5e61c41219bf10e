//! Replies of `/v1/completions`.

use super::{End, Piece, Progress, Shape, Total};
use crate::api::reply::{Head, timings};
use crate::api::{logprobs, request::Asked};
use crate::engine::Score;
use serde_json::{Map, Value, json};
use sluice::Model;

/// Writes chunks and replies of a completion.
pub(crate) struct CompletionShape {
    head: Head,
    model: Model,
    seed: u64,
    is_stream: bool,
    include_usage: bool,
    has_logprobs: bool,
    /// How many likely tokens go with each of the prompt, where that is repeated.
    scores: Option<usize>,
    choices: Vec<Choice>,
}

#[derive(Default)]
struct Choice {
    /// The prompt, if it is to be repeated.
    echo: String,
    text: String,
    logprobs: logprobs::Lists,
    finish: Option<&'static str>,
}

impl CompletionShape {
    /// `echoes` has what goes before each choice's text: the prompt, if `is_echo`.
    pub(crate) fn new(
        head: Head,
        model: &Model,
        asked: &Asked,
        (echoes, is_echo): (Vec<String>, bool),
    ) -> Self {
        let choice = |echo| Choice {
            echo,
            ..Choice::default()
        };
        Self {
            head,
            model: model.clone(),
            seed: asked.settings.config.seed,
            is_stream: asked.stream,
            include_usage: asked.include_usage,
            has_logprobs: asked.settings.n_probs.is_some(),
            scores: asked.settings.n_probs.filter(|_| is_echo),
            choices: echoes.into_iter().map(choice).collect(),
        }
    }

    fn object(&self, choices: Value) -> Map<String, Value> {
        let mut map = Map::new();
        map.insert("id".into(), self.head.id.clone().into());
        map.insert("object".into(), "text_completion".into());
        map.insert("created".into(), self.head.created.into());
        map.insert("model".into(), self.head.model.clone().into());
        map.insert(
            "system_fingerprint".into(),
            self.head.fingerprint.clone().into(),
        );
        map.insert("choices".into(), choices);
        map
    }

    fn choice(&mut self, at: usize, text: &str, finish: Option<&str>) -> Value {
        let choice = &mut self.choices[at];
        let logprobs = self.has_logprobs.then(|| choice.logprobs.take());
        json!({"index": at, "text": text, "logprobs": logprobs, "finish_reason": finish})
    }

    /// The prompt goes before the first text.
    fn with_echo(&mut self, at: usize, text: &str) -> String {
        let mut echoed = core::mem::take(&mut self.choices[at].echo);
        echoed.push_str(text);
        echoed
    }
}

impl Shape for CompletionShape {
    fn scores(&self) -> Option<usize> {
        self.scores
    }

    fn scored(&mut self, at: usize, tokens: &[u32], scores: &[Score]) {
        let reports = scores.iter().map(|score| Some(&score.report));
        let list = &mut self.choices[at].logprobs;
        for (&token, report) in tokens.iter().zip(core::iter::once(None).chain(reports)) {
            list.push_prompt(&self.model, token, report);
        }
    }

    fn end_token(&mut self, at: usize, end: &Piece<'_>) -> Vec<Value> {
        // Who reads scores of prompts counts on one for each token that was written.
        let report = end.report.filter(|_| self.scores.is_some());
        self.piece(at, &Piece { report, ..*end })
    }

    fn piece(&mut self, at: usize, piece: &Piece<'_>) -> Vec<Value> {
        let text = self.with_echo(at, piece.text);
        if let Some(report) = piece.report {
            self.choices[at].logprobs.push(&self.model, report);
        }
        if !self.is_stream {
            self.choices[at].text.push_str(&text);
            return Vec::new();
        }
        // What is not complete comes with the next token, and so do its probabilities.
        if text.is_empty() && piece.timings.is_none() {
            return Vec::new();
        }
        let choice = self.choice(at, &text, None);
        let mut chunk = self.object(json!([choice]));
        if let Some(taken) = &piece.timings {
            chunk.insert("timings".into(), timings(taken));
        }
        vec![chunk.into()]
    }

    fn progress(&mut self, at: usize, progress: &Progress) -> Vec<Value> {
        let choice = self.choice(at, "", None);
        let mut chunk = self.object(json!([choice]));
        chunk.insert("prompt_progress".into(), progress.to_value());
        vec![chunk.into()]
    }

    fn ended(&mut self, at: usize, end: &End) -> Vec<Value> {
        let finish = end.reason.finish();
        self.choices[at].finish = Some(finish);
        let text = self.with_echo(at, "");
        if !self.is_stream {
            self.choices[at].text.push_str(&text);
            return Vec::new();
        }
        let choice = self.choice(at, &text, Some(finish));
        let mut chunk = self.object(json!([choice]));
        chunk.insert("seed".into(), self.seed.into());
        chunk.insert("timings".into(), timings(&end.timings));
        vec![chunk.into()]
    }

    fn last(&mut self, total: &Total) -> Vec<Value> {
        if !self.include_usage {
            return Vec::new();
        }
        let mut chunk = self.object(json!([]));
        chunk.insert("usage".into(), total.usage.to_value());
        chunk.insert("timings".into(), timings(&total.timings));
        vec![chunk.into()]
    }

    fn whole(&mut self, total: &Total) -> Value {
        let mut choices = Vec::with_capacity(self.choices.len());
        for at in 0..self.choices.len() {
            let text = core::mem::take(&mut self.choices[at].text);
            let finish = self.choices[at].finish;
            choices.push(self.choice(at, &text, finish));
        }
        let mut reply = self.object(choices.into());
        reply.insert("usage".into(), total.usage.to_value());
        reply.insert("seed".into(), self.seed.into());
        reply.insert("timings".into(), timings(&total.timings));
        reply.into()
    }
}
