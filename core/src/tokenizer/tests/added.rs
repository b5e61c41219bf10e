//! Added tokens, and the space before a text: what Hugging Face's `tokenizers` 0.23 and SentencePiece 0.2 give.

use super::*;

const LIST: &str = "tokenizer.ggml.added_tokens.";

impl Header {
    fn u32s(self, key: &str, values: &[u32]) -> Self {
        let values: Vec<_> = values.iter().map(|value| value.to_le_bytes()).collect();
        self.array(key, 4, &values)
    }
}

/// `[UNK] [CLS] [SEP]`, pieces, then added tokens with their types: their ids are from 3 on.
fn words(pieces: &[&str], added: &[(&str, i32)]) -> Header {
    let mut names = vec!["[UNK]", "[CLS]", "[SEP]"];
    names.extend(pieces);
    let mut types = vec![3; 3];
    types.resize(names.len(), 1);
    names.extend(added.iter().map(|(name, _)| *name));
    types.extend(added.iter().map(|(_, kind)| *kind));
    Header::default()
        .string("tokenizer.ggml.model", "bert")
        .strings("tokenizer.ggml.tokens", &names)
        .i32s("tokenizer.ggml.token_type", &types)
        .u32("tokenizer.ggml.unknown_token_id", 0)
}

#[test]
fn added_tokens_of_a_word_piece_vocabulary_are_found() {
    let pieces = ["▁the", "▁covid", "▁-", "▁19", "▁x", "s", "▁e"];
    let added = [("covid-19", 4), ("GPT4", 4), ("<e n>", 3), ("中x", 4)];
    let header = words(&pieces, &added);
    // As written: the case counts, and they are found inside words.
    header.with(|tokenizer| {
        assert_eq!(encode(tokenizer, "the covid-19 xs"), [3, 10, 7, 8]);
        assert_eq!(encode(tokenizer, "THE COVID-19"), [3, 4, 5, 6]);
        assert_eq!(encode(tokenizer, "xGPT4x gpt4"), [7, 11, 7, 0]);
        assert_eq!(encode(tokenizer, "<e n>"), [0, 9, 0, 0]);
        assert_eq!(parse(tokenizer, "<e n>x"), [12, 7]);
    });
    // In normalised text: their names are normalised too.
    let normalized = header
        .clone()
        .u32s(&format!("{LIST}normalized"), &[13, 12, 10, 11, 10, 99]);
    normalized.with(|tokenizer| {
        assert_eq!(encode(tokenizer, "THE COVID-19 xs"), [3, 10, 7, 8]);
        assert_eq!(encode(tokenizer, "xgpt4x GPT4"), [7, 11, 7, 11]);
        assert_eq!(encode(tokenizer, "the c\u{f3}vid\0-19"), [3, 10]);
        // A Chinese character stands between spaces in normalised text.
        assert_eq!(encode(tokenizer, "x中x"), [7, 13]);
        assert_eq!(parse(tokenizer, "<E N> <e\u{a0}n>"), [12, 12]);
        assert_eq!(parse(tokenizer, "<e  n>"), [0, 9, 0, 0]);
        assert_eq!(encode(tokenizer, "<E N>"), [0, 9, 0, 0]);
    });
    let apart = normalized.u32s(&format!("{LIST}single_word"), &[11]);
    let both = apart.u32s(&format!("{LIST}rstrip"), &[10]);
    both.with(|tokenizer| {
        assert_eq!(encode(tokenizer, "xgpt4 gpt4x gpt4"), [0, 0, 11]);
        assert_eq!(encode(tokenizer, "中gpt4\0 covid-19  x"), [0, 11, 10, 7]);
    });
}

/// A word of the vocabulary that is an added token too stays a word; one that is not in it is never part of one.
#[test]
fn added_tokens_of_a_word_piece_vocabulary_are_not_parts_of_words() {
    let header = words(&["▁ent", "▁x", "y"], &[("zz", 4)]);
    header.with(|tokenizer| {
        assert_eq!(encode(tokenizer, "ent xent"), [3, 0]);
        assert_eq!(encode(tokenizer, "xzzy"), [4, 6, 0]);
    });
    let listed = header.clone().u32s(&format!("{LIST}as_written"), &[3, 99]);
    listed.with(|tokenizer| {
        assert_eq!(encode(tokenizer, "ent xenty ENT"), [3, 4, 3, 0, 3]);
        assert_eq!(tokenizer.piece(3), "▁ent".as_bytes());
    });
    // A word with a type of its own, as other converters write it.
    let typed = words(&["▁x"], &[("▁ent", 4)]);
    typed.with(|tokenizer| assert_eq!(encode(tokenizer, "xent ENT"), [3, 4, 4]));
    let single = header.u32s(&format!("{LIST}single_word"), &[6]);
    single.with(|tokenizer| assert_eq!(encode(tokenizer, "xzzy zz"), [0, 6]));
}

#[test]
fn pieces_with_marks_are_found_as_written_and_stay_spaces() {
    let header = sentence_piece(&[("▁", -1.0), ("▁▁", -2.0), ("a", -3.0), ("▁a", 0.0)]);
    let header = header.bool("tokenizer.ggml.add_space_prefix", false);
    header.with(|tokenizer| assert_eq!(encode(tokenizer, "▁▁a"), [259, 262]));
    header
        .u32s(&format!("{LIST}as_written"), &[260])
        .with(|tokenizer| {
            assert_eq!(encode(tokenizer, "▁▁a"), [260, 261]);
            assert_eq!(encode(tokenizer, "  a"), [259, 262]);
            assert_eq!(
                decode(tokenizer, Detokenizer::new(tokenizer), &[260, 261]),
                "  a"
            );
        });
}

#[test]
fn no_space_is_put_before_one_that_is_there() {
    let pieces = [
        ("▁", -1.0),
        ("▁▁", -2.0),
        ("x", -3.0),
        ("▁x", 0.0),
        ("<e>", -9.0),
    ];
    let header = sentence_piece(&pieces).i32s_replaced(263, 3);
    let first = header
        .clone()
        .bool("tokenizer.ggml.add_space_prefix_first", true);
    first.with(|tokenizer| {
        assert_eq!(encode(tokenizer, " x"), [259, 262]);
        assert_eq!(parse(tokenizer, "<e> x<e>x"), [263, 262, 263, 261]);
    });
    let missing = "tokenizer.ggml.add_space_prefix_if_missing";
    first.bool(missing, true).with(|tokenizer| {
        assert_eq!(encode(tokenizer, "x"), [262]);
        assert_eq!(encode(tokenizer, " x"), [262]);
        assert_eq!(encode(tokenizer, "▁x"), [262]);
        assert_eq!(encode(tokenizer, "  x"), [259, 262]);
        assert_eq!(parse(tokenizer, "x<e>x"), [262, 263, 261]);
        assert_eq!(decode(tokenizer, Detokenizer::new(tokenizer), &[262]), "x");
    });
    header.bool(missing, true).with(|tokenizer| {
        assert_eq!(encode(tokenizer, " x"), [262]);
        assert_eq!(parse(tokenizer, " x<e> x<e>x"), [262, 263, 262, 263, 262]);
    });
}

#[test]
fn a_text_that_begins_with_a_user_defined_token_keeps_its_space() {
    let pieces = [
        ("▁", -1.0),
        ("x", -3.0),
        ("▁x", 0.0),
        ("[I]", 0.0),
        ("<c>", 0.0),
    ];
    let header = sentence_piece(&pieces)
        .i32s_replaced(262, 4)
        .i32s_replaced(263, 3);
    let first = header.bool("tokenizer.ggml.add_space_prefix_first", true);
    first.with(|tokenizer| assert_eq!(encode(tokenizer, "[I]x"), [262, 260]));
    let alone = first.bool("tokenizer.ggml.add_space_prefix_alone", true);
    alone.with(|tokenizer| {
        assert_eq!(encode(tokenizer, "[I]x[I]"), [259, 262, 260, 262]);
        assert_eq!(encode(tokenizer, "x[I]"), [261, 262]);
        assert_eq!(encode(tokenizer, ""), []);
        assert_eq!(parse(tokenizer, "<c>[I]"), [263, 262]);
        assert_eq!(encode(tokenizer, " [I]"), [259, 259, 262]);
        assert_eq!(
            decode(tokenizer, Detokenizer::new(tokenizer), &[259, 262]),
            "[I]"
        );
    });
    let collapsing = alone.bool("tokenizer.ggml.remove_extra_whitespaces", true);
    collapsing.with(|tokenizer| assert_eq!(encode(tokenizer, "  [I]  x"), [259, 262, 261]));
}

impl Header {
    /// Another type for a token.
    fn i32s_replaced(mut self, id: usize, kind: i32) -> Self {
        let key = b"tokenizer.ggml.token_type";
        let at = self
            .bytes
            .windows(key.len())
            .position(|part| part == key)
            .unwrap();
        let start = at + key.len() + 4 + 4 + 8 + 4 * id;
        self.bytes[start..start + 4].copy_from_slice(&kind.to_le_bytes());
        self
    }
}

/// The work per character does not grow with the text.
#[test]
fn texts_of_nothing_and_many_names_take_no_time() {
    let names: Vec<String> = (0..2000).map(|n| format!("a{n}b")).collect();
    let added: Vec<(&str, i32)> = names.iter().map(|name| (name.as_str(), 4)).collect();
    let ids: Vec<u32> = (4..2004).collect();
    let header = words(&["▁a"], &added).u32s(&format!("{LIST}normalized"), &ids);
    header.with(|tokenizer| {
        for text in ["a\0", "\0", "\u{301}", "A", "a1", "a1999b", " ", "中"] {
            let text = text.repeat(20_000);
            assert!(encode(tokenizer, &text).len() <= text.len());
        }
    });
}
