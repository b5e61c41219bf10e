//! Windows, YaRN's ramp and Gemma's scale follow from a file's keys, never from the number of its layers: logits
//! against an f64 evaluation of the same file.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use sluice_core::engine::EngineLimits;
use sluice_core::kernels::{GgmlType, KvType};
use sluice_tests::build::{File, Meta, Shape};
use sluice_tests::drive::Bench;
use sluice_tests::goldens::distance;
use sluice_tests::reference::Model as Reference;
use sluice_tests::run;

/// Logits of 40 tokens, and the f64 evaluation's.
fn both(file: &File) -> (Vec<Vec<f32>>, Vec<Vec<f64>>) {
    let ids: Vec<u32> = (0..40u32).map(|i| (7 * i * i + 11 * i + 5) % 300).collect();
    let limits = EngineLimits {
        n_outputs: 64,
        type_k: KvType::F32,
        type_v: KvType::F32,
        ..EngineLimits::single(64, 2)
    };
    let own = Bench::of(file).with(&limits, |engine| run::logits(engine, &ids, 7).unwrap());
    let exact = Reference::parse(&file.bytes()).unwrap().logits(&ids);
    (own, exact)
}

/// A file that a test changes; its logits have to be right, and are returned.
fn changed(shape: Shape, change: impl FnOnce(&mut File)) -> Vec<Vec<f32>> {
    let mut file = shape.file();
    if shape.arch == "exaone4" {
        norms_after_the_parts(&mut file, shape.n_layer);
    }
    change(&mut file);
    let (own, exact) = both(&file);
    let distance = distance(&own, &exact);
    assert!(distance.rms_relative < 1e-5, "{}: {distance:?}", shape.arch);
    own
}

fn norms_after_the_parts(file: &mut File, n_layer: u32) {
    for tensor in &mut file.tensors {
        let name = tensor.name.replace(".attn_norm.", ".post_attention_norm.");
        tensor.name = name.replace(".ffn_norm.", ".post_ffw_norm.");
    }
    for layer in 0..n_layer {
        for head in ["q", "k"] {
            file.add_vector(&format!("blk.{layer}.attn_{head}_norm.weight"), &[1.0; 32]);
        }
    }
}

const SMALL: Shape = Shape {
    n_layer: 4,
    ty: GgmlType::F32,
    ..Shape::SMALL
};

const fn of(arch: &'static str) -> Shape {
    Shape { arch, ..SMALL }
}

#[test]
fn a_window_in_the_file_is_a_window_in_its_layers() {
    let mixture = Shape {
        n_expert: 4,
        n_expert_used: 2,
        ..SMALL
    };
    let dense = ["llama", "qwen2", "qwen3", "phi3", "mistral3", "exaone4"].map(of);
    for shape in dense.into_iter().chain([mixture]) {
        let key = |key: &str| format!("{}.{key}", shape.arch);
        let (window, pattern) = (
            key("attention.sliding_window"),
            key("attention.sliding_window_pattern"),
        );
        let full = changed(shape, |_| {});
        let all = changed(shape, |file| file.set(&window, 6u32));
        let some = changed(shape, |file| {
            file.set(&window, 6u32);
            file.set(&pattern, 2u32);
        });
        // Layers of exaone4 that see all tokens do not rotate, so all of its texts change.
        let is_same = full[5] == all[5];
        assert_eq!(is_same, shape.arch != "exaone4", "{}", shape.arch);
        assert_ne!(full[30], all[30], "{}", shape.arch);
        assert_ne!(some[30], all[30], "{}", shape.arch);
    }
}

#[test]
fn the_ends_of_yarn_s_ramp_are_whole_or_not() {
    let yarn = |arch: &'static str, truncates: Option<bool>| {
        changed(of(arch), |file| {
            let mut set = |key: &str, value: Meta| file.set(&format!("{arch}.{key}"), value);
            set("rope.scaling.type", "yarn".into());
            set("rope.scaling.factor", 32.0.into());
            set("rope.scaling.original_context_length", 64.into());
            if let Some(truncates) = truncates {
                set("rope.scaling.yarn_truncate", Meta::Bool(truncates));
            }
        })
    };
    for arch in ["llama", "qwen3"] {
        let implied = yarn(arch, None);
        assert_eq!(implied, yarn(arch, Some(true)), "{arch}");
        assert_ne!(implied, yarn(arch, Some(false)), "{arch}");
    }
}

#[test]
fn gemma_s_scale_of_queries_may_be_stated() {
    for arch in ["gemma2", "gemma3"] {
        let key = format!("{arch}.attention.scale");
        let implied = changed(of(arch), |_| {});
        let stated = changed(of(arch), |file| file.set(&key, 0.125));
        assert_ne!(implied[30], stated[30], "{arch}");
        // Of heads of 32 columns.
        #[expect(clippy::cast_possible_truncation, reason = "as files hold it")]
        let same = changed(of(arch), |file| file.set(&key, 32f64.sqrt().recip() as f32));
        assert_eq!(implied, same, "{arch}");
    }
}
