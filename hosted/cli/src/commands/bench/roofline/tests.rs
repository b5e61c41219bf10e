use super::*;
use sluice::core::kernels::CpuFeatures;
use sluice::file::ModelFile;
use sluice::host::topology::Cores;

static MODEL: &[u8] = include_bytes!("../../../../../models/tale-5.8m-Q4_K_M.gguf");

#[test]
fn limits_are_finite_and_read_from_memory() {
    let team = Team::new(1, &Cores::detect()).unwrap();
    let memory = vec![1; 1 << 20];
    let scalar = KernelTable::by_name("scalar", CpuFeatures::detect()).unwrap();
    let found = Roofline::measure(scalar, &team, &memory).unwrap();
    for value in [found.read_gb_per_s, found.int8_gops, found.f32_gops] {
        assert!(value.is_finite() && value > 0.01, "{found:?}");
    }
    assert!(found.bf16_gops >= found.f32_gops);
}

#[test]
#[expect(clippy::float_cmp, reason = "whole numbers far below 2⁵³")]
fn costs_are_those_of_the_file() {
    let file = ModelFile::from_static("tale", MODEL).unwrap();
    let gguf = file.parse().unwrap();
    let config = ModelConfig::from_gguf(&gguf).unwrap();
    let cost = ModelCost::new(&gguf, &config, KvType::F16, KvType::F16);
    let all: u64 = gguf.tensors().map(|tensor| tensor.len_bytes).sum();
    let embedding = gguf.tensor("token_embd.weight").unwrap();
    let tied = gguf.tensor("output.weight").is_none();
    let one = Pass {
        n_tokens: 1.0,
        n_outputs: 1.0,
        n_attended: 0.0,
        n_cached: 0.0,
    };
    let read = if tied { all } else { all - embedding.len_bytes };
    assert_eq!(cost.pass(&one).bytes, read as f64);
    // 6 layers of 256² for q and o, 2 × 128·256 for k and v, 3 × 768·256; plus the output layer.
    let weights = 6 * (2 * 256 * 256 + 2 * 128 * 256 + 3 * 768 * 256) + 4096 * 256;
    assert_eq!(cost.pass(&one).ops(), 2.0 * f64::from(weights));
    // Without logits but with context: only keys and values of the last layer.
    let deep = Pass {
        n_outputs: 0.0,
        n_attended: 100.0,
        n_cached: 100.0,
        ..one
    };
    let found = cost.pass(&deep);
    // f16 keys and values of 2 heads of 64 in 5 layers.
    let kv = 100.0 * 5.0 * 2.0 * 128.0 * 2.0;
    let left_out: u64 = gguf
        .tensors()
        .filter(|tensor| tensor.name.starts_with("blk.5."))
        .filter(|tensor| {
            !["attn_k.", "attn_v.", "attn_norm."]
                .iter()
                .any(|kept| tensor.name.contains(kept))
        })
        .map(|tensor| tensor.len_bytes)
        .sum();
    let output = if tied {
        embedding
    } else {
        gguf.tensor("output.weight").unwrap()
    };
    assert_eq!(
        found.bytes,
        (read - output.len_bytes - left_out) as f64 + kv
    );
    assert_eq!(found.f32_ops, 2.0 * 5.0 * 4.0 * 128.0 * 100.0);
}

#[test]
fn of_experts_a_token_meets_the_chosen_and_no_product_of_their_biases() {
    let path = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../../tests/fixtures/models/gpt-oss.gguf"
    );
    let bytes = std::fs::read(path).unwrap();
    let gguf = Gguf::parse(&bytes, bytes.len() as u64).unwrap();
    let config = ModelConfig::from_gguf(&gguf).unwrap();
    let cost = ModelCost::new(&gguf, &config, KvType::F16, KvType::F16);
    let one = Pass {
        n_tokens: 1.0,
        n_outputs: 1.0,
        n_attended: 0.0,
        n_cached: 0.0,
    };
    // 2 layers of q, o, k, v, the router and 3 of 5 experts; plus the output layer.
    let layer = 72 * (2 * 128 + 2 * 64 + 5 + 3 * 3 * 24);
    let weights = f64::from(2 * layer + 272 * 72);
    assert!((cost.pass(&one).ops() - 2.0 * weights).abs() < 1e-6);
}

#[test]
fn time_is_the_longer_of_reading_and_computing() {
    let roof = Roofline {
        read_gb_per_s: 10.0,
        int8_gops: 100.0,
        bf16_gops: 50.0,
        f32_gops: 25.0,
    };
    let cost = PassCost {
        bytes: 10e9,
        int8_ops: 50e9,
        ..PassCost::default()
    };
    assert_eq!(roof.time(&cost), Duration::from_secs(1));
    let more = PassCost {
        f32_ops: 25e9,
        ..cost
    };
    assert_eq!(roof.time(&more), Duration::from_millis(1500));
    assert_eq!(Roofline::default().time(&cost), Duration::ZERO);
}
