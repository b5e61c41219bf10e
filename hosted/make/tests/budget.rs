//! A bit budget does less harm than any one type for all weights.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]
#![expect(
    clippy::print_stdout,
    reason = "figures for whoever runs it with --nocapture"
)]

use core::str::FromStr as _;
use sluice::core::kernels::GgmlType;
use sluice::core::kernels::KvType;
use sluice::core::team::StopFlag;
use sluice::core::tokenizer::{self, EncodeOptions, Tokenizer};
use sluice::evaluate::Evaluator;
use sluice::file::{LoadMode, ModelFile, OutputFile};
use sluice::host::topology::Cores;
use sluice::host::workers::Workers;
use sluice_make::quantize::{
    BUDGET_TYPES, Bench, Budget, FileType, Plan, Request, apply_sensitivities, quantize,
};
use std::path::Path;

#[expect(
    unreachable_pub,
    reason = "a public function of the crate `sluice-tests`"
)]
#[path = "../../../tests/src/shared.rs"]
mod shared;

fn tokens(file: &ModelFile, text: &Path, count: usize) -> Vec<u32> {
    let gguf = file.parse().unwrap();
    let text = std::fs::read_to_string(text).unwrap();
    let mut words = vec![0; tokenizer::plan(&gguf).unwrap().words];
    let tokenizer = Tokenizer::new(&gguf, &mut words).unwrap();
    let mut workspace = vec![0; tokenizer.encode_workspace_words(text.len())];
    let mut out = vec![0; tokenizer.max_tokens(text.len())];
    let options = EncodeOptions::default();
    let found = tokenizer.encode(&text, options, &mut workspace, &mut out);
    found.unwrap()[..count].to_vec()
}

/// Writes `model` as `request` says; returns the divergence of its answers and its bits per weight.
fn harm(model: &ModelFile, held_out: &[u32], request: &Request, name: &str) -> (f64, f64) {
    let (stop, cores) = (StopFlag::new(), Cores::detect());
    let mut workers = Workers::new(2, &cores).unwrap();
    let gguf = model.parse().unwrap();
    let plan = Plan::new(&gguf, request).unwrap();
    let path = std::env::temp_dir().join(format!("sluice-budget-{}-{name}", std::process::id()));
    let header = plan.header(&gguf, request.file_type, None, &[]);
    let writer = header
        .start(OutputFile::create(&path, true).unwrap())
        .unwrap();
    quantize(model, &plan, None, &writer, &mut workers, &stop, |_| {}).unwrap();
    writer.finish().unwrap();
    let file = ModelFile::open(&path, LoadMode::Read).unwrap();
    std::fs::remove_file(&path).unwrap();
    let evaluator = Evaluator {
        cache_types: (KvType::F16, KvType::F16),
        table: sluice::host::isa::kernel_table(None).unwrap(),
        workers: &mut workers,
        stop: &stop,
    };
    let chunks = held_out.chunks_exact(CHUNK).collect();
    let mut bench = Bench::new(model, chunks, evaluator).unwrap();
    #[expect(clippy::cast_precision_loss, reason = "a few million")]
    let bits = 8.0 * plan.total_bytes().1 as f64 / plan.n_elements() as f64;
    (bench.divergence_of(&file).unwrap(), bits)
}

#[test]
fn less_harm_than_any_one_type() {
    let files = [
        "models/tale-5.8m-f16.gguf",
        "data/tinystories_1000.txt",
        "data/tale_heldout.txt",
    ];
    let [Some(model), Some(calibration), Some(held_out)] = files.map(shared::shared) else {
        return;
    };
    let model = ModelFile::open(&model, LoadMode::Read).unwrap();
    let gguf = model.parse().unwrap();
    let calibration = tokens(&model, &calibration, 6 * CHUNK);
    let held_out = tokens(&model, &held_out, 12 * CHUNK);

    let (stop, cores) = (StopFlag::new(), Cores::detect());
    let mut workers = Workers::new(2, &cores).unwrap();
    let all = Request {
        pure: true,
        ..Request::new(FileType::from_str("Q8_0").unwrap())
    };
    let plan = Plan::new(&gguf, &all).unwrap();
    let types = &BUDGET_TYPES;
    let mut budget =
        Budget::measure(&model, &plan, None, types, &mut workers, &stop, |_| {}).unwrap();
    let mut assumed = budget.clone();
    assumed.assume_sensitivities();
    let evaluator = Evaluator {
        cache_types: (KvType::F16, KvType::F16),
        table: sluice::host::isa::kernel_table(None).unwrap(),
        workers: &mut workers,
        stop: &stop,
    };
    let chunks = calibration.chunks_exact(CHUNK).collect();
    let mut bench = Bench::new(&model, chunks, evaluator).unwrap();
    apply_sensitivities(&mut bench, &plan, None, &mut budget, |_| {}).unwrap();

    let uniform: Vec<(&str, f64, f64)> = UNIFORM
        .iter()
        .map(|name| {
            let request = Request {
                pure: true,
                ..Request::new(FileType::from_str(name).unwrap())
            };
            let (harm, bits) = harm(&model, &held_out, &request, name);
            println!("{name:8} {bits:.3} bits  {harm:.5} nats");
            (*name, harm, bits)
        })
        .collect();
    let cases = [3.0, 3.5, 4.0, 4.5]
        .map(|asked| [("measured", &budget, asked), ("assumed", &assumed, asked)]);
    for (kind, budget, asked) in cases.into_iter().flatten() {
        let chosen = budget.choose(asked).unwrap();
        assert!(chosen.values().any(|&ty| ty != GgmlType::Q8_0));
        let request = Request {
            chosen,
            ..all.clone()
        };
        let (least, bits) = harm(&model, &held_out, &request, &asked.to_string());
        println!("{kind} {bits:.3} bits  {least:.5} nats");
        assert!(bits <= asked);
        for &(name, harm, bits) in &uniform {
            assert!(
                bits > asked + 0.02 || least < harm,
                "{kind}, {asked} bits: {least}, {name} {harm}"
            );
        }
    }
}

/// Tokens of a chunk.
const CHUNK: usize = 256;
/// File types whose base type is a candidate to beat.
const UNIFORM: [&str; 10] = [
    "TQ2_0", "Q2_K", "IQ3_XXS", "IQ3_S", "Q3_K_S", "IQ4_XS", "Q4_K_S", "IQ4_NL", "Q4_0", "Q4_1",
];
