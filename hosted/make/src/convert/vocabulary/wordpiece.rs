//! BERT's WordPiece, from `tokenizer.json` or the older `vocab.txt`.
//!
//! In a GGUF file, U+2581 precedes pieces that begin a word, and `##` is removed from the others. Readers assume
//! everything that BERT's normalizer does apart from lower case and accents.

use super::super::ConvertError;
use super::super::rules::{SPACE, Step, no_place, steps};
use super::super::tokenizer_json::{TokenModel, TokenizerJson};
use super::pieces::added_tokens;
use super::table::{CONTROL, NORMAL, Table, USER_DEFINED};
use super::{Kind, Rules, TokenizerFiles, Vocabulary};
use sluice_hf::{exists, read_text};
use std::collections::BTreeSet;

impl Vocabulary {
    pub(super) fn from_wordpiece(
        json: &TokenizerJson,
        specials: &BTreeSet<String>,
        rules: Rules<'_>,
        warnings: &mut Vec<String>,
    ) -> Result<Self, String> {
        let text = BertText::of(json)?;
        check_model(&json.model)?;
        let mut table = Table::new(json, rules, warnings)?;
        for added in &json.added_tokens {
            let is_special = added.special || specials.contains(&added.content);
            table.place_added_word(added.id, &added.content, is_special, warnings);
        }
        table.mark_roles(specials);
        Ok(Self::of_table(table, text))
    }

    fn of_table(mut table: Table, text: BertText) -> Self {
        for (token, ty) in table.tokens.iter_mut().zip(&table.types) {
            if ![CONTROL, USER_DEFINED].contains(ty) {
                *token = match token.strip_prefix(CONTINUES) {
                    Some(rest) => rest.to_owned(),
                    None => format!("{SPACE}{token}"),
                };
            }
        }
        let mut vocabulary = Self {
            tokens: table.tokens,
            types: table.types,
            kind: Kind::WordPiece,
            keys: Vec::new(),
        };
        vocabulary.set_as_written(&table.as_written);
        vocabulary.set("tokenizer.ggml.normalizer.lowercase", text.lowercase);
        if let Some(strips) = text.strips_accents {
            vocabulary.set("tokenizer.ggml.normalizer.strip_accents", strips);
        }
        vocabulary
    }
}

impl Table {
    /// Places an added token; words of the vocabulary stay words.
    fn place_added_word(
        &mut self,
        id: u64,
        token: &str,
        is_special: bool,
        warnings: &mut Vec<String>,
    ) {
        if !is_special && (token.starts_with(CONTINUES) || token.starts_with(SPACE)) {
            warnings.push(format!(
                "the added token {token:?} begins as pieces of words do: not found in texts"
            ));
            return;
        }
        self.place_added(id, token, is_special, true, warnings);
    }
}

/// Prefix of pieces that continue a word.
const CONTINUES: &str = "##";

/// Settings of BERT's normalizer.
#[derive(Clone, Copy, Debug)]
struct BertText {
    lowercase: bool,
    /// `None` to follow `lowercase`.
    strips_accents: Option<bool>,
}

impl BertText {
    fn of(json: &TokenizerJson) -> Result<Self, String> {
        let normalizer = steps(&json.normalizer)?;
        let [bert] = normalizer.as_slice() else {
            return Err(format!(
                "WordPiece has the normalizer [{}]; GGUF supports only BertNormalizer",
                told(&normalizer)
            ));
        };
        let is_off = |key| bert.bool(key) == Some(false);
        if bert.kind != "BertNormalizer" || is_off("clean_text") || is_off("handle_chinese_chars") {
            return Err(no_place("normalizer", *bert));
        }
        let cuts = steps(&json.pre_tokenizer)?;
        if cuts.len() != 1 || cuts[0].kind != "BertPreTokenizer" {
            return Err(format!(
                "WordPiece has the pre_tokenizer [{}]; GGUF supports only BertPreTokenizer",
                told(&cuts)
            ));
        }
        let decoder = steps(&json.decoder)?;
        let is_own = |step: &&Step<'_>| {
            step.kind == "WordPiece" && step.str("prefix").is_none_or(|prefix| prefix == CONTINUES)
        };
        if let Some(step) = decoder.iter().find(|step| !is_own(step)) {
            return Err(no_place("decoder", *step));
        }
        Ok(Self {
            lowercase: bert.bool("lowercase") != Some(false),
            strips_accents: bert.bool("strip_accents"),
        })
    }
}

fn told(steps: &[Step<'_>]) -> String {
    let told: Vec<_> = steps.iter().map(|step| step.told()).collect();
    told.join(", ")
}

fn check_model(model: &TokenModel) -> Result<(), String> {
    let prefix = model.continuing_subword_prefix.as_deref();
    if prefix.is_some_and(|prefix| prefix != CONTINUES) {
        let prefix = prefix.unwrap_or_default();
        return Err(format!(
            "continuing_subword_prefix is {prefix:?}, not \"##\""
        ));
    }
    match model.max_input_chars_per_word {
        None | Some(100) => Ok(()),
        Some(n) => Err(format!(
            "max_input_chars_per_word is {n}; GGUF supports only 100"
        )),
    }
}

/// The vocabulary in `vocab.txt`, one token per line, as BERT's first tokenizers have it. `None` if the file does not
/// exist.
pub(super) fn read_vocab_txt(
    files: &TokenizerFiles,
    rules: Rules<'_>,
    warnings: &mut Vec<String>,
) -> Result<Option<Vocabulary>, ConvertError> {
    let path = files.folder.join("vocab.txt");
    if !exists(&path) {
        return Ok(None);
    }
    let about = &files.about;
    if about.bool("tokenize_chinese_chars") == Some(false) {
        let what = "is false, but in GGUF, Chinese characters are always words";
        return Err(about.error(&["tokenize_chinese_chars"], what).into());
    }
    let text = BertText {
        lowercase: about.bool("do_lower_case") != Some(false),
        strips_accents: about.bool("strip_accents"),
    };
    let all = read_text(&path)?;
    let lines: Vec<_> = all.lines().collect();
    let n_vocab = rules.n_vocab.map_or(lines.len(), |n| n as usize);
    if lines.len() > n_vocab {
        let what = format!(
            "{} tokens, but config.json's vocab_size is {n_vocab}",
            lines.len()
        );
        return Err(ConvertError::Tokenizer { path, what });
    }
    let mut table = Table::holes(n_vocab);
    for (id, token) in lines.into_iter().enumerate() {
        let is_special = SPECIALS.contains(&token) || files.specials.contains(token);
        table.tokens[id] = token.into();
        table.types[id] = if is_special { CONTROL } else { NORMAL };
    }
    for added in added_tokens(files, false)? {
        let is_special = added.special == Some(true) || files.specials.contains(&added.text);
        table.place_added_word(added.id, &added.text, is_special, warnings);
    }
    Ok(Some(Vocabulary::of_table(table, text)))
}

const SPECIALS: [&str; 5] = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"];
