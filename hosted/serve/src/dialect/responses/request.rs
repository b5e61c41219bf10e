//! `POST /v1/responses`.

use super::super::fields::{Fields, set, within};
use super::super::generation::model;
use super::super::grammar::json_schema;
use super::super::sampling;
use super::super::seam::{Exchange, WriteText};
use super::response::{Echo, Shown};
use super::writer::Writer;
use super::{items, tools};
use crate::api::{ApiError, ChatRequest, Defaults, TOP_MAX};
use serde_json::{Value, json};

type Result<T> = core::result::Result<T, ApiError>;

/// Parses a request.
pub(super) fn parse(body: &Value, defaults: &Defaults) -> Result<Exchange<ChatRequest, WriteText>> {
    let fields = Fields::of_body(body)?;
    let (mut request, mut echo) = conversation(body, defaults)?;
    let generation = &mut request.generation;
    let max = fields.count("max_output_tokens", 1..=1 << 30)?;
    generation.max_tokens = max.or(generation.max_tokens);
    set(&mut generation.streams, fields.bool("stream")?);
    generation.reports_progress = generation.streams;
    sampling::read(fields, generation)?;
    let include = fields.texts("include")?;
    let includes = |name: &str| include.iter().any(|included| included == name);
    let top = fields.count("top_logprobs", 0..=TOP_MAX)?;
    if includes("message.output_text.logprobs") || top.is_some_and(|n| n > 0) {
        generation.sampling.n_probs = Some(top.unwrap_or(0));
    }
    echo.shown = Shown {
        logprobs: generation.sampling.n_probs.is_some(),
        sealed: includes("reasoning.encrypted_content"),
        ..echo.shown
    };
    for (name, value) in [
        ("max_output_tokens", json!(max)),
        ("top_logprobs", top.unwrap_or(0).into()),
    ] {
        echo.fields.insert(name.into(), value);
    }
    let failing = echo.clone();
    let named = request.model.name.clone().unwrap_or_default();
    Ok(Exchange {
        too_long: Some(Box::new(move |error| {
            Writer::refused(named, failing, error)
        })),
        request,
        names: Vec::new(),
        writer: Box::new(move |start| Box::new(Writer::new(start, echo))),
    })
}

/// Parses what makes the prompt, and what the reply repeats of it.
pub(super) fn conversation(body: &Value, defaults: &Defaults) -> Result<(ChatRequest, Echo)> {
    let fields = Fields::of_body(body)?;
    refuse(fields)?;
    let mut request = ChatRequest::new(defaults);
    request.model = model(fields)?;
    request.messages = items::read(fields)?;
    let asked = tools::read(fields, &mut request)?;
    let parallel = fields.bool("parallel_tool_calls")?;
    set(&mut request.parallel_calls, parallel);
    let reasoning = reasoning(fields, &mut request)?;
    let text = text(fields, &mut request)?;
    let truncation = fields.word("truncation", &["auto", "disabled"])?;
    request.drops_oldest = truncation == Some("auto");
    let mut echo = Echo {
        custom: asked.custom,
        shown: Shown {
            summary: !matches!(reasoning["summary"].as_str(), None | Some("none")),
            ..Shown::default()
        },
        ..Echo::default()
    };
    let given = |name: &str| fields.value(name).cloned().unwrap_or_default();
    for name in [
        "instructions",
        "max_tool_calls",
        "prompt_cache_key",
        "safety_identifier",
        "user",
    ] {
        echo.fields.insert(name.into(), given(name));
    }
    let metadata = fields.value("metadata").cloned();
    for (name, value) in [
        ("background", json!(false)),
        ("metadata", metadata.unwrap_or_else(|| json!({}))),
        ("parallel_tool_calls", request.parallel_calls.into()),
        ("previous_response_id", Value::Null),
        ("reasoning", reasoning),
        ("service_tier", "default".into()),
        ("store", false.into()),
        ("text", text),
        ("tool_choice", asked.choice),
        ("tools", asked.tools.into()),
        ("truncation", truncation.unwrap_or("disabled").into()),
    ] {
        echo.fields.insert(name.into(), value);
    }
    Ok((request, echo))
}

/// Parses the object `reasoning`; returns it as the reply shows it.
fn reasoning(fields: Fields<'_>, request: &mut ChatRequest) -> Result<Value> {
    let mut shown = json!({"effort": null, "summary": null});
    let Some(reasoning) = fields.object("reasoning")? else {
        return Ok(shown);
    };
    for name in ["effort", "summary"] {
        let word = reasoning.str(name);
        shown[name] = word.map_err(|error| within("reasoning", error))?.into();
    }
    if let Some(effort) = shown["effort"].as_str() {
        let variables = &mut request.template_kwargs;
        variables.insert("reasoning_effort".into(), effort.into());
        variables.insert("enable_thinking".into(), Value::Bool(effort != "none"));
    }
    Ok(shown)
}

/// Parses the object `text`; returns it as the reply shows it.
fn text(fields: Fields<'_>, request: &mut ChatRequest) -> Result<Value> {
    let mut shown = json!({"format": {"type": "text"}});
    let Some(text) = fields.object("text")? else {
        return Ok(shown);
    };
    if let Some(format) = format(text, request).map_err(|error| within("text", error))? {
        shown["format"] = format;
    }
    if let Some(verbosity) = text.value("verbosity") {
        shown["verbosity"] = verbosity.clone();
    }
    Ok(shown)
}

/// Parses `text.format`; returns it as the reply shows it.
fn format(text: Fields<'_>, request: &mut ChatRequest) -> Result<Option<Value>> {
    let Some(format) = text.object("format")? else {
        return Ok(None);
    };
    let kinds = ["text", "json_object", "json_schema"];
    let kind = format
        .word("type", &kinds)
        .map_err(|error| within("format", error))?;
    let schema = match kind {
        None => return Err(ApiError::field("format.type", "is missing")),
        Some("text") => None,
        Some("json_object") => Some(json!({"type": "object"})),
        Some(_) => {
            let schema = format.value("schema").cloned();
            Some(schema.ok_or_else(|| ApiError::field("format.schema", "is missing"))?)
        }
    };
    if let Some(schema) = &schema {
        let grammar = json_schema(schema);
        let grammar = grammar.map_err(|error| ApiError::field("format.schema", error.what))?;
        request.generation.grammar = Some(grammar);
    }
    Ok(Some(Value::Object(format.map().clone())))
}

/// Refuses what needs stored responses, and prompts that are stored elsewhere.
fn refuse(fields: Fields<'_>) -> Result<()> {
    let stored = "is not supported: responses are not stored; send the whole input";
    for name in ["previous_response_id", "conversation"] {
        fields.refuse(name, &[], stored)?;
    }
    fields.refuse("background", &[json!(false)], stored)?;
    fields.refuse(
        "prompt",
        &[],
        "is not supported: this server has no stored prompts",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(more: &Value) -> Result<ChatRequest> {
        let mut body = json!({"model": "m", "input": "x"});
        let more = more.as_object().unwrap().clone();
        body.as_object_mut().unwrap().extend(more);
        parse(&body, &Defaults::default()).map(|exchange| exchange.request)
    }

    #[test]
    fn settings_are_read() {
        let body = json!({"max_output_tokens": 9, "temperature": 0.5, "store": true, "stream": true,
            "reasoning": {"effort": "low", "summary": "auto"}, "truncation": "auto",
            "include": ["message.output_text.logprobs"], "text": {"format": {"type": "json_object"}}});
        let request = of(&body).unwrap();
        let generation = &request.generation;
        assert_eq!(generation.max_tokens, Some(9));
        assert_eq!(generation.sampling.n_probs, Some(0));
        assert!(generation.streams && generation.grammar.is_some() && request.drops_oldest);
        assert_eq!(request.template_kwargs["reasoning_effort"], "low");
    }

    #[test]
    fn what_is_wrong_is_named() {
        for (more, field) in [
            (json!({"input": null}), "input"),
            (
                json!({"previous_response_id": "resp_1"}),
                "previous_response_id",
            ),
            (json!({"conversation": "conv_1"}), "conversation"),
            (json!({"background": true}), "background"),
            (json!({"max_output_tokens": 0}), "max_output_tokens"),
            (json!({"truncation": "some"}), "truncation"),
            (json!({"reasoning": {"effort": 3}}), "reasoning.effort"),
            (
                json!({"text": {"format": {"type": "xml"}}}),
                "text.format.type",
            ),
            (
                json!({"text": {"format": {"type": "json_schema"}}}),
                "text.format.schema",
            ),
        ] {
            let error = of(&more).unwrap_err();
            assert_eq!(error.field.as_deref(), Some(field), "{more}");
        }
    }
}
