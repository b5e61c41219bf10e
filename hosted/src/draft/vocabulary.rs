//! Whether two models have the same tokens.

use super::DraftError;
use crate::model::Model;

/// Checks that equal numbers mean equal texts in both; a vocabulary may have additional padding at its end.
pub(super) fn check(draft: &Model, target: &Model) -> Result<(), DraftError> {
    if draft.embeds() {
        return Err(DraftError::Encoder);
    }
    let (a, b) = (draft.tokenizer(), target.tokenizer());
    let (n_a, n_b) = (a.n_vocab(), b.n_vocab());
    if n_a.abs_diff(n_b) > PADDING_MAX {
        let (draft, target) = (n_a as usize, n_b as usize);
        return Err(DraftError::VocabularyLength { draft, target });
    }
    let mut both = 0..n_a.min(n_b);
    let is_other = |token: &u32| {
        a.piece(*token) != b.piece(*token)
            || a.is_end_of_generation(*token) != b.is_end_of_generation(*token)
    };
    match both.find(is_other) {
        Some(token) => Err(DraftError::Vocabulary { token }),
        None => Ok(()),
    }
}

/// Maximum difference in length between vocabularies of a family.
const PADDING_MAX: u32 = 256;
