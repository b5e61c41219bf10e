//! `sluice inspect` from the outside.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use crate::support::{MODEL, TemporaryFile, fails, fixture, run_to};
use sluice::core::gguf::Gguf;
use sluice::core::kernels::GgmlType;
use sluice::file::{GgufHeader, MetaValue};
use std::fs;

#[test]
fn a_model_is_described_and_planned() {
    let report = run_to(0, &["inspect", MODEL, "-t", "2"]).stdout;
    for words in [
        "GGUF version 3",
        "metadata    25 keys",
        "general.architecture",
        "\"llama\"",
        "4096 x string: \"<|endoftext|>\"",
        "tensors     56",
        "blk.0.attn_k.weight",
        "[256, 128]",
        "Q4_K          38",
        "all           56      5.77 M",
        "4096 tokens, pre-tokenizer Gpt2, bos 0",
        "llama: n_layer 6, n_embd 256, n_vocab 4096",
        "6 of attention: n_head 4, n_head_kv 2, head_dim 64; n_ff 768",
        // 1024 tokens x 6 layers x 2 heads x (64 + 64) x 2 bytes.
        "KV 3.00 MiB (1024 tokens, f16)",
        "batch 512, 2 threads",
    ] {
        assert!(report.contains(words), "{words}: {report}");
    }
    let report = run_to(
        0,
        &["inspect", MODEL, "-c", "64", "-ctk", "f32", "-ctv", "f32"],
    )
    .stdout;
    assert!(report.contains("(64 tokens, f32)"), "{report}");
}

#[test]
fn a_head_that_predicts_a_token_further_is_described() {
    let report = run_to(
        0,
        &["inspect", &fixture("models/qwen35moe-mtp.gguf"), "-c", "64"],
    )
    .stdout;
    for words in [
        "qwen35moe: n_layer 2, n_embd 16, n_vocab 272",
        "head        block 2 predicts one more token, of attention: n_head 2, n_head_kv 1, head_dim 32, gates; experts",
        ", without the tensors shared with the model; KV",
    ] {
        assert!(report.contains(words), "{words}: {report}");
    }
    let report = run_to(0, &["inspect", &fixture("models/deepseek2-mtp.gguf")]).stdout;
    assert!(report.contains("head        block 1"), "{report}");
    assert!(!report.contains("shares"), "{report}");
    // Its tensors are not reported as unused either.
    let args = [
        "run",
        "-m",
        &fixture("models/qwen35moe-mtp.gguf"),
        "-p",
        "a",
        "-n",
        "1",
    ];
    let told = run_to(0, &args).stderr;
    assert!(!told.contains("does not use"), "{told}");
}

/// A model with metadata of its own and others.
fn with_key(name: &str, key: &str, value: MetaValue) -> TemporaryFile {
    let old = fs::read(MODEL).unwrap();
    let gguf = Gguf::parse(&old, old.len() as u64).unwrap();
    let mut header = GgufHeader::with_layout_of(&gguf);
    for tensor in gguf.tensors() {
        header.add_tensor(tensor.name, &tensor.dims[..tensor.n_dims], tensor.ty);
    }
    header.set(key, value);
    let data = &old[usize::try_from(gguf.data_offset()).unwrap()..];
    TemporaryFile::new(name, &[&header.bytes(), data].concat())
}

/// Metadata that changes a model is applied or refused; other metadata is reported.
#[test]
fn metadata_that_nothing_reads_are_told() {
    let told = |key: &str, value: MetaValue| {
        let model = with_key("unread.gguf", key, value);
        let args = ["run", "-m", model.path(), "-p", "Once", "-n", "1"];
        let ran = crate::support::run(&args);
        let lines = ran.stderr.lines();
        let line = lines.filter(|line| line.contains("warning") || line.contains("error"));
        let line = line.map(str::to_owned).next().unwrap_or_default();
        line.replace(model.path(), "MODEL")
    };
    for key in ["llama.logit_scale", "llama.residual_scale"] {
        assert_eq!(told(key, 1_f32.into()), "");
        let refused = told(key, 0.5_f32.into());
        assert_eq!(
            refused,
            format!(
                "error: MODEL: a setting of other architectures ({key}) is not implemented yet"
            )
        );
    }
    assert!(told("llama.attention.scale", 0.25_f32.into()).starts_with("error"));
    assert_eq!(told("llama.vocab_size", 4096_u32.into()), "");
    assert_eq!(told("other.logit_scale", 0.5_f32.into()), "");
    for key in ["llama.unheard_of", "tokenizer.ggml.unheard_of"] {
        let line = told(key, 7_u32.into());
        assert!(line.starts_with("warning: unknown metadata"), "{line}");
        assert!(line.ends_with(key), "{line}");
    }
}

/// Tensors with a dimension of 0 are read and written unchanged, and have no effect.
#[test]
fn tensors_without_elements_do_no_harm() {
    let old = fs::read(MODEL).unwrap();
    let gguf = Gguf::parse(&old, old.len() as u64).unwrap();
    let mut header = GgufHeader::with_layout_of(&gguf);
    for tensor in gguf.tensors() {
        header.add_tensor(tensor.name, &tensor.dims[..tensor.n_dims], tensor.ty);
    }
    for (name, dims, ty) in [
        ("a", &[0][..], GgmlType::F32),
        ("b", &[0, 3], GgmlType::Q4_0),
        ("c", &[256, 0, 2], GgmlType::Q6_K),
    ] {
        header.add_tensor(name, dims, ty);
    }
    let data = &old[usize::try_from(gguf.data_offset()).unwrap()..];
    let model = TemporaryFile::new("no-elements.gguf", &[&header.bytes(), data].concat());
    let story = |model: &str| {
        let args = ["run", "-m", model, "-p", "Once", "-n", "8", "--temp", "0"];
        run_to(0, &args).stdout
    };
    let expected = story(MODEL);
    assert_eq!(story(model.path()), expected);
    let report = run_to(0, &["inspect", model.path()]).stdout;
    assert!(report.contains("tensors     59"), "{report}");

    let other = |name| TemporaryFile::new(name, b"");
    let (slc, back) = (other("no-elements.slc"), other("no-elements-2.gguf"));
    let (slc, back) = (slc.path(), back.path());
    run_to(0, &["pack", "--overwrite", model.path(), slc]);
    assert_eq!(story(slc), expected);
    run_to(0, &["unpack", "--overwrite", slc, back]);
    assert!(fs::read(back).unwrap() == fs::read(model.path()).unwrap());
    let args = [
        "quantize",
        "--overwrite",
        "--allow-requantize",
        model.path(),
        back,
        "Q8_0",
    ];
    run_to(0, &args);
    let report = run_to(0, &["inspect", back]).stdout;
    assert!(report.contains("tensors     59"), "{report}");
    story(back);
}

#[test]
fn vocabularies_and_other_families_are_shown_too() {
    let cases = [
        ("tokenizer/bpe.gguf", "a vocabulary but no tensors"),
        ("tokenizer/bert.gguf", "244 tokens, bos 2 \"[CLS]\""),
    ];
    for (name, expected) in cases {
        let report = run_to(0, &["inspect", &fixture(name)]).stdout;
        assert!(report.contains("tensors     0"), "{report}");
        assert!(report.contains(expected), "{report}");
    }
    let report = run_to(0, &["inspect", &fixture("models/qwen2.gguf")]).stdout;
    assert!(report.contains("model       qwen2: n_layer 1"), "{report}");
}

#[test]
fn text_from_a_file_cannot_command_the_terminal() {
    let mut file = b"GGUF".to_vec();
    file.extend(3u32.to_le_bytes());
    file.extend(0u64.to_le_bytes()); // tensors
    file.extend(1u64.to_le_bytes()); // metadata
    let mut string = |text: &[u8]| {
        file.extend((text.len() as u64).to_le_bytes());
        file.extend(text);
    };
    string(b"key\x1b[2J");
    file.extend(8u32.to_le_bytes()); // a string follows
    let mut string = |text: &[u8]| {
        file.extend((text.len() as u64).to_le_bytes());
        file.extend(text);
    };
    string(b"\x1b]0;title\x07");
    let file = TemporaryFile::new("escapes.gguf", &file);
    let report = run_to(0, &["inspect", file.path()]).stdout;
    assert!(report.contains("title"), "{report}");
    assert!(!report.contains(['\x1b', '\x07']), "{report:?}");
}

#[test]
fn what_is_no_gguf_file_is_an_error() {
    let text = TemporaryFile::new("text.txt", b"no model");
    fails(1, &["inspect", text.path()], &[text.path(), "GGUF"]);
    let page = TemporaryFile::new("page.gguf", b"<!DOCTYPE html>\n<html><head></head></html>");
    fails(
        1,
        &["run", page.path()],
        &[page.path(), "it is an HTML page"],
    );
    let pointer = b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 5\n";
    let pointer = TemporaryFile::new("pointer.gguf", pointer);
    for map in ["--mmap", "--no-mmap"] {
        let args = ["run", "-m", pointer.path(), "-p", "x", map];
        fails(1, &args, &[pointer.path(), "`git lfs pull`"]);
    }
    let tensors = [&9_u64.to_le_bytes()[..], b"{\"a\": 1}"].concat();
    let tensors = TemporaryFile::new("x.safetensors", &tensors);
    fails(1, &["run", "-m", tensors.path()], &["sluice convert"]);
    fails(
        1,
        &["inspect", "/does/not/exist"],
        &["/does/not/exist", "No such file"],
    );
    fails(2, &["inspect"], &["FILE"]);
}

/// The report of a file as `PowerInfer` marks it, with a predictor.
#[test]
fn activations_and_what_powerinfer_adds_are_described() {
    let report = |args: &[&str]| run_to(0, &[&["inspect"], args].concat()).stdout;
    assert!(report(&[MODEL]).contains("activation  silu\n"));
    let drelu = report(&[MODEL, "--activation", "drelu"]);
    assert!(drelu.contains("activation  drelu\n"), "{drelu}");
    let model = with_key("fatrelu.gguf", "llama.activation", "fatrelu".into());
    let both = fs::read(&model.0).unwrap();
    let gguf = Gguf::parse(&both, both.len() as u64).unwrap();
    let mut header = GgufHeader::with_layout_of(&gguf);
    for tensor in gguf.tensors() {
        header.add_tensor(tensor.name, &tensor.dims[..tensor.n_dims], tensor.ty);
    }
    header.set("llama.activation_threshold", 0.25_f32);
    header.set("powerinfer.sparse_threshold", 0.5_f32);
    header.add_tensor("blk.0.fc1.weight", &[256, 32], GgmlType::F16);
    header.add_tensor("blk.0.fc2.weight", &[32, 768], GgmlType::F16);
    let data = &both[usize::try_from(gguf.data_offset()).unwrap()..];
    let more = vec![0; 2 * 32 * (256 + 768)];
    let mut file = [&header.bytes(), data, &more[..]].concat();
    file[..4].copy_from_slice(b"PWRI");
    let model = TemporaryFile::new("powerinfer.gguf", &file);
    let told = report(&[model.path()]);
    for words in [
        "activation  fatrelu, threshold 0.25\n",
        "predictor of active neurons in 1 layers (fc1, fc2), rank 32, threshold 0.5: not loaded",
        "blk.0.fc1.weight",
    ] {
        assert!(told.contains(words), "{words}: {told}");
    }
    // The predictor is not reported as unused; another activation than the file's is said.
    let run = |more: &[&str]| {
        let args = ["run", "-m", model.path(), "-p", "Once", "-n", "1"];
        run_to(0, &[&args, more].concat()).stderr
    };
    assert!(!run(&[]).contains("warning"));
    assert!(!run(&["--activation", "fatrelu:0.25"]).contains("warning"));
    let told = run(&["--activation", "drelu"]);
    let words = "warning: --activation drelu replaces fatrelu:0.25, the activation of";
    assert!(told.contains(words), "{told}");
}

#[test]
fn another_activation_is_computed_or_refused_by_name() {
    let text = TemporaryFile::new("activation.txt", "Once upon a time. ".repeat(40).as_bytes());
    let perplexity = |more: &[&str]| {
        let args = [
            "perplexity",
            "-m",
            MODEL,
            "-f",
            text.path(),
            "-c",
            "32",
            "--json",
        ];
        let stdout = run_to(0, &[&args, more].concat()).stdout;
        let json: serde_json::Value = serde_json::from_str(&stdout).unwrap();
        json["perplexity"].as_f64().unwrap()
    };
    let own = perplexity(&[]);
    assert_eq!(
        perplexity(&["--activation", "silu"]).to_bits(),
        own.to_bits()
    );
    let relu = perplexity(&["--activation", "relu"]);
    assert!(relu > own, "{relu} {own}");
    assert_ne!(
        perplexity(&["--activation", "drelu"]).to_bits(),
        relu.to_bits()
    );
    let bench = [
        "bench",
        "-m",
        MODEL,
        "-p",
        "8",
        "-n",
        "0",
        "-r",
        "1",
        "--activation",
        "relu",
    ];
    run_to(0, &bench);
    let gemma = fixture("models/gemma2.gguf");
    let of_gemma = ["run", "-m", &gemma, "-p", "a", "--activation", "relu"];
    fails(1, &of_gemma, &["gemma2", "gelu_pytorch_tanh"]);
    let unknown = ["run", "-m", MODEL, "-p", "a", "--activation", "gelu"];
    fails(2, &unknown, &["--activation", "fatrelu"]);
}
