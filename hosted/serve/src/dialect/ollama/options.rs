//! The object `options` of a request: sampler settings, and settings with which Ollama loads a model.

use super::super::fields::{Fields, within};
use super::super::sampling;
use crate::api::{ApiError, Generation};
use core::time::Duration;
use serde_json::{Value, json};
use sluice_text::sampling::PARAMETERS;

type Result<T> = core::result::Result<T, ApiError>;

/// Parses `options` of a request for text. Returns the names that nothing here knows.
pub(super) fn read(fields: Fields<'_>, generation: &mut Generation) -> Result<Vec<String>> {
    let Some(options) = fields.object("options")? else {
        return Ok(Vec::new());
    };
    let read = || {
        check(options)?;
        sampling::read(options, generation)?;
        generation.stop = options.texts("stop")?;
        // -1 removes the limit, -2 takes as much as the context has room for, which is the same here.
        if let Some(n) = options.int("num_predict", -2..=1 << 30)? {
            generation.max_tokens = usize::try_from(n).ok();
        }
        // -1 keeps the whole prompt.
        if let Some(n) = options.int("num_keep", -1..=1 << 30)? {
            generation.n_keep = usize::try_from(n).unwrap_or(usize::MAX);
        }
        generation.wants_ctx = options.count("num_ctx", 0..=1 << 30)?;
        Ok(unknown(options))
    };
    read_within(read)
}

fn read_within<T>(read: impl FnOnce() -> Result<T>) -> Result<T> {
    read().map_err(|error| within("options", error))
}

/// The context that a request for vectors counts on, and the names that nothing here knows.
pub(super) fn context(fields: Fields<'_>) -> Result<(Option<usize>, Vec<String>)> {
    let Some(options) = fields.object("options")? else {
        return Ok((None, Vec::new()));
    };
    read_within(|| {
        check(options)?;
        let n_ctx = options.count("num_ctx", 0..=1 << 30)?;
        Ok((n_ctx, unknown(options)))
    })
}

/// The line of the log about options that nothing here knows.
pub(super) fn note(unknown: &[String]) -> Vec<String> {
    match unknown {
        [] => Vec::new(),
        names => vec![format!("options without effect: {}", names.join(", "))],
    }
}

/// Refuses what would change an answer and is not supported.
fn check(options: Fields<'_>) -> Result<()> {
    let is_off = "is not supported, except for 1, which is off";
    options.refuse("tfs_z", &[json!(1), json!(1.0)], is_off)?;
    let always = "false is not supported: penalties apply to all tokens";
    options.refuse("penalize_newline", &[json!(true)], always)?;
    let whole = "is not supported: models are loaded whole";
    options.refuse("vocab_only", &[json!(false)], whole)
}

fn unknown(options: Fields<'_>) -> Vec<String> {
    let is_known = |name: &str| {
        let is_sampler = PARAMETERS
            .iter()
            .any(|known| known.name == name || known.alias == Some(name));
        is_sampler || KNOWN.contains(&name) || WITHOUT_EFFECT.contains(&name)
    };
    let given = options.map().iter().filter(|(_, value)| !value.is_null());
    let names = given.map(|(name, _)| name);
    names.filter(|name| !is_known(name)).cloned().collect()
}

const KNOWN: [&str; 15] = [
    "seed",
    "stop",
    "num_predict",
    "num_keep",
    "num_ctx",
    "tfs_z",
    "penalize_newline",
    "vocab_only",
    "samplers",
    "ignore_eos",
    "dry_sequence_breakers",
    "adaptive_target",
    "logit_bias",
    "allowed_token_ids",
    "adaptive_decay",
];

/// How Ollama loads a model: the server's flags say that here. Drafts never change an answer.
const WITHOUT_EFFECT: [&str; 12] = [
    "num_batch",
    "num_thread",
    "num_gpu",
    "main_gpu",
    "use_mmap",
    "use_mlock",
    "numa",
    "low_vram",
    "f16_kv",
    "logits_all",
    "num_gqa",
    "draft_num_predict",
];

/// Parses `keep_alive`: seconds, or a duration such as `5m`. `None` for the server's own rule, which keeps a model until
/// another one needs its place; a negative time asks for that, too.
pub(super) fn keep_alive(fields: Fields<'_>) -> Result<Option<Duration>> {
    let wrong = || {
        let what = "is not a number of seconds or a duration such as \"5m\"";
        ApiError::field("keep_alive", what)
    };
    let seconds = match fields.value("keep_alive") {
        None => return Ok(None),
        Some(Value::Number(number)) => number.as_f64().ok_or_else(wrong)?,
        Some(Value::String(text)) => seconds_of(text.trim()).ok_or_else(wrong)?,
        Some(_) => return Err(wrong()),
    };
    Ok(match seconds < 0.0 {
        true => None,
        false => Some(Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX)),
    })
}

/// The seconds of a duration as Go writes it, such as `1h30m` or `-1s`; a number alone is one of seconds.
fn seconds_of(text: &str) -> Option<f64> {
    if let Ok(seconds) = text.parse::<f64>() {
        return Some(seconds).filter(|seconds| seconds.is_finite());
    }
    let (sign, mut rest) = match text.strip_prefix('-') {
        Some(rest) => (-1.0, rest),
        None => (1.0, text.strip_prefix('+').unwrap_or(text)),
    };
    if rest.is_empty() {
        return None;
    }
    let mut total = 0.0;
    while !rest.is_empty() {
        let is_number = |c: char| c.is_ascii_digit() || c == '.';
        let (number, after) = rest.split_at(rest.find(|c| !is_number(c))?);
        let end = after.find(is_number).unwrap_or(after.len());
        let (unit, after) = after.split_at(end);
        let (_, scale) = UNITS.iter().find(|(name, _)| *name == unit)?;
        total += number.parse::<f64>().ok()? * scale;
        rest = after;
    }
    Some(sign * total)
}

const UNITS: [(&str, f64); 7] = [
    ("ns", 1e-9),
    ("us", 1e-6),
    ("µs", 1e-6),
    ("ms", 1e-3),
    ("s", 1.0),
    ("m", 60.0),
    ("h", 3600.0),
];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::Defaults;

    fn of(options: &Value) -> Result<(Generation, Vec<String>)> {
        let body = json!({"options": options});
        let mut generation = Generation::new(&Defaults::default());
        let fields = Fields::of_body(&body).unwrap();
        read(fields, &mut generation).map(|unknown| (generation, unknown))
    }

    #[test]
    fn settings_are_the_server_s_unless_they_are_given() {
        let (generation, unknown) = of(&json!({})).unwrap();
        assert_eq!(generation.sampling, Defaults::default().sampling);
        assert!(unknown.is_empty());
        let (generation, unknown) = of(&json!({"temperature": 0.5, "top_k": 3, "num_predict": 9,
            "num_keep": 4, "num_ctx": 8192, "stop": ["a"], "seed": 42, "num_gpu": 1, "wings": 2}))
        .unwrap();
        assert_eq!(generation.sampling.config.top_k, 3);
        assert_eq!((generation.max_tokens, generation.n_keep), (Some(9), 4));
        assert_eq!(
            (generation.wants_ctx, generation.seed),
            (Some(8192), Some(42))
        );
        assert_eq!(
            (generation.stop, unknown),
            (vec!["a".into()], vec!["wings".into()])
        );
        let (generation, _) = of(&json!({"num_predict": -2, "seed": -1})).unwrap();
        assert_eq!((generation.max_tokens, generation.seed), (None, None));
    }

    #[test]
    fn what_is_wrong_is_named() {
        for (options, field) in [
            (json!({"temperature": "hot"}), "options.temperature"),
            (json!({"num_predict": -3}), "options.num_predict"),
            (json!({"stop": [1]}), "options.stop[0]"),
            (json!({"num_ctx": "big"}), "options.num_ctx"),
            (json!({"tfs_z": 0.5}), "options.tfs_z"),
            (
                json!({"penalize_newline": false}),
                "options.penalize_newline",
            ),
            (json!({"vocab_only": true}), "options.vocab_only"),
            (json!(3), "options"),
        ] {
            let error = of(&options).unwrap_err();
            assert_eq!(error.field.as_deref(), Some(field), "{options}");
        }
    }

    #[test]
    fn a_time_is_a_number_or_a_duration() {
        let of = |value: Value| {
            let body = json!({"keep_alive": value});
            keep_alive(Fields::of_body(&body).unwrap())
        };
        for (value, seconds) in [
            (json!(null), None),
            (json!(-1), None),
            (json!("-1m"), None),
            (json!(0), Some(0.0)),
            (json!("0"), Some(0.0)),
            (json!("5m"), Some(300.0)),
            (json!("1h30m10s"), Some(5410.0)),
            (json!("250ms"), Some(0.25)),
            (json!(1.5), Some(1.5)),
        ] {
            let expected = seconds.map(Duration::from_secs_f64);
            assert_eq!(of(value.clone()).unwrap(), expected, "{value}");
        }
        assert_eq!(of(json!(1e300)).unwrap(), Some(Duration::MAX));
        for value in [
            json!("soon"),
            json!(""),
            json!("5 m"),
            json!("nan"),
            json!([5]),
            json!("m"),
            json!("-"),
            json!("+"),
        ] {
            assert!(of(value.clone()).is_err(), "{value}");
        }
    }
}
