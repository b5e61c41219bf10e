//! What `config.json` says of positions, rotations and windows, arrives in the file as transformers computes it.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use crate::convert::{object, scalar};
use crate::convert_says::{edited, refuses};
use crate::families::{FAMILIES, convert, folder_of};
use crate::support::Ran;
use serde_json::{Value, json};
use sluice::core::gguf::{Gguf, Value as GgufValue};
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

type Keys = BTreeMap<String, Value>;

/// The keys of the file of an edited folder, and the messages.
fn decoder(family: &str, changes: &Value) -> (Keys, Ran) {
    edited(family, "config.json", changes)
}

/// As [`decoder`], for a case of the table of families.
fn case(name: &str, changes: &Value) -> (Keys, Ran) {
    let case = object(&Path::new(FAMILIES).join(format!("{name}.json")));
    let folder = folder_of(name, &case);
    folder.edit(&format!("{name}/config.json"), changes);
    let (out, ran) = convert(name, &case, &folder);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    let file = fs::read(out).unwrap();
    let gguf = Gguf::parse(&file, file.len() as u64).unwrap();
    let keys = gguf.metadata().map(|(key, value)| match value {
        GgufValue::Array(array) => (key.to_owned(), array.iter().map(scalar).collect()),
        one => (key.to_owned(), scalar(one)),
    });
    (keys.collect(), ran)
}

/// A number that was stored as f32.
fn f32_of(keys: &Keys, key: &str) -> Option<f32> {
    #[expect(clippy::cast_possible_truncation, reason = "it was an f32")]
    let narrow = |x: f64| x as f32;
    keys.get(key).and_then(Value::as_f64).map(narrow)
}

#[test]
fn attn_factor_multiplies_yarn_s_own_and_attention_factor_replaces_it() {
    for (given, own, more) in [
        (json!({"attn_factor": 0.875}), None, Some(0.875)),
        (json!({"attention_factor": 1.25}), Some(1.25), None),
        (
            json!({"attn_factor": 0.875, "attention_factor": 1.25}),
            Some(1.25),
            Some(0.875),
        ),
    ] {
        let mut scaling =
            json!({"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64});
        let entries = given.as_object().unwrap().clone();
        scaling.as_object_mut().unwrap().extend(entries);
        let (keys, _) = decoder("qwen3", &json!({ "rope_scaling": scaling }));
        let found = |key| f32_of(&keys, key);
        assert_eq!(found("qwen3.rope.scaling.yarn_attn_factor"), own, "{given}");
        assert_eq!(found("qwen3.rope.scaling.attn_factor"), more, "{given}");
    }
}

#[test]
fn the_ends_of_yarn_s_ramp_are_as_truncate_says() {
    let scaling = |truncate: Option<bool>| {
        json!({"rope_scaling": {"rope_type": "yarn", "factor": 4.0, "truncate": truncate,
            "original_max_position_embeddings": 64}})
    };
    for (truncate, others, gpt_oss) in [
        (Some(false), json!(false), Value::Null),
        (Some(true), Value::Null, json!(true)),
        // transformers' default.
        (None, Value::Null, json!(true)),
    ] {
        let (keys, ran) = decoder("qwen3", &scaling(truncate));
        let found = keys.get("qwen3.rope.scaling.yarn_truncate").cloned();
        assert_eq!(found.unwrap_or_default(), others, "{truncate:?}");
        assert!(!ran.stderr.contains("warning"), "{ran:?}");
        let (keys, _) = case("gpt-oss", &scaling(truncate));
        let found = keys.get("gpt-oss.rope.scaling.yarn_truncate").cloned();
        assert_eq!(found.unwrap_or_default(), gpt_oss, "{truncate:?}");
    }
}

#[test]
fn rope_scaling_beside_rope_parameters_is_what_transformers_takes() {
    let yarn = json!({"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64});
    let plain = json!({"rope_type": "default", "rope_theta": 500_000.0});
    let both = |theta: Option<f64>| json!({"rope_parameters": plain, "rope_scaling": yarn, "rope_theta": theta});
    // The base is then the one outside, or the default.
    for (theta, base) in [(None, 10_000.0), (Some(500_000.0), 500_000.0)] {
        let (keys, ran) = decoder("qwen3", &both(theta));
        assert_eq!(keys["qwen3.rope.scaling.type"], "yarn");
        assert_eq!(keys["qwen3.rope.freq_base"], json!(base));
        let told = format!(
            "rope_parameters is replaced by rope_scaling, as in transformers; the base of the frequencies is {base}"
        );
        assert!(ran.stderr.contains(&told), "{ran:?}");
    }
    let (keys, _) = decoder(
        "qwen3",
        &json!({"rope_parameters": plain, "rope_scaling": null}),
    );
    assert_eq!(keys["qwen3.rope.freq_base"], json!(500_000.0));
    // With a description for each kind of attention, it is added to the layers that see all tokens.
    let each = json!({"full_attention": {"rope_type": "default", "rope_theta": 500_000.0},
        "sliding_attention": {"rope_type": "default", "rope_theta": 20_000.0}});
    let linear = json!({"rope_type": "linear", "factor": 8.0});
    let changes = json!({"rope_parameters": each, "rope_scaling": linear, "rope_theta": null,
        "rope_local_base_freq": null});
    let (keys, _) = case("gemma3", &changes);
    assert_eq!(keys["gemma3.rope.scaling.type"], "linear");
    assert_eq!(keys["gemma3.rope.freq_base"], json!(500_000.0));
    assert_eq!(keys["gemma3.rope.freq_base_swa"], json!(20_000.0));
}

#[test]
fn the_original_context_outside_of_the_scaling_comes_first() {
    let yarn = json!({"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64});
    let changes = json!({"rope_scaling": yarn, "original_max_position_embeddings": 32});
    let (keys, _) = decoder("qwen3", &changes);
    assert_eq!(keys["qwen3.rope.scaling.original_context_length"], 32);
}

#[test]
fn longrope_s_own_factor_scales_queries() {
    let config = object(Path::new(concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/tests/cli/convert/phi3/config.json"
    )));
    let mut scaling = config["rope_scaling"].clone();
    // Once by the ratio of the contexts, 256 / 64, once by a factor of its own; the old name stands for longrope.
    for (name, factor, scale) in [
        ("longrope", None, 4.0),
        ("su", None, 4.0),
        ("yarn", Some(2.0), 2.0_f64),
    ] {
        (scaling["type"], scaling["factor"]) = (json!(name), json!(factor));
        let (keys, _) = decoder("phi3", &json!({ "rope_scaling": scaling }));
        #[expect(clippy::cast_possible_truncation, reason = "stored as f32")]
        let expected = (1.0 + scale.ln() / 64f64.ln()).sqrt() as f32;
        assert_eq!(
            f32_of(&keys, "phi3.rope.scaling.attn_factor"),
            Some(expected),
            "{name}"
        );
        assert!(keys["tensors"].to_string().contains("rope_factors_long"));
    }
    // transformers has no other kind for this family.
    let linear = json!({"rope_scaling": {"type": "linear", "factor": 2.0}});
    refuses("phi3", "config.json", &linear, &["is \"linear\""]);
}

#[test]
fn windows_are_in_the_layers_that_transformers_gives_them() {
    let uses = |more: Value| {
        let mut all = json!({"sliding_window": 64, "use_sliding_window": true});
        all.as_object_mut()
            .unwrap()
            .extend(more.as_object().unwrap().clone());
        all
    };
    let (all, default, none) = (json!(64), json!(4096), Value::Null);
    for (family, changes, window, pattern) in [
        ("mistral", json!({"sliding_window": 64}), &all, Value::Null),
        // The folder says null; without the key there is transformers' default.
        ("mistral", json!({}), &none, Value::Null),
        (
            "mistral",
            json!({"sliding_window": null}),
            &default,
            Value::Null,
        ),
        ("mixtral", json!({"sliding_window": 64}), &all, Value::Null),
        ("llama3", json!({"sliding_window": 64}), &none, Value::Null),
        ("phi3", json!({"sliding_window": 64}), &all, Value::Null),
        (
            "qwen2",
            json!({"sliding_window": 64, "use_sliding_window": false}),
            &none,
            Value::Null,
        ),
        // The first 28 layers see all tokens, unless the folder says otherwise.
        ("qwen2", uses(json!({})), &none, Value::Null),
        (
            "qwen2",
            uses(json!({"max_window_layers": 0})),
            &all,
            Value::Null,
        ),
        (
            "qwen2",
            uses(json!({"max_window_layers": 1})),
            &all,
            json!([false, true]),
        ),
        (
            "qwen3",
            uses(json!({"layer_types": ["sliding_attention", "full_attention"]})),
            &all,
            json!([true, false]),
        ),
        ("qwen3moe", uses(json!({})), &all, Value::Null),
    ] {
        let (keys, ran) = decoder(family, &changes);
        let architecture = keys["general.architecture"].as_str().unwrap();
        let found = |key: &str| {
            keys.get(&format!("{architecture}.{key}"))
                .cloned()
                .unwrap_or_default()
        };
        assert_eq!(
            found("attention.sliding_window"),
            *window,
            "{family} {changes}"
        );
        assert_eq!(
            found("attention.sliding_window_pattern"),
            pattern,
            "{family} {changes}"
        );
        assert_eq!(found("context_length"), 256, "{family} {changes}");
        // The class has no windows.
        let is_ignored = ran
            .stderr
            .contains("sliding_window is 64: unknown, ignored");
        assert_eq!(is_ignored, family == "llama3", "{ran:?}");
    }
}

#[test]
fn windows_of_wrapped_models_and_mixtures_are_there_and_others_are_refused() {
    for name in ["mistral3", "ministral3"] {
        let window = json!({"sliding_window": 64});
        let (keys, _) = match name {
            "mistral3" => case(name, &json!({"text_config": nested(name, &window)})),
            _ => case(name, &window),
        };
        assert_eq!(keys["mistral3.attention.sliding_window"], 64, "{name}");
    }
    let used = json!({"sliding_window": 64, "use_sliding_window": true});
    let (keys, _) = case("qwen2moe", &used);
    assert_eq!(keys["qwen2moe.attention.sliding_window_pattern"][0], true);
    assert_eq!(keys["qwen2moe.attention.sliding_window_pattern"][1], false);
    // transformers has no window for the layers that ask for it.
    refuses(
        "qwen3",
        "config.json",
        &json!({"layer_types": ["sliding_attention", "full_attention"]}),
        &["layer_types", "use_sliding_window is not true"],
    );
}

/// The text model's configuration of a case with changes.
fn nested(name: &str, changes: &Value) -> Value {
    let case = object(&Path::new(FAMILIES).join(format!("{name}.json")));
    let mut config = case["config"]["text_config"].clone();
    config
        .as_object_mut()
        .unwrap()
        .extend(changes.as_object().unwrap().clone());
    config
}

#[test]
fn cohere2_rotates_as_its_folder_says() {
    let yarn = json!({"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64});
    let (keys, _) = case("cohere2", &json!({ "rope_scaling": yarn }));
    assert_eq!(keys["cohere2.rope.scaling.type"], "yarn");
    assert_eq!(keys["cohere2.rope.scaling.factor"], json!(4.0));
    let (keys, _) = case("cohere2", &json!({}));
    assert_eq!(keys["cohere2.rope.scaling.type"], "none");
    // The same constant stood in the tables of encoders.
    let (keys, _) = case("eurobert", &json!({ "rope_scaling": yarn }));
    assert_eq!(keys["eurobert.rope.scaling.type"], "yarn");
}

#[test]
fn gemma_s_scale_of_queries_is_stated_where_the_depth_does_not_imply_it() {
    for name in ["gemma2", "gemma3"] {
        let (keys, _) = case(name, &json!({"query_pre_attn_scalar": 64}));
        assert_eq!(keys[&format!("{name}.attention.scale")], json!(0.125));
        let (keys, _) = case(name, &json!({}));
        assert!(!keys.contains_key(&format!("{name}.attention.scale")));
    }
}
