//! What transformers' class makes of a folder, not what its files could mean: matrices that stand for two, biases without a
//! place, keys that it does not read, defaults of its own.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use crate::convert::{object, scalar, tensors};
use crate::convert_says::edited;
use crate::families::{FAMILIES, convert, folder_of};
use crate::support::Ran;
use serde_json::{Map, Value, json};
use sluice::core::gguf::{Gguf, Value as GgufValue};
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

fn case(name: &str) -> Map<String, Value> {
    object(&Path::new(FAMILIES).join(format!("{name}.json")))
}

/// Changes keys of a case's config.json; null removes one.
fn with(name: &str, changes: &Value) -> Map<String, Value> {
    let mut case = case(name);
    let config = case["config"].as_object_mut().unwrap();
    for (key, value) in changes.as_object().unwrap() {
        match value {
            Value::Null => drop(config.remove(key)),
            value => drop(config.insert(key.clone(), value.clone())),
        }
    }
    case
}

/// The converted file, empty if the folder is refused, and the messages.
fn file(name: &str, case: &Map<String, Value>) -> (Vec<u8>, Ran) {
    let folder = folder_of(name, case);
    let (out, ran) = convert(name, case, &folder);
    (fs::read(out).unwrap_or_default(), ran)
}

fn keys(file: &[u8]) -> BTreeMap<String, Value> {
    let gguf = Gguf::parse(file, file.len() as u64).unwrap();
    let metadata = gguf
        .metadata()
        .filter(|(key, _)| !key.ends_with("charsmap"));
    let keys = metadata.map(|(key, value)| match value {
        GgufValue::Array(array) => (key.to_owned(), array.iter().map(scalar).collect()),
        one => (key.to_owned(), scalar(one)),
    });
    keys.collect()
}

/// Families whose embedding and output matrix are one, with the embedding's name in the folder.
const TIED: [(&str, &str); 5] = [
    ("lfm2moe", "model.embed_tokens.weight"),
    ("lfm2", "model.embed_tokens.weight"),
    ("cohere2", "model.embed_tokens.weight"),
    ("gemma2", "model.embed_tokens.weight"),
    ("granite", "model.embed_tokens.weight"),
];

#[test]
fn an_output_matrix_of_its_own_is_used_in_every_tied_family() {
    for (name, embedding) in TIED {
        let mut case = case(name);
        let shape = case["tensors"][embedding].clone();
        case["tensors"]["lm_head.weight"] = shape;
        let (file, ran) = file(name, &case);
        assert_eq!(ran.code, Some(0), "{name}: {ran:?}");
        let found = tensors(&file);
        assert_ne!(found["output.weight"], found["token_embd.weight"], "{name}");
        assert!(ran.stderr.contains("since it differs"), "{name}: {ran:?}");
    }
}

#[test]
fn an_output_matrix_alone_is_the_embedding_of_a_tied_model() {
    for (name, embedding) in TIED {
        let mut case = case(name);
        let all = case["tensors"].as_object_mut().unwrap();
        let shape = all.remove(embedding).unwrap();
        all.insert("lm_head.weight".into(), shape);
        let (bytes, ran) = file(name, &case);
        assert_eq!(ran.code, Some(0), "{name}: {ran:?}");
        let found = tensors(&bytes);
        assert!(found.contains_key("token_embd.weight"), "{name}");
        assert!(!found.contains_key("output.weight"), "{name}");
        // One that is not tied lacks its embedding.
        case["config"]["tie_word_embeddings"] = json!(false);
        let (_, ran) = file(name, &case);
        assert!(ran.stderr.contains(embedding), "{name}: {ran:?}");
    }
}

#[test]
fn biases_that_the_class_does_not_have_are_left_out_with_a_warning() {
    for (name, tensor) in [
        ("glm4", "model.layers.0.self_attn.o_proj.bias"),
        ("qwen2moe", "model.layers.0.self_attn.o_proj.bias"),
        ("seed_oss", "model.layers.0.self_attn.o_proj.bias"),
        ("hunyuan-dense", "model.layers.0.self_attn.o_proj.bias"),
        ("exaone4", "model.layers.0.self_attn.q_proj.bias"),
        ("olmo2", "model.layers.0.self_attn.o_proj.bias"),
        ("nemotron-h", "backbone.layers.1.mixer.up_proj.bias"),
        ("modern-bert-rank", "head.dense.bias"),
    ] {
        let plain = case(name);
        let mut more = plain.clone();
        let weight = tensor.replace("bias", "weight");
        let rows = more["tensors"][&weight][0].clone();
        more["tensors"][tensor] = json!([rows]);
        let (before, after) = (file(name, &plain), file(name, &more));
        let names = |file: &[u8]| tensors(file).into_keys().collect::<Vec<_>>();
        assert_eq!(names(&before.0), names(&after.0), "{name}: {:?}", after.1);
        assert!(after.1.stderr.contains(tensor), "{name}: {:?}", after.1);
    }
}

#[test]
fn granite_rotates_in_the_layers_that_have_a_base() {
    let bases = json!({"layer_rope_theta": [10000.0, 0, 0, 10000.0]});
    for name in ["granite-swa", "granitemoe-swa"] {
        let found = keys(&file(name, &with(name, &bases)).0);
        let pattern = &found["granite_swa.attention.rope_pattern"];
        assert_eq!(*pattern, json!([true, false, false, true]), "{name}");
        // The key of earlier folders, which transformers does not read.
        for (flags, is_refused) in [([1, 0, 0, 1], false), ([0, 1, 1, 1], true)] {
            let mut both = bases.clone();
            both["no_rope_layers"] = json!(flags);
            let (_, ran) = file(name, &with(name, &both));
            assert_eq!(ran.stderr.contains("no_rope_layers"), is_refused, "{ran:?}");
        }
        let alone = json!({"layer_rope_theta": null, "no_rope_layers": [0, 1, 1, 1]});
        let (_, ran) = file(name, &with(name, &alone));
        assert!(ran.stderr.contains("no_rope_layers"), "{ran:?}");
    }
}

#[test]
fn smollm3_has_its_windows_in_layers_without_rotation_or_where_they_are_listed() {
    let window = json!({"use_sliding_window": true, "sliding_window": 32, "layer_types": null});
    let mut listed = window.clone();
    let types = [
        "sliding_attention",
        "full_attention",
        "full_attention",
        "sliding_attention",
    ];
    listed["layer_types"] = json!(types);
    for (changes, pattern) in [
        (&window, json!([false, false, false, true])),
        (&listed, json!([true, false, false, true])),
    ] {
        let found = keys(&file("smollm3", &with("smollm3", changes)).0);
        assert_eq!(found["smollm3.attention.sliding_window"], 32);
        assert_eq!(found["smollm3.attention.sliding_window_pattern"], pattern);
        assert_eq!(found["smollm3.context_length"], 256);
    }
    let unused = json!({"use_sliding_window": false, "sliding_window": 32, "layer_types": null});
    let (bytes, ran) = file("smollm3", &with("smollm3", &unused));
    assert!(!keys(&bytes).contains_key("smollm3.attention.sliding_window"));
    assert_eq!(keys(&bytes)["smollm3.context_length"], 256);
    assert!(!ran.stderr.contains("window"), "{ran:?}");
}

#[test]
fn exaone4_has_a_window_unless_its_folder_says_null() {
    for name in ["exaone4", "exaone4-full"] {
        let absent = with(name, &json!({"sliding_window": null}));
        let given = with(name, &json!({"sliding_window": 4096}));
        let (absent, given) = (file(name, &absent).0, file(name, &given).0);
        assert!(absent == given, "{name}");
        assert_eq!(keys(&given)["exaone4.attention.sliding_window"], 4096);
    }
    let published = keys(&file("exaone4-full", &case("exaone4-full")).0);
    assert!(!published.contains_key("exaone4.attention.sliding_window"));
}

#[test]
fn encoders_of_transformers_own_classes_have_its_epsilon() {
    let sizes = json!({"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4,
        "max_position_embeddings": 128, "pad_token_id": 1, "layer_norm_epsilon": null, "n_inner": null,
        "n_positions": null, "lora_adaptations": null, "layer_norm_eps": null});
    for (name, class, model_type, epsilon) in [
        ("nomic-bert", "NomicBertModel", "nomic_bert", 1e-12_f32),
        (
            "jina-bert-v3",
            "JinaEmbeddingsV3Model",
            "jina_embeddings_v3",
            1e-5,
        ),
    ] {
        let mut case = with(name, &sizes);
        case["config"]["architectures"] = json!([class]);
        case["config"]["model_type"] = json!(model_type);
        let (bytes, ran) = file(name, &case);
        assert_eq!(ran.code, Some(0), "{ran:?}");
        let key = format!("{name}.attention.layer_norm_epsilon");
        #[expect(clippy::cast_possible_truncation, reason = "it was an f32")]
        let found = keys(&bytes)[&key].as_f64().unwrap() as f32;
        assert_eq!(found.to_bits(), epsilon.to_bits(), "{name}");
    }
}

#[test]
fn nemotron_s_time_step_has_the_limits_of_its_published_code() {
    // time_step_min is for initial values there; transformers 5.24 takes it for a limit.
    let plain = file("nemotron-h", &case("nemotron-h")).0;
    let min = with(
        "nemotron-h",
        &json!({"time_step_min": 0.1, "time_step_limit": [0.0, {"__float__": "Infinity"}]}),
    );
    assert!(file("nemotron-h", &min).0 == plain);
    for limit in [json!([0.0, 0.1]), json!([0.001, {"__float__": "Infinity"}])] {
        let (_, ran) = file(
            "nemotron-h",
            &with("nemotron-h", &json!({"time_step_limit": limit})),
        );
        assert!(ran.stderr.contains("time_step_limit"), "{ran:?}");
    }
}

#[test]
fn phi3_s_published_configuration_needs_no_warning() {
    let given = json!({"attention_bias": false, "attention_dropout": 0.0, "auto_map": {"AutoConfig": "x"}, "embd_pdrop": 0.0,
        "initializer_range": 0.02, "original_max_position_embeddings": 256, "resid_pdrop": 0.0, "rope_scaling": null,
        "sliding_window": 2047, "torch_dtype": "bfloat16", "transformers_version": "4.40.2", "use_cache": true});
    let mut again = given.clone();
    again["rope_parameters"] =
        json!({"rope_theta": 10000.0, "rope_type": "default", "partial_rotary_factor": 1.0});
    for config in [given, again] {
        let (_, ran) = edited("phi3", "config.json", &config);
        assert!(!ran.stderr.contains("warning"), "{ran:?}");
    }
}
