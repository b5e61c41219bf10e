//! Keys of the model, of what is written, and of the engine.

use super::Kind::{Auto, Choice, Choices, Int, Map, Path, Text};
use super::{ConfigKey, key_of};

pub(super) const MODEL: &[ConfigKey] = &[
    key_of(
        "model",
        Path,
        "null",
        &["base_model", "model_name_or_path", "model_path"],
        "Set the base model: a GGUF or .slc file",
    ),
    key_of(
        "output_dir",
        Path,
        "out",
        &[],
        "Set the folder for the adapter, checkpoints and logs",
    ),
    key_of(
        "adapter_name",
        Text,
        "null",
        &[],
        "Write into a subfolder of output_dir with this name",
    ),
    key_of(
        "adapter_name_or_path",
        Path,
        "null",
        &["lora_model_dir", "init_adapter", "lora_weights"],
        "Start from this adapter: a PEFT folder or GGUF file",
    ),
    key_of(
        "export",
        Choices(&["gguf", "infq"]),
        "[]",
        &["export_formats"],
        "Write the adapter in these formats as well",
    ),
    key_of(
        "chat_template",
        Text,
        "null",
        &["template"],
        "Use a built-in chat template (chatml, gemma, llama3, phi3, zephyr) or this Jinja text instead of the model's",
    ),
    key_of(
        "chat_template_path",
        Path,
        "null",
        &["chat_template_file", "chat_template_jinja_path"],
        "Read the chat template from a file, or from chat_template.jinja in a folder",
    ),
    key_of(
        "chat_template_kwargs",
        Map,
        "{}",
        &[],
        "Set variables of the chat template, such as {enable_thinking: false}",
    ),
];

pub(super) const ENGINE: &[ConfigKey] = &[
    key_of(
        "threads",
        Int(0, 256),
        "0",
        &["num_threads", "n_threads"],
        "Set the number of threads; 0 is one per core",
    ),
    key_of(
        "isa",
        Choice(&["auto", "scalar", "avx2", "avx512", "amx"]),
        "auto",
        &[],
        "Set the instruction set of the kernels; the adapter's bytes do not depend on it",
    ),
    key_of(
        "forward",
        Choice(&["int8", "f32"]),
        "int8",
        &[],
        "Set the arithmetic of the forward pass: int8 is what is served, f32 is for comparisons",
    ),
    key_of(
        "grad_dtype",
        Choice(&["bf16", "f32"]),
        "bf16",
        &[],
        "Set the type of the products that carry gradients through the base weights",
    ),
    key_of(
        "kv_type",
        Choice(&["f16", "f32", "bf16"]),
        "f16",
        &["cache_type"],
        "Set the type of keys and values, as when the model is served",
    ),
    key_of(
        "gradient_checkpointing",
        Auto,
        "auto",
        &["enable_gradient_checkpointing"],
        "Keep only the inputs of layers and compute the rest again; auto decides by memory",
    ),
];
