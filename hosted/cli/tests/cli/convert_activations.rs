//! Which activation `sluice convert` writes for encoders and for models with zeros (`<arch>.activation`), and which it refuses.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use crate::convert::{FIXTURES, Folder, object, tensors};
use crate::families::{FAMILIES, convert, folder_of};
use crate::support::Ran;
use serde_json::{Map, Value, json};
use sluice::core::gguf::Gguf;
use std::fs;
use std::path::{Path, PathBuf};

/// A case with changes to its config.json, converted.
fn converted(name: &str, changes: &Value) -> (PathBuf, Ran, Folder) {
    let case = object(&Path::new(FAMILIES).join(format!("{name}.json")));
    let folder = folder_of(name, &case);
    folder.edit(&format!("{name}/config.json"), changes);
    let (out, ran) = convert(name, &case, &folder);
    (out, ran, folder)
}

#[test]
fn the_activation_of_encoders_is_written_by_name() {
    let absent = json!({"hidden_act": null, "hidden_activation": null});
    let named = |name| json!({"hidden_act": name});
    for (name, changes, expected) in [
        ("bert", json!({}), Some("gelu")),
        ("bert", absent.clone(), Some("gelu")),
        ("bert", named("gelu_python"), Some("gelu")),
        ("bert", named("gelu_new"), Some("gelu_pytorch_tanh")),
        ("bert-rank", named("gelu_fast"), Some("gelu_pytorch_tanh")),
        ("xlm-r", json!({}), Some("gelu")),
        ("jina-bert-v3", json!({}), Some("gelu")),
        (
            "jina-bert-v3",
            named("gelu_pytorch_tanh"),
            Some("gelu_pytorch_tanh"),
        ),
        ("jina-bert-v2", json!({}), Some("gelu")),
        ("nomic-bert-moe", json!({}), Some("gelu")),
        ("modern-bert", json!({}), Some("gelu")),
        ("modern-bert", absent, Some("gelu")),
        (
            "modern-bert",
            json!({"hidden_activation": "silu"}),
            Some("silu"),
        ),
        ("gemma-embedding", json!({}), None),
        ("eurobert", json!({}), None),
        ("nomic-bert", json!({}), None),
        ("gemma3", json!({}), None),
    ] {
        let (out, ran, _folder) = converted(name, &changes);
        assert_eq!(ran.code, Some(0), "{name} {changes}: {ran:?}");
        let file = fs::read(out).unwrap();
        let gguf = Gguf::parse(&file, file.len() as u64).unwrap();
        let key = gguf
            .metadata()
            .find(|(key, _)| key.ends_with(".activation"));
        let found = key.map(|(_, value)| value.as_str().unwrap());
        assert_eq!(found, expected, "{name} {changes}");
    }
}

#[test]
fn other_activations_of_encoders_are_refused_by_name() {
    for (name, key, other) in [
        ("bert", "hidden_act", "relu"),
        ("bert", "hidden_act", "silu"),
        ("xlm-r", "hidden_act", "quick_gelu"),
        ("jina-bert-v3", "hidden_act", "gelu_10"),
        ("jina-bert-v2", "feed_forward_type", "reglu"),
        ("modern-bert", "hidden_activation", "gelu_new"),
        ("modern-bert-rank", "classifier_activation", "gelu_new"),
        ("nomic-bert-moe", "activation_function", "gelu_new"),
        ("gemma-embedding", "hidden_activation", "gelu"),
    ] {
        let (_, ran, _folder) = converted(name, &json!({key: other}));
        assert_eq!(ran.code, Some(1), "{name} {key} {other}: {ran:?}");
        let is_named = ran.stderr.contains(key) && ran.stderr.contains(other);
        assert!(is_named, "{name} {key} {other}: {ran:?}");
    }
}

/// The activation and the threshold of a converted file, under its architecture.
fn written(file: &[u8]) -> (String, Option<(String, f32)>) {
    let gguf = Gguf::parse(file, file.len() as u64).unwrap();
    let arch = gguf.str("general.architecture").unwrap();
    let threshold = gguf.f32(&format!("{arch}.activation_threshold"));
    let name = gguf.str(&format!("{arch}.activation"));
    let activation = name
        .ok()
        .map(|name| (name.to_owned(), threshold.unwrap_or(0.0)));
    (arch.to_owned(), activation)
}

#[test]
fn decoders_with_zeros_name_their_activation() {
    for (name, changes, expected) in [
        ("minicpm", json!({}), None),
        (
            "minicpm",
            json!({"hidden_act": "relu"}),
            Some(("relu", 0.0)),
        ),
        (
            "minicpm",
            json!({"hidden_act": "fatrelu", "hidden_act_param": 0.25}),
            Some(("fatrelu", 0.25)),
        ),
        (
            "qwen2moe",
            json!({"hidden_act": "drelu"}),
            Some(("drelu", 0.0)),
        ),
        ("smallthinker", json!({}), None),
    ] {
        let (out, ran, _folder) = converted(name, &changes);
        assert_eq!(ran.code, Some(0), "{name} {changes}: {ran:?}");
        let (_, found) = written(&fs::read(out).unwrap());
        let found = found.as_ref().map(|(name, x)| (name.as_str(), *x));
        assert_eq!(found, expected, "{name} {changes}");
    }
    let (_, ran, _folder) = converted("minicpm", &json!({"hidden_act": "gelu"}));
    assert!(ran.stderr.contains("hidden_act"), "{ran:?}");
    let negative = json!({"hidden_act": "fatrelu", "hidden_act_param": -1.0});
    let (_, ran, _folder) = converted("minicpm", &negative);
    assert!(ran.stderr.contains("hidden_act_param"), "{ran:?}");
}

/// Layouts of published models are implied; others are written, and what the class of its first release could do is refused.
#[test]
fn layouts_of_smallthinker_are_those_of_published_models_or_written() {
    let keys = ["sliding_window", "sliding_window_pattern", "rope_pattern"];
    let found = |changes: &Value| {
        let (out, ran, _folder) = converted("smallthinker", changes);
        assert_eq!(ran.code, Some(0), "{changes}: {ran:?}");
        let file = fs::read(out).unwrap();
        let gguf = Gguf::parse(&file, file.len() as u64).unwrap();
        keys.map(|key| gguf.get(&format!("smallthinker.attention.{key}")).is_some())
    };
    let none = json!([0, 0, 0, 0, 0]);
    assert_eq!(found(&json!({})), [true, false, false]);
    let all = json!([1, 1, 1, 1, 1]);
    assert_eq!(
        found(&json!({"sliding_window_layout": none, "rope_layout": all})),
        [false; 3]
    );
    assert_eq!(
        found(&json!({"sliding_window_layout": none})),
        [false, false, true]
    );
    assert_eq!(
        found(&json!({"sliding_window_layout": all})),
        [true, true, false]
    );
    assert_eq!(found(&json!({"rope_layout": all})), [true, false, true]);
    for (key, value) in [
        ("moe_enable_early_router", json!(false)),
        ("moe_enable_secondary_experts", json!(true)),
        ("moe_layer_layout", json!([1, 0, 1, 1, 1])),
        ("use_qk_norm", json!(true)),
        ("rope_layout", json!([1, 1])),
    ] {
        let (_, ran, _folder) = converted("smallthinker", &json!({key: value}));
        assert_eq!(ran.code, Some(1), "{key}: {ran:?}");
        assert!(ran.stderr.contains(key), "{key}: {ran:?}");
    }
}

/// A folder of `families/` in memory, made of one under `convert/`.
fn case_of(name: &str, changes: &Value, more: &[(&str, [u64; 2])]) -> Map<String, Value> {
    let folder = Path::new(FIXTURES).join(name);
    let mut config = object(&folder.join("config.json"));
    config.extend(changes.as_object().unwrap().clone());
    let shapes = object(&folder.join("tensors.json"));
    let mut shapes: Map<String, Value> = (shapes.into_iter())
        .map(|(name, about)| (name, about[1].clone()))
        .collect();
    shapes.extend(
        more.iter()
            .map(|(name, shape)| ((*name).to_owned(), json!(shape))),
    );
    let case = json!({"tokenizer": name, "config": config, "tensors": shapes});
    case.as_object().unwrap().clone()
}

/// Their folders hold predictors of active neurons as well, which are left out.
#[test]
fn bamboo_and_turbosparse_have_relu_on_both_sides() {
    for (name, class, model_type, predictor) in [
        (
            "mistral",
            "BambooForCausalLM",
            "bamboo",
            "mlp.predictor.fc1.weight",
        ),
        (
            "mixtral",
            "TurboSparseMixtralForCausalLM",
            "turbosparsemixtral",
            "block_sparse_moe.experts.0.predictor.fc1.weight",
        ),
    ] {
        let plain = case_of(name, &json!({}), &[]);
        let changes = json!({
            "architectures": [class], "model_type": model_type, "hidden_act": "relu"});
        let predictor = format!("model.layers.0.{predictor}");
        let sparse = case_of(name, &changes, &[(&predictor, [16, 64])]);
        let [plain, sparse] = [plain, sparse].map(|case| {
            let folder = folder_of(name, &case);
            let (out, ran) = convert(name, &case, &folder);
            assert_eq!(ran.code, Some(0), "{class}: {ran:?}");
            fs::read(out).unwrap()
        });
        assert_eq!(written(&plain).1, None, "{class}");
        let expected = ("llama".to_owned(), Some(("drelu".to_owned(), 0.0)));
        assert_eq!(written(&sparse), expected, "{class}");
        assert_eq!(tensors(&plain), tensors(&sparse), "{class}");
        let mut silu = case_of(name, &changes, &[]);
        silu["config"]["hidden_act"] = json!("silu");
        let folder = folder_of(name, &silu);
        let (_, ran) = convert(name, &silu, &folder);
        assert!(ran.stderr.contains("hidden_act"), "{class}: {ran:?}");
    }
}
