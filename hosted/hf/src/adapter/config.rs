//! `adapter_config.json`: ranks and scales of a PEFT adapter, and checks for unsupported settings.
//!
//! Tensors show which modules are adapted, so `target_modules` and similar keys are not read. `target_parameters` is,
//! because tensors of adapted parameters are named only after their modules. A setting that changes the computation is
//! honoured or refused by name; an unknown one causes a warning.

use super::merge_config::{AdapterStart, MergeSettings, flag};
use crate::config::Config;
use crate::files::read_json;
use crate::unread::{Neutral, is_one_of, short};
use regex_lite::Regex;
use serde_json::Value;
use sluice::adapter::AdapterLoadError;
use std::path::Path;

/// The settings in `adapter_config.json`.
#[derive(Debug)]
pub(super) struct AdapterConfig {
    rank: u32,
    alpha: f64,
    /// Ranks of modules whose names match; the first match counts.
    ranks: Vec<(Regex, u32)>,
    alphas: Vec<(Regex, f64)>,
    /// The scale is α / √r.
    is_stabilised: bool,
    /// Suffixes of the names of parameters that are adapted without their modules.
    parameters: Vec<String>,
    /// The PEFT version, if it is a released one.
    version: Option<[u32; 3]>,
    pub(super) base_model: Option<String>,
    /// Whether embedding and head share what is trained, in models that tie them.
    pub(super) is_tying: bool,
    /// What only a merge applies; `None` where the adapter is to run.
    pub(super) merge: Option<MergeSettings>,
    pub(super) warnings: Vec<String>,
}

/// Far more patterns than an adapter has modules.
const PATTERNS_MAX: usize = 1 << 16;

impl AdapterConfig {
    /// Reads the file; settings that only a merge can apply are refused unless it `is_merge`.
    pub(super) fn read(path: &Path, is_merge: bool) -> Result<Self, AdapterLoadError> {
        Self::of(&Config::new(path, read_json(path)?), is_merge)
    }

    fn of(config: &Config, is_merge: bool) -> Result<Self, AdapterLoadError> {
        match config.str("peft_type") {
            Some("LORA") => {}
            Some(other) => {
                let what = format!("is {other:?}; only LORA is supported");
                return Err(config.error(&["peft_type"], &what).into());
            }
            None => return Err(config.error(&["peft_type"], "is missing").into()),
        }
        let ranks = patterns(config, "rank_pattern", |config, key| {
            Ok(config.count(&[key])?)
        })?;
        let alphas = patterns(config, "alpha_pattern", |config, key| {
            Ok(config.number(&[key])?)
        })?;
        let parameters = config.texts("target_parameters")?.unwrap_or_default();
        let base_model = config.str("base_model_name_or_path");
        let base_model = base_model
            .filter(|name| !name.is_empty())
            .map(str::to_owned);
        let mut read = Self {
            rank: config.count(&["r"])?,
            alpha: config.number(&["lora_alpha"])?,
            ranks,
            alphas,
            is_stabilised: flag(config, "use_rslora")?,
            parameters: parameters.into_iter().map(str::to_owned).collect(),
            version: config.str("peft_version").and_then(version),
            base_model,
            is_tying: flag(config, "ensure_weight_tying")?,
            merge: is_merge.then(|| MergeSettings::read(config)).transpose()?,
            warnings: Vec::new(),
        };
        check(config, is_merge, &mut read.warnings)?;
        Ok(read)
    }

    /// Whether a parameter is adapted without its module. Its ranks and scales then follow its own name.
    pub(super) fn adapts(&self, parameter: &str) -> bool {
        self.parameters.iter().any(|end| {
            let rest = parameter.strip_suffix(end.as_str());
            rest.is_some_and(|rest| rest.is_empty() || rest.ends_with('.'))
        })
    }

    /// Whether PEFT's version alone implies that A takes the inputs of experts stored as one parameter:
    /// [`super::experts`].
    pub(super) fn a_takes_inputs(&self, is_turned: bool) -> bool {
        self.version.is_some_and(|version| match is_turned {
            false => version >= [0, 19, 1],
            true => version < [0, 19, 0],
        })
    }

    /// The rank of a module's matrices.
    pub(super) fn rank(&self, module: &str) -> u32 {
        of_module(&self.ranks, module).unwrap_or(self.rank)
    }

    /// The factor of a module's product.
    pub(super) fn scale(&self, module: &str) -> f32 {
        let alpha = of_module(&self.alphas, module).unwrap_or(self.alpha);
        let rank = f64::from(self.rank(module));
        let by = if self.is_stabilised {
            rank.sqrt()
        } else {
            rank
        };
        narrow(alpha / by)
    }
}

#[expect(clippy::cast_possible_truncation, reason = "rounded to f32")]
const fn narrow(x: f64) -> f32 {
    x as f32
}

fn of_module<T: Copy>(patterns: &[(Regex, T)], module: &str) -> Option<T> {
    let found = patterns
        .iter()
        .find(|(pattern, _)| pattern.is_match(module));
    found.map(|(_, value)| *value)
}

/// Parses a version of three numbers; development versions have more.
fn version(text: &str) -> Option<[u32; 3]> {
    let numbers: Option<Vec<_>> = text.split('.').map(|part| part.parse().ok()).collect();
    numbers?.try_into().ok()
}

/// Reads an object of patterns: PEFT uses the first one that matches the end of a module's name, from a dot or the
/// start.
fn patterns<T>(
    config: &Config,
    key: &str,
    value: impl Fn(&Config, &str) -> Result<T, AdapterLoadError>,
) -> Result<Vec<(Regex, T)>, AdapterLoadError> {
    match config.find(&[key]) {
        None => return Ok(Vec::new()),
        Some(Value::Object(map)) if map.len() <= PATTERNS_MAX => {}
        Some(_) => return Err(config.error(&[key], "is not an object of patterns").into()),
    }
    let part = config.part(key);
    let entries = part.map().iter().map(|(pattern, _)| {
        let regex = Regex::new(&format!(r"^(.*\.)?({pattern})$")).map_err(|error| {
            let what = format!("is not a valid pattern: {error}");
            AdapterLoadError::from(part.error(&[pattern], &what))
        })?;
        Ok((regex, value(&part, pattern)?))
    });
    entries.collect()
}

/// Refuses keys that change the computation, and warns about unknown ones.
fn check(
    config: &Config,
    is_merge: bool,
    warnings: &mut Vec<String>,
) -> Result<(), AdapterLoadError> {
    check_init(config, is_merge)?;
    for (key, value) in config.unread() {
        if is_one_of(HARMLESS, key) {
            continue;
        }
        let listed = NEUTRAL.iter().find(|(name, ..)| *name == key);
        let (is_neutral, why) = match listed {
            Some((_, neutral, why)) => (neutral.is(value), *why),
            // A method enabled by a flag.
            None if key.starts_with("use_") => (Neutral::Off.is(value), "unknown"),
            None => {
                if !Neutral::Off.is(value) {
                    let (told, value) = (config.named(key), short(value));
                    warnings.push(format!("{told} is {value}: unknown, ignored"));
                }
                continue;
            }
        };
        if !is_neutral {
            let end = match is_one_of(MERGED, key) {
                true => MERGE_ONLY,
                false => "which is not supported",
            };
            let what = format!("is {}: {why}, {end}", short(value));
            return Err(config.error(&[key], &what).into());
        }
    }
    Ok(())
}

/// Refuses initialisations that change the base model: the adapter only fits the changed model.
fn check_init(config: &Config, is_merge: bool) -> Result<(), AdapterLoadError> {
    let key = "init_lora_weights";
    let is_known = match config.find(&[key]) {
        None | Some(Value::Bool(_)) => true,
        Some(Value::String(name)) => {
            let known = ["gaussian", "eva", "orthogonal", "mica"];
            known.contains(&name.to_lowercase().as_str())
        }
        Some(_) => false,
    };
    let of_base = AdapterStart::of(config);
    if is_known || is_merge && of_base.is_some() {
        return Ok(());
    }
    let value = config.find(&[key]).map(short).unwrap_or_default();
    let how = match of_base {
        Some(_) => {
            "apply it with `sluice lora merge` to that model in F32, F16 or BF16, or save it"
        }
        None => "save it",
    };
    let what = format!(
        "is {value}: such an adapter requires a base model with changed weights, which is not supported; {how} with \
         path_initial_model_for_weight_conversion to get a plain one"
    );
    Err(config.error(&[key], &what).into())
}

/// Ends a message about what an engine cannot apply next to other adapters.
pub(super) const MERGE_ONLY: &str = "which only `sluice lora merge` can apply";

/// Keys of [`NEUTRAL`] that a merge reads.
const MERGED: &str = "bias lora_bias modules_to_save trainable_token_indices use_dora";

/// Keys that change the computation unless they have this value, with a description of each.
const NEUTRAL: [(&str, Neutral, &str); 17] = [
    (
        "alora_invocation_tokens",
        Neutral::Off,
        "the adapter applies only after certain tokens (aLoRA)",
    ),
    (
        "arrow_config",
        Neutral::Off,
        "adapters are chosen by token (Arrow)",
    ),
    (
        "bias",
        Neutral::Text(&["none"]),
        "biases are trained as well",
    ),
    ("fan_in_fan_out", Neutral::Off, "weights are turned"),
    (
        "kasa_config",
        Neutral::Off,
        "base weights are changed (KaSA)",
    ),
    ("layer_replication", Neutral::Off, "layers are repeated"),
    ("lora_bias", Neutral::Off, "the second matrix has a bias"),
    ("megatron_config", Neutral::Off, "layers are Megatron's"),
    (
        "modules_to_save",
        Neutral::Off,
        "whole modules are trained as well",
    ),
    (
        "monteclora_config",
        Neutral::Off,
        "matrices are drawn at random (MonteCLoRA)",
    ),
    (
        "trainable_token_indices",
        Neutral::Off,
        "rows of the embedding are trained",
    ),
    (
        "use_bdlora",
        Neutral::Off,
        "matrices are made of blocks (BD-LoRA)",
    ),
    (
        "use_dora",
        Neutral::Off,
        "weights have a separate magnitude (DoRA)",
    ),
    ("use_mora", Neutral::Off, "the matrix is square (MoRA)"),
    ("use_qalora", Neutral::Off, "columns are pooled (QALoRA)"),
    (
        "invocation_string",
        Neutral::Off,
        "the adapter applies only after a certain text (aLoRA)",
    ),
    (
        "velora_config",
        Neutral::Off,
        "activations are compressed (VeLoRA)",
    ),
];

/// Keys about training, files, and the adapted modules, which the tensors already show.
const HARMLESS: &str = "\
    auto_mapping corda_config eva_config exclude_modules inference_mode layers_pattern layers_to_transform \
    loftq_config lora_dropout lora_ga_config megatron_core peft_version qalora_group_size revision runtime_config \
    target_modules task_type base_model_class parent_library unsloth_fixed unsloth_version transformers_version \
    tokenizer_class modules_to_tie";

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    /// Reads a configuration that has these keys in addition to the required ones.
    fn read(changes: &Value) -> Result<AdapterConfig, String> {
        let mut map = json!({"peft_type": "LORA", "r": 8, "lora_alpha": 16});
        let all = map.as_object_mut().expect("an object");
        for (key, value) in changes.as_object().expect("an object") {
            all.insert(key.clone(), value.clone());
        }
        let config = Config::new(Path::new("adapter_config.json"), all.clone());
        AdapterConfig::of(&config, false).map_err(|error| error.to_string())
    }

    #[test]
    fn patterns_match_the_end_of_a_name() {
        let config = read(&json!({
            "rank_pattern": {"layers.0.q_proj": 4, "q_proj": 2, "^model.layers.1.k_proj": 16, "(v|o)_proj": 3},
            "alpha_pattern": {"q_proj": 1.5},
        }));
        let config = config.expect("it is sound");
        for (module, rank, scale) in [
            ("model.layers.0.q_proj", 4, 1.5 / 4.0),
            ("model.layers.1.q_proj", 2, 0.75),
            ("model.layers.1.xq_proj", 8, 2.0),
            ("model.layers.1.k_proj", 16, 1.0),
            ("x.model.layers.1.k_proj", 8, 2.0),
            ("o_proj", 3, 16.0 / 3.0),
        ] {
            let found = (config.rank(module), config.scale(module).to_bits());
            assert_eq!(found, (rank, narrow(scale).to_bits()), "{module}");
        }
    }

    #[test]
    fn a_stabilised_scale_is_by_the_root() {
        let config = read(&json!({"use_rslora": true, "rank_pattern": {"q": 4}}));
        let config = config.expect("it is sound");
        assert_eq!(config.scale("q").to_bits(), 8f32.to_bits());
        assert_eq!(
            config.scale("k").to_bits(),
            narrow(16.0 / 8f64.sqrt()).to_bits()
        );
    }

    #[test]
    fn parameters_are_named_by_the_ends_of_their_names() {
        let config =
            read(&json!({"target_parameters": ["gate_up_proj", "model.layers.1.mlp.gate.weight"]}));
        let config = config.expect("it is sound");
        for (parameter, is_adapted) in [
            ("model.layers.0.mlp.experts.gate_up_proj", true),
            ("gate_up_proj", true),
            ("model.layers.0.mlp.experts.x_gate_up_proj", false),
            ("model.layers.0.mlp.experts.gate_up_proj_bias", false),
            ("model.layers.0.mlp.gate_up_proj.weight", false),
            ("model.layers.1.mlp.gate.weight", true),
            ("model.layers.0.mlp.gate.weight", false),
        ] {
            assert_eq!(config.adapts(parameter), is_adapted, "{parameter}");
        }
    }

    #[test]
    fn released_versions_say_which_factor_takes_inputs() {
        for (version, expected) in [
            (json!("0.21.2"), [true, false]),
            (json!("0.19.1"), [true, false]),
            (json!("0.19.0"), [false, false]),
            (json!("0.18.1"), [false, true]),
            (json!("0.19.2.dev0@1a2b"), [false, false]),
            (json!(null), [false, false]),
        ] {
            let config = read(&json!({ "peft_version": version })).expect("it is sound");
            let found = [false, true].map(|is_turned| config.a_takes_inputs(is_turned));
            assert_eq!(found, expected, "{version}");
        }
    }

    #[test]
    fn what_changes_the_computation_is_refused_by_name() {
        for (key, value) in [
            ("use_dora", json!(true)),
            ("bias", json!("lora_only")),
            ("fan_in_fan_out", json!(true)),
            ("modules_to_save", json!(["lm_head"])),
            ("target_parameters", json!("experts.gate_up_proj")),
            ("lora_bias", json!(true)),
            ("alora_invocation_tokens", json!([1, 2])),
            ("layer_replication", json!([[0, 4]])),
            ("trainable_token_indices", json!([1])),
            ("megatron_config", json!({"a": 1})),
            ("init_lora_weights", json!("pissa_niter_4")),
            ("init_lora_weights", json!("olora")),
            ("use_something_new", json!(true)),
            ("peft_type", json!("LOHA")),
            ("r", json!(0)),
            ("r", json!(1u64 << 40)),
            ("lora_alpha", json!("many")),
            ("use_rslora", json!(1)),
            ("rank_pattern", json!([1])),
        ] {
            let error = read(&json!({ key: value })).expect_err(key);
            let named = format!("adapter_config.json: {key} is ");
            assert!(error.contains(&named), "{error}");
        }
        let error = read(&json!({"rank_pattern": {"(?=x)": 4}})).expect_err("no such pattern");
        assert!(
            error.contains("rank_pattern.(?=x) is not a valid pattern"),
            "{error}"
        );
        let error = read(&json!({"alpha_pattern": {"q": "x"}})).expect_err("no number");
        assert!(error.contains("alpha_pattern.q is \"x\""), "{error}");
    }

    #[test]
    fn what_is_not_known_is_a_warning() {
        let config = read(
            &json!({"marvellous": 3, "new_and_off": false, "target_modules": ["q"],
            "bias": "none", "modules_to_save": null, "init_lora_weights": "gaussian", "use_dora": false}),
        );
        assert_eq!(
            config.expect("only a warning").warnings,
            ["adapter_config.json: marvellous is 3: unknown, ignored"]
        );
    }
}
