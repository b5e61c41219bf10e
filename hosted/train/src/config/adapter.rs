//! The settings of the adapter.

use super::error::ConfigError;
use super::settings::Settings;
use core::fmt;
use regex_lite::Regex;
use serde_json::Value;

/// The adapter.
#[derive(Clone, Debug)]
pub struct AdapterSettings {
    /// The rank of matrices that no pattern names.
    pub r: usize,
    /// The alpha of matrices that no pattern names.
    pub alpha: f64,
    /// From 0, below 1.
    pub dropout: f64,
    /// The adapted matrices.
    pub target_modules: TargetModules,
    /// The adapted layers; `None` for all.
    pub layers: Option<Vec<usize>>,
    /// Ranks by pattern: the first that matches the end of a module's name counts.
    pub rank_pattern: Vec<(String, usize)>,
    /// Alphas by pattern.
    pub alpha_pattern: Vec<(String, f64)>,
    /// Whether the scale is alpha / √r.
    pub use_rslora: bool,
    /// The learning rate of B matrices, divided by the rate of A matrices.
    pub loraplus_lr_ratio: Option<f64>,
    /// How A matrices begin.
    pub init: InitialWeights,
    /// NEFTune's alpha.
    pub neftune_alpha: Option<f64>,
}

/// The matrices that are adapted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TargetModules {
    /// All matrices of the layers.
    AllLinear,
    /// Modules whose names are, or end with, one of these.
    Names(Vec<String>),
    /// Modules whose whole name matches this regular expression.
    Pattern(String),
}

/// How A matrices begin. B matrices begin with zeros.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InitialWeights {
    /// Uniform in ±1/√in, as PEFT's `true`.
    Uniform,
    /// Normal with a standard deviation of 1/r.
    Gaussian,
}

impl AdapterSettings {
    pub(super) fn of(settings: &Settings) -> Result<Self, ConfigError> {
        let layers = settings.value("layers_to_transform");
        let layers = layers.as_array().map(|layers| {
            let index = |layer: &Value| usize::try_from(layer.as_u64()?).ok();
            layers.iter().filter_map(index).collect()
        });
        let mut ranks = Vec::new();
        for (pattern, rank) in patterns(settings, "rank_pattern")? {
            let whole = format!("{rank}").parse().ok();
            let rank = whole.filter(|rank| (1..=4096).contains(rank));
            let rank = rank.ok_or_else(|| settings.wrong("rank_pattern", RANKS))?;
            ranks.push((pattern, rank));
        }
        Ok(Self {
            r: settings.size("lora_r"),
            alpha: settings.number("lora_alpha"),
            dropout: settings.number("lora_dropout"),
            target_modules: TargetModules::of(settings)?,
            layers,
            rank_pattern: ranks,
            alpha_pattern: patterns(settings, "alpha_pattern")?,
            use_rslora: settings.bool("use_rslora"),
            loraplus_lr_ratio: settings.maybe_number("loraplus_lr_ratio"),
            init: match &*settings.text("init_lora_weights") {
                "gaussian" => InitialWeights::Gaussian,
                _ => InitialWeights::Uniform,
            },
            neftune_alpha: settings.maybe_number("neftune_noise_alpha"),
        })
    }
}

/// Numbers by pattern, in the order in which they were given.
fn patterns(settings: &Settings, key: &'static str) -> Result<Vec<(String, f64)>, ConfigError> {
    let value = settings.value(key);
    let mut patterns = Vec::new();
    for (pattern, number) in value.as_object().into_iter().flatten() {
        Regex::new(pattern).map_err(|error| settings.wrong(key, &expected_regex(&error)))?;
        patterns.push((pattern.clone(), number.as_f64().unwrap_or(1.0)));
    }
    Ok(patterns)
}

fn expected_regex(error: &dyn fmt::Display) -> String {
    format!("a regular expression ({error})")
}

impl TargetModules {
    pub(super) fn of(settings: &Settings) -> Result<Self, ConfigError> {
        const KEY: &str = "target_modules";
        let names = match settings.value(KEY) {
            Value::String(text) if text == "all-linear" => return Ok(Self::AllLinear),
            Value::String(text) => {
                let is_name = |c: char| c.is_ascii_alphanumeric() || "_., ".contains(c);
                if !text.chars().all(is_name) {
                    let compiled = Regex::new(&format!("^(?:{text})$"));
                    compiled.map_err(|error| settings.wrong(KEY, &expected_regex(&error)))?;
                    return Ok(Self::Pattern(text));
                }
                let names = text.split(',').map(|name| name.trim().to_owned());
                names.collect()
            }
            _ => settings.texts(KEY),
        };
        match names.iter().all(|name| !name.is_empty()) && !names.is_empty() {
            true if names == ["all"] || names == ["all-linear"] => Ok(Self::AllLinear),
            true => Ok(Self::Names(names)),
            false => Err(settings.wrong(KEY, "at least one name")),
        }
    }
}

const RANKS: &str = "whole numbers from 1 to 4096";
