//! The tokenizer against llama.cpp's own test vectors, and on the models that are there.
//!
//! Goldens: `models/ggml-vocab-*.gguf` of the llama.cpp repository with their `.inp` (texts
//! separated by a line) and `.out` (ids, a line a text). The ids are those of the vocabularies'
//! original tokenizers, and llama.cpp's `test-tokenizer-0` passes on them with neither BOS and
//! EOS added nor special tokens parsed.

use std::time::Instant;

use sluice_core::gguf::Gguf;
use sluice_core::tokenizer::{Detokenizer, EncodeOptions, Tokenizer, plan};
use sluice_tests::{shared, skipped};

const TEXT_ONLY: EncodeOptions = EncodeOptions {
    add_special: false,
    parse_special: false,
};

/// Every vocabulary in the folder, so that none is left out by mistake.
#[test]
fn goldens_of_llama_cpp() {
    let Some(folder) = shared() else { return };
    let Ok(files) = std::fs::read_dir(folder.join("goldens/tokenizer")) else {
        return skipped("shared/goldens/tokenizer not found");
    };
    let names = files.map(|file| file.unwrap().file_name().into_string().unwrap());
    let mut names: Vec<String> = names.filter(|name| name.ends_with(".gguf")).collect();
    names.sort();
    assert!(names.len() >= 7, "{names:?}");
    for name in names {
        let path = format!("goldens/tokenizer/{name}");
        let (Some(texts), Some(ids)) = (read(&format!("{path}.inp")), read(&format!("{path}.out")))
        else {
            continue;
        };
        let texts = String::from_utf8(texts).unwrap();
        let ids = String::from_utf8(ids).unwrap();
        let texts: Vec<&str> = texts.split("\n__ggml_vocab_test__\n").collect();
        let ids: Vec<&str> = ids.lines().collect();
        // Nothing follows the last separator.
        assert_eq!((texts.len(), ids.len()), (47, 46));
        with_tokenizer(&path, |tokenizer| {
            for (text, ids) in texts.iter().zip(ids) {
                let ids: Vec<u32> = ids
                    .split_whitespace()
                    .map(|id| id.parse().unwrap())
                    .collect();
                assert_eq!(encode(tokenizer, text, TEXT_ONLY), ids, "{name}: {text:?}");
                let decoded = decode(tokenizer, &ids);
                if !name.contains("bert") {
                    assert_eq!(&decoded, text, "{name}");
                } else if tokenizer.unk().is_none_or(|unk| !ids.contains(&unk)) {
                    // Case and spaces are lost, but no more.
                    assert_eq!(
                        encode(tokenizer, &decoded, TEXT_ONLY),
                        ids,
                        "{name}: {text:?}"
                    );
                }
            }
        });
    }
}

/// What llama.cpp adds and finds in these vocabularies, by its rules.
#[test]
fn special_tokens_of_the_goldens() {
    let prompt = EncodeOptions {
        add_special: true,
        parse_special: true,
    };
    with_vocabulary("llama-bpe", |tokenizer| {
        assert!(tokenizer.adds_bos());
        let text = "<|start_header_id|>user<|end_header_id|>\n\nhi<|eot_id|>";
        let ids = [128_000, 128_006, 882, 128_007, 271, 6151, 128_009];
        assert_eq!(encode(tokenizer, text, prompt), ids);
        // As text, the name of a token is not the token.
        assert!(!encode(tokenizer, text, TEXT_ONLY).contains(&128_009));
        assert_eq!(decode(tokenizer, &encode(tokenizer, text, TEXT_ONLY)), text);
        assert!(tokenizer.is_end_of_generation(128_001));
        assert!(tokenizer.is_end_of_generation(128_009));
        assert!(!tokenizer.is_end_of_generation(128_000));
    });
    with_vocabulary("qwen2", |tokenizer| {
        assert!(!tokenizer.adds_bos());
        assert_eq!(tokenizer.eot(), Some(151_645));
        let ids = [151_644, 872, 198, 13_048, 151_645];
        let text = "<|im_start|>user\nHi<|im_end|>";
        assert_eq!(encode(tokenizer, text, prompt), ids);
        assert!(tokenizer.is_end_of_generation(151_643));
    });
    with_vocabulary("phi-3", |tokenizer| {
        assert_eq!(tokenizer.bos(), Some(1));
        // The line end belongs to the token before it; what follows gets a space of its own.
        let ids = encode(tokenizer, "<|user|>\nHi<|end|>\n<|assistant|>", prompt);
        assert_eq!(ids, [1, 32_010, 6324, 32_007, 32_001]);
        assert!(tokenizer.is_end_of_generation(32_007));
        assert!(tokenizer.is_end_of_generation(32_000));
    });
    with_vocabulary("llama-spm", |tokenizer| {
        assert_eq!(encode(tokenizer, "", prompt), [1]);
        assert_eq!(encode(tokenizer, "Hi</s>", prompt), [1, 6324, 2]);
        let added = EncodeOptions {
            parse_special: false,
            ..prompt
        };
        assert_ne!(encode(tokenizer, "Hi</s>", added), [1, 6324, 2]);
        assert_eq!(
            decode(tokenizer, &encode(tokenizer, "  Hi</s>", added)),
            "  Hi</s>"
        );
    });
    with_vocabulary("bert-bge", |tokenizer| {
        // Classifier first and separator last, whatever else.
        assert_eq!(encode(tokenizer, "Hi[SEP]", prompt), [101, 7632, 102, 102]);
        assert!(!encode(tokenizer, "[SEP]", TEXT_ONLY).contains(&102));
        assert_eq!(tokenizer.unk(), Some(100));
        assert_eq!(
            decode(tokenizer, &encode(tokenizer, "Hi, Ärger", prompt)),
            "hi , arger"
        );
    });
    with_vocabulary("gpt-2", |tokenizer| {
        assert!(!tokenizer.adds_bos());
        assert_eq!(
            encode(tokenizer, "Hi<|endoftext|>", prompt),
            [17_250, 50_256]
        );
    });
}

#[test]
fn stories_survive_on_the_models() {
    let (Some(stories), Some(safe)) = (
        read("data/tale_heldout.txt"),
        read("data/tinystories_200_vocabsafe.txt"),
    ) else {
        return;
    };
    let stories = String::from_utf8(stories).unwrap();
    let safe = String::from_utf8(safe).unwrap();
    let cases = [
        ("models/tale-5.8m-Q4_K_M.gguf", &stories),
        ("models/stories260k-f32.gguf", &stories),
        ("models/tinystories-656k-f16.gguf", &safe),
    ];
    for (path, text) in cases {
        with_tokenizer(path, |tokenizer| {
            let started = EncodeOptions {
                add_special: true,
                parse_special: false,
            };
            let ids = encode(tokenizer, text, started);
            assert_eq!(Some(ids[0]), tokenizer.bos(), "{path}");
            assert!(
                tokenizer.unk().is_none_or(|unk| !ids.contains(&unk)),
                "{path}"
            );
            assert!(&decode(tokenizer, &ids) == text, "{path}");
        });
    }
    // No byte tokens here: a character outside the vocabulary is one unknown token.
    with_tokenizer("models/tinystories-656k-f16.gguf", |tokenizer| {
        let ids = encode(tokenizer, "a🦙é\u{0}b", TEXT_ONLY);
        assert_eq!(ids.iter().filter(|&&id| id == 0).count(), 3);
    });
}

/// Texts without spaces are one word. At this length, anything quadratic would take hours.
#[test]
fn a_megabyte_without_a_space_takes_no_time() {
    // Without optimisation, this only shows that it ends.
    let len = if cfg!(debug_assertions) {
        100_000
    } else {
        1_000_000
    };
    without_a_space(len, 5.0);
}

/// A minute in all: `cargo test --release -p sluice-tests -- --ignored --nocapture megabytes`.
#[test]
#[ignore = "a minute; the shorter text is the daily test"]
fn ten_megabytes_without_a_space_take_seconds() {
    without_a_space(10_000_000, 10.0);
}

fn without_a_space(len: u32, seconds_max: f64) {
    let bytes = len as usize;
    let varied: String = (0..len)
        .map(|i| letter(i.wrapping_mul(2_654_435_761)))
        .collect();
    let texts = [
        ("a", "a".repeat(bytes)),
        ("random letters", varied),
        ("ab", "ab".repeat(bytes / 2)),
        ("é", "é".repeat(bytes / 2)),
        ("我", "我".repeat(bytes / 3)),
        ("line ends", "\n".repeat(bytes)),
        ("spaces", " ".repeat(bytes)),
        ("digits", "7".repeat(bytes)),
    ];
    for name in ["llama-spm", "gpt-2", "llama-bpe", "qwen2", "bert-bge"] {
        with_vocabulary(name, |tokenizer| {
            for (kind, text) in &texts {
                let mut workspace = vec![0; tokenizer.encode_workspace_words(text.len())];
                let mut out = vec![0; tokenizer.max_tokens(text.len())];
                let start = Instant::now();
                let ids = tokenizer.encode(text, TEXT_ONLY, &mut workspace, &mut out);
                let count = ids.expect("room for the worst case").len();
                let seconds = start.elapsed().as_secs_f64();
                eprintln!("{name}: {len} bytes of {kind}: {count} tokens in {seconds:.2} s");
                let limit = if cfg!(debug_assertions) {
                    60.0
                } else {
                    seconds_max
                };
                assert!(seconds < limit, "{name}, {kind}: {seconds} s");
            }
        });
    }
}

fn letter(random: u32) -> char {
    char::from(b'a' + (random >> 16).to_le_bytes()[0] % 26)
}

/// Runs `body` with a tokenizer of the goldens, if it is there.
fn with_vocabulary(name: &str, body: impl FnOnce(&Tokenizer<'_>)) {
    with_tokenizer(&format!("goldens/tokenizer/ggml-vocab-{name}.gguf"), body);
}

/// Runs `body` with the tokenizer of a file in the shared folder, if it is there.
fn with_tokenizer(path: &str, body: impl FnOnce(&Tokenizer<'_>)) {
    let Some(file) = read(path) else { return };
    let gguf = Gguf::parse(&file, file.len() as u64).expect("a whole file");
    let words = plan(&gguf).expect("a known vocabulary").words;
    let mut memory = vec![u32::MAX; words];
    body(&Tokenizer::new(&gguf, &mut memory).expect("memory as planned"));
}

/// A file of the folder that lies beside the checkout.
fn read(path: &str) -> Option<Vec<u8>> {
    let file = std::fs::read(shared()?.join(path));
    if file.is_err() {
        skipped(&format!("shared/{path} not found"));
    }
    file.ok()
}

fn encode(tokenizer: &Tokenizer<'_>, text: &str, options: EncodeOptions) -> Vec<u32> {
    let mut workspace = vec![u32::MAX; tokenizer.encode_workspace_words(text.len())];
    let mut out = vec![0; tokenizer.max_tokens(text.len())];
    let ids = tokenizer.encode(text, options, &mut workspace, &mut out);
    ids.expect("room for the worst case").to_vec()
}

fn decode(tokenizer: &Tokenizer<'_>, ids: &[u32]) -> String {
    let mut text = String::new();
    let mut detokenizer = Detokenizer::new(tokenizer);
    for &id in ids {
        detokenizer
            .push(tokenizer, id, |part| text.push_str(part))
            .expect("an id of the vocabulary");
    }
    detokenizer.finish(|part| text.push_str(part));
    text
}
