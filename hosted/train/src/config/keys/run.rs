//! Keys of evaluation, checkpoints and logs.

use super::Kind::{Amount, Bool, Choice, Choices, Float, Int, Path, Text};
use super::{ConfigKey, key_of};

pub(super) const EVAL: &[ConfigKey] = &[
    key_of(
        "eval_strategy",
        Choice(&["auto", "no", "steps", "epoch"]),
        "auto",
        &["evaluation_strategy"],
        "Set when to evaluate; auto is steps if eval_steps is set, else epoch if there are rows for it",
    ),
    key_of(
        "eval_steps",
        Amount,
        "null",
        &[],
        "Evaluate every N steps, or below 1 after this share of all steps",
    ),
    key_of(
        "evals_per_epoch",
        Int(1, i64::MAX),
        "null",
        &[],
        "Evaluate N times per epoch",
    ),
    key_of(
        "eval_on_start",
        Bool,
        "false",
        &[],
        "Evaluate before the first step as well",
    ),
    key_of(
        "load_best_model_at_end",
        Bool,
        "false",
        &[],
        "End with the adapter of the best evaluation",
    ),
    key_of(
        "metric_for_best_model",
        Choice(&["eval_loss", "eval_mean_token_accuracy"]),
        "eval_loss",
        &[],
        "Set what the best checkpoint and early stopping go by",
    ),
    key_of(
        "early_stopping_patience",
        Int(1, i64::MAX),
        "null",
        &["early_stopping_steps"],
        "Stop after N evaluations without an improvement",
    ),
    key_of(
        "early_stopping_threshold",
        Float(0.0, f64::MAX),
        "0",
        &[],
        "Set what counts as an improvement",
    ),
    key_of(
        "eval_table_size",
        Int(0, 1000),
        "0",
        &[],
        "Generate answers to the first N rows at each evaluation",
    ),
    key_of(
        "eval_max_new_tokens",
        Int(1, 1 << 20),
        "128",
        &["eval_table_max_new_tokens"],
        "Set the maximum number of tokens of such an answer",
    ),
];

pub(super) const OUTPUT: &[ConfigKey] = &[
    key_of(
        "save_strategy",
        Choice(&["steps", "epoch", "no"]),
        "steps",
        &[],
        "Set when to write checkpoints",
    ),
    key_of(
        "save_steps",
        Amount,
        "500",
        &[],
        "Write a checkpoint every N steps, or below 1 after this share of all steps",
    ),
    key_of(
        "saves_per_epoch",
        Int(1, i64::MAX),
        "null",
        &[],
        "Write N checkpoints per epoch",
    ),
    key_of(
        "save_total_limit",
        Int(1, i64::MAX),
        "3",
        &[],
        "Keep the last N checkpoints, and the best one",
    ),
    key_of(
        "resume_from_checkpoint",
        Path,
        "null",
        &["resume"],
        "Continue from this checkpoint; auto is the last one",
    ),
    key_of(
        "overwrite_output_dir",
        Bool,
        "false",
        &["overwrite"],
        "Start again in a folder that has an adapter or checkpoints",
    ),
    key_of(
        "logging_steps",
        Amount,
        "10",
        &[],
        "Log every N steps, or below 1 after this share of all steps",
    ),
    key_of(
        "logging_first_step",
        Bool,
        "false",
        &[],
        "Log the first step as well",
    ),
    key_of(
        "logging_dir",
        Path,
        "null",
        &["tensorboard_log_dir"],
        "Set the folder of TensorBoard's files; by default runs in the output folder",
    ),
    key_of(
        "report_to",
        Choices(&["tensorboard", "none"]),
        "[]",
        &[],
        "Write TensorBoard's event files in addition to log.jsonl, log.csv and curves.svg",
    ),
    key_of(
        "run_name",
        Text,
        "null",
        &[],
        "Set the name of the run in logs",
    ),
];
