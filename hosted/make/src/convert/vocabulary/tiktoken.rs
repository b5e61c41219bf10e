//! tiktoken vocabularies, used by Kimi and Hunyuan models: each line has a token in base64 and its rank. The
//! pre-tokenizer's rules and the tokens after the ranks are only in Python code, so such models are recognised by their
//! tokenizer's class.
//!
//! A pair is merged if the result is a token, the lowest rank first. So the merges of a GGUF file are, in rank order,
//! the last two parts from which each token is made: the ones that lower ranks leave of its bytes.

use super::super::ConvertError;
use super::super::tokenizer_json::{AddedToken, Merge, TokenModel, TokenizerJson, Vocab};
use super::token_text;
use super::unigram::base64;
use serde_json::{Value, json};
use sluice_core::tokenizer::byte_level_char;
use sluice_hf::{Config, HfError, mistaken_text, read_bytes};
use std::collections::{BTreeMap, HashMap};
use std::path::Path;

/// File names in models' folders.
pub(super) const NAMES: [&str; 2] = ["tiktoken.model", "hy.tiktoken"];

/// The settings in a tokenizer class's code.
struct Class {
    name: &'static str,
    /// The name of the pre-tokenizer's rules.
    pre: &'static str,
    /// Whether texts are composed (NFC).
    composes: bool,
    /// Number of special tokens after the ranks, and a function that returns their texts by ID and by index.
    n_special: u64,
    special: fn(u64, usize) -> String,
}

const CLASSES: [Class; 2] = [
    // Kimi.
    Class {
        name: "TikTokenTokenizer",
        pre: "kimi-k2",
        composes: false,
        n_special: 256,
        special: |id, _| format!("<|reserved_token_{id}|>"),
    },
    // Hunyuan-A13B.
    Class {
        name: "HYTokenizer",
        pre: "hunyuan",
        composes: true,
        n_special: 5 + 205,
        special: |_, number| match ["endoftext", "startoftext", "bos", "eos", "pad"].get(number) {
            Some(name) => format!("<|{name}|>"),
            None => format!("<|extra_{}|>", number - 5),
        },
    },
];

/// Longer tokens are not words, and splitting them would take too long.
const TOKEN_BYTES_MAX: usize = 1024;

/// The name of the pre-tokenizer's rules, if the class is known.
pub(super) fn pre(about: &Config) -> Option<&'static str> {
    class(about).map(|class| class.pre)
}

fn class(about: &Config) -> Option<&'static Class> {
    let name = about.str("tokenizer_class")?;
    CLASSES.iter().find(|class| class.name == name)
}

/// The vocabulary as a `tokenizer.json` would have it.
pub(super) fn read(path: &Path, about: &Config) -> Result<TokenizerJson, ConvertError> {
    let bytes = read_bytes(path)?;
    let error = |what: String| ConvertError::Tokenizer {
        path: path.into(),
        what,
    };
    let ranks = match ranks(&bytes) {
        Ok(ranks) => ranks,
        Err(what) => {
            return Err(match mistaken_text(&bytes) {
                Some(other) if !other.contains("tiktoken") => HfError::Mistaken {
                    path: path.into(),
                    what: other,
                }
                .into(),
                _ => error(what),
            });
        }
    };
    let mut tokens: Vec<(&[u8], u64)> = ranks.iter().map(|(t, rank)| (&**t, *rank)).collect();
    tokens.sort_unstable_by_key(|(_, rank)| *rank);
    if let Some(pair) = tokens.windows(2).find(|pair| pair[0].1 == pair[1].1) {
        return Err(error(format!("two tokens have the rank {}", pair[0].1)));
    }
    let n_ranks = tokens.last().map_or(0, |(_, rank)| rank + 1);
    let merges = tokens.iter().filter_map(|(token, rank)| {
        let at = last_cut(token, *rank, &ranks)?;
        let (left, right) = token.split_at(at);
        let (left, right) = (written(left), written(right));
        Some(Merge { left, right })
    });
    let model = TokenModel {
        kind: Some("BPE".to_owned()),
        vocab: Vocab {
            tokens: tokens.iter().map(|(t, rank)| (written(t), *rank)).collect(),
            scores: Vec::new(),
        },
        merges: merges.collect(),
        // A word that is itself a token is taken whole.
        ignore_merges: Some(true),
        dropout: None,
        unk_token: None,
        unk_id: None,
        continuing_subword_prefix: None,
        end_of_word_suffix: None,
        fuse_unk: None,
        byte_fallback: None,
        max_input_chars_per_word: None,
        rest: serde_json::Map::new(),
    };
    Ok(TokenizerJson {
        added_tokens: added_tokens(about, n_ranks)?,
        normalizer: match class(about) {
            Some(Class { composes: true, .. }) => json!({"type": "NFC"}),
            _ => Value::Null,
        },
        pre_tokenizer: Value::Null,
        post_processor: Value::Null,
        decoder: json!({"type": "ByteLevel"}),
        model,
        rest: serde_json::Map::new(),
    })
}

/// Tokens with their ranks.
fn ranks(bytes: &[u8]) -> Result<HashMap<Vec<u8>, u64>, String> {
    let text = core::str::from_utf8(bytes).map_err(|error| error.to_string())?;
    let mut ranks = HashMap::new();
    for (number, line) in (1..).zip(text.lines()) {
        if line.trim().is_empty() {
            continue;
        }
        let parsed = line.trim_end().split_once(' ').and_then(|(token, rank)| {
            let token = base64(token).filter(|token| !token.is_empty())?;
            Some((token, u64::from(rank.parse::<u32>().ok()?)))
        });
        let malformed = || format!("line {number} is not a token in base64 and its rank");
        let (token, rank) = parsed.ok_or_else(malformed)?;
        if token.len() > TOKEN_BYTES_MAX {
            return Err(format!("the token of line {number} is too long"));
        }
        if ranks.insert(token, rank).is_some() {
            return Err(format!("the token of line {number} is defined twice"));
        }
    }
    match ranks.is_empty() {
        true => Err("it has no tokens".to_owned()),
        false => Ok(ranks),
    }
}

/// Where a token is cut into the two parts that lower ranks leave of it; `None` if they leave more parts, or if the
/// token is a byte.
fn last_cut(token: &[u8], rank: u64, ranks: &HashMap<Vec<u8>, u64>) -> Option<usize> {
    let mut cuts: Vec<usize> = (0..=token.len()).collect();
    while cuts.len() > 3 {
        let pairs = cuts.windows(3).enumerate();
        let known = pairs.filter_map(|(at, cut)| {
            let rank = *ranks.get(&token[cut[0]..cut[2]])?;
            Some((rank, at))
        });
        let (_, at) = known.min().filter(|(lower, _)| *lower < rank)?;
        cuts.remove(at + 1);
    }
    (cuts.len() == 3).then(|| cuts[1])
}

/// Bytes in GPT-2's alphabet.
fn written(bytes: &[u8]) -> String {
    bytes.iter().map(|&byte| byte_level_char(byte)).collect()
}

/// The tokens after the ranks: the class's, renamed by `added_tokens_decoder`.
fn added_tokens(about: &Config, n_ranks: u64) -> Result<Vec<AddedToken>, ConvertError> {
    let mut all = BTreeMap::new();
    if let Some(class) = class(about) {
        let ids = n_ranks..n_ranks + class.n_special;
        all.extend(
            ids.enumerate()
                .map(|(number, id)| (id, ((class.special)(id, number), true))),
        );
    }
    let decoder = about.find(&["added_tokens_decoder"]);
    for (id, token) in decoder.and_then(Value::as_object).into_iter().flatten() {
        let malformed = || ConvertError::Tokenizer {
            path: about.path().into(),
            what: format!("added_tokens_decoder has the malformed entry {id:?}"),
        };
        let number: u64 = id.parse().map_err(|_| malformed())?;
        let text = token_text(token).ok_or_else(malformed)?;
        let is_special = token.get("special").and_then(Value::as_bool) == Some(true);
        all.insert(number, (text.to_owned(), is_special));
    }
    let added = all.into_iter().map(|(id, (content, special))| AddedToken {
        id,
        content,
        special,
        single_word: false,
        lstrip: false,
        rstrip: false,
        normalized: false,
    });
    Ok(added.collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn merges_are_what_lower_ranks_leave() {
        // a b c d; bc, ab, abc, abcd, and a token that lower ranks do not reach.
        let file =
            b"YQ== 0\nYg== 1\nYw== 2\nZA== 3\nYmM= 4\nYWI= 5\r\nYWJj 6\nYWJjZA== 7\nYWRk 8\n";
        let ranks = ranks(file).expect("well formed");
        let cut = |token: &str| last_cut(token.as_bytes(), ranks[token.as_bytes()], &ranks);
        assert_eq!(cut("a"), None);
        assert_eq!(cut("ab"), Some(1));
        // bc is merged before ab.
        assert_eq!(cut("abc"), Some(1));
        assert_eq!(cut("abcd"), Some(3));
        assert_eq!(cut("add"), None);
    }

    #[test]
    fn what_is_no_vocabulary_is_named() {
        let cases: [(&[u8], &str); 6] = [
            (b"", "no tokens"),
            (b"YQ== 0\nYQ==\n", "line 2"),
            (b"YQ== 0\nYQ== 1\n", "twice"),
            (b"Y!== 0\n", "line 1"),
            (b"YQ== -1\n", "line 1"),
            (b"\xff", "utf-8"),
        ];
        for (bytes, expected) in cases {
            let error = ranks(bytes).expect_err(expected);
            assert!(error.contains(expected), "{error}");
        }
    }
}
