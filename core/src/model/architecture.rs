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
    /// `lfm2moe`: lfm2 with experts, after some layers without.
    Lfm2Moe,
    /// `granite`: llama with factors on embeddings, scores, branches and logits; with experts or without.
    Granite,
    /// `granitemoe`: granite with experts.
    GraniteMoe,
    /// `glm4`: norms before and behind attention and feed-forward network, half of each head turned.
    Glm4,
    /// `glm4moe`: experts by sigmoid scores with a bias, beside one for all tokens.
    Glm4Moe,
    /// `mistral3`: llama, with queries that grow beyond the original context.
    Mistral3,
    /// `smollm3`: llama, whose every fourth layer turns nothing.
    SmolLm3,
    /// `olmo2`: norms behind attention and feed-forward network alone; OLMo 3 with windows.
    Olmo2,
    /// `qwen2moe`: qwen2 with experts, beside one for all tokens behind a gate.
    Qwen2Moe,
    /// `ernie4_5`: llama's layers.
    Ernie45,
    /// `ernie4_5-moe`: experts chosen by scores with a bias, beside one for all tokens.
    Ernie45Moe,
    /// `seed_oss`: biases of Q, K and V.
    SeedOss,
    /// `cohere2`: attention and feed-forward network side by side, layer norms without bias.
    Cohere2,
    /// `exaone4`: norms behind attention and feed-forward network alone, and of query and key heads.
    Exaone4,
    /// `minimax-m2`: norms over whole queries and keys, experts by sigmoid scores with a bias.
    MiniMaxM2,
    /// `hunyuan-dense`: norms of query and key heads behind the rotation.
    HunyuanDense,
    /// `hunyuan-moe`: the same with experts, beside one for all tokens.
    HunyuanMoe,
    /// `deepseek2` (DeepSeek-V2 to V3, Kimi-K2, GLM-4.7-Flash): latent attention, experts beside one for all tokens.
    DeepSeek2,
    /// `granite_swa`: granite with sinks, and windows in listed layers.
    GraniteSwa,
    /// `gemma4`: heads of two sizes, keys and values of other layers, an embedding for each layer, experts beside a network.
    Gemma4,
    /// `qwen35` (Qwen3.5, Qwen3.6, Qwen3.8): gated delta nets in most layers, attention with gates in the
    /// others.
    Qwen35,
    /// `qwen35moe`: qwen35 with experts, beside one for all tokens behind a gate.
    Qwen35Moe,
    /// `qwen3next` (Qwen3-Next): the same; neighbouring heads of values share a key.
    Qwen3Next,
    /// `granitehybrid` (Granite 4.0): granite with Mamba 2 in most layers.
    GraniteHybrid,
    /// `nemotron_h` (Nemotron-H): a layer is Mamba 2, attention or a feed-forward network.
    NemotronH,
    /// `nemotron_h_moe` (Nemotron 3): the same with experts.
    NemotronHMoe,
    /// `nomic-bert`: bert with rotations instead of learned positions, and SwiGLU.
    NomicBert,
    /// `nomic-bert-moe`: the same with experts without gates in every other layer, and no gates elsewhere.
    NomicBertMoe,
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
    pub const ALL: [Self; 45] = [
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
        Self::Lfm2Moe,
        Self::Granite,
        Self::GraniteMoe,
        Self::Glm4,
        Self::Glm4Moe,
        Self::Mistral3,
        Self::SmolLm3,
        Self::Olmo2,
        Self::Qwen2Moe,
        Self::Ernie45,
        Self::Ernie45Moe,
        Self::SeedOss,
        Self::Cohere2,
        Self::Exaone4,
        Self::MiniMaxM2,
        Self::HunyuanDense,
        Self::HunyuanMoe,
        Self::DeepSeek2,
        Self::GraniteSwa,
        Self::Gemma4,
        Self::Qwen35,
        Self::Qwen35Moe,
        Self::Qwen3Next,
        Self::GraniteHybrid,
        Self::NemotronH,
        Self::NemotronHMoe,
        Self::NomicBert,
        Self::NomicBertMoe,
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
            Self::Lfm2Moe => "lfm2moe",
            Self::Granite => "granite",
            Self::GraniteMoe => "granitemoe",
            Self::Glm4 => "glm4",
            Self::Glm4Moe => "glm4moe",
            Self::Mistral3 => "mistral3",
            Self::SmolLm3 => "smollm3",
            Self::Olmo2 => "olmo2",
            Self::Qwen2Moe => "qwen2moe",
            Self::Ernie45 => "ernie4_5",
            Self::Ernie45Moe => "ernie4_5-moe",
            Self::SeedOss => "seed_oss",
            Self::Cohere2 => "cohere2",
            Self::Exaone4 => "exaone4",
            Self::MiniMaxM2 => "minimax-m2",
            Self::HunyuanDense => "hunyuan-dense",
            Self::HunyuanMoe => "hunyuan-moe",
            Self::DeepSeek2 => "deepseek2",
            Self::GraniteSwa => "granite_swa",
            Self::Gemma4 => "gemma4",
            Self::Qwen35 => "qwen35",
            Self::Qwen35Moe => "qwen35moe",
            Self::Qwen3Next => "qwen3next",
            Self::GraniteHybrid => "granitehybrid",
            Self::NemotronH => "nemotron_h",
            Self::NemotronHMoe => "nemotron_h_moe",
            Self::NomicBert => "nomic-bert",
            Self::NomicBertMoe => "nomic-bert-moe",
            Self::JinaBertV2 => "jina-bert-v2",
            Self::JinaBertV3 => "jina-bert-v3",
            Self::EuroBert => "eurobert",
            Self::ModernBert => "modern-bert",
            Self::GemmaEmbedding => "gemma-embedding",
        }
    }
}
