//! Names of other tools whose values mean something else here, or that stand for a value of a key.

use serde_json::{Value, json};

/// What an entry becomes: values of keys, which may be none.
pub(super) type Turned = Vec<(&'static str, Value)>;

/// A name, what it becomes, and what its value has to be.
pub(super) struct Turn {
    pub(super) name: &'static str,
    pub(super) key: &'static str,
    pub(super) expected: &'static str,
    pub(super) turn: fn(&Value) -> Option<Turned>,
}

pub(super) const TURNED: &[Turn] = &[
    Turn {
        name: "no_shuffle",
        key: "shuffle_dataset",
        expected: "true or false",
        turn: |value| Some(vec![("shuffle_dataset", json!(!value.as_bool()?))]),
    },
    Turn {
        name: "disable_shuffling",
        key: "shuffle_dataset",
        expected: "true or false",
        turn: |value| Some(vec![("shuffle_dataset", json!(!value.as_bool()?))]),
    },
    Turn {
        name: "lora_target_linear",
        key: "target_modules",
        expected: "true or false",
        turn: |value| {
            Some(match value.as_bool()? {
                true => vec![("target_modules", json!("all-linear"))],
                false => Vec::new(),
            })
        },
    },
    Turn {
        name: "auto_resume_from_checkpoints",
        key: "resume_from_checkpoint",
        expected: "true or false",
        turn: |value| {
            Some(match value.as_bool()? {
                true => vec![("resume_from_checkpoint", json!("auto"))],
                false => Vec::new(),
            })
        },
    },
    Turn {
        name: "cosine_min_lr_ratio",
        key: "lr_scheduler_kwargs",
        expected: "a number from 0 to 1",
        turn: |value| {
            let rate = value.as_f64().filter(|rate| (0.0..=1.0).contains(rate))?;
            let kwargs = json!({"min_lr_rate": rate});
            let kind = json!("cosine_with_min_lr");
            Some(vec![
                ("lr_scheduler_type", kind),
                ("lr_scheduler_kwargs", kwargs),
            ])
        },
    },
    Turn {
        name: "use_tensorboard",
        key: "report_to",
        expected: "true or false",
        turn: |value| {
            Some(match value.as_bool()? {
                true => vec![("report_to", json!(["tensorboard"]))],
                false => Vec::new(),
            })
        },
    },
    Turn {
        name: "adapter",
        key: "",
        expected: "lora",
        turn: |value| is(value, "lora"),
    },
    Turn {
        name: "finetuning_type",
        key: "",
        expected: "lora",
        turn: |value| is(value, "lora"),
    },
    Turn {
        name: "peft_type",
        key: "",
        expected: "LORA",
        turn: |value| is(value, "lora"),
    },
    Turn {
        name: "task_type",
        key: "",
        expected: "CAUSAL_LM",
        turn: |value| is(value, "causal_lm"),
    },
    Turn {
        name: "stage",
        key: "",
        expected: "sft (pt, rm, ppo and dpo are not)",
        turn: |value| is(value, "sft"),
    },
    Turn {
        name: "do_train",
        key: "",
        expected: "true",
        turn: |value| value.as_bool()?.then(Vec::new),
    },
];

/// Nothing, if the value is this word.
fn is(value: &Value, word: &str) -> Option<Turned> {
    let found = value.as_str()?;
    found.eq_ignore_ascii_case(word).then(Vec::new)
}
