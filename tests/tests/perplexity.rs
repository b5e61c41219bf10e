//! Perplexity of real models on real text, as `llama-perplexity` computes it.
//!
//! The text is cut into windows of the context's length that start with BOS; the tokens of the
//! second half of each window are predicted from those before them.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]
#![expect(
    clippy::print_stdout,
    reason = "figures for whoever runs it with --nocapture"
)]

use sluice_core::engine::Limits;
use sluice_core::gguf::Gguf;
use sluice_core::sampler::log_probability;
use sluice_core::tokenizer::{self, EncodeOptions, Tokenizer};
use sluice_tests::run::{self, Room, Weights};

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

/// Mean negative log-likelihood's exponential, and the number of windows.
fn perplexity(file: &[u8], text: &str, n_ctx: usize) -> (f64, usize) {
    let (ids, bos) = tokenize(file, text);
    let mut weights = Weights::plan(file).unwrap();
    let model = weights.load(file, 2).unwrap();
    let limits = Limits {
        n_outputs: n_ctx,
        ..Limits::single(n_ctx, 2)
    };
    let mut room = Room::plan(model.config(), &limits).unwrap();
    let mut engine = room.engine(model, run::table(), &limits).unwrap();
    let (mut nll, mut count, mut windows) = (0.0f64, 0u32, 0);
    for window in ids.chunks_exact(n_ctx) {
        let mut tokens = window.to_vec();
        if let Some(bos) = bos {
            tokens[0] = bos;
        }
        engine.kv_mut().clear(0).unwrap();
        let logits = run::logits(&mut engine, &tokens, n_ctx).unwrap();
        for i in n_ctx / 2..n_ctx - 1 {
            nll -= f64::from(log_probability(&logits[i], tokens[i + 1]).unwrap());
            count += 1;
        }
        windows += 1;
    }
    ((nll / f64::from(count)).exp(), windows)
}

#[test]
fn within_three_permille_of_llama_cpp() {
    let Some(shared) = sluice_tests::shared() else {
        return;
    };
    let table = std::fs::read_to_string(shared.join("goldens/perplexity.tsv")).unwrap();
    let mut compared = 0;
    for line in table.lines().skip(1) {
        let fields: Vec<&str> = line.split('\t').collect();
        let [model, text, n_ctx, chunks, expected, _] = fields[..] else {
            panic!("perplexity.tsv: {line}")
        };
        let path = shared.join("models").join(model);
        if !path.is_file() {
            continue;
        }
        if run::table().name() == "scalar" && model.contains("f16") {
            sluice_tests::skipped(&format!(
                "{model}: minutes on scalar; bits.rs compares tables"
            ));
            continue;
        }
        let file = std::fs::read(path).unwrap();
        let text = std::fs::read_to_string(shared.join("data").join(text)).unwrap();
        let expected: f64 = expected.parse().unwrap();
        let (found, windows) = perplexity(&file, &text, n_ctx.parse().unwrap());
        let difference = found / expected - 1.0;
        println!(
            "{model:28} {found:.4}, llama.cpp {expected:.4} ({:+.3}%)",
            difference * 100.0
        );
        assert_eq!(windows, chunks.parse::<usize>().unwrap());
        assert!(difference.abs() <= 0.003, "{model}");
        compared += 1;
    }
    assert!(compared >= 3, "the shared models are there");
}
