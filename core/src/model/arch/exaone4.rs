//! `exaone4`: norms only after attention and feed-forward network, norms of query and key heads. A model with
//! windows rotates queries and keys only in its window layers. Source: llama.cpp, `src/models/exaone4.cpp`.

use super::draft::{Draft, Pattern, RopeLayers};
use super::{Family, Keys, layers};
use crate::model::error::ModelError;
use crate::model::shape::QkNorm;

pub(super) static EXAONE4: Family = Family {
    name: "exaone4",
    layer: layers::POST_NORMS_QK,
    qk_norm: QkNorm::Head,
    keys: &[
        "attention.sliding_window",
        "attention.sliding_window_pattern",
        "rope.freq_base_swa",
    ],
    adjust,
    ..Family::PLAIN
};

fn adjust<'a>(keys: &Keys<'_, 'a>, draft: &mut Draft<'a>) -> Result<(), ModelError> {
    draft.window = keys.size_or("attention.sliding_window", 0)?;
    if draft.window == 0 {
        return Ok(());
    }
    draft.windows = Pattern::read(keys, 4, draft.n_block)?;
    draft.window_rope = super::gemma::window_rope(keys, draft, true)?;
    draft.rope_layers = RopeLayers::Windowed;
    Ok(())
}
