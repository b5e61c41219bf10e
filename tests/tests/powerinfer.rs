//! Files of PowerInfer: down projections stored by neuron, predictors of active neurons, and activations that no key names.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use sluice_core::engine::EngineLimits;
use sluice_core::gguf::source::{SliceSource, SourceError, TensorSource};
use sluice_core::gguf::{Gguf, GgufErrorKind};
use sluice_core::kernels::{GgmlType, KvType};
use sluice_core::model::{Activation, Loader, ModelConfig, ModelPlan, PowerInfer};
use sluice_tests::build::{File, Shape, Tensor, encode};
use sluice_tests::drive::Bench;
use sluice_tests::reference::Model as Reference;
use sluice_tests::reference::dequant::dequantise;
use sluice_tests::{goldens, run};

const SHAPE: Shape = Shape {
    ty: GgmlType::F32,
    // Not a multiple of a chunk's rows.
    n_embd: 288,
    n_ff: 608,
    ..Shape::SMALL
};

fn floats(tensor: &Tensor) -> Vec<f32> {
    let n = tensor.dims.iter().product::<u64>();
    dequantise(tensor.ty as u32, &tensor.data, n.try_into().unwrap()).unwrap()
}

fn turned(values: &[f32], n_rows: usize) -> Vec<f32> {
    let n_cols = values.len() / n_rows;
    let column = |j: usize| (0..n_rows).map(move |i| values[i * n_cols + j]);
    (0..n_cols).flat_map(column).collect()
}

/// The file with down projections by neuron, of random weights of type `ty`, as `PowerInfer`'s converter and quantiser
/// leave them; and an ordinary file of the same values.
fn pair(shape: &Shape, ty: GgmlType) -> [File; 2] {
    let [mut theirs, mut plain] = [shape.file(), shape.file()];
    let by_neuron = Shape {
        n_embd: shape.n_ff,
        n_ff: shape.n_embd,
        ty,
        ..*shape
    };
    let mut drawn = by_neuron.file();
    for layer in 0..shape.n_layer {
        let name = format!("blk.{layer}.ffn_down.weight");
        let Tensor { dims, data, .. } = drawn.tensor(&name).clone();
        let stored = theirs.tensor(&name);
        assert_eq!(dims, [u64::from(shape.n_embd), u64::from(shape.n_ff)]);
        (stored.dims, stored.ty, stored.data) = (dims, ty, data);
        stored.name = format!("blk.{layer}.ffn_down_t.weight");
        let values = turned(&floats(stored), shape.n_ff as usize);
        let ordinary = plain.tensor(&name);
        ordinary.ty = match ty {
            GgmlType::F16 | GgmlType::BF16 => ty,
            _ => GgmlType::F32,
        };
        ordinary.data = encode(ordinary.ty, &values);
    }
    [theirs, plain]
}

fn add_predictor(file: &mut File, shape: &Shape) {
    for layer in 0..shape.n_layer {
        for (name, dims) in [("fc1", [shape.n_embd, 64]), ("fc2", [64, shape.n_ff])] {
            let n = (dims[0] * dims[1]) as usize;
            file.tensors.push(Tensor {
                name: format!("blk.{layer}.{name}.weight"),
                dims: dims.map(u64::from).to_vec(),
                ty: GgmlType::F16,
                data: encode(GgmlType::F16, &vec![0.5; n]),
            });
        }
    }
    file.set("powerinfer.sparse_threshold", 0.4);
}

/// The file as `PowerInfer` marks it.
fn marked(file: &File) -> Vec<u8> {
    let mut bytes = file.bytes();
    bytes[..4].copy_from_slice(b"PWRI");
    bytes
}

fn logits(file: &[u8]) -> Vec<Vec<f32>> {
    let ids: Vec<u32> = (0..24u32).map(|i| (7 * i * i + 11 * i + 5) % 300).collect();
    let limits = EngineLimits {
        n_outputs: 32,
        type_k: KvType::F32,
        type_v: KvType::F32,
        ..EngineLimits::single(32, 2)
    };
    Bench::of_bytes(file).with(&limits, |engine| run::logits(engine, &ids, 7).unwrap())
}

const TYPES: [GgmlType; 9] = [
    GgmlType::F32,
    GgmlType::F16,
    GgmlType::BF16,
    GgmlType::Q8_0,
    GgmlType::Q4_0,
    GgmlType::Q5_0,
    GgmlType::MXFP4,
    GgmlType::Q4_K,
    GgmlType::Q6_K,
];

#[test]
fn down_projections_by_neuron_are_turned_back_bit_for_bit() {
    for ty in TYPES {
        let shape = match ty.block_len() {
            256 => Shape {
                n_embd: 512,
                ..SHAPE
            },
            _ => SHAPE,
        };
        let [mut theirs, mut plain] = pair(&shape, ty);
        add_predictor(&mut theirs, &shape);
        plain.set("llama.activation", "relu");
        let own = logits(&marked(&theirs));
        assert_eq!(own, logits(&plain.bytes()), "{ty}");
        let ids: Vec<u32> = (0..24u32).map(|i| (7 * i * i + 11 * i + 5) % 300).collect();
        let exact = Reference::parse(&plain.bytes()).unwrap().logits(&ids);
        let distance = goldens::distance(&own, &exact);
        let bound = if ty == GgmlType::BF16 { 4e-3 } else { 1e-5 };
        assert!(distance.rms_relative < bound, "{ty}: {distance:?}");
    }
}

/// A source that cannot lend its bytes.
#[derive(Debug)]
struct Read<'a>(SliceSource<'a>);

impl TensorSource for Read<'_> {
    fn len_bytes(&self) -> u64 {
        self.0.len_bytes()
    }

    fn slice(&self, _: u64, _: usize) -> Option<&[u8]> {
        None
    }

    fn read(&self, offset: u64, into: &mut [u8]) -> Result<(), SourceError> {
        self.0.read(offset, into)
    }
}

#[test]
fn files_that_are_read_in_pieces_are_turned_too() {
    let [theirs, _] = pair(&SHAPE, GgmlType::Q4_0);
    let bytes = marked(&theirs);
    let gguf = Gguf::parse(&bytes, bytes.len() as u64).unwrap();
    let config = ModelConfig::from_gguf(&gguf).unwrap();
    let plan = ModelPlan::new(&gguf, &config).unwrap();
    let load = |source: &dyn TensorSource| {
        let mut memory = [plan.weight_bytes, plan.table_bytes].map(run::Aligned::new);
        let [weights, tables] = memory.each_mut().map(run::Aligned::bytes_mut);
        let loader = Loader::new(&gguf, &config, weights, tables).unwrap();
        let mut staging = vec![0; plan.staging_bytes];
        loader.work(source, &mut staging, || true).unwrap();
        loader.finish(source).unwrap();
        let [mut weights, _] = memory;
        weights.bytes_mut().to_vec()
    };
    let source = SliceSource(&bytes);
    assert_eq!(load(&Read(source)), load(&source));
    // Without room to turn them in, the error gives the missing bytes.
    let mut memory = [plan.weight_bytes, plan.table_bytes].map(run::Aligned::new);
    let [weights, tables] = memory.each_mut().map(run::Aligned::bytes_mut);
    let loader = Loader::new(&gguf, &config, weights, tables).unwrap();
    let error = loader.work(&source, &mut [], || true).unwrap_err();
    assert!(error.to_string().contains("bytes"), "{error}");
}

fn config(file: &File) -> ModelConfig {
    let bytes = marked(file);
    let gguf = Gguf::parse(&bytes, bytes.len() as u64).unwrap();
    ModelConfig::from_gguf(&gguf).unwrap()
}

#[test]
fn any_trace_of_powerinfer_makes_a_llama_file_relu() {
    let relu = Some(Activation::Relu { threshold: 0.0 });
    let plain = SHAPE.file();
    assert_eq!(config(&plain).activation(), Some(Activation::Silu));
    let mut keyed = plain.clone();
    keyed.set("powerinfer.sparse_threshold", 0.0);
    assert_eq!(config(&keyed).activation(), relu);
    let [by_neuron, _] = pair(&SHAPE, GgmlType::F16);
    assert_eq!(config(&by_neuron).activation(), relu);
    let mut predicted = plain.clone();
    add_predictor(&mut predicted, &SHAPE);
    predicted.unset("powerinfer.sparse_threshold");
    assert_eq!(config(&predicted).activation(), relu);
    // A key in the file wins.
    predicted.set("llama.activation", "drelu");
    assert_eq!(config(&predicted).activation(), Some(Activation::Drelu));
    let bamboo = Shape {
        arch: "bamboo",
        ..SHAPE
    };
    let [theirs, mut llama] = pair(&bamboo, GgmlType::F16);
    assert_eq!(config(&theirs).activation(), Some(Activation::Drelu));
    for (key, _) in &mut llama.metadata {
        *key = key.replace("bamboo.", "llama.");
    }
    llama.set("general.architecture", "llama");
    llama.set("llama.activation", "drelu");
    assert_eq!(logits(&marked(&theirs)), logits(&llama.bytes()));
}

#[test]
fn predictors_are_known_and_take_no_memory() {
    let mut file = SHAPE.file();
    let plan = |file: &File| {
        let bytes = marked(file);
        let gguf = Gguf::parse(&bytes, bytes.len() as u64).unwrap();
        let config = ModelConfig::from_gguf(&gguf).unwrap();
        let mut used = vec![false; file.tensors.len()];
        ModelPlan::used_tensors(&gguf, &config, |index| used[index] = true).unwrap();
        assert_eq!(used, vec![true; used.len()]);
        let plan = ModelPlan::new(&gguf, &config).unwrap();
        (plan.weight_bytes, PowerInfer::of(&gguf))
    };
    let (bytes, none) = plan(&file);
    assert_eq!(none, None);
    add_predictor(&mut file, &SHAPE);
    let (with, found) = plan(&file);
    assert_eq!(with, bytes);
    let expected = PowerInfer {
        threshold: Some(0.4),
        n_predictors: 2,
        rank: 64,
        is_down_by_neuron: false,
    };
    assert_eq!(found, Some(expected));
}

#[test]
fn other_families_and_other_shapes_are_refused_by_name() {
    let refused = |file: &File| {
        let bytes = marked(file);
        let gguf = Gguf::parse(&bytes, bytes.len() as u64).unwrap();
        let config = ModelConfig::from_gguf(&gguf);
        let planned = config.and_then(|config| ModelPlan::new(&gguf, &config));
        planned.unwrap_err().to_string()
    };
    for arch in ["falcon", "opt"] {
        let [file, _] = pair(&Shape { arch, ..SHAPE }, GgmlType::F16);
        let error = refused(&file);
        assert!(error.contains(arch), "{error}");
    }
    let [mut file, _] = pair(&SHAPE, GgmlType::F16);
    file.tensor("blk.1.ffn_down_t.weight").dims.reverse();
    let error = refused(&file);
    assert!(error.contains("blk.1.ffn_down_t.weight"), "{error}");
    file.tensor("blk.1.ffn_down_t.weight").name = "blk.1.ffn_down.weight".into();
    let error = refused(&file);
    assert!(error.contains("blk.1.ffn_down_t.weight"), "{error}");
    let mut bytes = SHAPE.file().bytes();
    bytes[..4].copy_from_slice(b"PWRJ");
    let error = Gguf::parse(&bytes, bytes.len() as u64).unwrap_err();
    assert!(matches!(error.kind(), GgufErrorKind::NotGguf { .. }));
}
