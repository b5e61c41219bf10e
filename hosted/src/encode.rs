//! Text to tokens, in memory that grows with what the text needs.

use sluice_core::tokenizer::{Detokenizer, EncodeOptions, Tokenizer, TokenizerError};
use std::collections::TryReserveError;

/// Why a text has no tokens.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum EncodeError {
    /// The text is too long, or has a character that the vocabulary cannot write.
    #[error(transparent)]
    Text(#[from] TokenizerError),
    /// Not enough memory.
    #[error("not enough memory to encode a text of {text_bytes} bytes")]
    Memory {
        /// Length of the text.
        text_bytes: usize,
    },
}

/// The tokens of `text`.
///
/// # Errors
/// [`EncodeError`]. A text that is too long is refused before memory is taken for it.
pub fn encode(
    tokenizer: &Tokenizer<'_>,
    text: &str,
    options: EncodeOptions,
) -> Result<Vec<u32>, EncodeError> {
    let text_bytes = text.len();
    let no_memory = |_| EncodeError::Memory { text_bytes };
    let zeroed = |words: usize| zeroed(words).map_err(no_memory);
    let most_words = tokenizer.encode_workspace_words(text_bytes);
    let most_tokens = tokenizer.max_tokens(text_bytes);
    // Enough for nearly every text; a long word, or a text of many tokens, is tried again.
    let mut workspace = zeroed(most_words.min(WORKSPACE_WORDS))?;
    let mut tokens = zeroed(most_tokens.min(TOKENS))?;
    loop {
        match tokenizer.encode(text, options, &mut workspace, &mut tokens) {
            Ok(found) => {
                let count = found.len();
                tokens.truncate(count);
                tokens.shrink_to_fit();
                return Ok(tokens);
            }
            Err(TokenizerError::WorkspaceTooSmall { words, .. }) if words < most_words => {
                workspace.clear();
                workspace = zeroed(words.saturating_mul(4).clamp(1, most_words))?;
            }
            Err(TokenizerError::OutputTooSmall {
                needed_tokens,
                tokens: room,
            }) if needed_tokens > room => {
                tokens = zeroed(needed_tokens)?;
            }
            Err(error) => return Err(error.into()),
        }
    }
}

/// Where each of the `tokens` of `text` ends in it, in bytes. Tokens that the vocabulary adds around a text have a
/// length of 0; of the tokens that share one character, the last has its end. A space that the vocabulary put before
/// the text is not counted, and one that a token swallowed belongs to the token after it.
///
/// `None`: the vocabulary changes the text so much (it is normalised) that a token is not found in it.
#[must_use]
pub fn token_ends(tokenizer: &Tokenizer<'_>, text: &str, tokens: &[u32]) -> Option<Vec<usize>> {
    let mut detokenizer = Detokenizer::new(tokenizer).showing_special();
    let (mut at, mut after_unknown) = (0, false);
    let mut ends = Vec::with_capacity(tokens.len());
    for &id in tokens {
        let mut piece = String::new();
        let pushed = detokenizer.push(tokenizer, id, |text| piece.push_str(text));
        pushed.ok()?;
        let rest = &text[at..];
        let found = match after_unknown {
            true => rest.find(&piece).map(|skipped| skipped + piece.len()),
            false => step(rest, &piece),
        };
        let is_added = [tokenizer.bos(), tokenizer.eos()].contains(&Some(id));
        at += match found {
            Some(len) => len,
            None if Some(id) == tokenizer.unk() || is_added => 0,
            None => return None,
        };
        after_unknown = found.is_none() && !is_added || after_unknown && piece.is_empty();
        ends.push(at);
    }
    let is_whole = after_unknown || text[at..].trim().is_empty();
    is_whole.then_some(ends)
}

/// The length of what `piece` stands for at the beginning of `rest`.
fn step(rest: &str, piece: &str) -> Option<usize> {
    let bare = piece.strip_prefix(' ').unwrap_or(piece);
    let trimmed = rest.trim_start();
    let skipped = rest.len() - trimmed.len();
    let ways = [(rest, piece, 0), (rest, bare, 0), (trimmed, piece, skipped)];
    let mut ways = ways.into_iter();
    ways.find_map(|(rest, piece, skipped)| rest.starts_with(piece).then_some(skipped + piece.len()))
}

fn zeroed(words: usize) -> Result<Vec<u32>, TryReserveError> {
    let mut zeroed = Vec::new();
    zeroed.try_reserve_exact(words)?;
    zeroed.resize(words, 0);
    Ok(zeroed)
}

/// Words to begin with: 4 MiB.
const WORKSPACE_WORDS: usize = 1 << 20;

/// Tokens to begin with: more than a context of most models.
const TOKENS: usize = 1 << 17;
