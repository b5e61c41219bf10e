//! `smollm3`: llama without rotation in every fourth layer. Source: llama.cpp, `src/models/smollm3.cpp`.

use super::draft::RopeLayers;
use super::{Family, layers};
use crate::kernels::table::RopePairing;

pub(super) static SMOLLM3: Family = Family {
    name: "smollm3",
    layer: layers::DENSE,
    rope_pairing: RopePairing::Interleaved,
    adjust: |_, draft| {
        draft.rope_layers = RopeLayers::AllButEvery(4);
        Ok(())
    },
    ..Family::PLAIN
};
