//! Values of requests that have a form of their own.

use crate::arguments::Argument;
use core::time::Duration;
use pyo3::prelude::*;
use sluice::core::sampler::SamplerOrder;
use sluice_serve::api::{
    AdapterChoice, AdapterName, Bias, Biased, CompletionPrompt, FieldName, PromptPart,
};

/// A time in milliseconds; 0 and -1 mean no limit.
pub(crate) fn millis(x: &Argument<'_>) -> PyResult<Option<Duration>> {
    let n = u64::try_from(x.int(-1..=MILLIS_MAX)?).ok();
    Ok(n.filter(|&n| n > 0).map(Duration::from_millis))
}

/// A list of names, names with semicolons between them, or letters.
pub(crate) fn order(x: &Argument<'_>) -> PyResult<SamplerOrder> {
    let names = x.texts()?.join(";");
    let letters = SamplerOrder::from_letters(&names).ok();
    let letters = letters.filter(|_| x.is_text() && !names.contains(';'));
    letters.map_or_else(
        || SamplerOrder::from_names(&names).map_err(|error| x.refused(error)),
        Ok,
    )
}

/// Biases by token, or by a text whose tokens all get the bias.
pub(crate) fn biases(x: &Argument<'_>) -> PyResult<Vec<Bias>> {
    let bias = |[key, value]: [Argument<'_>; 2]| {
        let number = || key.text().ok()?.parse().ok();
        let of = match (key.is_text(), number()) {
            (true, Some(token)) => Biased::Token(token),
            (true, None) => Biased::Text(key.text()?),
            (false, _) => Biased::Token(key.token()?),
        };
        let bias = match value.is_never() {
            true => f32::NEG_INFINITY,
            false => value.float(-1e30..=1e30)?,
        };
        Ok(Bias { of, bias })
    };
    x.pairs()?.into_iter().map(bias).collect()
}

/// Lists of tokens, none empty.
pub(crate) fn words(x: &Argument<'_>) -> PyResult<Vec<Vec<u32>>> {
    let word = |word: &Argument<'_>| match word.tokens()? {
        tokens if tokens.is_empty() => Err(word.refused("is an empty list")),
        tokens => Ok(tokens),
    };
    let items = x.items("a list of lists of token ids")?;
    items.iter().map(word).collect()
}

/// An adapter as `{id, scale}` or `{name, scale}`.
pub(crate) fn adapter(x: &Argument<'_>) -> PyResult<AdapterChoice> {
    let mut parts = x.arguments()?;
    let adapter = match (parts.get("id")?, parts.get("name")?) {
        (Some(id), None) if !id.is_text() => {
            let id = id.whole().and_then(|id| u64::try_from(id).ok());
            let id = id.ok_or_else(|| x.refused("has no number of an adapter"))?;
            AdapterName::Number(id)
        }
        (Some(name), None) | (None, Some(name)) if name.is_text() => {
            AdapterName::Name(name.text()?)
        }
        _ => return Err(x.refused("needs an id, or a name")),
    };
    let scale = parts.get("scale")?;
    let scale = scale.map(|scale| scale.float(-SCALE_MAX..=SCALE_MAX));
    Ok(AdapterChoice {
        adapter,
        scale: scale.transpose()?.unwrap_or(1.0),
    })
}

/// The prompts of an argument: a text, tokens, a list of both, or a list of these.
pub(crate) fn prompts(
    x: &Argument<'_>,
    names: &mut Vec<FieldName>,
) -> PyResult<Vec<CompletionPrompt>> {
    let plain = x.plain_tokens();
    if plain.as_ref().is_some_and(Vec::is_empty) {
        return Err(x.refused("is an empty list"));
    }
    let items = match x.is_text() || plain.is_some() {
        true => Vec::new(),
        false => x.items("a string or a list of token ids")?,
    };
    let is_list = !items.is_empty() && !items.iter().any(Argument::is_number);
    let ours = if is_list { "prompts" } else { "prompts[0]" };
    names.push(FieldName::new(ours, "prompt"));
    match is_list {
        true if items.len() > PROMPTS_MAX => {
            Err(x.refused(format!("at most {PROMPTS_MAX} are allowed")))
        }
        true => items.iter().map(prompt).collect(),
        false => Ok(vec![prompt(x)?]),
    }
}

fn prompt(x: &Argument<'_>) -> PyResult<CompletionPrompt> {
    if x.is_text() {
        return Ok(CompletionPrompt::text(x.text()?));
    }
    if let Some(tokens) = x.plain_tokens() {
        return Ok(CompletionPrompt::tokens(tokens));
    }
    let mut parts = Vec::new();
    for part in x.items("a string or a list of token ids")? {
        match parts.last_mut() {
            _ if part.is_text() => parts.push(PromptPart::Text(part.text()?)),
            Some(PromptPart::Tokens(tokens)) => tokens.push(part.token()?),
            _ => parts.push(PromptPart::Tokens(vec![part.token()?])),
        }
    }
    Ok(CompletionPrompt::Parts(parts))
}

/// A day.
const MILLIS_MAX: i64 = 86_400_000;
const SCALE_MAX: f32 = 1e6;
const PROMPTS_MAX: usize = 1024;
