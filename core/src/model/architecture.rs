//! The architectures that this build runs.

/// Architectures that this build runs, by `general.architecture`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Architecture {
    /// `llama`: RMSNorm, rotary embedding of adjacent pairs, grouped-query attention, SwiGLU.
    Llama,
    /// `qwen2`: halves rotate together; biases of Q, K and V.
    Qwen2,
    /// `qwen3`: a norm of every query and key head.
    Qwen3,
    /// `phi3` (Phi-3, Phi-3.5, Phi-4): Q, K and V are one tensor, gate and up another.
    Phi3,
    /// `gemma2`: norms behind attention and feed-forward too, GeGLU, soft caps, every other layer
    /// with a sliding window.
    Gemma2,
    /// `gemma3`: as gemma2 with norms of query and key heads instead of caps, and another rotary
    /// base in layers with a window.
    Gemma3,
    /// `llama` with experts: the router's weights of the chosen ones add up to 1.
    Mixtral,
    /// `olmoe`: norms over whole queries and keys, experts with the router's weights.
    Olmoe,
    /// `qwen3moe`: qwen3 with experts, weights as in Mixtral.
    Qwen3Moe,
    /// `bert`: an encoder. Attention over the whole text, layer norms behind residual sums.
    Bert,
    /// `lfm2`: short convolutions in most layers, attention in the others.
    Lfm2,
    /// `gpt-oss`: attention sinks, every other layer with a window, experts with biases.
    GptOss,
    /// `nomic-bert`: bert with rotations instead of learned positions, and SwiGLU.
    NomicBert,
    /// `jina-bert-v2`: bert with scores that fall with the distance (ALiBi), and GeGLU.
    JinaBertV2,
    /// `jina-bert-v3`: bert with rotations instead of learned positions.
    JinaBertV3,
    /// `eurobert`: llama's layers as an encoder.
    EuroBert,
    /// `modern-bert`: an encoder of layer norms before attention and GeGLU; most layers see a window.
    ModernBert,
    /// `gemma-embedding`: gemma3's layers as an encoder.
    GemmaEmbedding,
}

impl Architecture {
    /// All of them.
    pub const ALL: [Self; 18] = [
        Self::Llama,
        Self::Qwen2,
        Self::Qwen3,
        Self::Phi3,
        Self::Gemma2,
        Self::Gemma3,
        Self::Mixtral,
        Self::Olmoe,
        Self::Qwen3Moe,
        Self::Bert,
        Self::Lfm2,
        Self::GptOss,
        Self::NomicBert,
        Self::JinaBertV3,
        Self::JinaBertV2,
        Self::EuroBert,
        Self::ModernBert,
        Self::GemmaEmbedding,
    ];

    /// Its name, as `general.architecture` spells it. Two architectures may share one.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Llama | Self::Mixtral => "llama",
            Self::Qwen2 => "qwen2",
            Self::Qwen3 => "qwen3",
            Self::Phi3 => "phi3",
            Self::Gemma2 => "gemma2",
            Self::Gemma3 => "gemma3",
            Self::Olmoe => "olmoe",
            Self::Qwen3Moe => "qwen3moe",
            Self::Bert => "bert",
            Self::Lfm2 => "lfm2",
            Self::GptOss => "gpt-oss",
            Self::NomicBert => "nomic-bert",
            Self::JinaBertV2 => "jina-bert-v2",
            Self::JinaBertV3 => "jina-bert-v3",
            Self::EuroBert => "eurobert",
            Self::ModernBert => "modern-bert",
            Self::GemmaEmbedding => "gemma-embedding",
        }
    }
}
