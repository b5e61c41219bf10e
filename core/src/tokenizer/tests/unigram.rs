//! Unigram: maps and vocabularies written here, and every way tried by hand.

use super::super::charsmap::{CharsMap, MARK, Spaces, Spelled};
use super::*;

/// A map as SentencePiece writes them, with 256 words a node.
fn map(rules: &[(&str, &str)]) -> Vec<u8> {
    let (mut words, mut replacements) = (vec![0_u32; 512], Vec::new());
    // The root is word 0; its children are counted from 256.
    words[0] = 256 << 10;
    for (key, replacement) in rules {
        let mut place = 0;
        for byte in key.bytes() {
            if words[place] >> 10 == 0 {
                let base = words.len();
                words.extend([0; 256]);
                words[place] |= u32::try_from(place ^ base).unwrap() << 10;
            }
            place = place ^ (words[place] >> 10) as usize ^ usize::from(byte);
            words[place] |= u32::from(byte);
        }
        if words[place] >> 10 == 0 {
            let base = words.len();
            words.extend([0; 256]);
            words[place] |= u32::try_from(place ^ base).unwrap() << 10;
        }
        words[place] |= 0x100;
        let value = place ^ (words[place] >> 10) as usize;
        words[value] = 1 << 31 | u32::try_from(replacements.len()).unwrap();
        replacements.extend(replacement.bytes().chain([0]));
    }
    let size = u32::try_from(4 * words.len()).unwrap();
    let words = words.iter().flat_map(|word| word.to_le_bytes());
    let trie = size.to_le_bytes().into_iter().chain(words);
    trie.chain(replacements).collect()
}

fn checked(blob: &[u8]) -> Result<CharsMap<'_>, TokenizerError> {
    let map = CharsMap::new(blob)?;
    map.checked(&mut vec![7; map.check_words()])
}

impl Header {
    fn u8s(self, key: &str, values: &[u8]) -> Self {
        let mut header = self.entry(key, 9);
        header.bytes.extend(0_u32.to_le_bytes());
        header.bytes.extend((values.len() as u64).to_le_bytes());
        header.bytes.extend(values);
        header
    }
}

/// A vocabulary: `<unk>`, and pieces with their scores.
fn unigram(pieces: &[(&str, f32)]) -> Header {
    let (mut tokens, mut scores) = (vec!["<unk>"], vec![0.0]);
    tokens.extend(pieces.iter().map(|&(piece, _)| piece));
    scores.extend(pieces.iter().map(|&(_, score)| score));
    let mut types = vec![1; tokens.len()];
    types[0] = 2;
    Header::default()
        .string("tokenizer.ggml.model", "t5")
        .strings("tokenizer.ggml.tokens", &tokens)
        .f32s("tokenizer.ggml.scores", &scores)
        .i32s("tokenizer.ggml.token_type", &types)
        .u32("tokenizer.ggml.unknown_token_id", 0)
        .bool("tokenizer.ggml.add_eos_token", false)
}

#[test]
fn texts_are_spelled_as_sentencepiece_does() {
    let rules = [
        ("ﬁ", "fi"),
        ("e\u{301}", "é"),
        ("é\u{323}", "ẹ́"),
        ("\u{3000}", " "),
        ("\u{1}", ""),
        ("\t", "  "),
    ];
    let blob = map(&rules);
    let map = checked(&blob).unwrap();
    assert_eq!(map.growth(), 6);
    let spelled = |adds, as_suffix, collapses, text| -> String {
        let spaces = Spaces {
            adds,
            if_missing: false,
            as_suffix,
            collapses,
            splits: false,
        };
        let chars = Spelled::new(map, spaces, text);
        chars.map(|c| if c == MARK { '_' } else { c }).collect()
    };
    let cases = [
        ("", "", "", "", ""),
        (" ", "", "__", "_", ""),
        ("\u{1}", "", "_", "", "_"),
        ("a", "_a", "_a", "a", "a_"),
        ("  a\t b ", "_a_b", "___a___b_", "__a___b_", "a_b_"),
        ("\u{1} ﬁ\u{3000}", "_fi", "__fi_", "_fi_", "fi_"),
        (
            "e\u{301}e\u{323}",
            "_ée\u{323}",
            "_ée\u{323}",
            "ée\u{323}",
            "ée\u{323}_",
        ),
        ("é\u{323}x", "_ẹ́x", "_ẹ́x", "ẹ́x", "ẹ́x_"),
        ("▁", "__", "__", "_", "__"),
    ];
    for (text, merged, kept, bare, suffix) in cases {
        assert_eq!(spelled(true, false, true, text), merged, "{text:?}");
        assert_eq!(spelled(true, false, false, text), kept, "{text:?}");
        assert_eq!(spelled(false, false, false, text), bare, "{text:?}");
        assert_eq!(spelled(true, true, true, text), suffix, "{text:?}");
    }
}

#[test]
fn maps_that_are_malformed_are_refused() {
    let good = map(&[("ab", "c"), ("é", "")]);
    assert!(checked(&good).is_ok());
    assert_eq!(checked(b"").unwrap().growth(), 3);
    let malformed = |blob: &[u8], what| {
        let error = checked(blob).unwrap_err();
        assert_eq!(error, TokenizerError::MalformedCharsmap, "{what}");
    };
    for len in 1..good.len() {
        malformed(&good[..len], "cut off");
    }
    let replaced = |at: usize, word: u32| {
        let mut blob = good.clone();
        blob[at..at + 4].copy_from_slice(&word.to_le_bytes());
        blob
    };
    malformed(&replaced(0, 3), "half a word");
    malformed(&replaced(0, u32::MAX), "a trie that is longer than the map");
    // "ab" ends at the first node that was added after the one for "a".
    let value = 4 + 4 * 768;
    assert_eq!(good[value + 3], 0x80);
    malformed(&replaced(value, 1 << 31 | 1000), "a replacement outside");
    let mut odd = good.clone();
    *odd.last_mut().unwrap() = 0xff;
    malformed(&odd, "replacements that are not UTF-8");
    // A path that leads to itself ends where places have been seen.
    let mut cycle = vec![0; 4 * 512];
    cycle[0..4].copy_from_slice(&(256_u32 << 10).to_le_bytes());
    let a = 256 + usize::from(b'a');
    let to_itself = u32::from(b'a') << 10 | u32::from(b'a');
    cycle[4 * a..4 * a + 4].copy_from_slice(&to_itself.to_le_bytes());
    let cycle = [&2048_u32.to_le_bytes(), &cycle[..]].concat();
    assert_eq!(checked(&cycle).unwrap().growth(), 3);
    // A key of 64 bytes is one, longer ones are not.
    let long = "a".repeat(64);
    assert!(checked(&map(&[(&long, "b")])).is_ok());
    let longer = "a".repeat(65);
    malformed(&map(&[(&longer, "b")]), "a long key");
}

#[test]
fn any_map_is_refused_or_keeps_its_word() {
    fn holds(seed: Vec<u8>, text: String) -> bool {
        let mut blob = map(&[("ab", "c"), ("é", "ẹ́  x"), ("a", "")]);
        for pair in seed.chunks(3) {
            if let &[high, low, byte] = pair {
                let at = usize::from(u16::from_be_bytes([high, low])) % blob.len();
                blob[at] = byte;
            }
        }
        let Ok(map) = checked(&blob) else { return true };
        let spaces = Spaces {
            adds: true,
            if_missing: false,
            as_suffix: false,
            collapses: false,
            splits: false,
        };
        let len: usize = Spelled::new(map, spaces, &text).map(char::len_utf8).sum();
        len <= text.len() * map.growth() + 3
    }
    quickcheck::quickcheck(holds as fn(Vec<u8>, String) -> bool);
}

/// The best sum of scores for `text` from `from` on, by every way.
fn best(text: &str, pieces: &[(&str, f32)], unknown: f64) -> f64 {
    let Some(c) = text.chars().next() else {
        return 0.0;
    };
    let fits = pieces.iter().filter(|(piece, _)| text.starts_with(piece));
    let ways =
        fits.map(|&(piece, score)| f64::from(score) + best(&text[piece.len()..], pieces, unknown));
    let has_char = pieces.iter().any(|(piece, _)| piece.chars().eq([c]));
    let rest = (!has_char).then(|| unknown + best(&text[c.len_utf8()..], pieces, unknown));
    ways.chain(rest).fold(f64::NEG_INFINITY, f64::max)
}

#[test]
fn the_best_of_all_ways_is_found() {
    let pieces = [
        ("▁", -2.0),
        ("▁a", -3.5),
        ("a", -1.25),
        ("ab", -2.0),
        ("abab", -4.5),
        ("bab▁", -6.0),
        ("é", -2.5),
        ("éb", -2.75),
        ("▁aé", -5.0),
    ];
    unigram(&pieces).with(|tokenizer| {
        let mut random = 1_u32;
        for len in 0..12 {
            for _ in 0..200 {
                let text: String = (0..len)
                    .map(|_| {
                        random = random.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                        ['a', 'b', 'é', ' ', 'x'][random as usize / 7 % 5]
                    })
                    .collect();
                let ids = encode(tokenizer, &text);
                let spelled = if text.is_empty() {
                    String::new()
                } else {
                    format!("▁{}", text.replace(' ', "▁"))
                };
                // Unknown characters, which are one token in a row, cost the same in every order.
                let score = |&id: &u32| match id {
                    0 => 0.0,
                    id => f64::from(pieces[id as usize - 1].1),
                };
                let mut sum = ids
                    .iter()
                    .map(score)
                    .fold(0.0, |sum, score: f64| sum + score);
                let known: usize = ids
                    .iter()
                    .filter(|&&id| id != 0)
                    .map(|&id| tokenizer.piece(id).len())
                    .sum();
                sum -= 16.0 * (spelled.len() - known) as f64;
                assert_eq!(
                    sum.to_bits(),
                    best(&spelled, &pieces, -16.0).to_bits(),
                    "{text:?}: {ids:?}"
                );
            }
        }
    });
}

#[test]
fn unknown_characters_are_one_token_or_bytes() {
    let pieces = [("▁", -1.0), ("a", -2.0)];
    let header = unigram(&pieces);
    header.with(|tokenizer| {
        assert_eq!(encode(tokenizer, "a我éa"), [1, 2, 0, 2]);
        assert_eq!(encode(tokenizer, "我 é"), [1, 0, 1, 0]);
        assert_eq!(encode(tokenizer, ""), [0; 0]);
    });
    let apart = header.bool("tokenizer.ggml.fuse_unk", false);
    apart.with(|tokenizer| assert_eq!(encode(tokenizer, "我é"), [1, 0, 0]));

    // Normal tokens with names of bytes are not byte tokens; the 256 tokens of that type are.
    let names: Vec<String> = (0..256).map(|byte| format!("<0x{byte:02X}>")).collect();
    let named: Vec<(&str, f32)> = names.iter().map(|name| (name.as_str(), -3.0)).collect();
    let all = [&pieces[..], &named].concat();
    unigram(&all).with(|tokenizer| assert_eq!(encode(tokenizer, "é"), [1, 0]));
    let kinds: Vec<i32> = [2, 1, 1].into_iter().chain([6; 256]).collect();
    let bytes = unigram(&all).replaced_types(&kinds);
    bytes.with(|tokenizer| {
        assert_eq!(encode(tokenizer, "aé"), [1, 2, 3 + 0xc3, 3 + 0xa9]);
        let whole = Detokenizer::new(tokenizer);
        assert_eq!(decode(tokenizer, whole, &[1, 2, 3 + 0xc3, 3 + 0xa9]), "aé");
    });
}

impl Header {
    fn replaced_types(mut self, types: &[i32]) -> Self {
        let key = b"tokenizer.ggml.token_type";
        let at = self
            .bytes
            .windows(key.len())
            .position(|w| w == key)
            .unwrap();
        // After the key: the types of the value and its elements, and the number of elements.
        let start = at + key.len() + 4 + 4 + 8;
        for (i, kind) in types.iter().enumerate() {
            self.bytes[start + 4 * i..][..4].copy_from_slice(&kind.to_le_bytes());
        }
        self
    }
}

#[test]
fn keys_of_unigram_are_read() {
    let pieces = [
        ("▁a", -1.0),
        ("▁", -2.0),
        ("a", -3.0),
        ("a▁", -1.5),
        ("fi", -1.0),
    ];
    let header = || unigram(&pieces);
    let ids = |header: Header, text: &str| {
        let mut ids = Vec::new();
        header.with(|tokenizer| ids = encode(tokenizer, text));
        ids
    };
    assert_eq!(ids(header(), "a  a"), [1, 2, 1]);
    let key = "tokenizer.ggml.add_space_prefix";
    assert_eq!(ids(header().bool(key, false), "a a"), [3, 1]);
    let merging = || header().bool("tokenizer.ggml.remove_extra_whitespaces", true);
    assert_eq!(ids(merging(), "  a  a "), [1, 1]);
    // As in llama.cpp, the first word is then like all others.
    assert_eq!(ids(merging().bool(key, false), "a  a "), [1, 1]);
    let suffix = merging().bool("tokenizer.ggml.treat_whitespace_as_suffix", true);
    assert_eq!(ids(suffix, " a  a"), [4, 4]);
    // Hugging Face's WhitespaceSplit: words end at line ends, too.
    let splitting = || merging().bool("tokenizer.ggml.split_whitespace", true);
    assert_eq!(ids(splitting(), "\n a\t\u{2028}a\n"), [1, 1]);
    assert_eq!(ids(splitting(), "a \u{2581}a"), [1, 1]);
    assert_eq!(ids(merging(), "a\na").len(), 3);
    let blob = map(&[("ﬁ", "fi")]);
    let mapped = header().u8s("tokenizer.ggml.precompiled_charsmap", &blob);
    assert_eq!(ids(mapped, "ﬁ"), [2, 5]);
    // A special token and the parts around it each begin with a space of their own.
    let added = header().replaced_types(&[2, 1, 1, 1, 1, 4]);
    assert_eq!(ids(added, "afia"), [1, 5, 1]);
}

#[test]
fn vocabularies_of_unigram_that_do_not_fit_are_errors() {
    let pieces = |score| [("▁", -1.0), ("a", score)];
    let error = |header: Header| header.error().to_string();
    assert!(error(unigram(&pieces(f32::NAN))).contains("score of token 2 is not a finite"));
    assert!(error(unigram(&pieces(f32::NEG_INFINITY))).contains("token 2"));
    let long = "a".repeat(513);
    let message = error(unigram(&[(&long, -1.0)]));
    assert!(message.contains("token 1 has 513 bytes"), "{message}");
    let none = unigram(&pieces(-1.0)).u32_replaced("tokenizer.ggml.unknown_token_id", 99);
    none.with(|tokenizer| assert_eq!(tokenizer.unk(), Some(2)));
    let two = unigram(&[("▁", -1.0)]).u32_replaced("tokenizer.ggml.unknown_token_id", 99);
    assert_eq!(two.error(), TokenizerError::NoUnknownToken);
    let key = "tokenizer.ggml.precompiled_charsmap";
    let typed = unigram(&pieces(-1.0)).i32s(key, &[1, 2]);
    let told = "tokenizer.ggml.precompiled_charsmap has elements of type i32, expected u8";
    assert_eq!(typed.error().to_string(), told);
    let odd = unigram(&pieces(-1.0)).u8s(key, &[1, 2]);
    assert_eq!(odd.error(), TokenizerError::MalformedCharsmap);
    let scores = Header::default()
        .string("tokenizer.ggml.model", "t5")
        .strings("tokenizer.ggml.tokens", &["a"]);
    assert!(error(scores).contains("tokenizer.ggml.scores"));
}

impl Header {
    fn u32_replaced(mut self, key: &str, value: u32) -> Self {
        let mut windows = self.bytes.windows(key.len());
        let at = windows.position(|window| window == key.as_bytes()).unwrap();
        let start = at + key.len() + 4;
        self.bytes[start..start + 4].copy_from_slice(&value.to_le_bytes());
        self
    }
}

#[test]
fn long_words_and_little_room() {
    let piece = "é".repeat(256);
    let pieces = [("é", -1.0), (piece.as_str(), -2.0), ("▁", -1.0)];
    unigram(&pieces).with(|tokenizer| {
        let text = "é".repeat(5000);
        let mut workspace = vec![u32::MAX; tokenizer.encode_workspace_words(text.len())];
        let mut out = vec![0; tokenizer.max_tokens(text.len())];
        let ids = tokenizer.encode(&text, EncodeOptions::default(), &mut workspace, &mut out);
        let ids = ids.unwrap();
        // 19 long ones and 136 short ones, in any order, after the mark.
        assert_eq!(ids.iter().filter(|&&id| id == 2).count(), 19);
        assert_eq!(ids.len(), 1 + 19 + 136);
        let needed_words = workspace.len();
        for words in [0, 100, 2048, 2049, 5000] {
            let (room, mut few) = (&mut workspace[..words], [0; 9]);
            let error = tokenizer.encode(&text, EncodeOptions::default(), room, &mut few);
            let expected = TokenizerError::WorkspaceTooSmall {
                needed_words,
                words,
            };
            assert_eq!(error, Err(expected));
        }
        // Words are settled one by one: a long text of short ones takes little.
        let text = "éé ".repeat(5000);
        let mut out = vec![0; 40_000];
        let ids = tokenizer.encode(
            &text,
            EncodeOptions::default(),
            &mut workspace[..2048 + 600],
            &mut out,
        );
        assert_eq!(ids.unwrap().len(), 15_000 + 1);
    });
}
