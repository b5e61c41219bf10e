//! `--prompts`: a file with several prompts, one JSON object per line.

use crate::ui::input;
use anyhow::{Context as _, anyhow, bail};
use clap::{Args, value_parser};
use core::fmt;
use serde_json::{Map, Value};
use std::path::{Path, PathBuf};

/// Which prompts are continued together.
#[derive(Debug, Args)]
pub(crate) struct PromptsArgs {
    /// Continue several prompts from a JSONL file; - is stdin
    ///
    /// Each line is an object such as {"prompt": "…"}, in which "lora", "n_predict" and "stop" may be set as
    /// well. Each result is a JSON line.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["prompt", "file", "prompt_cache", "json",
        "logprobs", "context_shift", "keep", "display_prompt", "no_display_prompt"])]
    pub(super) prompts: Option<PathBuf>,
    /// Set how many of --prompts run at once; -1 is up to 16 [short: -np]
    #[arg(long, value_name = "N", default_value_t = -1, allow_negative_numbers = true,
        value_parser = value_parser!(i64).range(-1..=1024))]
    pub(super) parallel: i64,
}

/// A line of the file. Fields that it lacks are set by the flags.
#[derive(Debug, PartialEq)]
pub(super) struct Prompt {
    /// The line's number, counted from 1.
    pub(super) line: usize,
    pub(super) text: String,
    /// Adapters and their factors; empty for the model alone.
    pub(super) lora: Option<Vec<(PathBuf, f32)>>,
    /// As the flag: -1 is unlimited.
    pub(super) n_predict: Option<i64>,
    pub(super) stop: Option<Vec<String>>,
}

/// The prompts in the file at `path`; `-` is stdin. Empty lines are skipped.
///
/// # Errors
/// The file cannot be read or has no prompts, or a line is malformed; the error names the line.
pub(super) fn read(path: &Path) -> anyhow::Result<Vec<Prompt>> {
    let text = input::text("prompts file", path)?;
    let name = name(path);
    let lines = (1..).zip(text.lines());
    let lines = lines.filter(|(_, line)| !line.trim().is_empty());
    let prompts = lines
        .map(|(n, line)| parse(n, line).with_context(|| format!("{name}, line {n}")))
        .collect::<anyhow::Result<Vec<_>>>()?;
    if prompts.is_empty() {
        bail!("{name} contains no prompts");
    }
    Ok(prompts)
}

/// The name of the file in errors.
pub(super) fn name(path: &Path) -> String {
    match path == Path::new("-") {
        true => "stdin".to_owned(),
        false => path.display().to_string(),
    }
}

fn parse(line: usize, text: &str) -> anyhow::Result<Prompt> {
    let object = serde_json::from_str::<Value>(text).map_err(|error| {
        let (what, column) = (error.to_string(), error.column());
        let what = what.split(" at line ").next().unwrap_or_default();
        anyhow!("not a JSON object: {what} at column {column}")
    })?;
    let Value::Object(mut fields) = object else {
        bail!("{}, expected an object with \"prompt\"", Shown(&object));
    };
    let Some(prompt) = fields.remove("prompt") else {
        bail!("\"prompt\" is missing");
    };
    let prompt = Prompt {
        line,
        text: string("\"prompt\"", prompt)?,
        lora: fields.remove("lora").map(lora).transpose()?,
        n_predict: fields.remove("n_predict").map(n_predict).transpose()?,
        stop: fields.remove("stop").map(stop).transpose()?,
    };
    check_empty(&fields, "", "prompt, lora, n_predict, stop")?;
    Ok(prompt)
}

/// A path, or a list of adapters with factors.
fn lora(value: Value) -> anyhow::Result<Vec<(PathBuf, f32)>> {
    match value {
        Value::String(path) => Ok(vec![(path.into(), 1.0)]),
        Value::Array(parts) => {
            let parts = parts.into_iter().enumerate();
            parts.map(|(i, part)| lora_part(i, part)).collect()
        }
        other => bail!(
            "\"lora\" is {}, expected a path, or a list of {{\"path\": \"…\", \"scale\": 1.0}}",
            Shown(&other)
        ),
    }
}

fn lora_part(i: usize, value: Value) -> anyhow::Result<(PathBuf, f32)> {
    let name = format!("\"lora\"[{i}]");
    let Value::Object(mut fields) = value else {
        bail!(
            "{name} is {}, expected {{\"path\": \"…\", \"scale\": 1.0}}",
            Shown(&value)
        );
    };
    let Some(path) = fields.remove("path") else {
        bail!("{name} has no \"path\"");
    };
    let path = string(&format!("{name}: \"path\""), path)?;
    let scale = match fields.remove("scale") {
        None => 1.0,
        Some(scale) => {
            #[expect(clippy::cast_possible_truncation, reason = "rounds to the nearest f32")]
            let number = scale.as_f64().map(|scale| scale as f32);
            number.filter(|scale| scale.is_finite()).with_context(|| {
                format!("{name}: \"scale\" is {}, expected a number", Shown(&scale))
            })?
        }
    };
    check_empty(&fields, &format!("{name}: "), "path, scale")?;
    Ok((path.into(), scale))
}

fn n_predict(value: Value) -> anyhow::Result<i64> {
    let number = value.as_i64();
    let number = number.filter(|n| (-1..=i64::from(i32::MAX)).contains(n));
    number.with_context(|| {
        format!(
            "\"n_predict\" is {}, expected an integer of at least -1",
            Shown(&value)
        )
    })
}

fn stop(value: Value) -> anyhow::Result<Vec<String>> {
    let Value::Array(texts) = value else {
        bail!("\"stop\" is {}, expected a list of strings", Shown(&value));
    };
    let texts = texts.into_iter().enumerate();
    texts
        .map(|(i, text)| string(&format!("\"stop\"[{i}]"), text))
        .collect()
}

fn string(name: &str, value: Value) -> anyhow::Result<String> {
    match value {
        Value::String(text) => Ok(text),
        other => bail!("{name} is {}, expected a string", Shown(&other)),
    }
}

/// # Errors
/// A field was not recognised.
fn check_empty(fields: &Map<String, Value>, place: &str, known: &str) -> anyhow::Result<()> {
    match fields.keys().next() {
        None => Ok(()),
        Some(field) => {
            let field = Value::String(field.clone());
            bail!(
                "{place}{}: unknown field, expected one of {known}",
                Shown(&field)
            )
        }
    }
}

/// A value as shown in an error, truncated if it is long.
struct Shown<'v>(&'v Value);

impl fmt::Display for Shown<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = self.0.to_string();
        match text.char_indices().nth(SHOWN_CHARS) {
            None => f.write_str(&text),
            Some((end, _)) => write!(f, "{}…", &text[..end]),
        }
    }
}

const SHOWN_CHARS: usize = 60;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_say_all_or_little() {
        let little = parse(3, r#"{"prompt": "a\nb"}"#).unwrap();
        let expected = Prompt {
            line: 3,
            text: "a\nb".into(),
            lora: None,
            n_predict: None,
            stop: None,
        };
        assert_eq!(little, expected);
        let all = r#"{"stop": ["x", "y"], "n_predict": -1, "prompt": "",
            "lora": [{"path": "a"}, {"scale": -0.5, "path": "b"}]}"#;
        let expected = Prompt {
            line: 1,
            text: String::new(),
            lora: Some(vec![("a".into(), 1.0), ("b".into(), -0.5)]),
            n_predict: Some(-1),
            stop: Some(vec!["x".into(), "y".into()]),
        };
        assert_eq!(parse(1, all).unwrap(), expected);
        let lora = |text| parse(1, text).unwrap().lora;
        let path = lora(r#"{"prompt": "", "lora": "a,b:1"}"#);
        assert_eq!(path, Some(vec![("a,b:1".into(), 1.0)]));
        assert_eq!(lora(r#"{"prompt": "", "lora": []}"#), Some(Vec::new()));
    }

    #[test]
    fn what_is_wrong_is_named() {
        let with = |field: &str| format!(r#"{{"prompt": "x", {field}}}"#);
        let cases = [
            (
                "{".into(),
                "not a JSON object: EOF while parsing an object at column 1",
            ),
            ("[1]".into(), "[1], expected an object with \"prompt\""),
            ("{}".into(), "\"prompt\" is missing"),
            (
                r#"{"prompt": ["x"]}"#.into(),
                "\"prompt\" is [\"x\"], expected a string",
            ),
            (
                with(r#""n": 1"#),
                "\"n\": unknown field, expected one of prompt, lora, n_predict, stop",
            ),
            (
                with(r#""n_predict": 1.5"#),
                "\"n_predict\" is 1.5, expected an integer",
            ),
            (with(r#""n_predict": -2"#), "\"n_predict\" is -2, "),
            (
                with(r#""stop": "x""#),
                "\"stop\" is \"x\", expected a list of strings",
            ),
            (
                with(r#""stop": ["x", null]"#),
                "\"stop\"[1] is null, expected a string",
            ),
            (
                with(r#""lora": 1"#),
                "\"lora\" is 1, expected a path, or a list",
            ),
            (
                with(r#""lora": ["a"]"#),
                "\"lora\"[0] is \"a\", expected {\"path\"",
            ),
            (
                with(r#""lora": [{"scale": 1}]"#),
                "\"lora\"[0] has no \"path\"",
            ),
            (
                with(r#""lora": [{"path": 1}]"#),
                "\"lora\"[0]: \"path\" is 1, expected a string",
            ),
            (
                with(r#""lora": [{"path": "a", "scale": "1"}]"#),
                "\"lora\"[0]: \"scale\" is \"1\", expected a number",
            ),
            (
                with(r#""lora": [{"path": "a", "scale": 1e99}]"#),
                "expected a number",
            ),
            (
                with(r#""lora": [{"path": "a", "x": 1}]"#),
                "\"lora\"[0]: \"x\": unknown field, expected one of path, scale",
            ),
        ];
        for (text, expected) in cases {
            let text: String = text;
            let error = parse(1, &text).unwrap_err().to_string();
            assert!(error.contains(expected), "{text}: {error}");
        }
    }
}
