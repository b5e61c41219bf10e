//! Text for a model to read: a file, cut into chunks of tokens.

use super::prompt;
use anyhow::{Context as _, bail};
use sluice::core::gguf::Gguf;
use sluice::core::tokenizer::{EncodeOptions, Tokenizer};
use std::path::Path;

/// Chunks of tokens, all of one length.
#[derive(Debug)]
pub(super) struct Chunks {
    tokens: Vec<u32>,
    len: usize,
}

impl Chunks {
    /// The first chunks of `len` tokens of the text in `path`, at most `max`. As in llama.cpp, each
    /// begins with the token that begins texts, where the model has such a habit.
    ///
    /// # Errors
    /// The file cannot be read, is not UTF-8, or is shorter than a chunk.
    pub(super) fn read(
        gguf: &Gguf<'_>,
        path: &Path,
        len: usize,
        max: usize,
    ) -> anyhow::Result<Self> {
        let name = path.display();
        let text = std::fs::read(path).with_context(|| format!("cannot read {name}"))?;
        let text = String::from_utf8(text).map_err(|error| {
            let at = error.utf8_error().valid_up_to();
            anyhow::anyhow!("{name} is not UTF-8 text: invalid bytes from byte {at} on")
        })?;
        let mut words = prompt::tokenizer_memory(gguf)?;
        let tokenizer = Tokenizer::new(gguf, &mut words)?;
        let mut workspace = vec![0; tokenizer.encode_workspace_words(text.len())];
        let mut tokens = vec![0; tokenizer.max_tokens(text.len())];
        let options = EncodeOptions {
            add_special: true,
            parse_special: false,
        };
        let count = tokenizer
            .encode(&text, options, &mut workspace, &mut tokens)
            .with_context(|| format!("cannot encode {name}"))?
            .len();
        let n_chunks = (count / len).min(max);
        if n_chunks == 0 {
            bail!("{name} has {count} tokens, fewer than one chunk of {len}");
        }
        tokens.truncate(n_chunks * len);
        if let Some(bos) = tokenizer.bos().filter(|_| tokenizer.adds_bos()) {
            for chunk in tokens.chunks_mut(len) {
                chunk[0] = bos;
            }
        }
        Ok(Self { tokens, len })
    }

    pub(super) fn slices(&self) -> Vec<&[u32]> {
        self.tokens.chunks(self.len).collect()
    }
}
