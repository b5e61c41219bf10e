//! Perplexity of real models on real text, as `llama-perplexity` computes it.
//!
//! The text is cut into windows of the context's length that start with BOS; the tokens of the
//! second half of each window are predicted from those before them.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]
#![expect(clippy::print_stdout, reason = "figures for a run with --nocapture")]

use core::str::FromStr as _;
use sluice::Team;
use sluice::file::{LoadMode, ModelFile, OutputFile};
use sluice::host::topology::Cores;
use sluice_core::engine::EngineLimits;
use sluice_core::gguf::Gguf;
use sluice_core::sampler::log_probability;
use sluice_core::team::StopFlag;
use sluice_core::tokenizer::{self, EncodeOptions, Tokenizer};
use sluice_make::quantize::{FileType, Plan, QuantizeRequest, quantize};
use sluice_tests::hosted::TALE;
use sluice_tests::run::{self, Room, Weights};
use sluice_tests::{fixture, shared};
use std::path::Path;

fn tokenize(file: &[u8], text: &str) -> (Vec<u32>, Option<u32>) {
    let gguf = Gguf::parse(file, file.len() as u64).unwrap();
    let mut memory = vec![0; tokenizer::plan(&gguf).unwrap().words];
    let tokenizer = Tokenizer::new(&gguf, &mut memory).unwrap();
    let mut workspace = vec![0; tokenizer.encode_workspace_words(text.len())];
    let mut out = vec![0; tokenizer.max_tokens(text.len())];
    let options = EncodeOptions {
        add_special: true,
        parse_special: false,
    };
    let ids = tokenizer
        .encode(text, options, &mut workspace, &mut out)
        .unwrap()
        .to_vec();
    (ids, tokenizer.bos().filter(|_| tokenizer.adds_bos()))
}

/// The exponential of the mean negative log-likelihood, and the number of windows.
fn perplexity(file: &[u8], text: &str, n_ctx: usize) -> (f64, usize) {
    let (ids, bos) = tokenize(file, text);
    let mut weights = Weights::plan(file).unwrap();
    let model = weights.load(file, 2).unwrap();
    let limits = EngineLimits {
        n_outputs: n_ctx,
        ..EngineLimits::single(n_ctx, 2)
    };
    let mut room = Room::plan(model.config(), &limits).unwrap();
    let mut engine = room.engine(model, run::table(), &limits).unwrap();
    let (mut nll, mut count, mut windows) = (0.0f64, 0u32, 0);
    for window in ids.chunks_exact(n_ctx) {
        let mut tokens = window.to_vec();
        if let Some(bos) = bos {
            tokens[0] = bos;
        }
        engine.state_mut().clear(0).unwrap();
        let logits = run::logits(&mut engine, &tokens, n_ctx).unwrap();
        for i in n_ctx / 2..n_ctx - 1 {
            nll -= f64::from(log_probability(&logits[i], tokens[i + 1]).unwrap());
            count += 1;
        }
        windows += 1;
    }
    ((nll / f64::from(count)).exp(), windows)
}

/// The story model in F16, quantised by us to the type in `name`.
fn quantized(f16: &Path, name: &str) -> Option<Vec<u8>> {
    let ty = name.strip_prefix("tale-5.8m-")?.strip_suffix(".gguf")?;
    let file = ModelFile::open(f16, LoadMode::Read).unwrap();
    let gguf = file.parse().unwrap();
    let request = QuantizeRequest::new(FileType::from_str(ty).unwrap());
    let plan = Plan::new(&gguf, &request).unwrap();
    let path = std::env::temp_dir().join(format!("sluice-perplexity-{}-{ty}", std::process::id()));
    let header = plan.header(&gguf, request.file_type, None, &[]);
    let writer = header
        .start(OutputFile::create_model(&path, true, *b"GGUF").unwrap())
        .unwrap();
    let team = Team::new(2, &Cores::detect()).unwrap();
    let stop = StopFlag::new();
    quantize(&file, &plan, None, &writer, &team, &stop, |_| {}).unwrap();
    writer.finish().unwrap();
    let bytes = std::fs::read(&path).unwrap();
    std::fs::remove_file(&path).unwrap();
    Some(bytes)
}

/// A file quantised by us predicts a text no worse than llama-quantize's of the same type.
#[test]
fn our_quantisers_are_no_worse_than_llama_cpps() {
    let Some(table) = shared("goldens/perplexity.tsv") else {
        return;
    };
    if run::table().name() == "scalar" {
        sluice_tests::skipped("minutes on scalar; quantisers do not depend on the table");
        return;
    }
    let table = std::fs::read_to_string(table).unwrap();
    let f16 = shared("models/tale-5.8m-f16.gguf").unwrap();
    let mut compared = 0;
    for line in table.lines().skip(1) {
        let fields: Vec<&str> = line.split('\t').collect();
        let [model, text, n_ctx, _, expected, _] = fields[..] else {
            panic!("perplexity.tsv: {line}")
        };
        if model.contains("f16") {
            continue;
        }
        let Some(file) = quantized(&f16, model) else {
            continue;
        };
        let text = shared(&format!("data/{text}")).unwrap();
        let text = std::fs::read_to_string(text).unwrap();
        let expected: f64 = expected.parse().unwrap();
        let (found, _) = perplexity(&file, &text, n_ctx.parse().unwrap());
        let difference = found / expected - 1.0;
        let percent = difference * 100.0;
        println!("{model:28} {found:.4}, llama-quantize {expected:.4} ({percent:+.3}%)");
        // Q8_0 is byte-equal; what is left there is how the two programs multiply.
        assert!(difference <= 0.0003, "{model}");
        compared += 1;
    }
    assert!(compared >= 7, "the table has that many types");
}

/// The story model on a text that it generated, and models of the shared folder on other texts.
#[test]
fn within_three_permille_of_llama_cpp() {
    let table = std::fs::read_to_string(fixture("perplexity.tsv")).unwrap();
    for line in table.lines().skip(1) {
        let fields: Vec<&str> = line.split('\t').collect();
        let text = fixture(fields[1]);
        assert_eq!(Path::new(TALE).file_name().unwrap(), fields[0]);
        compare(Path::new(TALE), &text, &fields[2..]);
    }
    let Some(table) = shared("goldens/perplexity.tsv") else {
        return;
    };
    let mut compared = 0;
    for line in std::fs::read_to_string(table).unwrap().lines().skip(1) {
        let fields: Vec<&str> = line.split('\t').collect();
        let in_folder = |folder: &str, name| shared(&format!("{folder}/{name}"));
        let is_there = MODELS.contains(&fields[0]);
        let Some(model) = is_there.then(|| in_folder("models", fields[0])).flatten() else {
            continue;
        };
        if run::table().name() == "scalar" && fields[0].contains("f16") {
            let why = "minutes on scalar; bits.rs compares tables";
            sluice_tests::skipped(&format!("{}: {why}", fields[0]));
            continue;
        }
        let text = in_folder("data", fields[1]).expect("beside the models");
        compare(&model, &text, &fields[2..]);
        compared += 1;
    }
    assert!(compared >= 3, "the shared models are there");
}

/// The models of the shared folder's table that are in it.
const MODELS: [&str; 5] = [
    "tale-5.8m-f16.gguf",
    "tale-5.8m-Q8_0.gguf",
    "tale-5.8m-Q4_K_M.gguf",
    "tinystories-656k-f16.gguf",
    "stories260k-f32.gguf",
];

/// With context, number of windows and llama.cpp's perplexity as a table has them.
fn compare(model: &Path, text: &Path, expected: &[&str]) {
    let file = std::fs::read(model).unwrap();
    let text = std::fs::read_to_string(text).unwrap();
    let (found, windows) = perplexity(&file, &text, expected[0].parse().unwrap());
    let theirs: f64 = expected[2].parse().unwrap();
    let difference = found / theirs - 1.0;
    let percent = difference * 100.0;
    let model = model.display();
    println!("{model:28} {found:.4}, llama.cpp {theirs:.4} ({percent:+.3}%)");
    assert_eq!(windows, expected[1].parse::<usize>().unwrap());
    assert!(difference.abs() <= 0.003, "{model}");
}
