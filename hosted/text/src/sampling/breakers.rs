//! DRY's sequence breakers: finds the tokens that can contain the given texts.
//!
//! A text may begin in the middle of one token and end in another. As in llama.cpp, a token that
//! contains the whole text is a breaker by itself, and a token that ends with the beginning of the
//! text is one if the tokens of the rest follow.

use super::SamplingError;
use sluice_core::sampler::{DryBreaker, DryBreakers};
use sluice_core::tokenizer::{EncodeOptions, Tokenizer};

/// DRY's sequence breakers for a vocabulary.
#[derive(Clone, Debug, Default)]
pub struct DrySequenceBreakers {
    entries: Vec<DryBreaker>,
    tails: Vec<u32>,
}

impl DrySequenceBreakers {
    /// The breakers for these texts; of a text longer than 40 bytes, only the beginning is used.
    ///
    /// # Errors
    /// The vocabulary cannot encode a text.
    pub fn new(texts: &[String], tokenizer: &Tokenizer<'_>) -> Result<Self, SamplingError> {
        let mut breakers = Self::default();
        let mut piece = vec![0; tokenizer.piece_len_max()];
        for text in texts.iter().filter(|text| !text.is_empty()) {
            let text = &text[..text.floor_char_boundary(TEXT_BYTES_MAX)];
            // Indexed by the length of the part in the head, so there can be that many tails.
            let tails = Self::tails(text, tokenizer)?;
            for id in 0..tokenizer.n_vocab() {
                let Ok(held) = tokenizer.decode_piece(id, &mut piece) else {
                    continue;
                };
                breakers.add(id, held, text.as_bytes(), &tails);
            }
        }
        breakers.entries.sort_unstable();
        breakers.entries.dedup();
        Ok(breakers)
    }

    /// The breakers in core's format.
    #[must_use]
    pub fn view(&self) -> DryBreakers<'_> {
        DryBreakers {
            entries: &self.entries,
            tails: &self.tails,
        }
    }

    /// The tokens of each tail of `text` that begins at a character: `tails[i]` are the tokens of
    /// `text[i..]`.
    fn tails(
        text: &str,
        tokenizer: &Tokenizer<'_>,
    ) -> Result<Vec<Option<Vec<u32>>>, SamplingError> {
        let options = EncodeOptions {
            add_special: false,
            parse_special: false,
        };
        let mut workspace = vec![0; tokenizer.encode_workspace_words(text.len())];
        let mut tokens = vec![0; tokenizer.max_tokens(text.len())];
        let mut tails = vec![None; text.len()];
        for (start, _) in text.char_indices().skip(1) {
            let tail = tokenizer
                .encode(&text[start..], options, &mut workspace, &mut tokens)
                .map_err(|source| SamplingError::Breaker {
                    text: text.to_owned(),
                    source: Box::new(source),
                })?;
            tails[start] = Some(tail[..tail.len().min(TAIL_LEN_MAX)].to_vec());
        }
        Ok(tails)
    }

    fn add(&mut self, head: u32, held: &[u8], text: &[u8], tails: &[Option<Vec<u32>>]) {
        if held.windows(text.len()).any(|part| part == text) {
            self.push(head, &[]);
            return;
        }
        for (len, tail) in tails.iter().enumerate().skip(1) {
            if let Some(tail) = tail.as_ref().filter(|_| held.ends_with(&text[..len])) {
                self.push(head, tail);
            }
        }
    }

    fn push(&mut self, head: u32, tail: &[u32]) {
        let number = |n| u32::try_from(n).expect("far fewer than 2^32 breakers");
        let tail_start = if tail.is_empty() {
            0
        } else {
            number(self.tails.len())
        };
        self.entries.push(DryBreaker {
            head,
            tail_start,
            tail_len: number(tail.len()),
        });
        self.tails.extend_from_slice(tail);
    }
}

/// Longer texts are cut, as in llama.cpp.
const TEXT_BYTES_MAX: usize = 40;
/// Longer tails are cut, too, which bounds the search time.
const TAIL_LEN_MAX: usize = 20;
