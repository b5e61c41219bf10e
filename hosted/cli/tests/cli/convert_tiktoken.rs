//! Folders with a tiktoken vocabulary, such as Kimi's: tokens compared with the tiktoken package's
//! (`tests/tools/hf_tiktoken.py`).
#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use crate::convert::{Folder, object};
use crate::families::{FAMILIES, folder_of};
use crate::support::{fails, run_to};
use serde_json::json;
use sluice::core::gguf::Gguf;
use sluice::core::tokenizer::{EncodeOptions, Tokenizer, plan};
use std::fs;
use std::path::Path;

const OWN: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/cli/tiktoken");
/// Ranks, and the tokens after them.
const N_VOCAB: u64 = 640 + 256;

/// A small Kimi: DeepSeek-V3's layers.
fn kimi(class: &str) -> Folder {
    let mut case = object(&Path::new(FAMILIES).join("deepseek3.json"));
    case.remove("tokenizer");
    let config = case["config"].as_object_mut().unwrap();
    config.insert("model_type".into(), "kimi_k2".into());
    config.insert("vocab_size".into(), N_VOCAB.into());
    config.insert("bos_token_id".into(), 640.into());
    config.insert("eos_token_id".into(), 642.into());
    for shape in case["tensors"].as_object_mut().unwrap().values_mut() {
        if shape[0] == 330 {
            shape[0] = N_VOCAB.into();
        }
    }
    let folder = folder_of("kimi", &case);
    let model = folder.0.join("kimi");
    fs::copy(
        Path::new(OWN).join("tiktoken.model"),
        model.join("tiktoken.model"),
    )
    .unwrap();
    let special = object(&Path::new(OWN).join("tokens.json"))["special"].clone();
    let added = special.as_object().unwrap().iter().map(|(text, id)| {
        let is_special = !text.contains("tool");
        (
            id.to_string(),
            json!({"content": text, "special": is_special, "lstrip": false, "rstrip": false,
                "normalized": false, "single_word": false}),
        )
    });
    let about = json!({
        "added_tokens_decoder": added.collect::<serde_json::Map<_, _>>(),
        "auto_map": {"AutoTokenizer": ["tokenization_kimi.TikTokenTokenizer", null]},
        "bos_token": "[BOS]",
        "eos_token": "<|im_end|>",
        "tokenizer_class": class
    });
    fs::write(model.join("tokenizer_config.json"), about.to_string()).unwrap();
    folder
}

#[test]
fn tokens_are_those_of_tiktoken() {
    let folder = kimi("TikTokenTokenizer");
    let out = folder.path("out.gguf");
    run_to(0, &["convert", &folder.path("kimi"), &out]);
    let file = fs::read(&out).unwrap();
    let gguf = Gguf::parse(&file, file.len() as u64).unwrap();
    assert_eq!(gguf.str("tokenizer.ggml.pre"), Ok("kimi-k2"));
    assert_eq!(gguf.u64("tokenizer.ggml.bos_token_id"), Ok(640));
    assert_eq!(gguf.u64("tokenizer.ggml.eos_token_id"), Ok(642));
    let mut words = vec![0; plan(&gguf).unwrap().words];
    let tokenizer = Tokenizer::new(&gguf, &mut words).unwrap();
    assert_eq!(u64::from(tokenizer.n_vocab()), N_VOCAB);
    let golden = object(&Path::new(OWN).join("tokens.json"));
    let cases = golden["tokens"].as_array().unwrap();
    assert!(cases.len() > 50);
    for case in cases {
        let text = case[0].as_str().unwrap();
        let expected: Vec<u64> = serde_json::from_value(case[1].clone()).unwrap();
        let options = EncodeOptions {
            add_special: false,
            parse_special: true,
        };
        let mut workspace = vec![0; tokenizer.encode_workspace_words(text.len())];
        let mut tokens = vec![0; tokenizer.max_tokens(text.len())];
        let tokens = tokenizer.encode(text, options, &mut workspace, &mut tokens);
        let tokens: Vec<u64> = tokens.unwrap().iter().map(|&t| u64::from(t)).collect();
        assert_eq!(tokens, expected, "{text:?}");
    }
    // The output of a random model of this shape is meaningless, but it runs.
    run_to(0, &["run", "-m", &out, "-p", "one", "-n", "2", "-t", "1"]);
}

#[test]
fn a_class_has_its_own_tokens_behind_the_ranks() {
    let folder = kimi("HYTokenizer");
    let model = folder.0.join("kimi");
    fs::rename(model.join("tiktoken.model"), model.join("hy.tiktoken")).unwrap();
    folder.edit(
        "kimi/tokenizer_config.json",
        &json!({"added_tokens_decoder": {},
        "bos_token": "<|startoftext|>", "eos_token": "<|eos|>"}),
    );
    let out = folder.path("out.gguf");
    run_to(0, &["convert", &folder.path("kimi"), &out]);
    let file = fs::read(&out).unwrap();
    let gguf = Gguf::parse(&file, file.len() as u64).unwrap();
    assert_eq!(gguf.str("tokenizer.ggml.pre"), Ok("hunyuan"));
    assert_eq!(gguf.bool("tokenizer.ggml.normalizer.nfc"), Ok(true));
    assert_eq!(gguf.u64("tokenizer.ggml.bos_token_id"), Ok(641));
    assert_eq!(gguf.u64("tokenizer.ggml.eos_token_id"), Ok(643));
    let tokens: Vec<_> = gguf.strings("tokenizer.ggml.tokens").unwrap().collect();
    assert_eq!(tokens[644..646], [&b"<|pad|>"[..], b"<|extra_0|>"]);
    assert_eq!(tokens[849..851], [&b"<|extra_204|>"[..], b"[PAD850]"]);
}

#[test]
fn rules_that_no_file_says_are_asked_for() {
    let folder = kimi("AnotherTokenizer");
    let (model, out) = (folder.path("kimi"), folder.path("out.gguf"));
    fails(1, &["convert", &model, &out], &["tiktoken.model", "--pre"]);
    run_to(0, &["convert", &model, &out, "--pre", "kimi-k2"]);
    let path = folder.0.join("kimi/tiktoken.model");
    fs::write(&path, "YQ== 0\nYg==\n").unwrap();
    fails(1, &["convert", &model, &out], &["tiktoken.model", "line 2"]);
    let pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 1\n";
    fs::write(&path, pointer).unwrap();
    fails(
        1,
        &["convert", &model, &out],
        &["tiktoken.model", "git lfs pull"],
    );
}
