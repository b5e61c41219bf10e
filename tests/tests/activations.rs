//! Activations with zeros, which files name by a key: logits against an f64 evaluation of the same file.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use sluice_core::engine::EngineLimits;
use sluice_core::gguf::Gguf;
use sluice_core::kernels::{GgmlType, KvType};
use sluice_core::model::{Activation, Channel, ModelConfig};
use sluice_tests::build::{File, Shape};
use sluice_tests::drive::Bench;
use sluice_tests::goldens::distance;
use sluice_tests::reference::Model as Reference;
use sluice_tests::run;

const DENSE: Shape = Shape {
    ty: GgmlType::F32,
    ..Shape::SMALL
};
const MIXTURE: Shape = Shape {
    n_expert: 4,
    n_expert_used: 2,
    ..DENSE
};

fn logits(file: &File) -> Vec<Vec<f32>> {
    let ids: Vec<u32> = (0..24u32).map(|i| (7 * i * i + 11 * i + 5) % 300).collect();
    let limits = EngineLimits {
        n_outputs: 32,
        type_k: KvType::F32,
        type_v: KvType::F32,
        ..EngineLimits::single(32, 2)
    };
    let own = Bench::of(file).with(&limits, |engine| run::logits(engine, &ids, 7).unwrap());
    let exact = Reference::parse(&file.bytes()).unwrap().logits(&ids);
    let distance = distance(&own, &exact);
    assert!(distance.rms_relative < 1e-5, "{distance:?}");
    own
}

#[test]
fn a_file_that_names_relu_is_not_run_with_silu() {
    for shape in [
        DENSE,
        Shape {
            arch: "qwen3",
            ..DENSE
        },
        MIXTURE,
    ] {
        let named = |name: &str, threshold: Option<f32>| {
            let mut file = shape.file();
            file.set(&format!("{}.activation", shape.arch), name);
            if let Some(threshold) = threshold {
                file.set(&format!("{}.activation_threshold", shape.arch), threshold);
            }
            logits(&file)
        };
        let silu = logits(&shape.file());
        let all = [
            named("relu", None),
            named("fatrelu", Some(0.05)),
            named("fatrelu", Some(0.5)),
            named("drelu", None),
            silu,
        ];
        for (i, one) in all.iter().enumerate() {
            assert!(
                all[..i].iter().all(|other| other != one),
                "{}: {i}",
                shape.arch
            );
        }
        assert_eq!(named("fatrelu", Some(0.0)), all[0]);
    }
}

fn read(name: &str, threshold: Option<f32>) -> Result<Activation, String> {
    let mut file = Shape::TINY.file();
    file.set("llama.activation", name);
    if let Some(threshold) = threshold {
        file.set("llama.activation_threshold", threshold);
    }
    let bytes = file.bytes();
    let gguf = Gguf::parse(&bytes, bytes.len() as u64).unwrap();
    let config = ModelConfig::from_gguf(&gguf).map_err(|error| error.to_string())?;
    match config.kind(0).channel {
        Channel::Ffn(ffn) => Ok(ffn.activation),
        _ => Err("no network".to_owned()),
    }
}

#[test]
fn thresholds_without_meaning_are_refused_by_name() {
    let threshold = 0.25;
    assert_eq!(
        read("fatrelu", Some(threshold)),
        Ok(Activation::Relu { threshold })
    );
    for (name, threshold) in [
        ("relu", Some(0.25)),
        ("silu", Some(0.25)),
        ("fatrelu", Some(-1.0)),
        ("fatrelu", Some(f32::NAN)),
        ("fatrelu", Some(f32::INFINITY)),
    ] {
        let error = read(name, threshold).unwrap_err();
        assert!(error.contains("llama.activation_threshold"), "{error}");
    }
    let error = read("mish", None).unwrap_err();
    assert!(error.contains("mish"), "{error}");
}

#[test]
fn another_activation_takes_the_place_of_gates_alone() {
    let config = |shape: &Shape| {
        let bytes = shape.file().bytes();
        let gguf = Gguf::parse(&bytes, bytes.len() as u64).unwrap();
        ModelConfig::from_gguf(&gguf).unwrap()
    };
    for shape in [DENSE, MIXTURE] {
        for text in ["relu", "drelu", "fatrelu:0.25", "silu"] {
            let activation = Activation::parse(text).unwrap();
            let changed = config(&shape).with_activation(activation).unwrap();
            assert_eq!(changed.activation(), Some(activation));
            assert_eq!(activation.to_string(), text);
        }
    }
    let gemma = Shape {
        arch: "gemma3",
        ..DENSE
    };
    let refused = config(&gemma).with_activation(Activation::Drelu);
    let error = refused.unwrap_err().to_string();
    assert!(
        error.contains("gemma3") && error.contains("gelu"),
        "{error}"
    );
    assert_eq!(
        Activation::parse("fatrelu"),
        Some(Activation::Relu { threshold: 0.0 })
    );
    for text in [
        "",
        "ReLU",
        "gelu",
        "relu:0.1",
        "fatrelu:",
        "fatrelu:-1",
        "fatrelu:nan",
        "fatrelu:inf",
        "fatrelu:x",
    ] {
        assert_eq!(Activation::parse(text), None, "{text}");
    }
}

/// The router's choice does not depend on attention, so it is announced before: see `experts.rs`. Windows and layers without
/// rotation are in no golden: llama.cpp takes any window for 4096.
#[test]
fn smallthinker_has_its_own_windows() {
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/models");
    let ids: Vec<u32> = (0..24u32)
        .map(|i| 3 + (7 * i * i + 11 * i + 5) % 256)
        .collect();
    let mut bytes = std::fs::read(folder.join("smallthinker.gguf")).unwrap();
    let key = b"smallthinker.attention.sliding_window";
    let at = bytes
        .windows(key.len())
        .position(|found| found == key)
        .unwrap()
        + key.len()
        + 4;
    assert_eq!(bytes[at..at + 4], 4096u32.to_le_bytes());
    let logits = |bytes: &[u8]| {
        let limits = EngineLimits {
            n_outputs: 32,
            type_k: KvType::F32,
            type_v: KvType::F32,
            ..EngineLimits::single(32, 2)
        };
        let own =
            Bench::of_bytes(bytes).with(&limits, |engine| run::logits(engine, &ids, 7).unwrap());
        let exact = Reference::parse(bytes).unwrap().logits(&ids);
        let distance = distance(&own, &exact);
        assert!(distance.rms_relative < 1e-5, "{distance:?}");
        own
    };
    let wide = logits(&bytes);
    bytes[at..at + 4].copy_from_slice(&5u32.to_le_bytes());
    let narrow = logits(&bytes);
    assert_eq!(wide[..5], narrow[..5]);
    assert_ne!(wide[10], narrow[10]);
}

/// The models' own code divides logits by `hidden_size / dim_model_base`, which is `n_embd / 256`; llama.cpp's default is the
/// inverse.
#[test]
fn minicpm_without_scales_has_its_own_code_s() {
    let shape = Shape {
        arch: "minicpm",
        n_embd: 128,
        n_head: 4,
        n_head_kv: 2,
        n_ff: 96,
        ..DENSE
    };
    let plain = shape.file();
    let mut said = plain.clone();
    for (key, scale) in [
        ("embedding_scale", 12.0),
        ("residual_scale", 1.4 / 2f32.sqrt()),
        ("logit_scale", 0.5),
    ] {
        said.set(&format!("minicpm.{key}"), scale);
    }
    assert_eq!(logits(&plain), logits(&said));
    said.set("minicpm.logit_scale", 2.0);
    assert_ne!(logits(&plain), logits(&said));
}
