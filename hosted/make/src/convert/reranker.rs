//! Recognising Qwen3-Reranker, whose folder has a decoder's class.

use super::ConvertError;
use super::tokenizer_json::TokenizerJson;
use sluice_hf::{Config, exists, read_text};
use std::path::Path;

/// Whether a folder holds a reranker.
pub(super) fn is_reranker(folder: &Path, config: &Config) -> Result<bool, ConvertError> {
    let card = folder.join("README.md");
    let card = match exists(&card) {
        true => read_text(&card)?.to_lowercase(),
        false => String::new(),
    };
    let path = folder.canonicalize();
    let path = path.as_deref().unwrap_or(folder);
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let names = [&*name, config.str("_name_or_path").unwrap_or_default()];
    let mut names = names.iter().map(|name| name.to_lowercase());
    let class = config.find(&["architectures"]).map(ToString::to_string);
    Ok(NAMES.iter().any(|name| card.contains(&format!("# {name}")))
        || names.any(|own| NAMES.iter().any(|name| own.contains(name)))
        || class.is_some_and(|class| class.contains("SequenceClassification")))
}

const NAMES: [&str; 2] = ["qwen3-reranker", "qwen3-vl-reranker"];

/// The IDs of the two answers, yes and no.
pub(super) fn answers(json: Option<&TokenizerJson>, n_vocab: u32) -> Result<[u64; 2], String> {
    let json = json.ok_or("a reranker's answers are tokens of tokenizer.json, which is missing")?;
    let id = |text: &str| {
        let own = json
            .model
            .vocab
            .tokens
            .iter()
            .find(|(token, _)| *token == text);
        let mut added = json.added_tokens.iter();
        let added = || {
            added
                .find(|added| added.content == text)
                .map(|added| added.id)
        };
        own.map(|(_, id)| *id).or_else(added)
    };
    match (id("yes"), id("no")) {
        (Some(yes), Some(no)) if yes.max(no) < n_vocab.into() => Ok([yes, no]),
        _ => Err("a reranker answers yes or no, but the vocabulary has no such tokens".into()),
    }
}
