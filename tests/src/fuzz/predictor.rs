//! Predictors' files, as they are read for a dense network and for a mixture.

use super::accepted;
use crate::build::{File, Meta, Random, Shape, Tensor, Vocab, encode};
use crate::run::Aligned;
use sluice_core::gguf::Gguf;
use sluice_core::gguf::source::SliceSource;
use sluice_core::kernels::GgmlType;
use sluice_core::kernels::quantize::quantize_rows;
use sluice_core::model::{ModelConfig, PREDICTOR_THRESHOLDS, Predictor, PredictorPlan};
use std::sync::LazyLock;

/// A `.sparse.gguf` file: the plan, and what is loaded for a dense network and for experts.
pub fn predictor(file: &[u8]) {
    let Some(gguf) = accepted(Gguf::parse(file, file.len() as u64)) else {
        return;
    };
    for config in CONFIGS.iter() {
        let Some(plan) = accepted(PredictorPlan::new(&gguf, config)) else {
            continue;
        };
        let max = file.len() * BYTES_PER_FILE_BYTE + CONSTANT_BYTES;
        let bytes = plan.memory_bytes;
        assert!(bytes <= max, "a plan of {bytes} bytes, at most {max}");
        let mut memory = Aligned::new(bytes);
        let source = SliceSource(file);
        let loaded = Predictor::load(&gguf, config, &source, memory.bytes_mut());
        if let Some(predictor) = accepted(loaded) {
            assert_eq!(predictor.limits(), plan.limits);
            let layers = (0..config.n_layer()).filter(|layer| predictor.has_layer(*layer));
            assert_eq!(layers.count(), plan.n_layer);
        }
    }
}

/// A network of 32 inputs and 64 neurons, of `n_expert` experts unless 0.
const fn shape(n_expert: u32) -> Shape {
    Shape {
        n_embd: 32,
        n_head: 1,
        n_head_kv: 1,
        head_dim_k: 32,
        head_dim_v: 32,
        n_ff: 64,
        n_layer: 2,
        n_vocab: 8,
        n_expert,
        n_expert_used: if n_expert > 0 { 1 } else { 0 },
        vocab: Vocab::None,
        ..Shape::TINY
    }
}

static CONFIGS: LazyLock<[ModelConfig; 2]> = LazyLock::new(|| {
    [shape(0), shape(2)].map(|shape| {
        let file = shape.file().bytes();
        let gguf = Gguf::parse(&file, file.len() as u64).expect("a sound file");
        ModelConfig::from_gguf(&gguf).expect("a sound model")
    })
});

/// Sound files: of two matrices and of one, in several types, of a dense network, of experts, and of PowerInfer.
pub(super) fn seeds() -> Vec<Vec<u8>> {
    let cases = [
        (GgmlType::Q8_0, Some(32), 0),
        (GgmlType::Q4_0, None, 0),
        (GgmlType::F16, Some(5), 0),
        (GgmlType::Q8_0, Some(32), 2),
        (GgmlType::F32, None, 2),
    ];
    let own = cases.map(|(ty, rank, n_expert)| file(ty, rank, n_expert, false).bytes());
    let [powerinfer] = [file(GgmlType::F16, Some(8), 0, true).bytes()];
    own.into_iter().chain([powerinfer]).collect()
}

fn file(ty: GgmlType, rank: Option<u32>, n_expert: u32, is_powerinfers: bool) -> File {
    let mut random = Random(3);
    let shape = shape(n_expert);
    let (experts, suffix) = match n_expert {
        0 => (vec![], ""),
        n => (vec![n], "_exps"),
    };
    let mut tensors = Vec::new();
    for layer in 0..shape.n_layer {
        let mut add = |name: String, dims: &[u32], ty| {
            let dims = [dims, &experts].concat();
            let n = dims.iter().product::<u32>();
            let values: Vec<f32> = (0..n).map(|_| random.signed()).collect();
            tensors.push(Tensor {
                name: format!("blk.{layer}.{name}"),
                dims: dims.iter().map(|n| u64::from(*n)).collect(),
                ty,
                data: blocks(ty, &values, dims[0]),
            });
        };
        let [down, up] = match is_powerinfers {
            true => ["fc1".to_owned(), "fc2".to_owned()],
            false => ["down", "up"].map(|part| format!("ffn_pred_{part}{suffix}")),
        };
        if let Some(rank) = rank {
            add(format!("{down}.weight"), &[shape.n_embd, rank], ty);
        }
        let columns = rank.unwrap_or(shape.n_embd);
        add(format!("{up}.weight"), &[columns, shape.n_ff], ty);
        if !is_powerinfers {
            add(format!("{up}.bias"), &[shape.n_ff], GgmlType::F32);
        }
        if n_expert > 0 {
            add(format!("{up}.threshold"), &[], GgmlType::F32);
        }
    }
    let key = match is_powerinfers {
        true => ("powerinfer.sparse_threshold".to_owned(), Meta::F32(0.5)),
        false => (PREDICTOR_THRESHOLDS.to_owned(), Meta::F32s(vec![0.1; 2])),
    };
    File {
        version: 3,
        metadata: vec![("general.architecture".to_owned(), "predictor".into()), key],
        tensors,
    }
}

/// Values in rows of `n_cols`, as [`encode`] or the quantiser writes them.
fn blocks(ty: GgmlType, values: &[f32], n_cols: u32) -> Vec<u8> {
    if ty != GgmlType::Q4_0 {
        return encode(ty, values);
    }
    let mut out = vec![0; values.len() / ty.block_len() * ty.block_bytes()];
    quantize_rows(ty, values, n_cols as usize, None, &mut out).expect("whole blocks of numbers");
    out
}

/// Bytes of memory for each byte of a file, and beyond that.
const BYTES_PER_FILE_BYTE: usize = 16;
const CONSTANT_BYTES: usize = 256 << 10;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_seed_is_a_predictor_of_one_of_the_models() {
        for seed in seeds() {
            let gguf = Gguf::parse(&seed, seed.len() as u64).unwrap();
            let plans = CONFIGS
                .iter()
                .map(|config| PredictorPlan::new(&gguf, config));
            let sound: Vec<_> = plans.flatten().collect();
            assert_eq!(sound.len(), 1);
            assert_eq!(sound[0].n_layer, 2);
        }
    }
}
