//! The tokenizer against llama.cpp's own test vectors, and on the models at hand.
//!
//! Goldens: `models/ggml-vocab-*.gguf` of the llama.cpp repository with their `.inp` (texts
//! separated by a line) and `.out` (ids, a line a text). The ids are those of the vocabularies'
//! original tokenizers, and llama.cpp's `test-tokenizer-0` passes on them with neither BOS and
//! EOS added nor special tokens parsed.

use std::path::PathBuf;
use std::time::Instant;

use sluice_core::gguf::Gguf;
use sluice_core::tokenizer::{Detokenizer, EncodeOptions, Tokenizer, TokenizerError, plan};

const TEXT_ONLY: EncodeOptions = EncodeOptions {
    add_special: false,
    parse_special: false,
};

#[test]
fn goldens_of_llama_cpp() {
    for name in VOCABULARIES {
        with_tokenizer(
            &format!("goldens/tokenizer/ggml-vocab-{name}.gguf"),
            |tokenizer| {
                let path = format!("goldens/tokenizer/ggml-vocab-{name}.gguf");
                let (Some(texts), Some(ids)) =
                    (read(&format!("{path}.inp")), read(&format!("{path}.out")))
                else {
                    return;
                };
                let texts = String::from_utf8(texts).unwrap();
                let ids = String::from_utf8(ids).unwrap();
                let texts: Vec<&str> = texts.split("\n__ggml_vocab_test__\n").collect();
                let ids: Vec<&str> = ids.lines().collect();
                assert!(texts.len() > 40);
                // The last separator is followed by nothing.
                assert!(texts.len() == ids.len() || texts.len() == ids.len() + 1);
                for (text, ids) in texts.iter().zip(ids) {
                    let ids: Vec<u32> = ids
                        .split_whitespace()
                        .map(|id| id.parse().unwrap())
                        .collect();
                    assert_eq!(encode(tokenizer, text, TEXT_ONLY), ids, "{name}: {text:?}");
                    assert_eq!(&decode(tokenizer, &ids), text, "{name}");
                }
            },
        );
    }
}

const VOCABULARIES: [&str; 5] = ["llama-spm", "phi-3", "gpt-2", "llama-bpe", "qwen2"];

/// Runs `body` with the tokenizer of a file in the shared folder, if it is there.
fn with_tokenizer(path: &str, body: impl FnOnce(&Tokenizer<'_>)) {
    let Some(file) = read(path) else { return };
    let gguf = Gguf::parse(&file, file.len() as u64).unwrap();
    let mut memory = vec![u32::MAX; plan(&gguf).unwrap().words];
    body(&Tokenizer::new(&gguf, &mut memory).unwrap());
}

/// A file of the folder that lies beside the checkout.
fn read(path: &str) -> Option<Vec<u8>> {
    let shared = PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../../shared"));
    let file = std::fs::read(shared.join(path));
    if file.is_err() {
        eprintln!("SKIPPED: shared/{path} not found");
    }
    file.ok()
}

fn encode(tokenizer: &Tokenizer<'_>, text: &str, options: EncodeOptions) -> Vec<u32> {
    let mut workspace = vec![u32::MAX; tokenizer.encode_workspace_words(text.len())];
    let mut out = vec![0; tokenizer.max_tokens(text.len())];
    let ids = tokenizer.encode(text, options, &mut workspace, &mut out);
    ids.unwrap().to_vec()
}

fn decode(tokenizer: &Tokenizer<'_>, ids: &[u32]) -> String {
    let mut text = String::new();
    let mut detokenizer = Detokenizer::new(tokenizer);
    for &id in ids {
        detokenizer
            .push(tokenizer, id, |part| text.push_str(part))
            .unwrap();
    }
    detokenizer.finish(|part| text.push_str(part));
    text
}
