//! Exact mode: on a file by neuron, steps of few tokens leave neurons unread and have the logits of the file in panels, bit
//! for bit.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use sluice::adapter::{AdapterBlend, AdapterFile, Factors, LoadedAdapter, Precision};
use sluice_core::engine::{EngineLimits, Neurons, Sparse, StepOptions};
use sluice_core::kernels::activation::ActivationKinds;
use sluice_core::kernels::lora::LoraType;
use sluice_core::kernels::{GgmlType, KernelTable, KvType};
use sluice_core::model::ModelWeights;
use sluice_core::team::StopFlag;
use sluice_make::slc::FfnLayout;
use sluice_tests::build::{File, Random, Shape};
use sluice_tests::packing::{InPlace, TYPES_BY_NEURON, packed};
use sluice_tests::run::{self, Room, Weights, YieldWait};

/// Activations that set gates to 0, with a threshold where there is one.
const ACTIVATIONS: [(&str, Option<f32>); 4] = [
    ("relu", None),
    ("drelu", None),
    ("fatrelu", Some(0.05)),
    ("fatrelu", Some(1e9)),
];

/// How a model runs.
#[derive(Clone, Copy)]
struct Way<'a> {
    table: &'static KernelTable,
    n_workers: usize,
    /// Tokens in a step.
    chunk: usize,
    sparse: Sparse<'a>,
    adapter: Option<&'a AdapterBlend>,
}

impl Way<'_> {
    const fn plain(table: &'static KernelTable) -> Self {
        Self {
            table,
            n_workers: 1,
            chunk: 1,
            sparse: Sparse::Exact,
            adapter: None,
        }
    }

    /// The logits of all tokens.
    fn logits(&self, model: ModelWeights<'_>, ids: &[u32]) -> Vec<Vec<f32>> {
        self.run(model, ids).0
    }

    /// The logits of all tokens, and the neurons of all steps.
    fn run(&self, model: ModelWeights<'_>, ids: &[u32]) -> (Vec<Vec<f32>>, Neurons) {
        let limits = EngineLimits {
            n_batch: 64,
            n_outputs: 64,
            type_k: KvType::F32,
            type_v: KvType::F32,
            adapter_rank: self.adapter.map_or(0, AdapterBlend::rank),
            adapter_kinds: ActivationKinds::all(),
            ..EngineLimits::single(64, self.n_workers)
        };
        let mut room = Room::plan(model.config(), &limits).unwrap();
        let mut engine = room.engine(model, self.table, &limits).unwrap();
        let blends: Vec<_> = self.adapter.iter().map(|blend| blend.parts()).collect();
        let stop = StopFlag::new();
        let options = StepOptions {
            sparse: self.sparse,
            adapters: &blends,
            ..StepOptions::new(&YieldWait, &stop)
        };
        run::in_steps(&mut engine, ids, self.chunk, options).unwrap()
    }
}

/// Shapes with whole and partial chunks and groups: a network and a mixture.
fn shapes(ty: GgmlType) -> [Shape; 2] {
    let is_wide = ty.block_len() > 32;
    let dense = Shape {
        ty,
        n_embd: if is_wide { 256 } else { 288 },
        n_ff: if is_wide { 768 } else { 352 },
        n_layer: 2,
        ..Shape::SMALL
    };
    let mixture = Shape {
        n_expert: 4,
        n_expert_used: 2,
        n_layer: 1,
        seed: 2,
        ..dense
    };
    [dense, mixture]
}

fn with_activation(shape: &Shape, (name, threshold): (&str, Option<f32>)) -> File {
    let mut file = shape.file();
    file.set(&format!("{}.activation", shape.arch), name);
    if let Some(threshold) = threshold {
        file.set(&format!("{}.activation_threshold", shape.arch), threshold);
    }
    file
}

fn ids(n: u32) -> Vec<u32> {
    (0..n).map(|i| (7 * i * i + 11 * i + 5) % 300).collect()
}

#[test]
fn every_type_and_activation_has_the_bits_of_panels() {
    let ids = ids(16);
    for ty in TYPES_BY_NEURON {
        for shape in shapes(ty) {
            for (i, activation) in ACTIVATIONS.into_iter().enumerate() {
                let gguf_file = with_activation(&shape, activation).bytes();
                let mut weights = Weights::plan(&gguf_file).unwrap();
                let mut in_place =
                    InPlace::new(packed(&gguf_file, FfnLayout::Neurons).unwrap()).unwrap();
                let plain = Way::plain(run::table());
                let expected = plain.logits(weights.load(&gguf_file, 1).unwrap(), &ids);
                for table in run::tables() {
                    for (n_workers, chunk) in [(1, 1), (3, 2), (2, 5), (1, 8), (2, 16)] {
                        let way = Way {
                            n_workers,
                            chunk,
                            ..Way::plain(table)
                        };
                        let found = way.logits(in_place.model().unwrap(), &ids);
                        let case = (
                            ty,
                            shape.n_expert,
                            activation,
                            table.name(),
                            n_workers,
                            chunk,
                        );
                        assert!(found == expected, "{case:?}");
                    }
                }
                if i == 0 {
                    let way = Way {
                        sparse: Sparse::Off,
                        ..plain
                    };
                    assert!(
                        way.logits(in_place.model().unwrap(), &ids) == expected,
                        "{ty}"
                    );
                }
            }
        }
    }
}

#[test]
fn biases_count_before_the_test_for_zero() {
    let ids = ids(12);
    for shape in shapes(GgmlType::Q4_K) {
        let mut file = with_activation(&shape, ("relu", None));
        let plain = file.bytes();
        let mut random = Random(3);
        for tensor in file.tensors.clone() {
            let is_of_ffn = tensor.name.contains(".ffn_") && tensor.dims.len() > 1;
            if is_of_ffn && !tensor.name.contains("inp") {
                let n: u64 = tensor.dims[1..].iter().product();
                let values: Vec<f32> = (0..n).map(|_| 0.3 * random.signed()).collect();
                file.add_vector(&tensor.name.replace(".weight", ".bias"), &values);
                file.tensors.last_mut().unwrap().dims = tensor.dims[1..].to_vec();
            }
        }
        let gguf_file = file.bytes();
        let way = Way::plain(run::table());
        let mut weights = Weights::plan(&gguf_file).unwrap();
        let expected = way.logits(weights.load(&gguf_file, 1).unwrap(), &ids);
        let without = way.logits(
            Weights::plan(&plain).unwrap().load(&plain, 1).unwrap(),
            &ids,
        );
        assert!(expected != without);
        let mut in_place = InPlace::new(packed(&gguf_file, FfnLayout::Neurons).unwrap()).unwrap();
        for chunk in [1, 3] {
            let way = Way {
                chunk,
                n_workers: 2,
                ..way
            };
            assert!(way.logits(in_place.model().unwrap(), &ids) == expected);
        }
    }
}

#[test]
fn adapters_have_the_bits_of_panels() {
    let ids = ids(12);
    for shape in shapes(GgmlType::Q4_0) {
        let file = with_activation(&shape, ("relu", None));
        let gguf_file = file.bytes();
        let mut weights = Weights::plan(&gguf_file).unwrap();
        let config = weights.load(&gguf_file, 1).unwrap().config().clone();
        let mut random = Random(7);
        let mut factors = Vec::new();
        for tensor in file
            .tensors
            .iter()
            .filter(|tensor| tensor.name.contains(".ffn_"))
        {
            if tensor.dims.len() < 2 || tensor.name.contains("inp") {
                continue;
            }
            let n_parts = tensor.dims.get(2).copied().unwrap_or(1);
            for part in 0..u32::try_from(n_parts).unwrap() {
                let mut vector =
                    |n: u64, size: f32| (0..n).map(|_| size * random.signed()).collect();
                factors.push(Factors {
                    tensor: tensor.name.as_str().into(),
                    part: (n_parts > 1).then_some(part),
                    rank: 3,
                    a: vector(3 * tensor.dims[0], 0.3),
                    b: vector(3 * tensor.dims[1], 0.05),
                    scale: 1.5,
                });
            }
        }
        let adapter = AdapterFile {
            factors,
            ..AdapterFile::default()
        };
        let mut in_place = InPlace::new(packed(&gguf_file, FfnLayout::Neurons).unwrap()).unwrap();
        for precision in [Precision::Exact, Precision::Type(LoraType::Int8)] {
            let adapter = LoadedAdapter::load(&config, &adapter, precision).unwrap();
            let blend = AdapterBlend::new(vec![(adapter, 0.8)]);
            let way = Way {
                adapter: Some(&blend),
                ..Way::plain(run::table())
            };
            let expected = way.logits(weights.load(&gguf_file, 1).unwrap(), &ids);
            let without = Way {
                adapter: None,
                ..way
            };
            assert!(without.logits(weights.load(&gguf_file, 1).unwrap(), &ids) != expected);
            for (chunk, n_workers) in [(1, 1), (4, 2), (12, 2)] {
                let way = Way {
                    chunk,
                    n_workers,
                    ..way
                };
                assert!(
                    way.logits(in_place.model().unwrap(), &ids) == expected,
                    "{chunk}"
                );
            }
        }
    }
}

/// A network whose hidden values overflow: gates that are infinite, and infinite ups with closed gates.
#[test]
fn rows_that_overflow_have_the_bits_of_panels() {
    let ids = ids(8);
    for shape in shapes(GgmlType::Q8_0) {
        let mut file = with_activation(&shape, ("relu", None));
        for tensor in &mut file.tensors {
            // Norms multiply what the network reads.
            if tensor.name.ends_with("ffn_norm.weight") {
                for value in tensor.data.as_chunks_mut::<4>().0 {
                    *value = (f32::from_le_bytes(*value) * 1e36).to_le_bytes();
                }
            }
        }
        let gguf_file = file.bytes();
        let way = Way::plain(run::table());
        let mut weights = Weights::plan(&gguf_file).unwrap();
        let expected = way.logits(weights.load(&gguf_file, 1).unwrap(), &ids);
        assert!(expected.iter().flatten().any(|x| !x.is_finite()));
        let mut in_place = InPlace::new(packed(&gguf_file, FfnLayout::Neurons).unwrap()).unwrap();
        for chunk in [1, 4] {
            let found = Way { chunk, ..way }.logits(in_place.model().unwrap(), &ids);
            for (found, expected) in found.iter().flatten().zip(expected.iter().flatten()) {
                let same = found.to_bits() == expected.to_bits();
                assert!(same || found.is_nan() && expected.is_nan());
            }
        }
    }
}

#[test]
fn neurons_are_left_unread_in_steps_of_few_tokens_alone() {
    let ids = ids(16);
    let shape = shapes(GgmlType::Q4_0)[0];
    let run = |activation, chunk, sparse| {
        let gguf_file = with_activation(&shape, activation).bytes();
        let mut in_place = InPlace::new(packed(&gguf_file, FfnLayout::Neurons).unwrap()).unwrap();
        let way = Way {
            chunk,
            sparse,
            ..Way::plain(run::table())
        };
        way.run(in_place.model().unwrap(), &ids).1
    };
    let all = shape.n_layer as usize * shape.n_ff as usize * ids.len();
    let one = run(("relu", None), 1, Sparse::Exact);
    assert_eq!(one.n, all);
    assert!((all / 20..3 * all / 4).contains(&one.n_skipped), "{one:?}");
    // The union of two tokens' neurons is larger than either's; of each pair they count once.
    let two = run(("relu", None), 2, Sparse::Exact);
    assert_eq!(two.n, all / 2);
    assert!(two.n_skipped * 2 < one.n_skipped, "{two:?}");
    assert_eq!(run(("fatrelu", Some(1e9)), 1, Sparse::Exact).n_skipped, all);
    assert_eq!(run(("silu", None), 1, Sparse::Exact), Neurons::default());
    assert_eq!(run(("relu", None), 16, Sparse::Exact), Neurons::default());
    assert_eq!(run(("relu", None), 1, Sparse::Off), Neurons::default());
}

#[test]
fn a_model_trained_with_relu_leaves_two_thirds_of_its_neurons_unread() {
    let gguf_file = include_bytes!("../fixtures/sparse/tale-relu-5.8m-Q8_0.gguf");
    // "Once upon a time, there was a little girl named Lily. She loved to play with her toys and make them look nice."
    let ids = [
        0, 457, 463, 259, 423, 12, 427, 284, 259, 397, 503, 430, 406, 14, 343, 479, 266, 325, 310,
        330, 634, 268, 507, 477, 545, 832, 14,
    ];
    let mut weights = Weights::plan(gguf_file).unwrap();
    let mut in_place = InPlace::new(packed(gguf_file, FfnLayout::Neurons).unwrap()).unwrap();
    let way = Way::plain(run::table());
    let dense = way.logits(weights.load(gguf_file, 1).unwrap(), &ids);
    let (sparse, neurons) = way.run(in_place.model().unwrap(), &ids);
    assert!(sparse == dense, "the logits of the file in panels");
    assert_eq!(neurons.n, ids.len() * 6 * 768);
    assert!(neurons.n_skipped * 100 >= neurons.n * 65, "{neurons:?}");
}
