//! How a request wants its tokens chosen: llama.cpp's names, and OpenAI's where they differ.

use super::error::ApiError;
use super::fields::{Fields, shown, token, wrong};
use super::request::Defaults;
use super::stops::tokens;
use core::hash::{BuildHasher as _, Hasher as _};
use serde_json::{Map, Value, json};
use sluice::Model;
use sluice_core::sampler::{LogitBias, MirostatVersion, SamplerConfig, SamplerOrder};
use sluice_core::tokenizer::EncodeOptions;
use sluice_text::sampling::SamplingSettings;

type Result<T> = core::result::Result<T, ApiError>;

/// What `fields` ask for; `defaults` is what the server was started with. `top_logprobs` is how many of the
/// likeliest tokens are recorded, if any are.
pub(crate) fn settings(
    fields: Fields<'_>,
    defaults: &Defaults,
    model: &Model,
    top_logprobs: Option<usize>,
) -> Result<SamplingSettings> {
    let mut settings = defaults.sampling.clone();
    settings.n_probs = top_logprobs;
    let config = &mut settings.config;
    config.seed = seed(fields, defaults.seed)?;
    draw(fields, config)?;
    penalties(fields, config)?;
    others(fields, config)?;
    if let Some(order) = order(fields)? {
        config.order = order;
    }
    if let Some(ignores) = fields.bool("ignore_eos")? {
        settings.ignore_eos = ignores;
    }
    if fields.value("dry_sequence_breakers").is_some() {
        settings.dry_sequence_breakers = fields.texts("dry_sequence_breakers")?;
    }
    settings.biases.extend(biases(fields, model)?);
    settings.biases.extend(not_allowed(fields, model)?);
    Ok(settings)
}

/// Tokens that `allowed_token_ids` leaves out are never chosen; without the field all are allowed.
fn not_allowed(fields: Fields<'_>, model: &Model) -> Result<Vec<LogitBias>> {
    const FIELD: &str = "allowed_token_ids";
    if fields.value(FIELD).is_none() {
        return Ok(Vec::new());
    }
    let n_vocab = model.tokenizer().n_vocab();
    let mut is_allowed = vec![false; n_vocab as usize];
    for id in tokens(fields, FIELD, n_vocab)? {
        is_allowed[id as usize] = true;
    }
    if !is_allowed.contains(&true) {
        return Err(ApiError::field(FIELD, "allows no token"));
    }
    let never = (0..n_vocab).filter(|&id| !is_allowed[id as usize]);
    let bias = f32::NEG_INFINITY;
    Ok(never.map(|id| LogitBias { id, bias }).collect())
}

/// The seed; one is drawn where none is asked for.
fn seed(fields: Fields<'_>, default: Option<u64>) -> Result<u64> {
    let asked = fields.int("seed", -1..=i64::MAX)?;
    Ok(match asked {
        Some(number) if number >= 0 => number.unsigned_abs(),
        // Every RandomState has keys of its own, from the kernel's random numbers.
        None if default.is_some() => default.unwrap_or_default(),
        _ => std::hash::RandomState::new().build_hasher().finish() >> 32,
    })
}

fn draw(fields: Fields<'_>, config: &mut SamplerConfig) -> Result<()> {
    set(
        &mut config.temperature,
        fields.float("temperature", 0.0..=100.0)?,
    );
    set(&mut config.top_p, fields.float("top_p", 0.0..=1.0)?);
    set(&mut config.min_p, fields.float("min_p", 0.0..=1.0)?);
    set(&mut config.typical_p, fields.float("typical_p", 0.0..=1.0)?);
    set(
        &mut config.top_n_sigma,
        fields.float("top_n_sigma", -1.0..=1000.0)?,
    );
    set(
        &mut config.xtc_probability,
        fields.float("xtc_probability", 0.0..=1.0)?,
    );
    set(
        &mut config.xtc_threshold,
        fields.float("xtc_threshold", 0.0..=1.0)?,
    );
    set(
        &mut config.dynatemp_range,
        fields.float("dynatemp_range", 0.0..=100.0)?,
    );
    let exponent = fields.float("dynatemp_exponent", -100.0..=100.0)?;
    set(&mut config.dynatemp_exponent, exponent);
    // 0 and -1 are all of them, as in llama.cpp and vLLM.
    let top_k = fields.int("top_k", -1..=i64::from(u32::MAX))?;
    set(
        &mut config.top_k,
        top_k.map(|k| u32::try_from(k).unwrap_or(0)),
    );
    let min_keep = fields.int("min_keep", 0..=i64::from(u32::MAX))?;
    set(
        &mut config.min_keep,
        min_keep.map(|n| u32::try_from(n).unwrap_or(0)),
    );
    Ok(())
}

fn penalties(fields: Fields<'_>, config: &mut SamplerConfig) -> Result<()> {
    // What one divides by must not be nothing.
    let factor = 0.01..=100.0;
    let name = fields.first(&["repeat_penalty", "repetition_penalty"]);
    set(
        &mut config.repeat_penalty,
        fields.float(name.unwrap_or("repeat_penalty"), factor)?,
    );
    let range = -100.0..=100.0;
    set(
        &mut config.frequency_penalty,
        fields.float("frequency_penalty", range.clone())?,
    );
    set(
        &mut config.presence_penalty,
        fields.float("presence_penalty", range)?,
    );
    set(&mut config.repeat_last_n, last_n(fields, "repeat_last_n")?);
    set(
        &mut config.dry.multiplier,
        fields.float("dry_multiplier", 0.0..=100.0)?,
    );
    set(&mut config.dry.base, fields.float("dry_base", 1.0..=100.0)?);
    let allowed = fields.int("dry_allowed_length", 0..=i64::from(u32::MAX))?;
    set(
        &mut config.dry.allowed_length,
        allowed.map(|n| u32::try_from(n).unwrap_or(0)),
    );
    set(
        &mut config.dry.penalty_last_n,
        last_n(fields, "dry_penalty_last_n")?,
    );
    Ok(())
}

/// 0 is none, -1 all.
fn last_n(fields: Fields<'_>, name: &str) -> Result<Option<u32>> {
    let asked = fields.int(name, -1..=i64::from(u32::MAX))?;
    Ok(asked.map(|n| u32::try_from(n).unwrap_or(u32::MAX)))
}

fn others(fields: Fields<'_>, config: &mut SamplerConfig) -> Result<()> {
    let mirostat = fields.int("mirostat", 0..=2)?;
    let version = mirostat.map(|version| match version {
        0 => MirostatVersion::Off,
        1 => MirostatVersion::V1,
        _ => MirostatVersion::V2,
    });
    set(&mut config.mirostat, version);
    set(
        &mut config.mirostat_tau,
        fields.float("mirostat_tau", 0.0..=1000.0)?,
    );
    set(
        &mut config.mirostat_eta,
        fields.float("mirostat_eta", 0.0..=100.0)?,
    );
    let why = "adaptive sampling is not supported";
    fields.refuse("adaptive_target", &[json!(-1), json!(-1.0)], why)
}

fn set<T>(field: &mut T, value: Option<T>) {
    if let Some(value) = value {
        *field = value;
    }
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
        Some(other) => Err(wrong("samplers", other, "a list of names, or a text")),
    }
}

/// OpenAI's `{"15043": -100}`, and llama.cpp's `[[15043, 1.0], ["Hello", false]]`.
fn biases(fields: Fields<'_>, model: &Model) -> Result<Vec<LogitBias>> {
    let mut biases = Vec::new();
    match fields.value("logit_bias") {
        None => {}
        Some(Value::Object(map)) => {
            for (key, value) in map {
                let id = key.parse().map_or_else(|_| json!(key), |id: u64| json!(id));
                bias_of(&id, value, model, &mut biases)?;
            }
        }
        Some(Value::Array(list)) => {
            for entry in list {
                match entry.as_array().map(Vec::as_slice) {
                    Some([key, value]) => bias_of(key, value, model, &mut biases)?,
                    _ => {
                        let what = format!("{} is not [token, bias]", shown(entry));
                        return Err(ApiError::field("logit_bias", what));
                    }
                }
            }
        }
        Some(other) => return Err(wrong("logit_bias", other, "an object or a list")),
    }
    Ok(biases)
}

/// `key` is a token, or a text of which every token gets the bias.
fn bias_of(key: &Value, value: &Value, model: &Model, to: &mut Vec<LogitBias>) -> Result<()> {
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
    let ids = match key {
        Value::String(text) => {
            let options = EncodeOptions {
                add_special: false,
                parse_special: true,
            };
            let tokens = model.encode_with(text, options);
            tokens.map_err(|error| ApiError::field(FIELD, error.to_string()))?
        }
        key => vec![token(FIELD, key, model.tokenizer().n_vocab())?],
    };
    to.extend(ids.into_iter().map(|id| LogitBias { id, bias }));
    Ok(())
}

/// The settings as llama-server shows them, under its names.
pub(crate) fn shown_settings(settings: &SamplingSettings) -> Map<String, Value> {
    let config = &settings.config;
    let names: Vec<_> = config
        .order
        .as_slice()
        .iter()
        .map(|kind| kind.name())
        .collect();
    let mirostat = match config.mirostat {
        MirostatVersion::Off => 0,
        MirostatVersion::V1 => 1,
        MirostatVersion::V2 => 2,
    };
    let last_n = |n: u32| if n == u32::MAX { -1 } else { i64::from(n) };
    let biases = settings.biases.iter();
    let biases = biases.map(|bias| json!({"token": bias.id, "bias": bias.bias}));
    let value = json!({
        "seed": config.seed,
        "temperature": config.temperature,
        "dynatemp_range": config.dynatemp_range,
        "dynatemp_exponent": config.dynatemp_exponent,
        "top_k": config.top_k,
        "top_p": config.top_p,
        "min_p": config.min_p,
        "top_n_sigma": config.top_n_sigma,
        "xtc_probability": config.xtc_probability,
        "xtc_threshold": config.xtc_threshold,
        "typical_p": config.typical_p,
        "repeat_last_n": last_n(config.repeat_last_n),
        "repeat_penalty": config.repeat_penalty,
        "presence_penalty": config.presence_penalty,
        "frequency_penalty": config.frequency_penalty,
        "dry_multiplier": config.dry.multiplier,
        "dry_base": config.dry.base,
        "dry_allowed_length": config.dry.allowed_length,
        "dry_penalty_last_n": last_n(config.dry.penalty_last_n),
        "dry_sequence_breakers": settings.dry_sequence_breakers,
        "mirostat": mirostat,
        "mirostat_tau": config.mirostat_tau,
        "mirostat_eta": config.mirostat_eta,
        "min_keep": config.min_keep,
        "ignore_eos": settings.ignore_eos,
        "n_probs": settings.n_probs.unwrap_or(0),
        "samplers": names,
        "logit_bias": biases.collect::<Vec<_>>(),
    });
    match value {
        Value::Object(map) => map,
        _ => Map::new(),
    }
}
