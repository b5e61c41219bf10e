//! Keeps the products of a layer's matrices while the engine computes it.

use super::matrix::{Kept, Matrix};
use crate::engine::sites::{Observer, SiteInput, SiteProduct};
use crate::model::Site;

/// Keeps what a layer's backward pass needs of its forward pass.
#[derive(Clone, Copy, Debug)]
pub struct Keeper<'m> {
    pub(super) layer: usize,
    pub(super) kept: Kept<'m>,
}

impl Keeper<'_> {
    fn rows(&self, site: Site) -> Option<&Matrix<'_>> {
        let kept = &self.kept;
        let rows = match site {
            Site::AttnQ => &kept.q,
            Site::AttnK => &kept.k,
            Site::AttnV => &kept.v,
            Site::AttnOutput => &kept.mixer,
            Site::FfnGate => &kept.gate,
            Site::FfnUp => &kept.up,
            Site::FfnDown => &kept.down,
            _ => return None,
        };
        (rows.width > 0).then_some(rows)
    }
}

impl Observer for Keeper<'_> {
    fn sees(&self, seen: SiteInput<'_>) {
        if seen.layer == self.layer && seen.site == Site::AttnOutput {
            // SAFETY: a row is shown once, and nothing reads it before the step ends.
            unsafe { self.kept.mixed.row_mut(seen.entry) }.copy_from_slice(seen.input);
        }
    }

    fn sees_product(&self, product: SiteProduct<'_>) {
        let Some(rows) = self
            .rows(product.site)
            .filter(|_| product.layer == self.layer)
        else {
            return;
        };
        let start = product.entry * rows.width + product.first;
        // SAFETY: an output is shown once, and nothing reads it before the step ends.
        let out = unsafe { rows.memory.write(start..start + product.values.len()) };
        out.copy_from_slice(product.values);
    }

    fn sees_products(&self) -> bool {
        true
    }

    fn sees_all(&self) -> bool {
        true
    }
}
