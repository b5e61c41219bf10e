//! Keys of the data and of what the model learns from it.

use super::Kind::{Amount, Auto, Bool, Choice, Files, Float, Int, Text, Texts};
use super::{ConfigKey, key_of};

pub(super) const DATA: &[ConfigKey] = &[
    key_of(
        "dataset",
        Files,
        "null",
        &[
            "datasets",
            "train_file",
            "train_files",
            "dataset_name",
            "data_path",
            "train_dataset",
        ],
        "Set the rows: .jsonl, .json, .csv or .tsv files, or a folder",
    ),
    key_of(
        "eval_dataset",
        Files,
        "null",
        &[
            "eval_file",
            "validation_file",
            "test_datasets",
            "eval_files",
            "valid_file",
        ],
        "Set the files of rows to evaluate on",
    ),
    key_of(
        "prompts",
        Texts,
        "[]",
        &["prompt"],
        "Train on these texts if no dataset is set",
    ),
    key_of(
        "dataset_type",
        Choice(super::super::TYPES),
        "auto",
        &["dataset_format", "formatting"],
        "Set the form of the rows; auto recognises it by their columns",
    ),
    key_of(
        "dataset_text_field",
        Text,
        "text",
        &["text_field", "text_column", "field"],
        "Set the column of text rows",
    ),
    key_of(
        "max_samples",
        Int(1, i64::MAX),
        "null",
        &["max_train_samples"],
        "Use only the first N rows of each file",
    ),
    key_of(
        "val_size",
        Amount,
        "0",
        &["val_set_size"],
        "Split off rows to evaluate on: a share below 1, or a number of rows",
    ),
    key_of(
        "dataset_exact_deduplication",
        Bool,
        "true",
        &["deduplicate"],
        "Drop rows with the same tokens as an earlier row, and rows of the evaluation that are trained on",
    ),
    key_of(
        "shuffle_dataset",
        Bool,
        "true",
        &["shuffle", "shuffle_merged_datasets"],
        "Draw another order of the rows for each epoch",
    ),
    key_of(
        "max_length",
        Int(2, 1 << 24),
        "1024",
        &[
            "sequence_len",
            "cutoff_len",
            "max_seq_len",
            "max_seq_length",
            "model_max_length",
        ],
        "Cut rows to this number of tokens",
    ),
    key_of(
        "truncation_mode",
        Choice(&["keep_start"]),
        "keep_start",
        &[],
        "Set which end of a long row is kept",
    ),
    key_of(
        "packing",
        Bool,
        "false",
        &["sample_packing"],
        "Fill micro-batches up to max_length tokens with several rows; changes no bit of the result",
    ),
    key_of(
        "packing_strategy",
        Choice(&["bfd"]),
        "bfd",
        &[],
        "Set how micro-batches are filled: bfd is best fit, decreasing",
    ),
];

pub(super) const LABELS: &[ConfigKey] = &[
    key_of(
        "train_on_inputs",
        Bool,
        "false",
        &["train_on_prompt"],
        "Learn prompts and all turns as well, not only completions and answers",
    ),
    key_of(
        "completion_only_loss",
        Auto,
        "auto",
        &[],
        "Learn only the completion of rows with a prompt; auto is the opposite of train_on_inputs",
    ),
    key_of(
        "assistant_only_loss",
        Auto,
        "auto",
        &[],
        "Learn only the assistant's turns of conversations; auto is the opposite of train_on_inputs",
    ),
    key_of(
        "neftune_noise_alpha",
        Float(0.0, f64::MAX),
        "null",
        &["neftune_alpha", "noisy_embedding_alpha"],
        "Add NEFTune's noise of this strength to the embeddings while training",
    ),
];
