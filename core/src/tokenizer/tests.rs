//! Small vocabularies written here: rules that test vectors do not reach, hostile files, and
//! properties over any text.

extern crate std;

mod added;
mod unigram;

use std::format;
use std::string::{String, ToString};
use std::vec;
use std::vec::Vec;

use quickcheck::{Arbitrary, Gen};

use super::*;
use crate::gguf::Gguf;

/// A GGUF header being written.
#[derive(Clone, Default)]
struct Header {
    entries: u64,
    bytes: Vec<u8>,
}

impl Header {
    fn entry(mut self, key: &str, kind: u32) -> Self {
        self.entries += 1;
        self.bytes.extend((key.len() as u64).to_le_bytes());
        self.bytes.extend(key.as_bytes());
        self.bytes.extend(kind.to_le_bytes());
        self
    }

    fn u32(self, key: &str, value: u32) -> Self {
        let mut header = self.entry(key, 4);
        header.bytes.extend(value.to_le_bytes());
        header
    }

    fn bool(self, key: &str, value: bool) -> Self {
        let mut header = self.entry(key, 7);
        header.bytes.push(value.into());
        header
    }

    fn string(self, key: &str, value: &str) -> Self {
        let mut header = self.entry(key, 8);
        header.bytes.extend((value.len() as u64).to_le_bytes());
        header.bytes.extend(value.as_bytes());
        header
    }

    /// Another string for one that is there.
    fn replaced(mut self, key: &str, value: &str) -> Self {
        let mut windows = self.bytes.windows(key.len());
        let at = windows.position(|window| window == key.as_bytes()).unwrap();
        let start = at + key.len() + 4;
        let len = usize::from(self.bytes[start]);
        let mut with = (value.len() as u64).to_le_bytes().to_vec();
        with.extend(value.as_bytes());
        self.bytes.splice(start..start + 8 + len, with);
        self
    }

    fn array(self, key: &str, kind: u32, values: &[[u8; 4]]) -> Self {
        let mut header = self.entry(key, 9);
        header.bytes.extend(kind.to_le_bytes());
        header.bytes.extend((values.len() as u64).to_le_bytes());
        header.bytes.extend(values.as_flattened());
        header
    }

    fn i32s(self, key: &str, values: &[i32]) -> Self {
        let values: Vec<_> = values.iter().map(|value| value.to_le_bytes()).collect();
        self.array(key, 5, &values)
    }

    fn f32s(self, key: &str, values: &[f32]) -> Self {
        let values: Vec<_> = values.iter().map(|value| value.to_le_bytes()).collect();
        self.array(key, 6, &values)
    }

    fn strings<S: AsRef<[u8]>>(self, key: &str, values: &[S]) -> Self {
        let mut header = self.entry(key, 9);
        header.bytes.extend(8_u32.to_le_bytes());
        header.bytes.extend((values.len() as u64).to_le_bytes());
        for value in values {
            header
                .bytes
                .extend((value.as_ref().len() as u64).to_le_bytes());
            header.bytes.extend(value.as_ref());
        }
        header
    }

    fn file(&self) -> Vec<u8> {
        let mut file = b"GGUF\x03\0\0\0\0\0\0\0\0\0\0\0".to_vec();
        file.extend(self.entries.to_le_bytes());
        file.extend(&self.bytes);
        file
    }

    /// Builds the tokenizer; returns the error, or the result of `body`.
    fn build<T>(&self, body: impl FnOnce(&Tokenizer<'_>) -> T) -> Result<T, TokenizerError> {
        let file = self.file();
        let gguf = Gguf::parse(&file, file.len() as u64).unwrap();
        // The previous contents of the memory must not matter.
        let mut memory = vec![0xdead_beef; plan(&gguf)?.words];
        let tokenizer = Tokenizer::new(&gguf, &mut memory)?;
        Ok(body(&tokenizer))
    }

    fn with(&self, body: impl FnOnce(&Tokenizer<'_>)) {
        self.build(body).unwrap();
    }

    fn error(&self) -> TokenizerError {
        self.build(|_| ()).unwrap_err()
    }
}

fn encode_with(
    tokenizer: &Tokenizer<'_>,
    text: &str,
    options: EncodeOptions,
) -> Result<Vec<u32>, TokenizerError> {
    let mut workspace = vec![0xdead_beef; tokenizer.encode_workspace_words(text.len())];
    let mut out = vec![0xdead_beef; tokenizer.max_tokens(text.len())];
    let ids = tokenizer.encode(text, options, &mut workspace, &mut out)?;
    Ok(ids.to_vec())
}

fn encode(tokenizer: &Tokenizer<'_>, text: &str) -> Vec<u32> {
    encode_with(tokenizer, text, EncodeOptions::default()).unwrap()
}

fn parse(tokenizer: &Tokenizer<'_>, text: &str) -> Vec<u32> {
    encode_with(tokenizer, text, PARSE).unwrap()
}

const PARSE: EncodeOptions = EncodeOptions {
    parse_special: true,
    add_special: false,
};

fn decode(tokenizer: &Tokenizer<'_>, mut detokenizer: Detokenizer, ids: &[u32]) -> String {
    let mut text = String::new();
    for &id in ids {
        detokenizer
            .push(tokenizer, id, |part| text.push_str(part))
            .unwrap();
    }
    detokenizer.finish(|part| text.push_str(part));
    text
}

/// `<unk> <s> </s>`, the 256 byte tokens, then `pieces` with their scores: ids from 259 on.
fn sentence_piece(pieces: &[(&str, f32)]) -> Header {
    let mut names: Vec<String> = ["<unk>", "<s>", "</s>"].map(String::from).to_vec();
    let mut types = vec![2, 3, 3];
    let mut scores = vec![0.0; 3];
    for byte in 0..=255 {
        names.push(format!("<0x{byte:02X}>"));
        types.push(6);
        scores.push(0.0);
    }
    for &(piece, score) in pieces {
        names.push(piece.to_string());
        types.push(1);
        scores.push(score);
    }
    Header::default()
        .string("tokenizer.ggml.model", "llama")
        .strings("tokenizer.ggml.tokens", &names)
        .f32s("tokenizer.ggml.scores", &scores)
        .i32s("tokenizer.ggml.token_type", &types)
}

/// The 256 byte tokens by value, then `pieces` with their types: ids from 256 on.
fn byte_level(pre: &str, pieces: &[(&str, i32)], merges: &[&str]) -> Header {
    let mut names: Vec<String> = (0..=255)
        .map(|byte| byte_level::char_of(byte).to_string())
        .collect();
    let mut types = vec![1; 256];
    for &(piece, kind) in pieces {
        names.push(piece.to_string());
        types.push(kind);
    }
    Header::default()
        .string("tokenizer.ggml.model", "gpt2")
        .string("tokenizer.ggml.pre", pre)
        .strings("tokenizer.ggml.tokens", &names)
        .i32s("tokenizer.ggml.token_type", &types)
        .strings("tokenizer.ggml.merges", merges)
}

/// As [`sentence_piece`], with merges in place of scores and `\n\n`: for pre-tokenizers whose
/// words are of characters. `▁` is 259, `a` 260, `b` 261, `ab` 262, `▁a` 263 and `\n\n` 264.
fn characters(pre: &str) -> Header {
    sentence_piece(&["▁", "a", "b", "ab", "▁a", "\n\n"].map(|piece| (piece, 0.0)))
        .replaced("tokenizer.ggml.model", "gpt2")
        .string("tokenizer.ggml.pre", pre)
        .strings("tokenizer.ggml.merges", &["▁ a", "a b"])
}

/// `[PAD] [UNK] [CLS] [SEP] [MASK]`, then `pieces`: ids from 5 on.
fn word_piece(pieces: &[&str]) -> Header {
    let mut names = vec!["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"];
    names.extend(pieces);
    let mut types = vec![3; 5];
    types.resize(names.len(), 1);
    Header::default()
        .string("tokenizer.ggml.model", "bert")
        .strings("tokenizer.ggml.tokens", &names)
        .i32s("tokenizer.ggml.token_type", &types)
        .u32("tokenizer.ggml.unknown_token_id", 1)
        .u32("tokenizer.ggml.bos_token_id", 2)
        .u32("tokenizer.ggml.seperator_token_id", 3)
}

/// Ids of byte tokens of [`byte_level`].
fn bytes(text: &str) -> Vec<u32> {
    text.bytes().map(u32::from).collect()
}

#[test]
fn scores_decide_and_the_leftmost_of_equals_goes_first() {
    let pieces = [
        ("a", -9.0),  // 259
        ("b", -9.0),  // 260
        ("ab", -2.0), // 261
        ("ba", -1.0), // 262
        ("aa", -3.0), // 263
        ("▁", -9.0),  // 264
        ("▁a", -3.0), // 265
    ];
    sentence_piece(&pieces).with(|tokenizer| {
        // ▁ a b a: "ba" is best, then "▁a".
        assert_eq!(encode(tokenizer, "aba"), [265, 262]);
        // ▁ a a a: "▁a" and "aa" are equal, the leftmost wins.
        assert_eq!(encode(tokenizer, "aaa"), [265, 263]);
        assert_eq!(encode(tokenizer, ""), []);
        assert_eq!(encode(tokenizer, " "), [264, 264]);
        // U+00E9 is not a piece: it becomes its bytes.
        assert_eq!(encode(tokenizer, "é"), [264, 3 + 0xc3, 3 + 0xa9]);
        let both = EncodeOptions {
            add_special: true,
            parse_special: true,
        };
        // Every part after a special token gets a space of its own.
        let ids = encode_with(tokenizer, "a<s>a</s>", both).unwrap();
        assert_eq!(ids, [1, 265, 1, 265, 2]);
        assert_eq!(encode_with(tokenizer, "", both).unwrap(), [1]);
        let text_only = encode(tokenizer, "<s>");
        assert_eq!(text_only, [264, 3 + 0x3c, 3 + 0x73, 3 + 0x3e]);
    });
    let header = sentence_piece(&pieces)
        .bool("tokenizer.ggml.add_space_prefix", false)
        .bool("tokenizer.ggml.add_bos_token", false)
        .bool("tokenizer.ggml.add_eos_token", true);
    header.with(|tokenizer| {
        let added = EncodeOptions {
            add_special: true,
            parse_special: false,
        };
        assert_eq!(encode_with(tokenizer, "a", added).unwrap(), [259, 2]);
        assert!(tokenizer.adds_eos());
        assert!(!tokenizer.adds_bos());
        assert_eq!(decode(tokenizer, Detokenizer::new(tokenizer), &[265]), " a");
    });
}

#[test]
fn characters_without_bytes_become_unknown() {
    let header = Header::default()
        .string("tokenizer.ggml.model", "llama")
        .strings("tokenizer.ggml.tokens", &["<unk>", "<s>", "</s>", "▁", "a"]);
    header.with(|tokenizer| {
        assert_eq!(encode(tokenizer, "aéa"), [3, 4, 0, 4]);
        assert_eq!(encode(tokenizer, "🦙"), [3, 0]);
    });
    let header = Header::default()
        .string("tokenizer.ggml.model", "llama")
        .strings("tokenizer.ggml.tokens", &["▁", "a"])
        .u32("tokenizer.ggml.unknown_token_id", 99);
    // The default unknown token is 0, and 99 is not a token.
    header.with(|tokenizer| assert_eq!(encode(tokenizer, "ab"), [0, 1, 0]));

    let header = Header::default()
        .string("tokenizer.ggml.model", "gpt2")
        .string("tokenizer.ggml.pre", "gpt-2")
        .strings("tokenizer.ggml.tokens", &["a"])
        .strings("tokenizer.ggml.merges", &["a a"]);
    header.with(|tokenizer| {
        assert_eq!(tokenizer.unk(), None);
        assert_eq!(tokenizer.bos(), None);
        let error = encode_with(tokenizer, "aa b", EncodeOptions::default()).unwrap_err();
        let expected = TokenizerError::NoTokenFor {
            byte: b' ',
            at_byte: 2,
        };
        assert_eq!(error, expected);
    });
}

#[test]
fn ranks_decide_and_whole_words_only_where_merges_are_ignored() {
    let pieces = [("ab", 1), ("bc", 1), ("abc", 1), ("Ġa", 1), ("abcabc", 1)];
    let merges = ["b c", "a b", "Ġ a", "a bc"];
    byte_level("gpt-2", &pieces, &merges).with(|tokenizer| {
        assert_eq!(encode(tokenizer, "abc"), [258]);
        assert_eq!(encode(tokenizer, "ab a"), [256, 259]);
        assert_eq!(encode(tokenizer, "abcabc"), [258, 258]);
        assert_eq!(encode(tokenizer, "é\0"), bytes("é\0"));
        assert_eq!(tokenizer.token("Ġa".as_bytes()), Some(259));
        assert_eq!(tokenizer.piece(259), "Ġa".as_bytes());
        let mut out = [0; 6];
        assert_eq!(tokenizer.decode_piece(259, &mut out), Ok(&b" a"[..]));
        let error = tokenizer.decode_piece(260, &mut out[..5]).unwrap_err();
        let expected = TokenizerError::BufferTooSmall {
            needed_bytes: 6,
            bytes: 5,
        };
        assert_eq!(error, expected);
        assert_eq!(tokenizer.piece_len_max(), 6);
    });
    byte_level("llama-bpe", &pieces, &merges)
        .with(|tokenizer| assert_eq!(encode(tokenizer, "abcabc"), [260]));
}

/// Prompts are refused by their bytes with it, so it must hold for every text, or not be there.
#[test]
fn the_longest_text_of_a_token_is_known_or_not_given() {
    let pieces = [("ab", 1), ("abc", 1), ("<unk>", 2), ("<|end|>", 3)];
    let bytes = || byte_level("gpt-2", &pieces, &["a b", "ab c"]);
    let marks = || sentence_piece(&[("▁▁▁", 0.0), ("a", 0.0)]);
    let flag = |key: &str| format!("tokenizer.ggml.{key}");
    let strips = [[0, 1, 0, 0]];
    for (header, expected) in [
        (bytes(), Some(7)),
        (bytes().bool(&flag("normalizer.nfc"), true), Some(28)),
        (
            bytes().array(&flag("added_tokens.rstrip"), 4, &[[3, 1, 0, 0]]),
            None,
        ),
        (
            bytes().array(&flag("added_tokens.lstrip"), 4, &strips),
            None,
        ),
        (marks(), Some(9)),
        (marks().bool(&flag("remove_extra_whitespaces"), true), None),
        (characters("gemma4"), Some(6)),
        (word_piece(&["[UNK]", "a"]), None),
    ] {
        header.with(|tokenizer| {
            assert_eq!(tokenizer.text_len_max(), expected);
            for text in [
                "abcabcabc",
                "a   b",
                "<|end|><|end|>",
                "日本e\u{301}",
                "K\u{212a}ꙮ",
            ] {
                let n = encode_with(tokenizer, text, PARSE).map_or(usize::MAX, |ids| ids.len());
                assert!(
                    expected.is_none_or(|len| n.saturating_mul(len) >= text.len()),
                    "{text}"
                );
            }
        });
    }
    // Without tokens for bytes, unknown characters in a row are one token.
    let few = Header::default()
        .string("tokenizer.ggml.model", "llama")
        .strings("tokenizer.ggml.tokens", &["<unk>", "a"])
        .f32s("tokenizer.ggml.scores", &[0.0, 0.0])
        .i32s("tokenizer.ggml.token_type", &[2, 1]);
    few.with(|tokenizer| {
        assert_eq!(encode(tokenizer, "日日日日").len(), 1);
        assert_eq!(tokenizer.text_len_max(), None);
    });
}

#[test]
fn the_leftmost_name_goes_first() {
    let pieces = [("abc", 3), ("bcde", 3), ("é!", 4), ("xx", 4), ("<unk>", 2)];
    byte_level("gpt-2", &pieces, &[]).with(|tokenizer| {
        assert_eq!(
            parse(tokenizer, "abcde"),
            [256, u32::from(b'd'), u32::from(b'e')]
        );
        assert_eq!(parse(tokenizer, "abcd"), [256, u32::from(b'd')]);
        assert_eq!(parse(tokenizer, "abcabcbcde"), [256, 256, 257]);
        assert_eq!(parse(tokenizer, "xxx"), [259, u32::from(b'x')]);
        assert_eq!(parse(tokenizer, "<unk>"), [260]);
        // Control and unknown tokens are text unless parsed; user-defined ones never are.
        assert_eq!(encode(tokenizer, "abc"), bytes("abc"));
        assert_eq!(encode(tokenizer, "<unk>"), bytes("<unk>"));
        assert_eq!(encode(tokenizer, "aé!xx"), [u32::from(b'a'), 258, 259]);
        assert!(tokenizer.is_control(256));
        assert!(!tokenizer.is_control(258));
    });
}

/// The cuts from left to right: at each place the longest name.
fn cut_by_hand(text: &str, names: &[&str]) -> Vec<(usize, usize)> {
    let (mut cuts, mut at) = (Vec::new(), 0);
    while at < text.len() {
        let here = names.iter().filter(|name| text[at..].starts_with(*name));
        let len = here.map(|name| name.len()).max();
        cuts.extend(len.map(|len| (at, at + len)));
        at += len.unwrap_or(1);
    }
    cuts
}

#[test]
fn names_are_found_from_left_to_right_the_longest_first() {
    // Names that overlap in every way: prefixes, suffixes, with themselves and each other.
    let names = ["aba", "abab", "b", "babaa", "cc", "aabbcc", "acacaca"];
    let pieces: Vec<(&str, i32)> = names.iter().map(|&name| (name, 3)).collect();
    byte_level("gpt-2", &pieces, &[]).with(|tokenizer| {
        let mut random = 1_u32;
        for len in 0..40 {
            for _ in 0..100 {
                let letters = (0..len).map(|_| {
                    random = random.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                    char::from(b"abc"[random as usize / 7 % 3])
                });
                let text: String = letters.collect();
                let mut expected = Vec::new();
                let mut from = 0;
                for (start, end) in cut_by_hand(&text, &names) {
                    expected.extend(bytes(&text[from..start]));
                    expected.push(tokenizer.token(&text.as_bytes()[start..end]).unwrap());
                    from = end;
                }
                expected.extend(bytes(&text[from..]));
                assert_eq!(parse(tokenizer, &text), expected, "{text}");
            }
        }
    });
}

#[test]
fn phi3_special_tokens_take_white_space_along() {
    let header = byte_level("gpt-2", &[("<|end|>", 3), ("<s>", 3)], &[]);
    let text = "<|end|> \n\tx <s> y<|end|>  ";
    let [x, y, space] = [b'x', b'y', b' '].map(u32::from);
    let expected = [256, x, space, 257, space, y, 256];
    let phi3 = header
        .clone()
        .string("general.name", "Microsoft Phi-3 mini");
    phi3.with(|tokenizer| assert_eq!(parse(tokenizer, text), expected));
    header.with(|tokenizer| assert_eq!(parse(tokenizer, text).len(), expected.len() + 5));
}

#[test]
fn roles_are_read_or_known_by_name() {
    let pieces = [
        ("<|im_end|>", 1), // 256
        ("</s>", 3),       // 257
        ("<|fim_pad|>", 3),
        ("<|fim_prefix|>", 1),
        ("[PAD1]", 4),
        ("<|channel|>", 3),
    ];
    let header = byte_level("qwen2", &pieces, &[])
        .u32("tokenizer.ggml.bos_token_id", 400)
        .u32("tokenizer.ggml.eos_token_id", 260)
        .u32("tokenizer.ggml.prefix_token_id", 259);
    header.with(|tokenizer| {
        // 400 is not a token: the default stays.
        assert_eq!(tokenizer.bos(), Some(11));
        assert_eq!(tokenizer.eos(), Some(260));
        assert_eq!(tokenizer.eot(), Some(256));
        assert_eq!(tokenizer.special_tokens().fim_pre, Some(259));
        assert_eq!(tokenizer.special_tokens().fim_pad, Some(258));
        assert!(!tokenizer.adds_bos());
        let ends: Vec<u32> = (0..300)
            .filter(|&id| tokenizer.is_end_of_generation(id))
            .collect();
        assert_eq!(ends, [256, 257, 258, 260]);
        // A normal token of such a name is made a control token.
        assert!(tokenizer.is_control(256));
        assert!(!tokenizer.is_control(261));
        assert_eq!(parse(tokenizer, "<|im_end|>"), [256]);
        assert_eq!(encode(tokenizer, "<|channel|>"), [261]);
    });

    // With these names, <|end|> ends a message only.
    let pieces = [("<|end|>", 3), ("<|return|>", 3), ("<|call|>", 3)];
    byte_level("gpt-2", &pieces, &[]).with(|tokenizer| {
        assert!(!tokenizer.is_end_of_generation(256));
        assert!(tokenizer.is_end_of_generation(257));
        assert!(tokenizer.is_end_of_generation(258));
    });
}

#[test]
fn what_is_not_supported_is_named() {
    let gpt2 = |pre| byte_level(pre, &[], &[]);
    for pre in ["jina-v2-zh", "gpt2", "GPT-2", "no such"] {
        let message = gpt2(pre).error().to_string();
        assert_eq!(message, format!("pre-tokenizer \"{pre}\" is not supported"));
    }
    // Files that name none are split by llama.cpp's own rules.
    let text = "it's 12345!";
    let of = |pre| {
        let mut ids = Vec::new();
        gpt2(pre).with(|tokenizer| ids = encode(tokenizer, text));
        ids
    };
    assert_eq!(of(""), of("default"));
    let long = "x\n".repeat(60);
    let message = gpt2(&long).error().to_string();
    assert!(message.contains("x\\nx\\n") && message.contains("...\""));

    for model in ["rwkv", "plamo2", "hybriddna", "whitespace", "no_vocab", ""] {
        let header = Header::default().string("tokenizer.ggml.model", model);
        let message = header.error().to_string();
        assert_eq!(
            message,
            format!("tokenizer model \"{model}\" is not supported")
        );
    }
    let message = Header::default().error().to_string();
    assert!(message.contains("tokenizer.ggml.model") && message.contains("missing"));

    // Models that have no pre-tokenizer do not look at its name, as in llama.cpp.
    for model in ["llama", "bert"] {
        let header = Header::default()
            .string("tokenizer.ggml.model", model)
            .string("tokenizer.ggml.pre", "chatglm-spm")
            .strings("tokenizer.ggml.tokens", &["a"]);
        header.with(|tokenizer| assert_eq!(tokenizer.n_vocab(), 1));
    }
}

#[test]
fn arrays_that_do_not_fit_are_errors() {
    let tokens = ["a", "b", "ab"];
    let llama = || {
        Header::default()
            .string("tokenizer.ggml.model", "llama")
            .strings("tokenizer.ggml.tokens", &tokens)
    };
    let short = |key, len| TokenizerError::ArrayTooShort {
        key,
        len,
        n_vocab: 3,
    };
    let scores = "tokenizer.ggml.scores";
    let types = "tokenizer.ggml.token_type";
    assert_eq!(llama().f32s(scores, &[0.0; 2]).error(), short(scores, 2));
    assert_eq!(llama().f32s(scores, &[]).error(), short(scores, 0));
    assert_eq!(llama().i32s(types, &[1; 2]).error(), short(types, 2));
    let element = |key, expected, found| TokenizerError::ElementType {
        key,
        expected,
        found,
    };
    use crate::gguf::ValueType::{F32, I32, String};
    let error = llama().strings(scores, &tokens).error();
    assert_eq!(error, element(scores, F32, String));
    let told = "tokenizer.ggml.scores has elements of type string, expected f32";
    assert_eq!(error.to_string(), told);
    let error = llama().f32s(types, &[0.0; 3]).error();
    assert_eq!(error, element(types, I32, F32));
    // Longer ones are cut off, whole numbers are scores, and tokens of unknown types are not text.
    let long = llama().i32s(scores, &[1, -2, i32::MAX, 0, 0]);
    long.i32s(types, &[1, 77, -1, 3, 4, 2]).with(|tokenizer| {
        assert_eq!(encode(tokenizer, "ab"), [0, 2]);
        let mut out = [0; 2];
        assert_eq!(tokenizer.decode_piece(1, &mut out), Ok(&b""[..]));
    });

    let empty: [&str; 0] = [];
    let header = Header::default().string("tokenizer.ggml.model", "llama");
    let header = header.strings("tokenizer.ggml.tokens", &empty);
    assert_eq!(header.error(), TokenizerError::EmptyVocabulary);
    let header = Header::default()
        .string("tokenizer.ggml.model", "gpt2")
        .string("tokenizer.ggml.pre", "gpt-2")
        .strings("tokenizer.ggml.tokens", &tokens);
    assert!(header.error().to_string().contains("tokenizer.ggml.merges"));
    let merges = header.i32s("tokenizer.ggml.merges", &[1]);
    let expected = element("tokenizer.ggml.merges", String, I32);
    assert_eq!(merges.error(), expected);
}

#[test]
fn odd_vocabularies_do_not_panic() {
    let pieces: [&[u8]; 12] = [
        b"a",
        b"a",
        b"",
        b"\xff\xfe",
        b"<0xZZ>",
        b"<0x",
        b"aa",
        b"\xe2\x96",
        b" ",
        b"\xe2\x96\x81",
        b"b",
        b"aab",
    ];
    let scores = [
        f32::NAN,
        f32::INFINITY,
        0.0,
        -0.0,
        1.0,
        2.0,
        f32::NEG_INFINITY,
    ];
    let mut scores = scores.to_vec();
    scores.resize(12, f32::NAN);
    for kind in -1..8 {
        for model in ["llama", "gpt2"] {
            let mut header = Header::default()
                .string("tokenizer.ggml.model", model)
                .strings("tokenizer.ggml.tokens", &pieces)
                .f32s("tokenizer.ggml.scores", &scores)
                .i32s("tokenizer.ggml.token_type", &[kind; 12])
                .u32("tokenizer.ggml.eos_token_id", u32::MAX)
                .u32("tokenizer.ggml.unknown_token_id", 3);
            if model == "gpt2" {
                let merges: [&[u8]; 8] = [
                    b"a a",
                    b"a a",
                    b"",
                    b" ",
                    b"x y",
                    b"aa b",
                    b"a  ",
                    b"\xff \xfe",
                ];
                header = header
                    .string("tokenizer.ggml.pre", "llama-bpe")
                    .strings("tokenizer.ggml.merges", &merges);
            }
            header.with(|tokenizer| {
                // Of equal pieces the last is found; an empty one never.
                assert_eq!(tokenizer.token(b"a"), Some(1));
                assert_eq!(tokenizer.token(b""), None);
                assert_eq!(tokenizer.piece(12), b"");
                for text in ["aabaab", "▁ \u{10ffff}", "<0xZZ> <0x41>", ""] {
                    let ids = parse(tokenizer, text);
                    decode(tokenizer, Detokenizer::new(tokenizer), &ids);
                }
                let mut detokenizer = Detokenizer::continuing();
                for id in [12, u32::MAX] {
                    let error = detokenizer.push(tokenizer, id, |_| ()).unwrap_err();
                    assert_eq!(error, TokenizerError::UnknownId { id, n_vocab: 12 });
                }
            });
        }
    }
}

#[test]
fn room_that_is_too_small_is_named_and_enough_is_enough() {
    let header = byte_level("gpt-2", &[("ab", 1), ("<x>", 4)], &["a b"]);
    let file = header.file();
    let gguf = Gguf::parse(&file, file.len() as u64).unwrap();
    let needed_words = plan(&gguf).unwrap().words;
    let mut memory = vec![0; needed_words - 1];
    let error = Tokenizer::new(&gguf, &mut memory).unwrap_err();
    let words = needed_words - 1;
    let expected = TokenizerError::MemoryTooSmall {
        needed_words,
        words,
    };
    assert_eq!(error, expected);

    header.with(|tokenizer| {
        let text = "abab <x>ab".repeat(20);
        let options = EncodeOptions::default();
        let expected = encode(tokenizer, &text);
        let mut workspace = vec![0; tokenizer.encode_workspace_words(text.len())];
        for room in 0..expected.len() {
            let mut out = vec![0; room];
            let error = tokenizer
                .encode(&text, options, &mut workspace, &mut out)
                .unwrap_err();
            let needed = TokenizerError::OutputTooSmall {
                needed_tokens: expected.len(),
                tokens: room,
            };
            assert_eq!(error, needed);
            assert_eq!(out, expected[..room]);
        }
        let mut out = vec![0; expected.len()];
        let mut least = None;
        for words in 0..workspace.len() {
            match tokenizer.encode(&text, options, &mut workspace[..words], &mut out) {
                Ok(ids) => {
                    assert_eq!(ids, expected);
                    least = least.or(Some(words));
                }
                Err(error) => {
                    assert_eq!(least, None, "what was enough stays enough");
                    let expected = TokenizerError::WorkspaceTooSmall {
                        needed_words: tokenizer.encode_workspace_words(text.len()),
                        words,
                    };
                    assert_eq!(error, expected);
                }
            }
        }
        // Words are short here, so that a small part of the worst case does.
        assert!(least.unwrap() < workspace.len() / 8);
    });
}

#[test]
fn any_text_survives_every_kind() {
    let pieces = [
        ("▁", -1.0),
        ("ab", -2.0),
        ("▁a", -1.5),
        ("é", -3.0),
        ("bé", 0.0),
    ];
    let spm = sentence_piece(&pieces);
    let bpe = byte_level("llama-bpe", &[("ab", 1), ("Ġa", 1)], &["a b", "Ġ a"]);
    let gemma = characters("gemma4");
    for header in [spm, bpe, gemma] {
        header.with(|tokenizer| {
            let survives = |text: &str| {
                let ids = encode(tokenizer, text);
                decode(tokenizer, Detokenizer::new(tokenizer), &ids) == text
            };
            for text in ["", " ", "  a", "ab é\0", "\u{fffd}\u{10ffff}", "\r\n\t "] {
                assert!(survives(text), "{text:?}");
            }
            let mut random = Gen::new(100);
            for _ in 0..2000 {
                let letters = "ab é\n▁ ,1'我";
                let text: String = (0..*random.choose(&[0, 1, 7, 80]).unwrap())
                    .filter_map(|_| random.choose(&letters.chars().collect::<Vec<_>>()).copied())
                    .collect();
                // A literal U+2581 is a space where it stands for spaces.
                let text = match tokenizer.pre_tokenizer() {
                    None | Some(PreTokenizer::Gemma4) => text.replace('▁', " "),
                    Some(_) => text,
                };
                assert!(survives(&text), "{text:?}");
            }
        });
    }
}

/// The text is decoded from the bytes as a whole, however they are cut into tokens.
#[test]
fn detokenizing_is_from_utf8_lossy() {
    let bpe = byte_level("gpt-2", &[], &[]);
    bpe.with(|tokenizer| {
        let same = |bytes: &[u8]| {
            let ids: Vec<u32> = bytes.iter().map(|&byte| byte.into()).collect();
            let text = decode(tokenizer, Detokenizer::new(tokenizer), &ids);
            text == String::from_utf8_lossy(bytes)
        };
        let samples: [&[u8]; 8] = [
            "é我🦙".as_bytes(),
            b"\xf0\x9f\xa6",
            b"\xf0\x9f\xa6a",
            b"\xff\xc0\x80\xed\xa0\x80",
            b"\xe2\x82\xe2\x82\xac",
            b"a\xf0\x90",
            b"\x80\x80",
            b"",
        ];
        for bytes in samples {
            assert!(same(bytes), "{bytes:?}");
        }
        let lead_heavy = |bytes: Vec<u8>| {
            let bytes: Vec<u8> = bytes.iter().map(|byte| byte | 0x80).collect();
            same(&bytes)
        };
        let mut random = Gen::new(60);
        for _ in 0..3000 {
            let bytes: Vec<u8> = Arbitrary::arbitrary(&mut random);
            assert!(same(&bytes), "{bytes:?}");
            assert!(lead_heavy(bytes));
        }
    });
}

#[test]
fn characters_come_out_whole_and_long_pieces_in_parts() {
    let long = "é".repeat(1000);
    let header = sentence_piece(&[(&long, 0.0), ("▁x", 0.0)]);
    header.with(|tokenizer| {
        let mut detokenizer = Detokenizer::new(tokenizer);
        let mut parts: Vec<String> = Vec::new();
        for byte in "我".bytes() {
            let id = 3 + u32::from(byte);
            detokenizer
                .push(tokenizer, id, |part| parts.push(part.into()))
                .unwrap();
        }
        assert_eq!(parts, ["我"]);
        assert_eq!(
            decode(tokenizer, Detokenizer::new(tokenizer), &[259, 260]),
            long + " x"
        );

        // BOS has no text and leaves the first space to be dropped; an answer keeps it.
        assert_eq!(
            decode(tokenizer, Detokenizer::new(tokenizer), &[1, 260, 260]),
            "x x"
        );
        assert_eq!(
            decode(tokenizer, Detokenizer::continuing(), &[260, 2]),
            " x"
        );
        let shown = Detokenizer::new(tokenizer).showing_special();
        assert_eq!(decode(tokenizer, shown, &[1, 260, 2]), "<s>x</s>");
    });
}

/// A file that is damaged anywhere is refused or gives a tokenizer that works.
#[test]
fn damaged_vocabularies_are_refused_or_work() {
    let spm = sentence_piece(&[("▁", -1.0), ("ab", -2.0)]).file();
    let bpe = byte_level("qwen2", &[("ab", 1), ("<x>", 3)], &["a b"]).file();
    let gemma = characters("gemma4").file();
    let bert = word_piece(&["▁ab", "ab", "é"]).file();
    let mut random = Gen::new(16);
    for _ in 0..4000 {
        for file in [&spm, &bpe, &gemma, &bert] {
            let at = u32::arbitrary(&mut random) as usize;
            try_damaged(file.clone(), at % file.len(), u8::arbitrary(&mut random));
        }
    }
}

fn try_damaged(mut file: Vec<u8>, at: usize, byte: u8) {
    file[at] = byte;
    let Ok(gguf) = Gguf::parse(&file, file.len() as u64) else {
        return;
    };
    let Ok(plan) = plan(&gguf) else { return };
    let mut memory = vec![0xffff_ffff; plan.words];
    let Ok(tokenizer) = Tokenizer::new(&gguf, &mut memory) else {
        return;
    };
    for parse_special in [false, true] {
        let options = EncodeOptions {
            add_special: true,
            parse_special,
        };
        let ids = encode_with(&tokenizer, "abab<x> é<s>", options).unwrap_or_default();
        decode(&tokenizer, Detokenizer::new(&tokenizer), &ids);
    }
}

/// Names, and what they imply, from `src/llama-vocab.cpp` of llama.cpp as vendored by
/// llama-cpp-python 0.3.36.
#[test]
fn every_pre_tokenizer_of_llama_cpp_is_known() {
    #[rustfmt::skip]
    let names = PreTokenizer::NAMES;
    assert!(names.is_sorted());
    let with_bos = [
        "chameleon",
        "falcon-h1",
        "falcon3",
        "gemma4",
        "granite-embed-multi-311m",
        "jina-v5-nano",
        "lfm2",
        "llama-bpe",
        "llama-v3",
        "llama3",
        "midm-2.0",
        "pixtral",
        "tekken",
    ];
    let whole_words = [
        "falcon-h1",
        "falcon3",
        "glm4",
        "glm5",
        "granite-embed-multi-97m",
        "jina-v5-nano",
        "lfm2",
        "llama-bpe",
        "llama-v3",
        "llama3",
        "midm-2.0",
        "minicpm5",
        "pixtral",
        "tekken",
        "youtu",
    ];
    for name in names {
        let header = byte_level(name, &[("ab", 1)], &[]);
        header.with(|tokenizer| {
            assert_eq!(tokenizer.adds_bos(), with_bos.contains(&name), "{name}");
            let bos = (!["chatglm-bpe", "glm4", "glm5"].contains(&name)).then_some(11);
            assert_eq!(tokenizer.bos(), bos, "{name}");
            assert_eq!(tokenizer.eos(), Some(11), "{name}");
            let options = EncodeOptions::default();
            let ids = encode_with(tokenizer, "ab", options);
            assert_eq!(ids == Ok(vec![256]), whole_words.contains(&name), "{name}");
        });
        let without = Header::default()
            .string("tokenizer.ggml.model", "gpt2")
            .string("tokenizer.ggml.pre", name)
            .strings("tokenizer.ggml.tokens", &["a"]);
        assert_eq!(without.build(|_| ()).is_ok(), name == "kimi-k2", "{name}");
    }
}

#[test]
fn characters_merge_by_rank_and_fall_back_to_bytes() {
    characters("gemma4").with(|tokenizer| {
        assert_eq!(encode(tokenizer, "ab ab"), [262, 263, 261]);
        assert_eq!(encode(tokenizer, "  é"), [259, 259, 3 + 0xc3, 3 + 0xa9]);
        // Line ends are words: one token, if there is one for exactly that number of line ends.
        assert_eq!(encode(tokenizer, "a\n\nb\n"), [260, 264, 261, 3 + 10]);
        assert_eq!(encode(tokenizer, "\n\n\n"), [13, 13, 13]);
        assert!(tokenizer.adds_bos());
        assert_eq!(
            decode(tokenizer, Detokenizer::new(tokenizer), &[263, 264]),
            " a\n\n"
        );
    });
    let header = characters("gemma4").bool("tokenizer.ggml.add_bos_token", false);
    header.with(|tokenizer| assert!(tokenizer.adds_bos()));
    characters("sarvam-moe").with(|tokenizer| {
        assert_eq!(encode(tokenizer, "a\n\nab"), [260, 13, 13, 262]);
        assert!(!tokenizer.adds_bos());
    });
    characters("whitespace").with(|tokenizer| {
        assert_eq!(encode(tokenizer, "ab a"), [262, 3 + 32, 260]);
    });
    let gemma4 = characters("no matter").replaced("tokenizer.ggml.model", "gemma4");
    gemma4.with(|tokenizer| {
        assert_eq!(tokenizer.pre_tokenizer(), Some(PreTokenizer::Gemma4));
        assert_eq!((tokenizer.bos(), tokenizer.eos()), (None, None));
    });
}

#[test]
fn words_are_covered_by_the_longest_pieces() {
    let pieces = ["▁ab", "▁abc", "c", "cd", "▁", "é", "▁,"]; // 5 to 11
    word_piece(&pieces).with(|tokenizer| {
        // Of "abcd", "▁abc" is taken and leaves "d", which is not a piece: the whole word is unknown.
        assert_eq!(encode(tokenizer, "AB abcd abccd,"), [5, 1, 6, 8, 11]);
        assert_eq!(encode(tokenizer, " \0"), []);
        assert_eq!(encode(tokenizer, "e\u{301} ÁB"), [1, 5]);
        assert_eq!(encode(tokenizer, "[MASK]"), [1, 1, 1]);
        assert_eq!(parse(tokenizer, "ab[MASK]ab"), [5, 4, 5]);
        let both = EncodeOptions {
            add_special: true,
            parse_special: false,
        };
        assert_eq!(encode_with(tokenizer, "", both).unwrap(), [2, 3]);
        let shown = decode(tokenizer, Detokenizer::new(tokenizer), &[2, 5, 6, 7, 11, 3]);
        assert_eq!(shown, "ab abcc ,");
        // A word of 99 characters, one more, one too many.
        let long = format!("abc{}", "cd".repeat(48));
        let mut expected = vec![6];
        expected.extend([8].repeat(48));
        assert_eq!(encode(tokenizer, &long), expected);
        assert_eq!(encode(tokenizer, &(long.clone() + "x")), [1]);
        assert_eq!(encode(tokenizer, &(long + "cd")), [1]);
    });
    let cased = word_piece(&pieces)
        .bool("tokenizer.ggml.normalizer.lowercase", false)
        .bool("tokenizer.ggml.add_bos_token", false);
    cased.with(|tokenizer| {
        assert_eq!(encode(tokenizer, "Ab é"), [1, 9, 10]);
        assert!(tokenizer.adds_bos());
    });
    let without_unknown = Header::default()
        .string("tokenizer.ggml.model", "bert")
        .strings("tokenizer.ggml.tokens", &["▁a"]);
    without_unknown.with(|tokenizer| {
        let error = encode_with(tokenizer, "a b", EncodeOptions::default()).unwrap_err();
        let expected = TokenizerError::NoTokenFor {
            byte: b'b',
            at_byte: 2,
        };
        assert_eq!(error, expected);
    });
}

/// The mask token of some models includes the space before it.
#[test]
fn masks_take_space_along() {
    let pieces = [("<mask>", 3), ("<x>", 3), ("[MASK]", 3)];
    byte_level("jina-v2-de", &pieces, &[]).with(|tokenizer| {
        let a = u32::from(b'a');
        assert_eq!(parse(tokenizer, "a \n<mask> a"), [a, 256, 32, a]);
        assert_eq!(parse(tokenizer, "<x>  <mask><mask>"), [257, 256, 256]);
        assert_eq!(parse(tokenizer, " <mask> <x>"), [256, 32, 257]);
        assert_eq!(parse(tokenizer, "a [MASK]"), [a, 32, 258]);
    });
    let modern = byte_level("modern-bert", &pieces, &[]).string("general.name", "Modern-BERT");
    modern.with(|tokenizer| {
        assert_eq!(parse(tokenizer, " <mask> [MASK]"), [32, 256, 258]);
    });
}

/// Words are encoded the same whether they were seen before or not, with any workspace.
#[test]
fn words_seen_before_do_not_change() {
    let pieces = [("ab", 1), ("abc", 1), ("Ġab", 1), ("dd", 1), ("dddd", 1)];
    let merges = ["a b", "ab c", "d d", "dd dd", "Ġ ab"];
    byte_level("gpt-2", &pieces, &merges).with(|tokenizer| {
        let mut random = Gen::new(100);
        for _ in 0..60 {
            let mut text = String::new();
            let mut expected = Vec::new();
            for _ in 0..1500 {
                let letters: Vec<u8> = (0..*random.choose(&[1, 2, 3, 9, 40]).unwrap())
                    .map(|_| *random.choose(b"abcd").unwrap())
                    .collect();
                let word = format!(" {}", String::from_utf8(letters).unwrap());
                // On its own, a text is too short to remember words.
                expected.extend(encode(tokenizer, &word));
                text.push_str(&word);
            }
            assert_eq!(encode(tokenizer, &text), expected);
            let mut out = vec![0; expected.len()];
            let mut few = [7; 400];
            let options = EncodeOptions::default();
            let ids = tokenizer.encode(&text, options, &mut few, &mut out);
            assert_eq!(ids, Ok(expected.as_slice()));
        }
    });
}
