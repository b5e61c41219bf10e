//! `olmo2` (OLMo 2, and OLMo 3 with windows): norms only after attention and feed-forward network, norms over whole
//! queries and keys. In layers with a window the rotation is not scaled. Source: llama.cpp, `src/models/olmo2.cpp`.

use super::draft::{Draft, Pattern};
use super::{Family, Keys, layers};
use crate::model::error::ModelError;
use crate::model::rope::RopeConfig;
use crate::model::shape::QkNorm;

pub(super) static OLMO2: Family = Family {
    name: "olmo2",
    layer: layers::POST_NORMS_QK,
    qk_norm: QkNorm::Row,
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
    let ropes = &mut draft.config.ropes;
    let rope = RopeConfig {
        freq_base: keys.f32_or("rope.freq_base_swa", ropes[0].freq_base)?,
        is_scaled: false,
        ..ropes[0]
    };
    ropes
        .push(rope)
        .unwrap_or_else(|_| unreachable!("there is room for two"));
    draft.window_rope = Some(1);
    Ok(())
}
