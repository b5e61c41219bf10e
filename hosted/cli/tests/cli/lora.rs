//! `sluice lora`: adapters of many families compared with the output of llama.cpp's converter, and refusals.
//!
//! `lora/goldens.json` comes from `tests/tools/lora_families.py`, which describes its contents.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use crate::convert::{FIXTURES, Folder, fnv, object, write_safetensors};
use crate::families::{cases, folder_of};
use crate::support::{run, run_to};
use serde_json::{Map, Value, json};
use sluice::core::gguf::Gguf;
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

const GOLDENS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/cli/lora/goldens.json");

pub(crate) const RANK: u64 = 4;

/// The matrices of `lora_families.py`.
const EMBEDDINGS: [&str; 4] = [
    "embed_tokens",
    "word_embeddings",
    "tok_embeddings",
    "backbone.embeddings",
];

/// Matrices that are not linear layers.
const OTHERS: [&str; 7] = [
    "position_embeddings",
    "token_type_embeddings",
    "embed_tokens_per_layer",
    "pooler.",
    "classifier",
    "head.",
    "cls.",
];

/// The modules of a model that the goldens' converter received, with their shapes.
pub(crate) fn modules(tensors: &Map<String, Value>) -> Vec<(String, [u64; 2])> {
    let matrices = tensors.iter().filter_map(|(name, shape)| {
        let module = name.strip_suffix(".weight")?;
        let shape: Vec<u64> = shape.as_array()?.iter().filter_map(Value::as_u64).collect();
        let is_other = OTHERS.iter().any(|part| name.contains(part)) && module != "lm_head";
        let &[rows, columns] = &shape[..] else {
            return None;
        };
        (!is_other).then(|| (module.to_owned(), [rows, columns]))
    });
    matrices.collect()
}

/// Writes a PEFT folder.
pub(crate) fn write_adapter(folder: &Path, modules: &[(String, [u64; 2])], changes: &Value) {
    fs::create_dir_all(folder).unwrap();
    let mut config = json!({"peft_type": "LORA", "r": RANK, "lora_alpha": 8, "bias": "none"});
    for (key, value) in changes.as_object().unwrap() {
        config[key] = value.clone();
    }
    fs::write(folder.join("adapter_config.json"), config.to_string()).unwrap();
    let mut tensors = Map::new();
    for (module, [rows, columns]) in modules {
        let name = |end: &str| format!("base_model.model.{module}.{end}");
        let is_embedding = EMBEDDINGS.iter().any(|end| module.ends_with(end));
        let pair = match is_embedding {
            true => [
                ("lora_embedding_A", [RANK, *rows]),
                ("lora_embedding_B", [*columns, RANK]),
            ],
            false => [
                ("lora_A.weight", [RANK, *columns]),
                ("lora_B.weight", [*rows, RANK]),
            ],
        };
        for (end, shape) in pair {
            tensors.insert(name(end), json!(["F32", shape]));
        }
    }
    write_safetensors(&folder.join("adapter_model.safetensors"), tensors.iter());
}

/// A hash for each kind of tensor, as `lora_families.py` makes them.
fn hashes(file: &[u8]) -> BTreeMap<String, String> {
    let gguf = Gguf::parse(file, file.len() as u64).unwrap();
    let mut tensors: Vec<_> = gguf.tensors().collect();
    tensors.sort_by_key(|tensor| tensor.name);
    let mut bytes: BTreeMap<String, Vec<u8>> = BTreeMap::new();
    for tensor in tensors {
        let own = tensor.name.rsplit_once(".lora_").unwrap().0;
        let own = match own.strip_prefix("blk.") {
            Some(rest) => rest.split_once('.').unwrap().1,
            None => own,
        };
        let dims = &tensor.dims[..tensor.n_dims];
        let all = bytes.entry(own.to_owned()).or_default();
        all.extend(format!("{} {dims:?} ", tensor.name).bytes());
        let start = usize::try_from(tensor.offset).unwrap();
        all.extend(&file[start..][..usize::try_from(tensor.len_bytes).unwrap()]);
    }
    let hash = |(own, bytes): (String, Vec<u8>)| (own, format!("{:016x}", fnv(&bytes)));
    bytes.into_iter().map(hash).collect()
}

/// All models: their names, folders, and tensors with shapes.
fn models() -> Vec<(String, Folder, Map<String, Value>)> {
    let mut all: Vec<_> = cases()
        .into_iter()
        .map(|(name, case)| {
            let tensors = case["tensors"].as_object().unwrap().clone();
            let folder = folder_of(&name, &case);
            (name, folder, tensors)
        })
        .collect();
    for entry in fs::read_dir(FIXTURES).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        let folder = Folder::of(&name, "lora");
        let tensors = object(&folder.0.join(&name).join("tensors.json"));
        let shapes = tensors
            .into_iter()
            .map(|(name, about)| (name, about[1].clone()));
        all.push((name, folder, shapes.collect()));
    }
    all
}

#[test]
fn every_family_becomes_what_llama_cpp_makes_of_it() {
    let goldens = object(Path::new(GOLDENS));
    let mut failures = Vec::new();
    let only = std::env::var("SLUICE_FAMILY").ok();
    for (name, folder, tensors) in models() {
        // PEFT has other names for parametrised matrices, and knows no class whose code is in its repository.
        let has_golden = !["jina-bert-v3", "minicpm", "smallthinker"].contains(&name.as_str());
        if only.as_ref().is_some_and(|only| *only != name) || !has_golden {
            continue;
        }
        write_adapter(&folder.0.join("adapter"), &modules(&tensors), &json!({}));
        if let Err(failure) = compare(&name, &folder, &goldens[&name]) {
            failures.push(format!("{name}: {failure}"));
        }
    }
    assert!(failures.is_empty(), "\n{}", failures.join("\n"));
}

/// Compares an adapter's file with the recorded one, and conversion by the model's GGUF file with conversion by its
/// folder.
fn compare(name: &str, folder: &Folder, golden: &Value) -> Result<(), String> {
    let convert = |out: &str, hint: [&str; 2]| {
        let [adapter, out] = [folder.path("adapter"), folder.path(out)];
        let ran = run(&["lora", "convert", &adapter, "-o", &out, hint[0], hint[1]]);
        match ran.code {
            Some(0) => Ok(fs::read(&out).unwrap()),
            _ => Err(ran.stderr),
        }
    };
    let (base, model) = (folder.path(name), folder.path("model.gguf"));
    let by_folder = convert("by-folder.gguf", ["--base", &base])?;
    let own = hashes(&by_folder);
    let theirs = golden["hashes"].as_object().unwrap();
    for (kind, hash) in theirs {
        let found = own.get(kind).map(String::as_str);
        if found != hash.as_str() {
            return Err(format!("{kind} is {found:?}, not {hash}"));
        }
    }
    let more: Vec<_> = own
        .keys()
        .filter(|kind| !theirs.contains_key(*kind))
        .collect();
    if !more.is_empty() && golden.get("fails").is_none() {
        return Err(format!("{more:?} are not in llama.cpp's file"));
    }
    check_way_back(folder, &base, &by_folder)?;
    run_to(0, &["convert", &base, &model, "--type", "f16"]);
    match convert("by-model.gguf", ["-m", &model])? == by_folder {
        true => Ok(()),
        false => Err("the GGUF file says other sizes than the folder".into()),
    }
}

/// A GGUF file converts to a PEFT folder and back to the same file, unless a matrix is cut from a larger one.
fn check_way_back(folder: &Folder, base: &str, by_folder: &[u8]) -> Result<(), String> {
    let [file, peft, again] = ["by-folder.gguf", "peft", "again.gguf"].map(|n| folder.path(n));
    let ran = run(&[
        "lora", "convert", &file, "--to", "peft", "-o", &peft, "--base", base,
    ]);
    if ran.code != Some(0) {
        let is_cut = ran.stderr.contains("cut from a Hugging Face matrix")
            || ran
                .stderr
                .contains("is part of a Hugging Face matrix")
            // Blocks after the layers have names of their own.
            || ran.stderr.contains("is not a matrix of Hugging Face's");
        return if is_cut { Ok(()) } else { Err(ran.stderr) };
    }
    run_to(0, &["lora", "convert", &peft, "-o", &again, "--base", base]);
    // The base's name is the file's own.
    match hashes(&fs::read(&again).unwrap()) == hashes(by_folder) {
        true => Ok(()),
        false => Err("GGUF to PEFT and back is not the same".into()),
    }
}
