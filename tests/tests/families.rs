//! Files that fuse or split the matrices of a layer in another way than their family does give the
//! same bits; and which tensors of a file a model uses.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use sluice_core::engine::EngineLimits;
use sluice_core::gguf::Gguf;
use sluice_core::kernels::GgmlType;
use sluice_core::kernels::activation::ActivationKinds;
use sluice_core::model::{Fusion, LayerActivations, ModelConfig, ModelPlan, Site};
use sluice_tests::build::{File, Shape, Tensor};
use sluice_tests::drive::Bench;
use sluice_tests::run;

/// Bits of the logits after 20 tokens, 7 in a batch.
fn bits(file: &File) -> Vec<Vec<u32>> {
    bits_in_batches(file, 7)
}

fn bits_in_batches(file: &File, n_batch: usize) -> Vec<Vec<u32>> {
    let ids: Vec<u32> = (0..20u32).map(|i| (7 * i * i + 11 * i + 5) % 300).collect();
    let limits = EngineLimits {
        n_outputs: 32,
        ..EngineLimits::single(32, 2)
    };
    let logits = Bench::of(file).with(&limits, |engine| {
        run::logits(engine, &ids, n_batch).unwrap()
    });
    let of_row = |row: Vec<f32>| row.into_iter().map(f32::to_bits).collect();
    logits.into_iter().map(of_row).collect()
}

/// Replaces tensors of a layer by one that has their rows, if they exist.
fn fuse(file: &mut File, layer: u32, parts: &[&str], whole: &str) {
    for end in ["weight", "bias"] {
        let name = |part: &str| format!("blk.{layer}.{part}.{end}");
        let place = |file: &File, name: &str| file.tensors.iter().position(|t| t.name == name);
        let Some(at) = place(file, &name(parts[0])) else {
            continue;
        };
        let mut fused = Tensor {
            name: name(whole),
            dims: file.tensors[at].dims.clone(),
            ty: file.tensors[at].ty,
            data: Vec::new(),
        };
        *fused.dims.last_mut().unwrap() = 0;
        for part in parts {
            let part = file.tensors.remove(place(file, &name(part)).unwrap());
            *fused.dims.last_mut().unwrap() += part.dims.last().unwrap();
            fused.data.extend(part.data);
        }
        file.tensors.push(fused);
    }
}

/// Replaces a tensor of a layer by some with its rows.
fn split(file: &mut File, layer: u32, whole: &str, parts: &[(&str, u64)]) {
    let name = |part: &str| format!("blk.{layer}.{part}.weight");
    let at = file
        .tensors
        .iter()
        .position(|t| t.name == name(whole))
        .unwrap();
    let whole = file.tensors.remove(at);
    let row_bytes = whole.data.len() / usize::try_from(whole.dims[1]).unwrap();
    let mut rest = &whole.data[..];
    for (part, n_rows) in parts {
        let (data, behind) = rest.split_at(row_bytes * usize::try_from(*n_rows).unwrap());
        rest = behind;
        file.tensors.push(Tensor {
            name: name(part),
            dims: vec![whole.dims[0], *n_rows],
            ty: whole.ty,
            data: data.to_vec(),
        });
    }
    assert!(rest.is_empty());
}

fn config(file: &File) -> ModelConfig {
    let bytes = file.bytes();
    ModelConfig::from_gguf(&Gguf::parse(&bytes, bytes.len() as u64).unwrap()).unwrap()
}

/// The error that the plan returns.
fn problem(file: &File) -> String {
    let bytes = file.bytes();
    let gguf = Gguf::parse(&bytes, bytes.len() as u64).unwrap();
    let config = ModelConfig::from_gguf(&gguf).unwrap();
    ModelPlan::new(&gguf, &config).unwrap_err().to_string()
}

const QKV: [&str; 3] = ["attn_q", "attn_k", "attn_v"];
const GATE_UP: [&str; 2] = ["ffn_gate", "ffn_up"];

#[test]
fn fused_tensors_have_the_bits_of_separate_ones() {
    let small = Shape::SMALL;
    let mixture = Shape {
        n_expert: 5,
        n_expert_used: 2,
        ..small
    };
    let shape = |arch, ty| Shape { arch, ty, ..small };
    let shapes = [
        small,
        shape("qwen2", GgmlType::Q8_0),
        shape("qwen3", GgmlType::BF16),
        shape("gemma2", GgmlType::F16),
        shape("gemma3", GgmlType::F16),
        mixture,
    ];
    for shape in shapes {
        let mut separate = shape.file();
        if shape.arch == "qwen2" {
            for layer in 0..shape.n_layer {
                for (part, len) in QKV.iter().zip([256u16, 128, 128]) {
                    let bias: Vec<f32> = (0..len).map(|i| f32::from(i % 7) / 8.0).collect();
                    separate.add_vector(&format!("blk.{layer}.{part}.bias"), &bias);
                }
            }
        }
        let expected = bits(&separate);
        let (mut qkv, mut both) = (separate.clone(), separate.clone());
        for layer in 0..shape.n_layer {
            fuse(&mut qkv, layer, &QKV, "attn_qkv");
            fuse(&mut both, layer, &QKV, "attn_qkv");
            if shape.n_expert == 0 {
                fuse(&mut both, layer, &GATE_UP, "ffn_up");
            }
        }
        let (name, is_dense) = (shape.arch, shape.n_expert == 0);
        assert_eq!(
            config(&separate).fused,
            Fusion {
                qkv: false,
                gate_up: false,
                gate_up_exps: false,
                down_by_neuron: false,
            },
            "{name}"
        );
        assert_eq!(
            config(&both).fused,
            Fusion {
                qkv: true,
                gate_up: is_dense,
                gate_up_exps: false,
                down_by_neuron: false,
            },
            "{name}"
        );
        assert!(bits(&qkv) == expected, "{name}: attn_qkv");
        assert!(bits(&both) == expected, "{name}: attn_qkv and ffn_up");
        let both = config(&both);
        assert_eq!(Site::AttnK.tensor(&both, 0), Some("attn_qkv"));
        assert_eq!(Site::AttnK.tensor(&config(&separate), 0), Some("attn_k"));
        if is_dense {
            assert_eq!(Site::FfnGate.tensor(&both, 0), Some("ffn_up"));
        }
    }
}

#[test]
fn phi3_takes_separate_tensors() {
    let shape = Shape {
        arch: "phi3",
        ..Shape::SMALL
    };
    let fused = shape.file();
    let mut separate = fused.clone();
    for layer in 0..shape.n_layer {
        let qkv = QKV.into_iter().zip([256, 128, 128]);
        split(&mut separate, layer, "attn_qkv", &qkv.collect::<Vec<_>>());
        split(
            &mut separate,
            layer,
            "ffn_up",
            &[("ffn_gate", 768), ("ffn_up", 768)],
        );
    }
    assert_eq!(
        config(&separate).fused,
        Fusion {
            qkv: false,
            gate_up: false,
            gate_up_exps: false,
            down_by_neuron: false,
        }
    );
    assert!(bits(&separate) == bits(&fused));
}

#[test]
fn a_tensor_that_is_missing_is_named_as_the_file_would_have_it() {
    let mut file = Shape::SMALL.file();
    fuse(&mut file, 0, &QKV, "attn_qkv");
    assert!(
        problem(&file).contains("blk.1.attn_qkv.weight"),
        "{}",
        problem(&file)
    );
    let mut file = Shape::SMALL.file();
    file.tensors
        .retain(|tensor| tensor.name != "blk.0.ffn_gate.weight");
    assert!(
        problem(&file).contains("blk.0.ffn_gate.weight"),
        "{}",
        problem(&file)
    );
    let phi3 = Shape {
        arch: "phi3",
        ..Shape::SMALL
    };
    let mut file = phi3.file();
    file.tensors
        .retain(|tensor| !tensor.name.contains("attn_qkv"));
    assert!(
        problem(&file).contains("blk.0.attn_qkv.weight"),
        "{}",
        problem(&file)
    );
}

#[test]
fn tensors_that_are_used_are_told_apart() {
    let mut file = Shape::SMALL.file();
    file.add_vector("rope_freqs.weight", &[1.0; 16]);
    let n_used = file.tensors.len();
    file.add_vector("blk.0.attn_q_norm.weight", &[1.0; 32]);
    file.add_vector("something.else", &[1.0; 3]);
    let bytes = file.bytes();
    let gguf = Gguf::parse(&bytes, bytes.len() as u64).unwrap();
    let mut used = vec![false; file.tensors.len()];
    let config = ModelConfig::from_gguf(&gguf).unwrap();
    ModelPlan::used_tensors(&gguf, &config, |index| used[index] = true).unwrap();
    let expected: Vec<bool> = (0..file.tensors.len()).map(|i| i < n_used).collect();
    assert_eq!(used, expected);
}

/// Rows are kept for the matrices that read them, and for no others; experts' rows are stored elsewhere in batches of
/// more than eight tokens.
#[test]
fn each_matrix_may_have_a_type_of_its_own() {
    let of_type = |ty| Shape {
        n_expert: 5,
        n_expert_used: 2,
        ty,
        ..Shape::SMALL
    };
    let mut file = of_type(GgmlType::Q8_0).file();
    let others = [
        (GgmlType::BF16, &["attn_output"][..]),
        (GgmlType::Q4_K, &["ffn_gate_exps", "ffn_up_exps"]),
        (GgmlType::F16, &["ffn_down_exps"]),
    ];
    for (ty, names) in others {
        let other = of_type(ty).file();
        for (tensor, other) in file.tensors.iter_mut().zip(other.tensors) {
            if names.iter().any(|name| tensor.name.contains(name)) {
                *tensor = other;
            }
        }
    }
    let expected = LayerActivations {
        stream: ActivationKinds::INT8_32 | ActivationKinds::INT8_256 | ActivationKinds::F32,
        experts: ActivationKinds::INT8_256,
        mixed: ActivationKinds::BF16,
        neurons: ActivationKinds::F32,
    };
    assert_eq!(config(&file).activations, expected);
    let expected = bits(&file);
    assert!(bits_in_batches(&file, 20) == expected, "all at once");
    assert!(bits_in_batches(&file, 1) == expected, "one by one");
}

/// Writers leave out a last dimension of one: the router of one expert looks like a norm.
#[test]
fn a_matrix_of_one_row_may_have_one_dimension() {
    let shape = Shape {
        n_expert: 1,
        n_expert_used: 1,
        ty: GgmlType::Q8_0,
        ..Shape::SMALL
    };
    let file = shape.file();
    let mut trimmed = file.clone();
    for tensor in &mut trimmed.tensors {
        if tensor.name.ends_with("ffn_gate_inp.weight") {
            assert_eq!(tensor.dims.pop(), Some(1));
        }
    }
    assert_eq!(config(&trimmed).activations, config(&file).activations);
    assert!(bits(&trimmed) == bits(&file));
}
