//! What all requests for text have in common.

use super::error::ApiError;
use super::fields::{Fields, shown, wrong};
use super::sampling;
use super::stops::stops;
use super::structural;
use crate::engine::Stops;
use crate::models::Loaded;
use core::time::Duration;
use serde_json::{Value, json};
use sluice_text::grammar::GrammarSource;
use sluice_text::sampling::SamplingSettings;
use std::sync::Arc;
use std::time::Instant;

type Result<T> = core::result::Result<T, ApiError>;

/// What is taken where a request does not say.
#[derive(Clone, Debug, Default)]
pub struct Defaults {
    /// How tokens are chosen.
    pub sampling: SamplingSettings,
    /// The seed; `None` draws one for each request.
    pub seed: Option<u64>,
    /// Most tokens of an answer; `None` for as many as there is room for.
    pub n_predict: Option<usize>,
    /// Go on when the context is full, without its older half.
    pub context_shift: bool,
    /// Variables of chat templates.
    pub template_kwargs: serde_json::Map<String, Value>,
    /// What becomes of reasoning: `none` leaves it in the content, others split it off.
    pub reasoning_format: Option<String>,
    /// Most tokens of reasoning; 0 ends it at once, `None` for no limit.
    pub reasoning_budget: Option<usize>,
}

/// Which route asks: some fields mean something else on each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// `/v1/chat/completions`.
    Chat,
    /// `/v1/completions`.
    Completion,
    /// `/completion` and `/infill`.
    Native,
}

/// A request for text.
#[derive(Clone, Debug)]
pub(crate) struct Asked {
    pub(crate) stream: bool,
    /// A last chunk with the usage.
    pub(crate) include_usage: bool,
    /// Choices of each prompt.
    pub(crate) n: usize,
    pub(crate) n_predict: Option<usize>,
    pub(crate) stops: Stops,
    /// Control tokens are part of the text.
    pub(crate) shows_special: bool,
    pub(crate) settings: SamplingSettings,
    pub(crate) grammar: Option<GrammarSource>,
    /// The field that it comes from.
    pub(crate) grammar_field: &'static str,
    pub(crate) priority: i32,
    pub(crate) deadline: Option<Instant>,
    pub(crate) predict_for: Option<Duration>,
    pub(crate) uses_cache: bool,
    pub(crate) salt: Arc<str>,
    pub(crate) slot: Option<u32>,
    /// Tokens that stay when the context is shifted; `None` for no shift.
    pub(crate) shift: Option<usize>,
    pub(crate) returns_progress: bool,
    pub(crate) timings_per_token: bool,
}

impl Asked {
    /// Reads the fields.
    pub(crate) fn read(
        fields: Fields<'_>,
        kind: Kind,
        defaults: &Defaults,
        loaded: &Loaded,
        arrived: Instant,
    ) -> Result<Self> {
        refuse(fields)?;
        let stream = fields.bool("stream")?.unwrap_or(false);
        let top = top_logprobs(fields, kind)?;
        let stream_options = fields.object("stream_options")?;
        let include_usage = match stream_options {
            Some(options) => options.bool("include_usage")?.unwrap_or(false),
            None => false,
        };
        let n_name = fields.first(&["n", "n_cmpl"]).unwrap_or("n");
        let grammar = grammar(fields)?;
        let deadline = millis(fields, "deadline_ms")?;
        let shifts = shifts(fields, defaults, loaded)?;
        let n_predict = n_predict(fields, defaults)?;
        Ok(Self {
            stream,
            include_usage,
            n: fields.count(n_name, 1..=N_MAX)?.unwrap_or(1),
            n_predict,
            stops: stops(fields, loaded.model(), n_predict)?,
            shows_special: !fields.bool("skip_special_tokens")?.unwrap_or(true),
            settings: sampling::settings(fields, defaults, loaded.model(), top)?,
            grammar_field: grammar.as_ref().map_or("grammar", |(field, _)| field),
            grammar: grammar.map(|(_, source)| source),
            priority: i32::try_from(fields.int("priority", -1000..=1000)?.unwrap_or(0))
                .unwrap_or(0),
            deadline: deadline.map(|time| arrived + time),
            predict_for: millis(fields, "t_max_predict_ms")?,
            uses_cache: fields.bool("cache_prompt")?.unwrap_or(true),
            salt: salt(fields)?,
            slot: slot(fields, loaded)?,
            shift: shifts.then_some(keep(fields)?),
            returns_progress: stream && fields.bool("return_progress")?.unwrap_or(false),
            timings_per_token: fields.bool("timings_per_token")?.unwrap_or(false),
        })
    }
}

/// Whether the text goes on when the context is full. A default has no effect on models that cannot; the log said
/// so when they were loaded.
fn shifts(fields: Fields<'_>, defaults: &Defaults, loaded: &Loaded) -> Result<bool> {
    let why_not = loaded.model().config().why_not_remove();
    match (fields.bool("context_shift")?, why_not) {
        (Some(true), Some(reason)) => {
            let what = "older tokens cannot be taken out of its state";
            let name = loaded.name();
            Err(ApiError::field(
                "context_shift",
                format!("{name} {reason}: {what}"),
            ))
        }
        (asked, why_not) => Ok(asked.unwrap_or(defaults.context_shift) && why_not.is_none()),
    }
}

/// Fields whose part is not there; leaving them out silently would give another answer.
fn refuse(fields: Fields<'_>) -> Result<()> {
    let none = [json!([]), json!(false), json!({}), json!("")];
    fields.refuse(
        "best_of",
        &[json!(1)],
        "not supported; n gives several choices",
    )?;
    fields.refuse("use_beam_search", &none, "not supported")?;
    fields.refuse(
        "post_sampling_probs",
        &none,
        "not supported; n_probs are those of the model",
    )?;
    fields.refuse("n_indent", &[json!(0)], "not supported")?;
    fields.refuse(
        "t_max_prompt_ms",
        &[json!(-1), json!(0)],
        "not supported; see deadline_ms",
    )?;
    fields.refuse(
        "grammar_lazy",
        &none,
        "not supported; a grammar is for the whole answer",
    )?;
    fields.refuse(
        "grammar_triggers",
        &none,
        "not supported; a grammar is for the whole answer",
    )?;
    for name in STRUCTURED {
        fields.refuse(
            name,
            &none,
            "not supported; use response_format, json_schema or grammar",
        )?;
    }
    Ok(())
}

/// vLLM's names for grammars.
const STRUCTURED: [&str; 6] = [
    "structured_outputs",
    "guided_json",
    "guided_regex",
    "guided_choice",
    "guided_grammar",
    "structural_tag",
];

/// How many of the likeliest tokens are reported; `None` for no report.
fn top_logprobs(fields: Fields<'_>, kind: Kind) -> Result<Option<usize>> {
    let n_probs = fields.count("n_probs", 0..=TOP_MAX)?.filter(|&n| n > 0);
    let of_route = match kind {
        Kind::Native => None,
        Kind::Completion => match fields.value("logprobs") {
            Some(Value::Bool(wanted)) => wanted.then_some(0),
            _ => fields.count("logprobs", 0..=TOP_MAX)?,
        },
        Kind::Chat => {
            let top = fields.count("top_logprobs", 0..=TOP_MAX)?;
            match fields.bool("logprobs")? {
                Some(true) => Some(top.unwrap_or(0)),
                _ if top.is_some_and(|n| n > 0) => {
                    return Err(ApiError::field("top_logprobs", "needs logprobs: true"));
                }
                _ => None,
            }
        }
    };
    Ok(of_route.or(n_probs))
}

fn n_predict(fields: Fields<'_>, defaults: &Defaults) -> Result<Option<usize>> {
    let names = ["max_completion_tokens", "max_tokens", "n_predict"];
    let name = fields.first(&names).unwrap_or(names[1]);
    let asked = fields.int(name, -1..=1 << 30)?;
    match asked {
        Some(n) => Ok(usize::try_from(n).ok()),
        // As in llama-server: OpenAI's own default for completions is 16.
        None => Ok(defaults.n_predict),
    }
}

/// The grammar that the answer has to keep to. It is never left out silently.
fn grammar(fields: Fields<'_>) -> Result<Option<(&'static str, GrammarSource)>> {
    let gbnf = fields.str("grammar")?.filter(|text| !text.is_empty());
    let gbnf = gbnf.map(|text| ("grammar", GrammarSource::Gbnf(text.to_owned())));
    let schema = match fields.value("json_schema") {
        // A boolean is a schema, too.
        Some(schema @ (Value::Object(_) | Value::Bool(_))) => {
            Some(("json_schema", GrammarSource::JsonSchema(schema.to_string())))
        }
        None => None,
        Some(other) => {
            return Err(wrong(
                "json_schema",
                other,
                "a JSON schema, which is an object",
            ));
        }
    };
    let format = response_format(fields)?;
    let format = format.map(|source| ("response_format", source));
    let mut all = [gbnf, schema, format].into_iter().flatten();
    let first = all.next();
    if let (Some((first, _)), Some((second, _))) = (&first, all.next()) {
        let what = format!("cannot be combined with {first}");
        return Err(ApiError::field(second, what));
    }
    Ok(first)
}

/// What `response_format` asks for.
fn response_format(fields: Fields<'_>) -> Result<Option<GrammarSource>> {
    let Some(format) = fields.object("response_format")? else {
        return Ok(None);
    };
    let schema_of = |value: Option<&Value>, field: &str| match value {
        Some(schema @ (Value::Object(_) | Value::Bool(_))) => {
            Ok(Some(GrammarSource::JsonSchema(schema.to_string())))
        }
        Some(other) => Err(wrong(field, other, "a JSON schema, which is an object")),
        None => Err(ApiError::field(field, "is missing")),
    };
    match format.value("type").and_then(Value::as_str) {
        Some("text") => Ok(None),
        Some("json_object") => match format.value("schema") {
            None => schema_of(Some(&json!({"type": "object"})), ""),
            schema => schema_of(schema, "response_format.schema"),
        },
        Some("json_schema") => {
            // OpenAI wraps the schema once more; llama-server takes it without, too.
            let wrapped = format.object("json_schema")?;
            let schema = match wrapped {
                Some(wrapped) => wrapped.value("schema"),
                None => format.value("schema"),
            };
            schema_of(schema, "response_format.json_schema.schema")
        }
        Some("structural_tag") => structural::grammar(format).map(Some),
        _ => {
            let given = shown(format.value("type").unwrap_or(&Value::Null));
            let what =
                format!("{given} is not one of text, json_object, json_schema, structural_tag");
            Err(ApiError::field("response_format.type", what))
        }
    }
}

/// Milliseconds; 0 and -1 are no limit.
fn millis(fields: Fields<'_>, name: &str) -> Result<Option<Duration>> {
    let asked = fields.int(name, -1..=MILLIS_MAX)?;
    let asked = asked.and_then(|n| u64::try_from(n).ok()).filter(|&n| n > 0);
    Ok(asked.map(Duration::from_millis))
}

fn salt(fields: Fields<'_>) -> Result<Arc<str>> {
    let salt = fields.str("cache_salt")?.unwrap_or_default();
    if salt.len() > SALT_BYTES_MAX {
        let what = format!("may have {SALT_BYTES_MAX} bytes");
        return Err(ApiError::field("cache_salt", what));
    }
    Ok(salt.into())
}

/// -1 is any.
fn slot(fields: Fields<'_>, loaded: &Loaded) -> Result<Option<u32>> {
    let most = i64::try_from(loaded.n_seq()).unwrap_or(i64::MAX) - 1;
    let asked = fields.int("id_slot", -1..=most)?;
    Ok(asked.and_then(|slot| u32::try_from(slot).ok()))
}

/// -1 is the whole prompt.
fn keep(fields: Fields<'_>) -> Result<usize> {
    let asked = fields.int("n_keep", -1..=1 << 30)?.unwrap_or(0);
    Ok(usize::try_from(asked).unwrap_or(usize::MAX))
}

/// Choices of a prompt.
const N_MAX: usize = 128;
pub(crate) const TOP_MAX: usize = 1000;
const SALT_BYTES_MAX: usize = 1024;
/// A day.
const MILLIS_MAX: i64 = 86_400_000;

#[cfg(test)]
mod tests {
    use super::*;

    fn of(body: &Value) -> Fields<'_> {
        Fields::of_body(body).unwrap()
    }

    fn param<T: core::fmt::Debug>(result: Result<T>) -> String {
        let value = result.expect_err("it is wrong").to_value();
        value["error"]["param"].as_str().unwrap().to_owned()
    }

    #[test]
    fn response_formats_become_schemas() {
        let schema = json!({"type": "integer"});
        for (format, expected) in [
            (json!({"type": "text"}), None),
            (
                json!({"type": "json_object"}),
                Some(json!({"type": "object"})),
            ),
            (
                json!({"type": "json_object", "schema": schema}),
                Some(schema.clone()),
            ),
            (
                json!({"type": "json_schema", "schema": schema}),
                Some(schema.clone()),
            ),
            (
                json!({"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}),
                Some(schema.clone()),
            ),
        ] {
            let body = json!({"response_format": format});
            let expected = expected.map(|schema| GrammarSource::JsonSchema(schema.to_string()));
            let found = grammar(of(&body)).unwrap().map(|(_, source)| source);
            assert_eq!(found, expected, "{format}");
        }
    }

    #[test]
    fn a_format_is_never_given_up_silently() {
        for (body, field) in [
            (
                json!({"response_format": {"type": "xml"}}),
                "response_format.type",
            ),
            (
                json!({"response_format": {"type": "json_schema", "json_schema": {"name": "x"}}}),
                "response_format.json_schema.schema",
            ),
            (json!({"json_schema": "x"}), "json_schema"),
            (
                json!({"json_schema": {}, "grammar": "root ::= \"a\""}),
                "json_schema",
            ),
        ] {
            assert_eq!(param(grammar(of(&body))), field);
        }
        let body = json!({"guided_json": {"type": "object"}});
        assert_eq!(param(refuse(of(&body))), "guided_json");
        let body = json!({"best_of": 2});
        assert_eq!(param(refuse(of(&body))), "best_of");
    }

    #[test]
    fn each_route_has_its_own_logprobs() {
        let chat = json!({"logprobs": true, "top_logprobs": 3});
        assert_eq!(top_logprobs(of(&chat), Kind::Chat).unwrap(), Some(3));
        let completion = json!({"logprobs": 2});
        assert_eq!(
            top_logprobs(of(&completion), Kind::Completion).unwrap(),
            Some(2)
        );
        let native = json!({"n_probs": 4});
        assert_eq!(top_logprobs(of(&native), Kind::Native).unwrap(), Some(4));
        assert_eq!(top_logprobs(of(&json!({})), Kind::Chat).unwrap(), None);
        let wrong = json!({"top_logprobs": 3});
        assert_eq!(param(top_logprobs(of(&wrong), Kind::Chat)), "top_logprobs");
    }
}
