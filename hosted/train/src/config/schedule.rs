//! The schedule of the learning rate, as a choice with its parameters.

use super::error::ConfigError;
use super::settings::Settings;
use serde_json::{Map, Value};

/// How the learning rate goes on after its warm-up, as transformers' `optimization.py` computes it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Schedule {
    /// The highest rate, from the first step on: `constant`, which has no warm-up.
    Constant,
    /// The highest rate, after the warm-up.
    ConstantWithWarmup,
    /// Down to 0 at the last step.
    Linear,
    /// Along a cosine.
    Cosine {
        /// Number of waves; ½ goes down once.
        num_cycles: f64,
        /// The lowest rate over the highest.
        min_lr_rate: f64,
    },
    /// Up, level, and down.
    WarmupStableDecay {
        /// Steps at the highest rate; `None` for those that the others leave.
        num_stable_steps: Option<u64>,
        /// Steps on the way down.
        num_decay_steps: u64,
        /// The way up.
        warmup: DecayShape,
        /// The way down.
        decay: DecayShape,
        /// The lowest rate over the highest.
        min_lr_ratio: f64,
        /// Of the cosine.
        num_cycles: f64,
    },
}

/// The shape of a way up or down.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DecayShape {
    /// A line.
    Linear,
    /// A cosine.
    Cosine,
    /// 1 - √progress.
    InverseSquareRoot,
}

/// The schedule that is set.
pub(super) fn of(settings: &Settings, learning_rate: f64) -> Result<Schedule, ConfigError> {
    let value = settings.value(KWARGS);
    let map = value.as_object().cloned().unwrap_or_default();
    let name = settings.text("lr_scheduler_type");
    check_names(settings, &name, &map)?;
    let number = |key: &str, default| match map.get(key) {
        None | Some(Value::Null) => Ok(default),
        Some(value) => {
            let number = value.as_f64().filter(|number| *number >= 0.0);
            number.ok_or_else(|| settings.wrong(KWARGS, &format!("a number from 0 as {key}")))
        }
    };
    let steps = |key: &str| match map.get(key) {
        None | Some(Value::Null) => Ok(None),
        Some(value) => {
            let steps = value.as_u64().map(Some);
            steps.ok_or_else(|| settings.wrong(KWARGS, &format!("a whole number as {key}")))
        }
    };
    let num_cycles = number("num_cycles", 0.5)?;
    Ok(match &*name {
        "constant" => Schedule::Constant,
        "constant_with_warmup" => Schedule::ConstantWithWarmup,
        "cosine" => Schedule::Cosine {
            num_cycles,
            min_lr_rate: 0.0,
        },
        "cosine_with_min_lr" => Schedule::Cosine {
            num_cycles,
            min_lr_rate: match (map.get("min_lr"), map.get("min_lr_rate")) {
                (Some(_), None) if learning_rate > 0.0 => number("min_lr", 0.0)? / learning_rate,
                (None, Some(_)) => number("min_lr_rate", 0.0)?,
                _ => return Err(settings.wrong(KWARGS, "min_lr or min_lr_rate")),
            },
        },
        "warmup_stable_decay" => Schedule::WarmupStableDecay {
            num_stable_steps: steps("num_stable_steps")?,
            num_decay_steps: steps("num_decay_steps")?
                .ok_or_else(|| settings.wrong(KWARGS, "num_decay_steps for warmup_stable_decay"))?,
            warmup: shape(
                settings,
                map.get("warmup_type"),
                "warmup_type",
                DecayShape::Linear,
            )?,
            decay: shape(
                settings,
                map.get("decay_type"),
                "decay_type",
                DecayShape::Cosine,
            )?,
            min_lr_ratio: number("min_lr_ratio", 0.0)?,
            num_cycles,
        },
        _ => Schedule::Linear,
    })
}

/// Refuses parameters that a schedule does not have.
fn check_names(
    settings: &Settings,
    name: &str,
    map: &Map<String, Value>,
) -> Result<(), ConfigError> {
    let known: &[&str] = match name {
        "cosine" => &["num_cycles"],
        "cosine_with_min_lr" => &["num_cycles", "min_lr", "min_lr_rate"],
        "warmup_stable_decay" => &[
            "num_stable_steps",
            "num_decay_steps",
            "warmup_type",
            "decay_type",
            "min_lr_ratio",
            "num_cycles",
        ],
        _ => &[],
    };
    if let Some(key) = map.keys().find(|key| !known.contains(&&***key)) {
        let listed = match known {
            [] => "no parameters".to_owned(),
            known => known.join(", "),
        };
        return Err(settings.wrong(KWARGS, &format!("{listed} for {name}, not {key}")));
    }
    Ok(())
}

fn shape(
    settings: &Settings,
    value: Option<&Value>,
    key: &str,
    default: DecayShape,
) -> Result<DecayShape, ConfigError> {
    let Some(value) = value else {
        return Ok(default);
    };
    match value.as_str() {
        Some("linear") => Ok(DecayShape::Linear),
        Some("cosine") => Ok(DecayShape::Cosine),
        Some("1-sqrt") => Ok(DecayShape::InverseSquareRoot),
        _ => Err(settings.wrong(KWARGS, &format!("linear, cosine or 1-sqrt as {key}"))),
    }
}

const KWARGS: &str = "lr_scheduler_kwargs";
