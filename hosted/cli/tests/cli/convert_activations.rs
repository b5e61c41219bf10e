//! Which activation `sluice convert` writes for encoders (`<arch>.activation`), and which it refuses.

use crate::convert::{Folder, object};
use crate::families::{FAMILIES, convert, folder_of};
use crate::support::Ran;
use serde_json::{Value, json};
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
