//! `sluice convert` from the outside: tiny folders of every family compared with goldens of
//! llama.cpp's converter for the same folders, and everything that can be wrong with a folder.
//!
//! The folders and goldens in `convert/` come from `tests/tools/hf_fixtures.py`.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use crate::interrupt::{interrupt, interruptible};
use crate::shared::shared;
use crate::support::{MODEL, fails, fixture, ran, run_to, sluice};
use core::sync::atomic::{AtomicUsize, Ordering};
use core::time::Duration;
use serde_json::{Map, Value, json};
use sluice::core::gguf::{Gguf, Value as GgufValue};
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Instant;

pub(crate) const FIXTURES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/cli/convert");

/// A folder of its own, removed when dropped.
pub(crate) struct Folder(pub(crate) PathBuf);

impl Folder {
    pub(crate) fn new(name: &str) -> Self {
        static COUNT: AtomicUsize = AtomicUsize::new(0);
        let (id, n) = (std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        let name = format!("sluice-convert-{id}-{n}-{name}");
        let path = std::env::temp_dir().join(name);
        fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    /// A family's folder with its weights, and room for results.
    pub(crate) fn of(family: &str, purpose: &str) -> Self {
        let folder = Self::new(&format!("{family}-{purpose}"));
        let model = folder.0.join(family);
        fs::create_dir_all(&model).unwrap();
        for entry in fs::read_dir(Path::new(FIXTURES).join(family)).unwrap() {
            let from = entry.unwrap().path();
            fs::copy(&from, model.join(from.file_name().unwrap())).unwrap();
        }
        let tensors = object(&model.join("tensors.json"));
        if ["llama3", "qwen3moe"].contains(&family) {
            write_shards(&model, &tensors);
        } else {
            write_safetensors(&model.join("model.safetensors"), tensors.iter());
        }
        folder
    }

    pub(crate) fn path(&self, name: &str) -> String {
        self.0.join(name).to_str().unwrap().into()
    }

    pub(crate) fn names(&self) -> Vec<String> {
        let entries = fs::read_dir(&self.0).unwrap();
        let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
        let mut names: Vec<_> = names.collect();
        names.sort();
        names
    }

    /// Changes entries of a JSON file; null removes one.
    pub(crate) fn edit(&self, file: &str, changes: &Value) {
        let path = self.0.join(file);
        let mut map = object(&path);
        for (key, value) in changes.as_object().unwrap() {
            match value {
                Value::Null => map.remove(key),
                value => map.insert(key.clone(), value.clone()),
            };
        }
        fs::write(path, Value::Object(map).to_string()).unwrap();
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _removed = fs::remove_dir_all(&self.0);
    }
}

pub(crate) fn object(path: &Path) -> Map<String, Value> {
    serde_json::from_slice(&fs::read(path).unwrap()).unwrap()
}

pub(crate) fn fnv(bytes: &[u8]) -> u64 {
    let step = |hash: u64, byte: &u8| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, step)
}

/// A tensor's numbers, as `values` of `hf_fixtures.py` makes them.
#[expect(
    clippy::cast_possible_truncation,
    reason = "the numbers have at most 24 bits"
)]
pub(crate) fn data(name: &str, n: u64, dtype: &str) -> Vec<u8> {
    let bits = match dtype {
        "U8" | "BF16" => 8,
        "F16" => 11,
        "F32" => 24,
        other => panic!("no numbers of type {other}"),
    };
    let start = fnv(name.as_bytes());
    let hashes = (0..n).map(|i| {
        let mut z = start.wrapping_add(i.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    });
    if dtype == "U8" {
        // Scales are near 1.
        let bytes = hashes.map(|z| u8::try_from(z >> 56).unwrap());
        return match name.ends_with("_scales") {
            true => bytes.map(|byte| 120 + byte % 8).collect(),
            false => bytes.collect(),
        };
    }
    let numbers = hashes.map(|z| {
        let k = i32::try_from(z >> (64 - bits)).unwrap() - (1 << (bits - 1));
        (f64::from(k) / f64::from(1 << (bits + 3))) as f32
    });
    let halves = |bits: fn(f32) -> u16| numbers.clone().flat_map(move |x| bits(x).to_le_bytes());
    match dtype {
        "BF16" => halves(sluice::core::kernels::half::f32_to_bf16).collect(),
        "F16" => halves(sluice::core::kernels::half::f32_to_f16).collect(),
        _ => numbers.flat_map(f32::to_le_bytes).collect(),
    }
}

pub(crate) fn write_safetensors<'a>(
    path: &Path,
    tensors: impl Iterator<Item = (&'a String, &'a Value)>,
) {
    let (mut header, mut blob) = (Map::new(), Vec::new());
    for (name, about) in tensors {
        let shape = about[1].as_array().unwrap();
        let n = shape.iter().map(|dim| dim.as_u64().unwrap()).product();
        let begin = blob.len();
        blob.extend(data(name, n, about[0].as_str().unwrap()));
        let entry = json!({"dtype": about[0], "shape": shape, "data_offsets": [begin, blob.len()]});
        header.insert(name.clone(), entry);
    }
    write_raw(path, &Value::Object(header), &blob);
}

pub(crate) fn write_raw(path: &Path, header: &Value, blob: &[u8]) {
    let header = header.to_string();
    let mut file = (header.len() as u64).to_le_bytes().to_vec();
    file.extend(header.as_bytes());
    file.extend(blob);
    fs::write(path, file).unwrap();
}

/// Tensors in turn over three files, and the index.
fn write_shards(model: &Path, tensors: &Map<String, Value>) {
    let mut weight_map = Map::new();
    for shard in 0..3 {
        let file = format!("model-{:05}-of-00003.safetensors", shard + 1);
        let own = || tensors.iter().skip(shard).step_by(3);
        write_safetensors(&model.join(&file), own());
        weight_map.extend(own().map(|(name, _)| (name.clone(), json!(file))));
    }
    let index = json!({"weight_map": weight_map}).to_string();
    fs::write(model.join("model.safetensors.index.json"), index).unwrap();
}

/// A value as `golden` of `hf_fixtures.py` prints it.
pub(crate) fn told(value: GgufValue<'_>) -> Value {
    let GgufValue::Array(array) = value else {
        return json!([[type_name(value)], scalar(value)]);
    };
    let elements: Vec<Value> = array.iter().map(scalar).collect();
    let types = ["ARRAY", array.iter().next().map_or("", type_name)];
    if elements.len() <= 8 {
        return json!([types, elements]);
    }
    let texts = elements.iter().map(|element| match element {
        Value::String(text) => text.clone(),
        // As Python prints the floats that occur here.
        Value::Number(n) if n.is_f64() => format!("{:?}", n.as_f64().unwrap()),
        other => other.to_string(),
    });
    let text = texts.collect::<Vec<_>>().join("\n");
    let hash = format!("{:016x}", fnv(text.as_bytes()));
    json!([types, {"len": elements.len(), "fnv": hash}])
}

fn type_name(value: GgufValue<'_>) -> &'static str {
    match value {
        GgufValue::U32(_) => "UINT32",
        GgufValue::I32(_) => "INT32",
        GgufValue::F32(_) => "FLOAT32",
        GgufValue::Bool(_) => "BOOL",
        GgufValue::String(_) => "STRING",
        GgufValue::U8(_) => "UINT8",
        other => panic!("the converter writes no {other:?}"),
    }
}

pub(crate) fn scalar(value: GgufValue<'_>) -> Value {
    match value {
        GgufValue::U32(n) => json!(n),
        GgufValue::I32(n) => json!(n),
        GgufValue::F32(x) => json!(f64::from(x)),
        GgufValue::Bool(b) => json!(b),
        GgufValue::String(text) => json!(core::str::from_utf8(text).unwrap()),
        other => panic!("the converter writes no {other:?}"),
    }
}

/// Intended differences from llama.cpp's converter; the README explains them.
const DIFFERENCES: [(&str, &str); 6] = [
    ("llama3", "tokenizer.ggml.eot_token_id"),
    ("mistral", "tokenizer.ggml.scores"),
    ("mistral", "tokenizer.ggml.token_type"),
    // Their rules, and no composing, which the name of the rules stands for.
    ("qwen2", "tokenizer.ggml.normalizer.nfc"),
    ("qwen3", "tokenizer.ggml.normalizer.nfc"),
    ("qwen3moe", "tokenizer.ggml.normalizer.nfc"),
];

#[test]
fn every_family_becomes_what_llama_cpp_s_converter_makes_of_it() {
    let mut count = 0;
    for entry in fs::read_dir(FIXTURES).unwrap() {
        let family = entry.unwrap().file_name().into_string().unwrap();
        let folder = Folder::of(&family, "golden");
        for ty in ["f32", "f16", "bf16", "q8_0"] {
            let golden = Path::new(FIXTURES)
                .join(&family)
                .join(format!("golden-{ty}.json"));
            if !golden.exists() {
                continue;
            }
            let out = folder.path("out.gguf");
            let model = folder.path(&family);
            run_to(
                0,
                &[
                    "convert",
                    &model,
                    &out,
                    "--type",
                    ty,
                    "--overwrite",
                    "-t",
                    "2",
                ],
            );
            compare(&family, &fs::read(&out).unwrap(), &object(&golden));
            count += 1;
        }
    }
    assert_eq!(count, 14);
}

fn compare(family: &str, file: &[u8], golden: &Map<String, Value>) {
    let gguf = Gguf::parse(file, file.len() as u64).unwrap();
    let own: BTreeMap<_, _> = gguf.metadata().collect();
    let theirs = golden["metadata"].as_object().unwrap();
    let all = own.keys().copied().chain(theirs.keys().map(String::as_str));
    for key in all.filter(|key| !DIFFERENCES.contains(&(family, key))) {
        let own = own.get(key).map(|value| told(*value));
        assert_eq!(own.as_ref(), theirs.get(key), "{family}: {key}");
    }
    let is_theirs = |key: &&str| theirs.contains_key(*key) && own.contains_key(key);
    let order: Vec<_> = gguf
        .metadata()
        .map(|(key, _)| key)
        .filter(is_theirs)
        .collect();
    let expected: Vec<_> = theirs
        .keys()
        .map(String::as_str)
        .filter(is_theirs)
        .collect();
    assert_eq!(order, expected, "{family}");
    let tensors = golden["tensors"].as_array().unwrap();
    assert_eq!(gguf.tensor_count(), tensors.len() as u64, "{family}");
    for (tensor, golden) in gguf.tensors().zip(tensors) {
        let start = usize::try_from(tensor.offset).unwrap();
        let bytes = &file[start..][..usize::try_from(tensor.len_bytes).unwrap()];
        let dims = &tensor.dims[..tensor.n_dims];
        let hash = format!("{:016x}", fnv(bytes));
        let own = json!([tensor.name, dims, tensor.ty.name(), hash]);
        assert_eq!(own, *golden, "{family}");
    }
}

#[test]
fn a_tokenizer_json_of_sentencepiece_gets_the_scores_of_its_own_model() {
    // The two folders have one vocabulary, of which one lacks tokenizer.model.
    let scores = |family: &str| {
        let folder = Folder::of(family, "scores");
        let out = folder.path("out.gguf");
        run_to(0, &["convert", &folder.path(family), &out]);
        let file = fs::read(&out).unwrap();
        let gguf = Gguf::parse(&file, file.len() as u64).unwrap();
        let array = |key| match gguf.metadata().find(|(other, _)| *other == key) {
            Some((_, GgufValue::Array(array))) => array.iter().map(scalar).collect::<Vec<_>>(),
            other => panic!("{other:?}"),
        };
        (
            array("tokenizer.ggml.tokens"),
            array("tokenizer.ggml.scores"),
        )
    };
    let ((tokens, own), (others, model)) = (scores("mistral"), scores("mixtral"));
    assert_eq!(tokens[..322], others[..322]);
    // From the first merged piece on, to the first piece of one character.
    let last = (259..322).take_while(|&id| tokens[id].as_str().unwrap().chars().count() > 1);
    let last = last.last().unwrap();
    assert!(last > 280);
    assert_eq!(own[259..=last], model[259..=last]);
}

#[test]
fn auto_keeps_the_folder_s_type_and_names_can_be_given() {
    let folder = Folder::of("mixtral", "auto");
    let (model, out) = (folder.path("mixtral"), folder.path("out.gguf"));
    let ran = run_to(0, &["convert", &model, &out, "--model-name", "Mine"]);
    assert!(ran.stderr.contains("23 tensors"), "{ran:?}");
    let report = run_to(0, &["inspect", &out]).stdout;
    assert!(report.contains("\"Mine\""), "{report}");
    assert!(report.contains("F16"), "{report}");
    fails(
        1,
        &["convert", &model, &out],
        &["exists already", "--overwrite"],
    );
    run_to(
        0,
        &["convert", &model, &out, "--overwrite", "--outtype", "F32"],
    );
    assert_eq!(folder.names(), ["mixtral", "out.gguf"]);
}

/// Name, dimensions and bytes of each tensor of a file.
pub(crate) fn tensors(file: &[u8]) -> BTreeMap<String, (Vec<u64>, Vec<u8>)> {
    let gguf = Gguf::parse(file, file.len() as u64).unwrap();
    let tensors = gguf.tensors().map(|tensor| {
        let start = usize::try_from(tensor.offset).unwrap();
        let bytes = &file[start..][..usize::try_from(tensor.len_bytes).unwrap()];
        let dims = tensor.dims[..tensor.n_dims].to_vec();
        (tensor.name.to_owned(), (dims, bytes.to_vec()))
    });
    tensors.collect()
}

#[test]
fn published_folders_give_the_tensors_of_their_published_files() {
    let (hf, gguf) = (
        "models/tinystories-656k-hf",
        "models/tinystories-656k-f16.gguf",
    );
    let (Some(hf), Some(gguf)) = (shared(hf), shared(gguf)) else {
        return;
    };
    let tale = ["hf", "f16.gguf"].map(|end| hf.with_file_name(format!("tale-5.8m-{end}")));
    for [hf, gguf] in [[hf, gguf], tale] {
        let folder = Folder::new(hf.file_name().unwrap().to_str().unwrap());
        let out = folder.path("out.gguf");
        run_to(0, &["convert", hf.to_str().unwrap(), &out, "--type", "f16"]);
        let (own, theirs) = (fs::read(&out).unwrap(), fs::read(gguf).unwrap());
        assert!(tensors(&own) == tensors(&theirs), "{}", hf.display());
    }
}

/// The story model's folder, with weights from its file: they are restored, and tell the same
/// story.
#[test]
fn a_converted_model_tells_the_story_of_the_original() {
    let folder = Folder::new("story");
    let [original, out] = ["original.gguf", "out.gguf"].map(|name| folder.path(name));
    run_to(
        0,
        &["quantize", "--allow-requantize", MODEL, &original, "F32"],
    );
    let expected = tensors(&fs::read(&original).unwrap());
    let model = folder.0.join("tale");
    fs::create_dir(&model).unwrap();
    for entry in fs::read_dir(fixture("tale-hf")).unwrap() {
        let from = entry.unwrap().path();
        fs::copy(&from, model.join(from.file_name().unwrap())).unwrap();
    }
    fs::write(model.join("model.safetensors"), safetensors_of(&expected)).unwrap();
    run_to(
        0,
        &["convert", model.to_str().unwrap(), &out, "--type", "f32"],
    );
    assert!(tensors(&fs::read(&out).unwrap()) == expected);
    let prompt = ["-p", "Once upon", "-n", "24", "--temp", "0", "-c", "64"];
    let story = |model: &str| run_to(0, &[&["run", "-m", model], &prompt[..]].concat()).stdout;
    assert_eq!(story(&out), story(&original));
}

/// A llama file's tensors in F32 under the names of a published folder, rows of queries and keys in
/// its order.
fn safetensors_of(tensors: &BTreeMap<String, (Vec<u64>, Vec<u8>)>) -> Vec<u8> {
    const HEAD: usize = 64;
    let names = [
        ("token_embd", "embed_tokens"),
        ("output_norm", "norm"),
        ("blk.", "layers."),
        ("attn_norm", "input_layernorm"),
        ("ffn_norm", "post_attention_layernorm"),
        ("attn_q", "self_attn.q_proj"),
        ("attn_k", "self_attn.k_proj"),
        ("attn_v", "self_attn.v_proj"),
        ("attn_output", "self_attn.o_proj"),
        ("ffn_", "mlp."),
        ("gate.", "gate_proj."),
        ("up.", "up_proj."),
        ("down.", "down_proj."),
    ];
    let (mut header, mut blob) = (Map::new(), Vec::<u8>::new());
    for (name, (dims, bytes)) in tensors {
        let begin = blob.len();
        if name.contains("attn_q") || name.contains("attn_k") {
            // Neighbours 2i and 2i + 1 of a head are half a head apart here.
            let row_bytes = 4 * usize::try_from(dims[0]).unwrap();
            for head in bytes.chunks(HEAD * row_bytes) {
                let rows: Vec<_> = head.chunks(row_bytes).collect();
                blob.extend((0..2).flat_map(|j| rows[j..].iter().step_by(2).copied().flatten()));
            }
        } else {
            blob.extend(bytes);
        }
        let renamed = names
            .iter()
            .fold(name.clone(), |name, (from, to)| name.replace(from, to));
        let shape: Vec<u64> = dims.iter().rev().copied().collect();
        let entry = json!({"dtype": "F32", "shape": shape, "data_offsets": [begin, blob.len()]});
        header.insert(format!("model.{renamed}"), entry);
    }
    let header = Value::Object(header).to_string();
    let mut file = (header.len() as u64).to_le_bytes().to_vec();
    file.extend(header.bytes());
    file.extend(blob);
    file
}

/// Converts the edited folder of a family, and expects an error and no file.
pub(crate) fn refused(family: &str, edit: impl FnOnce(&Folder), expected: &[&str]) {
    let folder = Folder::of(family, "refused");
    edit(&folder);
    let (model, out) = (folder.path(family), folder.path("out.gguf"));
    fails(1, &["convert", &model, &out], expected);
    assert_eq!(folder.names(), [family]);
}

#[test]
fn what_is_wrong_with_a_configuration_is_named() {
    let config = "qwen2/config.json";
    let cases = [
        (
            json!({"architectures": ["GemmaForCausalLM"]}),
            "\"GemmaForCausalLM\" is not supported; supported are LlamaForCausalLM",
        ),
        (
            json!({"architectures": null, "model_type": "t5"}),
            "\"t5\" is not supported",
        ),
        (json!({"hidden_size": null}), "hidden_size is missing"),
        (
            json!({"num_hidden_layers": 99_999_999_999u64}),
            "num_hidden_layers is 99999999999",
        ),
        (
            json!({"num_hidden_layers": 16_777_216}),
            "is 16777216, but the files have only 26 tensors",
        ),
        (
            json!({"num_attention_heads": 0}),
            "num_attention_heads is 0, not an integer",
        ),
        (json!({"num_key_value_heads": 3}), "does not divide"),
        (
            json!({"rope_scaling": {"type": "dynamic", "factor": 2.0}}),
            "is \"dynamic\"",
        ),
        (
            json!({"rope_scaling": {"type": "yarn"}}),
            "factor is missing",
        ),
        (
            json!({"hidden_size": 128}),
            "has shape [330, 64], but config.json implies [330, 128]",
        ),
        (json!({"num_hidden_layers": 3}), "model.layers.2."),
        (json!({"num_hidden_layers": 1}), "model.layers.1."),
        (json!({"vocab_size": 100}), "[330, 64]"),
    ];
    for (changes, expected) in cases {
        refused(
            "qwen2",
            |folder| folder.edit(config, &changes),
            &["qwen2", expected],
        );
    }
    let missing = |folder: &Folder| fs::remove_file(folder.0.join(config)).unwrap();
    refused("qwen2", missing, &["config.json", "No such file"]);
    let malformed = |folder: &Folder| fs::write(folder.0.join(config), "{").unwrap();
    refused("qwen2", malformed, &["config.json", "EOF"]);
    let deep = |folder: &Folder| fs::write(folder.0.join(config), "[".repeat(1 << 20)).unwrap();
    refused("qwen2", deep, &["config.json"]);
}

#[test]
fn what_is_wrong_with_weights_is_named() {
    let path = |folder: &Folder, name: &str| folder.0.join("qwen2").join(name);
    let rewrite = |folder: &Folder, change: &dyn Fn(&mut Map<String, Value>)| {
        let mut tensors = object(&path(folder, "tensors.json"));
        change(&mut tensors);
        write_safetensors(&path(folder, "model.safetensors"), tensors.iter());
    };
    let bias = "model.layers.1.self_attn.k_proj.bias";
    let missing = |folder: &Folder| rewrite(folder, &|tensors| drop(tensors.remove(bias)));
    refused("qwen2", missing, &[bias, "is missing", "[32]"]);
    let extra = |folder: &Folder| {
        rewrite(folder, &|tensors| {
            drop(tensors.insert("model.x".into(), json!(["F32", [2]])))
        });
    };
    refused(
        "qwen2",
        extra,
        &["model.x", "does not belong to the qwen2 architecture"],
    );
    let shape = |folder: &Folder| {
        rewrite(folder, &|tensors| {
            drop(tensors.insert(bias.into(), json!(["F32", [33]])))
        });
    };
    refused(
        "qwen2",
        shape,
        &[bias, "has shape [33], but config.json implies [32]"],
    );
    for dtype in ["I8", "F8_E4M3"] {
        let eight_bits = |folder: &Folder| {
            let (mut header, mut at) = (Map::new(), 0);
            for (name, tensor) in object(&path(folder, "tensors.json")) {
                let shape = tensor[1].as_array().unwrap();
                let n: u64 = shape.iter().map(|n| n.as_u64().unwrap()).product();
                let (dtype, size) = if name == bias { (dtype, 1) } else { ("F32", 4) };
                let offsets = [at, at + n * size];
                at = offsets[1];
                let tensor = json!({"dtype": dtype, "shape": shape, "data_offsets": offsets});
                header.insert(name, tensor);
            }
            let bytes = vec![0; usize::try_from(at).unwrap()];
            write_raw(&path(folder, "model.safetensors"), &header.into(), &bytes);
        };
        refused("qwen2", eight_bits, &[bias, dtype, "only F32, F16, BF16"]);
    }
    let cut = |folder: &Folder| {
        let file = fs::File::options()
            .write(true)
            .open(path(folder, "model.safetensors"));
        file.unwrap().set_len(60_000).unwrap();
    };
    refused("qwen2", cut, &["model.safetensors", "the file has"]);
    let none = |folder: &Folder| {
        fs::remove_file(path(folder, "model.safetensors")).unwrap();
        fs::write(path(folder, "pytorch_model.bin"), "").unwrap();
    };
    refused(
        "qwen2",
        none,
        &["no model.safetensors", "pytorch_model.bin is not supported"],
    );
}

#[test]
fn what_is_wrong_with_shards_is_named() {
    let path = |folder: &Folder, name: &str| folder.0.join("llama3").join(name);
    let second = "model-00002-of-00003.safetensors";
    let absent = |folder: &Folder| fs::remove_file(path(folder, second)).unwrap();
    refused("llama3", absent, &[second, "does not exist"]);
    let index = "model.safetensors.index.json";
    let unindexed = |folder: &Folder| {
        absent(folder);
        fs::remove_file(path(folder, index)).unwrap();
    };
    refused("llama3", unindexed, &["2 of 3 safetensors files"]);
    let outside = |folder: &Folder| {
        let map = json!({"weight_map": {"x": "../model.safetensors"}});
        fs::write(path(folder, index), map.to_string()).unwrap();
    };
    refused("llama3", outside, &[index, "is not a file name"]);
    let twice = |folder: &Folder| {
        fs::remove_file(path(folder, index)).unwrap();
        fs::copy(
            path(folder, "model-00001-of-00003.safetensors"),
            path(folder, second),
        )
        .unwrap();
    };
    refused("llama3", twice, &["lm_head.weight", "is also in"]);
    let renamed = |folder: &Folder| {
        let mut map = object(&path(folder, index));
        map["weight_map"]["lm_head.weight"] = json!(second);
        fs::write(path(folder, index), Value::Object(map).to_string()).unwrap();
    };
    refused(
        "llama3",
        renamed,
        &[index, "lm_head.weight is not in", second],
    );
}

#[test]
fn what_is_wrong_with_a_tokenizer_is_named() {
    let tokenizer = "qwen2/tokenizer.json";
    let cases = [
        (
            json!({"pre_tokenizer": {"type": "Whitespace"}}),
            "unknown pre-tokenizer (Whitespace); its rules cannot be compared with the known ones; set",
        ),
        (
            json!({"model": {"type": "WordLevel", "vocab": {"a": 0}}}),
            "the model is WordLevel; only BPE, WordPiece and Unigram can be converted",
        ),
        (
            json!({"model": {"type": "BPE", "vocab": {"a": 1, "b": 1}}}),
            "have the same id, 1",
        ),
        (json!({"model": null}), "tokenizer.json"),
    ];
    for (changes, expected) in cases {
        refused(
            "qwen2",
            |folder| folder.edit(tokenizer, &changes),
            &[expected],
        );
    }
    let missing = |folder: &Folder| fs::remove_file(folder.0.join(tokenizer)).unwrap();
    refused("qwen2", missing, &["neither", "tokenizer.model"]);
    let pieces = |folder: &Folder| {
        fs::write(folder.0.join("mixtral/tokenizer.model"), [0x0a, 99]).unwrap();
    };
    refused("mixtral", pieces, &["tokenizer.model: malformed at byte 2"]);

    let folder = Folder::of("qwen2", "pre");
    folder.edit(tokenizer, &json!({"pre_tokenizer": {"type": "Whitespace"}}));
    let out = folder.path("out.gguf");
    run_to(
        0,
        &["convert", &folder.path("qwen2"), &out, "--pre", "qwen2"],
    );
}

#[test]
fn folders_and_files_are_told_apart() {
    let folder = Folder::of("qwen2", "paths");
    let (model, out) = (folder.path("qwen2"), folder.path("out.gguf"));
    let config = folder.path("qwen2/config.json");
    fails(
        1,
        &["convert", &config, &out],
        &["config.json is not a folder"],
    );
    fails(
        1,
        &["convert", &folder.path("absent"), &out],
        &["absent", "cannot read"],
    );
    fails(
        1,
        &["convert", &model, &model],
        &["is not a valid name for an output file"],
    );
    fails(
        1,
        &["convert", &model, &folder.path("no/out.gguf")],
        &["cannot create"],
    );
    let wrong = run_to(2, &["convert", &model, &out, "--type", "q3"]);
    assert!(wrong.stderr.contains("Q8_0"), "{wrong:?}");
    let help = run_to(0, &["convert", "--help"]).stdout;
    assert!(help.contains("sluice convert Qwen3-0.6B"), "{help}");
}

#[test]
fn an_interrupted_conversion_leaves_nothing() {
    // A vocabulary of 256 MiB of zeros, which takes no disk space as a sparse file.
    let folder = Folder::of("qwen2", "interrupt");
    let n_vocab = 2_097_152u64;
    folder.edit("qwen2/config.json", &json!({"vocab_size": n_vocab}));
    let (mut header, mut at) = (Map::new(), 0);
    for (name, about) in object(&folder.0.join("qwen2/tensors.json")) {
        let mut shape: Vec<u64> = serde_json::from_value(about[1].clone()).unwrap();
        if name == "model.embed_tokens.weight" {
            shape[0] = n_vocab;
        }
        let end = at + 2 * shape.iter().product::<u64>();
        header.insert(
            name,
            json!({"dtype": "BF16", "shape": shape, "data_offsets": [at, end]}),
        );
        at = end;
    }
    let path = folder.0.join("qwen2/model.safetensors");
    write_raw(&path, &Value::Object(header), &[]);
    let file = fs::File::options().write(true).open(&path).unwrap();
    file.set_len(file.metadata().unwrap().len() + at).unwrap();

    let mut command = sluice();
    let out = folder.path("out.gguf");
    command.args([
        "convert",
        &folder.path("qwen2"),
        &out,
        "--type",
        "q8_0",
        "-t",
        "1",
    ]);
    let child = interruptible(command);
    let since = Instant::now();
    // The partial file exists as soon as writing has begun.
    while folder.names().len() < 2 && since.elapsed() < Duration::from_secs(60) {
        core::hint::spin_loop();
    }
    interrupt(&child);
    let ran = ran(child.wait_with_output().unwrap());
    assert_eq!(ran.code, Some(130), "{ran:?}");
    assert!(ran.stderr.contains("nothing was written"), "{ran:?}");
    assert_eq!(folder.names(), ["qwen2"]);
}
