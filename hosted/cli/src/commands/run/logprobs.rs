//! Tokens with their log-probabilities as JSON lines, with llama.cpp's field names.

use serde_json::{Value, json};
use sluice::core::sampler::TokenLogProbability;
use sluice::core::tokenizer::Tokenizer;
use sluice::generate::GeneratedToken;

/// The line of a token; empty for text that remains after the last one.
pub(super) fn line(written: &GeneratedToken<'_>, tokenizer: &Tokenizer<'_>) -> Option<String> {
    let report = written.report?;
    let mut line = entry(&report.chosen, tokenizer);
    let top = report.top.iter().map(|other| entry(other, tokenizer));
    line["top_logprobs"] = top.collect();
    Some(format!("{line}\n"))
}

fn entry(token: &TokenLogProbability, tokenizer: &Tokenizer<'_>) -> Value {
    let mut piece = vec![0; tokenizer.piece_len_max()];
    let bytes = tokenizer
        .decode_piece(token.id, &mut piece)
        .unwrap_or_default();
    json!({
        "id": token.id,
        "token": String::from_utf8_lossy(bytes),
        "bytes": bytes,
        // The log-probability of a masked token is minus infinity, which JSON cannot express: null.
        "logprob": token.log_probability,
    })
}
