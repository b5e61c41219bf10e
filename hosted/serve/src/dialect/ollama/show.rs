//! `POST /api/show`.

use super::super::drive::body;
use super::super::error::json_reply;
use super::super::fields::Fields;
use super::super::sampling::shown_settings;
use super::details::{capabilities, details};
use super::timestamp;
use crate::answer::Context;
use crate::api::{ApiError, Defaults};
use crate::http::{Request, Response};
use core::fmt::Write as _;
use hyper::header;
use serde_json::{Map, Value, json};
use sluice::model::ModelSource;
use sluice_core::gguf::{self, Gguf};
use sluice_text::sampling::decimal;

/// A model, or the model of an adapter.
pub(super) async fn show(mut context: Context, request: Request) -> Result<Response, ApiError> {
    let is_copilot = is_copilot(&request);
    let body = body(&mut context, request, &["model", "name", "verbose"]).await?;
    let fields = Fields::of_body(&body)?;
    let asked = fields.first(&["model", "name"]);
    let asked = asked.map(|field| fields.str(field)).transpose()?.flatten();
    let asked = asked.filter(|name| !name.is_empty());
    let asked = asked.ok_or_else(|| ApiError::field("model", "is missing"))?;
    let verbose = fields.bool("verbose")?.unwrap_or(false);
    context.check_allowed(Some(asked), &[])?;
    let models = context.app.models();
    let adapter = models.adapters().find(asked);
    let parent = adapter.map(|entry| models.name_of(entry.model).to_owned());
    let index = models.asked(Some(parent.as_deref().unwrap_or(asked)))?;
    let name = models.name_of(index).to_owned();
    let unreadable = || ApiError::unavailable("the model's file cannot be read");
    let summary = models.summary(&name).await.ok_or_else(unreadable)?;
    let (app, base) = (context.app.clone(), asked.to_owned());
    let read = move || {
        let source = app.models().source(index)?;
        let prompts = app.models().template(index, &source);
        let template = prompts.map_or_else(String::new, |prompts| prompts.source().to_owned());
        let mut info = model_info(source.gguf(), verbose);
        // Clients fill as much as this says.
        let n_ctx = app.models().context(index, summary.n_ctx_train);
        let key = format!("{}.context_length", summary.architecture);
        info.insert(key, n_ctx.min(summary.n_ctx_train).into());
        if is_copilot {
            // It shows this name, and people know the one that they chose.
            info.insert("general.basename".into(), base.into());
        }
        let defaults = app.defaults_named(Some(&name));
        let mut reply = json!({
            "modelfile": modelfile(&name, &template, defaults, n_ctx),
            "parameters": parameters(defaults, n_ctx, false),
            "template": template,
            "details": details(&summary, parent.as_deref().unwrap_or_default()),
            "model_info": info,
            "capabilities": capabilities(summary.can),
            "modified_at": timestamp(summary.modified),
        });
        if let Ok(license) = source.gguf().str("general.license") {
            reply["license"] = license.into();
        }
        if verbose {
            reply["tensors"] = tensors(&source);
        }
        Some(json_reply(&reply))
    };
    context.work(read).await?.ok_or_else(unreadable)
}

/// Whether VS Code asks.
fn is_copilot(request: &Request) -> bool {
    let agent = request.headers().get(header::USER_AGENT);
    let agent = agent.and_then(|value| value.to_str().ok());
    agent.is_some_and(|agent| agent.starts_with("GitHubCopilotChat/"))
}

/// The keys of a file. Long lists, which are vocabularies, are shown only to those who ask for everything.
fn model_info(gguf: &Gguf<'_>, verbose: bool) -> Map<String, Value> {
    let keys = gguf.metadata();
    let shown = keys.filter(|(key, _)| !ELSEWHERE.contains(key));
    shown
        .map(|(key, value)| (key.to_owned(), shown_value(value, verbose)))
        .collect()
}

fn shown_value(value: gguf::Value<'_>, verbose: bool) -> Value {
    use gguf::Value as V;
    match value {
        V::U8(n) => n.into(),
        V::I8(n) => n.into(),
        V::U16(n) => n.into(),
        V::I16(n) => n.into(),
        V::U32(n) => n.into(),
        V::I32(n) => n.into(),
        V::U64(n) => n.into(),
        V::I64(n) => n.into(),
        // Null is not a number either, and clients expect one.
        V::F32(x) => json!(decimal(if x.is_finite() { x } else { 0.0 })),
        V::F64(x) => json!(if x.is_finite() { x } else { 0.0 }),
        V::Bool(is) => is.into(),
        V::String(bytes) => String::from_utf8_lossy(bytes).into(),
        V::Array(list) if !verbose && list.len() > LIST_MAX => json!([]),
        V::Array(list) => list
            .into_iter()
            .map(|value| shown_value(value, verbose))
            .collect(),
    }
}

fn tensors(source: &ModelSource) -> Value {
    let each = source.gguf().tensors().map(|tensor| {
        let shape = &tensor.dims[..tensor.n_dims];
        json!({"name": tensor.name, "type": tensor.ty.name(), "shape": shape})
    });
    each.collect()
}

/// The settings of requests that have none, one a line; those of a Modelfile begin with a word.
fn parameters(defaults: &Defaults, n_ctx: usize, is_modelfile: bool) -> String {
    let mut settings = shown_settings(&defaults.sampling);
    settings.insert("num_ctx".into(), n_ctx.into());
    let mut text = String::new();
    for name in SETTINGS {
        let value = match &settings[name] {
            // Without ".0".
            Value::Number(x) if x.is_f64() => x.as_f64().unwrap_or(0.0).to_string(),
            value => value.to_string(),
        };
        // Writing to a string cannot fail.
        let _written = match is_modelfile {
            true => writeln!(text, "PARAMETER {name} {value}"),
            false => writeln!(text, "{name:<30} {value}"),
        };
    }
    text.truncate(text.trim_end().len());
    text
}

/// What Ollama would build the model from.
fn modelfile(name: &str, template: &str, defaults: &Defaults, n_ctx: usize) -> String {
    let settings = parameters(defaults, n_ctx, true);
    format!("FROM {name}\nTEMPLATE \"\"\"{template}\"\"\"\n{settings}\n")
}

const SETTINGS: [&str; 9] = [
    // Clients take their context from it.
    "num_ctx",
    "temperature",
    "top_k",
    "top_p",
    "min_p",
    "typical_p",
    "repeat_last_n",
    "repeat_penalty",
    "presence_penalty",
];
/// Keys that Ollama leaves out: the template has a field of its own.
const ELSEWHERE: [&str; 2] = ["general.name", "tokenizer.chat_template"];
const LIST_MAX: u64 = 5;
