//! White-space settings in the metadata: before texts, next to added tokens, and between words.

use super::super::SpacePrefix;
use super::super::error::TokenizerError;
use super::super::special::{Flags, LOOKED_FOR, PHI3_NOT_STRIPPING};
use super::super::vocab::{AttributesMut, Pieces, attribute};
use super::super::wordpiece::Normalizer;
use super::kind::Kind;
use super::unigram::is_suffix;
use super::{AS_WRITTEN, elements};
use crate::gguf::{Array, Gguf, GgufError, ValueType, optional};

/// The special tokens that include the white space next to them.
enum SpacesTaken {
    None,
    /// Phi-3's, nearly all of them: the white space after them.
    AfterSpecials,
    /// The mask token of this name: the white space before it.
    BeforeMask(&'static str),
}

/// Without metadata for this, the model is known by its architecture, or as in llama.cpp by
/// its name.
fn spaces_taken_along(gguf: &Gguf<'_>) -> Result<SpacesTaken, TokenizerError> {
    let holds = |key, parts: &[&str]| {
        let name = optional(gguf.bytes(key))?.unwrap_or_default();
        let held = |part: &&str| {
            let mut windows = name.windows(part.len());
            windows.any(|window| window.eq_ignore_ascii_case(part.as_bytes()))
        };
        Ok::<_, GgufError>(parts.iter().any(held))
    };
    // Phi-4 is of the same architecture, with merges by rank.
    let is_phi3 = optional(gguf.bytes("general.architecture"))? == Some(b"phi3")
        && optional(gguf.bytes("tokenizer.ggml.model"))? == Some(b"llama");
    let jina = ["jina-v2-de", "jina-v2-es", "jina-v2-code"];
    let encoders = ["nomic-bert-moe", "jina-bert-v3"];
    Ok(
        if holds("tokenizer.ggml.pre", &jina)? || holds("general.architecture", &encoders)? {
            SpacesTaken::BeforeMask("<mask>")
        } else if is_phi3 || holds("general.name", &["phi-3", "phi3"])? {
            SpacesTaken::AfterSpecials
        } else if holds("general.name", &["modern-bert"])? {
            SpacesTaken::BeforeMask("[MASK]")
        } else {
            SpacesTaken::None
        },
    )
}

/// The parts of a text that get a space before them.
pub(super) fn space_prefix(gguf: &Gguf<'_>, kind: Kind) -> Result<SpacePrefix, GgufError> {
    let flag = |key| optional(gguf.bool(key));
    let given = flag("tokenizer.ggml.add_space_prefix")?;
    // As in llama.cpp: where spaces are merged, the first word begins with one as all others do.
    let merges = matches!(kind, Kind::Unigram)
        && flag("tokenizer.ggml.remove_extra_whitespaces")?.unwrap_or(false)
        && !is_suffix(gguf)?;
    let is_added = merges || given.unwrap_or(matches!(kind, Kind::SentencePiece | Kind::Unigram));
    let is_first = flag("tokenizer.ggml.add_space_prefix_first")?.unwrap_or(false);
    let is_alone = flag("tokenizer.ggml.add_space_prefix_alone")?.unwrap_or(false);
    Ok(match (is_added, is_first) {
        (_, true) if is_alone => SpacePrefix::Text,
        (_, true) => SpacePrefix::First,
        (true, false) => SpacePrefix::Each,
        (false, false) => SpacePrefix::None,
    })
}

/// The white space that added tokens include, and which of them are separate words: from lists in the
/// file, or as known of its model.
pub(super) fn read_flags<'a>(
    gguf: &Gguf<'a>,
    pieces: Pieces<'_>,
    find: &impl Fn(&str) -> Option<u32>,
    attributes: &mut AttributesMut<'_>,
) -> Result<Flags<'a>, TokenizerError> {
    let list = |key| -> Result<Option<Array<'a>>, TokenizerError> {
        let Some(ids) = optional(gguf.array(key))? else {
            return Ok(None);
        };
        elements(ids, key, ValueType::U32)?;
        Ok(Some(ids))
    };
    let strip_right = list("tokenizer.ggml.added_tokens.rstrip")?;
    let mut flags = Flags {
        mask: None,
        strip_left: list("tokenizer.ggml.added_tokens.lstrip")?,
        single_word: list("tokenizer.ggml.added_tokens.single_word")?,
        as_written: list(AS_WRITTEN)?,
    };
    let ids = strip_right.and_then(Array::u32s).into_iter().flatten();
    for id in ids.filter(|&id| id < pieces.len()) {
        attributes.set(id, attributes.get(id) | attribute::STRIPS_RIGHT);
    }
    let ends = list("tokenizer.ggml.eog_token_ids")?;
    let ids = ends.and_then(Array::u32s).into_iter().flatten();
    for id in ids.filter(|&id| id < pieces.len()) {
        attributes.set(id, attributes.get(id) | attribute::END);
    }
    if strip_right.is_none() && flags.strip_left.is_none() {
        match spaces_taken_along(gguf)? {
            SpacesTaken::None => {}
            SpacesTaken::BeforeMask(name) => flags.mask = find(name),
            SpacesTaken::AfterSpecials => mark_phi3(find, pieces, attributes),
        }
    }
    Ok(flags)
}

/// How texts of a WordPiece vocabulary become words.
pub(super) fn normalizer(gguf: &Gguf<'_>) -> Result<Normalizer, GgufError> {
    let flag = |key| optional(gguf.bool(key));
    let lowercase = flag("tokenizer.ggml.normalizer.lowercase")?.unwrap_or(true);
    let strip_accents = flag("tokenizer.ggml.normalizer.strip_accents")?.unwrap_or(lowercase);
    Ok(Normalizer {
        lowercase,
        strip_accents,
    })
}

pub(super) fn mark_phi3(
    find: &impl Fn(&str) -> Option<u32>,
    pieces: Pieces<'_>,
    attributes: &mut AttributesMut<'_>,
) {
    for id in 0..pieces.len() {
        let flags = attributes.get(id);
        if flags & LOOKED_FOR != 0 {
            attributes.set(id, flags | attribute::STRIPS_RIGHT);
        }
    }
    for id in PHI3_NOT_STRIPPING.iter().filter_map(|name| find(name)) {
        attributes.set(id, attributes.get(id) & !attribute::STRIPS_RIGHT);
    }
}
