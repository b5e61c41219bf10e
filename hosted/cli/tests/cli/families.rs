//! `sluice convert` for every family: tiny folders, each in one file of `families/` (`tests/tools/hf_families.py`),
//! compared with the output of llama.cpp's converter for the same folder, and whether the engine can run the result.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use crate::convert::{FIXTURES, Folder, fnv, object, told, write_safetensors};
use crate::support::{Ran, run, run_to};
use serde_json::{Map, Value, json};
use sluice::core::gguf::Gguf;
use std::fs;
use std::path::{Path, PathBuf};

pub(crate) const FAMILIES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/cli/families");

/// Keys of the tokenizer itself, which are not recorded, and guesses from the folder's name.
const LEFT_OUT: [&str; 9] = [
    "general.basename",
    "general.finetune",
    "general.version",
    "tokenizer.chat_template",
    "tokenizer.ggml.merges",
    "tokenizer.ggml.precompiled_charsmap",
    "tokenizer.ggml.scores",
    "tokenizer.ggml.token_type",
    "tokenizer.ggml.tokens",
];

/// Keys that llama.cpp does not support; docs/convert.md explains them.
const OWN: [&str; 3] = [
    "tokenizer.ggml.add_space_prefix_if_missing",
    "tokenizer.ggml.normalizer.nfc",
    "tokenizer.ggml.split_whitespace",
];

pub(crate) fn cases() -> Vec<(String, Map<String, Value>)> {
    let entries = fs::read_dir(FAMILIES).unwrap();
    let paths = entries.map(|entry| entry.unwrap().path());
    let mut paths: Vec<PathBuf> = paths.filter(|path| path.is_file()).collect();
    paths.sort();
    let only = std::env::var("SLUICE_FAMILY").ok();
    let named = paths.into_iter().map(|path| {
        let name = path.file_stem().unwrap().to_str().unwrap().to_owned();
        (name, object(&path))
    });
    named
        .filter(|(name, _)| only.as_ref().is_none_or(|only| only == name))
        .collect()
}

/// The folder that a case describes, with its weights.
pub(crate) fn folder_of(name: &str, case: &Map<String, Value>) -> Folder {
    let folder = Folder::new(name);
    let model = folder.0.join(name);
    fs::create_dir_all(&model).unwrap();
    if let Some(tokenizer) = case.get("tokenizer").and_then(Value::as_str) {
        let own = Path::new(FAMILIES).join("tokenizers");
        for place in [Path::new(FIXTURES), &own] {
            for file in ["tokenizer.json", "tokenizer_config.json", "tokenizer.model"] {
                let from = place.join(tokenizer).join(file);
                if from.exists() {
                    fs::copy(from, model.join(file)).unwrap();
                }
            }
        }
    }
    if let Some(added) = case.get("added").and_then(Value::as_array) {
        add_tokens(&model, added);
    }
    fs::write(model.join("config.json"), case["config"].to_string()).unwrap();
    for (file, content) in case
        .get("files")
        .and_then(Value::as_object)
        .into_iter()
        .flatten()
    {
        let path = model.join(file);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        if file.ends_with(".safetensors") {
            write_weights(&path, content.as_object().unwrap(), |_| "F32");
            continue;
        }
        let text = content
            .as_str()
            .map_or_else(|| content.to_string(), str::to_owned);
        fs::write(path, text).unwrap();
    }
    let own = case.get("dtype").and_then(Value::as_str).unwrap_or("BF16");
    let f32 = case.get("f32").and_then(Value::as_array);
    let is_f32 = |tensor: &str| {
        let mut ends = f32.into_iter().flatten().filter_map(Value::as_str);
        ends.any(|end| tensor.ends_with(end))
    };
    let dtype = |tensor: &str| match () {
        () if tensor.ends_with("_blocks") || tensor.ends_with("_scales") => "U8",
        () if is_f32(tensor) => "F32",
        () => own,
    };
    let tensors = case["tensors"].as_object().unwrap();
    write_weights(&model.join("model.safetensors"), tensors, dtype);
    folder
}

fn write_weights<'a>(path: &Path, shapes: &Map<String, Value>, dtype: impl Fn(&str) -> &'a str) {
    let about = |(name, shape): (&String, &Value)| (name.clone(), json!([dtype(name), shape]));
    let tensors: Map<String, Value> = shapes.iter().map(about).collect();
    write_safetensors(path, tensors.iter());
}

/// Special tokens after the others of tokenizer.json.
fn add_tokens(model: &Path, added: &[Value]) {
    let path = model.join("tokenizer.json");
    let mut json = object(&path);
    let list = json["added_tokens"].as_array_mut().unwrap();
    let ids = list.iter().map(|token| token["id"].as_u64().unwrap());
    let next = ids.max().unwrap() + 1;
    for (id, text) in (next..).zip(added) {
        list.push(
            json!({"id": id, "content": text, "single_word": false, "lstrip": false,
            "rstrip": false, "normalized": false, "special": true}),
        );
    }
    fs::write(path, Value::Object(json).to_string()).unwrap();
}

/// Converts a case. Returns the file and the messages.
pub(crate) fn convert(name: &str, case: &Map<String, Value>, folder: &Folder) -> (PathBuf, Ran) {
    let out = folder.0.join("out.gguf");
    let (model, file) = (folder.path(name), folder.path("out.gguf"));
    let mut args = vec!["convert", &model, &file, "--type", "f16"];
    if let Some(pre) = case.get("pre").and_then(Value::as_str) {
        args.extend(["--pre", pre]);
    }
    let ran = run(&args);
    (out, ran)
}

#[test]
fn every_family_becomes_what_llama_cpp_makes_of_it_and_runs() {
    let mut failures = Vec::new();
    for (name, case) in cases() {
        let folder = folder_of(&name, &case);
        let (out, ran) = convert(&name, &case, &folder);
        if ran.code != Some(0) {
            failures.push(format!("{name}: {}", ran.stderr));
            continue;
        }
        let warnings = ran
            .stderr
            .lines()
            .filter(|line| line.starts_with("warning"));
        let expected = case.get("warnings").and_then(Value::as_u64).unwrap_or(0);
        if warnings.clone().count() as u64 != expected {
            let told: Vec<_> = warnings.collect();
            failures.push(format!("{name}: {}", told.join("\n  ")));
        }
        differences(&name, &case, &fs::read(&out).unwrap(), &mut failures);
        if let Some(failure) = runs(&case, out.to_str().unwrap()) {
            failures.push(format!("{name}: {failure}"));
        }
    }
    assert!(failures.is_empty(), "\n{}", failures.join("\n"));
}

fn differences(name: &str, case: &Map<String, Value>, file: &[u8], failures: &mut Vec<String>) {
    let gguf = Gguf::parse(file, file.len() as u64).unwrap();
    let listed = case.get("differences").and_then(Value::as_array);
    let is_own = |key: &str| {
        let mut listed = listed.into_iter().flatten();
        [&LEFT_OUT[..], &OWN].iter().any(|all| all.contains(&key))
            || key.ends_with(".activation")
            || listed.any(|own| own == key)
    };
    let own = gguf.metadata().filter(|(key, _)| !is_own(key));
    let own: Vec<_> = own
        .map(|(key, value)| (key.to_owned(), told(value)))
        .collect();
    let theirs = case["golden"]["metadata"].as_object().unwrap();
    let theirs: Vec<_> = theirs.iter().filter(|(key, _)| !is_own(key)).collect();
    for (key, value) in &own {
        let other = theirs.iter().find(|(name, _)| *name == key);
        if other.is_none_or(|(_, other)| !is_same(other, value)) {
            let other = other.map(|(_, other)| other.to_string());
            failures.push(format!("{name}: {key} is {value}, not {other:?}"));
        }
    }
    for (key, value) in &theirs {
        if !own.iter().any(|(name, _)| name == *key) {
            failures.push(format!("{name}: {key} is not {value}, but absent"));
        }
    }
    // The converters of encoders print this one in some cases.
    let moving = [
        "tokenizer.ggml.token_type_count",
        "tokenizer.ggml.normalizer.lowercase",
    ];
    let is_ordered = |key: &&String| !moving.contains(&key.as_str());
    let order: Vec<_> = own.iter().map(|(key, _)| key).filter(is_ordered).collect();
    let expected: Vec<_> = theirs
        .iter()
        .map(|(key, _)| *key)
        .filter(is_ordered)
        .collect();
    if order.len() == expected.len() && order != expected {
        let first = order
            .iter()
            .zip(&expected)
            .find(|(own, other)| own != other);
        failures.push(format!("{name}: the order of keys differs: {first:?}"));
    }
    let more = case.get("own_tensors").and_then(Value::as_array);
    let is_more = |tensor: &Value| more.is_some_and(|more| more.contains(&tensor[0]));
    let tensors = case["golden"]["tensors"].as_array().unwrap();
    let tensors: Vec<_> = tensors.iter().filter(|tensor| !is_more(tensor)).collect();
    let own = gguf.tensors().map(|tensor| {
        let start = usize::try_from(tensor.offset).unwrap();
        let bytes = &file[start..][..usize::try_from(tensor.len_bytes).unwrap()];
        let dims = &tensor.dims[..tensor.n_dims];
        let hash = format!("{:016x}", fnv(bytes));
        json!([tensor.name, dims, tensor.ty.name(), hash])
    });
    let own: Vec<_> = own.filter(|tensor| !is_more(tensor)).collect();
    if let Some((own, theirs)) = own
        .iter()
        .zip(&tensors)
        .find(|(own, theirs)| own != *theirs)
    {
        failures.push(format!("{name}: tensor {own}, not {theirs}"));
    }
    if own.len() != tensors.len() {
        failures.push(format!(
            "{name}: {} tensors, not {}",
            own.len(),
            tensors.len()
        ));
    }
}

/// Whether two values are the same; the reader of JSON may be off in the last bit of a number.
fn is_same(a: &Value, b: &Value) -> bool {
    match (a, b) {
        (Value::Array(a), Value::Array(b)) => {
            a.len() == b.len() && a.iter().zip(b).all(|(a, b)| is_same(a, b))
        }
        (Value::Number(a), Value::Number(b)) if a.is_f64() || b.is_f64() => {
            let (a, b) = (a.as_f64().unwrap(), b.as_f64().unwrap());
            (a - b).abs() <= 1e-12 * a.abs()
        }
        _ => a == b,
    }
}

/// Why the engine cannot run the file, if the case can be run at all.
fn runs(case: &Map<String, Value>, file: &str) -> Option<String> {
    let args: &[&str] = match case.get("runs").and_then(Value::as_str).unwrap_or("run") {
        "run" => &[
            "run",
            "-m",
            file,
            "-p",
            "Once upon",
            "-n",
            "3",
            "--temp",
            "0",
            "-c",
            "32",
        ],
        "embed" => &["embed", "-m", file, "-p", "Once upon"],
        "rerank" => &[
            "rerank",
            "-m",
            file,
            "--query",
            "Once",
            "--document",
            "upon",
        ],
        _ => return None,
    };
    let ran = run(args);
    (ran.code != Some(0)).then(|| format!("{args:?}: {}", ran.stderr))
}

#[test]
fn classes_are_named_where_one_is_not_known() {
    let (name, case) = cases().swap_remove(0);
    let folder = folder_of(&name, &case);
    folder.edit(
        &format!("{name}/config.json"),
        &json!({"architectures": ["XForCausalLM"]}),
    );
    let ran = run_to(
        1,
        &["convert", &folder.path(&name), &folder.path("out.gguf")],
    );
    assert!(ran.stderr.contains("GraniteForCausalLM"), "{ran:?}");
}

/// A case with changes to its config.json; null removes a key. Exit code and messages.
fn changed(name: &str, changes: &Value) -> Ran {
    let case = object(&Path::new(FAMILIES).join(format!("{name}.json")));
    let folder = folder_of(name, &case);
    folder.edit(&format!("{name}/config.json"), changes);
    convert(name, &case, &folder).1
}

#[test]
#[expect(clippy::too_many_lines, reason = "a table")]
fn what_an_architecture_takes_for_granted_is_checked() {
    let yarn = json!({"type": "yarn", "factor": 40, "original_max_position_embeddings": 64,
        "mscale": 1.0, "mscale_all_dim": 0.707});
    for (name, changes, expected) in [
        (
            "smollm3",
            json!({"no_rope_layers": [1, 0, 1, 0]}),
            "no_rope_layers",
        ),
        (
            "qwen2moe",
            json!({"norm_topk_prob": true}),
            "norm_topk_prob is true",
        ),
        (
            "cohere2",
            json!({"sliding_window_pattern": 3}),
            "sliding_window_pattern is 3",
        ),
        (
            "cohere2",
            json!({"layer_types": ["full_attention", "full_attention",
            "full_attention", "full_attention"]}),
            "layer_types",
        ),
        ("granite", json!({"head_dim": 32}), "head_dim is 32"),
        (
            "granite-swa",
            json!({"layer_rope_theta": [0, 1e6, 1e6, 1e6]}),
            "layer_rope_theta has",
        ),
        (
            "granitehybrid",
            json!({"position_embedding_type": "rope"}),
            "position_embedding_type",
        ),
        (
            "granitehybrid",
            json!({"mamba_proj_bias": true}),
            "mamba_proj_bias is true",
        ),
        (
            "deepseek2-lite",
            json!({"rope_scaling": yarn}),
            "mscale is 1",
        ),
        (
            "deepseek2-lite",
            json!({"scoring_func": "sigmoid"}),
            "scoring_func is \"sigmoid\"",
        ),
        (
            "deepseek3",
            json!({"scoring_func": "softmax"}),
            "scoring_func is \"softmax\"",
        ),
        (
            "deepseek3",
            json!({"topk_method": "greedy"}),
            "topk_method is \"greedy\"",
        ),
        (
            "glm4moe",
            json!({"scoring_func": "softmax"}),
            "scoring_func is \"softmax\"",
        ),
        (
            "gpt-oss",
            json!({"swiglu_alpha": 1.5}),
            "swiglu_alpha is 1.5",
        ),
        (
            "minimax-m2",
            json!({"rope_parameters": {"rope_theta": 1e4, "partial_rotary_factor": 0.25}}),
            "rotary_dim is 16, but partial_rotary_factor gives 8",
        ),
        (
            "nemotron-h",
            json!({"time_step_limit": [0.0, 0.1]}),
            "time_step_limit",
        ),
        (
            "nemotron-h",
            json!({"hybrid_override_pattern": "M-"}),
            "has 2 entries for 4 layers",
        ),
        (
            "nemotron-h",
            json!({"hybrid_override_pattern": "M-*X"}),
            "has the unknown value \"X\"",
        ),
        (
            "minimax-m2",
            json!({"attn_type_list": [1, 0]}),
            "attn_type_list",
        ),
        (
            "minimax-m2",
            json!({"scoring_func": "softmax"}),
            "scoring_func is \"softmax\"",
        ),
        (
            "hunyuan-dense",
            json!({"max_position_embeddings": 4096}),
            "is dynamic",
        ),
        ("hunyuan-dense", json!({"use_cla": true}), "use_cla is true"),
        (
            "ernie4_5-moe",
            json!({"moe_layer_end_index": 1}),
            "moe_layer_end_index",
        ),
        (
            "qwen3next",
            json!({"linear_num_value_heads": 3}),
            "linear_num_value_heads is 3",
        ),
        (
            "nomic-bert",
            json!({"n_positions": 4096}),
            "n_positions is 4096",
        ),
        ("nomic-bert", json!({"prenorm": true}), "prenorm is true"),
        (
            "modern-bert",
            json!({"classifier_pooling": "last"}),
            "classifier_pooling",
        ),
        (
            "gemma-embedding",
            json!({"query_pre_attn_scalar": 256}),
            "query_pre_attn_scalar is 256",
        ),
        (
            "glm4",
            json!({"partial_rotary_factor": 0}),
            "partial_rotary_factor is 0",
        ),
        (
            "lfm2moe",
            json!({"routed_scaling_factor": 2.0}),
            "routed_scaling_factor is 2",
        ),
    ] {
        let ran = changed(name, &changes);
        assert_eq!(ran.code, Some(1), "{name} {changes}: {ran:?}");
        assert!(ran.stderr.contains(expected), "{name} {changes}: {ran:?}");
    }
}

#[test]
fn blocks_that_a_folder_lacks_are_left_out_with_a_warning() {
    for (name, part) in [("glm4moe", ".layers.2."), ("qwen35-text", "mtp.")] {
        let mut case = object(&Path::new(FAMILIES).join(format!("{name}.json")));
        let tensors = case["tensors"].as_object_mut().unwrap();
        tensors.retain(|tensor, _| !tensor.contains(part));
        let folder = folder_of(name, &case);
        let (out, ran) = convert(name, &case, &folder);
        assert_eq!(ran.code, Some(0), "{ran:?}");
        assert!(ran.stderr.contains("predict further tokens"), "{ran:?}");
        let file = fs::read(&out).unwrap();
        let gguf = Gguf::parse(&file, file.len() as u64).unwrap();
        let mut keys = gguf.metadata().map(|(key, _)| key);
        assert!(!keys.any(|key| key.ends_with("nextn_predict_layers")));
        assert_eq!(runs(&case, out.to_str().unwrap()), None);
    }
}
