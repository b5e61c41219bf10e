//! What `sluice lora` reports about files that it cannot apply in full.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use crate::convert::{Folder, object, write_safetensors};
use crate::families::{FAMILIES, folder_of};
use crate::lora::write_adapter;
use crate::support::{fails, run_to};
use serde_json::{Map, Value, json};
use sluice::core::kernels::GgmlType;
use sluice::file::{GgufHeader, MetaValue};
use std::fs;
use std::path::Path;

/// The folder of a model with an adapter for its queries.
pub(crate) fn small_adapter(name: &str) -> Folder {
    let case = object(&Path::new(FAMILIES).join("qwen2moe.json"));
    let folder = folder_of("qwen2moe", &case);
    fs::rename(folder.0.join("qwen2moe"), folder.0.join("base")).unwrap();
    write_adapter(&folder.0.join(name), &[(Q.into(), [64, 64])], &json!({}));
    folder
}

pub(crate) const Q: &str = "model.layers.0.self_attn.q_proj";

/// Converts `adapter` of a folder and expects an error.
fn refused(folder: &Folder, adapter: &str, expected: &[&str]) {
    let [adapter, base, out] = [adapter, "base", "out.gguf"].map(|name| folder.path(name));
    let args = ["lora", "convert", &adapter, "--base", &base, "-o", &out];
    fails(1, &args, expected);
    assert!(!folder.names().iter().any(|name| name.contains("out.gguf")));
}

#[test]
fn folders_that_cannot_be_honoured_are_refused_by_name() {
    let folder = small_adapter("adapter");
    let write = |modules: &[(&str, [u64; 2])], changes: Value| {
        let modules: Vec<_> = modules
            .iter()
            .map(|(m, shape)| ((*m).to_owned(), *shape))
            .collect();
        write_adapter(&folder.0.join("adapter"), &modules, &changes);
    };
    let q = [(Q, [64, 64])];
    for (modules, changes, expected) in [
        (&q[..], json!({"use_dora": true}), "use_dora is true"),
        (&q, json!({"peft_type": "LOHA"}), "peft_type is \"LOHA\""),
        (
            &q,
            json!({"modules_to_save": ["score"]}),
            "modules_to_save is",
        ),
        (
            &q,
            json!({"r": 8}),
            "has rank 4, but adapter_config.json states 8",
        ),
        (
            &q,
            json!({"rank_pattern": {"q_proj": 2}}),
            "has rank 4, but adapter_config.json states 2",
        ),
        (
            &[(Q, [64, 32])],
            json!({}),
            "was made for 64 x 32, but the model has 64 x 64",
        ),
        (&[(Q, [32, 64])], json!({}), "was made for 32 x 64"),
        (
            &[("model.layers.9.self_attn.q_proj", [64, 64])],
            json!({}),
            "layers.9.self_attn.q_proj is not a matrix",
        ),
        (
            &[("model.layers.0.mlp.experts.9.up_proj", [32, 64])],
            json!({}),
            "experts.9.up_proj is not a matrix",
        ),
        (
            &[("model.layers.0.input_layernorm", [64, 1])],
            json!({}),
            "input_layernorm is not a matrix",
        ),
        (
            &[("transformer.h.0.attn", [64, 64])],
            json!({}),
            "transformer.h.0.attn is not a matrix",
        ),
        (&[], json!({}), "it has no matrices"),
    ] {
        write(modules, changes);
        refused(&folder, "adapter", &[expected]);
    }
}

#[test]
fn tensors_that_have_no_place_are_refused_by_name() {
    let folder = small_adapter("adapter");
    let path = folder.0.join("adapter/adapter_model.safetensors");
    let pair = |a: (&str, Value), b: (&str, Value)| {
        let tensors = [a, b].map(|(name, about)| (name.to_owned(), about));
        let tensors: Map<String, Value> = tensors.into_iter().collect();
        write_safetensors(&path, tensors.iter());
    };
    let (a, b) = (
        format!("base_model.model.{Q}.lora_A.weight"),
        format!("base_model.model.{Q}.lora_B.weight"),
    );
    let (of_a, of_b) = (json!(["F32", [4, 64]]), json!(["F32", [64, 4]]));
    for (other, about, expected) in [
        (
            "base_model.model.lm_head.weight",
            json!(["F32", [2, 2]]),
            "is a whole tensor",
        ),
        (
            "q.lora_magnitude_vector.weight",
            json!(["F32", [2]]),
            "DoRA",
        ),
        ("q.lora_B.bias", json!(["F32", [2]]), "lora_bias"),
        (&*b, json!(["U8", [64, 4]]), "is stored as U8"),
        (
            &b,
            json!(["F32", [256]]),
            "is not a matrix: it has shape [256]",
        ),
        (
            &b.replace("lora_B", "lora_A.other"),
            of_a.clone(),
            "several adapters",
        ),
        (
            &b.replace("q_proj", "k_proj"),
            of_b.clone(),
            "q_proj has a matrix A but no B",
        ),
    ] {
        pair((&a, of_a.clone()), (other, about));
        refused(&folder, "adapter", &[expected]);
    }
    pair((&a, of_a.clone()), (&b, of_b));
    let mut bytes = fs::read(&path).unwrap();
    let end = bytes.len();
    bytes[end - 4..].copy_from_slice(&f32::NAN.to_le_bytes());
    fs::write(&path, &bytes).unwrap();
    refused(
        &folder,
        "adapter",
        &["lora_B.weight has a number that is not finite"],
    );
    fs::write(&path, &bytes[..end - 4]).unwrap();
    refused(
        &folder,
        "adapter",
        &["adapter_model.safetensors", "the file has"],
    );
    fs::rename(&path, folder.0.join("adapter/adapter_model.bin")).unwrap();
    refused(
        &folder,
        "adapter",
        &["adapter_model.bin", "it is not a ZIP file"],
    );
}

#[test]
fn what_is_no_adapter_is_said() {
    let folder = small_adapter("adapter");
    let model = folder.path("model.gguf");
    run_to(
        0,
        &["convert", &folder.path("base"), &model, "--type", "f16"],
    );
    let adapter = folder.path("adapter.gguf");
    run_to(
        0,
        &[
            "lora",
            "convert",
            &folder.path("adapter"),
            "-o",
            &adapter,
            "-m",
            &model,
        ],
    );
    for (path, expected) in [
        ("base", "it is a model's folder"),
        ("model.gguf", "it is a model"),
        ("absent", "cannot read"),
        ("adapter/adapter_model.safetensors", "give its folder"),
    ] {
        fails(1, &["lora", "inspect", &folder.path(path)], &[expected]);
    }
    fs::write(folder.0.join("text.gguf"), "not a model").unwrap();
    fails(
        1,
        &["lora", "inspect", &folder.path("text.gguf")],
        &["text.gguf"],
    );
    let bytes = fs::read(&adapter).unwrap();
    fs::write(folder.0.join("cut.gguf"), &bytes[..bytes.len() - 64]).unwrap();
    fails(
        1,
        &["lora", "inspect", &folder.path("cut.gguf")],
        &["cut.gguf"],
    );
    // An adapter file where a model should be.
    let out = folder.path("out.gguf");
    let args = [
        "lora", "merge", "-m", &adapter, "--lora", &adapter, "-o", &out,
    ];
    fails(
        1,
        &args,
        &["blk.0.attn_q.weight is adapted, but the model has no such matrix"],
    );
    // Without the model its names are unknown.
    let alone = folder.path("adapter");
    fails(
        1,
        &["lora", "convert", &alone, "-o", &out],
        &["give the model's folder"],
    );
    let ran = run_to(0, &["lora", "inspect", &alone]);
    assert!(ran.stdout.contains(Q), "{ran:?}");
}

/// A GGUF file of an adapter for layer 0's queries, with changes.
fn gguf_adapter(change: impl FnOnce(&mut GgufHeader)) -> Vec<u8> {
    let mut header = GgufHeader::new();
    header.set("general.architecture", "qwen2moe");
    header.set("general.type", "adapter");
    header.set("adapter.type", "lora");
    header.set("adapter.lora.alpha", 8_f32);
    change(&mut header);
    if header.tensors().is_empty() {
        header.add_tensor("blk.0.attn_q.weight.lora_a", &[64, 4], GgmlType::F32);
        header.add_tensor("blk.0.attn_q.weight.lora_b", &[4, 64], GgmlType::F32);
    }
    let mut file = header.bytes();
    file.resize(usize::try_from(header.file_bytes()).unwrap(), 0);
    file
}

#[test]
#[expect(clippy::too_many_lines, reason = "a table")]
fn gguf_files_that_cannot_be_honoured_are_refused_by_name() {
    type Change = fn(&mut GgufHeader);
    let folder = small_adapter("adapter");
    let model = folder.path("model.gguf");
    run_to(
        0,
        &["convert", &folder.path("base"), &model, "--type", "f16"],
    );
    let cases: [(Change, &str); 12] = [
        (
            |h| h.set("general.architecture", "llama"),
            "architecture \"llama\", but the model's is \"qwen2moe\"",
        ),
        (|h| h.set("adapter.type", "ia3"), "adapter.type is \"ia3\""),
        (|h| h.remove("adapter.type"), "adapter.type is missing"),
        (
            |h| h.set("general.type", "imatrix"),
            "general.type is \"imatrix\"",
        ),
        (
            |h| h.set("adapter.lora.alpha", 8_u32),
            "adapter.lora.alpha has an unexpected type",
        ),
        (
            |h| h.set("adapter.lora.alpha", f32::INFINITY),
            "adapter.lora.alpha is inf",
        ),
        (
            |h| h.set("adapter.alora.invocation_tokens", MetaValue::u32s(&[1])),
            "adapter.alora.invocation_tokens is given",
        ),
        (
            |h| {
                h.add_tensor("blk.0.attn_q.weight.lora_a", &[64, 4], GgmlType::F32);
            },
            "has .lora_a but no .lora_b",
        ),
        (
            |h| {
                h.add_tensor("blk.0.attn_norm.weight", &[64], GgmlType::F32);
            },
            "blk.0.attn_norm.weight replaces a norm of the model",
        ),
        (
            |h| {
                h.add_tensor("x", &[64], GgmlType::F32);
            },
            "x is not a matrix of an adapter",
        ),
        (
            |h| {
                h.add_tensor("blk.0.attn_q.weight.lora_a", &[64, 4], GgmlType::F32);
                h.add_tensor("blk.0.attn_q.weight.lora_b", &[5, 64], GgmlType::F32);
            },
            "has matrices of ranks 4",
        ),
        (
            |h| {
                h.add_tensor("blk.0.attn_q.weight.lora_a", &[64, 4], GgmlType::F32);
                h.add_tensor("blk.0.attn_q.weight.lora_b", &[4, 32], GgmlType::F32);
            },
            "was made for 32 x 64, but the model has 64 x 64",
        ),
    ];
    let path = folder.path("x.gguf");
    for (change, expected) in cases {
        fs::write(&path, gguf_adapter(change)).unwrap();
        fails(1, &["lora", "inspect", &path, "-m", &model], &[expected]);
    }
    // One matrix for more matrices than fit in memory.
    let file = gguf_adapter(|h| {
        h.add_tensor(
            "blk.0.ffn_up_exps.weight.lora_a",
            &[1 << 20, 1],
            GgmlType::F32,
        );
        h.add_tensor(
            "blk.0.ffn_up_exps.weight.lora_b",
            &[1, 1, 1 << 20],
            GgmlType::F32,
        );
    });
    fs::write(&path, file).unwrap();
    fails(1, &["lora", "inspect", &path], &["times 1048576 matrices"]);
    // Without α the matrices are as they are.
    fs::write(&path, gguf_adapter(|h| h.remove("adapter.lora.alpha"))).unwrap();
    let ran = run_to(0, &["lora", "inspect", &path, "-m", &model, "--json"]);
    let json: Value = serde_json::from_str(&ran.stdout).unwrap();
    assert_eq!(json["matrices"][0]["scale"], json!(1.0));
    assert!(
        ran.stderr.contains("adapter.lora.alpha is missing"),
        "{ran:?}"
    );
}
