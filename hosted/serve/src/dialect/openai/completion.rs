//! `POST /v1/completions`.

use super::super::fields::Fields;
use super::super::generation::{StreamUsage, generation, model, refuse_native};
use super::super::logprobs;
use super::super::prompts::Prompts;
use super::super::reply::{Head, finish, progress, timings, usage, usage_so_far};
use super::super::seam::{Exchange, TextWriter, WriteText};
use crate::api::{
    AnswerEvent, AnswerPiece, ApiError, CompletionPrompt, CompletionRequest, Defaults, End, Infill,
    PromptProgress, Start, TOP_MAX, Total,
};
use crate::engine::Score;
use serde_json::{Map, Value, json};
use sluice::model::ModelSource;

type Result<T> = core::result::Result<T, ApiError>;

/// Parses a request.
pub(super) fn parse(
    body: &Value,
    defaults: &Defaults,
) -> Result<Exchange<CompletionRequest, WriteText>> {
    let fields = Fields::of_body(body)?;
    let mut request = CompletionRequest::new(defaults);
    request.model = model(fields)?;
    let mut names = Vec::new();
    request.generation = generation(fields, defaults, &mut names)?;
    let n_probs = &mut request.generation.sampling.n_probs;
    *n_probs = likely(fields)?.or(*n_probs);
    let is_echo = fields.bool("echo")?.unwrap_or(false);
    request.returns_prompts = is_echo;
    request.prompt_logprobs = n_probs.filter(|_| is_echo);
    let prompts = Prompts::read(fields)?;
    names.push(prompts.name());
    request.prompts = match fields.str("suffix")?.filter(|suffix| !suffix.is_empty()) {
        None => prompts.all,
        Some(suffix) => {
            let needs = |_| ApiError::field("suffix", "requires a prompt that is a single string");
            let prefix = fields.str("prompt").map_err(needs)?;
            vec![CompletionPrompt::Infill(Infill {
                prefix: prefix.unwrap_or_default().to_owned(),
                suffix: suffix.to_owned(),
                extra: Vec::new(),
            })]
        }
    };
    refuse_native(fields)?;
    let options = Options {
        is_stream: request.generation.streams,
        usage: StreamUsage::read(fields)?,
        has_logprobs: request.generation.sampling.n_probs.is_some(),
        has_scores: request.prompt_logprobs.is_some(),
    };
    Ok(Exchange {
        too_long: None,
        request,
        names,
        writer: Box::new(move |start| Box::new(Writer::new(start, options))),
    })
}

/// The number of likely tokens to report; `None` for no report.
fn likely(fields: Fields<'_>) -> Result<Option<usize>> {
    match fields.value("logprobs") {
        Some(Value::Bool(wanted)) => Ok(wanted.then_some(0)),
        _ => fields.count("logprobs", 0..=TOP_MAX),
    }
}

/// How a request wants its answer.
#[derive(Clone, Copy)]
struct Options {
    is_stream: bool,
    usage: StreamUsage,
    has_logprobs: bool,
    /// Whether likely tokens are reported for each token of the prompt, which is echoed.
    has_scores: bool,
}

/// Writes chunks and replies.
struct Writer {
    head: Head,
    model: ModelSource,
    seed: u64,
    options: Options,
    choices: Vec<Choice>,
}

#[derive(Default)]
struct Choice {
    /// The prompt, if it is echoed.
    echo: String,
    n_prompt: usize,
    n_predicted: usize,
    text: String,
    logprobs: logprobs::Lists,
    finish: Option<&'static str>,
}

impl Writer {
    fn new(start: &Start, options: Options) -> Self {
        let choices = start.prompts.iter().flat_map(|prompt| {
            let choice = || Choice {
                echo: prompt.text.clone(),
                n_prompt: prompt.n_tokens,
                ..Choice::default()
            };
            core::iter::repeat_with(choice).take(start.n)
        });
        Self {
            choices: choices.collect(),
            head: Head::new("cmpl-", start),
            seed: start.sampling.config.seed,
            model: start.model.clone(),
            options,
        }
    }

    fn object(&self, choices: Value) -> Map<String, Value> {
        let mut map = self.head.object("text_completion");
        map.insert("choices".into(), choices);
        map
    }

    fn choice(&mut self, at: usize, text: &str, finish: Option<&str>) -> Value {
        let choice = &mut self.choices[at];
        let has_logprobs = self.options.has_logprobs;
        let logprobs = has_logprobs.then(|| choice.logprobs.take());
        json!({"index": at, "text": text, "logprobs": logprobs, "finish_reason": finish})
    }

    /// A chunk of one choice.
    fn chunk(&mut self, at: usize, text: &str, finish: Option<&str>) -> Map<String, Value> {
        let choice = self.choice(at, text, finish);
        let mut chunk = self.object(json!([choice]));
        if self.options.usage.in_chunks {
            let choice = &self.choices[at];
            let usage = usage_so_far(choice.n_prompt, choice.n_predicted);
            chunk.insert("usage".into(), usage);
        }
        chunk
    }

    /// Prepends the prompt to the first text.
    fn with_echo(&mut self, at: usize, text: &str) -> String {
        let mut echoed = core::mem::take(&mut self.choices[at].echo);
        echoed.push_str(text);
        echoed
    }

    fn scores(&mut self, at: usize, tokens: &[u32], scores: &[Score]) {
        let reports = scores.iter().map(|score| Some(&score.report));
        let list = &mut self.choices[at].logprobs;
        for (&token, report) in tokens.iter().zip(core::iter::once(None).chain(reports)) {
            list.push_prompt(&self.model, token, report);
        }
    }

    fn piece(&mut self, at: usize, piece: &AnswerPiece) -> Vec<Value> {
        let text = self.with_echo(at, &piece.text);
        if let Some(report) = &piece.report {
            self.choices[at].logprobs.push(&self.model, report);
        }
        if !self.options.is_stream {
            self.choices[at].text.push_str(&text);
            return Vec::new();
        }
        // An incomplete character comes with the next token, and so do its log-probabilities.
        if text.is_empty() && piece.timings.is_none() {
            return Vec::new();
        }
        let mut chunk = self.chunk(at, &text, None);
        if let Some(taken) = &piece.timings {
            chunk.insert("timings".into(), timings(taken));
        }
        vec![chunk.into()]
    }

    fn progress(&mut self, at: usize, read: &PromptProgress) -> Vec<Value> {
        let mut chunk = self.chunk(at, "", None);
        chunk.insert("prompt_progress".into(), progress(read));
        vec![chunk.into()]
    }

    fn end(&mut self, at: usize, end: &End) -> Vec<Value> {
        let finish = finish(&end.reason);
        self.choices[at].finish = Some(finish);
        let text = self.with_echo(at, "");
        if !self.options.is_stream {
            self.choices[at].text.push_str(&text);
            return Vec::new();
        }
        let mut chunk = self.chunk(at, &text, Some(finish));
        chunk.insert("seed".into(), self.seed.into());
        chunk.insert("timings".into(), timings(&end.timings));
        vec![chunk.into()]
    }
}

impl TextWriter for Writer {
    fn write(&mut self, event: AnswerEvent) -> Vec<Value> {
        match event {
            AnswerEvent::Scores { at, tokens, scores } => {
                self.scores(at, &tokens, &scores);
                Vec::new()
            }
            AnswerEvent::Progress { at, progress } => self.progress(at, &progress),
            AnswerEvent::Piece { at, piece } => {
                self.choices[at].n_predicted += 1;
                self.piece(at, &piece)
            }
            AnswerEvent::EndToken { at, mut piece } => {
                // Clients that read prompt scores expect an entry for each generated token.
                if !self.options.has_scores {
                    piece.report = None;
                }
                self.piece(at, &piece)
            }
            AnswerEvent::End { at, end } => self.end(at, &end),
        }
    }

    fn last(&mut self, total: &Total) -> Vec<Value> {
        if !self.options.usage.at_end {
            return Vec::new();
        }
        let mut chunk = self.object(json!([]));
        chunk.insert("usage".into(), usage(&total.usage));
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
        reply.insert("usage".into(), usage(&total.usage));
        reply.insert("seed".into(), self.seed.into());
        reply.insert("timings".into(), timings(&total.timings));
        reply.into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn likely_tokens_are_a_number_or_none() {
        let of = |body: Value| likely(Fields::of_body(&body).unwrap());
        assert_eq!(of(json!({"logprobs": 2})), Ok(Some(2)));
        assert_eq!(of(json!({"logprobs": true})), Ok(Some(0)));
        assert_eq!(of(json!({})), Ok(None));
    }
}
