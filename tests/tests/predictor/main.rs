//! Predictors of active neurons: which they choose, by every table, thread count and cut, and files that are refused.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod experts;
mod files;
mod shown;
mod trained;

use sluice_core::engine::{
    EngineLimits, NeuronCounts, Neurons, Observer, Selector, Sparse, StepOptions, Unit,
};
use sluice_core::gguf::Gguf;
use sluice_core::gguf::source::SliceSource;
use sluice_core::kernels::{GgmlType, KernelTable, KvType};
use sluice_core::model::{
    ModelConfig, ModelError, ModelWeights, PREDICTOR_THRESHOLDS, Predictor, PredictorLimits,
    PredictorPlan,
};
use sluice_core::team::StopFlag;
use sluice_make::slc::FfnLayout;
use sluice_tests::build::{File, Meta, Random, Shape, Tensor, encode};
use sluice_tests::packing::{InPlace, packed};
use sluice_tests::reference::dequant::dequantise;
use sluice_tests::run::{self, Aligned, Room, Weights, YieldWait};

/// A network of 352 neurons: whole words of bits, and half a word.
const SHAPE: Shape = Shape {
    ty: GgmlType::Q4_0,
    n_embd: 288,
    n_ff: 352,
    n_layer: 2,
    ..Shape::SMALL
};
const RANK: u32 = 64;

/// A predictor of random matrices, with biases; no down: `up` alone.
fn predictor(shape: &Shape, ty: GgmlType, rank: Option<u32>, threshold: f32) -> File {
    let mut random = Random(5);
    let mut tensors = Vec::new();
    for layer in 0..shape.n_layer {
        let mut add = |name: &str, dims: &[u32], ty, size: f32| {
            let n = dims.iter().product::<u32>();
            let values: Vec<f32> = (0..n).map(|_| size * random.signed()).collect();
            tensors.push(Tensor {
                name: format!("blk.{layer}.{name}"),
                dims: dims.iter().map(|n| u64::from(*n)).collect(),
                ty,
                data: encode(ty, &values),
            });
        };
        if let Some(rank) = rank {
            add("ffn_pred_down.weight", &[shape.n_embd, rank], ty, 0.1);
        }
        let columns = rank.unwrap_or(shape.n_embd);
        add("ffn_pred_up.weight", &[columns, shape.n_ff], ty, 0.3);
        add("ffn_pred_up.bias", &[shape.n_ff], GgmlType::F32, 0.2);
    }
    let thresholds = vec![threshold; shape.n_layer as usize];
    File {
        version: 3,
        metadata: vec![(PREDICTOR_THRESHOLDS.into(), Meta::F32s(thresholds))],
        tensors,
    }
}

/// A predictor in memory of its own.
struct Loaded(Aligned);

impl Loaded {
    /// The predictor in `file` of the model in `model`, while `act` runs.
    fn with<R>(
        file: &[u8],
        config: &ModelConfig,
        act: impl FnOnce(&Predictor<'_>) -> R,
    ) -> Result<R, ModelError> {
        let gguf = Gguf::parse(file, file.len() as u64)?;
        let plan = PredictorPlan::new(&gguf, config)?;
        let mut memory = Self(Aligned::new(plan.memory_bytes));
        let source = SliceSource(file);
        let predictor = Predictor::load(&gguf, config, &source, memory.0.bytes_mut())?;
        assert_eq!(predictor.limits(), plan.limits);
        Ok(act(&predictor))
    }
}

fn config_of(file: &[u8]) -> ModelConfig {
    ModelConfig::from_gguf(&Gguf::parse(file, file.len() as u64).unwrap()).unwrap()
}

fn ids(n: u32) -> Vec<u32> {
    (0..n).map(|i| (7 * i * i + 11 * i + 5) % 300).collect()
}

/// How a model runs.
#[derive(Clone, Copy)]
struct Way<'a> {
    table: &'static KernelTable,
    n_workers: usize,
    chunk: usize,
    predictor: Option<&'a Predictor<'a>>,
    selector: Option<&'a dyn Selector>,
    observer: Option<&'a dyn Observer>,
    counts: &'a [NeuronCounts],
}

impl<'a> Way<'a> {
    fn plain(predictor: Option<&'a Predictor<'a>>) -> Self {
        Self {
            table: run::table(),
            n_workers: 1,
            chunk: 1,
            predictor,
            selector: None,
            observer: None,
            counts: &[],
        }
    }

    fn run(&self, model: ModelWeights<'_>, ids: &[u32]) -> (Vec<Vec<f32>>, Neurons) {
        let limits = EngineLimits {
            n_batch: 64,
            n_outputs: 64,
            type_k: KvType::F32,
            type_v: KvType::F32,
            selects: self.selector.is_some(),
            observes: self.selector.is_some() || self.observer.is_some(),
            predictor: self
                .predictor
                .map_or(PredictorLimits::NONE, |it| it.limits()),
            ..EngineLimits::single(64, self.n_workers)
        };
        let mut room = Room::plan(model.config(), &limits).unwrap();
        let mut engine = room.engine(model, self.table, &limits).unwrap();
        let stop = StopFlag::new();
        let options = StepOptions {
            sparse: self.predictor.map_or(Sparse::Exact, Sparse::Predictor),
            selector: self.selector,
            observer: self.observer,
            neurons: self.counts,
            ..StepOptions::new(&YieldWait, &stop)
        };
        run::in_steps(&mut engine, ids, self.chunk, options).unwrap()
    }
}

/// A predictor as a selector in f64, of matrices of floats.
struct Plain {
    layers: Vec<[Vec<f64>; 3]>,
    threshold: f64,
    /// The smallest distance of a score from the threshold.
    margin: std::sync::Mutex<f64>,
}

impl Plain {
    fn new(file: &File, n_layer: u32, threshold: f32) -> Self {
        let floats = |layer, name: &str| {
            let name = format!("blk.{layer}.ffn_pred_{name}");
            let tensor = file.tensors.iter().find(|tensor| tensor.name == name);
            tensor.map_or_else(Vec::new, |tensor| {
                let n = tensor.dims.iter().product::<u64>();
                let n = usize::try_from(n).unwrap();
                let values = dequantise(tensor.ty as u32, &tensor.data, n).unwrap();
                values.into_iter().map(f64::from).collect()
            })
        };
        let names = ["down.weight", "up.weight", "up.bias"];
        Self {
            layers: (0..n_layer)
                .map(|i| names.map(|name| floats(i, name)))
                .collect(),
            threshold: threshold.into(),
            margin: f64::MAX.into(),
        }
    }
}

fn product(matrix: &[f64], x: &[f64]) -> Vec<f64> {
    let dot = |row: &[f64]| row.iter().zip(x).map(|(a, b)| a * b).sum();
    matrix.chunks_exact(x.len()).map(dot).collect()
}

impl Selector for Plain {
    fn unit(&self) -> Unit {
        Unit::Neuron
    }

    fn select(&self, layer: usize, _: usize, input: Option<&[f32]>, units: &mut [u64]) -> bool {
        let [down, up, bias] = &self.layers[layer];
        let mut x: Vec<f64> = input.unwrap().iter().map(|x| f64::from(*x)).collect();
        if !down.is_empty() {
            x = product(down, &x);
        }
        for (neuron, (score, bias)) in product(up, &x).iter().zip(bias).enumerate() {
            let distance = score + bias - self.threshold;
            let mut margin = self.margin.lock().unwrap();
            *margin = margin.min(distance.abs());
            units[neuron / 64] |= u64::from(distance > 0.0) << (neuron % 64);
        }
        true
    }
}

#[test]
fn the_neurons_above_the_threshold_are_computed_and_no_others() {
    let (model, ids) = (SHAPE.file().bytes(), ids(9));
    let mut weights = Weights::plan(&model).unwrap();
    for rank in [Some(RANK), None] {
        let file = predictor(&SHAPE, GgmlType::F32, rank, 0.1);
        let selector = Plain::new(&file, SHAPE.n_layer, 0.1);
        Loaded::with(&file.bytes(), &config_of(&model), |predictor| {
            let found = Way::plain(Some(predictor)).run(weights.load(&model, 1).unwrap(), &ids);
            let way = Way {
                selector: Some(&selector),
                ..Way::plain(None)
            };
            let expected = way.run(weights.load(&model, 1).unwrap(), &ids);
            let margin = *selector.margin.lock().unwrap();
            assert!(margin > 1e-6, "{margin}: the scores have to be clear");
            assert!(found.0 == expected.0, "{rank:?}");
            let dense = Way::plain(None).run(weights.load(&model, 1).unwrap(), &ids);
            assert!(found.0 != dense.0);
        })
        .unwrap();
    }
}

#[test]
fn all_neurons_above_the_threshold_are_the_dense_network() {
    let (model, ids) = (SHAPE.file().bytes(), ids(12));
    let mut weights = Weights::plan(&model).unwrap();
    let dense = Way::plain(None).run(weights.load(&model, 1).unwrap(), &ids);
    let run = |threshold, weights: &mut Weights| {
        let file = predictor(&SHAPE, GgmlType::Q8_0, Some(RANK), threshold);
        let way =
            |it: &Predictor<'_>| Way::plain(Some(it)).run(weights.load(&model, 1).unwrap(), &ids);
        Loaded::with(&file.bytes(), &config_of(&model), way).unwrap()
    };
    assert!(run(-1e9, &mut weights).0 == dense.0);
    assert!(run(1e9, &mut weights).0 != dense.0);
}

#[test]
fn bits_are_equal_on_every_table_and_thread_and_cut_and_form_of_file() {
    let ids = ids(16);
    for (ty, of_predictor) in [
        (GgmlType::Q4_0, GgmlType::Q8_0),
        (GgmlType::Q4_K, GgmlType::Q8_0),
        (GgmlType::Q8_0, GgmlType::F16),
    ] {
        for activation in ["relu", "silu"] {
            let shape = match ty {
                GgmlType::Q4_K => Shape {
                    ty,
                    n_embd: 256,
                    n_ff: 768,
                    ..SHAPE
                },
                _ => Shape { ty, ..SHAPE },
            };
            let mut file = shape.file();
            file.set("llama.activation", activation);
            let model = file.bytes();
            let config = config_of(&model);
            let mut weights = Weights::plan(&model).unwrap();
            let [mut neurons, mut predicted] = [FfnLayout::Neurons, FfnLayout::Predicted]
                .map(|ffn| InPlace::new(packed(&model, ffn).unwrap()).unwrap());
            let file = predictor(&shape, of_predictor, Some(RANK), 0.1).bytes();
            Loaded::with(&file, &config, |predictor| {
                let plain = Way::plain(Some(predictor));
                let (expected, _) = plain.run(weights.load(&model, 1).unwrap(), &ids);
                let all = shape.n_layer as usize * shape.n_ff as usize * ids.len();
                for table in run::tables() {
                    for (n_workers, chunk) in [(1, 1), (3, 2), (2, 5), (1, 8), (2, 16)] {
                        let way = Way {
                            table,
                            n_workers,
                            chunk,
                            ..plain
                        };
                        let case = (ty, activation, table.name(), n_workers, chunk);
                        let found = way.run(weights.load(&model, 1).unwrap(), &ids);
                        assert!(found.0 == expected, "panels {case:?}");
                        for file in [&mut neurons, &mut predicted] {
                            let found = way.run(file.model().unwrap(), &ids);
                            assert!(found.0 == expected, "neurons {case:?}");
                            if chunk == 1 {
                                assert_eq!(found.1.n, all, "{case:?}");
                                let skipped = found.1.n_skipped;
                                assert!((all / 5..all).contains(&skipped), "{case:?} {skipped}");
                            }
                        }
                    }
                }
            })
            .unwrap();
        }
    }
}

/// A number that is not one, in what a network reads, makes all scores of its row such.
#[test]
fn a_row_with_nan_is_dense() {
    let ids = ids(6);
    let mut file = SHAPE.file();
    let name = "token_embd.weight";
    let n = file.tensor(name).dims.iter().product::<u64>();
    let mut random = Random(9);
    let mut values: Vec<f32> = (0..n).map(|_| random.signed()).collect();
    values[ids[3] as usize * 288 + 7] = f32::NAN;
    let embedding = file.tensor(name);
    (embedding.ty, embedding.data) = (GgmlType::F32, encode(GgmlType::F32, &values));
    let model = file.bytes();
    let mut in_place = InPlace::new(packed(&model, FfnLayout::Neurons).unwrap()).unwrap();
    let file = predictor(&SHAPE, GgmlType::Q8_0, Some(RANK), 1e9).bytes();
    Loaded::with(&file, &config_of(&model), |predictor| {
        let way = Way::plain(Some(predictor));
        let (rows, neurons) = way.run(in_place.model().unwrap(), &ids[..3]);
        assert!(rows.iter().flatten().all(|x| x.is_finite()));
        assert_eq!(neurons.n, neurons.n_skipped);
        let (rows, neurons) = way.run(in_place.model().unwrap(), &ids[3..4]);
        assert!(rows.iter().flatten().any(|x| x.is_nan()));
        assert_eq!(neurons.n_skipped, 0);
    })
    .unwrap();
}

/// A selector's choice stands in the place of the predictor's.
#[test]
fn layers_without_a_predictor_are_computed_whole() {
    let (model, ids) = (SHAPE.file().bytes(), ids(5));
    let config = config_of(&model);
    let mut weights = Weights::plan(&model).unwrap();
    let mut file = predictor(&SHAPE, GgmlType::Q8_0, Some(RANK), 1e9);
    file.tensors
        .retain(|tensor| tensor.name.starts_with("blk.1"));
    let mut in_place = InPlace::new(packed(&model, FfnLayout::Neurons).unwrap()).unwrap();
    Loaded::with(&file.bytes(), &config, |predictor| {
        assert!(!predictor.has_layer(0) && predictor.has_layer(1));
        let way = Way::plain(Some(predictor));
        let (rows, neurons) = way.run(in_place.model().unwrap(), &ids);
        assert_eq!((neurons.n, neurons.n_skipped), (352 * 5, 352 * 5));
        assert!(rows == way.run(weights.load(&model, 1).unwrap(), &ids).0);
    })
    .unwrap();
}
