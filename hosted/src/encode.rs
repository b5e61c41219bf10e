//! Text to tokens, in memory that grows with what the text needs.

use sluice_core::tokenizer::{EncodeOptions, Tokenizer, TokenizerError};
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
