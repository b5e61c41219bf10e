//! Converts the prompts of a request to tokens, and back.

#[cfg(test)]
mod tests;

use crate::api::{ApiError, CompletionPrompt, Infill, PromptPart};
use crate::models::Loaded;
use sluice::Model;
use sluice_core::tokenizer::{Detokenizer, EncodeOptions, Tokenizer};

type Result<T> = core::result::Result<T, ApiError>;

/// The tokens of each prompt, at least one for each.
pub(super) fn tokens_of(prompts: &[CompletionPrompt], loaded: &Loaded) -> Result<Vec<Vec<u32>>> {
    if prompts.is_empty() {
        return Err(ApiError::field("prompts", "is an empty list"));
    }
    let each = prompts.iter().enumerate();
    let each = each.map(|(i, prompt)| match prompt {
        CompletionPrompt::Parts(parts) => begun(&format!("prompts[{i}]"), parts, loaded),
        CompletionPrompt::Infill(infill) => {
            let files = infill.extra.iter().map(|file| &*file.text);
            check_bytes(loaded, files.chain([&*infill.prefix, &infill.suffix]))?;
            filled(infill, loaded.model().tokenizer())
        }
    });
    each.collect()
}

/// Refuses texts that the context cannot hold, before they are tokenized, which takes time.
pub(super) fn check_bytes<'t>(loaded: &Loaded, texts: impl Iterator<Item = &'t str>) -> Result<()> {
    let (n_bytes, n_ctx) = (texts.map(str::len).sum(), loaded.n_ctx());
    let each = loaded.model().tokenizer().text_len_max();
    match each.filter(|&len| n_bytes > n_ctx.saturating_mul(len)) {
        None => Ok(()),
        Some(len) => Err(ApiError::too_long(n_bytes, len, n_ctx)),
    }
}

/// The tokens of a prompt's parts, at least one.
fn begun(field: &str, parts: &[PromptPart], loaded: &Loaded) -> Result<Vec<u32>> {
    let tokenizer = loaded.model().tokenizer();
    let mut all = joined(field, parts, true, loaded)?;
    // Some vocabularies append an end token to texts, which would end the answer before it begins.
    let is_text = matches!(parts, [PromptPart::Text(_)]);
    if is_text && tokenizer.adds_eos() && all.last().copied() == tokenizer.eos() {
        all.pop();
    }
    if all.is_empty() {
        let first = tokenizer.bos().or_else(|| tokenizer.eos());
        all.push(first.ok_or_else(|| ApiError::field(field, "is empty"))?);
    }
    Ok(all)
}

/// The tokens of all parts. The vocabulary's own first and last tokens surround a text at the beginning.
pub(super) fn joined(
    field: &str,
    parts: &[PromptPart],
    parse_special: bool,
    loaded: &Loaded,
) -> Result<Vec<u32>> {
    let texts = parts.iter().filter_map(|part| match part {
        PromptPart::Text(text) => Some(&**text),
        PromptPart::Tokens(_) => None,
    });
    check_bytes(loaded, texts)?;
    let model = loaded.model();
    let mut all = Vec::new();
    let mut n_before = 0;
    for part in parts {
        match part {
            PromptPart::Text(text) => {
                let options = EncodeOptions {
                    add_special: n_before == 0,
                    parse_special,
                };
                all.extend(encode(field, model.tokenizer(), text, options)?);
                n_before += 1;
            }
            PromptPart::Tokens(tokens) => {
                let at = |i| format!("{field}[{}]", n_before + i);
                check_tokens(tokens, model.tokenizer().n_vocab(), &at)?;
                all.extend(tokens);
                n_before += tokens.len();
            }
        }
    }
    Ok(all)
}

/// Checks that all tokens are in the vocabulary; `at` names a token's field.
pub(super) fn check_tokens(
    tokens: &[u32],
    n_vocab: u32,
    at: &dyn Fn(usize) -> String,
) -> Result<()> {
    match tokens.iter().position(|&token| token >= n_vocab) {
        None => Ok(()),
        Some(i) => {
            let last = n_vocab.saturating_sub(1);
            let what = format!("{} is not a token id of this model: 0 to {last}", tokens[i]);
            Err(ApiError::field(at(i), what))
        }
    }
}

/// The prompt for a text between two others, with other files before it: marks, names and order are those of Qwen2.5-Coder's
/// documentation for whole repositories. A request names neither the repository nor the file; llama-server's names stand for
/// them.
fn filled(infill: &Infill, tokenizer: &Tokenizer<'_>) -> Result<Vec<u32>> {
    let special = tokenizer.special_tokens();
    let marks = (special.fim_pre, special.fim_suf, special.fim_mid);
    let (Some(pre), Some(suf), Some(mid)) = marks else {
        let what = "the model has no fill-in-the-middle tokens";
        return Err(ApiError::field("suffix", what));
    };
    let bos = tokenizer.bos().filter(|_| tokenizer.adds_bos());
    // The token that begins texts must come first.
    let mut tokens: Vec<u32> = bos.into_iter().collect();
    let plain = |field: &str, text: &str| encode(field, tokenizer, text, PLAIN);
    let separator = special.fim_sep.filter(|_| !infill.extra.is_empty());
    if let Some(repository) = special.fim_rep.filter(|_| separator.is_some()) {
        tokens.push(repository);
        tokens.extend(plain("extra", "myproject\n")?);
    }
    for (i, file) in infill.extra.iter().enumerate() {
        let (name, text) = (&file.name, &file.text);
        let end = if text.ends_with('\n') { "" } else { "\n" };
        let text = match separator {
            Some(separator) => {
                tokens.push(separator);
                format!("{name}\n{text}{end}")
            }
            None => format!("\n\n--- {name} ---\n{text}"),
        };
        tokens.extend(plain(&format!("extra[{i}]"), &text)?);
    }
    if let Some(separator) = separator {
        tokens.push(separator);
        tokens.extend(plain("extra", "filename\n")?);
    }
    tokens.push(pre);
    tokens.extend(plain("suffix", &infill.prefix)?);
    tokens.push(suf);
    tokens.extend(continued("suffix", &infill.suffix, tokenizer)?);
    tokens.push(mid);
    Ok(tokens)
}

/// A text that continues another one. SentencePiece's models put a space before each text: here it is put before a character
/// that is taken out again, as CodeLlama's own code does it.
fn continued(field: &str, text: &str, tokenizer: &Tokenizer<'_>) -> Result<Vec<u32>> {
    const BEFORE: &str = "☺";
    let plain = encode(field, tokenizer, text, PLAIN)?;
    if text.is_empty() || tokenizer.pre_tokenizer().is_some() {
        return Ok(plain);
    }
    let before = encode(field, tokenizer, BEFORE, PLAIN)?;
    let both = encode(field, tokenizer, &format!("{BEFORE}{text}"), PLAIN)?;
    Ok(both.strip_prefix(&*before).map_or(plain, <[u32]>::to_vec))
}

const PLAIN: EncodeOptions = EncodeOptions {
    add_special: false,
    parse_special: false,
};

fn encode(
    field: &str,
    tokenizer: &Tokenizer<'_>,
    text: &str,
    options: EncodeOptions,
) -> Result<Vec<u32>> {
    let tokens = sluice::encode::encode(tokenizer, text, options);
    tokens.map_err(|error| ApiError::field(field, error.to_string()))
}

/// The text of a prompt.
pub(crate) fn text_of(tokens: &[u32], model: &Model) -> String {
    let tokenizer = model.tokenizer();
    let mut text = String::new();
    let mut detokenizer = Detokenizer::new(tokenizer);
    for &token in tokens {
        // All of them are in the vocabulary.
        let _pushed = detokenizer.push(tokenizer, token, |piece| text.push_str(piece));
    }
    detokenizer.finish(|piece| text.push_str(piece));
    text
}
