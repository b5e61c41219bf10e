//! Sampling parameters of requests, under llama.cpp's names and, where they differ, also OpenAI's.

use super::fields::{Fields, set, shown, token, wrong};
use crate::api::{ApiError, Bias, Biased, Generation};
use serde_json::{Map, Value, json};
use sluice_core::sampler::{SamplerConfig, SamplerOrder};
use sluice_text::sampling::{PARAMETERS, SamplingSettings, Setting, decimal};

type Result<T> = core::result::Result<T, ApiError>;

/// Parses the sampling parameters in `fields`.
pub(super) fn read(fields: Fields<'_>, all: &mut Generation) -> Result<()> {
    if let Some(seed) = fields.int("seed", -1..=i64::MAX)? {
        // -1 draws a random seed.
        all.seed = u64::try_from(seed).ok();
    }
    let settings = &mut all.sampling;
    let config = &mut settings.config;
    numbers(fields, config)?;
    set(&mut config.order, order(fields)?);
    set(&mut settings.ignore_eos, fields.bool("ignore_eos")?);
    if fields.value("dry_sequence_breakers").is_some() {
        settings.dry_sequence_breakers = fields.texts("dry_sequence_breakers")?;
    }
    let why = "adaptive sampling is not supported";
    fields.refuse("adaptive_target", &[json!(-1), json!(-1.0)], why)?;
    all.logit_bias = biases(fields)?;
    all.allowed_tokens = fields.tokens("allowed_token_ids")?;
    Ok(())
}

fn numbers(fields: Fields<'_>, config: &mut SamplerConfig) -> Result<()> {
    for parameter in &PARAMETERS {
        let names = [parameter.name, parameter.alias.unwrap_or(parameter.name)];
        let name = fields.first(&names).unwrap_or(parameter.name);
        match &parameter.setting {
            Setting::Float(place) => {
                if let Some(x) = fields.float(name, place.range.clone())? {
                    (place.set)(config, x);
                }
            }
            Setting::Int(place) => {
                if let Some(n) = fields.int(name, place.range.clone())? {
                    (place.set)(config, n);
                }
            }
        }
    }
    Ok(())
}

/// `["top_k", "temperature"]`, `"top_k;temperature"`, or letters: `"kt"`.
fn order(fields: Fields<'_>) -> Result<Option<SamplerOrder>> {
    let named = |names: &str| {
        SamplerOrder::from_names(names).map_err(|e| ApiError::field("samplers", e.to_string()))
    };
    match fields.value("samplers") {
        None => Ok(None),
        Some(Value::Array(_)) => Ok(Some(named(&fields.texts("samplers")?.join(";"))?)),
        Some(Value::String(text)) => match SamplerOrder::from_letters(text) {
            Ok(order) if !text.contains(';') => Ok(Some(order)),
            _ => Ok(Some(named(text)?)),
        },
        Some(other) => Err(wrong("samplers", other, "a list of names or a string")),
    }
}

/// OpenAI's `{"15043": -100}`, and llama.cpp's `[[15043, 1.0], ["Hello", false]]`.
fn biases(fields: Fields<'_>) -> Result<Vec<Bias>> {
    match fields.value("logit_bias") {
        None => Ok(Vec::new()),
        Some(Value::Object(map)) => {
            let each = map.iter().map(|(key, value)| {
                let id = key.parse().map_or_else(|_| json!(key), |id: u64| json!(id));
                bias_of(&id, value)
            });
            each.collect()
        }
        Some(Value::Array(list)) => {
            let each = list
                .iter()
                .map(|entry| match entry.as_array().map(Vec::as_slice) {
                    Some([key, value]) => bias_of(key, value),
                    _ => {
                        let what = format!("{} is not [token, bias]", shown(entry));
                        Err(ApiError::field("logit_bias", what))
                    }
                });
            each.collect()
        }
        Some(other) => Err(wrong("logit_bias", other, "an object or a list")),
    }
}

/// A bias for `key`: a token, or a text whose tokens all get the bias.
fn bias_of(key: &Value, value: &Value) -> Result<Bias> {
    const FIELD: &str = "logit_bias";
    let bias = match value {
        Value::Bool(false) => f32::NEG_INFINITY,
        value => {
            let number = value.as_f64().filter(|bias| bias.abs() <= 1e30);
            let number = number.ok_or_else(|| wrong(FIELD, value, "a number or false"))?;
            #[expect(clippy::cast_possible_truncation, reason = "rounds to the nearest f32")]
            let number = number as f32;
            number
        }
    };
    let of = match key {
        Value::String(text) => Biased::Text(text.clone()),
        key => Biased::Token(token(FIELD, key)?),
    };
    Ok(Bias { of, bias })
}

/// The settings as llama-server shows them, under its names.
pub(super) fn shown_settings(settings: &SamplingSettings) -> Map<String, Value> {
    let config = &settings.config;
    let mut map = Map::new();
    map.insert("seed".into(), config.seed.into());
    for parameter in &PARAMETERS {
        if parameter.name == "mirostat" {
            let breakers = json!(settings.dry_sequence_breakers);
            map.insert("dry_sequence_breakers".into(), breakers);
        }
        let value = match &parameter.setting {
            Setting::Float(place) => json!(decimal((place.get)(config))),
            Setting::Int(place) => json!((place.get)(config)),
        };
        map.insert(parameter.name.into(), value);
    }
    // Adaptive sampling is off, with llama-server's defaults.
    map.insert("adaptive_target".into(), json!(-1.0));
    map.insert("adaptive_decay".into(), json!(0.9));
    map.insert("ignore_eos".into(), settings.ignore_eos.into());
    map.insert("n_probs".into(), settings.n_probs.unwrap_or(0).into());
    let names = config.order.as_slice().iter().map(|kind| kind.name());
    map.insert("samplers".into(), names.collect());
    let biases = settings.biases.iter();
    let biases = biases.map(|bias| json!({"token": bias.id, "bias": decimal(bias.bias)}));
    map.insert("logit_bias".into(), biases.collect());
    map
}
