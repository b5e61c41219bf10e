//! MiniCPM 1 and 2, and MiniCPM-S: Llama with factors on embeddings, branches and logits.

use super::attention::PAIRED_ATTENTION;
use super::context::narrow;
use super::description::Description;
use super::keys::{EPSILON, Key, Or};
use super::rows::{NORMS, SWIGLU, block};
use super::shape::HeadDim;
use super::traits::Traits;
use crate::HfError;

pub(super) const MINICPM: Traits = Traits {
    blocks: &[block(NORMS), block(PAIRED_ATTENTION), block(SWIGLU)],
    keys: &[
        EPSILON,
        Key::Number("scale_emb", "embedding_scale", Or::Default(1.0)),
        Key::By(write_scales),
    ],
    head_dim: HeadDim::Hidden,
    is_tied: true,
    ..Traits::TABLES
};

/// Branches are scaled by the depth's root, and logits are divided by how much wider the model is than a base.
fn write_scales(out: &mut Description<'_>) -> Result<(), HfError> {
    let (config, shape) = (out.config, out.shape);
    let depth = config.maybe_number(&["scale_depth"])?.unwrap_or(1.0);
    let base = config.maybe_number(&["dim_model_base"])?.unwrap_or(1.0);
    if base.is_nan() || base <= 0.0 {
        return Err(config.error(&["dim_model_base"], "is not above 0"));
    }
    out.set(
        "residual_scale",
        narrow(depth / f64::from(shape.n_layer).sqrt()),
    );
    out.set("logit_scale", narrow(f64::from(shape.n_embd) / base));
    Ok(())
}
