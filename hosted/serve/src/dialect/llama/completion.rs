//! llama-server's `POST /completion` and `/infill`.

use super::super::fields::{Fields, wrong};
use super::super::generation::{StreamUsage, generation, model};
use super::super::logprobs;
use super::super::prompts::Prompts;
use super::super::reply::{progress, timings};
use super::super::sampling::shown_settings;
use super::super::seam::{Exchange, TextWriter, WriteText};
use crate::api::{
    AnswerEvent, AnswerPiece, ApiError, CompletionPrompt, CompletionRequest, Defaults, End,
    FieldName, Infill, InfillFile, Reason, Start, TOP_MAX, Total,
};
use crate::engine::Score;
use serde_json::{Map, Value, json};
use sluice::model::ModelSource;
use sluice::sequence::TokenReport;

type Result<T> = core::result::Result<T, ApiError>;

/// Parses a request to `/completion`.
pub(super) fn parse(
    body: &Value,
    defaults: &Defaults,
) -> Result<Exchange<CompletionRequest, WriteText>> {
    let fields = Fields::of_body(body)?;
    let prompts = Prompts::read(fields)?;
    let name = prompts.name();
    exchange(fields, defaults, prompts, vec![name])
}

/// Parses a request to `/infill`.
pub(super) fn parse_infill(
    body: &Value,
    defaults: &Defaults,
) -> Result<Exchange<CompletionRequest, WriteText>> {
    let fields = Fields::of_body(body)?;
    let prefix = fields.str("input_prefix")?.unwrap_or_default();
    let suffix = fields.str("input_suffix")?.unwrap_or_default();
    let begun = fields.str("prompt")?.unwrap_or_default();
    let prompt = CompletionPrompt::Infill(Infill {
        prefix: format!("{prefix}{begun}"),
        suffix: suffix.to_owned(),
        extra: extra(fields)?,
    });
    let prompts = Prompts {
        all: vec![prompt],
        is_list: false,
    };
    let names = vec![
        FieldName::new("suffix", "input_suffix"),
        FieldName::new("extra", "input_extra"),
    ];
    exchange(fields, defaults, prompts, names)
}

/// The extra files of an infill request.
fn extra(fields: Fields<'_>) -> Result<Vec<InfillFile>> {
    let list = match fields.value("input_extra") {
        None => return Ok(Vec::new()),
        Some(Value::Array(list)) => list,
        Some(other) => return Err(wrong("input_extra", other, "a list of files")),
    };
    let file = |(i, file): (usize, &Value)| {
        let text = |name: &str| match file.get(name) {
            Some(Value::String(text)) => Ok(text.clone()),
            other => {
                let other = other.cloned().unwrap_or_default();
                Err(wrong(
                    &format!("input_extra[{i}].{name}"),
                    &other,
                    "a string",
                ))
            }
        };
        Ok(InfillFile {
            name: text("filename")?,
            text: text("text")?,
        })
    };
    list.iter().enumerate().map(file).collect()
}

fn exchange(
    fields: Fields<'_>,
    defaults: &Defaults,
    prompts: Prompts,
    mut names: Vec<FieldName>,
) -> Result<Exchange<CompletionRequest, WriteText>> {
    let generation = generation(fields, defaults, &mut names)?;
    // Chunks include their counts anyway.
    StreamUsage::read(fields)?;
    let options = Options {
        is_stream: generation.streams,
        is_list: prompts.is_list || generation.n > 1,
        returns_tokens: fields.bool("return_tokens")?.unwrap_or(false),
        times_pieces: generation.times_pieces,
        post_sampling: generation.sampling.post_sampling,
        fields: fields.texts("response_fields")?,
    };
    Ok(Exchange {
        too_long: None,
        request: CompletionRequest {
            model: model(fields)?,
            prompts: prompts.all,
            prompt_logprobs: fields.count("prompt_logprobs", 0..=TOP_MAX)?,
            returns_prompts: true,
            generation,
            left_out: Vec::new(),
        },
        names,
        writer: Box::new(move |start| Box::new(Writer::new(start, options))),
    })
}

/// How a request wants its answer.
struct Options {
    is_stream: bool,
    /// Whether to reply with a list of results even if there is only one.
    is_list: bool,
    returns_tokens: bool,
    times_pieces: bool,
    /// Whether probabilities are those after all samplers.
    post_sampling: bool,
    /// Paths of the fields to reply with; empty for all of them.
    fields: Vec<String>,
}

/// Writes chunks and replies.
struct Writer {
    name: String,
    fingerprint: String,
    model: ModelSource,
    settings: Map<String, Value>,
    options: Options,
    choices: Vec<Choice>,
}

#[derive(Default)]
struct Choice {
    prompt: String,
    n_prompt: usize,
    content: String,
    tokens: Vec<u32>,
    probabilities: Vec<Value>,
    /// The scores of the prompt, until they are sent.
    scores: Option<Vec<Value>>,
    n_predicted: usize,
    /// The token that ended it, and its probability.
    end_token: Option<(u32, Option<Value>)>,
    end: Option<End>,
}

impl Writer {
    fn new(start: &Start, options: Options) -> Self {
        let mut settings = shown_settings(&start.sampling);
        if start.sampling.ignore_eos {
            bar_ends(&start.model, &mut settings);
        }
        let n_predict = start
            .max_tokens
            .map_or(-1, |n| i64::try_from(n).unwrap_or(i64::MAX));
        for (name, value) in [
            ("n_predict", json!(n_predict)),
            ("max_tokens", json!(n_predict)),
            ("n", json!(start.n)),
            ("stream", json!(options.is_stream)),
            ("stop", json!(start.stop)),
            ("timings_per_token", json!(options.times_pieces)),
            ("post_sampling_probs", json!(options.post_sampling)),
        ] {
            settings.insert(name.into(), value);
        }
        let choices = start.prompts.iter().flat_map(|prompt| {
            let choice = || Choice {
                prompt: prompt.text.clone(),
                n_prompt: prompt.n_tokens,
                ..Choice::default()
            };
            core::iter::repeat_with(choice).take(start.n)
        });
        Self {
            choices: choices.collect(),
            name: start.name.clone(),
            fingerprint: start.fingerprint.clone(),
            model: start.model.clone(),
            settings,
            options,
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

    /// The contents of the last chunk, or of the reply if it is not streamed.
    fn complete(&mut self, at: usize) -> Value {
        let content = core::mem::take(&mut self.choices[at].content);
        let tokens = core::mem::take(&mut self.choices[at].tokens);
        let has_new_line = content.contains('\n');
        let (content, tokens) = if self.options.is_stream {
            (String::new(), Vec::new())
        } else {
            (content, tokens)
        };
        let mut map = self.partial(at, &content, &tokens);
        let choice = &mut self.choices[at];
        map.insert("stop".into(), true.into());
        map.insert("model".into(), self.name.clone().into());
        map.insert("system_fingerprint".into(), self.fingerprint.clone().into());
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
                (end.reason == Reason::ContextFull || end.timings.n_shifts > 0).into(),
            );
            map.insert("stop_type".into(), stop_type(&end.reason).into());
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
        match self.options.fields.is_empty() {
            true => map.into(),
            false => selected(&map.into(), &self.options.fields),
        }
    }

    fn scores(&mut self, at: usize, scores: &[Score]) {
        let model = &self.model;
        let scores = scores.iter().map(|score| {
            let mut entry = logprobs::native(model, &score.report, false);
            entry["rank"] = score.rank.into();
            entry
        });
        self.choices[at].scores = Some(core::iter::once(Value::Null).chain(scores).collect());
    }

    fn entry(&self, report: &TokenReport) -> Value {
        logprobs::native(&self.model, report, self.options.post_sampling)
    }

    fn piece(&mut self, at: usize, piece: &AnswerPiece) -> Vec<Value> {
        let report = piece.report.as_ref();
        let entry = report.map(|report| self.entry(report));
        let is_stream = self.options.is_stream;
        let choice = &mut self.choices[at];
        choice.n_predicted += 1;
        choice.content.push_str(&piece.text);
        choice.probabilities.extend(entry);
        if is_stream || self.options.returns_tokens {
            choice.tokens.push(piece.token);
        }
        if !is_stream || (piece.text.is_empty() && !self.options.returns_tokens) {
            return Vec::new();
        }
        let tokens = core::mem::take(&mut choice.tokens);
        let probabilities = core::mem::take(&mut choice.probabilities);
        let mut chunk = self.partial(at, &piece.text, &tokens);
        if !probabilities.is_empty() {
            chunk.insert("completion_probabilities".into(), probabilities.into());
        }
        if let Some(taken) = &piece.timings {
            chunk.insert("timings".into(), timings(taken));
        }
        vec![chunk.into()]
    }

    fn end_token(&mut self, at: usize, end: &AnswerPiece) -> Vec<Value> {
        let report = end.report.as_ref();
        let entry = report.map(|report| self.entry(report));
        // As in llama-server, where the token that ends a text has an entry, so the list is never empty.
        self.choices[at].probabilities.extend(entry.clone());
        if self.options.returns_tokens {
            self.choices[at].end_token = Some((end.token, entry));
        }
        self.choices[at].content.push_str(&end.text);
        if !self.options.is_stream || end.text.is_empty() {
            return Vec::new();
        }
        vec![self.partial(at, &end.text, &[]).into()]
    }

    fn end(&mut self, at: usize, end: End) -> Vec<Value> {
        self.choices[at].n_prompt = end.n_prompt;
        self.choices[at].end = Some(end);
        match self.options.is_stream {
            true => vec![self.complete(at)],
            false => Vec::new(),
        }
    }
}

impl TextWriter for Writer {
    fn write(&mut self, event: AnswerEvent) -> Vec<Value> {
        match event {
            AnswerEvent::Scores { at, scores, .. } => {
                self.scores(at, &scores);
                Vec::new()
            }
            AnswerEvent::Progress { at, progress: read } => {
                let mut chunk = self.partial(at, "", &[]);
                chunk.insert("prompt_progress".into(), progress(&read));
                vec![chunk.into()]
            }
            AnswerEvent::Piece { at, piece } => self.piece(at, &piece),
            AnswerEvent::EndToken { at, piece } => self.end_token(at, &piece),
            AnswerEvent::End { at, end } => self.end(at, end),
        }
    }

    fn last(&mut self, _total: &Total) -> Vec<Value> {
        Vec::new()
    }

    fn whole(&mut self, _total: &Total) -> Value {
        let mut all: Vec<_> = (0..self.choices.len())
            .map(|at| self.complete(at))
            .collect();
        match all.len() {
            1 if !self.options.is_list => all.remove(0),
            _ => all.into(),
        }
    }
}

/// The values at these paths, whose keys are separated by `/`, under the paths; missing ones are left out.
fn selected(value: &Value, paths: &[String]) -> Value {
    let found = paths.iter().filter_map(|path| {
        let mut keys = path.split('/');
        let found = keys.try_fold(value, |value, key| value.get(key))?;
        Some((path.clone(), found.clone()))
    });
    Value::Object(found.collect())
}

/// Shows the ends of text as llama-server does: their bias is minus infinity, which JSON has as null.
fn bar_ends(model: &ModelSource, settings: &mut Map<String, Value>) {
    let tokenizer = model.tokenizer();
    let ends = (0..tokenizer.n_vocab()).filter(|&id| tokenizer.is_end_of_generation(id));
    let ends = ends.map(|id| json!({"token": id, "bias": null}));
    if let Some(Value::Array(biases)) = settings.get_mut("logit_bias") {
        biases.extend(ends);
    }
}

/// llama-server's `stop_type`.
const fn stop_type(reason: &Reason) -> &'static str {
    match reason {
        Reason::EndOfText => "eos",
        Reason::Stop(_) => "word",
        Reason::Length | Reason::ContextFull | Reason::Late => "limit",
    }
}
