//! Qwen3-Reranker: a decoder that is asked whether a document answers a query, and says yes or no.
//!
//! Its folder has a decoder's class, so it is recognised by its name or model card. In a GGUF file the output rows of
//! the two answers form a separate head.

use super::Shape;
use super::description::Description;
use super::wanted::{Change, Slice, Wanted, one};
use crate::HfError;
use sluice::file::MetaValue;

/// The head, made from rows of the output matrix.
pub(super) fn head(shape: &Shape, [yes, no]: [u64; 2]) -> Wanted {
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

/// Writes the prompt for a query and a document that its authors recommend, if the model is a reranker.
pub(super) fn write(out: &mut Description<'_>) -> Result<(), HfError> {
    const RANK: u32 = 4;
    if out.shape.answers.is_none() {
        return Ok(());
    }
    out.set("pooling_type", RANK);
    let labels = MetaValue::strings(&["yes", "no"].map(str::to_owned));
    out.set("classifier.output_labels", labels);
    let names = MetaValue::strings(&["rerank".to_owned()]);
    let template = match out.family.architecture {
        "qwen3vl" => VISION_TEMPLATE,
        _ => TEMPLATE,
    };
    out.header.set("tokenizer.chat_template.rerank", template);
    out.header.set("tokenizer.chat_templates", names);
    Ok(())
}

/// The vision model has another instruction, and does not think.
const VISION_TEMPLATE: &str = concat!(
    "<|im_start|>system\nJudge whether the Document meets the requirements based on the Query and the Instruct ",
    "provided. Note that the answer can only be \"yes\" or \"no\".<|im_end|>\n",
    "<|im_start|>user\n<Instruct>: Given a search query, retrieve relevant candidates that answer the query.",
    "<Query>:{query}\n<Document>:{document}<|im_end|>\n",
    "<|im_start|>assistant\n",
);

const TEMPLATE: &str = concat!(
    "<|im_start|>system\nJudge whether the Document meets the requirements based on the Query and the Instruct ",
    "provided. Note that the answer can only be \"yes\" or \"no\".<|im_end|>\n",
    "<|im_start|>user\n<Instruct>: Given a web search query, retrieve relevant passages that answer the query\n",
    "<Query>: {query}\n<Document>: {document}<|im_end|>\n",
    "<|im_start|>assistant\n<think>\n\n</think>\n\n",
);
