//! Files that are refused, and PowerInfer's.

use super::{Loaded, RANK, SHAPE, Way, config_of, ids, predictor};
use sluice_core::engine::{EngineError, EngineLimits, Sparse, StepOptions};
use sluice_core::gguf::Gguf;
use sluice_core::kernels::GgmlType;
use sluice_core::model::{PREDICTOR_THRESHOLDS, PowerInfer, Predictor, PredictorPlan};
use sluice_core::team::StopFlag;
use sluice_tests::build::{File, Meta, Random, Shape, Tensor, encode};
use sluice_tests::drive::Bench;
use sluice_tests::run::{Weights, YieldWait, entries};

fn error(file: &File, shape: &Shape) -> String {
    let config = config_of(&shape.file().bytes());
    let result = Loaded::with(&file.bytes(), &config, |_| ());
    result
        .err()
        .map_or_else(String::new, |error| error.to_string())
}

#[test]
fn tensors_that_do_not_fit_are_refused_by_name() {
    let sound = predictor(&SHAPE, GgmlType::Q8_0, Some(RANK), 0.0);
    assert_eq!(error(&sound, &SHAPE), "");
    let wider = Shape { n_ff: 384, ..SHAPE };
    assert_eq!(
        error(&sound, &wider),
        "tensor blk.0.ffn_pred_up.bias has 1 rows of 352, expected 1 rows of 384"
    );
    let without = |name: &str| {
        let mut file = sound.clone();
        file.tensors.retain(|tensor| tensor.name != name);
        error(&file, &SHAPE)
    };
    assert_eq!(
        without("blk.1.ffn_pred_up.weight"),
        "tensor blk.1.ffn_pred_up.weight is missing"
    );
    let missing = without("blk.0.ffn_pred_down.weight");
    assert!(
        missing.contains("blk.0.ffn_pred_up.weight has 352 rows of 64"),
        "{missing}"
    );
    let mut none = sound.clone();
    none.tensors.clear();
    assert_eq!(
        error(&none, &SHAPE),
        "tensor blk.0.ffn_pred_up.weight is missing"
    );
    let mut broken = sound.clone();
    broken.fill("blk.1.ffn_pred_up.bias", &[f32::NAN; 352]);
    assert!(error(&broken, &SHAPE).contains("blk.1.ffn_pred_up.bias"));
    let mut typed = sound;
    typed.tensor("blk.0.ffn_pred_down.weight").ty = GgmlType::I8;
    let n = 288 * 64;
    typed.tensor("blk.0.ffn_pred_down.weight").data = vec![0; n];
    assert!(error(&typed, &SHAPE).contains("blk.0.ffn_pred_down.weight"));
}

#[test]
fn thresholds_are_one_number_for_each_layer() {
    let mut file = predictor(&SHAPE, GgmlType::Q8_0, Some(RANK), 0.0);
    for values in [vec![0.0], vec![0.0, f32::NAN], vec![f32::INFINITY, 0.0]] {
        file.set_values(values);
        let error = error(&file, &SHAPE);
        assert!(error.contains("predictor.thresholds"), "{error}");
    }
    file.unset(PREDICTOR_THRESHOLDS);
    assert!(error(&file, &SHAPE).contains("predictor.thresholds"));
}

trait SetValues {
    fn set_values(&mut self, values: Vec<f32>);
}

impl SetValues for File {
    fn set_values(&mut self, values: Vec<f32>) {
        self.unset(PREDICTOR_THRESHOLDS);
        let value = Meta::F32s(values);
        self.metadata.push((PREDICTOR_THRESHOLDS.into(), value));
    }
}

/// Cut anywhere, a file is refused; with any byte of its header changed, it is refused or read, without a panic.
#[test]
fn truncated_and_changed_files_are_refused() {
    let file = predictor(&SHAPE, GgmlType::Q8_0, Some(RANK), 0.0).bytes();
    let config = config_of(&SHAPE.file().bytes());
    let start = Gguf::parse(&file, file.len() as u64).unwrap().data_offset();
    let start = usize::try_from(start).unwrap();
    for len in (0..start).chain((start..file.len() - 32).step_by(997)) {
        assert!(
            Loaded::with(&file[..len], &config, |_| ()).is_err(),
            "{len}"
        );
    }
    let mut random = Random(1);
    let mut n_refused = 0;
    for _ in 0..4000 {
        let mut changed = file.clone();
        let at = random.below(u32::try_from(start).unwrap()) as usize;
        changed[at] ^= 1 << random.below(8);
        n_refused += usize::from(Loaded::with(&changed, &config, |_| ()).is_err());
    }
    assert!((1000..4000).contains(&n_refused), "{n_refused}");
}

#[test]
fn steps_refuse_a_predictor_without_room_or_of_another_model() {
    let file = predictor(&SHAPE, GgmlType::Q8_0, Some(RANK), 0.0).bytes();
    let model = SHAPE.file();
    let other = Shape { n_ff: 384, ..SHAPE }.file();
    let error = |of: &File, limits: EngineLimits, predictor: &Predictor<'_>| {
        Bench::of(of).with(&limits, |engine| {
            let stop = StopFlag::new();
            let options = StepOptions {
                sparse: Sparse::Predictor(predictor),
                ..StepOptions::new(&YieldWait, &stop)
            };
            engine.step(&entries(&[1], 0, 0), options).err()
        })
    };
    Loaded::with(&file, &config_of(&model.bytes()), |predictor| {
        let limits = EngineLimits::single(32, 1);
        let refused = Some(EngineError::NotMadeFor { what: "predictor" });
        assert_eq!(error(&model, limits, predictor), refused);
        let limits = EngineLimits {
            predictor: predictor.limits(),
            ..limits
        };
        assert_eq!(error(&other, limits, predictor), refused);
        assert_eq!(error(&model, limits, predictor), None);
    })
    .unwrap();
}

/// The model with a predictor of its own: `fc2 · relu(fc1 · x)`, of the stream before the norm.
pub(super) fn with_fc(shape: &Shape, threshold: f32) -> File {
    let mut file = shape.file();
    let mut random = Random(4);
    for layer in 0..shape.n_layer {
        for (name, dims) in [("fc1", [shape.n_embd, RANK]), ("fc2", [RANK, shape.n_ff])] {
            let values: Vec<f32> = (0..dims[0] * dims[1]).map(|_| random.signed()).collect();
            file.tensors.push(Tensor {
                name: format!("blk.{layer}.{name}.weight"),
                dims: dims.map(u64::from).to_vec(),
                ty: GgmlType::F16,
                data: encode(GgmlType::F16, &values),
            });
        }
    }
    file.set(PowerInfer::THRESHOLD, threshold);
    file
}

#[test]
fn predictors_of_powerinfer_read_the_stream_without_its_norm() {
    let ids = ids(12);
    let run = |file: &File, chunk: usize, n_workers: usize| {
        let model = file.bytes();
        let gguf = Gguf::parse(&model, model.len() as u64).unwrap();
        let config = config_of(&model);
        assert_eq!(PredictorPlan::new(&gguf, &config).unwrap().n_layer, 2);
        let mut weights = Weights::plan(&model).unwrap();
        Loaded::with(&model, &config, |predictor| {
            let way = Way {
                chunk,
                n_workers,
                ..Way::plain(Some(predictor))
            };
            way.run(weights.load(&model, 1).unwrap(), &ids).0
        })
        .unwrap()
    };
    let file = with_fc(&SHAPE, 0.5);
    let one = run(&file, 1, 1);
    for (chunk, n_workers) in [(3, 2), (8, 1), (12, 3)] {
        assert!(run(&file, chunk, n_workers) == one, "{chunk}");
    }
    let mut plain = Weights::plan(&file.bytes()).unwrap();
    let dense = Way::plain(None).run(plain.load(&file.bytes(), 1).unwrap(), &ids);
    assert!(one != dense.0);
    assert!(run(&with_fc(&SHAPE, -1e30), 1, 1) == dense.0);
    // Without a norm, the network's norm weights have no influence on which neurons are chosen: with the weights of a
    // norm doubled and gate and up halved, exactly, all is as before.
    let mut scaled = file.clone();
    for layer in 0..2 {
        let norm = scaled.tensor(&format!("blk.{layer}.ffn_norm.weight"));
        for value in norm.data.as_chunks_mut::<4>().0 {
            *value = (2.0 * f32::from_le_bytes(*value)).to_le_bytes();
        }
        for part in ["gate", "up"] {
            let matrix = scaled.tensor(&format!("blk.{layer}.ffn_{part}.weight"));
            // The scale of a block of Q4_0 is a half number of its own, and its exponent five bits after the sign.
            for block in matrix.data.chunks_exact_mut(18) {
                let d = u16::from_le_bytes([block[0], block[1]]);
                assert!(d & 0x7c00 > 0x0400, "a normal number");
                block[..2].copy_from_slice(&(d - 0x0400).to_le_bytes());
            }
        }
    }
    assert!(run(&scaled, 1, 1) == one);
}
