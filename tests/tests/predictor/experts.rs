//! Predictors of experts.

use super::{Loaded, RANK, Way, config_of, ids, product};
use sluice_core::engine::{NeuronChoice, Observer, SiteInput};
use sluice_core::kernels::GgmlType;
use sluice_core::model::{PREDICTOR_DENSE, Site};
use sluice_make::slc::FfnLayout;
use sluice_tests::build::{File, Random, Shape, Tensor, encode};
use sluice_tests::packing::{InPlace, packed};
use sluice_tests::run::{self, Weights};
use std::collections::HashMap;
use std::sync::Mutex;

const SHAPE: Shape = Shape {
    n_expert: 4,
    n_expert_used: 2,
    n_layer: 2,
    seed: 2,
    ..super::SHAPE
};

/// Random matrices for each expert; expert 1 of the first layer has no predictor.
fn predictor(shape: &Shape, ty: GgmlType, rank: Option<u32>, threshold: f32) -> File {
    let mut random = Random(7);
    let mut tensors = Vec::new();
    for layer in 0..shape.n_layer {
        let mut add = |name: &str, dims: &[u32], ty, values: &mut dyn FnMut() -> f32| {
            let values: Vec<f32> = (0..dims.iter().product::<u32>())
                .map(|_| values())
                .collect();
            tensors.push(Tensor {
                name: format!("blk.{layer}.{name}"),
                dims: dims.iter().map(|n| u64::from(*n)).collect(),
                ty,
                data: encode(ty, &values),
            });
        };
        let (n, n_ff) = (shape.n_expert, shape.n_ff);
        if let Some(rank) = rank {
            let dims = [shape.n_embd, rank, n];
            add("ffn_pred_down_exps.weight", &dims, ty, &mut || {
                0.1 * random.signed()
            });
        }
        let columns = rank.unwrap_or(shape.n_embd);
        let dims = [columns, n_ff, n];
        add("ffn_pred_up_exps.weight", &dims, ty, &mut || {
            0.3 * random.signed()
        });
        add(
            "ffn_pred_up_exps.bias",
            &[n_ff, n],
            GgmlType::F32,
            &mut || 0.2 * random.signed(),
        );
        let mut expert = 0;
        add(
            "ffn_pred_up_exps.threshold",
            &[n],
            GgmlType::F32,
            &mut || {
                expert += 1;
                if (layer, expert) == (0, 2) {
                    PREDICTOR_DENSE
                } else {
                    threshold
                }
            },
        );
    }
    File {
        version: 3,
        metadata: Vec::new(),
        tensors,
    }
}

/// Sets the rows of neurons that are left out to 0, in the weights of gates and up.
fn without(file: &mut File, shape: &Shape, is_kept: impl Fn(u32, usize, usize) -> bool) {
    for layer in 0..shape.n_layer {
        for part in ["gate", "up"] {
            let tensor = file.tensor(&format!("blk.{layer}.ffn_{part}_exps.weight"));
            let n_ff = shape.n_ff as usize;
            let row_bytes = tensor.data.len() / (n_ff * shape.n_expert as usize);
            for (row, bytes) in tensor.data.chunks_exact_mut(row_bytes).enumerate() {
                if !is_kept(layer, row / n_ff, row % n_ff) {
                    // Blocks of which all scales are 0.
                    bytes.fill(0);
                }
            }
        }
    }
}

/// Biases decide alone: the model is the one without the other neurons.
#[test]
fn each_expert_computes_the_neurons_that_its_predictor_chooses() {
    let ids = ids(16);
    for (ty, ffn) in [
        (GgmlType::Q4_0, FfnLayout::Predicted),
        (GgmlType::Q8_0, FfnLayout::Neurons),
    ] {
        let shape = Shape { ty, ..SHAPE };
        let mut file = predictor(&shape, GgmlType::Q8_0, Some(RANK), 0.0);
        let is_chosen = |layer: u32, expert: usize, neuron: usize| {
            (layer, expert) == (0, 1) || (neuron * 7 + expert * 3 + layer as usize) % 5 < 2
        };
        for layer in 0..shape.n_layer {
            let up = file.tensor(&format!("blk.{layer}.ffn_pred_up_exps.weight"));
            up.data.fill(0);
            let bias = file.tensor(&format!("blk.{layer}.ffn_pred_up_exps.bias"));
            let n_ff = shape.n_ff as usize;
            let values: Vec<f32> = (0..n_ff * shape.n_expert as usize)
                .map(|i| {
                    if is_chosen(layer, i / n_ff, i % n_ff) {
                        1.0
                    } else {
                        -1.0
                    }
                })
                .collect();
            bias.data = encode(GgmlType::F32, &values);
        }
        let model = shape.file().bytes();
        let mut other = shape.file();
        without(&mut other, &shape, is_chosen);
        let other = other.bytes();
        let (mut weights, mut others) = (
            Weights::plan(&model).unwrap(),
            Weights::plan(&other).unwrap(),
        );
        let mut in_place = InPlace::new(packed(&model, ffn).unwrap()).unwrap();
        let expected = Way::plain(None)
            .run(others.load(&other, 1).unwrap(), &ids)
            .0;
        Loaded::with(&file.bytes(), &config_of(&model), |predictor| {
            for (n_workers, chunk) in [(1, 1), (2, 5), (3, 16)] {
                let way = Way {
                    n_workers,
                    chunk,
                    ..Way::plain(Some(predictor))
                };
                let found = way.run(weights.load(&model, 1).unwrap(), &ids).0;
                assert!(found == expected, "{ty} panels {n_workers} {chunk}");
                let found = way.run(in_place.model().unwrap(), &ids).0;
                assert!(found == expected, "{ty} {n_workers} {chunk}");
            }
        })
        .unwrap();
    }
}

#[test]
fn bits_are_equal_on_every_table_and_thread_and_cut_and_form_of_file() {
    let ids = ids(16);
    for (of_predictor, rank, activation) in [
        (GgmlType::Q8_0, Some(RANK), "relu"),
        (GgmlType::F16, Some(RANK), "silu"),
        (GgmlType::Q8_0, None, "silu"),
    ] {
        let mut file = SHAPE.file();
        file.set("llama.activation", activation);
        let model = file.bytes();
        let mut weights = Weights::plan(&model).unwrap();
        let [mut neurons, mut predicted] = [FfnLayout::Neurons, FfnLayout::Predicted]
            .map(|ffn| InPlace::new(packed(&model, ffn).unwrap()).unwrap());
        let dense = Way::plain(None)
            .run(weights.load(&model, 1).unwrap(), &ids)
            .0;
        let file = predictor(&SHAPE, of_predictor, rank, 0.1).bytes();
        Loaded::with(&file, &config_of(&model), |predictor| {
            let plain = Way::plain(Some(predictor));
            let (expected, _) = plain.run(weights.load(&model, 1).unwrap(), &ids);
            assert!(expected != dense);
            for table in run::tables() {
                for (n_workers, chunk) in [(1, 1), (3, 2), (2, 5), (1, 8), (2, 16)] {
                    let way = Way {
                        table,
                        n_workers,
                        chunk,
                        ..plain
                    };
                    let case = (of_predictor, activation, table.name(), n_workers, chunk);
                    let found = way.run(weights.load(&model, 1).unwrap(), &ids);
                    assert!(found.0 == expected, "panels {case:?}");
                    for file in [&mut neurons, &mut predicted] {
                        let found = way.run(file.model().unwrap(), &ids);
                        assert!(found.0 == expected, "neurons {case:?}");
                        if chunk == 1 {
                            // Two experts for each token and layer.
                            let all = 4 * SHAPE.n_ff as usize * ids.len();
                            assert!(found.1.n <= all, "{case:?}");
                            assert!(found.1.n_skipped > all / 8, "{case:?} {:?}", found.1);
                        }
                    }
                }
            }
        })
        .unwrap();
    }
}

#[test]
fn thresholds_below_all_scores_are_the_whole_model() {
    let (model, ids) = (SHAPE.file().bytes(), ids(12));
    let mut weights = Weights::plan(&model).unwrap();
    let dense = Way::plain(None)
        .run(weights.load(&model, 1).unwrap(), &ids)
        .0;
    for threshold in [-1e9, PREDICTOR_DENSE] {
        let file = predictor(&SHAPE, GgmlType::Q8_0, Some(RANK), threshold);
        let found = Loaded::with(&file.bytes(), &config_of(&model), |predictor| {
            Way::plain(Some(predictor))
                .run(weights.load(&model, 1).unwrap(), &ids)
                .0
        });
        assert!(found.unwrap() == dense);
    }
}

/// Compares choices with scores in f64 of the rows that experts read; a token a step, on one worker.
struct Compared {
    /// Down, up and bias of each layer's experts, (layer, expert).
    matrices: HashMap<(usize, usize), [Vec<f64>; 3]>,
    inputs: Mutex<HashMap<(usize, usize), Vec<f64>>>,
    n_compared: Mutex<usize>,
}

impl Observer for Compared {
    fn sees(&self, seen: SiteInput<'_>) {
        if let (Site::FfnGate, Some(expert)) = (seen.site, seen.expert) {
            let row = seen.input.iter().map(|x| f64::from(*x)).collect();
            self.inputs
                .lock()
                .unwrap()
                .insert((seen.layer, expert as usize), row);
        }
    }

    fn sees_choices(&self) -> bool {
        true
    }

    fn sees_choice(&self, choice: NeuronChoice<'_>) {
        let n_ff = SHAPE.n_ff as usize;
        let at = (choice.layer, choice.first / n_ff);
        let [down, up, bias] = &self.matrices[&at];
        let scores = product(up, &product(down, &self.inputs.lock().unwrap()[&at]));
        for (neuron, is_chosen) in (choice.first % n_ff..).zip(choice.is_chosen) {
            let distance = scores[neuron] + bias[neuron] - 0.1;
            assert!(
                distance.abs() > 1e-6,
                "{distance}: the scores have to be clear"
            );
            assert_eq!(*is_chosen, distance > 0.0, "{at:?} {neuron}");
            *self.n_compared.lock().unwrap() += 1;
        }
    }
}

#[test]
fn scores_belong_to_the_rows_that_experts_read() {
    let (model, ids) = (SHAPE.file().bytes(), ids(9));
    let mut weights = Weights::plan(&model).unwrap();
    let mut file = predictor(&SHAPE, GgmlType::F32, Some(RANK), 0.1);
    let mut matrices = HashMap::new();
    for layer in 0..2 {
        let mut part = |name: &str| -> Vec<f64> {
            let tensor = file.tensor(&format!("blk.{layer}.ffn_pred_{name}"));
            let floats = tensor.data.as_chunks().0.iter();
            floats.map(|x| f64::from(f32::from_le_bytes(*x))).collect()
        };
        let all = ["down_exps.weight", "up_exps.weight", "up_exps.bias"].map(&mut part);
        for expert in 0..4 {
            let of_expert = all.each_ref().map(|all| {
                let len = all.len() / 4;
                all[expert * len..(expert + 1) * len].to_vec()
            });
            matrices.insert((layer, expert), of_expert);
        }
    }
    let compared = Compared {
        matrices,
        inputs: Mutex::default(),
        n_compared: Mutex::default(),
    };
    Loaded::with(&file.bytes(), &config_of(&model), |predictor| {
        let way = Way {
            observer: Some(&compared),
            ..Way::plain(Some(predictor))
        };
        let shown = way.run(weights.load(&model, 1).unwrap(), &ids).0;
        let plain = Way::plain(Some(predictor))
            .run(weights.load(&model, 1).unwrap(), &ids)
            .0;
        assert!(shown == plain);
    })
    .unwrap();
    assert!(*compared.n_compared.lock().unwrap() > 9 * 2 * SHAPE.n_ff as usize);
}

#[test]
fn files_that_do_not_fit_the_experts_are_refused_by_name() {
    let config = config_of(&SHAPE.file().bytes());
    let refused = |file: &File, config| {
        let result = Loaded::with(&file.bytes(), config, |_| ());
        result.unwrap_err().to_string()
    };
    let whole = || predictor(&SHAPE, GgmlType::Q8_0, Some(RANK), 0.1);
    let mut file = whole();
    file.tensors
        .retain(|tensor| tensor.name != "blk.1.ffn_pred_up_exps.threshold");
    let found = refused(&file, &config);
    assert!(
        found.contains("blk.1.ffn_pred_up_exps.threshold"),
        "{found}"
    );
    let fewer = Shape {
        n_expert: 3,
        ..SHAPE
    };
    let found = refused(&predictor(&fewer, GgmlType::Q8_0, Some(RANK), 0.1), &config);
    assert!(
        found.contains("blk.0.ffn_pred_up_exps.bias has 3 rows of 352"),
        "{found}"
    );
    let mut file = whole();
    file.tensor("blk.0.ffn_pred_down_exps.weight").dims = vec![288, 64];
    let found = refused(&file, &config);
    assert!(
        found.contains("ffn_pred_down_exps.weight has 1 experts of 64 rows of 288"),
        "{found}"
    );
    let dense = config_of(&super::SHAPE.file().bytes());
    let found = refused(&whole(), &dense);
    assert!(found.contains("blk.0.ffn_pred_up_exps.weight"), "{found}");
    let of_dense = super::predictor(&super::SHAPE, GgmlType::Q8_0, Some(RANK), 0.1);
    let found = refused(&of_dense, &config);
    assert!(found.contains("blk.0.ffn_pred_up.weight"), "{found}");
    let mut file = whole();
    let thresholds = file.tensor("blk.1.ffn_pred_up_exps.threshold");
    thresholds.data[..4].copy_from_slice(&f32::NAN.to_le_bytes());
    let found = refused(&file, &config);
    assert!(
        found.contains("blk.1.ffn_pred_up_exps.threshold"),
        "{found}"
    );
}
