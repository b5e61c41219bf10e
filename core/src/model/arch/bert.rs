//! `bert` (BERT, bge, e5, MiniLM): encoders. Every token sees the whole text; positions have
//! learned embeddings; norms are layer norms and stand behind the residual sums.
//!
//! A norm behind a sum is the norm before the next layer's linear layers, if what it gives takes
//! the place of the residual stream ([`ModelConfig::norms_replace_stream`]). So the layers here are
//! those of a decoder, cut before the last norm: the norm of the embeddings comes before the first
//! layer's attention, that of layer i's output before layer i + 1's, and the last one is the output
//! norm. The type of every token is that of sentence A, as in llama.cpp.

use super::{Architecture, Family, Matrix as M, Norm, Tensor};
use crate::kernels::table::RopePairing;
use crate::model::config::{Activation, QkNorm};

pub(super) static BERT: Family = Family {
    name: "bert",
    architecture: Architecture::Bert,
    layer: &[
        Tensor::OutputNormBefore("token_embd_norm", "layer_output_norm", Norm::Attn),
        Tensor::Matrix("attn_q", &[M::AttnQ]),
        Tensor::Matrix("attn_k", &[M::AttnK]),
        Tensor::Matrix("attn_v", &[M::AttnV]),
        Tensor::Matrix("attn_output", &[M::AttnOutput]),
        Tensor::LayerNorm("attn_output_norm", Norm::Ffn),
        Tensor::Matrix("ffn_up", &[M::FfnUp]),
        Tensor::Matrix("ffn_down", &[M::FfnDown]),
    ],
    rope_pairing: RopePairing::Halves,
    qk_norm: QkNorm::None,
    activation: Activation::Gelu,
    adjust: |keys, c| {
        c.is_causal = keys
            .gguf()
            .bool(keys.name("attention.causal").as_str())
            .unwrap_or(false);
        // No rotation: positions are in the embeddings.
        c.n_rot = 0;
        c.norms_replace_stream = true;
        Ok(())
    },
};
