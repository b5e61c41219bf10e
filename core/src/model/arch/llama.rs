//! The `llama` family (Llama 1–3, TinyLlama, SmolLM and many more), as llama.cpp writes it:
//! Q and K rows are permuted so that rotary pairs are adjacent. Mistral's files may have a window in every layer.

use super::draft::WINDOW_KEYS;
use super::{Family, layers};
use crate::kernels::table::RopePairing;

pub(super) static LLAMA: Family = Family {
    name: "llama",
    layer: layers::DENSE,
    rope_pairing: RopePairing::Interleaved,
    keys: WINDOW_KEYS,
    adjust: |keys, draft| draft.read_windows(keys),
    ..Family::PLAIN
};
