//! `sluice quantize`, `sluice imatrix` and `sluice tokenize` from the outside.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use crate::interrupt::{interrupt, interruptible, read_some};
use crate::shared::shared;
use crate::support::{Folder, MODEL, TemporaryFile, fails, fixture, ran, run, run_to, sluice};
use sluice::core::gguf::Gguf;
use sluice::core::kernels::GgmlType;
use sluice::file::GgufHeader;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;
use std::process::Command;

/// A file of zeros that takes no room on the disk: `n` matrices of 2^24 weights in F16.
fn zeros(path: &str, n: usize) {
    let mut header = GgufHeader::new();
    header.set("general.architecture", "llama");
    for i in 0..n {
        header.add_tensor(
            &format!("blk.{i}.ffn_up.weight"),
            &[4096, 4096],
            GgmlType::F16,
        );
    }
    let len = header.file_bytes();
    std::fs::write(path, header.bytes()).expect("it can be written");
    let file = std::fs::File::options().write(true).open(path);
    let grown = file.and_then(|file| file.set_len(len));
    grown.expect("it can be made longer");
}

fn types(path: &str) -> Vec<(String, GgmlType)> {
    let bytes = std::fs::read(path).expect("it is there");
    let gguf = Gguf::parse(&bytes, bytes.len() as u64).expect("it is GGUF");
    gguf.tensors().map(|t| (t.name.to_owned(), t.ty)).collect()
}

#[test]
fn quantised_again_it_still_talks() {
    let folder = Folder::new("again");
    let out = folder.path("out.gguf");
    let ran = run_to(
        0,
        &["quantize", "--allow-requantize", MODEL, &out, "q8_0", "2"],
    );
    assert!(ran.stdout.contains("Q4_K -> Q8_0"), "{ran:?}");
    assert!(
        ran.stderr.contains("bits per weight) is 5.86 MiB"),
        "{ran:?}"
    );
    let said = run_to(0, &["run", "-m", &out, "-n", "20", "--temp", "0"]).stdout;
    assert!(said.split_whitespace().count() > 10, "{said:?}");
    assert_eq!(folder.names(), ["out.gguf"]);
}

#[test]
fn exceptions_by_name() {
    let folder = Folder::new("names");
    let out = folder.path("out.gguf");
    run_to(
        0,
        &[
            "quantize",
            "--allow-requantize",
            "--tensor-type",
            r"attn_[kv]\.=Q8_0",
            "--tensor-type",
            "blk.5=f16",
            "--token-embedding-type",
            "Q4_0",
            "--override-kv",
            "general.name=str:Other",
            MODEL,
            &out,
            "Q4_0",
        ],
    );
    for (name, ty) in types(&out) {
        let expected = match name.as_str() {
            name if name.contains("norm") => GgmlType::F32,
            "token_embd.weight" => GgmlType::Q4_0,
            name if name.contains("attn_k.") || name.contains("attn_v.") => GgmlType::Q8_0,
            name if name.starts_with("blk.5.") => GgmlType::F16,
            _ => GgmlType::Q4_0,
        };
        assert_eq!(ty, expected, "{name}");
    }
    let report = run_to(0, &["inspect", &out]).stdout;
    assert!(report.contains("\"Other\""), "{report}");
    assert!(report.contains("general.file_type"), "{report}");
}

#[test]
fn a_dry_run_writes_nothing() {
    let folder = Folder::new("dry");
    let out = folder.path("out.gguf");
    let ran = run_to(0, &["quantize", "--dry-run", MODEL, &out, "Q8_0"]);
    assert!(ran.stdout.contains("token_embd.weight"), "{ran:?}");
    assert!(ran.stderr.contains("--allow-requantize"), "{ran:?}");
    assert!(ran.stderr.contains("would be 5.86 MiB"), "{ran:?}");
    assert!(folder.names().is_empty());
}

#[test]
fn what_is_wrong_is_named_and_nothing_is_left() {
    let folder = Folder::new("wrong");
    let out = &folder.path("out.gguf");
    let there = &folder.path("there.gguf");
    std::fs::write(there, b"mine").unwrap();
    let text = TemporaryFile::new("quantize-text.txt", b"no gguf");
    let cut = TemporaryFile::new(
        "quantize-cut.gguf",
        &std::fs::read(MODEL).unwrap()[..2_000_000],
    );
    let q8 = "Q8_0";
    fails(
        1,
        &["quantize", MODEL, out, q8],
        &["token_embd.weight", "Q6_K", "--allow-requantize"],
    );
    fails(
        1,
        &["quantize", MODEL, there, q8],
        &["there.gguf exists already", "--overwrite"],
    );
    fails(
        1,
        &["quantize", "/no/such.gguf", out, q8],
        &["/no/such.gguf"],
    );
    fails(
        1,
        &["quantize", MODEL, "/no/such/out.gguf", q8],
        &["cannot create /no/such/out.gguf"],
    );
    fails(
        1,
        &["quantize", MODEL, "/dev/null", q8, "--overwrite"],
        &["/dev/null"],
    );
    fails(
        1,
        &["quantize", text.path(), out, q8],
        &[text.path(), "GGUF"],
    );
    fails(
        1,
        &["quantize", cut.path(), out, q8],
        &[cut.path(), "do not fit in a file"],
    );
    fails(
        1,
        &["quantize", "--imatrix", text.path(), MODEL, out, q8],
        &[text.path(), "importance"],
    );
    assert_eq!(folder.names(), ["there.gguf"]);
    assert_eq!(std::fs::read(there).unwrap(), b"mine");
}

#[test]
fn wrong_usage_is_named() {
    let folder = Folder::new("usage");
    let out = &folder.path("out.gguf");
    let q8 = "Q8_0";
    fails(2, &["quantize", MODEL, out, "Q4_9"], &["Q4_9", "Q4_K_M"]);
    fails(2, &["quantize", MODEL, out, q8, "many"], &["many"]);
    fails(
        2,
        &["quantize", "--tensor-type", "(=Q8_0", MODEL, out, q8],
        &["("],
    );
    fails(
        2,
        &["quantize", "--tensor-type", "a=Q9", MODEL, out, q8],
        &["Q9", "Q8_0"],
    );
    fails(
        2,
        &["quantize", "--override-kv", "a=b", MODEL, out, q8],
        &["a=b"],
    );
    fails(
        2,
        &["quantize", "--bits-per-weight", "4", MODEL, out, q8],
        &["omit Q8_0"],
    );
    assert!(folder.names().is_empty());
}

#[test]
fn interrupted_nothing_is_left() {
    let folder = Folder::new("interrupt");
    let (input, out) = (folder.path("in.gguf"), folder.path("out.gguf"));
    zeros(&input, 64);
    let mut command = sluice();
    command.args(["quantize", &input, &out, "Q8_0"]);
    let mut child = interruptible(command);
    read_some(&mut child, 64);
    interrupt(&child);
    let ran = ran(child.wait_with_output().unwrap());
    assert_eq!(ran.code, Some(130), "{ran:?}");
    assert!(ran.stderr.contains("out.gguf was not written"), "{ran:?}");
    assert_eq!(folder.names(), ["in.gguf"]);
}

#[test]
fn a_full_disk_is_found_before_the_work() {
    let folder = Folder::new("full");
    let disk = folder.path("disk");
    std::fs::create_dir(&disk).unwrap();
    let script = format!(
        "mount -t tmpfs -o size=1m tmpfs {disk} || exit 99; \
         {} quantize --allow-requantize {MODEL} {disk}/out.gguf Q8_0; code=$?; ls -A {disk}; exit $code",
        env!("CARGO_BIN_EXE_sluice")
    );
    let mut command = Command::new("unshare");
    command.args(["--user", "--map-root-user", "--mount", "sh", "-c", &script]);
    let ran = match command.output() {
        Ok(output) if output.status.code() != Some(99) && ran_at_all(&output.stderr) => ran(output),
        other => {
            eprintln!("SKIPPED: no file system of 1 MiB can be mounted here: {other:?}");
            return;
        }
    };
    assert_eq!(ran.code, Some(1), "{ran:?}");
    assert!(
        ran.stderr.contains("disk/out.gguf: No space left"),
        "{ran:?}"
    );
    assert!(!ran.stdout.contains("partial"), "{ran:?}");
}

/// Whether `unshare` got as far as the script.
fn ran_at_all(stderr: &[u8]) -> bool {
    !String::from_utf8_lossy(stderr).contains("unshare")
}

#[test]
fn importance_equals_llama_imatrix() {
    let (model, text) = (
        fixture("models/llama-F16.gguf"),
        fixture("experts/text.txt"),
    );
    importance_equals(&model, &text, "128", 7, &LLAMA_IMATRIX_OF_RANDOM_WEIGHTS);
    let files = ["models/tale-5.8m-f16.gguf", "data/tale_heldout.txt"].map(shared);
    if let [Some(model), Some(text)] = files {
        let [model, text] = [&model, &text].map(|path| path.to_str().unwrap());
        importance_equals(model, text, "512", 42, &LLAMA_IMATRIX);
    }
}

/// `expected`: the mean of some tensors' in_sum2 / counts, from four windows of `n_ctx` tokens, by
/// llama-imatrix as llama-cpp-python 0.3.36 vendors it.
fn importance_equals(
    model: &str,
    text: &str,
    n_ctx: &str,
    n_weights: usize,
    expected: &[(&str, f64)],
) {
    let folder = Folder::new("imatrix");
    let out = folder.path("imatrix.gguf");
    let args = ["-m", model, "-f", text, "-c", n_ctx, "--chunks", "4"];
    let ran = run_to(0, &[&["imatrix", "-o", &out], &args[..]].concat());
    let line = format!("{n_weights} weights from 4 chunks of {n_ctx} tokens");
    assert!(ran.stderr.contains(&line), "{ran:?}");
    let matrix = sluice_make::quantize::ImportanceMatrix::open(Path::new(&out)).unwrap();
    for (name, expected) in expected {
        let weight = &matrix.weights[*name];
        let columns = weight.columns(0, weight.sums.len());
        let sum: f64 = columns.iter().map(|&x| f64::from(x)).sum();
        let mean = sum / f64::from(u32::try_from(columns.len()).unwrap());
        let ratio = mean / expected;
        assert!((ratio - 1.0).abs() < 1e-3, "{name}: {mean} {expected}");
    }
    // Twice the text is twice the sums, and the same importance.
    let twice = folder.path("twice.gguf");
    let more = ["imatrix", "-o", &twice, "--in-file", &out];
    run_to(0, &[&more[..], &args].concat());
    let double = sluice_make::quantize::ImportanceMatrix::open(Path::new(&twice)).unwrap();
    assert_eq!(double.chunk_count, 8);
    let (name, _) = expected[0];
    let count = |matrix: &sluice_make::quantize::ImportanceMatrix| matrix.weights[name].counts[0];
    assert!((count(&double) - 2.0 * count(&matrix)).abs() < 0.5);
    let columns = |matrix: &sluice_make::quantize::ImportanceMatrix| {
        let weight = &matrix.weights[name];
        weight.columns(0, weight.sums.len())
    };
    assert_eq!(columns(&double), columns(&matrix));
}

#[test]
fn names_that_are_not_utf8_and_a_dash() {
    let folder = Folder::new("names");
    let name = OsStr::from_bytes(b"caf\xe9.gguf");
    let (input, output) = (folder.0.join(name), folder.0.join("out-\u{e9}.gguf"));
    std::fs::copy(MODEL, &input).unwrap();
    let args = ["quantize", "--allow-requantize"].map(OsStr::new);
    let words = [input.as_os_str(), output.as_os_str(), OsStr::new("Q8_0")];
    let done = run(&[&args[..], &words].concat());
    assert_eq!(done.code, Some(0), "{done:?}");
    assert!(output.is_file());
    let ran = run(&[OsStr::new("serve"), OsStr::new("--alias"), name]);
    assert_eq!(ran.code, Some(2), "{ran:?}");
    assert!(
        ran.stderr.contains("\"caf\\xE9.gguf\" is not UTF-8"),
        "{ran:?}"
    );
    let out = output.to_str().unwrap();
    fails(
        1,
        &["quantize", "--allow-requantize", out, "-", "Q8_0"],
        &["- is not a valid name"],
    );
}

#[test]
fn tokens_of_a_text() {
    let ran = run_to(
        0,
        &["tokenize", "-m", MODEL, "-p", "Once upon a time", "--ids"],
    );
    assert_eq!(ran.stdout, "[0, 457, 463, 259, 423]\n");
    let ran = run_to(
        0,
        &[
            "tokenize",
            "-m",
            MODEL,
            "-p",
            "Once\n",
            "--no-bos",
            "--show-count",
        ],
    );
    assert_eq!(ran.stdout.lines().last(), Some("2 tokens"), "{ran:?}");
    let text = TemporaryFile::new("tokenize-latin1.txt", b"caf\xe9");
    fails(
        1,
        &["tokenize", "-m", MODEL, "-f", text.path()],
        &[text.path(), "byte 3"],
    );
    fails(
        1,
        &["tokenize", "-m", MODEL, "-f", "/no/such"],
        &["/no/such"],
    );
}

const LLAMA_IMATRIX_OF_RANDOM_WEIGHTS: [(&str, f64); 5] = [
    ("blk.0.attn_q.weight", 1.083_346_5),
    ("blk.0.attn_v.weight", 1.083_346_5),
    ("blk.0.attn_output.weight", 0.971_363_2),
    ("blk.0.ffn_gate.weight", 1.134_322_6),
    ("blk.0.ffn_down.weight", 2.969_578_3),
];

const LLAMA_IMATRIX: [(&str, f64); 6] = [
    ("blk.0.attn_q.weight", 0.424358),
    ("blk.0.attn_output.weight", 0.005869),
    ("blk.0.ffn_down.weight", 1.22778),
    ("blk.3.ffn_gate.weight", 0.983819),
    ("blk.5.attn_v.weight", 0.946281),
    ("blk.5.ffn_down.weight", 0.899175),
];

/// Counts of tokens, of each expert where there are some, and sums within the rounding of activations.
#[test]
fn the_importance_of_experts_is_llama_imatrixs() {
    let folder = Folder::new("imatrix-rounded");
    let model = &fixture("experts/odd-experts-f16.gguf");
    let router = "blk.1.ffn_gate_inp.weight";
    importance_is_golden(model, "odd-experts", "32", router, 2e-3);
    importance_is_golden(&rounded(&folder), "gpt-oss", "64", router, 2e-3);
    // llama.cpp rounds the convolutions' outputs to F16 where it multiplies F16 weights.
    let taps = "blk.0.shortconv.in_proj.weight";
    importance_is_golden(&fixture("models/lfm2.gguf"), "lfm2", "64", taps, 4e-3);
}

/// gpt-oss with the ramp of YaRN as llama.cpp computes it, rounded to whole dimensions.
fn rounded(folder: &Folder) -> String {
    let bytes = std::fs::read(fixture("models/gpt-oss.gguf")).unwrap();
    let gguf = Gguf::parse(&bytes, bytes.len() as u64).unwrap();
    let data = gguf.tensors().map(|tensor| tensor.offset).min().unwrap();
    let mut header = GgufHeader::with_layout_of(&gguf);
    header.set("gpt-oss.rope.scaling.yarn_truncate", true);
    for tensor in gguf.tensors() {
        header.add_tensor(tensor.name, &tensor.dims[..tensor.n_dims], tensor.ty);
    }
    let mut file = header.bytes();
    file.extend(&bytes[usize::try_from(data).unwrap()..]);
    let path = folder.path("gpt-oss.gguf");
    std::fs::write(&path, file).unwrap();
    path
}

#[test]
fn the_output_layer_is_seen_at_every_token() {
    let folder = Folder::new("imatrix-output");
    let out = folder.path("imatrix.gguf");
    let (model, text) = (fixture("models/gpt-oss.gguf"), fixture("experts/text.txt"));
    let args = ["-m", &model, "-f", &text, "-c", "64", "--chunks", "3"];
    run_to(
        0,
        &[&["imatrix", "--process-output", "-o", &out], &args[..]].concat(),
    );
    let matrix = sluice_make::quantize::ImportanceMatrix::open(Path::new(&out)).unwrap();
    for name in [
        "output.weight",
        "blk.0.attn_q.weight",
        "blk.1.ffn_gate_inp.weight",
    ] {
        assert_eq!(matrix.weights[name].counts, [192.0], "{name}");
    }
    // llama-imatrix, with the same arguments: the mean of in_sum2 / counts.
    let output = &matrix.weights["output.weight"];
    let columns = output.columns(0, output.sums.len());
    let mean = columns.iter().sum::<f32>() / columns.len() as f32;
    assert!((mean / LLAMA_OUTPUT_MEAN - 1.0).abs() < 1e-3, "{mean}");
}

const LLAMA_OUTPUT_MEAN: f32 = 1.146018;

/// The golden file is by llama-imatrix of the same llama.cpp, -c `n_ctx` --chunks 6 -t 1.
fn importance_is_golden(model: &str, golden: &str, n_ctx: &str, entry: &str, within: f32) {
    let folder = Folder::new("imatrix-golden");
    let out = folder.path("imatrix.gguf");
    let text = fixture("experts/text.txt");
    let theirs = fixture(&format!("experts/{golden}.imatrix.gguf"));
    let theirs = sluice_make::quantize::ImportanceMatrix::open(Path::new(&theirs)).unwrap();
    assert!(theirs.weights.contains_key(entry));
    for threads in ["1", "2"] {
        let args = ["-m", model, "-f", &text, "-c", n_ctx, "--chunks", "6"];
        let more = ["imatrix", "-o", &out, "--overwrite", "-t", threads];
        run_to(0, &[&more[..], &args].concat());
        let ours = sluice_make::quantize::ImportanceMatrix::open(Path::new(&out)).unwrap();
        assert!(ours.weights.keys().eq(theirs.weights.keys()));
        for (name, expected) in &theirs.weights {
            let found = &ours.weights[name];
            assert_eq!(found.counts, expected.counts, "{name}");
            let n_columns = expected.sums.len() / expected.counts.len();
            let rows = found
                .sums
                .chunks(n_columns)
                .zip(expected.sums.chunks(n_columns));
            for (found, expected) in rows {
                let mean = expected.iter().sum::<f32>() / expected.len() as f32;
                for (a, b) in found.iter().zip(expected) {
                    assert!((a - b).abs() <= within * (b + mean), "{name}: {a} {b}");
                }
            }
        }
    }
}
