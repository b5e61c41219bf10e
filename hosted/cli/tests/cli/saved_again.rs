//! Folders as transformers 5 saves them again: other spellings of the same settings, which become the same file.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use crate::convert::{object, told};
use crate::families::{FAMILIES, convert, folder_of};
use crate::support::Ran;
use serde_json::{Map, Value, json};
use std::fs;
use std::path::Path;

fn case(name: &str) -> Map<String, Value> {
    object(&Path::new(FAMILIES).join(format!("{name}.json")))
}

/// The file of a case.
fn file(name: &str, case: &Map<String, Value>) -> (Vec<u8>, Ran) {
    let folder = folder_of(name, case);
    let (out, ran) = convert(name, case, &folder);
    assert_eq!(ran.code, Some(0), "{name}: {ran:?}");
    (fs::read(out).unwrap(), ran)
}

/// Changes the settings of the text model; null removes a key.
fn change(case: &mut Map<String, Value>, changes: Value) {
    let config = &mut case["config"];
    let is_nested = config.get("text_config").is_some();
    let config = if is_nested {
        &mut config["text_config"]
    } else {
        config
    };
    let config = config.as_object_mut().unwrap();
    for (key, value) in changes.as_object().unwrap() {
        match value {
            Value::Null => config.remove(key),
            value => config.insert(key.clone(), value.clone()),
        };
    }
}

#[test]
fn folders_that_transformers_5_saves_become_the_same_file() {
    let half = json!({"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.5});
    for (name, changes) in [
        (
            "gemma4-moe",
            json!({"global_head_dim": null, "num_global_key_value_heads": null,
                "per_layer_config": {"2": {"head_dim": 32, "num_key_value_heads": 1}}}),
        ),
        (
            "gemma4-e",
            json!({"global_head_dim": null, "num_global_key_value_heads": null,
                "per_layer_config": {"2": {"head_dim": 32}, "5": {"head_dim": 32}}}),
        ),
        (
            "nemotron-h",
            json!({"hybrid_override_pattern": null, "num_hidden_layers": null,
                "layers_block_type": ["linear_attention", "mlp", "full_attention", "linear_attention"],
                "n_routed_experts": 8, "n_shared_experts": 1, "num_experts_per_tok": 2, "norm_topk_prob": true,
                "moe_intermediate_size": 7688, "moe_shared_expert_intermediate_size": 7688, "n_group": 1,
                "topk_group": 1, "routed_scaling_factor": 1.0, "moe_shared_expert_overlap": true}),
        ),
        (
            "nemotron-h-moe",
            json!({"hybrid_override_pattern": null, "num_hidden_layers": null,
                "layers_block_type": ["linear_attention", "moe", "full_attention", "moe"]}),
        ),
        ("qwen2moe", json!({"qkv_bias": true})),
        (
            "minimax-m2",
            json!({"rope_parameters": half, "rope_theta": null}),
        ),
        (
            "minimax-m2",
            json!({"rope_parameters": half, "rope_theta": null, "rotary_dim": null}),
        ),
        ("eurobert", json!({"classifier_pooling": "late"})),
        (
            "glm4-moe-lite",
            json!({"first_k_dense_replace": null, "mlp_layer_types": ["dense", "sparse"], "qk_head_dim": 24}),
        ),
        ("ernie4_5-moe", json!({"moe_norm_min": 1e-12})),
        ("gpt-oss", json!({"swiglu_alpha": 1.702})),
        (
            "granitehybrid",
            json!({"time_step_limit": [0.0, {"__float__": "Infinity"}]}),
        ),
        (
            "nomic-bert",
            json!({"n_embd": null, "n_head": null, "n_inner": null, "n_layer": null, "n_positions": null,
                "max_trained_positions": null,
                "layer_norm_epsilon": null, "rotary_emb_base": null, "activation_function": null, "hidden_size": 64,
                "num_attention_heads": 4, "num_hidden_layers": 2, "intermediate_size": 96, "layer_norm_eps": 1e-12,
                "max_position_embeddings": 2048, "hidden_act": "silu", "head_dim": 16,
                "rope_parameters": {"rope_type": "default", "rope_theta": 1000.0}}),
        ),
    ] {
        let published = case(name);
        let mut again = published.clone();
        change(&mut again, changes.clone());
        let ((published, before), (again, after)) = (file(name, &published), file(name, &again));
        assert!(published == again, "{name}: {changes}");
        let warnings = |ran: &Ran| {
            let lines = ran
                .stderr
                .lines()
                .filter(|line| line.starts_with("warning"));
            // Without the folder, which is new each time.
            let told = lines.map(|line| line.rsplit('/').next().unwrap_or(line).to_owned());
            told.collect::<Vec<_>>()
        };
        assert_eq!(warnings(&before), warnings(&after), "{name}: {changes}");
    }
}

#[test]
fn absent_settings_are_those_of_the_class() {
    for (name, absent, given) in [
        (
            "deepseek3",
            json!({"scoring_func": null}),
            json!({"scoring_func": "sigmoid"}),
        ),
        (
            "deepseek3",
            json!({"norm_topk_prob": null}),
            json!({"norm_topk_prob": true}),
        ),
        (
            "glm4moe",
            json!({"norm_topk_prob": null}),
            json!({"norm_topk_prob": true}),
        ),
        (
            "glm4-moe-lite",
            json!({"norm_topk_prob": null}),
            json!({"norm_topk_prob": true}),
        ),
        (
            "smollm3",
            json!({"rope_theta": null}),
            json!({"rope_theta": 2e6}),
        ),
        (
            "olmo3",
            json!({"sliding_window": null}),
            json!({"sliding_window": 4096}),
        ),
        (
            "olmo3",
            json!({"rope_theta": null}),
            json!({"rope_theta": 5e5}),
        ),
        (
            "ernie4_5",
            json!({"rope_theta": null}),
            json!({"rope_theta": 5e5}),
        ),
        (
            "ernie4_5-moe",
            json!({"rope_theta": null}),
            json!({"rope_theta": 5e5}),
        ),
        (
            "gpt-oss",
            json!({"rope_scaling": null}),
            json!({"rope_scaling": {"rope_type": "yarn", "factor": 32.0, "beta_fast": 32.0, "beta_slow": 1.0,
                "truncate": false, "original_max_position_embeddings": 4096}}),
        ),
    ] {
        let (mut without, mut with) = (case(name), case(name));
        change(&mut without, absent.clone());
        change(&mut with, given);
        let (without, with) = (file(name, &without).0, file(name, &with).0);
        assert!(without == with, "{name}: {absent}");
    }
}

#[test]
fn jina_embeddings_v3_converts_from_transformers_own_class() {
    let published = case("jina-bert-v3");
    let mut native = published.clone();
    change(
        &mut native,
        json!({"architectures": ["JinaEmbeddingsV3Model"], "model_type": "jina_embeddings_v3", "lora_adaptations": null,
            "load_trained_adapters": null, "position_embedding_type": null, "rotary_emb_base": null,
            "rope_parameters": {"rope_type": "default", "rope_theta": 20000.0}}),
    );
    let tensors = native["tensors"].as_object().unwrap().clone();
    let renamed = tensors
        .into_iter()
        .filter(|(name, _)| !name.contains("lora_"));
    native["tensors"] = renamed
        .map(|(name, shape)| {
            let name = name
                .replace("roberta.", "")
                .replace(".parametrizations.", ".");
            (
                name.replace(".0.original", "").replace(".original", ""),
                shape,
            )
        })
        .collect();
    let (published, native) = (
        file("jina-bert-v3", &published).0,
        file("jina-bert-v3", &native).0,
    );
    // The weights of the fixtures follow from the names, so only the headers are compared.
    let header = |bytes: &[u8]| {
        let gguf = sluice::core::gguf::Gguf::parse(bytes, bytes.len() as u64).unwrap();
        let metadata = gguf
            .metadata()
            .filter(|(key, _)| !key.ends_with("charsmap"));
        metadata
            .map(|(key, value)| format!("{key} {}", told(value)))
            .collect::<Vec<_>>()
    };
    assert_eq!(header(&published), header(&native));
}
