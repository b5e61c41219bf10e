//! Keys of steps, optimizer and schedule.

use super::Kind::{Choice, Float, Int, Map, Share};
use super::{ConfigKey, key_of};

pub(super) const OPTIMIZER: &[ConfigKey] = &[
    key_of(
        "per_device_train_batch_size",
        Int(1, 1 << 20),
        "1",
        &["micro_batch_size", "batch_size", "train_batch_size"],
        "Set the number of rows per micro-batch",
    ),
    key_of(
        "gradient_accumulation_steps",
        Int(1, 1 << 20),
        "8",
        &[],
        "Set the number of micro-batches per step",
    ),
    key_of(
        "num_train_epochs",
        Float(0.0, 1e6),
        "1",
        &["num_epochs", "epochs"],
        "Set the number of passes over the rows",
    ),
    key_of(
        "max_steps",
        Int(-1, i64::MAX),
        "-1",
        &[],
        "Stop after this number of steps, whatever num_train_epochs is; -1 removes the limit",
    ),
    key_of(
        "learning_rate",
        Float(0.0, f64::MAX),
        "2e-4",
        &["lr"],
        "Set the highest learning rate",
    ),
    key_of(
        "lr_scheduler_type",
        Choice(&[
            "linear",
            "constant",
            "constant_with_warmup",
            "cosine",
            "cosine_with_min_lr",
            "warmup_stable_decay",
        ]),
        "linear",
        &["lr_scheduler"],
        "Set the schedule of the learning rate",
    ),
    key_of(
        "lr_scheduler_kwargs",
        Map,
        "{}",
        &[],
        "Set the schedule's parameters: min_lr, min_lr_rate, num_cycles; num_stable_steps, num_decay_steps, \
         min_lr_ratio, warmup_type, decay_type",
    ),
    key_of(
        "warmup_steps",
        Int(0, i64::MAX),
        "0",
        &[],
        "Raise the learning rate from 0 during this number of steps",
    ),
    key_of(
        "warmup_ratio",
        Float(0.0, 1.0),
        "0",
        &[],
        "Raise the learning rate from 0 during this share of the steps; warmup_steps takes precedence",
    ),
    key_of(
        "optim",
        Choice(&["adamw_torch"]),
        "adamw_torch",
        &["optimizer"],
        "Set the optimizer: AdamW as torch computes it",
    ),
    key_of(
        "weight_decay",
        Float(0.0, f64::MAX),
        "0",
        &[],
        "Set AdamW's decoupled weight decay",
    ),
    key_of(
        "adam_beta1",
        Share,
        "0.9",
        &[],
        "Set AdamW's decay of the first moment",
    ),
    key_of(
        "adam_beta2",
        Share,
        "0.999",
        &[],
        "Set AdamW's decay of the second moment",
    ),
    key_of(
        "adam_epsilon",
        Float(0.0, 1.0),
        "1e-8",
        &[],
        "Set AdamW's ε, which is added outside of the root",
    ),
    key_of(
        "max_grad_norm",
        Float(0.0, f64::MAX),
        "1",
        &["gradient_clipping"],
        "Clip the gradient to this norm; 0 turns clipping off",
    ),
    key_of(
        "seed",
        Int(0, i64::MAX),
        "42",
        &[],
        "Set the seed of initial weights, dropout and the order of rows",
    ),
    key_of(
        "data_seed",
        Int(0, i64::MAX),
        "null",
        &[],
        "Set another seed for the order of rows and for val_size",
    ),
];
