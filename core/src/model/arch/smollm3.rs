//! `smollm3`: llama without rotation in every fourth layer, and windows where the file has them. Source: llama.cpp, `src/models/smollm3.cpp`.

use super::draft::{RopeLayers, WINDOW_KEYS};
use super::{Family, layers};
use crate::kernels::table::RopePairing;

pub(super) static SMOLLM3: Family = Family {
    name: "smollm3",
    layer: layers::DENSE,
    rope_pairing: RopePairing::Interleaved,
    keys: WINDOW_KEYS,
    adjust: |keys, draft| {
        draft.rope_layers = RopeLayers::AllButEvery(4);
        draft.read_windows(keys)
    },
    ..Family::PLAIN
};
