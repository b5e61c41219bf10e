//! Names that TRL, PEFT, axolotl, LLaMA-Factory and avxLLM know: refused with the reason, or accepted without effect.

use serde_json::Value;

/// A name, and why it is not supported.
pub(super) type Reason = (&'static str, &'static str);

/// Refused unless they are off: false, null, 0, `none`, `no`, empty.
pub(super) const REFUSED: &[Reason] = &[
    ("use_dora", DORA),
    ("peft_use_dora", DORA),
    ("pissa_init", PISSA),
    ("pissa_convert", PISSA),
    ("loftq", LOFTQ),
    ("loftq_config", LOFTQ),
    ("eva_config", "only init_lora_weights true and gaussian are"),
    (
        "corda_config",
        "only init_lora_weights true and gaussian are",
    ),
    ("use_qalora", "the base weights keep the types of the file"),
    (
        "bias",
        "adapters have matrices only, so biases cannot be served",
    ),
    (
        "lora_bias",
        "adapters have matrices only, so biases cannot be served",
    ),
    ("modules_to_save", MODULES),
    ("lora_modules_to_save", MODULES),
    ("additional_target", MODULES),
    ("trainable_token_indices", "embeddings are not trained"),
    (
        "exclude_modules",
        "name the modules to adapt in target_modules",
    ),
    (
        "layers_pattern",
        "layers_to_transform counts the layers of the file",
    ),
    (
        "peft_layers_pattern",
        "layers_to_transform counts the layers of the file",
    ),
    ("layer_replication", "the model's layers stay as they are"),
    (
        "fan_in_fan_out",
        "the types of the file say how weights lie",
    ),
    (
        "target_parameters",
        "name the experts' matrices in target_modules: gate_proj, up_proj, down_proj",
    ),
    (
        "lora_target_parameters",
        "name the experts' matrices in target_modules: gate_proj, up_proj, down_proj",
    ),
    ("load_in_4bit", NF4),
    ("load_in_8bit", NF4),
    ("quantization_bit", NF4),
    ("bnb_4bit_quant_type", NF4),
    ("bnb_4bit_compute_dtype", NF4),
    ("bnb_config_kwargs", NF4),
    ("quantization_config", NF4),
    ("gptq", NF4),
    ("full_finetuning", "only adapters are trained"),
    (
        "freeze_trainable_layers",
        "only adapters are trained: layers_to_transform chooses layers",
    ),
    ("unfrozen_parameters", "only adapters are trained"),
    ("use_galore", "only adapters are trained"),
    ("use_badam", "only adapters are trained"),
    ("use_apollo", "only adapters are trained"),
    ("relora", "one adapter is trained"),
    ("relora_steps", "one adapter is trained"),
    ("lisa_n_layers", "only adapters are trained"),
    ("loraplus_lr_embedding", "embeddings are not trained"),
    (
        "create_new_adapter",
        "start from an adapter with adapter_name_or_path, or merge it first: sluice lora merge",
    ),
    (
        "group_by_length",
        "the order of rows is a function of the seed and the epoch alone",
    ),
    (
        "streaming",
        "all rows are read before the first step, for the plan and the order",
    ),
    (
        "label_smoothing_factor",
        "the loss is the cross-entropy of the labels",
    ),
    (
        "label_smoothing",
        "the loss is the cross-entropy of the labels",
    ),
    ("mask_history", "mark messages with train: false"),
    (
        "roles_to_train",
        "only the assistant's turns are; train_on_inputs learns all of them",
    ),
    (
        "train_on_eos",
        "the token that ends a turn is always learned",
    ),
    ("eos_token", "the file names the token that ends a text"),
    ("special_tokens", "the vocabulary comes from the file"),
    ("tokens", "the vocabulary comes from the file"),
    (
        "added_tokens_overrides",
        "the vocabulary comes from the file",
    ),
    ("resize_vocab", "the vocabulary comes from the file"),
    ("tokenizer_config", "the vocabulary comes from the file"),
    (
        "rope_scaling",
        "the model's rotary settings come from the file",
    ),
    ("deepspeed", "training runs in one process"),
    ("fsdp", "training runs in one process"),
    ("fsdp_config", "training runs in one process"),
    ("sequence_parallel_degree", "training runs in one process"),
    ("push_to_hub", "upload the folder when the run has ended"),
    ("hub_model_id", "upload the folder when the run has ended"),
    ("wandb_project", WANDB),
    ("wandb_run_id", WANDB),
    ("wandb_entity", WANDB),
    ("mlflow_tracking_uri", WANDB),
    ("rl", "preferences and rewards come with a later version"),
    (
        "reward",
        "sft has no rewards; rl comes with a later version",
    ),
    (
        "kl_coef",
        "sft has no reference; rl comes with a later version",
    ),
    (
        "beta",
        "sft has no reference; dpo comes with a later version",
    ),
    ("num_generations", "rl comes with a later version"),
    ("pref_beta", "dpo comes with a later version"),
    ("predict_with_generate", "use eval_table_size"),
    ("do_predict", "use eval_table_size"),
    (
        "mix_strategy",
        "give files a weight: {path: rows.jsonl, weight: 0.5}",
    ),
    (
        "interleave_probs",
        "give files a weight: {path: rows.jsonl, weight: 0.5}",
    ),
    (
        "base_safetensors",
        "convert the folder first: sluice convert",
    ),
    ("weighted_loss", "all labels count the same"),
    (
        "save_only_model",
        "checkpoints always have what is needed to continue",
    ),
    ("torch_empty_cache_steps", "nothing is cached"),
    (
        "auto_find_batch_size",
        "memory does not grow with the batch: the plan has the figures",
    ),
];

/// Accepted without effect, with the reason, which the plan prints.
pub(super) const WITHOUT_EFFECT: &[Reason] = &[
    ("bf16", TYPES),
    ("fp16", TYPES),
    ("tf32", TYPES),
    ("pure_bf16", TYPES),
    ("float16", TYPES),
    ("bfloat16", TYPES),
    ("torch_dtype", TYPES),
    ("dtype", TYPES),
    ("model_dtype", TYPES),
    ("upcast_layernorm", TYPES),
    ("flash_attention", ATTENTION),
    ("flash_attn", ATTENTION),
    ("attn_implementation", ATTENTION),
    ("xformers_attention", ATTENTION),
    ("sdp_attention", ATTENTION),
    (
        "use_liger_kernel",
        "the loss is always computed in chunks, over labelled tokens",
    ),
    (
        "enable_liger_kernel",
        "the loss is always computed in chunks, over labelled tokens",
    ),
    ("use_unsloth", "there is one implementation"),
    (
        "loss_type",
        "the loss is the cross-entropy, in chunks, over labelled tokens",
    ),
    ("padding_free", PADDING),
    ("neat_packing", PADDING),
    ("eval_sample_packing", PADDING),
    ("eval_packing", PADDING),
    ("pad_to_sequence_len", PADDING),
    ("pad_to_multiple_of", PADDING),
    ("pad_token", PADDING),
    (
        "per_device_eval_batch_size",
        "rows are evaluated one by one; no result depends on it",
    ),
    (
        "eval_batch_size",
        "rows are evaluated one by one; no result depends on it",
    ),
    ("gradient_checkpointing_kwargs", "there is one way to do it"),
    ("use_reentrant_gc", "there is one way to do it"),
    (
        "average_tokens_across_devices",
        "a step is always divided by all of its tokens",
    ),
    ("dataset_num_proc", LOADING),
    ("preprocessing_num_workers", LOADING),
    ("dataset_processes", LOADING),
    ("dataset_prepared_path", LOADING),
    ("overwrite_cache", LOADING),
    ("dataloader_num_workers", LOADING),
    ("dataloader_pin_memory", LOADING),
    (
        "dataloader_drop_last",
        "the last step of an epoch has the rows that are left",
    ),
    ("hf_cache_dir", "nothing is downloaded"),
    (
        "trust_remote_code",
        "nothing is downloaded, and no file has code",
    ),
    ("strict", "unknown keys are always refused"),
    ("ddp_timeout", PROCESS),
    ("ddp_find_unused_parameters", PROCESS),
    ("local_rank", PROCESS),
    ("use_cpu", PROCESS),
    ("no_cuda", PROCESS),
    ("plot_loss", "curves.svg is always written"),
    (
        "disable_tqdm",
        "progress is shown on terminals only; -q turns it off",
    ),
    ("do_eval", "rows for evaluation say so"),
    (
        "remove_unused_columns",
        "columns that are not used are named in the plan",
    ),
    ("inference_mode", "the adapter is trained"),
    ("save_safetensors", "adapters are always safetensors"),
    ("infer_backend", "there is one engine"),
];

/// Whether a value turns off what its key names.
pub(super) fn is_off(value: &Value) -> bool {
    match value {
        Value::Null | Value::Bool(false) => true,
        Value::Bool(true) => false,
        Value::Number(number) => number.as_f64() == Some(0.0),
        Value::String(text) => ["", "none", "no", "false", "off"].contains(&&*text.to_lowercase()),
        Value::Array(items) => items.is_empty(),
        Value::Object(map) => map.is_empty(),
    }
}

/// Why a word is not among those that a key takes, if there is more to say.
pub(super) fn reason_of_word(key: &str, word: &str) -> Option<&'static str> {
    let word = word.to_lowercase();
    match key {
        "optim" if word.contains("8bit") || word.contains("4bit") || word.starts_with("paged") => {
            Some("moments are kept in f32: an adapter's are small")
        }
        "optim" => Some("adamw_torch is the only optimizer"),
        "init_lora_weights" if word.starts_with("pissa") => Some(PISSA),
        "init_lora_weights" if word == "loftq" => Some(LOFTQ),
        "init_lora_weights" => Some("true and gaussian are"),
        "report_to" if word != "tensorboard" => Some(WANDB),
        "truncation_mode" => {
            Some("rows keep their beginning: without it a template's text has no sense")
        }
        "packing_strategy" => Some("it would cut rows: bfd is, which does not"),
        "lr_scheduler_type" => Some(
            "linear, constant, constant_with_warmup, cosine, cosine_with_min_lr and warmup_stable_decay are",
        ),
        _ => None,
    }
}

const DORA: &str = "adapters with magnitudes cannot be served";
const PISSA: &str = "it changes the base weights, which keep the types of the file";
const LOFTQ: &str = "it changes the base weights, which keep the types of the file";
const MODULES: &str = "only matrices of adapters are trained and served";
const NF4: &str = "the base weights keep the types of the file: choose one with sluice quantize";
const WANDB: &str = "use a callback of sluice.train.SFTTrainer, or read log.jsonl";
const TYPES: &str = "adapters are f32, base weights keep their types; see forward and grad_dtype";
const ATTENTION: &str = "attention never keeps all scores";
const PADDING: &str = "rows are never padded";
const LOADING: &str = "rows are read once, in order";
const PROCESS: &str = "training runs in one process, on CPUs";
