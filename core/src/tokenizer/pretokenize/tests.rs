//! Splits checked by hand, for each family of expressions.

extern crate std;

use std::string::String;
use std::vec::Vec;

use quickcheck::Arbitrary;

use super::*;

fn split(pre: PreTokenizer, text: &str) -> Vec<&str> {
    let words: Vec<&str> = pre.words(text).collect();
    assert!(words.iter().all(|word| !word.is_empty()));
    assert_eq!(words.concat(), text);
    words
}

/// The expected splits come from Python's `regex` module, for the expressions above.
#[test]
fn gpt2_splits() {
    let cases: &[(&str, &[&str])] = &[
        ("", &[]),
        (" ", &[" "]),
        ("   ", &["   "]),
        ("Hello  world", &["Hello", " ", " world"]),
        ("it's THEY'RE", &["it", "'s", " THEY", "'", "RE"]),
        ("a1 23b", &["a", "1", " 23", "b"]),
        ("x\n\n  y", &["x", "\n\n ", " y"]),
        ("\t\u{3000}z", &["\t", "\u{3000}", "z"]),
        (" ?!\n", &[" ?!", "\n"]),
        ("'", &["'"]),
        ("'ll'v", &["'ll", "'", "v"]),
        ("é½我", &["é", "½", "我"]),
    ];
    for (text, words) in cases {
        assert_eq!(&split(PreTokenizer::Gpt2, text), words, "{text:?}");
    }
}

#[test]
fn llama3_and_qwen2_splits() {
    let cases: &[(&str, &[&str])] = &[
        ("", &[]),
        ("they'RE I'M", &["they", "'RE", " I", "'M"]),
        ("12345", &["123", "45"]),
        ("(abc) d", &["(abc", ")", " d"]),
        ("a\n\n  \n b", &["a", "\n\n  \n", " b"]),
        ("!!\r\n\nx", &["!!\r\n\n", "x"]),
        ("  x", &[" ", " x"]),
        ("\tx \t ", &["\tx", " \t "]),
        (" \n\t ", &[" \n", "\t "]),
        ("\nabc", &["\n", "abc"]),
        (" 7", &[" ", "7"]),
        ("'sx", &["'s", "x"]),
        ("'x", &["'x"]),
    ];
    for (text, words) in cases {
        assert_eq!(&split(PreTokenizer::Llama3, text), words, "{text:?}");
    }
    assert_eq!(
        split(PreTokenizer::Qwen2, "x 123"),
        ["x", " ", "1", "2", "3"]
    );
}

/// The expected splits come from llama.cpp's own code (as vendored by llama-cpp-python 0.3.36,
/// with libstdc++), checked by hand.
#[test]
fn splits_of_the_other_families() {
    use PreTokenizer::*;
    #[rustfmt::skip]
    let cases: &[(PreTokenizer, &str, &[&str])] = &[
        (Default, "a1!+2345  b's", &["a", "1", "!+", "234", "5", " ", " b", "'", "s"]),
        (Qwen35, "क\u{94d}य\u{93e} e\u{301}!\u{301} 12", &["क\u{94d}य\u{93e}", " e\u{301}", "!\u{301}", " ", "1", "2"]),
        (Jais2, "a        b\n  \n c   ", &["a", "    ", "  ", " ", " b", "\n  \n", " c", "  ", " "]),
        (DeepSeekLlm, "Hi\r\n  yes!? 日本語1234  가x \t", &["Hi", "\r", "\n", " ", " yes", "!?", " ", "日本語", "1234", "  ", "가", "x", " \t"]),
        (DeepSeekCoder, "Hi\r\n  yes!? 日本語12  $x", &["Hi", "\r", "\n", " ", " yes", "!?", " ", "日本語", "1", "2", "  $", "x"]),
        (DeepSeekV3, "it's 12345カ (ab) e\u{301}!!\n\u{1}\u{2}a  \n x", &["it", "'s", " ", "123", "45", "カ", " (", "ab", ")", " e\u{301}", "!!\n", "\u{1}", "\u{2}a", "  \n", " x"]),
        (Spark, "ok!!\n\n  12345 x", &["ok", "!!", "\n", "\n", "  ", "1", "2", "3", "4", "5", " x"]),
        (Youtu, "한국어、。ㄅ日本 Aa's a's12/\n//\n", &["한국어", "、。", "ㄅ", "日本", " Aa's", " a's", "1", "2", "/\n//\n"]),
        (Falcon, "a`b` 12345 x+y  z", &["a", "`", "b", "`", " ", "123", "45", " x", "+", "y", " ", " z"]),
        (StarCoder, "x 123 y's", &["x", " ", "1", "2", "3", " y", "'s"]),
        (Bloom, "  one (two) a|b, 12", &[" ", " one", " (", "two", ")", " a", "|", "b", ",", " 12"]),
        (Viking, "one12 2", &["one", "1", "2", " ", "2"]),
        (Tekken, "HelloWorld ABCdef ÉABC it's 12//\n\n/", &["Hello", "World", " ABCdef", " ÉABC", " it", "'s", " ", "1", "2", "//\n\n/"]),
        (Gpt4o, "HelloWorld it'S 1234!/\n/ x", &["Hello", "World", " it'S", " ", "123", "4", "!/\n/", " x"]),
        (GraniteEmbedding, "aE\u{301}ABC \u{301}ABC 12", &["a", "E\u{301}", "ABC", " \u{301}", "ABC", " ", "12"]),
        (Chameleon, "<sentinel:12> IMGIMGABZ\t      a1+!IMGIMGZ", &["<", "sentinel", ":", "1", "2", ">", " ", "IMGIMGABZ", "\t", "    ", "  ", "a", "1", "+", "!", "IMGIMGZ"]),
        (TinyAya, "x1234567 12, Don'T  1", &["x", "1", "234", "567", " ", "12", ",", " Don'T", "  ", "1"]),
        (TinyAya, "1234x 12345² ٣٤٥٦_12\u{301} 98765Ⅷ", &["123", "4", "x", " ", "123", "45²", " ", "٣٤٥", "٦", "_", "12", "\u{301}", " ", "987", "65Ⅷ"]),
        (KimiK2, "日本カa'S 1234 x日!\n", &["日本", "カa'S", " ", "123", "4", " x", "日", "!\n"]),
        (SuperBpe, "the cat 1234567 sat ٣123x", &["the cat ", "1", "234", "567", " sat ", "٣", "123", "x"]),
        (SeedCoder, "a!!\n\n12 b", &["a", "!!", "\n\n", "1", "2", " b"]),
        (Ufakzeka, "Ankara'da 12", &["Ankara", "'da", " ", "1", "2"]),
        (Afmoe, "x1234567日本語 ab!?\n c  12", &["x", "1", "234", "567", "日本語", " ab", "!?\n", " c", " ", " ", "12"]),
        (Laguna, "a \n\n b's", &["a", " ", "\n\n", " b", "'s"]),
        (ExaoneMoe, "the cat sat. 12 on it  x/\n", &["the cat sat", ".", " ", "1", "2", " on it", " ", " x", "/\n"]),
        (Gemma4, "a b\n\n c\r\n", &["a b", "\n\n", " c\r", "\n"]),
        (Sarvam, "\na", &["\n", "a"]),
        (Whitespace, " ab,1 \n\u{3000}c", &[" ", "ab,1", " \n\u{3000}", "c"]),
        (MiniCpm5, "don'T 12345 (x)!\n", &["don", "'T", " ", "123", "45", " (", "x", ")!\n"]),
    ];
    for (pre, text, words) in cases {
        assert_eq!(&split(*pre, text), words, "{pre:?}");
    }
}

/// Words of any text are not empty, and joined they give the text.
#[test]
fn words_tile_any_text() {
    let mut random = quickcheck::Gen::new(60);
    let odd: Vec<char> = "aZé字カ가١1½ \t\r\n\u{3000}'sLl/<>!$+。…\u{301}\u{200d}\0"
        .chars()
        .collect();
    for round in 0..2000 {
        let any: Vec<char> = Arbitrary::arbitrary(&mut random);
        let chars = any.iter().map(|&c| match round % 2 {
            0 => *random.choose(&odd).expect("there are some"),
            _ => c,
        });
        let text: String = chars.collect();
        for pre in FAMILIES {
            split(pre, &text);
        }
    }
}

/// Texts that stay linear only by care, in every family: a text of one kind of character, and texts
/// of which any part may be the start of something.
#[test]
fn long_runs_take_no_time() {
    let runs = [
        "a", "A", "é", "1", "٣", " ", "\n", "\r", "'", "<", "\u{301}", "日", "\0", " a", "1a",
    ];
    let starts = [
        "<sentinel:1",
        "IMGIMGA",
        "123٣",
        "É",
        "\u{301}A",
        " \n",
        "  ",
        "1234 ",
    ];
    for pre in FAMILIES {
        for run in runs.into_iter().chain(starts) {
            // In quadratic time, this would not end.
            let mut text = run.repeat(20_000);
            for end in ["", "x", "\n!"] {
                text.push_str(end);
                let len: usize = pre.words(&text).map(str::len).sum();
                assert_eq!(len, text.len(), "{pre:?}");
            }
        }
    }
}

const FAMILIES: [PreTokenizer; 31] = {
    use PreTokenizer::*;
    [
        Default,
        Gpt2,
        Llama3,
        Qwen2,
        Qwen35,
        Jais2,
        DeepSeekLlm,
        DeepSeekCoder,
        DeepSeekV3,
        Spark,
        Youtu,
        Falcon,
        StarCoder,
        Bloom,
        Viking,
        Tekken,
        Gpt4o,
        GraniteEmbedding,
        Chameleon,
        TinyAya,
        KimiK2,
        SuperBpe,
        SeedCoder,
        Ufakzeka,
        Afmoe,
        Laguna,
        ExaoneMoe,
        MiniCpm5,
        Gemma4,
        Sarvam,
        Whitespace,
    ]
};
