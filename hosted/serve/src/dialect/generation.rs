//! The generation fields that OpenAI's and llama-server's requests share.

use super::fields::{Fields, set, wrong};
use super::grammar::grammar;
use super::sampling;
use crate::api::{
    AdapterChoice, AdapterName, ApiError, Defaults, FieldName, Generation, ModelChoice, TOP_MAX,
};
use core::time::Duration;
use serde_json::{Value, json};
use sluice_core::sampler::MirostatVersion;

type Result<T> = core::result::Result<T, ApiError>;

/// The names of fields in these APIs.
pub(super) const NAMES: &[FieldName] = &[
    FieldName::new("adapters", "lora"),
    FieldName::new("slot", "id_slot"),
    FieldName::new("stop_tokens", "stop_token_ids"),
    FieldName::new("allowed_tokens", "allowed_token_ids"),
    FieldName::new("continues_last", "continue_final_message"),
];

/// Parses the generation options. Fields that this request names differently are added to `names`.
pub(super) fn generation(
    fields: Fields<'_>,
    defaults: &Defaults,
    names: &mut Vec<FieldName>,
) -> Result<Generation> {
    refuse(fields)?;
    let mut all = Generation::new(defaults);
    set(&mut all.streams, fields.bool("stream")?);
    all.sampling.n_probs = fields.count("n_probs", 0..=TOP_MAX)?.filter(|&n| n > 0);
    if let Some(grammar) = grammar(fields)? {
        names.push(FieldName::new("grammar", grammar.field));
        all.grammar = Some(grammar.source);
    }
    all.deadline = millis(fields, "deadline_ms")?;
    all.context_shift = fields.bool("context_shift")?;
    max_tokens(fields, &mut all)?;
    let n_name = fields.first(&["n", "n_cmpl"]).unwrap_or("n");
    if n_name == "n_cmpl" {
        names.push(FieldName::new("n", "n_cmpl"));
    }
    set(&mut all.n, fields.count(n_name, 0..=1 << 30)?);
    set(
        &mut all.min_tokens,
        fields.count("min_tokens", 0..=1 << 30)?,
    );
    all.stop = fields.texts("stop")?;
    all.stop_tokens = fields.tokens("stop_token_ids")?.unwrap_or_default();
    set(
        &mut all.shows_stop,
        fields.bool("include_stop_str_in_output")?,
    );
    all.shows_special = !fields.bool("skip_special_tokens")?.unwrap_or(true);
    sampling::read(fields, &mut all)?;
    all.sampling.post_sampling = fields.bool(POST_SAMPLING)?.unwrap_or(false);
    if all.sampling.post_sampling && all.sampling.config.mirostat != MirostatVersion::Off {
        return Err(ApiError::field(
            POST_SAMPLING,
            "cannot be combined with mirostat",
        ));
    }
    let priority = fields.int("priority", -1000..=1000)?.unwrap_or(0);
    all.priority = i32::try_from(priority).unwrap_or(0);
    all.predict_for = millis(fields, "t_max_predict_ms")?;
    set(&mut all.uses_cache, fields.bool("cache_prompt")?);
    all.cache_salt = fields.str("cache_salt")?.unwrap_or_default().into();
    // -1 selects any slot.
    let slot = fields.int("id_slot", -1..=i64::from(u32::MAX))?;
    all.slot = slot.and_then(|slot| u32::try_from(slot).ok());
    // -1 keeps the whole prompt.
    let keep = fields.int("n_keep", -1..=1 << 30)?.unwrap_or(0);
    all.n_keep = usize::try_from(keep).unwrap_or(usize::MAX);
    let reports = fields.bool("return_progress")?.unwrap_or(false);
    all.reports_progress = all.streams && reports;
    set(&mut all.times_pieces, fields.bool("timings_per_token")?);
    Ok(all)
}

/// Which chunks of a stream have the usage (`stream_options`).
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct StreamUsage {
    /// A last chunk has that of the whole request.
    pub(super) at_end: bool,
    /// Every chunk has that of its choice so far.
    pub(super) in_chunks: bool,
}

impl StreamUsage {
    pub(super) fn read(fields: Fields<'_>) -> Result<Self> {
        let Some(options) = fields.object("stream_options")? else {
            return Ok(Self::default());
        };
        Ok(Self {
            at_end: options.bool("include_usage")?.unwrap_or(false),
            in_chunks: options.bool("continuous_usage_stats")?.unwrap_or(false),
        })
    }
}

/// The model that a request names, and the adapters that it lists.
pub(super) fn model(fields: Fields<'_>) -> Result<ModelChoice> {
    Ok(ModelChoice {
        name: fields.str("model")?.map(str::to_owned),
        adapters: match fields.value("lora") {
            None => None,
            Some(Value::Array(list)) => {
                let each = list.iter().enumerate();
                Some(
                    each.map(|(i, part)| adapter(i, part))
                        .collect::<Result<_>>()?,
                )
            }
            Some(other) => return Err(wrong("lora", other, "a list of {id, scale}")),
        },
        keep_for: None,
    })
}

/// Parses `{id, scale}`, or `{name, scale}`.
fn adapter(i: usize, part: &Value) -> Result<AdapterChoice> {
    let field = format!("lora[{i}]");
    let fields = match part.is_object() {
        true => Fields::of_body(part)?,
        false => return Err(wrong(&field, part, "an object")),
    };
    let adapter = match (part.get("id"), part.get("name")) {
        (Some(Value::String(name)), None) | (None, Some(Value::String(name))) => {
            AdapterName::Name(name.clone())
        }
        (Some(Value::Number(id)), None) => {
            let what = || ApiError::field(&*field, format!("the model has no adapter {id}"));
            AdapterName::Number(id.as_u64().ok_or_else(what)?)
        }
        (Some(other), None) | (None, Some(other)) => {
            return Err(wrong(&field, other, "an adapter's number or name"));
        }
        _ => return Err(ApiError::field(field, "needs an id or a name")),
    };
    // Servers disagree about what a missing scale means: 0 with llama-server.
    let scale = fields.float("scale", -SCALE_MAX..=SCALE_MAX)?;
    let scale = scale.ok_or_else(|| ApiError::field(format!("{field}.scale"), "is missing"))?;
    Ok(AdapterChoice { adapter, scale })
}

/// Refuses unsupported fields: ignoring them silently would change the answer.
fn refuse(fields: Fields<'_>) -> Result<()> {
    let none = [json!([]), json!(false), json!({}), json!("")];
    let whole = "not supported; a grammar applies to the whole answer";
    for (name, harmless, why) in [
        (
            "best_of",
            &[json!(1)][..],
            "not supported; use n for several choices",
        ),
        ("use_beam_search", &none, "not supported"),
        ("n_indent", &[json!(0)], "not supported"),
        (
            "t_max_prompt_ms",
            &[json!(-1), json!(0)],
            "not supported; use deadline_ms",
        ),
        ("functions", &none, "not supported; use tools"),
        (
            "function_call",
            &[json!("none"), json!("")],
            "not supported; use tool_choice",
        ),
        ("format", &none, "not supported; use response_format"),
        (
            "options",
            &none,
            "not supported; its options are fields of the request here",
        ),
        (
            "structural_tag",
            &none,
            "not supported; use response_format",
        ),
        ("grammar_lazy", &none, whole),
        ("grammar_triggers", &none, whole),
    ] {
        fields.refuse(name, harmless, why)?;
    }
    Ok(())
}

/// Refuses what changes the replies of llama-server's own routes.
pub(super) fn refuse_native(fields: Fields<'_>) -> Result<()> {
    let why = "only supported by /completion and /infill";
    fields.refuse("response_fields", &[json!([])], why)?;
    fields.refuse(POST_SAMPLING, &[json!(false)], why)
}

fn max_tokens(fields: Fields<'_>, all: &mut Generation) -> Result<()> {
    let names = ["max_completion_tokens", "max_tokens", "n_predict"];
    let name = fields.first(&names).unwrap_or(names[1]);
    // As in llama-server: OpenAI's own default for completions is 16.
    if let Some(n) = fields.int(name, -1..=1 << 30)? {
        all.max_tokens = usize::try_from(n).ok();
    }
    Ok(())
}

/// A time in milliseconds; 0 and -1 mean no limit.
fn millis(fields: Fields<'_>, name: &str) -> Result<Option<Duration>> {
    let asked = fields.int(name, -1..=MILLIS_MAX)?;
    let asked = asked.and_then(|n| u64::try_from(n).ok()).filter(|&n| n > 0);
    Ok(asked.map(Duration::from_millis))
}

const POST_SAMPLING: &str = "post_sampling_probs";
/// A day.
const MILLIS_MAX: i64 = 86_400_000;
const SCALE_MAX: f32 = 1e6;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_supported_is_refused() {
        for field in [
            "structural_tag",
            "best_of",
            "functions",
            "function_call",
            "format",
            "options",
        ] {
            let body = json!({field: {"type": "object"}});
            let fields = Fields::of_body(&body).unwrap();
            let read = generation(fields, &Defaults::default(), &mut Vec::new());
            assert_eq!(read.unwrap_err().field.as_deref(), Some(field));
        }
    }

    #[test]
    fn a_request_says_what_its_fields_are_called() {
        let body = json!({"n_cmpl": 2, "json_schema": {}, "max_tokens": -1, "n_keep": -1});
        let (fields, mut names) = (Fields::of_body(&body).unwrap(), Vec::new());
        let all = generation(fields, &Defaults::default(), &mut names).unwrap();
        assert_eq!((all.n, all.max_tokens, all.n_keep), (2, None, usize::MAX));
        let expected = [("grammar", "json_schema"), ("n", "n_cmpl")];
        assert_eq!(
            names,
            expected.map(|(ours, theirs)| FieldName::new(ours, theirs))
        );
    }
}
