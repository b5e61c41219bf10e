//! A bit budget does less harm than a single type for all weights.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]
#![expect(clippy::print_stdout, reason = "figures for a run with --nocapture")]

use core::str::FromStr as _;
use sluice::Team;
use sluice::core::kernels::GgmlType;
use sluice::core::team::StopFlag;
use sluice::core::tokenizer::EncodeOptions;
use sluice::file::{LoadMode, OutputFile};
use sluice::host::topology::Cores;
use sluice::model::ModelSource;
use sluice_make::quantize::{
    BUDGET_TYPES, Bench, Budget, FileType, Plan, QuantizeRequest, Runner, apply_sensitivities,
    quantize,
};
use std::path::Path;
use std::sync::Arc;

#[expect(
    unreachable_pub,
    reason = "a public function of the crate `sluice-tests`"
)]
#[path = "../../../tests/src/shared.rs"]
mod shared;

fn tokens(opened: &ModelSource, text: &Path, count: usize) -> Vec<u32> {
    let text = std::fs::read_to_string(text).unwrap();
    let found = opened.encode_with(&text, EncodeOptions::default());
    found.unwrap()[..count].to_vec()
}

/// Quantises `model` as requested; returns the divergence of its answers and its bits per weight.
fn harm(
    model: &ModelSource,
    runner: &Runner,
    held_out: &[u32],
    request: &QuantizeRequest,
    name: &str,
) -> (f64, f64) {
    let plan = Plan::new(model.gguf(), request).unwrap();
    let path = std::env::temp_dir().join(format!("sluice-budget-{}-{name}", std::process::id()));
    let header = plan.header(model.gguf(), request.file_type, None, &[]);
    let writer = header
        .start(OutputFile::create_model(&path, true, *b"GGUF").unwrap())
        .unwrap();
    let (file, team, stop) = (model.file(), &runner.team, &runner.stop);
    quantize(file, &plan, None, &writer, team, stop, |_| {}).unwrap();
    writer.finish().unwrap();
    let quantized = ModelSource::open(&path, LoadMode::Read).unwrap();
    std::fs::remove_file(&path).unwrap();
    let chunks = held_out.chunks_exact(CHUNK).collect();
    let mut bench = Bench::new(model.clone(), chunks, runner.clone()).unwrap();
    #[expect(clippy::cast_precision_loss, reason = "a few million")]
    let bits = 8.0 * plan.total_bytes().1 as f64 / plan.n_elements() as f64;
    (bench.divergence_of(&quantized).unwrap(), bits)
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
    let model = ModelSource::open(&model, LoadMode::Read).unwrap();
    let calibration = tokens(&model, &calibration, 6 * CHUNK);
    let held_out = tokens(&model, &held_out, 12 * CHUNK);

    let runner = Runner {
        team: Team::new(2, &Cores::detect()).unwrap(),
        table: None,
        stop: Arc::new(StopFlag::new()).into(),
    };
    let all = QuantizeRequest {
        pure: true,
        ..QuantizeRequest::new(FileType::from_str("Q8_0").unwrap())
    };
    let plan = Plan::new(model.gguf(), &all).unwrap();
    let types = &BUDGET_TYPES;
    let (file, team, stop) = (model.file(), &runner.team, &runner.stop);
    let mut budget = Budget::measure(file, &plan, None, types, team, stop, |_| {}).unwrap();
    let mut assumed = budget.clone();
    assumed.assume_sensitivities();
    let chunks = calibration.chunks_exact(CHUNK).collect();
    let mut bench = Bench::new(model.clone(), chunks, runner.clone()).unwrap();
    apply_sensitivities(&mut bench, &plan, None, &mut budget, |_| {}).unwrap();

    let uniform: Vec<(&str, f64, f64)> = UNIFORM
        .iter()
        .map(|name| {
            let request = QuantizeRequest {
                pure: true,
                ..QuantizeRequest::new(FileType::from_str(name).unwrap())
            };
            let (harm, bits) = harm(&model, &runner, &held_out, &request, name);
            println!("{name:8} {bits:.3} bits  {harm:.5} nats");
            (*name, harm, bits)
        })
        .collect();
    let cases = [3.0, 3.5, 4.0, 4.5]
        .map(|asked| [("measured", &budget, asked), ("assumed", &assumed, asked)]);
    for (kind, budget, asked) in cases.into_iter().flatten() {
        let chosen = budget.choose(asked).unwrap();
        assert!(chosen.values().any(|&ty| ty != GgmlType::Q8_0));
        let request = QuantizeRequest {
            chosen,
            ..all.clone()
        };
        let (least, bits) = harm(&model, &runner, &held_out, &request, &asked.to_string());
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

/// Tokens per chunk.
const CHUNK: usize = 256;
/// File types whose base type the budget has to beat.
const UNIFORM: [&str; 10] = [
    "TQ2_0", "Q2_K", "IQ3_XXS", "IQ3_S", "Q3_K_S", "IQ4_XS", "Q4_K_S", "IQ4_NL", "Q4_0", "Q4_1",
];
