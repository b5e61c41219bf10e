//! All families.

use super::{
    Family, Kind, bert, decoder, delta, encoders, ernie, gemma, gemma4, glm, gpt_oss, granite,
    hunyuan, latent, lfm2, mamba, minicpm, nomic, plain, smallthinker, sparse, vision,
};

/// Rows of `class, model_type => architecture, kind, traits`, and whether the row applies to a configuration.
macro_rules! families {
    ($($class:literal, $model_type:literal => $architecture:literal, $kind:ident, $traits:path $(, if $applies:expr)?;)*) => {
        &[$(Family {
            class: $class,
            model_type: $model_type,
            kind: Kind::$kind,
            architecture: $architecture,
            traits: &$traits,
            applies: families!(@ $($applies)?),
        }),*]
    };
    (@) => { |_| true };
    (@ $applies:expr) => { $applies };
}

/// In the order in which they are tried.
pub(super) static FAMILIES: &[Family] = families! {
    "LlamaForCausalLM", "llama" => "llama", Table, decoder::LLAMA;
    "MistralForCausalLM", "mistral" => "llama", Table, decoder::MISTRAL;
    "BambooForCausalLM", "bamboo" => "llama", Table, decoder::BAMBOO;
    "MixtralForCausalLM", "mixtral" => "llama", Table, decoder::MIXTRAL;
    "TurboSparseMixtralForCausalLM", "turbosparsemixtral" => "llama", Table, decoder::TURBOSPARSE_MIXTRAL;
    "MiniCPMForCausalLM", "minicpm" => "minicpm", Table, minicpm::MINICPM;
    "SmallThinkerForCausalLM", "smallthinker" => "smallthinker", Table, smallthinker::SMALLTHINKER;
    "Qwen2ForCausalLM", "qwen2" => "qwen2", Table, decoder::QWEN2;
    "Qwen3ForCausalLM", "qwen3" => "qwen3", Qwen3, decoder::QWEN3;
    "Phi3ForCausalLM", "phi3" => "phi3", Table, decoder::PHI3;
    "OlmoeForCausalLM", "olmoe" => "olmoe", Table, decoder::OLMOE;
    "Qwen3MoeForCausalLM", "qwen3_moe" => "qwen3moe", Table, decoder::QWEN3_MOE;
    "Gemma2ForCausalLM", "gemma2" => "gemma2", Gemma2, gemma::GEMMA2;
    "Gemma3ForCausalLM", "gemma3_text" => "gemma3", Gemma3, gemma::GEMMA3;
    "Gemma3ForConditionalGeneration", "gemma3" => "gemma3", Gemma3, gemma::GEMMA3;
    "Lfm2ForCausalLM", "lfm2" => "lfm2", Table, lfm2::LFM2;
    "LFM2ForCausalLM", "lfm2" => "lfm2", Table, lfm2::LFM2;
    "GptOssForCausalLM", "gpt_oss" => "gpt-oss", Table, gpt_oss::GPT_OSS;
    "BertModel", "bert" => "bert", Bert, bert::BERT;
    "BertForSequenceClassification", "bert" => "bert", Bert, bert::BERT_RANK;
    "RobertaForSequenceClassification", "roberta" => "bert", Roberta, bert::ROBERTA_RANK;
    "XLMRobertaForSequenceClassification", "xlm-roberta" => "bert", Roberta, bert::ROBERTA_RANK;
    "Qwen3ForSequenceClassification", "qwen3" => "qwen3", Qwen3, decoder::QWEN3;
    "BertForMaskedLM", "bert" => "bert", Bert, bert::BERT;
    "RobertaModel", "roberta" => "bert", Roberta, bert::BERT;
    "XLMRobertaModel", "xlm-roberta" => "jina-bert-v3", Table, nomic::JINA3, if nomic::has_adapters;
    "XLMRobertaModel", "xlm-roberta" => "bert", Roberta, bert::BERT;
    "GraniteForCausalLM", "granite" => "granite", Table, granite::GRANITE;
    "GraniteMoeForCausalLM", "granitemoe" => "granitemoe", Table, granite::GRANITE_MOE;
    "GraniteMoeSharedForCausalLM", "granitemoeshared" => "granitemoe", Table, granite::GRANITE_MOE;
    "Mistral3ForConditionalGeneration", "mistral3" => "mistral3", Table, plain::MISTRAL3;
    "Ministral3ForCausalLM", "ministral3" => "mistral3", Table, plain::MISTRAL3;
    "SmolLM3ForCausalLM", "smollm3" => "smollm3", Table, plain::SMOLLM3;
    "Olmo2ForCausalLM", "olmo2" => "olmo2", Table, plain::OLMO2;
    "Olmo3ForCausalLM", "olmo3" => "olmo2", Table, plain::OLMO3;
    "Qwen2MoeForCausalLM", "qwen2_moe" => "qwen2moe", Table, sparse::QWEN2_MOE;
    "Ernie4_5ForCausalLM", "ernie4_5" => "ernie4_5", Table, ernie::ERNIE;
    "Ernie4_5_ForCausalLM", "ernie4_5" => "ernie4_5", Table, ernie::ERNIE;
    "Ernie4_5_MoeForCausalLM", "ernie4_5_moe" => "ernie4_5-moe", Table, ernie::ERNIE_MOE;
    "SeedOssForCausalLM", "seed_oss" => "seed_oss", Table, plain::SEED_OSS;
    "Cohere2ForCausalLM", "cohere2" => "cohere2", Table, plain::COHERE2;
    "Exaone4ForCausalLM", "exaone4" => "exaone4", Table, plain::EXAONE4;
    "MiniMaxM2ForCausalLM", "minimax_m2" => "minimax-m2", Table, sparse::MINIMAX_M2;
    "HunYuanDenseV1ForCausalLM", "hunyuan_v1_dense" => "hunyuan-dense", Table, hunyuan::HUNYUAN;
    "HunYuanMoEV1ForCausalLM", "hunyuan_v1_moe" => "hunyuan-moe", Table, hunyuan::HUNYUAN_MOE;
    "Glm4ForCausalLM", "glm4" => "glm4", Table, glm::GLM4;
    "Glm4MoeForCausalLM", "glm4_moe" => "glm4moe", Table, glm::GLM4_MOE;
    "Qwen3NextForCausalLM", "qwen3_next" => "qwen3next", Table, delta::QWEN3_NEXT;
    "Qwen3_5ForCausalLM", "qwen3_5_text" => "qwen35", Table, delta::QWEN35;
    "Qwen3_5ForConditionalGeneration", "qwen3_5" => "qwen35", Table, delta::QWEN35;
    "Qwen3_5MoeForCausalLM", "qwen3_5_moe_text" => "qwen35moe", Table, delta::QWEN35_MOE;
    "Qwen3_5MoeForConditionalGeneration", "qwen3_5_moe" => "qwen35moe", Table, delta::QWEN35_MOE;
    "DeepseekV2ForCausalLM", "deepseek_v2" => "deepseek2", Table, latent::DEEPSEEK2;
    "DeepseekV3ForCausalLM", "deepseek_v3" => "deepseek2", Table, latent::DEEPSEEK3;
    "KimiVLForConditionalGeneration", "kimi_vl" => "deepseek2", Table, latent::DEEPSEEK3;
    "KimiK25ForConditionalGeneration", "kimi_k25" => "deepseek2", Table, latent::DEEPSEEK3;
    "Glm4MoeLiteForCausalLM", "glm4_moe_lite" => "deepseek2", Table, latent::GLM4_MOE_LITE;
    "GraniteMoeHybridForCausalLM", "granitemoehybrid" => "granitemoe", Table, mamba::GRANITE_HYBRID,
        if |config| mamba::all_attend(config) && mamba::uses_experts(config);
    "GraniteMoeHybridForCausalLM", "granitemoehybrid" => "granite", Table, mamba::GRANITE_HYBRID, if mamba::all_attend;
    "GraniteMoeHybridForCausalLM", "granitemoehybrid" => "granitehybrid", Table, mamba::GRANITE_HYBRID;
    "NemotronHForCausalLM", "nemotron_h" => "nemotron_h_moe", Table, mamba::NEMOTRON_H_MOE, if mamba::lists_experts;
    "NemotronHForCausalLM", "nemotron_h" => "nemotron_h", Table, mamba::NEMOTRON_H;
    "GraniteSWAForCausalLM", "granite_swa" => "granite_swa", Table, granite::GRANITE_SWA;
    "GraniteMoeSWAForCausalLM", "granitemoe_swa" => "granite_swa", Table, granite::GRANITE_MOE_SWA;
    "Lfm2MoeForCausalLM", "lfm2_moe" => "lfm2moe", Table, lfm2::LFM2_MOE;
    "Gemma4ForConditionalGeneration", "gemma4" => "gemma4", Table, gemma4::GEMMA4;
    "Gemma4UnifiedForConditionalGeneration", "gemma4_unified" => "gemma4", Table, gemma4::GEMMA4;
    "Gemma4ForCausalLM", "gemma4_text" => "gemma4", Table, gemma4::GEMMA4;
    "NomicBertModel", "nomic_bert" => "nomic-bert-moe", Table, nomic::NOMIC_MOE,
        if |config| config.find(&["moe_every_n_layers"]).is_some();
    "NomicBertModel", "nomic_bert" => "nomic-bert", Table, nomic::NOMIC;
    "JinaEmbeddingsV3Model", "jina_embeddings_v3" => "jina-bert-v3", Table, nomic::JINA3;
    "JinaBertModel", "bert" => "jina-bert-v2", Table, nomic::JINA2;
    "JinaBertForMaskedLM", "bert" => "jina-bert-v2", Table, nomic::JINA2;
    "ModernBertModel", "modernbert" => "modern-bert", Table, encoders::MODERN_BERT;
    "ModernBertForMaskedLM", "modernbert" => "modern-bert", Table, encoders::MODERN_BERT;
    "ModernBertForSequenceClassification", "modernbert" => "modern-bert", Table, encoders::MODERN_BERT_RANK;
    "EuroBertModel", "eurobert" => "eurobert", Table, encoders::EUROBERT;
    "Qwen2VLForConditionalGeneration", "qwen2_vl" => "qwen2vl", Table, vision::QWEN2_VL;
    "Qwen2_5_VLForConditionalGeneration", "qwen2_5_vl" => "qwen2vl", Table, vision::QWEN2_VL;
    "Qwen3VLForConditionalGeneration", "qwen3_vl" => "qwen3vl", Qwen3, vision::QWEN3_VL;
    "Qwen3VLMoeForConditionalGeneration", "qwen3_vl_moe" => "qwen3vlmoe", Table, vision::QWEN3_VL_MOE;
    "Gemma3TextModel", "gemma3_text" => "gemma-embedding", Table, encoders::GEMMA_EMBEDDING;
};

/// The known classes, for an error message.
pub(super) fn known_classes() -> String {
    let mut classes: Vec<_> = FAMILIES.iter().map(|family| family.class).collect();
    classes.dedup();
    classes.join(", ")
}
