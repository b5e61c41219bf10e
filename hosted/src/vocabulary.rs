//! The vocabulary of a model's file without the model, for files that hold nothing else, too.

use crate::encode::{EncodeError, encode};
use crate::file::{FileError, LoadMode, ModelFile};
use crate::model::OpenError;
use crate::owned::{Borrower, Owned};
use sluice_core::gguf::Gguf;
use sluice_core::tokenizer::{self, EncodeOptions, Tokenizer, TokenizerError};
use std::path::Path;
use std::sync::Arc;

/// A file read up to its vocabulary: enough to convert texts to tokens and back. A clone is the same file.
#[derive(Clone, Debug)]
pub struct VocabularyFile(Arc<Owned<Tables<'static>, (ModelFile, Vec<u32>)>>);

impl VocabularyFile {
    /// Opens the GGUF or `.slc` file at `path`, which need not hold a model that can be run.
    ///
    /// # Errors
    /// [`OpenError`]: it cannot be read, is not such a file, or its vocabulary is missing or not supported.
    pub fn open(path: impl AsRef<Path>, mode: LoadMode) -> Result<Self, OpenError> {
        let file = ModelFile::open(path.as_ref(), mode)?;
        let owned = Owned::new((file, Vec::new()), |(file, words)| Tables::new(file, words))?;
        Ok(Self(Arc::new(owned)))
    }

    /// The file's header.
    #[must_use]
    pub fn gguf(&self) -> &Gguf<'_> {
        &self.0.get().gguf
    }

    /// The vocabulary.
    #[must_use]
    pub fn tokenizer(&self) -> &Tokenizer<'_> {
        &self.0.get().tokenizer
    }

    /// The tokens of `text`.
    ///
    /// # Errors
    /// [`EncodeError`].
    pub fn encode_with(&self, text: &str, options: EncodeOptions) -> Result<Vec<u32>, EncodeError> {
        encode(self.tokenizer(), text, options)
    }
}

/// A header, and the tables of its vocabulary.
#[derive(Debug)]
struct Tables<'a> {
    gguf: Gguf<'a>,
    tokenizer: Tokenizer<'a>,
}

impl<'a> Tables<'a> {
    fn new(file: &'a ModelFile, words: &'a mut Vec<u32>) -> Result<Self, OpenError> {
        let unusable = |error: TokenizerError| OpenError::Unusable {
            name: file.name().to_owned(),
            reason: error.to_string().into(),
        };
        let gguf: Result<_, FileError> = file.parse();
        let gguf = gguf?;
        words.resize(tokenizer::plan(&gguf).map_err(unusable)?.words, 0);
        let tokenizer = Tokenizer::new(&gguf, words).map_err(unusable)?;
        Ok(Self { gguf, tokenizer })
    }
}

impl Borrower for Tables<'static> {
    type Of<'a> = Tables<'a>;

    fn shorten<'s, 'a: 's>(value: &'s Tables<'a>) -> &'s Tables<'s> {
        value
    }
}
