//! `POST /v1/messages`.

use super::super::fields::{Fields, set, within};
use super::super::generation::model;
use super::super::grammar::json_schema;
use super::super::sampling;
use super::super::seam::{Exchange, WriteText};
use super::writer::Writer;
use super::{blocks, thinking, tools};
use crate::api::{ApiError, ChatRequest, Defaults};
use serde_json::Value;

type Result<T> = core::result::Result<T, ApiError>;

/// Parses a request.
pub(super) fn parse(body: &Value, defaults: &Defaults) -> Result<Exchange<ChatRequest, WriteText>> {
    let fields = Fields::of_body(body)?;
    let max_tokens = fields.count("max_tokens", 0..=1 << 30)?;
    let max_tokens = max_tokens.ok_or_else(|| ApiError::field("max_tokens", "is missing"))?;
    let mut request = conversation(body, defaults)?;
    let generation = &mut request.generation;
    generation.max_tokens = Some(max_tokens);
    generation.stop = fields.texts("stop_sequences")?;
    set(&mut generation.streams, fields.bool("stream")?);
    // The first event reports how much of the prompt was cached.
    generation.reports_progress = generation.streams;
    sampling::read(fields, generation)?;
    let stops = generation.stop.clone();
    let hides = thinking::hides(fields.object("thinking")?);
    let hides_thoughts = hides.map_err(|error| within("thinking", error))?;
    Ok(Exchange {
        too_long: None,
        request,
        names: Vec::new(),
        writer: Box::new(move |start| Box::new(Writer::new(start, stops, hides_thoughts))),
    })
}

/// Parses what makes the prompt: a request to count its tokens has nothing else.
pub(super) fn conversation(body: &Value, defaults: &Defaults) -> Result<ChatRequest> {
    let fields = Fields::of_body(body)?;
    let mut request = ChatRequest::new(defaults);
    request.model = model(fields)?;
    refuse(fields)?;
    blocks::read(fields, &mut request)?;
    tools::read(fields, &mut request)?;
    let thoughts = thinking::read(fields.object("thinking")?, &mut request);
    thoughts.map_err(|error| within("thinking", error))?;
    if let Some(config) = fields.object("output_config")? {
        output(config, &mut request).map_err(|error| within("output_config", error))?;
    }
    if let Some(format) = fields.object("output_format")? {
        schema(format, &mut request).map_err(|error| within("output_format", error))?;
    }
    Ok(request)
}

/// Parses the object `output_config`.
fn output(config: Fields<'_>, request: &mut ChatRequest) -> Result<()> {
    if let Some(effort) = config.str("effort")? {
        let variables = &mut request.template_kwargs;
        variables.insert("reasoning_effort".into(), effort.into());
    }
    match config.object("format")? {
        Some(format) => schema(format, request).map_err(|error| within("format", error)),
        None => Ok(()),
    }
}

/// Parses a format, which is a JSON schema that the answer keeps to.
fn schema(format: Fields<'_>, request: &mut ChatRequest) -> Result<()> {
    if format.word("type", &["json_schema"])?.is_none() {
        return Err(ApiError::field("type", "is missing"));
    }
    let schema = format.value("schema");
    let schema = schema.ok_or_else(|| ApiError::field("schema", "is missing"))?;
    let grammar = json_schema(schema).map_err(|error| ApiError::field("schema", error.what))?;
    request.generation.grammar = Some(grammar);
    Ok(())
}

/// Refuses what only Anthropic's servers can do: leaving it out would change the answer.
fn refuse(fields: Fields<'_>) -> Result<()> {
    let none = [Value::Array(Vec::new())];
    fields.refuse("mcp_servers", &none, "is not supported")?;
    fields.refuse("container", &[], "is not supported")
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;
    use sluice_text::grammar::GrammarSource;

    fn of(more: &Value) -> Result<ChatRequest> {
        let mut body =
            json!({"model": "m", "max_tokens": 9, "messages": [{"role": "user", "content": "x"}]});
        let more = more.as_object().unwrap().clone();
        body.as_object_mut().unwrap().extend(more);
        parse(&body, &Defaults::default()).map(|exchange| exchange.request)
    }

    #[test]
    fn settings_are_the_server_s_unless_they_are_given() {
        let request = of(&json!({})).unwrap();
        let defaults = Defaults::default();
        assert_eq!(request.generation.sampling, defaults.sampling);
        assert_eq!(request.generation.max_tokens, Some(9));
        let body = json!({"temperature": 0.5, "top_k": 3, "stop_sequences": ["END"], "stream": true,
            "metadata": {"user_id": "u"}, "service_tier": "auto"});
        let generation = of(&body).unwrap().generation;
        assert_eq!(generation.sampling.config.top_k, 3);
        assert_eq!(generation.stop, ["END"]);
        assert!(generation.streams && generation.reports_progress);
    }

    #[test]
    fn a_format_is_a_grammar() {
        let schema = json!({"type": "object"});
        let format = json!({"type": "json_schema", "schema": schema});
        let expected = Some(GrammarSource::JsonSchema(schema.to_string()));
        for body in [
            json!({"output_config": {"format": format, "effort": "low"}}),
            json!({"output_format": format}),
        ] {
            assert_eq!(of(&body).unwrap().generation.grammar, expected);
        }
    }

    #[test]
    fn what_is_wrong_is_named() {
        for (more, field) in [
            (json!({"max_tokens": null}), "max_tokens"),
            (json!({"max_tokens": -1}), "max_tokens"),
            (json!({"messages": []}), "messages"),
            (json!({"stop_sequences": [3]}), "stop_sequences[0]"),
            (json!({"thinking": {"type": "much"}}), "thinking.type"),
            (json!({"mcp_servers": [{"url": "x"}]}), "mcp_servers"),
            (
                json!({"output_config": {"format": {"type": "xml"}}}),
                "output_config.format.type",
            ),
            (
                json!({"output_format": {"type": "json_schema"}}),
                "output_format.schema",
            ),
        ] {
            let error = of(&more).unwrap_err();
            assert_eq!(error.field.as_deref(), Some(field), "{more}");
        }
    }
}
