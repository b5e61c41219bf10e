//! `sluice perplexity` and its files of log-probabilities.
//!
//! `data/tale-f16-c8.kld` was written by llama-perplexity (ggml 0.25.3) on 2026-11-21 from the story
//! model in F16: `-f TEXT -c 8 -b 8 --chunks 2 --kl-divergence-base FILE`, with [`TEXT`]. Its figures
//! for the model in Q4_K_M against that file: [`BY_LLAMA_CPP`]. `data/llama-F16-c8.kld` is the same of
//! `tests/fixtures/models/llama-F16.gguf`.

use crate::support::{MODEL, TemporaryFile, fails, fixture, run_to};
use std::fs;

const TEXT: &str = "Once upon a time there was a little dog who lived in a big house with a girl \
                    named Lily. They went to the park and saw a bird.";
const GOLDEN: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/tale-f16-c8.kld");
/// PPL(Q), KL divergence and same top after the second chunk.
const BY_LLAMA_CPP: [f64; 3] = [2.1120, 0.00079, 100.0];

/// The numbers of the table's last row: PPL, ln ratio, KLD, Δp, same top, each with its error.
fn last_row(stdout: &str) -> Vec<f64> {
    let rows = stdout.lines().skip_while(|line| !line.starts_with("chunk"));
    let row = rows.skip(1).take_while(|line| !line.is_empty()).last();
    let words = row.expect("a row").split_whitespace().skip(1);
    words.filter_map(|word| word.parse().ok()).collect()
}

#[test]
fn a_file_of_llama_cpp_is_read() {
    let args = [
        "perplexity",
        "-m",
        MODEL,
        "--kl-divergence-base",
        GOLDEN,
        "--kl-divergence",
    ];
    let stdout = run_to(0, &args).stdout;
    let row = last_row(&stdout);
    assert!((row[0] / BY_LLAMA_CPP[0] - 1.0).abs() < 0.02, "{row:?}");
    // Eight-bit activations on both sides, rounded differently: of the same magnitude.
    assert!(row[4] < 2.0 * BY_LLAMA_CPP[1], "{row:?}");
    assert!(row[4] > 0.5 * BY_LLAMA_CPP[1], "{row:?}");
    assert!((row[8] - BY_LLAMA_CPP[2]).abs() < 1e-9, "{row:?}");
    let json = run_to(0, &[&args[..], &["--json"]].concat()).stdout;
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!(json["n_chunk"], 2);
    assert!((json["perplexity"]["value"].as_f64().unwrap() - row[0]).abs() < 1e-3);
}

#[test]
fn a_file_of_ours_is_llama_cpps() {
    let golden = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/llama-F16-c8.kld");
    let model = fixture("models/llama-F16.gguf");
    let text = TemporaryFile::new("kld.txt", TEXT.as_bytes());
    let base = TemporaryFile::new("ours.kld", b"");
    run_to(
        0,
        &[
            "perplexity",
            "-m",
            &model,
            "-f",
            text.path(),
            "-c",
            "8",
            "--chunks",
            "2",
            "--kl-divergence-base",
            base.path(),
        ],
    );
    let (ours, golden) = (fs::read(&base.0).unwrap(), fs::read(golden).unwrap());
    assert_eq!(ours.len(), golden.len());
    let header = 20 + 4 * 16;
    assert_eq!(ours[..header], golden[..header]);
    let row_bytes = 8 + 2 * 272;
    let rows = |file: &[u8]| -> Vec<f32> {
        let rows = file[header..].chunks(row_bytes);
        rows.flat_map(|row| {
            let float = |at| f32::from_le_bytes(row[at..at + 4].try_into().unwrap());
            let (scale, min) = (float(0), float(4));
            let steps = row[8..]
                .chunks(2)
                .map(|two| u16::from_le_bytes([two[0], two[1]]));
            steps
                .map(move |step| scale * f32::from(step) + min)
                .collect::<Vec<_>>()
        })
        .collect()
    };
    for (ours, golden) in rows(&ours).iter().zip(rows(&golden)) {
        assert!((ours - golden).abs() < 0.01, "{ours} {golden}");
    }
}

#[test]
fn a_model_does_not_diverge_from_itself() {
    let text = TemporaryFile::new("itself.txt", TEXT.repeat(12).as_bytes());
    let base = TemporaryFile::new("itself.kld", b"");
    let file = ["perplexity", "-m", MODEL, "-f", text.path(), "-c", "64"];
    let write = [&file[..], &["--kl-divergence-base", base.path()]].concat();
    let first = run_to(0, &write).stdout;
    assert!(first.contains("Final estimate: PPL = "), "{first}");
    let read = [
        "perplexity",
        "-m",
        MODEL,
        "--kl-divergence-base",
        base.path(),
        "--kl-divergence",
    ];
    let stdout = run_to(0, &read).stdout;
    let row = last_row(&stdout);
    assert!(
        row[2].abs() < 1e-4 && row[4].abs() < 1e-5 && row[8] > 99.0,
        "{row:?}"
    );
    for line in [
        "Mean PPL(Q)                   : ",
        "Maximum KLD: ",
        "Median  Δp: ",
        "Same top p: ",
    ] {
        assert!(stdout.contains(line), "{line}: {stdout}");
    }
}

#[test]
fn other_files_are_named_and_left_alone() {
    let text = TemporaryFile::new("hostile-kld.txt", TEXT.as_bytes());
    let golden = fs::read(GOLDEN).unwrap();
    let compare = |path: &str, expected: &str| {
        let flags = ["--kl-divergence-base", path, "--kl-divergence"];
        fails(
            1,
            &[&["perplexity", "-m", MODEL][..], &flags].concat(),
            &[path, expected],
        );
    };
    for len in [0, 7, 19, 20, 100, golden.len() - 1] {
        let cut = TemporaryFile::new(&format!("cut-{len}.kld"), &golden[..len]);
        compare(
            cut.path(),
            if len < 20 {
                "not a file of log-prob"
            } else {
                "its header requires"
            },
        );
    }
    let mut changed = golden.clone();
    changed[12..16].copy_from_slice(&i32::MIN.to_le_bytes());
    let negative = TemporaryFile::new("negative.kld", &changed);
    compare(negative.path(), "n_vocab is");
    let mut changed = golden.clone();
    changed[20..24].copy_from_slice(&5000i32.to_le_bytes());
    let token = TemporaryFile::new("token.kld", &changed);
    compare(token.path(), "a token is 5000");
    compare(MODEL, "not a file of log-prob");
    compare("/does/not/exist", "No such file");
    let model = TemporaryFile::new("model.gguf", &fs::read(MODEL).unwrap());
    let write = [
        "-f",
        text.path(),
        "-c",
        "8",
        "--kl-divergence-base",
        model.path(),
    ];
    fails(
        1,
        &[&["perplexity", "-m", MODEL][..], &write].concat(),
        &["is not such a file"],
    );
    assert_eq!(fs::read(&model.0).unwrap(), fs::read(MODEL).unwrap());
    fails(2, &["perplexity", "-m", MODEL], &["-f FILE"]);
    fails(
        2,
        &[
            "perplexity",
            "-m",
            MODEL,
            "-f",
            text.path(),
            "--kl-divergence",
        ],
        &["--kl-divergence-base"],
    );
}
