//! Metadata about the vocabulary that no tokenizer here reads.

use super::Tokenizer;
use crate::gguf::Gguf;
use crate::kernels::words;

impl Tokenizer<'_> {
    /// The metadata keys under `tokenizer.ggml.` that nothing reads, in the file's order: they may change
    /// how texts are cut.
    pub fn unread_keys<'a>(gguf: &Gguf<'a>) -> impl Iterator<Item = &'a str> + use<'a> {
        gguf.metadata().filter_map(|(key, _)| {
            let rest = key.strip_prefix("tokenizer.ggml.")?;
            let is_known = READ.contains(&rest) || WITHOUT_EFFECT.contains(&rest);
            (!is_known).then_some(key)
        })
    }
}

/// Keys that `build` and `special.rs` read.
const READ: &[&str] = words!(
    "add_bos_token add_eos_token add_sep_token add_space_prefix add_space_prefix_alone \
     add_space_prefix_first add_space_prefix_if_missing added_tokens.as_written added_tokens.lstrip \
     added_tokens.normalized added_tokens.rstrip added_tokens.single_word bos_token_id eog_token_ids \
     eom_token_id eos_token_id eot_token_id fim_mid_token_id fim_pad_token_id fim_pre_token_id \
     fim_rep_token_id fim_sep_token_id fim_suf_token_id fuse_unk ignore_merges mask_token_id \
     merges middle_token_id model normalizer.lowercase normalizer.nfc normalizer.strip_accents \
     padding_token_id pre precompiled_charsmap prefix_token_id remove_extra_whitespaces scores \
     seperator_token_id split_whitespace suffix_token_id suppress_tokens token_type tokens \
     treat_whitespace_as_suffix unknown_token_id"
);

/// Keys that are read elsewhere or have no effect: of the two roles, WordPiece's marks are its BOS and separator.
const WITHOUT_EFFECT: &[&str] = &["add_sep_token", "cls_token_id", "token_type_count"];

#[cfg(test)]
mod tests {
    use super::*;

    /// A key that is read and not listed would be called unread, and one that is not read any more known.
    #[test]
    fn the_list_is_what_is_read() {
        let sources = [
            include_str!("build.rs"),
            include_str!("build/kind.rs"),
            include_str!("build/spaces.rs"),
            include_str!("build/unigram.rs"),
            include_str!("special.rs"),
        ];
        let literals = || {
            let pieces = sources.iter().flat_map(|source| source.split('"'));
            pieces.filter_map(|text| text.strip_prefix("tokenizer.ggml."))
        };
        for key in literals() {
            assert!(READ.contains(&key), "{key} is read, and not in the list");
        }
        for key in READ {
            assert!(literals().any(|other| other == *key), "{key} is not read");
        }
    }
}
