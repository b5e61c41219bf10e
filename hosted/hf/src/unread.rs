//! Configuration keys that the converter does not read.
//!
//! Such a key is harmless ([`HARMLESS`]), or changes the computation unless it has one particular value ([`neutral`],
//! or a name that resembles [`LOOKS_COMPUTED`]), which is an error that names it; an unknown key causes a warning that
//! names it.

use super::config::Config;
use crate::HfError;
use core::fmt;
use serde_json::Value;
use sluice_core::kernels::words;

/// Values for which a key has no effect.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Neutral {
    /// This number, or a list of it.
    Number(f64),
    /// False, zero, or empty.
    Off,
    /// True.
    On,
    /// One of these strings, or a list of them.
    Text(&'static [&'static str]),
    /// No value: the key always has an effect.
    Never,
}

/// Readable form for messages.
impl fmt::Display for Neutral {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Number(x) => write!(f, "{x}"),
            Self::Off => f.write_str("false"),
            Self::On => f.write_str("true"),
            Self::Text(texts) => f.write_str(&texts.join(" or ")),
            Self::Never => f.write_str("nothing"),
        }
    }
}

impl Neutral {
    pub(crate) fn is(self, value: &Value) -> bool {
        if let (Value::Array(list), Self::Number(_) | Self::Text(_)) = (value, self) {
            return list.iter().all(|value| self.is(value));
        }
        match self {
            Self::Number(x) => value.as_f64() == Some(x),
            Self::Off => match value {
                Value::Null | Value::Bool(false) => true,
                Value::Number(n) => n.as_f64() == Some(0.0),
                Value::String(text) => text.is_empty(),
                Value::Array(list) => list.is_empty(),
                Value::Object(map) => map.is_empty(),
                Value::Bool(true) => false,
            },
            Self::On => value == &Value::Bool(true) || value.as_f64() == Some(1.0),
            Self::Text(texts) => value.as_str().is_some_and(|text| texts.contains(&text)),
            Self::Never => false,
        }
    }
}

/// Refuses keys that change the computation of `architecture` and have no place in its file, and warns about unknown
/// ones.
///
/// # Errors
/// [`HfError::Config`].
pub fn check_config(
    config: &Config,
    architecture: &str,
    warnings: &mut Vec<String>,
) -> Result<(), HfError> {
    for (key, value) in config.unread() {
        let is_harmless =
            is_one_of(HARMLESS, key) || HARMLESS_STARTS.iter().any(|s| key.starts_with(s));
        if is_harmless {
            continue;
        }
        let is_neutral = match neutral(key) {
            Some(neutral) => neutral.is(value),
            None if LOOKS_COMPUTED.iter().any(|part| key.contains(part)) => {
                Neutral::Off.is(value) || Neutral::Number(1.0).is(value)
            }
            None => {
                let told = config.named(key);
                warnings.push(format!("{told} is {}: unknown, ignored", short(value)));
                continue;
            }
        };
        if !is_neutral {
            let what = format!(
                "is {}: it changes what the model computes, and {architecture} in GGUF cannot express it",
                short(value)
            );
            return Err(config.error(&[key], &what));
        }
    }
    Ok(())
}

/// Warns about unread keys of a file that does not affect the computation of logits. False, 0, 1 and empty values are
/// ignored there.
pub fn warn_of_rest(config: &Config, harmless: &[&str], warnings: &mut Vec<String>) {
    for (key, value) in config.unread() {
        let is_neutral = Neutral::Off.is(value) || Neutral::Number(1.0).is(value);
        if !is_neutral && !harmless.contains(&key) && !key.starts_with('_') {
            let told = config.named(key);
            warnings.push(format!(
                "{told} is {}, which GGUF cannot express",
                short(value)
            ));
        }
    }
}

/// A value, shortened for a message.
#[must_use]
pub fn short(value: &Value) -> String {
    let text = value.to_string();
    match text.char_indices().nth(60) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text,
    }
}

/// Parts of names that scale, cap or bias something: 1 and 0 have no effect there.
const LOOKS_COMPUTED: [&str; 12] = words(
    "multiplier logit_scale logits_scaling softcap soft_cap alibi clip_ temperature_tuning \
     residual_scale embedding_scale scale_emb attn_scale",
);

/// The value for which a key that changes the computation has no effect.
fn neutral(key: &str) -> Option<Neutral> {
    let texts = TEXTS.iter().find(|(name, _)| *name == key);
    match () {
        () if is_one_of(OFF, key) => Some(Neutral::Off),
        () if is_one_of(ON, key) => Some(Neutral::On),
        () if is_one_of(ONE, key) => Some(Neutral::Number(1.0)),
        () if is_one_of(NEVER, key) => Some(Neutral::Never),
        () => texts.map(|(_, values)| Neutral::Text(values)),
    }
}

/// Whether a list, separated by spaces, has a word.
pub(crate) fn is_one_of(list: &str, word: &str) -> bool {
    list.split_whitespace().any(|other| other == word)
}

/// Keys without effect if they are false, zero or empty.
const OFF: &str = "\
    add_cross_attention alibi attention_out_bias attn_logit_softcapping attn_output_gate bias conv_bias \
    final_logit_softcapping first_k_dense_replace hidden_size_per_layer_input is_decoder is_encoder_decoder \
    kv_lora_rank layer_scale layernorm_zero_centered lora_rank mlp_only_layers moe_layers multi_query n_shared_experts \
    new_decoder_architecture no_rope_layer_interval norm_after num_dense_layers num_kv_shared_layers \
    num_shared_experts parallel_attn post_norm pruned_heads q_lora_rank qk_layernorm qk_norm qkv_bias \
    relative_attention_num_buckets rope_interleave rope_interleaved scale_attn_by_inverse_layer_idx \
    shared_expert_intermediate_size use_alibi use_bias use_bidirectional_attention use_parallel_residual use_qk_norm \
    use_qkv_bias";

/// Keys without effect if they are true.
const ON: &str = "\
    block_use_swiglu is_causal scale_attn_weights truncate";

/// Keys without effect if they are 1, or a list of it.
const ONE: &str = "\
    attention_value_scale decoder_sparse_step full_attention_interval interleave_moe_layer_step logit_scale \
    moe_layer_freq n_group no_rope_layers partial_rotary_factor rotary_emb_fraction rotary_pct routed_scaling_factor \
    topk_group";

/// Keys that always have an effect.
const NEVER: &str = "\
    attention_chunk_size attention_multiplier clip_qkv embedding_size head_dim local_attention long_mscale mscale \
    mscale_all_dim norm_topk_prob query_pre_attn_scalar rotary_dim scale_depth short_mscale swiglu_limit";

/// Keys without effect if they are one of these strings.
const TEXTS: [(&str, &[&str]); 3] = [
    ("mlp_activation", &["silu", "swish"]),
    ("position_embedding_type", &["rope", "rotary"]),
    ("scoring_func", &["softmax"]),
];

const HARMLESS_STARTS: [&str; 5] = ["_", "unsloth", "pooler_", "output_", "summary_"];

/// Keys about training, files, sampling and labels.
const HARMLESS: &str = "\
    add_pooling_layer architectures attention_dropout attention_probs_dropout_prob attn_implementation attn_pdrop \
    audio_token_id auto_map aux_loss_alpha block_dim block_mlp_init_scale block_out_init_scale block_use_xavier_init \
    boa_token_id boi_token_id cache_implementation chunk_size cla_share_factor classifier_bias classifier_dropout \
    clf_pooling cls_token_id conv_dim conv_dim_out conv_use_xavier_init decoder_bias decoder_start_token_id \
    dense_seq_output deterministic_flash_attn directionality diversity_penalty do_sample dtype early_stopping \
    emb_pooler embd_pdrop embedding_dropout eoa_token_id eoa_token_index eod_token_id eoi_token_id ep_size expand \
    ffn_div ffn_mult finetuned finetuning_task forced_bos_token_id forced_eos_token_id fused_bias_fc \
    fused_dropout_add_ln gradient_checkpointing hidden_dropout hidden_dropout_prob id2label image_token_id \
    image_token_index init_method initializer_cutoff_factor initializer_factor initializer_range input_jitter_noise \
    keys_to_ignore_at_inference label2id layer_switch layernorm_full_attention_beta layernorm_linear_attention_beta \
    layernorm_mlp_beta length_penalty mamba_chunk_size mamba_expand mamba_ssm_cache_dtype mamba_ssm_dtype \
    mask_token_id matryoshka_dimensions max_length max_window_layers min_length mlp_dropout mlp_intermediate_size \
    model_max_length model_type moe_capacity moe_drop_tokens moe_gate moe_impl moe_random_routing_dropped_token \
    moe_resid_pdrop moe_shared_expert_overlap moe_use_aux_free mtp_hybrid_override_pattern mtp_layers_block_type \
    mtp_transformer_layers mtp_use_dedicated_embeddings name_or_path no_repeat_ngram_size num_beam_groups num_beams \
    num_logits_to_keep num_mtp_modules num_return_sequences order_of_interleaved_layers pad_vocab_size_multiple \
    parallel_block_tied_norm prefix pretraining_tp problem_type qk_head_dim reference_compile remove_invalid_values \
    reorder_and_upcast_attn repad_logits_with_grad repetition_penalty rescale_prenorm_residual resid_pdrop \
    residual_dropout residual_in_fp32 return_dict return_dict_in_generate router_aux_loss_coef router_jitter_noise \
    router_z_loss_coef sbert_ce_default_activation_function sentence_transformers sep_token_id seq_aux shared_moe_mode \
    sparse_pred_ignore_index sparse_prediction summary_type task_specific_params temperature tf_legacy_loss \
    tie_encoder_decoder time_step_floor time_step_max time_step_min time_step_rank tokenizer_class top_k top_p \
    torch_dtype torchscript transformers.js_config transformers_version truncate_dim typical_p use_bfloat16 use_cache \
    use_embedding_sharing use_flash_attention use_flash_attn use_mamba_kernels use_mixed_mlp_moe use_mtp use_pos_enc \
    use_reentrant use_sliding_window use_xentropy video_token_id vision_config vision_end_token_id vision_start_token_id \
    vision_token_id";

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;
    use std::path::Path;

    fn check(map: &Value) -> (Result<(), String>, Vec<String>) {
        let map = map.as_object().expect("an object").clone();
        let (config, mut warnings) = (Config::new(Path::new("config.json"), map), Vec::new());
        let checked = check_config(&config, "llama", &mut warnings);
        (checked.map_err(|error| error.to_string()), warnings)
    }

    #[test]
    fn what_changes_nothing_is_silent() {
        let map = json!({"use_cache": true, "_name_or_path": "x", "logit_scale": 1.0,
            "embedding_multiplier": 1, "clip_qkv": null, "no_rope_layers": [1, 1],
            "pruned_heads": {}, "attn_logit_softcapping": 0.0, "torch_dtype": "bfloat16"});
        assert_eq!(check(&map), (Ok(()), Vec::new()));
    }

    #[test]
    fn what_changes_the_computation_is_refused_by_name() {
        for (key, value) in [
            ("logit_scale", json!(0.0625)),
            ("embedding_multiplier", json!(12.0)),
            ("residual_multiplier", json!(0.22)),
            ("some_new_multiplier", json!(0.5)),
            ("no_rope_layers", json!([1, 0])),
            ("clip_qkv", json!(8.0)),
            ("alibi", json!(true)),
            ("scale_depth", json!(1.4)),
            ("partial_rotary_factor", json!(0.5)),
            ("logits_scaling", json!("NaN")),
        ] {
            let (checked, _) = check(&json!({ key: value }));
            let error = checked.expect_err(key);
            assert!(
                error.contains(&format!("config.json: {key} is ")),
                "{error}"
            );
        }
    }

    #[test]
    fn what_is_not_known_is_a_warning() {
        let (checked, warnings) = check(&json!({"marvellous": {"a": [1, 2]}}));
        checked.expect("only a warning");
        assert_eq!(
            warnings,
            ["config.json: marvellous is {\"a\":[1,2]}: unknown, ignored"]
        );
    }
}
