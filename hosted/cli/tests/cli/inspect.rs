//! `sluice inspect` from the outside.

use crate::support::{MODEL, TemporaryFile, fails, fixture, run_to};

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
    fails(
        1,
        &["inspect", "/does/not/exist"],
        &["/does/not/exist", "No such file"],
    );
    fails(2, &["inspect"], &["FILE"]);
}
