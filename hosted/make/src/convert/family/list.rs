//! All families.

use super::super::config::Config;
use super::traits::Traits;
use super::{
    Family, Kind, bert, decoder, delta, encoders, ernie, gemma, gemma4, glm, gpt_oss, granite,
    hunyuan, latent, lfm2, mamba, nomic, plain, sparse,
};

/// Those with code of their own.
const CODED: &[Family] = &[
    family(
        "LlamaForCausalLM",
        "llama",
        Kind::Llama,
        "llama",
        &decoder::LLAMA,
    ),
    family(
        "MistralForCausalLM",
        "mistral",
        Kind::Mistral,
        "llama",
        &decoder::LLAMA,
    ),
    family(
        "MixtralForCausalLM",
        "mixtral",
        Kind::Mixtral,
        "llama",
        &decoder::MIXTRAL,
    ),
    family(
        "Qwen2ForCausalLM",
        "qwen2",
        Kind::Qwen2,
        "qwen2",
        &decoder::QWEN2,
    ),
    family(
        "Qwen3ForCausalLM",
        "qwen3",
        Kind::Qwen3,
        "qwen3",
        &decoder::QWEN3,
    ),
    family(
        "Phi3ForCausalLM",
        "phi3",
        Kind::Phi3,
        "phi3",
        &decoder::PHI3,
    ),
    family(
        "OlmoeForCausalLM",
        "olmoe",
        Kind::Olmoe,
        "olmoe",
        &decoder::OLMOE,
    ),
    family(
        "Qwen3MoeForCausalLM",
        "qwen3_moe",
        Kind::Qwen3Moe,
        "qwen3moe",
        &decoder::QWEN3_MOE,
    ),
    family(
        "Gemma2ForCausalLM",
        "gemma2",
        Kind::Gemma2,
        "gemma2",
        &gemma::TRAITS,
    ),
    family(
        "Gemma3ForCausalLM",
        "gemma3_text",
        Kind::Gemma3,
        "gemma3",
        &gemma::GEMMA3,
    ),
    family(
        "Gemma3ForConditionalGeneration",
        "gemma3",
        Kind::Gemma3,
        "gemma3",
        &gemma::GEMMA3,
    ),
    family("Lfm2ForCausalLM", "lfm2", Kind::Lfm2, "lfm2", &lfm2::TRAITS),
    family("LFM2ForCausalLM", "lfm2", Kind::Lfm2, "lfm2", &lfm2::TRAITS),
    family(
        "GptOssForCausalLM",
        "gpt_oss",
        Kind::GptOss,
        gpt_oss::ARCHITECTURE,
        &gpt_oss::TRAITS,
    ),
    family("BertModel", "bert", Kind::Bert, "bert", &bert::TRAITS),
    family(
        "BertForSequenceClassification",
        "bert",
        Kind::Bert,
        "bert",
        &bert::RANK,
    ),
    family(
        "RobertaForSequenceClassification",
        "roberta",
        Kind::Roberta,
        "bert",
        &bert::ROBERTA_RANK,
    ),
    family(
        "XLMRobertaForSequenceClassification",
        "xlm-roberta",
        Kind::Roberta,
        "bert",
        &bert::ROBERTA_RANK,
    ),
    family(
        "Qwen3ForSequenceClassification",
        "qwen3",
        Kind::Qwen3,
        "qwen3",
        &decoder::QWEN3,
    ),
    family("BertForMaskedLM", "bert", Kind::Bert, "bert", &bert::TRAITS),
    family(
        "RobertaModel",
        "roberta",
        Kind::Roberta,
        "bert",
        &bert::TRAITS,
    ),
    family(
        "XLMRobertaModel",
        "xlm-roberta",
        Kind::Table,
        "jina-bert-v3",
        &nomic::JINA3,
    )
    .if_config(nomic::has_adapters),
    family(
        "XLMRobertaModel",
        "xlm-roberta",
        Kind::Roberta,
        "bert",
        &bert::TRAITS,
    ),
];

const HYBRID: &str = "GraniteMoeHybridForCausalLM";
const NEMOTRON: &str = "NemotronHForCausalLM";

/// Those whose traits say all.
const TABLES: &[Family] = &[
    table(
        "GraniteForCausalLM",
        "granite",
        "granite",
        &granite::GRANITE,
    ),
    table(
        "GraniteMoeForCausalLM",
        "granitemoe",
        "granitemoe",
        &granite::GRANITE_MOE,
    ),
    table(
        "GraniteMoeSharedForCausalLM",
        "granitemoeshared",
        "granitemoe",
        &granite::GRANITE_MOE,
    ),
    table(
        "Mistral3ForConditionalGeneration",
        "mistral3",
        "mistral3",
        &plain::MISTRAL3,
    ),
    table(
        "Ministral3ForCausalLM",
        "ministral3",
        "mistral3",
        &plain::MISTRAL3,
    ),
    table("SmolLM3ForCausalLM", "smollm3", "smollm3", &plain::SMOLLM3),
    table("Olmo2ForCausalLM", "olmo2", "olmo2", &plain::OLMO2),
    table("Olmo3ForCausalLM", "olmo3", "olmo2", &plain::OLMO3),
    table(
        "Qwen2MoeForCausalLM",
        "qwen2_moe",
        "qwen2moe",
        &sparse::QWEN2_MOE,
    ),
    table("Ernie4_5ForCausalLM", "ernie4_5", "ernie4_5", &ernie::ERNIE),
    table(
        "Ernie4_5_ForCausalLM",
        "ernie4_5",
        "ernie4_5",
        &ernie::ERNIE,
    ),
    table(
        "Ernie4_5_MoeForCausalLM",
        "ernie4_5_moe",
        "ernie4_5-moe",
        &ernie::ERNIE_MOE,
    ),
    table(
        "SeedOssForCausalLM",
        "seed_oss",
        "seed_oss",
        &plain::SEED_OSS,
    ),
    table("Cohere2ForCausalLM", "cohere2", "cohere2", &plain::COHERE2),
    table("Exaone4ForCausalLM", "exaone4", "exaone4", &plain::EXAONE4),
    table(
        "MiniMaxM2ForCausalLM",
        "minimax_m2",
        "minimax-m2",
        &sparse::MINIMAX_M2,
    ),
    table(
        "HunYuanDenseV1ForCausalLM",
        "hunyuan_v1_dense",
        "hunyuan-dense",
        &hunyuan::HUNYUAN,
    ),
    table(
        "HunYuanMoEV1ForCausalLM",
        "hunyuan_v1_moe",
        "hunyuan-moe",
        &hunyuan::HUNYUAN_MOE,
    ),
    table("Glm4ForCausalLM", "glm4", "glm4", &glm::GLM4),
    table("Glm4MoeForCausalLM", "glm4_moe", "glm4moe", &glm::GLM4_MOE),
    table(
        "Qwen3NextForCausalLM",
        "qwen3_next",
        "qwen3next",
        &delta::QWEN3_NEXT,
    ),
    table(
        "Qwen3_5ForCausalLM",
        "qwen3_5_text",
        "qwen35",
        &delta::QWEN35,
    ),
    table(
        "Qwen3_5ForConditionalGeneration",
        "qwen3_5",
        "qwen35",
        &delta::QWEN35,
    ),
    table(
        "Qwen3_5MoeForCausalLM",
        "qwen3_5_moe_text",
        "qwen35moe",
        &delta::QWEN35_MOE,
    ),
    table(
        "Qwen3_5MoeForConditionalGeneration",
        "qwen3_5_moe",
        "qwen35moe",
        &delta::QWEN35_MOE,
    ),
    table(
        "DeepseekV2ForCausalLM",
        "deepseek_v2",
        "deepseek2",
        &latent::DEEPSEEK2,
    ),
    table(
        "DeepseekV3ForCausalLM",
        "deepseek_v3",
        "deepseek2",
        &latent::DEEPSEEK2,
    ),
    table(
        "KimiVLForConditionalGeneration",
        "kimi_vl",
        "deepseek2",
        &latent::DEEPSEEK2,
    ),
    table(
        "KimiK25ForConditionalGeneration",
        "kimi_k25",
        "deepseek2",
        &latent::DEEPSEEK2,
    ),
    table(
        "Glm4MoeLiteForCausalLM",
        "glm4_moe_lite",
        "deepseek2",
        &latent::GLM4_MOE_LITE,
    ),
    table(
        HYBRID,
        "granitemoehybrid",
        "granitemoe",
        &mamba::GRANITE_HYBRID,
    )
    .if_config(|config| mamba::all_attend(config) && mamba::uses_experts(config)),
    table(
        HYBRID,
        "granitemoehybrid",
        "granite",
        &mamba::GRANITE_HYBRID,
    )
    .if_config(mamba::all_attend),
    table(
        HYBRID,
        "granitemoehybrid",
        "granitehybrid",
        &mamba::GRANITE_HYBRID,
    ),
    table(
        NEMOTRON,
        "nemotron_h",
        "nemotron_h_moe",
        &mamba::NEMOTRON_H_MOE,
    )
    .if_config(mamba::uses_experts),
    table(NEMOTRON, "nemotron_h", "nemotron_h", &mamba::NEMOTRON_H),
    table(
        "GraniteSWAForCausalLM",
        "granite_swa",
        "granite_swa",
        &granite::GRANITE_SWA,
    ),
    table(
        "GraniteMoeSWAForCausalLM",
        "granitemoe_swa",
        "granite_swa",
        &granite::GRANITE_MOE_SWA,
    ),
    table("Lfm2MoeForCausalLM", "lfm2_moe", "lfm2moe", &lfm2::LFM2_MOE),
    table(
        "Gemma4ForConditionalGeneration",
        "gemma4",
        "gemma4",
        &gemma4::GEMMA4,
    ),
    table(
        "Gemma4UnifiedForConditionalGeneration",
        "gemma4_unified",
        "gemma4",
        &gemma4::GEMMA4,
    ),
    table(
        "Gemma4ForCausalLM",
        "gemma4_text",
        "gemma4",
        &gemma4::GEMMA4,
    ),
    table(
        "NomicBertModel",
        "nomic_bert",
        "nomic-bert-moe",
        &nomic::NOMIC_MOE,
    )
    .if_config(|config| config.find(&["moe_every_n_layers"]).is_some()),
    table("NomicBertModel", "nomic_bert", "nomic-bert", &nomic::NOMIC),
    table("JinaBertModel", "bert", "jina-bert-v2", &nomic::JINA2),
    table("JinaBertForMaskedLM", "bert", "jina-bert-v2", &nomic::JINA2),
    table(
        "ModernBertModel",
        "modernbert",
        "modern-bert",
        &encoders::MODERN_BERT,
    ),
    table(
        "ModernBertForMaskedLM",
        "modernbert",
        "modern-bert",
        &encoders::MODERN_BERT,
    ),
    table(
        "ModernBertForSequenceClassification",
        "modernbert",
        "modern-bert",
        &encoders::MODERN_BERT_RANK,
    ),
    table("EuroBertModel", "eurobert", "eurobert", &encoders::EUROBERT),
    table(
        "Gemma3TextModel",
        "gemma3_text",
        "gemma-embedding",
        &encoders::GEMMA_EMBEDDING,
    ),
];

const fn family(
    class: &'static str,
    model_type: &'static str,
    kind: Kind,
    architecture: &'static str,
    traits: &'static Traits,
) -> Family {
    Family {
        class,
        model_type,
        kind,
        architecture,
        traits,
        applies: |_| true,
    }
}

const fn table(
    class: &'static str,
    model_type: &'static str,
    architecture: &'static str,
    traits: &'static Traits,
) -> Family {
    family(class, model_type, Kind::Table, architecture, traits)
}

impl Family {
    const fn if_config(self, applies: fn(&Config) -> bool) -> Self {
        Self { applies, ..self }
    }
}

pub(super) fn families() -> impl Iterator<Item = &'static Family> {
    CODED.iter().chain(TABLES)
}

/// For an error.
pub(super) fn known_classes() -> String {
    let mut classes: Vec<_> = families().map(|family| family.class).collect();
    classes.dedup();
    classes.join(", ")
}
