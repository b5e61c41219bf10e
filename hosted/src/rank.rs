//! How well documents answer a query: a model with a head that scores reads both as one text.
#![forbid(unsafe_code)]

use crate::embed::{EmbedOptions, Normalization};
use crate::encode::EncodeError;
use crate::evaluate::EvaluateError;
use crate::head::Heads;
use crate::model::{Model, ModelSource};
use crate::session::{GenerateError, Session};
use sluice_core::gguf::optional;
use sluice_core::head::Head;
use sluice_core::pooling::Pooling;
use sluice_core::tokenizer::EncodeOptions;
use std::sync::Arc;

/// A model's head that scores documents. It keeps none of the model's other weights.
#[derive(Clone, Debug)]
pub struct Ranker(Arc<Heads>);

/// Why documents were not scored.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RankError {
    /// The model has no head that scores.
    #[error("{}", NO_HEAD)]
    NoHead,
    /// The documents could not be read.
    #[error(transparent)]
    Read(#[from] EvaluateError),
}

/// The message for a model without a head.
pub const NO_HEAD: &str =
    "not a reranker: the model has no ranking head (tensors cls.weight, cls.output.weight)";

impl ModelSource {
    /// Whether it has a head that scores documents.
    #[must_use]
    pub fn ranks(&self) -> bool {
        Head::of_ranking(self.gguf(), self.config()).is_ok_and(|head| head.is_some())
    }

    /// The tokens of a query and a document as a reranker reads them: by the file's template for that, else
    /// one after the other, with the marks that the vocabulary puts around and between texts.
    ///
    /// # Errors
    /// [`EncodeError`].
    pub fn rank_prompt(&self, query: &str, document: &str) -> Result<Vec<u32>, EncodeError> {
        let encode = |text: &str, parse_special| {
            let options = EncodeOptions {
                add_special: false,
                parse_special,
            };
            self.encode_with(text, options)
        };
        let template = self.gguf().str("tokenizer.chat_template.rerank");
        if let Ok(Some(template)) = optional(template) {
            return encode(&filled(template, query, document), true);
        }
        let tokenizer = self.tokenizer();
        let sep = tokenizer.special_tokens().sep;
        let end = (tokenizer.asks_for_eos())
            .then(|| tokenizer.eos().or(sep))
            .flatten();
        let mut tokens = Vec::new();
        tokens.extend(tokenizer.bos().filter(|_| tokenizer.adds_bos()));
        tokens.extend(encode(query, false)?);
        tokens.extend(end);
        tokens.extend(tokenizer.separator());
        tokens.extend(encode(document, false)?);
        tokens.extend(end);
        Ok(tokens)
    }
}

/// A template with its two places filled; the texts themselves are left as they are.
fn filled(template: &str, query: &str, document: &str) -> String {
    let (mut text, mut rest) = (String::new(), template);
    let places = [("{query}", query), ("{document}", document)];
    while let Some((at, place, with)) = places
        .iter()
        .filter_map(|(place, with)| Some((rest.find(place)?, place, with)))
        .min_by_key(|(at, ..)| *at)
    {
        text.push_str(&rest[..at]);
        text.push_str(with);
        rest = &rest[at + place.len()..];
    }
    text.push_str(rest);
    text
}

impl Model {
    /// The pooling that the scoring head needs, if there is one.
    #[must_use]
    pub fn rank_pooling(&self) -> Option<Pooling> {
        self.heads().ranking.as_ref()?.pooling()
    }

    /// The scoring head, if there is one.
    #[must_use]
    pub fn ranker(&self) -> Option<Ranker> {
        self.heads().ranking.as_ref()?;
        Some(Ranker(self.heads.clone()))
    }
}

impl Ranker {
    /// The score of a vector that was pooled by [`Model::rank_pooling`]: the higher, the better the document answers. Its
    /// range depends on the model.
    #[must_use]
    pub fn score(&self, pooled: &[f32]) -> Option<f32> {
        let scores = self.0.ranking.as_ref()?.run(pooled);
        scores.first().copied()
    }
}

impl Session {
    /// The score of each document for `query`, in their order.
    ///
    /// # Errors
    /// [`RankError`]: the model is not a reranker; a text is too long, or cannot be made into tokens.
    pub fn rank<T: AsRef<str>>(
        &mut self,
        query: &str,
        documents: &[T],
    ) -> Result<Vec<f32>, RankError> {
        let model = self.model().clone();
        let prompts = documents
            .iter()
            .map(|document| model.rank_prompt(query, document.as_ref()));
        let prompts: Vec<_> = prompts
            .collect::<Result<_, _>>()
            .map_err(|error| EvaluateError::from(GenerateError::from(error)))?;
        self.rank_tokens(&prompts)
    }

    /// The score of each prompt ([`ModelSource::rank_prompt`]), in their order. It does not depend on the others.
    ///
    /// # Errors
    /// As [`Self::rank`].
    pub fn rank_tokens(&mut self, prompts: &[Vec<u32>]) -> Result<Vec<f32>, RankError> {
        let model = self.model().clone();
        let pooling = model.rank_pooling().ok_or(RankError::NoHead)?;
        let ranker = model.ranker().ok_or(RankError::NoHead)?;
        let options = EmbedOptions {
            pooling,
            normalization: Normalization::None,
        };
        let mut scores = Vec::with_capacity(prompts.len());
        self.embed_tokens(prompts, &options, |_, pooled| {
            scores.extend(ranker.score(pooled));
        })?;
        Ok(scores)
    }
}

#[cfg(test)]
mod tests {
    use super::filled;

    #[test]
    fn places_in_texts_are_not_filled() {
        let template = "<q>{query}</q>{document}{query}";
        assert_eq!(
            filled(template, "{document}", "d"),
            "<q>{document}</q>d{document}"
        );
        assert_eq!(filled("none", "q", "d"), "none");
    }
}
