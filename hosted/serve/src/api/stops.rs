//! What ends a text, besides its model.

use super::error::ApiError;
use super::fields::{Fields, token, wrong};
use crate::engine::Stops;
use serde_json::Value;
use sluice::Model;

type Result<T> = core::result::Result<T, ApiError>;

/// What ends a text of at most `n_predict` tokens.
pub(super) fn stops(fields: Fields<'_>, model: &Model, n_predict: Option<usize>) -> Result<Stops> {
    let n_min = fields.count("min_tokens", 0..=1 << 30)?.unwrap_or(0);
    if let Some(most) = n_predict.filter(|&most| most < n_min) {
        let what = format!("{n_min} tokens, and max_tokens allows {most}");
        return Err(ApiError::field("min_tokens", what));
    }
    Ok(Stops {
        texts: stop_texts(fields)?,
        tokens: stop_tokens(fields, model)?,
        are_shown: fields.bool("include_stop_str_in_output")?.unwrap_or(false),
        n_min,
    })
}

/// A list of tokens; none where there is none.
pub(super) fn tokens(fields: Fields<'_>, name: &str, n_vocab: u32) -> Result<Vec<u32>> {
    match fields.value(name) {
        None => Ok(Vec::new()),
        Some(Value::Array(list)) => {
            let each = list.iter().enumerate();
            each.map(|(i, value)| token(&format!("{name}[{i}]"), value, n_vocab))
                .collect()
        }
        Some(other) => Err(wrong(name, other, "a list of tokens")),
    }
}

fn stop_tokens(fields: Fields<'_>, model: &Model) -> Result<Vec<u32>> {
    let mut stops = tokens(fields, "stop_token_ids", model.tokenizer().n_vocab())?;
    stops.sort_unstable();
    stops.dedup();
    // The engine looks through them at each token.
    if stops.len() > STOP_TOKENS_MAX {
        let what = format!(
            "{} tokens; at most {STOP_TOKENS_MAX} are allowed",
            stops.len()
        );
        return Err(ApiError::field("stop_token_ids", what));
    }
    Ok(stops)
}

fn stop_texts(fields: Fields<'_>) -> Result<Vec<String>> {
    let mut stops = fields.texts("stop")?;
    if stops.len() > STOPS_MAX {
        let what = format!("{} texts; at most {STOPS_MAX} are allowed", stops.len());
        return Err(ApiError::field("stop", what));
    }
    if stops.iter().any(|stop| stop.len() > STOP_BYTES_MAX) {
        let what = format!("a text may have {STOP_BYTES_MAX} bytes");
        return Err(ApiError::field("stop", what));
    }
    // An empty text would end every answer before it begins; OpenAI's clients send them.
    stops.retain(|stop| !stop.is_empty());
    Ok(stops)
}

const STOPS_MAX: usize = 64;
const STOP_BYTES_MAX: usize = 4096;
const STOP_TOKENS_MAX: usize = 1024;

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn empty_stops_end_nothing() {
        let texts = |body| stop_texts(Fields::of_body(&body).unwrap());
        assert_eq!(texts(json!({"stop": ["", "x"]})).unwrap(), ["x"]);
        assert_eq!(texts(json!({"stop": "y"})).unwrap(), ["y"]);
        let error = texts(json!({"stop": 3})).unwrap_err().to_value();
        assert_eq!(error["error"]["param"], "stop");
    }
}
