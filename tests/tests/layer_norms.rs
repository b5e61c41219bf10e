//! Layer norms on the heads of queries and keys: our logits against transformers' (`tests/fixtures/layer_norms.py`).

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use sluice_core::engine::EngineLimits;
use sluice_core::gguf::Gguf;
use sluice_core::kernels::KvType;
use sluice_core::model::{ModelConfig, QkNorm};
use sluice_tests::drive::Bench;
use sluice_tests::{goldens, run};

const MODELS: [(&str, QkNorm); 4] = [
    ("stablelm-heads", QkNorm::EachHead),
    ("stablelm", QkNorm::None),
    ("command-r-heads", QkNorm::EachHead),
    ("command-r", QkNorm::None),
];

fn fixture(name: &str) -> Vec<u8> {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/fixtures/models");
    std::fs::read(format!("{folder}/{name}")).unwrap()
}

fn logits(file: &[u8], ids: &[u32], n_batch: usize, n_workers: usize) -> Vec<Vec<f32>> {
    let limits = EngineLimits {
        n_outputs: 32,
        type_k: KvType::F32,
        type_v: KvType::F32,
        ..EngineLimits::single(32, n_workers)
    };
    Bench::of_bytes(file).with(&limits, |engine| run::logits(engine, ids, n_batch).unwrap())
}

#[test]
fn layer_norms_on_heads_are_those_of_transformers() {
    let ids: Vec<u32> = (0..24)
        .map(|i| 3 + (7 * i * i + 11 * i + 5) % 256)
        .collect();
    for (name, qk_norm) in MODELS {
        let file = fixture(&format!("{name}.gguf"));
        let config = ModelConfig::from_gguf(&Gguf::parse(&file, file.len() as u64).unwrap());
        let config = config.unwrap();
        assert!(config.attentions().all(|shape| shape.qk_norm == qk_norm));
        let golden = fixture(&format!("{name}.transformers.f32"));
        let golden: Vec<f64> = golden
            .chunks_exact(4)
            .map(|bytes| f32::from_le_bytes(bytes.try_into().unwrap()).into())
            .collect();
        let golden: Vec<Vec<f64>> = golden.chunks(config.n_vocab).map(<[_]>::to_vec).collect();
        let ours = logits(&file, &ids, 24, 1);
        let distance = goldens::distance(&ours, &golden);
        assert!(distance.rms_relative < 1e-5, "{name}: {distance:?}");
        // One by one and with several workers, where heads are shared out in other ways.
        for (n_batch, n_workers) in [(1, 1), (1, 2), (24, 3)] {
            assert!(logits(&file, &ids, n_batch, n_workers) == ours, "{name}");
        }
    }
}
