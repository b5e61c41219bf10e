//! Qwen3-Reranker: a decoder that is asked whether a document answers a query, and says yes or no.
//!
//! Its folder has a decoder's class, so it is recognised by its name or model card. In a GGUF file the output rows of
//! the two answers form a separate head.

use super::super::ConvertError;
use super::super::config::Config;
use super::super::folder::{exists, read_text};
use super::super::tokenizer_json::TokenizerJson;
use super::parts::Model;
use super::wanted::{Change, Slice, Wanted, one};
use sluice::file::{GgufHeader, MetaValue};
use std::path::Path;

/// Whether a folder holds a reranker.
pub(in crate::convert) fn is_reranker(
    folder: &Path,
    config: &Config,
) -> Result<bool, ConvertError> {
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
    Ok(card.contains("# qwen3-reranker")
        || names.any(|name| name.contains("qwen3-reranker"))
        || class.is_some_and(|class| class.contains("SequenceClassification")))
}

/// The IDs of the two answers, yes and no.
pub(in crate::convert) fn answers(
    json: Option<&TokenizerJson>,
    n_vocab: u32,
) -> Result<[u64; 2], String> {
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

/// The head, made from rows of the output matrix.
pub(super) fn head(model: &Model<'_>, [yes, no]: [u64; 2]) -> Wanted {
    let shape = model.shape;
    let (n_embd, n_vocab) = (u64::from(shape.n_embd), u64::from(shape.n_vocab));
    let source = match shape.is_tied {
        true => "model.embed_tokens.weight",
        false => "lm_head.weight",
    };
    let mut head = one("cls.output.weight", source, &[2, n_embd]);
    head.source = vec![n_vocab, n_embd];
    head.change = Change::Rows(vec![Slice::run(yes, 1), Slice::run(no, 1)]);
    head
}

/// Writes the prompt for a query and a document that its authors recommend.
pub(super) fn write(header: &mut GgufHeader, architecture: &str) {
    const RANK: u32 = 4;
    header.set(&format!("{architecture}.pooling_type"), RANK);
    let labels = MetaValue::strings(&["yes", "no"].map(str::to_owned));
    header.set(&format!("{architecture}.classifier.output_labels"), labels);
    let names = MetaValue::strings(&["rerank".to_owned()]);
    header.set("tokenizer.chat_template.rerank", TEMPLATE);
    header.set("tokenizer.chat_templates", names);
}

const TEMPLATE: &str = concat!(
    "<|im_start|>system\nJudge whether the Document meets the requirements based on the Query and the Instruct ",
    "provided. Note that the answer can only be \"yes\" or \"no\".<|im_end|>\n",
    "<|im_start|>user\n<Instruct>: Given a web search query, retrieve relevant passages that answer the query\n",
    "<Query>: {query}\n<Document>: {document}<|im_end|>\n",
    "<|im_start|>assistant\n<think>\n\n</think>\n\n",
);
