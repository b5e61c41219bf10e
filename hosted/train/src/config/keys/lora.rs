//! Keys of the adapter.

use super::Kind::{Bool, Choice, Float, Int, Ints, Numbers, Share, TextOrTexts};
use super::{ConfigKey, key_of};

pub(super) const LORA: &[ConfigKey] = &[
    key_of(
        "lora_r",
        Int(1, 4096),
        "16",
        &["r", "lora_rank"],
        "Set the rank",
    ),
    key_of(
        "lora_alpha",
        Float(0.0, f64::MAX),
        "32",
        &["alpha"],
        "Set the scale: alpha / r, with use_rslora alpha / √r",
    ),
    key_of(
        "lora_dropout",
        Share,
        "0",
        &["dropout"],
        "Set the share of an adapter's inputs that are dropped while training",
    ),
    key_of(
        "target_modules",
        TextOrTexts,
        "all-linear",
        &["lora_target_modules", "lora_target"],
        "Set the adapted matrices: names, or a pattern",
    ),
    key_of(
        "layers_to_transform",
        Ints,
        "null",
        &["peft_layers_to_transform", "lora_layers_to_transform"],
        "Adapt only these layers, counted from 0",
    ),
    key_of(
        "rank_pattern",
        Numbers,
        "{}",
        &["lora_rank_pattern"],
        "Set ranks by patterns of names: {down_proj: 8}",
    ),
    key_of(
        "alpha_pattern",
        Numbers,
        "{}",
        &["lora_alpha_pattern"],
        "Set alphas by patterns of names",
    ),
    key_of(
        "use_rslora",
        Bool,
        "false",
        &["peft_use_rslora", "lora_use_rslora"],
        "Scale by alpha / √r",
    ),
    key_of(
        "loraplus_lr_ratio",
        Float(0.0, f64::MAX),
        "null",
        &[],
        "Multiply the learning rate of B matrices by this ratio (LoRA+)",
    ),
    key_of(
        "init_lora_weights",
        Choice(&["true", "gaussian"]),
        "true",
        &["peft_init_lora_weights"],
        "Set how A begins: true is Kaiming's uniform distribution; B begins with 0",
    ),
];
