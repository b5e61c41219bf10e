//! Heads that predict one more token: the first block after a model's layers (`nextn`, multi-token prediction),
//! as a model of its own.
//!
//! ```text
//! x      = eh_proj · [ norm(embedding of the token, enorm) ; norm(the trunk's hidden state before it, hnorm) ]
//! hidden = norm(layer(x), shared_head_norm or the trunk's)      in the place of the trunk's, for a token more
//! logits = shared_head_head or the trunk's output layer · hidden
//! ```
//!
//! The layer is an attention layer of the family. Sources: DeepSeek-AI 2024, arXiv 2412.19437; llama.cpp,
//! `src/models/qwen35.cpp`, `glm4-moe.cpp`, `deepseek2.cpp`.

use super::draft::Draft;
use super::read::kinds_of;
use crate::gguf::Gguf;
use crate::model::config::{LAYERS_MAX, ModelConfig, NextToken};
use crate::model::error::{ModelError, Name};

/// A tensor that only heads have, `blk.N.nextn.NAME`.
#[derive(Clone, Copy, Debug)]
pub(in crate::model) enum NextTokenName {
    /// (n_embd, 2 * n_embd)
    Proj,
    /// (n_embd)
    EmbeddingNorm,
    /// (n_embd)
    HiddenNorm,
    /// (n_vocab, n_embd), optional.
    Embedding,
    /// (n_vocab, n_embd), optional.
    Output,
    /// (n_embd), optional.
    OutputNorm,
}

impl NextTokenName {
    /// The name in block `block`, without `.weight`.
    pub(in crate::model) fn stem(self, block: usize) -> Name {
        let part = match self {
            Self::Proj => "eh_proj",
            Self::EmbeddingNorm => "enorm",
            Self::HiddenNorm => "hnorm",
            Self::Embedding => "embed_tokens",
            Self::Output => "shared_head_head",
            Self::OutputNorm => "shared_head_norm",
        };
        Name::format(format_args!("blk.{block}.nextn.{part}"))
    }

    /// The name in block `block`.
    pub(in crate::model) fn weight(self, block: usize) -> Name {
        Name::format(format_args!("{}.weight", self.stem(block).as_str()))
    }

    /// Whether the products of that part of a block (`nextn.NAME`) may have a factor.
    pub(in crate::model) fn has_factor(part: &str) -> bool {
        matches!(part, "nextn.eh_proj" | "nextn.shared_head_head")
    }
}

impl ModelConfig {
    /// The description of the head after the layers of the model in `gguf`, which predicts one more token and is a
    /// model of one layer; `None` if the file has no head. If there are several, the first.
    ///
    /// # Errors
    /// As [`Self::from_gguf`], and for a head of an architecture whose heads are not supported.
    pub fn next_token_head(gguf: &Gguf<'_>) -> Result<Option<Self>, ModelError> {
        let (family, draft) = Draft::of(gguf)?;
        let block = draft.n_layer;
        let has = |name: NextTokenName| gguf.tensor(name.weight(block).as_str()).is_some();
        // Files may have the key without the tensors.
        if draft.n_block <= block || !has(NextTokenName::Proj) {
            return Ok(None);
        }
        if !family.has_next_token || block >= LAYERS_MAX {
            return Err(ModelError::NotImplemented {
                what: "a head that predicts further tokens in this architecture",
                name: NextTokenName::Proj.weight(block),
            });
        }
        let head = NextToken {
            block,
            has_embedding: has(NextTokenName::Embedding),
            has_output: has(NextTokenName::Output),
            has_output_norm: has(NextTokenName::OutputNorm),
        };
        let mut config = draft.finish_block(block)?;
        if head.has_output {
            let own = NextTokenName::Output.weight(block);
            config.output_activations = kinds_of(gguf, own.as_str());
        }
        config.tied_output &= !head.has_embedding && !head.has_output;
        config.next_token = Some(head);
        config.check()?;
        Ok(Some(config))
    }
}
