//! `sluice lora merge` and `blend`, compared with sums of weights and products computed
//! independently.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use crate::convert::{Folder, object, told};
use crate::families::{FAMILIES, folder_of};
use crate::lora::{modules, write_adapter};
use crate::lora_says::{Q, small_adapter};
use crate::support::{fails, run_to};
use serde_json::{Map, Value, json};
use sluice::core::gguf::Gguf;
use sluice::core::kernels::GgmlType;
use sluice::core::kernels::blocks::dequantize_row;
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

/// Tensors of a file by their names: dimensions, type and numbers.
pub(crate) fn numbers(file: &[u8]) -> BTreeMap<String, (Vec<u64>, GgmlType, Vec<f32>)> {
    let gguf = Gguf::parse(file, file.len() as u64).unwrap();
    let tensors = gguf.tensors().map(|tensor| {
        let start = usize::try_from(tensor.offset).unwrap();
        let bytes = &file[start..][..usize::try_from(tensor.len_bytes).unwrap()];
        let mut x = vec![0.0; usize::try_from(tensor.n_elements()).unwrap()];
        dequantize_row(tensor.ty, bytes, &mut x);
        let dims = tensor.dims[..tensor.n_dims].to_vec();
        (tensor.name.to_owned(), (dims, tensor.ty, x))
    });
    tensors.collect()
}

/// Adds `by` times the products of an adapter's GGUF file to a model's numbers, in f64.
fn add_products(
    model: &mut BTreeMap<String, (Vec<u64>, GgmlType, Vec<f32>)>,
    adapter: &BTreeMap<String, (Vec<u64>, GgmlType, Vec<f32>)>,
    by: f64,
) {
    for (name, (dims_a, _, a)) in adapter {
        let Some(tensor) = name.strip_suffix(".lora_a") else {
            continue;
        };
        let (dims_b, _, b) = &adapter[&format!("{tensor}.lora_b")];
        let usize_of = |n: u64| usize::try_from(n).unwrap();
        let (rank, is_embedding) = (usize_of(dims_b[0]), tensor == "token_embd.weight");
        let (_, _, x) = model.get_mut(tensor).unwrap();
        let n = dims_b.get(2).map_or(1, |n| usize_of(*n));
        let rows = usize_of(if is_embedding { dims_a[1] } else { dims_b[1] });
        let columns = x.len() / n / rows;
        for (i, x) in x.iter_mut().enumerate() {
            let (matrix, row, column) = (i / (rows * columns), i / columns % rows, i % columns);
            let term = |k: usize| match is_embedding {
                true => f64::from(a[row * rank + k]) * f64::from(b[column * rank + k]),
                false => {
                    let a = a[(matrix * rank + k) * columns + column];
                    f64::from(a) * f64::from(b[(matrix * rows + row) * rank + k])
                }
            };
            let sum: f64 = (0..rank).map(term).sum();
            *x = narrow(f64::from(*x) + by * sum);
        }
    }
}

#[expect(clippy::cast_possible_truncation, reason = "rounded to f32")]
fn narrow(x: f64) -> f32 {
    x as f32
}

/// α / r of [`write_adapter`]'s files.
const SCALE: f64 = 2.0;

#[test]
fn merged_weights_are_weights_and_products() {
    for name in ["deepseek2-lite", "qwen2moe", "glm4"] {
        let case = object(&Path::new(FAMILIES).join(format!("{name}.json")));
        let folder = folder_of(name, &case);
        let path = |file: &str| folder.path(file);
        let modules = modules(case["tensors"].as_object().unwrap());
        write_adapter(&folder.0.join("adapter"), &modules, &json!({}));
        let (model, adapter) = (path("model.gguf"), path("adapter.gguf"));
        run_to(0, &["convert", &path(name), &model, "--type", "f32"]);
        run_to(
            0,
            &[
                "lora",
                "convert",
                &path("adapter"),
                "-o",
                &adapter,
                "-m",
                &model,
            ],
        );
        let (merged, half) = (path("merged.gguf"), format!("{adapter}:0.5"));
        run_to(
            0,
            &[
                "lora", "merge", "-m", &model, "--lora", &half, "-o", &merged, "-t", "2",
            ],
        );
        let (before, after) = (fs::read(&model).unwrap(), fs::read(&merged).unwrap());
        let mut expected = numbers(&before);
        add_products(
            &mut expected,
            &numbers(&fs::read(&adapter).unwrap()),
            0.5 * SCALE,
        );
        let found = numbers(&after);
        assert_eq!(
            found.keys().collect::<Vec<_>>(),
            expected.keys().collect::<Vec<_>>()
        );
        for (tensor, (dims, ty, x)) in &found {
            let (own_dims, own_ty, own) = &expected[tensor];
            assert_eq!((dims, ty), (own_dims, own_ty), "{name} {tensor}");
            for (x, own) in x.iter().zip(own) {
                assert!((x - own).abs() <= 1e-6, "{name} {tensor}: {x}, not {own}");
            }
        }
        // The metadata of the model is unchanged, byte for byte.
        let keys = |file: &[u8]| -> Vec<(String, Value)> {
            let gguf = Gguf::parse(file, file.len() as u64).unwrap();
            let entries = gguf.metadata();
            entries
                .map(|(key, value)| (key.to_owned(), told(value)))
                .collect()
        };
        assert_eq!(keys(&before), keys(&after), "{name}");
        run_to(
            0,
            &[
                "run", "-m", &merged, "-p", "Once", "-n", "2", "--temp", "0", "-c", "32",
            ],
        );
    }
}

/// The first columns, with which OLoRA begins, are elsewhere in a GGUF file: taking out others would be wrong.
#[test]
fn olora_on_columns_that_gguf_regroups_is_refused() {
    let case = object(&Path::new(FAMILIES).join("qwen35-text.json"));
    let folder = folder_of("qwen35-text", &case);
    let path = |file: &str| folder.path(file);
    let model = path("model.gguf");
    run_to(
        0,
        &["convert", &path("qwen35-text"), &model, "--type", "f32"],
    );
    let all = modules(case["tensors"].as_object().unwrap());
    let is_output = |module: &&(String, _)| module.0.ends_with("linear_attn.out_proj");
    let outputs: Vec<_> = all.iter().filter(is_output).cloned().collect();
    assert!(!outputs.is_empty());
    let merge = |start: &str| {
        let adapter = folder.0.join(start);
        write_adapter(&adapter, &outputs, &json!({"init_lora_weights": start}));
        let (adapter, merged) = (path(start), path(&format!("{start}.gguf")));
        [
            "lora", "merge", "-m", &model, "--lora", &adapter, "-o", &merged,
        ]
        .map(str::to_owned)
    };
    run_to(0, &merge("pissa").each_ref().map(String::as_str));
    let parts = [
        "linear_attn.out_proj",
        "what OLoRA began with cannot be taken out",
    ];
    fails(1, &merge("olora").each_ref().map(String::as_str), &parts);
}

/// A model in Q8_0, and an adapter for its queries.
fn queries_of_llama3() -> Folder {
    let folder = Folder::of("llama3", "lora-merge");
    let tensors = object(&folder.0.join("llama3/tensors.json"));
    let shapes: Map<String, Value> = tensors
        .into_iter()
        .map(|(name, about)| (name, about[1].clone()))
        .collect();
    let only_q: Vec<_> = modules(&shapes)
        .into_iter()
        .filter(|(module, _)| module.ends_with("q_proj"))
        .collect();
    write_adapter(&folder.0.join("adapter"), &only_q, &json!({}));
    let (model, llama3) = (folder.path("model.gguf"), folder.path("llama3"));
    run_to(0, &["convert", &llama3, &model, "--type", "q8_0"]);
    folder
}

#[test]
fn weights_are_quantised_again_and_others_keep_their_bytes() {
    let folder = queries_of_llama3();
    let path = |file: &str| folder.path(file);
    let (model, merged) = (path("model.gguf"), path("merged.gguf"));
    let adapter = path("adapter");
    run_to(
        0,
        &[
            "lora", "merge", "-m", &model, "--lora", &adapter, "-o", &merged,
        ],
    );
    let (before, after) = (fs::read(&model).unwrap(), fs::read(&merged).unwrap());
    let (mut expected, found) = (numbers(&before), numbers(&after));
    run_to(
        0,
        &[
            "lora",
            "convert",
            &adapter,
            "-m",
            &model,
            "-o",
            &path("adapter.gguf"),
        ],
    );
    let pairs = numbers(&fs::read(path("adapter.gguf")).unwrap());
    let unchanged = expected.clone();
    add_products(&mut expected, &pairs, SCALE);
    for (tensor, (_, ty, x)) in &found {
        if !tensor.ends_with("attn_q.weight") {
            assert_eq!(*x, unchanged[tensor].2, "{tensor}");
            continue;
        }
        assert_eq!(*ty, GgmlType::Q8_0);
        assert_ne!(*x, unchanged[tensor].2, "{tensor}");
        // The scale is rounded to f16 too.
        for (x, own) in x
            .as_chunks::<32>()
            .0
            .iter()
            .zip(expected[tensor].2.as_chunks::<32>().0)
        {
            let step = own.iter().fold(0_f32, |max, x| max.max(x.abs())) / 127.0;
            let is_near = |(x, own): (&f32, &f32)| (x - own).abs() <= 0.6 * step;
            assert!(x.iter().zip(own).all(is_near), "{tensor}");
        }
    }
}

#[test]
fn adapted_weights_have_the_type_that_is_asked_for() {
    let folder = queries_of_llama3();
    let path = |file: &str| folder.path(file);
    let [model, merged, adapter] = ["model.gguf", "merged.gguf", "adapter"].map(path);
    fs::write(&merged, "GGUF").unwrap();
    let args = [
        "lora", "merge", "-m", &model, "--lora", &adapter, "-o", &merged,
    ];
    fails(1, &args, &["exists already"]);
    let f16 = [&args[..], &["--overwrite", "--outtype", "f16"]].concat();
    run_to(0, &f16);
    let found = numbers(&fs::read(&merged).unwrap());
    assert_eq!(found["blk.0.attn_q.weight"].1, GgmlType::F16);
    assert_eq!(found["blk.0.attn_k.weight"].1, GgmlType::Q8_0);
    // A type whose rows do not fit leaves no file.
    let bad = path("bad.gguf");
    let args = [
        "lora",
        "merge",
        "-m",
        &model,
        "--lora",
        &adapter,
        "-o",
        &bad,
        "--outtype",
        "q4_K",
    ];
    fails(
        1,
        &args,
        &["blk.0.attn_q.weight", "cannot be written as Q4_K"],
    );
    assert!(!folder.names().iter().any(|name| name.contains("bad.gguf")));
}

#[test]
fn a_tied_model_gets_an_output_matrix_of_its_own() {
    let case = object(&Path::new(FAMILIES).join("smollm3.json"));
    let folder = folder_of("smollm3", &case);
    let path = |file: &str| folder.path(file);
    let model = path("model.gguf");
    run_to(0, &["convert", &path("smollm3"), &model, "--type", "f32"]);
    let before = numbers(&fs::read(&model).unwrap());
    let embedding = before["token_embd.weight"].2.clone();
    assert!(!before.contains_key("output.weight"));
    for (module, changes) in [
        ("model.embed_tokens", "token_embd.weight"),
        ("lm_head", "output.weight"),
    ] {
        let adapter = folder.0.join(module);
        write_adapter(&adapter, &[(module.into(), [330, 64])], &json!({}));
        let (adapter, merged) = (path(module), path(&format!("{module}.gguf")));
        let ran = run_to(
            0,
            &[
                "lora", "merge", "-m", &model, "--lora", &adapter, "-o", &merged,
            ],
        );
        assert!(
            ran.stderr
                .contains("both output.weight and token_embd.weight"),
            "{ran:?}"
        );
        let after = numbers(&fs::read(&merged).unwrap());
        for tensor in ["token_embd.weight", "output.weight"] {
            assert_eq!(
                after[tensor].2 == embedding,
                tensor != changes,
                "{module} {tensor}"
            );
        }
        run_to(
            0,
            &[
                "run", "-m", &merged, "-p", "Once", "-n", "2", "--temp", "0", "-c", "32",
            ],
        );
    }
}

#[test]
fn adapters_are_blended() {
    let folder = small_adapter("one");
    write_adapter(
        &folder.0.join("two"),
        &[(Q.into(), [64, 64])],
        &json!({"lora_alpha": 4}),
    );
    let [base, one, two] = ["base", "one", "two"].map(|name| folder.path(name));
    let out = folder.path("out.gguf");
    let halves = [format!("{one}:0.5"), two.clone()];
    run_to(
        0,
        &[
            "lora", "blend", &halves[0], &halves[1], "-o", &out, "--base", &base,
        ],
    );
    let ran = run_to(0, &["lora", "inspect", &out, "--json"]);
    let json: Value = serde_json::from_str(&ran.stdout).unwrap();
    // Both have the scale 1 now, and the same numbers.
    assert_eq!(json["matrices"][0]["rank"], json!(8));
    assert_eq!(json["matrices"][0]["scale"], json!(1.0));
    let args = [
        "lora",
        "blend",
        "--interpolate",
        &one,
        &two,
        "-o",
        &out,
        "--base",
        &base,
        "--overwrite",
    ];
    fails(
        1,
        &args,
        &["blk.0.attn_q.weight is scaled by 1, but in", "by 2"],
    );
    fails(2, &["lora", "blend", "x:y", "-o", &out], &["x:y"]);
}

#[test]
fn infq_keeps_what_eight_bits_hold() {
    let folder = small_adapter("adapter");
    let [base, adapter, infq, back] =
        ["base", "adapter", "a.infq", "back.gguf"].map(|n| folder.path(n));
    let gguf = folder.path("adapter.gguf");
    run_to(
        0,
        &["lora", "convert", &adapter, "-o", &gguf, "--base", &base],
    );
    run_to(
        0,
        &[
            "lora", "convert", &adapter, "--to", "infq", "-o", &infq, "--base", &base,
        ],
    );
    let ran = run_to(0, &["lora", "inspect", &infq]);
    assert!(
        ran.stdout.contains("blk.0.attn_q.weight") && ran.stdout.contains("infq"),
        "{ran:?}"
    );
    run_to(0, &["lora", "convert", &format!("{infq}#a"), "-o", &back]);
    let [own, back] = [&gguf, &back].map(|path| numbers(&fs::read(path).unwrap()));
    for (name, scale) in [
        ("blk.0.attn_q.weight.lora_a", 1.0),
        ("blk.0.attn_q.weight.lora_b", 2.0),
    ] {
        for (x, y) in own[name].2.iter().zip(&back[name].2) {
            assert!((scale * x - y).abs() < 0.002, "{name}: {x} {y}");
        }
    }
    fails(
        1,
        &["lora", "inspect", &format!("{infq}#b")],
        &["has no adapter \"b\", only a"],
    );
}
