//! Converts the requested text to tokens.

use crate::outcome::UsageError;
use crate::ui::output::note;
use anyhow::{Context as _, bail};
use sluice::core::gguf::Gguf;
use sluice::core::tokenizer::{self, Tokenizer};
use sluice::model::ModelSource;

/// `text` with its escapes replaced if `escapes`; errors call it `name`.
///
/// # Errors
/// The escapes do not produce UTF-8.
pub(crate) fn unescaped(name: &str, text: &str, escapes: bool) -> Result<String, UsageError> {
    if !escapes {
        return Ok(text.to_owned());
    }
    String::from_utf8(unescape(text.as_bytes())).map_err(|_| {
        UsageError(format!(
            "the \\x escapes of {name} do not produce UTF-8 (--no-escape uses the text as written)"
        ))
    })
}

/// Replaces `\n`, `\r`, `\t`, `\'`, `\"`, `\\` and `\xHH`; other backslashes are unchanged.
fn unescape(text: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(text.len());
    let mut rest = text;
    while let [first, tail @ ..] = rest {
        let hex = |digit: u8| char::from(digit).to_digit(16);
        let (byte, len) = match rest {
            [b'\\', b'n', ..] => (b'\n', 2),
            [b'\\', b'r', ..] => (b'\r', 2),
            [b'\\', b't', ..] => (b'\t', 2),
            [b'\\', quoted @ (b'\'' | b'"' | b'\\'), ..] => (*quoted, 2),
            [b'\\', b'x', high, low, ..] => match (hex(*high), hex(*low)) {
                (Some(high), Some(low)) => (u8::try_from(16 * high + low).unwrap_or(b'?'), 4),
                _ => (*first, 1),
            },
            _ => (*first, 1),
        };
        out.push(byte);
        rest = &tail[len - 1..];
    }
    out
}

/// The tables of a tokenizer, borrowed by it.
///
/// # Errors
/// The vocabulary is missing or of an unsupported kind.
pub(crate) fn tokenizer_memory(gguf: &Gguf<'_>) -> anyhow::Result<Vec<u32>> {
    let plan = tokenizer::plan(gguf)?;
    Ok(vec![0; plan.words])
}

/// Warns if the text already contains a token that the model adds around it, as llama.cpp does.
pub(crate) fn warn_of_doubles(tokenizer: &Tokenizer<'_>, tokens: &[u32]) {
    let warn = |token: u32, place: &str| {
        let name = String::from_utf8_lossy(tokenizer.piece(token));
        note(format_args!(
            "warning: the text {place} with {name}, which is added anyway, so it is there twice"
        ));
    };
    match (tokens, tokenizer.bos()) {
        ([first, second, ..], Some(bos))
            if tokenizer.adds_bos() && [*first, *second] == [bos; 2] =>
        {
            warn(bos, "begins");
        }
        _ => {}
    }
    match (tokens, tokenizer.eos()) {
        ([.., last_but_one, last], Some(eos))
            if tokenizer.adds_eos() && [*last_but_one, *last] == [eos; 2] =>
        {
            warn(eos, "ends");
        }
        _ => {}
    }
}

/// The tokens of `text`; for an empty text, the beginning-of-sequence token.
///
/// # Errors
/// The vocabulary cannot represent a character, or the text is empty and there is no
/// beginning-of-sequence token.
pub(crate) fn encode(opened: &ModelSource, text: &str) -> anyhow::Result<Vec<u32>> {
    let mut tokens = Vec::new();
    if !text.is_empty() {
        tokens = opened
            .encode(text, true)
            .context("cannot encode the prompt")?;
        warn_of_doubles(opened.tokenizer(), &tokens);
    }
    if tokens.is_empty() {
        let Some(bos) = opened.tokenizer().bos() else {
            bail!("the prompt is empty, and the model has no beginning-of-sequence token");
        };
        tokens.push(bos);
    }
    Ok(tokens)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn escapes_are_those_of_llama_cpp() {
        for (written, meant) in [
            (r"a\nb\t", "a\nb\t"),
            (r#"\'\"\\n"#, "'\"\\n"),
            (r"\x41\xc3\xa4", "A\u{e4}"),
            (r"\q \x4 \xzz \", r"\q \x4 \xzz \"),
            ("", ""),
        ] {
            assert_eq!(unescape(written.as_bytes()), meant.as_bytes(), "{written}");
        }
    }
}
